"""DeltaNet: linear attention whose state is updated by the delta rule, without a decay.

Schlag, Irie & Schmidhuber 2021 (arXiv:2102.11174); in chunks, Yang et al. 2024 (arXiv:2406.06484).

Queries, keys and values pass a short convolution; queries and keys have length 1. Each head has a state matrix of key
dimension × value dimension (`delta_rule.py`); its output is normalized and, with a gate, multiplied by SiLU of a
projection. Gated DeltaNet adds a decay. flash-linear-attention: fla/layers/delta_net.py.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

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
)
from ..norm import Norm, norm_reference
from ..runtime import PassState, causal_conv_class, recurrent_state_class
from .delta_rule import CHUNK_TOKENS, delta_rule_class, record_convolved_heads, record_delta_rule
from .gated_delta_net import LinearKeyDim, LinearValueDim
from .kimi_delta_attention import LinearHeads

if TYPE_CHECKING:
    from torch import Tensor, nn


class DeltaNet(RecurrentMixer):
    """The DeltaNet token mixer, whose fields are named as in the other delta-rule mixers.

    linear_num_heads: the number of heads, each with a state of linear_key_head_dim × linear_value_head_dim.
    linear_key_head_dim: the size of a query or key head.
    linear_value_head_dim: the size of a value head.
    linear_conv_kernel_dim: the kernel size of the convolution, 4 by default.
    linear_allow_neg_eigval: whether β is in [0, 2] instead of [0, 1], false by default.
    output_gate: whether the output is multiplied by SiLU of a projection, false by default.
    chunk_size: the number of tokens computed at once, 64 by default; FLOPs depend on it, the state does not.
    norm_eps: the ε of the norm on the output, 1e-5 by default.
    """

    formula_source: ClassVar[str] = "Yang et al. 2024, §3"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    kernel_packages: ClassVar[tuple[str, ...]] = ("flash-linear-attention",)
    uncounted_operations: ClassVar[str] = "in decode the whole step of DeltaNet's state"

    type: Literal["delta_net"] = "delta_net"
    linear_num_heads: LinearHeads
    linear_key_head_dim: LinearKeyDim
    linear_value_head_dim: LinearValueDim
    linear_conv_kernel_dim: KernelSize = 4
    linear_allow_neg_eigval: Flag = False
    output_gate: Flag = False
    chunk_size: ChunkSize = CHUNK_TOKENS
    norm_eps: FiniteNumber = Field(default=1e-5, ge=0)

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.linear_num_heads, self.linear_num_heads, self.linear_key_head_dim)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads = Axis("heads", self.linear_num_heads)
        key_dim, value_dim = Axis("key_dim", self.linear_key_head_dim), Axis("value_dim", self.linear_value_head_dim)
        value_axes: Shape = (heads, value_dim)
        q, k, v = record_convolved_heads(recorder, x, (heads, key_dim), value_axes, self.linear_conv_kernel_dim)
        beta = recorder.act(recorder.linear("b_proj", x, heads), "sigmoid")  # the strength of the correction, per head
        beta = recorder.scale(beta, 2.0) if self.linear_allow_neg_eigval else beta
        delta_rule = DeltaRule(beta.width, key_dim.size, value_dim.size, self.chunk_size, rows=x.rows)
        scan_output = record_delta_rule(recorder, delta_rule, (q, k, v, beta), (heads, key_dim, value_dim))
        gate = recorder.act(recorder.linear("g_proj", x, *value_axes), "silu") if self.output_gate else None
        scan_output = recorder.norm("norm", scan_output, Norm(type="rmsnorm", eps=self.norm_eps), (value_dim,))
        return recorder.linear("o_proj", scan_output if gate is None else recorder.mul(scan_output, gate), *x.axes)

    def describe(self, hidden_size: int) -> str:
        return f"DeltaNet {self.linear_num_heads} × {self.linear_key_head_dim}/{self.linear_value_head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(linear_num_heads=3, linear_key_head_dim=6, linear_value_head_dim=5),
            cls(
                linear_num_heads=2,
                linear_key_head_dim=4,
                linear_value_head_dim=8,
                linear_conv_kernel_dim=3,
                linear_allow_neg_eigval=True,
                output_gate=True,
                chunk_size=4,
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class DeltaNetReference(nn.Module):
        """Runs a delta rule on projected, convolved tokens. x: [batch, tokens, hidden] → same shape."""

        conv_state: Any
        recurrent_state: Any

        def __init__(self, spec: DeltaNet, hidden_size: int) -> None:
            super().__init__()
            self.heads, self.allows_negative = spec.linear_num_heads, spec.linear_allow_neg_eigval
            self.key_width = self.heads * spec.linear_key_head_dim
            self.value_width = self.heads * spec.linear_value_head_dim
            self.q_proj = nn.Linear(hidden_size, self.key_width, bias=False)
            self.k_proj = nn.Linear(hidden_size, self.key_width, bias=False)
            self.v_proj = nn.Linear(hidden_size, self.value_width, bias=False)
            self.conv1d = causal_conv_class()(2 * self.key_width + self.value_width, spec.linear_conv_kernel_dim, False)
            self.b_proj = nn.Linear(hidden_size, self.heads, bias=False)
            self.core = delta_rule_class()(spec.chunk_size, decays_by_channel=False)
            self.conv_state, self.recurrent_state = recurrent_state_class()(), recurrent_state_class()()
            self.g_proj = nn.Linear(hidden_size, self.value_width, bias=False) if spec.output_gate else None
            self.norm = norm_reference(Norm(type="rmsnorm", eps=spec.norm_eps), spec.linear_value_head_dim)
            self.o_proj = nn.Linear(self.value_width, hidden_size, bias=False)

        def _split_heads(self, x: Tensor) -> Tensor:
            """Splits the last axis into heads. [batch, tokens, heads · d] → [batch, heads, tokens, d]."""
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1).transpose(1, 2)
            convolution_output = F.silu(self.conv1d(qkv, pass_state, self.conv_state)).transpose(1, 2)
            q, k, v = convolution_output.split([self.key_width, self.key_width, self.value_width], -1)
            beta = self.b_proj(x).sigmoid().transpose(1, 2)
            beta = 2.0 * beta if self.allows_negative else beta
            q, k, v = self._split_heads(q), self._split_heads(k), self._split_heads(v)
            scan_output = self.core(q, k, v, None, beta, pass_state, self.recurrent_state)
            output = self.norm(scan_output.transpose(1, 2).to(x.dtype)).flatten(2)
            if self.g_proj is not None:
                output = output * F.silu(self.g_proj(x))
            return self.o_proj(output)

    return DeltaNetReference
