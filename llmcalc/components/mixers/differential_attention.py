"""Differential attention (Ye et al. 2024, arXiv:2410.05258): the difference of two softmaxes over halves of the heads.

(softmax(Q₁K₁ᵀ) − λ·softmax(Q₂K₂ᵀ))·V, where values are twice as wide as keys, then a norm per head. It runs as two
standard attentions over the two halves of V, as fused kernels require and as in transformers (models/diffllama), so
scores are computed twice. The norm has no weights in DiffLlama, and has in Phi-4-mini-flash and Motif.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ...algebra import are_equal, exact_div, floor_div
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    TORCH_WITNESS,
    FiniteNumber,
    Flag,
    HeadDim,
    Heads,
    HeadSizes,
    KVHeads,
    ModelProperties,
    PartWitness,
    UnscalableError,
    Window,
)
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..runtime import PassState, attention_mask, softmax_core_class, tensor_cache_class, vector_module
from .grouped_query import WindowedMixer, grouped_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class DifferentialAttention(WindowedMixer):
    """Attention whose heads are the difference of two softmaxes.

    num_attention_heads: the number of query heads.
    num_key_value_heads: the number of key and value heads; even, because values are halved by heads.
    head_dim: the size of a head.
    attention_bias: whether all projections have a bias, false by default.
    norm_eps: the ε of the norm on each head's output; 1e-5 by default.
    norm_weight: whether this norm has weights, which all heads share; false by default.
    lambda_init: the initial λ, which the learned part is added to; 0.8 by default.
    sliding_window: the number of tokens that each token attends to, itself included; all by default.
    kv_shared: whether keys and values are those of the nearest lower layer that computes its own, false by default.
    position: RoPE on queries and keys, by default that of Llama; none for attention without positions.
    """

    formula_source: ClassVar[str] = "Ye et al. 2024, §2.1"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["differential"] = "differential"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    attention_bias: Flag = False
    norm_eps: FiniteNumber = Field(default=1e-5, ge=0)
    norm_weight: Flag = False
    lambda_init: FiniteNumber = Field(default=0.8, gt=0, lt=1)
    sliding_window: Window | None = None
    kv_shared: Flag = False
    position: Rope | None = Rope()

    def check_fields(self) -> None:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads or kv_heads % 2:
            raise ValueError(
                f"num_key_value_heads: {kv_heads}; expected an even divisor of num_attention_heads {heads}"
            )
        if self.position is not None:
            self.position.check_rotary_size(self.head_dim)

    def sharing_key(self) -> tuple[Any, ...]:
        """The fields that must be equal for layers to share keys and values."""
        return "differential", self.num_key_value_heads, self.head_dim, self.sliding_window

    def dependency_field(self) -> str:
        return "kv_shared" if self.kv_shared else ""

    def with_kv_heads(self, kv_heads: int, hidden_size: int) -> Self:
        """Returns the mixer with another number of key and value heads; unchanged for an odd number."""
        return self if kv_heads % 2 else super().with_kv_heads(kv_heads, hidden_size)

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        if not are_equal(2 * floor_div(head_sizes.kv_heads, 2), head_sizes.kv_heads):
            raise UnscalableError("values are halved by heads; expected an even number of key/value heads")
        return super().with_heads(head_sizes)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim, has_bias = Axis("head_dim", self.head_dim), self.attention_bias
        q = self._rotate(recorder, recorder.linear("q_proj", x, heads, head_dim, bias=has_bias))
        k, v = self._keys_and_values(recorder, x, kv_heads, head_dim)
        recorder.mask(q, k, causal=True, window=self.sliding_window)
        half_value_axes = Axis("half_kv_heads", exact_div(kv_heads.size, 2)), head_dim
        head_halves = (
            recorder.repeat(half_heads, kv_heads, tiled=True)
            for half_heads in recorder.split(v, half_value_axes, half_value_axes)
        )
        first_values, second_values = (recorder.repeat(half_heads, heads) for half_heads in head_halves)
        recorder.hold(q=q, k=k, v=v, first=first_values, second=second_values)
        k = recorder.repeat(k, heads)
        recorder.hold(k=k)
        window = self.sliding_window
        core_outputs = (
            recorder.attention("core_1", q, k, first_values, window=window),
            recorder.attention("core_2", q, k, second_values, window=window),
        )
        double_dim = JoinedShapes(((head_dim,), (head_dim,)))
        joined_heads = recorder.cat(*core_outputs, axes=(heads, double_dim))
        half_head_axes = Axis("half_heads", exact_div(heads.size, 2)), double_dim
        first_heads, second_heads = recorder.split(joined_heads, half_head_axes, half_head_axes)
        subtraction_factor = recorder.plus(
            recorder.sub(
                self._lambda_exponential(recorder, "1", head_dim), self._lambda_exponential(recorder, "2", head_dim)
            ),
            self.lambda_init,
        )
        recorder.hold(both=joined_heads, share=subtraction_factor)
        # one softmax term minus λ times the other, in both halves
        head_difference = recorder.sub(first_heads, recorder.mul(second_heads, subtraction_factor))
        norm = Norm(type="rmsnorm", weight=self.norm_weight, eps=self.norm_eps)
        if self.norm_weight:
            head_difference = recorder.norm("norm", head_difference, norm, (double_dim,))
        else:
            head_difference = recorder.normalized(head_difference, norm, (double_dim,))
        head_difference = recorder.scale(head_difference, 1 - self.lambda_init)
        recorder.hold(out=head_difference)
        return recorder.linear("o_proj", head_difference, *x.axes, bias=has_bias)

    def _rotate(self, recorder: Flow, x: Value) -> Value:
        return x if self.position is None else recorder.rope(x, self.position)

    def _keys_and_values(self, recorder: Flow, x: Value, kv_heads: Axis, head_dim: Axis) -> tuple[Value, Value]:
        """Returns the layer's keys and values, or the shared keys and values of the nearest lower layer."""
        memo_key = f"keys and values of {self.sharing_key()}"
        if self.kv_shared:
            empty_keys_and_values = (
                Value(x.rows, (kv_heads, head_dim), is_constant=True),
            ) * 2  # nothing: the layer is recorded alone
            keys, values = recorder.layer_memo.get(memo_key, empty_keys_and_values)
            return keys.view(*recorder.argument_on_rank((kv_heads, head_dim))), values.view(
                *recorder.argument_on_rank((kv_heads, head_dim))
            )
        keys = self._rotate(recorder, recorder.linear("k_proj", x, kv_heads, head_dim, bias=self.attention_bias))
        values = recorder.linear("v_proj", x, kv_heads, head_dim, bias=self.attention_bias)
        recorder.layer_memo[memo_key] = keys, values = recorder.cache(
            "cache", self.cache_kind, keys, values, token_limit=self.sliding_window
        )
        if recorder.layer_memo.get("lends"):
            recorder.keep(**{f"keys of {self.sharing_key()}": keys, f"values of {self.sharing_key()}": values})
        return keys, values

    def _lambda_exponential(self, recorder: Flow, factor_index: str, head_dim: Axis) -> Value:
        """Records exp(λ_q · λ_k) for one of two learned vector pairs; λ is the difference, plus `lambda_init`."""
        lambda_product = recorder.mul(
            recorder.vector(f"lambda_q{factor_index}", head_dim), recorder.vector(f"lambda_k{factor_index}", head_dim)
        )
        return recorder.act(recorder.sum(lambda_product), "exp")

    def describe(self, hidden_size: int) -> str:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        heads_text = str(heads) if heads == kv_heads else f"{heads}/{kv_heads}"
        window_text = f", window {self.sliding_window}" if self.sliding_window else ""
        return f"differential {heads_text} × {self.head_dim}{window_text}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, num_key_value_heads=4, head_dim=6),
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=8, attention_bias=True),
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=6, norm_weight=True, position=None),
            cls(num_attention_heads=2, num_key_value_heads=2, head_dim=8, sliding_window=5),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch

    class DifferentialAttentionReference(grouped_reference_class()):  # type: ignore[misc]
        """Subtracts one softmax attention from another. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: DifferentialAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size, spec.attention_bias)
            if spec.kv_shared:
                del self.k_proj, self.v_proj
            else:
                self.cache = tensor_cache_class()(spec.sliding_window)
            for projection_letter in ("q1", "k1", "q2", "k2"):
                self.add_module(f"lambda_{projection_letter}", vector_module(torch.randn(spec.head_dim) * 0.1))
            self.core_1, self.core_2 = softmax_core_class()(), softmax_core_class()()
            norm = Norm(type="rmsnorm", weight=spec.norm_weight, eps=spec.norm_eps)
            self.norm = norm_reference(norm, 2 * spec.head_dim)

        def _lambda_exponential(self, factor_index: int) -> Tensor:
            q, k = (getattr(self, f"lambda_{projection_letter}{factor_index}").weight for projection_letter in "qk")
            return (q * k).sum().exp()

        def _rotate(self, projection_letter: str, x: Tensor, pass_state: PassState) -> Tensor:
            heads, position = self._split_heads(projection_letter, x), self.spec.position
            return heads if position is None else position.rotate_heads(heads, pass_state, pass_state.past_tokens)

        def _keys_and_values(self, x: Tensor, pass_state: PassState) -> tuple[Tensor, Tensor]:
            """Returns the layer's keys and values, or the shared keys and values of the nearest lower layer."""
            spec = self.spec
            sharing_key = "differential", spec.num_key_value_heads, spec.head_dim, spec.sliding_window
            if spec.kv_shared:
                shape = x.shape[0], spec.num_key_value_heads, pass_state.past_tokens + x.shape[1], spec.head_dim
                zero_keys_and_values = x.new_zeros(shape), x.new_zeros(shape)  # the layer runs alone
                return pass_state.shared_values.get(sharing_key, zero_keys_and_values)
            keys_and_values: tuple[Tensor, Tensor] = self.cache(
                pass_state, self._rotate("k", x, pass_state), self._split_heads("v", x)
            )
            if pass_state.returns_keys_and_values:
                pass_state.shared_values[sharing_key] = keys_and_values
            return keys_and_values

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            q = self._rotate("q", x, pass_state)
            k, v = self._keys_and_values(x, pass_state)
            mask = attention_mask(pass_state, x, k, causal=True, window=self.spec.sliding_window)
            first_values, second_values = (
                self._repeat_for_query_heads(half_values.repeat(1, 2, 1, 1))[0] for half_values in v.chunk(2, 1)
            )
            (k,) = self._repeat_for_query_heads(k)
            joined_heads = torch.cat(
                [self.core_1(q, k, first_values, mask), self.core_2(q, k, second_values, mask)], -1
            )
            first_heads, second_heads = joined_heads.chunk(2, 1)
            subtraction_factor = self._lambda_exponential(1) - self._lambda_exponential(2) + self.spec.lambda_init
            head_outputs = (1 - self.spec.lambda_init) * self.norm(first_heads - subtraction_factor * second_heads)
            return self.o_proj(head_outputs.transpose(1, 2).flatten(2))

    return DifferentialAttentionReference
