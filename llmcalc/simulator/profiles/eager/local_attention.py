"""Attention of blocks of tokens to neighbouring blocks, and to sums of blocks (LongT5)."""

from __future__ import annotations

from typing import Any

from ....algebra import ceil_div, floor_div
from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.program import Step
from ....ops import BlockSumMatmul, LocalAttentionCore
from ...tensor import BOOL, FLOAT32, INT64, Tensor
from .positions import PositionKernels


@kernels_compared(TORCH_WITNESS)
class LocalAttentionKernels(PositionKernels):
    """Kernels of local attention, which run the operations of the reference line by line."""

    def _block_sum_indices(self, token_count: Any, block_size: Any) -> tuple[Tensor, Tensor]:
        """Returns each token's block index and all block indices, computed once per pass."""
        index_key = ("of_token", token_count, block_size)
        block_of_token = self.compute_once(
            index_key, lambda: self.aten.new_like(self.aten.new_like(self.token_positions(token_count)))
        )
        return block_of_token, self.token_positions(floor_div(token_count, block_size))

    def core_BlockSumMatmul(self, operation: Step) -> None:
        assert isinstance(operation.op, BlockSumMatmul)
        aten, x = self.aten, self.flat_tensor(operation.input_values[0])
        block_of_token, block_indices = self._block_sum_indices(x.shape[1], operation.op.block_size)
        block_membership = aten.to(
            aten.new_like(aten.unsqueeze(block_indices, 1), aten.unsqueeze(block_of_token, 0), dtype=BOOL), x.dtype
        )
        self.store_tensor(operation.output_values[0], aten.matmul(block_membership, x))

    # --- blocks -----------------------------------------------------------------------------------------------------

    def do_in_blocks(self, operation: Step) -> None:
        recorded_value, output, block_size = (
            operation.input_values[0],
            operation.output_values[0],
            operation.options["block"],
        )
        x, heads, token_count = (
            self.flat_tensor(recorded_value),
            output.axes[0].size,
            self.run_config.new_rows(output.rows),
        )
        if not operation.options["around"]:
            self.store_without_reshape(output, self._split_local_heads(self._split_into_blocks(x, block_size), heads))
            return
        neighbour_blocks = self._split_local_heads(
            self._join_neighbour_blocks(self._split_into_blocks(self._first_rows(x, token_count), block_size)), heads
        )
        self.store_without_reshape(
            output,
            neighbour_blocks
            if recorded_value.rows == output.rows
            else self._append_block_sums(neighbour_blocks, x, heads, token_count),
        )

    def _append_block_sums(self, neighbour_blocks: Tensor, x: Tensor, heads: Any, token_count: Any) -> Tensor:
        """Concatenates the keys or values of each block with the keys or values of all block sums."""
        aten = self.aten
        block_sums = aten.unsqueeze(self._split_local_heads(aten.slice(x, x.shape[1] - token_count, 1), heads), 1)
        return aten.cat(
            [neighbour_blocks, aten.expand(block_sums, (*neighbour_blocks.shape[:2], *block_sums.shape[2:]))], -2
        )

    def _first_rows(self, x: Tensor, row_count: Any) -> Tensor:
        """Returns the first `row_count` rows of x; x itself if it has no more rows."""
        return x if x.shape[1] == row_count else self.aten.slice(x, row_count, 1)

    def _split_into_blocks(self, x: Tensor, block_size: Any) -> Tensor:
        """Splits tokens into blocks: [batch, tokens, …] → [batch, blocks, block, …], padded at the end."""
        block_count = ceil_div(x.shape[1], block_size)
        padding_rows = self.aten.new_tensor((x.shape[0], block_count * block_size - x.shape[1], *x.shape[2:]), x.dtype)
        return self.aten.unflatten(self.aten.cat([x, padding_rows], 1), 1, (block_count, block_size))

    def _join_neighbour_blocks(self, x: Tensor) -> Tensor:
        """Joins each block with its neighbours: [batch, blocks, block, …] → [batch, blocks, 3 · block, …]."""
        aten, other_block_count = self.aten, x.shape[1] - 1
        padding_block = aten.new_tensor((x.shape[0], 1, *x.shape[2:]), x.dtype)
        return aten.cat(
            [
                aten.cat([padding_block, aten.slice(x, other_block_count, 1)], 1),
                x,
                aten.cat([aten.slice(x, other_block_count, 1), padding_block], 1),
            ],
            2,
        )

    def _split_local_heads(self, x: Tensor, heads: Any) -> Tensor:
        """Splits the last axis into heads: […, tokens, heads · d] → […, heads, tokens, d]."""
        return self.aten.transpose(self.aten.unflatten(x, -1, (heads, x.shape[-1] // heads)), -2, -3)

    # --- scores -----------------------------------------------------------------------------------------------------

    def do_local_mask(self, operation: Step) -> None:
        mask_options, token_count = operation.options, self.run_config.new_rows(operation.options["of"])
        mask_sizes = token_count, mask_options["radius"], mask_options["block_sums"]
        self.compute_once(
            ("blocks", *mask_sizes),
            lambda: self._local_mask(*mask_sizes, list(map(self.tensor_of, operation.input_values))),
        )

    def _local_mask(
        self, token_count: Any, local_radius: Any, block_size: Any, bias_tables: list[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Builds the local attention mask, as LocalReference._mask_and_bias does."""
        aten, block_rows = self.aten, local_radius + 1
        token_positions = self._split_into_blocks(
            aten.new_like(aten.unsqueeze(self.token_positions(token_count), 0)), block_rows
        )
        key_positions = self._join_neighbour_blocks(token_positions)
        window_positions = aten.new_tensor((3 * block_rows,), INT64)
        block_positions = aten.slice(window_positions, block_rows)
        radius_mask = aten.compare(
            aten.new_like(aten.new_like(aten.unsqueeze(window_positions, 0), aten.unsqueeze(block_positions, 1)))
        )
        neighbour_mask = aten.compare(radius_mask, aten.unsqueeze(aten.compare(aten.select(key_positions, 0)), 1))
        del radius_mask
        mask, bias = aten.unsqueeze(neighbour_mask, 1), None
        if bias_tables:
            bias = aten.unsqueeze(
                self.bias_by_distance(bias_tables[0], block_positions, window_positions, causal=False), 0
            )
        if block_size is None:
            return mask, bias
        block_of_token, block_indices = self._block_sum_indices(token_count, block_size)
        mask = aten.cat([mask, aten.new_tensor((*mask.shape[:-1], block_indices.shape[0]), BOOL)])
        if bias is not None:
            block_sum_bias = self.bias_by_distance(bias_tables[1], block_of_token, block_indices, causal=False)
            block_sum_mask = aten.unsqueeze(aten.permute(block_sum_bias, (1, 0, 2)), 0)
            del block_sum_bias
            block_sum_mask = aten.transpose(aten.select(self._split_into_blocks(block_sum_mask, block_rows), 0), 1, 2)
            bias = aten.cat([aten.expand(bias, (block_sum_mask.shape[0], *bias.shape[1:])), block_sum_mask])
        return mask, bias

    def attention_LocalAttentionCore(self, operation: Step) -> None:
        if self.choices.attention != "eager":
            raise self.unsupported("local attention runs with eager attention alone", operation.name)
        q, k, v = map(self.tensor_of, operation.input_values)
        assert isinstance(operation.op, LocalAttentionCore)
        token_count, op = self.run_config.new_rows(operation.output_values[0].rows), operation.op
        mask, bias = self.pass_memo["blocks", token_count, op.radius, op.global_block]
        dropout = operation.options["dropout"]
        attention_output = self.run_attention_core(
            lambda q, k, v, *bias: self._local_core(q, k, v, mask, dropout, *bias), q, k, v, bias
        )
        attention_output = self.aten.flatten(self.aten.transpose(attention_output, -2, -3), 1, 2)
        self.store_tensor(operation.output_values[0], self._first_rows(attention_output, token_count))

    def _local_core(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float, bias: Tensor | None = None
    ) -> Tensor:
        aten = self.aten
        scores = aten.matmul(q, aten.transpose(k, -1, -2))
        if bias is None:
            scores = aten.masked_fill(scores, aten.new_like(mask))
        else:
            scores = aten.masked_fill(aten.add(scores, aten.to(bias, scores.dtype)), aten.new_like(mask))
        return aten.matmul(self.apply_dropout(aten.to(aten.softmax(aten.to(scores, FLOAT32)), v.dtype), dropout), v)
