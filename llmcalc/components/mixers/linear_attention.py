"""The base of linear attention with a decay (retention, gated linear attention, HGRN2), and the PyTorch module.

S ← diag(exp g)·S + k ⊗ v, o = Sᵀq / √key_dim, with S: [key_dim, value_dim] per head (Sun 2023, arXiv:2307.08621; Yang
2023, arXiv:2312.06635). Several tokens at once run in chunks, as `chunk_retention` and `chunk_gla` of
flash-linear-attention do. A single token runs the recurrence.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...ops import DecayScan, LinearAttentionCore
from ..base import ChunkSize, FiniteNumber, Flag, Heads, HeadSizes, KVHeads, RecurrentMixer, check_kv_heads
from ..networks.feed_forward import Activation, activate
from ..norm import Norm, norm_reference
from ..runtime import PassState, recurrent_state_class
from .delta_rule import CHUNK_TOKENS
from .gated_delta_net import LinearKeyDim, LinearValueDim

if TYPE_CHECKING:
    from torch import Tensor, nn


class LinearAttentionMixer(RecurrentMixer):
    """Linear attention with a decay and a norm on each head's output; the base class of retention, GLA and HGRN2.

    num_attention_heads: the number of query heads, each with a state of linear_key_head_dim × linear_value_head_dim.
    num_key_value_heads: the number of heads of keys, values and decays; each serves the same number of query heads.
    linear_key_head_dim: the size of a query or key head.
    linear_value_head_dim: the size of a value head.
    feature_map: the activation on queries and keys, none by default.
    output_gate: whether the output is multiplied by SiLU of a projection, true by default.
    chunk_size: the number of tokens computed at once, 64 by default; FLOPs depend on it, the state does not.
    norm_eps: the ε of the norm on the output, 1e-5 by default.
    """

    kernel_packages: ClassVar[tuple[str, ...]] = ("flash-linear-attention",)

    num_attention_heads: Heads
    num_key_value_heads: KVHeads
    linear_key_head_dim: LinearKeyDim
    linear_value_head_dim: LinearValueDim
    feature_map: Activation | None = None
    output_gate: Flag = True
    chunk_size: ChunkSize = CHUNK_TOKENS
    norm_eps: FiniteNumber = Field(default=1e-5, ge=0)

    def check_fields(self) -> None:
        check_kv_heads(self.num_attention_heads, self.num_key_value_heads)

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.num_attention_heads, self.num_key_value_heads, self.linear_key_head_dim)

    def with_kv_heads(self, kv_heads: int, hidden_size: int) -> Self:
        return self.model_copy(update={"num_key_value_heads": kv_heads})

    def _record_positions(self, recorder: Flow, x: Value) -> Value:
        """Records the optional position encoding of queries or keys, and returns the encoded vectors."""
        return x

    def _record_decays(self, recorder: Flow, x: Value, heads: Axis, key_dim: Axis) -> tuple[Value, ...]:
        """Records the log decay per key channel and returns it; records nothing for fixed decays."""
        return ()

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, key_heads = Axis("heads", self.num_attention_heads), Axis("key_heads", self.num_key_value_heads)
        key_dim, value_dim = Axis("key_dim", self.linear_key_head_dim), Axis("value_dim", self.linear_value_head_dim)
        q, k = recorder.linear("q_proj", x, heads, key_dim), recorder.linear("k_proj", x, key_heads, key_dim)
        v = recorder.linear("v_proj", x, key_heads, value_dim)
        decays = self._record_decays(recorder, x, key_heads, key_dim)
        if self.feature_map is not None:
            q, k = recorder.act(q, self.feature_map), recorder.act(k, self.feature_map)
        q, k = self._record_positions(recorder, q), self._record_positions(recorder, k)
        scan_inputs = q, *(recorder.repeat(y, heads) for y in (k, v, *decays))
        scan_output = record_linear_attention(recorder, scan_inputs, (heads, key_dim, value_dim), self.chunk_size)
        gate = recorder.act(recorder.linear("g_proj", x, heads, value_dim), "silu") if self.output_gate else None
        scan_output = recorder.norm("norm", scan_output, Norm(type="rmsnorm", eps=self.norm_eps), (value_dim,))
        return recorder.linear("o_proj", scan_output if gate is None else recorder.mul(scan_output, gate), *x.axes)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=3, num_key_value_heads=3, linear_key_head_dim=6, linear_value_head_dim=10),
            cls(
                num_attention_heads=4,
                num_key_value_heads=2,
                linear_key_head_dim=8,
                linear_value_head_dim=5,
                feature_map="relu",
                output_gate=False,
                chunk_size=4,
            ),
        ]

    def _head_sizes_text(self) -> str:
        """Returns the numbers and sizes of query, key and value heads, as text for a report heading."""
        heads_text = f"{self.num_attention_heads}/{self.num_key_value_heads}"
        return f"{heads_text} × {self.linear_key_head_dim}/{self.linear_value_head_dim}"


def record_linear_attention(
    recorder: Flow, scan_inputs: tuple[Value, ...], state_axes: tuple[Axis, Axis, Axis], chunk_size: int
) -> Value:
    """Records the recurrent state and linear attention: in chunks, or as a single step for one decoded token.

    scan_inputs: queries, keys, values, and the decays unless they are fixed.
    state_axes: the axes of heads, of a key and of a value. chunk_size: the number of tokens computed at once.
    """
    heads, key_dim, value_dim = state_axes
    core_sizes = scan_inputs[0].axes[0].size, key_dim.size, value_dim.size, scan_inputs[0].rows
    chunked_core, value_axes = LinearAttentionCore(*core_sizes, chunk_size), (heads, value_dim)
    scan_output = recorder.alternatives(
        chunked=lambda: recorder.core("core", chunked_core, *scan_inputs, axes=value_axes),
        step=lambda: recorder.core("core", DecayScan(*core_sizes), *scan_inputs, axes=value_axes),
    )
    recorder.state("recurrent_state", *state_axes, bits=32)
    return scan_output


@cache
def linear_attention_reference_class() -> Any:
    """Returns the base class of PyTorch references for linear attention with a decay."""
    from torch import nn
    from torch.nn import functional as F

    class LinearAttentionReference(nn.Module):
        """Linear attention with a decay. x: [batch, tokens, hidden] → same shape."""

        recurrent_state: Any

        def __init__(self, spec: LinearAttentionMixer, hidden_size: int) -> None:
            super().__init__()
            self.spec, heads, key_heads = spec, spec.num_attention_heads, spec.num_key_value_heads
            value_width = heads * spec.linear_value_head_dim
            self.q_proj = nn.Linear(hidden_size, heads * spec.linear_key_head_dim, bias=False)
            self.k_proj = nn.Linear(hidden_size, key_heads * spec.linear_key_head_dim, bias=False)
            self.v_proj = nn.Linear(hidden_size, key_heads * spec.linear_value_head_dim, bias=False)
            self.core, self.recurrent_state = linear_attention_class()(spec.chunk_size), recurrent_state_class()()
            self.g_proj = nn.Linear(hidden_size, value_width, bias=False) if spec.output_gate else None
            self.norm = norm_reference(Norm(type="rmsnorm", eps=spec.norm_eps), spec.linear_value_head_dim)
            self.o_proj = nn.Linear(value_width, hidden_size, bias=False)

        def _with_positions(self, x: Tensor, pass_state: PassState) -> Tensor:
            """Returns queries or keys with the optional position encoding applied."""
            return x

        def _log_decay(self, x: Tensor) -> Tensor:
            """Returns the log decay, [batch, heads, tokens, key_dim or 1]."""
            raise NotImplementedError

        def _split_heads(self, x: Tensor, head_dim: int) -> Tensor:
            """Splits the last axis into heads. [batch, tokens, heads · d] → [batch, heads, tokens, d]."""
            return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)

        def _repeat_for_query_heads(self, x: Tensor) -> Tensor:
            """Repeats keys, values or decays so that there is one for each query head."""
            group_size = self.spec.num_attention_heads // self.spec.num_key_value_heads
            return x if group_size == 1 else x.repeat_interleave(group_size, 1)

        def _mapped_heads(self, x: Tensor, pass_state: PassState) -> Tensor:
            """Splits queries or keys into heads, and applies the feature map and then the position encoding."""
            heads = self._split_heads(x, self.spec.linear_key_head_dim)
            mapped_heads = heads if self.spec.feature_map is None else activate(self.spec.feature_map, heads)
            return self._with_positions(mapped_heads, pass_state)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            q = self._mapped_heads(self.q_proj(x), pass_state)
            k = self._repeat_for_query_heads(self._mapped_heads(self.k_proj(x), pass_state))
            v = self._repeat_for_query_heads(self._split_heads(self.v_proj(x), self.spec.linear_value_head_dim))
            scan_output = self.core(q, k, v, self._log_decay(x), pass_state, self.recurrent_state)
            output = self.norm(scan_output.transpose(1, 2).to(x.dtype)).flatten(2)
            if self.g_proj is not None:
                output = output * F.silu(self.g_proj(x))
            return self.o_proj(output)

    return LinearAttentionReference


@cache
def linear_attention_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class LinearAttention(nn.Module):
        """Linear attention with a decay, in fp32. q, k: [batch, heads, tokens, key_dim], v: [.., value_dim] → as v.

        g: the log decay, [batch, heads, tokens, 1] or one per key channel; its sum over half a chunk has to be within
            the exponents of fp32.
        state_module: the module that stores S, [batch, heads, key_dim, value_dim], between passes.
        """

        def __init__(self, chunk_size: int) -> None:
            super().__init__()
            self.chunk = chunk_size

        def forward(
            self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, pass_state: PassState, state_module: Any
        ) -> Tensor:
            q, k, v, g = (x.float() for x in (q, k, v, g))
            q = q * q.shape[-1] ** -0.5
            stored_state = state_module.single_tensor(pass_state)
            if stored_state is not None and q.shape[2] == 1:
                new_state = stored_state * g.exp().transpose(-1, -2) + k.transpose(-1, -2) @ v
                scan_output = q @ new_state
            else:
                old_state = (
                    q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]) if stored_state is None else stored_state
                )
                scan_output, new_state = self._run_chunks(q, k, v, g, old_state)
            state_module.keep(pass_state, new_state)
            return scan_output

        def _run_chunks(
            self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, recurrent_state: Tensor
        ) -> tuple[Tensor, Tensor]:
            chunk_outputs = []
            for chunk_start in range(0, q.shape[2], self.chunk):
                chunk_q, chunk_k, chunk_v, chunk_g = (
                    x[:, :, chunk_start : chunk_start + self.chunk] for x in (q, k, v, g)
                )
                decay = chunk_g.cumsum(-2)
                middle_decay, end_decay = decay[..., decay.shape[-2] // 2, None, :], decay[..., -1:, :]
                scores = (chunk_q * (decay - middle_decay).exp()) @ (chunk_k * (middle_decay - decay).exp()).transpose(
                    -1, -2
                )
                chunk_outputs.append(scores.tril() @ chunk_v + (chunk_q * decay.exp()) @ recurrent_state)
                decayed_k = chunk_k * (end_decay - decay).exp()
                recurrent_state = (
                    recurrent_state * end_decay.exp().transpose(-1, -2) + decayed_k.transpose(-1, -2) @ chunk_v
                )
            return torch.cat(chunk_outputs, 2), recurrent_state

    return LinearAttention
