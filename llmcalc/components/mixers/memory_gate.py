"""A gated memory unit: the output of a lower layer's recurrence, multiplied by a gate computed from the token.

SambaY (Ren et al. 2025, arXiv:2507.06607, §2): layers of the second half read the recurrence of one Mamba layer in the
place of one of their own, and keep no state. Source: modeling_phi4flash.py of microsoft/Phi-4-mini-flash-reasoning.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Flag, InnerSize, ModelProperties, TokenMixer
from ..networks.feed_forward import Activation, activate
from ..runtime import PassState
from .mamba import SCAN_OUTPUT

if TYPE_CHECKING:
    from torch import Tensor, nn


class MemoryGate(TokenMixer):
    """Multiplies the output of the nearest lower Mamba layer with `lends_output` by a gate computed from the token.

    intermediate_size: the number of channels of that recurrence.
    use_bias: whether the projections have a bias, false by default.
    hidden_act: the activation of the gate, silu by default.
    """

    formula_source: ClassVar[str] = "Ren et al. 2025, §2"
    node_name: ClassVar[str] = "mamba"
    kind: ClassVar[str] = "state_space"

    type: Literal["memory_gate"] = "memory_gate"
    intermediate_size: InnerSize
    use_bias: Flag = False
    hidden_act: Activation = "silu"

    def dependency_field(self) -> str:
        return "type 'memory_gate'"

    def flow(self, recorder: Flow, x: Value) -> Value:
        inner_axis = Axis("inner", self.intermediate_size)
        gate = recorder.act(recorder.linear("in_proj", x, inner_axis, bias=self.use_bias), self.hidden_act)
        placeholder_memory = Value(x.rows, gate.axes, is_constant=True)  # nothing: the layer is recorded alone
        memory: Value = recorder.layer_memo.get(SCAN_OUTPUT, placeholder_memory)
        return recorder.linear("out_proj", recorder.mul(gate, memory), *x.axes, bias=self.use_bias)

    def describe(self, hidden_size: int) -> str:
        return f"gated memory {self.intermediate_size}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(intermediate_size=40), cls(intermediate_size=24, use_bias=True)]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class MemoryGateReference(nn.Module):
        """Gates the output of a lower layer's recurrence. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: MemoryGate, hidden_size: int) -> None:
            super().__init__()
            self.spec, intermediate_size = spec, spec.intermediate_size
            self.in_proj = nn.Linear(hidden_size, intermediate_size, bias=spec.use_bias)
            self.out_proj = nn.Linear(intermediate_size, hidden_size, bias=spec.use_bias)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            gate = activate(self.spec.hidden_act, self.in_proj(x))
            memory = pass_state.shared_values.get("scan output", x.new_ones(1))
            return self.out_proj(gate * memory)

    return MemoryGateReference
