"""HGRN2: linear attention whose keys are 1 − forget gate, where each layer's gates have a lower bound.

Qin et al. 2024 (arXiv:2404.07904), §3. S ← diag(α)·S + (1 − α) ⊗ i, o = Sᵀq / √key_dim, with α = β + (1 − β)·σ(f); then
a norm over all heads. β is 0 in the first layer and grows with the layers: a row of a table that all layers share,
summed after a softmax over the layers, which is not counted. flash-linear-attention: fla/layers/hgrn2.py.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    PUBLISHED_KERNELS_WITNESS,
    ChunkSize,
    FiniteNumber,
    Flag,
    Heads,
    HeadSizes,
    ModelProperties,
    PartWitness,
    RecurrentMixer,
)
from ..norm import Norm, norm_reference
from ..runtime import PassState, recurrent_state_class, vector_module
from .delta_rule import CHUNK_TOKENS
from .gated_delta_net import LinearKeyDim, LinearValueDim
from .linear_attention import linear_attention_class, record_linear_attention

if TYPE_CHECKING:
    from torch import Tensor, nn


class HGRN2(RecurrentMixer):
    """HGRN2's token mixer: a gated linear recurrence.

    num_attention_heads: the number of heads, each with a state of linear_key_head_dim × linear_value_head_dim.
    linear_key_head_dim: the size of a query or of a forget gate of a head.
    linear_value_head_dim: the size of an input of a head.
    lower_bound: whether the layer has a lower bound of its forget gates, true by default.
    first: whether it is the first layer's, whose lower bound is 0; false by default.
    chunk_size: the number of tokens computed at once, 64 by default; FLOPs depend on it, the state does not.
    norm_eps: the ε of the norm on the output, 1e-5 by default.
    """

    formula_source: ClassVar[str] = "Qin et al. 2024 (HGRN2), §3"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    kernel_packages: ClassVar[tuple[str, ...]] = ("flash-linear-attention",)
    uncounted_operations: ClassVar[str] = "the forget gates of HGRN2"

    type: Literal["hgrn2"] = "hgrn2"
    num_attention_heads: Heads
    linear_key_head_dim: LinearKeyDim
    linear_value_head_dim: LinearValueDim
    lower_bound: Flag = True
    first: Flag = False
    chunk_size: ChunkSize = CHUNK_TOKENS
    norm_eps: FiniteNumber = Field(default=1e-5, ge=0)

    def check_fields(self) -> None:
        if self.first and not self.lower_bound:
            raise ValueError("first: the first layer differs by its lower bound alone; expected false")

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.num_attention_heads, self.num_attention_heads, self.linear_key_head_dim)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads = Axis("heads", self.num_attention_heads)
        key_dim, value_dim = Axis("key_dim", self.linear_key_head_dim), Axis("value_dim", self.linear_value_head_dim)
        q = recorder.linear("q_proj", x, heads, key_dim)
        forget_logits = recorder.linear("f_proj", x, heads, key_dim)
        scan_input = recorder.linear("i_proj", x, heads, value_dim)
        forget_gate = self._record_forget_gate(recorder, forget_logits)
        scan_inputs = (
            recorder.act(q, "silu"),
            recorder.complement(forget_gate),
            scan_input,
            recorder.act(forget_gate, "log"),
        )
        scan_output = record_linear_attention(recorder, scan_inputs, (heads, key_dim, value_dim), self.chunk_size)
        scan_output = recorder.norm("norm", scan_output, Norm(type="rmsnorm", eps=self.norm_eps))
        return recorder.linear("o_proj", scan_output, *x.axes)

    def _record_forget_gate(self, recorder: Flow, forget_logits: Value) -> Value:
        """Records the computation of the forget gate, which is the share of the state that each channel retains."""
        if not self.lower_bound:
            return recorder.act(forget_logits, "sigmoid")
        lower_bound = recorder.vector("lower_bound", *forget_logits.axes)
        if self.first:
            return recorder.act(recorder.add(forget_logits, recorder.sub(lower_bound, lower_bound)), "sigmoid")
        gate = recorder.act(forget_logits, "sigmoid")
        return recorder.add(recorder.mul(gate, recorder.complement(lower_bound)), lower_bound)

    def describe(self, hidden_size: int) -> str:
        return f"HGRN2 {self.num_attention_heads} × {self.linear_key_head_dim}/{self.linear_value_head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        head_fields: dict[str, Any] = {"linear_key_head_dim": 6, "linear_value_head_dim": 5, "chunk_size": 4}
        return [
            cls(num_attention_heads=4, linear_key_head_dim=6, linear_value_head_dim=8),
            cls(num_attention_heads=3, **head_fields, first=True),
            cls(num_attention_heads=3, **head_fields, lower_bound=False),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class HGRN2Reference(nn.Module):
        """The recurrence of HGRN2. x: [batch, tokens, hidden] → same shape."""

        recurrent_state: Any

        def __init__(self, spec: HGRN2, hidden_size: int) -> None:
            super().__init__()
            self.heads, self.is_first = spec.num_attention_heads, spec.first
            key_width, value_width = (
                spec.num_attention_heads * head_dim
                for head_dim in (spec.linear_key_head_dim, spec.linear_value_head_dim)
            )
            self.q_proj, self.f_proj = (nn.Linear(hidden_size, key_width, bias=False) for _ in range(2))
            self.i_proj = nn.Linear(hidden_size, value_width, bias=False)
            self.lower_bound = vector_module(torch.linspace(0.0, 0.5, key_width)) if spec.lower_bound else None
            self.core, self.recurrent_state = linear_attention_class()(spec.chunk_size), recurrent_state_class()()
            self.norm = norm_reference(Norm(type="rmsnorm", eps=spec.norm_eps), value_width)
            self.o_proj = nn.Linear(value_width, hidden_size, bias=False)

        def _split_heads(self, x: Tensor) -> Tensor:
            """Splits the last axis into heads. [batch, tokens, heads · d] → [batch, heads, tokens, d]."""
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        def _forget_gate(self, forget_logits: Tensor) -> Tensor:
            """Returns the forget gate in fp32: the retained share of each channel's state. Has the logits' shape."""
            gate = forget_logits.float().sigmoid()
            if self.lower_bound is None:
                return gate
            lower_bound = self.lower_bound.weight.float()
            lower_bound = lower_bound - lower_bound if self.is_first else lower_bound
            return gate * (1 - lower_bound) + lower_bound

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            q, forget_gate, scan_input = F.silu(self.q_proj(x)), self._forget_gate(self.f_proj(x)), self.i_proj(x)
            scan_output = self.core(
                self._split_heads(q),
                self._split_heads(1 - forget_gate),
                self._split_heads(scan_input),
                self._split_heads(forget_gate.log()),
                pass_state,
                self.recurrent_state,
            )
            return self.o_proj(self.norm(scan_output.transpose(1, 2).flatten(2).to(x.dtype)))

    return HGRN2Reference
