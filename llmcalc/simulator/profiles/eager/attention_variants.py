"""Attention with separate steps for scores, softmax and weighted sums, and attention to selected keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....algebra import ceil_div, is_zero, minimum
from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.program import Step
from ....flow.value import Value
from ...strides import is_size_one
from ...tensor import BOOL, FLOAT32, INT32, INT64, UINT8, Tensor
from .attention import AttentionKernels


@kernels_compared(TORCH_WITNESS)
class AttentionVariantKernels(AttentionKernels):
    """Kernels of indexers, of attention to two kinds of keys, and of masks that depend on values."""

    # --- scores alone -------------------------------------------------------------------------------------------------

    def do_scores(self, operation: Step) -> None:
        """Computes scores [batch, heads, queries, keys]."""
        aten, keys, (q, k) = self.aten, operation.input_values[1], map(self.tensor_of, operation.input_values[:2])
        if len(operation.input_values) > 2:
            scores = self._weighted_scores(q, k, self.tensor_of(operation.input_values[2]))
            del q, k
            self.release_last_reads(operation, operation.input_values)
            scores = aten.to(scores, FLOAT32)
        elif not keys.rows.batched:
            scores = self.scores_by_row(q, k)
        elif len(keys.axes) == 1:  # every head has the same keys
            scores = aten.matmul(self.heads_first(q), aten.transpose(aten.unsqueeze(k, 1), -1, -2))
        elif k.shape[2] != q.shape[2]:
            raise self.unsupported("no kernels for scores of fewer key heads", operation.name)
        else:
            scores = aten.matmul(self.heads_first(q), aten.transpose(self.heads_first(k), -1, -2))
        self.store_output(operation, scores)

    def scores_by_row(self, x: Tensor, shared_rows: Tensor) -> Tensor:
        """Computes scores with keys that all sequences share (such as positions): [batch, heads, tokens, rows].

        x: [batch, tokens, heads, d]. shared_rows: [rows, heads, d], or [rows, d] for all heads.
        """
        if len(shared_rows.shape) == 2:
            return self.aten.matmul(self.heads_first(x), self.aten.transpose(shared_rows, -1, -2))
        return self.aten.matmul(self.heads_first(x), self.aten.permute(shared_rows, (1, 2, 0)))

    # --- selected by an indexer (DeepSeek-V3.2) -----------------------------------------------------------------------

    def _weighted_scores(self, q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
        """Sums an indexer's scores over heads with weights. q: [batch, queries, heads, d], k: [batch, keys, d]."""
        aten = self.aten
        k = aten.transpose(aten.unsqueeze(k, 1), -1, -2)
        if not self.choices.matches_transformers:
            scores = aten.elementwise_function("relu", aten.scale(aten.matmul(q, k)))
            return aten.select(aten.matmul(aten.unsqueeze(weights, 2), scores), 2)
        scores = aten.elementwise_function("relu", aten.scale(aten.matmul(aten.to(q, FLOAT32), aten.to(k, FLOAT32))))
        weights = aten.scale(aten.to(weights, FLOAT32))
        return aten.select(aten.matmul(aten.unsqueeze(weights, 2), scores), 2)

    def do_select(self, operation: Step) -> None:
        aten, scores = self.aten, self.tensor_of(operation.input_values[0])
        if operation.options["pool"] is not None:
            self.pass_memo["selected"] = self._tokens_of_pools(operation, scores)
            return
        mask = self.mask(operation, *scores.shape[1:])
        selected_count = minimum(scores.shape[-1], operation.options["top_k"])
        scores = aten.masked_fill(scores, aten.new_like(mask))
        if self.choices.matches_transformers:
            self.pass_memo["selected"] = aten.to(aten.topk(scores, selected_count)[1], INT32)
        else:
            self.pass_memo["selected"] = aten.slice(aten.sort(scores)[1], selected_count)

    def _tokens_of_pools(self, operation: Step, scores: Tensor) -> Tensor:
        """Returns the indices of the tokens in the highest-scoring pools of tokens: [batch, queries, pools]."""
        aten, tokens_per_pool, key_count = (
            self.aten,
            operation.options["pool"],
            self.tensor_of(operation.input_values[1]).shape[1],
        )
        batch, query_count, pool_count = scores.shape
        visible_tokens = aten.add_number(aten.unsqueeze(self.token_positions(query_count), 1))
        top_pools = aten.sort(
            aten.masked_fill(scores, aten.compare(aten.new_tensor((pool_count,), INT64), visible_tokens))
        )[1]
        chosen_pools = aten.slice(top_pools, minimum(pool_count, operation.options["top_k"] // tokens_per_pool))
        token_indices = aten.new_tensor((batch, query_count, chosen_pools.shape[-1] * tokens_per_pool), INT64)
        last_pool_token_count = key_count % tokens_per_pool if is_size_one(query_count) else tokens_per_pool - 1
        return aten.cat([token_indices, aten.new_tensor((batch, query_count, last_pool_token_count), INT64)])

    def do_selected(self, operation: Step) -> None:
        """Builds the mask of each sequence's selected keys (MLAReference.forward)."""
        aten, (q, *keys) = self.aten, map(self.tensor_of, operation.input_values)
        mask, selected_indices = self.mask(operation, q.shape[1], keys[0].shape[1]), self.pass_memo["selected"]
        if self.choices.matches_transformers and not operation.options["lends"]:
            del self.pass_memo["selected"]  # a class keeps it in its layer
        if self.reads_only_selected_keys(q.shape[1]):
            if len(keys[0].shape) == 4:  # every head has keys of its own: MeanIndexerReference.narrow
                selected_count = selected_indices.shape[-1]
                selected_rows = [aten.new_tensor((k.shape[0], selected_count, *k.shape[2:]), k.dtype) for k in keys]
                self.store_output(operation, aten.new_tensor((1, selected_count), BOOL))
                self._store_selected_keys(operation, selected_rows)
                return
            gather_index = aten.unsqueeze(aten.select(selected_indices, 1), -1)
            selected_rows = [
                aten.gather(k, aten.expand(gather_index, (*gather_index.shape[:-1], k.shape[-1]))) for k in keys
            ]
            self.store_output(operation, aten.slice(mask, gather_index.shape[1]))
            self._store_selected_keys(operation, selected_rows)
            return
        selected_mask = aten.scatter(aten.expand(aten.new_like(mask), (q.shape[0], *mask.shape)), selected_indices)
        self.store_output(operation, aten.unsqueeze(aten.new_like(mask, selected_mask), 1))
        self._store_selected_keys(operation, keys)

    def reads_only_selected_keys(self, query_count: Any) -> bool:
        """Whether the reference reads only selected keys, as when decoding one token."""
        return self.has_earlier_tokens and is_size_one(query_count)

    def _store_selected_keys(self, operation: Step, keys: Sequence[Tensor]) -> None:
        """Stores the selected keys and values, and frees all keys and values."""
        for recorded_value, output, tensor in zip(
            operation.input_values[1:], operation.output_values[1:], keys, strict=True
        ):
            self.tensors_by_value.pop(id(recorded_value), None)
            self.store_without_reshape(output, tensor)

    # --- selected in blocks by an indexer (MiniMax-M3) ----------------------------------------------------------------

    def do_select_blocks(self, operation: Step) -> None:
        """Selects the blocks of keys with the highest scores [batch, index heads, queries, keys]."""
        aten, block_size, scores = self.aten, operation.options["block"], self.tensor_of(operation.input_values[0])
        self.free_value(operation.input_values[0].storage)
        scores = aten.to(scores, FLOAT32)
        query_count, key_count = scores.shape[-2:]
        query_positions, key_positions = self.token_positions(query_count), self.token_positions(key_count)
        scores = aten.masked_fill(
            scores, aten.compare(aten.unsqueeze(key_positions, 0), aten.unsqueeze(query_positions, 1))
        )
        block_count = ceil_div(key_count, block_size)
        scores = aten.new_tensor((*scores.shape[:-1], block_count * block_size), FLOAT32)
        block_scores = aten.new_tensor((*scores.shape[:-1], block_count), FLOAT32)
        block_distances = aten.new_like(
            aten.unsqueeze(aten.new_like(query_positions), 1), aten.unsqueeze(aten.new_tensor((block_count,), INT64), 0)
        )
        block_scores = aten.masked_fill(
            aten.masked_fill(block_scores, aten.compare(aten.compare(block_distances), aten.compare(block_distances))),
            aten.compare(block_distances),
        )
        block_ranks = aten.sort(aten.sort(block_scores)[1])[1]
        selected_mask = aten.slice(aten.repeat_interleave(aten.compare(block_ranks), block_size, 3), key_count)
        self.store_output(
            operation,
            aten.compare(
                selected_mask, aten.compare(aten.unsqueeze(key_positions, 0), aten.unsqueeze(query_positions, 1))
            ),
        )

    def do_only_selected(self, operation: Step) -> None:
        """Gathers the selected keys and values when decoding one token; otherwise passes all of them to attention."""
        aten = self.aten
        visible_mask = self.tensor_of(operation.input_values[0])
        block_size, block_count = operation.options["block"], operation.options["blocks"]
        keys = [self.heads_first(self.tensor_of(input_value)) for input_value in operation.input_values[1:]]
        if self.reads_only_selected_keys(visible_mask.shape[-2]):
            key_count = keys[0].shape[2]
            read_row_count = minimum(key_count, (block_count - 1) * block_size + (key_count - 1) % block_size + 1)
            gather_index = aten.unsqueeze(
                aten.slice(aten.sort(aten.to(aten.select(visible_mask, 2), UINT8))[1], read_row_count), -1
            )
            keys = [aten.gather(k, aten.expand(gather_index, (*gather_index.shape[:-1], k.shape[-1]))) for k in keys]
            visible_mask = aten.new_like(aten.slice(visible_mask, read_row_count))
        self.tensors_by_value.pop(id(operation.input_values[0]), None)
        self.store_output(operation, visible_mask)
        self._store_selected_keys(operation, [self.heads_first(k) for k in keys])

    def attention_BlockAttentionCore(self, operation: Step) -> None:
        self.attention_AttentionCore(operation)

    # --- one softmax over two kinds of keys (T5Gemma 2, DeepSeek-V4) --------------------------------------------------

    def attention_PooledAttentionCore(self, operation: Step) -> None:
        self.attention_AttentionCore(operation)

    def do_joint_softmax(self, operation: Step) -> None:
        """Computes one softmax over the scores of several attention cores.

        It runs as MergedReference.forward and CompressedAttentionReference.forward do.
        """
        if self.choices.attention != "eager" or self.recompute.core:
            raise self.unsupported(
                "one softmax over the scores of several cores runs step by step; expected --attn-implementation eager, "
                "and another --recompute than attention"
            )
        aten, step_options, local_tensors = self.aten, operation.options, self.frames[-1].local_tensors
        score_values = operation.input_values[: step_options["parts"]]
        q, v, *selection_masks = (
            self.tensor_of(input_value) for input_value in operation.input_values[step_options["parts"] :]
        )
        scores = self._join_scores(score_values)
        scores = aten.scale(scores)
        if step_options["cap"] is not None:
            scores = aten.scale(aten.elementwise_function("tanh", aten.scale(scores)))
        visible_mask = local_tensors["seen"] = self._joint_mask(
            self.mask(operation, q.shape[1], v.shape[1]), scores, selection_masks
        )
        if step_options["sinks"]:
            local_tensors["sink"] = self.expand_sinks(self.weight("sinks", (scores.shape[1],)), scores)
        scores = local_tensors["scores"] = aten.masked_fill(scores, aten.new_like(visible_mask))
        if step_options["sinks"]:
            joint_probs = aten.softmax(aten.cat([scores, local_tensors["sink"]]))
            attention_weights = aten.slice(joint_probs, scores.shape[-1])
            self.store_output(operation, self.apply_dropout(attention_weights, step_options["dropout"]))
            return
        attention_weights = aten.to(aten.softmax(aten.to(scores, FLOAT32)), v.dtype)
        self.store_output(operation, self.apply_dropout(attention_weights, step_options["dropout"]))

    def _join_scores(self, score_values: Sequence[Value]) -> Tensor:
        """Concatenates the scores of all attention cores to one tensor, and frees the separate tensors."""
        scores = [self.tensor_of(score_value) for score_value in score_values]
        for score_value in score_values:
            self.free_value(score_value.storage)
        return scores[0] if len(scores) == 1 else self.aten.cat(scores)

    def _joint_mask(self, mask: Tensor, scores: Tensor, selection_masks: Sequence[Tensor]) -> Tensor:
        """Returns the mask of all scores: first those of the sequence's keys, then those of the compressed keys."""
        aten, new_key_count = self.aten, scores.shape[-1] - mask.shape[-1]
        if selection_masks:
            return aten.cat([aten.expand(mask, (*selection_masks[0].shape[:-1], mask.shape[-1])), selection_masks[0]])
        return (
            mask if is_zero(new_key_count) else aten.cat([mask, aten.new_tensor((mask.shape[0], new_key_count), BOOL)])
        )

    def do_weighted(self, operation: Step) -> None:
        aten, attention_weights, v = (
            self.aten,
            self.tensor_of(operation.input_values[0]),
            self.tensor_of(operation.input_values[1]),
        )
        v = aten.unsqueeze(v, 1) if len(operation.input_values[1].axes) < 2 else self.heads_first(v)
        attention_weights = (
            attention_weights
            if attention_weights.shape[-1] == v.shape[2]
            else aten.slice(attention_weights, v.shape[2])
        )
        self.store_tensor(operation.output_values[0], self.heads_first(aten.matmul(attention_weights, v)))

    # --- masked by strengths (Doge) -----------------------------------------------------------------------------------

    def do_strongest(self, operation: Step) -> None:
        """Masks all keys except the keys with the highest strengths (DynamicMaskAttentionReference._mask)."""
        aten = self.aten
        key_strengths, q, k = map(self.tensor_of, operation.input_values)
        broadcast_strengths = aten.unsqueeze(aten.transpose(key_strengths, 1, 2), 2)
        visible_mask = self.mask(operation, q.shape[1], k.shape[1])
        mask = aten.masked_fill(
            aten.expand(broadcast_strengths, (*broadcast_strengths.shape[:2], *visible_mask.shape)),
            aten.new_like(visible_mask),
        )
        if mask.shape[-1] > operation.options["key_limit"]:
            ranked_keys = aten.new_like(mask)
            top_keys = aten.slice(aten.sort(ranked_keys)[1], operation.options["key_limit"])
            mask = aten.scatter(aten.new_like(mask), top_keys, aten.gather(mask, top_keys))
        self.store_output(operation, mask)

    def attention_MaskedAttentionCore(self, operation: Step) -> None:
        self.attention_AttentionCore(operation)
