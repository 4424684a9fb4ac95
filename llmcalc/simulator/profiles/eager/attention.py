"""Softmax attention: positions, caches, masks and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....algebra import are_equal, exact_div
from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.axis import element_count
from ....flow.program import Step
from ....workload.derived_rows import QueryKeyPairs
from ...lowering import Lowering
from ...tensor import BOOL, FLOAT32, INT64, Tensor, count_storages_as


@kernels_compared(TORCH_WITNESS)
class AttentionKernels(Lowering):
    """Kernels of softmax attention, which run the operations of the reference implementation."""

    def heads_first(self, x: Tensor) -> Tensor:
        """Transposes rows and heads: [batch, rows, heads, size] ↔ [batch, heads, rows, size]."""
        return self.aten.transpose(x, 1, 2)

    # --- positions --------------------------------------------------------------------------------------------------

    def do_rope(self, operation: Step) -> None:
        x = self.tensor_of(operation.input_values[0])
        has_heads = len(x.shape) == 4
        rotated_x = self.rotate(self.heads_first(x) if has_heads else x, operation)
        self.store_tensor(operation.output_values[0], self.heads_first(rotated_x) if has_heads else rotated_x)

    def rotate(self, x: Tensor, operation: Step) -> Tensor:
        """Applies rotary positions to the first dimensions of each head. x: […, positions, dimensions]."""
        aten, spec, repeats_each_angle = self.aten, operation.options["spec"], operation.options["every"]
        rotary_dim = spec.rotary_size(x.shape[-1])
        if repeats_each_angle is None:
            cos, sin = self._cos_and_sin(x.shape[-2], rotary_dim, spec.rope_theta, x)
        else:
            position_ids = self.frames[-1].local_tensors["at"] = aten.new_like(
                aten.new_like(aten.new_tensor((x.shape[-2],), INT64))
            )
            cos, sin = self._compute_cos_and_sin(position_ids, rotary_dim, x)
        rotates_whole_head = are_equal(rotary_dim, x.shape[-1]) and not spec.concatenated
        if operation.options["back"]:
            sin = aten.scale(sin, "neg")
        if self.choices.joins_rope_halves:
            return self._rotate_halves(x, rotary_dim, cos, sin)
        rotary_part = x if rotates_whole_head else aten.slice(x, rotary_dim)
        rotary_part = aten.add(aten.mul(rotary_part, cos), aten.mul(self._rotate_quarter(rotary_part, rotary_dim), sin))
        return rotary_part if rotates_whole_head else aten.cat([rotary_part, aten.slice(x, x.shape[-1] - rotary_dim)])

    def _rotate_halves(self, x: Tensor, rotary_dim: Any, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates the first and the second elements of all pairs separately, and concatenates the results."""
        aten = self.aten
        cos, sin = aten.slice(cos, rotary_dim // 2), aten.slice(sin, rotary_dim // 2)
        left_half = aten.slice(x, rotary_dim // 2)
        right_half = aten.slice(x, rotary_dim // 2)
        unrotated_part = aten.slice(x, x.shape[-1] - rotary_dim)
        rotated_left = aten.sub(aten.mul(left_half, cos), aten.mul(right_half, sin))
        rotated_right = aten.add(aten.mul(right_half, cos), aten.mul(left_half, sin))
        return aten.cat([rotated_left, rotated_right, unrotated_part])

    def _rotate_quarter(self, x: Tensor, rotary_dim: Any) -> Tensor:
        """Maps each pair (a, b) of x to (−b, a), where a is in the first half of the last axis and b in the second."""
        return self.aten.cat(
            [self.aten.scale(self.aten.slice(x, rotary_dim // 2), "neg"), self.aten.slice(x, rotary_dim // 2)]
        )

    def _cos_and_sin(self, token_count: Any, rotary_dim: Any, theta: float, template: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cos and sin of every position, computed by the first layer."""
        table_key = ("rope", token_count, rotary_dim, theta, template.dtype)
        return self.compute_once(
            table_key, lambda: self._compute_cos_and_sin(self.token_positions(token_count), rotary_dim, template)
        )

    def _compute_cos_and_sin(self, positions: Tensor, rotary_dim: Any, template: Tensor) -> tuple[Tensor, Tensor]:
        angles = self._angle_table(positions, rotary_dim)
        angles = self.aten.cat([angles, angles])
        return self.aten.to(self.aten.new_like(angles), template.dtype), self.aten.to(
            self.aten.new_like(angles), template.dtype
        )

    def _angle_table(self, positions: Tensor, rotary_dim: Any) -> Tensor:
        aten = self.aten
        exponents = aten.new_like(aten.new_tensor((rotary_dim // 2,), FLOAT32))
        return aten.mul(aten.to(aten.unsqueeze(positions, 1), FLOAT32), aten.new_like(aten.new_like(exponents)))

    # --- keys and values --------------------------------------------------------------------------------------------

    def do_repeat(self, operation: Step) -> None:
        x, heads = self.tensor_of(operation.input_values[0]), operation.output_values[0].axes[0].size
        if isinstance(operation.input_values[0].rows, QueryKeyPairs):
            self.store_output(operation, self.aten.repeat_interleave(x, heads // x.shape[1], 1))
            return
        if operation.options["tiled"]:
            repeated_keys = self.aten.repeat(self.heads_first(x), heads // x.shape[2], 1)
        elif self.choices.matches_transformers:
            repeated_keys = self.repeat_heads(self.heads_first(x), heads)
        else:
            repeated_keys = self.aten.repeat_interleave(self.heads_first(x), heads // x.shape[2], 1)
        self.store_tensor(operation.output_values[0], self.heads_first(repeated_keys))

    def repeat_heads(self, x: Tensor, heads: Any) -> Tensor:
        """Repeats key heads as `repeat_kv` of transformers does. A single head becomes a view.

        x: [batch, key heads, rows, size].
        """
        if are_equal(x.shape[1], 1):
            return self.aten.expand(x, (x.shape[0], heads, *x.shape[2:]))
        return self.aten.repeat_interleave(x, heads // x.shape[1], 1)

    def do_cache(self, operation: Step) -> None:
        if self.is_from_earlier_pass(operation.input_values[0]):
            cached_and_new_rows: Sequence[Tensor] = self._gather_cache_pages(self.cached_tensors(operation.name) or ())
        else:
            cached_and_new_rows = self._append_rows_to_cache(
                operation.name, list(map(self.tensor_of, operation.input_values)), operation.options["limit"]
            )
        if self.cached_tensors_by_path is not None:
            for input_value in operation.input_values:
                self.free_value(input_value.storage)
        for output, tensor in zip(operation.output_values, cached_and_new_rows, strict=True):
            self.store_without_reshape(output, tensor)

    def _append_rows_to_cache(
        self, cache_name: str, new_rows: list[Tensor], token_limit: int | None
    ) -> Sequence[Tensor]:
        """Concatenates cached and new keys or values, and stores them in the cache for later tokens.

        As `DynamicCache` of transformers does: each tensor without a limit replaces the cached one before the next is
        concatenated, and a window is a view of all rows.
        """
        if self.cached_tensors_by_path is None:
            return new_rows
        if self.has_block_pool:
            return self._write_rows_to_cache_pages(cache_name, new_rows, self.cached_tensors(cache_name), token_limit)
        aten, cache_key = self.aten, (*self.cache_path, cache_name)
        concatenated_rows = [[new_tensor] for new_tensor in self.cached_tensors_by_path.pop(cache_key, ())] or [
            [] for _ in new_rows
        ]
        with count_storages_as(self.graph.meter, "cache"):
            if token_limit is None:
                for row_index, new_row in enumerate(new_rows):
                    concatenated_rows[row_index] = [self._concatenate([*concatenated_rows[row_index], new_row])]
                all_rows = self.cached_tensors_by_path[cache_key] = tuple(
                    new_tensor for (new_tensor,) in concatenated_rows
                )
                return all_rows
            all_rows = tuple(  # the oldest token leaves the window when a new one enters
                self._concatenate(
                    [
                        *(
                            aten.slice(new_tensor, min(new_tensor.shape[1], token_limit - 1), 1)
                            for new_tensor in cached_tensors
                        ),
                        new_row,
                    ]
                )
                for cached_tensors, new_row in zip(concatenated_rows, new_rows, strict=True)
            )
            self.cached_tensors_by_path[cache_key] = tuple(
                aten.slice(new_tensor, min(new_tensor.shape[1], token_limit), 1) for new_tensor in all_rows
            )
        return all_rows

    def _write_rows_to_cache_pages(
        self, cache_name: str, new_rows: list[Tensor], cached_tensors: Sequence[Tensor] | None, token_limit: int | None
    ) -> Sequence[Tensor]:
        """Writes new keys and values into the blocks of the paged cache."""
        module_frame = self.frames[-1]
        (module_frame.caller_variables[0] if module_frame.caller_variables else module_frame.local_tensors)[
            f"written to {cache_name}"
        ] = new_rows
        cached_row_count = 0 if cached_tensors is None else cached_tensors[0].shape[1]
        cached_row_count = cached_row_count if token_limit is None else min(cached_row_count, token_limit - 1)
        row_count = cached_row_count + new_rows[0].shape[1]
        all_rows = [
            self.new_pool_tensor((cached_tensor.shape[0], row_count, *cached_tensor.shape[2:]), cached_tensor.dtype)
            for cached_tensor in new_rows
        ]
        self.store_in_cache(
            cache_name,
            *(
                all_rows
                if token_limit is None
                else [self.aten.slice(cached_tensor, min(row_count, token_limit), 1) for cached_tensor in all_rows]
            ),
        )
        return new_rows if cached_tensors is None else self._gather_cache_pages(all_rows)

    def _gather_cache_pages(self, cached_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Returns the paged cache's tensors that attention reads: the pages for fused kernels, otherwise a copy."""
        if self.has_block_pool and self.choices.attention != "flash":
            return [self.aten.copy(cached_tensor) for cached_tensor in cached_tensors]
        return cached_tensors

    def _concatenate(self, cached_and_new_rows: Sequence[Tensor]) -> Tensor:
        """Concatenates cached and new keys or values, heads first."""
        if len(cached_and_new_rows[0].shape) < 4:
            return self.aten.cat(cached_and_new_rows, 1)
        return self.heads_first(self.aten.cat([self.heads_first(row_tensor) for row_tensor in cached_and_new_rows], 2))

    def do_absorb(self, operation: Step) -> None:
        """Multiplies by the part of MLA's up-projection that its absorbed form moves to queries or outputs."""
        aten, weight, output = self.aten, operation.weight, operation.output_values[0]
        assert weight is not None
        x = self.heads_first(self.tensor_of(operation.input_values[0]))
        heads = output.axes[0].size
        is_query = output.axes[1:] == weight.input_axes
        weights_of_heads = aten.unflatten(
            self.linear_weight(operation), 0, (heads, exact_div(element_count(weight.output_axes), heads))
        )
        weight_part = aten.slice(weights_of_heads, x.shape[-1] if is_query else output.axes[1].size, 1)
        absorbed_product = aten.matmul(x, weight_part if is_query else aten.transpose(weight_part, -1, -2))
        self.store_tensor(output, self.heads_first(absorbed_product))

    # --- scores -----------------------------------------------------------------------------------------------------

    def do_mask(self, operation: Step) -> None:
        q, k = map(self.tensor_of, operation.input_values)
        self.mask_of_scores(operation, q.shape[1], k.shape[1])

    def do_attention(self, operation: Step) -> None:
        """Runs attention by the profile's method that is named after the attention operation."""
        self.run_kernel_of_op(operation, "attention")

    def attention_AttentionCore(self, operation: Step) -> None:
        q, k, v = (self.heads_first(self.tensor_of(input_value)) for input_value in operation.input_values[:3])
        bias = self.tensor_of(operation.input_values[3]) if operation.options["biased"] else None
        mask = None
        if operation.options["narrowed"]:
            mask = self.tensor_of(operation.input_values[-1])
        elif operation.options["masked"]:
            mask = self.mask_of_scores(operation, q.shape[2], k.shape[2])
        sinks = self.sinks_of(operation)
        attention_options, matches_transformers = operation.options, self.choices.matches_transformers

        def compute_scores_and_output(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
            return self.compute_attention(
                q, k, v, mask, attention_options["cap"], sinks, bias, attention_options["dropout"],
                attention_options["float32"], attention_options["float32_scores"],
                matches_transformers and attention_options["floors_scores"],
                matches_transformers and attention_options["names_scores"],
            )  # fmt: skip

        attention_output = self.run_attention_core(compute_scores_and_output, q, k, v, bias)
        self.store_tensor(operation.output_values[0], self.aten.transpose(attention_output, 1, 2))

    def run_attention_core(self, compute_core: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        """Runs an attention core, which is checkpointed if the run recomputes attention."""
        present_tensors = [tensor for tensor in tensors if tensor is not None]
        if self.recompute.core:
            return self.run_checkpointed(lambda xs: compute_core(*xs), present_tensors)
        return compute_core(*present_tensors)

    def sinks_of(self, operation: Step) -> Tensor | None:
        """Returns attention's sinks, if any: the scores of heads [heads], or keys [key-value heads, size]."""
        heads, head_dim = operation.input_values[0].axes
        keys_shape = (operation.options["kv_heads"].size, head_dim.size)
        sinks = operation.options.get("sinks")
        return self.weight("sinks", keys_shape if sinks == "keys" else (heads.size,)) if sinks else None

    def scores_of_sink_keys(self, q: Tensor, sink_keys: Tensor, scores: Tensor) -> Tensor:
        """Computes each query's score with its key-value head's sink key, which is a parameter."""
        aten, group_size = self.aten, q.shape[1] // sink_keys.shape[0]
        keys = aten.repeat_interleave(sink_keys, group_size, 0) if group_size > 1 else sink_keys
        products = aten.mul(q, aten.unsqueeze(aten.unsqueeze(keys, 0), 2))
        return aten.to(aten.scale(aten.sum(products, keepdim=True)), scores.dtype)

    def expand_sinks(self, sinks: Tensor, scores: Tensor) -> Tensor:
        """Expands the scores of attention sinks, one per head, to all queries."""
        aten = self.aten
        expanded_sinks = aten.unsqueeze(aten.unsqueeze(aten.unsqueeze(sinks, 0), 2), 3)
        return aten.to(aten.expand(expanded_sinks, (*scores.shape[:-1], 1)), scores.dtype)

    def mask(self, operation: Step, query_count: Any, key_count: Any) -> Tensor:
        """Returns the mask [queries, keys] of visible keys, computed by the first layer."""
        window = operation.options.get("window")
        chunk = operation.options.get("chunk")
        causal = operation.options["causal"]
        mask_key = ("mask", query_count, key_count, causal, window, chunk)
        return self.compute_once(
            mask_key, lambda: self._visible_key_mask(query_count, key_count, causal, window, chunk)
        )

    def mask_of_scores(self, operation: Step, query_count: Any, key_count: Any) -> Tensor:
        """Returns the mask for attention whose scores are a tensor of their own, computed by the first layer.

        The classes of transformers add a mask [batch, 1, queries, keys] to the scores of eager attention, which they
        compute from that of visible keys. A part that selects keys reads the mask of visible keys in any case.
        """
        causal = operation.options["causal"]
        if not (causal and self.choices.matches_transformers and self.choices.attention == "eager"):
            return self.mask(operation, query_count, key_count)
        window, chunk = operation.options.get("window"), operation.options.get("chunk")
        mask_key = ("added mask", query_count, key_count, window, chunk)
        if mask_key not in self.pass_memo:
            visible_keys = self._visible_key_mask(query_count, key_count, causal, window, chunk)
            self.pass_memo[mask_key] = self.aten.new_tensor(
                (self.run_config.batch, 1, query_count, key_count), self.dtype
            )
            del visible_keys
        mask: Tensor = self.pass_memo[mask_key]
        return mask

    def _visible_key_mask(self, query_count: Any, key_count: Any, causal: bool, window: Any, chunk: Any) -> Tensor:
        aten = self.aten
        q, k = aten.unsqueeze(self.token_positions(query_count), 1), aten.unsqueeze(self.token_positions(key_count), 0)
        if not causal:
            return aten.compare(aten.compare(aten.new_like(q, k)), aten.compare(aten.new_like(k, q)))
        visible_mask = aten.compare(k, q)
        if window is not None:
            visible_mask = aten.compare(visible_mask, aten.compare(k, aten.new_like(q)))
        if chunk is not None:
            visible_mask = aten.compare(visible_mask, aten.compare(aten.new_like(k), aten.new_like(q)))
        return visible_mask

    def compute_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        score_cap: float | None = None,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        dropout: float = 0.0,
        softmax_in_float32: bool = True,
        float32_scores: bool = False,
        limits_masked_scores: bool = False,
        keeps_scores: bool = False,
    ) -> Tensor:
        """Computes softmax(q·kᵀ)·v.

        sinks: per head, the score of an additional key without a value, or per key-value head that key.

        bias: the term added to the scores. dropout: the probability of dropout, which runs on the probabilities.
        softmax_in_float32: whether the softmax is in float32, or in the scores' number format.
        float32_scores: whether queries and keys are copied to float32 for their scores.
        limits_masked_scores: whether masked scores are limited from below.
        keeps_scores: whether the scores without their mask live until the end.
        """
        aten = self.aten
        if float32_scores:
            q, k = aten.to(q, FLOAT32), aten.to(k, FLOAT32)
        scores = aten.scale(aten.matmul(q, aten.transpose(k, -1, -2)))
        if score_cap is not None:
            scores = aten.scale(aten.elementwise_function("tanh", aten.scale(scores)))
        if bias is not None:
            scores = aten.add(scores, aten.to(bias, scores.dtype))
        unmasked_scores = scores if keeps_scores else None
        if mask is not None:
            scores = (
                aten.masked_fill(scores, aten.new_like(mask, dtype=BOOL))
                if mask.dtype is BOOL
                else aten.add(scores, mask)
            )
            if limits_masked_scores:
                scores = aten.minimum(scores, aten.new_tensor((), scores.dtype))
        # with sinks the call states its format
        softmax_runs_in_float32 = softmax_in_float32 or (sinks is None and self.autocasts_to_float32)
        number_format = FLOAT32 if softmax_runs_in_float32 else scores.dtype
        if sinks is not None:
            if len(sinks.shape) == 2:
                sink_scores = self.scores_of_sink_keys(q, sinks, scores)
            else:
                sink_scores = self.expand_sinks(sinks, scores)
            key_count = scores.shape[-1]
            attention_weights = aten.to(
                aten.slice(aten.softmax(aten.to(aten.cat([scores, sink_scores]), number_format)), key_count), v.dtype
            )
            return aten.matmul(self.apply_dropout(attention_weights, dropout), v)
        attention_output = aten.matmul(
            self.apply_dropout(aten.to(aten.softmax(aten.to(scores, number_format)), v.dtype), dropout), v
        )
        del unmasked_scores
        return attention_output
