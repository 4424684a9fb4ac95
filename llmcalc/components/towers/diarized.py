"""An audio encoder with a second encoder that detects the active speakers: Nemotron 3.5 Transcribe.

Park 2024 (arXiv:2409.06656): speakers' activities select sinusoids, which are added to the states of speech
recognition. transformers: models/nemotron3_5_transcribe, nemotron3_diarization.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import PATCHES, MergedPatchRows, MultipliedRows
from ..base import InnerWidth, ModelProperties, Part, StackPosition, Vocab
from ..inputs import AudioInput
from ..layers.block import Block
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState
from ..stack import Stack
from .base import EncoderTower

if TYPE_CHECKING:
    from torch import Tensor, nn

KERNEL_SIZE = 3
"""The positions under the kernel of the convolution that turns positions into frames."""


class SpeakerEncoder(Part):
    """A speaker-detection encoder: layers, a convolution that expands positions to frames, and linear layers.

    A vector that stands for silence is stored with it, which only a recording of several chunks uses.

    hidden_size: the width.
    stack: the layers, with the norms before and after them.
    head_size: the width of the convolution and of the linear layer after it.
    num_speakers: the number of speakers.
    """

    hidden_size: InnerWidth
    stack: Stack
    head_size: InnerWidth
    num_speakers: InnerWidth

    def flow(self, recorder: Flow, frames: Value, frame_count: int) -> Value:
        """Records the encoder's operations; returns each speaker's mean activity. frame_count: frames per position."""
        x = _record_stack(recorder, self.stack, frames, self.hidden_size)
        recorder.vector("silence", Axis("hidden", self.hidden_size), role="idle")
        head_axis, frame_axis = Axis("head", self.head_size), Axis("frames", frame_count)
        speaker_features = recorder.linear("proj", x, head_axis, bias=True)
        speaker_features = recorder.conv(
            "upsampler", speaker_features, frame_axis, head_axis, kernel=KERNEL_SIZE, bias=True
        )
        speaker_features = speaker_features.view(
            head_axis, new_rows=MultipliedRows("frames", source_rows=x.rows, rows_per_source=frame_count)
        )
        speaker_features = recorder.act(
            recorder.linear("dense", recorder.act(speaker_features, "relu"), head_axis, bias=True), "relu"
        )
        speaker_axis = Axis("speakers", self.num_speakers)
        probabilities = recorder.act(
            recorder.linear("classifier", speaker_features, speaker_axis, bias=True), "sigmoid"
        )
        return recorder.merge(probabilities, x.rows, frame_axis, is_mean=True)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        """Builds the module; `model_properties.hidden_size` is the number of input values per position."""
        return _reference_classes()["speakers"](self, model_properties.hidden_size)


class WordTimestamps(Part):
    """A head on the hidden states of speech recognition that predicts the time of each word.

    A text model does not read their output: their parameters are counted, no FLOPs.

    stack: the layers, with the norms before and after them.
    upsampling_factor: the number of outputs per position.
    classes: the number of classes of the classifier.
    """

    stack: Stack
    upsampling_factor: InnerWidth
    classes: Vocab

    def flow(self, recorder: Flow, x: Value) -> None:
        """Records the timestamp head's operations. x: the hidden states of speech recognition."""
        timestamp_rows = MultipliedRows("timestamps", source_rows=x.rows, rows_per_source=self.upsampling_factor)
        upsampled_frames = recorder.conv(
            "upsampler", x, *x.axes, kernel=self.upsampling_factor, bias=True, rows=timestamp_rows
        )
        with recorder.separate_stack(causal=False):
            upsampled_frames = self.stack.flow(recorder, upsampled_frames)
        recorder.linear("classifier", upsampled_frames, Axis("classes", self.classes), bias=True)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["timestamps"](self, model_properties.hidden_size)


class DiarizedEncoder(EncoderTower):
    """A speech encoder to whose output the sinusoids of the active speakers are added.

    num_mel_bins: the number of mel bins of a frame.
    frames: the number of frames that become one position.
    hidden_size: the width.
    stack: the layers of speech recognition, with the norms before and after them.
    norm: the norm of their output, and of the speakers' activities.
    speakers: the encoder of who speaks, which reads the same frames.
    timestamps: the weights for the time of each word, none by default.
    audio: how the processor cuts audio into frames; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Park et al. 2024"

    type: Literal["diarized"] = "diarized"
    num_mel_bins: InnerWidth
    frames: InnerWidth
    hidden_size: InnerWidth
    stack: Stack
    norm: Norm
    speakers: SpeakerEncoder
    timestamps: WordTimestamps | None = None
    audio: AudioInput | None = None

    def check_fields(self) -> None:
        stacks = {"stack": (self.stack, self.hidden_size)}
        stacks["speakers.stack"] = self.speakers.stack, self.speakers.hidden_size
        if self.timestamps is not None:
            stacks["timestamps.stack"] = self.timestamps.stack, self.hidden_size
        for stack_name, (stack, width) in stacks.items():
            if stack.stem is not None:
                raise ValueError(f"{stack_name}.stem: the frames have a linear layer of their own; expected none")
            stack.check_stack_position(StackPosition(stack_name, width, "encoder"))

    def input_value(self) -> Value:
        return Value(PATCHES, (Axis("mel", self.num_mel_bins),), is_constant=True)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of both encoders and returns the sum of their outputs for the projector."""
        frames = recorder.merge(x, MergedPatchRows(source_rows=x.rows, frames=self.frames), Axis("frames", self.frames))
        frames.is_constant = True
        stack_output = _record_stack(recorder, self.stack, frames, self.hidden_size)
        if self.timestamps is not None:
            with recorder.scope("timestamps", role="idle"):
                self.timestamps.flow(recorder, stack_output)
        with recorder.scope("speakers"):
            speaker_activity = self.speakers.flow(recorder, frames, self.frames)
        speaker_activity = recorder.part("speaker_norm", self.norm, speaker_activity)
        hidden_axis = Axis("hidden", self.hidden_size)
        sinusoids = Value(stack_output.rows, (*speaker_activity.axes, hidden_axis), is_constant=True)
        product_op = ops.Product(1, self.speakers.num_speakers, self.hidden_size, stack_output.rows)
        speaker_states = recorder.core(
            "speaker_embedding", product_op, speaker_activity, sinusoids, axes=(hidden_axis,)
        )
        return recorder.add(recorder.part("out_norm", self.norm, stack_output), speaker_states)

    def describe(self, hidden_size: int) -> str:
        depths = self.stack.num_hidden_layers, self.speakers.stack.num_hidden_layers
        return f"encoder {depths[0]} × {self.hidden_size}, speakers {depths[1]} × {self.speakers.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["encoder"](self)

    @classmethod
    def examples(cls) -> list[Self]:
        layernorm = Norm(type="layernorm")
        network = FeedForward(intermediate_size=20, hidden_act="gelu", up_bias=True, down_bias=True)
        mixer = Attention(num_attention_heads=2, o_bias=True)
        block = Block(attention=mixer, feed_forward=network, norm=layernorm, norm_placement="pre")
        stack = Stack(num_hidden_layers=2, block=block, embedding_norm=layernorm, final_norm=layernorm)
        speakers = SpeakerEncoder(hidden_size=8, stack=stack, head_size=6, num_speakers=3)
        timestamps = WordTimestamps(stack=stack, upsampling_factor=2, classes=11)
        tower_fields: dict[str, Any] = {"num_mel_bins": 5, "hidden_size": 12, "stack": stack, "norm": layernorm}
        return [
            cls(frames=4, speakers=speakers, timestamps=timestamps, **tower_fields),
            cls(frames=2, speakers=speakers.model_copy(update={"num_speakers": 1}), **tower_fields),
        ]


def _record_stack(recorder: Flow, stack: Stack, frames: Value, hidden_size: int) -> Value:
    """Records the operations of a linear layer over the frames of each position, and then the layers of the stack."""
    x = recorder.linear("patch_embedding", frames, Axis("hidden", hidden_size), kind="embedding")
    with recorder.separate_stack(causal=False):
        return stack.flow(recorder, x)


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn
    from torch.nn import functional

    from ..runtime import vector_module

    class EncoderLayers(nn.Module):
        """Runs a stack's layers, which are direct submodules here. x: [clips, positions, width] → same shape."""

        def __init__(self, stack: Stack, hidden_size: int) -> None:
            super().__init__()
            stack_module = stack.reference(ModelProperties(hidden_size, is_causal=False))
            for child_name, child_module in stack_module.named_children():
                self.add_module(child_name, child_module)
            self._layers = (stack_module,)  # as a tuple: the stack's children are registered as this module's own

        def run_layers(self, x: Tensor) -> Tensor:
            return self._layers[0].forward(x, PassState(patch_columns=1))

    class SpeakerEncoderReference(EncoderLayers):
        """Detects the speakers. frames: [clips, positions, frames · bins] → [clips, positions, speakers]."""

        def __init__(self, spec: SpeakerEncoder, input_width: int, frame_count: int = 1) -> None:
            super().__init__(spec.stack, spec.hidden_size)
            head_size, self.frame_count = spec.head_size, frame_count
            self.patch_embedding = nn.Linear(input_width, spec.hidden_size, bias=False)
            self.silence = vector_module(torch.zeros(spec.hidden_size))
            self.proj = nn.Linear(spec.hidden_size, head_size)
            self.upsampler = nn.Conv1d(head_size, frame_count * head_size, 3, padding=1)
            self.dense, self.classifier = nn.Linear(head_size, head_size), nn.Linear(head_size, spec.num_speakers)

        def forward(self, frames: Tensor) -> Tensor:
            speaker_features = self.proj(self.run_layers(self.patch_embedding(frames)))
            speaker_features = (
                self.upsampler(speaker_features.transpose(1, 2))
                .transpose(1, 2)
                .unflatten(2, (self.frame_count, -1))
                .flatten(1, 2)
            )
            speaker_features = self.classifier(functional.relu(self.dense(functional.relu(speaker_features))))
            return speaker_features.sigmoid().unflatten(1, (-1, self.frame_count)).mean(2)

    class WordTimestampsReference(EncoderLayers):
        """Predicts the time of each word. x: [clips, positions, width] → [clips, more positions, classes]."""

        def __init__(self, spec: WordTimestamps, hidden_size: int) -> None:
            super().__init__(spec.stack, hidden_size)
            self.upsampler = nn.ConvTranspose1d(
                hidden_size, hidden_size, spec.upsampling_factor, spec.upsampling_factor
            )
            self.classifier = nn.Linear(hidden_size, spec.classes)

        def forward(self, x: Tensor) -> Tensor:
            timestamp_logits: Tensor = self.classifier(
                self.run_layers(self.upsampler(x.transpose(1, 2)).transpose(1, 2))
            )
            return timestamp_logits

    class SpeakerSinusoids(nn.Module):
        """Sums sinusoid vectors of the active speakers. [clips, positions, speakers] → [..., width]."""

        def __init__(self, speakers: int, hidden_size: int) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(speakers, hidden_size), persistent=False)

        def forward(self, speaker_activity: Tensor) -> Tensor:
            return speaker_activity @ self.get_buffer("table")

    class DiarizedEncoderReference(EncoderLayers):
        """Encodes speech and speakers. frames: [clips, frames, bins] → [clips, frames / frames per position, width]."""

        def __init__(self, spec: DiarizedEncoder) -> None:
            super().__init__(spec.stack, spec.hidden_size)
            self.frames, input_width = spec.frames, spec.frames * spec.num_mel_bins
            self.patch_embedding = nn.Linear(input_width, spec.hidden_size, bias=False)
            self.out_norm = spec.norm.reference(ModelProperties(spec.hidden_size))
            self.speakers = SpeakerEncoderReference(spec.speakers, input_width, spec.frames)
            self.speaker_norm = spec.norm.reference(ModelProperties(spec.speakers.num_speakers))
            self.speaker_embedding = SpeakerSinusoids(spec.speakers.num_speakers, spec.hidden_size)
            if spec.timestamps is not None:
                self.timestamps = spec.timestamps.reference(ModelProperties(spec.hidden_size))

        def forward(self, frames: Tensor) -> Tensor:
            stacked_frames = frames.unflatten(1, (-1, self.frames)).flatten(2)
            x = self.run_layers(self.patch_embedding(stacked_frames))
            speaker_activity = self.speaker_norm((self.speakers(stacked_frames) > 0.5).to(x.dtype))
            encoder_output: Tensor = self.out_norm(x) + self.speaker_embedding(speaker_activity)
            return encoder_output

    return {
        "encoder": DiarizedEncoderReference,
        "speakers": SpeakerEncoderReference,
        "timestamps": WordTimestampsReference,
    }
