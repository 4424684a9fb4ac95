"""An audio-sample encoder of strided convolutions and ConvNeXt blocks, with its decoder: VibeVoice's tokenizers.

Liu 2022 (arXiv:2201.03545, §2); Peng 2025 (arXiv:2508.19205, §2.1). transformers: models/vibevoice_acoustic_tokenizer
(`VibeVoiceAcousticTokenizerEncoderModel`, `VibeVoiceAcousticTokenizerDecoderModel`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import PATCHES, MergedPatchRows, MultipliedRows
from ..base import Flag, InnerWidth, KernelSize, ModelProperties
from ..inputs import AudioInput
from ..networks.feed_forward import Activation, FeedForward, activate
from ..norm import Norm
from ..runtime import vector_module
from .base import TowerPart
from .diffusion_head import DiffusionHead

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_BLOCKS = 1000
"""The most blocks of a stage."""


class ConvNextEncoder(TowerPart):
    """A ConvNeXt encoder of audio samples: stages of blocks, with strided convolutions between the stages.

    Each stage but the first begins with a strided convolution that doubles the channels. A decoder has the same stages
    in the reverse order, with transposed convolutions. It runs for generated speech alone: its parameters are counted,
    no FLOPs.

    channels: the number of values per sample.
    num_filters: the number of channels of the first stage.
    kernel_size: the kernel size of the first and the last convolution and of those in blocks.
    downsampling_ratios: the strides between the stages; the kernel of such a convolution is twice its stride.
    depths: the numbers of blocks of the stages.
    ffn_expansion: the width of the network of a block, in multiples of its channels.
    hidden_act: the activation of that network, gelu by default.
    norm: the norm before each part of a block.
    output_size: the width of the output.
    rescaled: whether one learned number is added to the output and one multiplies it, false by default.
    decoder: whether there is a decoder to samples, false by default.
    diffusion_head: the layers with which a text model generates outputs of the encoder, none by default.
    audio: how the processor cuts audio into samples; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Peng et al. 2025, §2.1"

    type: Literal["convnext"] = "convnext"
    channels: InnerWidth = 1
    num_filters: InnerWidth
    kernel_size: KernelSize
    downsampling_ratios: tuple[KernelSize, ...] = Field(max_length=16)
    depths: tuple[int, ...] = Field(min_length=1, max_length=17)
    ffn_expansion: InnerWidth
    hidden_act: Activation = "gelu"
    norm: Norm
    output_size: InnerWidth
    rescaled: Flag = False
    decoder: Flag = False
    diffusion_head: DiffusionHead | None = None
    audio: AudioInput | None = None

    def check_fields(self) -> None:
        if len(self.depths) != len(self.downsampling_ratios) + 1 or min(self.depths) < 0:
            raise ValueError(
                f"depths: {list(self.depths)}; expected one number of blocks more than there are downsampling_ratios"
            )
        if max(self.depths) > MAX_BLOCKS:
            raise ValueError(f"depths: {max(self.depths)} blocks; expected at most {MAX_BLOCKS:,} in a stage")

    @property
    def output_width(self) -> int:
        return self.output_size

    def stage_channels(self, stage_index: int) -> int:
        """Returns the number of channels of the blocks in a stage."""
        return self.num_filters * int(2**stage_index)

    def input_value(self) -> Value:
        return Value(PATCHES, (Axis("channels", self.channels),), is_constant=True)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the encoder's operations and returns the output that the projector reads."""
        for stage_index in range(len(self.depths)):
            stride = self.downsampling_ratios[stage_index - 1] if stage_index else 1
            kernel_size = 2 * stride if stage_index else self.kernel_size
            channel_axis = Axis("channels", self.stage_channels(stage_index))
            with recorder.scope(f"stage_{stage_index}"):
                position_rows = MergedPatchRows(source_rows=x.rows, frames=stride) if stage_index else x.rows
                x = recorder.conv("conv", x, channel_axis, kernel=kernel_size, bias=True, rows=position_rows)
                x = self._record_blocks(recorder, x, stage_index)
        x = recorder.conv("conv_out", x, Axis("hidden", self.output_size), kernel=self.kernel_size, bias=True)
        if self.rescaled:
            x = recorder.add(x, recorder.vector("latent_bias", Axis("one", 1)))
            x = recorder.mul(x, recorder.vector("latent_scale", Axis("one", 1)))
        if self.decoder:
            with recorder.scope("decoder", role="idle"):
                self._record_decoder(recorder, x)
        if self.diffusion_head is not None:
            with recorder.scope("diffusion_head", role="idle"):
                self.diffusion_head.flow(recorder, x)
        return x

    def _record_decoder(self, recorder: Flow, x: Value) -> None:
        """Records the operations of the decoder from latents to audio samples. x: the encoder's output."""
        for stage_number, stage_index in enumerate(reversed(range(len(self.depths)))):
            stride = self.downsampling_ratios[stage_index] if stage_number else 1
            kernel_size = 2 * stride if stage_number else self.kernel_size
            channel_axis = Axis("channels", self.stage_channels(stage_index))
            with recorder.scope(f"stage_{stage_number}"):
                position_rows = (
                    MultipliedRows("positions", source_rows=x.rows, rows_per_source=stride) if stage_number else x.rows
                )
                x = recorder.conv("conv", x, channel_axis, kernel=kernel_size, bias=True, rows=position_rows)
                x = self._record_blocks(recorder, x, stage_index)
        recorder.conv("conv_out", x, Axis("samples", self.channels), kernel=self.kernel_size, bias=True)

    def _record_blocks(self, recorder: Flow, x: Value, stage_index: int) -> Value:
        """Records the operations of the blocks of a stage."""
        block_count = self.depths[stage_index]
        if not block_count:
            return x
        return recorder.layers(
            x,
            lambda block_input: self._record_block(recorder, block_input, stage_index),
            block_count,
            range(block_count),
            kind="layer",
        )

    def _record_block(self, recorder: Flow, x: Value, stage_index: int) -> Value:
        """Records a ConvNeXt block: a scaled depthwise convolution and a scaled network, each preceded by a norm."""
        branch = recorder.part("conv_pre_norm", self.norm, x)
        branch = recorder.conv(
            "conv",
            branch,
            *branch.axes,
            kernel=self.kernel_size,
            groups=branch.width,
            bias=True,
        )
        x = recorder.add(x, recorder.mul(branch, recorder.vector("conv_out_scale", *x.axes)))
        branch = recorder.part("mlp_pre_norm", self.norm, x)
        with recorder.scope("mlp", kind="feed_forward"):
            inner_axis = Axis("ffn", self.ffn_expansion * self.stage_channels(stage_index))
            branch = recorder.act(recorder.linear("up_proj", branch, inner_axis, bias=True), self.hidden_act)
            branch = recorder.linear("down_proj", branch, *x.axes, bias=True)
        return recorder.add(x, recorder.mul(branch, recorder.vector("mlp_out_scale", *x.axes)))

    def describe(self, hidden_size: int) -> str:
        return f"ConvNeXt, {len(self.depths)} stages → {self.output_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        tower_fields: dict[str, Any] = {
            "num_filters": 4,
            "kernel_size": 3,
            "ffn_expansion": 2,
            "norm": Norm(type="rmsnorm"),
        }
        return [
            cls(downsampling_ratios=(2, 3), depths=(1, 2, 1), output_size=10, **tower_fields),
            cls(
                downsampling_ratios=(2, 3),
                depths=(2, 0, 1),
                output_size=10,
                rescaled=True,
                decoder=True,
                diffusion_head=DiffusionHead(
                    hidden_size=12,
                    num_hidden_layers=2,
                    frequency_size=6,
                    hidden_act="silu",
                    feed_forward=FeedForward(intermediate_size=20, hidden_act="silu", gated=True),
                    norm=Norm(type="rmsnorm"),
                ),
                **tower_fields,
            ),
            cls(downsampling_ratios=(), depths=(1,), channels=2, output_size=6, hidden_act="relu", **tower_fields),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional

    class CausalConvolution(nn.Conv1d):
        """A causal convolution. x: [clips, channels, positions]."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(functional.pad(x, (self.kernel_size[0] - self.stride[0], 0)))

    class ConvNextNetwork(nn.Module):
        """Runs two linear layers with an activation between them. x: [clips, positions, channels] → same shape."""

        def __init__(self, channels: int, inner_width: int, hidden_act: Activation) -> None:
            super().__init__()
            self.hidden_act: Activation = hidden_act
            self.up_proj, self.down_proj = nn.Linear(channels, inner_width), nn.Linear(inner_width, channels)

        def forward(self, x: Tensor) -> Tensor:
            network_output: Tensor = self.down_proj(activate(self.hidden_act, self.up_proj(x)))
            return network_output

    class ConvNextBlock(nn.Module):
        """A ConvNeXt block. x: [clips, channels, positions] → same shape."""

        def __init__(self, spec: ConvNextEncoder, stage_index: int) -> None:
            super().__init__()
            channels = spec.num_filters * 2**stage_index
            self.conv_pre_norm, self.mlp_pre_norm = (spec.norm.reference(ModelProperties(channels)) for _ in range(2))
            self.conv = CausalConvolution(channels, channels, spec.kernel_size, groups=channels)
            self.mlp = ConvNextNetwork(channels, spec.ffn_expansion * channels, spec.hidden_act)
            self.conv_out_scale, self.mlp_out_scale = (vector_module(torch.ones(channels)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            conv_output = self.conv(self.conv_pre_norm(x.transpose(1, 2)).transpose(1, 2))
            x = (x + conv_output * self.conv_out_scale.weight[:, None]).transpose(1, 2)
            return (x + self.mlp(self.mlp_pre_norm(x)) * self.mlp_out_scale.weight).transpose(1, 2)

    class TransposedConvolution(nn.ConvTranspose1d):
        """A causal transposed convolution. input: [clips, channels, positions]."""

        def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
            upsampled_x: Tensor = super().forward(input, output_size)
            return upsampled_x[..., : input.shape[2] * self.stride[0]]

    def add_stage(
        parent_module: nn.Module, stage_number: int, convolution: nn.Module, spec: ConvNextEncoder, stage_index: int
    ) -> None:
        stage_module = nn.Module()
        stage_module.add_module("conv", convolution)
        stage_module.add_module(
            "layers", nn.ModuleList(ConvNextBlock(spec, stage_index) for _ in range(spec.depths[stage_index]))
        )
        parent_module.add_module(f"stage_{stage_number}", stage_module)

    def run_stages(parent_module: nn.Module, x: Tensor, stage_count: int) -> Tensor:
        for stage_number in range(stage_count):
            stage = parent_module.get_submodule(f"stage_{stage_number}")
            for stage_module in (stage.get_submodule("conv"), *stage.get_submodule("layers").children()):
                x = stage_module(x)
        return x

    class ConvNextDecoder(nn.Module):
        """Decodes latents to audio samples. x: [clips, output_size, positions] → [clips, channels, samples]."""

        def __init__(self, spec: ConvNextEncoder) -> None:
            super().__init__()
            self.stage_count, width = len(spec.depths), spec.output_size
            for stage_number, stage_index in enumerate(reversed(range(self.stage_count))):
                channels = spec.num_filters * 2**stage_index
                convolution: nn.Module
                if stage_number:
                    stride = spec.downsampling_ratios[stage_index]
                    convolution = TransposedConvolution(width, channels, 2 * stride, stride)
                else:
                    convolution = CausalConvolution(width, channels, spec.kernel_size)
                add_stage(self, stage_number, convolution, spec, stage_index)
                width = channels
            self.conv_out = CausalConvolution(width, spec.channels, spec.kernel_size)

        def forward(self, x: Tensor) -> Tensor:
            audio_samples: Tensor = self.conv_out(run_stages(self, x, self.stage_count))
            return audio_samples

    class ConvNextEncoderReference(nn.Module):
        """Encodes audio samples. samples: [clips, samples, channels] → [clips, fewer positions, output_size]."""

        def __init__(self, spec: ConvNextEncoder) -> None:
            super().__init__()
            self.stage_count, width = len(spec.depths), spec.channels
            for stage_index in range(self.stage_count):
                stride, channels = (
                    spec.downsampling_ratios[stage_index - 1] if stage_index else 1,
                    spec.num_filters * 2**stage_index,
                )
                kernel_size = 2 * stride if stage_index else spec.kernel_size
                add_stage(self, stage_index, CausalConvolution(width, channels, kernel_size, stride), spec, stage_index)
                width = channels
            self.conv_out = CausalConvolution(width, spec.output_size, spec.kernel_size)
            if spec.rescaled:
                self.latent_bias, self.latent_scale = vector_module(torch.zeros(1)), vector_module(torch.ones(1))
            if spec.decoder:
                self.decoder = ConvNextDecoder(spec)
            if spec.diffusion_head is not None:
                self.diffusion_head = spec.diffusion_head.reference(ModelProperties(spec.output_size))

        def forward(self, samples: Tensor) -> Tensor:
            latents: Tensor = self.conv_out(run_stages(self, samples.transpose(1, 2), self.stage_count))
            if hasattr(self, "latent_scale"):
                latents = (latents + self.latent_bias.weight) * self.latent_scale.weight
            return latents.transpose(1, 2)

    return ConvNextEncoderReference
