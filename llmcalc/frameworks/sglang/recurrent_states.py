"""The pool of recurrent states in SGLang, and the memory left for keys and values (`handle_max_mamba_cache`).

A slot holds the states of all layers. A running request takes several of them, as prefixes are cached with their
states, and each drafted token of a request has a copy of the states beside the slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from ...components.mixers.gated_delta_net import GatedDeltaNet
from ...components.mixers.kimi_delta_attention import KimiDeltaAttention
from ...components.mixers.mamba import Mamba
from ...components.mixers.mamba2 import Mamba2
from ...components.mixers.selective_mamba2 import SelectiveMamba2
from ...units import DTYPE_BITS
from ..engines.rank import NO_FORMAT_RATIOS, EngineRank, mixers_with_layer_counts
from .versions import SGLangRules

SLOTS_OF_A_REQUEST = 3
"""Number of state slots per running request with prefix caching (`MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO`)."""

SLOTS_OF_OVERLAP = 2
"""Additional state slots per request with overlapped scheduling (`--mamba-radix-cache-strategy extra_buffer`)."""

DEFAULT_SLOTS = 512
"""Number of state slots in versions without a memory fraction for states, and without prefix caching."""


class ConcurrencyLimits(NamedTuple):
    """The limits of a rank's concurrent requests: request count, attention replicas, and drafted tokens.

    request_limit: the most that run at once; None without a limit. replica_count: replicas of attention.
    draft_tokens: drafted tokens that a request verifies at once.
    """

    request_limit: int | None
    replica_count: int
    draft_tokens: int


class StatePool(NamedTuple):
    """The slots for recurrent states on a rank.

    slot_count: number of slots.
    max_running_requests: number of requests that can run at once with these slots.
    remaining_bytes: bytes that are left for the KV cache.
    """

    slot_count: int
    max_running_requests: int
    remaining_bytes: int


def state_pool(
    engine_rank: EngineRank,
    version_rules: SGLangRules,
    flags: Mapping[str, Any],
    available_bytes: int,
    state_share: float,
    concurrency_limits: ConcurrencyLimits,
) -> StatePool:
    """Returns the pool of recurrent states of a rank.

    flags: values of SGLang's flags by their fields. available_bytes: bytes for states and cache together.
    state_share: parts of states to one part of cache.
    """
    rank_requests, replica_count, draft_tokens = concurrency_limits
    slot_bytes = state_slot_bytes(engine_rank, flags)
    padding_slots = int(version_rules.has_padding_slot)
    caches_prefixes = not flags.get("disable_radix_cache")
    slots_per_request = _state_slots_per_request(engine_rank, version_rules, flags) if caches_prefixes else 1
    draft_slots = draft_tokens if version_rules.draft_state_storage == "slots" else 0
    if draft_tokens and version_rules.draft_state_storage == "requests":
        available_bytes -= slot_bytes * (rank_requests or 0) * draft_tokens
    if "max_mamba_cache_size" in flags:
        slot_count = int(flags["max_mamba_cache_size"]) // replica_count
    elif (
        not caches_prefixes and (rank_requests is not None or version_rules.draft_state_storage == "slots")
    ) or not version_rules.has_state_share:
        slot_count = rank_requests or DEFAULT_SLOTS
    else:
        state_budget = available_bytes * state_share / (1 + state_share)
        draft_state_storage = draft_tokens if version_rules.draft_state_storage == "budget" else 0
        slot_count = max(
            0,
            int(
                (state_budget - padding_slots * slot_bytes * (1 + draft_state_storage))
                // (slot_bytes * (1 + draft_slots + draft_state_storage / slots_per_request))
            ),
        )
    concurrent_requests = slot_count // slots_per_request
    if draft_tokens and version_rules.draft_state_storage == "budget":
        available_bytes -= (
            slot_bytes * (min(rank_requests or concurrent_requests, concurrent_requests) + padding_slots) * draft_tokens
        )
    return StatePool(
        slot_count, concurrent_requests, available_bytes - slot_bytes * (1 + draft_slots) * (slot_count + padding_slots)
    )


def state_slot_bytes(engine_rank: EngineRank, flags: Mapping[str, Any]) -> int:
    """Returns the bytes of one state slot: the recurrent states of all layers.

    Those of Mamba and delta networks have the number format of `--mamba-ssm-dtype`, else the one that the config
    states, else float32 (configs/mamba_utils.py, `mamba2_state_dtype`).
    """
    has_chosen_format = any(
        isinstance(mixer, Mamba | Mamba2 | SelectiveMamba2 | GatedDeltaNet | KimiDeltaAttention)
        for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model)
    )
    format_name = str(flags.get("mamba_ssm_dtype") or engine_rank.preset.state_dtype or "float32")
    format_ratios = (
        {"recurrent_state": Fraction(DTYPE_BITS[format_name], 32)} if has_chosen_format else NO_FORMAT_RATIOS
    )
    return sum(
        cache.layer_count * cache.bytes for cache in engine_rank.stored_state_caches(format_ratios=format_ratios)
    )


def _state_slots_per_request(engine_rank: EngineRank, version_rules: SGLangRules, flags: Mapping[str, Any]) -> int:
    """Returns the number of state slots that one running request needs; prefix caching needs several."""
    scheduler_strategy = flags.get("mamba_scheduler_strategy", "auto")
    schedules_ahead = version_rules.has_overlap_states and any(
        isinstance(mixer, GatedDeltaNet | KimiDeltaAttention | Mamba2)
        for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model)
    )
    if scheduler_strategy == "no_buffer" or (scheduler_strategy == "auto" and not schedules_ahead):
        return SLOTS_OF_A_REQUEST
    if scheduler_strategy == "extra_buffer_lazy" or flags.get("disable_overlap_schedule"):
        return SLOTS_OF_A_REQUEST + 1
    return SLOTS_OF_A_REQUEST + SLOTS_OF_OVERLAP
