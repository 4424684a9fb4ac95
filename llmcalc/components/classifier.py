"""Classifiers: hidden states → scores of a few labels.

BERT's classifier reads one vector per sequence (Devlin 2019, §4.1); a decoder's classifier in `transformers` reads
every token.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.rows import LOGITS, SEQUENCES
from .base import TORCH_WITNESS, Component, Flag, InnerWidth, Labels, ModelProperties, PartWitness
from .head_transform import Transform
from .networks.feed_forward import activate
from .norm import Norm
from .runtime import vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn


class Classifier(Component):
    """A classifier: one score for each of `num_labels` labels.

    num_labels: the number of labels.
    bias: whether the output layer has a bias, true by default.
    over: `sequence` (default) reads one vector per sequence, the pooler's output or else the first token. `token`
        reads every token (a decoder's score, of which the last is used; ELECTRA's discriminator).
    transform: a linear layer, an activation and perhaps a norm before it; none by default.
    projection_size: the width to which a linear layer projects every token's hidden state before a sequence's mean
        (wav2vec 2.0); none by default.
    similarity_numbers: how many learned numbers scale and shift the similarity of its scores, as a vector, to that of
        an image (CLIP's scale; SigLIP's scale and bias), which a pass over text does not use; 0 by default.
    """

    formula_source: ClassVar[str] = "Devlin et al. 2019, §4.1"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    noun: ClassVar[str] = "head"
    kind: ClassVar[str] = "classifier"

    type: Literal["classification"] = "classification"
    num_labels: Labels
    bias: Flag = True
    over: Literal["sequence", "token"] = "sequence"
    transform: Transform | None = None
    projection_size: InnerWidth | None = None
    similarity_numbers: int = Field(default=0, ge=0, le=2, strict=True)

    def check_fields(self) -> None:
        if self.projection_size is not None and (self.over != "sequence" or self.transform is not None):
            raise ValueError("projection_size: is for over = 'sequence' without a transform; expected none")
        if self.transform is not None and self.transform.size is not None:
            raise ValueError("transform.size: only an untied language-model head can have one; expected none")
        if self.transform is not None and self.transform.bottleneck_size is not None:
            raise ValueError("transform.bottleneck_size: only a language-model head can have one; expected none")

    def flow(self, recorder: Flow, x: Value) -> Value:
        transform, scored_rows = self.transform, SEQUENCES if self.over == "sequence" else LOGITS
        if self.similarity_numbers:
            recorder.vector("similarity", Axis("numbers", self.similarity_numbers), role="idle")
        if self.projection_size is not None:
            x = recorder.linear("projector", x, Axis("projection", self.projection_size), bias=True)
        classifier_input = x.view(*x.axes, new_rows=scored_rows)
        if transform is not None:
            classifier_input = recorder.act(
                recorder.linear("dense", classifier_input, *x.axes, bias=transform.bias), transform.hidden_act
            )
            classifier_input = (
                classifier_input if transform.norm is None else recorder.part("norm", transform.norm, classifier_input)
            )
        return recorder.linear("out_proj", classifier_input, Axis("labels", self.num_labels), bias=self.bias)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _classifier_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_labels=3, over="token", bias=False),
            cls(num_labels=1, over="token", transform=Transform(norm=None)),
            cls(num_labels=4),
            cls(num_labels=4, projection_size=5),
            cls(num_labels=4, bias=False, similarity_numbers=2),
            cls(num_labels=2, transform=Transform(bias=False, norm=Norm(type="layernorm", bias=False))),
        ]


@cache
def _classifier_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ClassifierReference(nn.Module):
        """Scores every label at every position. x: [batch, positions, hidden] → [batch, positions, num_labels].

        Only the first position is classified if `over` is `sequence`.
        """

        def __init__(self, spec: Classifier, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, hidden_size = spec, spec.projection_size or model_properties.hidden_size
            if spec.projection_size is not None:
                self.projector = nn.Linear(model_properties.hidden_size, hidden_size)
            if spec.transform is not None:
                self.dense = nn.Linear(hidden_size, hidden_size, bias=spec.transform.bias)
                if spec.transform.norm is not None:
                    self.norm = spec.transform.norm.reference(model_properties)
            self.out_proj = nn.Linear(hidden_size, spec.num_labels, bias=spec.bias)
            if spec.similarity_numbers:
                self.similarity = vector_module(torch.zeros(spec.similarity_numbers))

        def forward(self, x: Tensor) -> Tensor:
            x = self.projector(x) if self.spec.projection_size is not None else x
            x = x[:, :1] if self.spec.over == "sequence" else x
            if self.spec.transform is not None:
                x = activate(self.spec.transform.hidden_act, self.dense(x))
                x = self.norm(x) if hasattr(self, "norm") else x
            return self.out_proj(x)

    return ClassifierReference
