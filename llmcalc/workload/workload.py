"""The workload of one pass: sequences, new and earlier tokens per sequence, and the phase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

from ..algebra import Number
from ..frozen import frozen

Phase: TypeAlias = Literal["forward", "training", "prefill", "decode"]

PHASES: tuple[Phase, ...] = ("forward", "training", "prefill", "decode")


@frozen(slots=True)
class Workload:
    """The workload of one pass of a model: sequences, new and cached tokens per sequence, and phase.

    batch: the number of sequences, 1 by default.
    seq: the number of new tokens per sequence in this pass, 1 by default.
    context: the number of tokens per sequence that are already cached, 0 by default.
    source: the number of source tokens per sequence of an encoder-decoder; by default as many as the decoder's.
    phase: `forward` (default) and `training` compute logits at every position, `prefill` only at the last one, and
        `decode` at its single token.
    """

    batch: Number = 1
    seq: Number = 1
    context: Number = 0
    source: Number = None
    phase: Phase = "forward"

    def __post_init__(self) -> None:
        if self.source is None:
            object.__setattr__(self, "source", self.context + self.seq)

    def with_changes(self, **changes: Any) -> Workload:
        """Returns a copy of the workload with some fields changed."""
        return replace(self, **changes)
