"""An indexer that selects blocks of tokens by the mean of their keys: Qwen Sparse Attention (Qwen4-Exp).

Each complete block of tokens has one key, the mean of its tokens' keys, which is then normalized and rotated. The
tokens of the best blocks are attended to, and those after the last complete block. Keys of all tokens are cached, and
their means computed anew in each pass. transformers: models/qwen4_exp (`Qwen4ExpTextQSAIndexer`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ... import ops
from ...evidence import UNTESTED
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import AttentionProtocol, ModelProperties, PartWitness
from ..norm import norm_reference
from ..rope import Rope
from ..rotation import rotate
from ..runtime import PassState, tensor_cache_class
from .block_indexer import BlockIndexer, refuse_limited_attention

if TYPE_CHECKING:
    from torch import Tensor, nn


class MeanIndexer(BlockIndexer):
    """Small query heads that score one key per complete block of tokens, and select blocks for all attention heads.

    index_n_heads: the number of small query heads, whose scores are summed.
    index_head_dim: the size of a query and of a key.
    index_block_size: the number of tokens in a block.
    index_topk_blocks: the number of selected blocks; the tokens after the last complete block come on top.
    norm: the norm on queries and on the means of keys.
    """

    witness: ClassVar[PartWitness] = UNTESTED

    type: Literal["mean_indexer"] = "mean_indexer"  # type: ignore[assignment]
    index_local_blocks: None = None  # type: ignore[assignment]

    def check_attention(self, attention: AttentionProtocol) -> None:
        refuse_limited_attention(attention)
        if self.index_head_dim % 2:
            raise ValueError(f"block_indexer.index_head_dim: {self.index_head_dim} is odd; expected an even number")

    @property
    def selected_token_count(self) -> int:
        return self.index_block_size * (self.index_topk_blocks + 1) - 1

    def flow(
        self, recorder: Flow, x: Value, position: Rope, keys: Value, values: Value
    ) -> tuple[Value, Value, dict[str, Any]]:
        heads, index_dim = Axis("index_heads", self.index_n_heads), Axis("index_head_dim", self.index_head_dim)
        pool_axis = Axis("pool", self.index_block_size)
        chosen_token_count = self.index_block_size * self.index_topk_blocks
        with recorder.scope("indexer", role="no_grad"):
            q = recorder.rope(
                recorder.norm("q_norm", recorder.linear("q_proj", x, heads, index_dim), self.norm, (index_dim,)),
                position,
            )
            (all_keys,) = recorder.cache("cache", "indexer", recorder.linear("k_proj", x, index_dim))
            block_means = recorder.sum(
                recorder.windows(all_keys, pool_axis, includes_past=True), index_dim, is_mean=True
            )
            block_means = recorder.rope(
                recorder.norm("k_norm", block_means, self.norm), position, row_stride=pool_axis.size
            )
            recorder.hold(q=q, k=block_means)
            scores = recorder.act(
                recorder.scores(
                    "core",
                    q,
                    block_means,
                    is_cross_attention=True,
                    core=ops.CompressedKVAttentionCore,
                    tokens_per_entry=pool_axis.size,
                ),
                "relu",
            )
            recorder.select(recorder.sum(scores), all_keys, chosen_token_count, pool_size=pool_axis.size)
        mask, keys, values = recorder.selected(q, keys, values)
        recorder.hold(k=keys, v=values, mask=mask)
        return (
            keys,
            values,
            {
                "core": ops.PooledAttentionCore,
                "selection": mask,
                "selected_keys": chosen_token_count,
                "pool_size": pool_axis.size,
            },
        )

    def reference(self, model_properties: ModelProperties, theta: float) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size, theta)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class KeyScores(nn.Module):
        """Scores of blocks. q: [batch, queries, heads, d], k: [batch, blocks, d] → [batch, queries, heads, blocks]."""

        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return q @ k[:, None].transpose(-1, -2)

    class MeanIndexerReference(nn.Module):
        """Selects blocks of tokens. x: [batch, tokens, hidden] → selected positions, [batch, tokens, selected].

        A position may stand more than once for a token with fewer earlier tokens than others.
        """

        def __init__(self, spec: MeanIndexer, hidden_size: int, rope_theta: float) -> None:
            super().__init__()
            self.spec, self.theta, head_dim = spec, rope_theta, spec.index_head_dim
            self.q_proj = nn.Linear(hidden_size, spec.index_n_heads * head_dim, bias=False)
            self.k_proj = nn.Linear(hidden_size, head_dim, bias=False)
            self.q_norm, self.k_norm = norm_reference(spec.norm, head_dim), norm_reference(spec.norm, head_dim)
            self.cache, self.core = tensor_cache_class()(), KeyScores()

        @torch.no_grad()
        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec, token_count, block_size = self.spec, x.shape[1], self.spec.index_block_size
            head_dim = spec.index_head_dim
            q = self.q_norm(self.q_proj(x).unflatten(-1, (spec.index_n_heads, -1))).transpose(1, 2)
            q = rotate(q, pass_state, pass_state.past_tokens, head_dim, self.theta).transpose(1, 2)
            (keys,) = self.cache(pass_state, self.k_proj(x))
            block_count = keys.shape[1] // block_size
            block_means = self.k_norm(
                keys[:, : block_count * block_size].unflatten(1, (block_count, block_size)).mean(2)
            )
            block_starts = torch.arange(block_count, device=x.device) * block_size
            angles = block_starts[:, None] / self.theta ** (torch.arange(0, head_dim, 2, device=x.device) / head_dim)
            cos, sin = (tensor.to(x.dtype) for tensor in (angles.cos(), angles.sin()))
            first_half, second_half = block_means.chunk(2, -1)
            block_means = torch.cat([first_half * cos - second_half * sin, second_half * cos + first_half * sin], -1)
            scores = torch.relu(self.core(q, block_means)).sum(2) * head_dim**-0.5
            visible_token_counts = (
                pass_state.positions(pass_state.past_tokens, pass_state.past_tokens + token_count, x.device)[:, None]
                + 1
            )
            is_complete = torch.arange(block_count, device=x.device) < visible_token_counts // block_size
            ranked_blocks = scores.masked_fill(~is_complete, float("-inf")).sort(-1, descending=True).indices
            chosen_blocks = ranked_blocks[..., : spec.index_topk_blocks]
            chosen_positions = (
                chosen_blocks[..., None] * block_size + torch.arange(block_size, device=x.device)
            ).flatten(-2)
            if token_count == 1:
                end_position = pass_state.past_tokens + 1
                last_block_positions = torch.arange(
                    end_position - end_position % block_size, end_position, device=x.device
                ).expand(x.shape[0], 1, -1)
                return torch.cat([chosen_positions, last_block_positions], -1)
            last_block_positions = (
                visible_token_counts - visible_token_counts % block_size + torch.arange(block_size - 1, device=x.device)
            )
            last_block_positions = last_block_positions.clamp(max=keys.shape[1] - 1).expand(x.shape[0], -1, -1)
            return torch.cat([chosen_positions, last_block_positions], -1)

        def selected_keys_and_values(
            self, x: Tensor, k: Tensor, v: Tensor, pass_state: PassState
        ) -> tuple[Tensor, Tensor, Tensor]:
            """Returns the keys and values to read, and their mask. k, v: [batch, heads, keys, d]."""
            selected_tokens, key_count, token_count = self(x, pass_state), k.shape[2], x.shape[1]
            if pass_state.past_tokens and token_count == 1:
                gather_index = selected_tokens[:, 0, None, :, None].expand(-1, k.shape[1], -1, -1)
                k, v = (tensor.gather(2, gather_index.expand(-1, -1, -1, tensor.shape[-1])) for tensor in (k, v))
                return k, v, torch.ones(1, k.shape[2], dtype=torch.bool, device=x.device)
            positions = pass_state.positions(pass_state.past_tokens, pass_state.past_tokens + token_count, x.device)
            key_positions = pass_state.positions(0, key_count, x.device)
            mask = torch.zeros(x.shape[0], token_count, key_count, dtype=torch.bool, device=x.device)
            mask = mask.scatter(-1, selected_tokens, True) & (key_positions <= positions[:, None])
            return k, v, mask[:, None]

    return MeanIndexerReference
