"""Softmax attention with multi-head, grouped-query or multi-query heads.

Multi-head (Vaswani 2017, §3.2), multi-query (Shazeer 2019, arXiv:1911.02150) and grouped-query (Ainslie 2023,
arXiv:2305.13245); sliding windows (Beltagy 2020; Jiang 2023), chunks (Llama 4), QK-norm (Dehghani 2023), sinks
(gpt-oss), logit soft-capping (Gemma 2). The same part serves as cross-attention to an encoder's output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field

from ... import ops
from ...algebra import Number, are_equal, exact_div
from ...flow.axis import Axis, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ..base import (
    TORCH_WITNESS,
    FiniteNumber,
    Flag,
    HeadDim,
    Heads,
    HeadSizes,
    KVHeads,
    ModelProperties,
    PartWitness,
    ScoreBias,
    StackPosition,
    TokenMixer,
    UnscalableError,
    ValueDim,
    Window,
    check_kv_heads,
)
from ..choices import AnyBlockIndexer
from ..norm import Norm, norm_reference
from ..part_choice import component_type
from ..rope import Rope, ScorePosition
from ..runtime import PassState, attention_mask, softmax_core_class, tensor_cache_class, vector_module
from .grouped_query import copy_with_heads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .output_gate import OutputGate
    from .qk_norm import QKNorm
    from .query_factors import QueryFactors
    from .value_convolution import ValueConvolution
    from .value_experts import ValueExperts
else:
    QKNorm, QueryFactors = component_type("mixers.qk_norm:QKNorm"), component_type("mixers.query_factors:QueryFactors")
    OutputGate = component_type("mixers.output_gate:OutputGate")
    ValueConvolution = component_type("mixers.value_convolution:ValueConvolution")
    ValueExperts = component_type("mixers.value_experts:ValueExperts")


IdleProjectionName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,30}_proj$")]
"""The type of a name of a projection that has weights but never runs: a text that ends in `_proj`."""

ACTIVE_PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"})
"""Names of attention's projections that run, and so cannot be names of idle projections."""

AdapterFunction: TypeAlias = Callable[[Value, Shape], Value]
"""A function of a projection's input and the axes of its output, which returns a term to add to that output."""


class Attention(TokenMixer):
    """Multi-head attention; grouped-query attention for fewer `num_key_value_heads`, multi-query attention for 1.

    num_attention_heads: the number of query heads.
    num_key_value_heads: the number of key and value heads, by default the number of query heads.
    head_dim: the size of a query or key head, hidden_size / num_attention_heads by default.
    v_head_dim: the size of a value head, head_dim by default (MiMo-V2 differs).
    query_rank: the rank of the projection of queries, with a norm between its two factors (Step 3); none by default.
    q_bias, k_bias, v_bias, o_bias: whether each projection has a bias, false by default.
    qk_norm: the norm on queries and keys, none by default.
    sliding_window: the number of tokens that each token attends to, itself included; all by default. In an encoder the
        window is centred on the token.
    attention_chunk_size: the size of the chunks that attention is limited to, none by default.
    grid_window: the side of the squares of patches that attention is limited to, in a vision encoder (Qwen2.5-VL); none
        by default.
    sinks: whether each head has one more key, with a learned score and no value; false by default.
    sink_keys: whether each key-value head has one more key, which is a parameter, without a value (IQuest-Q1); false by
        default.
    attention_k_eq_v: whether values are the projected keys before norm and positions, without a value projection (Gemma
        4). Keys and values are both cached. False by default.
    output_gate: the gate on the output of the heads, none by default.
    value_convolution: a depthwise convolution of the values that is added to the output of the heads, in an encoder
        (Nyströmformer); none by default.
    value_experts: routed projections of the values in the place of one value projection (K2 Horizon); none by default.
    head_norm: the norm on the output of each head, before the gate (Muse Spark); none by default.
    sub_norm: the norm on the output of all heads, before the output projection (Sub-LN: Wang 2022, arXiv:2210.06423;
        BitNet); none by default.
    v_norm: the norm on each value head, none by default.
    kv_shared: whether keys and values come from the nearest lower layer that computes its own with the same heads and
        window (Gemma 3n, Gemma 4), or from a target model's cache (drafts of Gemma 4); false by default.
    attn_logit_softcapping: the soft cap of the scores, none by default.
    position: the position encoding of queries and keys, none by default.
    block_indexer: the part that selects the earlier tokens to attend to, in blocks (MiniMax-M3, Qwen4-Exp) or one by
        one (Naive-N0.5-Flash); none by default.
    float32_softmax: whether the softmax of the scores is in float32, true by default; in their own number format
        otherwise (GPT-2, gpt-oss). Fused kernels of attention keep no scores. Parameters and FLOPs do not change.
    float32_scores: whether queries and keys are copied to float32, in which their scores are computed (GPT-Neo, GPT-J,
        CodeGen); false by default. Fused kernels of attention read them as they are. Parameters and FLOPs do not
        change.
    repeat_kv: whether its class lets torch's scaled_dot_product_attention repeat a single head of keys and values, or
        repeats it before, true by default; otherwise that runs its math backend, the only one that broadcasts (Falcon).
        Parameters and FLOPs do not change.
    copies_heads: whether its class copies queries, keys and values to [batch, heads, tokens, size], whose order the
        output of scaled_dot_product_attention has, too (Whisper); false by default. Parameters and FLOPs do not change.
    floors_scores: whether its class limits masked scores from below in eager attention (XGLM), which keeps them for the
        backward pass; false by default. Parameters and FLOPs do not change.
    names_scores: whether its class keeps the scores without their mask until its eager attention has run (BLOOM), false
        by default. Parameters and FLOPs do not change.
    fused_qkv: whether its class computes queries, keys and values as one product, whose result they are views of
        (GPT-NeoX, Phi-3), and of which the values keep all alive, where all have a bias or none; false by default.
        Parameters and FLOPs do not change.
    whole_pass: whether a token of a decoder attends to later tokens of its pass too, as in a prompt that is read in
        both directions (CPM-Ant); false by default.
    idle_projections: names of further projections like that of the queries, which plain text does not use: of tokens
        with global attention (Longformer), between words and entities (LUKE); none by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    renamed_fields: ClassVar[Mapping[str, str]] = {"gate_bias": "output_gate = { per = …, bias = … }"}

    type: Literal["attention"] = "attention"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads | None = None
    head_dim: HeadDim | None = None
    v_head_dim: ValueDim | None = None
    query_rank: QueryFactors | None = None
    q_bias: Flag = False
    k_bias: Flag = False
    v_bias: Flag = False
    o_bias: Flag = False
    qk_norm: QKNorm | None = None
    sliding_window: Window | None = None
    attention_chunk_size: Window | None = None
    grid_window: Window | None = None
    sinks: Flag = False
    sink_keys: Flag = False
    attention_k_eq_v: Flag = False
    output_gate: OutputGate | None = None
    value_convolution: ValueConvolution | None = None
    value_experts: ValueExperts | None = None
    head_norm: Norm | None = None
    sub_norm: Norm | None = None
    v_norm: Norm | None = None
    kv_shared: Flag = False
    attn_logit_softcapping: FiniteNumber | None = Field(default=None, gt=0)
    position: ScorePosition | None = None
    block_indexer: AnyBlockIndexer | None = None
    float32_softmax: Flag = True
    float32_scores: Flag = False
    repeat_kv: Flag = True
    copies_heads: Flag = False
    floors_scores: Flag = False
    names_scores: Flag = False
    fused_qkv: Flag = False
    whole_pass: Flag = False
    idle_projections: tuple[IdleProjectionName, ...] = Field(default=(), max_length=8)

    def check_fields(self) -> None:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if kv_heads is not None:
            check_kv_heads(heads, kv_heads)
        if self.sliding_window is not None and self.attention_chunk_size is not None:
            raise ValueError("sliding_window and attention_chunk_size: a layer has one or the other")
        is_distance_based = self.position is not None and self.position.requires_self_attention
        if self.sinks and self.sink_keys:
            raise ValueError("sinks and sink_keys: attention has one or the other")
        if self.grid_window is not None and (
            self.cost_thresholds() or self.sinks or self.sink_keys or is_distance_based
        ):
            raise ValueError("grid_window: limits plain attention to squares; expected no other limit, and no sinks")
        if self.query_rank is not None and self.idle_projections:
            raise ValueError("query_rank: idle projections read the layer's input; expected none")
        if self.value_convolution is not None and (kv_heads not in (None, heads) or self.kv_shared):
            raise ValueError("value_convolution: each head has values of its own; expected no shared keys and values")
        if self.value_experts is not None and (
            self.attention_k_eq_v or self.kv_shared or self.fused_qkv or self.v_bias or self.v_head_dim is not None
        ):
            raise ValueError(
                "value_experts: stand for v_proj; expected no attention_k_eq_v, kv_shared, fused_qkv, v_bias or "
                "v_head_dim"
            )
        if self.grid_window is not None and not self.float32_softmax:
            raise ValueError("float32_softmax: attention in squares of patches has it; expected true")
        if self.grid_window is not None and self.float32_scores:
            raise ValueError("float32_scores: attention in squares of patches has none; expected false")
        if not self.repeat_kv and kv_heads != 1:
            raise ValueError("repeat_kv: false is for num_key_value_heads = 1, which torch broadcasts; expected true")
        if self.fused_qkv and (self.kv_shared or self.attention_k_eq_v):
            raise ValueError("fused_qkv: needs queries, keys and values; expected no kv_shared and no attention_k_eq_v")
        if self.v_head_dim is not None and self.attention_k_eq_v:
            raise ValueError("v_head_dim: with attention_k_eq_v values have the size of keys; expected none")
        if self.whole_pass and (self.cost_thresholds() or is_distance_based):
            raise ValueError("whole_pass: is for plain attention; expected no window, chunks or blocks")
        idle_projections = self.idle_projections
        if len({*idle_projections}) < len(idle_projections) or ACTIVE_PROJECTIONS & {*idle_projections}:
            raise ValueError(
                f"idle_projections: {', '.join(idle_projections)}; "
                "expected names that differ from one another and from " + ", ".join(sorted(ACTIVE_PROJECTIONS))
            )
        for score_component in (self.position, self.block_indexer):
            if score_component is not None:
                score_component.check_attention(self)

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(*self.sizes(hidden_size))

    def report_label(self) -> str:
        if self.grid_window is not None:
            return "windowed"
        if self.sliding_window is not None:
            return "sliding"
        return "full" if self.attention_chunk_size is None else "chunked"

    def check_cross_attention(self) -> None:
        """Raises `ValueError` for fields that do not apply to cross-attention."""
        if (
            self.sliding_window is not None
            or self.attention_chunk_size is not None
            or self.block_indexer is not None
            or self.kv_shared
            or self.fused_qkv
        ):
            raise ValueError(
                "cross_attention: each token sees all of the other sequence; expected no window, chunks, "
                "block_indexer, kv_shared or fused_qkv"
            )
        if self.position is not None and self.position.requires_self_attention:
            raise ValueError(
                f"cross_attention.position: '{self.position.type}' goes by distances, of which two sequences have "
                "none; expected none"
            )

    def window_size(self) -> int | None:
        return self.sliding_window

    def score_position_encoding(self) -> ScorePosition | None:
        return self.position

    def cost_thresholds(self) -> tuple[int, ...]:
        chosen_blocks = None if self.block_indexer is None else self.block_indexer.selected_token_count
        lengths = (self.sliding_window, self.attention_chunk_size, chosen_blocks)
        return tuple(length for length in lengths if length is not None)

    def with_kv_heads(self, kv_heads: int, hidden_size: int) -> Self:
        if self.sizes(hidden_size)[1] == kv_heads:
            return self
        return self.model_copy(update={"num_key_value_heads": kv_heads})

    def without_window(self) -> Self:
        return self.model_copy(update={"sliding_window": None, "attention_chunk_size": None})

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        if self.block_indexer is not None:
            raise UnscalableError(
                "an indexer chooses for a fixed number of heads; expected attention without block_indexer"
            )
        changes_head_dim = self.head_dim is not None and not are_equal(head_sizes.head_dim, self.head_dim)
        if changes_head_dim and self.v_head_dim is not None:
            raise UnscalableError("values have a separate size (v_head_dim); expected attention without v_head_dim")
        return copy_with_heads(self, head_sizes)

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        heads = self.num_attention_heads
        if self.head_dim is None and stack_position.width % heads:
            raise ValueError(
                f"{stack_position.error_path}.num_attention_heads: {heads} does not divide hidden_size "
                f"{stack_position.width}; expected a divisor, or a head_dim of its own"
            )
        if self.position is not None:
            self.position.check_stack_position(
                stack_position, stack_position.width // heads if self.head_dim is None else self.head_dim
            )
        if self.whole_pass and stack_position.stack_name != "decoder":
            raise ValueError(
                f"{stack_position.error_path}.whole_pass: an encoder attends to all tokens anyway; expected false"
            )
        if self.value_convolution is not None and stack_position.stack_name != "encoder":
            raise ValueError(f"{stack_position.error_path}.value_convolution: reads later tokens; expected an encoder")
        if self.attention_chunk_size is not None and stack_position.stack_name == "encoder":
            raise ValueError(
                f"{stack_position.error_path}.attention_chunk_size: stands in causal attention; expected a decoder"
            )
        if self.grid_window is not None and (
            not stack_position.tokens_form_grid or stack_position.has_token_before_grid
        ):
            raise ValueError(
                f"{stack_position.error_path}.grid_window: is only valid in a vision encoder without a class embedding"
            )
        if self.block_indexer is not None:
            self.block_indexer.check_stack_position(stack_position)

    def sizes(self, hidden_size: Number) -> tuple[Number, Number, Number]:
        """Returns the numbers of query heads and of key and value heads, and the size of a head."""
        heads = self.num_attention_heads
        kv_heads = heads if self.num_key_value_heads is None else self.num_key_value_heads
        head_dim = exact_div(hidden_size, heads) if self.head_dim is None else self.head_dim
        return heads, kv_heads, head_dim

    def sharing_key(self) -> tuple[int | None, ...]:
        """The fields that must be equal for layers to share keys and values."""
        heads = self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads
        return heads, self.head_dim, self.v_head_dim, self.sliding_window, self.attention_chunk_size

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {} if self.position is None else self.position.required_stack_fields()

    def supported_score_bias(self) -> ScoreBias:
        return ScoreBias(self.num_attention_heads)

    def record_shared_bias(self, recorder: Flow, x: Value) -> None:
        if "score_bias" not in recorder.layer_memo:
            recorder.layer_memo["score_bias"] = recorder.distance_bias(recorder.layer_memo["relative_bias"], x)

    def dependency_field(self) -> str:
        return "kv_shared" if self.kv_shared else ""

    def _can_share_with(self, other_layer: Attention) -> bool:
        """Whether this layer can share keys and values with the other layer."""
        return all(map(are_equal, self.sharing_key(), other_layer.sharing_key()))

    def flow(
        self,
        recorder: Flow,
        x: Value,
        memory: Value | None = None,
        output_axes: Shape | None = None,
        adapter: AdapterFunction | None = None,
        value_input: Value | None = None,
    ) -> Value:
        """Records the attention's operations. memory: input of keys and values. output_axes: default x's axes.

        adapter: computes a term that is added to the output of each query, key and value projection.
        value_input: the input of the values where it is not that of the keys.
        """
        num_heads, num_kv_heads, head_size = self.sizes(x.width)
        heads, kv_heads, head_dim = (
            Axis("heads", num_heads),
            Axis("kv_heads", num_kv_heads),
            Axis("head_dim", head_size),
        )
        value_axis = head_dim if self.v_head_dim is None else Axis("v_head_dim", self.v_head_dim)
        query_input = x if self.query_rank is None else self.query_rank.flow(recorder, x)
        projected_q = self._project_heads(recorder, "q_proj", query_input, (heads, head_dim), self.q_bias, adapter)
        q = self._normalize_and_rotate(recorder, projected_q, "q_norm", head_dim)
        for projection_name in self.idle_projections:
            with recorder.scope(projection_name, role="idle"):
                recorder.linear("", x, heads, head_dim, bias=self.q_bias)
        kv_input = x if memory is None else memory
        keys, values = self._keys_and_values(
            recorder, kv_input, kv_heads, head_dim, value_axis, memory is not None, adapter, value_input
        )
        causal = recorder.causal and not self.whole_pass
        if memory is None:
            recorder.mask(q, keys, causal=causal, window=self.sliding_window, chunk=self.attention_chunk_size)
        bias: Value | None = None
        if self.position is not None:
            q, bias = self.position.flow(recorder, x, q, keys, (self.q_bias, self.k_bias))
        if bias is None and memory is None:
            bias = recorder.layer_memo.get("score_bias")
        recorder.hold(q=q, k=keys, v=values)
        convolved_values = None
        if self.value_convolution is not None:
            convolved_values = recorder.part(
                "value_convolution", self.value_convolution, values, heads=heads, head_axis=value_axis
            )
            recorder.hold(convolved=convolved_values)
        keys, values = recorder.repeat(keys, heads), recorder.repeat(values, heads)
        recorder.hold(k=keys, v=values)
        if bias is not None:
            recorder.hold(bias=bias)
        if self.block_indexer is None:
            key_limits: dict[str, Any] = {"window": self.sliding_window, "chunk": self.attention_chunk_size}
            key_limits |= {} if self.grid_window is None else {"square_side": self.grid_window}
            key_limits |= (
                {"core": ops.ReceivedKeysAttentionCore}
                if self.kv_shared and "from_target" in recorder.layer_memo
                else {}
            )
        else:
            rope_theta = self.position.rope_theta if isinstance(self.position, Rope) else 10000.0
            keys, values, key_limits = self.block_indexer.flow(recorder, x, Rope(rope_theta=rope_theta), keys, values)
        logit_cap = self.attn_logit_softcapping
        attn_output = recorder.attention(
            "core",
            q,
            keys,
            values,
            causal=causal,
            cap=logit_cap,
            bias=bias,
            sinks="keys" if self.sink_keys else self.sinks,
            in_float32=self.float32_softmax,
            float32_scores=self.float32_scores,
            repeat_kv=self.repeat_kv,
            copies_heads=self.copies_heads,
            floors_scores=self.floors_scores,
            names_scores=self.names_scores,
            bias_in_sdpa=bias is not None and recorder.layer_memo.get("bias_in_sdpa", False),
            **key_limits,
        )
        recorder.hold(out=attn_output)
        if convolved_values is not None:
            attn_output = recorder.add(attn_output, convolved_values)
            recorder.hold(out=attn_output)
        if self.sinks or self.sink_keys:
            recorder.vector("sinks", *((kv_heads, head_dim) if self.sink_keys else (heads,)))
        attn_output = self._normalize_and_gate(recorder, x, attn_output, value_axis)
        return recorder.linear("o_proj", attn_output, *(output_axes or x.axes), bias=self.o_bias)

    def _normalize_and_gate(self, recorder: Flow, x: Value, attn_output: Value, value_axis: Axis) -> Value:
        """Returns the heads' output after the optional norms and the optional gate. x: the attention layer's input."""
        if self.head_norm is not None:
            attn_output = recorder.norm("head_norm", attn_output, self.head_norm, (value_axis,))
            recorder.hold(out=attn_output)
        if self.output_gate is not None:
            attn_output = self.output_gate.flow(recorder, x, attn_output)
            recorder.hold(out=attn_output)
        if self.sub_norm is not None:
            concatenated_heads = recorder.flat(attn_output)
            recorder.hold(whole=concatenated_heads)
            attn_output = recorder.part("sub_norm", self.sub_norm, concatenated_heads)
        return attn_output

    def _project_heads(
        self,
        recorder: Flow,
        projection_name: str,
        x: Value,
        output_axes: Shape,
        bias: bool,
        adapter: AdapterFunction | None,
    ) -> Value:
        """Returns queries, keys or values, plus the optional adapter's output."""
        if adapter is None:
            return recorder.linear(projection_name, x, *output_axes, bias=bias, is_fused=self.fused_qkv)
        with recorder.scope(projection_name):
            return recorder.add(recorder.linear("", x, *output_axes, bias=bias), adapter(x, output_axes))

    def _normalize_and_rotate(self, recorder: Flow, x: Value, norm_name: str, head_dim: Axis) -> Value:
        """Returns queries or keys after the norm and the position encoding, in the order that the spec states."""
        qk_norm = self.qk_norm

        def normalize_heads(v: Value) -> Value:
            assert qk_norm is not None
            normed_axes = v.axes if qk_norm.scope == "projection" else (head_dim,)
            head_axis = v.axes[0] if qk_norm.scope == "per_head" else None
            return recorder.norm(
                norm_name, v, qk_norm.norm, normed_axes, head_axis if isinstance(head_axis, Axis) else None
            )

        x = normalize_heads(x) if qk_norm is not None and qk_norm.order == "before_rope" else x
        x = recorder.rope(x, self.position) if isinstance(self.position, Rope) else x
        return normalize_heads(x) if qk_norm is not None and qk_norm.order == "after_rope" else x

    def _keys_and_values(
        self,
        recorder: Flow,
        x: Value,
        heads: Axis,
        head_dim: Axis,
        value_axis: Axis,
        is_cross_attention: bool,
        adapter: AdapterFunction | None,
        value_input: Value | None,
    ) -> tuple[Value, Value]:
        """Returns the layer's keys and values, or the shared keys and values of the nearest lower layer."""
        computed_keys_and_values: list[tuple[Attention, Value, Value]] = recorder.layer_memo.setdefault(
            "keys and values", []
        )
        if self.kv_shared and "from_target" in recorder.layer_memo:
            return recorder.received(x, heads, head_dim), recorder.received(x, heads, value_axis)
        if self.kv_shared:
            empty_keys_and_values = (
                self,
                Value(x.rows, (heads, head_dim), is_constant=True),
                Value(x.rows, (heads, value_axis), is_constant=True),
            )
            shareable_keys_and_values = (
                layer_keys_and_values
                for layer_keys_and_values in reversed(computed_keys_and_values)
                if self._can_share_with(layer_keys_and_values[0])
            )
            _, keys, values = next(
                shareable_keys_and_values,
                computed_keys_and_values[-1] if computed_keys_and_values else empty_keys_and_values,
            )  # nothing: the layer is recorded alone
            return keys.view(*recorder.argument_on_rank((heads, head_dim))), values.view(
                *recorder.argument_on_rank((heads, value_axis))
            )
        with recorder.function():
            raw_keys = self._project_heads(recorder, "k_proj", x, (heads, head_dim), self.k_bias, adapter)
            recorder.hold(raw=raw_keys)
            keys = self._normalize_and_rotate(recorder, raw_keys, "k_norm", head_dim)
            values = raw_keys
            if not self.attention_k_eq_v:
                v_proj_input = x if value_input is None else value_input
                values = (
                    self._project_heads(recorder, "v_proj", v_proj_input, (heads, value_axis), self.v_bias, adapter)
                    if self.value_experts is None
                    else recorder.part(
                        "value_experts", self.value_experts, v_proj_input, heads=heads, head_axis=value_axis
                    )
                )
            recorder.hold(k=keys, v=values, raw=keys)
            if self.v_norm is not None:
                values = recorder.norm("v_norm", values, self.v_norm, (value_axis,))
                recorder.hold(v=values)
            if recorder.causal or is_cross_attention:
                cache_limit, cache_kind = self._cache_limit_and_kind(is_cross_attention)
                keys, values = recorder.cache("cache", cache_kind, keys, values, token_limit=cache_limit)
        if not is_cross_attention:
            computed_keys_and_values.append((self, keys, values))
        if not is_cross_attention and recorder.layer_memo.get("lends"):
            sharing_key = self.sharing_key()
            recorder.keep(**{f"keys of {sharing_key}": keys, f"values of {sharing_key}": values})
        return keys, values

    def _cache_limit_and_kind(self, is_cross_attention: bool) -> tuple[Number, str]:
        """Returns the largest number of cached tokens (None for no limit), and the cache's name in reports."""
        if is_cross_attention:
            return None, "cross_attention"
        if self.sliding_window is not None:
            return self.sliding_window, "sliding_attention"
        if self.attention_chunk_size is not None:
            return self.attention_chunk_size, "chunked_attention"
        return None, "full_attention"

    @property
    def formula_source(self) -> str:
        if self.num_key_value_heads is None:
            return "Vaswani et al. 2017, §3.2.2"
        # an array or a symbol is not a single number
        has_single_kv_head = isinstance(self.num_key_value_heads, int) and self.num_key_value_heads == 1
        return "Shazeer 2019, §3" if has_single_kv_head else "Ainslie et al. 2023, §2"

    def describe(self, hidden_size: int) -> str:
        num_heads, kv_heads, head_size = self.sizes(hidden_size)
        attention_kind = "MHA" if kv_heads == num_heads else "MQA" if kv_heads == 1 else "GQA"
        window_text = f", window {self.sliding_window}" if self.sliding_window else ""
        chunk_text = f", chunks of {self.attention_chunk_size}" if self.attention_chunk_size else ""
        heads_text = str(num_heads) if kv_heads == num_heads else f"{num_heads}/{kv_heads}"
        return f"{attention_kind} {heads_text} × {head_size}{window_text}{chunk_text}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        from ..distance_bias import AlibiBias, LayerBias, TransformerXLScores
        from ..networks.router import LinearRouter
        from .block_indexer import BlockIndexer
        from .output_gate import OutputGate
        from .qk_norm import QKNorm
        from .query_factors import QueryFactors
        from .token_indexer import TokenIndexer
        from .value_experts import ValueExperts

        rmsnorm, layernorm = Norm(type="rmsnorm"), Norm(type="layernorm")
        indexer = BlockIndexer(index_n_heads=2, index_head_dim=6, index_block_size=3, index_topk_blocks=2)
        rope, half_rope = Rope(), Rope(partial_rotary_factor=0.5)
        token_indexer = TokenIndexer(index_n_heads=3, index_head_dim=8, index_topk=5, rotary_dim=4)
        four_heads = partial(cls, num_attention_heads=4)
        grouped_query = partial(cls, num_attention_heads=4, num_key_value_heads=2, position=rope)
        small_layer_bias = LayerBias(relative_attention_num_buckets=8, relative_attention_max_distance=16)
        biased_experts = ValueExperts(num_experts=5, num_experts_per_tok=2, router=LinearRouter(bias=True))
        one_expert = ValueExperts(num_experts=3, num_experts_per_tok=1)
        return [
            four_heads(),
            grouped_query(head_dim=16),  # head_dim is not hidden / heads
            four_heads(num_key_value_heads=1, position=AlibiBias(), q_bias=True, o_bias=True),
            four_heads(k_bias=True, v_bias=True, position=half_rope),
            grouped_query(qk_norm=QKNorm(norm=rmsnorm)),
            grouped_query(qk_norm=QKNorm(norm=layernorm, scope="per_head", order="after_rope")),
            grouped_query(num_key_value_heads=1, head_dim=6, qk_norm=QKNorm(norm=rmsnorm, scope="projection")),
            grouped_query(sliding_window=5, sinks=True),
            four_heads(attention_chunk_size=6, attn_logit_softcapping=30.0),
            four_heads(position=TransformerXLScores()),
            grouped_query(block_indexer=indexer),
            four_heads(head_dim=8, position=small_layer_bias),
            grouped_query(head_dim=8, output_gate=OutputGate(per="element", bias=True)),
            grouped_query(output_gate=OutputGate(per="head")),
            four_heads(head_dim=6, output_gate=OutputGate(per="element", bias="head"), position=rope),
            grouped_query(head_dim=8, sub_norm=rmsnorm),
            grouped_query(head_dim=8, head_norm=rmsnorm),
            grouped_query(num_key_value_heads=1, query_rank=QueryFactors(rank=12)),
            grouped_query(head_dim=8, v_head_dim=5, sliding_window=5, output_gate=OutputGate(per="element")),
            grouped_query(attention_k_eq_v=True, qk_norm=QKNorm(norm=rmsnorm), v_norm=rmsnorm),
            four_heads(sinks=True, float32_softmax=False),
            grouped_query(sliding_window=5, sink_keys=True),
            grouped_query(float32_softmax=False, fused_qkv=True, position=Rope(concatenated=True)),
            grouped_query(float32_scores=True),
            four_heads(q_bias=True, sliding_window=5, idle_projections=("q_global_proj",)),
            grouped_query(head_dim=8, whole_pass=True, position=None),
            grouped_query(
                head_dim=8, output_gate=OutputGate(per="element", gate_func="softplus"), value_experts=biased_experts
            ),
            four_heads(output_gate=OutputGate(per="head", gate_func="silu"), value_experts=one_expert),
            grouped_query(head_dim=8, v_head_dim=5, block_indexer=token_indexer),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    from ..distance_bias import alibi_bias
    from .output_gate import gate_values

    class AttentionReference(nn.Module):
        """Projects x to heads, computes attention, and projects back. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: Attention, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, self.causal, self.cross = spec, model_properties.is_causal, model_properties.is_cross_attention
            self.heads = spec.num_attention_heads
            self.kv_heads = spec.num_key_value_heads or spec.num_attention_heads
            self.head_dim = spec.head_dim or model_properties.hidden_size // spec.num_attention_heads
            self.value_dim = spec.v_head_dim or self.head_dim
            hidden_size = model_properties.hidden_size
            kv_width = (
                model_properties.source_size or hidden_size if model_properties.is_cross_attention else hidden_size
            )
            query_width = hidden_size
            if spec.query_rank is not None:
                query_width = spec.query_rank.rank
                self.q_a_proj, self.q_a_norm = spec.query_rank.reference(model_properties)
            self.q_proj = nn.Linear(query_width, self.heads * self.head_dim, bias=spec.q_bias)
            for projection_name in spec.idle_projections:
                self.add_module(projection_name, nn.Linear(hidden_size, self.heads * self.head_dim, bias=spec.q_bias))
            if not spec.kv_shared:
                self.k_proj = nn.Linear(kv_width, self.kv_heads * self.head_dim, bias=spec.k_bias)
            if spec.value_experts is not None:
                self.value_experts: Any = spec.value_experts.reference(model_properties, self.kv_heads * self.value_dim)
            elif not spec.attention_k_eq_v and not spec.kv_shared:
                self.v_proj = nn.Linear(
                    model_properties.value_size or kv_width, self.kv_heads * self.value_dim, bias=spec.v_bias
                )
            self.o_proj = nn.Linear(
                self.heads * self.value_dim, model_properties.output_size or hidden_size, bias=spec.o_bias
            )
            if spec.output_gate is not None:
                self.gate_proj = spec.output_gate.reference(model_properties, self.heads, self.value_dim)
                self.gate = spec.output_gate.gate_func
            if spec.value_convolution is not None:
                self.value_convolution = spec.value_convolution.reference(model_properties, self.heads)
            if spec.head_norm is not None:
                self.head_norm = norm_reference(spec.head_norm, self.value_dim)
            if spec.sub_norm is not None:
                self.sub_norm = norm_reference(spec.sub_norm, self.heads * self.value_dim)
            self.core = softmax_core_class()()
            if spec.block_indexer is not None:
                rope_theta = spec.position.rope_theta if isinstance(spec.position, Rope) else 10000.0
                self.indexer: Any = spec.block_indexer.reference(model_properties, rope_theta)
            if spec.position is not None and spec.position.type == "relative_bias":
                self.relative_bias = spec.position.reference(model_properties, self.heads)
            if spec.position is not None and spec.position.type == "disentangled":
                self.disentangled = spec.position.reference(model_properties, self.heads, self.head_dim)
            if spec.position is not None and spec.position.type == "transformer_xl":
                self.relative = spec.position.reference(model_properties, self.heads, self.head_dim)
            self.alibi = spec.position is not None and spec.position.type == "alibi"
            self.sinks = (
                vector_module(torch.zeros((self.kv_heads, self.head_dim) if spec.sink_keys else (self.heads,)))
                if spec.sinks or spec.sink_keys
                else None
            )
            if (self.causal or self.cross) and not spec.kv_shared:
                self.cache = tensor_cache_class()(
                    None if self.cross else spec.sliding_window or spec.attention_chunk_size
                )
            if spec.qk_norm is not None:
                self.q_norm = norm_reference(spec.qk_norm.norm, *self._norm_shape(self.heads))
                if not spec.kv_shared:
                    self.k_norm = norm_reference(spec.qk_norm.norm, *self._norm_shape(self.kv_heads))
            if spec.v_norm is not None and not spec.kv_shared:
                self.v_norm = norm_reference(spec.v_norm, self.value_dim)

        def _norm_shape(self, heads: int) -> tuple[int, ...]:
            assert self.spec.qk_norm is not None
            return {
                "head": (self.head_dim,),
                "per_head": (heads, 1, self.head_dim),
                "projection": (heads * self.head_dim,),
            }[self.spec.qk_norm.scope]

        def _normalize(self, x: Tensor, norm: nn.Module) -> Tensor:
            """Applies the optional norm of queries or keys. x: [batch, heads, tokens, head_dim]."""
            assert self.spec.qk_norm is not None
            if self.spec.qk_norm.scope != "projection":
                return norm(x)
            concatenated_heads = x.transpose(1, 2).flatten(2)
            return norm(concatenated_heads).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        def _normalize_and_rotate(self, x: Tensor, norm: str, pass_state: PassState, first_position: int) -> Tensor:
            """Returns queries or keys after the norm and the position encoding, in the order that the spec states."""
            norm_order = self.spec.qk_norm.order if self.spec.qk_norm is not None else None
            if norm_order == "before_rope":
                x = self._normalize(x, getattr(self, norm))
            if isinstance(self.spec.position, Rope):
                x = self.spec.position.rotate_heads(x, pass_state, first_position)
            return self._normalize(x, getattr(self, norm)) if norm_order == "after_rope" else x

        def _split_heads(self, projected_x: Tensor, head_width: int) -> Tensor:
            return projected_x.unflatten(-1, (-1, head_width)).transpose(1, 2)

        def _projected_values(self, x: Tensor, pass_state: PassState) -> Tensor:
            projected_x = self.v_proj(x) if self.spec.value_experts is None else self.value_experts(x, pass_state)
            return self._split_heads(projected_x, self.value_dim)

        def _keys_and_values(
            self, x: Tensor, pass_state: PassState, value_input: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            if self.cross:
                cached_tensors = (
                    None if pass_state.cached_tensors is None else pass_state.cached_tensors.get(self.cache)
                )
                if cached_tensors is not None:
                    return cached_tensors[0], cached_tensors[1]
                assert pass_state.encoder_output is not None, (
                    "cross-attention needs the encoder's output or a filled cache"
                )
                x = pass_state.encoder_output
            raw_keys = self._split_heads(self.k_proj(x), self.head_dim)
            k = self._normalize_and_rotate(raw_keys, "k_norm", pass_state, 0 if self.cross else pass_state.past_tokens)
            v = raw_keys
            if not self.spec.attention_k_eq_v:
                v = self._projected_values(x if value_input is None else value_input, pass_state)
            del raw_keys
            v = self.v_norm(v) if hasattr(self, "v_norm") else v
            return self.cache(pass_state, k, v) if hasattr(self, "cache") else (k, v)

        def _computed_or_shared_keys(
            self, x: Tensor, pass_state: PassState, value_input: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            """Returns the layer's keys and values, or the shared keys and values of the nearest lower layer."""
            if self.cross:
                return self._keys_and_values(x, pass_state, value_input)
            spec = self.spec
            sharing_key = (
                "kv", self.kv_heads, self.head_dim, self.value_dim, spec.sliding_window, spec.attention_chunk_size
            )  # fmt: skip
            if spec.kv_shared and sharing_key not in pass_state.shared_values:
                pass_state.shared_values[sharing_key] = self._join_target_keys(x, pass_state)
            keys_and_values: tuple[Tensor, Tensor] = (
                pass_state.shared_values[sharing_key]
                if spec.kv_shared
                else self._keys_and_values(x, pass_state, value_input)
            )
            if pass_state.returns_keys_and_values:
                pass_state.shared_values[sharing_key] = keys_and_values
            return keys_and_values

        def _join_target_keys(self, x: Tensor, pass_state: PassState) -> tuple[Tensor, Tensor]:
            """Returns the target's cached keys and values (zeros here), followed by those of this pass."""
            cache_limit = self.spec.sliding_window or self.spec.attention_chunk_size
            past_tokens = (
                pass_state.past_tokens if cache_limit is None else min(pass_state.past_tokens, cache_limit - 1)
            )
            heads = x.shape[0], self.kv_heads, past_tokens + x.shape[1]
            return x.new_zeros(*heads, self.head_dim), x.new_zeros(*heads, self.value_dim)

        def _mask_and_bias(self, x: Tensor, k: Tensor, pass_state: PassState) -> tuple[Tensor, Tensor | None]:
            """Returns the mask of the keys that each query may attend to, and the bias on the attention scores."""
            query_count = x.shape[1]
            key_count = k.shape[-2]
            end_position = pass_state.past_tokens + x.shape[1]
            spec = self.spec
            mask = attention_mask(
                pass_state,
                x,
                k,
                causal=self.causal and (not spec.whole_pass),
                window=spec.sliding_window,
                chunk_size=spec.attention_chunk_size,
            )
            return mask, self._score_bias(pass_state, end_position, query_count, key_count, x.device)

        def _score_bias(
            self, pass_state: PassState, end_position: int, query_count: int, key_count: int, device: Any
        ) -> Tensor | None:
            """Returns the score bias for the last queries and keys before `end_position`, or None without a bias."""
            positions = (
                pass_state.positions(end_position - query_count, end_position, device),
                pass_state.positions(end_position - key_count, end_position, device),
            )
            if hasattr(self, "relative_bias"):
                return self.relative_bias(*positions)
            make_bias: Any = partial(alibi_bias, self.heads) if self.alibi else pass_state.score_bias
            if make_bias is None:
                return None
            return pass_state.compute_once(
                ("bias", self.heads, end_position, query_count, key_count), lambda: make_bias(*positions)
            )

        def compute_shared_bias(self, x: Tensor, pass_state: PassState) -> None:
            """Computes, before the first layer, the bias that all layers of a stack add to their attention scores."""
            end_position = pass_state.past_tokens + x.shape[1]
            if not self.cross:
                self._score_bias(pass_state, end_position, x.shape[1], end_position, x.device)

        def _attention_in_squares(
            self, q: Tensor, k: Tensor, v: Tensor, patch_columns: int, square_side: int, logit_cap: float | None
        ) -> Tensor:
            """Returns the output of attention within squares of patches. The patches are ordered row by row."""
            patch_index_grid = torch.arange(q.shape[2]).unflatten(0, (-1, patch_columns))
            patch_squares = [
                square_patches.flatten()
                for row_band in patch_index_grid.split(square_side)
                for square_patches in row_band.split(square_side, 1)
            ]
            square_outputs = []
            for square_indices in patch_squares:
                patch_index = square_indices.to(q.device)
                square_outputs.append(
                    self.core(q[:, :, patch_index], k[:, :, patch_index], v[:, :, patch_index], logit_cap=logit_cap)
                )
            patch_order = torch.cat(patch_squares).argsort().to(q.device)
            return torch.cat(square_outputs, 2)[:, :, patch_order]

        def forward(self, x: Tensor, pass_state: PassState, value_input: Tensor | None = None) -> Tensor:
            """Computes the attention output. x: the input. value_input: input of the value projection; default x."""
            query_input = self.q_a_norm(self.q_a_proj(x)) if hasattr(self, "q_a_proj") else x
            q = self._normalize_and_rotate(
                self._split_heads(self.q_proj(query_input), self.head_dim), "q_norm", pass_state, pass_state.past_tokens
            )
            k, v = self._computed_or_shared_keys(x, pass_state, value_input)
            mask, bias = (None, None) if self.cross else self._mask_and_bias(x, k, pass_state)
            if hasattr(self, "relative"):
                q, bias = self.relative(q, pass_state, pass_state.past_tokens + x.shape[1])
            if hasattr(self, "disentangled"):
                q, bias = self.disentangled(
                    q, k, pass_state.shared_values["relative_embedding"], pass_state, self.q_proj, self.k_proj
                )
            convolved_values = self.value_convolution(v) if hasattr(self, "value_convolution") else None
            group_size = self.heads // self.kv_heads
            if group_size > 1:
                k, v = k.repeat_interleave(group_size, 1), v.repeat_interleave(group_size, 1)
            if hasattr(self, "indexer"):
                k, v, mask = self.indexer.selected_keys_and_values(x, k, v, pass_state)
            sinks = self.sinks.weight if self.sinks is not None else None
            logit_cap = self.spec.attn_logit_softcapping
            if self.spec.grid_window is None:
                float32_options = {
                    "float32_softmax": self.spec.float32_softmax,
                    "float32_scores": self.spec.float32_scores,
                }
                attn_output = self.core(q, k, v, mask, bias, logit_cap, sinks, **float32_options)
            else:
                attn_output = self._attention_in_squares(
                    q, k, v, pass_state.patch_columns, self.spec.grid_window, logit_cap
                )
            attn_output = (attn_output if convolved_values is None else attn_output + convolved_values).transpose(1, 2)
            attn_output = self.head_norm(attn_output) if hasattr(self, "head_norm") else attn_output
            if hasattr(self, "gate_proj"):
                attn_output = attn_output * gate_values(self.gate, self.gate_proj(x)).unflatten(-1, (self.heads, -1))
            concatenated_heads = attn_output.flatten(2)
            return self.o_proj(self.sub_norm(concatenated_heads) if hasattr(self, "sub_norm") else concatenated_heads)

    return AttentionReference
