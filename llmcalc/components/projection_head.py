"""A projection of every token's hidden state to a vector of another size (ColBERT, ColPali, EmbeddingGemma 2).

Khattab and Zaharia 2020 (arXiv:2004.12832), §3.1. transformers: models/colqwen2, models/embedding_gemma2.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import Component, Flag, ModelProperties, Width

if TYPE_CHECKING:
    from torch import Tensor, nn


class ProjectionHead(Component):
    """A linear layer from every token's hidden state to a vector for similarity search.

    size: the size of the vector.
    bias: whether the layer has a bias, false by default.
    """

    formula_source: ClassVar[str] = "Khattab and Zaharia 2020, §3.1"
    noun: ClassVar[str] = "head"
    kind: ClassVar[str] = "projection"

    type: Literal["projection"] = "projection"
    size: Width
    bias: Flag = False

    def flow(self, recorder: Flow, x: Value) -> Value:
        return recorder.linear("proj", x, Axis("embedding", self.size), bias=self.bias)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(size=10), cls(size=30, bias=True)]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ProjectionHeadReference(nn.Module):
        """Projects hidden states to vectors. x: [batch, tokens, hidden] → [batch, tokens, size]."""

        def __init__(self, spec: ProjectionHead, model_properties: ModelProperties) -> None:
            super().__init__()
            self.proj = nn.Linear(model_properties.hidden_size, spec.size, bias=spec.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.proj(x)

    return ProjectionHeadReference
