"""CUDA graphs of Megatron-Core training: graphs of layers are accepted with a note, a graph of the step is refused.

A graph's tensors lie in a pool that nothing else can use (core/transformer/cuda_graphs.py, `global_mempool`), beside
static copies of its inputs. Their bytes are not counted: NVIDIA's figures are docs/performance-guide.md of
Megatron-Bridge at 067f987 ("a few gigabytes …, PP size > 1 may consume over 10GB"), and its skill perf-cuda-graphs
("full-iteration graphs can increase peak memory by 1.5–2×").
"""

from __future__ import annotations

from collections.abc import Collection

LAYER_GRAPH_IMPLEMENTATIONS = ("local", "transformer_engine")
"""Values of `cuda_graph_impl` that capture each layer, or modules of a layer."""

WHOLE_STEP_GRAPH = "a CUDA graph of the whole step"


def captures_whole_step(implementation: str, modules: Collection[str]) -> bool:
    """Whether one CUDA graph captures the whole training step. modules: value of `cuda_graph_modules` or `…_scope`."""
    return implementation == "full_iteration" or (
        implementation in LAYER_GRAPH_IMPLEMENTATIONS and "full_iteration" in modules
    )


def layer_graphs_note(stage_count: int) -> str:
    """Returns a note that the memory of layers' CUDA graphs is not counted."""
    extra_memory_text = "a few GB more, at times over 10" if stage_count > 1 else "a few GB more"
    return f"CUDA graphs: their pools and static buffers are not counted; NVIDIA documents {extra_memory_text}"
