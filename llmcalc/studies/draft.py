"""The parameters, FLOPs and bytes that a draft model adds to a target model.

A draft is a model of its own, or one that reads the target's hidden states and takes its embedding or its head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..costs.cache import CacheSize, kv
from ..costs.draft import check_draft
from ..costs.flops import FlopCount, flops
from ..costs.params import params
from ..sources.preset import Preset

if TYPE_CHECKING:
    from ..device_memory.device_memory import UnreplayedBytes
    from ..device_memory.settings import Settings
    from ..workload.run_config import RunConfig


@dataclass(frozen=True)
class DraftCosts:
    """A speculative-decoding draft model with its KV cache and FLOPs.

    preset: the draft.
    cache: its cache for the sequences of the question; without a question about sequences, one token's.
    flop_count: its FLOPs in the question's pass; None where the question is not about FLOPs.
    """

    preset: Preset
    cache: CacheSize
    flop_count: FlopCount | None = None

    @property
    def params(self) -> int:
        """The draft model's parameters, without parameters shared with the target model."""
        return int(params(self.preset.model).total)

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """The modules that the draft shares with the target model: `embed_tokens`, `lm_head`."""
        return self.preset.model.from_target


def draft_costs(
    target_preset: Preset,
    draft_preset: Preset,
    batch: int = 1,
    seq: int = 1,
    kv_dtype: str = "bfloat16",
    run_config: RunConfig | None = None,
) -> DraftCosts:
    """Returns the costs of a draft model. batch, seq, kv_dtype: of its KV cache. run_config: of its FLOPs.

    Raises `InputError` if the draft does not fit the target.
    """
    check_draft(target_preset.model, draft_preset.model, target_preset.name, f"--draft {draft_preset.name}")
    cache_size = kv(draft_preset.model, batch, seq, kv_dtype)
    return DraftCosts(draft_preset, cache_size, None if run_config is None else flops(draft_preset.model, run_config))


def draft_bytes(draft_preset: Preset, run_settings: Settings) -> list[UnreplayedBytes]:
    """Returns the bytes that a draft model needs: its weights in the format of its checkpoint, and its KV cache.

    run_settings: those of the target's run; `quantize` is the target's alone.
    """
    from ..device_memory.device_memory import UnreplayedBytes
    from ..device_memory.static import memory

    draft_memory = memory(
        draft_preset.model,
        run_settings.with_changes(quantize=None),
        draft_preset.dtype,
        frozenset(),
        draft_preset.checkpoint,
    )
    return [UnreplayedBytes("weights", int(draft_memory.weights)), UnreplayedBytes("cache", int(draft_memory.kv_cache))]
