"""A VQ-VAE that turns an image into tokens of the vocabulary: a convolutional encoder, a codebook, and a decoder.

van den Oord 2017 (arXiv:1711.00937); with norms that read the codes, Zheng 2022 (arXiv:2209.09002). transformers:
models/emu3 (`Emu3VQVAE`), models/janus (`JanusVQVAE`: Wu 2024, arXiv:2410.13848, §3.1), models/chameleon
(`ChameleonVQVAE`: Chameleon Team 2024, arXiv:2405.09818, §2.1).
"""

from __future__ import annotations

from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ...algebra import Number, are_equal
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import PATCHES, MergedPatchRows, MultipliedRows
from ...workload.rows import Rows
from ..base import Flag, InnerWidth, ModelProperties, Part, Vocab
from ..batch_norm import batch_norm_class, record_batch_norm
from ..inputs import ImageInput
from ..mixers.attention import Attention
from ..norm import Norm
from ..runtime import PassState
from .base import TowerPart
from .projector import ProjectorLayer
from .vision import Patches

if TYPE_CHECKING:
    from torch import Tensor, nn


class ImageGeneration(Part):
    """The modules with which a text model generates image tokens: embeddings, their projection, and a head.

    Text alone and images that are read do not use them: their parameters are counted, no FLOPs.

    maps: the linear layers from an embedding to the text model's width.
    head_input_size: the width that the head reads.
    head: the linear layers of the head, whose last has an output for each row of the codebook.
    """

    maps: tuple[ProjectorLayer, ...] = Field(min_length=1, max_length=100)
    head_input_size: InnerWidth
    head: tuple[ProjectorLayer, ...] = Field(min_length=1, max_length=100)

    def flow(self, recorder: Flow, codes: Value, codebook_size: Vocab) -> None:
        """Records the operations of the embeddings, the projection and the head. codes: rows of the codebook."""
        embeddings, _ = recorder.table("embeddings", Axis("codes", codebook_size), *codes.axes, output_rows=codes.rows)
        hidden_states = Value(codes.rows, (Axis("hidden", self.head_input_size),), is_constant=True)
        for projection_name, linear_maps, x in (("map", self.maps, embeddings), ("head", self.head, hidden_states)):
            for layer_index, linear_map in enumerate(linear_maps, 1):
                x = linear_map.flow(recorder, x, f"{projection_name}_{layer_index}")


class ImageTokenizer(TowerPart):
    """An image tokenizer: pixels → levels of residual blocks → nearest codebook rows; and a decoder to pixels.

    Its encoder reads an image as 2 ** temporal_levels equal frames, which its last convolutions merge. The decoder runs
    for generated images alone: its parameters are counted, no FLOPs.

    in_channels, out_channels: the number of color channels that the encoder reads and that the decoder gives, 3 by
        default.
    base_channels: the number of channels after the encoder's first convolution.
    channel_multiplier: the number of channels of each level, in multiples of base_channels. Between levels the sides of
        the grid are halved.
    num_res_blocks: the number of residual blocks of each level of the encoder, and of the blocks over frames; a level
        of the decoder has one more.
    attn_resolutions: the indices of the levels with attention after each block.
    attention: that attention, and the one between the last level and the end.
    latent_channels: the number of channels that the encoder gives.
    embed_dim: the width of a row of the codebook.
    codebook_size: the number of rows of the codebook.
    over_frames: whether images are frames of videos, true by default: the convolutions around the codebook and residual
        blocks read several frames, and the norms of the decoder read the rows of the codebook.
    temporal_levels: how often the number of frames is halved, 0 by default.
    has_decoder: whether there is a decoder, true by default; false for the first convolution of one alone (Chameleon).
    norm: the norm of groups of channels.
    norm_groups: the number of those groups, 32 by default.
    generation: the weights with which the text model generates tokens of images, none by default.
    image: how the processor resizes an image; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "van den Oord et al. 2017, §3"

    type: Literal["image_tokenizer"] = "image_tokenizer"
    in_channels: InnerWidth = 3
    out_channels: InnerWidth = 3
    base_channels: InnerWidth
    channel_multiplier: tuple[int, ...] = Field(min_length=1, max_length=16)
    num_res_blocks: int = Field(ge=1, le=100, strict=True)
    attn_resolutions: tuple[int, ...] = ()
    attention: Attention
    latent_channels: InnerWidth
    embed_dim: InnerWidth
    codebook_size: Vocab
    over_frames: Flag = True
    temporal_levels: int = Field(default=0, ge=0, le=16, strict=True)
    has_decoder: Flag = True
    norm: Norm
    norm_groups: int = Field(default=32, ge=1, le=1000, strict=True)
    generation: ImageGeneration | None = None
    image: ImageInput | None = None

    def check_fields(self) -> None:
        for multiplier in self.channel_multiplier:
            if multiplier < 1 or self.base_channels * multiplier % self.norm_groups:
                raise ValueError(
                    f"channel_multiplier: {multiplier} × {self.base_channels} channels have no {self.norm_groups} "
                    f"equal groups; expected multiples of {self.norm_groups}"
                )
        if not self.over_frames and self.temporal_levels:
            raise ValueError("temporal_levels: halves frames of videos; expected 0, or over_frames = true")
        if self.over_frames and self.embed_dim != self.latent_channels:
            raise ValueError(
                f"embed_dim: {self.embed_dim}; expected {self.latent_channels}, which is latent_channels, because the "
                "decoder's blocks over frames read rows of the codebook too"
            )

    @property
    def output_width(self) -> int:
        return self.embed_dim

    @property
    def frames_per_image(self) -> int:
        return int(2**self.temporal_levels)

    @cached_property
    def patches(self) -> Patches:
        """The row axis of image patches: squares of pixels, each of which becomes one latent vector."""
        pixels_per_side = 2 ** (len(self.channel_multiplier) - 1)
        return Patches(patch_size=pixels_per_side).model_copy(update={"num_channels": self.in_channels})

    def input_value(self) -> Value:
        pixels_per_side = self.patches.patch_size
        pixel_axes = Axis("channels", self.in_channels), Axis("height", pixels_per_side), Axis("width", pixels_per_side)
        return Value(PATCHES, pixel_axes, is_constant=True)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the tokenizer's operations; returns latent vectors, which the codebook's rows are compared with."""
        with recorder.scope("encoder"), recorder.separate_stack(causal=False):
            x = self._record_encoder(recorder, x)
        x = self._convolve(recorder, "quant_conv", x, self.embed_dim, kernel=self._convolved_frame_count)
        recorder.linear("codebook", x, Axis("codes", self.codebook_size))
        with recorder.scope("decoder", role="idle"), recorder.separate_stack(causal=False):
            self._record_decoder(recorder, x)
        if self.generation is not None:
            with recorder.scope("generation", role="idle"):
                self.generation.flow(recorder, x, self.codebook_size)
        return x.view(Axis("hidden", self.embed_dim))

    @property
    def _convolved_frame_count(self) -> int:
        """The number of frames in the kernels of the convolutions before and after the codebook."""
        return 3 if self.over_frames else 1

    def _record_encoder(self, recorder: Flow, pixels: Value) -> Value:
        """Records the operations of the convolutional encoder, and returns the latents of the pixels."""
        patch_rows, level_count = pixels.rows, len(self.channel_multiplier)
        x = pixels.view(Axis("channels", self.in_channels), new_rows=_upsampled_positions(patch_rows, level_count - 1))
        x = self._convolve(recorder, "conv_in", x, self.base_channels)
        for level_index, multiplier in enumerate(self.channel_multiplier):
            with recorder.scope(f"level_{level_index}"):
                x = self._record_level(recorder, x, level_index, self.base_channels * multiplier, self.num_res_blocks)
                if level_index < level_count - 1:
                    position_rows = _upsampled_positions(patch_rows, level_count - 2 - level_index)
                    x = self._convolve(recorder, "downsample", x, x.width, conv_rows=position_rows)
        x = self._record_middle_blocks(recorder, x)
        x = recorder.act(self._normalize(recorder, "norm_out", x), "silu")
        x = self._convolve(recorder, "conv_out", x, self.latent_channels)
        for level_index in range(1, self.temporal_levels + 1):
            position_rows = MergedPatchRows(source_rows=patch_rows, frames=2**level_index)
            x = self._convolve(
                recorder, f"time_conv_{level_index}", x, self.latent_channels, kernel=4 * 9, conv_rows=position_rows
            )
            x = recorder.act(x, "silu")
        return self._record_frame_blocks(recorder, x) if self.over_frames else x

    def _record_decoder(self, recorder: Flow, code_vectors: Value) -> None:
        """Records the operations of the decoder. code_vectors: rows of the codebook."""
        codes = code_vectors if self.over_frames else None
        x = self._convolve(
            recorder, "post_quant_conv", code_vectors, self.latent_channels, kernel=self._convolved_frame_count
        )
        if not self.has_decoder:
            return
        x = self._record_frame_blocks(recorder, x) if self.over_frames else x
        for level_index in range(1, self.temporal_levels + 1):
            x = recorder.act(
                self._convolve(recorder, f"time_conv_{level_index}", x, self.latent_channels, kernel=3 * 9), "silu"
            )
        x = self._convolve(recorder, "conv_in", x, self.base_channels * self.channel_multiplier[-1])
        x = self._record_middle_blocks(recorder, x, codes)
        for level_index, multiplier in reversed(list(enumerate(self.channel_multiplier))):
            with recorder.scope(f"level_{level_index}"):
                x = self._record_level(
                    recorder, x, level_index, self.base_channels * multiplier, self.num_res_blocks + 1, codes
                )
                x = self._convolve(recorder, "upsample", x, x.width) if level_index else x
        x = recorder.act(self._normalize(recorder, "norm_out", x, codes), "silu")
        self._convolve(recorder, "conv_out", x, self.out_channels)

    def _record_level(
        self, recorder: Flow, x: Value, level_index: int, channels: Number, block_count: int, codes: Value | None = None
    ) -> Value:
        """Records a level's residual blocks and, where the spec has it, the level's attention."""
        for block_index in range(1, block_count + 1):
            x = self._record_block(recorder, f"block_{block_index}", x, channels, codes)
            if level_index in self.attn_resolutions:
                x = self._attend(recorder, f"attn_{block_index}", x, codes)
        return x

    def _record_middle_blocks(self, recorder: Flow, x: Value, codes: Value | None = None) -> Value:
        """Records the blocks between the levels and the codebook: a residual block, attention, a residual block."""
        x = self._record_block(recorder, "middle_1", x, x.width, codes)
        x = self._attend(recorder, "middle_attn", x, codes)
        return self._record_block(recorder, "middle_2", x, x.width, codes)

    def _attend(self, recorder: Flow, attention_name: str, x: Value, codes: Value | None) -> Value:
        normed_x = self._normalize(recorder, f"{attention_name}_norm", x, codes)
        return recorder.add(x, recorder.part(attention_name, self.attention, normed_x))

    def _record_block(
        self, recorder: Flow, block_name: str, x: Value, channels: Number, codes: Value | None = None
    ) -> Value:
        """Records the operations of a residual block of two convolutions."""
        with recorder.scope(block_name, kind="convolution"):
            features = recorder.act(self._normalize(recorder, "norm_1", x, codes), "silu")
            features = self._convolve(recorder, "conv_1", features, channels)
            features = recorder.act(self._normalize(recorder, "norm_2", features, codes), "silu")
            features = self._convolve(recorder, "conv_2", features, channels)
            x = x if are_equal(x.width, channels) else self._convolve(recorder, "shortcut", x, channels, kernel=1)
            return recorder.add(x, features)

    def _record_frame_blocks(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the residual blocks that convolve over frames, with batch norms."""
        for i in range(1, self.num_res_blocks + 1):
            with recorder.scope(f"frame_block_{i}", kind="convolution"):
                features = x
                for block_index in (1, 2):
                    features = record_batch_norm(recorder, f"norm_{block_index}", features, features.axes)
                    features = self._convolve(
                        recorder, f"conv_{block_index}", recorder.act(features, "silu"), x.width, kernel=3 * 9
                    )
                x = recorder.add(x, features)
        return x

    def _normalize(self, recorder: Flow, norm_name: str, x: Value, codes: Value | None = None) -> Value:
        """Records the operations of a group norm; in the decoder, projections of the codes scale and shift it."""
        if codes is None:
            return recorder.part(norm_name, self.norm, x)
        with recorder.scope(norm_name):
            normed_x, resized_codes = recorder.part("norm", self.norm, x), recorder.resampled(codes, x.rows)
            code_scale, code_shift = (
                recorder.conv(projection_name, resized_codes, *x.axes, kernel=1, bias=True)
                for projection_name in ("scale", "shift")
            )
            return recorder.add(recorder.mul(normed_x, code_scale), code_shift)

    def _convolve(
        self,
        recorder: Flow,
        conv_name: str,
        x: Value,
        channels: Number,
        kernel: Number = 9,
        conv_rows: Rows | None = None,
    ) -> Value:
        """Records the operations of a convolution with a bias. kernel: the input positions per output."""
        return recorder.conv(conv_name, x, Axis("channels", channels), kernel=kernel, bias=True, rows=conv_rows)

    def describe(self, hidden_size: int) -> str:
        return f"VQ-VAE, {self.codebook_size} codes of {self.embed_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        norm = Norm(type="layernorm", eps=1e-6)
        attention = Attention(num_attention_heads=1, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
        maps = (ProjectorLayer(size=6, bias=True, hidden_act="gelu"), ProjectorLayer(size=6, bias=True))
        head = (ProjectorLayer(size=6, bias=True, hidden_act="gelu"), ProjectorLayer(size=11, bias=True))
        generation = ImageGeneration(maps=maps, head_input_size=24, head=head)
        tokenizer_with_attention = partial(
            cls,
            base_channels=32,
            channel_multiplier=(1, 2),
            num_res_blocks=1,
            attn_resolutions=(1,),
            attention=attention,
            embed_dim=4,
            codebook_size=11,
            norm=norm,
        )
        return [
            tokenizer_with_attention(latent_channels=4, temporal_levels=2),
            cls(
                in_channels=1,
                out_channels=2,
                base_channels=64,
                channel_multiplier=(1, 1),
                num_res_blocks=2,
                attention=attention.model_copy(update={"num_attention_heads": 2}),
                latent_channels=3,
                embed_dim=3,
                codebook_size=7,
                norm=norm,
            ),
            tokenizer_with_attention(latent_channels=5, over_frames=False, generation=generation),
            tokenizer_with_attention(latent_channels=5, over_frames=False, has_decoder=False),
        ]


def _upsampled_positions(grid_rows: Rows, doubling_count: int) -> Rows:
    """Returns the row axis of a grid whose sides are doubled `doubling_count` times."""
    return MultipliedRows("positions", source_rows=grid_rows, rows_per_source=4**doubling_count)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional

    BatchNorm = batch_norm_class()

    class CodeConditionedNorm(nn.Module):
        """A group norm whose output is scaled and shifted by projections of the codes."""

        def __init__(self, spec: ImageTokenizer, channels: int) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(spec.norm_groups, channels, spec.norm.eps)
            self.scale, self.shift = (nn.Conv2d(spec.embed_dim, channels, 1) for _ in range(2))

        def forward(self, x: Tensor, codes: Tensor) -> Tensor:
            resized_codes = functional.interpolate(codes, size=x.shape[2:])
            return self.norm(x) * self.scale(resized_codes) + self.shift(resized_codes)

    class ResidualBlock(nn.Module):
        """A residual block of two convolutions. x: [images, channels, rows, columns]."""

        def __init__(self, spec: ImageTokenizer, in_channels: int, channels: int, reads_codes: bool) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = (build_norm(spec, width, reads_codes) for width in (in_channels, channels))
            self.conv_1 = nn.Conv2d(in_channels, channels, 3, padding=1)
            self.conv_2 = nn.Conv2d(channels, channels, 3, padding=1)
            self.shortcut = nn.Conv2d(in_channels, channels, 1) if in_channels != channels else None

        def forward(self, x: Tensor, *codes: Tensor) -> Tensor:
            conv_output = self.conv_1(functional.silu(self.norm_1(x, *codes)))
            conv_output = self.conv_2(functional.silu(self.norm_2(conv_output, *codes)))
            return conv_output + (x if self.shortcut is None else self.shortcut(x))

    def build_norm(spec: ImageTokenizer, channels: int, reads_codes: bool) -> nn.Module:
        if reads_codes:
            return CodeConditionedNorm(spec, channels)
        return nn.GroupNorm(spec.norm_groups, channels, spec.norm.eps)

    class FrameConv(nn.Conv3d):
        """A convolution over frames and positions, with zeros before the first frame and around the grid."""

        def __init__(self, in_channels: int, channels: int, kernel: tuple[int, int, int], stride: int = 1) -> None:
            super().__init__(in_channels, channels, kernel, (stride, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            side_padding, earlier_frames = self.kernel_size[1] // 2, 0 if self.kernel_size[0] == 1 else 2
            return super().forward(
                functional.pad(x, (side_padding, side_padding, side_padding, side_padding, earlier_frames, 0))
            )

    class FrameBlock(nn.Module):
        """A residual block over frames. x: [images, channels, frames, rows, columns]."""

        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = BatchNorm(channels), BatchNorm(channels)
            self.conv_1, self.conv_2 = (FrameConv(channels, channels, (3, 3, 3)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            conv_output = self.conv_1(functional.silu(self.norm_1(x)))
            return x + self.conv_2(functional.silu(self.norm_2(conv_output)))

    class ImageTokenizerHalf(nn.Module):
        """The base class of the tokenizer's encoder and decoder."""

        def __init__(self, spec: ImageTokenizer, reads_codes: bool) -> None:
            super().__init__()
            self.spec, self.reads_codes = spec, reads_codes

        def add_block(self, module: nn.Module, block_name: str, in_channels: int, channels: int) -> int:
            module.add_module(block_name, ResidualBlock(self.spec, in_channels, channels, self.reads_codes))
            return channels

        def add_attention(self, module: nn.Module, attention_name: str, in_channels: int) -> None:
            module.add_module(f"{attention_name}_norm", build_norm(self.spec, in_channels, self.reads_codes))
            module.add_module(
                attention_name, self.spec.attention.reference(ModelProperties(in_channels, is_causal=False))
            )

        def add_level(self, level_index: int, in_channels: int, block_count: int) -> int:
            level_module, channels = nn.Module(), self.spec.base_channels * self.spec.channel_multiplier[level_index]
            for block_index in range(1, block_count + 1):
                in_channels = self.add_block(level_module, f"block_{block_index}", in_channels, channels)
                if level_index in self.spec.attn_resolutions:
                    self.add_attention(level_module, f"attn_{block_index}", in_channels)
            self.add_module(f"level_{level_index}", level_module)
            return in_channels

        def add_middle_blocks(self, in_channels: int) -> None:
            self.add_block(self, "middle_1", in_channels, in_channels)
            self.add_attention(self, "middle_attn", in_channels)
            self.add_block(self, "middle_2", in_channels, in_channels)

        @property
        def frame_block_count(self) -> int:
            return self.spec.num_res_blocks if self.spec.over_frames else 0

        def add_frame_blocks(self) -> None:
            for block_index in range(1, self.frame_block_count + 1):
                self.add_module(f"frame_block_{block_index}", FrameBlock(self.spec.latent_channels))

        def attend(self, module: nn.Module, attention_name: str, x: Tensor, *codes: Tensor) -> Tensor:
            normed_x = module.get_submodule(f"{attention_name}_norm")(x, *codes).flatten(2).transpose(1, 2)
            attn_output: Tensor = module.get_submodule(attention_name)(normed_x, PassState())
            return x + attn_output.transpose(1, 2).unflatten(2, x.shape[2:])

        def run_level(self, level_index: int, x: Tensor, block_count: int, *codes: Tensor) -> Tensor:
            level_module = self.get_submodule(f"level_{level_index}")
            for block_index in range(1, block_count + 1):
                x = level_module.get_submodule(f"block_{block_index}")(x, *codes)
                if level_index in self.spec.attn_resolutions:
                    x = self.attend(level_module, f"attn_{block_index}", x, *codes)
            return x

        def run_middle_blocks(self, x: Tensor, *codes: Tensor) -> Tensor:
            x = self.get_submodule("middle_1")(x, *codes)
            return self.get_submodule("middle_2")(self.attend(self, "middle_attn", x, *codes), *codes)

        def run_frame_blocks(self, x: Tensor) -> Tensor:
            for block_index in range(1, self.frame_block_count + 1):
                x = self.get_submodule(f"frame_block_{block_index}")(x)
            return x

    class ImageEncoder(ImageTokenizerHalf):
        """Encodes frames: [images, channels, frames, height, width] → [images, latents, fewer frames, …]."""

        def __init__(self, spec: ImageTokenizer) -> None:
            super().__init__(spec, reads_codes=False)
            channels, latent_channels = spec.base_channels, spec.latent_channels
            self.conv_in = nn.Conv2d(spec.in_channels, channels, 3, padding=1)
            for level_index in range(len(spec.channel_multiplier)):
                channels = self.add_level(level_index, channels, spec.num_res_blocks)
                if level_index < len(spec.channel_multiplier) - 1:
                    self.get_submodule(f"level_{level_index}").add_module(
                        "downsample", nn.Conv2d(channels, channels, 3, 2)
                    )
            self.add_middle_blocks(channels)
            self.norm_out = nn.GroupNorm(spec.norm_groups, channels, spec.norm.eps)
            self.conv_out = nn.Conv2d(channels, latent_channels, 3, padding=1)
            for level_index in range(1, spec.temporal_levels + 1):
                self.add_module(f"time_conv_{level_index}", FrameConv(latent_channels, latent_channels, (4, 3, 3), 2))
            self.add_frame_blocks()

        def forward(self, frames: Tensor) -> Tensor:
            x = self.conv_in(frames.transpose(1, 2).flatten(0, 1))
            for level_index in range(len(self.spec.channel_multiplier)):
                x = self.run_level(level_index, x, self.spec.num_res_blocks)
                if level_index < len(self.spec.channel_multiplier) - 1:
                    x = self.get_submodule(f"level_{level_index}").get_submodule("downsample")(
                        functional.pad(x, (0, 1, 0, 1))
                    )
            x = self.conv_out(functional.silu(self.norm_out(self.run_middle_blocks(x))))
            x = x.unflatten(0, (-1, frames.shape[2])).transpose(1, 2)
            for level_index in range(1, self.spec.temporal_levels + 1):
                x = functional.silu(self.get_submodule(f"time_conv_{level_index}")(x))
            return self.run_frame_blocks(x)

    class ImageDecoder(ImageTokenizerHalf):
        """Decodes codes: [images, embed_dim, frames, rows, columns] → pixels of every frame."""

        def __init__(self, spec: ImageTokenizer) -> None:
            super().__init__(spec, reads_codes=spec.over_frames)
            latent_channels, channels = spec.latent_channels, spec.base_channels * spec.channel_multiplier[-1]
            self.post_quant_conv = FrameConv(spec.embed_dim, latent_channels, (3 if spec.over_frames else 1, 1, 1))
            if not spec.has_decoder:
                return
            self.add_frame_blocks()
            for level_index in range(1, spec.temporal_levels + 1):
                self.add_module(f"time_conv_{level_index}", FrameConv(latent_channels, latent_channels, (3, 3, 3)))
            self.conv_in = nn.Conv2d(latent_channels, channels, 3, padding=1)
            self.add_middle_blocks(channels)
            for level_index in reversed(range(len(spec.channel_multiplier))):
                channels = self.add_level(level_index, channels, spec.num_res_blocks + 1)
                if level_index:
                    self.get_submodule(f"level_{level_index}").add_module(
                        "upsample", nn.Conv2d(channels, channels, 3, padding=1)
                    )
            self.norm_out = build_norm(spec, channels, spec.over_frames)
            self.conv_out = nn.Conv2d(channels, spec.out_channels, 3, padding=1)

        def forward(self, codes: Tensor) -> Tensor:
            x = self.post_quant_conv(codes)
            x = self.run_frame_blocks(torch.cat([x, codes]) if self.spec.over_frames else x)
            for level_index in range(1, self.spec.temporal_levels + 1):
                x = functional.silu(self.get_submodule(f"time_conv_{level_index}")(x.repeat_interleave(2, 2)))
            frame_count = x.shape[2]
            x, *frame_codes = x.transpose(1, 2).flatten(0, 1).chunk(2 if self.spec.over_frames else 1)
            x = self.run_middle_blocks(self.conv_in(x), *frame_codes)
            for level_index in reversed(range(len(self.spec.channel_multiplier))):
                x = self.run_level(level_index, x, self.spec.num_res_blocks + 1, *frame_codes)
                if level_index:
                    x = self.get_submodule(f"level_{level_index}").get_submodule("upsample")(
                        functional.interpolate(x, scale_factor=2.0)
                    )
            x = self.conv_out(functional.silu(self.norm_out(x, *frame_codes)))
            return x.unflatten(0, (-1, frame_count)).transpose(1, 2)

    class GenerationModules(nn.Module):
        """Modules for image generation, which are stored but not run when an image is encoded."""

        def __init__(self, spec: ImageGeneration, codebook_size: int, embed_dim: int) -> None:
            super().__init__()
            self.embeddings = nn.Embedding(codebook_size, embed_dim)
            for projection_name, linear_maps, input_width in (
                ("map", spec.maps, embed_dim),
                ("head", spec.head, spec.head_input_size),
            ):
                for map_index, linear_map in enumerate(linear_maps, 1):
                    self.add_module(
                        f"{projection_name}_{map_index}", nn.Linear(input_width, linear_map.size, bias=linear_map.bias)
                    )
                    input_width = linear_map.size

    class ImageTokenizerReference(nn.Module):
        """Turns pixels [images, channels, frames, height, width] into vectors [images, positions, embed_dim]."""

        def __init__(self, spec: ImageTokenizer) -> None:
            super().__init__()
            self.frames = 2**spec.temporal_levels
            self.encoder, self.decoder = ImageEncoder(spec), ImageDecoder(spec)
            kernel_size = (3 if spec.over_frames else 1, 1, 1)
            self.quant_conv = FrameConv(spec.latent_channels, spec.embed_dim, kernel_size)
            if spec.generation is not None:
                self.generation = GenerationModules(spec.generation, spec.codebook_size, spec.embed_dim)
            self.codebook = nn.Linear(spec.embed_dim, spec.codebook_size, bias=False)

        def forward(self, pixels: Tensor) -> Tensor:
            frames = pixels[:, :, :1].expand(-1, -1, self.frames, -1, -1)
            x = self.quant_conv(self.encoder(frames)).flatten(2).transpose(1, 2)
            self.codes = (2 * self.codebook(x) - self.codebook.weight.square().sum(-1)).argmax(-1)
            return x

        def decode(self, codes: Tensor) -> Tensor:
            """Decodes codes to pixels. codes: [images, frames, rows, columns]."""
            return self.decoder(self.codebook.weight[codes].permute(0, 4, 1, 2, 3))

    return ImageTokenizerReference
