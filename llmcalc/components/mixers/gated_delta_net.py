"""Gated DeltaNet: linear attention whose state decays and is updated by the delta rule.

Yang, Kautz & Hatamizadeh 2024 (arXiv:2412.06464).

Queries, keys and values pass a short convolution. Each value head has a state matrix of key dimension × value
dimension, updated by the delta rule (`delta_rule.py`); the output is normalized and gated. transformers:
models/qwen3_next, models/qwen3_5, models/olmo_hybrid (the same projections, fused differently).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field

from ...algebra import Number
from ...flow.axis import Axis, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ...ops import DeltaRule
from ..base import (
    PUBLISHED_KERNELS_WITNESS,
    ChunkSize,
    FiniteNumber,
    Flag,
    HeadSizes,
    KernelSize,
    ModelProperties,
    PartWitness,
    RecurrentMixer,
    SizeSymbol,
    check_divisor,
)
from ..norm import Norm, norm_reference
from ..runtime import PassState, causal_conv_class, recurrent_state_class, vector_module
from .delta_rule import CHUNK_TOKENS, delta_rule_class, record_convolved_heads, record_delta_rule

if TYPE_CHECKING:
    from torch import Tensor, nn

LinearKeyHeads: TypeAlias = Annotated[int, SizeSymbol("a_k")]
LinearValueHeads: TypeAlias = Annotated[int, SizeSymbol("a_v")]
LinearKeyDim: TypeAlias = Annotated[int, SizeSymbol("d_k")]
LinearValueDim: TypeAlias = Annotated[int, SizeSymbol("d_v")]


class GatedDeltaNet(RecurrentMixer):
    """The Gated DeltaNet token mixer, with the field names of Qwen3-Next's config.

    linear_num_key_heads: the number of query and key heads; each serves the same number of value heads.
    linear_num_value_heads: the number of value heads; each has a state and an output. `head_sizes` returns them as
        `heads`, and the key heads as `kv_heads`.
    linear_key_head_dim: the size of a query or key head.
    linear_value_head_dim: the size of a value head.
    linear_conv_kernel_dim: the kernel size of the convolution, 4 by default.
    linear_allow_neg_eigval: whether β is in [0, 2] instead of [0, 1], false by default.
    chunk_size: the number of tokens computed at once, 64 by default; FLOPs depend on it, the state does not.
    norm_type: the norm on the output of each head, `rmsnorm` by default (Megatron-LM has `layernorm` too).
    norm_eps: the ε of that norm, 1e-6 by default.
    """

    formula_source: ClassVar[str] = "Yang et al. 2024 (arXiv:2412.06464), §3"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    kernel_packages: ClassVar[tuple[str, ...]] = ("flash-linear-attention", "causal-conv1d")
    uncounted_operations: ClassVar[str] = "the decays of gated DeltaNet, and in decode the whole step of its state"

    type: Literal["gated_delta_net"] = "gated_delta_net"
    linear_num_key_heads: LinearKeyHeads
    linear_num_value_heads: LinearValueHeads
    linear_key_head_dim: LinearKeyDim
    linear_value_head_dim: LinearValueDim
    linear_conv_kernel_dim: KernelSize = 4
    linear_allow_neg_eigval: Flag = False
    chunk_size: ChunkSize = CHUNK_TOKENS
    norm_type: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_eps: FiniteNumber = Field(default=1e-6, ge=0)

    def check_fields(self) -> None:
        check_divisor(
            "linear_num_key_heads", self.linear_num_key_heads, "linear_num_value_heads", self.linear_num_value_heads
        )

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.linear_num_value_heads, self.linear_num_key_heads, self.linear_key_head_dim)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads = Axis("heads", self.linear_num_value_heads)
        key_dim, value_dim = Axis("key_dim", self.linear_key_head_dim), Axis("value_dim", self.linear_value_head_dim)
        key_axes: Shape = (Axis("key_heads", self.linear_num_key_heads), key_dim)
        value_axes: Shape = (heads, value_dim)
        q, k, v = record_convolved_heads(recorder, x, key_axes, value_axes, self.linear_conv_kernel_dim)
        q, k = recorder.repeat(q, heads), recorder.repeat(k, heads)
        decay_rate = recorder.act(recorder.vector("A_log", heads), "exp")  # the decay rate of each head
        decay = recorder.mul(
            recorder.act(
                recorder.add(recorder.linear("a_proj", x, heads), recorder.vector("dt_bias", heads)), "softplus"
            ),
            decay_rate,
        )
        beta = recorder.act(recorder.linear("b_proj", x, heads), "sigmoid")  # the strength of the correction
        delta_rule = DeltaRule(beta.width, key_dim.size, value_dim.size, self.chunk_size, rows=x.rows)
        scan_inputs, state_axes = (q, k, v, decay, beta), (heads, key_dim, value_dim)
        scan_output = record_delta_rule(recorder, delta_rule, scan_inputs, state_axes, "Yang et al. 2024, §3.3")
        gate = recorder.act(recorder.linear("g_proj", x, *value_axes), "silu")
        scan_output = recorder.norm("norm", scan_output, Norm(type=self.norm_type, eps=self.norm_eps), (value_dim,))
        return recorder.linear("o_proj", recorder.mul(scan_output, gate), *x.axes)

    def describe(self, hidden_size: int) -> str:
        heads_text = f"{self.linear_num_key_heads}/{self.linear_num_value_heads}"
        return f"gated DeltaNet {heads_text} × {self.linear_key_head_dim}/{self.linear_value_head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

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
            cls(
                linear_num_key_heads=2,
                linear_num_value_heads=4,
                linear_key_head_dim=6,
                linear_value_head_dim=5,
                norm_type="layernorm",
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class GatedDeltaNetReference(nn.Module):
        """Runs a gated delta rule on projected, convolved tokens. x: [batch, tokens, hidden] → same shape."""

        conv_state: Any
        recurrent_state: Any

        def __init__(self, spec: GatedDeltaNet, hidden_size: int) -> None:
            super().__init__()
            heads, self.head_dims = spec.linear_num_value_heads, (spec.linear_key_head_dim, spec.linear_value_head_dim)
            self.key_width = spec.linear_num_key_heads * spec.linear_key_head_dim
            self.value_width = heads * spec.linear_value_head_dim
            self.group, self.strength = heads // spec.linear_num_key_heads, 2.0 if spec.linear_allow_neg_eigval else 1.0
            self.q_proj = nn.Linear(hidden_size, self.key_width, bias=False)
            self.k_proj = nn.Linear(hidden_size, self.key_width, bias=False)
            self.v_proj = nn.Linear(hidden_size, self.value_width, bias=False)
            self.conv1d = causal_conv_class()(2 * self.key_width + self.value_width, spec.linear_conv_kernel_dim, False)
            self.a_proj, self.b_proj = (
                nn.Linear(hidden_size, heads, bias=False),
                nn.Linear(hidden_size, heads, bias=False),
            )
            self.A_log = vector_module(torch.linspace(0.5, 8.0, heads).log())
            self.dt_bias = vector_module(torch.ones(heads))
            self.core = delta_rule_class()(spec.chunk_size, decays_by_channel=False)
            self.conv_state, self.recurrent_state = recurrent_state_class()(), recurrent_state_class()()
            self.g_proj = nn.Linear(hidden_size, self.value_width, bias=False)
            self.norm = norm_reference(Norm(type=spec.norm_type, eps=spec.norm_eps), spec.linear_value_head_dim)
            self.o_proj = nn.Linear(self.value_width, hidden_size, bias=False)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            key_dim, value_dim = self.head_dims
            qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1).transpose(1, 2)
            convolution_output = F.silu(self.conv1d(qkv, pass_state, self.conv_state)).transpose(1, 2)
            q, k, v = convolution_output.split([self.key_width, self.key_width, self.value_width], -1)
            q, k = (
                vectors.unflatten(-1, (-1, key_dim)).transpose(1, 2).repeat_interleave(self.group, 1)
                for vectors in (q, k)
            )
            decay = -self.A_log.weight.float().exp() * F.softplus(self.a_proj(x).float() + self.dt_bias.weight.float())
            beta = self.strength * self.b_proj(x).sigmoid()
            v = v.unflatten(-1, (-1, value_dim)).transpose(1, 2)
            decay = decay.transpose(1, 2)[..., None]
            beta = beta.transpose(1, 2)
            scan_output = self.core(q, k, v, decay, beta, pass_state, self.recurrent_state)
            gate = F.silu(self.g_proj(x).unflatten(-1, (-1, value_dim)))
            normed_output = self.norm(scan_output.transpose(1, 2).to(x.dtype)) * gate
            return self.o_proj(normed_output.flatten(2))

    return GatedDeltaNetReference
