"""Input layers of a conformer: convolutions over the time and frequency axes of a spectrum (Rekesh 2023, §2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from ..flow.axis import Axis, Shape
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import PATCHES, MultipliedRows
from ..workload.rows import SOURCE_TOKENS, Rows
from .base import ModelProperties
from .stem import Stem
from .towers.subsampling import SpectrumConv, Subsampling

if TYPE_CHECKING:
    from torch import nn


class SpectrumStem(Stem):
    """An encoder's input layers: strided convolutions over time and frequency, then a linear projection per position.

    subsampling: the convolutions and the projection. One position is as many frames as the product of the strides.
    """

    type: Literal["spectrum"] = "spectrum"
    subsampling: Subsampling

    @property
    def formula_source(self) -> str:
        return self.subsampling.formula_source

    @property
    def frames_per_position(self) -> int:
        """The number of audio frames per encoder position."""
        frames = 1
        for convolution in self.subsampling.convolutions:
            frames *= convolution.stride[0]
        return frames

    @property
    def positions(self) -> Rows:
        return SOURCE_TOKENS if self.subsampling.chunk is None else self.subsampling.positions

    def frames_of_recording(self) -> Value:
        return self.subsampling.input_value()

    def input_frames(self) -> Value:
        if self.subsampling.chunk is not None:
            return self.subsampling.input_value()
        frame_rows = MultipliedRows("frames", source_rows=SOURCE_TOKENS, rows_per_source=self.frames_per_position)
        return Value(frame_rows, (Axis("mel", self.subsampling.num_mel_bins),), is_constant=True)

    def flow(self, recorder: Flow, x: Value, width: Shape = ()) -> Value:
        """Records the operations of the convolutions and the projection, whose output is the encoder's input.

        width: the encoder's width. x: token embeddings if recorded without an encoder.
        """
        frames = recorder.audio_frames = x if x.is_constant else self.input_frames()
        axes = width or x.axes
        subsampled_frames = recorder.part("subsampling", self.subsampling, frames, output_shape=axes)
        return subsampled_frames if frames.rows is PATCHES else subsampled_frames.view(*axes, new_rows=self.positions)

    def input_shape(self, batch: int, encoder_positions: int) -> tuple[int, int, int]:
        """Returns the shape of the stem's input: [batch, frames, num_mel_bins]."""
        return batch, self.frames_per_position * encoder_positions, self.subsampling.num_mel_bins

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        from torch import nn

        class SpectrumStemReference(nn.Module):
            """Convolves a spectrum. frames: [batch, frames, num_mel_bins] → [batch, positions, hidden]."""

            def __init__(self, spec: SpectrumStem) -> None:
                super().__init__()
                self.subsampling = spec.subsampling.reference(model_properties)

            def forward(self, frames: object) -> object:
                return self.subsampling(frames)

        return SpectrumStemReference(self)

    @classmethod
    def examples(cls) -> list[Self]:
        first_convolution = SpectrumConv(channels=4, bias=True)
        separable_conv = SpectrumConv(channels=4, separable=True, bias=True)
        subsampling = Subsampling(num_mel_bins=9, convolutions=(first_convolution, separable_conv), bias=True)
        return [cls(subsampling=subsampling)]
