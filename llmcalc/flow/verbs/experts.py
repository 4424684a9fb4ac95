"""Methods that record the routing of tokens to experts and the combination of experts' outputs."""

from __future__ import annotations

from typing import Literal

from ...algebra import Number
from ...workload.rows import ONE_GROUP, ExpertGroups, RoutedRows
from ..axis import Axis
from ..recorder import Recorder
from ..value import Value


class ExpertVerbs(Recorder):
    """Methods that record the routing of tokens to experts and the combination of experts' outputs."""

    def route(
        self,
        logits: Value,
        top_k: Number,
        scoring: Literal["softmax", "sigmoid", "sqrtsoftplus", "softmax of chosen"] = "softmax",
        correction: Value | None = None,
        scale: Value | None = None,
        table: Value | None = None,
        has_skip: bool = False,
    ) -> tuple[Value, Value]:
        """Records the selection of experts with the highest scores, and returns the experts' weights and indices.

        scoring: the function from logits to scores. The weights are the scores of the chosen experts over their sum, or
            a softmax over the logits of the chosen experts alone.
        correction: what is added to the scores for the choice alone, nothing by default.
        scale: a weight per expert, none by default.
        table: the experts of each token id, in place of those of the highest scores; none by default.
        has_skip: whether the last class is no expert at all, false by default.
        """
        optional_inputs = {"correction": correction, "scale": scale, "table": table}
        inputs = {
            input_name: input_value for input_name, input_value in optional_inputs.items() if input_value is not None
        }
        axis = Axis("top_k", top_k)
        expert_weights, top_experts = Value(logits.rows, (axis,)), Value(logits.rows, (axis,), is_constant=True)
        step_inputs = (logits, *inputs.values())
        self.record(
            "route",
            "",
            step_inputs,
            (expert_weights, top_experts),
            scoring=scoring,
            beside=tuple(inputs),
            skip=has_skip,
            top_k=top_k,
        )
        return expert_weights, top_experts

    def product_keys(self, scores: Value, grid_axis: Axis, top_k: Number) -> tuple[Value, Value]:
        """Records the selection of experts by product keys in a grid, and returns their weights and indices.

        scores: those of the rows of the grid and those of its columns, side by side. An expert's score is the sum of
            its row's and its column's; a softmax over the chosen experts' scores gives the weights.
        """
        axis = Axis("top_k", top_k)
        expert_weights, top_units = Value(scores.rows, (axis,)), Value(scores.rows, (axis,), is_constant=True)
        self.record("product_keys", "", (scores,), (expert_weights, top_units), side=grid_axis, top_k=top_k)
        return expert_weights, top_units

    def carry(self, node_name: str, x: Value, scale: Value | None = None) -> Value:
        """Records that x is passed to the next layer under a name, optionally plus the lower layer's scaled value.

        scale: what the value of the layer below is multiplied by before it is added to x; nothing is added by default,
            nor in the first layer.
        """
        return self.step("carry", "", (x,) if scale is None else (x, scale), Value(x.rows, x.axes), slot=node_name)

    def dispatch(
        self, x: Value, top_experts: Value, experts: Axis, top_k: Number, groups: ExpertGroups = ONE_GROUP
    ) -> Value:
        """Records a sort by expert of the tokens' copies: one row per token and selected expert.

        x may have such rows already, in the order of the tokens.
        groups: the groups of experts from which a token's experts are selected, one by default.
        """
        routed_rows = (
            x.rows if isinstance(x.rows, RoutedRows) else RoutedRows(source_rows=x.rows, top_k=top_k, groups=groups)
        )
        return self.step("dispatch", "", (x, top_experts), Value(routed_rows, x.axes), experts=experts, top_k=top_k)

    def to_tokens(self, routed_rows: Value) -> Value:
        """Records a sort of the experts' rows back into token order."""
        return self.step("to_tokens", "", (routed_rows,), Value(routed_rows.rows, routed_rows.axes))

    def combine(
        self, routed_rows: Value, weights: Value, experts: Axis, top_k: Number, in_float32: bool = False
    ) -> Value:
        """Records the weighted sum of each token's expert outputs.

        in_float32: whether products and sum are in float32, false by default.
        """
        output_value = Value(weights.rows, routed_rows.axes)
        return self.step(
            "combine", "", (routed_rows, weights), output_value, experts=experts, top_k=top_k, float32=in_float32
        )
