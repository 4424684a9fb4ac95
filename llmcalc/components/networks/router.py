"""A router of several layers: a map to few features, to which those of the router below are added, a norm and an MLP.

ZAYA1 (Zyphra 2025, arXiv:2511.17127), which adds the features along the depth and lets a token skip the experts of a
layer.
transformers: models/zaya (`ZayaRouter`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Around, Flag, Part, Width
from ..norm import Norm, norm_reference
from ..runtime import Run, vector
from .feed_forward import Activation, activate

if TYPE_CHECKING:
    from torch import Tensor, nn


class RouterMLP(Part):
    """hidden_size → router_hidden_size → twice itself → one logit an expert.

    adds_below: the features of the router in the layer below are added, each with a weight. skip: one more class beside
    the experts: none of them.
    """

    router_hidden_size: Width
    hidden_act: Activation = "gelu"
    norm: Norm = Norm(type="rmsnorm")
    adds_below: Flag = False
    skip: Flag = False

    def classes(self, experts: Number) -> Number:
        return experts + 1 if self.skip else experts

    kind: ClassVar[str] = "router"

    def source(self) -> str:
        return "Zyphra 2025, §2"

    def flow(self, f: Flow, x: Value, classes: Axis) -> Value:
        features = Axis("router", self.router_hidden_size)
        y = f.linear("down_proj", x, features, bias=True)
        if self.adds_below:
            below = f.memo.get("routed", y)
            y = f.add(y, f.mul(below, f.vector("below_scale", features)))
        f.memo["routed"] = y
        y = f.part("norm", self.norm, y)
        y = f.act(f.linear("fc1", y, features, bias=True), self.hidden_act)
        y = f.act(f.linear("fc2", y, features, bias=True), self.hidden_act)
        return f.linear("out_proj", y, classes)

    def reference(self, around: Around, experts: int) -> nn.Module:
        return _reference()(self, around.hidden_size, experts + int(self.skip))


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class RouterReference(nn.Module):
        """x: [rows, hidden] → logits, [rows, classes]."""

        def __init__(self, spec: RouterMLP, hidden: int, classes: int) -> None:
            super().__init__()
            width, self.act = spec.router_hidden_size, spec.hidden_act
            self.down_proj = nn.Linear(hidden, width)
            if spec.adds_below:
                self.below_scale = vector(torch.ones(width))
            self.norm = norm_reference(spec.norm, width)
            self.fc1, self.fc2, self.out_proj = (
                nn.Linear(width, width),
                nn.Linear(width, width),
                nn.Linear(width, classes, bias=False),
            )

        def forward(self, x: Tensor, run: Run) -> Tensor:
            features = self.down_proj(x)
            if hasattr(self, "below_scale") and run.routed is not None:
                features = features + run.routed * self.below_scale.weight
            run.routed = features
            inner = activate(self.act, self.fc2(activate(self.act, self.fc1(self.norm(features)))))
            logits: Tensor = self.out_proj(inner)
            return logits

    return RouterReference
