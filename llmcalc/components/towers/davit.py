"""DaViT, Florence-2's vision encoder: attention in windows of positions, then attention between channels.

Ding 2022 (arXiv:2204.03645, §3); Xiao 2023 (arXiv:2311.06242, §4.1). transformers: models/florence2
(`Florence2VisionBackbone`).
"""

from __future__ import annotations

from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...algebra import exact_div
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import PATCHES, MultipliedRows
from ..base import Flag, Heads, InnerWidth, KernelSize, Layers, ModelProperties, OddKernelSize, Part, check_divisor
from ..inputs import ImageInput
from ..mixers.grouped_query import record_queries_keys_values
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState, join_windows, softmax_core_class, split_into_windows
from .base import TowerPart
from .vision import Patches

if TYPE_CHECKING:
    from torch import Tensor, nn

DEPTHWISE_KERNEL = 9
"""The taps of the depthwise convolutions, 3 × 3."""

MAX_STAGES = 16
"""The most stages of an encoder."""


class DaVitStage(Part):
    """A stage of DaViT: a strided convolution with a norm, then pairs of a window block and a channel block.

    hidden_size: the number of channels.
    kernel, stride: the side and the stride of the convolution.
    pre_norm: whether the norm is before the convolution, on its input channels; false by default.
    num_hidden_layers: the number of pairs of blocks.
    num_attention_heads: the number of heads of attention in windows.
    channel_groups: the number of groups of channels, each of which attends to its channels.
    feed_forward: the network of a block.
    """

    hidden_size: InnerWidth
    kernel: OddKernelSize
    stride: KernelSize
    pre_norm: Flag = False
    num_hidden_layers: Layers
    num_attention_heads: Heads
    channel_groups: Heads
    feed_forward: FeedForward

    def check_fields(self) -> None:
        for field_name, head_count in (
            ("num_attention_heads", self.num_attention_heads),
            ("channel_groups", self.channel_groups),
        ):
            check_divisor(field_name, head_count, "hidden_size", self.hidden_size)


class DaVit(TowerPart):
    """DaViT: pixels → stages of window blocks and channel blocks, each on a smaller grid than the stage before.

    A block adds a depthwise convolution, attention after a norm, another depthwise convolution, and a network after a
    norm. Attention of the first block is limited to windows; that of the second is between the channels of a group.

    num_channels: the number of color channels, 3 by default.
    grid: the side of the last stage's grid of positions.
    stages: the stages, in order.
    window_size: the side of a window, in positions; it divides the side of every stage's grid.
    qkv_bias: whether the projections of queries, keys and values have a bias, true by default.
    norm: the norm of the convolutions and before each part of a block.
    image: how the processor resizes an image; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Ding et al. 2022, §3"

    type: Literal["davit"] = "davit"
    num_channels: InnerWidth = 3
    grid: InnerWidth
    stages: tuple[DaVitStage, ...] = Field(min_length=1, max_length=MAX_STAGES)
    window_size: InnerWidth
    qkv_bias: Flag = True
    norm: Norm
    image: ImageInput | None = None

    def check_fields(self) -> None:
        for stage_index in range(len(self.stages)):
            grid_side = self.grid * self._stride_of_later_stages(stage_index)
            check_divisor("window_size", self.window_size, f"the side of the grid of stages.{stage_index}", grid_side)

    def _stride_of_later_stages(self, stage_index: int) -> int:
        """Returns the product of the strides of all stages after stage `stage_index`."""
        return prod(stage.stride for stage in self.stages[stage_index + 1 :])

    @property
    def output_width(self) -> int:
        return self.stages[-1].hidden_size

    @property
    def patches(self) -> Patches:
        """The row axis of image patches: squares of pixels that become the positions of the last stage."""
        patch_side = prod(stage.stride for stage in self.stages)
        return Patches(patch_size=1).model_copy(update={"patch_size": patch_side, "num_channels": self.num_channels})

    def input_value(self) -> Value:
        return self.patches.pixel_values()

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the encoder and returns the last stage's positions for the projector."""
        pixel_rows = MultipliedRows("pixels", source_rows=PATCHES, rows_per_source=self.patches.patch_size**2)
        x = x.view(Axis("channels", self.num_channels), new_rows=pixel_rows)
        for stage_index in range(len(self.stages)):
            x = self._record_stage(recorder, x, stage_index)
        return x.view(Axis("hidden", self.output_width), new_rows=PATCHES)

    def _record_stage(self, recorder: Flow, x: Value, stage_index: int) -> Value:
        """Records the operations of one stage: its strided convolution and norm, and its layers."""
        stage, later_stride = self.stages[stage_index], self._stride_of_later_stages(stage_index)
        grid_rows = MultipliedRows("positions", source_rows=PATCHES, rows_per_source=later_stride**2)
        hidden_axis, layer_count = Axis("hidden", stage.hidden_size), stage.num_hidden_layers
        with recorder.scope(f"embedding_{stage_index}"):
            x = recorder.part("norm", self.norm, x) if stage.pre_norm else x
            x = recorder.conv("conv", x, hidden_axis, kernel=stage.kernel**2, bias=True, rows=grid_rows)
            x = x if stage.pre_norm else recorder.part("norm", self.norm, x)
        layer_indices = range(layer_count) if isinstance(layer_count, int) else None
        record_layer = partial(self._record_layer, recorder, stage=stage)
        return recorder.layers(x, record_layer, layer_count, layer_indices, f"layers_{stage_index}", kind="layer")

    def _record_layer(self, recorder: Flow, x: Value, stage: DaVitStage) -> Value:
        """Records the operations of a window block and a channel block."""
        window_core = {"core": ops.ConformerAttentionCore, "chunk": self.window_size**2}
        for block_name, head_count, core_fields in (
            ("window_block", stage.num_attention_heads, window_core),
            ("channel_block", stage.channel_groups, {"core": ops.ChannelAttentionCore}),
        ):
            with recorder.scope(block_name):
                x = self._record_depthwise(recorder, "conv_1", x)
                attn_input = recorder.part("self_attn_pre_norm", self.norm, x)
                with recorder.scope("self_attn", kind="attention"):
                    x = recorder.add(x, self._record_attention(recorder, attn_input, head_count, core_fields))
                x = self._record_depthwise(recorder, "conv_2", x)
                mlp_input = recorder.part("mlp_pre_norm", self.norm, x)
                x = recorder.add(x, recorder.part("mlp", stage.feed_forward, mlp_input))
        return x

    def _record_depthwise(self, recorder: Flow, conv_name: str, x: Value) -> Value:
        """Records the computation of a 3 × 3 depthwise convolution of x, plus x."""
        conv_output = recorder.conv(conv_name, x, *x.axes, kernel=DEPTHWISE_KERNEL, groups=x.width, bias=True)
        return recorder.add(x, conv_output)

    def _record_attention(self, recorder: Flow, x: Value, head_count: int, core_fields: dict[str, Any]) -> Value:
        head_axes = Axis("heads", head_count), Axis("head_dim", exact_div(x.width, head_count))
        q, k, v = record_queries_keys_values(recorder, x, *head_axes, bias=self.qkv_bias)
        attn_output = recorder.attention("core", q, k, v, causal=False, masked=False, **core_fields)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"DaViT, {len(self.stages)} stages → {self.output_width}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        def stage(hidden_size: int, **stage_fields: Any) -> DaVitStage:
            network = FeedForward(intermediate_size=2 * hidden_size, hidden_act="gelu", up_bias=True, down_bias=True)
            return DaVitStage(hidden_size=hidden_size, feed_forward=network, **stage_fields)

        stages = (
            stage(8, kernel=7, stride=4, num_hidden_layers=1, num_attention_heads=2, channel_groups=4),
            stage(12, kernel=3, stride=2, pre_norm=True, num_hidden_layers=2, num_attention_heads=3, channel_groups=2),
        )
        layernorm = Norm(type="layernorm")
        return [
            cls(grid=2, stages=stages, window_size=2, norm=layernorm),
            cls(grid=2, num_channels=2, stages=stages[:1], window_size=1, qkv_bias=False, norm=layernorm),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class DaVitAttention(nn.Module):
        """Attention in windows of positions, or between channels. x: [images, rows, columns, hidden] → same shape.

        window: the side of a window; None for attention between the channels of a group.
        """

        def __init__(self, hidden_size: int, heads: int, window: int | None, qkv_bias: bool) -> None:
            super().__init__()
            self.heads, self.window = heads, window
            for projection_letter in "qkv":
                self.add_module(f"{projection_letter}_proj", nn.Linear(hidden_size, hidden_size, bias=qkv_bias))
            self.o_proj, self.core = nn.Linear(hidden_size, hidden_size), softmax_core_class()()

        def forward(self, x: Tensor) -> Tensor:
            positions = x.flatten(1, 2) if self.window is None else split_into_windows(x, self.window)
            q, k, v = (
                self.get_submodule(f"{projection_letter}_proj")(positions)
                .unflatten(-1, (self.heads, -1))
                .transpose(1, 2)
                for projection_letter in "qkv"
            )
            if self.window is None:
                heads = self.core(*(head_vectors.transpose(2, 3) for head_vectors in (q, k, v))).transpose(2, 3)
            else:
                heads = self.core(q, k, v)
            attn_output: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
            if self.window is None:
                return attn_output.unflatten(1, x.shape[1:3])
            return join_windows(attn_output, self.window, *x.shape[1:3])

    class DaVitBlock(nn.Module):
        """Runs an attention block over windows or channels. x: [images, rows, columns, hidden] → same shape."""

        def __init__(self, spec: DaVit, stage: DaVitStage, heads: int, window: int | None) -> None:
            super().__init__()
            width = stage.hidden_size
            model_properties = ModelProperties(width, is_causal=False)
            self.conv_1, self.conv_2 = (nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(2))
            self.self_attn_pre_norm, self.mlp_pre_norm = (spec.norm.reference(model_properties) for _ in range(2))
            self.self_attn = DaVitAttention(width, heads, window, spec.qkv_bias)
            self.mlp = stage.feed_forward.reference(model_properties)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.conv_1(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            x = x + self.self_attn(self.self_attn_pre_norm(x))
            x = x + self.conv_2(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            return x + self.mlp(self.mlp_pre_norm(x), PassState())

    class DaVitLayer(nn.Module):
        """Runs a window block and a channel block. x: [images, rows, columns, hidden] → same shape."""

        def __init__(self, spec: DaVit, stage: DaVitStage) -> None:
            super().__init__()
            self.window_block = DaVitBlock(spec, stage, stage.num_attention_heads, spec.window_size)
            self.channel_block = DaVitBlock(spec, stage, stage.channel_groups, None)

        def forward(self, x: Tensor) -> Tensor:
            layer_output: Tensor = self.channel_block(self.window_block(x))
            return layer_output

    class DaVitEmbedding(nn.Module):
        """Reduces a grid by a strided convolution. x: [images, rows, columns, channels] → [images, …, hidden]."""

        def __init__(self, spec: DaVit, stage: DaVitStage, in_channels: int) -> None:
            super().__init__()
            self.pre_norm = stage.pre_norm
            self.conv = nn.Conv2d(in_channels, stage.hidden_size, stage.kernel, stage.stride, padding=stage.kernel // 2)
            self.norm = spec.norm.reference(ModelProperties(in_channels if stage.pre_norm else stage.hidden_size))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x) if self.pre_norm else x
            x = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            return x if self.pre_norm else self.norm(x)

    class DaVitReference(nn.Module):
        """Encodes pixels: [images, channels, 1, height, width] → [images, positions, hidden]."""

        def __init__(self, spec: DaVit) -> None:
            super().__init__()
            in_channels = spec.num_channels
            for stage_index, stage in enumerate(spec.stages):
                self.add_module(f"embedding_{stage_index}", DaVitEmbedding(spec, stage, in_channels))
                layers = nn.Sequential(*(DaVitLayer(spec, stage) for _ in range(stage.num_hidden_layers)))
                self.add_module(f"layers_{stage_index}", layers)
                in_channels = stage.hidden_size

        def forward(self, pixels: Tensor) -> Tensor:
            x = pixels[:, :, 0].permute(0, 2, 3, 1)
            for stage_module in self.children():
                x = stage_module(x)
            return x.flatten(1, 2)

    return DaVitReference
