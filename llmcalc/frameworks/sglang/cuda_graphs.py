"""The memory that SGLang's default of `mem_fraction_static` leaves for CUDA graphs (`reserve_for_graph_mb`).

Graphs of decoding take 2 MiB for each sequence of the largest one; graphs of prompts, each of a number of tokens, 8 MiB
each, or 1.5 GiB together with latent attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...accelerator import Hardware
from ...components.mixers.kimi_delta_attention import KimiDeltaAttention
from ..engines.rank import EngineRank, mixers_with_layer_counts
from .versions import SGLangRules

PROMPT_LENGTH_RANGES = (
    (4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, 10**12, 512),
)  # fmt: skip
"""Prompt lengths in tokens that are captured as CUDA graphs, as ranges: (first, last, step)."""

LATENT_PROMPTS_MIB = 1536
"""MiB reserved for CUDA graphs of prompts in models with latent attention."""

FLAGS_WITHOUT_PROMPT_GRAPHS = (
    "speculative_algorithm", "enable_dp_attention", "enable_lora", "lora_paths", "enable_torch_compile",
    "enable_hierarchical_cache", "enable_deterministic_inference", "enable_symm_mem",
)  # fmt: skip
"""Flags with which prompts are not compiled piecewise, and so have no CUDA graphs."""


def decode_graphs_mib(version_rules: SGLangRules, flags: Mapping[str, Any], sequence_count: int) -> int:
    """Returns the MiB reserved for graphs of decoding steps. sequence_count: sequences in the largest graph."""
    if version_rules.reserves_used_graphs and not _has_decode_graphs(flags):
        return 0
    return 2 * sequence_count


def _has_decode_graphs(flags: Mapping[str, Any]) -> bool:
    """Whether decoding steps run as CUDA graphs; a server that only reads prompts has none."""
    return not (
        flags.get("disable_cuda_graph")
        or flags.get("cuda_graph_backend_decode") == "disabled"
        or flags.get("disaggregation_mode") == "prefill"
    )


def exchange_buffers_mib(
    version_rules: SGLangRules, flags: Mapping[str, Any], exchange_library: str, has_prompt_graphs: bool
) -> tuple[int, int]:
    """Returns DeepEP's buffers in MiB as two numbers: inside the least reserve of large devices, and beyond it.

    exchange_library: the library that sends tokens to experts.
    """
    if exchange_library != "deepep":
        return 0, 0
    has_breakable_graphs = has_prompt_graphs and version_rules.prompt_graphs == "breakable"
    return (
        version_rules.exchange_prompt_mib if has_breakable_graphs else 0,
        version_rules.exchange_mib if _has_decode_graphs(flags) else 0,
    )


def prompt_graphs_mib(
    version_rules: SGLangRules,
    flags: Mapping[str, Any],
    engine_rank: EngineRank,
    hardware: Hardware,
    architectures: tuple[str, ...],
    chunk_tokens: int,
    stage_count: int,
) -> int:
    """Returns the MiB reserved for CUDA graphs of prompts (prefill).

    architectures: names of the model's classes. chunk_tokens: tokens of a prompt's chunk. stage_count: stages of the
        pipeline.
    """
    if not _has_prompt_graphs(version_rules, flags, engine_rank, hardware, architectures, stage_count):
        return 0
    if engine_rank.up_projection_elements:
        return LATENT_PROMPTS_MIB
    captured_lengths = flags.get("piecewise_cuda_graph_tokens")
    if captured_lengths:
        return 8 * len(captured_lengths)
    token_limit = int(flags.get("piecewise_cuda_graph_max_tokens", chunk_tokens))
    return 8 * sum(
        len(range(shortest_length, min(accepted_request_limit, token_limit) + 1, length_step))
        for shortest_length, accepted_request_limit, length_step in PROMPT_LENGTH_RANGES
    )


def _has_prompt_graphs(
    version_rules: SGLangRules,
    flags: Mapping[str, Any],
    engine_rank: EngineRank,
    hardware: Hardware,
    architectures: tuple[str, ...],
    stage_count: int,
) -> bool:
    """Whether SGLang runs prompts (prefill) as CUDA graphs."""
    graph_backend = flags.get("cuda_graph_backend_prefill")
    disables_all_graphs = version_rules.switches_all_graphs and bool(flags.get("disable_cuda_graph"))
    if (
        version_rules.prompt_graphs == "off"
        or flags.get("disable_piecewise_cuda_graph")
        or graph_backend == "disabled"
        or disables_all_graphs
    ):
        return False
    if graph_backend is not None:
        return True
    disaggregation_mode = flags.get("disaggregation_mode", "null")
    if stage_count > 1 or disaggregation_mode == "decode" or not hardware.vendor.upper().startswith("NVIDIA"):
        return False
    has_encoder = bool(engine_rank.preset.model.towers) or isinstance(
        (engine_rank.preset.config or {}).get("vision_config"), Mapping
    )
    has_encoder = has_encoder and not flags.get("language_model_only")
    if version_rules.prompt_graphs == "compiled":
        return not (
            has_encoder
            or disaggregation_mode != "null"
            or any(flags.get(flag_field) for flag_field in FLAGS_WITHOUT_PROMPT_GRAPHS)
        )
    if engine_rank.up_projection_elements and not (
        version_rules.latent_prompt_graphs == "all"
        or (version_rules.latent_prompt_graphs == "selected" and engine_rank.has_latent_selection)
    ):
        return False
    if (
        any(isinstance(mixer, KimiDeltaAttention) for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model))
        and not version_rules.kda_prompt_graphs
    ):
        return False
    return not has_encoder or not {*architectures}.isdisjoint(version_rules.encoder_prompt_graphs)
