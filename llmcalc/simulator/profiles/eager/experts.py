"""Mixtures of experts: routers, rows sorted by expert, and one grouped product per linear layer of all experts.

No token is dropped: the rows of all experts together are top_k per token, so no size depends on how evenly the router
spreads the tokens.
"""

from __future__ import annotations

from typing import Any

from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.axis import element_count
from ....flow.program import Step
from ....flow.value import Value
from ....ops import ExpertRows
from ...autograd import record
from ...lowering import CARRIED_KEY, Lowering
from ...strides import numel
from ...tensor import FLOAT32, INT32, INT64, OptionalGradient, Tensor

GROUPED_PRODUCT_ALIGNMENT = 16
"""torch's grouped matrix product requires rows whose bytes are a multiple of this number."""


GATE_AND_UP = ("gate_proj", "up_proj")
"""Names of the linear layers that read the experts' input."""


@kernels_compared(TORCH_WITNESS)
class ExpertKernels(Lowering):
    """Kernels of mixtures of experts, which run the operations of the reference with `grouped_experts`."""

    def flat_rows(self, x: Tensor, axis_count: int = 1) -> Tensor:
        """Flattens [batch, rows, …] to [batch · rows, elements], except rows sorted by expert.

        axis_count: the axes of one row.
        """
        if axis_count > 1:
            return self.aten.flatten(self.aten.flatten(x, 0, len(x.shape) - axis_count - 1), 1)
        return self.aten.with_shape(x, (numel(x.shape[:-1]), x.shape[-1]))

    # --- routers ----------------------------------------------------------------------------------------------------

    def do_route(self, operation: Step) -> None:
        aten, options = self.aten, operation.options
        inputs_by_name = dict(zip(options["beside"], operation.input_values[1:], strict=True))
        if options["scoring"] == "softmax of chosen":
            logits, expert_indices = aten.topk(
                aten.to(self.tensor_read_by(operation, operation.input_values[0]), FLOAT32), options["top_k"]
            )
            expert_weights = aten.softmax(logits)
        else:
            scores = self.router_scores(self.tensor_read_by(operation, operation.input_values[0]), options["scoring"])
            if "table" in inputs_by_name:
                expert_indices = aten.new_tensor((*scores.shape[:-1], options["top_k"]), INT64)
            else:
                expert_indices = self.top_experts(scores, options["top_k"], inputs_by_name.get("correction"))
            expert_weights = self.chosen_expert_weights(scores, expert_indices)
            if "scale" in inputs_by_name:
                expert_weights = aten.mul(
                    expert_weights, aten.index_select(self.tensor_of(inputs_by_name["scale"]), expert_indices)
                )
            if options["skip"]:
                skipped_expert_mask = aten.compare(expert_indices)
                expert_weights, expert_indices = (
                    aten.masked_fill(expert_weights, skipped_expert_mask),
                    aten.new_like(expert_indices),
                )
        for recorded_value, output_tensor in zip(
            operation.output_values, (expert_weights, expert_indices), strict=True
        ):
            self.store_tensor(recorded_value, output_tensor)

    def router_scores(self, logits: Tensor, score_function: str) -> Tensor:
        """Converts logits to scores, in float32."""
        aten = self.aten
        logits = aten.to(logits, FLOAT32)
        if score_function == "softmax":
            return aten.softmax(logits)
        if score_function == "sigmoid":
            return aten.elementwise_function("sigmoid", logits)
        return aten.sqrt(aten.elementwise_function("softplus", logits))

    def top_experts(self, scores: Tensor, top_k: int, score_correction: Value | None) -> Tensor:
        """Returns the experts with the highest corrected scores."""
        return self.aten.topk(
            scores if score_correction is None else self.aten.add(scores, self.tensor_of(score_correction)), top_k
        )[1]

    def chosen_expert_weights(self, scores: Tensor, expert_indices: Tensor) -> Tensor:
        """Returns the scores of the chosen experts, divided by the sum of these scores."""
        chosen_scores = self.aten.gather(scores, expert_indices)
        if expert_indices.shape[-1] != 1:
            return self.aten.div(chosen_scores, self.aten.sum(chosen_scores, keepdim=True))
        return chosen_scores

    def do_product_keys(self, operation: Step) -> None:
        aten, grid_side = self.aten, operation.options["side"].size
        row_scores, column_scores = aten.split(
            aten.to(self.tensor_read_by(operation, operation.input_values[0]), FLOAT32), (grid_side, grid_side)
        )
        top_scores, top_indices = aten.topk(
            aten.flatten(aten.add(aten.unsqueeze(row_scores, 3), aten.unsqueeze(column_scores, 2)), 2),
            operation.options["top_k"],
        )
        self.store_tensor(operation.output_values[0], aten.to(aten.softmax(top_scores), self.dtype))
        self.store_tensor(operation.output_values[1], top_indices)

    def do_carry(self, operation: Step) -> None:
        x, slot_key = self.tensor_of(operation.input_values[0]), (CARRIED_KEY, operation.options["slot"])
        if len(operation.input_values) > 1 and self.recompute.reentrant:
            raise self.unsupported(
                "--recompute full-reentrant takes no layer that keeps a value for the layer above; expected full"
            )
        if len(operation.input_values) > 1 and any(
            id(module_call.scope) in self.recomputed_modules for module_call in self.frames
        ):
            raise self.unsupported(
                "it reads what the layer below has kept, and runs again after the layers above; expected --recompute "
                "full, or nodes without this module"
            )
        if len(operation.input_values) > 1 and slot_key in self.pass_memo:
            x = self.aten.add(x, self.aten.mul(self.pass_memo[slot_key], self.tensor_of(operation.input_values[1])))
        self.pass_memo[slot_key] = x
        self.store_tensor(operation.output_values[0], x)

    # --- rows -------------------------------------------------------------------------------------------------------

    def do_dispatch(self, operation: Step) -> None:
        input_value, output = operation.input_values[0], operation.output_values[0]
        if input_value.rows == output.rows:  # they are in the order of the tokens
            sorted_order = self.expert_row_index("order")
            self.store_tensor(
                output,
                self.aten.index_select(
                    self.flat_rows(self.tensor_of(input_value), len(input_value.axes)), sorted_order
                ),
            )
            return
        local_tensors = self.frames[-1].local_tensors
        local_tensors["expert"], local_tensors["order"] = self.aten.sort(
            self.aten.flatten(self.tensor_of(operation.input_values[1]))
        )
        local_tensors["token"] = self.aten.new_like(local_tensors["order"])
        sent_rows = self.aten.index_select(
            self.aten.flatten(self.tensor_of(input_value), 0, -2), local_tensors["token"]
        )
        if self.choices.matches_transformers:
            local_tensors["rows"] = sent_rows
        self.store_tensor(output, sent_rows)

    def expert_row_index(self, index_name: str) -> Tensor:
        """Returns an index tensor over the rows sent to experts, with each row's expert, token or position.

        index_name: which.
        """
        for module_frame in reversed(self.frames):
            if index_name in module_frame.local_tensors:
                index_tensor: Tensor = module_frame.local_tensors[index_name]
                return index_tensor
        raise self.unsupported("no kernels for experts without a router")

    def do_to_tokens(self, operation: Step) -> None:
        recorded_value = operation.input_values[0]
        x = self.flat_rows(self.tensor_read_by(operation, recorded_value), len(recorded_value.axes))
        self.store_tensor(
            operation.output_values[0], self.aten.index_add(x.shape[0], x, self.expert_row_index("order"))
        )

    def do_combine(self, operation: Step) -> None:
        """Sums the weighted expert outputs of each token.

        The classes of transformers put the rows back into the order of tokens by an index and sum over the experts.
        Until then they name the experts' inputs and outputs (integrations/moe.py, `grouped_mm_experts_forward`).
        """
        aten, expert_weights = self.aten, self.tensor_of(operation.input_values[1])
        expert_outputs = self.flat_rows(
            self.tensor_read_by(operation, operation.input_values[0]), len(operation.input_values[0].axes)
        )
        dtype = expert_outputs.dtype
        weighted_outputs = aten.mul(
            expert_outputs,
            aten.unsqueeze(
                aten.index_select(
                    aten.flatten(expert_weights if operation.options["float32"] else aten.to(expert_weights, dtype)),
                    self.expert_row_index("order"),
                ),
                1,
            ),
        )
        if self.choices.matches_transformers:
            weighted_outputs = aten.index_select(weighted_outputs, aten.new_like(self.expert_row_index("order")))
            *token_shape, top_k = expert_weights.shape
            token_count = token_shape[0] if len(token_shape) == 1 else token_shape[0] * token_shape[1]
            token_sums = aten.sum(aten.unflatten(weighted_outputs, 0, (token_count, top_k)), 1)
            self.store_tensor(operation.output_values[0], aten.to(token_sums, dtype))
            for module_frame in self.frames:
                module_frame.local_tensors.pop("rows", None)
            return
        del expert_outputs
        token_sums = aten.index_add(
            expert_weights.shape[0] * expert_weights.shape[1], weighted_outputs, self.expert_row_index("token")
        )
        self.store_tensor(operation.output_values[0], aten.to(token_sums, dtype))

    # --- experts ----------------------------------------------------------------------------------------------------

    def do_experts(self, operation: Step) -> None:
        aten, output, expert_count = self.aten, operation.output_values[0], operation.options["experts"].size
        x = self.flat_rows(self.tensor_of(operation.input_values[0]), len(operation.input_values[0].axes))
        input_width, output_width = x.shape[1], element_count(output.axes)
        for row_width in (input_width, output_width):
            if isinstance(row_width, int) and row_width * x.dtype.bytes % GROUPED_PRODUCT_ALIGNMENT:
                raise self.unsupported(
                    f"{row_width} elements of {x.dtype} are {row_width * x.dtype.bytes} bytes; a grouped product "
                    f"requires a multiple of {GROUPED_PRODUCT_ALIGNMENT}",
                    operation.name,
                )
        linear_steps = self._linear_steps_fused_with(operation)
        if operation is not linear_steps[0]:
            return  # bound by the first of them
        group_ends = self.group_end_indices(expert_count, operation.options["identities"])
        if len(linear_steps) > 1:
            if self.adapters is not None and self.adapters.adapts_experts:  # one adapter stands beside the fused weight
                weights = [
                    self.expert_weight(
                        operation, (expert_count, output_width * len(linear_steps), input_width), len(linear_steps)
                    )
                ]
            else:
                weights = [
                    self.expert_slices(
                        linear_operation,
                        self.expert_weight(linear_operation, (expert_count, output_width, input_width)),
                    )
                    for linear_operation in linear_steps
                ]
            matrices = [aten.transpose(weight, 1, 2) for weight in weights]
            del weights
            grouped_product = aten.grouped_mm(x, matrices[0], group_ends, *matrices[1:])
            for linear_step, expert_outputs in zip(
                linear_steps, aten.split(grouped_product, [output_width] * len(linear_steps)), strict=True
            ):
                self.store_tensor(linear_step.output_values[0], expert_outputs)
            return
        weight = self.expert_slices(operation, self.expert_weight(operation, (expert_count, output_width, input_width)))
        if x.dtype is not weight.dtype:
            raise self.unsupported(
                f"torch has no grouped product of {x.dtype} rows and {weight.dtype} weights, and casts neither under "
                "autocast; expected weights in the type of activations",
                operation.name,
            )
        expert_outputs = aten.grouped_mm(x, aten.transpose(weight, 1, 2), group_ends)
        if operation.options["bias"]:
            expert_outputs = aten.add(
                expert_outputs,
                aten.index_select(
                    self.weight(f"{operation.name}.bias", (expert_count, output_width)), self.expert_row_index("expert")
                ),
            )
        self.store_tensor(output, expert_outputs)

    def expert_slices(self, operation: Step, weight: Tensor) -> Tensor:
        """Returns the weight of all experts, of which each expert's slice has a gradient of full size in backward.

        Each slice has a gradient of that size, of zeros beside its expert. The first two are added to a third tensor,
        the others are added to the sum in its place (torch/csrc/autograd/input_buffer.cpp, `accumulate`).
        """
        if not (operation.options["sliced"] and self.choices.matches_transformers):
            return weight

        def backward(first_gradient: Tensor, *_: Any) -> tuple[OptionalGradient]:
            second_gradient, gradient_sum = self.aten.new_like(first_gradient), self.aten.new_like(first_gradient)
            del second_gradient
            return (gradient_sum,)

        return record(self.graph, "select", (weight,), weight.view(weight.shape, weight.strides), backward)

    def _linear_steps_fused_with(self, operation: Step) -> list[Step]:
        """Returns the experts' linear layers that run as one product with this operation's, in order.

        The classes of transformers have gate and up projections as one weight (`gate_up_proj`).
        """
        fuses_gate_and_up = self.choices.matches_transformers if self.adapters is None else self.adapters.adapts_experts
        if not fuses_gate_and_up or operation.name not in GATE_AND_UP:
            return [operation]
        linear_steps = [
            scope_item
            for scope_item in self.frames[-1].scope.items
            if isinstance(scope_item, Step)
            and scope_item.verb == "experts"
            and scope_item.name in GATE_AND_UP
            and scope_item.input_values[0] is operation.input_values[0]
            and not scope_item.options["bias"]
        ]
        return linear_steps if len(linear_steps) == len(GATE_AND_UP) else [operation]

    def group_end_indices(self, expert_count: int, has_identities: bool) -> Tensor:
        """Returns the cumulative row count per expert, computed by the experts' first linear layer."""
        aten, local_tensors = self.aten, self.frames[-1].local_tensors
        if "ends" not in local_tensors:
            if has_identities:
                local_tensors["identity"] = aten.compare(self.expert_row_index("expert"))
                local_tensors["expert"] = aten.new_like(self.expert_row_index("expert"))
            rows_per_expert = aten.histogram(self.expert_row_index("expert"), expert_count)
            local_tensors["ends"] = aten.to(rows_per_expert, INT32)
        group_ends: Tensor = local_tensors["ends"]
        return group_ends

    def core_IdentityExperts(self, operation: Step) -> None:
        expert_rows, expert_sums = (
            self.flat_rows(self.tensor_of(input_value), len(input_value.axes)) for input_value in operation.input_values
        )
        identity_rows = self.frames[-1].local_tensors["identity"]
        self.store_tensor(
            operation.output_values[0], self.aten.where(self.aten.unsqueeze(identity_rows, 1), expert_rows, expert_sums)
        )

    def core_ExpertRows(self, operation: Step) -> None:
        """Runs experts that have one hidden unit each; their input and output vectors are looked up per token."""
        aten, op, (token_vectors, expert_indices) = self.aten, operation.op, operation.input_values
        assert isinstance(op, ExpertRows)
        vector_table = self.weight(f"{operation.name}.weight", (op.num_experts, op.width))
        if operation.output_values[0].axes == expert_indices.axes:
            output = aten.select(
                aten.matmul(
                    aten.embedding(vector_table, self.tensor_of(expert_indices)),
                    aten.unsqueeze(self.tensor_of(token_vectors), 3),
                ),
                3,
            )
        else:
            output = aten.select(
                aten.matmul(
                    aten.unsqueeze(self.tensor_of(token_vectors), 2),
                    aten.embedding(vector_table, self.tensor_of(expert_indices)),
                ),
                2,
            )
        self.store_tensor(operation.output_values[0], output)
