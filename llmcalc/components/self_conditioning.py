"""Self-conditioning of a denoising model: the first layer also reads the previous denoising step's predictions.

Chen, Zhang & Hinton 2022 (arXiv:2208.04202), §2.3. A feed-forward network reads the mean embedding under the previous
step's probabilities, zeros in the first step. transformers: models/diffusion_gemma (`DiffusionGemmaSelfConditioning`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from ..flow.record import Flow
from ..flow.value import Value
from .base import ModelProperties
from .networks.feed_forward import FeedForward
from .norm import Norm
from .residual_streams import ResidualStreams
from .runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn


class SelfConditioning(ResidualStreams):
    """A network on the previous step's mean embeddings, whose output is added to the token embeddings.

    The product of the probabilities with the embedding table, which makes the mean embeddings, is not counted.

    feed_forward: the network.
    norm: the norm before it; the sum has one without weights.
    """

    formula_source: ClassVar[str] = "Chen et al. 2022 (arXiv:2208.04202), §2.3"
    kind: ClassVar[str] = "feed_forward"

    type: Literal["self_conditioning"] = "self_conditioning"
    feed_forward: FeedForward
    norm: Norm

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        return recorder.part("self_conditioning", self, x)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the self-conditioning's operations and returns the first layer's input. x: the token embeddings."""
        condition = recorder.part("pre_norm", self.norm, recorder.received(x, *x.axes))
        recorder.hold(signal=condition)
        conditioned_x = recorder.add(x, recorder.part("mlp", self.feed_forward, condition))
        recorder.hold(y=conditioned_x)
        return recorder.normalized(conditioned_x, Norm(type="rmsnorm", weight=False, eps=self.norm.eps))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ConditioningNetwork(nn.Module):
        """Adds to x a network's output, whose input is zeros here. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: SelfConditioning, model_properties: ModelProperties) -> None:
            super().__init__()
            self.pre_norm = spec.norm.reference(model_properties)
            self.mlp = spec.feed_forward.reference(model_properties)
            self.post_norm = Norm(type="rmsnorm", weight=False, eps=spec.norm.eps).reference(model_properties)

        def forward(self, x: Tensor) -> Tensor:
            return self.post_norm(x + self.mlp(self.pre_norm(x.new_zeros(x.shape))))

    class SelfConditioningReference(nn.Module):
        """Runs the self-conditioning network on the first layer's input, in the module that splits residual streams."""

        def __init__(self, spec: SelfConditioning, model_properties: ModelProperties) -> None:
            super().__init__()
            self.self_conditioning = ConditioningNetwork(spec, model_properties)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return self.self_conditioning(x)

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return x

    return SelfConditioningReference
