"""A layer with attention and a state-space mixer in parallel (Falcon-H1, arXiv:2507.22448).

Both mixers read the same input, and their outputs are added.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import Number
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    SCALABLE_MODELS,
    TORCH_WITNESS,
    HeadSizes,
    ModelProperties,
    Nothing,
    PartWitness,
    TokenMixer,
    UnscalableError,
)
from ..choices import Mixer
from ..mixers.mamba import Mamba
from ..mixers.mamba2 import Mamba2
from ..networks.feed_forward import FeedForward
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers

if TYPE_CHECKING:
    from torch import Tensor, nn


class HybridBlock(PreNormLayer):
    """Attention and a state-space mixer on the same normed input, then a feed-forward network, with pre-norms.

    state_space: the mixer beside attention.
    """

    formula_source: ClassVar[str] = "Falcon-H1 2025, §2.1"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    is_plain_transformer_layer: ClassVar[bool] = True

    type: Literal["hybrid"] = "hybrid"
    state_space: Mixer

    def check_fields(self) -> None:
        super().check_fields()
        if isinstance(self.state_space, Nothing):
            raise ValueError("state_space: a hybrid layer has one; expected another type, or a layer of type 'block'")

    def with_replaced_mixers(self, replace_mixer: Callable[[TokenMixer, int], TokenMixer], hidden_size: int) -> Self:
        state_space = replace_mixer(self.state_space, hidden_size)
        return super(HybridBlock, self.model_copy(update={"state_space": state_space})).with_replaced_mixers(
            replace_mixer, hidden_size
        )

    def mixers(self, hidden_size: int) -> list[tuple[str, Any, int]]:
        return [*super().mixers(hidden_size), ("state_space", self.state_space, hidden_size)]

    def scaled(
        self, hidden_size: int, heads: Callable[[HeadSizes], HeadSizes], scale_width: Callable[[int], Number]
    ) -> Self:
        raise UnscalableError(
            f"a state-space part beside attention has no rule for its sizes at another width; {SCALABLE_MODELS}"
        )

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        normed_x = recorder.part("mixers_pre_norm", self.norm, x)
        recorder.hold(y=normed_x)
        x = recorder.add(x, recorder.part("self_attn", self.attention, normed_x))
        x = recorder.add(x, recorder.part("state_space", self.state_space, normed_x))
        return recorder.add(x, self._record_sublayer(recorder, "mlp", self.feed_forward, x))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=40, hidden_act="silu", gated=True)
        layer_fields = {**example_sublayers(), "feed_forward": network}
        return [cls(**layer_fields, state_space=mixer) for mixer in (Mamba2.examples()[0], Mamba.examples()[0])]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class HybridBlockReference(nn.Module):
        """Adds attention, state-space mixer and network outputs to x. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: HybridBlock, model_properties: ModelProperties) -> None:
            super().__init__()
            self.mixers_pre_norm = spec.norm.reference(model_properties)
            self.mlp_pre_norm = spec.norm.reference(model_properties)
            for mixer_name, component in (
                ("state_space", spec.state_space),
                ("self_attn", spec.attention),
                ("mlp", spec.feed_forward),
            ):
                self.add_module(mixer_name, component.reference(model_properties))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            normed_x = self.mixers_pre_norm(x)
            x = (
                x
                + self.get_submodule("self_attn")(normed_x, pass_state)
                + self.get_submodule("state_space")(normed_x, pass_state)
            )
            return x + self.get_submodule("mlp")(self.mlp_pre_norm(x), pass_state)

    return HybridBlockReference
