"""SAM's vision encoder: attention in padded windows and to the whole image, and convolutions after the layers.

Kirillov 2023 (arXiv:2304.02643, §A); scores by distance, decomposed into rows and columns: Li 2021 (arXiv:2112.01526,
§4.1). transformers: models/sam (`SamVisionEncoder`), in models/got_ocr2, deepseek_vl_hybrid, deepseek_ocr2,
unlimited_ocr, pp_formulanet.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...algebra import Number, exact_div
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import EmbeddingRows, MergedPatchRows, PaddedSquareRows
from ..base import Flag, Heads, InnerWidth, Layers, ModelProperties
from ..inputs import ImageInput
from ..mixers.grouped_query import record_queries_keys_values
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState, vector_module
from .base import TowerPart, check_head_width
from .patch_reader import PatchReader
from .vision import Patches, PatchPositions

if TYPE_CHECKING:
    from torch import Tensor, nn

NECK_NORM = Norm.model_construct(type="layernorm", eps=1e-6)


class SamEncoder(TowerPart):
    """SAM's vision encoder: patches → layers in windows, some over the whole image → convolutions.

    hidden_size: the width of the layers.
    patches: the patches of an image.
    grid: the number of patches along each side of an image.
    num_hidden_layers: the number of layers.
    num_attention_heads: the number of heads.
    qkv_bias: whether the projections of queries, keys and values have a bias, true by default.
    window_size: the side of a window in patches; the patches are padded to whole windows.
    global_layers: the indices of the layers that attend to the whole image.
    relative_positions: whether queries are scored against a vector for each distance in rows and in columns, true by
        default.
    positions: learned positions of the patches, none by default.
    feed_forward: the network of a layer.
    norm: the norm before each part of a layer.
    output_channels: the number of channels of the two convolutions after the layers, each followed by a norm.
    halvings: the numbers of channels of further convolutions, each of which halves the sides of the grid.
    second_neck: whether two further convolutions with norms read the output of the first global layer, and a learned
        factor weighs what they add (DeepSeek-VL hybrid). Their parameters are counted, not their FLOPs, so such an
        encoder has no rule for images. False by default.
    reader: the layers that read its output (DeepSeek-OCR), none by default.
    image: how the processor resizes an image; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Kirillov et al. 2023, §A"

    type: Literal["sam"] = "sam"
    hidden_size: InnerWidth
    patches: Patches
    grid: InnerWidth
    num_hidden_layers: Layers
    num_attention_heads: Heads
    qkv_bias: Flag = True
    window_size: InnerWidth
    global_layers: tuple[int, ...] = Field(default=(), max_length=1000)
    relative_positions: Flag = True
    positions: PatchPositions | None = None
    feed_forward: FeedForward
    norm: Norm
    output_channels: InnerWidth
    halvings: tuple[InnerWidth, ...] = Field(default=(), max_length=8)
    second_neck: Flag = False
    reader: PatchReader | None = None
    image: ImageInput | None = None

    def check_fields(self) -> None:
        check_head_width(self.hidden_size, self.num_attention_heads)
        for layer_index in self.global_layers:
            if not 0 <= layer_index < self.num_hidden_layers:
                raise ValueError(
                    f"global_layers: there is no layer {layer_index}; expected indices below {self.num_hidden_layers}"
                )
        if self.image is not None and self.second_neck:
            raise ValueError("image: the FLOPs of a second neck are not counted; expected no rule for images")
        if self.reader is not None and self.reader.hidden_size != self._convolved_width:
            raise ValueError(f"reader.hidden_size: {self.reader.hidden_size}; expected {self._convolved_width}")

    @property
    def _convolved_width(self) -> int:
        return self.halvings[-1] if self.halvings else self.output_channels

    @property
    def output_width(self) -> int:
        return self._convolved_width if self.reader is None else self.reader.output_width

    def input_value(self) -> Value:
        return self.patches.pixel_values()

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the encoder and returns its output for the projector."""
        x = recorder.linear("patch_embedding", x, Axis("hidden", self.hidden_size), bias=self.patches.bias)
        if self.positions is not None:
            for position_vectors in self.positions.flow(recorder, x):
                x = recorder.add(x, position_vectors)
        patch_rows = x.rows
        for layer_label, window, layer_count, layer_indices in self._layer_kinds():
            record_layer = partial(self._record_layer, recorder, window=window)
            x = recorder.layers(x, record_layer, layer_count, layer_indices, kind="layer", label=layer_label)
        if self.second_neck:
            with recorder.scope("second_neck", role="idle"):
                self._record_neck(recorder, x)
                recorder.vector("factor", Axis("factor", 1))
        with recorder.scope("neck"):
            x = self._record_neck(recorder, x)
        for halving_index, channels in enumerate(self.halvings, 1):
            merged_rows = MergedPatchRows(source_rows=patch_rows, square_side=2**halving_index)
            x = recorder.conv(f"halving_{halving_index}", x, Axis("channels", channels), kernel=9, rows=merged_rows)
        if self.reader is None:
            return x
        with recorder.scope("reader"):
            return self.reader.flow(recorder, x)

    def _layer_kinds(self) -> Iterator[tuple[str, int | None, Number, list[int] | None]]:
        """Yields label, window, layer count and layer indices of layers with windowed and with global attention."""
        layer_count: Number = self.num_hidden_layers
        global_indices = sorted({*self.global_layers})
        windowed_layers = (
            [layer_index for layer_index in range(layer_count) if layer_index not in global_indices]
            if isinstance(layer_count, int)
            else None
        )
        if windowed_layers != []:
            yield "window", self.window_size, layer_count - len(global_indices), windowed_layers
        if global_indices:
            yield "global", None, len(global_indices), global_indices

    def _record_layer(self, recorder: Flow, x: Value, window: int | None) -> Value:
        """Records a layer's operations. window: the side of its attention windows; None for the whole image."""
        residual_branch = recorder.part("self_attn_pre_norm", self.norm, x)
        with recorder.scope("self_attn", kind="attention"):
            residual_branch = self._record_attention(recorder, residual_branch, window)
        x = recorder.add(x, residual_branch)
        return recorder.add(x, recorder.part("mlp", self.feed_forward, recorder.part("mlp_pre_norm", self.norm, x)))

    def _record_attention(self, recorder: Flow, x: Value, window: int | None) -> Value:
        window_side, patch_rows = self.grid if window is None else window, x.rows
        head_dim = Axis("head_dim", exact_div(self.hidden_size, self.num_attention_heads))
        head_axes = Axis("heads", self.num_attention_heads), head_dim
        x = x if window is None else x.view(*x.axes, new_rows=PaddedSquareRows(side=window))
        q, k, v = record_queries_keys_values(recorder, x, *head_axes, bias=self.qkv_bias)
        scored_distance_count = 0
        if self.relative_positions:
            scored_distance_count = 2 * window_side
            distance_rows = EmbeddingRows(name="distances", row_count=window_side * window_side)
            for table_name in ("row_distances", "column_distances"):
                recorder.table(
                    table_name,
                    Axis("distances", 2 * window_side - 1),
                    head_dim,
                    output_rows=distance_rows,
                    index_source="positions",
                )
        key_limits: dict[str, Any] = {
            "core": ops.ConformerAttentionCore,
            "chunk": window_side * window_side,
            "distance_count": scored_distance_count,
        }
        attn_output = recorder.attention("", q, k, v, causal=False, masked=False, **key_limits)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=True).view(*x.axes, new_rows=patch_rows)

    def _record_neck(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the neck after the layers: two convolutions, each with a norm."""
        channel_axis = Axis("channels", self.output_channels)
        x = recorder.part("norm_1", NECK_NORM, recorder.conv("conv_1", x, channel_axis, kernel=1))
        return recorder.part("norm_2", NECK_NORM, recorder.conv("conv_2", x, channel_axis, kernel=9))

    def describe(self, hidden_size: int) -> str:
        return f"SAM {self.num_hidden_layers} × {self.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="gelu", up_bias=True, down_bias=True)
        tower_fields: dict[str, Any] = {
            "num_attention_heads": 3,
            "window_size": 3,
            "feed_forward": network,
            "norm": Norm(type="layernorm"),
        }
        patches = Patches(patch_size=2, bias=True)
        readers = (
            cls(
                hidden_size=12,
                patches=patches,
                grid=8,
                num_hidden_layers=1,
                output_channels=6,
                halvings=(10, 12),
                reader=reader,
                **tower_fields,
            )
            for reader in PatchReader.examples()
        )
        return [
            *readers,
            cls(
                hidden_size=12,
                patches=patches,
                grid=8,
                num_hidden_layers=3,
                global_layers=(1,),
                positions=PatchPositions(rows=64),
                output_channels=6,
                halvings=(8, 10),
                **tower_fields,
            ),
            cls(
                hidden_size=12,
                patches=patches,
                grid=6,
                num_hidden_layers=2,
                qkv_bias=False,
                relative_positions=False,
                output_channels=6,
                second_neck=True,
                **tower_fields,
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional

    class SamAttention(nn.Module):
        """Attention in windows or to the whole image. x: [images, rows, columns, hidden] → same shape."""

        def __init__(self, spec: SamEncoder, window: int | None) -> None:
            super().__init__()
            self.heads, self.window, hidden_size = spec.num_attention_heads, window, spec.hidden_size
            for projection_letter in "qkv":
                self.add_module(f"{projection_letter}_proj", nn.Linear(hidden_size, hidden_size, bias=spec.qkv_bias))
            self.o_proj = nn.Linear(hidden_size, hidden_size)
            if spec.relative_positions:
                distance_count = 2 * (spec.grid if window is None else window) - 1
                self.row_distances, self.column_distances = (
                    nn.Embedding(distance_count, hidden_size // spec.num_attention_heads) for _ in range(2)
                )

        def forward(self, x: Tensor) -> Tensor:
            patch_rows, patch_columns, window_side = x.shape[1], x.shape[2], self.window
            if window_side is not None:
                x = functional.pad(x, (0, 0, 0, -patch_columns % window_side, 0, -patch_rows % window_side))
                padded_rows, padded_columns = x.shape[1:3]
                x = x.unflatten(2, (-1, window_side)).unflatten(1, (-1, window_side)).transpose(2, 3).flatten(0, 2)
            x = self._attend(x)
            if window_side is not None:
                x = x.unflatten(0, (-1, padded_rows // window_side, padded_columns // window_side)).transpose(2, 3)
                x = x.flatten(3, 4).flatten(1, 2)
            return x[:, :patch_rows, :patch_columns]

        def _attend(self, x: Tensor) -> Tensor:
            """Computes attention within each square of positions. x: [squares, rows, columns, hidden] → same shape."""
            q, k, v = (
                self.get_submodule(f"{projection_letter}_proj")(x)
                .unflatten(-1, (self.heads, -1))
                .permute(0, 3, 1, 2, 4)
                for projection_letter in "qkv"
            )
            scores = q.flatten(2, 3) @ k.flatten(2, 3).transpose(-1, -2) * q.shape[-1] ** -0.5
            if hasattr(self, "row_distances"):
                positions = torch.arange(x.shape[1], device=x.device)
                distance_index = positions[:, None] - positions + x.shape[1] - 1
                row_scores = torch.einsum("bhrcd,rkd->bhrck", q, self.row_distances(distance_index))
                column_scores = torch.einsum("bhrcd,ckd->bhrck", q, self.column_distances(distance_index))
                bias = row_scores[..., :, None] + column_scores[..., None, :]
                scores = scores + bias.flatten(-2).flatten(2, 3)
            heads = (scores.softmax(-1) @ v.flatten(2, 3)).unflatten(2, x.shape[1:3])
            attn_output: Tensor = self.o_proj(heads.permute(0, 2, 3, 1, 4).flatten(3))
            return attn_output

    class SamLayer(nn.Module):
        """Runs pre-norm attention and a network. x: [images, rows, columns, hidden] → same shape."""

        def __init__(self, spec: SamEncoder, window: int | None) -> None:
            super().__init__()
            model_properties = ModelProperties(spec.hidden_size, is_causal=False)
            self.self_attn_pre_norm, self.mlp_pre_norm = (spec.norm.reference(model_properties) for _ in range(2))
            self.self_attn, self.mlp = SamAttention(spec, window), spec.feed_forward.reference(model_properties)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.self_attn(self.self_attn_pre_norm(x))
            return x + self.mlp(self.mlp_pre_norm(x), PassState())

    class SamNeck(nn.Module):
        """Applies the neck: two convolutions with norms. x: [images, hidden, rows, columns] → [images, channels, …]."""

        def __init__(self, spec: SamEncoder) -> None:
            super().__init__()
            channels = spec.output_channels
            self.conv_1 = nn.Conv2d(spec.hidden_size, channels, 1, bias=False)
            self.conv_2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            norm = Norm(type="layernorm", eps=1e-6)
            self.norm_1, self.norm_2 = (norm.reference(ModelProperties(channels)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for conv, norm in ((self.conv_1, self.norm_1), (self.conv_2, self.norm_2)):
                x = norm(conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return x

    class SamSecondNeck(SamNeck):
        """A second neck, for the output of a layer with global attention, scaled by a learned factor."""

        def __init__(self, spec: SamEncoder) -> None:
            super().__init__(spec)
            self.factor = vector_module(torch.zeros(1))

    class SamEncoderReference(nn.Module):
        """Encodes pixels: [images, channels, 1, height, width] → [images, positions, output_width]."""

        def __init__(self, spec: SamEncoder) -> None:
            super().__init__()
            self.spec, hidden_size, patches = spec, spec.hidden_size, spec.patches
            patch_values = patches.num_channels * patches.temporal_patch_size * patches.patch_size**2
            self.patch_embedding = nn.Linear(patch_values, hidden_size, bias=patches.bias)
            if spec.positions is not None:
                self.position_embedding = nn.Embedding(spec.positions.axes * spec.positions.rows, hidden_size)
            window_sizes = (
                None if layer_index in spec.global_layers else spec.window_size
                for layer_index in range(spec.num_hidden_layers)
            )
            self.layers = nn.ModuleList(SamLayer(spec, window) for window in window_sizes)
            self.neck = SamNeck(spec)
            if spec.second_neck:
                self.second_neck = SamSecondNeck(spec)
            channels = spec.output_channels
            for layer_index, halved_channels in enumerate(spec.halvings, 1):
                halving_convolution = nn.Conv2d(channels, halved_channels, 3, 2, 1, bias=False)
                self.add_module(f"halving_{layer_index}", halving_convolution)
                channels = halved_channels
            if spec.reader is not None:
                self.reader = spec.reader.reference(ModelProperties(spec.reader.hidden_size))

        def forward(self, pixels: Tensor) -> Tensor:
            patch_size = self.spec.patches.patch_size
            patches = (
                pixels.unflatten(-1, (-1, patch_size))
                .unflatten(-3, (-1, patch_size))
                .permute(0, 3, 5, 1, 2, 4, 6)
                .flatten(3)
            )
            x = self.patch_embedding(patches)
            if hasattr(self, "position_embedding"):
                x = x + self.position_embedding.weight[: x.shape[1] * x.shape[2]].unflatten(0, x.shape[1:3])
            for layer in self.layers:
                x = layer(x)
            x = self.neck(x.permute(0, 3, 1, 2))
            for halving_index in range(1, len(self.spec.halvings) + 1):
                x = self.get_submodule(f"halving_{halving_index}")(x)
            x = x.flatten(2).transpose(1, 2)
            return x if self.spec.reader is None else self.reader(x)

    return SamEncoderReference
