"""DeepSeek-OCR's second encoder: layers over the vectors of SAM's encoder and learned vectors.

DeepSeek-OCR (Wei 2025, arXiv:2510.18234, §3.2) has CLIP's layers, with a class vector; DeepSeek-OCR 2 those of a
language model, with queries. transformers: models/unlimited_ocr (`UnlimitedOcrVisionModel`), models/deepseek_ocr2
(`DeepseekOcr2VisionModel`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Self

from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import IMAGES, ExtendedRows, MultipliedRows
from ..base import InnerWidth, ModelProperties, Part, Positions, StackPosition
from ..layers.block import Block
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..rope import Rope
from ..runtime import PassState, vector_module
from ..stack import Stack

if TYPE_CHECKING:
    from torch import Tensor, nn


class PatchReader(Part):
    """Attention layers that run over an image's vectors and learned vectors together.

    hidden_size: the width of the vectors and of the layers.
    stack: the layers.
    positions: the number of learned positions, which are added to all vectors; none by default.
    queries: the number of learned queries, whose outputs are the result. By default there is one class vector instead,
        and the result is the output of every other vector beside the layers' input.
    other_queries: the number of learned queries for smaller images, which are counted and not run; none by default.
    unused_patch_values: the number of values of a patch in CLIP's projection of pixels, which DeepSeek-OCR's weights
        have and its code does not run; none by default.
    """

    hidden_size: InnerWidth
    stack: Stack
    positions: Positions | None = None
    queries: InnerWidth | None = None
    other_queries: InnerWidth | None = None
    unused_patch_values: InnerWidth | None = None

    def check_fields(self) -> None:
        self.stack.check_stack_position(StackPosition("reader.stack", self.hidden_size, "encoder"))
        if self.other_queries is not None and self.queries is None:
            raise ValueError("other_queries: are for other images than queries are; expected queries too")

    @property
    def output_width(self) -> int:
        """The width of the output vectors: `hidden_size`, doubled if the spec has no queries."""
        return self.hidden_size * (2 if self.queries is None else 1)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the layers. x: the vectors of an image."""
        hidden_axis, vector_count = Axis("hidden", self.hidden_size), 1 if self.queries is None else self.queries
        x = x.view(hidden_axis, new_rows=x.rows)
        vector_axes = (hidden_axis,) if self.queries is None else (Axis("queries", vector_count), hidden_axis)
        learned_vectors = recorder.vector(
            "class_embedding" if self.queries is None else "query", *vector_axes, row_count=vector_count
        )
        if self.other_queries is not None:
            recorder.vector("other_query", Axis("queries", self.other_queries), hidden_axis, role="idle")
        if self.unused_patch_values is not None:
            recorder.vector("patch_embedding", Axis("pixels", self.unused_patch_values), hidden_axis, role="idle")
        joined = recorder.cat(
            x, learned_vectors, axes=x.axes, rows=ExtendedRows(source_rows=x.rows, extra_rows=vector_count)
        )
        if self.positions is not None:
            position_vectors, _ = recorder.table(
                "position_embedding", Axis("positions", self.positions), hidden_axis, output_rows=joined.rows
            )
            joined = recorder.add(joined, position_vectors)
        with recorder.separate_stack(causal=False):
            joined = self.stack.flow(recorder, joined)
        if self.queries is not None:
            query_rows = MultipliedRows(name="queries", source_rows=IMAGES, rows_per_source=self.queries)
            return joined.view(hidden_axis, new_rows=query_rows)
        return recorder.cat(joined.view(hidden_axis, new_rows=x.rows), x, axes=(JoinedShapes((x.axes, x.axes)),))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        biased_attention = Attention(num_attention_heads=2, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
        network = FeedForward(intermediate_size=20, hidden_act="quick_gelu", up_bias=True, down_bias=True)
        layernorm, rmsnorm = Norm(type="layernorm"), Norm(type="rmsnorm")
        clip_layer = Block(attention=biased_attention, feed_forward=network, norm=layernorm, norm_placement="pre")
        rotary_attention = Attention(num_attention_heads=2, num_key_value_heads=1, position=Rope(rope_theta=100.0))
        gated_network = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
        query_layer = Block(attention=rotary_attention, feed_forward=gated_network, norm=rmsnorm, norm_placement="pre")
        return [
            cls(
                hidden_size=12,
                stack=Stack(num_hidden_layers=2, block=clip_layer, embedding_norm=layernorm),
                positions=40,
                unused_patch_values=27,
            ),
            cls(
                hidden_size=12,
                stack=Stack(num_hidden_layers=2, block=query_layer, final_norm=rmsnorm),
                queries=4,
                other_queries=3,
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class PatchReaderReference(nn.Module):
        """Runs the layers. [images, positions, hidden] → [images, queries, hidden] or [images, positions, 2 · hidden].

        Learned vectors come last; CLIP has its class vector first. Only their places differ, no parameter.
        """

        def __init__(self, spec: PatchReader) -> None:
            super().__init__()
            self.spec, hidden_size = spec, spec.hidden_size
            learned_vectors = vector_module(torch.randn(spec.queries or 1, hidden_size) * 0.02)
            self.add_module("class_embedding" if spec.queries is None else "query", learned_vectors)
            if spec.other_queries is not None:
                self.other_query = vector_module(torch.randn(spec.other_queries, hidden_size) * 0.02)
            if spec.unused_patch_values is not None:
                self.patch_embedding = vector_module(torch.randn(spec.unused_patch_values, hidden_size) * 0.02)
            if spec.positions is not None:
                self.position_embedding = nn.Embedding(spec.positions, hidden_size)
            stack_module = spec.stack.reference(ModelProperties(hidden_size, is_causal=False))
            for child_name, child_module in stack_module.named_children():
                self.add_module(child_name, child_module)
            self._stack = (stack_module,)  # as a tuple: the stack's children are registered as this module's own

        def forward(self, x: Tensor) -> Tensor:
            vector_name = "class_embedding" if self.spec.queries is None else "query"
            learned_vectors = self.get_parameter(f"{vector_name}.weight")
            joined = torch.cat([x, learned_vectors.expand(len(x), -1, -1)], 1)
            if self.spec.positions is not None:
                positions = torch.arange(joined.shape[1], device=x.device)
                joined = joined + self.get_submodule("position_embedding")(positions)
            joined = self._stack[0].forward(joined, PassState())
            if self.spec.queries is not None:
                return joined[:, x.shape[1] :]
            return torch.cat([joined[:, : x.shape[1]], x], -1)

    return PatchReaderReference
