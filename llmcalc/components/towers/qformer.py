"""A Q-Former: BERT layers over learned queries, some with cross-attention to an image's patches or audio windows.

Li 2023 (arXiv:2301.12597, §3.1). transformers: models/blip_2 (`Blip2QFormerModel`), in models/granite_speech.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from ... import ops
from ...algebra import exact_div
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import IMAGES, EmbeddingRows, MultipliedRows, PaddedRows, WindowRows
from ...workload.rows import Rows
from ..base import Heads, InnerWidth, Layers, ModelProperties, Positions, Vocab
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState, vector_module
from .base import LearnedQueries, check_head_width, layer_kinds_after_first

if TYPE_CHECKING:
    from torch import Tensor, nn


class QFormer(LearnedQueries):
    """Layers of learned queries: self-attention, cross-attention to the patches in some layers, and a network.

    num_hidden_layers: the number of layers.
    num_attention_heads: the number of heads.
    input_size: the width of the patches.
    reading_layers: the indices of the layers in which the queries read the patches; the first layer is one of them.
    feed_forward: the network of a layer.
    norm: the norm of the queries, and after each part of a layer.
    window: the number of positions of audio that a copy of the queries reads, the last of them padded; the copies are
        made after the first layer's attention among the queries. By default the queries read all patches of an image.
    vocab_size, text_positions: the tokens and positions of an instruction that the queries read (InstructBLIP), which
        has a second network in each layer; none by default. Their parameters are counted, not their FLOPs.
    """

    type: Literal["qformer"] = "qformer"
    num_hidden_layers: Layers
    num_attention_heads: Heads
    input_size: InnerWidth
    reading_layers: tuple[int, ...] = Field(min_length=1, max_length=1000)
    feed_forward: FeedForward
    norm: Norm
    window: Positions | None = None
    vocab_size: Vocab | None = None
    text_positions: Positions | None = None

    def check_fields(self) -> None:
        check_head_width(self.hidden_size, self.num_attention_heads)
        if 0 not in self.reading_layers or not all(
            0 <= layer_index < self.num_hidden_layers for layer_index in self.reading_layers
        ):
            raise ValueError(
                f"reading_layers: {list(self.reading_layers)}; expected 0, and others below num_hidden_layers "
                f"({self.num_hidden_layers})"
            )
        if self.window is not None and self.window < self.queries:
            raise ValueError(f"window: {self.window} positions; expected at least the {self.queries} queries")
        if (self.vocab_size is None) != (self.text_positions is None):
            raise ValueError("text_positions: those of the tokens in vocab_size; expected both or neither")

    def check_input(self, input_size: int) -> None:
        if self.input_size != input_size:
            raise ValueError(f"resampler.input_size: {self.input_size}; expected {input_size}, the projector's")

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the layers; returns each image's or window's final query vectors. x: patches."""
        hidden_axis, window = Axis("hidden", self.hidden_size), self.window
        window_rows = IMAGES if window is None else WindowRows(source_rows=x.rows, window_rows=window)
        patches = x if window is None else x.view(*x.axes, new_rows=PaddedRows(source_rows=x.rows, block_rows=window))
        queries = recorder.vector("query", Axis("queries", self.queries), hidden_axis, row_count=self.queries)
        query_rows = MultipliedRows(name="queries", source_rows=window_rows, rows_per_source=self.queries)
        single_rows = query_rows if window is None else EmbeddingRows(name="queries", row_count=self.queries)
        for table_name, table_rows in (("token_embedding", self.vocab_size), ("text_position", self.text_positions)):
            if table_rows is not None:
                recorder.vector(table_name, Axis("rows", table_rows), hidden_axis, role="idle")
        queries = recorder.part("query_norm", self.norm, queries.view(hidden_axis, new_rows=single_rows))
        with recorder.scope("layers", repeat=1, indices=[0], kind="layer", label="first"):
            queries = self._record_layer(recorder, queries, patches, query_rows)
        for reads_patches, indices in reversed([*layer_kinds_after_first(self.num_hidden_layers, self.reading_layers)]):
            layer_label = "reading" if reads_patches else ""
            record_layer = partial(
                self._record_layer, recorder, patches=patches if reads_patches else None, window_rows=query_rows
            )
            queries = recorder.layers(queries, record_layer, len(indices), indices, kind="layer", label=layer_label)
        return queries

    def _record_layer(self, recorder: Flow, x: Value, patches: Value | None, window_rows: Rows) -> Value:
        """Records a layer's operations. patches: cross-attention's input, if any. window_rows: all windows' queries."""
        for attention_name, memory, query_rows in (("self_attn", x, x.rows), ("cross_attn", patches, window_rows)):
            if memory is not None:
                with recorder.scope(attention_name, kind="attention"):
                    sublayer_output = self._record_attention(recorder, x, memory, query_rows)
                x = x.view(*x.axes, new_rows=query_rows)
                x = recorder.part(f"{attention_name}_post_norm", self.norm, recorder.add(x, sublayer_output))
        if self.vocab_size is not None:
            with recorder.scope("text", role="idle"):
                text_output = recorder.part("mlp", self.feed_forward, x)
                recorder.part("mlp_post_norm", self.norm, recorder.add(x, text_output))
        sublayer_output = recorder.part("mlp", self.feed_forward, x)
        return recorder.part("mlp_post_norm", self.norm, recorder.add(x, sublayer_output))

    def _record_attention(self, recorder: Flow, x: Value, memory: Value, query_rows: Rows) -> Value:
        """Records the operations of the queries' attention. query_rows: the row axis for the queries of all windows."""
        head_dim = Axis("head_dim", exact_div(self.hidden_size, self.num_attention_heads))
        head_axes = Axis("heads", self.num_attention_heads), head_dim
        projection_inputs = {"q": x, "k": memory, "v": memory}
        q, k, v = (
            recorder.linear(f"{projection_letter}_proj", projection_input, *head_axes, bias=True)
            for projection_letter, projection_input in projection_inputs.items()
        )
        if isinstance(query_rows, EmbeddingRows):
            shared_query_core = ops.DistanceScores(q.axes[0].size, 2 * head_dim.size, query_rows, query_rows)
            attn_output = recorder.core("", shared_query_core, q, k, v, axes=v.axes)
            return recorder.linear("o_proj", attn_output, *x.axes, bias=True)
        q = q.view(*q.axes, new_rows=query_rows)
        key_limits: dict[str, Any] = {}
        if self.window is not None:
            context_tokens = 0 if memory is x else self.window - self.queries
            key_limits = {"core": ops.ConformerAttentionCore, "chunk": self.queries, "context_keys": context_tokens}
        attn_output = recorder.attention("", q, k, v, causal=False, masked=False, **key_limits)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=True)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="gelu", up_bias=True, down_bias=True)
        tower_fields: dict[str, Any] = {
            "hidden_size": 12,
            "num_attention_heads": 3,
            "feed_forward": network,
            "norm": Norm(type="layernorm"),
        }
        return [
            cls(queries=3, num_hidden_layers=3, input_size=10, reading_layers=(0, 2), **tower_fields),
            cls(queries=2, num_hidden_layers=2, input_size=10, reading_layers=(0, 1), window=5, **tower_fields),
            cls(
                queries=3,
                num_hidden_layers=2,
                input_size=10,
                reading_layers=(0,),
                vocab_size=30,
                text_positions=9,
                **tower_fields,
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class QFormerAttention(nn.Module):
        """Attention of queries. x: [windows, queries, hidden], memory: [windows, positions, width] → x's shape."""

        def __init__(self, spec: QFormer, memory_width: int) -> None:
            super().__init__()
            self.heads, hidden_size = spec.num_attention_heads, spec.hidden_size
            self.q_proj, self.o_proj = (nn.Linear(hidden_size, hidden_size) for _ in range(2))
            self.k_proj, self.v_proj = (nn.Linear(memory_width, hidden_size) for _ in range(2))

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            q, k, v = (
                projection(projection_input).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for projection, projection_input in ((self.q_proj, x), (self.k_proj, memory), (self.v_proj, memory))
            )
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            attn_output: Tensor = self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            return attn_output

    class QFormerLayer(nn.Module):
        """Runs attention of queries, some to patches, and a network. x: [windows, queries, hidden] → same shape."""

        def __init__(self, spec: QFormer, reads_patches: bool) -> None:
            super().__init__()
            model_properties = ModelProperties(spec.hidden_size)
            self.self_attn = QFormerAttention(spec, spec.hidden_size)
            self.cross_attn = QFormerAttention(spec, spec.input_size) if reads_patches else None
            self.mlp = spec.feed_forward.reference(model_properties)
            if spec.vocab_size is not None:
                text_modules = {"mlp": spec.feed_forward, "mlp_post_norm": spec.norm}
                self.text = nn.ModuleDict(
                    {part_name: part.reference(model_properties) for part_name, part in text_modules.items()}
                )
            for sublayer_name in ("self_attn", *(("cross_attn",) if reads_patches else ()), "mlp"):
                self.add_module(f"{sublayer_name}_post_norm", spec.norm.reference(model_properties))

        def forward(self, x: Tensor, patches: Tensor) -> Tensor:
            x = self.get_submodule("self_attn_post_norm")(x + self.self_attn(x, x))
            if self.cross_attn is not None:
                x = self.get_submodule("cross_attn_post_norm")(x + self.cross_attn(x, patches))
            layer_output: Tensor = self.get_submodule("mlp_post_norm")(x + self.mlp(x, PassState()))
            return layer_output

    class QFormerReference(nn.Module):
        """Reads patches by learned queries. x: [images, positions, width] → [images, all windows' queries, hidden]."""

        def __init__(self, spec: QFormer) -> None:
            super().__init__()
            self.window = spec.window
            self.query = vector_module(torch.randn(spec.queries, spec.hidden_size) * 0.02)
            for table_name, table_rows in (
                ("token_embedding", spec.vocab_size),
                ("text_position", spec.text_positions),
            ):
                if table_rows is not None:
                    self.add_module(table_name, vector_module(torch.randn(table_rows, spec.hidden_size) * 0.02))
            self.query_norm = spec.norm.reference(ModelProperties(spec.hidden_size))
            self.layers = nn.ModuleList(
                QFormerLayer(spec, layer_index in spec.reading_layers) for layer_index in range(spec.num_hidden_layers)
            )

        def forward(self, x: Tensor) -> Tensor:
            image_count = len(x)
            if self.window is not None:
                x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % self.window)).unflatten(1, (-1, self.window))
                x = x.flatten(0, 1)
            queries = self.query_norm(self.query.weight)[None]
            queries = queries.expand(len(x), -1, -1) if self.window is None else queries
            for layer in self.layers:
                queries = layer(queries, x)
            return queries.unflatten(0, (image_count, -1)).flatten(1, 2)

    return QFormerReference
