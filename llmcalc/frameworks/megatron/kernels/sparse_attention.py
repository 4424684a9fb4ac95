"""Latent attention to tokens that an indexer selects (DeepSeek sparse attention), by torch's operations.

The projections of keys and values are applied to queries and outputs instead, so attention runs on the latents. All
scores are computed, of the indexer's heads and of attention's; what is not selected is masked. With a loss the indexer
learns the shares of attention; one function computes loss and selection, and computes both again in its backward pass.

Sources: Megatron-LM, megatron/core/transformer/experimental_attention_variant/ (absorbed_mla.py, dsa.py,
dsa_masking.py, dsa_indexer_loss.py), without one of its kernel backends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....algebra import Number, exact_div
from ....flow.axis import Beside
from ....flow.program import Alternatives, Scope, Step
from ....simulator.aten import Aten
from ....simulator.autograd import record
from ....simulator.tensor import BFLOAT16, BOOL, FLOAT32, INT64, Gradient, Needs, Tensor
from .fp8 import NarrowKernels

ROWS = 256
"""Rows of the selection that are scattered at once (dsa_masking.py, `scatter_topk_into_index_mask`)."""


class SparseKernels(NarrowKernels):
    """Latent attention with an indexer, as one module."""

    def whole(self, scope: Scope) -> Callable[[], None] | None:
        indexer = next((item for item in scope.items if isinstance(item, Scope) and item.name == "indexer"), None)
        if indexer is None:
            return super().whole(scope)
        if self.rank_choices.context > 1:
            raise self.unsupported("no kernels for an indexer over several ranks of a sequence; expected no --cp")
        return lambda: self._run_absorbed_attention(scope, indexer)

    def _run_absorbed_attention(self, scope: Scope, indexer: Scope) -> None:
        """AbsorbedMLASelfAttention.forward."""
        t, steps = self.t, {step.name: step for step in scope.items if isinstance(step, Step) and step.name}
        if "q_a_proj" not in steps:
            raise self.unsupported("no kernels for an indexer of attention without latents")
        down, up, kv_down, leaving = (steps[name] for name in ("q_a_proj", "q_b_proj", "kv_a_proj", "o_proj"))
        branches = next(item for item in scope.items if isinstance(item, Alternatives))
        expand = next(step for step in branches.branches["expanded"].steps() if step.name == "kv_b_proj")
        beside = kv_down.outs[0].axes[0]
        assert isinstance(beside, Beside)
        latent, rope = (part[0].size for part in beside.parts)
        heads = up.outs[0].axes[0].size
        nope = exact_div(up.outs[0].width, heads) - rope
        size = exact_div(expand.outs[0].width, heads) - nope
        x = self.get(down.ins[0])
        self.forget(down.ins[0].storage)
        query_latent = self.undivided_linear(down, x)
        joined = self.undivided_linear(kv_down, x)
        c, k_rope = t.split(joined, [latent, rope])
        del joined
        k_rope = self._all_gather_rows(k_rope)
        for name in ("q_a_norm", "kv_a_norm"):
            if name in steps:
                normed = self.norm(
                    query_latent if name == "q_a_norm" else c, steps[name], self.module_path(), c.shape[0]
                )
                query_latent, c = (normed, c) if name == "q_a_norm" else (query_latent, normed)
                del normed
        c = self._all_gather_rows(c)
        q = self.column_linear(up, query_latent, up.outs[0].width)
        rows, batch = q.shape[0], self.run_config.batch
        shape = (exact_div(rows, batch), batch)
        expanding = self.with_role("column", lambda: self.weight("kv_b_proj.weight", (heads * (nope + size), latent)))
        query, key = self._absorb_projections(q, c, k_rope, expanding, (heads, nope, rope, size), shape)
        del q, c, k_rope
        by_head = t.unflatten(expanding, 0, (heads, nope + size))
        values = t.contiguous(t.slice(by_head, size, 1))
        y = self._sparse_attention(indexer, x, query_latent, query, key, values, shape)
        del query, key, values, by_head, expanding, x, query_latent
        self.bind(leaving.outs[0], self.row_linear(leaving, y))

    def _all_gather_rows(self, x: Tensor) -> Tensor:
        """The rows of all ranks of a tensor group, where they are divided."""
        if not self.rank_choices.sequence_parallel:
            return x
        graph, local_shape = self.graph, x.shape
        gathered = self.new(local_shape[0] * self.rank_choices.tensor, local_shape[1])
        dense = graph.new(local_shape, x.dtype) if not x.is_contiguous else None
        del dense
        return record(graph, "gather", (x,), gathered, lambda g, _: (graph.new(local_shape, g.dtype),))

    def _absorb_projections(
        self,
        q: Tensor,
        c: Tensor,
        k_rope: Tensor,
        weight: Tensor,
        sizes: tuple[Number, Number, Number, Number],
        rows: tuple[Number, Number],
    ) -> tuple[Tensor, Tensor]:
        """qkv_up_proj_and_rope_apply: queries and one key of latents and rotated parts."""
        t, (heads, nope, rope, size) = self.t, sizes
        by_head = t.unflatten(weight, 0, (heads, nope + size))
        keys = t.slice(by_head, nope, 1)
        q_nope, q_rope = t.split(t.reshape(q, (*rows, heads, nope + rope)), [nope, rope])
        flat = t.permute(t.reshape(q_nope, (rows[0] * rows[1], heads, nope)), (1, 0, 2))
        absorbed = t.permute(t.bmm(flat, keys), (1, 0, 2))
        absorbed = t.reshape(t.contiguous(absorbed), (*rows, heads, keys.shape[-1]))
        q_rope = self.rotate(q_rope)
        k_rope = self.rotate(t.reshape(k_rope, (*rows, 1, rope)))
        return t.cat([absorbed, q_rope]), t.cat([t.reshape(c, (*rows, 1, c.shape[1])), k_rope])

    def _sparse_attention(
        self,
        indexer: Scope,
        x: Tensor,
        query_latent: Tensor,
        query: Tensor,
        key: Tensor,
        values: Tensor,
        rows: tuple[Number, Number],
    ) -> Tensor:
        """DSAttention.forward. Nothing of the indexer's gradients reaches what it reads."""
        t, graph = self.t, self.graph
        read, query_latent = x.detached(), query_latent.detached()
        starts, ends = graph.new((rows[0],), INT64), graph.new((rows[0],), INT64)
        selects = next(step for step in indexer.steps() if step.verb == "select")
        top_k = selects.options["top_k"]
        loss: Tensor | None = None
        if self.rank_choices.indexer_loss:
            q, k, weights = self._run_indexer(indexer, read, query_latent, rows)
            chosen, loss = indexer_loss(t, q, weights, k, query.detached(), key.detached(), top_k)
        else:
            with graph.no_grad():
                q, k, weights = self._run_indexer(indexer, read, query_latent, rows)
                scores, chosen = selected(t, q, k, weights, top_k)
                del scores
        y = absorbed_attention(t, query, key, chosen, values.shape[-1])
        y = t.permute(t.bmm(self._by_head(y), t.transpose(values, 1, 2)), (1, 0, 2))
        y = t.reshape(t.contiguous(y), (rows[0] * rows[1], values.shape[0] * values.shape[1]))
        if loss is not None:
            out = Tensor(y.shape, y.dtype, y.storage, y.strides)
            y = record(
                graph, "indexer_loss_scaler", (y, loss), out, lambda g, _, saved_loss: (g, graph.new((), FLOAT32)), loss
            )
        del starts, ends, q, k, weights
        return y

    def _by_head(self, y: Tensor) -> Tensor:
        """[tokens, batch, heads, latent] → [heads, rows, latent]."""
        tokens, batch, heads, width = y.shape
        return self.t.permute(self.t.reshape(y, (tokens * batch, heads, width)), (1, 0, 2))

    def _run_indexer(
        self, scope: Scope, x: Tensor, small: Tensor, rows: tuple[Number, Number]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """DSAIndexer.forward_before_topk: queries, keys and the weight of each head."""
        t, steps = self.t, {step.name: step for step in scope.items if isinstance(step, Step) and step.name}
        heads, dim = (axis.size for axis in steps["q_proj"].outs[0].axes)
        turned = steps["k_norm"].outs[0]
        rope = next(step for step in scope.items if isinstance(step, Step) and step.verb == "rope")
        rotary = rope.options["spec"].rotary_size(dim)
        x, small = self._all_gather_rows(x), self._all_gather_rows(small)
        q = t.reshape(self._undivided_indexer_linear(steps["q_proj"], small), (*rows, heads, dim))
        q = self._rotate_part(q, rotary)
        k = self._undivided_indexer_linear(steps["k_proj"], x)
        k = self.norm(k, steps["k_norm"], self.module_path(), k.shape[0])
        k = self._rotate_part(t.reshape(k, (*rows, 1, turned.width)), rotary)
        k = t.reshape(k, (*rows, turned.width))
        q, k = self._rotate_activation(q), self._rotate_activation(k)
        weights = t.scale(t.scale(self._undivided_indexer_linear(steps["weights_proj"], x)))
        return q, k, t.reshape(weights, (*rows, heads))

    def _rotate_part(self, x: Tensor, rotary: Number) -> Tensor:
        turned, rest = self.t.split(x, [rotary, x.shape[-1] - rotary])
        turned = self.rotate(turned)
        return self.t.cat([turned, rest])

    def _rotate_activation(self, x: Tensor) -> Tensor:
        """rotate_activation, which keeps nothing."""
        graph, shape = self.graph, x.shape
        return record(graph, "hadamard", (x,), graph.new(shape, x.dtype), lambda g, _: (graph.new(shape, g.dtype),))

    def _undivided_indexer_linear(self, step: Step, x: Tensor) -> Tensor:
        """A product that every rank computes whole, of an input without gradient."""
        weight, _ = self.linear_weights(step, step.outs[0].width, "matrix")
        self.persistent.use_engine_workspace()
        out = self.new(x.shape[0], weight.shape[0])

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            self.persistent.use_engine_workspace()
            return [None, self.weight_gradient(weight)]

        self.node("linear", (x, weight), [out], backward, x)
        return out


# --- functions of dsa.py and dsa_masking.py ---------------------------------------------------------------------------


def index_scores(t: Aten, q: Tensor, weights: Tensor, k: Tensor) -> Tensor:
    """_compute_index_scores. q: [tokens, batch, heads, size]; k: [tokens, batch, size] → [batch, tokens, tokens]."""
    scores = einsum_of_heads(t, t.to(q, FLOAT32), t.to(k, FLOAT32))
    scores = t.like(scores)
    scores = t.like(scores, t.unsqueeze(weights, -1))
    scores = t.sum(scores, 2)
    return t.transpose(scores, 0, 1)


def einsum_of_heads(t: Aten, q: Tensor, k: Tensor) -> Tensor:
    """sbhd,tbd->sbht: one product for each sequence."""
    tokens, batch, heads, size = q.shape
    left = t.reshape(t.permute(q, (1, 0, 2, 3)), (batch, tokens * heads, size))
    out = t.bmm(left, t.permute(k, (1, 2, 0)))
    del left
    return t.permute(t.reshape(out, (batch, tokens, heads, k.shape[0])), (1, 0, 2, 3))


def validity(t: Aten, tokens: Number, keys: Number) -> Tensor:
    """build_valid_mask_from_starts_ends: which keys come before each query."""
    after = t.new((tokens, keys), BOOL)
    before = t.new((tokens, keys), BOOL)
    return t.like(after, before, dtype=BOOL)


def masked(t: Aten, x: Tensor) -> Tensor:
    """apply_starts_ends_mask_to_scores."""
    valid = validity(t, x.shape[-2], x.shape[-1])
    _others = t.like(valid)
    return t.new(x.shape, x.dtype)


def selected(t: Aten, q: Tensor, k: Tensor, weights: Tensor, top_k: Number) -> tuple[Tensor, Tensor]:
    """fused_qk_topk_naive: scores and the keys of the best."""
    scores = index_scores(t, q, weights, k)
    scores = masked(t, scores)
    chosen = (*scores.shape[:-1], min(top_k, k.shape[0]))
    best, indices = t.new(chosen, FLOAT32), t.new(chosen, INT64)
    none = t.new(chosen, BOOL)
    indices = t.like(indices)
    del best, none
    return scores, indices


def scattered(t: Aten, mask: Tensor, chosen: Tensor) -> None:
    """scatter_topk_into_index_mask, some rows after the other."""
    batch, tokens, count = chosen.shape
    for start in range(0, int(tokens), ROWS):
        part = (batch, min(ROWS, tokens - start), count)
        _valid, _safe, _source = t.new(part, BOOL), t.new(part, INT64), t.new(part, mask.dtype)
        del _valid, _safe, _source


def shares(t: Aten, logits: Tensor, valid: Tensor) -> Tensor:
    """masked_softmax. valid: which keys count, of the shape of logits, perhaps without memory for some axes."""
    graph, row = t.graph, (*logits.shape[:-1], 1)

    def without(x: Tensor) -> Tensor:
        others = t.new(x.shape, BOOL)
        return t.masked_fill(x, others)

    masked_logits = without(logits)
    _any = t.new(row, BOOL)
    row_max, where = t.new(row, FLOAT32), t.new(row, INT64)
    shape = logits.shape
    row_max = record(graph, "max", (masked_logits,), row_max, lambda g, _, index: (graph.new(shape, g.dtype),), where)
    del where
    row_max = record(graph, "where", (row_max,), t.new(row, FLOAT32), lambda g, _, c: (graph.new(row, g.dtype),), _any)
    probs = t.exp(t.sub(masked_logits, row_max))
    probs = without(probs)
    probs = t.div(probs, t.clamp(t.sum(probs, keep=True)))
    return without(probs)


def absorbed_attention(t: Aten, query: Tensor, key: Tensor, chosen: Tensor, latent: Number) -> Tensor:
    """_unfused_absorbed_dsa_fn. query: [tokens, batch, heads, size]; key: [tokens, batch, 1, size]."""
    (tokens, batch, heads, _), keys = query.shape, key.shape[0]
    q, k = t.permute(query, (1, 2, 0, 3)), t.permute(key, (1, 2, 3, 0))
    scores = t.scale(t.matmul(t.to(q, FLOAT32), t.to(k, FLOAT32)))
    mask = t.new((batch, tokens, keys), FLOAT32)
    scattered(t, mask, chosen)
    mask = masked(t, mask)
    scores = t.add(scores, t.unsqueeze(mask, 1))
    valid = t.compare(mask)
    scores = shares(t, scores, t.expand(t.unsqueeze(valid, 1), (batch, heads, tokens, keys)))
    value = t.permute(t.slice(key, latent), (1, 2, 0, 3))
    out = t.matmul(t.to(scores, BFLOAT16), value)
    return t.contiguous(t.permute(out, (2, 0, 1, 3)))


def indexer_loss(
    t: Aten, q: Tensor, weights: Tensor, k: Tensor, query: Tensor, key: Tensor, top_k: Number
) -> tuple[Tensor, Tensor]:
    """FusedDSAIndexerLoss: the selection, and how far the indexer's shares are from those of attention."""
    graph = t.graph

    def forward() -> tuple[Tensor, Tensor]:
        scores, chosen = selected(t, q, k, weights, top_k)
        attention = _of_attention(t, query, key)
        scores = masked(t, scores)
        valid = validity(t, scores.shape[-2], scores.shape[-1])
        mask = t.new(scores.shape, FLOAT32)
        scattered(t, mask, chosen)
        attention = shares(t, attention, t.expand(valid, attention.shape))
        logs = _log_shares(t, scores)
        attention = t.sum(attention, 1)
        attention = t.like(attention)
        terms = t.like(t.like(t.like(t.like(attention)), logs), attention)
        loss = t.new((), FLOAT32)
        del terms, mask
        return chosen, loss

    def backward(
        g: Tensor, _: Needs, q: Tensor, weights: Tensor, k: Tensor, query: Tensor, key: Tensor, chosen: Tensor
    ) -> Sequence[Gradient]:
        _of_chosen = t.like(chosen)  # a gradient of zeros
        return _indexer_gradients(t, q, weights, k, query, key, chosen)

    with graph.no_grad():
        chosen, loss = forward()
    loss = record(graph, "FusedDSAIndexerLoss", (q, weights, k), loss, backward, q, weights, k, query, key, chosen)
    return chosen, loss


def _of_attention(t: Aten, query: Tensor, key: Tensor) -> Tensor:
    """The scores of attention, of all keys before each query, without gradients."""
    tokens, batch, heads, size = query.shape
    keys = key.shape[0]
    wide = t.expand(key, (keys, batch, heads, size))
    q = t.reshape(t.permute(query, (1, 2, 0, 3)), (batch * heads, tokens, size))
    k = t.reshape(t.permute(wide, (1, 2, 3, 0)), (batch * heads, size, keys))
    scores = t.like(t.bmm(t.to(q, FLOAT32), t.to(k, FLOAT32)))
    return masked(t, t.reshape(scores, (batch, heads, tokens, keys)))


def _log_shares(t: Aten, scores: Tensor) -> Tensor:
    """masked_log_softmax."""
    others = t.new(scores.shape, BOOL)
    masked_scores = t.new(scores.shape, FLOAT32)
    del others
    zeros = t.like(masked_scores)
    _safe = t.like(masked_scores, zeros)
    del zeros
    logs = t.like(_safe)
    _others = t.new(scores.shape, BOOL)
    return t.like(logs)


def _indexer_gradients(
    t: Aten, q: Tensor, weights: Tensor, k: Tensor, query: Tensor, key: Tensor, chosen: Tensor
) -> Sequence[Gradient]:
    """bwd_fused_indexer_loss_naive."""
    scores = index_scores(t, q, weights, k)
    attention = _of_attention(t, query, key)
    scores = masked(t, scores)
    valid = validity(t, scores.shape[-2], scores.shape[-1])
    mask = t.new(scores.shape, FLOAT32)
    scattered(t, mask, chosen)
    of_attention = shares(t, attention, t.expand(valid, attention.shape))
    del attention
    of_indexer = shares(t, scores, t.expand(valid, scores.shape))
    del scores
    summed = t.sum(of_attention, 1)
    del of_attention
    target = t.like(summed)
    del summed
    gradient = t.like(t.like(of_indexer, target))
    del of_indexer, target, mask
    gradient = t.like(gradient, t.to(valid, FLOAT32))
    del valid
    gradient = t.unsqueeze(t.transpose(gradient, 0, 1), 2)
    recomputed = einsum_of_heads(t, t.to(q, FLOAT32), t.to(k, FLOAT32))
    activated, positive = t.like(recomputed), t.like(recomputed, dtype=BOOL)
    del recomputed
    of_weights = t.sum(t.like(gradient, activated), -1)
    of_scores = t.like(gradient, t.unsqueeze(weights, -1))
    del gradient, activated
    of_scores = t.like(of_scores, t.to(positive, FLOAT32))
    del positive
    of_q = _einsum_to_queries(t, of_scores, t.to(k, FLOAT32))
    of_k = _einsum_to_keys(t, of_scores, t.to(q, FLOAT32))
    del of_scores
    return t.to(of_q, q.dtype), t.to(of_weights, weights.dtype), t.to(of_k, k.dtype)


def _einsum_to_queries(t: Aten, g: Tensor, k: Tensor) -> Tensor:
    """sbht,tbd->sbhd."""
    tokens, batch, heads, keys = g.shape
    left = t.reshape(t.permute(g, (1, 0, 2, 3)), (batch, tokens * heads, keys))
    out = t.bmm(left, t.permute(k, (1, 0, 2)))
    return t.permute(t.reshape(out, (batch, tokens, heads, k.shape[-1])), (1, 0, 2, 3))


def _einsum_to_keys(t: Aten, g: Tensor, q: Tensor) -> Tensor:
    """sbht,sbhd->tbd."""
    tokens, batch, heads, keys = g.shape
    left = t.reshape(t.permute(g, (1, 3, 0, 2)), (batch, keys, tokens * heads))
    right = t.reshape(t.permute(q, (1, 0, 2, 3)), (batch, tokens * heads, q.shape[-1]))
    return t.permute(t.bmm(left, right), (1, 0, 2))
