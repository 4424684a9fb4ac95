"""A patch merger inside a vision encoder: attention within squares of patches, then one vector per square.

transformers: models/minicpmv4_6 (`MiniCPMV4_6ViTWindowAttentionMerger`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import MergedPatchRows
from ..base import InnerWidth, ModelProperties, Part
from ..mixers.attention import Attention
from ..norm import Norm
from ..runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn


class WindowMerger(Part):
    """Attention within squares of patches, then each square's mean plus a two-layer network over the square's patches.

    side: the side of a square, in patches.
    attention: the attention, limited to the squares.
    intermediate_size: the output width of the first linear layer.
    norm: the norm before the attention, and before the linear layers.
    """

    side: InnerWidth
    attention: Attention
    intermediate_size: InnerWidth
    norm: Norm

    def check_fields(self) -> None:
        if self.attention.grid_window != self.side:
            raise ValueError(
                f"attention.grid_window: {self.attention.grid_window}; expected {self.side}, which is side"
            )

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the merger and returns one vector for each square of patches."""
        hidden_axes, merged_rows = x.axes, MergedPatchRows(source_rows=x.rows, square_side=self.side)
        with recorder.separate_stack(causal=False):
            attn_output = recorder.part("self_attn", self.attention, recorder.part("self_attn_pre_norm", self.norm, x))
        x = recorder.add(x, attn_output)
        square_axes = Axis("frames", 1), Axis("rows", self.side), Axis("columns", self.side)
        mean_of_square = recorder.merge(x, merged_rows, *square_axes, is_mean=True)
        merged_patches = recorder.part("merged_norm", self.norm, recorder.merge(x, merged_rows, *square_axes))
        merged_patches = recorder.act(
            recorder.linear("up_proj", merged_patches, Axis("ffn", self.intermediate_size), bias=True), "gelu_tanh"
        )
        return recorder.add(mean_of_square, recorder.linear("down_proj", merged_patches, *hidden_axes, bias=True))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn
    from torch.nn import functional

    class WindowMergerReference(nn.Module):
        """Merges squares of patches. x: [images, patches, hidden] → [images, patches / side², hidden]."""

        def __init__(self, spec: WindowMerger, hidden_size: int) -> None:
            super().__init__()
            self.side, merged_width = spec.side, hidden_size * spec.side**2
            self.self_attn_pre_norm = spec.norm.reference(ModelProperties(hidden_size))
            self.self_attn = spec.attention.reference(ModelProperties(hidden_size, is_causal=False))
            self.merged_norm = spec.norm.reference(ModelProperties(merged_width))
            self.up_proj = nn.Linear(merged_width, spec.intermediate_size)
            self.down_proj = nn.Linear(spec.intermediate_size, hidden_size)

        def forward(self, x: Tensor, patch_columns: int) -> Tensor:
            square_side = self.side
            x = x + self.self_attn(self.self_attn_pre_norm(x), PassState(patch_columns=patch_columns))
            patch_squares = (
                x.unflatten(1, (-1, square_side, patch_columns // square_side, square_side))
                .transpose(2, 3)
                .flatten(3, 4)
                .flatten(1, 2)
            )
            hidden_units = functional.gelu(self.up_proj(self.merged_norm(patch_squares.flatten(2))), approximate="tanh")
            merged_patches: Tensor = patch_squares.mean(2) + self.down_proj(hidden_units)
            return merged_patches

    return WindowMergerReference
