"""A vision transformer (Dosovitskiy 2020, arXiv:2010.11929): projected patches of an image, then an encoder.

CLIP (Radford 2021, arXiv:2103.00020) and SigLIP (Zhai 2023, arXiv:2303.15343) have learned positions, CLIP a class
embedding and SigLIP an optional pooling head. Pixtral (Agrawal 2024, arXiv:2410.07073) uses RoPE instead; Qwen's and
Kimi's use both. Gemma 4's has a position table per axis of the image. LFM3-VL's has convolutions over the grid of
patches in some layers.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import IMAGES, PATCHES, ExtendedRows
from ..base import Flag, InnerWidth, ModelProperties, Part, Positions, StackPosition
from ..inputs import ImageInput
from ..layers.block import Block
from ..mixers.attention import Attention
from ..mixers.short_conv import ShortConv
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..rope import Rope
from ..runtime import PassState, vector_module
from ..stack import Stack
from .base import EncoderTower
from .window_merger import WindowMerger

if TYPE_CHECKING:
    from torch import Tensor, nn


class Patches(Part):
    """The size of an image's patches, each of which is projected to one vector.

    patch_size: the side of a patch in pixels.
    num_channels: the number of color channels, 3 by default.
    temporal_patch_size: the number of frames per patch, 1 by default.
    bias: whether the projection has a bias, false by default.
    """

    patch_size: InnerWidth
    num_channels: InnerWidth = 3
    temporal_patch_size: InnerWidth = 1
    bias: Flag = False

    def pixel_values(self) -> Value:
        """Returns the encoder's input as a symbolic tensor of the compute graph: the pixels of every patch."""
        patch_axes = (Axis("height", self.patch_size), Axis("width", self.patch_size))
        axes = (Axis("channels", self.num_channels), Axis("frames", self.temporal_patch_size), *patch_axes)
        return Value(PATCHES, axes, is_constant=True)


class PatchPositions(Part):
    """Learned position vectors that are added to the patches.

    rows: the number of positions per table.
    axes: 1 for one table (default), 2 for one table per axis of the image.
    """

    rows: Positions
    axes: Literal[1, 2] = 1

    def flow(self, recorder: Flow, x: Value) -> tuple[Value, ...]:
        """Returns each patch's position embedding: a table row, or the sum of a row's and a column's embedding."""
        table_axis = Axis("positions", self.axes * self.rows)
        position_vectors, position_table = recorder.table("position_embedding", table_axis, *x.axes, output_rows=x.rows)
        return (position_vectors,) if self.axes == 1 else (position_vectors, recorder.look_up(position_table, x.rows))


class TilePositions(Part):
    """Learned vectors per tile of an image, added before and after the layers, and learned positions in a tile.

    Each is multiplied by the tanh of a gate before it is added (Llama 3.2 Vision: Grattafiori 2024, arXiv:2407.21783,
    §7.1). For every kind of image there is a vector for each of its tiles.

    max_tiles: the largest number of tiles of an image.
    image_kinds: the number of aspect ratios that have vectors, with that of no image.
    """

    max_tiles: InnerWidth
    image_kinds: InnerWidth

    def flow(self, recorder: Flow, x: Value, node_name: str, vectors_per_tile: int = 1) -> Value:
        """Records x plus the tiles' gated vectors, and returns the sum. vectors_per_tile: default 1."""
        with recorder.scope(node_name):
            table_axis = Axis("positions", self.max_tiles * self.image_kinds * vectors_per_tile)
            tile_vectors, _ = recorder.table("embedding", table_axis, *x.axes, output_rows=x.rows)
            gate = recorder.vector("gate", Axis("gate", 1))
            return recorder.add(x, recorder.mul(tile_vectors, recorder.act(gate, "tanh")))


class AttentionPooling(Part):
    """A pooling head: one learned query attends to all patches, followed by a feed-forward network (SigLIP).

    attention: the attention of the query.
    feed_forward: the network on its output.
    norm: the norm before the network.
    """

    attention: Attention
    feed_forward: FeedForward
    norm: Norm

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the pooling head and returns one vector per image. x: the patches."""
        pooling_query = recorder.vector("probe", *x.axes).view(*x.axes, new_rows=IMAGES)
        pooled_vector = recorder.part("attention", self.attention, pooling_query, memory=x)
        return recorder.add(
            pooled_vector, recorder.part("mlp", self.feed_forward, recorder.part("norm", self.norm, pooled_vector))
        )


class VisionTower(EncoderTower):
    """A vision encoder: patches → vectors of hidden_size → the layers of a bidirectional stack.

    hidden_size: the width.
    patches: the patches of an image.
    stack: the layers.
    positions: learned positions of the patches, none by default.
    class_embedding: whether a class embedding is added to the sequence, false by default.
    registers: the number of further learned vectors that are added to it (Darcet 2023, arXiv:2309.16588), 0 by
        default. With registers, positions are added to the patches alone.
    merger: what makes one patch of each square after the layers of the stack, none by default.
    tiles: learned vectors of the tiles of an image (Llama 3.2 Vision), none by default.
    upper_stack: the layers after the merger, or after the second vectors of the tiles; none by default.
    pooling: the pooling head, none by default.
    video_frames: the number of frames of a patch of a video, whose projection images do not use (C-RADIO); none by
        default.
    summary_vectors: the number of stored indices of vectors that summarise an image (C-RADIO), 0 by default.
    standardize: whether a mean and a scale are stored as a buffer (Gemma 4), false by default.
    clamps: the number of clipping bounds per layer, stored as buffers (Gemma 4); 0 by default.
    frees_first_input: whether the class frees the first layer's input after that layer, because it gives the output of
        each layer the input's name; false by default, where the input stays in memory until the last layer.
    image: how the processor cuts an image into patches; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Dosovitskiy et al. 2020, §3.1"

    type: Literal["vision"] = "vision"
    hidden_size: InnerWidth
    patches: Patches
    stack: Stack
    positions: PatchPositions | None = None
    class_embedding: Flag = False
    registers: int = Field(default=0, ge=0, le=1000, strict=True)
    merger: WindowMerger | None = None
    tiles: TilePositions | None = None
    upper_stack: Stack | None = None
    pooling: AttentionPooling | None = None
    video_frames: InnerWidth | None = None
    summary_vectors: int = Field(default=0, ge=0, le=1000, strict=True)
    standardize: Flag = False
    clamps: int = Field(default=0, ge=0, le=1000, strict=True)
    frees_first_input: Flag = False
    image: ImageInput | None = None

    def check_fields(self) -> None:
        stack_position = StackPosition(
            "stack",
            self.hidden_size,
            "encoder",
            tokens_form_grid=True,
            has_token_before_grid=self.prepended_vector_count > 0,
        )
        self.stack.check_stack_position(stack_position)
        if (self.merger is None and self.tiles is None) != (self.upper_stack is None):
            raise ValueError("upper_stack: the layers after a merger, or of tiles; expected both or neither")
        if self.tiles is not None and (self.merger is not None or self.registers or self.positions is None):
            raise ValueError("tiles: expected positions, and neither a merger nor registers")
        if self.merger is not None and (self.prepended_vector_count or self.pooling is not None):
            raise ValueError("merger: reads patches alone; expected no class_embedding, registers or pooling")
        if self.upper_stack is not None:
            self.upper_stack.check_stack_position(StackPosition("upper_stack", self.hidden_size, "encoder"))
        if self.pooling is not None:
            self.pooling.attention.check_stack_position(StackPosition("pooling.attention", self.hidden_size, "encoder"))
        stacks = [stack for stack in (self.stack, self.upper_stack) if stack is not None]
        if any(stack.position or stack.stem or stack.token_types for stack in stacks):
            raise ValueError(
                "stack: a vision encoder reads patches; expected no position, stem or token_types (positions are a "
                "field beside it)"
            )

    @property
    def prepended_vector_count(self) -> int:
        """The number of learned vectors (class and register tokens) that are prepended to the patches."""
        return int(self.class_embedding) + self.registers

    def input_value(self) -> Value:
        return self.patches.pixel_values()

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the encoder and returns the patches for the projector."""
        hidden_axis, patch_rows = Axis("hidden", self.hidden_size), x.rows
        if self.video_frames is not None:
            input_frames = x.view(*x.axes, Axis("video_frames", self.video_frames))
            recorder.linear("video_patch_embedding", input_frames, hidden_axis, bias=self.patches.bias, role="idle")
        if self.summary_vectors:
            recorder.buffer("summary_indices", Axis("indices", self.summary_vectors), indices=True)
        x = recorder.linear("patch_embedding", x, hidden_axis, bias=self.patches.bias)
        if self.registers:
            x = self._add_positions(recorder, x)
        if self.tiles is not None:
            x = self.tiles.flow(recorder, x, "pre_tile_embedding")
        if self.class_embedding:
            x = recorder.cat(
                x,
                recorder.vector("class_embedding", hidden_axis),
                axes=x.axes,
                rows=ExtendedRows(source_rows=patch_rows),
            )
        if self.registers:
            registers = recorder.vector(
                "registers", Axis("registers", self.registers), hidden_axis, row_count=self.registers
            )
            x = recorder.cat(
                x,
                registers,
                axes=x.axes,
                rows=ExtendedRows(source_rows=patch_rows, extra_rows=self.prepended_vector_count),
            )
        else:
            x = self._add_positions(recorder, x)
        if self.tiles is not None and self.positions is not None:
            x = self.tiles.flow(recorder, x, "tile_positions", self.positions.axes * self.positions.rows)
        with recorder.separate_stack(causal=False):
            x = self.stack.flow(recorder, x, keeps_first_input=not self.frees_first_input)
        if self.merger is not None:
            with recorder.scope("merger"):
                x = self.merger.flow(recorder, x)
        if self.tiles is not None:
            x = self.tiles.flow(recorder, x, "post_tile_embedding")
        if self.upper_stack is not None:
            with recorder.scope("upper"), recorder.separate_stack(causal=False):
                x = self.upper_stack.flow(recorder, x)
        if self.merger is not None:
            return x
        x = x.view(hidden_axis, new_rows=patch_rows)
        if self.clamps:
            recorder.buffer("clamps", Axis("layers", self.stack.num_hidden_layers), Axis("bounds", self.clamps))
        if self.standardize:
            channel_mean, channel_scale = recorder.split(
                recorder.buffer("standardize", Axis("statistics", 2), hidden_axis), x.axes, x.axes
            )
            x = recorder.mul(recorder.add(x, channel_mean), channel_scale)
        if self.pooling is not None:
            with recorder.scope("pooling"), recorder.separate_stack(causal=False):
                self.pooling.flow(recorder, x)
        return x

    def _add_positions(self, recorder: Flow, x: Value) -> Value:
        """Records and returns patches plus position vectors; returns x unchanged if the encoder has no positions."""
        if self.positions is None:
            return x
        position_vectors, *other_position_vectors = self.positions.flow(recorder, x)
        for position_vector in other_position_vectors:
            position_vectors = recorder.add(position_vectors, position_vector)
        return recorder.add(x, position_vectors)

    def describe(self, hidden_size: int) -> str:
        return f"ViT {self.stack.num_hidden_layers} × {self.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        from ..inputs.smart_resize import SmartResize

        layernorm, rmsnorm = Norm(type="layernorm"), Norm(type="rmsnorm")
        biased_attention = Attention(num_attention_heads=4, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
        ungated_network = FeedForward(intermediate_size=20, hidden_act="gelu_tanh", up_bias=True, down_bias=True)
        gated_network = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
        siglip_block = Block(
            attention=biased_attention, feed_forward=ungated_network, norm=layernorm, norm_placement="pre"
        )
        rotary_attention = Attention(
            num_attention_heads=2, num_key_value_heads=1, head_dim=8, position=Rope(rope_theta=100.0)
        )
        pixtral_block = Block(
            attention=rotary_attention, feed_forward=gated_network, norm=rmsnorm, norm_placement="sandwich"
        )
        pooling = AttentionPooling(attention=biased_attention, feed_forward=ungated_network, norm=layernorm)
        image_patches = Patches(patch_size=2, bias=True)
        video_patches = Patches(patch_size=2, num_channels=2, temporal_patch_size=2)
        scaled_block = siglip_block.model_copy(update={"residual_scale": "output"})
        convolution_block = Block(
            attention=ShortConv(grid=True), feed_forward=gated_network, norm=rmsnorm, norm_placement="pre"
        )
        variants = {"full": convolution_block.model_copy(update={"attention": biased_attention})}
        mixed_layers_stack = Stack(
            num_hidden_layers=3, block=convolution_block, variants=variants, pattern=("block", "full")
        )
        attention = rotary_attention.model_copy(update={"grid_window": 3})
        windowed_block = pixtral_block.model_copy(update={"attention": attention})
        windowed_stack = Stack(
            num_hidden_layers=3, block=windowed_block, variants={"full": pixtral_block}, pattern=("block", "full")
        )
        plain_stack = Stack(num_hidden_layers=2, block=siglip_block, final_norm=layernorm)
        rotary_stack = Stack(num_hidden_layers=3, block=pixtral_block, embedding_norm=rmsnorm)
        scaled_stack = Stack(num_hidden_layers=2, block=scaled_block)
        grid_window_attention = biased_attention.model_copy(update={"grid_window": 2})
        window_merger = WindowMerger(side=2, attention=grid_window_attention, intermediate_size=30, norm=layernorm)
        gated_stack = Stack(num_hidden_layers=2, block=siglip_block.model_copy(update={"residual_scale": "gate"}))
        tiles = TilePositions(max_tiles=2, image_kinds=4)
        image_tower = partial(cls, hidden_size=12, patches=image_patches)
        video_tower = partial(cls, hidden_size=10, patches=video_patches)
        tower_with_class_embedding = partial(image_tower, positions=PatchPositions(rows=17), class_embedding=True)
        return [
            image_tower(stack=scaled_stack, merger=window_merger, upper_stack=plain_stack),
            tower_with_class_embedding(stack=plain_stack, tiles=tiles, upper_stack=gated_stack),
            image_tower(stack=plain_stack, positions=PatchPositions(rows=16), pooling=pooling),
            tower_with_class_embedding(stack=plain_stack),
            video_tower(stack=rotary_stack, frees_first_input=True),
            image_tower(stack=mixed_layers_stack),
            video_tower(stack=windowed_stack, image=SmartResize(merge=1, min_pixels=1, max_pixels=99)),
            tower_with_class_embedding(stack=scaled_stack),
            image_tower(
                stack=scaled_stack,
                positions=PatchPositions(rows=16),
                class_embedding=True,
                registers=3,
                video_frames=2,
                summary_vectors=2,
            ),
            video_tower(stack=rotary_stack, positions=PatchPositions(rows=9, axes=2), standardize=True, clamps=28),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class NamedBuffers(nn.Module):
        def __init__(self, *named_buffers: tuple[str, Tensor]) -> None:
            super().__init__()
            for buffer_name, buffer in named_buffers:
                self.register_buffer(buffer_name, buffer)

    class TileEmbeddings(nn.Module):
        """Adds gated tile vectors, as for an image of one tile. x: [images, patches, hidden] → same shape."""

        def __init__(self, tiles: TilePositions, hidden_size: int, position_count: int = 1) -> None:
            super().__init__()
            self.positions = position_count
            self.embedding = nn.Embedding(tiles.max_tiles * tiles.image_kinds * position_count, hidden_size)
            self.gate = vector_module(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            tile_vectors: Tensor = self.embedding(torch.arange(x.shape[1], device=x.device) % self.positions)
            return x + tile_vectors * self.gate.weight.tanh()

    class PoolingAttention(nn.Module):
        """Pools patches by attention from one learned query. x: [images, patches, hidden] → [images, 1, hidden]."""

        def __init__(self, spec: AttentionPooling, hidden_size: int) -> None:
            super().__init__()
            model_properties = ModelProperties(hidden_size, is_causal=False, is_cross_attention=True)
            self.probe = vector_module(torch.randn(hidden_size) * 0.02)
            self.attention = spec.attention.reference(model_properties)
            self.norm, self.mlp = spec.norm.reference(model_properties), spec.feed_forward.reference(model_properties)

        def forward(self, x: Tensor) -> Tensor:
            pooled_vector = self.attention(self.probe.weight.expand(len(x), 1, -1), PassState(encoder_output=x))
            return pooled_vector + self.mlp(self.norm(pooled_vector), PassState())

    class VisionTowerReference(nn.Module):
        """Encodes pixels: [images, channels, frames, height, width] → [images, patches, hidden].

        The patches are row by row. With a pooling head the output is [images, 1, hidden].

        RoPE uses a patch's index in that order. The published classes rotate half of a head by its row and half by its
        column; only the angles differ, no parameter. A class embedding and registers come last and are not in
        the result.
        """

        def __init__(self, spec: VisionTower) -> None:
            super().__init__()
            self.spec, hidden_size, patches = spec, spec.hidden_size, spec.patches
            self.patch_embedding = nn.Linear(
                patches.num_channels * patches.temporal_patch_size * patches.patch_size**2,
                hidden_size,
                bias=patches.bias,
            )
            if spec.video_frames is not None:
                video_width = spec.video_frames * self.patch_embedding.in_features
                self.video_patch_embedding = nn.Linear(video_width, hidden_size, bias=patches.bias)
            if spec.summary_vectors:
                self.summary_indices = NamedBuffers(("indices", torch.zeros(spec.summary_vectors, dtype=torch.int64)))
            if spec.class_embedding:
                self.class_embedding = vector_module(torch.randn(hidden_size) * 0.02)
            if spec.registers:
                self.registers = vector_module(torch.randn(spec.registers, hidden_size) * 0.02)
            if spec.positions is not None:
                self.position_embedding = nn.Embedding(spec.positions.axes * spec.positions.rows, hidden_size)
            stack_module = spec.stack.reference(ModelProperties(hidden_size, is_causal=False))
            for child_name, child_module in stack_module.named_children():
                self.add_module(child_name, child_module)
            self._stack = (stack_module,)  # as a tuple: the stack's children are registered as this module's own
            if spec.merger is not None:
                self.merger = spec.merger.reference(ModelProperties(hidden_size))
            if spec.tiles is not None and spec.positions is not None:
                self.pre_tile_embedding, self.post_tile_embedding = (
                    TileEmbeddings(spec.tiles, hidden_size) for _ in range(2)
                )
                self.tile_positions = TileEmbeddings(spec.tiles, hidden_size, spec.positions.axes * spec.positions.rows)
            if spec.upper_stack is not None:
                self.upper = spec.upper_stack.reference(ModelProperties(hidden_size, is_causal=False))
            if spec.clamps:
                num_clamps = spec.clamps * spec.stack.num_hidden_layers
                self.clamps = NamedBuffers(("bounds", torch.full((num_clamps,), float("inf"))))
            if spec.standardize:
                self.standardize = NamedBuffers(("mean", torch.zeros(hidden_size)), ("scale", torch.ones(hidden_size)))
            if spec.pooling is not None:
                self.pooling = PoolingAttention(spec.pooling, hidden_size)

        def _add_position_embeddings(self, x: Tensor, patch_rows: int, patch_columns: int) -> Tensor:
            """Returns the patches plus position embeddings."""
            assert self.spec.positions is not None
            if self.spec.positions.axes == 1:
                position_vectors: Tensor = self.position_embedding(torch.arange(x.shape[1], device=x.device))
                return x + position_vectors
            patch_column_indices = torch.arange(patch_columns, device=x.device).repeat(patch_rows)
            patch_row_indices = torch.arange(patch_rows, device=x.device).repeat_interleave(patch_columns)
            position_sum: Tensor = self.position_embedding(patch_column_indices) + self.position_embedding(
                self.spec.positions.rows + patch_row_indices
            )
            return x + position_sum

        def forward(self, pixels: Tensor) -> Tensor:
            patch_size, temporal_size = self.spec.patches.patch_size, self.spec.patches.temporal_patch_size
            patch_rows, patch_columns = pixels.shape[-2] // patch_size, pixels.shape[-1] // patch_size
            patches = (
                pixels[:, :, :temporal_size]
                .unflatten(-1, (patch_columns, patch_size))
                .unflatten(-3, (patch_rows, patch_size))
            )
            x = self.patch_embedding(patches.permute(0, 3, 5, 1, 2, 4, 6).flatten(3).flatten(1, 2))
            adds_positions_first = hasattr(self, "position_embedding") and self.spec.registers > 0
            x = self._add_position_embeddings(x, patch_rows, patch_columns) if adds_positions_first else x
            x = self.pre_tile_embedding(x) if self.spec.tiles is not None else x
            if hasattr(self, "class_embedding"):
                x = torch.cat([x, self.class_embedding.weight.expand(len(x), 1, -1)], 1)
            if hasattr(self, "registers"):
                x = torch.cat([x, self.registers.weight.expand(len(x), -1, -1)], 1)
            elif hasattr(self, "position_embedding"):
                x = self._add_position_embeddings(x, patch_rows, patch_columns)
            x = self.tile_positions(x) if self.spec.tiles is not None else x
            x = self._stack[0].forward(x, PassState(patch_columns=patch_columns))
            if self.spec.tiles is not None:
                x = self.upper(self.post_tile_embedding(x), PassState(patch_columns=patch_columns))
            if self.spec.merger is not None:
                merged_patches: Tensor = self.upper(
                    self.merger(x, patch_columns), PassState(patch_columns=patch_columns // self.spec.merger.side)
                )
                return merged_patches
            prepended_vector_count = int(self.spec.class_embedding) + self.spec.registers
            x = x[:, : x.shape[1] - prepended_vector_count]
            if hasattr(self, "standardize"):
                x = (x - self.standardize.mean) * self.standardize.scale
            return self.pooling(x) if hasattr(self, "pooling") else x

    return VisionTowerReference
