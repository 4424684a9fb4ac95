"""The kernels of DeepSeek sparse attention: latent attention to tokens that an indexer selects, in torch operations.

The projections of keys and values are applied to queries and outputs instead, so attention runs on the latents. All
scores are computed, of the indexer's heads and of attention's; what is not selected is masked. With a loss the indexer
learns the shares of attention; one function computes loss and selection, and computes both again in its backward pass.

Sources: Megatron-LM, megatron/core/transformer/experimental_attention_variant/ (absorbed_mla.py, dsa.py,
dsa_masking.py, dsa_indexer_loss.py), without one of its kernel backends.
"""

from __future__ import annotations

from collections.abc import Callable

from ....algebra import Number, exact_div
from ....flow.axis import JoinedShapes
from ....flow.program import AlternativeBranches, ModuleScope, Step
from ....simulator.aten import Aten
from ....simulator.autograd import record
from ....simulator.tensor import BFLOAT16, BOOL, FLOAT32, INT64, NeedsInputGrad, Tensor
from .fp8 import Fp8Kernels
from .lowering import Gradients, SavedTensors, operations_by_name

ROWS_SCATTERED_AT_ONCE = 256
"""Number of rows of the key selection that are scattered at once (dsa_masking.py, `scatter_topk_into_index_mask`)."""


class SparseAttentionKernels(Fp8Kernels):
    """Kernels of latent attention with an indexer, which run as one module."""

    def module_kernel(self, module_scope: ModuleScope) -> Callable[[], None] | None:
        """Returns the kernel that runs attention with an indexer."""
        indexer_scope = next(
            (item for item in module_scope.items if isinstance(item, ModuleScope) and item.name == "indexer"),
            None,
        )
        if indexer_scope is None:
            return super().module_kernel(module_scope)
        if self.rank_choices.cp > 1:
            raise self.unsupported("no kernels for an indexer over several ranks of a sequence; expected no --cp")
        return lambda: self._run_absorbed_attention(module_scope, indexer_scope)

    def _run_absorbed_attention(self, module_scope: ModuleScope, indexer_scope: ModuleScope) -> None:
        """Runs latent attention with absorbed projections and an indexer (`AbsorbedMLASelfAttention.forward`)."""
        aten, named_operations = self.aten, operations_by_name(module_scope)
        if "q_a_proj" not in named_operations:
            raise self.unsupported("no kernels for an indexer of attention without latents")
        query_down, query_up, kv_down, output_projection = (
            named_operations[norm_name] for norm_name in ("q_a_proj", "q_b_proj", "kv_a_proj", "o_proj")
        )
        mla_branches = next(item for item in module_scope.items if isinstance(item, AlternativeBranches))
        kv_up = next(
            operation for operation in mla_branches.branches["expanded"].steps() if operation.name == "kv_b_proj"
        )
        joined_kv_axis = kv_down.output_values[0].axes[0]
        assert isinstance(joined_kv_axis, JoinedShapes)
        latent_dim, rope_dim = (part_shape[0].size for part_shape in joined_kv_axis.shapes)
        head_count = query_up.output_values[0].axes[0].size
        nope_dim = exact_div(query_up.output_values[0].width, head_count) - rope_dim
        value_dim = exact_div(kv_up.output_values[0].width, head_count) - nope_dim
        x = self.tensor_of(query_down.input_values[0])
        self.free_value(query_down.input_values[0].storage)
        query_latent = self.undivided_linear(query_down, x)
        kv_latent_and_rope = self.undivided_linear(kv_down, x)
        kv_latent, k_rope = aten.split(kv_latent_and_rope, [latent_dim, rope_dim])
        del kv_latent_and_rope
        k_rope = self._all_gather_rows(k_rope)
        for norm_name in ("q_a_norm", "kv_a_norm"):
            if norm_name in named_operations:
                normed_latent = self.norm(
                    query_latent if norm_name == "q_a_norm" else kv_latent,
                    named_operations[norm_name],
                    self.module_path(),
                    kv_latent.shape[0],
                )
                query_latent, kv_latent = (
                    (normed_latent, kv_latent) if norm_name == "q_a_norm" else (query_latent, normed_latent)
                )
                del normed_latent
        kv_latent = self._all_gather_rows(kv_latent)
        q = self.column_linear(query_up, query_latent, query_up.output_values[0].width)
        row_count, batch_size = q.shape[0], self.run_config.batch
        token_shape = (exact_div(row_count, batch_size), batch_size)
        kv_up_weight = self.with_role(
            "column", lambda: self.weight("kv_b_proj.weight", (head_count * (nope_dim + value_dim), latent_dim))
        )
        query, key = self._absorb_projections(
            q, kv_latent, k_rope, kv_up_weight, (head_count, nope_dim, rope_dim, value_dim), token_shape
        )
        del q, kv_latent, k_rope
        kv_up_by_head = aten.unflatten(kv_up_weight, 0, (head_count, nope_dim + value_dim))
        value_up_weight = aten.contiguous(aten.slice(kv_up_by_head, value_dim, 1))
        attention_output = self._sparse_attention(
            indexer_scope, x, query_latent, query, key, value_up_weight, token_shape
        )
        del query, key, value_up_weight, kv_up_by_head, kv_up_weight, x, query_latent
        self.store_without_reshape(
            output_projection.output_values[0], self.row_linear(output_projection, attention_output)
        )

    def _all_gather_rows(self, x: Tensor) -> Tensor:
        """Returns the rows of all tensor-parallel ranks, after an all-gather if sharded."""
        if not self.rank_choices.sequence_parallel:
            return x
        gathered_rows = self.new_tensor(x.shape[0] * self.rank_choices.tp, x.shape[1])
        contiguous_copy = self.empty_like(x) if not x.is_contiguous else None
        del contiguous_copy
        return self.node_with_new_gradients("gather", (x,), gathered_rows)

    def _absorb_projections(
        self,
        q: Tensor,
        kv_latent: Tensor,
        k_rope: Tensor,
        kv_up_weight: Tensor,
        heads_and_dims: tuple[Number, Number, Number, Number],
        token_shape: tuple[Number, Number],
    ) -> tuple[Tensor, Tensor]:
        """Computes queries in latent space, and one key for all heads (`qkv_up_proj_and_rope_apply`)."""
        aten, (heads, nope_dim, rope_dim, value_dim) = self.aten, heads_and_dims
        weight_by_head = aten.unflatten(kv_up_weight, 0, (heads, nope_dim + value_dim))
        key_up_weight = aten.slice(weight_by_head, nope_dim, 1)
        q_nope, q_rope = aten.split(aten.reshape(q, (*token_shape, heads, nope_dim + rope_dim)), [nope_dim, rope_dim])
        query_rows = aten.permute(aten.reshape(q_nope, (token_shape[0] * token_shape[1], heads, nope_dim)), (1, 0, 2))
        absorbed_query = aten.permute(aten.bmm(query_rows, key_up_weight), (1, 0, 2))
        absorbed_query = aten.reshape(aten.contiguous(absorbed_query), (*token_shape, heads, key_up_weight.shape[-1]))
        q_rope = self.rotate(q_rope)
        k_rope = self.rotate(aten.reshape(k_rope, (*token_shape, 1, rope_dim)))
        return aten.cat([absorbed_query, q_rope]), aten.cat(
            [aten.reshape(kv_latent, (*token_shape, 1, kv_latent.shape[1])), k_rope]
        )

    def _sparse_attention(
        self,
        indexer_scope: ModuleScope,
        x: Tensor,
        query_latent: Tensor,
        query: Tensor,
        key: Tensor,
        value_weight: Tensor,
        token_shape: tuple[Number, Number],
    ) -> Tensor:
        """Runs attention to the keys that the indexer selects, and detaches the indexer's inputs (`DSAttention`)."""
        aten, autograd_graph = self.aten, self.graph
        indexer_input, query_latent = x.detached(), query_latent.detached()
        key_starts = autograd_graph.new_tensor((token_shape[0],), INT64)
        key_ends = autograd_graph.new_tensor((token_shape[0],), INT64)
        select_step = next(operation for operation in indexer_scope.steps() if operation.verb == "select")
        top_k = select_step.options["top_k"]
        loss: Tensor | None = None
        if self.rank_choices.trains_indexer:
            q, k, head_weights = self._run_indexer(indexer_scope, indexer_input, query_latent, token_shape)
            selected_keys, loss = indexer_loss(aten, q, head_weights, k, query.detached(), key.detached(), top_k)
        else:
            with autograd_graph.no_grad():
                q, k, head_weights = self._run_indexer(indexer_scope, indexer_input, query_latent, token_shape)
                scores, selected_keys = select_top_keys(aten, q, k, head_weights, top_k)
                del scores
        y = absorbed_attention(aten, query, key, selected_keys, value_weight.shape[-1])
        y = aten.permute(aten.bmm(self._rows_by_head(y), aten.transpose(value_weight, 1, 2)), (1, 0, 2))
        y = aten.reshape(
            aten.contiguous(y), (token_shape[0] * token_shape[1], value_weight.shape[0] * value_weight.shape[1])
        )
        if loss is not None:
            output_with_loss = Tensor(y.shape, y.dtype, y.storage, y.strides)
            y = record(
                autograd_graph,
                "indexer_loss_scaler",
                (y, loss),
                output_with_loss,
                lambda g, _, saved_loss: (g, autograd_graph.new_tensor((), FLOAT32)),
                loss,
            )
        del key_starts, key_ends, q, k, head_weights
        return y

    def _rows_by_head(self, attention_rows: Tensor) -> Tensor:
        """Reshapes [tokens, batch, heads, latent] to [heads, rows, latent]."""
        token_count, batch_size, head_count, head_width = attention_rows.shape
        return self.aten.permute(
            self.aten.reshape(attention_rows, (token_count * batch_size, head_count, head_width)), (1, 0, 2)
        )

    def _run_indexer(
        self, module_scope: ModuleScope, x: Tensor, query_latent: Tensor, token_shape: tuple[Number, Number]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the indexer's queries, keys and weight per head (`DSAIndexer.forward_before_topk`)."""
        aten, named_operations = self.aten, operations_by_name(module_scope)
        heads, head_dim = (axis.size for axis in named_operations["q_proj"].output_values[0].axes)
        normed_key_value = named_operations["k_norm"].output_values[0]
        rope_step = next(
            operation for operation in module_scope.items if isinstance(operation, Step) and operation.verb == "rope"
        )
        rotary_dim = rope_step.options["spec"].rotary_size(head_dim)
        x, query_latent = self._all_gather_rows(x), self._all_gather_rows(query_latent)
        q = aten.reshape(
            self._undivided_indexer_linear(named_operations["q_proj"], query_latent), (*token_shape, heads, head_dim)
        )
        q = self._rotate_leading_dims(q, rotary_dim)
        k = self._undivided_indexer_linear(named_operations["k_proj"], x)
        k = self.norm(k, named_operations["k_norm"], self.module_path(), k.shape[0])
        k = self._rotate_leading_dims(aten.reshape(k, (*token_shape, 1, normed_key_value.width)), rotary_dim)
        k = aten.reshape(k, (*token_shape, normed_key_value.width))
        q, k = self._rotate_activation(q), self._rotate_activation(k)
        head_weights = aten.scale(aten.scale(self._undivided_indexer_linear(named_operations["weights_proj"], x)))
        return q, k, aten.reshape(head_weights, (*token_shape, heads))

    def _rotate_leading_dims(self, x: Tensor, rotary_dim: Number) -> Tensor:
        """Applies rotary embeddings to the first elements of each head."""
        rotated_part, unrotated_part = self.aten.split(x, [rotary_dim, x.shape[-1] - rotary_dim])
        rotated_part = self.rotate(rotated_part)
        return self.aten.cat([rotated_part, unrotated_part])

    def _rotate_activation(self, x: Tensor) -> Tensor:
        """Runs a Hadamard transform, which saves nothing (`rotate_activation`)."""
        return self.copy_reordered("hadamard", x, x.shape)

    def _undivided_indexer_linear(self, operation: Step, x: Tensor) -> Tensor:
        """Runs a linear layer that every rank computes in full, whose input gets no gradient."""
        weight, _ = self.linear_weights(operation, operation.output_values[0].width, "matrix")
        self.persistent.use_engine_workspace()
        layer_output = self.new_tensor(x.shape[0], weight.shape[0])

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            self.persistent.use_engine_workspace()
            return [None, self.weight_gradient(weight)]

        self.record_node("linear", (x, weight), [layer_output], backward, x)
        return layer_output


# --- functions of dsa.py and dsa_masking.py ---------------------------------------------------------------------------


def index_scores(aten: Aten, q: Tensor, head_weights: Tensor, k: Tensor) -> Tensor:
    """Computes the indexer's score for each pair of query and key (Megatron-Core, `_compute_index_scores`).

    q: [tokens, batch, heads, size]; k: [tokens, batch, size] → [batch, tokens, tokens].
    """
    scores = einsum_of_heads(aten, aten.to(q, FLOAT32), aten.to(k, FLOAT32))
    scores = aten.new_like(scores)
    scores = aten.new_like(scores, aten.unsqueeze(head_weights, -1))
    scores = aten.sum(scores, 2)
    return aten.transpose(scores, 0, 1)


def einsum_of_heads(aten: Aten, q: Tensor, k: Tensor) -> Tensor:
    """Computes the einsum sbhd,tbd->sbht by one product per sequence."""
    token_count, batch_size, head_count, head_size = q.shape
    query_matrix = aten.reshape(aten.permute(q, (1, 0, 2, 3)), (batch_size, token_count * head_count, head_size))
    head_products = aten.bmm(query_matrix, aten.permute(k, (1, 2, 0)))
    del query_matrix
    return aten.permute(aten.reshape(head_products, (batch_size, token_count, head_count, k.shape[0])), (1, 0, 2, 3))


def valid_key_mask(aten: Aten, token_count: Number, key_count: Number) -> Tensor:
    """Returns the mask of keys that precede each query (`build_valid_mask_from_starts_ends`)."""
    after_start_mask = aten.new_tensor((token_count, key_count), BOOL)
    before_end_mask = aten.new_tensor((token_count, key_count), BOOL)
    return aten.new_like(after_start_mask, before_end_mask, dtype=BOOL)


def mask_future_keys(aten: Aten, x: Tensor) -> Tensor:
    """Masks the scores of keys after each query (Megatron-Core, `apply_starts_ends_mask_to_scores`)."""
    valid_keys = valid_key_mask(aten, x.shape[-2], x.shape[-1])
    _masked_keys = aten.new_like(valid_keys)
    return aten.new_tensor(x.shape, x.dtype)


def select_top_keys(aten: Aten, q: Tensor, k: Tensor, weights: Tensor, top_k: Number) -> tuple[Tensor, Tensor]:
    """Returns the indexer's scores, and the indices of the keys with the highest scores (`fused_qk_topk_naive`)."""
    scores = index_scores(aten, q, weights, k)
    scores = mask_future_keys(aten, scores)
    selection_shape = (*scores.shape[:-1], min(top_k, k.shape[0]))
    top_scores, top_indices = aten.new_tensor(selection_shape, FLOAT32), aten.new_tensor(selection_shape, INT64)
    invalid_mask = aten.new_tensor(selection_shape, BOOL)
    top_indices = aten.new_like(top_indices)
    del top_scores, invalid_mask
    return scores, top_indices


def scatter_selected_keys(aten: Aten, selection_mask: Tensor, selected_keys: Tensor) -> None:
    """Marks the selected keys in a mask, in blocks of rows (`scatter_topk_into_index_mask`)."""
    batch_size, token_count, key_count = selected_keys.shape
    for first_row in range(0, int(token_count), ROWS_SCATTERED_AT_ONCE):
        block_shape = (batch_size, min(ROWS_SCATTERED_AT_ONCE, token_count - first_row), key_count)
        _is_valid = aten.new_tensor(block_shape, BOOL)
        _safe_indices = aten.new_tensor(block_shape, INT64)
        _fill_values = aten.new_tensor(block_shape, selection_mask.dtype)
        del _is_valid, _safe_indices, _fill_values


def masked_softmax(aten: Aten, logits: Tensor, key_is_valid: Tensor) -> Tensor:
    """Runs a softmax over valid keys. key_is_valid: mask of the logits' shape, which may be a broadcast view."""
    autograd_graph, row_shape = aten.graph, (*logits.shape[:-1], 1)

    def mask_invalid_keys(x: Tensor) -> Tensor:
        """Fills the scores of invalid keys."""
        invalid_keys = aten.new_tensor(x.shape, BOOL)
        return aten.masked_fill(x, invalid_keys)

    masked_logits = mask_invalid_keys(logits)
    _any_valid = aten.new_tensor(row_shape, BOOL)
    row_max, max_indices = aten.new_tensor(row_shape, FLOAT32), aten.new_tensor(row_shape, INT64)
    logits_shape = logits.shape
    row_max = record(
        autograd_graph,
        "max",
        (masked_logits,),
        row_max,
        lambda g, _, index: (autograd_graph.new_tensor(logits_shape, g.dtype),),
        max_indices,
    )
    del max_indices
    row_max = record(
        autograd_graph,
        "where",
        (row_max,),
        aten.new_tensor(row_shape, FLOAT32),
        lambda g, _, c: (autograd_graph.new_tensor(row_shape, g.dtype),),
        _any_valid,
    )
    probs = aten.exp(aten.sub(masked_logits, row_max))
    probs = mask_invalid_keys(probs)
    probs = aten.div(probs, aten.clamp(aten.sum(probs, keepdim=True)))
    return mask_invalid_keys(probs)


def absorbed_attention(aten: Aten, query: Tensor, key: Tensor, selected_keys: Tensor, latent_dim: Number) -> Tensor:
    """Computes attention to the selected keys in latent space (`_unfused_absorbed_dsa_fn`).

    query: [tokens, batch, heads, size]; key: [tokens, batch, 1, size].
    """
    (token_count, batch_size, head_count, _), key_count = query.shape, key.shape[0]
    q, k = aten.permute(query, (1, 2, 0, 3)), aten.permute(key, (1, 2, 3, 0))
    scores = aten.scale(aten.matmul(aten.to(q, FLOAT32), aten.to(k, FLOAT32)))
    selection_mask = aten.new_tensor((batch_size, token_count, key_count), FLOAT32)
    scatter_selected_keys(aten, selection_mask, selected_keys)
    selection_mask = mask_future_keys(aten, selection_mask)
    scores = aten.add(scores, aten.unsqueeze(selection_mask, 1))
    valid_keys = aten.compare(selection_mask)
    scores = masked_softmax(
        aten, scores, aten.expand(aten.unsqueeze(valid_keys, 1), (batch_size, head_count, token_count, key_count))
    )
    latent_values = aten.permute(aten.slice(key, latent_dim), (1, 2, 0, 3))
    attention_output = aten.matmul(aten.to(scores, BFLOAT16), latent_values)
    return aten.contiguous(aten.permute(attention_output, (2, 0, 1, 3)))


def indexer_loss(
    aten: Aten, q: Tensor, weights: Tensor, k: Tensor, query: Tensor, key: Tensor, top_k: Number
) -> tuple[Tensor, Tensor]:
    """Returns the selected keys, and the divergence of the indexer from attention (`FusedDSAIndexerLoss`)."""
    autograd_graph = aten.graph

    def forward() -> tuple[Tensor, Tensor]:
        """Runs the forward pass without an autograd graph."""
        scores, selected_keys = select_top_keys(aten, q, k, weights, top_k)
        attention_probs = _attention_scores(aten, query, key)
        scores = mask_future_keys(aten, scores)
        valid_keys = valid_key_mask(aten, scores.shape[-2], scores.shape[-1])
        selection_mask = aten.new_tensor(scores.shape, FLOAT32)
        scatter_selected_keys(aten, selection_mask, selected_keys)
        attention_probs = masked_softmax(aten, attention_probs, aten.expand(valid_keys, attention_probs.shape))
        log_probs = _masked_log_softmax(aten, scores)
        attention_probs = aten.sum(attention_probs, 1)
        attention_probs = aten.new_like(attention_probs)
        divergence = aten.new_like(
            aten.new_like(aten.new_like(aten.new_like(attention_probs)), log_probs), attention_probs
        )
        loss = aten.new_tensor((), FLOAT32)
        del divergence, selection_mask
        return selected_keys, loss

    def backward(
        output_gradient: Tensor,
        _: NeedsInputGrad,
        q: Tensor,
        weights: Tensor,
        k: Tensor,
        query: Tensor,
        key: Tensor,
        selected_keys: Tensor,
    ) -> Gradients:
        _selected_gradient = aten.new_like(selected_keys)  # a gradient of zeros
        return _indexer_gradients(aten, q, weights, k, query, key, selected_keys)

    with autograd_graph.no_grad():
        selected_keys, loss = forward()
    loss = record(
        autograd_graph, "FusedDSAIndexerLoss", (q, weights, k), loss, backward, q, weights, k, query, key, selected_keys
    )
    return selected_keys, loss


def _attention_scores(aten: Aten, query: Tensor, key: Tensor) -> Tensor:
    """Computes attention scores of all preceding keys, without gradients."""
    token_count, batch_size, head_count, head_size = query.shape
    key_count = key.shape[0]
    expanded_key = aten.expand(key, (key_count, batch_size, head_count, head_size))
    q = aten.reshape(aten.permute(query, (1, 2, 0, 3)), (batch_size * head_count, token_count, head_size))
    k = aten.reshape(aten.permute(expanded_key, (1, 2, 3, 0)), (batch_size * head_count, head_size, key_count))
    scores = aten.new_like(aten.bmm(aten.to(q, FLOAT32), aten.to(k, FLOAT32)))
    return mask_future_keys(aten, aten.reshape(scores, (batch_size, head_count, token_count, key_count)))


def _masked_log_softmax(aten: Aten, scores: Tensor) -> Tensor:
    """Computes logarithms of a softmax over valid keys (Megatron-Core, `masked_log_softmax`)."""
    invalid_keys = aten.new_tensor(scores.shape, BOOL)
    masked_scores = aten.new_tensor(scores.shape, FLOAT32)
    del invalid_keys
    zero_tensor = aten.new_like(masked_scores)
    safe_scores = aten.new_like(masked_scores, zero_tensor)
    del zero_tensor
    log_probs = aten.new_like(safe_scores)
    _invalid_log_probs = aten.new_tensor(scores.shape, BOOL)
    return aten.new_like(log_probs)


def _indexer_gradients(
    aten: Aten, q: Tensor, head_weight: Tensor, k: Tensor, query: Tensor, key: Tensor, selected_keys: Tensor
) -> Gradients:
    """Computes the gradients of the indexer's loss (Megatron-Core, `bwd_fused_indexer_loss_naive`)."""
    scores = index_scores(aten, q, head_weight, k)
    attention_scores = _attention_scores(aten, query, key)
    scores = mask_future_keys(aten, scores)
    valid_keys = valid_key_mask(aten, scores.shape[-2], scores.shape[-1])
    selection_mask = aten.new_tensor(scores.shape, FLOAT32)
    scatter_selected_keys(aten, selection_mask, selected_keys)
    attention_probs = masked_softmax(aten, attention_scores, aten.expand(valid_keys, attention_scores.shape))
    del attention_scores
    indexer_probs = masked_softmax(aten, scores, aten.expand(valid_keys, scores.shape))
    del scores
    head_sums = aten.sum(attention_probs, 1)
    del attention_probs
    target_probs = aten.new_like(head_sums)
    del head_sums
    logits_gradient = aten.new_like(aten.new_like(indexer_probs, target_probs))
    del indexer_probs, target_probs, selection_mask
    logits_gradient = aten.new_like(logits_gradient, aten.to(valid_keys, FLOAT32))
    del valid_keys
    logits_gradient = aten.unsqueeze(aten.transpose(logits_gradient, 0, 1), 2)
    recomputed_scores = einsum_of_heads(aten, aten.to(q, FLOAT32), aten.to(k, FLOAT32))
    activated_scores, positive_mask = aten.new_like(recomputed_scores), aten.new_like(recomputed_scores, dtype=BOOL)
    del recomputed_scores
    weight_gradient = aten.sum(aten.new_like(logits_gradient, activated_scores), -1)
    scores_gradient = aten.new_like(logits_gradient, aten.unsqueeze(head_weight, -1))
    del logits_gradient, activated_scores
    scores_gradient = aten.new_like(scores_gradient, aten.to(positive_mask, FLOAT32))
    del positive_mask
    query_gradient = _einsum_query_gradient(aten, scores_gradient, aten.to(k, FLOAT32))
    key_gradient = _einsum_key_gradient(aten, scores_gradient, aten.to(q, FLOAT32))
    del scores_gradient
    return aten.to(query_gradient, q.dtype), aten.to(weight_gradient, head_weight.dtype), aten.to(key_gradient, k.dtype)


def _einsum_query_gradient(aten: Aten, output_gradient: Tensor, k: Tensor) -> Tensor:
    """Computes the einsum sbht,tbd->sbhd for the gradient of the queries."""
    token_count, batch_size, head_count, key_count = output_gradient.shape
    gradient_matrix = aten.reshape(
        aten.permute(output_gradient, (1, 0, 2, 3)), (batch_size, token_count * head_count, key_count)
    )
    query_gradient = aten.bmm(gradient_matrix, aten.permute(k, (1, 0, 2)))
    return aten.permute(aten.reshape(query_gradient, (batch_size, token_count, head_count, k.shape[-1])), (1, 0, 2, 3))


def _einsum_key_gradient(aten: Aten, output_gradient: Tensor, q: Tensor) -> Tensor:
    """Computes the einsum sbht,sbhd->tbd for the gradient of the keys."""
    token_count, batch_size, head_count, key_count = output_gradient.shape
    gradient_matrix = aten.reshape(
        aten.permute(output_gradient, (1, 3, 0, 2)), (batch_size, key_count, token_count * head_count)
    )
    query_matrix = aten.reshape(aten.permute(q, (1, 0, 2, 3)), (batch_size, token_count * head_count, q.shape[-1]))
    return aten.permute(aten.bmm(gradient_matrix, query_matrix), (1, 0, 2))
