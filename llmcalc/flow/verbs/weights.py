"""Methods that record operations with weights: linear layers, tables, norms, convolutions, vectors, buffers."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

from ... import ops
from ...algebra import Number, exact_div, is_zero
from ...errors import InputError
from ...workload.rows import NO_ROWS, SEQUENCES, TOKENS, RoutedRows, Rows
from ..axis import Axis, JoinedShapes, Shape
from ..recorder import Recorder
from ..value import Value, Weight

IndexSource: TypeAlias = Literal["ids", "known ids", "chosen", "positions", "types", "all"]


class NormSpec(Protocol):
    """The properties of a norm: whether it has weight and bias, its groups, and the rank of its gate."""

    weight: bool
    groups: int
    gate_rank: int | None

    @property
    def has_bias(self) -> bool: ...


class WeightVerbs(Recorder):
    """Methods that record operations with weights: linear layers, tables, norms, convolutions and others."""

    def linear(
        self,
        node_name: str,
        x: Value,
        *out: Axis | JoinedShapes,
        bias: bool = False,
        weight: Weight | None = None,
        rows: Rows | None = None,
        counted_rows: Rows | None = None,
        lender_name: str = "",
        is_fused: bool = False,
        in_float32: bool = False,
        **node_fields: Any,
    ) -> Value:
        """Records a linear layer, y = x·Wᵀ + b.

        weight: a weight shared with other steps; the first step that uses it owns it, the others are tied.
        rows: the rows of x that are projected, all by default.
        counted_rows: the rows that the op counts, with those of further steps (`again`); by default those it projects.
        lender_name: the linear layer, in the module around this one, whose weights it uses; empty for its own.
        is_fused: whether its class computes it with others of the same input as one product, whose result is split.
        in_float32: whether the product is of float32 copies of x and of the weight; false by default.
        """
        output_rows = x.rows if rows is None else rows
        is_tied = weight is not None and weight.is_counted
        if is_tied and weight is not None:
            weight.is_tied = True
        op = ops.Linear(
            x.width,
            self.element_count(out),
            bias,
            output_rows if counted_rows is None else counted_rows,
            is_tied,
            x.is_constant,
        )
        weight = Weight(node_name, out, x.axes) if weight is None else weight
        output_value = Value(output_rows, out)
        return self.step(
            "linear",
            node_name,
            (x,),
            output_value,
            op=op,
            weight=weight,
            node_fields=node_fields,
            bias=bias,
            lent=lender_name,
            fused=is_fused,
            float32=in_float32,
        )

    def apply_again(self, x: Value, first_output: Value, bias: bool = False) -> Value:
        """Records another use of the linear layer that computed `first_output`, whose parameters are counted once."""
        return self.step("again", "", (x,), Value(x.rows, first_output.axes), like=first_output, bias=bias)

    def absorb(self, node_name: str, x: Value, weight: Weight, *out: Axis | JoinedShapes) -> Value:
        """Records q·Wᵀ per head, in place of W·c, for part of a weight (absorbed MLA: DeepSeek-V2, §2.1.2).

        All such steps together cost as much as the projection itself for the same number of rows. The first of them,
        which has its name, carries the whole cost.
        """
        output_value = Value(x.rows, (x.axes[0], *out))
        if not node_name:
            return self.step("absorb", "", (x,), output_value, weight=weight)
        op = ops.Linear(self.element_count(weight.input_axes), self.element_count(weight.output_axes), rows=x.rows)
        return self.step("absorb", node_name, (x,), output_value, op=op, weight=weight)

    def blocks(
        self, node_name: str, x: Value, blocks: Axis, *out: Axis | JoinedShapes, bias: bool = False, **node_fields: Any
    ) -> Value:
        """Records a block-diagonal linear layer, where each block maps a slice of x to a slice of the output."""
        op = ops.BlockLinear(blocks.size, x.width, self.element_count(out), bias, x.rows)
        weight = Weight(node_name, (blocks, *out), x.axes)
        return self.step(
            "blocks", node_name, (x,), Value(x.rows, out), op=op, weight=weight, node_fields=node_fields, bias=bias
        )

    def experts(
        self,
        node_name: str,
        x: Value,
        experts: Axis,
        top_k: Number,
        *out: Axis | JoinedShapes,
        bias: bool = False,
        has_identities: bool = False,
        slices_weight: bool = False,
        **node_fields: Any,
    ) -> Value:
        """Records linear layers of each token's `top_k` experts; x has `top_k` routed rows per token.

        has_identities: whether some rows are of identity experts, which return them unchanged; false by default.
        slices_weight: whether the class reads each expert's weight as a slice of this one; false by default.
        """
        routed_rows = x.rows.source_rows if isinstance(x.rows, RoutedRows) else x.rows
        op = ops.ExpertLinear(experts.size, top_k, x.width, self.element_count(out), bias, routed_rows)
        weight = Weight(node_name, (experts, *out), x.axes)
        step_options = {
            "bias": bias,
            "experts": experts,
            "top_k": top_k,
            "identities": has_identities,
            "sliced": slices_weight,
        }
        return self.step(
            "experts",
            node_name,
            (x,),
            Value(x.rows, out),
            op=op,
            weight=weight,
            node_fields=node_fields,
            **step_options,
        )

    def per_group(self, node_name: str, x: Value, groups: Axis, out: Axis) -> Value:
        """Records a block-diagonal linear layer, in which each group maps an equal slice of x."""
        group_width = exact_div(x.width, groups.size)
        op = ops.ExpertLinear(groups.size, groups.size, group_width, out.size, False, x.rows)
        weight = Weight(node_name, (groups, out), (Axis("group_width", group_width),))
        return self.step("per_group", node_name, (x,), Value(x.rows, (groups, out)), op=op, weight=weight)

    def table(
        self,
        node_name: str,
        table_axis: Axis,
        *axes: Axis | JoinedShapes,
        output_rows: Rows = TOKENS,
        index_source: IndexSource = "ids",
        rows_read: Number = None,
        **node_fields: Any,
    ) -> tuple[Value, Weight]:
        """Records an embedding look-up per row of `output_rows`; returns the vectors and the table as a weight.

        A later step may be tied to the weight.
        index_source: what is looked up: the ids of the tokens, or numbers that all sequences share (positions, types).
            `known ids`: the ids, and the first row for a token beyond the rows of the table.
            `chosen`: tokens that the pass itself chooses.
            `all`: nothing; the value is the table itself.
        rows_read: rows that a token reads; a table's other rows are not counted as active. By default all are.
        """
        weight = Weight(node_name, axes, (table_axis,))
        op = ops.Embedding(table_axis.size, self.element_count(axes), rows_read)
        return self.step(
            "table",
            node_name,
            (),
            Value(output_rows, axes),
            op=op,
            weight=weight,
            node_fields=node_fields,
            by=index_source,
        ), weight

    def unread_table(self, node_name: str, table_axis: Axis, *axes: Axis | JoinedShapes, **node_fields: Any) -> Weight:
        """Records an embedding table without a look-up, and returns its weight for other operations."""
        weight = Weight(node_name, axes, (table_axis,))
        self.record(
            "unread_table",
            node_name,
            (),
            (),
            ops.Embedding(table_axis.size, self.element_count(axes)),
            weight,
            node_fields,
        )
        return weight

    def look_up(self, weight: Weight, output_rows: Rows = TOKENS, index_source: IndexSource = "ids") -> Value:
        """Records another look-up, by default of token ids, in a table that is already recorded."""
        weight.is_tied = True
        return self.step("table", "", (), Value(output_rows, weight.output_axes), weight=weight, by=index_source)

    def norm(
        self,
        node_name: str,
        x: Value,
        spec: NormSpec,
        normalized_axes: Shape | None = None,
        heads: Axis | None = None,
        groups: Axis | None = None,
        **node_fields: Any,
    ) -> Value:
        """Records a norm: x divided by its root mean square or its standard deviation, times a weight, plus a bias.

        spec: which norm it is. normalized_axes: the axes that are normalized together, all of x's by default.
        heads: the axis of heads with separate weights.
        groups: the axis of parts of x that are normalized separately, with one weight vector for all of x; by default
            as many as the spec says.
        """
        if spec.gate_rank is not None:
            raise InputError(
                f"{node_name or self.current_scope.name}.gate_rank: this norm takes no gate; expected none"
            )
        if groups is None and spec.groups != 1:
            groups = self._norm_groups(node_name, x, spec.groups, normalized_axes)
        normalized_axes = x.axes if normalized_axes is None else normalized_axes
        weight_axes = normalized_axes if heads is None else (heads, *normalized_axes)
        width = x.width if weight_axes is x.axes else self.element_count(weight_axes)
        op = ops.Norm(width, spec.weight, spec.has_bias, None if heads is None else heads.size)
        output = Value(x.rows, x.axes, is_constant=x.is_constant and not spec.weight and not spec.has_bias)
        return self.step(
            "norm",
            node_name,
            (x,),
            output,
            op=op,
            node_fields=node_fields,
            spec=spec,
            over=normalized_axes,
            groups=groups,
        )

    def _norm_groups(self, norm_name: str, x: Value, groups: int, normalized_axes: Shape | None) -> Axis:
        """Returns the axis of a norm's groups. Raises `InputError` if the groups do not divide the width."""
        width = x.width if normalized_axes is None else self.element_count(normalized_axes)
        if isinstance(width, int) and width % groups:
            raise InputError(
                f"{norm_name or self.current_scope.name}.groups: {groups} does not divide the width {width}"
            )
        return Axis("norm_groups", groups)

    def normalized(
        self, x: Value, spec: NormSpec, normalized_axes: Shape | None = None, weight_owner: Value | None = None
    ) -> Value:
        """Records a norm that is no node of the tree. weight_owner: the output of the norm whose weights are reused."""
        step_options = {
            "spec": spec,
            "over": x.axes if normalized_axes is None else normalized_axes,
            "like": weight_owner,
        }
        return self.step("norm", "", (x,), Value(x.rows, x.axes), **step_options)

    def conv(
        self,
        node_name: str,
        x: Value,
        *out: Axis | JoinedShapes,
        kernel: Number,
        groups: Number = 1,
        bias: bool = False,
        padding: Number = 0,
        overlap: Number = 0,
        rows: Rows | None = None,
        state_name: str = "",
        outputs_per_filter: Number = 1,
        **node_fields: Any,
    ) -> Value:
        """Records a convolution along the rows of x.

        groups, padding, overlap: as in `ops.Conv1d`. rows: the rows of the output.
        state_name: the state that keeps the last inputs of a causal convolution; empty where the module around it
            says so.
        outputs_per_filter: `shared` of `ops.Conv1d`.
        """
        output_rows = x.rows if rows is None else rows
        op = ops.Conv1d(
            x.width,
            self.element_count(out),
            kernel,
            groups,
            bias,
            padding,
            x.is_constant,
            overlap,
            output_rows,
            outputs_per_filter,
        )
        step_options = {
            "kernel": kernel,
            "groups": groups,
            "bias": bias,
            "state": state_name,
            "shared": outputs_per_filter,
        }
        weight = Weight(node_name, out, x.axes)
        output_value = (
            Value(output_rows, out) if is_zero(overlap) else Value(_rows_after_padding(output_rows, overlap), out)
        )
        return self.step(
            "conv", node_name, (x,), output_value, op=op, weight=weight, node_fields=node_fields, **step_options
        )

    def vector(
        self,
        node_name: str,
        *axes: Axis | JoinedShapes,
        heads: Axis | None = None,
        row_count: Number = None,
        is_frozen: bool = False,
        **node_fields: Any,
    ) -> Value:
        """Records a parameter that is added to or multiplied with other values elementwise.

        heads, row_count, is_frozen: `heads`, `rows` and `is_frozen` of `ops.Weight`.
        """
        op = ops.Weight(self.element_count(axes), None if heads is None else heads.size, row_count, is_frozen)
        return self.step("vector", node_name, (), Value(NO_ROWS, axes), op=op, node_fields=node_fields)

    def padded(self, x: Value, padding: Number, state_name: str) -> Value:
        """Records `padding` rows in front of x: zeros, or the last rows of an earlier pass.

        state_name: the name of the state that keeps them.
        """
        return self.step(
            "padded", "", (x,), Value(_rows_after_padding(x.rows, padding), x.axes), more=padding, state=state_name
        )

    def zeros(self, x: Value, state_name: str) -> Value:
        """Records a row of zeros per sequence with the axes of x, or the row that an earlier pass stored.

        state_name: the name of the state.
        """
        return self.step("zeros", "", (x,), Value(SEQUENCES, x.axes, is_constant=True), state=state_name)

    def resumed(self, first_row: Value, state_name: str, state_index: int = 0) -> Value:
        """Records the row in front of this pass's first row: the last row of an earlier pass, else `first_row`.

        state_name: the name of the state that keeps it. state_index: which of the state's tensors it is.
        """
        return self.step(
            "resumed", "", (first_row,), first_row.view(*first_row.axes), state=state_name, index=state_index
        )

    def buffer(self, node_name: str, *axes: Axis | JoinedShapes, indices: bool = False, **node_fields: Any) -> Value:
        """Records a buffer: values that checkpoints store and training keeps. indices: whether they are integers."""
        output = Value(NO_ROWS, axes, is_constant=True)
        return self.step(
            "buffer",
            node_name,
            (),
            output,
            op=ops.Buffer(self.element_count(axes)),
            node_fields=node_fields,
            indices=indices,
        )


def _rows_after_padding(source_rows: Rows, padding: Number) -> Rows:
    """Returns the axis of `source_rows` with `padding` additional rows in front."""
    from ...workload.derived_rows import ExtendedRows

    return ExtendedRows(source_rows=source_rows, extra_rows=padding)
