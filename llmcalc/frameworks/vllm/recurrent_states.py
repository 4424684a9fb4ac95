"""The blocks of recurrent states in vLLM's cache, and their number per request.

A state takes one block, whose bytes attention's blocks adopt (vllm/platforms/interface.py, `_align_hybrid_block_size`;
to 0.19 vllm/model_executor/models/config.py). With prefix caching a request keeps further states: two in the mode
`align`, and one for each block of tokens in the mode `all` (vllm/v1/kv_cache_interface.py, `MambaSpec`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...accelerator import Hardware
from ...components.mixers.gated_delta_net import GatedDeltaNet
from ...components.mixers.kda import KimiDeltaAttention
from ...components.mixers.mamba import Mamba
from ...components.mixers.mamba2 import Mamba2
from ..engines.rank import EngineRank, StateCache, mixers
from .versions import StateRules

ALIGNMENT = 16
"""Tokens of which attention's block is a multiple where it adopts the size of a state."""

CHUNK_WITHOUT_CHUNKS = 2048
"""Tokens of a chunk of Mamba, which has none (vllm/config/model.py, `get_mamba_chunk_size`)."""


CHECKPOINT_ALIGNMENT = 64
"""Tokens of which a block is a multiple where FlashInfer exports states of a Gated DeltaNet
(vllm/v1/attention/backends/gdn_attn.py)."""


class StateBlocks(NamedTuple):
    """The number and the place of recurrent states in vLLM's cache.

    mode: `current` with one state, `align`, or `all` with a state for each block of tokens.
    drafted: tokens that are drafted for a step, each with a state of its own. checkpoints: further states of a request.
    alignment: tokens of which attention's block is a multiple.
    """

    mode: str = "current"
    drafted: int = 0
    checkpoints: int = 0
    alignment: int = ALIGNMENT

    def of_request(self, length: int, block: int) -> int:
        """Returns the state blocks of a layer group for one request of this length. block: tokens of a block."""
        if self.mode == "all":
            return -(-length // block) + self.drafted
        return (2 + self.checkpoints if self.mode == "align" else 1) + self.drafted


CURRENT_STATE = StateBlocks()
"""A request keeps its current state alone."""


def state_blocks(
    rank: EngineRank,
    rules: StateRules,
    hardware: Hardware,
    flags: Mapping[str, Any],
    draft_tokens: int,
    block_size: int,
) -> StateBlocks:
    """Returns how vLLM stores the recurrent states of the model on a rank.

    hardware: the accelerator. flags: values of vLLM's flags by their fields. draft_tokens: drafted tokens of a
    step. block_size: tokens of a block as `--block-size` or the default has them.
    """
    parts = [part for part, _ in mixers(rank.preset.model)]
    mambas = [part for part in parts if isinstance(part, Mamba | Mamba2)]
    mode = "current"
    if flags.get("enable_prefix_caching", rules.caches_prefixes):
        mode = _state_storage_mode(rules, bool(mambas), str(flags.get("mamba_cache_mode", "none")), draft_tokens)
    alignment = rules.latent_alignment if rank.latent_projections else ALIGNMENT
    if "block_size" in flags and rules.aligns_to_block_size:
        alignment = max(alignment, block_size)
    if mode == "all":
        chunk = max((getattr(part, "chunk_size", CHUNK_WITHOUT_CHUNKS) for part in mambas), default=1)
        alignment = math.lcm(alignment, chunk)
    if mode != "align":
        return StateBlocks(mode, draft_tokens, 0, alignment)
    if _exports_delta_nets(rules, hardware) and any(isinstance(part, GatedDeltaNet) for part in parts):
        return StateBlocks(mode, draft_tokens, 1, math.lcm(alignment, CHECKPOINT_ALIGNMENT))
    has_checkpoint = rules.checkpoints_of_mamba2 and any(isinstance(part, Mamba2) for part in mambas)
    return StateBlocks(mode, draft_tokens, int(has_checkpoint), alignment)


def _exports_delta_nets(rules: StateRules, hardware: Hardware) -> bool:
    """Whether FlashInfer runs prompts of a Gated DeltaNet and can export a state inside a prompt."""
    first_version = rules.checkpoints_of_delta_nets
    return (
        first_version is not None
        and hardware.compute_capability is not None
        and float(hardware.compute_capability) >= first_version
    )


def _state_storage_mode(rules: StateRules, has_mamba: bool, state_mode: str, draft_tokens: int) -> str:
    """Returns vLLM's mode of storing recurrent states under prefix caching. state_mode: `--mamba-cache-mode`."""
    if rules.mode_of_prefixes != "all or align":
        return rules.mode_of_prefixes
    if not has_mamba or state_mode == "align" or (state_mode == "none" and draft_tokens and rules.aligns_drafts):
        return "align"
    return "all"


def stored_states(rank: EngineRank, draft_tokens: int) -> list[StateCache]:
    """Returns the recurrent states as vLLM stores them: a convolution's last k − 1 inputs, and those of drafts.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py, `MambaStateShapeCalculator`.
    """
    if any(isinstance(part, KimiDeltaAttention | Mamba) for part, _ in mixers(rank.preset.model)):
        draft_tokens = 0
    return rank.stored_states(draft_tokens)
