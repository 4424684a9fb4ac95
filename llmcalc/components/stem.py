"""Input layers of an audio encoder: convolutions over the frames of a signal, in the place of token embeddings.

Whisper (Radford 2022, arXiv:2212.04356, §2.2): two convolutions of width 3, each followed by a GELU, the second with a
stride of 2.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ..flow.axis import Axis, Shape
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import MultipliedRows, RowsInChunks
from ..workload.rows import SOURCE_TOKENS, FixedRows, Rows
from .base import TORCH_WITNESS, Component, InnerWidth, ModelProperties, PartWitness, Positions

if TYPE_CHECKING:
    from torch import Tensor, nn


class Stem(Component):
    """The base class of input layers (stems) that compute an encoder's input in the place of token embeddings.

    input_name: the name of its input in classes of `transformers` (class attribute).
    works_without_decoder: whether it can be the input of a model that is an encoder alone (class attribute).
    """

    kind: ClassVar[str] = "embedding"
    input_name: ClassVar[str] = "input_features"
    works_without_decoder: ClassVar[bool] = False

    @property
    def positions(self) -> Rows:
        """The row axis of the encoder's positions; each position is one vector."""
        return SOURCE_TOKENS

    @property
    def constant_position_count(self) -> int | None:
        """The constant number of encoder positions; None if the number depends on the input."""
        return None

    def input_frames(self) -> Value:
        """Returns the input of the stem, frames or samples, as a symbolic tensor of the compute graph."""
        raise TypeError(f"{type(self).__name__} has no input")

    def input_without_decoder(self) -> Value:
        """Returns the stem's input in a model that has only an encoder, as a symbolic tensor of the compute graph."""
        raise TypeError(f"{type(self).__name__} does not work without a decoder")

    def frames_of_recording(self) -> Value:
        """Returns the stem's input in a multimodal model's audio encoder, as a symbolic tensor of the compute graph."""
        return self.input_frames()

    def input_shape(self, batch: int, encoder_positions: int) -> tuple[int, ...]:
        """Returns the shape of the stem's input. encoder_positions: the number of encoder positions, if it varies."""
        raise TypeError(f"{type(self).__name__} has no input")


class ConvStem(Stem):
    """Two convolutions over the frames of an audio signal; two frames become one position.

    num_mel_bins: the number of values per frame.
    max_source_positions: the number of positions; the encoder always processes all of them, unless it has chunks.
    chunk: the number of frames that are convolved at once, the last of several padded; the number of positions then
        follows that of the frames (Qwen2.5-Omni). None by default.
    """

    formula_source: ClassVar[str] = "Radford et al. 2022, §2.2"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["convolution"] = "convolution"
    num_mel_bins: InnerWidth
    max_source_positions: Positions
    chunk: Positions | None = None

    @property
    def positions(self) -> Rows:
        """The row axis of the encoder's positions; each position is one vector."""
        if self.chunk is not None:
            return RowsInChunks(chunk_rows=self.chunk, strides=(2,), pads_last_chunk=False)
        return FixedRows("positions", length=self.max_source_positions)

    @property
    def constant_position_count(self) -> int | None:
        return self.max_source_positions if self.chunk is None else None

    def input_frames(self) -> Value:
        """Returns the input of the stem as a symbolic tensor of the compute graph: two frames per position."""
        frame_rows: Rows = MultipliedRows("frames", source_rows=self.positions, rows_per_source=2)
        if self.chunk is not None:
            frame_rows = RowsInChunks(chunk_rows=self.chunk)
        return Value(frame_rows, (Axis("mel", self.num_mel_bins),), is_constant=True)

    def flow(self, recorder: Flow, x: Value, width: Shape = ()) -> Value:
        """Records the operations of both convolutions, whose output is the encoder's input.

        width: the encoder's width. x: token embeddings if recorded without an encoder.
        """
        frames = recorder.audio_frames = x if x.is_constant else self.input_frames()
        axes = width or x.axes
        convolved_frames = recorder.act(recorder.conv("conv1", frames, *axes, kernel=3, bias=True), "gelu")
        position_rows = self.positions if self.chunk is None else RowsInChunks(chunk_rows=self.chunk, strides=(2,))
        convolved_frames = recorder.act(
            recorder.conv("conv2", convolved_frames, *axes, kernel=3, bias=True, rows=position_rows), "gelu"
        )
        return convolved_frames if self.chunk is None else convolved_frames.view(*axes, new_rows=self.positions)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    def input_shape(self, batch: int, encoder_positions: int) -> tuple[int, int, int]:
        """Returns the shape of the stem's input: [batch, num_mel_bins, frames]."""
        return batch, self.num_mel_bins, 2 * self.max_source_positions

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_mel_bins=5, max_source_positions=9)]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ConvStemReference(nn.Module):
        """Convolves audio frames. frames: [batch, num_mel_bins, frames] → [batch, frames / 2, hidden]."""

        def __init__(self, spec: ConvStem, hidden_size: int) -> None:
            super().__init__()
            self.chunk = spec.chunk
            self.conv1 = nn.Conv1d(spec.num_mel_bins, hidden_size, kernel_size=3, padding=1)
            self.conv2 = nn.Conv1d(hidden_size, hidden_size, kernel_size=3, stride=2, padding=1)

        def forward(self, frames: Tensor) -> Tensor:
            clip_count, frame_count = frames.shape[0], frames.shape[-1]
            if self.chunk is None or frame_count <= self.chunk:
                return self._convolve(frames)
            chunks = nn.functional.pad(frames, (0, -frame_count % self.chunk)).unflatten(2, (-1, self.chunk))
            positions = (
                self._convolve(chunks.transpose(1, 2).flatten(0, 1)).unflatten(0, (clip_count, -1)).flatten(1, 2)
            )
            last_chunk_frames = frame_count % self.chunk
            return positions[:, : frame_count // self.chunk * -(-self.chunk // 2) + -(-last_chunk_frames // 2)]

        def _convolve(self, frames: Tensor) -> Tensor:
            x: Tensor = nn.functional.gelu(self.conv2(nn.functional.gelu(self.conv1(frames))))
            return x.transpose(1, 2)

    return ConvStemReference
