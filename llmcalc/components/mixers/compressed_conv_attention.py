"""Compressed convolutional attention: softmax attention on narrow heads, after convolutions over the tokens.

Figliolia et al. 2025 (arXiv:2510.04476), as in ZAYA1: queries and keys pass two causal convolutions, one per channel
and one within each head, and the mean of a head's query and key is added back. Both are then scaled to one length, keys
also by a scale per head. Half of each value comes from the previous token. transformers: models/zaya.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import are_equal, exact_div, floor_div
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import RowsWithZeroStart
from ..base import (
    TORCH_WITNESS,
    Flag,
    HeadDim,
    Heads,
    HeadSizes,
    KernelSize,
    KVHeads,
    ModelProperties,
    PartWitness,
    UnscalableError,
    Window,
)
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..runtime import (
    PassState,
    attention_mask,
    recurrent_state_class,
    softmax_core_class,
    tensor_cache_class,
    vector_module,
)
from .grouped_query import WindowedMixer, grouped_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


UNIT_LENGTH_NORM = Norm(type="rmsnorm", weight=False, eps=1e-12)
"""The norm of queries and keys, which are divided by their length and multiplied by √d."""


class CompressedConvAttention(WindowedMixer):
    """Softmax attention whose queries and keys first pass through two causal convolutions over the tokens.

    The values are cut from two equal halves, so num_key_value_heads · head_dim must be even.

    num_attention_heads: the number of query heads.
    num_key_value_heads: the number of key and value heads.
    head_dim: the size of a head.
    cca_time0: the kernel size of the convolution per channel, 2 by default.
    cca_time1: the kernel size of the convolution within each head, 2 by default.
    attention_bias: whether the input and output projections have a bias, false by default.
    sliding_window: the number of tokens that each token attends to, itself included; all by default.
    position: RoPE on queries and keys.
    """

    formula_source: ClassVar[str] = "Figliolia et al. 2025, §3"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["cca"] = "cca"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    head_dim: HeadDim
    cca_time0: KernelSize = 2
    cca_time1: KernelSize = 2
    attention_bias: Flag = False
    sliding_window: Window | None = None
    position: Rope = Rope()

    def check_fields(self) -> None:
        super().check_fields()
        kv_heads = self.num_key_value_heads
        if kv_heads * self.head_dim % 2:
            raise ValueError(
                f"head_dim: {kv_heads} value heads of {self.head_dim} have no two halves; expected an even product"
            )
        if self.cca_time0 == self.cca_time1 == 1:
            raise ValueError("cca_time0 and cca_time1: both kernel sizes are 1; expected at least one above 1")

    def with_kv_heads(self, kv_heads: int, hidden_size: int) -> Self:
        """Returns the mixer with `kv_heads` key and value heads; unchanged if kv_heads · head_dim is odd."""
        return self if kv_heads * self.head_dim % 2 else super().with_kv_heads(kv_heads, hidden_size)

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        kv_width = head_sizes.kv_heads * head_sizes.head_dim
        if not are_equal(2 * floor_div(kv_width, 2), kv_width):
            raise UnscalableError("values are computed in two halves; expected an even head_dim")
        return super().with_heads(head_sizes)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, kv_heads = Axis("heads", self.num_attention_heads), Axis("kv_heads", self.num_key_value_heads)
        head_dim, has_bias, window = Axis("head_dim", self.head_dim), self.attention_bias, self.sliding_window
        q = recorder.linear("q_proj", x, heads, head_dim, bias=has_bias)
        k = recorder.linear("k_proj", x, kv_heads, head_dim, bias=has_bias)
        with recorder.function():
            q, k = self._convolve_queries_and_keys(recorder, q, k)
        recorder.hold(q=q, k=k)
        q = self._scale_and_rotate(recorder, q)
        k = recorder.mul(self._scale_and_rotate(recorder, k), recorder.vector("key_scale", kv_heads))
        v = self._mix_values(recorder, x, kv_heads, head_dim)
        recorder.hold(q=q, k=k, v=v)
        k, v = recorder.cache("cache", self.cache_kind, k, v, token_limit=window)
        recorder.hold(k=k, v=v)
        recorder.mask(q, k, causal=recorder.causal, window=window)
        k, v = recorder.repeat(k, heads), recorder.repeat(v, heads)
        recorder.hold(k=k, v=v)
        attn_output = recorder.attention("core", q, k, v, causal=recorder.causal, window=window)
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=has_bias)

    def _convolve_queries_and_keys(self, recorder: Flow, q: Value, k: Value) -> tuple[Value, Value]:
        """Returns the convolved queries and keys, each plus the mean of the query and the key of the head."""
        (heads, head_dim), (kv_heads, _) = q.axes, k.axes
        joined_axes = JoinedShapes(((heads,), (kv_heads,)), "all_heads")
        channel_kernel_size = self.cca_time0
        head_kernel_size = self.cca_time1
        joined_heads = recorder.cat(q, k, axes=(joined_axes, head_dim))
        recorder.hold(q=q, k=k, joined=joined_heads)
        recorder.state(
            "conv_state",
            joined_axes,
            head_dim,
            Axis("steps", channel_kernel_size + head_kernel_size - 2),
            state_kind="conv_state",
        )
        padded_rows = recorder.padded(joined_heads, channel_kernel_size + head_kernel_size - 2, state_name="conv_state")
        recorder.hold(seen=padded_rows)
        conv_options: dict[str, Any] = {"bias": True, "rows": q.rows}
        joined_heads = recorder.conv(
            "conv_channels",
            padded_rows,
            joined_axes,
            head_dim,
            kernel=channel_kernel_size,
            groups=joined_heads.width,
            overlap=head_kernel_size - 1,
            **conv_options,
        )
        joined_heads = recorder.conv(
            "conv_heads",
            joined_heads,
            joined_axes,
            head_dim,
            kernel=head_kernel_size,
            groups=joined_axes.size,
            **conv_options,
        )
        recorder.hold(mixed=joined_heads)
        assert isinstance(heads, Axis)
        assert isinstance(kv_heads, Axis)
        mean_q = recorder.scale(recorder.add(q, recorder.repeat(k, heads)), 0.5)
        group_axis = Axis("group", exact_div(heads.size, kv_heads.size))
        # over the queries that share a key
        mean_k = recorder.sum(mean_q.view(kv_heads, group_axis, head_dim), *k.axes, is_mean=True)
        recorder.hold(mean_q=mean_q, mean_k=mean_k)
        convolved_q, convolved_k = recorder.split(joined_heads, q.axes, k.axes)
        return recorder.add(convolved_q, mean_q), recorder.add(convolved_k, mean_k)

    def _mix_values(self, recorder: Flow, x: Value, kv_heads: Axis, head_dim: Axis) -> Value:
        """Returns the values, of which half is computed from the token and half from the previous token."""
        half_axis = Axis("half", exact_div(kv_heads.size * head_dim.size, 2))
        has_bias = self.attention_bias
        with recorder.function():
            projected_v = recorder.linear(
                "v_proj_before", x, half_axis, bias=has_bias, counted_rows=RowsWithZeroStart(source_rows=x.rows)
            )
            previous_row = recorder.resumed(
                recorder.apply_again(recorder.zeros(x, state_name="value_state"), projected_v, has_bias),
                state_name="value_state",
            )
            recorder.hold(made=projected_v, first=previous_row)
            recorder.state("value_state", half_axis, last_values=(projected_v,))
            delayed_values = recorder.delayed(projected_v, previous_row)
            recorder.hold(late=delayed_values)
            return recorder.cat(
                recorder.linear("v_proj", x, half_axis, bias=has_bias), delayed_values, axes=(kv_heads, head_dim)
            )

    def _scale_and_rotate(self, recorder: Flow, x: Value) -> Value:
        return recorder.rope(recorder.normalized(x, UNIT_LENGTH_NORM, x.axes[1:]), self.position)

    def describe(self, hidden_size: int) -> str:
        return self._attention_heading("CCA")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=6),
            cls(
                num_attention_heads=4,
                num_key_value_heads=1,
                head_dim=8,
                cca_time0=3,
                attention_bias=True,
                position=Rope(partial_rotary_factor=0.5),
            ),
            cls(
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=5,
                cca_time0=1,
                cca_time1=4,
                sliding_window=5,
                position=Rope(rotary_dim=4),
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class CompressedConvAttentionReference(grouped_reference_class()):  # type: ignore[misc]
        """Attends with convolved, narrow queries and keys. x: [batch, tokens, hidden] → same shape."""

        conv_state: Any
        value_state: Any

        def __init__(self, spec: CompressedConvAttention, model_properties: ModelProperties) -> None:
            hidden_size, heads, kv_heads, head_dim = (
                model_properties.hidden_size,
                spec.num_attention_heads,
                spec.num_key_value_heads,
                spec.head_dim,
            )
            channels, bias = (heads + kv_heads) * head_dim, spec.attention_bias
            super().__init__(spec, hidden_size, bias)
            self.causal = model_properties.is_causal
            self.conv_channels = nn.Conv1d(channels, channels, spec.cca_time0, groups=channels)
            self.conv_heads = nn.Conv1d(channels, channels, spec.cca_time1, groups=heads + kv_heads)
            self.v_proj, self.v_proj_before = (
                nn.Linear(hidden_size, kv_heads * head_dim // 2, bias=bias),
                nn.Linear(hidden_size, kv_heads * head_dim // 2, bias=bias),
            )
            self.conv_state, self.value_state = recurrent_state_class()(), recurrent_state_class()()
            self.key_scale = vector_module(torch.ones(kv_heads))
            self.core, self.cache = softmax_core_class()(), tensor_cache_class()(spec.sliding_window)
            self.unit_length = norm_reference(Norm(type="rmsnorm", weight=False, eps=1e-12), head_dim)

        def _convolve_queries_and_keys(self, q: Tensor, k: Tensor, pass_state: PassState) -> tuple[Tensor, Tensor]:
            """Convolves q [batch, tokens, heads, d] and k [batch, tokens, kv_heads, d] twice → same shapes."""
            kv_heads, padding_tokens = k.shape[2], self.spec.cca_time0 + self.spec.cca_time1 - 2
            joined_heads = torch.cat([q, k], 2).flatten(2).transpose(1, 2)
            stored_rows = self.conv_state.load(pass_state)
            if stored_rows is None:
                padded_rows = nn.functional.pad(joined_heads, (padding_tokens, 0))
            else:
                padded_rows = torch.cat([stored_rows[0], joined_heads], -1)
            self.conv_state.keep(pass_state, padded_rows[..., padded_rows.shape[-1] - padding_tokens :])
            convolution_output = (
                self.conv_heads(self.conv_channels(padded_rows)).transpose(1, 2).unflatten(-1, (-1, self.spec.head_dim))
            )
            mean_q = (q + self._repeat_for_query_heads(k, axis=2)[0]) / 2
            mean_k = mean_q.unflatten(2, (kv_heads, -1)).mean(3)
            convolved_q, convolved_k = convolution_output.split([q.shape[2], kv_heads], 2)
            return convolved_q + mean_q, convolved_k + mean_k

        def _mix_values(self, x: Tensor, pass_state: PassState) -> Tensor:
            """Computes values [batch, tokens, kv_heads, d]; half of the width comes from the previous token."""
            stored_rows, projected_v = self.value_state.load(pass_state), self.v_proj_before(x)
            previous_row = (
                self.v_proj_before(torch.zeros_like(x[:, :1])) if stored_rows is None else stored_rows[0][:, None]
            )
            self.value_state.keep(pass_state, projected_v[:, -1])
            delayed_values = torch.cat([previous_row, projected_v[:, :-1]], 1)
            return torch.cat([self.v_proj(x), delayed_values], -1).unflatten(-1, (-1, self.spec.head_dim))

        def _scale_and_rotate(self, x: Tensor, pass_state: PassState) -> Tensor:
            """Scales vectors to length √d and applies RoPE. [batch, tokens, heads, d] → [.., heads, tokens, d]."""
            return self.spec.position.rotate_heads(
                self.unit_length(x).transpose(1, 2), pass_state, pass_state.past_tokens
            )

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            head_dim = self.spec.head_dim
            q, k = self._convolve_queries_and_keys(
                self.q_proj(x).unflatten(-1, (-1, head_dim)), self.k_proj(x).unflatten(-1, (-1, head_dim)), pass_state
            )
            q, k, v = (
                self._scale_and_rotate(q, pass_state),
                self._scale_and_rotate(k, pass_state) * self.key_scale.weight[:, None, None],
                self._mix_values(x, pass_state).transpose(1, 2),
            )
            k, v = self.cache(pass_state, k, v)
            mask = attention_mask(pass_state, x, k, causal=self.causal, window=self.spec.sliding_window)
            k, v = self._repeat_for_query_heads(k, v)
            attn_output = self.core(q, k, v, mask)
            return self.o_proj(attn_output.transpose(1, 2).flatten(2))

    return CompressedConvAttentionReference
