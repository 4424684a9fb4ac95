"""Rows (token vectors) that are computed from other rows: blocks, sums, distances, strides."""

from __future__ import annotations

from ..algebra import Number, add, ceil_div, exact_div, floor_div, is_zero, maximum, minimum, times
from ..frozen import frozen
from .inputs import EncoderPass
from .rows import SOURCE, TOKENS, Rows, SequenceRows
from .workload import Workload


class PatchRows(Rows):
    """The patches of an image or audio frames in an encoder's pass."""

    __slots__ = ()

    def new_rows(self, workload: Workload) -> Number:
        if not isinstance(workload, EncoderPass):
            raise TypeError(f"{self.name}: how many there are is not known without an encoder's pass")
        return times(workload.rows, workload.columns)


PATCHES = PatchRows("patches")

IMAGES = SequenceRows("images")
"""One row per image, tile or clip of an encoder's pass."""


@frozen(slots=True)
class PaddedSquareRows(Rows):
    """The patches of an encoder's pass, with rows and columns padded to whole squares.

    side: the side of a square, in patches.
    """

    name: str = "padded squares"
    side: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        if not isinstance(workload, EncoderPass):
            raise TypeError(f"{self.name}: how many there are is not known without an encoder's pass")
        patch_rows, patch_columns = (
            ceil_div(patch_count, self.side) * self.side for patch_count in (workload.rows, workload.columns)
        )
        return times(patch_rows, patch_columns)


@frozen(slots=True)
class DistanceRows(Rows):
    """One row per distance between a query and a key, shared by all sequences."""

    name: str = "distances"
    batched: bool = False
    of: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return self.of.available_rows(workload)


@frozen(slots=True)
class TableRows(Rows):
    """The rows of an embedding table, shared by all sequences.

    length: the number of rows of the table.
    by_tokens: whether only distances that occur are used, at most two per token; false by default.
    of: the rows whose distances these are.
    """

    name: str = "table"
    batched: bool = False
    length: Number = 1
    by_tokens: bool = False
    of: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return minimum(2 * self.of.new_rows(workload), self.length) if self.by_tokens else self.length


@frozen(slots=True)
class MultipliedRows(Rows):
    """`by` rows for each source row (`of`), plus `more` rows, such as the samples before a strided convolution.

    There are none if `of` has none.
    """

    name: str = "multiple"
    of: Rows = TOKENS
    by: Number = 1
    more: Number = 0

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.of.new_rows(workload)
        return 0 if is_zero(row_count) else add(times(row_count, self.by), self.more)


@frozen(slots=True)
class ConcatenatedRows(Rows):
    """The concatenation of two kinds of rows."""

    name: str = "joined"
    first: Rows = TOKENS
    second: Rows = SOURCE

    def new_rows(self, workload: Workload) -> Number:
        return self.first.new_rows(workload) + self.second.new_rows(workload)

    def available_rows(self, workload: Workload) -> Number:
        return self.first.available_rows(workload) + self.second.available_rows(workload)


@frozen(slots=True)
class PaddedRows(Rows):
    """The source rows (`of`), padded to whole blocks of `block_rows`, plus `more` rows; empty without source rows."""

    name: str = "padded"
    of: Rows = SOURCE
    block_rows: Number = 1
    more: Number = 0

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.of.new_rows(workload)
        return 0 if is_zero(row_count) else ceil_div(row_count, self.block_rows) * self.block_rows + self.more


@frozen(slots=True)
class WindowRows(Rows):
    """One row for each window of `window` source rows (`of`), the last of which may be padded."""

    name: str = "windows"
    of: Rows = PATCHES
    window: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return ceil_div(self.of.new_rows(workload), self.window)


@frozen(slots=True)
class StatesBeforeRows(Rows):
    """The recurrent states before each source row (token). The first state is zeros."""

    name: str = "from_zeros"
    of: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return self.of.new_rows(workload)

    def constant_rows(self, workload: Workload) -> Number:
        return 1


@frozen(slots=True)
class RowsOfThisPass(Rows):
    """The source rows (`of`) that this pass adds, without rows of earlier passes."""

    name: str = "of_this_pass"
    of: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return self.of.new_rows(workload)


@frozen(slots=True)
class BlockRows(Rows):
    """One row for each complete block of `block_rows` rows."""

    name: str = "blocks"
    of: Rows = TOKENS
    block_rows: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return floor_div(self.of.available_rows(workload), self.block_rows) - self.past_rows(workload)

    def past_rows(self, workload: Workload) -> Number:
        return floor_div(self.of.past_rows(workload), self.block_rows)


@frozen(slots=True)
class RowsWithBlockSummaries(Rows):
    """The source rows (`of`), plus one summary row for each complete block of `block_rows` rows."""

    name: str = "with_sums"
    of: Rows = TOKENS
    block_rows: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return self.of.new_rows(workload) + floor_div(self.of.new_rows(workload), self.block_rows)


@frozen(slots=True)
class RowsWithZeroStart(Rows):
    """The new source rows (`of`), after a row of zeros in a pass that starts at the first token."""

    name: str = "with_start"
    of: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return add(self.of.new_rows(workload), self.constant_rows(workload))

    def constant_rows(self, workload: Workload) -> Number:
        return 0 if workload.phase == "decode" or not is_zero(self.of.past_rows(workload)) else 1


@frozen(slots=True)
class PromptedRows(Rows):
    """The source rows (`of`) after `more` prompt rows, which the first pass computes and caches."""

    name: str = "with_prompt"
    of: Rows = TOKENS
    more: Number = 1

    def _is_first_pass(self, workload: Workload) -> bool:
        return workload.phase != "decode" and bool(is_zero(self.of.past_rows(workload)))

    def new_rows(self, workload: Workload) -> Number:
        return self.of.new_rows(workload) + self.more if self._is_first_pass(workload) else self.of.new_rows(workload)

    def past_rows(self, workload: Workload) -> Number:
        return 0 if self._is_first_pass(workload) else self.of.past_rows(workload) + self.more


@frozen(slots=True)
class StridedConvolutionRows(Rows):
    """The output rows of a strided convolution over the source rows, padded with kernel // 2 zeros on each side."""

    name: str = "strided"
    of: Rows = PATCHES
    kernel: Number = 1
    stride: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        padded_rows = self.of.new_rows(workload) + 2 * floor_div(self.kernel, 2)
        return floor_div(padded_rows - self.kernel, self.stride) + 1


@frozen(slots=True)
class RowsInChunks(Rows):
    """The output rows of strided convolutions over chunks of the source rows, each padded by one row at either end.

    chunk: the rows of a chunk. strides: those of the convolutions, in order.
    padded: whether the last of several chunks is padded to a whole chunk first, true by default.
    whole: whether a single chunk is padded too, false by default.
    """

    name: str = "in chunks"
    of: Rows = PATCHES
    chunk: Number = 1
    strides: tuple[Number, ...] = ()
    padded: bool = True
    whole: bool = False

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.of.new_rows(workload)
        if self.whole and self.padded:
            return times(ceil_div(row_count, self.chunk), self._rows_after_convolutions(self.chunk))
        if self.padded:
            return times(ceil_div(row_count, self.chunk), self._rows_after_convolutions(minimum(row_count, self.chunk)))
        whole_chunks = floor_div(row_count, self.chunk)
        rows_of_last_chunk = self._rows_after_convolutions(row_count - times(whole_chunks, self.chunk))
        return add(times(whole_chunks, self._rows_after_convolutions(self.chunk)), rows_of_last_chunk)

    def _rows_after_convolutions(self, row_count: Number) -> Number:
        for stride in self.strides:
            row_count = ceil_div(row_count, stride)
        return row_count


@frozen(slots=True)
class MergedPatchRows(Rows):
    """One row per square of side × side neighbours over `frames` consecutive frames."""

    name: str = "merged"
    of: Rows = PATCHES
    side: Number = 1
    frames: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return exact_div(self.of.new_rows(workload), self.side * self.side * self.frames)


@frozen(slots=True)
class ExtendedRows(Rows):
    """The source rows (`of`), plus `more` rows per sequence."""

    name: str = "with_more"
    of: Rows = PATCHES
    more: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return self.of.new_rows(workload) + self.more


@frozen(slots=True)
class QueryKeyPairs(Rows):
    """One row per (query, key) pair of the source rows, shared by all sequences."""

    name: str = "query_key_pairs"
    batched: bool = False
    of: Rows = PATCHES

    def new_rows(self, workload: Workload) -> Number:
        return self.of.new_rows(workload) * self.of.available_rows(workload)


@frozen(slots=True)
class PairAverageRows(Rows):
    """The averages of pairs of source rows (Funnel Transformer). A single pair is not averaged.

    separate_cls: whether the first row is paired with a copy of itself.
    truncate_seq: whether the last row is left out then.
    """

    name: str = "halved"
    of: Rows = TOKENS
    separate_cls: bool = True
    truncate_seq: bool = True

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.of.new_rows(workload)
        paired_rows = row_count if self.truncate_seq or not self.separate_cls else row_count + 1
        return maximum(ceil_div(paired_rows, 2), minimum(row_count, 2 if self.separate_cls else 1))


@frozen(slots=True)
class RelativeDistances(Rows):
    """One row per distance between queries and keys with a computed position, shared by all sequences.

    queries: the rows of the queries; two distances for each of them.
    keys: the rows of the keys, with one distance for each of them where there are more than queries; by default those
        of the queries.
    """

    name: str = "relative distances"
    batched: bool = False
    queries: Rows = TOKENS
    keys: Rows | None = None

    def new_rows(self, workload: Workload) -> Number:
        query_rows = self.queries.new_rows(workload)
        key_rows = query_rows if self.keys is None else self.keys.new_rows(workload)
        return add(2 * query_rows, times(key_rows, minimum(key_rows - query_rows, 1)))


@frozen(slots=True)
class BytePatchRows(Rows):
    """One row per patch of a text's bytes: one for the first byte, then one per `patch` bytes; 0 for no text."""

    name: str = "patches of bytes"
    of: Rows = TOKENS
    patch: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.of.new_rows(workload)
        return 0 if is_zero(row_count) else add(ceil_div(row_count, self.patch), 1)


@frozen(slots=True)
class PatchVectors(Rows):
    """`by` rows (vectors) for each patch of bytes; attention pairs them with the bytes of the same patch."""

    name: str = "vectors of patches"
    of: BytePatchRows = BytePatchRows()
    by: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return times(self.of.new_rows(workload), self.by)

    def pairs_with_bytes(self, workload: Workload) -> Number:
        """Returns the number of pairs of a patch's vector and a byte of the same patch."""
        return times(self.of.of.new_rows(workload), self.by)


@frozen(slots=True)
class RowsPaddedAboveLeast(Rows):
    """The source rows (`of`), padded to whole blocks of `block_rows` rows if there are more than `least` rows."""

    name: str = "padded"
    of: Rows = TOKENS
    block_rows: Number = 1
    least: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.of.new_rows(workload)
        return row_count if is_zero(row_count) else _padded_rows_beyond(row_count, self.block_rows, self.least)


def _padded_rows_beyond(row_count: Number, block_rows: Number, least_rows: Number) -> Number:
    return row_count + is_above(row_count, least_rows) * (ceil_div(row_count, block_rows) * block_rows - row_count)


def is_above(row_count: Number, threshold: Number) -> Number:
    """Returns 1 for more rows than `threshold`, else 0."""
    return minimum(1, floor_div(row_count - 1, threshold))
