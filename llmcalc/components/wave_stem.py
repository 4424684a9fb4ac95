"""wav2vec 2.0's input layers: unpadded convolutions over samples, a projection, and a position convolution.

Baevski et al. 2020 (arXiv:2006.11477), §2. transformers: models/wav2vec2, models/speecht5
(`SpeechT5SpeechEncoderPrenet`), models/hubert, models/data2vec.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ..algebra import floor_div
from ..flow.axis import Axis, Shape
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import SOURCE_TOKENS, TOKENS, Rows
from .base import Flag, InnerWidth, KernelSize, ModelProperties, Part
from .networks.feed_forward import Activation, activate
from .norm import Norm
from .stem import Stem

if TYPE_CHECKING:
    from torch import Tensor, nn


class WaveConvolution(Part):
    """An unpadded convolution along audio samples.

    channels: the number of output channels.
    kernel, stride: the kernel size and the stride.
    """

    channels: InnerWidth
    kernel: KernelSize
    stride: KernelSize


class WaveStem(Stem):
    """Input layers over audio samples: convolutions, a norm, a projection, and a convolutional position embedding.

    convolutions: the convolutions, in order.
    bias: whether they have a bias, false by default.
    norms: the convolutions with a norm on their channels: the `first` (by default) or `all`.
    hidden_act: the activation, gelu by default.
    projection_norm: whether there is a norm before the projection, true by default.
    position_kernel, position_groups: the kernel size and the groups of the convolution for positions, whose weight is
        a direction and a length per tap of the kernel (weight norm).
    position_layers: the number of convolutions for positions, one after another, each without weight norm and with a
        norm without weights (data2vec); by default there is one, as above.
    mask: whether there is a learned vector for positions that training masks, true by default.
    """

    formula_source: ClassVar[str] = "Baevski et al. 2020, §2"
    input_name: ClassVar[str] = "input_values"
    works_without_decoder: ClassVar[bool] = True

    type: Literal["wave"] = "wave"
    convolutions: tuple[WaveConvolution, ...] = Field(min_length=1, max_length=16)
    bias: Flag = False
    norms: Literal["first", "all"] = "first"
    hidden_act: Activation = "gelu"
    projection_norm: Flag = True
    position_kernel: KernelSize
    position_groups: InnerWidth
    position_layers: int | None = Field(default=None, ge=1, le=16, strict=True)
    mask: Flag = True

    @property
    def samples_per_position(self) -> int:
        """The number of audio samples between two encoder positions."""
        return prod(convolution.stride for convolution in self.convolutions)

    def _rows_per_convolution(self, position_rows: Rows) -> list[Rows]:
        """The row axes before and after each convolution, from audio samples to encoder positions."""
        stride, total_padding, rows_per_convolution = 1, 0, list[Rows]()
        for convolution in reversed(self.convolutions):
            total_padding = total_padding * convolution.stride + convolution.kernel - convolution.stride
            stride *= convolution.stride
            rows_per_convolution.append(
                MultipliedRows("samples", source_rows=position_rows, rows_per_source=stride, extra_rows=total_padding)
            )
        return [*reversed(rows_per_convolution), position_rows]

    def input_frames(self, position_rows: Rows = SOURCE_TOKENS) -> Value:
        return Value(self._rows_per_convolution(position_rows)[0], (Axis("sample", 1),), is_constant=True)

    def input_without_decoder(self) -> Value:
        return self.input_frames(TOKENS)

    def flow(self, recorder: Flow, x: Value, width: Shape = ()) -> Value:
        """Records the operations of the convolutions and the projection, whose output is the encoder's input.

        width: the encoder's width. x: token embeddings if recorded without an encoder.
        """
        frames = recorder.audio_frames = x if x.is_constant else self.input_frames()
        assert isinstance(frames.rows, MultipliedRows)
        position_rows = frames.rows.source_rows
        axes, norm = width or x.axes, Norm(type="layernorm")
        for conv_index, (convolution, output_rows) in enumerate(
            zip(self.convolutions, self._rows_per_convolution(position_rows)[1:], strict=True)
        ):
            channel_axis = Axis("channels", convolution.channels)
            frames = recorder.conv(
                f"conv_{conv_index}", frames, channel_axis, kernel=convolution.kernel, bias=self.bias, rows=output_rows
            )
            frames = (
                recorder.part(f"norm_{conv_index}", norm, frames) if conv_index == 0 or self.norms == "all" else frames
            )
            frames = recorder.act(frames, self.hidden_act)
        frames = recorder.part("proj_norm", norm, frames) if self.projection_norm else frames
        frames = recorder.linear("proj", frames, *axes, bias=True)
        if self.mask:
            recorder.vector("mask", *axes, role="idle")
        with recorder.scope("position"):
            if self.position_layers is None:
                recorder.vector("length", Axis("taps", self.position_kernel))
                position_embedding = self._convolve_positions(recorder, "conv", frames, axes, position_rows)
                position_embedding = recorder.act(position_embedding, self.hidden_act)
            else:
                position_embedding, norm = frames, Norm(type="layernorm", weight=False, bias=False)
                for conv_index in range(self.position_layers):
                    position_embedding = self._convolve_positions(
                        recorder, f"conv_{conv_index}", position_embedding, axes, position_rows
                    )
                    position_embedding = recorder.act(
                        recorder.part(f"norm_{conv_index}", norm, position_embedding), self.hidden_act
                    )
        return recorder.add(frames, position_embedding)

    def _convolve_positions(self, recorder: Flow, conv_name: str, x: Value, axes: Shape, position_rows: Rows) -> Value:
        """Records the operations of the position convolution, and drops the surplus output of an even kernel."""
        kernel_size = self.position_kernel
        row_padding = 2 * floor_div(kernel_size, 2) + 1 - kernel_size
        padded_rows = MultipliedRows(
            "padded positions", source_rows=position_rows, rows_per_source=1, extra_rows=row_padding
        )
        position_embedding = recorder.conv(
            conv_name, x, *axes, kernel=kernel_size, groups=self.position_groups, bias=True, rows=padded_rows
        )
        return position_embedding.view(*axes, new_rows=position_rows)

    def input_shape(self, batch: int, encoder_positions: int) -> tuple[int, int]:
        """Returns the shape of the stem's input: [batch, samples]."""
        sample_count = encoder_positions
        for convolution in reversed(self.convolutions):
            sample_count = (sample_count - 1) * convolution.stride + convolution.kernel
        return batch, sample_count

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        convolutions = (
            WaveConvolution(channels=6, kernel=5, stride=3),
            WaveConvolution(channels=8, kernel=2, stride=2),
        )
        stem = cls(convolutions=convolutions, position_kernel=4, position_groups=2)
        return [
            stem,
            stem.model_copy(update={"position_layers": 2, "position_kernel": 3}),
            stem.model_copy(
                update={"bias": True, "norms": "all", "position_kernel": 3, "mask": False, "projection_norm": False}
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    from .runtime import vector_module

    def build_position_convolution(hidden_size: int, spec: WaveStem) -> nn.Module:
        padding, conv_groups = spec.position_kernel // 2, spec.position_groups
        return nn.Conv1d(hidden_size, hidden_size, spec.position_kernel, padding=padding, groups=conv_groups)

    class PositionConvolution(nn.Module):
        """A convolutional position embedding with groups and weight norm. x: [batch, channels, positions] → same."""

        def __init__(self, hidden_size: int, spec: WaveStem) -> None:
            super().__init__()
            self.hidden_act, self.conv = spec.hidden_act, build_position_convolution(hidden_size, spec)
            self.length = vector_module(torch.ones(spec.position_kernel))

        def forward(self, x: Tensor) -> Tensor:
            return activate(self.hidden_act, (self.conv(x) * self.length.weight.mean())[..., : x.shape[-1]])

    class PositionConvolutionChain(nn.Module):
        """Runs several convolutional position embeddings in sequence. x: [batch, channels, positions] → same shape."""

        def __init__(self, hidden_size: int, spec: WaveStem) -> None:
            super().__init__()
            self.spec, norm = spec, Norm(type="layernorm", weight=False, bias=False)
            for conv_index in range(spec.position_layers or 0):
                self.add_module(f"conv_{conv_index}", build_position_convolution(hidden_size, spec))
                self.add_module(f"norm_{conv_index}", norm.reference(ModelProperties(hidden_size)))

        def forward(self, x: Tensor) -> Tensor:
            for conv_index in range(self.spec.position_layers or 0):
                convolved: Tensor = self.get_submodule(f"conv_{conv_index}")(x)[..., : x.shape[-1]]
                normed = self.get_submodule(f"norm_{conv_index}")(convolved.transpose(1, 2)).transpose(1, 2)
                x = activate(self.spec.hidden_act, normed)
            return x

    class WaveStemReference(nn.Module):
        """Convolves audio samples. samples: [batch, samples] → [batch, positions, hidden]."""

        def __init__(self, spec: WaveStem, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, channels, norm = spec, 1, Norm(type="layernorm")
            for conv_index, convolution in enumerate(spec.convolutions):
                kernel_size, stride = convolution.kernel, convolution.stride
                self.add_module(
                    f"conv_{conv_index}", nn.Conv1d(channels, convolution.channels, kernel_size, stride, bias=spec.bias)
                )
                channels = convolution.channels
                if conv_index == 0 or spec.norms == "all":
                    self.add_module(f"norm_{conv_index}", norm.reference(ModelProperties(channels)))
            if spec.projection_norm:
                self.proj_norm = norm.reference(ModelProperties(channels))
            self.proj = nn.Linear(channels, model_properties.hidden_size)
            if spec.mask:
                self.mask = vector_module(torch.zeros(model_properties.hidden_size))
            position_class = PositionConvolution if spec.position_layers is None else PositionConvolutionChain
            self.position = position_class(model_properties.hidden_size, spec)

        def forward(self, samples: Tensor) -> Tensor:
            frames: Any = samples[:, None]
            for conv_index in range(len(self.spec.convolutions)):
                frames = self.get_submodule(f"conv_{conv_index}")(frames)
                if hasattr(self, f"norm_{conv_index}"):
                    frames = self.get_submodule(f"norm_{conv_index}")(frames.transpose(1, 2)).transpose(1, 2)
                frames = activate(self.spec.hidden_act, frames)
            frames = frames.transpose(1, 2)
            frames = self.proj(self.proj_norm(frames) if self.spec.projection_norm else frames)
            position_embedding: Tensor = self.position(frames.transpose(1, 2)).transpose(1, 2)
            return frames + position_embedding

    return WaveStemReference
