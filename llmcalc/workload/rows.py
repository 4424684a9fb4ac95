"""Rows: the vectors (such as tokens) that a step processes, and the rules for their number.

A program only names its rows; their number is computed from a workload when the program is counted.
"""

from __future__ import annotations

from typing import NamedTuple

from ..algebra import Number, add
from ..frozen import frozen
from .workload import Workload


@frozen(slots=True)
class Rows:
    """The rows (vectors, such as tokens) that a step processes, with the rule for their number per sequence.

    name: what they represent.
    batched: whether each sequence has its own rows; otherwise all sequences share them. True by default.
    """

    name: str
    batched: bool = True

    def new_rows(self, workload: Workload) -> Number:
        """Returns the number of rows (tokens) per sequence that this pass computes."""
        raise TypeError(f"{self.name}: how many there are is not known")

    def past_rows(self, workload: Workload) -> Number:
        """Returns the number of rows (tokens) per sequence from earlier passes that this pass can read."""
        return 0

    def available_rows(self, workload: Workload) -> Number:
        """Returns the number of rows (tokens) per sequence after this pass: earlier and new rows."""
        return add(self.past_rows(workload), self.new_rows(workload))

    def constant_rows(self, workload: Workload) -> Number:
        """Returns the number of rows in this pass that are constants (such as a zero state) and need no gradient."""
        return 0


class TokenRows(Rows):
    """The tokens of the decoder's sequence (or of the only sequence), as opposed to the encoder's source tokens."""

    __slots__ = ()

    def new_rows(self, workload: Workload) -> Number:
        return workload.seq

    def past_rows(self, workload: Workload) -> Number:
        return workload.context


TOKENS = TokenRows("tokens")


class SourceTokenRows(Rows):
    """The source tokens of an encoder-decoder, which the encoder reads before decoding begins."""

    __slots__ = ()

    def new_rows(self, workload: Workload) -> Number:
        return 0 if workload.phase == "decode" else workload.source

    def available_rows(self, workload: Workload) -> Number:
        return workload.source


@frozen(slots=True)
class FixedRows(Rows):
    """A fixed number of rows, such as the positions of a fixed-length encoder.

    length: the number of rows per sequence.
    is_encoder_side: whether they are an encoder's and already computed when a token is decoded, true by default.
    """

    name: str = "fixed"
    length: Number = 1
    is_encoder_side: bool = True

    def new_rows(self, workload: Workload) -> Number:
        return 0 if self.is_encoder_side and workload.phase == "decode" else self.length

    def available_rows(self, workload: Workload) -> Number:
        return self.length


class LogitRows(Rows):
    """The positions whose logits are computed: only the last position in prefill, otherwise all positions."""

    __slots__ = ()

    def new_rows(self, workload: Workload) -> Number:
        return 1 if workload.phase == "prefill" else workload.seq


class SequenceRows(Rows):
    """One vector per sequence, such as the input of a pooler."""

    __slots__ = ()

    def new_rows(self, workload: Workload) -> Number:
        return 1


class ExpertGroups(NamedTuple):
    """Groups of neighbouring experts. n_group: number of groups. topk_group: groups with a token's experts."""

    n_group: int = 1
    topk_group: int = 1


ONE_GROUP = ExpertGroups()
"""Expert groups with a single group of all experts."""


@frozen(slots=True)
class RoutedRows(Rows):
    """One row per token and selected expert. Operations on these rows multiply by `top_k` themselves.

    groups: the groups of experts from which a token's experts are selected, one by default.
    """

    name: str = "routed"
    source_rows: Rows = TOKENS
    top_k: Number = 1
    groups: ExpertGroups = ONE_GROUP

    def new_rows(self, workload: Workload) -> Number:
        return self.source_rows.new_rows(workload) * self.top_k


SOURCE_TOKENS, LOGITS, SEQUENCES = SourceTokenRows("source"), LogitRows("logits"), SequenceRows("sequences")

NO_ROWS = Rows("once", batched=False)
"""The rows of a value that has no rows, such as a trained vector."""
