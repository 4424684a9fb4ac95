"""Attention with separate steps for scores, softmax and weighted sums, and attention to selected keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....algebra import ceil_div, is_zero, minimum
from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.program import Step
from ....flow.value import Value
from ...strides import is_size_one
from ...tensor import BOOL, FLOAT32, INT64, UINT8, Tensor
from .attention import AttentionKernels


class AttentionVariantKernels(AttentionKernels):
    """Separate scores, softmax over two kinds of keys, indexers, and masks learned from values."""

    # --- scores alone -------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_scores(self, step: Step) -> None:
        """Computes scores [batch, heads, queries, keys]."""
        t, keys, (q, k) = self.t, step.ins[1], (self.get(value) for value in step.ins[:2])
        if len(step.ins) > 2:
            scores = self._weighted_scores(q, k, self.get(step.ins[2]))
            del q, k
            self.release(step, step.ins)
            scores = t.to(scores, FLOAT32)
        elif not keys.rows.batched:
            scores = self.scores_by_row(q, k)
        elif len(keys.axes) == 1:  # every head has the same keys
            scores = t.matmul(self.heads_first(q), t.transpose(t.unsqueeze(k, 1), -1, -2))
        elif k.shape[2] != q.shape[2]:
            raise self.unsupported("no kernels for scores of fewer key heads", step.name)
        else:
            scores = t.matmul(self.heads_first(q), t.transpose(self.heads_first(k), -1, -2))
        self.bind(step.outs[0], scores)

    def scores_by_row(self, x: Tensor, rows: Tensor) -> Tensor:
        """Computes scores with rows that all sequences share, [batch, heads, tokens, rows].

        x: [batch, tokens, heads, d]. rows: [rows, heads, d], or [rows, d] for all heads.
        """
        if len(rows.shape) == 2:
            return self.t.matmul(self.heads_first(x), self.t.transpose(rows, -1, -2))
        return self.t.matmul(self.heads_first(x), self.t.permute(rows, (1, 2, 0)))

    # --- selected by an indexer (DeepSeek-V3.2) -----------------------------------------------------------------------

    def _weighted_scores(self, q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
        """Runs IndexerReference's core. q: [batch, queries, heads, d], k: [batch, keys, d]."""
        t = self.t
        scores = t.function("relu", t.scale(t.matmul(q, t.transpose(t.unsqueeze(k, 1), -1, -2))))
        return t.select(t.matmul(t.unsqueeze(weights, 2), scores), 2)

    @compared(BY_TORCH)
    def do_select(self, step: Step) -> None:
        t, scores = self.t, self.get(step.ins[0])
        if step.options["pool"] is not None:
            self.memo["selected"] = self._tokens_of_pools(step, scores)
            return
        mask = self.mask(step, *scores.shape[1:])
        top_keys = t.sort(t.masked_fill(scores, t.like(mask)))[1]
        self.memo["selected"] = t.slice(top_keys, minimum(top_keys.shape[-1], step.options["top_k"]))

    def _tokens_of_pools(self, step: Step, scores: Tensor) -> Tensor:
        """Runs PooledIndexerReference.forward, from the scores of pools on: [batch, queries, pools]."""
        t, pool, keys = self.t, step.options["pool"], self.get(step.ins[1]).shape[1]
        batch, queries, pools = scores.shape
        known = t.add_number(t.unsqueeze(self.span(queries), 1))
        top_pools = t.sort(t.masked_fill(scores, t.compare(t.new((pools,), INT64), known)))[1]
        chosen = t.slice(top_pools, minimum(pools, step.options["top_k"] // pool))
        tokens = t.new((batch, queries, chosen.shape[-1] * pool), INT64)
        rest = keys % pool if is_size_one(queries) else pool - 1
        return t.cat([tokens, t.new((batch, queries, rest), INT64)])

    @compared(BY_TORCH)
    def do_selected(self, step: Step) -> None:
        """Builds the mask of each sequence's selected keys (MLAReference.forward)."""
        t, (q, *keys) = self.t, (self.get(value) for value in step.ins)
        mask, selected_indices = self.mask(step, q.shape[1], keys[0].shape[1]), self.memo["selected"]
        if self.reads_selected(q.shape[1]):
            index = t.unsqueeze(t.select(selected_indices, 1), -1)
            selected_rows = [t.gather(k, t.expand(index, (*index.shape[:-1], k.shape[-1]))) for k in keys]
            self.bind(step.outs[0], t.slice(mask, index.shape[1]))
            self._bind_selected(step, selected_rows)
            return
        selected_mask = t.scatter(t.expand(t.like(mask), (q.shape[0], *mask.shape)), selected_indices)
        self.bind(step.outs[0], t.unsqueeze(t.like(mask, selected_mask), 1))
        self._bind_selected(step, keys)

    def reads_selected(self, queries: Any) -> bool:
        """Whether the reference reads only selected keys, as in decoding one token."""
        return self.has_earlier_tokens and is_size_one(queries)

    def _bind_selected(self, step: Step, keys: Sequence[Tensor]) -> None:
        """Binds the selected keys and values, and drops the unselected keys and values."""
        for value, out, tensor in zip(step.ins[1:], step.outs[1:], keys, strict=True):
            self.values.pop(id(value), None)
            self.bind(out, tensor)

    # --- selected in blocks by an indexer (MiniMax-M3) ----------------------------------------------------------------

    @compared(BY_TORCH)
    def do_select_blocks(self, step: Step) -> None:
        """Runs BlockIndexerReference.forward, from the scores on: [batch, index heads, queries, keys]."""
        t, block, scores = self.t, step.options["block"], self.get(step.ins[0])
        self.forget(step.ins[0].storage)
        scores = t.to(scores, FLOAT32)
        queries, key_count = scores.shape[-2:]
        query_positions, key_positions = self.span(queries), self.span(key_count)
        scores = t.masked_fill(scores, t.compare(t.unsqueeze(key_positions, 0), t.unsqueeze(query_positions, 1)))
        blocks = ceil_div(key_count, block)
        scores = t.new((*scores.shape[:-1], blocks * block), FLOAT32)
        block_scores = t.new((*scores.shape[:-1], blocks), FLOAT32)
        away = t.like(t.unsqueeze(t.like(query_positions), 1), t.unsqueeze(t.new((blocks,), INT64), 0))
        block_scores = t.masked_fill(
            t.masked_fill(block_scores, t.compare(t.compare(away), t.compare(away))), t.compare(away)
        )
        rank = t.sort(t.sort(block_scores)[1])[1]
        selected_mask = t.slice(t.repeat_interleave(t.compare(rank), block, 3), key_count)
        self.bind(
            step.outs[0],
            t.compare(selected_mask, t.compare(t.unsqueeze(key_positions, 0), t.unsqueeze(query_positions, 1))),
        )

    @compared(BY_TORCH)
    def do_only_selected(self, step: Step) -> None:
        """Runs BlockIndexerReference.narrow. Keys and values: [batch, heads, keys, d]."""
        t, visible_mask, (block, blocks) = (
            self.t,
            self.get(step.ins[0]),
            (step.options["block"], step.options["blocks"]),
        )
        keys = [self.heads_first(self.get(value)) for value in step.ins[1:]]
        if self.reads_selected(visible_mask.shape[-2]):
            key_count = keys[0].shape[2]
            rows_read = minimum(key_count, (blocks - 1) * block + (key_count - 1) % block + 1)
            selected_index = t.unsqueeze(t.slice(t.sort(t.to(t.select(visible_mask, 2), UINT8))[1], rows_read), -1)
            keys = [t.gather(k, t.expand(selected_index, (*selected_index.shape[:-1], k.shape[-1]))) for k in keys]
            visible_mask = t.like(t.slice(visible_mask, rows_read))
        self.values.pop(id(step.ins[0]), None)
        self.bind(step.outs[0], visible_mask)
        self._bind_selected(step, [self.heads_first(k) for k in keys])

    @compared(BY_TORCH)
    def attention_BlockCore(self, step: Step) -> None:
        self.attention_AttentionCore(step)

    # --- one softmax over two kinds of keys (T5Gemma 2, DeepSeek-V4) --------------------------------------------------

    @compared(BY_TORCH)
    def attention_PooledCore(self, step: Step) -> None:
        self.attention_AttentionCore(step)

    @compared(BY_TORCH)
    def do_joint_softmax(self, step: Step) -> None:
        """Runs MergedReference.forward and CompressedAttentionReference.forward, from the scores to their softmax."""
        if self.choices.attention != "eager" or self.recompute.core:
            raise self.unsupported(
                "one softmax over the scores of several cores runs step by step; expected --attn-implementation eager, "
                "and another --recompute than attention"
            )
        t, options, local_tensors = self.t, step.options, self.frames[-1].local_tensors
        score_values, (q, v, *selection) = (
            step.ins[: options["parts"]],
            (self.get(value) for value in step.ins[options["parts"] :]),
        )
        scores = self._join_scores(score_values)
        scores = t.scale(scores)
        if options["cap"] is not None:
            scores = t.scale(t.function("tanh", t.scale(scores)))
        visible_mask = local_tensors["seen"] = self._joint_mask(
            self.mask(step, q.shape[1], v.shape[1]), scores, selection
        )
        if options["sinks"]:
            local_tensors["sink"] = self.sink(self.weight("sinks", (scores.shape[1],)), scores)
        scores = local_tensors["scores"] = t.masked_fill(scores, t.like(visible_mask))
        if options["sinks"]:
            all_probs = t.softmax(t.to(t.cat([scores, local_tensors["sink"]]), FLOAT32))
            probs = t.to(t.slice(all_probs, scores.shape[-1]), v.dtype)
            self.bind(step.outs[0], self.apply_dropout(probs, options["dropout"]))
            return
        probs = t.to(t.softmax(t.to(scores, FLOAT32)), v.dtype)
        self.bind(step.outs[0], self.apply_dropout(probs, options["dropout"]))

    def _join_scores(self, score_values: Sequence[Value]) -> Tensor:
        """Concatenates the scores of all attention cores, and drops the separate tensors."""
        scores = [self.get(value) for value in score_values]
        for value in score_values:
            self.forget(value.storage)
        return scores[0] if len(scores) == 1 else self.t.cat(scores)

    def _joint_mask(self, mask: Tensor, scores: Tensor, selection: Sequence[Tensor]) -> Tensor:
        """Returns the mask of all scores: first of the sequence's own keys, then of the other keys."""
        t, other_keys = self.t, scores.shape[-1] - mask.shape[-1]
        if selection:
            return t.cat([t.expand(mask, (*selection[0].shape[:-1], mask.shape[-1])), selection[0]])
        return mask if is_zero(other_keys) else t.cat([mask, t.new((mask.shape[0], other_keys), BOOL)])

    @compared(BY_TORCH)
    def do_weighted(self, step: Step) -> None:
        t, weights, v = self.t, self.get(step.ins[0]), self.get(step.ins[1])
        v = t.unsqueeze(v, 1) if len(step.ins[1].axes) < 2 else self.heads_first(v)
        weights = weights if weights.shape[-1] == v.shape[2] else t.slice(weights, v.shape[2])
        self.set(step.outs[0], self.heads_first(t.matmul(weights, v)))

    # --- masked by strengths (Doge) -----------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_strongest(self, step: Step) -> None:
        """Runs the part of DynamicMaskReference._mask after the strengths."""
        t = self.t
        strength, q, k = (self.get(value) for value in step.ins)
        by_key = t.unsqueeze(t.transpose(strength, 1, 2), 2)
        visible_mask = self.mask(step, q.shape[1], k.shape[1])
        mask = t.masked_fill(t.expand(by_key, (*by_key.shape[:2], *visible_mask.shape)), t.like(visible_mask))
        if mask.shape[-1] > step.options["keep"]:
            ranked_keys = t.like(mask)
            top_keys = t.slice(t.sort(ranked_keys)[1], step.options["keep"])
            mask = t.scatter(t.like(mask), top_keys, t.gather(mask, top_keys))
        self.bind(step.outs[0], mask)

    @compared(BY_TORCH)
    def attention_MaskedCore(self, step: Step) -> None:
        self.attention_AttentionCore(step)
