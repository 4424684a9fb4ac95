"""The memory of compiling a model at a start of vLLM without cached graphs (vllm/compilation/backends.py).

torch times each kernel that it may combine with others (`benchmark_combo_kernel` of vllm/config/compilation.py, pull
request 26682) on random arguments of the same sizes (torch/_inductor/codegen/triton.py, `codegen_kernel_benchmark`).
The largest arguments are those of the kernel that reads embeddings and normalizes them: it has a second table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engines.rank import EngineRank
from ..engines.versions import VersionNumbers

CACHE_VARIABLE = "VLLM_DISABLE_COMPILE_CACHE"
"""Environment variable that, set to 1, makes every start compile like a first start (vllm/envs.py)."""

TIMES_KERNELS_FROM = (0, 11, 1)
"""First version that lets torch benchmark combined kernels."""


def has_kernel_autotuning(
    version_numbers: VersionNumbers, flags: Mapping[str, Any], compilation_config: Mapping[str, Any]
) -> bool:
    """Whether compilation benchmarks kernels (autotuning). compilation_config: contents of `--compilation-config`."""
    compilation_level = str(compilation_config.get("mode", compilation_config.get("level", 3)))
    is_compiled = not flags.get("enforce_eager") and compilation_level not in ("0", "NONE")
    benchmarks_kernels = compilation_config.get("inductor_compile_config", {}).get("benchmark_combo_kernel", True)
    return bool(version_numbers >= TIMES_KERNELS_FROM and is_compiled and benchmarks_kernels)


def compilation_bytes(engine_rank: EngineRank, token_count: int, element_bytes: int) -> int:
    """Returns the peak bytes of compiling: the rank's embedding table, and an input and an output vector of each token.

    0 for a class with encoders, which embeds its inputs before the compiled graph.
    """
    if engine_rank.preset.model.towers:
        return 0
    return (
        (-(-engine_rank.vocab_size // engine_rank.layout.tp) + 2 * token_count)
        * engine_rank.hidden_size
        * element_bytes
    )
