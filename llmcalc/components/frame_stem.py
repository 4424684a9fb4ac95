"""Input layers of a streaming speech encoder, which reads frames of audio samples causally.

Moonshine streaming (transformers: models/moonshine_streaming, `MoonshineStreamingEncoderEmbedder`): each frame is
standardized and compressed by asinh with a learned gain; a linear layer and two causal convolutions with a stride of 2
follow, so four frames become one position.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ..flow.axis import Axis, Shape
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import SOURCE_TOKENS
from .base import InnerWidth, ModelProperties
from .norm import Norm
from .stem import Stem

if TYPE_CHECKING:
    from torch import Tensor, nn


class FrameStem(Stem):
    """A linear layer over each frame of samples, then two causal convolutions of width 5 with a stride of 2.

    frame_size: the number of samples in a frame.
    """

    formula_source: ClassVar[str] = "Useful Sensors 2026"
    input_name: ClassVar[str] = "input_values"

    type: Literal["frames"] = "frames"
    frame_size: InnerWidth

    def input_frames(self) -> Value:
        return Value(
            MultipliedRows("frames", source_rows=SOURCE_TOKENS, rows_per_source=4),
            (Axis("sample", self.frame_size),),
            is_constant=True,
        )

    def flow(self, recorder: Flow, x: Value, width: Shape = ()) -> Value:
        """Records the linear layer over frames and the two convolutions, whose output is the encoder's input.

        width: the encoder's width. x: token embeddings if recorded without an encoder.
        """
        frames = recorder.audio_frames = x if x.is_constant else self.input_frames()
        axes, doubled_channels = width or x.axes, Axis("channels", 2 * recorder.element_count(width or x.axes))
        standardized_frames = recorder.normalized(frames, Norm(type="layernorm", weight=False))
        compression_gain = recorder.act(recorder.vector("log_gain", Axis("one", 1)), "exp")
        projected_frames = recorder.act(
            recorder.linear("proj", recorder.act(recorder.mul(standardized_frames, compression_gain), "asinh"), *axes),
            "silu",
        )
        half_rows = MultipliedRows(source_rows=SOURCE_TOKENS, rows_per_source=2)
        projected_frames = recorder.act(
            recorder.conv("conv1", projected_frames, doubled_channels, kernel=5, bias=True, rows=half_rows), "silu"
        )
        return recorder.conv("conv2", projected_frames, *axes, kernel=5, bias=True, rows=SOURCE_TOKENS)

    def input_shape(self, batch: int, encoder_positions: int) -> tuple[int, int]:
        """Returns the shape of the stem's input: [batch, samples]."""
        return batch, 4 * encoder_positions * self.frame_size

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(frame_size=6)]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    from .runtime import vector_module

    class FrameStemReference(nn.Module):
        """Encodes frames of samples. samples: [batch, samples] → [batch, samples / (4 · frame_size), hidden]."""

        def __init__(self, spec: FrameStem, hidden_size: int) -> None:
            super().__init__()
            self.frame_size = spec.frame_size
            self.log_gain = vector_module(torch.zeros(1))
            self.proj = nn.Linear(spec.frame_size, hidden_size, bias=False)
            self.conv1 = nn.Conv1d(hidden_size, 2 * hidden_size, 5, stride=2)
            self.conv2 = nn.Conv1d(2 * hidden_size, hidden_size, 5, stride=2)

        def forward(self, samples: Tensor) -> Tensor:
            frames = samples.unflatten(-1, (-1, self.frame_size))
            frames = frames - frames.mean(-1, keepdim=True)
            frames = frames * torch.rsqrt(frames.square().mean(-1, keepdim=True) + 1e-6)
            projected_frames = nn.functional.silu(
                self.proj(torch.asinh(self.log_gain.weight.exp() * frames))
            ).transpose(1, 2)
            projected_frames = nn.functional.silu(self.conv1(nn.functional.pad(projected_frames, (4, 0))))
            return self.conv2(nn.functional.pad(projected_frames, (4, 0))).transpose(1, 2)

    return FrameStemReference
