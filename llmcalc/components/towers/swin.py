"""Swin, the vision encoder of Donut and Nougat: attention in windows, and merging of 2 × 2 positions between stages.

Liu 2021 (arXiv:2103.14030, §3). transformers: models/swin (`SwinModel`), models/donut (`DonutSwinModel`).
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...algebra import exact_div
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import PATCHES, EmbeddingRows, MultipliedRows
from ...workload.rows import Rows
from ..base import Flag, Heads, InnerWidth, Layers, ModelProperties, Part, check_divisor
from ..inputs import ImageInput
from ..mixers.grouped_query import record_queries_keys_values
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState, join_windows, softmax_core_class, split_into_windows
from .base import TowerPart
from .vision import Patches, PatchPositions

if TYPE_CHECKING:
    from torch import Tensor, nn


class SwinStage(Part):
    """A stage of Swin, with layers twice as wide as the previous stage's layers.

    num_hidden_layers: the number of layers.
    num_attention_heads: the number of heads.
    feed_forward: the network of a layer.
    """

    num_hidden_layers: Layers
    num_attention_heads: Heads
    feed_forward: FeedForward


class Swin(TowerPart):
    """Swin: patches → stages of layers with attention in windows, each on a grid of half the side.

    Every second layer shifts the windows by half a window, which changes no count. The sides of all grids are multiples
    of a window's; images of other sizes are not described.

    hidden_size: the width of the first stage.
    first_patches: the patches, which are the positions of the first stage.
    positions: learned positions of the patches, none by default.
    stages: the stages, in order.
    window_size: the side of a window, in positions.
    qkv_bias: whether the projections of queries, keys and values have a bias, true by default.
    norm: the norm of the patches, before each part of a layer, and of merged squares.
    final_norm: whether there is a norm after the last stage, false by default.
    image: how the processor resizes an image; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Liu et al. 2021 (Swin), §3"

    type: Literal["swin"] = "swin"
    hidden_size: InnerWidth
    first_patches: Patches
    positions: PatchPositions | None = None
    stages: tuple[SwinStage, ...] = Field(min_length=1, max_length=8)
    window_size: InnerWidth
    qkv_bias: Flag = True
    norm: Norm
    final_norm: Flag = False
    image: ImageInput | None = None

    def check_fields(self) -> None:
        for stage_index, stage in enumerate(self.stages):
            head_count, width = stage.num_attention_heads, self._width(stage_index)
            check_divisor(f"stages.{stage_index}.num_attention_heads", head_count, "the stage's width", width)

    def _width(self, stage_index: int) -> int:
        """Returns the width of the layers in the stage with this index."""
        return self.hidden_size * int(2**stage_index)

    @property
    def output_width(self) -> int:
        return self._width(len(self.stages) - 1)

    @property
    def patches(self) -> Patches:
        """The row axis of image patches: squares of pixels that become the positions of the last stage."""
        patch_side = self.first_patches.patch_size * int(2 ** (len(self.stages) - 1))
        return Patches(patch_size=1).model_copy(
            update={"patch_size": patch_side, "num_channels": self.first_patches.num_channels}
        )

    def input_value(self) -> Value:
        return self.patches.pixel_values()

    def _grid_rows(self, stage_index: int) -> Rows:
        """Returns the row axis of the grid positions in the stage with this index."""
        positions_per_output = 4 ** (len(self.stages) - 1 - stage_index)
        return MultipliedRows("positions", source_rows=PATCHES, rows_per_source=positions_per_output)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the encoder and returns the last stage's positions for the projector."""
        x = x.view(*self.first_patches.pixel_values().axes, new_rows=self._grid_rows(0))
        x = recorder.linear("patch_embedding", x, Axis("hidden", self.hidden_size), bias=self.first_patches.bias)
        x = recorder.part("embedding_norm", self.norm, x)
        if self.positions is not None:
            for position_vectors in self.positions.flow(recorder, x):
                x = recorder.add(x, position_vectors)
        for stage_index, stage in enumerate(self.stages):
            if stage_index:
                with recorder.scope(f"merger_{stage_index}"):
                    square_axes = Axis("frames", 1), Axis("rows", 2), Axis("columns", 2)
                    x = recorder.part("norm", self.norm, recorder.merge(x, self._grid_rows(stage_index), *square_axes))
                    x = recorder.linear("proj", x, Axis("hidden", self._width(stage_index)))
            layer_count = stage.num_hidden_layers
            layer_indices = range(layer_count) if isinstance(layer_count, int) else None
            record_layer = partial(self._record_layer, recorder, stage=stage)
            x = recorder.layers(x, record_layer, layer_count, layer_indices, f"layers_{stage_index}", kind="layer")
        x = recorder.part("final_norm", self.norm, x) if self.final_norm else x
        return x.view(*x.axes, new_rows=PATCHES)

    def _record_layer(self, recorder: Flow, x: Value, stage: SwinStage) -> Value:
        """Records the operations of a layer: attention in windows and a network, each after a norm."""
        residual_branch = recorder.part("self_attn_pre_norm", self.norm, x)
        with recorder.scope("self_attn", kind="attention"):
            residual_branch = self._record_attention(recorder, residual_branch, stage.num_attention_heads)
        x = recorder.add(x, residual_branch)
        return recorder.add(x, recorder.part("mlp", stage.feed_forward, recorder.part("mlp_pre_norm", self.norm, x)))

    def _record_attention(self, recorder: Flow, x: Value, head_count: int) -> Value:
        """Records attention in windows, with a learned score bias per head and offset in rows and columns."""
        window_positions = self.window_size * self.window_size
        head_axis = Axis("heads", head_count)
        q, k, v = record_queries_keys_values(
            recorder, x, head_axis, Axis("head_dim", exact_div(x.width, head_count)), bias=self.qkv_bias
        )
        distance_axis = Axis("distances", (2 * self.window_size - 1) * (2 * self.window_size - 1))
        pair_rows = EmbeddingRows(name="pairs", row_count=window_positions * window_positions)
        recorder.table("distance_bias", distance_axis, head_axis, output_rows=pair_rows, index_source="positions")
        recorder.buffer("distances", Axis("queries", window_positions), Axis("keys", window_positions), indices=True)
        attn_output = recorder.attention(
            "core", q, k, v, causal=False, masked=False, core=ops.ConformerAttentionCore, chunk=window_positions
        )
        return recorder.linear("o_proj", attn_output, *x.axes, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"Swin, {len(self.stages)} stages → {self.output_width}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        def stage(layer_count: int, head_count: int) -> SwinStage:
            network = FeedForward(intermediate_size=20, hidden_act="gelu", up_bias=True, down_bias=True)
            return SwinStage(num_hidden_layers=layer_count, num_attention_heads=head_count, feed_forward=network)

        patches, layernorm = Patches(patch_size=2, bias=True), Norm(type="layernorm")
        stages = (stage(1, 2), stage(2, 4))
        return [
            cls(hidden_size=8, first_patches=patches, stages=stages, window_size=2, norm=layernorm),
            cls(
                hidden_size=6,
                first_patches=patches,
                positions=PatchPositions(rows=400),
                stages=stages[:1],
                window_size=1,
                qkv_bias=False,
                norm=layernorm,
                final_norm=True,
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class SwinAttention(nn.Module):
        """Attention in windows. x: [images, rows, columns, hidden] → same shape."""

        def __init__(self, hidden_size: int, heads: int, window: int, qkv_bias: bool) -> None:
            super().__init__()
            self.heads, self.window = heads, window
            for projection_letter in "qkv":
                self.add_module(f"{projection_letter}_proj", nn.Linear(hidden_size, hidden_size, bias=qkv_bias))
            self.o_proj, self.core = nn.Linear(hidden_size, hidden_size), softmax_core_class()()
            self.distance_bias = nn.Embedding((2 * window - 1) ** 2, heads)
            self.distances = DistanceIndex(window)

        def forward(self, x: Tensor) -> Tensor:
            windows = split_into_windows(x, self.window)
            q, k, v = (
                self.get_submodule(f"{projection_letter}_proj")(windows).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for projection_letter in "qkv"
            )
            heads = self.core(q, k, v, bias=self.distance_bias(self.distances()).permute(2, 0, 1))
            return join_windows(self.o_proj(heads.transpose(1, 2).flatten(2)), self.window, *x.shape[1:3])

    class DistanceIndex(nn.Module):
        """Returns the index of the row and column offset of each pair of window positions: [positions, positions]."""

        def __init__(self, window: int) -> None:
            super().__init__()
            positions = torch.arange(window * window)
            row_indices, column_indices = positions // window, positions % window
            row_distances = row_indices[:, None] - row_indices + window - 1
            column_distances = column_indices[:, None] - column_indices + window - 1
            self.register_buffer("value", row_distances * (2 * window - 1) + column_distances)

        def forward(self) -> Tensor:
            return self.get_buffer("value")

    class SwinLayer(nn.Module):
        """Runs attention in windows and a network. x: [images, rows, columns, hidden] → same shape."""

        def __init__(self, spec: Swin, stage: SwinStage, width: int) -> None:
            super().__init__()
            model_properties = ModelProperties(width, is_causal=False)
            self.self_attn_pre_norm, self.mlp_pre_norm = (spec.norm.reference(model_properties) for _ in range(2))
            self.self_attn = SwinAttention(width, stage.num_attention_heads, spec.window_size, spec.qkv_bias)
            self.mlp = stage.feed_forward.reference(model_properties)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.self_attn(self.self_attn_pre_norm(x))
            return x + self.mlp(self.mlp_pre_norm(x), PassState())

    class SquareMerger(nn.Module):
        """Merges 2 × 2 positions. x: [images, rows, columns, hidden] → [images, rows / 2, columns / 2, 2 · hidden]."""

        def __init__(self, norm: Norm, width: int) -> None:
            super().__init__()
            self.norm = norm.reference(ModelProperties(4 * width))
            self.proj = nn.Linear(4 * width, 2 * width, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            squares = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)
            merged: Tensor = self.proj(self.norm(squares))
            return merged

    class SwinReference(nn.Module):
        """Encodes pixels: [images, channels, 1, height, width] → [images, positions, output_width]."""

        def __init__(self, spec: Swin) -> None:
            super().__init__()
            self.spec, width, patches = spec, spec.hidden_size, spec.first_patches
            self.patch_embedding = nn.Linear(patches.num_channels * patches.patch_size**2, width, bias=patches.bias)
            self.embedding_norm = spec.norm.reference(ModelProperties(width))
            if spec.positions is not None:
                self.position_embedding = nn.Embedding(spec.positions.axes * spec.positions.rows, width)
            for stage_index, stage in enumerate(spec.stages):
                if stage_index:
                    self.add_module(f"merger_{stage_index}", SquareMerger(spec.norm, width))
                    width *= 2
                layers = nn.Sequential(*(SwinLayer(spec, stage, width) for _ in range(stage.num_hidden_layers)))
                self.add_module(f"layers_{stage_index}", layers)
            if spec.final_norm:
                self.final_norm = spec.norm.reference(ModelProperties(width))

        def forward(self, pixels: Tensor) -> Tensor:
            patch_size = self.spec.first_patches.patch_size
            patches = pixels[:, :, 0].unflatten(-1, (-1, patch_size)).unflatten(-3, (-1, patch_size))
            x = self.embedding_norm(self.patch_embedding(patches.permute(0, 2, 4, 1, 3, 5).flatten(3)))
            if hasattr(self, "position_embedding"):
                x = x + self.position_embedding.weight[: x.shape[1] * x.shape[2]].unflatten(0, x.shape[1:3])
            for stage_index in range(len(self.spec.stages)):
                x = self.get_submodule(f"merger_{stage_index}")(x) if stage_index else x
                x = self.get_submodule(f"layers_{stage_index}")(x)
            x = self.final_norm(x) if self.spec.final_norm else x
            return x.flatten(1, 2)

    return SwinReference
