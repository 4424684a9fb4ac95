"""A depthwise convolution of the values, added to attention's output: one filter per head.

Xiong 2021 (Nyströmformer, arXiv:2102.03902), §3; Zeng 2021 (YOSO, arXiv:2111.09714).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import ModelProperties, OddKernelSize, Part

if TYPE_CHECKING:
    from torch import Tensor, nn


class ValueConvolution(Part):
    """A depthwise convolution of the values, with one filter per head.

    conv_kernel_size: the kernel size in tokens; odd, so that input and output have the same length.
    """

    formula_source: ClassVar[str] = "Xiong et al. 2021 (Nyströmformer), §3"
    kind: ClassVar[str] = "convolution"

    conv_kernel_size: OddKernelSize

    def flow(self, recorder: Flow, values: Value, heads: Axis, head_axis: Axis) -> Value:
        """Records the operations of the convolution of the values of all heads."""
        conv_groups = recorder.element_count((heads, head_axis))
        return recorder.conv(
            "conv",
            values,
            heads,
            head_axis,
            kernel=self.conv_kernel_size,
            groups=conv_groups,
            outputs_per_filter=head_axis.size,
        )

    def reference(self, model_properties: ModelProperties, heads: int) -> nn.Module:
        return _reference_class()(self, heads)


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ValueConvolutionReference(nn.Module):
        """Convolves the values of each head. values: [batch, heads, tokens, size] → same shape."""

        def __init__(self, spec: ValueConvolution, heads: int) -> None:
            super().__init__()
            kernel_size = spec.conv_kernel_size
            self.conv = nn.Conv2d(
                heads, heads, (kernel_size, 1), padding=(kernel_size // 2, 0), bias=False, groups=heads
            )

        def forward(self, values: Tensor) -> Tensor:
            return self.conv(values)

    return ValueConvolutionReference
