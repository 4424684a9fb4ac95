"""Attention computed exactly only in score blocks with the highest means, and by block means elsewhere (MRA).

MRA (Zeng et al. 2022, arXiv:2207.10284, §4): the means of blocks of tokens are scored first; the blocks with the
highest scores are computed exactly. transformers: models/mra (`mra2_attention`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import ChunkSize, Flag, Heads, ModelProperties, Window
from ..runtime import PassState, project_to_heads
from .grouped_query import EqualHeadsMixer, record_queries_keys_values

if TYPE_CHECKING:
    from torch import Tensor, nn


class SampledBlockAttention(EqualHeadsMixer):
    """Multi-head encoder attention computed in selected blocks of scores. All projections have biases.

    num_attention_heads: the number of heads.
    block_size: the number of queries, and of keys, in a block; the last block is padded.
    blocks: the number of blocks that are computed exactly, in each head.
    approximated: whether the scores outside of these blocks are those of block means, true by default; otherwise they
        count nothing.
    """

    formula_source: ClassVar[str] = "Zeng et al. 2022, §4"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["sampled_blocks"] = "sampled_blocks"
    num_attention_heads: Heads
    block_size: ChunkSize
    blocks: Window
    approximated: Flag = True

    def cost_thresholds(self) -> tuple[int, ...]:
        return (self.block_size,)

    def flow(self, recorder: Flow, x: Value) -> Value:
        head_sizes = self.head_sizes(x.width)
        heads, head_dim = Axis("heads", head_sizes.heads), Axis("head_dim", head_sizes.head_dim)
        q, k, v = record_queries_keys_values(recorder, x, heads, head_dim, bias=True)
        recorder.hold(q=q, k=k, v=v)
        block_limits: dict[str, Any] = {
            "block": self.block_size,
            "blocks": self.blocks,
            "approximated": self.approximated,
        }
        attn_output = recorder.attention(
            "core", q, k, v, causal=False, core=ops.SampledBlockAttentionCore, **block_limits
        )
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes, bias=True)

    def describe(self, hidden_size: int) -> str:
        return f"MHA {self.num_attention_heads}, {self.blocks} blocks of {self.block_size}²"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, block_size=3, blocks=5),
            cls(num_attention_heads=2, block_size=4, blocks=3, approximated=False),
            cls(num_attention_heads=2, block_size=8, blocks=50),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class SampledAttentionCore(nn.Module):
        """Computes attention in selected blocks of scores. q, k, v: [batch, heads, tokens, d] → same shape."""

        def __init__(self, spec: SampledBlockAttention) -> None:
            super().__init__()
            self.block, self.blocks, self.approximated = spec.block_size, spec.blocks, spec.approximated

        def _split_into_blocks(self, x: Tensor) -> Tensor:
            """Splits the tokens into blocks. [batch, heads, tokens, d] → [batch, heads, blocks, block, d]."""
            padded_tokens = nn.functional.pad(x, (0, 0, 0, -x.shape[2] % self.block))
            return padded_tokens.unflatten(2, (-1, self.block))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            token_count, score_scale = q.shape[2], q.shape[-1] ** -0.5
            queries, keys, values = (self._split_into_blocks(x) for x in (q, k, v))
            # tokens of each block: [batch, heads, blocks, 1]
            token_counts = self._split_into_blocks(torch.ones_like(q[..., :1])).sum(3)
            with torch.set_grad_enabled(self.approximated and torch.is_grad_enabled()):
                mean_scores = (
                    (queries.sum(3) / token_counts) @ (keys.sum(3) / token_counts).transpose(-1, -2) * score_scale
                )
            block_count = mean_scores.shape[-1]
            block_pair_indices = mean_scores.flatten(2).topk(min(self.blocks, block_count * block_count), -1).indices
            query_blocks, key_blocks = block_pair_indices // block_count, block_pair_indices % block_count
            sampled_queries, sampled_keys, sampled_values = (
                self._select_blocks(x, block_indices)
                for x, block_indices in ((queries, query_blocks), (keys, key_blocks), (values, key_blocks))
            )
            pair_weights = torch.exp(sampled_queries @ sampled_keys.transpose(-1, -2) * score_scale)
            key_mask = self._select_blocks(self._split_into_blocks(torch.ones_like(k[..., :1])), key_blocks).transpose(
                -1, -2
            )
            pair_weights = pair_weights * key_mask
            weighted_sums = torch.zeros_like(queries).scatter_add(
                2, self._expand_indices(query_blocks, queries), pair_weights @ sampled_values
            )
            weight_sums = torch.zeros_like(queries[..., :1])
            weight_sums = weight_sums.scatter_add(
                2, self._expand_indices(query_blocks, weight_sums), pair_weights.sum(-1, keepdim=True)
            )
            if self.approximated:
                other_block_weights = (
                    torch.exp(mean_scores)
                    .flatten(2)
                    .scatter(2, block_pair_indices, 0.0)
                    .unflatten(2, (block_count, block_count))
                )
                other_block_weights = other_block_weights * token_counts.transpose(-1, -2)
                weighted_sums = weighted_sums + (other_block_weights @ (values.sum(3) / token_counts))[:, :, :, None]
                weight_sums = weight_sums + other_block_weights.sum(-1)[..., None, None]
            return (weighted_sums / (weight_sums + 1e-6)).flatten(2, 3)[:, :, :token_count]

        def _expand_indices(self, block_indices: Tensor, x: Tensor) -> Tensor:
            """Expands block indices to the shape that `torch.gather` needs to select blocks of x."""
            return block_indices[..., None, None].expand(*block_indices.shape, *x.shape[3:])

        def _select_blocks(self, x: Tensor, block_indices: Tensor) -> Tensor:
            """Returns the blocks of x at the given indices. x: [batch, heads, blocks, block, d]."""
            return x.gather(2, self._expand_indices(block_indices, x))

    class SampledBlockAttentionReference(nn.Module):
        """Attends in selected blocks of scores. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: SampledBlockAttention, model_properties: ModelProperties) -> None:
            super().__init__()
            self.heads, hidden_size = spec.num_attention_heads, model_properties.hidden_size
            for projection_name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                self.add_module(projection_name, nn.Linear(hidden_size, hidden_size))
            self.core = SampledAttentionCore(spec)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            heads = (project_to_heads(self, projection_name, x) for projection_name in ("q_proj", "k_proj", "v_proj"))
            return self.get_submodule("o_proj")(self.core(*heads).transpose(1, 2).flatten(2))

    return SampledBlockAttentionReference
