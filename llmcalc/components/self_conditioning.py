"""Self-conditioning of a model that denoises tokens: the first layer also reads what the previous step predicted.

Chen, Zhang & Hinton 2022 (arXiv:2208.04202), §2.3. A feed-forward network reads the mean embedding under the previous
step's probabilities, zeros in the first step. transformers: models/diffusion_gemma (`DiffusionGemmaSelfConditioning`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from ..flow.record import Flow
from ..flow.value import Value
from .base import Context
from .networks.feed_forward import FeedForward
from .norm import Norm
from .runtime import Run
from .streams import ResidualStreams

if TYPE_CHECKING:
    from torch import Tensor, nn


class SelfConditioning(ResidualStreams):
    """A network on the previous step's mean embeddings, whose output is added to the token embeddings.

    The product of the probabilities with the embedding table, which makes the mean embeddings, is not counted.

    feed_forward: the network.
    norm: the norm before it; the sum has one without weights.
    """

    kind: ClassVar[str] = "feed_forward"

    type: Literal["self_conditioning"] = "self_conditioning"
    feed_forward: FeedForward
    norm: Norm

    def source(self) -> str:
        return "Chen et al. 2022 (arXiv:2208.04202), §2.3"

    def record_split(self, f: Flow, x: Value) -> Value:
        return f.part("self_conditioning", self, x)

    def record_merge(self, f: Flow, x: Value) -> Value:
        return x

    def flow(self, f: Flow, x: Value) -> Value:
        """Returns the input of the first layer. x: the token embeddings."""
        signal = f.part("pre_norm", self.norm, f.received(x, *x.axes))
        f.hold(signal=signal)
        y = f.add(x, f.part("mlp", self.feed_forward, signal))
        f.hold(y=y)
        return f.normalized(y, Norm(type="rmsnorm", weight=False, eps=self.norm.eps))

    def reference(self, context: Context) -> nn.Module:
        return _reference_class()(self, context)


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class Network(nn.Module):
        """The network with its norms; the mean embeddings are zeros here. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: SelfConditioning, context: Context) -> None:
            super().__init__()
            self.pre_norm, self.mlp = spec.norm.reference(context), spec.feed_forward.reference(context)
            self.post_norm = Norm(type="rmsnorm", weight=False, eps=spec.norm.eps).reference(context)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.post_norm(x + self.mlp(self.pre_norm(x.new_zeros(x.shape))))
            return out

    class Holder(nn.Module):
        """A module whose child belongs to the stack's module."""

        def __init__(self, spec: SelfConditioning, context: Context) -> None:
            super().__init__()
            self.self_conditioning = Network(spec, context)

        def split_streams(self, x: Tensor, run: Run) -> Tensor:
            out: Tensor = self.self_conditioning(x)
            return out

        def merge_streams(self, x: Tensor, run: Run) -> Tensor:
            return x

    return Holder
