"""The base classes of layers that require attention, a feed-forward network and norms."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...flow.record import Flow
from ...flow.value import Value
from ..base import ModelProperties, Nothing
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..rope import Rope
from ..runtime import PassState
from .block import Layer

if TYPE_CHECKING:
    from torch import Tensor


class WholeLayer(Layer):
    """A layer that requires attention, a feed-forward network and all their norms, and that has no cross-attention."""

    parallel: None = None
    cross_attention: None = None

    def check_fields(self) -> None:
        if isinstance(self.attention, Nothing) or isinstance(self.feed_forward, Nothing) or self.without_norms:
            type_name = type(self).model_fields["type"].default
            raise ValueError(
                f"attention, feed_forward, without_norms: {'an' if type_name[0] in 'aeiou' else 'a'} '{type_name}' "
                "layer has both, with all of its norms"
            )

    def _record_sublayer(self, recorder: Flow, sublayer_name: str, component: Any, x: Value) -> Value:
        """Records the operations of a norm and of the named sublayer after it, and returns the sublayer's output."""
        return recorder.part(sublayer_name, component, recorder.part(f"{sublayer_name}_pre_norm", self.norm, x))


class PreNormLayer(WholeLayer):
    """The base class of layers with a required norm before attention and before the feed-forward network."""

    is_plain_transformer_layer: ClassVar[bool] = False

    norm_placement: Literal["pre"] = "pre"


def example_sublayers() -> dict[str, Any]:
    """Returns a small attention, feed-forward network and norm, keyed by field, for the examples of layers."""
    return {
        "attention": Attention(num_attention_heads=4, num_key_value_heads=2, position=Rope()),
        "feed_forward": FeedForward(intermediate_size=20, hidden_act="silu", gated=True),
        "norm": Norm(type="rmsnorm"),
    }


@cache
def pre_norm_reference_class() -> Any:
    """Returns the base class of PyTorch references for layers with a norm before each sublayer."""
    from torch import nn

    class PreNormReference(nn.Module):
        """The base class of PyTorch references for layers with pre-norm attention and a pre-norm network."""

        def __init__(self, spec: Layer, model_properties: ModelProperties) -> None:
            super().__init__()
            for sublayer_name, component in (("self_attn", spec.attention), ("mlp", spec.feed_forward)):
                self.add_module(f"{sublayer_name}_pre_norm", spec.norm.reference(model_properties))
                self.add_module(sublayer_name, component.reference(model_properties))

        def _sublayer_output(self, sublayer_name: str, x: Tensor, pass_state: PassState) -> Tensor:
            """Returns the output of a sublayer with a preceding norm."""
            return self.get_submodule(sublayer_name)(self.get_submodule(f"{sublayer_name}_pre_norm")(x), pass_state)

    return PreNormReference
