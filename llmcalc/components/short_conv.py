"""LFM2's gated short convolution in place of attention (Liquid AI 2025, arXiv:2511.23404, §2): y = out(C ⊙ conv(B ⊙
x)).

B, C and x are maps of the input; the convolution sees the last `conv_L_cache` tokens of each channel; in a tower of
images, the patches of a square around each. transformers: models/lfm2, models/lfm2_moe, models/lfm3, models/lfm3_vl.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from .. import ops
from ..flow.tree import Node
from .base import Around, Component, Flag, Kernel
from .runtime import Run, causal_conv_class, state_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class ShortConv(Component):
    """conv_L_cache: tokens that the convolution sees, and that are kept. conv_bias: on it and on both maps.

    grid: it sees a square of conv_L_cache × conv_L_cache patches of an image, and keeps none; in a tower alone.
    """

    node_name: ClassVar[str] = "conv"

    type: Literal["short_conv"] = "short_conv"
    conv_L_cache: Kernel = 3
    conv_bias: Flag = False
    grid: Flag = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.grid and self.conv_L_cache % 2 == 0:
            raise ValueError(
                f"conv_L_cache: {self.conv_L_cache} patches of a side have none in their middle; expected an odd "
                "number where grid is true"
            )
        return self

    def anatomy(self, name: str, around: Around) -> Node:
        h, kernel, biased = around.hidden_size, self.conv_L_cache, self.conv_bias
        parts = [Node("in_proj", ops.Linear(h, 3 * h, biased))]
        if self.grid:
            parts.append(Node("conv", ops.Conv1d(h, h, kernel * kernel, groups=h, bias=biased)))
        else:
            parts.append(Node("conv", ops.Conv1d(h, h, kernel, groups=h, bias=biased, padding=kernel - 1)))
            parts.append(Node("conv_state", ops.State(h * kernel, "conv_state")))
        parts.append(Node("out_proj", ops.Linear(h, h, biased)))
        return Node(name, children=tuple(parts), kind="convolution", source="Liquid AI 2025, §2")

    def describe(self, hidden_size: int) -> str:
        return f"gated convolution over {self.conv_L_cache}" + (f" × {self.conv_L_cache}" if self.grid else "")

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(conv_L_cache=5, conv_bias=True)]


@cache
def _reference() -> type[nn.Module]:
    from torch import nn

    class ShortConvReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: ShortConv, hidden: int) -> None:
            super().__init__()
            self.in_proj = nn.Linear(hidden, 3 * hidden, bias=spec.conv_bias)
            self.grid, kernel = spec.grid, spec.conv_L_cache
            if spec.grid:
                self.conv: Any = nn.Conv2d(
                    hidden, hidden, kernel, padding=kernel // 2, groups=hidden, bias=spec.conv_bias
                )
            else:
                self.conv = causal_conv_class()(hidden, kernel, spec.conv_bias)
                self.conv_state = state_class()()
            self.out_proj = nn.Linear(hidden, hidden, bias=spec.conv_bias)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            b, c, u = self.in_proj(x).transpose(1, 2).chunk(3, 1)
            mixed = (
                self.conv((b * u).unflatten(2, (-1, run.columns))).flatten(2)
                if self.grid
                else self.conv(b * u, run, self.conv_state)
            )
            out: Tensor = self.out_proj((c * mixed).transpose(1, 2))
            return out

    return ShortConvReference
