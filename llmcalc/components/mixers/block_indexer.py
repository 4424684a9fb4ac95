"""MiniMax-M3's indexer: selects blocks of earlier tokens for the attention of each token.

A few small heads score every earlier token. A block's score is the highest score of its tokens, and the
index_topk_blocks best blocks are attended to. The token's own block and the blocks right before it are always among
them. transformers: models/minimax_m3_vl (`MiniMaxM3VLIndexer`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    TORCH_WITNESS,
    AttentionProtocol,
    HeadDim,
    Heads,
    ModelProperties,
    Part,
    PartWitness,
    StackPosition,
    TopK,
    Window,
)
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..rotation import rotate
from ..runtime import PassState, tensor_cache_class

if TYPE_CHECKING:
    from torch import Tensor, nn


def refuse_limited_attention(attention: AttentionProtocol) -> None:
    """Raises `ValueError` if a token cannot attend to all earlier tokens, as in windowed attention."""
    if attention.sliding_window is not None or attention.attention_chunk_size is not None or attention.kv_shared:
        raise ValueError(
            "block_indexer: selects among all earlier tokens; expected no window, no chunks and no kv_shared"
        )


def require_decoder(stack_position: StackPosition) -> None:
    """Raises `ValueError` for attention with an indexer in an encoder."""
    if stack_position.stack_name == "encoder":
        raise ValueError(f"{stack_position.error_path}.block_indexer: stands in causal attention; expected a decoder")


class BlockIndexer(Part):
    """Small query heads that score one key per token, and select blocks of tokens for a group of attention heads.

    index_n_heads: the number of small query heads.
    index_head_dim: the size of a query and of a key.
    index_block_size: the number of tokens in a block.
    index_topk_blocks: the number of selected blocks.
    index_local_blocks: the number of blocks, up to the token's own, that are always selected; 1 by default.
    norm: the norm on queries and keys.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["block_indexer"] = "block_indexer"
    index_n_heads: Heads
    index_head_dim: HeadDim
    index_block_size: Window
    index_topk_blocks: TopK
    index_local_blocks: TopK = 1
    norm: Norm = Norm(type="rmsnorm", eps=1e-6)

    def check_attention(self, attention: AttentionProtocol) -> None:
        """Raises `ValueError` if the indexer is incompatible with the attention's fields."""
        refuse_limited_attention(attention)
        if attention.num_attention_heads % self.index_n_heads or self.index_head_dim % 2:
            raise ValueError(
                "block_indexer: its index_n_heads divide num_attention_heads, and its index_head_dim is even"
            )

    def check_stack_position(self, stack_position: StackPosition) -> None:
        """Raises `ValueError` if attention with an indexer cannot be used at this position of the model.

        stack_position: of the attention.
        """
        require_decoder(stack_position)

    @property
    def selected_token_count(self) -> int:
        """The largest number of tokens that a token attends to."""
        return self.index_block_size * self.index_topk_blocks

    def flow(
        self, recorder: Flow, x: Value, position: Rope, keys: Value, values: Value
    ) -> tuple[Value, Value, dict[str, Any]]:
        """Records the selection of blocks. Returns the keys and values to read, and arguments of the attention.

        position: RoPE on queries and keys. keys, values: those of each head of the attention.
        """
        return self._selected_keys_and_values(recorder, self._selected_token_mask(recorder, x, position), keys, values)

    def _selected_keys_and_values(
        self, recorder: Flow, mask: Value, keys: Value, values: Value
    ) -> tuple[Value, Value, dict[str, Any]]:
        kv_heads, *_ = keys.axes
        assert isinstance(kv_heads, Axis)
        block_size, block_count = self.index_block_size, self.index_topk_blocks
        with recorder.function():
            recorder.hold(k=keys, v=values)
            mask = recorder.repeat(mask, kv_heads)
            recorder.hold(seen=mask)
            mask, keys, values = recorder.only_selected(
                mask, keys, values, block_size=block_size, block_count=block_count
            )
        recorder.hold(k=keys, v=values, mask=mask)
        return (
            keys,
            values,
            {"core": ops.BlockAttentionCore, "selection": mask, "block": block_size, "blocks": block_count},
        )

    def _selected_token_mask(self, recorder: Flow, x: Value, position: Rope) -> Value:
        """Returns the mask of the selected tokens for each indexer head."""
        heads, index_dim = Axis("block_index_heads", self.index_n_heads), Axis("index_head_dim", self.index_head_dim)
        block_size, block_count = self.index_block_size, self.index_topk_blocks
        with recorder.scope("indexer", role="no_grad"):
            q = recorder.rope(
                recorder.norm("q_norm", recorder.linear("q_proj", x, heads, index_dim), self.norm, (index_dim,)),
                position,
            )
            recorder.hold(q=q)
            keys = recorder.rope(recorder.norm("k_norm", recorder.linear("k_proj", x, index_dim), self.norm), position)
            (keys,) = recorder.cache("cache", "indexer", keys)
            recorder.hold(k=keys)
            return recorder.select_blocks(recorder.scores("core", q, keys), keys, block_size, block_count)

    def reference(self, model_properties: ModelProperties, theta: float) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size, theta)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class KeyScores(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return q @ k[:, None].transpose(-1, -2)

    class BlockIndexerReference(nn.Module):
        """Selects blocks of tokens. x: [batch, tokens, hidden] → token mask, [batch, index heads, tokens, keys]."""

        def __init__(self, spec: BlockIndexer, hidden_size: int, rope_theta: float) -> None:
            super().__init__()
            self.spec, self.theta = spec, rope_theta
            self.q_proj = nn.Linear(hidden_size, spec.index_n_heads * spec.index_head_dim, bias=False)
            self.k_proj = nn.Linear(hidden_size, spec.index_head_dim, bias=False)
            self.q_norm = norm_reference(spec.norm, spec.index_head_dim)
            self.k_norm = norm_reference(spec.norm, spec.index_head_dim)
            self.cache, self.core = tensor_cache_class()(), KeyScores()

        def _rotate(self, x: Tensor, pass_state: PassState) -> Tensor:
            return rotate(x, pass_state, pass_state.past_tokens, self.spec.index_head_dim // 2 * 2, self.theta)

        @torch.no_grad()
        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec, end_position = self.spec, pass_state.past_tokens + x.shape[1]
            q = self._rotate(
                self.q_norm(self.q_proj(x).unflatten(-1, (spec.index_n_heads, -1)).transpose(1, 2)), pass_state
            )
            (k,) = self.cache(pass_state, self._rotate(self.k_norm(self.k_proj(x)), pass_state))
            positions = pass_state.positions(pass_state.past_tokens, end_position, x.device)
            key_positions = pass_state.positions(0, end_position, x.device)
            scores = self.core(q, k).float().masked_fill(key_positions[None] > positions[:, None], float("-inf"))
            block_count = -(-end_position // spec.index_block_size)
            scores = nn.functional.pad(
                scores, (0, block_count * spec.index_block_size - end_position), value=float("-inf")
            )
            block_scores = scores.unflatten(-1, (block_count, -1)).amax(-1)
            block_distance = (positions // spec.index_block_size)[:, None] - torch.arange(block_count, device=x.device)[
                None
            ]
            block_scores = block_scores.masked_fill(
                (block_distance >= 0) & (block_distance < spec.index_local_blocks), float("inf")
            ).masked_fill(block_distance < 0, float("-inf"))
            block_ranks = block_scores.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
            return (block_ranks < spec.index_topk_blocks).repeat_interleave(spec.index_block_size, -1)[
                ..., :end_position
            ] & (key_positions[None] <= positions[:, None])

        def selected_keys_and_values(
            self, x: Tensor, k: Tensor, v: Tensor, pass_state: PassState
        ) -> tuple[Tensor, Tensor, Tensor]:
            """Returns the keys and values to read, and their mask, [batch, heads, tokens, keys].

            k, v: [batch, heads, keys, d].
            """
            selected_mask, group_size = self(x, pass_state), k.shape[1] // self.spec.index_n_heads
            if group_size > 1:
                selected_mask = selected_mask.repeat_interleave(group_size, 1)
            if not pass_state.past_tokens or x.shape[1] > 1:
                return k, v, selected_mask
            end_position, block_size = k.shape[-2], self.spec.index_block_size
            read_token_count = min(
                end_position, (self.spec.index_topk_blocks - 1) * block_size + (end_position - 1) % block_size + 1
            )
            token_indices = (
                selected_mask[:, :, 0]
                .to(torch.int8)
                .sort(dim=-1, descending=True, stable=True)
                .indices[..., :read_token_count, None]
            )
            k, v = (tensor.gather(2, token_indices.expand(-1, -1, -1, tensor.shape[-1])) for tensor in (k, v))
            return k, v, torch.ones_like(selected_mask[..., :read_token_count])

    return BlockIndexerReference
