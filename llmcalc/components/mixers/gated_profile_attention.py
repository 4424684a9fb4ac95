"""Attention with length-limited queries and keys, and a distance bias mixed from learned profiles.

A query, a key and a head's weights of the profiles are scaled down to a largest length. Each token has a score of its
own for a key without a value (a sink), and a gate on the output of the heads. The convolutions of keys and values may
have taps that are partly computed from each token. transformers: models/inkling2 (`Inkling2FullAttention`,
`Inkling2SlidingAttention`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Flag, ModelProperties
from ..norm import Norm, norm_reference
from ..residual_convolution import record_residual_convolution
from ..runtime import PassState, attention_mask, recurrent_state_class, vector_module
from .profile_attention import ProfileAttention, profile_attention_class

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTLESS_NORM = Norm(type="rmsnorm", weight=False, eps=1e-6)
"""The norm of values, which also stands for the bound on the lengths of queries and keys in the record."""


class GatedProfileAttention(ProfileAttention):
    """Attention with a bias mixed from profiles, length-limited queries and keys, an output gate and a sink score.

    dynamic_convolutions: whether the taps of the convolutions of keys and values are the sum of learned ones and of
        some that each token's input gives for each head; false by default. Their elementwise products count no FLOPs.
    """

    formula_source: ClassVar[str] = "Inkling 2 2026"

    type: Literal["gated_profile"] = "gated_profile"  # type: ignore[assignment]
    norm: None = None
    dynamic_convolutions: Flag = False

    def flow(self, recorder: Flow, x: Value, key_input: Value | None = None, value_input: Value | None = None) -> Value:
        """Records the attention's operations. key_input, value_input: inputs of keys and of values, by default x."""
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim = Axis("head_dim", self.head_dim)
        window = self.sliding_window
        rank_axis = Axis("profiles", self.relative_rank)
        q = recorder.linear("q_proj", x, heads, head_dim)
        keys, values = (
            self._convolve_heads(
                recorder,
                f"{projection_letter}_conv",
                recorder.linear(f"{projection_letter}_proj", projection_input, kv_heads, head_dim),
                projection_input,
            )
            for projection_letter, projection_input in (
                ("k", x if key_input is None else key_input),
                ("v", x if value_input is None else value_input),
            )
        )
        profile_weights = recorder.linear("r_proj", x, heads, rank_axis)
        gate = recorder.linear("gate_proj", x, heads, head_dim)
        sinks = recorder.linear("sink_proj", x, heads)
        q = recorder.normalized(
            recorder.mul(q, recorder.vector("q_scale", heads, head_dim)), WEIGHTLESS_NORM, (head_dim,)
        )
        keys = recorder.normalized(keys, WEIGHTLESS_NORM, (head_dim,))
        values = recorder.normalized(values, WEIGHTLESS_NORM, (head_dim,))
        profile_weights = recorder.normalized(
            recorder.mul(profile_weights, recorder.vector("share_scale", heads, rank_axis)),
            WEIGHTLESS_NORM,
            (rank_axis,),
        )
        keys, values = recorder.cache("cache", self.cache_kind, keys, values, token_limit=window)
        recorder.mask(q, keys, causal=True, window=window)
        bias = self.record_distance_bias(recorder, profile_weights, q, keys)
        recorder.hold(q=q, k=keys, v=values, bias=bias, gate=gate, sinks=sinks)
        keys, values = recorder.repeat(keys, heads), recorder.repeat(values, heads)
        recorder.hold(k=keys, v=values)
        attn_output = recorder.attention("core", q, keys, values, causal=recorder.causal, bias=bias, window=window)
        # a key without a value takes a share of each head's output
        attn_output = recorder.mul(attn_output, recorder.act(sinks, "sigmoid"))
        attn_output = recorder.mul(attn_output, recorder.act(gate, "sigmoid"))
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes)

    def _convolve_heads(self, recorder: Flow, conv_name: str, x: Value, filter_input: Value) -> Value:
        """Returns keys or values after a convolution with filters computed from `filter_input`.

        filter_input: the vectors from which a part of the filter is computed.
        """
        if not self.dynamic_convolutions:
            return record_residual_convolution(recorder, conv_name, x, self.conv_kernel_size)
        (heads, head_dim), kernel_axis = x.axes, Axis("kernel", self.conv_kernel_size)
        with recorder.scope(conv_name):
            filter_taps = recorder.linear("weight_proj", filter_input, heads, kernel_axis)
            filter_taps = recorder.mul(
                filter_taps,
                recorder.vector("static_weight", heads, head_dim, kernel_axis),
                axes=(heads, head_dim, kernel_axis),
            )
            recorder.state("conv_state", heads, head_dim, kernel_axis, state_kind="conv_state")
            return recorder.add(
                recorder.sum(recorder.mul(filter_taps, x, axes=(heads, head_dim, kernel_axis)), heads, head_dim), x
            )

    def describe(self, hidden_size: Any) -> str:
        return f"{super().describe(hidden_size)}, gated"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        default_spec = super().examples()[0]
        return [
            default_spec,
            default_spec.model_copy(update={"dynamic_convolutions": True}),
            default_spec.model_copy(update={"sliding_window": 5, "relative_extent": 5, "conv_kernel_size": 4}),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    def limit_norm(x: Tensor, max_norm: float) -> Tensor:
        """Scales vectors down to at most a given length. x: [..., size] → same shape."""
        vector_length = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True)
        return (x.float() * (max_norm / (vector_length + 1e-6)).clamp(max=1.0)).to(x.dtype)

    class TokenConvolution(nn.Module):
        """Adds to x a causal convolution of x with per-token filters. x: [batch, tokens, width] → same shape."""

        def __init__(self, hidden_size: int, heads: int, kv_width: int, kernel_size: int) -> None:
            super().__init__()
            self.heads, self.kernel, self.size = heads, kernel_size, kv_width // heads
            self.static_weight = vector_module(torch.zeros(kv_width, kernel_size))
            self.weight_proj = nn.Linear(hidden_size, heads * kernel_size, bias=False)
            self.conv_state: Any = recurrent_state_class()()

        def forward(self, x: Tensor, filter_inputs: Tensor, pass_state: PassState) -> Tensor:
            stored_rows = self.conv_state.load(pass_state)
            earlier_rows = x.new_zeros(x.shape[0], self.kernel, x.shape[-1]) if stored_rows is None else stored_rows[0]
            rows_with_past = torch.cat([earlier_rows, x], 1)
            self.conv_state.keep(pass_state, rows_with_past[:, -self.kernel :])
            windows = rows_with_past[:, 1:].unfold(1, self.kernel, 1)  # [batch, tokens, width, kernel]
            filter_taps = (
                self.weight_proj(filter_inputs)
                .unflatten(-1, (self.heads, self.kernel))
                .repeat_interleave(self.size, -2)
            )
            conv_output: Tensor = (windows * (self.static_weight.weight + filter_taps)).sum(-1)
            return conv_output + x

    class SinkAttentionCore(nn.Module):
        """Softmax attention with a score bias, and with a sink: an extra score per query that has no value.

        q: [batch, heads, queries, d]; k, v: [batch, heads, keys, d]; bias: the scores' shape; sinks: [batch, heads,
        queries] → the shape of q.
        """

        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
            scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias).masked_fill(~mask, float("-inf"))
            attention_weights = torch.softmax(torch.cat([scores, sinks[..., None]], -1).float(), -1)[..., :-1]
            return attention_weights.to(v.dtype) @ v

    class GatedProfileAttentionReference(profile_attention_class()):  # type: ignore[misc]
        """Attends with a gate and distance biases. x, key and value inputs: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: GatedProfileAttention, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            heads, head_dim, kernel_size = spec.num_attention_heads, spec.head_dim, spec.conv_kernel_size
            kv_heads, hidden_size = spec.num_key_value_heads, model_properties.hidden_size
            if spec.dynamic_convolutions:
                self.k_conv, self.v_conv = (
                    TokenConvolution(hidden_size, kv_heads, kv_heads * head_dim, kernel_size) for _ in "kv"
                )
            self.gate_proj = nn.Linear(hidden_size, heads * head_dim, bias=False)
            self.sink_proj = nn.Linear(hidden_size, heads, bias=False)
            self.q_scale = vector_module(torch.ones(heads, head_dim))
            self.share_scale = vector_module(torch.ones(heads, spec.relative_rank))
            self.v_norm = norm_reference(Norm(type="rmsnorm", weight=False, eps=1e-6), head_dim)
            self.core = SinkAttentionCore()

        def _convolve_heads(self, projection_letter: str, x: Tensor, pass_state: PassState) -> Tensor:
            """Returns keys or values by head, [batch, heads, tokens, size]."""
            filter_inputs = [x] if self.spec.dynamic_convolutions else []
            conv_output = self.get_submodule(f"{projection_letter}_conv")(
                self.get_submodule(f"{projection_letter}_proj")(x), *filter_inputs, pass_state
            )
            return conv_output.unflatten(-1, (-1, self.spec.head_dim)).transpose(1, 2)

        def forward(
            self, x: Tensor, pass_state: PassState, key_input: Tensor | None = None, value_input: Tensor | None = None
        ) -> Tensor:
            spec, heads = self.spec, self.spec.num_attention_heads
            q = self.q_proj(x).unflatten(-1, (heads, -1)) * self.q_scale.weight
            k = self._convolve_heads("k", x if key_input is None else key_input, pass_state)
            v = self._convolve_heads("v", x if value_input is None else value_input, pass_state)
            q = limit_norm(q, 512**0.5).transpose(1, 2)
            k, v = self.cache(pass_state, limit_norm(k, 512**0.5), self.v_norm(v))
            end_position = pass_state.past_tokens + x.shape[1]
            mask = attention_mask(pass_state, x, k, causal=True, window=spec.sliding_window)
            profile_weights = self.r_proj(x).unflatten(-1, (heads, -1)) * self.share_scale.weight
            bias = self.distance_score_bias(
                limit_norm(profile_weights, 8.0).transpose(1, 2), pass_state, end_position, k.shape[2]
            )
            k, v = self._repeat_for_query_heads(k, v)
            attn_output = self.core(q, k, v, mask, bias, self.sink_proj(x).transpose(1, 2)).transpose(1, 2).flatten(2)
            return self.o_proj(attn_output * self.gate_proj(x).sigmoid())

    return GatedProfileAttentionReference
