"""Linear layers in 8 bits, with a scale of the current values for each tensor (`--fp8-recipe tensorwise`).

What is multiplied is a byte for each element, and a scale. Tensor cores of Hopper multiply only rows by rows, so each
operand that is read by columns too is kept a second time, transposed; from Blackwell on it is not.

Sources: TransformerEngine, transformer_engine/pytorch/module/layernorm_linear.py, linear.py and base.py
(`quantize_weight`, `grad_output_preprocess`), distributed.py (`_all_gather_fp8`) and
tensor/float8_tensor.py (`Float8CurrentScalingQuantizer`); Megatron-LM, megatron/core/fp8_utils.py and
megatron/core/transformer/attention.py (`set_save_original_input`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ....algebra import Number
from ....flow.program import Step
from ...autograd import Gradient, Needs
from ...tensor import FLOAT32, UINT8, Tensor
from .delta import DeltaKernels


class NarrowKernels(DeltaKernels):
    """Products of Transformer Engine's linear layers in 8 bits, but for layers that stay wide."""

    @property
    def is_narrow(self) -> bool:
        """Whether the layer that runs multiplies in 8 bits."""
        how = self.how
        if not how.narrow:
            return False
        turn = next((frame.turn for frame in self.frames if frame.turn is not None), None)
        if turn is None or self.is_ahead:
            return True
        first, last = how.wide_layers
        return first <= turn < how.layers - last

    def narrowed(self, rows: Number, width: Number, by_columns: bool = True) -> list[Tensor]:
        """The bytes of a tensor: by rows, and by columns where both are needed."""
        transposed = by_columns and self.how.transposes
        return [self.new(rows, width, UINT8), *([self.new(width, rows, UINT8)] if transposed else [])]

    def scale(self) -> Tensor:
        """The inverse of the scale of one tensor."""
        return self.graph.new((1,), FLOAT32)

    def narrow_weight(self, weight: Tensor) -> None:
        """A weight in 8 bits, which stays from its first use on; a weight that is in 8 bits itself needs no other."""
        if not self.how.narrow_weights:
            self.stays.narrowed(weight, 2 if self.how.transposes else 1)

    def engine_column(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: list[Tensor], waiting: Step | None
    ) -> Tensor:
        """LayerNormLinear, or Linear. Rows that are divided are gathered as they are saved, in 8 bits by rows; others
        are saved by columns.
        """
        if not self.is_narrow:
            return super().engine_column(x, weight, bias, norm, waiting)
        divided = self.how.sequence_parallel
        local, n_in = x.shape
        rows, n_out = local * self.how.tensor if divided else local, weight.shape[0]
        statistics: list[Tensor] = []
        wide: Tensor | None = None
        if waiting is not None:
            wide = self.like(x)
            statistics = [self.statistics(local) for _ in range(2 if waiting.how["spec"].type == "layernorm" else 1)]
        read, scale = self.narrowed(local, n_in, by_columns=not divided), self.scale()
        del wide
        self.narrow_weight(weight)
        gathered = self.new(rows, n_in, UINT8) if divided else None
        self.stays.engine_product()
        out = self.new(rows, n_out)
        del gathered
        ins = [x, *norm, weight, *([] if bias is None else [bias])]
        of_norm, of_bias = [one.shape for one in norm], None if bias is None else bias.shape
        shape, with_norm = x.shape, waiting is not None

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            new = self.new
            bias = [] if of_bias is None else [self.graph.new(of_bias, g.dtype)]
            given_narrow, _scale = self.narrowed(rows, n_out), self.scale()
            gathered = [new(rows, n_in, UINT8)] if divided else []
            self.stays.engine_product()
            given: Tensor | None = new(rows, n_in)
            scattered = new(local, n_in) if divided else None
            if divided and self.how.transposes:
                gathered.append(new(n_in, rows, UINT8))
            of_weight = self.weight_gradient(weight)
            kept[1 if with_norm else 0] = None  # clear_tensor_data(ln_out)
            gathered.clear()
            if divided:
                given_narrow.clear()
            if not with_norm:
                return [given if scattered is None else scattered, of_weight, *bias]
            made = self.graph.new(shape, g.dtype)
            del given, scattered
            return [made, *(self.graph.new(one, g.dtype) for one in of_norm), of_weight, *bias]

        saved = [*([x] if with_norm else []), read[-1], scale, *statistics]
        del read
        self.node("norm_linear" if with_norm else "linear", ins, [out], back, *saved)
        return out

    def row(self, step: Step, x: Tensor) -> Tensor:
        """Linear, whose input is saved by columns. That of attention is saved as attention saves it, in 16 bits."""
        if not self.is_narrow:
            return super().row(step, x)
        weight, self.row_bias = self.weights_of(step, step.outs[0].width, "row")
        whole = any(isinstance(one, Step) and one.verb == "attention" for one in self.within[id(step)].items)
        return self.narrow_product("row_linear", x, weight, whole, self.how.sequence_parallel)

    def plain(self, step: Step, x: Tensor) -> Tensor:
        if not self.is_narrow or step.about.get("kind") in ("router", "shared_expert"):
            return super().plain(step, x)
        weight, bias = self.weights_of(step, step.outs[0].width, "matrix")
        if bias is not None:
            raise self.unsupported("no kernels for a bias of a product in 8 bits that every rank computes", step.name)
        return self.narrow_product("linear", x, weight, False, False)

    def narrow_product(self, name: str, x: Tensor, weight: Tensor, whole: bool, divided: bool) -> Tensor:
        """whole: whether the input is saved in 16 bits. divided: whether the output's rows are, after a sum."""
        (rows, n_in), n_out = x.shape, weight.shape[0]
        read, scale = self.narrowed(rows, n_in, by_columns=not whole), self.scale()
        self.narrow_weight(weight)
        self.stays.engine_product()
        out = self.new(rows, n_out)
        if divided:
            out = self.new(self.local(rows), n_out)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            own = self.narrowed(self.local(rows), n_out, by_columns=False) if divided else []
            given_narrow, _scale = self.narrowed(rows, n_out), self.scale()
            own.clear()
            again = [*self.narrowed(rows, n_in), self.scale()] if whole else []
            self.stays.engine_product()
            given = self.new(rows, n_in)
            of_weight = self.weight_gradient(weight)
            again.clear()
            if not whole:
                kept[0] = None  # clear_tensor_data(inputmat_total)
            if divided:
                given_narrow.clear()
            return [given, of_weight]

        saved = [x] if whole else [read[-1], scale]
        del read, scale
        self.node(name, (x, weight), [out], back, *saved)
        return out
