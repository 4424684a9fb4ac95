"""Per-layer embeddings (Gemma 3n, Gemma 4): one small vector per token and layer, computed before the first layer.

transformers: models/gemma3n, models/gemma4 (`per_layer_input_gate`, `per_layer_model_projection`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    TORCH_WITNESS,
    LayerProtocol,
    ModelProperties,
    Part,
    PartWitness,
    PerLayerVocab,
    PerLayerWidth,
    StackPart,
)
from ..networks.feed_forward import Activation, activate
from ..norm import Norm
from ..runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn


class PerLayerEmbedding(StackPart):
    """An embedding table with the vectors of all layers, plus a projection of the token embedding.

    vocab_size_per_layer_input: the number of rows of the table; a token beyond them uses the first row. None (default)
        for the projection alone (EmbeddingGemma 2).
    hidden_size_per_layer_input: the width of one layer's vector.
    norm: the norm on each layer's part of the projection.
    """

    formula_source: ClassVar[str] = "Gemma 3n 2025"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    vocab_size_per_layer_input: PerLayerVocab | None = None
    hidden_size_per_layer_input: PerLayerWidth
    norm: Norm

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        required_fields = {"hidden_size_per_layer_input": self.hidden_size_per_layer_input}
        if any(
            layer.required_stack_fields().get("per_layer_embedding") != required_fields for layer in layers.values()
        ):
            raise ValueError(
                "per_layer_embedding: stands where every layer has a per_layer_input of its "
                "hidden_size_per_layer_input, and nowhere else"
            )

    def flow(self, recorder: Flow, x: Value, layer_count: Number = 1) -> Value:
        vector_axes = Axis("layers", layer_count), Axis("per_layer", self.hidden_size_per_layer_input)
        vocab, vector_size = self.vocab_size_per_layer_input, self.hidden_size_per_layer_input
        table_vectors = None
        if vocab is not None:
            table_vectors, _ = recorder.table(
                "embed", Axis("vocab", vocab), *vector_axes, output_rows=x.rows, index_source="known ids"
            )
            table_vectors = recorder.scale(table_vectors, vector_size**0.5)
        projected_x = recorder.scale(recorder.linear("projection", x, *vector_axes), x.width**-0.5)
        recorder.hold(mapped=projected_x, **({} if table_vectors is None else {"looked_up": table_vectors}))
        normed_vectors = recorder.norm(
            "norm", projected_x, self.norm, vector_axes[1:], kind="norm", source=self.norm.formula_source
        )
        if table_vectors is None:
            return normed_vectors
        layer_vectors = recorder.add(normed_vectors, table_vectors)
        recorder.hold(both=layer_vectors)
        return recorder.scale(layer_vectors, 2**-0.5)

    def reference(self, model_properties: ModelProperties, layer_count: int = 1) -> nn.Module:
        return _reference_classes()["table"](self, model_properties, layer_count)


class PerLayerGate(Part):
    """The gate that adds a layer's embedding vector after its sublayers: x + norm(W(act(Gx) · vector)).

    hidden_size_per_layer_input: the width of the vector.
    hidden_act: the activation on the gate Gx.
    """

    formula_source: ClassVar[str] = "Gemma 3n 2025"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "feed_forward"

    hidden_size_per_layer_input: PerLayerWidth
    hidden_act: Activation

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        """The stack's components that compute the per-layer vectors, as in `Layer.required_stack_fields`."""
        return {"per_layer_embedding": {"hidden_size_per_layer_input": self.hidden_size_per_layer_input}}

    def flow(self, recorder: Flow, x: Value, norm: Norm) -> Value:
        """Records the gate's operations and returns the term to add to x. norm: the norm applied to this term."""
        vector_axis = Axis("per_layer", self.hidden_size_per_layer_input)
        gate = recorder.act(recorder.linear("gate", x, vector_axis), self.hidden_act)
        # for a gate that is recorded without its stack
        placeholder_vectors = Value(x.rows, (vector_axis,), is_constant=True)
        # of all layers; each layer reads its own
        layer_vectors: Value = recorder.layer_memo.get("per_layer_embedding", placeholder_vectors)
        gated_vector = recorder.mul(gate, recorder.take(layer_vectors, vector_axis))
        recorder.hold(y=gated_vector)
        return recorder.part("norm", norm, recorder.linear("projection", gated_vector, *x.axes))

    def reference(self, model_properties: ModelProperties, norm: Norm) -> nn.Module:
        return _reference_classes()["gate"](self, model_properties, norm)


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    from torch import nn

    class PerLayerTable(nn.Module):
        """Computes the embedding vectors of all layers for every token.

        x: token embeddings [batch, tokens, hidden] → vectors [batch, tokens, layers, width].
        """

        def __init__(self, spec: PerLayerEmbedding, model_properties: ModelProperties, layer_count: int) -> None:
            super().__init__()
            self.rows = spec.vocab_size_per_layer_input
            self.width = spec.hidden_size_per_layer_input
            self.hidden = model_properties.hidden_size
            if self.rows is not None:
                self.embed = nn.Embedding(self.rows, layer_count * self.width)
            self.projection = nn.Linear(self.hidden, layer_count * self.width, bias=False)
            self.norm = spec.norm.reference(ModelProperties(self.width))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            table_vectors = None
            if self.rows is not None:
                assert pass_state.token_ids is not None, "per-layer embeddings are looked up by token"
                table_vectors = self.embed(pass_state.token_ids * (pass_state.token_ids < self.rows)) * self.width**0.5
            projected_x = self.projection(x) * self.hidden**-0.5
            if table_vectors is None:
                return self.norm(projected_x.unflatten(-1, (-1, self.width)))
            layer_vectors: Tensor = self.norm(projected_x.unflatten(-1, (-1, self.width))) + table_vectors.unflatten(
                -1, (-1, self.width)
            )
            return layer_vectors * 2**-0.5

    class VectorGate(nn.Module):
        """Gates a layer's embedding vector. x: [batch, tokens, hidden] → the term added to x."""

        def __init__(self, spec: PerLayerGate, model_properties: ModelProperties, norm: Norm) -> None:
            super().__init__()
            self.act = spec.hidden_act
            self.gate = nn.Linear(model_properties.hidden_size, spec.hidden_size_per_layer_input, bias=False)
            self.projection = nn.Linear(spec.hidden_size_per_layer_input, model_properties.hidden_size, bias=False)
            self.norm = norm.reference(model_properties)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            assert pass_state.per_layer_embeddings is not None, "the stack has no per-layer embeddings"
            gated_vector = (
                activate(self.act, self.gate(x)) * pass_state.per_layer_embeddings[:, :, pass_state.layer_index]
            )
            return self.norm(self.projection(gated_vector))

    return {"table": PerLayerTable, "gate": VectorGate}
