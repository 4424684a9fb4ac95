"""A layer with gated norms: each norm's output is multiplied by the sigmoid of a low-rank projection of itself.

transformers: models/axk2 (`AXK2GatedRMSNorm`, `AXK2DecoderLayer`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Flag, ModelProperties, PartWitness, StepRank
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn

GATE_SUFFIX = "_pre_norm_gate"
"""The suffix of the name of a norm's gate in the tree."""


class GatedNormLayer(PreNormLayer):
    """Pre-norm attention and a feed-forward network; each norm's output n is multiplied by σ(up(silu(down(n)))).

    gated_norm_rank: the rank of a gate.
    feed_forward_gate: whether the norm before the feed-forward network is gated too, true by default.
    """

    formula_source: ClassVar[str] = "A.X-K2 2026"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["gated_norm"] = "gated_norm"
    gated_norm_rank: StepRank
    feed_forward_gate: Flag = True

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        for sublayer_name, component in (("self_attn", self.attention), ("mlp", self.feed_forward)):
            sublayer_input = recorder.part(f"{sublayer_name}_pre_norm", self.norm, x)
            recorder.hold(y=sublayer_input)
            if sublayer_name == "self_attn" or self.feed_forward_gate:
                sublayer_input = self._gated_output(recorder, sublayer_name + GATE_SUFFIX, sublayer_input)
                recorder.hold(y=sublayer_input)
            x = recorder.add(x, recorder.part(sublayer_name, component, sublayer_input))
            recorder.hold(x=x)
        return x

    def _gated_output(self, recorder: Flow, sublayer_name: str, x: Value) -> Value:
        """Returns a norm's output multiplied by the norm's gate."""
        with recorder.scope(sublayer_name, kind="norm"):
            low_rank_x = recorder.act(recorder.linear("down_proj", x, Axis("rank", self.gated_norm_rank)), "silu")
            gate = recorder.act(recorder.linear("up_proj", low_rank_x, *x.axes), "sigmoid", in_float32=True)
            return recorder.mul(x, gate, in_float32=True)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        layer = cls(**example_sublayers(), gated_norm_rank=3)
        return [layer, layer.model_copy(update={"feed_forward_gate": False})]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class NormGate(nn.Module):
        """Multiplies a norm's output by a computed gate between 0 and 1. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, hidden_size: int, rank: int) -> None:
            super().__init__()
            self.down_proj, self.up_proj = (
                nn.Linear(hidden_size, rank, bias=False),
                nn.Linear(rank, hidden_size, bias=False),
            )

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.up_proj(nn.functional.silu(self.down_proj(x))).float().sigmoid()).to(x.dtype)

    class GatedNormLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Runs sublayers behind gated norms. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: GatedNormLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            for sublayer_name in ("self_attn", "mlp") if spec.feed_forward_gate else ("self_attn",):
                self.add_module(
                    f"{sublayer_name}_pre_norm_gate", NormGate(model_properties.hidden_size, spec.gated_norm_rank)
                )

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            for sublayer_name in ("self_attn", "mlp"):
                branch = self.get_submodule(f"{sublayer_name}_pre_norm")(x)
                gate_name = f"{sublayer_name}_pre_norm_gate"
                branch = self.get_submodule(gate_name)(branch) if hasattr(self, gate_name) else branch
                x = x + self.get_submodule(sublayer_name)(branch, pass_state)
            return x

    return GatedNormLayerReference
