"""Convolutional subsampling before an audio encoder, over time and frequency, with a projection per frame.

transformers: models/gemma3n, models/gemma4, models/phi4_multimodal (NeMo's FastConformer: Rekesh 2023,
arXiv:2305.05084, §2.1).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ...algebra import floor_div
from ...flow.axis import Axis, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import PATCHES, MultipliedRows, RowsInChunks, StridedConvolutionRows
from ...workload.rows import Rows
from ..base import Component, Flag, InnerWidth, KernelSize, ModelProperties, Part, Positions
from ..networks.feed_forward import Activation, activate
from ..norm import Norm

if TYPE_CHECKING:
    from torch import Tensor, nn


class SpectrumConv(Part):
    """A convolution over time and frequency, then an activation; one zero pads each side of the frequencies.

    channels: the number of output channels.
    kernel, stride: the kernel size and the stride over (time, frequency), (3, 3) and (2, 2) by default.
    bias: whether it has a bias, false by default.
    separable: whether it is depthwise-separable: a depthwise convolution, then a pointwise one. False by default.
    """

    channels: InnerWidth
    kernel: tuple[KernelSize, KernelSize] = (3, 3)
    stride: tuple[KernelSize, KernelSize] = (2, 2)
    bias: Flag = False
    separable: Flag = False


class Subsampling(Component):
    """Convolutions from frames of num_mel_bins values to fewer frames of the encoder's width.

    num_mel_bins: the number of mel bins per frame.
    convolutions: the convolutions, in order.
    norm: the norm on the channels after each convolution, none by default.
    bias: whether the final projection has a bias, false by default.
    standardize: whether a mean and a scale per mel bin are stored as a buffer, false by default.
    hidden_act: the activation after each convolution, relu by default.
    chunk: the number of frames that are convolved at once, the last of several padded; none by default.
    whole_chunks: whether fewer frames than a chunk are padded to one too, false by default.
    """

    formula_source: ClassVar[str] = "Rekesh et al. 2023, §2.1"
    kind: ClassVar[str] = "embedding"

    num_mel_bins: InnerWidth
    convolutions: tuple[SpectrumConv, ...] = Field(min_length=1, max_length=16)
    norm: Norm | None = None
    bias: Flag = False
    standardize: Flag = False
    hidden_act: Activation = "relu"
    chunk: Positions | None = None
    whole_chunks: Flag = False

    def check_fields(self) -> None:
        frequency_bins = self.num_mel_bins
        for conv in self.convolutions:
            frequency_bins = (frequency_bins + 2 - conv.kernel[1]) // conv.stride[1] + 1
            if frequency_bins < 1:
                raise ValueError(
                    f"num_mel_bins: {self.num_mel_bins} mel bins are too few for these convolutions; expected more"
                )
        if self.convolutions[0].separable:
            raise ValueError("convolutions: the first one reads a single channel; expected separable = false")

    def input_value(self) -> Value:
        """The input as a symbolic tensor of the compute graph: audio frames with one value per mel bin."""
        return Value(self._convolved_rows(PATCHES, 0), (Axis("mel", self.num_mel_bins),), is_constant=True)

    @property
    def positions(self) -> Rows:
        """The row axis of encoder positions that come from audio, without the padding of the last chunk."""
        strides = tuple(convolution.stride[0] for convolution in self.convolutions)
        return RowsInChunks(chunk_rows=self.chunk, strides=strides, pads_last_chunk=False)

    def _convolved_rows(self, frame_rows: Rows, conv_count: int) -> Rows:
        """Returns the row axis after `conv_count` convolutions. frame_rows: the rows before the last convolution."""
        if self.chunk is not None:
            strides = tuple(convolution.stride[0] for convolution in self.convolutions[:conv_count])
            return RowsInChunks(chunk_rows=self.chunk, strides=strides, pads_single_chunk=self.whole_chunks)
        convolution = self.convolutions[conv_count - 1]
        if conv_count == 0:
            return frame_rows
        return StridedConvolutionRows(
            source_rows=frame_rows, kernel=convolution.kernel[0], stride=convolution.stride[0]
        )

    def flow(self, recorder: Flow, x: Value, output_shape: Shape = ()) -> Value:
        """Records the operations of the subsampling. output_shape: the axes of the output; default x's axes.

        A convolution runs over each mel bin of each frame: these pairs are its rows, the channels its width.
        """
        if self.standardize:
            channel_mean, channel_scale = recorder.split(
                recorder.buffer("standardize", Axis("statistics", 2), *x.axes), x.axes, x.axes
            )
            x = recorder.mul(recorder.add(x, channel_mean), channel_scale)
        output_axes, frame_rows, frequency_bins = output_shape or x.axes, x.rows, self.num_mel_bins
        conv_output = x.view(
            Axis("channels", 1),
            new_rows=MultipliedRows("spectrum", source_rows=frame_rows, rows_per_source=frequency_bins),
        )
        for conv_index, conv in enumerate(self.convolutions, 1):
            (time_kernel, frequency_kernel), channel_axis = conv.kernel, Axis("channels", conv.channels)
            frame_rows = self._convolved_rows(frame_rows, conv_index)
            frequency_bins = floor_div(frequency_bins + 2 - frequency_kernel, conv.stride[1]) + 1
            spectrum_rows = MultipliedRows("spectrum", source_rows=frame_rows, rows_per_source=frequency_bins)
            if conv.separable:
                conv_output = recorder.conv(
                    f"depthwise_{conv_index}",
                    conv_output,
                    *conv_output.axes,
                    kernel=time_kernel * frequency_kernel,
                    groups=conv_output.width,
                    bias=conv.bias,
                    rows=spectrum_rows,
                )
                conv_output = recorder.conv(
                    f"pointwise_{conv_index}", conv_output, channel_axis, kernel=1, bias=conv.bias
                )
            else:
                conv_output = recorder.conv(
                    f"conv_{conv_index}",
                    conv_output,
                    channel_axis,
                    kernel=time_kernel * frequency_kernel,
                    bias=conv.bias,
                    rows=spectrum_rows,
                )
            conv_output = (
                conv_output if self.norm is None else recorder.part(f"norm_{conv_index}", self.norm, conv_output)
            )
            conv_output = recorder.act(conv_output, self.hidden_act)
        return recorder.linear(
            "proj",
            conv_output.view(*conv_output.axes, Axis("pitches", frequency_bins), new_rows=frame_rows),
            *output_axes,
            bias=self.bias,
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class FrameStandardization(nn.Module):
        def __init__(self, mel_bins: int) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(mel_bins))
            self.register_buffer("scale", torch.ones(mel_bins))

        def forward(self, frames: Tensor) -> Tensor:
            return (frames - self.get_buffer("mean")) * self.get_buffer("scale")

    class SubsamplingReference(nn.Module):
        """Convolves a spectrum to fewer frames. frames: [clips, frames, num_mel_bins] → [clips, fewer frames, hidden].

        Convolutions cover frames on both sides.
        """

        def __init__(self, spec: Subsampling, hidden_size: int) -> None:
            super().__init__()
            self.spec, channels, mel_bins = spec, 1, spec.num_mel_bins
            if spec.standardize:
                self.standardize = FrameStandardization(spec.num_mel_bins)
            for conv_index, conv in enumerate(spec.convolutions, 1):
                conv_padding = (conv.kernel[0] // 2, 1)
                if conv.separable:
                    self.add_module(
                        f"depthwise_{conv_index}",
                        nn.Conv2d(
                            channels, channels, conv.kernel, conv.stride, conv_padding, groups=channels, bias=conv.bias
                        ),
                    )
                    self.add_module(f"pointwise_{conv_index}", nn.Linear(channels, conv.channels, bias=conv.bias))
                else:
                    self.add_module(
                        f"conv_{conv_index}",
                        nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride, conv_padding, bias=conv.bias),
                    )
                if spec.norm is not None:
                    self.add_module(f"norm_{conv_index}", spec.norm.reference(ModelProperties(conv.channels)))
                channels, mel_bins = conv.channels, (mel_bins + 2 - conv.kernel[1]) // conv.stride[1] + 1
            self.proj = nn.Linear(channels * mel_bins, hidden_size, bias=spec.bias)

        def forward(self, frames: Tensor) -> Tensor:
            chunk_frames, (clip_count, frame_count) = self.spec.chunk, frames.shape[:2]
            if chunk_frames is None or (frame_count < chunk_frames and not self.spec.whole_chunks):
                return self._convolve(frames)
            chunks = (
                nn.functional.pad(frames, (0, 0, 0, -frame_count % chunk_frames))
                .unflatten(1, (-1, chunk_frames))
                .flatten(0, 1)
            )
            x = self._convolve(chunks)
            last_chunk_frames = frame_count % chunk_frames
            for conv in self.spec.convolutions:
                last_chunk_frames = -(-last_chunk_frames // conv.stride[0])
            positions = x.unflatten(0, (clip_count, -1)).flatten(1, 2)
            return positions[:, : frame_count // chunk_frames * x.shape[1] + last_chunk_frames]

        def _convolve(self, frames: Tensor) -> Tensor:
            if hasattr(self, "standardize"):
                frames = self.standardize(frames)
            x = frames[:, None]  # [clips, channels, frames, mel bins]
            for conv_index, conv in enumerate(self.spec.convolutions, 1):
                x = self.get_submodule(f"depthwise_{conv_index}" if conv.separable else f"conv_{conv_index}")(x)
                if conv.separable or self.spec.norm is not None:
                    channels_last = x.permute(0, 2, 3, 1)
                    channels_last = (
                        self.get_submodule(f"pointwise_{conv_index}")(channels_last)
                        if conv.separable
                        else channels_last
                    )
                    channels_last = (
                        self.get_submodule(f"norm_{conv_index}")(channels_last)
                        if self.spec.norm is not None
                        else channels_last
                    )
                    x = channels_last.permute(0, 3, 1, 2)
                x = activate(self.spec.hidden_act, x)
            return self.proj(x.transpose(1, 2).flatten(2))

    return SubsamplingReference
