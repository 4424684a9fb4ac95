"""Rows: the axis of vectors that a step runs over, with the rule that says how many there are.

A program names its rows; how many they are is found when it is counted for a workload, never while it is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number, add
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Rows:
    """Vectors of each sequence.

    name: what they stand for.
    batched: each sequence has rows of its own; otherwise all sequences share them.
    """

    name: str
    batched: bool = True

    def new(self, w: Workload) -> Number:
        """Rows of one sequence that this pass computes."""
        raise TypeError(f"{self.name}: how many there are is not known")

    def past(self, w: Workload) -> Number:
        """Rows of one sequence that earlier passes have computed and that this one can still use."""
        return 0

    def held(self, w: Workload) -> Number:
        """Rows of one sequence that exist after this pass: its own and those of earlier passes."""
        return add(self.past(w), self.new(w))

    def constant(self, w: Workload) -> Number:
        """How many of `new` are not computed from any parameter, so that no gradient goes on from them."""
        return 0


class Tokens(Rows):
    """The tokens of the model's own sequence."""

    __slots__ = ()

    def new(self, w: Workload) -> Number:
        return w.seq

    def past(self, w: Workload) -> Number:
        return w.context


TOKENS = Tokens("tokens")


class Source(Rows):
    """The tokens that the encoder of an encoder-decoder reads: all of them before decoding begins."""

    __slots__ = ()

    def new(self, w: Workload) -> Number:
        return 0 if w.phase == "decode" else w.source

    def held(self, w: Workload) -> Number:
        return w.source


@dataclass(frozen=True, slots=True)
class Fixed(Rows):
    """As many rows as an architecture has, whatever the workload: positions of a fixed-length encoder.

    length: rows of a sequence. source: they are an encoder's, and exist already when a token is decoded.
    """

    name: str = "fixed"
    length: Number = 1
    source: bool = True

    def new(self, w: Workload) -> Number:
        return 0 if self.source and w.phase == "decode" else self.length

    def held(self, w: Workload) -> Number:
        return self.length


class Logits(Rows):
    """The positions whose next token is asked for: the last one in prefill, all of them otherwise."""

    __slots__ = ()

    def new(self, w: Workload) -> Number:
        return 1 if w.phase == "prefill" else w.seq


class Sequences(Rows):
    """One vector of each sequence, such as a pooler reads."""

    __slots__ = ()

    def new(self, w: Workload) -> Number:
        return 1


@dataclass(frozen=True, slots=True)
class Routed(Rows):
    """One row for each expert that a token goes to. An op that runs over them counts `top_k` for each token itself."""

    name: str = "routed"
    of: Rows = TOKENS
    top_k: Number = 1

    def new(self, w: Workload) -> Number:
        return self.of.new(w) * self.top_k


SOURCE, LOGITS, SEQUENCES = Source("source"), Logits("logits"), Sequences("sequences")

ONCE = Rows("once", batched=False)
"""What has no rows at all, such as a trained vector."""
