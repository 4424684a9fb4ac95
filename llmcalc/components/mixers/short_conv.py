"""LFM2's gated short convolution, used instead of attention: y = out(C ⊙ conv(B ⊙ x)).

Liquid AI 2025 (arXiv:2511.23404), §2.

B, C and x are projections of the input. The convolution covers the last `conv_L_cache` tokens of each channel; in a
vision encoder, it covers a square of patches centred on each patch. Ranks of tensor parallelism divide the channels, as
in vLLM (model_executor/layers/mamba/short_conv.py), but not those of an encoder. transformers: models/lfm2,
models/lfm2_moe, models/lfm3, models/lfm3_vl.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Flag, KernelSize, ModelProperties, PartWitness, StackPosition, TokenMixer
from ..residual_convolution import record_causal_convolution
from ..runtime import PassState, causal_conv_class, recurrent_state_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class ShortConv(TokenMixer):
    """A gated short convolution, with the field names of LFM2's config.

    conv_L_cache: the kernel size of the convolution, 3 by default; as many tokens are cached.
    conv_bias: whether the convolution and both projections have a bias, false by default.
    grid: whether it covers a square of conv_L_cache × conv_L_cache patches of an image, without a cache (only in a
        vision encoder); false by default.
    """

    formula_source: ClassVar[str] = "Liquid AI 2025, §2"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    node_name: ClassVar[str] = "conv"
    kind: ClassVar[str] = "convolution"

    type: Literal["short_conv"] = "short_conv"
    conv_L_cache: KernelSize = 3
    conv_bias: Flag = False
    grid: Flag = False

    def check_fields(self) -> None:
        if self.grid and self.conv_L_cache % 2 == 0:
            raise ValueError(
                f"conv_L_cache: {self.conv_L_cache} is even, so the square has no centre; expected an odd "
                "number where grid is true"
            )

    def check_stack_position(self, stack_position: StackPosition) -> None:
        if not self.grid:
            super().check_stack_position(stack_position)
        elif not stack_position.tokens_form_grid:
            raise ValueError(
                f"{stack_position.error_path}.grid: tokens stand in no grid; expected false, but in a tower of images"
            )
        elif stack_position.has_token_before_grid:
            raise ValueError(
                "class_embedding: a convolution over the grid of patches has no place for vectors beside it; expected "
                "false, and no registers"
            )

    def flow(self, recorder: Flow, x: Value) -> Value:
        kernel_size, has_bias = self.conv_L_cache, self.conv_bias
        channel_axes = x.axes if self.grid else (Axis("inner", x.width),)
        b, c, inner_x = recorder.split(
            recorder.linear("in_proj", x, JoinedShapes((channel_axes,) * 3), bias=has_bias), *(channel_axes,) * 3
        )
        recorder.hold(b=b)
        inner_x = recorder.mul(b, inner_x)
        if self.grid:
            conv_output = recorder.conv(
                "conv", inner_x, *channel_axes, kernel=kernel_size * kernel_size, groups=inner_x.width, bias=has_bias
            )
        else:
            conv_fields = {"kernel_size": kernel_size, "bias": has_bias, "state_name": "conv_state"}
            conv_output = record_causal_convolution(recorder, "conv", inner_x, *channel_axes, **conv_fields)
        recorder.hold(mixed=conv_output)
        return recorder.linear("out_proj", recorder.mul(c, conv_output), *x.axes, bias=has_bias)

    def describe(self, hidden_size: int) -> str:
        return f"gated convolution over {self.conv_L_cache}" + (f" × {self.conv_L_cache}" if self.grid else "")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(conv_L_cache=5, conv_bias=True)]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ShortConvReference(nn.Module):
        """Computes out(C ⊙ conv(B ⊙ x)). x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ShortConv, hidden_size: int) -> None:
            super().__init__()
            self.in_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=spec.conv_bias)
            self.grid, kernel_size = spec.grid, spec.conv_L_cache
            if spec.grid:
                self.conv: Any = nn.Conv2d(
                    hidden_size,
                    hidden_size,
                    kernel_size,
                    padding=kernel_size // 2,
                    groups=hidden_size,
                    bias=spec.conv_bias,
                )
            else:
                self.conv = causal_conv_class()(hidden_size, kernel_size, spec.conv_bias)
                self.conv_state = recurrent_state_class()()
            self.out_proj = nn.Linear(hidden_size, hidden_size, bias=spec.conv_bias)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            b, c, inner_x = self.in_proj(x).transpose(1, 2).chunk(3, 1)
            if self.grid:
                convolution_output = self.conv((b * inner_x).unflatten(2, (-1, pass_state.patch_columns))).flatten(2)
            else:
                convolution_output = self.conv(b * inner_x, pass_state, self.conv_state)
            return self.out_proj((c * convolution_output).transpose(1, 2))

    return ShortConvReference
