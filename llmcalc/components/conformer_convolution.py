"""The convolution module of a conformer (Gulati 2020, arXiv:2005.08100, §2.2).

A depthwise convolution along the frames, between a gated linear unit and a projection.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ..flow.axis import Axis, JoinedShapes
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import ExtendedRows
from .base import Flag, InnerWidth, KernelSize, ModelProperties, Part
from .batch_norm import batch_norm_class, record_batch_norm
from .networks.feed_forward import Activation, activate
from .norm import Norm
from .runtime import vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn


class ConformerConvolution(Part):
    """A conformer's convolution module: a gated linear unit, a depthwise convolution, a norm and a linear projection.

    kernel_size: the kernel size of the depthwise convolution.
    hidden_act: the activation before the last projection, silu by default.
    gate_act: the activation on the gating half, sigmoid by default.
    gate_bias: whether a vector is added to each half, false by default.
    bias: whether all projections and the convolution have a bias, false by default.
    multiplier: the number of output channels of the convolution per input channel, 1 by default.
    separable: whether a projection back to hidden follows the convolution, false by default. Both then run on frames
        padded at either end, and the frames beyond the last one are cut off.
    norm: the norm before the last activation, none by default.
    convolved: whether the class has convolutions of width 1 in the place of the linear layers, which schemes of
        quantization for linear layers leave as they are; false by default. Counts do not change.
    batch_norm: whether that norm is a batch norm, whose mean and variance per channel are stored as a buffer, with the
        number of training batches; false by default.
    centred: whether the convolution reads as many later frames as earlier ones; by default it reads earlier ones only.
        Counts do not change.
    """

    kernel_size: KernelSize
    hidden_act: Activation = "silu"
    gate_act: Activation = "sigmoid"
    gate_bias: Flag = False
    bias: Flag = False
    multiplier: InnerWidth = 1
    separable: Flag = False
    norm: Norm | None = None
    convolved: Flag = False
    batch_norm: Flag = False
    centred: Flag = False

    def check_fields(self) -> None:
        if self.multiplier > 1 and not self.separable:
            raise ValueError(
                f"multiplier: {self.multiplier} requires a projection back to hidden_size; expected separable = true"
            )
        if self.batch_norm and self.norm is not None:
            raise ValueError("norm: a batch norm stands in its place; expected none, or batch_norm = false")
        if self.centred and self.separable:
            raise ValueError("centred: a separable convolution reads earlier frames only; expected one of them")
        if self.centred and self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size: {self.kernel_size} has no centre; expected an odd number")

    def flow(self, recorder: Flow, x: Value) -> Value:
        hidden_axes = x.axes
        gated_half, gate = recorder.split(
            self._record_projection(recorder, "in_proj", x, JoinedShapes((hidden_axes, hidden_axes))),
            hidden_axes,
            hidden_axes,
        )
        if self.gate_bias:
            value_bias, gate_bias = recorder.split(
                recorder.vector("gate_bias", Axis("halves", 2), *hidden_axes, row_count=2), hidden_axes, hidden_axes
            )
            gated_half, gate = recorder.add(gated_half, value_bias), recorder.add(gate, gate_bias)
        gated_x = recorder.mul(gated_half, recorder.act(gate, self.gate_act))
        conv_axes = (*hidden_axes, Axis("multiplier", self.multiplier))
        conv_rows = ExtendedRows(source_rows=x.rows, extra_rows=self.kernel_size - 1) if self.separable else x.rows
        gated_x = recorder.conv(
            "conv", gated_x, *conv_axes, kernel=self.kernel_size, groups=gated_x.width, bias=self.bias, rows=conv_rows
        )
        gated_x = self._record_projection(recorder, "pointwise", gated_x, *hidden_axes) if self.separable else gated_x
        gated_x = gated_x.view(*hidden_axes, new_rows=x.rows)
        gated_x = gated_x if self.norm is None else recorder.part("norm", self.norm, gated_x)
        if self.batch_norm:
            gated_x = record_batch_norm(recorder, "norm", gated_x, hidden_axes)
        return self._record_projection(recorder, "out_proj", recorder.act(gated_x, self.hidden_act), *hidden_axes)

    def _record_projection(
        self, recorder: Flow, projection_name: str, x: Value, *output_axes: Axis | JoinedShapes
    ) -> Value:
        """Records the operations of a named projection, as a linear layer or as a convolution of width 1."""
        if self.convolved:
            return recorder.conv(projection_name, x, *output_axes, kernel=1, bias=self.bias)
        return recorder.linear(projection_name, x, *output_axes, bias=self.bias)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    BatchNorm = batch_norm_class()

    class PointwiseConv1d(nn.Conv1d):
        """A convolution of width 1. x: [batch, frames, width] → [batch, frames, output width]."""

        def __init__(self, input_width: int, output_width: int, bias: bool) -> None:
            super().__init__(input_width, output_width, 1, bias=bias)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.transpose(1, 2)).transpose(1, 2)

    class ConformerConvolutionReference(nn.Module):
        """Applies the conformer's gated convolution over frames. x: [clips, frames, hidden] → same shape."""

        def __init__(self, spec: ConformerConvolution, hidden_size: int) -> None:
            super().__init__()
            self.spec = spec
            earlier_frames = spec.kernel_size // 2 if spec.centred else spec.kernel_size - 1
            later_frames = spec.kernel_size - 1 if spec.separable else spec.kernel_size - 1 - earlier_frames
            self.padding = (earlier_frames, later_frames)
            self.in_proj = self._build_projection(hidden_size, 2 * hidden_size)
            if spec.gate_bias:
                self.gate_bias = vector_module(torch.zeros(2, hidden_size))
            conv_width = hidden_size * spec.multiplier
            self.conv = nn.Conv1d(hidden_size, conv_width, spec.kernel_size, groups=hidden_size, bias=spec.bias)
            if spec.separable:
                self.pointwise = self._build_projection(conv_width, hidden_size)
            if spec.norm is not None:
                self.norm = spec.norm.reference(ModelProperties(hidden_size))
            if spec.batch_norm:
                self.norm = BatchNorm(hidden_size)
            self.out_proj = self._build_projection(hidden_size, hidden_size)

        def _build_projection(self, input_width: int, output_width: int) -> nn.Module:
            if not self.spec.convolved:
                return nn.Linear(input_width, output_width, bias=self.spec.bias)
            return PointwiseConv1d(input_width, output_width, bias=self.spec.bias)

        def forward(self, x: Tensor) -> Tensor:
            gated_half, gate = self.in_proj(x).chunk(2, -1)
            if hasattr(self, "gate_bias"):
                gated_half, gate = gated_half + self.gate_bias.weight[0], gate + self.gate_bias.weight[1]
            frame_count = x.shape[1]
            x = (gated_half * activate(self.spec.gate_act, gate)).transpose(1, 2)
            x = self.conv(nn.functional.pad(x, self.padding)).transpose(1, 2)
            x = self.pointwise(x)[:, :frame_count] if hasattr(self, "pointwise") else x
            if self.spec.batch_norm:
                x = self.norm(x.transpose(1, 2)).transpose(1, 2)
            elif self.spec.norm is not None:
                x = self.norm(x)
            return self.out_proj(activate(self.spec.hidden_act, x))

    return ConformerConvolutionReference
