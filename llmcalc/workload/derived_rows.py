"""Rules for the number of rows (token vectors) that are computed from other rows: blocks, sums, distances, strides."""

from __future__ import annotations

from ..algebra import Number, add, ceil_div, exact_div, floor_div, is_zero, maximum, minimum, times
from ..frozen import frozen
from .inputs import EncoderPass
from .rows import SOURCE_TOKENS, TOKENS, Rows, SequenceRows
from .workload import Workload


class PatchRows(Rows):
    """The patches of an image, or the frames of audio, in an encoder's pass."""

    __slots__ = ()

    def new_rows(self, workload: Workload) -> Number:
        if not isinstance(workload, EncoderPass):
            raise TypeError(f"{self.name}: how many there are is not known without an encoder's pass")
        return times(workload.rows, workload.columns)


PATCHES = PatchRows("patches")

IMAGES = SequenceRows("images")
"""Rows with one row per image, tile or clip of an encoder's pass."""


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
    source_rows: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return self.source_rows.available_rows(workload)


@frozen(slots=True)
class EmbeddingRows(Rows):
    """The rows of an embedding table, shared by all sequences.

    row_count: the number of rows of the table.
    limits_to_tokens: whether only distances that occur are used, at most two per token; false by default.
    source_rows: the rows whose distances these are.
    """

    name: str = "table"
    batched: bool = False
    row_count: Number = 1
    limits_to_tokens: bool = False
    source_rows: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return (
            minimum(2 * self.source_rows.new_rows(workload), self.row_count)
            if self.limits_to_tokens
            else self.row_count
        )


@frozen(slots=True)
class MultipliedRows(Rows):
    """A multiple of the source rows, plus `extra_rows` rows, as before a strided convolution.

    There are none if `source_rows` has none.
    """

    name: str = "multiple"
    source_rows: Rows = TOKENS
    rows_per_source: Number = 1
    extra_rows: Number = 0

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.source_rows.new_rows(workload)
        return 0 if is_zero(row_count) else add(times(row_count, self.rows_per_source), self.extra_rows)


@frozen(slots=True)
class ConcatenatedRows(Rows):
    """The rows of two kinds, one after the other."""

    name: str = "joined"
    first_rows: Rows = TOKENS
    second_rows: Rows = SOURCE_TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return self.first_rows.new_rows(workload) + self.second_rows.new_rows(workload)

    def available_rows(self, workload: Workload) -> Number:
        return self.first_rows.available_rows(workload) + self.second_rows.available_rows(workload)


@frozen(slots=True)
class PaddedRows(Rows):
    """The source rows, padded to whole blocks of `block_rows`, plus `extra_rows` rows; empty without source rows."""

    name: str = "padded"
    source_rows: Rows = SOURCE_TOKENS
    block_rows: Number = 1
    extra_rows: Number = 0

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.source_rows.new_rows(workload)
        return 0 if is_zero(row_count) else ceil_div(row_count, self.block_rows) * self.block_rows + self.extra_rows


@frozen(slots=True)
class WindowRows(Rows):
    """One row for each window of `window_rows` source rows; the last window may be padded."""

    name: str = "windows"
    source_rows: Rows = PATCHES
    window_rows: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return ceil_div(self.source_rows.new_rows(workload), self.window_rows)


@frozen(slots=True)
class StatesBeforeRows(Rows):
    """The recurrent state before each source row (token); the first state is zero."""

    name: str = "from_zeros"
    source_rows: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return self.source_rows.new_rows(workload)

    def constant_rows(self, workload: Workload) -> Number:
        return 1


@frozen(slots=True)
class RowsOfThisPass(Rows):
    """The source rows that are new in this pass, without rows of earlier passes."""

    name: str = "of_this_pass"
    source_rows: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return self.source_rows.new_rows(workload)


@frozen(slots=True)
class BlockRows(Rows):
    """One row for each complete block of `block_rows` rows."""

    name: str = "blocks"
    source_rows: Rows = TOKENS
    block_rows: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return floor_div(self.source_rows.available_rows(workload), self.block_rows) - self.past_rows(workload)

    def past_rows(self, workload: Workload) -> Number:
        return floor_div(self.source_rows.past_rows(workload), self.block_rows)


@frozen(slots=True)
class RowsWithBlockSummaries(Rows):
    """The source rows, plus a summary row for each complete block of `block_rows` rows."""

    name: str = "with_sums"
    source_rows: Rows = TOKENS
    block_rows: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return self.source_rows.new_rows(workload) + floor_div(self.source_rows.new_rows(workload), self.block_rows)


@frozen(slots=True)
class RowsWithZeroStart(Rows):
    """The new source rows; in a pass that starts at the first token, after a row of zeros."""

    name: str = "with_start"
    source_rows: Rows = TOKENS

    def new_rows(self, workload: Workload) -> Number:
        return add(self.source_rows.new_rows(workload), self.constant_rows(workload))

    def constant_rows(self, workload: Workload) -> Number:
        return 0 if workload.phase == "decode" or not is_zero(self.source_rows.past_rows(workload)) else 1


@frozen(slots=True)
class PromptedRows(Rows):
    """The source rows, after `prompt_rows` rows that the first pass computes and caches."""

    name: str = "with_prompt"
    source_rows: Rows = TOKENS
    prompt_rows: Number = 1

    def _is_first_pass(self, workload: Workload) -> bool:
        return workload.phase != "decode" and bool(is_zero(self.source_rows.past_rows(workload)))

    def new_rows(self, workload: Workload) -> Number:
        return (
            self.source_rows.new_rows(workload) + self.prompt_rows
            if self._is_first_pass(workload)
            else self.source_rows.new_rows(workload)
        )

    def past_rows(self, workload: Workload) -> Number:
        return 0 if self._is_first_pass(workload) else self.source_rows.past_rows(workload) + self.prompt_rows


@frozen(slots=True)
class StridedConvolutionRows(Rows):
    """The output rows of a strided convolution of the source rows, padded by kernel // 2 zeros at both ends."""

    name: str = "strided"
    source_rows: Rows = PATCHES
    kernel: Number = 1
    stride: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        padded_rows = self.source_rows.new_rows(workload) + 2 * floor_div(self.kernel, 2)
        return floor_div(padded_rows - self.kernel, self.stride) + 1


@frozen(slots=True)
class RowsInChunks(Rows):
    """The rows that strided convolutions make of chunks of source rows; each chunk is padded by a row at both ends.

    chunk_rows: the rows of a chunk. strides: those of the convolutions, in order.
    pads_last_chunk: whether the last of several chunks is padded to a whole chunk first, true by default.
    pads_single_chunk: whether a single chunk is padded too, false by default.
    """

    name: str = "in chunks"
    source_rows: Rows = PATCHES
    chunk_rows: Number = 1
    strides: tuple[Number, ...] = ()
    pads_last_chunk: bool = True
    pads_single_chunk: bool = False

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.source_rows.new_rows(workload)
        if self.pads_single_chunk and self.pads_last_chunk:
            return times(ceil_div(row_count, self.chunk_rows), self._rows_after_convolutions(self.chunk_rows))
        if self.pads_last_chunk:
            return times(
                ceil_div(row_count, self.chunk_rows), self._rows_after_convolutions(minimum(row_count, self.chunk_rows))
            )
        chunk_count = floor_div(row_count, self.chunk_rows)
        rows_of_last_chunk = self._rows_after_convolutions(row_count - times(chunk_count, self.chunk_rows))
        return add(times(chunk_count, self._rows_after_convolutions(self.chunk_rows)), rows_of_last_chunk)

    def _rows_after_convolutions(self, row_count: Number) -> Number:
        for stride in self.strides:
            row_count = ceil_div(row_count, stride)
        return row_count


@frozen(slots=True)
class MergedPatchRows(Rows):
    """One row per block of side × side neighbouring patches in `frames` consecutive frames."""

    name: str = "merged"
    source_rows: Rows = PATCHES
    square_side: Number = 1
    frames: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return exact_div(self.source_rows.new_rows(workload), self.square_side * self.square_side * self.frames)


@frozen(slots=True)
class ExtendedRows(Rows):
    """The source rows, plus `extra_rows` rows per sequence."""

    name: str = "with_more"
    source_rows: Rows = PATCHES
    extra_rows: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return self.source_rows.new_rows(workload) + self.extra_rows


@frozen(slots=True)
class QueryKeyPairs(Rows):
    """One row per (query, key) pair of the source rows, shared by all sequences."""

    name: str = "query_key_pairs"
    batched: bool = False
    source_rows: Rows = PATCHES

    def new_rows(self, workload: Workload) -> Number:
        return self.source_rows.new_rows(workload) * self.source_rows.available_rows(workload)


@frozen(slots=True)
class PairAverageRows(Rows):
    """The averages of pairs of source rows (Funnel Transformer); a single pair is not averaged.

    separate_cls: whether the first row is paired with a copy of itself.
    truncate_seq: whether the last row is left out then.
    """

    name: str = "halved"
    source_rows: Rows = TOKENS
    separate_cls: bool = True
    truncate_seq: bool = True

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.source_rows.new_rows(workload)
        paired_rows = row_count if self.truncate_seq or not self.separate_cls else row_count + 1
        return maximum(ceil_div(paired_rows, 2), minimum(row_count, 2 if self.separate_cls else 1))


@frozen(slots=True)
class RelativeDistances(Rows):
    """One row per distance between queries and keys whose position is computed, shared by all sequences.

    query_rows: the rows of the queries; two distances for each of them.
    key_rows: the rows of the keys, with one distance for each of them where there are more than queries; by default
        those of the queries.
    """

    name: str = "relative distances"
    batched: bool = False
    query_rows: Rows = TOKENS
    key_rows: Rows | None = None

    def new_rows(self, workload: Workload) -> Number:
        query_rows = self.query_rows.new_rows(workload)
        key_rows = query_rows if self.key_rows is None else self.key_rows.new_rows(workload)
        return add(2 * query_rows, times(key_rows, minimum(key_rows - query_rows, 1)))


@frozen(slots=True)
class BytePatchRows(Rows):
    """One row per patch of a text's bytes: the first byte, then each `patch_bytes` bytes; 0 without text."""

    name: str = "patches of bytes"
    source_rows: Rows = TOKENS
    patch_bytes: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.source_rows.new_rows(workload)
        return 0 if is_zero(row_count) else add(ceil_div(row_count, self.patch_bytes), 1)


@frozen(slots=True)
class PatchVectors(Rows):
    """The vectors of byte patches: `vectors_per_patch` rows per patch, which attention pairs with its bytes."""

    name: str = "vectors of patches"
    patch_rows: BytePatchRows = BytePatchRows()
    vectors_per_patch: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        return times(self.patch_rows.new_rows(workload), self.vectors_per_patch)

    def pairs_with_bytes(self, workload: Workload) -> Number:
        """Returns the number of pairs of a patch's vector with a byte of the same patch."""
        return times(self.patch_rows.source_rows.new_rows(workload), self.vectors_per_patch)


@frozen(slots=True)
class RowsPaddedAboveMinimum(Rows):
    """The source rows, padded to whole blocks of `block_rows` rows if they are more than `minimum_rows`."""

    name: str = "padded"
    source_rows: Rows = TOKENS
    block_rows: Number = 1
    minimum_rows: Number = 1

    def new_rows(self, workload: Workload) -> Number:
        row_count = self.source_rows.new_rows(workload)
        return (
            row_count if is_zero(row_count) else _pad_rows_above_minimum(row_count, self.block_rows, self.minimum_rows)
        )


def _pad_rows_above_minimum(row_count: Number, block_rows: Number, least_rows: Number) -> Number:
    return row_count + one_if_above(row_count, least_rows) * (ceil_div(row_count, block_rows) * block_rows - row_count)


def one_if_above(row_count: Number, threshold: Number) -> Number:
    """Returns 1 if there are more rows than `threshold`, else 0."""
    return minimum(1, floor_div(row_count - 1, threshold))
