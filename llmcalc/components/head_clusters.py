"""A language-model head that scores only the tokens of the clusters with the highest-scoring centroids.

transformers: models/gemma4_assistant (`Gemma4AssistantMaskedEmbedder`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from .. import ops
from ..algebra import exact_div
from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import Rows
from .base import ModelProperties, Part

if TYPE_CHECKING:
    from torch import Tensor, nn


class Clusters(Part):
    """A head with equally large token clusters; each position scores all centroids, then the best clusters' tokens.

    num_centroids: the number of clusters.
    centroid_intermediate_top_k: the number of clusters whose tokens are scored.
    """

    kind: ClassVar[str] = "lm_head"

    num_centroids: int = Field(ge=1, le=2**24, strict=True)
    centroid_intermediate_top_k: int = Field(ge=1, le=2**24, strict=True)

    def check_fields(self) -> None:
        if self.centroid_intermediate_top_k > self.num_centroids:
            raise ValueError(
                f"centroid_intermediate_top_k: {self.centroid_intermediate_top_k} is more than the "
                f"{self.num_centroids} clusters; expected at most num_centroids"
            )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises `ValueError` if the clusters cannot have equally many tokens."""
        if vocab_size % self.num_centroids:
            raise ValueError(
                f"head.clusters.num_centroids: {self.num_centroids} does not divide vocab_size {vocab_size}; expected "
                "a divisor, for clusters have equally many tokens"
            )

    def flow(self, recorder: Flow, x: Value, vocab: Axis, output_weight: Weight | None, rows: Rows) -> Value:
        """Records the computation of the scores of the clusters' centroids and of the best clusters' tokens.

        x: the hidden states. output_weight: the embedding's weight, if tied.
        """
        (hidden_axis,) = x.axes
        assert isinstance(hidden_axis, Axis)
        with recorder.scope("centroids", role="no_grad"):  # their scores choose clusters, and enter no logit
            recorder.linear("", x, Axis("centroids", self.num_centroids), rows=rows)
        recorder.buffer("token_ordering", vocab, indices=True)
        weight = recorder.unread_table("decoder", vocab, hidden_axis) if output_weight is None else output_weight
        chosen_token_count = self.centroid_intermediate_top_k * exact_div(vocab.size, self.num_centroids)
        embeddings = recorder.look_up(
            weight, MultipliedRows(source_rows=rows, rows_per_source=chosen_token_count), index_source="chosen"
        )
        scored_axis = Axis("vocab", chosen_token_count)
        return recorder.core(
            "scores",
            ops.Product(1, hidden_axis.size, chosen_token_count, rows),
            x.view(hidden_axis, new_rows=rows),
            embeddings.view(scored_axis, hidden_axis, new_rows=rows),
            axes=(scored_axis,),
        )

    def reference(self, model_properties: ModelProperties, vocab_size: int) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size, vocab_size)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class TokenScores(nn.Module):
        """Computes the scores of selected tokens. x: [batch, positions, hidden] → [batch, positions, selected]."""

        def forward(self, x: Tensor, embeddings: Tensor) -> Tensor:
            return (embeddings @ x[..., None])[..., 0]

    class TokenOrdering(nn.Module):
        """A module that stores the order of the tokens by cluster."""

        tokens: Tensor

        def __init__(self, vocab_size: int) -> None:
            super().__init__()
            self.register_buffer("tokens", torch.arange(vocab_size))

    class ClusteredHead(nn.Module):
        """Scores the tokens of the best clusters. x: [batch, positions, hidden] → [batch, positions, vocab_size].

        Tokens of other clusters have a score below all others.
        """

        def __init__(self, spec: Clusters, hidden_size: int, vocab_size: int) -> None:
            super().__init__()
            self.top_k = spec.centroid_intermediate_top_k
            self.centroids = nn.Linear(hidden_size, spec.num_centroids, bias=False)
            self.decoder = nn.Embedding(vocab_size, hidden_size)
            self.token_ordering = TokenOrdering(vocab_size)
            self.scores = TokenScores()

        def forward(self, x: Tensor) -> Tensor:
            top_clusters = self.centroids(x).topk(self.top_k, -1).indices
            token_ids = self.token_ordering.tokens.unflatten(0, (self.centroids.out_features, -1))[
                top_clusters
            ].flatten(-2)
            scores = self.scores(x, self.decoder(token_ids))
            lowest_score = scores.amin() - 1
            vocab_scores = lowest_score.expand(*x.shape[:-1], self.decoder.num_embeddings).clone()
            return vocab_scores.scatter(-1, token_ids, scores)

    return ClusteredHead
