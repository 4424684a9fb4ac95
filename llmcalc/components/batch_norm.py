"""Batch norm in inference, with each channel's stored statistics, weight and bias."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ..flow.axis import Axis, Shape
from ..flow.record import Flow
from ..flow.value import Value
from .norm import Norm

if TYPE_CHECKING:
    from torch import Tensor, nn

AFFINE_NORM = Norm.model_construct(type="affine")
"""The affine step of a batch norm: x times a weight per channel, plus a bias per channel."""


def record_batch_norm(recorder: Flow, norm_name: str, x: Value, channel_axes: Shape) -> Value:
    """Records the operations of a batch norm with stored statistics. channel_axes: the normalized axes."""
    with recorder.scope(norm_name, kind="norm"):
        statistics = recorder.buffer("statistics", Axis("statistics", 2), *channel_axes)
        recorder.buffer("num_batches_tracked", Axis("batches", 1), indices=True)
        channel_mean, channel_variance = recorder.split(statistics, channel_axes, channel_axes)
        return recorder.norm("", recorder.mul(recorder.add(x, channel_mean), channel_variance), AFFINE_NORM)


@cache
def batch_norm_class() -> type[nn.Module]:
    """Returns the PyTorch module class with which counts are compared. x: [items, channels, …] → same shape."""
    import torch
    from torch import nn
    from torch.nn import functional

    class BatchNormStatistics(nn.Module):
        """The stored mean and variance of each channel."""

        def __init__(self, channels: int) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(channels))
            self.register_buffer("variance", torch.ones(channels))

    class BatchNormCount(nn.Module):
        """The stored number of training batches (`num_batches_tracked` in torch)."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    class BatchNorm(nn.Module):
        """A batch norm that uses its stored statistics. x: [items, channels, …] → same shape."""

        def __init__(self, channels: int) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
            self.statistics, self.num_batches_tracked = BatchNormStatistics(channels), BatchNormCount()

        def forward(self, x: Tensor) -> Tensor:
            channel_mean, variance = self.statistics.get_buffer("mean"), self.statistics.get_buffer("variance")
            return functional.batch_norm(x, channel_mean, variance, self.weight, self.bias)

    return BatchNorm
