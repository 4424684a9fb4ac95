"""A draft block's layer with a convolution of computed kernels before and after attention and network (DFlash 2).

Sources: specforge/modeling/draft/dflash2.py of sgl-project/SpecForge; vllm/model_executor/models/qwen3_dflash2.py of
vLLM. One projection of a sublayer's input gives, per token and group of channels, what is added to both kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ...algebra import exact_div
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Inner, ModelProperties, StackPosition
from ..mixers.context import ContextAttention
from ..runtime import ForwardPass
from .block import Sharing
from .whole_layer import PreNormLayer, pre_norm_class, small_sublayers

if TYPE_CHECKING:
    from torch import Tensor, nn


class GroupedConvLayer(PreNormLayer):
    """Attention to a target's states, then a network, each between two convolutions over the tokens of the block.

    conv_kernel_size: the number of tokens that a convolution reads, the token itself and those before it in the block.
    conv_group_size: the number of channels that share what is added to the kernels, a divisor of the layer's width.
    """

    formula_source: ClassVar[str] = "SpecForge 2026 (DFlash 2)"
    plain: ClassVar[bool] = False
    alone: ClassVar[bool] = False

    type: Literal["grouped_conv"] = "grouped_conv"
    attention: ContextAttention
    conv_kernel_size: int = Field(ge=1, le=64, strict=True)
    conv_group_size: Inner

    def required_slots(self) -> Mapping[str, Mapping[str, Any]]:
        return self.attention.required_slots()

    def check_place(self, stack_position: StackPosition) -> None:
        super().check_place(stack_position)
        if isinstance(stack_position.width, int) and stack_position.width % self.conv_group_size:
            raise ValueError(
                f"{stack_position.where}.conv_group_size: {self.conv_group_size} does not divide the width "
                f"{stack_position.width}; expected a divisor"
            )

    def flow(self, recorder: Flow, x: Value, sharing: Sharing | None = None) -> Value:
        for name, component in (("self_attn", self.attention), ("mlp", self.feed_forward)):
            normed = recorder.part(f"{name}_pre_norm", self.norm, x)
            with recorder.scope(f"{name}_conv", kind="convolution"):
                kernels = self._kernels(recorder, normed)
            y = recorder.part(name, component, self._convolve(recorder, normed, kernels[0]))
            x = recorder.add(x, self._convolve(recorder, y, kernels[1]))
        return x

    def _kernels(self, recorder: Flow, x: Value) -> list[Value]:
        """Records the kernels before and after a sublayer with input x."""
        sides, taps = Axis("sides", 2), Axis("taps", self.conv_kernel_size)
        groups = Axis("groups", exact_div(x.width, self.conv_group_size))
        base_kernel = recorder.vector("base_kernel", sides, taps, *x.axes)
        computed = recorder.linear("kernel_projection", x, sides, taps, groups)
        return [
            recorder.add(recorder.take(computed, taps, groups), recorder.take(base_kernel, taps, *x.axes)).view(
                taps, *x.axes
            )
            for _ in range(2)
        ]

    def _convolve(self, recorder: Flow, x: Value, kernel: Value) -> Value:
        """Records the sum of x and the tokens before it, each times its row of the kernel."""
        terms = [recorder.mul(x, recorder.take(kernel, *x.axes)) for _ in range(self.conv_kernel_size)]
        y = terms[0]
        for term in terms[1:]:
            y = recorder.add(y, term)
        return y

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)


def grouped_conv_example(**fields: Any) -> GroupedConvLayer:
    """Returns a small layer for a stack's examples."""
    attention = ContextAttention(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    sizes = {"conv_kernel_size": 2, "conv_group_size": 4}
    return GroupedConvLayer(**{**small_sublayers(), "attention": attention, **sizes, **fields})


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class Kernels(nn.Module):
        """The kernels before and after a sublayer. x: [batch, tokens, width] → [batch, tokens, 2, taps, width]."""

        def __init__(self, width: int, taps: int, group_size: int) -> None:
            super().__init__()
            self.sizes, self.group_size = (2, taps, width // group_size), group_size
            self.base_kernel = nn.Module()
            self.base_kernel.weight = nn.Parameter(torch.rand(2, taps, width))
            self.kernel_projection = nn.Linear(width, 2 * taps * (width // group_size), bias=False)

        def forward(self, x: Tensor) -> Tensor:
            computed = self.kernel_projection(x).unflatten(-1, self.sizes).repeat_interleave(self.group_size, -1)
            kernels: Tensor = computed + self.base_kernel.weight
            return kernels

    def convolve(x: Tensor, kernel: Tensor) -> Tensor:
        """Convolves the tokens of a pass as one block. kernel: [batch, tokens, taps, width]."""
        out = kernel[..., 0, :] * x
        for tap in range(1, kernel.shape[-2]):
            out = out + kernel[..., tap, :] * nn.functional.pad(x, (0, 0, tap, 0))[:, : x.shape[1]]
        return out

    class GroupedConvLayerReference(pre_norm_class()):  # type: ignore[misc]
        """The layer with convolutions around its sublayers. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: GroupedConvLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            sizes = model_properties.hidden_size, spec.conv_kernel_size, spec.conv_group_size
            self.self_attn_conv, self.mlp_conv = Kernels(*sizes), Kernels(*sizes)

        def forward(self, x: Tensor, forward_pass: ForwardPass) -> Tensor:
            for name in ("self_attn", "mlp"):
                normed = self.get_submodule(f"{name}_pre_norm")(x)
                kernels = self.get_submodule(f"{name}_conv")(normed)
                y = self.get_submodule(name)(convolve(normed, kernels[..., 0, :, :]), forward_pass)
                x = x + convolve(y, kernels[..., 1, :, :])
            return x

    return GroupedConvLayerReference
