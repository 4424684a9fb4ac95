"""Patch embedding without an encoder: a projection of pixels, optional positions, and norms before and after.

transformers: models/gemma4_unified (`Gemma4UnifiedVisionEmbedder`, except its last layer, which is a projector), fuyu,
layoutlmv3 (`LayoutLMv3Model.forward_image`, Huang et al. 2022, arXiv:2204.08387, §2.1).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import ExtendedRows
from ..base import Flag, InnerWidth, ModelProperties
from ..inputs import ImageInput
from ..norm import Norm
from ..runtime import vector_module
from .base import EncoderTower
from .vision import Patches, PatchPositions

if TYPE_CHECKING:
    from torch import Tensor, nn


class PatchEmbedder(EncoderTower):
    """A patch embedder: a norm on pixel values, a projection to hidden_size, a norm, positions, a norm.

    Fuyu has the projection alone; LayoutLMv3 has a class vector behind the patches and two norms after the positions.

    hidden_size: the width.
    patches: the patches of an image.
    positions: the position embeddings; with `axes = 2`, the sum of one per axis of the image; none by default.
    norm: each of the three norms, none by default.
    class_embedding: whether a class vector stands beside the patches before the positions, false by default.
    out_norms: further norms of the output, none by default.
    image: how the processor cuts an image into patches; none by default, where that is not known.
    """

    type: Literal["patches"] = "patches"
    hidden_size: InnerWidth
    patches: Patches
    positions: PatchPositions | None = None
    norm: Norm | None = None
    class_embedding: Flag = False
    out_norms: tuple[Norm, ...] = Field(default=(), max_length=4)
    image: ImageInput | None = None

    def input_value(self) -> Value:
        return self.patches.pixel_values()

    def flow(self, recorder: Flow, x: Value) -> Value:
        hidden_axis = Axis("hidden", self.hidden_size)
        x = self._normalize(recorder, "pixel_norm", x)
        x = recorder.linear("patch_embedding", x, hidden_axis, bias=self.patches.bias)
        x = self._normalize(recorder, "patch_norm", x)
        if self.class_embedding:
            class_vector = recorder.vector("class_embedding", hidden_axis)
            x = recorder.cat(x, class_vector, axes=x.axes, rows=ExtendedRows(source_rows=x.rows))
        for position_vectors in () if self.positions is None else self.positions.flow(recorder, x):
            x = recorder.add(x, position_vectors)
        x = self._normalize(recorder, "norm", x)
        for norm_index, norm in enumerate(self.out_norms):
            x = recorder.part(f"out_norm_{norm_index}", norm, x)
        return x

    def _normalize(self, recorder: Flow, norm_name: str, x: Value) -> Value:
        return x if self.norm is None else recorder.part(norm_name, self.norm, x)

    def describe(self, hidden_size: int) -> str:
        return f"patches of {self.patches.patch_size} × {self.patches.patch_size} → {self.hidden_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        layernorm, rmsnorm = Norm(type="layernorm"), Norm(type="rmsnorm")
        patches = Patches(patch_size=4, bias=True)
        return [
            cls(hidden_size=10, patches=patches, positions=PatchPositions(rows=9, axes=2), norm=layernorm),
            cls(
                hidden_size=12,
                patches=Patches(patch_size=2, num_channels=1, temporal_patch_size=2),
                positions=PatchPositions(rows=16),
                norm=rmsnorm,
            ),
            cls(hidden_size=8, patches=Patches(patch_size=3, bias=True)),
            cls(
                hidden_size=8,
                patches=patches,
                positions=PatchPositions(rows=17),
                class_embedding=True,
                out_norms=(layernorm, layernorm),
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class PatchEmbedderReference(nn.Module):
        """Embeds patches. pixels: [images, channels, frames, height, width] → [images, patches, hidden]."""

        def __init__(self, spec: PatchEmbedder) -> None:
            super().__init__()
            self.spec, hidden_size, patches = spec, spec.hidden_size, spec.patches
            patch_width = patches.num_channels * patches.temporal_patch_size * patches.patch_size**2
            self.patch_embedding = nn.Linear(patch_width, hidden_size, bias=patches.bias)
            self.pixel_norm, self.patch_norm, self.norm = (
                nn.Identity() if spec.norm is None else spec.norm.reference(ModelProperties(width))
                for width in (patch_width, hidden_size, hidden_size)
            )
            if spec.class_embedding:
                self.class_embedding = vector_module(torch.randn(hidden_size) * 0.02)
            for norm_index, norm in enumerate(spec.out_norms):
                self.add_module(f"out_norm_{norm_index}", norm.reference(ModelProperties(hidden_size)))
            if spec.positions is not None:
                self.position_embedding = nn.Embedding(spec.positions.axes * spec.positions.rows, hidden_size)

        def forward(self, pixels: Tensor) -> Tensor:
            patch_size, temporal_size = self.spec.patches.patch_size, self.spec.patches.temporal_patch_size
            patch_rows, patch_columns = pixels.shape[-2] // patch_size, pixels.shape[-1] // patch_size
            patches = (
                pixels[:, :, :temporal_size]
                .unflatten(-1, (patch_columns, patch_size))
                .unflatten(-3, (patch_rows, patch_size))
            )
            x = self.patch_norm(
                self.patch_embedding(self.pixel_norm(patches.permute(0, 3, 5, 1, 2, 4, 6).flatten(3).flatten(1, 2)))
            )
            if self.spec.class_embedding:
                x = torch.cat([x, self.class_embedding.weight.expand(len(x), 1, -1)], 1)
            x = self.norm(self._add_positions(x, patch_columns))
            for norm_index in range(len(self.spec.out_norms)):
                x = self.get_submodule(f"out_norm_{norm_index}")(x)
            return x

        def _add_positions(self, x: Tensor, patch_columns: int) -> Tensor:
            """Adds the optional learned positions. x: [images, patches, hidden] → same shape."""
            positions = torch.arange(x.shape[1], device=x.device)
            if self.spec.positions is None:
                return x
            if self.spec.positions.axes == 1:
                position_vectors: Tensor = self.position_embedding(positions)
            else:
                position_vectors = self.position_embedding(positions % patch_columns) + self.position_embedding(
                    self.spec.positions.rows + positions // patch_columns
                )
            return x + position_vectors

    return PatchEmbedderReference
