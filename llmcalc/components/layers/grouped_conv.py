"""A DFlash 2 draft layer: convolutions with input-dependent kernels around attention and around the network.

Sources: specforge/modeling/draft/dflash2.py of sgl-project/SpecForge; vllm/model_executor/models/qwen3_dflash2.py of
vLLM. One projection of a sublayer's input gives, per token and group of channels, what is added to both kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ...algebra import exact_div
from ...flow.axis import Axis, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ..base import InnerSize, ModelProperties, StackPosition
from ..mixers.context_attention import ContextAttention
from ..mixers.latent_context import LatentContextAttention
from ..runtime import PassState, vector_module
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class GroupedConvLayer(PreNormLayer):
    """Attention to a target's states, then a network, each between two convolutions over the tokens of a draft block.

    conv_kernel_size: the number of tokens that a convolution reads, the token itself and those before it in the block.
    conv_group_size: the number of channels that share what is added to the kernels, a divisor of the layer's width.
    """

    formula_source: ClassVar[str] = "SpecForge 2026 (DFlash 2)"
    can_run_alone: ClassVar[bool] = False

    type: Literal["grouped_conv"] = "grouped_conv"
    attention: ContextAttention | LatentContextAttention = Field(discriminator="type")
    conv_kernel_size: int = Field(ge=1, le=64, strict=True)
    conv_group_size: InnerSize

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return self.attention.required_stack_fields()

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        if isinstance(stack_position.width, int) and stack_position.width % self.conv_group_size:
            raise ValueError(
                f"{stack_position.error_path}.conv_group_size: {self.conv_group_size} does not divide the width "
                f"{stack_position.width}; expected a divisor"
            )

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        for sublayer_name, component in (("self_attn", self.attention), ("mlp", self.feed_forward)):
            normed_x = recorder.part(f"{sublayer_name}_pre_norm", self.norm, x)
            side_axis, filter_taps = Axis("sides", 2), Axis("taps", self.conv_kernel_size)
            group_axis = Axis("groups", exact_div(x.width, self.conv_group_size))
            channel_axes = group_axis, Axis("channels", self.conv_group_size)
            with recorder.scope(f"{sublayer_name}_conv", kind="convolution"):
                base_kernels = [
                    [
                        recorder.vector(f"base_kernel_{side}_{tap}", *channel_axes)
                        for tap in range(self.conv_kernel_size)
                    ]
                    for side in range(2)
                ]
                computed_kernels = recorder.linear(
                    "kernel_projection", normed_x, side_axis, filter_taps, group_axis, Axis("one", 1)
                )
            added_kernels = [recorder.take(computed_kernels, *computed_kernels.axes[1:]) for _ in range(2)]
            branch = self._convolve(recorder, normed_x, channel_axes, base_kernels[0], added_kernels[0])
            branch = recorder.part(sublayer_name, component, branch)
            x = recorder.add(x, self._convolve(recorder, branch, channel_axes, base_kernels[1], added_kernels[1]))
        return x

    def _convolve(
        self, recorder: Flow, x: Value, channel_axes: Shape, kernel_rows: list[Value], computed_kernel: Value
    ) -> Value:
        """Records a convolution of x over the tokens: a sum of shifted copies, each times a row of the kernel.

        kernel_rows: the trained rows of the kernel. computed_kernel: what the sublayer's input adds to them.
        """
        grouped_x = x.view(*channel_axes)
        products: list[Value] = []
        for kernel_row in kernel_rows:
            products.append(recorder.mul(grouped_x, kernel_row))
            products.append(recorder.mul(grouped_x, recorder.take(computed_kernel, *computed_kernel.axes[1:])))
        product_sum = products[0]
        for product in products[1:]:
            product_sum = recorder.add(product_sum, product)
        return product_sum.view(*x.axes)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)


def grouped_conv_example(**layer_fields: Any) -> GroupedConvLayer:
    """Returns a small layer with convolutions for the examples of a stack."""
    attention = ContextAttention(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    convolution_fields = {"conv_kernel_size": 2, "conv_group_size": 4}
    return GroupedConvLayer(**{**example_sublayers(), "attention": attention, **convolution_fields, **layer_fields})


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class SublayerKernels(nn.Module):
        """Computes kernels before and after a sublayer. x: [batch, tokens, width] → [batch, tokens, 2, taps, width]."""

        def __init__(self, hidden_size: int, filter_taps: int, group_size: int) -> None:
            super().__init__()
            self.sizes, self.group_size = (2, filter_taps, hidden_size // group_size), group_size
            for convolution_side in range(2):
                for tap in range(filter_taps):
                    self.add_module(f"base_kernel_{convolution_side}_{tap}", vector_module(torch.rand(hidden_size)))
            self.kernel_projection = nn.Linear(hidden_size, 2 * filter_taps * (hidden_size // group_size), bias=False)

        def forward(self, x: Tensor) -> Tensor:
            token_kernels = self.kernel_projection(x).unflatten(-1, self.sizes).repeat_interleave(self.group_size, -1)
            kernel_rows: list[Any] = [
                self.get_submodule(f"base_kernel_{side_index}_{tap}").weight
                for side_index in range(2)
                for tap in range(self.sizes[1])
            ]
            kernels: Tensor = token_kernels + torch.stack(kernel_rows).unflatten(0, self.sizes[:2])
            return kernels

    def convolve(x: Tensor, kernel: Tensor) -> Tensor:
        """Convolves all tokens of a forward pass as one block of tokens. kernel: [batch, tokens, taps, width]."""
        conv_output = kernel[..., 0, :] * x
        for tap in range(1, kernel.shape[-2]):
            conv_output = conv_output + kernel[..., tap, :] * nn.functional.pad(x, (0, 0, tap, 0))[:, : x.shape[1]]
        return conv_output

    class GroupedConvLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Runs each sublayer between two convolutions over the tokens. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: GroupedConvLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            kernel_arguments = model_properties.hidden_size, spec.conv_kernel_size, spec.conv_group_size
            self.self_attn_conv, self.mlp_conv = SublayerKernels(*kernel_arguments), SublayerKernels(*kernel_arguments)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            for sublayer_name in ("self_attn", "mlp"):
                normed_x = self.get_submodule(f"{sublayer_name}_pre_norm")(x)
                kernels = self.get_submodule(f"{sublayer_name}_conv")(normed_x)
                sublayer_output = self.get_submodule(sublayer_name)(
                    convolve(normed_x, kernels[..., 0, :, :]), pass_state
                )
                x = x + convolve(sublayer_output, kernels[..., 1, :, :])
            return x

    return GroupedConvLayerReference
