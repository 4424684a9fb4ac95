"""Methods that record elementwise operations and changes of shape, which cost memory but no counted FLOPs."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...algebra import Number, are_equal
from ...workload.rows import FixedRows, Rows
from ..axis import Axis, JoinedShapes, Shape
from ..recorder import Recorder
from ..value import Value, Weight


class ElementwiseVerbs(Recorder):
    """Methods that record elementwise operations and changes of shape, which cost memory but no counted FLOPs."""

    def act(self, x: Value, function_name: str, *parameters: Value, in_float32: bool = False) -> Value:
        """Records an activation function. parameters: trained vectors that the function reads (xIELU).

        in_float32: whether it reads a float32 copy of x and has a result in float32, false by default.
        """
        return self.step("act", "", (x, *parameters), Value(x.rows, x.axes), kind=function_name, float32=in_float32)

    def mul(self, a: Value, b: Value, axes: Shape | None = None, in_float32: bool = False) -> Value:
        """Records a · b, elementwise. axes: the axes of the product, a's by default.

        in_float32: whether b is in float32 and the product is converted to the number format of a, false by default.
        """
        output_value = Value(a.rows, a.axes if axes is None else axes, is_constant=a.is_constant and b.is_constant)
        return self.step("mul", "", (a, b), output_value, float32=in_float32)

    def add(self, a: Value, b: Value) -> Value:
        """Records a + b."""
        return self.step("add", "", (a, b), Value(a.rows, a.axes, is_constant=a.is_constant and b.is_constant))

    def sub(self, a: Value, b: Value) -> Value:
        """Records a − b."""
        return self.step("sub", "", (a, b), Value(a.rows, a.axes, is_constant=a.is_constant and b.is_constant))

    def div(self, a: Value, b: Value) -> Value:
        """Records a / b."""
        return self.step("div", "", (a, b), Value(a.rows, a.axes, is_constant=a.is_constant and b.is_constant))

    def scale(self, x: Value, factor: float) -> Value:
        """Records the product of x and a constant."""
        return self.step("scale", "", (x,), Value(x.rows, x.axes, is_constant=x.is_constant), by=factor)

    def plus(self, x: Value, constant: float) -> Value:
        """Records the sum of x and a constant."""
        return self.step("plus", "", (x,), Value(x.rows, x.axes, is_constant=x.is_constant), constant=constant)

    def sum(self, x: Value, *axes: Axis | JoinedShapes, is_mean: bool = False) -> Value:
        """Records the sum or the mean of x over all axes except `axes`."""
        return self.step("sum", "", (x,), Value(x.rows, axes), mean=is_mean)

    def root_mean_square(self, x: Value) -> Value:
        """Records the root of the mean square of each row."""
        return self.step("root_mean_square", "", (x,), Value(x.rows, (Axis("one", 1),)))

    def sinkhorn(self, matrix: Value, iterations: Number, eps: float) -> Value:
        """Records Sinkhorn's normalization of a square matrix.

        It divides the columns by their sums, and then `iterations` − 1 times the rows and the columns.

        eps: added to each sum.
        """
        return self.step("sinkhorn", "", (matrix,), Value(matrix.rows, matrix.axes), steps=iterations, eps=eps)

    def shift(self, x: Value, state_name: str) -> Value:
        """Records a shift by one row; the first row becomes the last row of an earlier pass, or zeros.

        state_name: the name of the state that keeps the last row.
        """
        return self.step("shift", "", (x,), Value(x.rows, x.axes), state=state_name)

    def scan(self, scan_kind: str, *inputs: Value, axes: Shape) -> Value:
        """Records an elementwise recurrence along the rows. scan_kind: the name of the recurrence."""
        return self.step("scan", "", inputs, Value(inputs[0].rows, axes), kind=scan_kind)

    def complement(self, x: Value) -> Value:
        """Records 1 − x, elementwise."""
        return self.step("complement", "", (x,), Value(x.rows, x.axes, is_constant=x.is_constant))

    def delayed(self, x: Value, first_row: Value) -> Value:
        """Records a shift by one row. first_row: the row that becomes the first."""
        return self.step("delayed", "", (x, first_row), Value(x.rows, x.axes))

    def dropout(self, x: Value, dropout_place: str, *, ends_sublayer: bool = False) -> Value:
        """Records dropout at a named point of `components/dropout.py`; records nothing if its probability is 0.

        ends_sublayer: whether it is recorded anyway, because a framework may fuse it with the residual sum that
            follows; false by default.
        """
        probability = self.dropouts.get(dropout_place, 0.0)
        if not probability and not ends_sublayer:
            return x
        return self.step("dropout", "", (x,), Value(x.rows, x.axes), place=dropout_place, probability=probability)

    def rope(self, x: Value, spec: Any, *, is_inverse: bool = False, row_stride: Number = None) -> Value:
        """Records rotary position embedding (RoPE).

        spec: its dimensions and angles; layers with equal specs share the tables.
        is_inverse: whether it is undone, false by default.
        row_stride: the number of positions from one row to the next; by default rows are tokens.
        """
        return self.step("rope", "", (x,), Value(x.rows, x.axes), spec=spec, back=is_inverse, every=row_stride)

    def split(self, x: Value, *shapes: Shape) -> tuple[Value, ...]:
        """Records views that split the last axis of a value."""
        views = tuple(x.view(*shape) for shape in shapes)
        self.record("split", "", (x,), views)
        return views

    def take(self, x: Value, *axes: Axis | JoinedShapes) -> Value:
        """Records a slice of x along its first axis: one index if `axes` lack that axis, otherwise a range."""
        return self.step("take", "", (x,), x.view(*axes))

    def flat(self, x: Value) -> Value:
        """Records a flattening of all axes of x into one, which copies if the axes are not in storage order."""
        return self.step("flat", "", (x,), Value(x.rows, (JoinedShapes((x.axes,)),), is_constant=x.is_constant))

    def delayed_weights(
        self, node_name: str, x: Value, streams: Axis | JoinedShapes, *, keeps_state: bool = False
    ) -> Value:
        """Records a read of the stream weights that the previous sublayer stored under this name.

        keeps_state: whether x takes their place, false by default.
        """
        return self.step("delayed_weights", "", (x,), Value(x.rows, (streams,)), slot=node_name, keeps=keeps_state)

    def copies(self, x: Value, copy_axis: Axis) -> Value:
        """Records a view that repeats x along a new first axis."""
        return self.step("copies", "", (x,), x.view(copy_axis, *x.axes))

    def cat(self, *parts: Value, axes: Shape, rows: Rows | None = None) -> Value:
        """Records the concatenation of values along their axes or, if `rows` is given, along their rows."""
        cache_name = parts[0].cache_name if all(x.cache_name == parts[0].cache_name for x in parts) else ""
        return self.step("cat", "", parts, Value(parts[0].rows if rows is None else rows, axes, cache_name=cache_name))

    def resized(self, x: Value, output_rows: Rows) -> Value:
        """Records padding of x with zero rows, or the removal of rows at its ends."""
        return self.step("resized", "", (x,), Value(output_rows, x.axes))

    def resampled(self, x: Value, output_rows: Rows) -> Value:
        """Records averages of neighbouring rows, or repeated rows. output_rows: the rows of the result."""
        return self.step("resampled", "", (x,), Value(output_rows, x.axes))

    def prefixed(self, x: Value, table: Weight, output_rows: Rows) -> Value:
        """Records the concatenation of a table's rows with x. output_rows: the row axis of the result."""
        return self.step("prefixed", "", (x,), Value(output_rows, x.axes), weight=table)

    def absent(self, node_name: str, *axes: Axis | JoinedShapes) -> Value:
        """Records a value without rows, such as image features in a pass without images."""
        return self.step("absent", "", (), Value(FixedRows(node_name, length=0), axes))

    def merge(self, x: Value, output_rows: Rows, *neighbours: Axis, is_mean: bool = False) -> Value:
        """Records a merge of neighbouring rows into one, by concatenation along new axes or by averaging."""
        axes = x.axes if is_mean else (*neighbours, *x.axes)
        return self.step("merge", "", (x,), Value(output_rows, axes), neighbours=neighbours, mean=is_mean)

    def repeat(self, x: Value, heads: Axis, tiled: bool = False) -> Value:
        """Records a repetition of keys or values for each query head; records nothing if there are enough heads.

        tiled: whether all heads follow one another before the first comes again; by default, the copies of a head lie
            side by side.
        """
        if are_equal(x.axes[0].size, heads.size):
            return x
        output_value = Value(x.rows, (heads, *x.axes[1:]), cache_name=x.cache_name)
        output_value.unrepeated_value = x
        return self.step("repeat", "", (x,), output_value, tiled=tiled)

    def added_sinusoids(self, output_rows: Rows, *axes: Axis | JoinedShapes) -> Value:
        """Records sinusoidal position embeddings, shared by all sequences, as a node of the tree."""
        return self.step("added_sinusoids", "", (), Value(output_rows, axes, is_constant=True), op=ops.Elementwise())

    def in_format_of(self, x: Value, format_value: Value) -> Value:
        """Records a cast of a value to the number format of x."""
        return self.step(
            "in_format_of",
            "",
            (x, format_value),
            Value(format_value.rows, format_value.axes, is_constant=format_value.is_constant),
        )

    def cross_entropy(self, logits: Value) -> Value:
        """Records the loss of every row: −log softmax of its logits at the next token."""
        return self.step("cross_entropy", "", (logits,), Value(logits.rows, ()))
