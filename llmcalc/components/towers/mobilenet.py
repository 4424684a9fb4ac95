"""MobileNet V5: a vision encoder of convolutions and of attention over a grid of positions (Gemma 3n).

Its blocks are those of MobileNet V4 (Qin 2024, arXiv:2404.10518). Source: timm/models/mobilenetv5.py and
_efficientnet_blocks.py of huggingface/pytorch-image-models.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field

from ...algebra import Number, are_equal
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import MergedPatchRows, MultipliedRows
from ...workload.rows import FixedRows, Rows
from ..base import HeadDim, Heads, InnerWidth, Layers, ModelProperties, OddKernelSize, Part
from ..inputs import ImageInput
from ..networks.feed_forward import Activation, activate
from ..norm import Norm
from ..part_choice import PartChoice
from ..runtime import softmax_core_class, vector_module
from .base import EncoderTower
from .vision import Patches

if TYPE_CHECKING:
    from torch import Tensor, nn

Stride: TypeAlias = Literal[1, 2]

MAX_BLOCKS = 1000
"""The most blocks of a list of blocks."""


class EdgeResidual(Part):
    """An edge residual block: a convolution to intermediate_size, an activation, and a pointwise convolution.

    channels: the number of output channels.
    intermediate_size: the number of channels between the convolutions.
    kernel: the side of the first convolution's kernel, 3 by default.
    stride: the stride of the first convolution, 1 by default.
    """

    type: Literal["edge"] = "edge"
    channels: InnerWidth
    intermediate_size: InnerWidth
    kernel: OddKernelSize = 3
    stride: Stride = 1


class InvertedResidual(Part):
    """A universal inverted residual block of pointwise and depthwise convolutions with an inner intermediate_size.

    channels: the number of output channels.
    intermediate_size: the number of channels between the pointwise convolutions.
    start_kernel: the side of the kernel of a depthwise convolution before them, none by default.
    mid_kernel: the side of the kernel of a depthwise convolution between them, none by default.
    stride: the stride of the last depthwise convolution, 1 by default.
    """

    type: Literal["inverted"] = "inverted"
    channels: InnerWidth
    intermediate_size: InnerWidth
    start_kernel: OddKernelSize | None = None
    mid_kernel: OddKernelSize | None = None
    stride: Stride = 1

    def check_fields(self) -> None:
        if self.stride != 1 and self.start_kernel is None and self.mid_kernel is None:
            raise ValueError(
                f"stride: {self.stride} needs a depthwise convolution; expected start_kernel or mid_kernel"
            )


class GridAttention(Part):
    """Attention from every grid position to all positions, with one key-value head for all query heads (multi-query).

    num_attention_heads: the number of query heads.
    head_dim: the size of a head.
    kv_stride: the stride of the depthwise convolutions before the keys and before the values; there are none with 1,
        the default.
    kernel: the side of the kernels of those convolutions, 3 by default.
    """

    type: Literal["attention"] = "attention"
    num_attention_heads: Heads
    head_dim: HeadDim
    kv_stride: Stride = 1
    kernel: OddKernelSize = 3


if TYPE_CHECKING:
    GridBlock: TypeAlias = EdgeResidual | InvertedResidual | GridAttention
else:
    GridBlock = Annotated[
        Part,
        PartChoice(
            "inverted",
            {
                "edge": "towers.mobilenet:EdgeResidual",
                "inverted": "towers.mobilenet:InvertedResidual",
                "attention": "towers.mobilenet:GridAttention",
            },
        ),
    ]
    """A block of a stage of the encoder, chosen by `type`."""


class BlockGroup(Part):
    """A sequence of blocks that a stage runs once or repeatedly.

    blocks: the blocks.
    repeat: how often they follow one another, 1 by default.
    """

    blocks: tuple[GridBlock, ...] = Field(min_length=1, max_length=MAX_BLOCKS)
    repeat: Layers = 1


class GridStage(Part):
    """A stage of the encoder, whose first block halves the sides of the position grid.

    groups: the groups of blocks, in order.
    """

    groups: tuple[BlockGroup, ...] = Field(min_length=1, max_length=MAX_BLOCKS)


class MobileNet(EncoderTower):
    """A MobileNet: pixels → a stem with stride 2 → stages of blocks → the fusion of the last stages' outputs.

    The fusion brings the outputs of the last `fused_stages` stages to the largest of their grids, side by side, and has
    two pointwise convolutions; its output is averaged to output_side × output_side positions.

    hidden_size: the width of the output.
    num_channels: the number of color channels, 3 by default.
    stem_channels: the number of channels of the stem, a convolution of 3 × 3 with a bias.
    stages: the stages, in order.
    fused_stages: the number of last stages whose outputs are fused, 2 by default.
    intermediate_size: the number of channels between the convolutions of the fusion.
    output_side: the side of the grid of output positions.
    norm: the norm over the channels after each convolution and before attention.
    hidden_act: the activation, gelu_tanh by default.
    image: how the processor cuts an image; none by default, where that is not known.
    """

    formula_source: ClassVar[str] = "Qin et al. 2024 (MobileNetV4), §4 and §5"

    type: Literal["mobilenet"] = "mobilenet"
    hidden_size: InnerWidth
    num_channels: InnerWidth = 3
    stem_channels: InnerWidth
    stages: tuple[GridStage, ...] = Field(min_length=1, max_length=100)
    fused_stages: int = Field(default=2, ge=1, le=100, strict=True)
    intermediate_size: InnerWidth
    output_side: int = Field(ge=1, le=1000, strict=True)
    norm: Norm
    hidden_act: Activation = "gelu_tanh"
    image: ImageInput | None = None

    def check_fields(self) -> None:
        if self.fused_stages > len(self.stages):
            raise ValueError(
                f"fused_stages: {self.fused_stages}; expected at most {len(self.stages)}, as many as stages"
            )
        channels = self.stem_channels
        for stage in self.stages:
            for block_group in stage.groups:
                in_channels = channels
                for block in block_group.blocks:
                    channels = channels if block.type == "attention" else block.channels
                if block_group.repeat > 1 and (channels != in_channels or _total_stride(block_group.blocks) > 1):
                    raise ValueError(
                        f"repeat: {block_group.repeat} groups read {in_channels} channels and give {channels}; "
                        "expected blocks without a stride that give as many channels as they read"
                    )

    @property
    def patches(self) -> Patches:
        """The row axis of image patches: squares of pixels that become the positions of the last stage."""
        patch_side = 2 * prod(_total_stride(group.blocks) for stage in self.stages for group in stage.groups)
        return Patches(patch_size=patch_side).model_copy(update={"num_channels": self.num_channels})

    def input_value(self) -> Value:
        return self.patches.pixel_values()

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the encoder and returns output_side × output_side positions of an image."""
        pixel_rows = MultipliedRows("positions", source_rows=x.rows, rows_per_source=self.patches.patch_size**2)
        x = x.view(Axis("channels", self.num_channels), new_rows=pixel_rows)
        x = self._record_conv(
            recorder, "stem", x, self.stem_channels, kernel_size=3, stride=2, bias=True, is_activated=True
        )
        stage_outputs: list[Value] = []
        for stage_index, stage in enumerate(self.stages, 1):
            with recorder.scope(f"stage_{stage_index}"):
                for group_index, block_group in enumerate(stage.groups, 1):
                    x = self._record_group(recorder, f"group_{group_index}", x, block_group)
            stage_outputs.append(x)
        with recorder.scope("fusion"):
            return self._fuse_stages(recorder, stage_outputs[-self.fused_stages :])

    def _record_group(self, recorder: Flow, group_name: str, x: Value, block_group: BlockGroup) -> Value:
        """Records the operations of the blocks of a group, as often as the group repeats them."""

        def record_blocks(block_input: Value) -> Value:
            for block_index, block in enumerate(block_group.blocks, 1):
                with recorder.scope(
                    f"block_{block_index}", kind="attention" if block.type == "attention" else "convolution"
                ):
                    block_input = self._record_block(recorder, block_input, block)
            return block_input

        if are_equal(block_group.repeat, 1):
            with recorder.scope(group_name, kind="layer"):
                return record_blocks(x)
        repeat_indices = range(block_group.repeat) if isinstance(block_group.repeat, int) else None
        return recorder.layers(x, record_blocks, block_group.repeat, repeat_indices, group_name, kind="layer")

    def _record_block(self, recorder: Flow, x: Value, block: Any) -> Value:
        """Records the operations of a block, and adds the block's input if both have the same shape."""
        if block.type == "edge":
            block_output = self._record_conv(
                recorder, "conv_exp", x, block.intermediate_size, block.kernel, block.stride, is_activated=True
            )
            block_output = self._record_conv(recorder, "conv_proj", block_output, block.channels)
        elif block.type == "inverted":
            block_output = self._record_inverted_block(recorder, x, block)
        else:
            block_output = self._record_attention(recorder, recorder.part("norm", self.norm, x), block)
        if block.type != "edge":
            block_output = recorder.mul(block_output, recorder.vector("layer_scale", *block_output.axes))
        if block_output.rows == x.rows and are_equal(x.width, block_output.width):
            return recorder.add(x, block_output)
        return block_output

    def _record_inverted_block(self, recorder: Flow, x: Value, block: InvertedResidual) -> Value:
        """Records the operations of the convolutions of a universal inverted residual block."""
        if block.start_kernel is not None:
            stride = 1 if block.mid_kernel is not None else block.stride
            x = self._record_conv(recorder, "dw_start", x, None, block.start_kernel, stride)
        x = self._record_conv(recorder, "pw_exp", x, block.intermediate_size, is_activated=True)
        if block.mid_kernel is not None:
            x = self._record_conv(recorder, "dw_mid", x, None, block.mid_kernel, block.stride, is_activated=True)
        return self._record_conv(recorder, "pw_proj", x, block.channels)

    def _record_attention(self, recorder: Flow, x: Value, block: GridAttention) -> Value:
        """Records attention with a single key-value head, whose keys and values may come from a reduced grid."""
        head_dim, keys_and_values = Axis("head_dim", block.head_dim), list[Value]()
        query = recorder.conv("q_proj", x, Axis("heads", block.num_attention_heads), head_dim, kernel=1)
        for projection_letter in "kv":
            kv_input = x
            if block.kv_stride > 1:
                kv_input = self._record_conv(
                    recorder, f"{projection_letter}_down", x, None, block.kernel, block.kv_stride
                )
            keys_and_values.append(
                recorder.conv(f"{projection_letter}_proj", kv_input, Axis("heads", 1), head_dim, kernel=1)
            )
        attn_output = recorder.attention("core", query, *keys_and_values, causal=False, masked=False)
        return recorder.conv("o_proj", attn_output, *x.axes, kernel=1)

    def _fuse_stages(self, recorder: Flow, stage_outputs: list[Value]) -> Value:
        """Records the operations of the module that merges the outputs of the last stages into one grid."""
        largest_grid_rows = stage_outputs[0].rows
        resized_outputs = [
            output if output.rows == largest_grid_rows else recorder.resampled(output, largest_grid_rows)
            for output in stage_outputs
        ]
        joined_output = resized_outputs[0]
        if len(resized_outputs) > 1:
            joined_output = recorder.cat(
                *resized_outputs, axes=(JoinedShapes(tuple(stage_output.axes for stage_output in resized_outputs)),)
            )
        x = self._record_conv(recorder, "pw_exp", joined_output, self.intermediate_size, is_activated=True)
        x = self._record_conv(recorder, "pw_proj", x, self.hidden_size)
        x = recorder.resampled(x, FixedRows("positions", length=self.output_side**2))
        return recorder.part("norm", self.norm, x.view(Axis("hidden", self.hidden_size)))

    def _record_conv(
        self,
        recorder: Flow,
        conv_name: str,
        x: Value,
        channels: Number,
        kernel_size: Number = 1,
        stride: Stride = 1,
        bias: bool = False,
        is_activated: bool = False,
    ) -> Value:
        """Records the operations of a convolution with a square kernel, a norm and, if `is_activated`, an activation.

        channels: the number of output channels; None for a depthwise convolution.
        """
        axes = x.axes if channels is None else (Axis("channels", channels),)
        conv_groups = x.width if channels is None else 1
        x = recorder.conv(
            conv_name,
            x,
            *axes,
            kernel=kernel_size * kernel_size,
            groups=conv_groups,
            bias=bias,
            rows=_strided_rows(x.rows, stride),
        )
        x = recorder.part(f"{conv_name}_norm", self.norm, x)
        return recorder.act(x, self.hidden_act) if is_activated else x

    def describe(self, hidden_size: int) -> str:
        block_count = sum(group.repeat * len(group.blocks) for stage in self.stages for group in stage.groups)
        return f"MobileNet of {block_count} blocks → {self.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        rmsnorm = Norm(type="rmsnorm", eps=1e-6)
        edge_residual_blocks = (
            EdgeResidual(channels=6, intermediate_size=14, stride=2),
            EdgeResidual(channels=6, intermediate_size=10, kernel=5),
        )
        inverted_blocks = (
            InvertedResidual(channels=8, intermediate_size=20, start_kernel=3, mid_kernel=5, stride=2),
            InvertedResidual(channels=8, intermediate_size=12, start_kernel=5),
        )
        grid_attention = (
            GridAttention(num_attention_heads=3, head_dim=5, kv_stride=2),
            InvertedResidual(channels=8, intermediate_size=16),
        )
        last_stage = (
            InvertedResidual(channels=10, intermediate_size=18, start_kernel=5, stride=2),
            GridAttention(num_attention_heads=2, head_dim=4),
        )
        stages = (
            GridStage(groups=(BlockGroup(blocks=edge_residual_blocks),)),
            GridStage(groups=(BlockGroup(blocks=inverted_blocks), BlockGroup(blocks=grid_attention, repeat=3))),
            GridStage(groups=(BlockGroup(blocks=last_stage),)),
        )
        blocks = (*edge_residual_blocks[1:], *grid_attention[:1])
        groups = (BlockGroup(blocks=edge_residual_blocks), BlockGroup(blocks=blocks, repeat=2))
        return [
            cls(hidden_size=12, stem_channels=4, stages=stages, intermediate_size=22, output_side=2, norm=rmsnorm),
            cls(
                hidden_size=10,
                num_channels=2,
                stem_channels=6,
                stages=(GridStage(groups=groups),),
                fused_stages=1,
                intermediate_size=16,
                output_side=1,
                norm=Norm(type="layernorm"),
                hidden_act="relu",
            ),
        ]


def _total_stride(conv_blocks: tuple[Any, ...]) -> int:
    """Returns the product of the strides of a sequence of convolution blocks."""
    return prod(block.stride for block in conv_blocks if block.type != "attention")


def _strided_rows(rows: Rows, stride: Stride) -> Rows:
    """Returns the row axis of the grid positions that remain after a convolution with a stride."""
    if stride == 1:
        return rows
    if isinstance(rows, MultipliedRows) and isinstance(rows.rows_per_source, int) and rows.rows_per_source % 4 == 0:
        rows_per_source = rows.rows_per_source // 4
        return MultipliedRows(rows.name, source_rows=rows.source_rows, rows_per_source=rows_per_source)
    return MergedPatchRows(source_rows=rows, square_side=2)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class SamePaddingConv(nn.Conv2d):
        """A convolution with zero padding, so that stride s leaves ⌈side / s⌉ positions per side."""

        def forward(self, x: Tensor) -> Tensor:
            padding_widths: list[int] = []
            for grid_side, kernel_side, stride in zip(
                x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True
            ):
                total_padding = max((-(-grid_side // stride) - 1) * stride + kernel_side - grid_side, 0)
                padding_widths += [total_padding // 2, total_padding - total_padding // 2]
            return super().forward(nn.functional.pad(x, padding_widths))

    class GridModule(nn.Module):
        """The base class of modules with normalized convolutions. x: [images, channels, rows, columns]."""

        def __init__(self, norm: Norm, hidden_act: Activation) -> None:
            super().__init__()
            self.norm_spec, self.hidden_act = norm, hidden_act

        def add_norm(self, norm_name: str, channels: int) -> None:
            self.add_module(norm_name, self.norm_spec.reference(ModelProperties(channels)))

        def add_conv(
            self,
            conv_name: str,
            in_channels: int,
            channels: int,
            kernel_size: int = 1,
            stride: int = 1,
            **conv_fields: Any,
        ) -> int:
            self.add_module(
                conv_name,
                SamePaddingConv(
                    in_channels, channels, kernel_size, stride, bias=conv_fields.pop("bias", False), **conv_fields
                ),
            )
            self.add_norm(f"{conv_name}_norm", channels)
            return channels

        def normalize(self, norm_name: str, x: Tensor) -> Tensor:
            normed_x: Tensor = self.get_submodule(norm_name)(x.permute(0, 2, 3, 1))
            return normed_x.permute(0, 3, 1, 2)

        def convolve(self, conv_name: str, x: Tensor, is_activated: bool = False) -> Tensor:
            x = self.normalize(f"{conv_name}_norm", self.get_submodule(conv_name)(x))
            return activate(self.hidden_act, x) if is_activated else x

    class EdgeResidualReference(GridModule):
        """Runs an edge residual block: a convolution, an activation and a pointwise convolution."""

        def __init__(self, spec: EdgeResidual, in_channels: int, norm: Norm, hidden_act: Activation) -> None:
            super().__init__(norm, hidden_act)
            self.has_skip = spec.stride == 1 and spec.channels == in_channels
            self.add_conv("conv_exp", in_channels, spec.intermediate_size, spec.kernel, spec.stride)
            self.width = self.add_conv("conv_proj", spec.intermediate_size, spec.channels)

        def forward(self, x: Tensor) -> Tensor:
            conv_output = self.convolve("conv_proj", self.convolve("conv_exp", x, is_activated=True))
            return x + conv_output if self.has_skip else conv_output

    class InvertedResidualReference(GridModule):
        """Runs a universal inverted residual block of pointwise and depthwise convolutions."""

        def __init__(self, spec: InvertedResidual, in_channels: int, norm: Norm, hidden_act: Activation) -> None:
            super().__init__(norm, hidden_act)
            self.has_skip, inner_width = spec.stride == 1 and spec.channels == in_channels, spec.intermediate_size
            if spec.start_kernel is not None:
                stride = spec.stride if spec.mid_kernel is None else 1
                self.add_conv("dw_start", in_channels, in_channels, spec.start_kernel, stride, groups=in_channels)
            self.add_conv("pw_exp", in_channels, inner_width)
            if spec.mid_kernel is not None:
                self.add_conv("dw_mid", inner_width, inner_width, spec.mid_kernel, spec.stride, groups=inner_width)
            self.width = self.add_conv("pw_proj", inner_width, spec.channels)
            self.layer_scale = vector_module(torch.ones(spec.channels))

        def forward(self, x: Tensor) -> Tensor:
            features = self.convolve("dw_start", x) if hasattr(self, "dw_start") else x
            features = self.convolve("pw_exp", features, is_activated=True)
            features = self.convolve("dw_mid", features, is_activated=True) if hasattr(self, "dw_mid") else features
            features = self.convolve("pw_proj", features) * self.layer_scale.weight[:, None, None]
            return x + features if self.has_skip else features

    class GridAttentionReference(GridModule):
        """Attention over a grid of positions, with a single key-value head."""

        def __init__(self, spec: GridAttention, in_channels: int, norm: Norm, hidden_act: Activation) -> None:
            super().__init__(norm, hidden_act)
            self.heads = spec.num_attention_heads
            self.width = in_channels
            inner_width = spec.num_attention_heads * spec.head_dim
            self.add_norm("norm", in_channels)
            self.q_proj = SamePaddingConv(in_channels, inner_width, 1, bias=False)
            self.o_proj = SamePaddingConv(inner_width, in_channels, 1, bias=False)
            for projection_letter in "kv":
                if spec.kv_stride > 1:
                    self.add_conv(
                        f"{projection_letter}_down",
                        in_channels,
                        in_channels,
                        spec.kernel,
                        spec.kv_stride,
                        groups=in_channels,
                    )
                self.add_module(f"{projection_letter}_proj", SamePaddingConv(in_channels, spec.head_dim, 1, bias=False))
            self.core, self.layer_scale = softmax_core_class()(), vector_module(torch.ones(in_channels))

        def _project(self, projection_letter: str, x: Tensor) -> Tensor:
            """Computes the keys or the values: [images, 1, positions, head_dim]."""
            x = self.convolve(f"{projection_letter}_down", x) if hasattr(self, f"{projection_letter}_down") else x
            projected_x: Tensor = self.get_submodule(f"{projection_letter}_proj")(x)
            return projected_x.flatten(2).transpose(1, 2)[:, None]

        def forward(self, x: Tensor) -> Tensor:
            normed_x = self.normalize("norm", x)
            query = self.q_proj(normed_x).flatten(2).unflatten(1, (self.heads, -1)).transpose(2, 3)
            heads = self.core(query, self._project("k", normed_x), self._project("v", normed_x))
            joined_heads = heads.transpose(2, 3).flatten(1, 2).unflatten(2, x.shape[2:])
            return x + self.o_proj(joined_heads) * self.layer_scale.weight[:, None, None]

    class FusionReference(GridModule):
        """Fuses the outputs of the last stages, the largest grid first, at one resolution."""

        def __init__(self, spec: MobileNet, in_channels: int) -> None:
            super().__init__(spec.norm, spec.hidden_act)
            self.side, inner_width, hidden_size = spec.output_side, spec.intermediate_size, spec.hidden_size
            self.add_conv("pw_exp", in_channels, inner_width)
            self.add_conv("pw_proj", inner_width, hidden_size)
            self.add_norm("norm", hidden_size)

        def forward(self, stage_outputs: list[Tensor]) -> Tensor:
            grid_shape = stage_outputs[0].shape[2:]
            resized_outputs = [
                output if output.shape[2:] == grid_shape else nn.functional.interpolate(output, size=grid_shape)
                for output in stage_outputs
            ]
            x = self.convolve("pw_proj", self.convolve("pw_exp", torch.cat(resized_outputs, 1), is_activated=True))
            if grid_shape[0] % self.side or grid_shape[1] % self.side:
                x = nn.functional.interpolate(x, size=(self.side, self.side), mode="bilinear")
            else:
                kernel_size = (grid_shape[0] // self.side, grid_shape[1] // self.side)
                x = nn.functional.avg_pool2d(x, kernel_size, kernel_size)
            return self.normalize("norm", x).flatten(2).transpose(1, 2)

    block_classes = {
        "edge": EdgeResidualReference,
        "inverted": InvertedResidualReference,
        "attention": GridAttentionReference,
    }

    class MobileNetReference(GridModule):
        """Encodes pixels: [images, channels, frames, height, width] → [images, positions, hidden]."""

        def __init__(self, spec: MobileNet) -> None:
            super().__init__(spec.norm, spec.hidden_act)
            in_channels = self.add_conv("stem", spec.num_channels, spec.stem_channels, 3, 2, bias=True)
            self.fused_stages, self.stage_count, stage_widths = spec.fused_stages, len(spec.stages), list[int]()
            for stage_index, stage in enumerate(spec.stages, 1):
                group_modules = nn.Module()
                for group_index, block_group in enumerate(stage.groups, 1):
                    repeat_modules = list[nn.Module]()
                    for _ in range(block_group.repeat):
                        block_modules = nn.Sequential()
                        for block_index, block in enumerate(block_group.blocks, 1):
                            block_module = block_classes[block.type](block, in_channels, spec.norm, spec.hidden_act)
                            block_modules.add_module(f"block_{block_index}", block_module)
                            in_channels = block_module.width
                        repeat_modules.append(block_modules)
                    group_modules.add_module(
                        f"group_{group_index}",
                        repeat_modules[0] if block_group.repeat == 1 else nn.Sequential(*repeat_modules),
                    )
                self.add_module(f"stage_{stage_index}", group_modules)
                stage_widths.append(in_channels)
            self.fusion = FusionReference(spec, sum(stage_widths[-spec.fused_stages :]))

        def forward(self, pixels: Tensor) -> Tensor:
            x, stage_outputs = self.convolve("stem", pixels[:, :, 0], is_activated=True), list[torch.Tensor]()
            for stage_index in range(1, self.stage_count + 1):
                for block_group in self.get_submodule(f"stage_{stage_index}").children():
                    x = block_group(x)
                stage_outputs.append(x)
            return self.fusion(stage_outputs[-self.fused_stages :])

    return MobileNetReference
