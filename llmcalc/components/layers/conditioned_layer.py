"""A layer whose network input is normalized and scaled by a function of a sequence-wide condition.

Voxtral Realtime (transformers: models/voxtral_realtime, `VoxtralRealtimeTextAdaRmsNorm`): the condition is the sinusoid
of the number of tokens by which the text follows the sound.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import EmbeddingRows
from ..base import InnerWidth, ModelProperties
from ..rotation import rotary_angles
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class ConditionedLayer(PreNormLayer):
    """Attention and a network; a condition vector, through two linear layers, scales the network's input.

    condition_rank: the width between the two linear layers, neither of which has a bias.
    """

    formula_source: ClassVar[str] = "Voxtral Realtime 2026"

    type: Literal["conditioned"] = "conditioned"
    condition_rank: InnerWidth

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        recorder.hold(x=x)
        x = recorder.add(x, self._record_sublayer(recorder, "self_attn", self.attention, x))
        recorder.hold(x=x)
        normed_x = recorder.part("mlp_pre_norm", self.norm, x)
        with recorder.scope("condition", kind="norm"):
            condition = recorder.sinusoids(x, EmbeddingRows("condition"), *x.axes)
            condition_scale = recorder.act(
                recorder.linear("in_proj", condition, Axis("rank", self.condition_rank)), "gelu"
            )
            normed_x = recorder.mul(normed_x, recorder.plus(recorder.linear("out_proj", condition_scale, *x.axes), 1.0))
        return recorder.add(x, recorder.part("mlp", self.feed_forward, normed_x))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(**example_sublayers(), condition_rank=5)]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ConditionScale(nn.Module):
        """Scales x by a function of a fixed condition vector. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, hidden_size: int, rank: int) -> None:
            super().__init__()
            self.width = hidden_size
            self.in_proj, self.out_proj = (
                nn.Linear(hidden_size, rank, bias=False),
                nn.Linear(rank, hidden_size, bias=False),
            )

        def forward(self, x: Tensor) -> Tensor:
            angles = rotary_angles(torch.ones(1, device=x.device), self.width, 10000.0)
            condition = torch.cat([angles.cos(), angles.sin()], -1)[:, : self.width].to(x.dtype)
            condition_scale: Tensor = self.out_proj(nn.functional.gelu(self.in_proj(condition)))
            return x * (1 + condition_scale)

    class ConditionedLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Runs attention, then a network on a scaled input. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ConditionedLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            self.condition = ConditionScale(model_properties.hidden_size, spec.condition_rank)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            x = x + self._sublayer_output("self_attn", x, pass_state)
            conditioned_x = self.condition(self.mlp_pre_norm(x))
            return x + self.mlp(conditioned_x, pass_state)

    return ConditionedLayerReference
