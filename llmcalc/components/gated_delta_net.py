"""Gated DeltaNet (Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464): linear attention whose state forgets and corrects
itself.

Queries, keys and values pass a short convolution; each value head keeps a matrix of key by value dimensions, which the
delta rule updates (`delta_rule.py`); the output is normed and gated. transformers: models/qwen3_next, models/qwen3_5,
models/olmo_hybrid (the same maps, fused in other ways).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from .. import ops
from ..flow.tree import Node
from .base import Around, ChunkSize, Component, Flag, Kernel, Real, size_named
from .delta_rule import delta_rule_class
from .norm import Norm, norm_reference
from .runtime import Run, causal_conv_class, state_class, vector

if TYPE_CHECKING:
    from torch import Tensor, nn

    LinearKeyHeads: TypeAlias = int
    LinearValueHeads: TypeAlias = int
    LinearKeyDim: TypeAlias = int
    LinearValueDim: TypeAlias = int
else:
    LinearKeyHeads = size_named("a_k")
    LinearValueHeads = size_named("a_v")
    LinearKeyDim = size_named("d_k")
    LinearValueDim = size_named("d_v")

CHUNK = 64
"""Tokens of a chunk in every known implementation."""


class GatedDeltaNet(Component):
    """Fields as in Qwen3-Next. linear_num_value_heads: each key head serves so many of them as divide evenly.

    linear_allow_neg_eigval: β in [0, 2] instead of [0, 1]. chunk_size: tokens that are computed at once; the state is
    the same whatever it is, the FLOPs are not.
    """

    node_name: ClassVar[str] = "linear_attn"

    type: Literal["gated_delta_net"] = "gated_delta_net"
    linear_num_key_heads: LinearKeyHeads
    linear_num_value_heads: LinearValueHeads
    linear_key_head_dim: LinearKeyDim
    linear_value_head_dim: LinearValueDim
    linear_conv_kernel_dim: Kernel = 4
    linear_allow_neg_eigval: Flag = False
    chunk_size: ChunkSize = CHUNK
    norm_eps: Real = Field(default=1e-6, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        if values % keys:
            raise ValueError(
                f"linear_num_key_heads: {keys} does not divide linear_num_value_heads {values}; expected a divisor "
                f"of {values}"
            )
        return self

    def anatomy(self, name: str, around: Around) -> Node:
        h, a = around.hidden_size, self.linear_num_value_heads
        dk, dv = self.linear_key_head_dim, self.linear_value_head_dim
        keys, values, kernel = self.linear_num_key_heads * dk, a * dv, self.linear_conv_kernel_dim
        channels = 2 * keys + values
        parts = (
            Node("q_proj", ops.Linear(h, keys)),
            Node("k_proj", ops.Linear(h, keys)),
            Node("v_proj", ops.Linear(h, values)),
            Node("conv1d", ops.Conv1d(channels, channels, kernel, groups=channels, padding=kernel - 1)),
            Node("conv_state", ops.State(channels * kernel, "conv_state")),
            Node("a_proj", ops.Linear(h, a)),  # how fast a head forgets
            Node("b_proj", ops.Linear(h, a)),  # how much it corrects
            Node("A_log", ops.Weight(a)),
            Node("dt_bias", ops.Weight(a)),
            Node(
                "core",
                ops.DeltaRule(a, dk, dv, self.chunk_size),
                source="Yang et al. 2024, §3.3",
                forms={"step": ops.Elementwise()},
            ),
            Node("recurrent_state", ops.State(a * dk * dv, bits=32)),
            Node("g_proj", ops.Linear(h, values)),  # the output's gate
            Node("norm", ops.Norm(dv)),
            Node("o_proj", ops.Linear(values, h)),
        )
        return Node(name, children=parts, kind="linear_attention", source="Yang et al. 2024 (arXiv:2412.06464), §3")

    def describe(self, hidden_size: int) -> str:
        heads = f"{self.linear_num_key_heads}/{self.linear_num_value_heads}"
        return f"gated DeltaNet {heads} × {self.linear_key_head_dim}/{self.linear_value_head_dim}"

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=5),
            cls(
                linear_num_key_heads=3,
                linear_num_value_heads=3,
                linear_key_head_dim=4,
                linear_value_head_dim=8,
                chunk_size=4,
                linear_allow_neg_eigval=True,
            ),
        ]


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class GatedDeltaNetReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        conv_state: Any
        recurrent_state: Any

        def __init__(self, spec: GatedDeltaNet, hidden: int) -> None:
            super().__init__()
            heads, self.head_dims = spec.linear_num_value_heads, (spec.linear_key_head_dim, spec.linear_value_head_dim)
            self.key_width, self.value_width = (
                spec.linear_num_key_heads * spec.linear_key_head_dim,
                heads * spec.linear_value_head_dim,
            )
            self.group, self.strength = heads // spec.linear_num_key_heads, 2.0 if spec.linear_allow_neg_eigval else 1.0
            self.q_proj = nn.Linear(hidden, self.key_width, bias=False)
            self.k_proj = nn.Linear(hidden, self.key_width, bias=False)
            self.v_proj = nn.Linear(hidden, self.value_width, bias=False)
            self.conv1d = causal_conv_class()(2 * self.key_width + self.value_width, spec.linear_conv_kernel_dim, False)
            self.a_proj, self.b_proj = nn.Linear(hidden, heads, bias=False), nn.Linear(hidden, heads, bias=False)
            self.A_log = vector(torch.linspace(0.5, 8.0, heads).log())
            self.dt_bias = vector(torch.ones(heads))
            self.core = delta_rule_class()(spec.chunk_size, by_channel=False)
            self.conv_state, self.recurrent_state = state_class()(), state_class()()
            self.g_proj = nn.Linear(hidden, self.value_width, bias=False)
            self.norm = norm_reference(Norm(type="rmsnorm", eps=spec.norm_eps), spec.linear_value_head_dim)
            self.o_proj = nn.Linear(self.value_width, hidden, bias=False)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            dk, dv = self.head_dims
            qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1).transpose(1, 2)
            mixed = F.silu(self.conv1d(qkv, run, self.conv_state)).transpose(1, 2)
            q, k, v = mixed.split([self.key_width, self.key_width, self.value_width], -1)
            q, k = (y.unflatten(-1, (-1, dk)).transpose(1, 2).repeat_interleave(self.group, 1) for y in (q, k))
            decay = -self.A_log.weight.float().exp() * F.softplus(self.a_proj(x).float() + self.dt_bias.weight.float())
            beta = self.strength * self.b_proj(x).sigmoid()
            v, decay, beta = (
                v.unflatten(-1, (-1, dv)).transpose(1, 2),
                decay.transpose(1, 2)[..., None],
                beta.transpose(1, 2),
            )
            out = self.core(q, k, v, decay, beta, run, self.recurrent_state)
            gate = F.silu(self.g_proj(x).unflatten(-1, (-1, dv)))
            normed = self.norm(out.transpose(1, 2).to(x.dtype)) * gate
            result: Tensor = self.o_proj(normed.flatten(2))
            return result

    return GatedDeltaNetReference
