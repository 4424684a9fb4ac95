"""Local encoder attention to nearby tokens in both directions, and optionally to sums over blocks of tokens.

LongT5 (Guo et al. 2021, arXiv:2112.07916, §3.1). `local`: a token attends to tokens at most local_radius away. Each
block of local_radius + 1 tokens attends to itself and its two neighbours; the last block is padded. `transient-global`:
every layer also computes the normalized sum of each global_block_size tokens. The layer's projections give it a key and
a value, which every token attends to. transformers: models/longt5.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import BlockRows, RowsWithBlockSummaries
from ..base import TORCH_WITNESS, ChunkSize, HeadDim, Heads, ModelProperties, PartWitness, ScoreBias, Window
from ..norm import Norm
from ..runtime import PassState, apply_dropout
from .grouped_query import MultiHeadMixer

if TYPE_CHECKING:
    from torch import Tensor, nn


class LocalAttention(MultiHeadMixer):
    """Encoder attention to nearby tokens, and optionally to one summed vector per block of the whole sequence.

    num_attention_heads: the number of heads.
    head_dim: the size of a head.
    local_radius: the number of tokens in each direction that a token attends to.
    global_block_size: the number of tokens per block sum; by default there are no sums. Tokens after the last whole
        block are added to the last sum.
    global_norm: the norm on the sums, none by default.
    """

    formula_source: ClassVar[str] = "Guo et al. 2021, §3.1"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["local"] = "local"
    num_attention_heads: Heads
    head_dim: HeadDim
    local_radius: Window
    global_block_size: ChunkSize | None = None
    global_norm: Norm | None = None

    def check_fields(self) -> None:
        if self.global_norm is not None and self.global_block_size is None:
            raise ValueError("global_norm: there are no sums to norm without a global_block_size")

    def cost_thresholds(self) -> tuple[int, ...]:
        return tuple(length for length in (self.local_radius, self.global_block_size) if length is not None)

    def supported_score_bias(self) -> ScoreBias:
        return ScoreBias(self.num_attention_heads, has_block_bias=self.global_block_size is not None)

    def record_shared_bias(self, recorder: Flow, x: Value) -> None:
        """Records the computation of the shared score bias, and the mask on which the bias for block sums depends."""
        bias_tables = [
            recorder.layer_memo[bias_name]
            for bias_name in ("relative_bias", "relative_bias_of_blocks")
            if bias_name in recorder.layer_memo
        ]
        recorder.local_mask(x.rows, self.local_radius, self.global_block_size, *bias_tables)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, head_dim, global_block_size = (
            Axis("heads", self.num_attention_heads),
            Axis("head_dim", self.head_dim),
            None,
        )
        kv_input = x
        if self.global_block_size is not None:
            global_block_size = self.global_block_size
            sum_op = ops.BlockSumMatmul(x.width, global_block_size, x.rows)
            sum_rows = BlockRows(source_rows=x.rows, block_rows=global_block_size)
            block_sums = recorder.core("sums", sum_op, x, axes=x.axes, rows=sum_rows)
            recorder.hold(summed=block_sums)
            block_sums = (
                block_sums if self.global_norm is None else recorder.part("global_norm", self.global_norm, block_sums)
            )
            kv_input = recorder.cat(
                x,
                block_sums,
                axes=x.axes,
                rows=RowsWithBlockSummaries(source_rows=x.rows, block_rows=global_block_size),
            )
            recorder.hold(read=kv_input)
        block_size = self.local_radius + 1
        q = recorder.in_blocks(recorder.linear("q_proj", x, heads, head_dim), block_size, x.rows)
        recorder.hold(q=q)
        keys, values = (
            recorder.in_blocks(
                recorder.linear(projection_name, kv_input, heads, head_dim), block_size, x.rows, has_neighbours=True
            )
            for projection_name in ("k_proj", "v_proj")
        )
        recorder.hold(k=keys, v=values)
        self.record_shared_bias(recorder, x)
        key_limits: dict[str, Any] = {"radius": self.local_radius, "global_block": global_block_size}
        attn_output = recorder.attention(
            "core", q, keys, values, causal=False, core=ops.LocalAttentionCore, **key_limits
        )
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *x.axes)

    def describe(self, hidden_size: int) -> str:
        sums_text = "" if self.global_block_size is None else f", sums of {self.global_block_size}"
        return f"local MHA {self.num_attention_heads} × {self.head_dim}, {self.local_radius} each way{sums_text}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, head_dim=6, local_radius=3),
            cls(
                num_attention_heads=4, head_dim=5, local_radius=3, global_block_size=3, global_norm=Norm(type="rmsnorm")
            ),
            cls(
                num_attention_heads=4, head_dim=5, local_radius=20, global_block_size=20
            ),  # a single block, not whole, so there is no sum
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class LocalSoftmaxCore(nn.Module):
        """Attends within blocks. q: [batch, blocks, heads, block, d], k and v: [batch, blocks, heads, keys, d].

        Returns the shape of q. Scores are not scaled, as in T5.
        """

        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
            scores = q @ k.transpose(-1, -2)
            scores = (scores if bias is None else scores + bias.to(scores.dtype)).masked_fill(~mask, float("-inf"))
            return apply_dropout(self, "attention", torch.softmax(scores.float(), -1).to(v.dtype)) @ v

    class BlockSumProduct(nn.Module):
        """Sums the tokens of each block. x: [batch, tokens, hidden] → [batch, sums, hidden]."""

        def forward(self, x: Tensor, sum_index: Tensor, sum_positions: Tensor) -> Tensor:
            return (sum_positions[:, None] == sum_index[None]).to(x.dtype) @ x

    class LocalAttentionReference(nn.Module):
        """Attends to nearby tokens and to block sums, for LongT5. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: LocalAttention, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, heads_width = spec, spec.num_attention_heads * spec.head_dim
            for projection_name in ("q_proj", "k_proj", "v_proj"):
                self.add_module(projection_name, nn.Linear(model_properties.hidden_size, heads_width, bias=False))
            if spec.global_block_size is not None:
                self.sums = BlockSumProduct()
            if spec.global_norm is not None:
                self.global_norm = spec.global_norm.reference(model_properties)
            self.core, self.o_proj = (
                LocalSoftmaxCore(),
                nn.Linear(heads_width, model_properties.hidden_size, bias=False),
            )

        def _split_into_blocks(self, x: Tensor) -> Tensor:
            """Splits tokens into blocks, zero-padded. [batch, tokens, …] → [batch, blocks, block, …]."""
            block_size = self.spec.local_radius + 1
            zero_tokens = x.new_zeros(x.shape[0], -x.shape[1] % block_size, *x.shape[2:])
            return torch.cat([x, zero_tokens], 1).unflatten(1, (-1, block_size))

        def _join_neighbour_blocks_of_keys(self, x: Tensor) -> Tensor:
            """Joins each block with its two neighbours. [batch, blocks, block, …] → [batch, blocks, 3 · block, …]."""
            zero_block = torch.zeros_like(x[:, :1])
            return torch.cat([torch.cat([zero_block, x[:, :-1]], 1), x, torch.cat([x[:, 1:], zero_block], 1)], 2)

        def _gather_block_keys(self, x: Tensor, token_count: int) -> Tensor:
            """Gathers, for each block, keys or values of the block, of both neighbouring blocks and of all block sums.

            [batch, tokens and sums, heads · d] → [batch, blocks, heads, keys, d].
            """
            local_vectors = self._split_heads(
                self._join_neighbour_blocks_of_keys(self._split_into_blocks(x[:, :token_count]))
            )
            if self.spec.global_block_size is None:
                return local_vectors
            sum_vectors = self._split_heads(x[:, token_count:])[:, None].expand(-1, local_vectors.shape[1], -1, -1, -1)
            return torch.cat([local_vectors, sum_vectors], -2)

        def _split_heads(self, x: Tensor) -> Tensor:
            """Splits the last axis into heads. […, tokens, heads · d] → […, heads, tokens, d]."""
            return x.unflatten(-1, (self.spec.num_attention_heads, -1)).transpose(-2, -3)

        def compute_shared_bias(self, x: Tensor, pass_state: PassState) -> None:
            """Computes, before the first layer, the mask and the bias that all layers of a stack use."""
            self._shared_bias(pass_state, x.shape[1], x.device)

        def _shared_bias(self, pass_state: PassState, token_count: int, device: Any) -> tuple[Tensor, Tensor | None]:
            memo_key = "blocks", token_count, self.spec.local_radius, self.spec.global_block_size
            return pass_state.compute_once(memo_key, lambda: self._mask_and_bias(pass_state, token_count, device))

        def _index_block_sums(self, pass_state: PassState, token_count: int, device: Any) -> tuple[Tensor, Tensor]:
            """Returns the index of the block sum to which each token belongs, and the indices of all block sums."""
            block_size = self.spec.global_block_size
            assert block_size is not None
            last_sum_index = token_count // block_size - 1
            sum_index: Tensor = pass_state.compute_once(
                ("of_token", token_count, block_size),
                lambda: (pass_state.positions(0, token_count, device) // block_size).clamp(max=last_sum_index),
            )
            return sum_index, pass_state.positions(0, last_sum_index + 1, device)

        def _mask_and_bias(self, pass_state: PassState, token_count: int, device: Any) -> tuple[Tensor, Tensor | None]:
            """Returns the mask [blocks, 1, block, keys] of the keys each query attends to, and the score bias."""
            radius = self.spec.local_radius
            # 0 marks padding
            positions = self._split_into_blocks(pass_state.positions(0, token_count, device)[None] + 1)
            key_positions = self._join_neighbour_blocks_of_keys(positions)
            key_offsets = torch.arange(-radius - 1, 2 * radius + 2, device=device)
            local_mask = ((key_offsets[None] - key_offsets[radius + 1 : 2 * radius + 2, None]).abs() <= radius) & (
                key_positions[0] > 0
            )[:, None]
            mask = local_mask[:, None]
            bias = None
            if pass_state.score_bias is not None:
                bias = pass_state.score_bias(key_offsets[radius + 1 : 2 * radius + 2], key_offsets)[None]
            if self.spec.global_block_size is not None:
                sum_index, sum_positions = self._index_block_sums(pass_state, token_count, device)
                mask = torch.cat([mask, mask.new_ones(*mask.shape[:-1], len(sum_positions))], -1)
                if bias is not None:
                    block_sum_bias = self._split_into_blocks(
                        pass_state.score_bias.blocks(sum_index, sum_positions).permute(1, 0, 2)[None]
                    )[0].transpose(1, 2)
                    bias = torch.cat([bias.expand(block_sum_bias.shape[0], -1, -1, -1), block_sum_bias], -1)
            return mask, bias

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            token_count, kv_input = x.shape[1], x
            if self.spec.global_block_size is not None:
                block_sums = self.sums(x, *self._index_block_sums(pass_state, token_count, x.device))
                kv_input = torch.cat(
                    [x, self.global_norm(block_sums) if hasattr(self, "global_norm") else block_sums], 1
                )
            q = self._split_heads(self._split_into_blocks(self.get_submodule("q_proj")(x)))
            k, v = (
                self._gather_block_keys(self.get_submodule(projection_name)(kv_input), token_count)
                for projection_name in ("k_proj", "v_proj")
            )
            mask, bias = self._shared_bias(pass_state, token_count, x.device)
            attn_output = self.core(q, k, v, mask, bias).transpose(-2, -3).flatten(1, 2)[:, :token_count]
            return self.o_proj(attn_output.flatten(2))

    return LocalAttentionReference
