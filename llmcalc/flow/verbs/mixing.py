"""Methods that record attention, its scores and masks, and the choice of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ... import ops
from ...algebra import Number
from ...ops.base import Op
from ..recorder import Recorder
from ..value import Value
from .pairs import query_key_pair_value


class MixingVerbs(Recorder):
    """Methods that record attention, its scores and masks, and the choice of keys."""

    def attention(
        self,
        node_name: str,
        q: Value,
        k: Value,
        v: Value,
        *,
        causal: bool = True,
        core: Callable[..., Op] = ops.AttentionCore,
        node_fields: dict[str, Any] | None = None,
        cap: float | None = None,
        bias: Value | None = None,
        sinks: bool | Literal["keys"] = False,
        masked: bool = True,
        selection: Value | None = None,
        in_float32: bool = True,
        float32_scores: bool = False,
        repeat_kv: bool = True,
        copies_heads: bool = False,
        floors_scores: bool = False,
        names_scores: bool = False,
        bias_in_sdpa: bool = False,
        **key_limits: Any,
    ) -> Value:
        """Records attention, softmax(q·kᵀ)·v, on axes (heads, size); some kernels repeat key and value heads.

        Keys of another sequence are recognized by their rows.

        core: the op, `ops.AttentionCore` by default.
        key_limits: `window`, `chunk`, `selected`, and further fields of the op.
        cap: the soft cap of the scores, none by default.
        bias: the value added to the scores, none by default.
        sinks: whether each head has one more score, a parameter of its module, without a value; false by default.
            With `keys` the parameter is a key of each key-value head, of which the query computes the score.
        masked: whether there is a mask at all, true by default; there is none on keys of another sequence.
        in_float32: whether the softmax is in float32, true by default, or in the scores' number format.
        float32_scores: whether queries and keys are copied to float32 for their scores, false by default.
        repeat_kv: whether a class gives scaled_dot_product_attention keys and values of every head, or says that it
            repeats them, true by default.
        copies_heads: whether a class copies queries, keys and values to heads first, false by default.
        floors_scores: whether a class limits masked scores from below before the softmax, false by default.
        names_scores: whether a class keeps the scores without their mask while it computes, false by default.
        bias_in_sdpa: whether scaled_dot_product_attention takes the bias as its mask, false by default.
        selection: the mask of keys that another part selected, in place of the one by positions; none by default.
        """
        heads, *qk_axes = q.axes
        value_axes = v.axes[1:]
        key_rows = None if k.rows is q.rows or k.rows == q.rows else k.rows
        op = core(
            heads.size,
            self.element_count(tuple(qk_axes)),
            self.element_count(value_axes),
            causal,
            rows=q.rows,
            keys=key_rows,
            **key_limits,
        )
        output_value = Value(q.rows, (heads, *value_axes))
        step_inputs = (q, k, v, *(optional_input for optional_input in (bias, selection) if optional_input is not None))
        kv_heads = (k if k.unrepeated_value is None else k.unrepeated_value).axes[0]
        step_options = {
            "causal": causal,
            "cap": cap,
            "biased": bias is not None,
            "sinks": sinks,
            "float32": in_float32,
            "float32_scores": float32_scores,
            "repeat_kv": repeat_kv,
            "copies_heads": copies_heads,
            "floors_scores": floors_scores,
            "names_scores": names_scores,
            "bias_in_sdpa": bias_in_sdpa,
            **key_limits,
        }
        step_options["masked"], step_options["narrowed"] = masked and key_rows is None, selection is not None
        step_options |= {"kv_heads": kv_heads, "cache": k.cache_name, "dropout": self.dropouts.get("attention", 0.0)}
        return self.step(
            "attention", node_name, step_inputs, output_value, op=op, node_fields=node_fields, **step_options
        )

    def scores(
        self,
        node_name: str,
        q: Value,
        k: Value,
        *,
        weights: Value | None = None,
        values: Value | None = None,
        is_cross_attention: bool = False,
        core: Callable[..., Op] = ops.AttentionCore,
        **key_limits: Any,
    ) -> Value:
        """Records attention scores q·kᵀ alone, without softmax and values; keys may be shared by all heads.

        weights: per query, a weight for each head: the sum of ReLU(q·kᵀ) over the heads, with these weights.
        values: the values that a later step, `weighted`, adds up; the op of this step counts it too.
        is_cross_attention: whether keys are of another sequence, false by default. core, key_limits: as in `attention`.
        """
        heads, *qk_axes = q.axes
        v_dim = 0 if values is None else values.axes[-1].size
        v_dim = v_dim if weights is None else 1
        key_rows = k.rows if is_cross_attention else None
        op = core(heads.size, self.element_count(tuple(qk_axes)), v_dim, rows=q.rows, keys=key_rows, **key_limits)
        step_inputs = (q, k) if weights is None else (q, k, weights)
        output_value = query_key_pair_value(q.rows, *((heads,) if weights is None else ()), is_batched=True)
        return self.step("scores", node_name, step_inputs, output_value, op=op)

    def strongest(self, strength: Value, q: Value, k: Value, *, key_limit: Number, window: Number = None) -> Value:
        """Records, per query, the selection of the `key_limit` visible keys with the largest `strength`.

        strength: that of each key and head. window: as in `attention`.
        """
        output_value = query_key_pair_value(q.rows, *strength.axes, is_batched=True)
        return self.step(
            "strongest", "", (strength, q, k), output_value, key_limit=key_limit, causal=True, window=window
        )

    def select(self, scores: Value, k: Value, top_k: Number, pool_size: Number = None) -> None:
        """Records the selection of `top_k` keys per query, for this layer and for layers that reuse the selection.

        pool_size: the scores are those of whole pools of that many keys; the keys after the last pool come on top.
        """
        self.record("select", "", (scores, k), top_k=top_k, causal=True, pool=pool_size)

    def selected(self, q: Value, *keys: Value, lends_selection: bool = False) -> tuple[Value, ...]:
        """Records the mask of the keys selected by `select`, and returns this mask and the keys to read.

        While decoding one token, only the selected keys are read. The selection may be from a lower layer.

        lends_selection: whether higher layers may reuse the selection, false by default.
        """
        output_values = query_key_pair_value(q.rows, is_constant=True, is_batched=True), *map(_view_of_keys, keys)
        self.record("selected", "", (q, *keys), output_values, causal=True, lends=lends_selection)
        return output_values

    def select_blocks(self, scores: Value, k: Value, block_size: Number, block_count: Number) -> Value:
        """Records, per query and head, the mask of the `block_count` best-scored blocks of `block_size` keys."""
        output_value = query_key_pair_value(scores.rows, *scores.axes, is_constant=True, is_batched=True)
        return self.step("select_blocks", "", (scores, k), output_value, block=block_size, blocks=block_count)

    def only_selected(self, mask: Value, *keys: Value, block_size: Number, block_count: Number) -> tuple[Value, ...]:
        """Records a read of the keys and values in the blocks of `select_blocks`, and returns them with the mask.

        While decoding one token, only those of the selected blocks are read.
        """
        output_values = Value(mask.rows, mask.axes, is_constant=True), *map(_view_of_keys, keys)
        self.record("only_selected", "", (mask, *keys), output_values, block=block_size, blocks=block_count)
        return output_values

    def joint_softmax(
        self,
        q: Value,
        v: Value,
        *scores: Value,
        cap: float | None = None,
        window: Number = None,
        sinks: bool = False,
        selection: Value | None = None,
    ) -> Value:
        """Records one softmax over two lists of scores: masked scores of the same sequence, and other scores.

        q, v: the queries, and the values of a token's own sequence.
        cap, window, sinks: as in `attention`. selection: the mask of the other scores, none by default.
        """
        step_inputs = (*scores, q, v) if selection is None else (*scores, q, v, selection)
        step_options = {"cap": cap, "causal": True, "window": window, "sinks": sinks, "parts": len(scores)}
        step_options["dropout"] = self.dropouts.get("attention", 0.0)
        return self.step("joint_softmax", "", step_inputs, Value(q.rows, q.axes[:1]), **step_options)

    def weighted(self, weights: Value, values: Value) -> Value:
        """Records the weighted sum of values; `weights` may have more columns, for other values."""
        return self.step("weighted", "", (weights, values), Value(weights.rows, (*weights.axes, values.axes[-1])))


def _view_of_keys(keys: Value) -> Value:
    """Returns a view of keys or values, of which a kernel may read only a part."""
    output_value = keys.view(*keys.axes)
    output_value.unrepeated_value = keys.unrepeated_value
    return output_value
