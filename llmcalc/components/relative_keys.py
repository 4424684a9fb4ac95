"""Attention with a learned key per distance, which all heads and layers share (Shaw 2018, arXiv:1803.02155, §3.2).

Scores are q · (k + a), where a is the row of a table for the distance between query and key; distances beyond the
table's have its outermost rows. transformers: models/speecht5 (`SpeechT5RelativePositionalEncoding`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from .. import ops
from ..algebra import are_equal
from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..flow.verbs.pairs import query_key_pair_value
from .base import (
    Flag,
    HeadDim,
    Heads,
    HeadSizes,
    ModelProperties,
    Positions,
    StackPart,
    StackPosition,
    TokenMixer,
    UnscalableError,
)
from .mixers.grouped_query import record_queries_keys_values
from .runtime import PassState, project_to_heads, softmax_core_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class RelativeKeys(StackPart):
    """The table of relative-position keys, with one row per distance from −max_distance to max_distance − 1.

    max_distance: the largest distance before a query that has a row of its own.
    head_dim: the size of a head.
    """

    formula_source: ClassVar[str] = "Shaw et al. 2018, §3.2"
    kind: ClassVar[str] = "attention"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    max_distance: Positions
    head_dim: HeadDim

    def check_stack_position(self, stack_position: StackPosition) -> None:
        if stack_position.stack_name != "encoder":
            raise ValueError(
                f"{stack_position.error_path}: has keys for distances in both directions; expected an encoder"
            )

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the look-up of a key for each pair of positions."""
        pair_rows = query_key_pair_value(x.rows).rows
        head_dim, distance_axis = Axis("head_dim", self.head_dim), Axis("distances", 2 * self.max_distance)
        keys, _ = recorder.table("", distance_axis, head_dim, output_rows=pair_rows, index_source="positions")
        return keys

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["keys"](self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(max_distance=4, head_dim=6)]


class RelativeKeyAttention(TokenMixer):
    """Multi-head attention of an encoder whose stack has relative keys.

    num_attention_heads: the number of heads.
    head_dim: the size of a head.
    max_distance: that of the stack's `relative_keys`.
    bias: whether the projections have a bias, false by default.
    """

    formula_source: ClassVar[str] = "Shaw et al. 2018, §3.2"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["relative_keys"] = "relative_keys"
    num_attention_heads: Heads
    head_dim: HeadDim
    max_distance: Positions
    bias: Flag = False

    def head_sizes(self, hidden_size: Any) -> HeadSizes:
        return HeadSizes(self.num_attention_heads, self.num_attention_heads, self.head_dim)

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        if not are_equal(head_sizes.heads, head_sizes.kv_heads) or not are_equal(head_sizes.head_dim, self.head_dim):
            raise UnscalableError(
                "each query head has its own key head, and the stack's keys their size; expected the same"
            )
        return self.model_copy(update={"num_attention_heads": head_sizes.heads})

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {"relative_keys": {"max_distance": self.max_distance, "head_dim": self.head_dim}}

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, head_dim = Axis("heads", self.num_attention_heads), Axis("head_dim", self.head_dim)
        q, k, v = record_queries_keys_values(recorder, x, heads, head_dim, bias=self.bias)
        pair_value = query_key_pair_value(x.rows, heads, is_batched=True)
        keys = recorder.layer_memo.get("relative_keys", Value(query_key_pair_value(x.rows).rows, (head_dim,)))
        op = ops.PairScores(q.axes[0].size, head_dim.size, x.rows)
        recorder.hold(q=q, k=k, v=v)
        bias = recorder.scale(
            recorder.core("pairs", op, q, keys, axes=pair_value.axes, rows=pair_value.rows), head_dim.size**-0.5
        )
        recorder.hold(q=q, k=k, v=v, bias=bias)
        attn_output = recorder.attention("core", q, k, v, causal=False, bias=bias, masked=False)
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=self.bias)

    def describe(self, hidden_size: int) -> str:
        return f"MHA {self.num_attention_heads} × {self.head_dim}, relative keys"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["attention"](self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(num_attention_heads=4, head_dim=6, max_distance=4, bias=True)]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class RelativeKeysReference(nn.Embedding):
        """Returns a key for every pair of positions. x: [batch, tokens, hidden] → [tokens, tokens, head_dim]."""

        def __init__(self, spec: RelativeKeys) -> None:
            super().__init__(2 * spec.max_distance, spec.head_dim)
            self.furthest = spec.max_distance

        def forward(self, x: Tensor) -> Tensor:
            positions = torch.arange(x.shape[1], device=x.device)
            distances = (positions[:, None] - positions[None, :]).clamp(-self.furthest, self.furthest - 1)
            return super().forward(distances + self.furthest)

    class PairScores(nn.Module):
        """Computes scores per pair. q: [batch, heads, tokens, d], keys: [tokens, tokens, d] → [batch, heads, t, t]."""

        def forward(self, q: Tensor, keys: Tensor) -> Tensor:
            scores = q.flatten(0, 1).transpose(0, 1) @ keys.transpose(-1, -2)
            return scores.transpose(0, 1).unflatten(0, q.shape[:2])

    class RelativeKeyAttentionReference(nn.Module):
        """Attends with a learned key per distance. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: RelativeKeyAttention, hidden_size: int) -> None:
            super().__init__()
            self.heads, heads_width = spec.num_attention_heads, spec.num_attention_heads * spec.head_dim
            for projection_name in ("q_proj", "k_proj", "v_proj"):
                self.add_module(projection_name, nn.Linear(hidden_size, heads_width, bias=spec.bias))
            self.pairs, self.core = PairScores(), softmax_core_class()()
            self.o_proj = nn.Linear(heads_width, hidden_size, bias=spec.bias)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            q, k, v = (project_to_heads(self, projection_name, x) for projection_name in ("q_proj", "k_proj", "v_proj"))
            bias = self.pairs(q, pass_state.shared_values["relative_keys"]) * q.shape[-1] ** -0.5
            return self.o_proj(self.core(q, k, v, bias=bias).transpose(1, 2).flatten(2))

    return {"keys": RelativeKeysReference, "attention": RelativeKeyAttentionReference}
