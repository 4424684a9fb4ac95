"""Exclusive encoder attention: the part of each head's output along the token's own value vector is removed.

transformers: models/neomme (`NeoMMEAttention`, `NeoMMEExclusiveSelfAttention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import are_equal, exact_div
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Flag, HeadDim, Heads, HeadSizes, KVHeads, ModelProperties, UnscalableError, Window
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..runtime import PassState, attention_mask, softmax_core_class, vector_module
from .grouped_query import WindowedMixer, grouped_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class ExclusiveAttention(WindowedMixer):
    """Grouped-query attention with gated output y − tanh(α) · (y · u) · u, where u is the token's normalized value.

    num_attention_heads: the number of query heads, each with its α.
    num_key_value_heads: the number of key and value heads.
    head_dim: the size of a head.
    attention_bias: whether the projections have a bias, false by default; the gate has none.
    norm: the norm on each query and key head, before RoPE.
    position: RoPE on queries and keys.
    sliding_window: the number of tokens, centred on each token, that it attends to; all by default.
    adds_embeddings: whether the stack's value embeddings are added to the values, false by default.
    """

    formula_source: ClassVar[str] = "NeoMME 2026"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["exclusive"] = "exclusive"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    attention_bias: Flag = False
    norm: Norm
    position: Rope = Rope()
    sliding_window: Window | None = None
    adds_embeddings: Flag = False

    def report_label(self) -> str:
        return "full" if self.sliding_window is None else "sliding"

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        if not are_equal(head_sizes.kv_heads, self.num_key_value_heads) or not are_equal(
            head_sizes.head_dim, self.head_dim
        ):
            raise UnscalableError("the stack's value embeddings have its key and value heads; expected the same")
        return self.model_copy(update={"num_attention_heads": head_sizes.heads})

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        if not self.adds_embeddings:
            return {}
        heads = {"num_key_value_heads": self.num_key_value_heads, "head_dim": self.head_dim}
        return {"streams": {"type": "value_embeddings", **heads}}

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim, bias = Axis("head_dim", self.head_dim), self.attention_bias
        q = recorder.linear("q_proj", x, heads, head_dim, bias=bias)
        keys = recorder.linear("k_proj", x, kv_heads, head_dim, bias=bias)
        values = recorder.linear("v_proj", x, kv_heads, head_dim, bias=bias)
        q = recorder.rope(recorder.norm("q_norm", q, self.norm, (head_dim,)), self.position)
        keys = recorder.rope(recorder.norm("k_norm", keys, self.norm, (head_dim,)), self.position)
        if self.adds_embeddings:
            values = recorder.add(values, recorder.layer_memo.get("value_embeddings", values))
        recorder.mask(q, keys, causal=False, window=self.sliding_window)
        recorder.hold(q=q, k=keys, v=values)
        repeated_keys_and_values = recorder.repeat(keys, heads), recorder.repeat(values, heads)
        recorder.hold(k=repeated_keys_and_values[0], v=repeated_keys_and_values[1])
        attn_output = recorder.attention("core", q, *repeated_keys_and_values, causal=False, window=self.sliding_window)
        recorder.hold(out=attn_output, v=values)
        attn_output = self._subtract_own_value(recorder, attn_output, values)
        recorder.hold(out=attn_output)
        attn_output = recorder.mul(
            attn_output, recorder.act(recorder.linear("gate_proj", x, heads, head_dim), "sigmoid")
        )
        return recorder.linear("o_proj", attn_output, *x.axes, bias=bias)

    def _subtract_own_value(self, recorder: Flow, attn_output: Value, values: Value) -> Value:
        """Returns the heads' output minus tanh(α) times its projection onto the token's own value."""
        kv_heads, head_dim = values.axes
        assert isinstance(kv_heads, Axis)
        heads = attn_output.axes
        group_axis = Axis("group", exact_div(self.num_attention_heads, self.num_key_value_heads))
        attn_output = attn_output.view(kv_heads, group_axis, head_dim)
        unit_value = recorder.div(values, recorder.root_mean_square(values))
        removal_factor = recorder.act(recorder.vector("alpha", kv_heads, group_axis), "tanh")
        removed_fraction = recorder.mul(
            recorder.sum(recorder.mul(attn_output, unit_value), kv_heads, group_axis), removal_factor
        )
        return recorder.sub(attn_output, recorder.mul(unit_value, removed_fraction, axes=attn_output.axes)).view(*heads)

    def describe(self, hidden_size: int) -> str:
        return self._attention_heading("exclusive GQA")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        norm = Norm(type="rmsnorm", weight=False)
        default_spec = cls(num_attention_heads=4, num_key_value_heads=2, head_dim=8, norm=norm)
        return [default_spec, default_spec.model_copy(update={"attention_bias": True, "sliding_window": 5})]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ExclusiveAttentionReference(grouped_reference_class()):  # type: ignore[misc]
        """Attends, and removes the output's part along the token's value. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ExclusiveAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size, spec.attention_bias)
            self.q_norm, self.k_norm = (norm_reference(spec.norm, spec.head_dim) for _ in "qk")
            self.core = softmax_core_class()()
            self.alpha = vector_module(torch.zeros(spec.num_attention_heads))
            self.gate_proj = nn.Linear(hidden_size, spec.num_attention_heads * spec.head_dim, bias=False)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            q, k, v = (self._split_heads(projection_letter, x) for projection_letter in "qkv")
            q, k = (
                spec.position.rotate_heads(norm(heads), pass_state, 0)
                for norm, heads in ((self.q_norm, q), (self.k_norm, k))
            )
            v = v + pass_state.shared_values["value_embeddings"] if spec.adds_embeddings else v
            k, v = self._repeat_for_query_heads(k, v)
            mask = attention_mask(pass_state, x, x, causal=False, window=spec.sliding_window)
            attn_output = self.core(q, k, v, mask)
            unit_value = nn.functional.normalize(v.float(), dim=-1).to(attn_output.dtype)
            removed_fraction = torch.tanh(self.alpha.weight)[:, None, None] * (attn_output * unit_value).sum(
                -1, keepdim=True
            )
            attn_output = (attn_output - removed_fraction * unit_value).transpose(1, 2).flatten(2)
            return self.o_proj(attn_output * torch.sigmoid(self.gate_proj(x)))

    return ExclusiveAttentionReference
