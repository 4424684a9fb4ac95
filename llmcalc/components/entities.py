"""Entity embeddings and entity prediction (LUKE), which inputs of plain text do not use.

LUKE (Yamada et al. 2020, arXiv:2010.01057), §3.1 and §3.3. transformers: models/luke (`LukeEntityEmbeddings`,
`EntityPredictionHead`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ..flow.axis import Axis, Shape
from ..flow.record import Flow
from ..flow.value import Value, Weight
from .base import InnerWidth, ModelProperties, Positions, StackPart, Vocab
from .norm import Norm

if TYPE_CHECKING:
    from torch import nn


class Entities(StackPart):
    """The embedding tables of entities, and the head that predicts entities.

    entity_vocab_size: the number of entities.
    entity_emb_size: the width of an entity's embedding, which a linear layer projects to the width of the layers; as
        wide as they are, and without a projection, by default.
    max_position_embeddings: the rows of the table of positions.
    type_vocab_size: the rows of the table of segments.
    norm: the norm on the sum of the embeddings, and in the head.
    prediction: the head that predicts entities, whose output projection is the table of entities (`tied`) or a weight
        of its own (`own`); none by default.
    """

    formula_source: ClassVar[str] = "Yamada et al. 2020, §3.1"

    entity_vocab_size: Vocab
    entity_emb_size: InnerWidth | None = None
    max_position_embeddings: Positions
    type_vocab_size: InnerWidth
    norm: Norm
    prediction: Literal["tied", "own"] | None = None

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the entity tables and of the optional entity head. x: the input of the layers."""
        vocab = Axis("entities", self.entity_vocab_size)
        entity_axes = x.axes if self.entity_emb_size is None else (Axis("entity", self.entity_emb_size),)
        entity_embeddings, entity_table = recorder.table(
            "embed_entities", vocab, *entity_axes, output_rows=x.rows, kind=self.kind
        )
        if self.entity_emb_size is not None:
            entity_embeddings = recorder.linear("proj", entity_embeddings, *x.axes, kind=self.kind)
        for table_name, row_count in (("positions", self.max_position_embeddings), ("types", self.type_vocab_size)):
            table_vector, _ = recorder.table(
                f"embed_{table_name}",
                Axis(table_name, row_count),
                *x.axes,
                output_rows=x.rows,
                index_source="types",
                kind=self.kind,
            )
            entity_embeddings = recorder.add(entity_embeddings, table_vector)
        entity_embeddings = recorder.part("norm", self.norm, entity_embeddings)
        if self.prediction is None:
            return entity_embeddings
        return self._record_head(recorder, entity_embeddings, entity_axes, vocab, entity_table)

    def _record_head(self, recorder: Flow, x: Value, entity_axes: Shape, vocab: Axis, entity_table: Weight) -> Value:
        """Records the operations of the entity-prediction head. entity_table: weight of the entity embedding table."""
        with recorder.scope("prediction", kind="lm_head"):
            transformed_x = recorder.part(
                "norm", self.norm, recorder.act(recorder.linear("dense", x, *entity_axes, bias=True), "gelu")
            )
            output_weight = entity_table if self.prediction == "tied" else None
            return recorder.linear("decoder", transformed_x, vocab, bias=True, weight=output_weight)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        norm = Norm(type="layernorm")
        default_spec = cls(entity_vocab_size=9, max_position_embeddings=7, type_vocab_size=2, norm=norm)
        return [
            default_spec,
            default_spec.model_copy(update={"entity_emb_size": 5, "prediction": "tied"}),
            default_spec.model_copy(update={"prediction": "own"}),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class EntityPrediction(nn.Module):
        """The head that predicts entities; inputs without entities skip the head."""

        def __init__(self, spec: Entities, hidden_size: int, entity_width: int) -> None:
            super().__init__()
            self.dense = nn.Linear(hidden_size, entity_width)
            self.norm = spec.norm.reference(ModelProperties(entity_width))
            self.decoder = nn.Linear(entity_width, spec.entity_vocab_size)

    class EntitiesReference(nn.Module):
        """Holds the entity tables and the entity-prediction head as modules that no forward pass on plain text runs."""

        def __init__(self, spec: Entities, model_properties: ModelProperties) -> None:
            super().__init__()
            hidden_size, entity_width = (
                model_properties.hidden_size,
                spec.entity_emb_size or model_properties.hidden_size,
            )
            self.embed_entities = nn.Embedding(spec.entity_vocab_size, entity_width)
            if spec.entity_emb_size is not None:
                self.proj = nn.Linear(entity_width, hidden_size, bias=False)
            self.embed_positions = nn.Embedding(spec.max_position_embeddings, hidden_size)
            self.embed_types = nn.Embedding(spec.type_vocab_size, hidden_size)
            self.norm = spec.norm.reference(model_properties)
            if spec.prediction is not None:
                self.prediction = EntityPrediction(spec, hidden_size, entity_width)
            if spec.prediction == "tied":
                self.prediction.decoder.weight = self.embed_entities.weight

    return EntitiesReference
