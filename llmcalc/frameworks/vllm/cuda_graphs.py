"""The CUDA graphs that vLLM captures, and its estimate of their memory (v1/worker/gpu_model_runner.py).

`profile_cudagraph_memory` captures the two largest graphs of each mode: the pool that the first one leaves is shared by
all, and each further graph is counted with the memory of the second. That of the second model runner captures all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...components.mixers.attention import Attention
from ..engines.rank import EngineRank, mixers_with_layer_counts
from .versions import GraphEstimate

MIB = 2**20

GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 1025, 16))
"""Batch sizes for which vLLM captures CUDA graphs (vllm/config/vllm.py, `_set_cudagraph_sizes`)."""

INTERACTIVE_SIZES = (*range(1, 33), *GRAPH_SIZES[7:])
"""Batch sizes for which vLLM captures CUDA graphs with `--performance-mode interactivity`."""

LARGEST_DEFAULT_BATCH = 512
"""Largest batch size that is captured by default."""

FLASH_ATTENTION_SPLITS = 32
"""Parts of a sequence in a FlashAttention 3 graph (`flash_attn_max_num_splits_for_cuda_graph`)."""

LARGEST_SPLIT_BATCH = 992
"""Largest batch size of a graph in which FlashAttention 3 splits sequences (v1/attention/backends/flash_attn.py)."""

FLASH_ATTENTION_3_GENERATION = 9
"""NVIDIA's generation of GPUs on which vLLM runs FlashAttention 3 (vllm/v1/attention/backends/fa_utils.py)."""

LARGEST_FLASH_HEAD = 256
"""Largest head size that FlashAttention supports."""


class CUDAGraphs(NamedTuple):
    """The CUDA graphs that a vLLM server captures, for mixed batches and for decoding steps.

    piecewise_graph_count, full_graph_count: the numbers of graphs for mixed batches and for decoding.
    largest_batch_size: sequences of the largest full graph. graph_variants: 2 with graphs of adapters and without.
    """

    piecewise_graph_count: int = 0
    full_graph_count: int = 0
    largest_batch_size: int = 0
    graph_variants: int = 1

    @property
    def graph_count(self) -> int:
        """The number of all CUDA graphs that the server captures."""
        return (self.piecewise_graph_count + self.full_graph_count) * self.graph_variants

    def estimated_bytes(
        self, graph_estimate: GraphEstimate, engine_rank: EngineRank, split_bytes: int, graphs_ratio: float = 1
    ) -> int:
        """Returns the bytes that vLLM estimates for the graphs of a rank.

        split_bytes: from `split_buffer_bytes`. graphs_ratio: bytes of a graph by those of the first runner's estimate.
        """
        if not self.graph_count:
            return 0
        complex_layer_count = layers_with_many_kernels(engine_rank)
        simple_layer_count = engine_rank.layer_count - complex_layer_count
        graph_mib = (
            graph_estimate.mib_per_layer * simple_layer_count
            + graph_estimate.mib_per_complex_layer * complex_layer_count
        )
        later_graph_count = sum(
            max(self.graph_variants * captured_count - 1, 0)
            for captured_count in (self.piecewise_graph_count, self.full_graph_count)
        )
        return int(
            max(graph_estimate.shared_mib * MIB, split_bytes)
            + later_graph_count * max(1, graph_mib) * graphs_ratio * MIB
        )

    def split_buffer_bytes(self, engine_rank: EngineRank, element_bytes: int, compute_capability: str | None) -> int:
        """Returns the bytes of FlashAttention 3's float32 partial sums, which stay allocated for full graphs.

        A buffer holds each part of each query of the largest batch (csrc/flash_attn, `out_accum`).
        """
        splits_sequences = int(float(compute_capability or 0)) == FLASH_ATTENTION_3_GENERATION and element_bytes == 2
        if not splits_sequences or not 0 < self.largest_batch_size <= LARGEST_SPLIT_BATCH:
            return 0
        query_widths = [
            mixer.num_attention_heads * (mixer.head_dim or engine_rank.hidden_size // mixer.num_attention_heads)
            for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model)
            if isinstance(mixer, Attention) and (mixer.head_dim or 0) <= LARGEST_FLASH_HEAD
        ]
        return (
            FLASH_ATTENTION_SPLITS * self.largest_batch_size * max(query_widths, default=0) // engine_rank.layout.tp * 4
        )


def cuda_graphs(
    flags: Mapping[str, Any],
    compilation_config: Mapping[str, Any],
    decoded_tokens: int,
    batch_tokens: int,
    default_limit: int,
) -> CUDAGraphs:
    """Returns the graphs that a server captures.

    compilation_config: contents of `--compilation-config`. decoded_tokens: of a step in which every sequence decodes.
    batch_tokens: tokens of the largest batch. default_limit: the largest batch that is captured without a flag.
    """
    graph_mode = graph_mode_of(compilation_config)
    if flags.get("enforce_eager") or graph_mode in ("NONE", "0") or compilation_config.get("level", 3) == 0:
        return CUDAGraphs()
    typed_sizes = flags.get("cudagraph_capture_sizes") or compilation_config.get("cudagraph_capture_sizes")
    default_sizes = INTERACTIVE_SIZES if flags.get("performance_mode") == "interactivity" else GRAPH_SIZES
    batch_sizes = default_sizes if typed_sizes is None else tuple(dict.fromkeys(typed_sizes))
    largest_size = flags.get("max_cudagraph_capture_size", compilation_config.get("max_cudagraph_capture_size"))
    if largest_size is None:
        largest_size = max(batch_sizes) if typed_sizes else default_limit
    captured_sizes = [batch_size for batch_size in batch_sizes if batch_size <= min(largest_size, batch_tokens)]
    full_graph_sizes = [batch_size for batch_size in captured_sizes if batch_size <= decoded_tokens]
    has_adapter_graphs = flags.get("enable_lora") and compilation_config.get("cudagraph_specialize_lora", True)
    return CUDAGraphs(
        piecewise_graph_count=0 if graph_mode in ("FULL", "FULL_DECODE_ONLY") else len(captured_sizes),
        full_graph_count=0 if graph_mode == "PIECEWISE" else len(full_graph_sizes),
        largest_batch_size=0 if graph_mode == "PIECEWISE" else max(full_graph_sizes, default=0),
        graph_variants=2 if has_adapter_graphs else 1,  # v1/cudagraph_dispatcher.py
    )


def graph_mode_of(compilation_config: Mapping[str, Any]) -> str:
    """Returns the mode of CUDA graphs: `PIECEWISE`, `FULL`, `FULL_DECODE_ONLY`, `FULL_AND_PIECEWISE` or `NONE`."""
    return str(compilation_config.get("cudagraph_mode", "FULL_AND_PIECEWISE")).upper().rpartition(".")[2]


def layers_with_many_kernels(engine_rank: EngineRank) -> int:
    """Returns the number of a rank's layers with more kernels than a dense layer: experts, an indexer or states."""
    _, _, rank_experts = engine_rank.widest_network_sizes
    if rank_experts is not None or engine_rank.has_latent_selection:
        return engine_rank.layer_count
    return max((state_cache.layer_count for state_cache in engine_rank.state_caches), default=0)
