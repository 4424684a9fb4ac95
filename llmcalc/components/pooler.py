"""The pooler: one vector per sequence and optional scores computed from it, in addition to the output head.

BERT projects the first token's hidden state (Devlin 2019, arXiv:1810.04805, `BertPooler`); in pretraining it also
scores the result (`BertPreTrainingHeads`). GPT's double-head classes score the last token's hidden state directly.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Self

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.rows import SEQUENCES, Rows
from .base import TORCH_WITNESS, Component, Flag, Labels, ModelProperties, PartWitness
from .output_part import OutputPart

if TYPE_CHECKING:
    from torch import Tensor, nn


class Pooler(OutputPart):
    """A vector per sequence, with optional scores computed from the vector.

    dense: true (default) computes the vector from the first token's hidden state by a linear layer and tanh (BERT);
        false takes the last token's hidden state (GPT's multiple-choice head).
    num_labels: the number of scores that a linear layer computes from the vector (next sentence); none by default.
    """

    formula_source: ClassVar[str] = "Devlin et al. 2019"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "pooler"

    dense: Flag = True
    num_labels: Labels | None = None

    def check_fields(self) -> None:
        if not self.dense and self.num_labels is None:
            raise ValueError("num_labels: missing; a pooler without a dense map has scores, or is left out")

    def flow(self, recorder: Flow, x: Value, stack: Component | None = None, rows: Rows = SEQUENCES) -> Value:
        """Records the pooler's operations and returns each sequence's vector. x: hidden states. rows: of sequences."""
        pooled_vector = x.view(*x.axes, new_rows=rows)
        if self.dense:
            pooled_vector = recorder.act(recorder.linear("dense", pooled_vector, *x.axes, bias=True), "tanh")
        if self.num_labels is not None:
            recorder.linear("out_proj", pooled_vector, Axis("labels", self.num_labels), bias=True)
        return pooled_vector

    def reference(self, model_properties: ModelProperties, stack: Component | None = None) -> nn.Module:
        """Builds the pooler: hidden states [batch, tokens, hidden] → (vector [batch, 1, hidden], scores or vector)."""
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(num_labels=2), cls(dense=False, num_labels=1)]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class PoolerReference(nn.Module):
        def __init__(self, spec: Pooler, hidden_size: int) -> None:
            super().__init__()
            self.dense = nn.Linear(hidden_size, hidden_size) if spec.dense else None
            if spec.num_labels is not None:
                self.out_proj = nn.Linear(hidden_size, spec.num_labels)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            pooled_vector = x[:, -1:] if self.dense is None else torch.tanh(self.dense(x[:, :1]))
            return pooled_vector, self.out_proj(pooled_vector) if hasattr(self, "out_proj") else pooled_vector

    return PoolerReference
