"""Linear layers, tables, norms, elementwise steps and the loss."""

from __future__ import annotations

from typing import Any

from ....algebra import Number, times
from ....components.base import TORCH_WITNESS
from ....components.norm import Norm
from ....evidence import kernels_compared
from ....flow.axis import Shape
from ....flow.program import Step
from ....flow.value import Value
from ....ops import Weight as VectorWeight
from ....workload.derived_rows import MultipliedRows
from ....workload.rows import LOGITS, Rows
from ...lowering import Lowering, ModulePath
from ...tensor import DTYPES, FLOAT32, INT64, Tensor

TOKEN_ID_SOURCES = ("ids", "known ids")
"""Index sources of look-ups by token ids; all other look-ups use numbers that all sequences share."""


@kernels_compared(TORCH_WITNESS)
class BasicKernels(Lowering):
    """Kernels of the operations in most models: linear layers, tables, norms, activations and the loss."""

    # --- linear layers and tables -----------------------------------------------------------------------------------

    def do_linear(self, operation: Step) -> None:
        x, output = self.flat_tensor(operation.input_values[0], operation), operation.output_values[0]
        bias = None
        if operation.options["bias"]:
            weight_owner = operation.options.get("lent")
            layer_path = self.module_path(outer_level_count=1 if weight_owner else 0)
            bias = self.weight(f"{weight_owner or operation.name}.bias", (output.width,), layer_path)
        computed_row_count = self.output_rows(operation)
        if len(x.shape) == 3 and x.shape[1] != computed_row_count:
            x = self.aten.slice(x, computed_row_count, 1)
        self.modules[id(output)] = self.module_path(), operation.name
        weight = self.linear_weight(operation)
        if operation.options.get("float32"):
            x, weight, bias = (
                self.aten.to(x, FLOAT32),
                self.aten.to(weight, FLOAT32),
                bias and self.aten.to(bias, FLOAT32),
            )
        self.store_tensor(output, self.linear_output(operation, x, weight, bias))

    def output_rows(self, operation: Step) -> Number:
        """Returns the number of tokens at each sequence's end for which a linear layer computes its output."""
        return self.run_config.new_rows(operation.output_values[0].rows)

    def do_again(self, operation: Step) -> None:
        """Applies a linear layer, which an earlier operation has already run, to another input."""
        x, output = self.flat_tensor(operation.input_values[0]), operation.output_values[0]
        module_path, linear_name = self.modules[id(operation.options["like"])]
        bias = self.weight(f"{linear_name}.bias", (output.width,), module_path) if operation.options["bias"] else None
        weight = self.weight(f"{linear_name}.weight", (output.width, x.shape[-1]), module_path)
        self.store_tensor(output, self.repeat_linear(linear_name, module_path, x, weight, bias))

    def repeat_linear(
        self, linear_name: str, module_path: ModulePath, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Computes x·Wᵀ + b with the linear layer `linear_name` of the module `module_path`."""
        return self.aten.linear(x, weight, bias)

    def has_adapter(self, operation: Step) -> bool:
        """Whether a linear layer has a low-rank adapter; false in this profile."""
        return False

    def linear_output(self, operation: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the output of a linear layer."""
        return self.product(x, weight, bias, operation.output_values[0].width)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_width: Number) -> Tensor:
        """Computes x·Wᵀ + b. output_width: the number of output features."""
        return self.aten.linear(x, weight, bias)

    def do_table(self, operation: Step) -> None:
        output = operation.output_values[0]
        if operation.options["by"] == "all":
            self.store_tensor(output, self.embedding_table(operation))
            return
        index_source = operation.options["by"]
        embeddings = self.look_up_rows(
            operation, self.embedding_table(operation), self._look_up_indices(output.rows, index_source)
        )
        if index_source in (*TOKEN_ID_SOURCES, "chosen"):
            self.store_tensor(output, embeddings)
        else:
            self.store_without_reshape(output, embeddings)  # [rows, …]: all sequences share it

    def look_up_rows(self, operation: Step, weight: Tensor, index: Tensor) -> Tensor:
        """Looks up rows of a table by index."""
        return self.aten.embedding(weight, index)

    def _look_up_indices(self, row_axis: Rows, index_source: str) -> Tensor:
        """Returns the indices of a look-up: token ids, or numbers shared by all sequences."""
        if index_source in TOKEN_ID_SOURCES:
            if isinstance(row_axis, MultipliedRows) and row_axis.source_rows in self.inputs:
                token_ids = self.inputs[row_axis.source_rows]
                n_grams = self.aten.new_tensor((token_ids.shape[0], self.run_config.new_rows(row_axis)), INT64)
                self.frames[-1].local_tensors["n-grams"] = n_grams
                return n_grams
            if row_axis not in self.inputs:
                raise self.unsupported(
                    f"the memory of a look-up by {row_axis.name} is not modelled; params, flops and kv count this model"
                )
            token_ids = self.inputs[row_axis]
            return token_ids if index_source == "ids" else self.aten.new_like(token_ids, self.aten.compare(token_ids))
        if index_source == "chosen" and row_axis is LOGITS:
            return self.aten.new_tensor((self.run_config.batch, self.run_config.new_rows(row_axis)), INT64)
        if index_source == "chosen":
            raise self.unsupported("no kernels for a look-up of tokens that the pass chooses")
        local_tensors = self.frames[-1].local_tensors
        if index_source == "positions" or index_source not in local_tensors:
            local_tensors[index_source] = self.aten.new_tensor((self.run_config.new_rows(row_axis),), INT64)
        row_indices: Tensor = local_tensors[index_source]
        # positions have an offset
        return self.aten.new_like(row_indices) if index_source == "positions" else row_indices

    def do_unread_table(self, operation: Step) -> None:
        self.embedding_table(operation)

    def do_vector(self, operation: Step) -> None:
        assert isinstance(operation.op, VectorWeight)
        parameter_key = (*self.module_path(), operation.name)
        is_trained = self.adapters is None and not operation.op.is_frozen
        self.store_tensor(
            operation.output_values[0],
            self.parameter(parameter_key, operation.op.tensors()[0].shape, self.dtype, is_trained),
        )

    def do_buffer(self, operation: Step) -> None:
        self.store_tensor(
            operation.output_values[0],
            self.buffer(operation.name, self.shape(operation.output_values[0]), operation.options["indices"]),
        )

    # --- norms ------------------------------------------------------------------------------------------------------

    def do_norm(self, operation: Step) -> None:
        spec: Norm = operation.options["spec"]
        recorded_value = operation.input_values[0]
        normed_shape = operation.options["over"]
        heads = getattr(operation.op, "heads", None)
        x = self.tensor_of(recorded_value)
        is_heads_first = heads is not None or self.norms_heads_first(recorded_value, normed_shape)
        if is_heads_first:
            x = self.aten.transpose(x, 1, 2)
        elif len(normed_shape) > 1:
            x = self.flat_tensor(recorded_value)
        shape = x.shape[-1:] if heads is None else (heads, 1, x.shape[-1])
        group_count, owner = operation.options.get("groups"), operation.options.get("like")
        module_path, norm_name = (self.module_path(), operation.name) if owner is None else self.modules[id(owner)]
        self.modules[id(operation.output_values[0])] = module_path, norm_name
        normed_x = self.norm(x, spec, norm_name, shape, 1 if group_count is None else group_count.size, module_path)
        self.store_tensor(
            operation.output_values[0], self.aten.transpose(normed_x, 1, 2) if is_heads_first else normed_x
        )

    def norms_heads_first(self, recorded_value: Value, normed_shape: Shape) -> bool:
        """Whether the order of axes matters for a norm on [batch, heads, rows, size]; false in this profile."""
        return False

    def norm(
        self, x: Tensor, spec: Norm, norm_name: str, shape: Any, groups: Any = 1, module_path: ModulePath | None = None
    ) -> Tensor:
        """Runs a norm with the operations of NormReference.forward.

        module_path: the module with the norm's parameters; default the running module.
        """
        normed_x = x if spec.type == "affine" else self._normalize(x, spec, groups)
        if spec.weight:
            normed_x = self.aten.mul(
                normed_x, self.norm_factor(spec, norm_name, shape, module_path, spec.float32_product)
            )
        normed_x = (
            self.aten.add(normed_x, self.weight(f"{norm_name}.bias", shape, module_path)) if spec.has_bias else normed_x
        )
        return self.aten.to(normed_x, x.dtype) if spec.float32_product else normed_x

    def norm_factor(
        self, spec: Norm, norm_name: str, shape: Any, module_path: ModulePath | None, in_float32: bool = False
    ) -> Tensor:
        """Returns the factor by which normalized values are multiplied: the weight, or 1 + weight."""
        weight = self.weight(f"{norm_name}.weight", shape, module_path)
        if not spec.unit_offset:
            return weight
        return self.aten.add_number(self.aten.to(weight, FLOAT32) if in_float32 else weight)

    def _normalize(self, x: Tensor, spec: Norm, group_count: Any) -> Tensor:
        aten, norm_width = self.aten, x.shape[-1]
        grouped_x = aten.unflatten(aten.to(x, FLOAT32), -1, (group_count, norm_width // group_count))
        scaled_x = aten.unflatten(x, -1, (group_count, norm_width // group_count)) if spec.scales_x else grouped_x
        if spec.type == "layernorm":
            mean = aten.mean(grouped_x)
            scaled_x = centered_x = aten.sub(grouped_x, mean)
            grouped_x = aten.sub(grouped_x, mean) if spec.float32_product and spec.weight else centered_x
            del centered_x, mean
        dtype = FLOAT32 if spec.float32_product else x.dtype
        return aten.to(
            aten.flatten(aten.mul(scaled_x, aten.rsqrt(aten.add_number(aten.mean(aten.square(grouped_x))))), -2), dtype
        )

    # --- elementwise ------------------------------------------------------------------------------------------------

    def do_act(self, operation: Step) -> None:
        x = self.tensor_of(operation.input_values[0])
        if operation.options["float32"]:
            x = self.aten.to(x, FLOAT32)
            self.release_last_reads(operation, operation.input_values)
        self.store_tensor(operation.output_values[0], self.apply_activation(x, operation.options["kind"]))

    def apply_activation(self, x: Tensor, activation_name: str) -> Tensor:
        """Applies an activation function by name."""
        if activation_name == "relu2":
            return self.aten.square(self.aten.elementwise_function("relu", x))
        if activation_name == "square":
            return self.aten.square(x)
        if activation_name == "gelu_new":
            return self._gelu_by_steps(x) if self.choices.unfused_gelu else self.aten.elementwise_function("gelu", x)
        if activation_name == "quick_gelu":
            return self.aten.mul(x, self.aten.elementwise_function("sigmoid", self.aten.scale(x)))
        if activation_name == "situ":
            scaled_tanh = self.aten.scale(self.aten.elementwise_function("tanh", self.aten.scale(x)))
            return self.aten.mul(scaled_tanh, self.aten.elementwise_function("sigmoid", x))
        if activation_name in ("clamped", "clamped_plus_one"):
            clamped_x = self.aten.clamp(x, has_both_limits=True)
            return clamped_x if activation_name == "clamped" else self.aten.add_number(clamped_x)
        if activation_name == "clamped_silu":
            return self.aten.elementwise_function("silu", self.aten.clamp(x))
        if activation_name == "clamped_swish":
            clamped_x = self.aten.clamp(x)
            return self.aten.mul(clamped_x, self.aten.elementwise_function("sigmoid", self.aten.scale(clamped_x)))
        if activation_name == "identity":
            return x
        if activation_name == "exp":
            return self.aten.exp(x)
        if activation_name == "signed_root":
            return self.aten.mul(self.aten.sqrt(self.aten.clamp(self.aten.absolute(x))), self.aten.sign(x))
        if activation_name == "softmax":
            return self.aten.softmax(x)
        if activation_name not in ("relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "softplus", "asinh"):
            raise self.unsupported(f"no kernels for '{activation_name}'")
        return self.aten.elementwise_function("gelu" if activation_name == "gelu_tanh" else activation_name, x)

    def _gelu_by_steps(self, x: Tensor) -> Tensor:
        """Computes x/2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))."""
        aten = self.aten
        half_input = aten.scale(x)
        return aten.mul(
            half_input,
            aten.add_number(aten.elementwise_function("tanh", aten.scale(aten.add(x, aten.scale(self._cube(x)))))),
        )

    def _cube(self, x: Tensor) -> Tensor:
        """Computes x³, under autocast possibly in float32."""
        return self.aten.square(self.aten.to(x, FLOAT32) if self.autocasts_to_float32 else x)

    def do_flat(self, operation: Step) -> None:
        self.store_output(operation, self.flat_tensor(operation.input_values[0]))

    def do_scale(self, operation: Step) -> None:
        self.store_tensor(operation.output_values[0], self.aten.scale(self.tensor_of(operation.input_values[0])))

    def do_split(self, operation: Step) -> None:
        x = self.tensor_of(operation.input_values[0])
        shapes = [self.shape(output) for output in operation.output_values]
        if all(len(shape) == len(x.shape) for shape in shapes):
            axis_range = range(-1, 1 - len(x.shape), -1)
            split_axes = (axis for axis in axis_range if sum(shape[axis] for shape in shapes) == x.shape[axis])
            axis = next(split_axes, -1)
            split_tensors = self.aten.split(x, [shape[axis] for shape in shapes], axis)
        else:
            split_tensors = self.aten.split(
                self.flat_tensor(operation.input_values[0]), [output.width for output in operation.output_values]
            )
        for output, split_tensor in zip(operation.output_values, split_tensors, strict=True):
            self.store_tensor(output, split_tensor)

    def do_cat(self, operation: Step) -> None:
        tensors = list(map(self.tensor_of, operation.input_values))
        shape = self.shape(operation.output_values[0])
        axis = self._concatenation_axis(tensors, shape)
        if axis is None:
            tensors = [self.flat_tensor(input_value) for input_value in operation.input_values]
            axis = -1
        needs_transpose = len(shape) == 4 and axis == 3
        if needs_transpose:  # heads first
            tensors = [self._expand_heads(x, shape) for x in tensors]
        joined_tensor = (
            self._join_in_pages(tensors, axis) if all(map(self.is_pooled, tensors)) else self.aten.cat(tensors, axis)
        )
        self.store_tensor(
            operation.output_values[0], self.aten.transpose(joined_tensor, 1, 2) if needs_transpose else joined_tensor
        )

    def _join_in_pages(self, tensors: list[Tensor], axis: int) -> Tensor:
        """Concatenates tensors that are adjacent in a paged cache, where they are read in place."""
        shape = list(tensors[0].shape)
        shape[axis] = sum(joined_tensor.shape[axis] for joined_tensor in tensors)
        return self.new_pool_tensor(tuple(shape), tensors[0].dtype)

    def _expand_heads(self, x: Tensor, shape: Any) -> Tensor:
        """Returns a tensor as [batch, heads, rows, size], expanded to all heads if necessary."""
        if len(x.shape) == 4:
            return self.aten.transpose(x, 1, 2)
        head_rows = self.aten.unsqueeze(x, 1)
        return self.aten.expand(head_rows, (head_rows.shape[0], shape[2], *head_rows.shape[2:]))

    def _concatenation_axis(self, tensors: list[Tensor], shape: Any) -> int | None:
        """Returns the axis along which inputs are concatenated to this shape; None if there is no such axis."""
        for axis in range(len(shape) - 1, 0, -1):
            axis_from_end = axis - len(shape)
            if sum(input_tensor.shape[axis_from_end] for input_tensor in tensors) == shape[axis]:
                return axis
        return None

    def do_core(self, operation: Step) -> None:
        """Runs a matrix product or a scan by the profile's method that is named after the operation."""
        self.run_kernel_of_op(operation, "core")

    def do_state(self, operation: Step) -> None:
        """Stores a recurrent state in the cache for the next pass, except where the operation that reads it does so."""
        if operation.input_values:
            self.store_in_cache(
                operation.name,
                *(self.aten.select(self.tensor_of(input_value), 1) for input_value in operation.input_values),
            )

    # --- the loss ---------------------------------------------------------------------------------------------------

    def logits_for_loss(self, logits: Tensor) -> Tensor:
        """Returns the logits that the loss reads: scaled and capped, unless a kernel of the loss does both."""
        return self.scale_and_cap(logits) if self.choices.cross_entropy == "eager" else logits

    def scale_and_cap(self, logits: Tensor) -> Tensor:
        """Returns the logits scaled by a factor, and capped as c · tanh(x / c), if the output head does so."""
        if self.choices.scales_logits:
            logits = self.aten.scale(logits)
        if self.choices.caps_logits:
            logits = self.aten.scale(self.aten.elementwise_function("tanh", self.aten.scale(logits, "div")))
        return logits

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss: cross-entropy of the logits, plus the losses of multi-token prediction."""
        mtp_logits, self.further_outputs = self.further_outputs, []
        if self.choices.divides_logits:
            logits = self.aten.scale_in_place(logits)
        row_count = times(logits.shape[0], logits.shape[1])
        if isinstance(row_count, int) and isinstance(labels.shape[0], int) and row_count > labels.shape[0]:
            # of several heads, whose logits stand behind one another
            labels = self.aten.new_tensor((row_count,), INT64)
        loss = self.loss(logits, labels)
        for logits_ahead in mtp_logits:
            loss = self.aten.add(loss, self.loss(logits_ahead, labels))
        return loss

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the cross-entropy of logits [batch, tokens, vocabulary]."""
        default_dtype = FLOAT32 if self.choices.float32_loss else logits.dtype
        loss_dtype = DTYPES[self.choices.logits_dtype or default_dtype.name]
        flat_logits = self.aten.flatten(self.aten.to(logits, loss_dtype), 0, 1)
        if self.choices.keeps_logits:
            self.logits = [flat_logits]
        return self.cross_entropy(flat_logits, labels)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Computes cross-entropy of logits [tokens, vocabulary], under autocast in float32 (autocast_mode.h)."""
        aten = self.aten
        float_logits = logits if self.graph.autocast_dtype is None else aten.to(logits, FLOAT32)
        return aten.nll_loss(aten.log_softmax(float_logits), labels)
