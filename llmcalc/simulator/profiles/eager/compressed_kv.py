"""Attention to compressed keys and values, each of which summarizes several tokens (DeepSeek-V4)."""

from __future__ import annotations

from ....algebra import Number, exact_div, is_zero, minimum
from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.program import Step
from ....ops import CompressedKVCache
from ...tensor import BOOL, FLOAT32, INT64, Tensor
from .attention_variants import AttentionVariantKernels


@kernels_compared(TORCH_WITNESS)
class CompressedKVKernels(AttentionVariantKernels):
    """Kernels of attention to compressed keys, which run the reference's operations line by line."""

    def do_windows(self, operation: Step) -> None:
        aten, x, output = self.aten, self.tensor_of(operation.input_values[0]), operation.output_values[0]
        shape = self.shape(output)
        if is_zero(shape[1]):  # no window is full yet
            if self.only_finds_parameters:
                self.store_tensor(output, aten.new_tensor((shape[0], 1, *shape[2:]), x.dtype))
            else:
                self.absent_value_ids.add(id(output))
            return
        window_row_count = shape[1] * shape[2]
        self.store_tensor(
            output,
            aten.unflatten(x if x.shape[1] == window_row_count else aten.slice(x, window_row_count, 1), 1, shape[1:3]),
        )

    def do_weighted_mean(self, operation: Step) -> None:
        aten, (window_values, gate) = self.aten, map(self.tensor_of, operation.input_values)
        self.store_tensor(
            operation.output_values[0],
            aten.sum(aten.mul(window_values, aten.to(aten.softmax(aten.to(gate, FLOAT32)), window_values.dtype)), 2),
        )

    def do_with_unpooled_rows(self, operation: Step) -> None:
        row_tensors = list(map(self.tensor_of, operation.input_values))
        cached_tensors = self.frames[-1].local_tensors["held"] = self.cached_tensors("cache")
        if cached_tensors is not None:
            row_tensors = [
                self.aten.cat([cached_rows, new_rows], 1)
                for cached_rows, new_rows in zip(cached_tensors[1:], row_tensors, strict=True)
            ]
        for recorded_value, output, tensor in zip(
            operation.input_values, operation.output_values, row_tensors, strict=True
        ):
            self.tensors_by_value.pop(id(recorded_value))
            self.store_without_reshape(output, tensor)

    def do_keep_entries(self, operation: Step) -> None:
        """Caches the compressed keys, and the last tokens, which are not compressed yet."""
        aten, (recorded_value, *row_values), cached_tensors = (
            self.aten,
            operation.input_values,
            self.cached_tensors(operation.name),
        )
        assert isinstance(operation.op, CompressedKVCache)
        pending_rows, tokens_per_entry = (
            [self.tensor_of(row_value) for row_value in row_values],
            operation.op.tokens_per_entry,
        )
        new_compressed_kv = None if self.is_from_earlier_pass(recorded_value) else self.tensor_of(recorded_value)
        cached_kv = None if cached_tensors is None else cached_tensors[0]
        if new_compressed_kv is not None:
            compressed_kv = new_compressed_kv if cached_kv is None else aten.cat([cached_kv, new_compressed_kv], 1)
        elif cached_kv is not None:
            compressed_kv = cached_kv
        else:
            compressed_kv = aten.new_tensor(
                (self.run_config.batch, 0, recorded_value.width), pending_rows[0].dtype if pending_rows else self.dtype
            )
        self.store_in_cache(
            operation.name,
            compressed_kv,
            *(aten.slice(row_tensor, row_tensor.shape[1] % tokens_per_entry, 1) for row_tensor in pending_rows),
        )
        self.tensors_by_value.pop(id(recorded_value), None)
        self.store_output(operation, compressed_kv)

    def do_whole_entries(self, operation: Step) -> None:
        aten, (q, compressed_kv) = self.aten, map(self.tensor_of, operation.input_values)
        complete_window_counts = self.frames[-1].local_tensors["whole"] = aten.new_like(
            aten.new_like(self.token_positions(q.shape[1]))
        )
        key_positions = aten.unsqueeze(aten.new_tensor((compressed_kv.shape[1],), INT64), 0)
        self.store_output(operation, aten.compare(key_positions, aten.unsqueeze(complete_window_counts, 1)))

    def do_value_of_lower_layer(self, operation: Step) -> None:
        """Returns values that a lower layer has stored under a name for higher layers."""
        self.refuse_recomputed_module(operation)
        self.store_output(operation, self.pass_memo[operation.options["slot"]])

    def do_candidates(self, operation: Step) -> None:
        """Gathers a decoded token's candidate keys, or masks all other keys (CompressedKVSelector._candidate_keys)."""
        aten, (keys, visible_mask) = self.aten, map(self.tensor_of, operation.input_values)
        top_blocks = self.pass_memo["candidate blocks"]
        block_size = operation.options["block_size"]
        key_count = keys.shape[1]
        if self.reads_only_selected_keys(top_blocks.shape[1]):
            block_offsets = aten.new_tensor((block_size,), INT64)
            last_block_size = key_count - (key_count - 1) // block_size * block_size
            candidate_indices = aten.add(aten.scale(aten.unsqueeze(aten.select(top_blocks, 1), -1)), block_offsets)
            candidate_indices = aten.flatten(candidate_indices, 1)
            candidate_slices = [
                aten.slice(candidate_indices, last_block_size),
                aten.slice(candidate_indices, candidate_indices.shape[-1] - block_size),
            ]
            key_positions = aten.cat(candidate_slices)
            del candidate_indices, candidate_slices
            key_positions = aten.sort(key_positions)[0]
            gather_indices = aten.unsqueeze(key_positions, -1)
            gathered_keys = aten.gather(keys, aten.expand(gather_indices, (*gather_indices.shape[:-1], keys.shape[-1])))
            self.frames[-1].local_tensors["positions"] = key_positions
            self.store_output(operation, gathered_keys)
            self.store_without_reshape(operation.output_values[1], aten.slice(visible_mask, key_positions.shape[-1]))
            return
        block_total = -(-key_count // block_size)
        candidate_indices = aten.new_tensor((*top_blocks.shape[:2], block_total), BOOL)
        candidate_indices = aten.slice(
            aten.repeat_interleave(aten.scatter(candidate_indices, top_blocks), block_size, 2), key_count
        )
        self.store_output(operation, keys)
        self.store_without_reshape(operation.output_values[1], aten.compare(visible_mask, candidate_indices))

    def _choose_best_blocks(self, masked_scores: Tensor, block_count: Number, block_size: Number) -> None:
        """Ranks blocks of compressed keys per token, and stores the best for higher layers (`_store_best_blocks`)."""
        aten, (batch, token_count, key_count) = self.aten, masked_scores.shape
        block_total = -(-key_count // block_size)
        padded_scores = aten.pad(masked_scores, block_total * block_size)
        block_maxima = aten.new_tensor((batch, token_count, block_total), FLOAT32)
        del padded_scores
        block_index_by_token = aten.new_like(self.token_positions(token_count))
        block_maxima = aten.scatter(block_maxima, block_index_by_token)
        ranked_blocks = aten.sort(block_maxima)[1]
        self.pass_memo["candidate blocks"] = aten.slice(ranked_blocks, minimum(block_total, block_count))

    def do_choose_entries(self, operation: Step) -> None:
        """Chooses the compressed keys with the highest weighted sum of scores (CompressedKVSelector.forward)."""
        aten, (scores, head_weights, visible_mask) = self.aten, map(self.tensor_of, operation.input_values)
        self.free_value(operation.input_values[0].storage)
        self.free_value(operation.input_values[1].storage)
        weighted_scores = aten.mul(scores, aten.unsqueeze(aten.transpose(head_weights, 1, 2), -1))
        del head_weights
        weighted_scores = aten.sum(weighted_scores, 1)
        scores = aten.to(weighted_scores, FLOAT32)
        del weighted_scores
        masked_scores = aten.masked_fill(scores, aten.new_like(visible_mask))
        if operation.options["finds"] is not None:
            self._choose_best_blocks(masked_scores, *operation.options["finds"])
        top_indices = aten.sort(masked_scores)[1]
        top_indices = aten.slice(top_indices, minimum(top_indices.shape[-1], operation.options["top_k"]))
        key_positions = self.frames[-1].local_tensors.get("positions")
        if key_positions is not None:
            top_indices = aten.gather(aten.unsqueeze(key_positions, 1), top_indices)
        self.store_output(operation, top_indices)

    def do_among(self, operation: Step) -> None:
        aten, (visible_mask, chosen_indices, compressed_kv) = (
            self.aten,
            map(self.tensor_of, operation.input_values),
        )
        self.tensors_by_value.pop(id(operation.input_values[2]), None)
        if self.reads_only_selected_keys(chosen_indices.shape[1]):
            gather_indices = aten.unsqueeze(aten.select(chosen_indices, 1), -1)
            self.store_without_reshape(
                operation.output_values[1],
                aten.gather(
                    compressed_kv,
                    aten.expand(gather_indices, (*gather_indices.shape[:-1], compressed_kv.shape[-1])),
                ),
            )
            self.store_output(operation, aten.slice(visible_mask, chosen_indices.shape[-1]))
            return
        self.store_without_reshape(operation.output_values[1], compressed_kv)
        selected_mask = aten.scatter(
            aten.expand(aten.new_like(visible_mask), (chosen_indices.shape[0], *visible_mask.shape)), chosen_indices
        )
        self.store_output(operation, aten.unsqueeze(aten.new_like(visible_mask, selected_mask), 1))

    def do_per_group(self, operation: Step) -> None:
        """Applies one linear layer per group, as GroupedLinear.forward does."""
        aten, output = self.aten, operation.output_values[0]
        x, (group_count, rank_per_group) = (
            self.flat_tensor(operation.input_values[0], operation),
            (axis.size for axis in output.axes),
        )
        self.frames[-1].local_tensors["out"] = x
        group_width = exact_div(x.shape[-1], group_count)
        grouped_rows = aten.transpose(aten.flatten(aten.unflatten(x, -1, (group_count, group_width)), 0, 1), 0, 1)
        weight = self.weight(f"{operation.name}.weight", (group_count, rank_per_group, group_width))
        group_products = aten.transpose(aten.matmul(grouped_rows, aten.transpose(weight, 1, 2)), 0, 1)
        self.store_tensor(output, aten.unflatten(group_products, 0, x.shape[:2]))
