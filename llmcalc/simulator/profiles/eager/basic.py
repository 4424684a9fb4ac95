"""Linear layers, tables, norms, elementwise steps and the loss."""

from __future__ import annotations

from typing import Any

from ....algebra import Number
from ....components.base import BY_TORCH
from ....components.norm import Norm
from ....evidence import compared
from ....flow.axis import Shape
from ....flow.program import Step
from ....flow.value import Value
from ....ops import Weight as VectorWeight
from ....workload.rows import Rows
from ...lowering import Lowering, Path
from ...tensor import DTYPES, FLOAT32, INT64, Tensor

BY_TOKEN = ("ids", "known ids")
"""Look-ups by the ids of the tokens. All others are by numbers that all sequences share."""


class BasicKernels(Lowering):
    """Kernels of the steps that most models have."""

    # --- linear layers and tables -----------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_linear(self, step: Step) -> None:
        x, out = self.flat(step.ins[0], step), step.outs[0]
        bias = None
        if step.options["bias"]:
            lending_layer = step.options.get("lent")
            path = self.module_path(levels_up=1 if lending_layer else 0)
            bias = self.weight(f"{lending_layer or step.name}.bias", (out.width,), path)
        rows = self.run_config.new(out.rows)
        if len(x.shape) == 3 and x.shape[1] != rows:
            x = self.t.slice(x, rows, 1)
        self.modules[id(out)] = self.module_path(), step.name
        self.set(out, self.linear_output(step, x, self.matrix(step), bias))

    @compared(BY_TORCH)
    def do_again(self, step: Step) -> None:
        """Runs another step's linear layer a second time."""
        x, out = self.flat(step.ins[0]), step.outs[0]
        module, name = self.modules[id(step.options["like"])]
        bias = self.weight(f"{name}.bias", (out.width,), module) if step.options["bias"] else None
        weight = self.weight(f"{name}.weight", (out.width, x.shape[-1]), module)
        self.set(out, self.repeat_linear(name, module, x, weight, bias))

    def repeat_linear(self, name: str, module: Path, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Computes x·Wᵀ + b with the linear layer of that name in that module."""
        return self.t.linear(x, weight, bias)

    def has_adapter(self, step: Step) -> bool:
        """Whether a linear layer has a low-rank adapter; this profile has no adapters."""
        return False

    def linear_output(self, step: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the output of a linear layer."""
        return self.product(x, weight, bias, step.outs[0].width)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, width: Number) -> Tensor:
        """Computes x·Wᵀ + b. width: the number of output features."""
        return self.t.linear(x, weight, bias)

    @compared(BY_TORCH)
    def do_table(self, step: Step) -> None:
        out = step.outs[0]
        if step.options["by"] == "all":
            self.set(out, self.table(step))
            return
        index_kind = step.options["by"]
        embeddings = self.look_up_rows(step, self.table(step), self._look_up_indices(out.rows, index_kind))
        if index_kind in BY_TOKEN:
            self.set(out, embeddings)
        else:
            self.bind(out, embeddings)  # [rows, …]: all sequences share it

    def look_up_rows(self, step: Step, weight: Tensor, index: Tensor) -> Tensor:
        """Looks up rows of a table by index."""
        return self.t.embedding(weight, index)

    def _look_up_indices(self, rows: Rows, index_kind: str) -> Tensor:
        """Returns the indices of a look-up: token ids, or numbers shared by all sequences."""
        if index_kind in BY_TOKEN:
            if rows not in self.inputs:
                raise self.unsupported(f"no kernels for a look-up by {rows.name}")
            ids = self.inputs[rows]
            return ids if index_kind == "ids" else self.t.like(ids, self.t.compare(ids))
        if index_kind == "chosen":
            raise self.unsupported("no kernels for a look-up of tokens that the pass chooses")
        local_tensors = self.frames[-1].local_tensors
        if index_kind == "positions" or index_kind not in local_tensors:
            local_tensors[index_kind] = self.t.new((self.run_config.new(rows),), INT64)
        index: Tensor = local_tensors[index_kind]
        return self.t.like(index) if index_kind == "positions" else index  # positions have an offset

    @compared(BY_TORCH)
    def do_unread_table(self, step: Step) -> None:
        self.table(step)

    @compared(BY_TORCH)
    def do_vector(self, step: Step) -> None:
        assert isinstance(step.op, VectorWeight)
        key, is_trained = (*self.module_path(), step.name), self.adapters is None and not step.op.frozen
        self.set(step.outs[0], self.parameter(key, step.op.tensors()[0].shape, self.dtype, is_trained))

    @compared(BY_TORCH)
    def do_buffer(self, step: Step) -> None:
        self.set(step.outs[0], self.buffer(step.name, self.shape(step.outs[0]), step.options["indices"]))

    # --- norms ------------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_norm(self, step: Step) -> None:
        spec: Norm = step.options["spec"]
        value, normed_shape, heads = step.ins[0], step.options["over"], getattr(step.op, "heads", None)
        x = self.get(value)
        is_heads_first = heads is not None or self.norms_heads_first(value, normed_shape)
        if is_heads_first:
            x = self.t.transpose(x, 1, 2)
        elif len(normed_shape) > 1:
            x = self.flat(value)
        shape = x.shape[-1:] if heads is None else (heads, 1, x.shape[-1])
        groups, shape_source = step.options.get("groups"), step.options.get("like")
        module, name = (self.module_path(), step.name) if shape_source is None else self.modules[id(shape_source)]
        self.modules[id(step.outs[0])] = module, name
        y = self.norm(x, spec, name, shape, 1 if groups is None else groups.size, module)
        self.set(step.outs[0], self.t.transpose(y, 1, 2) if is_heads_first else y)

    def norms_heads_first(self, value: Value, normed_shape: Shape) -> bool:
        """Whether a norm runs on [batch, heads, rows, size] in an order of axes that matters; here never."""
        return False

    def norm(self, x: Tensor, spec: Norm, name: str, shape: Any, groups: Any = 1, module: Path | None = None) -> Tensor:
        """Runs NormReference.forward. module: the module with the norm's parameters; default the running module."""
        y = x if spec.type == "affine" else self._normalize(x, spec, groups)
        y = self.t.mul(y, self.norm_factor(spec, name, shape, module, spec.float32_product)) if spec.weight else y
        y = self.t.add(y, self.weight(f"{name}.bias", shape, module)) if spec.has_bias else y
        return self.t.to(y, x.dtype) if spec.float32_product else y

    def norm_factor(self, spec: Norm, name: str, shape: Any, module: Path | None, in_float32: bool = False) -> Tensor:
        """Returns the factor of normalized values: the weight, or 1 + weight."""
        weight = self.weight(f"{name}.weight", shape, module)
        if not spec.unit_offset:
            return weight
        return self.t.add_number(self.t.to(weight, FLOAT32) if in_float32 else weight)

    def _normalize(self, x: Tensor, spec: Norm, groups: Any) -> Tensor:
        t, width = self.t, x.shape[-1]
        y = t.unflatten(t.to(x, FLOAT32), -1, (groups, width // groups))
        if spec.type == "layernorm":
            y = t.sub(y, t.mean(y))
        dtype = y.dtype if spec.float32_product else x.dtype
        return t.to(t.flatten(t.mul(y, t.rsqrt(t.add_number(t.mean(t.square(y))))), -2), dtype)

    # --- elementwise ------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_act(self, step: Step) -> None:
        self.set(step.outs[0], self.apply_activation(self.get(step.ins[0]), step.options["kind"]))

    def apply_activation(self, x: Tensor, kind: str) -> Tensor:
        """Applies an activation function by its name to x."""
        if kind == "relu2":
            return self.t.square(self.t.function("relu", x))
        if kind == "square":
            return self.t.square(x)
        if kind == "gelu_new":
            return self._gelu_by_steps(x) if self.choices.gelu_by_steps else self.t.function("gelu", x)
        if kind == "situ":
            bounded = self.t.scale(self.t.function("tanh", self.t.scale(x)))
            return self.t.mul(bounded, self.t.function("sigmoid", x))
        if kind == "identity":
            return x
        if kind == "exp":
            return self.t.exp(x)
        if kind == "softmax":
            return self.t.softmax(x)
        if kind not in ("relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "softplus", "asinh"):
            raise self.unsupported(f"no kernels for '{kind}'")
        return self.t.function("gelu" if kind == "gelu_tanh" else kind, x)

    def _gelu_by_steps(self, x: Tensor) -> Tensor:
        """Computes x/2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))."""
        t = self.t
        half = t.scale(x)
        return t.mul(half, t.add_number(t.function("tanh", t.scale(t.add(x, t.scale(self._cube(x)))))))

    def _cube(self, x: Tensor) -> Tensor:
        """Computes x³; autocast may run powers in float32."""
        return self.t.square(self.t.to(x, FLOAT32) if self.autocasts_to_float32 else x)

    @compared(BY_TORCH)
    def do_flat(self, step: Step) -> None:
        self.bind(step.outs[0], self.flat(step.ins[0]))

    @compared(BY_TORCH)
    def do_scale(self, step: Step) -> None:
        self.set(step.outs[0], self.t.scale(self.get(step.ins[0])))

    @compared(BY_TORCH)
    def do_split(self, step: Step) -> None:
        x = self.get(step.ins[0])
        shapes = [self.shape(out) for out in step.outs]
        if all(len(shape) == len(x.shape) for shape in shapes):
            axes = range(-1, 1 - len(x.shape), -1)
            split_axes = (axis for axis in axes if sum(shape[axis] for shape in shapes) == x.shape[axis])
            axis = next(split_axes, -1)
            part_tensors = self.t.split(x, [shape[axis] for shape in shapes], axis)
        else:
            part_tensors = self.t.split(self.flat(step.ins[0]), [out.width for out in step.outs])
        for out, view in zip(step.outs, part_tensors, strict=True):
            self.set(out, view)

    @compared(BY_TORCH)
    def do_cat(self, step: Step) -> None:
        xs = [self.get(value) for value in step.ins]
        shape = self.shape(step.outs[0])
        axis = self._joined_along(xs, shape)
        if axis is None:
            xs = [self.flat(value) for value in step.ins]
            axis = -1
        needs_transpose = len(shape) == 4 and axis == 3
        if needs_transpose:  # heads first
            xs = [self._expand_heads(x, shape) for x in xs]
        concatenation = self._join_in_pages(xs, axis) if all(map(self.pooled, xs)) else self.t.cat(xs, axis)
        self.set(step.outs[0], self.t.transpose(concatenation, 1, 2) if needs_transpose else concatenation)

    def _join_in_pages(self, xs: list[Tensor], axis: int) -> Tensor:
        """Joins adjacent tensors in the pages of a cache, which are read in place."""
        shape = list(xs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in xs)
        return self.in_pool(tuple(shape), xs[0].dtype)

    def _expand_heads(self, x: Tensor, shape: Any) -> Tensor:
        """Returns a tensor as [batch, heads, rows, size], expanded to all heads if necessary."""
        if len(x.shape) == 4:
            return self.t.transpose(x, 1, 2)
        with_heads = self.t.unsqueeze(x, 1)
        return self.t.expand(with_heads, (with_heads.shape[0], shape[2], *with_heads.shape[2:]))

    def _joined_along(self, xs: list[Tensor], shape: Any) -> int | None:
        """Returns the axis along which the sizes sum to the result's size; None if there is none."""
        for axis in range(len(shape) - 1, 0, -1):
            axis_from_end = axis - len(shape)
            if sum(x.shape[axis_from_end] for x in xs) == shape[axis]:
                return axis
        return None

    @compared(BY_TORCH)
    def do_core(self, step: Step) -> None:
        """Runs a product or a scan: the profile's method `core_<Op>`."""
        name = type(step.op).__name__
        run = getattr(self, f"core_{name}", None)
        if run is None:
            raise self.not_modelled(step, name)
        run(step)

    @compared(BY_TORCH)
    def do_state(self, step: Step) -> None:
        """Caches a recurrent state for the next pass, unless the step that reads the state caches it."""
        if step.ins:
            self.keep(step.name, *(self.t.select(self.get(value), 1) for value in step.ins))

    # --- the loss ---------------------------------------------------------------------------------------------------

    def cap_logits(self, logits: Tensor) -> Tensor:
        """Returns the logits that the loss reads: capped, c · tanh(x / c), if the head caps them. The kernels of fused
        losses cap by themselves."""
        if not self.choices.caps_logits or self.choices.cross_entropy != "eager":
            return logits
        return self.t.scale(self.t.function("tanh", self.t.scale(logits)))

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss: cross-entropy of the logits, plus the cross-entropy of each multi-token prediction."""
        mtp_logits, self.further = self.further, []
        loss = self.loss(logits, labels)
        for logits_ahead in mtp_logits:
            loss = self.t.add(loss, self.loss(logits_ahead, labels))
        return loss

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the cross-entropy of logits [batch, tokens, vocabulary]."""
        default_dtype = FLOAT32 if self.choices.float32_loss else logits.dtype
        loss_dtype = DTYPES[self.choices.logits_dtype or default_dtype.name]
        flat_logits = self.t.flatten(self.t.to(logits, loss_dtype), 0, 1)
        if self.choices.keeps_logits:
            self.logits = [flat_logits]
        return self.cross_entropy(flat_logits, labels)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Computes cross-entropy of logits [tokens, vocabulary]; under autocast in float32 (autocast_mode.h)."""
        t = self.t
        float_logits = logits if self.graph.autocast is None else t.to(logits, FLOAT32)
        return t.nll_loss(t.log_softmax(float_logits), labels)
