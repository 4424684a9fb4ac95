"""Lightning attention: linear attention with a fixed decay.

Qin et al. 2024 (arXiv:2401.04658); MiniMax-01 (arXiv:2501.08313, §2.2). S ← λ·S + k ⊗ v, o = Sᵀq, in blocks of tokens;
then a norm over all heads and a gate. The decay is λ = exp(−slope), where the slope is that of ALiBi for the head.
transformers: models/minimax.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.axis import Axis, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ...ops import DecayScan, LightningAttentionCore
from ..base import (
    PUBLISHED_KERNELS_WITNESS,
    ChunkSize,
    Flag,
    HeadDim,
    Heads,
    ModelProperties,
    PartWitness,
    StackPosition,
)
from ..networks.feed_forward import Activation, activate
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..runtime import PassState, recurrent_state_class
from .grouped_query import MultiHeadMixer, record_queries_keys_values

if TYPE_CHECKING:
    from torch import Tensor, nn


class LightningAttention(MultiHeadMixer):
    """Linear attention with a fixed decay per head, with the field names of MiniMax's config.

    num_attention_heads: the number of heads.
    head_dim: the size of a query, key or value head.
    block_size: the number of tokens computed at once, 256 by default.
    hidden_act: the activation on queries, keys and values, silu by default.
    qk_norm: the norm on each query and key head, none by default.
    position: RoPE on queries and keys (Ring-linear), none by default.
    qkv_bias, o_bias: whether the projections have biases, false by default.
    """

    formula_source: ClassVar[str] = "Qin et al. 2024, §3"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    node_name: ClassVar[str] = "linear_attn"
    kind: ClassVar[str] = "linear_attention"
    uncounted_operations: ClassVar[str] = "the decays of lightning attention"

    type: Literal["lightning"] = "lightning"
    num_attention_heads: Heads
    head_dim: HeadDim
    block_size: ChunkSize = 256
    hidden_act: Activation = "silu"
    qk_norm: Norm | None = None
    position: Rope | None = None
    qkv_bias: Flag = False
    o_bias: Flag = False

    def score_position_encoding(self) -> Rope | None:
        return self.position

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        if self.position is not None:
            self.position.check_stack_position(stack_position, self.head_dim)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, head_dim = Axis("heads", self.num_attention_heads), Axis("head_dim", self.head_dim)
        head_axes: Shape = (heads, head_dim)
        q, k, v = record_queries_keys_values(recorder, x, *head_axes, bias=self.qkv_bias)
        q = self._normalize_and_rotate(recorder, "q_norm", q, head_dim)
        k = self._normalize_and_rotate(recorder, "k_norm", k, head_dim)
        activated_qkv = (
            recorder.act(q, self.hidden_act),
            recorder.act(k, self.hidden_act),
            recorder.act(v, self.hidden_act),
        )
        core_sizes = q.axes[0].size, head_dim.size, head_dim.size, x.rows
        attn_output = recorder.alternatives(
            chunked=lambda: recorder.core(
                "core", LightningAttentionCore(*core_sizes, self.block_size), *activated_qkv, axes=head_axes
            ),
            by_token=lambda: recorder.core("core", DecayScan(*core_sizes), *activated_qkv, axes=head_axes),
        )
        recorder.state("recurrent_state", heads, head_dim, head_dim)
        attn_output = recorder.norm("norm", attn_output, Norm(type="rmsnorm", eps=1e-6))
        gated_output = recorder.mul(recorder.act(recorder.linear("g_proj", x, *head_axes), "sigmoid"), attn_output)
        return recorder.linear("o_proj", gated_output, *x.axes, bias=self.o_bias)

    def _normalize_and_rotate(self, recorder: Flow, norm_name: str, x: Value, head_dim: Axis) -> Value:
        """Returns queries or keys after the named norm and RoPE."""
        x = x if self.qk_norm is None else recorder.norm(norm_name, x, self.qk_norm, (head_dim,))
        return x if self.position is None else recorder.rope(x, self.position)

    def describe(self, hidden_size: int) -> str:
        return f"lightning attention {self.num_attention_heads} × {self.head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=3, head_dim=6),
            cls(num_attention_heads=4, head_dim=5, block_size=4, hidden_act="relu"),
            cls(
                num_attention_heads=2,
                head_dim=8,
                block_size=4,
                hidden_act="identity",
                qk_norm=Norm(type="rmsnorm"),
                position=Rope(),
                qkv_bias=True,
                o_bias=True,
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class DecayAttention(nn.Module):
        """Linear attention with decay. q, k, v: [batch, heads, tokens, d] → (same shape, S [batch, heads, d, d]).

        old_state: S before these tokens, or None.
        """

        def __init__(self, heads: int, block_size: int) -> None:
            super().__init__()
            self.block, self.base = block_size, 2.0 ** (-8.0 / heads)

        def forward(self, q: Tensor, k: Tensor, v: Tensor, old_state: Tensor | None) -> tuple[Tensor, Tensor]:
            heads, token_count, block_size = q.shape[1], q.shape[2], self.block if old_state is None else 1
            slope = self.base ** torch.arange(1, heads + 1, device=q.device)[:, None, None]
            kv_state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]) if old_state is None else old_state
            block_outputs = []
            for block_start in range(0, token_count, block_size):
                block_q, block_k, block_v = (x[:, :, block_start : block_start + block_size] for x in (q, k, v))
                if old_state is not None:
                    kv_state = (-slope).exp().to(q.dtype) * kv_state + block_k.transpose(-1, -2) @ block_v
                    block_outputs.append(block_q @ kv_state)
                    continue
                positions = torch.arange(block_q.shape[2], device=q.device)[:, None]
                decay_mask = (
                    (-slope * (positions - positions.T))
                    .masked_fill(positions < positions.T, float("-inf"))
                    .exp()
                    .to(q.dtype)
                )
                block_output = (block_q @ block_k.transpose(-1, -2) * decay_mask) @ block_v
                block_outputs.append(block_output + (block_q * (-slope * (positions + 1)).exp().to(q.dtype)) @ kv_state)
                decayed_k = block_k * (-slope * (len(positions) - 1 - positions)).exp().to(q.dtype)
                kv_state = (
                    kv_state * (-slope * len(positions)).exp().to(q.dtype) + decayed_k.transpose(-1, -2) @ block_v
                )
            return torch.cat(block_outputs, 2), kv_state

    class LightningReference(nn.Module):
        """Computes linear attention with a fixed decay. x: [batch, tokens, hidden] → same shape."""

        recurrent_state: Any

        def __init__(self, spec: LightningAttention, hidden_size: int) -> None:
            super().__init__()
            self.heads = spec.num_attention_heads
            heads_width = spec.num_attention_heads * spec.head_dim
            self.act = spec.hidden_act
            self.spec = spec
            self.q_proj, self.k_proj, self.v_proj = (
                nn.Linear(hidden_size, heads_width, bias=spec.qkv_bias) for _ in range(3)
            )
            self.g_proj = nn.Linear(hidden_size, heads_width, bias=False)
            if spec.qk_norm is not None:
                self.q_norm, self.k_norm = (norm_reference(spec.qk_norm, spec.head_dim) for _ in range(2))
            self.core, self.recurrent_state = DecayAttention(self.heads, spec.block_size), recurrent_state_class()()
            self.norm = norm_reference(Norm(type="rmsnorm", eps=1e-6), heads_width)
            self.o_proj = nn.Linear(heads_width, hidden_size, bias=spec.o_bias)

        def _split_heads(self, projection_letter: str, x: Tensor, pass_state: PassState) -> Tensor:
            """Returns the heads of queries, keys or values, [batch, heads, tokens, d]. x: the projection's output."""
            heads: Tensor = x.unflatten(-1, (self.heads, -1))
            if hasattr(self, f"{projection_letter}_norm"):
                heads = self.get_submodule(f"{projection_letter}_norm")(heads)
            heads = heads.transpose(1, 2)
            if self.spec.position is not None and projection_letter != "v":
                heads = self.spec.position.rotate_heads(heads, pass_state, pass_state.past_tokens)
            return activate(self.act, heads)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            projections = {"q": self.q_proj(x), "k": self.k_proj(x), "v": self.v_proj(x)}
            q, k, v = (
                self._split_heads(projection_letter, projected_x, pass_state)
                for projection_letter, projected_x in projections.items()
            )
            del projections
            stored_state = self.recurrent_state.single_tensor(pass_state)
            attn_output, recurrent_state = self.core(q, k, v, stored_state)
            self.recurrent_state.keep(pass_state, recurrent_state)
            normed_output = self.norm(attn_output.transpose(1, 2).flatten(2))
            return self.o_proj(self.g_proj(x).sigmoid() * normed_output)

    return LightningReference
