"""Rows: the axis of vectors that a step runs over, with the rule that says how many there are.

A program names its rows; how many they are is found when it is counted for a workload, never while it is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number, add, exact_div, floor_div, is_zero, minimum, times
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


@dataclass(frozen=True, slots=True)
class Tokens(Rows):
    """The tokens of the model's own sequence."""

    name: str = "tokens"

    def new(self, w: Workload) -> Number:
        return w.seq

    def past(self, w: Workload) -> Number:
        return w.context


TOKENS = Tokens()


@dataclass(frozen=True, slots=True)
class Source(Rows):
    """The tokens that the encoder of an encoder-decoder reads: all of them before decoding begins."""

    name: str = "source"

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


@dataclass(frozen=True, slots=True)
class Logits(Rows):
    """The positions whose next token is asked for: the last one in prefill, all of them otherwise."""

    name: str = "logits"

    def new(self, w: Workload) -> Number:
        return 1 if w.phase == "prefill" else w.seq


@dataclass(frozen=True, slots=True)
class Sequences(Rows):
    """One vector of each sequence, such as a pooler reads."""

    name: str = "sequences"

    def new(self, w: Workload) -> Number:
        return 1


@dataclass(frozen=True, slots=True)
class Distances(Rows):
    """One row for each distance between a query and a key, shared by all sequences."""

    name: str = "distances"
    batched: bool = False
    of: Rows = TOKENS

    def new(self, w: Workload) -> Number:
        return self.of.held(w)


@dataclass(frozen=True, slots=True)
class Table(Rows):
    """The rows of a table, shared by all sequences: all `length` of them, or as many as a sequence's distances reach.

    by_tokens: at most two for each token.
    """

    name: str = "table"
    batched: bool = False
    length: Number = 1
    by_tokens: bool = False
    of: Rows = TOKENS

    def new(self, w: Workload) -> Number:
        return minimum(2 * self.of.new(w), self.length) if self.by_tokens else self.length


@dataclass(frozen=True, slots=True)
class Multiple(Rows):
    """`by` rows for each row of another axis: frames below a stride, the distances of each token both ways."""

    name: str = "multiple"
    of: Rows = TOKENS
    by: Number = 1

    def new(self, w: Workload) -> Number:
        return times(self.of.new(w), self.by)


@dataclass(frozen=True, slots=True)
class Joined(Rows):
    """The rows of two axes one after the other."""

    name: str = "joined"
    first: Rows = TOKENS
    second: Rows = Source()

    def new(self, w: Workload) -> Number:
        return self.first.new(w) + self.second.new(w)

    def held(self, w: Workload) -> Number:
        return self.first.held(w) + self.second.held(w)


@dataclass(frozen=True, slots=True)
class Blocks(Rows):
    """One row for each whole block of `block` rows of another axis, which its last row completes."""

    name: str = "blocks"
    of: Rows = TOKENS
    block: Number = 1

    def new(self, w: Workload) -> Number:
        return floor_div(self.of.held(w), self.block) - self.past(w)

    def past(self, w: Workload) -> Number:
        return floor_div(self.of.past(w), self.block)


@dataclass(frozen=True, slots=True)
class WithSums(Rows):
    """The rows of another axis, and one more for each whole block of `block` of them."""

    name: str = "with_sums"
    of: Rows = TOKENS
    block: Number = 1

    def new(self, w: Workload) -> Number:
        return self.of.new(w) + floor_div(self.of.new(w), self.block)


@dataclass(frozen=True, slots=True)
class WithPast(Rows):
    """New rows and those of earlier passes that are computed once more.

    window: of those, only what a window of so many tokens still sees.
    """

    name: str = "with_past"
    of: Rows = TOKENS
    window: Number = None

    def new(self, w: Workload) -> Number:
        past = self.of.past(w)
        if self.window is not None and not is_zero(past):
            past = minimum(past, self.window - 1)
        return self.of.new(w) + past


@dataclass(frozen=True, slots=True)
class WithStart(Rows):
    """New rows, and in a pass from the first token a row of zeros before them."""

    name: str = "with_start"
    of: Rows = TOKENS

    def new(self, w: Workload) -> Number:
        return add(self.of.new(w), self.constant(w))

    def constant(self, w: Workload) -> Number:
        return 0 if w.phase == "decode" or not is_zero(self.of.past(w)) else 1


SOURCE, LOGITS, SEQUENCES, DISTANCES = Source(), Logits(), Sequences(), Distances()


@dataclass(frozen=True, slots=True)
class Routed(Rows):
    """One row for each expert that a token goes to. An op that runs over them counts `top_k` for each token itself."""

    name: str = "routed"
    of: Rows = TOKENS
    top_k: Number = 1

    def new(self, w: Workload) -> Number:
        return self.of.new(w) * self.top_k


ONCE = Rows("once", batched=False)
"""What has no rows at all, such as a trained vector."""

PATCHES = Rows("patches")
"""As many rows as an image has patches or a sound has frames, which no workload says."""

IMAGES = Rows("images")
"""One row for each image, of which no workload says how many there are."""


@dataclass(frozen=True, slots=True)
class Strided(Rows):
    """The rows that a convolution with a stride leaves of another axis, with kernel // 2 zeros on either side."""

    name: str = "strided"
    of: Rows = PATCHES
    kernel: Number = 1
    stride: Number = 1

    def new(self, w: Workload) -> Number:
        padded = self.of.new(w) + 2 * floor_div(self.kernel, 2)
        return floor_div(padded - self.kernel, self.stride) + 1


@dataclass(frozen=True, slots=True)
class Merged(Rows):
    """One row for each square of side × side neighbours, in so many frames one after the other."""

    name: str = "merged"
    of: Rows = PATCHES
    side: Number = 1
    frames: Number = 1

    def new(self, w: Workload) -> Number:
        return exact_div(self.of.new(w), self.side * self.side * self.frames)


@dataclass(frozen=True, slots=True)
class WithMore(Rows):
    """The rows of another axis, and so many more for each sequence."""

    name: str = "with_more"
    of: Rows = PATCHES
    more: Number = 1

    def new(self, w: Workload) -> Number:
        return self.of.new(w) + self.more


@dataclass(frozen=True, slots=True)
class QueryKeyPairs(Rows):
    """One row for each pair of a query and a key of another axis, shared by all sequences."""

    name: str = "query_key_pairs"
    batched: bool = False
    of: Rows = PATCHES

    def new(self, w: Workload) -> Number:
        return self.of.new(w) * self.of.held(w)
