"""Kimi Delta Attention (Kimi Team 2025, arXiv:2510.26692, §3): a delta rule with a separate decay for each key channel.

It is like Gated DeltaNet otherwise, except that key and value heads are equal in number, and low-rank projections make
the decay and the output gate, which is a sigmoid. In Ling 3 these projections have full rank, in Kimi K3 the gate's.
transformers: models/kimi_linear, models/bailing_hybrid.
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
)
from ..norm import Norm, norm_reference
from ..runtime import PassState, causal_conv_class, recurrent_state_class, vector_module
from .delta_rule import CHUNK_TOKENS, delta_rule_class, record_convolved_heads, record_delta_rule
from .grouped_query import check_key_heads

if TYPE_CHECKING:
    from torch import Tensor, nn

LinearHeads: TypeAlias = Annotated[int, SizeSymbol("a_l")]
LinearHeadDim: TypeAlias = Annotated[int, SizeSymbol("d_l")]


class KimiDeltaAttention(RecurrentMixer):
    """Kimi Delta Attention, with the field names of Kimi Linear's config.

    linear_num_heads: the number of heads, each with a state of linear_head_dim × linear_head_dim.
    linear_head_dim: the size of a query, key or value head.
    linear_conv_kernel_dim: the kernel size of the convolution, 4 by default.
    low_rank_gates: whether the projections of decay and output gate have rank linear_head_dim, true by default.
    full_rank_output_gate: whether the output gate's projection has full rank although low_rank_gates is true, false by
        default.
    output_gate_bias: whether the second low-rank projection of the output gate has a bias (the model of
        flash-linear-attention), false by default.
    kda_lower_bound: the lower bound of the log decay; None (default) where it has no bound.
    chunk_size: the number of tokens computed at once, 64 by default; FLOPs depend on it, the state does not.
    norm_eps: the ε of the norm on the output, 1e-5 by default.
    """

    formula_source: ClassVar[str] = "Kimi Team 2025 (arXiv:2510.26692), §3"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    kernel_packages: ClassVar[tuple[str, ...]] = ("flash-linear-attention", "causal-conv1d")
    uncounted_operations: ClassVar[str] = (
        "the decays of Kimi delta attention and its scores within a chunk, and in decode the whole step of its state"
    )

    type: Literal["kimi_delta_attention"] = "kimi_delta_attention"
    linear_num_heads: LinearHeads
    linear_head_dim: LinearHeadDim
    linear_conv_kernel_dim: KernelSize = 4
    low_rank_gates: Flag = True
    full_rank_output_gate: Flag = False
    output_gate_bias: Flag = False
    kda_lower_bound: FiniteNumber | None = Field(default=None, lt=0)
    chunk_size: ChunkSize = CHUNK_TOKENS
    norm_eps: FiniteNumber = Field(default=1e-5, ge=0)

    def check_fields(self) -> None:
        if self.chunk_size == 1:
            raise ValueError("chunk_size: chunks of 1 have no system to solve, as is counted; expected at least 2")
        if self.full_rank_output_gate and not self.low_rank_gates:
            raise ValueError("full_rank_output_gate: without low_rank_gates both gates have full rank; expected false")
        if self.output_gate_bias and (self.full_rank_output_gate or not self.low_rank_gates):
            raise ValueError("output_gate_bias: it is for an output gate of low rank; expected false")

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.linear_num_heads, self.linear_num_heads, self.linear_head_dim)

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        check_key_heads(self, head_sizes)
        return self.model_copy(update={"linear_num_heads": head_sizes.heads, "linear_head_dim": head_sizes.head_dim})

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, head_dim = Axis("heads", self.linear_num_heads), Axis("head_dim", self.linear_head_dim)
        head_axes: Shape = (heads, head_dim)
        q, k, v = record_convolved_heads(recorder, x, head_axes, head_axes, self.linear_conv_kernel_dim)
        beta = recorder.act(recorder.linear("b_proj", x, heads), "sigmoid")  # the strength of the correction, per head
        scan_inputs = (q, k, v, self._record_log_decay(recorder, x, head_axes), beta)
        delta_rule = DeltaRule(
            beta.width, head_dim.size, head_dim.size, self.chunk_size, decays_by_channel=True, rows=x.rows
        )
        state_axes = heads, head_dim, head_dim
        scan_output = record_delta_rule(recorder, delta_rule, scan_inputs, state_axes, "Kimi Team 2025, §3.1")
        scan_output = recorder.norm("norm", scan_output, Norm(type="rmsnorm", eps=self.norm_eps), (head_dim,))
        return recorder.linear(
            "o_proj",
            recorder.mul(scan_output, recorder.act(self._gate_projection(recorder, "g", x, head_axes), "sigmoid")),
            *x.axes,
        )

    def _has_low_rank(self, projection_letter: str) -> bool:
        """Whether a gate's projection is low-rank. projection_letter: `f` for the decay, `g` for the output gate."""
        return self.low_rank_gates and not (projection_letter == "g" and self.full_rank_output_gate)

    def _record_log_decay(self, recorder: Flow, x: Value, head_axes: Shape) -> Value:
        """Records the log decay of each channel of the recurrent state, and returns the log decay."""
        heads, *_ = head_axes
        decay_logits = recorder.add(
            self._gate_projection(recorder, "f", x, head_axes), recorder.vector("dt_bias", *head_axes)
        )
        decay_rate = recorder.act(recorder.vector("A_log", heads), "exp")
        if self.kda_lower_bound is None:
            return recorder.mul(recorder.act(decay_logits, "softplus"), decay_rate)
        return recorder.act(recorder.mul(decay_logits, decay_rate), "sigmoid")

    def _gate_projection(self, recorder: Flow, projection_letter: str, x: Value, head_axes: Shape) -> Value:
        """Returns the output of a gate's projection: one full-rank linear layer or two low-rank ones."""
        if not self._has_low_rank(projection_letter):
            return recorder.linear(f"{projection_letter}_proj", x, *head_axes)
        low_rank_x = recorder.linear(f"{projection_letter}_a_proj", x, Axis("gate_rank", self.linear_head_dim))
        has_bias = projection_letter == "g" and self.output_gate_bias
        return recorder.linear(f"{projection_letter}_b_proj", low_rank_x, *head_axes, bias=has_bias)

    def describe(self, hidden_size: int) -> str:
        return f"Kimi delta attention {self.linear_num_heads} × {self.linear_head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(linear_num_heads=3, linear_head_dim=6),
            cls(linear_num_heads=2, linear_head_dim=8, linear_conv_kernel_dim=3, chunk_size=4),
            cls(linear_num_heads=2, linear_head_dim=5, low_rank_gates=False, kda_lower_bound=-5.0),
            cls(linear_num_heads=3, linear_head_dim=6, full_rank_output_gate=True, kda_lower_bound=-5.0),
            cls(linear_num_heads=2, linear_head_dim=5, output_gate_bias=True),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class KimiDeltaAttentionReference(nn.Module):
        """Runs a delta rule with a decay per key channel. x: [batch, tokens, hidden] → same shape."""

        conv_state: Any
        recurrent_state: Any

        def __init__(self, spec: KimiDeltaAttention, hidden_size: int) -> None:
            super().__init__()
            self.heads, head_dim = spec.linear_num_heads, spec.linear_head_dim
            heads_width = self.heads * head_dim
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(hidden_size, heads_width, bias=False) for _ in range(3))
            self.conv1d = causal_conv_class()(3 * heads_width, spec.linear_conv_kernel_dim, False)
            self.lower_bound = spec.kda_lower_bound
            low_rank_gates = {"f": spec.low_rank_gates, "g": spec.low_rank_gates and not spec.full_rank_output_gate}
            for gate_name, is_low_rank in low_rank_gates.items():
                if is_low_rank:
                    self.add_module(f"{gate_name}_a_proj", nn.Linear(hidden_size, head_dim, bias=False))
                    has_bias = gate_name == "g" and spec.output_gate_bias
                    self.add_module(f"{gate_name}_b_proj", nn.Linear(head_dim, heads_width, bias=has_bias))
                else:
                    self.add_module(f"{gate_name}_proj", nn.Linear(hidden_size, heads_width, bias=False))
            self.dt_bias = vector_module(torch.linspace(-6.0, -2.0, heads_width))
            self.A_log = vector_module(torch.linspace(1.0, 16.0, self.heads).log())
            self.b_proj = nn.Linear(hidden_size, self.heads, bias=False)
            self.core = delta_rule_class()(spec.chunk_size, decays_by_channel=True)
            self.conv_state, self.recurrent_state = recurrent_state_class()(), recurrent_state_class()()
            self.norm = norm_reference(Norm(type="rmsnorm", eps=spec.norm_eps), head_dim)
            self.o_proj = nn.Linear(heads_width, hidden_size, bias=False)

        def _split_heads(self, x: Tensor) -> Tensor:
            """Splits the last axis into heads. [batch, tokens, heads · d] → [batch, heads, tokens, d]."""
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        def _gate_projection(self, projection_letter: str, x: Tensor) -> Tensor:
            if not hasattr(self, f"{projection_letter}_a_proj"):
                return self.get_submodule(f"{projection_letter}_proj")(x)
            low_rank_x = self.get_submodule(f"{projection_letter}_a_proj")(x)
            return self.get_submodule(f"{projection_letter}_b_proj")(low_rank_x)

        def _log_decay(self, x: Tensor) -> Tensor:
            """Computes the log decay, [batch, heads, tokens, d], negative."""
            decay_logits = self._split_heads(self._gate_projection("f", x).float() + self.dt_bias.weight.float())
            decay_rate = self.A_log.weight.float().exp()[:, None, None]
            if self.lower_bound is None:
                return -decay_rate * F.softplus(decay_logits)
            return self.lower_bound * (decay_rate * decay_logits).sigmoid()

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1).transpose(1, 2)
            q, k, v = F.silu(self.conv1d(qkv, pass_state, self.conv_state)).transpose(1, 2).chunk(3, -1)
            beta = self.b_proj(x).sigmoid().transpose(1, 2)
            attn_output = self.core(
                self._split_heads(q),
                self._split_heads(k),
                self._split_heads(v),
                self._log_decay(x),
                beta,
                pass_state,
                self.recurrent_state,
            )
            normed_output = (
                self.norm(attn_output.transpose(1, 2).to(x.dtype)).flatten(2) * self._gate_projection("g", x).sigmoid()
            )
            return self.o_proj(normed_output)

    return KimiDeltaAttentionReference
