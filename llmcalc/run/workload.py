"""What is run: how many sequences, how many new tokens in each, how many tokens before them, and in which phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ..algebra import Number

Phase: TypeAlias = Literal["forward", "train", "prefill", "decode"]

PHASES: tuple[Phase, ...] = ("forward", "train", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Workload:
    """One pass over a model.

    batch: sequences.
    seq: new tokens of each sequence in this pass.
    context: tokens of each sequence that are already in the cache.
    source: tokens of each sequence that the encoder of an encoder-decoder reads; by default as many as the decoder has.
    phase: `forward` and `train` compute logits at every position, `prefill` at the last one only, `decode` at its one
        token.
    """

    batch: Number = 1
    seq: Number = 1
    context: Number = 0
    source: Number = None
    phase: Phase = "forward"

    def __post_init__(self) -> None:
        if self.source is None:
            object.__setattr__(self, "source", self.context + self.seq)

    def with_(self, **changes: Any) -> Workload:
        """A copy with some fields changed."""
        return replace(self, **changes)
