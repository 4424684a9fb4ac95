"""An audio encoder: a transformer over frames of audio, as in Whisper (Radford 2022, arXiv:2212.04356, §2.2).

transformers: models/qwen2_audio, models/voxtral.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..added_position import LearnedPositions, SinusoidalPositions
from ..base import InnerWidth, ModelProperties, StackPosition
from ..inputs import AudioInput
from ..layers.block import Block
from ..layers.conformer import ConformerLayer
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState
from ..stack import Stack
from ..stem import ConvStem
from .base import EncoderTower
from .subsampling import SpectrumConv, Subsampling

if TYPE_CHECKING:
    from torch import Tensor, nn


class AudioTower(EncoderTower):
    """An audio encoder: audio frames pass the stack's stem, positions and bidirectional layers, to width hidden_size.

    hidden_size: the width.
    stack: the stem, positions and layers.
    audio: how the processor cuts audio into frames; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Radford et al. 2022, §2.2"

    type: Literal["audio"] = "audio"
    hidden_size: InnerWidth
    stack: Stack
    audio: AudioInput | None = None

    def check_fields(self) -> None:
        if self.stack.stem is None:
            raise ValueError("stack.stem: missing; an audio encoder requires one")
        self.stack.check_stack_position(StackPosition("stack", self.hidden_size, "encoder", tokens_form_grid=True))

    def input_value(self) -> Value:
        assert self.stack.stem is not None
        return self.stack.stem.frames_of_recording()

    def flow(self, recorder: Flow, x: Value) -> Value:
        with recorder.separate_stack(causal=False):
            return self.stack.flow(recorder, x, Axis("hidden", self.hidden_size))

    def describe(self, hidden_size: int) -> str:
        return f"encoder {self.stack.num_hidden_layers} × {self.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        from ..spectrum_stem import SpectrumStem

        layernorm = Norm(type="layernorm")
        mixer = Attention(num_attention_heads=2, q_bias=True, v_bias=True, o_bias=True)
        ungated_network = FeedForward(intermediate_size=20, hidden_act="gelu", up_bias=True, down_bias=True)
        block = Block(attention=mixer, feed_forward=ungated_network, norm=layernorm, norm_placement="pre")
        stem = ConvStem(num_mel_bins=5, max_source_positions=9)
        position = LearnedPositions(max_position_embeddings=9)
        stack = Stack(num_hidden_layers=2, block=block, stem=stem, position=position, final_norm=layernorm)
        windowed_block = block.model_copy(update={"attention": mixer.model_copy(update={"grid_window": 3})})
        tower_fields: dict[str, Any] = {
            "num_hidden_layers": 2,
            "position": SinusoidalPositions(),
            "final_norm": layernorm,
        }
        chunked_stack = Stack(
            block=windowed_block, stem=ConvStem(num_mel_bins=5, max_source_positions=9, chunk=4), **tower_fields
        )
        convolution = SpectrumConv(channels=4, bias=True)
        subsampling = Subsampling(num_mel_bins=9, convolutions=(convolution,) * 2, hidden_act="gelu", chunk=6)
        spectrum_stack = Stack(block=windowed_block, stem=SpectrumStem(subsampling=subsampling), **tower_fields)
        stem_without_chunks = SpectrumStem(subsampling=subsampling.model_copy(update={"chunk": None}))
        conformer_stack = Stack(num_hidden_layers=2, block=ConformerLayer.examples()[0], stem=stem_without_chunks)
        tower_stacks = (stack, chunked_stack, spectrum_stack, conformer_stack)
        return [cls(hidden_size=12, stack=tower_stack) for tower_stack in tower_stacks]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class AudioTowerReference(nn.Module):
        """Encodes audio frames. frames: [clips, num_mel_bins, 2 · positions] → [clips, positions, hidden].

        With a spectrum stem, frames: [clips, frames, num_mel_bins].
        """

        def __init__(self, spec: AudioTower) -> None:
            super().__init__()
            stack_module = spec.stack.reference(ModelProperties(spec.hidden_size, is_causal=False))
            for child_name, child_module in stack_module.named_children():
                self.add_module(child_name, child_module)
            self._stack = (stack_module,)  # as a tuple: the stack's children are registered as this module's own

        def forward(self, frames: Tensor) -> Tensor:
            return self._stack[0].forward(frames, PassState(patch_columns=1))

    return AudioTowerReference
