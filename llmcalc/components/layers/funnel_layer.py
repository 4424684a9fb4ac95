"""Funnel Transformer's layers; in later blocks, the first layer has half as many queries as tokens.

Dai et al. 2020 (arXiv:2006.03236): post-norm layers with Transformer-XL's positions and segments. The queries of a
block's first layer are averages of neighbouring tokens, so all further layers have half as many tokens; the first layer
of the decoder repeats every token to the full length and adds the output of the first block. transformers:
models/funnel, with `attention_type` relative_shift.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import PairAverageRows, RelativeDistances
from ...workload.rows import FixedRows
from ..base import Flag, HeadDim, Heads, ModelProperties
from ..mixers.grouped_query import MultiHeadMixer
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..rotation import rotary_angles
from ..runtime import PassState, apply_dropout, share_tensors, vector_module
from .block import LayerSharing
from .whole_layer import WholeLayer

if TYPE_CHECKING:
    from torch import Tensor, nn

FIRST_BLOCK_OUTPUT = "output of the first block"

MAX_HALVINGS = 16


class FunnelAttention(MultiHeadMixer):
    """Encoder attention by content, distance and segment; keys and values have biases, queries have none.

    num_attention_heads: the number of heads.
    head_dim: the size of a head.
    """

    formula_source: ClassVar[str] = "Dai et al. 2020, §A.2.1"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["funnel"] = "funnel"
    num_attention_heads: Heads
    head_dim: HeadDim

    def flow(self, recorder: Flow, x: Value, memory: Value | None = None) -> Value:
        """Records the attention's operations. x: the queries' input. memory: the keys' and values' input; default x."""
        heads, head_dim = Axis("heads", self.num_attention_heads), Axis("head_dim", self.head_dim)
        kv_input = x if memory is None else memory
        q = recorder.linear("q_proj", x, heads, head_dim)
        k, v = (
            recorder.linear(projection_name, kv_input, heads, head_dim, bias=True)
            for projection_name in ("k_proj", "v_proj")
        )
        distances = RelativeDistances(query_rows=x.rows, key_rows=None if memory is None else memory.rows)
        distance_keys = recorder.linear(
            "r_proj", recorder.sinusoids(x, distances, *x.axes, is_stored=True), heads, head_dim
        )
        num_heads, content_q = q.axes[0].size, recorder.add(q, recorder.vector("content_bias", heads, head_dim))
        position_q, segment_q = (
            recorder.add(q, recorder.vector(f"{projection_name}_bias", heads, head_dim))
            for projection_name in ("position", "segment")
        )
        distance_scores = recorder.core(
            "distances",
            ops.SharedTableScores(num_heads, head_dim.size, x.rows, distances),
            position_q,
            distance_keys,
            axes=(heads,),
        )
        segment_rows = FixedRows("segments", length=2, is_encoder_side=False)
        segment_keys = recorder.vector("segments", Axis("segments", 2), heads, head_dim)
        segment_scores = recorder.core(
            "segment_scores",
            ops.SharedTableScores(num_heads, head_dim.size, x.rows, segment_rows),
            segment_q,
            segment_keys,
            axes=(heads,),
        )
        bias = recorder.add(recorder.relative_shift(distance_scores, k.rows), segment_scores)
        recorder.hold(q=content_q, k=k, v=v, bias=bias)
        attn_output = recorder.attention("core", content_q, k, v, causal=False, bias=bias, masked=False)
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"MHA {self.num_attention_heads} × {self.head_dim}, Transformer-XL relative"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["attention"](self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_attention_heads=4, head_dim=6)]


class FunnelLayer(WholeLayer):
    """A post-norm layer of Funnel Transformer.

    attention: its attention.
    feed_forward: its feed-forward network.
    halvings: the number of times that the tokens of its input have been halved, 0 by default.
    halves: whether its queries are averages of two tokens; false by default. Of the layers that share its parameters,
        only the first one does.
    halves_keys: whether its keys and values are averages too, false by default.
    separate_cls: whether the first token is not averaged with others, true by default.
    truncate_seq: whether the last token is left out where the first one is kept apart, true by default.
    ends_first_block: whether the decoder adds its output, false by default.
    lengthens: whether its input is repeated to the full length before the first block's output is added to it, which
        the first layer of the decoder does; false by default.
    """

    formula_source: ClassVar[str] = "Dai et al. 2020, §2.2"
    is_plain_transformer_layer: ClassVar[bool] = False
    can_run_alone: ClassVar[bool] = False

    type: Literal["funnel"] = "funnel"
    attention: FunnelAttention
    feed_forward: FeedForward
    norm_placement: Literal["post"] = "post"
    halvings: int = Field(default=0, ge=0, le=MAX_HALVINGS, strict=True)
    halves: Flag = False
    halves_keys: Flag = False
    separate_cls: Flag = True
    truncate_seq: Flag = True
    ends_first_block: Flag = False
    lengthens: Flag = False

    def check_fields(self) -> None:
        super().check_fields()
        if self.halves and self.lengthens:
            raise ValueError("halves: the first layer of the decoder has all tokens; expected false")
        if self.halves_keys and not self.halves:
            raise ValueError("halves_keys: needs halves = true; expected false")

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        if self.lengthens:
            first_block_output = recorder.layer_memo.get(FIRST_BLOCK_OUTPUT, x)
            x = recorder.add(recorder.resampled(x, first_block_output.rows), first_block_output)
        queries, memory = x, None
        if self.halves and (layer_sharing is None or layer_sharing.is_first):
            halved_rows = PairAverageRows(
                source_rows=x.rows, separate_cls=self.separate_cls, truncate_seq=self.truncate_seq
            )
            queries = recorder.resampled(x, halved_rows)
            memory = None if self.halves_keys else x
        recorder.hold(x=x, queries=queries)
        attn_output = recorder.part("self_attn", self.attention, queries, memory=memory)
        attn_output = recorder.add(queries, recorder.dropout(attn_output, "attention_output", ends_sublayer=True))
        attn_output = recorder.part("self_attn_post_norm", self.norm, attn_output)
        recorder.hold(x=attn_output)
        network_output = recorder.dropout(
            recorder.part("mlp", self.feed_forward, attn_output), "feed_forward", ends_sublayer=True
        )
        x = recorder.part("mlp_post_norm", self.norm, recorder.add(attn_output, network_output))
        if self.ends_first_block:
            recorder.layer_memo[FIRST_BLOCK_OUTPUT] = x
            recorder.keep(first_block=x)
        return x

    def describe(self, hidden_size: int) -> str:
        halving_text = f", {2**self.halvings} tokens in one" if self.halvings else ""
        return f"{self.attention.describe(hidden_size)}{halving_text}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["layer"](self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="gelu", up_bias=True, down_bias=True)
        layer = cls(attention=FunnelAttention.examples()[0], feed_forward=network, norm=Norm(type="layernorm"))
        return [layer]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class FunnelAttentionCore(nn.Module):
        """Computes biased softmax attention. q: [batch, heads, queries, d], k and v: [batch, heads, keys, d]."""

        def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            scores = (q @ k.transpose(-1, -2) + bias) * q.shape[-1] ** -0.5
            return apply_dropout(self, "attention", torch.softmax(scores.float(), -1).to(v.dtype)) @ v

    class TableScoreProduct(nn.Module):
        """The scores of each query with each table row. q: [batch, heads, queries, d], rows: [rows, heads, d]."""

        def forward(self, q: Tensor, table_rows: Tensor) -> Tensor:
            scores = q.transpose(0, 1).flatten(1, 2) @ table_rows.permute(1, 2, 0)
            return scores.unflatten(1, (q.shape[0], -1)).transpose(0, 1)

    class FunnelAttentionReference(nn.Module):
        """Attention of queries [batch, queries, hidden] to a source [batch, keys, hidden] → shape of the queries."""

        def __init__(self, spec: FunnelAttention, hidden_size: int) -> None:
            super().__init__()
            self.heads = spec.num_attention_heads
            self.hidden = hidden_size
            heads_width = spec.num_attention_heads * spec.head_dim
            self.q_proj = nn.Linear(hidden_size, heads_width, bias=False)
            self.k_proj, self.v_proj = nn.Linear(hidden_size, heads_width), nn.Linear(hidden_size, heads_width)
            self.r_proj = nn.Linear(hidden_size, heads_width, bias=False)
            for bias_name in ("content_bias", "position_bias", "segment_bias"):
                self.add_module(bias_name, vector_module(torch.randn(self.heads, spec.head_dim) * 0.02))
            self.segments = vector_module(torch.randn(2, self.heads, spec.head_dim) * 0.02)
            self.distances, self.segment_scores, self.core = (
                TableScoreProduct(),
                TableScoreProduct(),
                FunnelAttentionCore(),
            )
            self.o_proj = nn.Linear(heads_width, hidden_size)

        def _split_heads(self, x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

        def forward(
            self, x: Tensor, pass_state: PassState, kv_source: Tensor | None = None, key_stride: int = 1
        ) -> Tensor:
            """Runs attention. key_stride: the distance in tokens between neighbouring keys."""
            key_source = x if kv_source is None else kv_source
            q, k, v = (
                self._split_heads(head_vectors)
                for head_vectors in (self.q_proj(x), self.k_proj(key_source), self.v_proj(key_source))
            )
            query_count, key_count, halves_queries = x.shape[1], key_source.shape[1], kv_source is not None
            largest_distance = 2 * query_count if halves_queries else query_count  # in steps
            distances = torch.arange(
                largest_distance,
                largest_distance - 2 * query_count - (key_count if halves_queries else 0),
                -1,
                device=x.device,
            )
            angles = rotary_angles(distances * key_stride, self.hidden, 10000.0)
            sinusoids = torch.cat([angles.sin(), angles.cos()], -1)[:, : self.hidden].to(x.dtype)
            distance_keys = self.r_proj(sinusoids).unflatten(-1, (self.heads, -1))
            biases = (
                getattr(self, f"{projection_name}_bias").weight[:, None]
                for projection_name in ("content", "position", "segment")
            )
            content_q, position_q, segment_q = (q + bias for bias in biases)
            stride = 2 if halves_queries else 1
            distance_index = largest_distance - stride * torch.arange(query_count, device=x.device)[:, None]
            distance_index = (distance_index + torch.arange(key_count, device=x.device)).expand(*q.shape[:3], -1)
            distance_scores = self.distances(position_q, distance_keys).gather(-1, distance_index)
            segment_scores = self.segment_scores(segment_q, self.segments.weight)
            # all tokens are in one segment
            attn_output = self.core(content_q, k, v, distance_scores + segment_scores[..., 1:])
            return self.o_proj(attn_output.transpose(1, 2).flatten(2))

    class FunnelLayerReference(nn.Module):
        """Runs attention and a network. x: [batch, tokens, hidden] → [batch, tokens or half as many, hidden]."""

        has_equal_repeats = False

        def __init__(self, spec: FunnelLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, self.halves = spec, spec.halves
            self.self_attn = spec.attention.reference(model_properties)
            self.mlp = spec.feed_forward.reference(model_properties)
            self.self_attn_post_norm = spec.norm.reference(model_properties)
            self.mlp_post_norm = spec.norm.reference(model_properties)

        def share_parameters(self, first_layer: FunnelLayerReference) -> None:
            """Shares the first layer's weights with this layer; only the first layer of a block halves the tokens."""
            if first_layer is self:
                return
            self.halves = False
            share_tensors(first_layer, self)

        def _halve_tokens(self, x: Tensor) -> Tensor:
            """Returns averages of pairs of tokens. A separate first token is paired with a copy of itself."""
            if x.shape[1] <= (2 if self.spec.separate_cls else 1):
                return x
            if self.spec.separate_cls:
                x = torch.cat([x[:, :1], x[:, :-1] if self.spec.truncate_seq else x], 1)
            return nn.functional.avg_pool1d(x.transpose(1, 2), 2, 2, ceil_mode=True).transpose(1, 2)

        def _lengthen_tokens(self, x: Tensor, pass_state: PassState) -> Tensor:
            """Repeats tokens to the length of the first block's output, and adds that output."""
            first_block_output = pass_state.shared_values["first block"]
            token_count, repeat_count = first_block_output.shape[1], 2**self.spec.halvings
            if self.spec.separate_cls and repeat_count > 1:
                tokens_after_first = x[:, 1:].repeat_interleave(repeat_count, 1)
                tokens_after_first = nn.functional.pad(
                    tokens_after_first, (0, 0, 0, max(token_count - 1 - tokens_after_first.shape[1], 0))
                )
                x = torch.cat([x[:, :1], tokens_after_first[:, : token_count - 1]], 1)
            else:
                x = x.repeat_interleave(repeat_count, 1)[:, :token_count]
            return x + first_block_output

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            x = self._lengthen_tokens(x, pass_state) if self.spec.lengthens else x
            queries = self._halve_tokens(x) if self.halves else x
            kv_source = x if queries.shape[1] < x.shape[1] and not self.spec.halves_keys else None
            key_stride = 1 if self.spec.lengthens else 2**self.spec.halvings
            attn_output = self.self_attn(queries, pass_state, kv_source, key_stride)
            attn_output = self.self_attn_post_norm(queries + apply_dropout(self, "attention_output", attn_output))
            network_output = apply_dropout(self, "feed_forward", self.mlp(attn_output, pass_state))
            layer_output: Tensor = self.mlp_post_norm(attn_output + network_output)
            if self.spec.ends_first_block:
                pass_state.shared_values["first block"] = layer_output
            return layer_output

    return {"attention": FunnelAttentionReference, "layer": FunnelLayerReference}
