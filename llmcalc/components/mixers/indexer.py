"""DeepSeek sparse attention's indexer: selects earlier tokens for the attention of each token.

DeepSeek-V3.2 (arXiv:2512.02556), §2.1: a few small heads score all earlier tokens, and the index_topk best are attended
to. The indexer's keys are cached beside the latent. No gradient of the model's loss reaches its parameters: selection
is not differentiable, and the paper trains them with a separate loss. In GLM-5.2, most layers reuse the selection of a
lower layer. Mistral Large 4 has no compressed query: the queries come from the layer's input, and each head scales them
by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Flag, HeadDim, Heads, ModelProperties, Part, PartWitness, TopK
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..rotation import rotate
from ..runtime import PassState, tensor_cache_class
from .position_scale import position_scale_class, record_position_scale

if TYPE_CHECKING:
    from torch import Tensor, nn


class Indexer(Part):
    """Small query heads, from the compressed query or the layer's input, that score one key per token.

    index_n_heads: the number of small query heads.
    index_head_dim: the size of a query and of a key.
    index_topk: the number of selected tokens.
    shared: whether the layer has no indexer and reuses the selection of the nearest lower layer with one; false by
        default.
    input_norm: the norm on the layer's input, from which the queries are computed; None (default) where they come from
        the compressed query.
    position_scale: as in `MLA`, on the small queries; false by default.
    """

    formula_source: ClassVar[str] = "DeepSeek-V3.2 2025, §2.1"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["indexer"] = "indexer"
    index_n_heads: Heads
    index_head_dim: HeadDim
    index_topk: TopK
    shared: Flag = False
    input_norm: Norm | None = None
    position_scale: Flag = False

    kind: ClassVar[str] = ""

    @property
    def reads_layer_input(self) -> bool:
        """Whether the indexer's queries come from the layer's input instead of the compressed query."""
        return self.input_norm is not None

    def key_limit_arguments(self) -> Mapping[str, Any]:
        """Returns the number of tokens that each token attends to, as a keyword argument of attention operations."""
        return {"selected_keys": self.index_topk}

    def flow(self, recorder: Flow, x: Value, query_latent: Value | None = None, position: Rope | None = None) -> Value:
        """Records the scores of all earlier tokens and the selection of the tokens with the highest scores.

        query_latent: the compressed query, which the indexer's queries come from without input_norm.
        position: RoPE on queries and keys; None for none.
        """
        heads, index_dim = Axis("index_heads", self.index_n_heads), Axis("index_head_dim", self.index_head_dim)
        query_input = query_latent if self.input_norm is None else recorder.part("input_norm", self.input_norm, x)
        assert query_input is not None
        q = recorder.linear("q_proj", query_input, heads, index_dim)
        recorder.hold(small=query_input, q=q)
        if self.position_scale:
            q = record_position_scale(recorder, q, heads)
            recorder.hold(q=q)
        keys = recorder.norm("k_norm", recorder.linear("k_proj", x, index_dim), Norm(type="layernorm"))
        keys = keys if position is None else recorder.rope(keys, position)
        head_weights = recorder.linear("weights_proj", x, heads)
        recorder.hold(weights=head_weights)
        (keys,) = recorder.cache("cache", "indexer", keys)
        recorder.hold(k=keys)
        scores = recorder.scores(
            "core", q if position is None else recorder.rope(q, position), keys, weights=head_weights
        )
        recorder.hold(scores=scores)
        recorder.select(scores, keys, self.index_topk)
        return scores

    def reference(
        self, model_properties: ModelProperties, query_width: int, rotary_dim: int, theta: float
    ) -> nn.Module:
        """Builds the indexer. query_width: width of the query projection's input. rotary_dim: 0 without RoPE."""
        return indexer_reference_class()(self, model_properties.hidden_size, query_width, rotary_dim, theta)


@cache
def indexer_core_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class KeyScores(nn.Module):
        """Computes scores of keys. q: [batch, queries, heads, d], k: [batch, keys, d] → [batch, queries, keys].

        head_weights: [batch, queries, heads].
        """

        def forward(self, q: Tensor, k: Tensor, head_weights: Tensor) -> Tensor:
            scores = torch.relu(q @ k[:, None].transpose(-1, -2) * q.shape[-1] ** -0.5)
            return (head_weights[:, :, None] @ scores)[:, :, 0]

    return KeyScores


@cache
def indexer_reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class IndexerReference(nn.Module):
        """Selects tokens. x: [batch, tokens, hidden] → selected positions, [batch, tokens, index_topk at most]."""

        def __init__(self, spec: Indexer, hidden_size: int, query: int, rope: int, rope_theta: float) -> None:
            super().__init__()
            self.spec, self.rope, self.theta = spec, rope, rope_theta
            if spec.input_norm is not None:
                self.input_norm = norm_reference(spec.input_norm, hidden_size)
            if spec.position_scale:
                self.position_scale = position_scale_class()(spec.index_n_heads)
            self.q_proj = nn.Linear(query, spec.index_n_heads * spec.index_head_dim, bias=False)
            self.k_proj = nn.Linear(hidden_size, spec.index_head_dim, bias=False)
            self.k_norm = norm_reference(Norm(type="layernorm", eps=1e-6), spec.index_head_dim)
            self.weights_proj = nn.Linear(hidden_size, spec.index_n_heads, bias=False)
            self.cache, self.core = tensor_cache_class()(), indexer_core_class()()

        def _rotate_heads(self, x: Tensor, pass_state: PassState) -> Tensor:
            """Applies RoPE to the first dimensions of x: [batch, …, tokens, d]."""
            return rotate(x, pass_state, pass_state.past_tokens, self.rope, self.theta) if self.rope else x

        @torch.no_grad()
        def forward(self, x: Tensor, compressed_query: Tensor, mask: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            if spec.input_norm is not None:
                compressed_query = self.input_norm(x)
            q = self.q_proj(compressed_query).unflatten(-1, (spec.index_n_heads, -1)).transpose(1, 2)
            if spec.position_scale:
                q = self.position_scale(q, pass_state)
            k, head_weights = self._rotate_heads(self.k_norm(self.k_proj(x)), pass_state), self.weights_proj(x)
            (k,) = self.cache(pass_state, k)
            scores = self.core(self._rotate_heads(q, pass_state).transpose(1, 2), k, head_weights).float()
            ranked_tokens = scores.masked_fill(~mask, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
            return ranked_tokens[..., : spec.index_topk]

    return IndexerReference
