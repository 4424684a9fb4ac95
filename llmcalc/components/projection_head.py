"""A projection of every token's hidden state to a vector of another size (ColBERT, ColPali, EmbeddingGemma 2).

Khattab and Zaharia 2020 (arXiv:2004.12832), §3.1. transformers: models/colqwen2, models/embedding_gemma2.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import Component, Flag, InnerWidth, ModelProperties

if TYPE_CHECKING:
    from torch import Tensor, nn


class ProjectionHead(Component):
    """A linear layer from every token's hidden state to a vector for similarity search.

    size: the size of the vector.
    bias: whether its layers have a bias, false by default.
    inner_size: the width of another linear layer with a ReLU before it (jina-reranker-v3); none by default.
    """

    formula_source: ClassVar[str] = "Khattab and Zaharia 2020, §3.1"
    noun: ClassVar[str] = "head"
    kind: ClassVar[str] = "projection"

    type: Literal["projection"] = "projection"
    size: InnerWidth
    bias: Flag = False
    inner_size: InnerWidth | None = None

    def flow(self, recorder: Flow, x: Value) -> Value:
        if self.inner_size is not None:
            x = recorder.act(recorder.linear("dense", x, Axis("inner", self.inner_size), bias=self.bias), "relu")
        return recorder.linear("proj", x, Axis("embedding", self.size), bias=self.bias)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(size=10), cls(size=30, bias=True), cls(size=10, inner_size=6)]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ProjectionHeadReference(nn.Module):
        """Projects hidden states to vectors. x: [batch, tokens, hidden] → [batch, tokens, size]."""

        def __init__(self, spec: ProjectionHead, model_properties: ModelProperties) -> None:
            super().__init__()
            input_size = model_properties.hidden_size
            if spec.inner_size is not None:
                self.dense = nn.Linear(input_size, spec.inner_size, bias=spec.bias)
                input_size = spec.inner_size
            self.proj = nn.Linear(input_size, spec.size, bias=spec.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.proj(self.dense(x).relu() if hasattr(self, "dense") else x)

    return ProjectionHeadReference
