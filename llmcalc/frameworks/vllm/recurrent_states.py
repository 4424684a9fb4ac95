"""The blocks of recurrent states in vLLM's cache, and the number of blocks per request.

A state takes one block, whose bytes attention's blocks adopt (vllm/platforms/interface.py, `_align_hybrid_block_size`;
to 0.19 vllm/model_executor/models/config.py). With prefix caching a request keeps further states: two in the mode
`align`, and one for each block of tokens in the mode `all` (vllm/v1/kv_cache_interface.py, `MambaSpec`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from ...accelerator import Hardware
from ...components.mixers.gated_delta_net import GatedDeltaNet
from ...components.mixers.kimi_delta_attention import KimiDeltaAttention
from ...components.mixers.mamba import Mamba
from ...components.mixers.mamba2 import Mamba2
from ...components.mixers.selective_mamba2 import SelectiveMamba2
from ...errors import InputError
from ...units import DTYPE_BITS
from ..engines.flags import AUTO_WORDS
from ..engines.rank import NO_FORMAT_RATIOS, EngineRank, StateCache, architectures, mixers_with_layer_counts
from .versions import StateRules

BLOCK_TOKEN_MULTIPLE = 16
"""The size of attention's block is a multiple of this number of tokens if it is derived from the size of a state."""

MAMBA_CHUNK_TOKENS = 2048
"""Number of tokens per chunk for Mamba, whose config states none (vllm/config/model.py, `get_mamba_chunk_size`)."""


CHECKPOINT_ALIGNMENT = 64
"""The size of a block is a multiple of this number of tokens if FlashInfer exports states of a Gated DeltaNet
(vllm/v1/attention/backends/gdn_attn.py).
"""


class StateStorage(NamedTuple):
    """The number of recurrent states in vLLM's cache, and the number of cache blocks that store the states.

    storage_mode: `current` with one state, `align`, or `all` with a state for each block of tokens.
    draft_tokens: drafted tokens of a step, each with a state of its own. checkpoint_count: further states of a request.
    alignment: tokens of which attention's block is a multiple. format_ratios: kind of state → the bytes of its
    elements, as a multiple of those in the classes of transformers.
    """

    storage_mode: str = "current"
    draft_tokens: int = 0
    checkpoint_count: int = 0
    alignment: int = BLOCK_TOKEN_MULTIPLE
    format_ratios: Mapping[str, Fraction] = NO_FORMAT_RATIOS

    def blocks_of_request(self, request_tokens: int, block_tokens: int) -> int:
        """Returns the state blocks of a layer group for one request. block_tokens: tokens per block."""
        if self.storage_mode == "all":
            return -(-request_tokens // block_tokens) + self.draft_tokens
        return (2 + self.checkpoint_count if self.storage_mode == "align" else 1) + self.draft_tokens


CURRENT_STATE = StateStorage()
"""State blocks of a server whose requests each keep only the current state."""


def state_storage(
    engine_rank: EngineRank,
    version_rules: StateRules,
    hardware: Hardware,
    flags: Mapping[str, Any],
    draft_tokens: int,
    block_size: int,
    element_bytes: int,
) -> StateStorage:
    """Returns the number, number format and location of a rank's recurrent states in vLLM's cache.

    hardware: the accelerator. flags: values of vLLM's flags by their fields. draft_tokens: drafted tokens of a step.
    block_size: tokens of a block as `--block-size` or the default has them. element_bytes: bytes of an
    activation.
    """
    format_ratios = _format_ratios(engine_rank, version_rules, flags, element_bytes)
    return _state_blocks(engine_rank, version_rules, hardware, flags, draft_tokens, block_size)._replace(
        format_ratios=format_ratios
    )


def _format_ratios(
    engine_rank: EngineRank, version_rules: StateRules, flags: Mapping[str, Any], element_bytes: int
) -> Mapping[str, Fraction]:
    """Returns the bytes per state element in vLLM, divided by the bytes per element in transformers' classes.

    By default the last inputs of a convolution and the states of Mamba and of Gated DeltaNets have the model's number
    format, unless the config states another for the states; those of Kimi Delta Attention are float32
    (vllm/model_executor/layers/mamba/mamba_utils.py, `MambaStateDtypeCalculator`, and models/config.py).
    """
    mixer_modules = [mixer for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model)]
    conv_bytes = _element_bytes_of_flag(flags, "mamba_cache_dtype") or element_bytes
    format_ratios = {"conv_state": Fraction(conv_bytes, 2)}
    chosen_element_bytes = _element_bytes_of_flag(flags, "mamba_ssm_cache_dtype")
    if any(isinstance(mixer, KimiDeltaAttention) for mixer in mixer_modules):
        if chosen_element_bytes not in (None, 4) and not version_rules.chooses_delta_attention:
            raise InputError("--mamba-ssm-cache-dtype: Kimi Delta Attention has states of float32 in this version")
        return format_ratios | {"recurrent_state": Fraction(chosen_element_bytes or 4, 4)}
    if any(isinstance(mixer, Mamba | Mamba2 | SelectiveMamba2 | GatedDeltaNet) for mixer in mixer_modules):
        return format_ratios | {
            "recurrent_state": Fraction(
                chosen_element_bytes or _state_element_bytes(engine_rank, version_rules) or conv_bytes, 4
            )
        }
    return (
        format_ratios | {"recurrent_state": Fraction(conv_bytes, 2)} if "mamba_cache_dtype" in flags else format_ratios
    )


def _element_bytes_of_flag(flags: Mapping[str, Any], flag_field: str) -> int | None:
    """Returns the bytes per element of the number format in a flag; None without the flag, and for `auto`."""
    dtype_name = str(flags.get(flag_field, "auto"))
    return None if dtype_name in AUTO_WORDS else DTYPE_BITS[dtype_name] // 8


def _state_element_bytes(engine_rank: EngineRank, version_rules: StateRules) -> int | None:
    """Returns the bytes of a state element, from the config or the version's rule for the model class."""
    if not version_rules.reads_config_dtype:
        return None
    if engine_rank.preset.state_dtype is not None:
        return DTYPE_BITS[engine_rank.preset.state_dtype] // 8
    return None if {*architectures(engine_rank.preset)}.isdisjoint(version_rules.float32_architectures) else 4


def _state_blocks(
    engine_rank: EngineRank,
    state_rules: StateRules,
    hardware: Hardware,
    flags: Mapping[str, Any],
    draft_tokens: int,
    block_size: int,
) -> StateStorage:
    """Returns the number and location of recurrent states; `state_storage` adds their number format."""
    mixers = [mixer for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model)]
    mamba_modules = [mixer for mixer in mixers if isinstance(mixer, Mamba | Mamba2)]
    storage_mode = "current"
    if flags.get("enable_prefix_caching", state_rules.caches_prefixes):
        storage_mode = _state_storage_mode(
            state_rules, bool(mamba_modules), str(flags.get("mamba_cache_mode", "none")), draft_tokens
        )
    state_alignment = state_rules.latent_alignment if engine_rank.up_projection_elements else BLOCK_TOKEN_MULTIPLE
    if "block_size" in flags and state_rules.aligns_to_block_size:
        state_alignment = max(state_alignment, block_size)
    if storage_mode == "all":
        chunk_tokens = max((getattr(mixer, "chunk_size", MAMBA_CHUNK_TOKENS) for mixer in mamba_modules), default=1)
        state_alignment = math.lcm(state_alignment, chunk_tokens)
    if storage_mode != "align":
        return StateStorage(storage_mode, draft_tokens, 0, state_alignment)
    if _exports_delta_net_states(state_rules, hardware) and any(isinstance(mixer, GatedDeltaNet) for mixer in mixers):
        return StateStorage(storage_mode, draft_tokens, 1, math.lcm(state_alignment, CHECKPOINT_ALIGNMENT))
    has_checkpoint = state_rules.checkpoints_of_mamba2 and any(isinstance(mixer, Mamba2) for mixer in mamba_modules)
    return StateStorage(storage_mode, draft_tokens, int(has_checkpoint), state_alignment)


def _exports_delta_net_states(version_rules: StateRules, hardware: Hardware) -> bool:
    """Whether FlashInfer runs the prompts of Gated DeltaNet, and can export states from inside a prompt."""
    first_version = version_rules.checkpoints_of_delta_nets
    return (
        first_version is not None
        and hardware.compute_capability is not None
        and float(hardware.compute_capability) >= first_version
    )


def _state_storage_mode(state_rules: StateRules, has_mamba: bool, state_mode: str, draft_tokens: int) -> str:
    """Returns vLLM's storage mode of recurrent states for prefix caching. state_mode: `--mamba-cache-mode`."""
    if state_rules.prefix_caching_mode != "all or align":
        return state_rules.prefix_caching_mode
    if not has_mamba or state_mode == "align" or (state_mode == "none" and draft_tokens and state_rules.aligns_drafts):
        return "align"
    return "all"


def stored_state_caches(engine_rank: EngineRank, state_layout: StateStorage) -> list[StateCache]:
    """Returns the recurrent states in vLLM: a convolution's last k − 1 inputs and the layer's state, also for drafts.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py, `MambaStateShapeCalculator`.
    """
    has_no_draft_states = any(
        isinstance(mixer, KimiDeltaAttention | Mamba) for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model)
    )
    return engine_rank.stored_state_caches(
        0 if has_no_draft_states else state_layout.draft_tokens, state_layout.format_ratios
    )
