"""Fourier mixing: the real part of a two-dimensional discrete Fourier transform over tokens and features.

FNet (Lee-Thorp et al. 2021, arXiv:2105.03824, §3.2). It has no parameters. A fast Fourier transform is no matrix
multiplication, so it counts no FLOPs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...flow.record import Flow
from ...flow.value import Value
from ..base import ModelProperties, TokenMixer
from ..runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn


class FourierMixer(TokenMixer):
    """A token mixer that takes the real part of a Fourier transform over all tokens and features."""

    formula_source: ClassVar[str] = "Lee-Thorp et al. 2021, §3.2"
    node_name: ClassVar[str] = "fourier"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)
    uncounted_operations: ClassVar[str] = "fast Fourier transform"

    type: Literal["fourier"] = "fourier"

    def flow(self, recorder: Flow, x: Value) -> Value:
        return recorder.act(x, "identity")

    def describe(self, hidden_size: int) -> str:
        return "Fourier"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()()

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class FourierReference(nn.Module):
        """Returns the real part of x's two-dimensional Fourier transform. x: [batch, tokens, hidden] → same shape."""

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            return torch.fft.fft2(x.float()).real.to(x.dtype)

    return FourierReference
