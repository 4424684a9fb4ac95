"""An indexer that scores pools of tokens: each complete pool has one key, a weighted mean of its tokens' keys.

The tokens of the best pools are attended to, and those of the last pool while it is not complete. Keys and weights of
all tokens are cached, and pooled anew in each pass. transformers: models/glm5_next (`Glm5NextTextIndexer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Flag, HeadDim, Heads, ModelProperties, Part, PartWitness, TopK, Window
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..runtime import PassState, tensor_cache_class, vector_module
from .indexer import indexer_core_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class PooledIndexer(Part):
    """Small query heads, computed from the compressed query, that score one key per pool of tokens.

    index_n_heads: the number of small query heads.
    index_head_dim: the size of a query and of a key.
    index_topk: the number of selected tokens, a multiple of index_kpool; the tokens of an incomplete pool come on top.
    index_kpool: the number of tokens in a pool.
    shared: whether the layer has no indexer and reuses the selection of the nearest lower layer with one; false by
        default.
    """

    formula_source: ClassVar[str] = "GLM-5.3 2026"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = ""

    type: Literal["pooled"] = "pooled"
    index_n_heads: Heads
    index_head_dim: HeadDim
    index_topk: TopK
    index_kpool: Window
    shared: Flag = False

    def check_fields(self) -> None:
        if self.index_topk % self.index_kpool:
            raise ValueError(
                f"index_topk: {self.index_topk} is no multiple of index_kpool {self.index_kpool}; expected one, as "
                "whole pools are selected"
            )

    @property
    def reads_layer_input(self) -> bool:
        return False

    def key_limit_arguments(self) -> Mapping[str, Any]:
        """Returns the number of tokens that each token attends to, as keyword arguments of attention operations."""
        return {"selected_keys": self.index_topk, "pool_size": self.index_kpool}

    def flow(self, recorder: Flow, x: Value, query_latent: Value | None = None, position: Rope | None = None) -> Value:
        """Records the scores of all complete pools and the selection of the pools with the highest scores.

        query_latent: the compressed query, which the queries come from. position: none, because pools have no position.
        """
        heads, index_dim = Axis("index_heads", self.index_n_heads), Axis("index_head_dim", self.index_head_dim)
        pool_axis = Axis("pool", self.index_kpool)
        assert query_latent is not None
        assert position is None
        q = recorder.linear("q_proj", query_latent, heads, index_dim)
        recorder.hold(small=query_latent, q=q)
        keys = recorder.norm("k_norm", recorder.linear("k_proj", x, index_dim), Norm(type="layernorm"))
        gate = recorder.linear("gate_proj", x, index_dim)
        head_weights = recorder.linear("weights_proj", x, heads)
        recorder.hold(k=keys, gate=gate, weights=head_weights)
        keys, gate = recorder.cache("cache", "indexer", keys, gate)
        pools, pool_gate = (recorder.windows(token_rows, pool_axis, includes_past=True) for token_rows in (keys, gate))
        pool_gate = recorder.add(
            pool_gate, recorder.vector("position_bias", pool_axis, index_dim, row_count=pool_axis.size)
        )
        pooled_keys = recorder.weighted_mean(pools, pool_gate)
        recorder.hold(k=pooled_keys)
        scores = recorder.scores(
            "core",
            q,
            pooled_keys,
            weights=head_weights,
            is_cross_attention=True,
            core=ops.CompressedKVAttentionCore,
            tokens_per_entry=pool_axis.size,
        )
        recorder.hold(scores=scores)
        recorder.select(scores, keys, self.index_topk, pool_size=pool_axis.size)
        return scores

    def reference(
        self, model_properties: ModelProperties, query_width: int, rotary_dim: int, theta: float
    ) -> nn.Module:
        """Builds the indexer. query_width: the width of the compressed query.

        rotary_dim, theta: unused, as there are no positions.
        """
        return _reference_class()(self, model_properties.hidden_size, query_width)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class PooledIndexerReference(nn.Module):
        """Selects pools of tokens. x: [batch, tokens, hidden] → selected positions, [batch, tokens, selected].

        A position may stand more than once for a token with fewer earlier tokens than others.
        """

        def __init__(self, spec: PooledIndexer, hidden_size: int, query: int) -> None:
            super().__init__()
            self.spec, head_dim = spec, spec.index_head_dim
            self.q_proj = nn.Linear(query, spec.index_n_heads * head_dim, bias=False)
            self.k_proj = nn.Linear(hidden_size, head_dim, bias=False)
            self.gate_proj = nn.Linear(hidden_size, head_dim, bias=False)
            self.k_norm = norm_reference(Norm(type="layernorm", eps=1e-6), head_dim)
            self.position_bias = vector_module(torch.zeros(spec.index_kpool, head_dim))
            self.weights_proj = nn.Linear(hidden_size, spec.index_n_heads, bias=False)
            self.cache, self.core = tensor_cache_class()(), indexer_core_class()()

        def _pooled_keys(self, keys: Tensor, gate: Tensor) -> Tensor:
            """Returns the mean key of each complete pool, [batch, pools, d]. keys, gate: [batch, tokens, d]."""
            pool_size = self.spec.index_kpool
            pool_count = keys.shape[1] // pool_size
            keys, gate = (
                tensor[:, : pool_count * pool_size].unflatten(1, (pool_count, pool_size)) for tensor in (keys, gate)
            )
            pool_weights = (gate + self.position_bias.weight).float().softmax(2).to(keys.dtype)
            return (keys * pool_weights).sum(2)

        @torch.no_grad()
        def forward(self, x: Tensor, compressed_query: Tensor, mask: Tensor, pass_state: PassState) -> Tensor:
            spec, token_count, pool_size = self.spec, x.shape[1], self.spec.index_kpool
            q = self.q_proj(compressed_query).unflatten(-1, (spec.index_n_heads, -1))
            keys, gate = self.cache(pass_state, self.k_norm(self.k_proj(x)), self.gate_proj(x))
            pooled_keys = self._pooled_keys(keys, gate)
            scores = self.core(q, pooled_keys, self.weights_proj(x)).float()
            visible_token_counts = (
                pass_state.positions(pass_state.past_tokens, pass_state.past_tokens + token_count, x.device)[:, None]
                + 1
            )  # tokens that each query may see
            pool_ends = (torch.arange(pooled_keys.shape[1], device=x.device) + 1) * pool_size
            ranked_pools = scores.masked_fill(pool_ends > visible_token_counts, float("-inf")).sort(
                dim=-1, descending=True, stable=True
            )
            chosen_pools = ranked_pools.indices[..., : spec.index_topk // pool_size]
            chosen_positions = (chosen_pools[..., None] * pool_size + torch.arange(pool_size, device=x.device)).flatten(
                -2
            )
            if token_count == 1:
                end_position = pass_state.past_tokens + 1
                last_pool_positions = torch.arange(
                    end_position - end_position % pool_size, end_position, device=x.device
                ).expand(x.shape[0], 1, -1)
                return torch.cat([chosen_positions, last_pool_positions], -1)
            last_pool_positions = (
                visible_token_counts - visible_token_counts % pool_size + torch.arange(pool_size - 1, device=x.device)
            )
            if pooled_keys.shape[1]:
                repeated_positions = chosen_positions[..., :1]
            else:
                repeated_positions = torch.zeros_like(chosen_pools.sum(-1, keepdim=True))
            return torch.cat(
                [
                    chosen_positions,
                    torch.where(last_pool_positions < visible_token_counts, last_pool_positions, repeated_positions),
                ],
                -1,
            )

    return PooledIndexerReference
