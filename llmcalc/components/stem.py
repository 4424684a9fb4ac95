"""What stands below an encoder that reads no tokens: convolutions over the frames of a signal.

Whisper (Radford 2022, arXiv:2212.04356, §2.2): two convolutions of width 3 with a GELU each, the second with a stride
of 2.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal, Self

from .. import ops
from ..flow.tree import Node
from ..run.rows import Multiple
from .base import Around, Component, Positions, Width

if TYPE_CHECKING:
    from torch import Tensor, nn


class ConvStem(Component):
    """Frames of num_mel_bins values, two of them a position; the encoder always sees max_source_positions positions."""

    type: Literal["convolution"] = "convolution"
    num_mel_bins: Width
    max_source_positions: Positions

    def anatomy(self, name: str, around: Around) -> Node:
        h, m = around.hidden_size, self.num_mel_bins
        first = ops.Conv1d(m, h, kernel=3, bias=True, constant=True, rows=Multiple(by=2))
        second = ops.Conv1d(h, h, kernel=3, bias=True)
        return Node(
            name,
            children=(Node("conv1", first), Node("conv2", second)),
            kind="embedding",
            source="Radford et al. 2022, §2.2",
        )

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around.hidden_size)

    def frames(self, batch: int) -> tuple[int, int, int]:
        """The shape of what it reads: [batch, num_mel_bins, frames]."""
        return batch, self.num_mel_bins, 2 * self.max_source_positions

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_mel_bins=5, max_source_positions=9)]


@cache
def _reference() -> type[nn.Module]:
    from torch import nn

    class ConvStemReference(nn.Module):
        """frames: [batch, num_mel_bins, frames] → [batch, frames / 2, hidden]."""

        def __init__(self, spec: ConvStem, hidden_size: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv1d(spec.num_mel_bins, hidden_size, kernel_size=3, padding=1)
            self.conv2 = nn.Conv1d(hidden_size, hidden_size, kernel_size=3, stride=2, padding=1)

        def forward(self, frames: Tensor) -> Tensor:
            x: Tensor = nn.functional.gelu(self.conv2(nn.functional.gelu(self.conv1(frames))))
            return x.transpose(1, 2)

    return ConvStemReference
