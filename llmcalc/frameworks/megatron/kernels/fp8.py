"""Linear layers in 8 bits: what is multiplied is a byte for each element, and scales.

A product reads its operands by rows; what another product reads by columns is kept a second time for it. With one
scale for a tensor that copy is the transposed one, which only tensor cores before Blackwell's need; with scales of
blocks it has scales of its own. So the input of a layer is used by rows, and saved by columns. Where ranks divide its
rows, they gather it again in the backward pass; a tensor with one scale is gathered by rows alone.

Sources: TransformerEngine, transformer_engine/pytorch/module/layernorm_linear.py, linear.py and base.py
(`quantize_weight`, `grad_output_preprocess`), distributed.py (`_all_gather_fp8`, `_start_all_gather_fp8_blockwise`,
`_all_gather_mxfp8`), tensor/*.py (`inner_tensor_specs`), quantization.py (`DelayedScalingRecipeState`) and
csrc/extensions/normalization.cpp; Megatron-LM, megatron/core/fp8_utils.py and megatron/core/transformer/attention.py
(`set_save_original_input`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....algebra import Number, ceil_div, exact_div
from ....flow.program import Step
from ....simulator.strides import Shape, count
from ....simulator.tensor import FLOAT32, UINT8, Dtype, Gradient, Needs, Tensor
from .choices import RankChoices
from .gated_delta import DeltaKernels
from .lowering import direct

Specs = list[tuple[Shape, Dtype]]


class Quantized(NamedTuple):
    """A tensor in 8 bits with its scales: by rows, and by columns. Both may have tensors in common."""

    rows: list[Tensor]
    columns: list[Tensor]


def up(n: Number, multiple: int) -> Number:
    return ceil_div(n, multiple) * multiple


def specs(recipe: str, rows: Number, width: Number, weight: bool = False) -> tuple[Specs, Specs]:
    """The shapes of a tensor by rows, and of it by columns. weight: its blocks have two sides."""
    data, turned = ((rows, width), UINT8), ((width, rows), UINT8)
    if recipe == "mxfp8":
        return (
            [data, ((up(rows, 128), up(ceil_div(width, 32), 4)), UINT8)],
            [data, ((up(ceil_div(rows, 32), 4), up(width, 128)), UINT8)],
        )
    if recipe == "blockwise":
        r, w = ceil_div(rows, 128), ceil_div(width, 128)
        first, second = ((r, up(w, 4)), (w, up(r, 4))) if weight else ((w, up(rows, 4)), (r, up(width, 4)))
        return [data, (first, FLOAT32)], [turned, (second, FLOAT32)]
    return [data, ((1,), FLOAT32)], [turned]


def weight_sizes(how: RankChoices, rows: Number, width: Number) -> list[int]:
    """Bytes of what a weight in 8 bits has: its elements by rows, scales, and what products read by columns."""
    by_rows, by_columns = specs(how.narrow, rows, width, weight=True)
    kept = [*by_rows, *(by_columns if how.narrow not in ONE_SCALE or how.transposes else [])]
    return [int(count(shape)) * dtype.bytes for shape, dtype in kept]


def state_sizes(how: RankChoices) -> list[int]:
    """Bytes of the scales and of the history of maxima that a layer has with delayed scaling: of its input, weight and
    output, and of two gradients.
    """
    return [4 * n for tensors in (3, 2) for n in (tensors, tensors * how.history)] if how.narrow == "delayed" else []


ONE_SCALE = ("tensorwise", "delayed")
"""Recipes with one scale for a tensor."""

ALIGNED = 16
"""Rows of each expert are padded to a multiple of this, or of a block (core/fp8_utils.py, `get_fp8_align_size`)."""

MULTIPLES = {"blockwise": 128, "mxfp8": 32}
"""Recipe → what rows and widths are multiples of; others are gathered in 16 bits."""


class NarrowKernels(DeltaKernels):
    """Products of Transformer Engine's linear layers in 8 bits, but for layers that stay wide."""

    @property
    def is_narrow(self) -> bool:
        """Whether the layer that runs multiplies in 8 bits."""
        how = self.how
        if how.narrow == "none":
            return False
        turn = next((frame.turn for frame in self.frames if frame.turn is not None), None)
        if turn is None or self.is_ahead:
            return True
        first, last = how.wide_layers
        return first <= turn < how.layers - last

    def quantized(self, rows: Number, width: Number, by_rows: bool = True, by_columns: bool = True) -> Quantized:
        """A tensor in 8 bits, as its products read it."""
        how = self.how
        first, second = specs(how.narrow, rows, width)
        if how.narrow not in ONE_SCALE:
            return Quantized(
                [self.graph.new(*one) for one in first] if by_rows else [],
                [self.graph.new(*one) for one in second] if by_columns else [],
            )
        data = [self.graph.new(*first[0])] if by_rows or not how.transposes else []
        turned = [self.graph.new(*second[0])] if by_columns and how.transposes else []
        scale = self.graph.new(*first[1])
        if not how.transposes:
            return Quantized([*data, scale], [*data, scale])
        return Quantized([*data, scale], [*turned, scale] if turned else [])

    def quantized_parts(self, rows: Number, width: Number, n: int, by_columns: bool = True) -> Quantized:
        """n tensors of as many rows. With scales of blocks, all of them by rows are one, and by columns
        (csrc/extensions/cast.cpp, `bulk_allocate_fp8_blockwise_tensors`).
        """
        if self.how.narrow in ONE_SCALE:
            parts = [self.quantized(rows, width, by_columns=by_columns) for _ in range(n)]
            return Quantized([x for part in parts for x in part.rows], [x for part in parts for x in part.columns])
        made = []
        for (data, _), (scales, dtype) in specs(self.how.narrow, rows, width):
            size = n * (up(count(data), 256) + up(count(scales) * dtype.bytes, 16))
            made.append(size)
        by_rows = [self.graph.new((made[0],), UINT8)]
        return Quantized(by_rows, [self.graph.new((made[1],), UINT8)] if by_columns else [])

    def gathered(self, rows: Number, width: Number, by_rows: bool, by_columns: bool) -> tuple[Quantized, list[Tensor]]:
        """What is gathered from ranks that divide rows, and what lies between ranks' parts while it is sorted."""
        multiple = MULTIPLES.get(self.how.narrow, 1)
        if exact_div(rows, self.how.tensor) % multiple or width % multiple:
            raise self.unsupported(
                f"{rows} rows of {width} elements on {self.how.tensor} ranks; expected multiples of {multiple}"
            )
        made = self.quantized(rows, width, by_rows, by_columns)
        if self.how.narrow != "blockwise":
            return made, []
        between = [self.graph.new(x.shape, x.dtype) for x in (*made.rows[1:], *made.columns[:1])]
        return made, between

    def narrow_weight(self, weight: Tensor) -> None:
        """A weight in 8 bits, which stays from its first use on; a weight that is in 8 bits itself needs no other."""
        own = [] if self.how.narrow_weights else weight_sizes(self.how, *weight.shape)
        self.stays.narrowed(weight, [*own, *state_sizes(self.how)])

    @property
    def gathers_rows(self) -> bool:
        """Whether tensors are gathered by rows alone."""
        return self.how.narrow in ONE_SCALE

    def engine_column(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: list[Tensor], waiting: Step | None
    ) -> Tensor:
        """LayerNormLinear, or Linear. A norm with delayed scaling makes bytes at once."""
        if not self.is_narrow:
            return super().engine_column(x, weight, bias, norm, waiting)
        if self.saves_wide_input and waiting is None:
            return self.wide_column(x, weight, bias)
        divided, one_way = self.how.sequence_parallel, self.gathers_rows and self.how.sequence_parallel
        local, n_in = x.shape
        rows, n_out = local * self.how.tensor if divided else local, weight.shape[0]
        statistics: list[Tensor] = []
        wide: Tensor | None = None
        if waiting is not None:
            wide = None if self.how.narrow == "delayed" else self.like(x)
            has_mean = waiting.options["spec"].type == "layernorm"
            statistics = [self.statistics(local) for _ in range(2 if has_mean else 1)]
        read = self.quantized(local, n_in, by_columns=not one_way and self.graph.enabled)
        del wide
        self.narrow_weight(weight)
        elsewhere = self.how.user_buffers
        whole = self.gathered(rows, n_in, True, False) if divided and not elsewhere else None
        self.overlapped_product()
        out = self.new(rows, n_out)
        del whole
        ins = [x, *norm, weight, *([] if bias is None else [bias])]
        of_norm, of_bias = [one.shape for one in norm], None if bias is None else bias.shape
        shape, with_norm = x.shape, waiting is not None

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            new = self.new
            bias = [] if of_bias is None else [self.graph.new(of_bias, g.dtype)]
            narrow = [self.quantized(rows, n_out)]
            whole = [self.gathered(rows, n_in, one_way, not one_way)] if divided and not elsewhere else []
            self.overlapped_product()
            given: Tensor | None = None if elsewhere else new(rows, n_in)
            scattered = new(local, n_in) if divided and not elsewhere else None
            turned = [new(n_in, rows, UINT8)] if one_way and self.how.transposes else []
            of_weight = self.weight_gradient(weight)
            if elsewhere:
                given = new(local, n_in)
            for i in places:
                kept[i] = None  # clear_tensor_data(ln_out)
            whole.clear()
            turned.clear()
            if divided:
                narrow.clear()
            if not with_norm:
                return [given if scattered is None else scattered, of_weight, *bias]
            made = self.graph.new(shape, g.dtype)
            del given, scattered
            return [made, *(self.graph.new(one, g.dtype) for one in of_norm), of_weight, *bias]

        own = read.rows if one_way else read.columns
        saved = [*own, *([x] if with_norm else []), *statistics]
        places = range(len(own))
        del read, own
        self.node("norm_linear" if with_norm else "linear", ins, [out], back, *saved)
        return out

    @property
    def saves_wide_input(self) -> bool:
        """Whether shared experts run: the router saves their input in 16 bits (shared_experts.py)."""
        shared = any(frame.scope.about.get("kind") == "shared_expert" for frame in self.frames)
        return shared and self.how.narrow != "delayed"

    def wide_column(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Linear that saves its input in 16 bits, and quantizes it again in its backward pass."""
        divided, one_way = self.how.sequence_parallel, self.gathers_rows and self.how.sequence_parallel
        local, n_in = x.shape
        rows, n_out = local * self.how.tensor if divided else local, weight.shape[0]
        read = self.quantized(local, n_in, by_columns=False)
        self.narrow_weight(weight)
        whole = self.gathered(rows, n_in, True, False) if divided else None
        self.stays.engine_product()
        out = self.new(rows, n_out)
        del whole, read
        of_bias = None if bias is None else bias.shape

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            of_biases = [] if of_bias is None else [self.graph.new(of_bias, g.dtype)]
            narrow = [self.quantized(rows, n_out)]
            again = [self.quantized(local, n_in, self.gathers_rows, not one_way)]
            whole = [self.gathered(rows, n_in, one_way, not one_way)] if divided else []
            self.stays.engine_product()
            given = self.new(rows, n_in)
            scattered = self.new(local, n_in) if divided else None
            turned = [self.new(n_in, rows, UINT8)] if one_way and self.how.transposes else []
            of_weight = self.weight_gradient(weight)
            again.clear()
            whole.clear()
            turned.clear()
            if divided:
                narrow.clear()
            return [given if scattered is None else scattered, of_weight, *of_biases]

        self.node("linear", [x, weight, *([] if bias is None else [bias])], [out], back, x)
        return out

    def grouped(self, step: Step, x: Tensor, width: Number) -> Tensor:
        """TEGroupedLinear: the rows of each expert have a scale of their own."""
        if not self.is_narrow:
            return super().grouped(step, x, width)
        (rows, n_in), n = x.shape, self.local_experts
        each = rows // n
        multiple = MULTIPLES["mxfp8"] if self.how.narrow == "mxfp8" else ALIGNED
        if each * n != rows or each % multiple:
            raise self.unsupported(
                f"{rows} rows of {n} experts in 8 bits; expected a multiple of {multiple} rows of each", step.name
            )
        weights, biases = self.expert_weights(step, n_in, width, "expert")
        read = self.quantized_parts(each, n_in, n, self.graph.enabled)
        for one in weights:
            self.narrow_weight(one)
        self.stays.grouped_product()
        out = self.new(rows, width)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            of_biases = [self.graph.new(one.shape, g.dtype) for one in biases]
            _narrow = self.quantized_parts(each, width, n)
            self.stays.grouped_product()
            given = self.new(rows, n_in)
            of_weights = [self.weight_gradient(one) for one in weights]
            kept[:] = [None] * len(kept)  # clear_tensor_data(*inputmats)
            return [given, *of_weights, *of_biases]

        saved = read.columns
        del read
        self.node("grouped_linear", (x, *weights, *biases), [out], back, *saved)
        return out

    def row(self, step: Step, x: Tensor) -> Tensor:
        """Linear. The output of attention is saved as attention saves it, in 16 bits, but with delayed scaling."""
        if not self.is_narrow:
            return super().row(step, x)
        weight, self.row_bias = self.weights_of(step, step.outs[0].width, "row")
        attends = any(one.verb == "attention" for one in direct(self.within[id(step)]))
        whole = attends and self.how.narrow != "delayed"
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
        read = self.quantized(rows, n_in, by_columns=not whole and self.graph.enabled)
        self.narrow_weight(weight)
        elsewhere = self.how.user_buffers and divided
        if elsewhere:
            self.overlapped_product()
        else:
            self.stays.engine_product()
        out = self.new(self.local(rows) if elsewhere else rows, n_out)
        if divided and not elsewhere:
            out = self.new(self.local(rows), n_out)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            if elsewhere:
                narrow = [self.quantized(self.local(rows), n_out)]
            elif divided:
                own = [self.quantized(self.local(rows), n_out, by_columns=not self.gathers_rows)]
                made, between = self.gathered(rows, n_out, True, True)
                narrow = [made]
                own.clear()
                del made, between
            else:
                narrow = [self.quantized(rows, n_out)]
            again = [self.quantized(rows, n_in, by_rows=self.gathers_rows)] if whole else []
            self.stays.engine_product()
            given = self.new(rows, n_in)
            of_weight = self.weight_gradient(weight)
            again.clear()
            if not whole:
                kept[:] = [None] * len(kept)  # clear_tensor_data(inputmat_total)
            if divided:
                narrow.clear()
            return [given, of_weight]

        saved = [x] if whole else read.columns
        del read
        self.node(name, (x, weight), [out], back, *saved)
        return out
