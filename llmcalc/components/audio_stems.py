"""Input layers of audio encoders whose number of output positions depends on the length of the recording.

S2T (Wang et al. 2020, arXiv:2010.05171, §2): convolutions with a stride of 2, each followed by a gated linear unit.
Moonshine (Jeffries et al. 2024, arXiv:2410.15608, §3.1): three convolutions over the samples themselves.
transformers: models/speech_to_text (`Conv1dSubsampler`), models/moonshine (`MoonshineEncoder`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ..algebra import exact_div
from ..flow.axis import Axis, JoinedShapes, Shape
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import SOURCE_TOKENS
from .base import InnerWidth, ModelProperties, Size
from .norm import Norm
from .stem import Stem

if TYPE_CHECKING:
    from torch import Tensor, nn


class SubsamplingStem(Stem):
    """An audio encoder's input layers: convolutions over frames, each with a stride of 2 and a gated linear unit.

    num_mel_bins: the number of values per frame.
    conv_channels: the outputs of each convolution but the last, an even number: the gate halves them.
    conv_kernel_sizes: the width of each convolution, an odd number.
    """

    formula_source: ClassVar[str] = "Wang et al. 2020, §2"

    type: Literal["subsampling"] = "subsampling"
    num_mel_bins: InnerWidth
    conv_channels: InnerWidth
    conv_kernel_sizes: tuple[Size, ...] = Field(min_length=1, max_length=16)

    def check_fields(self) -> None:
        if self.conv_channels % 2:
            raise ValueError(f"conv_channels: {self.conv_channels}; expected an even number")
        if any(kernel_size % 2 == 0 for kernel_size in self.conv_kernel_sizes):
            raise ValueError(f"conv_kernel_sizes: {self.conv_kernel_sizes}; expected odd numbers")

    def input_frames(self) -> Value:
        rows_per_source = 2 ** len(self.conv_kernel_sizes)
        frame_rows = MultipliedRows("frames", source_rows=SOURCE_TOKENS, rows_per_source=rows_per_source)
        return Value(frame_rows, (Axis("mel", self.num_mel_bins),), is_constant=True)

    def flow(self, recorder: Flow, x: Value, width: Shape = ()) -> Value:
        """Records the operations of the stem's convolutions, whose output is the encoder's input.

        width: the encoder's width. x: token embeddings if recorded without an encoder.
        """
        frames = recorder.audio_frames = x if x.is_constant else self.input_frames()
        last_conv_index = len(self.conv_kernel_sizes) - 1
        for conv_index, kernel_size in enumerate(self.conv_kernel_sizes):
            half_axes: Shape = (
                (Axis("channels", exact_div(self.conv_channels, 2)),)
                if conv_index < last_conv_index
                else width or x.axes
            )
            frame_rows = (
                SOURCE_TOKENS
                if conv_index == last_conv_index
                else MultipliedRows(source_rows=SOURCE_TOKENS, rows_per_source=2 ** (last_conv_index - conv_index))
            )
            conv_output = recorder.conv(
                f"conv{conv_index}",
                frames,
                JoinedShapes((half_axes, half_axes)),
                kernel=kernel_size,
                bias=True,
                rows=frame_rows,
            )
            gated_half, gate = recorder.split(conv_output, half_axes, half_axes)
            frames = recorder.mul(gated_half, recorder.act(gate, "sigmoid"))
        return frames

    def input_shape(self, batch: int, encoder_positions: int) -> tuple[int, int, int]:
        """Returns the shape of the stem's input: [batch, frames, num_mel_bins]."""
        return batch, 2 ** len(self.conv_kernel_sizes) * encoder_positions, self.num_mel_bins

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _subsampling_reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_mel_bins=5, conv_channels=8, conv_kernel_sizes=(5, 3))]


class WaveformStem(Stem):
    """An audio encoder's input layers: three convolutions, which turn 384 audio samples into one position."""

    formula_source: ClassVar[str] = "Jeffries et al. 2024, §3.1"
    input_name: ClassVar[str] = "input_values"

    type: Literal["waveform"] = "waveform"

    def input_frames(self) -> Value:
        return Value(
            MultipliedRows("samples", source_rows=SOURCE_TOKENS, rows_per_source=384, extra_rows=511),
            (Axis("sample", 1),),
            is_constant=True,
        )

    def flow(self, recorder: Flow, x: Value, width: Shape = ()) -> Value:
        """Records the operations of the stem's convolutions, whose output is the encoder's input.

        width: the encoder's width. x: token embeddings if recorded without an encoder.
        """
        samples = recorder.audio_frames = x if x.is_constant else self.input_frames()
        axes, rows_after_first_conv = (
            width or x.axes,
            MultipliedRows(source_rows=SOURCE_TOKENS, rows_per_source=6, extra_rows=7),
        )
        frames = recorder.act(recorder.conv("conv1", samples, *axes, kernel=127, rows=rows_after_first_conv), "tanh")
        frames = recorder.part("groupnorm", Norm(type="layernorm"), frames)
        rows_after_second_conv = MultipliedRows(source_rows=SOURCE_TOKENS, rows_per_source=2, extra_rows=1)
        frames = recorder.act(
            recorder.conv(
                "conv2",
                frames,
                Axis("channels", 2 * recorder.element_count(axes)),
                kernel=7,
                bias=True,
                rows=rows_after_second_conv,
            ),
            "gelu",
        )
        return recorder.act(recorder.conv("conv3", frames, *axes, kernel=3, bias=True, rows=SOURCE_TOKENS), "gelu")

    def input_shape(self, batch: int, encoder_positions: int) -> tuple[int, int]:
        """Returns the shape of the stem's input: [batch, samples]."""
        return batch, 384 * encoder_positions + 511

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _waveform_reference_class()(model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]


@cache
def _subsampling_reference_class() -> type[nn.Module]:
    from torch import nn

    class SubsamplingReference(nn.Module):
        """Applies strided gated convolutions. frames: [batch, frames, bins] → [batch, frames / 2^layers, hidden]."""

        def __init__(self, spec: SubsamplingStem, hidden_size: int) -> None:
            super().__init__()
            self.count, mel_bins = len(spec.conv_kernel_sizes), spec.num_mel_bins
            for conv_index, kernel_size in enumerate(spec.conv_kernel_sizes):
                output_width = hidden_size if conv_index == self.count - 1 else spec.conv_channels // 2
                self.add_module(
                    f"conv{conv_index}",
                    nn.Conv1d(mel_bins, 2 * output_width, kernel_size, stride=2, padding=kernel_size // 2),
                )
                mel_bins = output_width

        def forward(self, frames: Tensor) -> Tensor:
            conv_output = frames.transpose(1, 2)
            for conv_index in range(self.count):
                conv_output = nn.functional.glu(self.get_submodule(f"conv{conv_index}")(conv_output), dim=1)
            return conv_output.transpose(1, 2)

    return SubsamplingReference


@cache
def _waveform_reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class WaveformReference(nn.Module):
        """Applies three convolutions to a waveform. samples: [batch, samples] → [batch, positions, hidden]."""

        def __init__(self, hidden_size: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv1d(1, hidden_size, 127, stride=64, bias=False)
            self.groupnorm = nn.GroupNorm(1, hidden_size)
            self.conv2 = nn.Conv1d(hidden_size, 2 * hidden_size, 7, stride=3)
            self.conv3 = nn.Conv1d(2 * hidden_size, hidden_size, 3, stride=2)

        def forward(self, samples: Tensor) -> Tensor:
            normed_waveform = self.groupnorm(torch.tanh(self.conv1(samples[:, None])))
            normed_waveform = nn.functional.gelu(self.conv3(nn.functional.gelu(self.conv2(normed_waveform))))
            return normed_waveform.transpose(1, 2)

    return WaveformReference
