"""Rows that follow from other rows: blocks, sums, distances, what a stride leaves of them."""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number, add, exact_div, floor_div, is_zero, minimum, times
from .rows import SOURCE, TOKENS, Rows
from .workload import Workload

PATCHES = Rows("patches")
"""As many rows as an image has patches or a sound has frames, which no workload says."""

IMAGES = Rows("images")
"""One row for each image, of which no workload says how many there are."""


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
    second: Rows = SOURCE

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
    selected: decoding reads only so many rows in all, chosen by something else (as in `AttentionCore`).
    """

    name: str = "with_past"
    of: Rows = TOKENS
    window: Number = None
    selected: Number = None

    def new(self, w: Workload) -> Number:
        past = self.of.past(w)
        limit = self.selected if self.selected is not None and w.phase == "decode" else self.window
        if limit is not None and not is_zero(past):
            past = minimum(past, limit - 1)
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
