"""The first layer of an EAGLE-3 draft model, whose attention reads the token embedding and the residual stream.

Li 2025 (arXiv:2503.01840), §3. Sources: `LlamaDecoderLayeremb` in eagle/model/cnets.py of SafeAILab/EAGLE;
`Eagle3FirstLayerMixin` in speculators/models/eagle3/model_definitions.py of vllm-project/speculators.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...flow.axis import JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Flag, ModelProperties
from ..choices import DraftMixer
from ..mixers.attention import Attention
from ..rope import Rope
from ..runtime import PassState
from ..target_states import EAGLE_3_SOURCE
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers

if TYPE_CHECKING:
    from torch import Tensor, nn


class DraftLayer(PreNormLayer):
    """A pre-norm layer whose attention reads the concatenated norms of token embedding and residual stream.

    attention: attention, latent or not, whose input is twice as wide as its output; its heads divide that input where
        no head_dim is stated.
    norm_before_residual: whether the normalized stream is the residual to which attention is added, in place of the
        stream itself; false by default.
    """

    formula_source: ClassVar[str] = EAGLE_3_SOURCE
    can_run_alone: ClassVar[bool] = False

    type: Literal["draft"] = "draft"
    attention: DraftMixer
    norm_before_residual: Flag = False

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {**super().required_stack_fields(), "streams": {"type": "target_states", "start": "states"}}

    def mixers(self, hidden_size: int) -> list[tuple[str, Any, int]]:
        return [("attention", self.attention, 2 * hidden_size)]

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        embedding: Value = recorder.layer_memo.get("embedded", x)  # x itself where the layer is recorded alone
        normed_inputs = (
            recorder.part("embedding_norm", self.norm, embedding),
            recorder.part("self_attn_pre_norm", self.norm, x),
        )
        x = normed_inputs[1] if self.norm_before_residual else x
        joined_input = recorder.cat(*normed_inputs, axes=(JoinedShapes((embedding.axes, x.axes)),))
        recorder.hold(x=x, joined=joined_input)
        x = recorder.add(x, recorder.part("self_attn", self.attention, joined_input, output_axes=x.axes))
        recorder.hold(x=x)
        return recorder.add(x, self._record_sublayer(recorder, "mlp", self.feed_forward, x))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)


def draft_example(**layer_fields: Any) -> DraftLayer:
    """Returns a small EAGLE-3 layer for the examples of a stack."""
    attention = Attention(num_attention_heads=4, num_key_value_heads=2, head_dim=6, position=Rope())
    return DraftLayer(**{**example_sublayers(), "attention": attention}, **layer_fields)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class DraftLayerReference(nn.Module):
        """Runs attention on x and the token embedding, then a network. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: DraftLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            self.norm_before_residual = spec.norm_before_residual
            for norm_name in ("embedding_norm", "self_attn_pre_norm", "mlp_pre_norm"):
                self.add_module(norm_name, spec.norm.reference(model_properties))
            hidden_size = model_properties.hidden_size
            self.self_attn = spec.attention.reference(ModelProperties(2 * hidden_size, output_size=hidden_size))
            self.mlp = spec.feed_forward.reference(model_properties)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            assert pass_state.first_layer_input is not None
            embedding = self.get_submodule("embedding_norm")(pass_state.first_layer_input)
            normed_x = self.get_submodule("self_attn_pre_norm")(x)
            x = normed_x if self.norm_before_residual else x
            x = x + self.self_attn(torch.cat([embedding, normed_x], -1), pass_state)
            return x + self.mlp(self.get_submodule("mlp_pre_norm")(x), pass_state)

    return DraftLayerReference
