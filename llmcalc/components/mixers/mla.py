"""Multi-head latent attention: keys and values are expanded from a small latent vector per token.

Only the latent is cached.

DeepSeek-V2 (arXiv:2405.04434), §2.1; with and without a low-rank query (V2-Lite has none). It runs in one of two forms,
with equal results. Expanded: each head's keys and values are computed from all latents that are read, also those of
earlier tokens, whose keys and values are not cached. Absorbed (§2.1.2): the expansion is applied to query and output,
so each head attends to the latents. Decoding absorbs and every other pass expands, unless the execution says otherwise.
With an indexer (DeepSeek-V3.2) a token attends to a few earlier tokens only. In Mistral Large 4 some layers use the
latents of a lower layer, and each head scales its queries by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...algebra import Number
from ...flow.axis import Axis, JoinedShapes, Shape
from ...flow.record import Flow
from ...flow.value import Value, Weight
from ...workload.rows_with_past import RowsWithPast
from ..base import (
    TORCH_WITNESS,
    Flag,
    Heads,
    HeadSizes,
    KVRank,
    ModelProperties,
    NopeDim,
    PartWitness,
    QueryRank,
    RopeDim,
    ValueDim,
    Window,
)
from ..choices import AnyIndexer
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..rotation import rotate
from ..runtime import PassState, attention_mask, softmax_core_class, tensor_cache_class, vector_module
from .grouped_query import OptionalWindowMixer
from .indexer import Indexer
from .output_gate import OutputGate, gate_values
from .pooled_indexer import PooledIndexer
from .position_scale import position_scale_class, record_position_scale

if TYPE_CHECKING:
    from torch import Tensor, nn


class MLA(OptionalWindowMixer):
    """Multi-head latent attention, with the field names of DeepSeek's config.

    Each head's query and key consist of qk_nope_head_dim dimensions from the latent and qk_rope_head_dim with RoPE; the
    RoPE part of the key is shared by all heads.

    num_attention_heads: the number of heads.
    q_lora_rank: the rank of the compressed query; by default queries are projected directly.
    kv_lora_rank: the width of the latent.
    qk_nope_head_dim: the size of a head's query or key without RoPE.
    qk_rope_head_dim: the size of its part with RoPE; 0, with mla_use_nope, where there is no such part.
    v_head_dim: the size of a value head.
    attention_bias: whether the projections that read or write the residual stream have a bias, except a direct q_proj;
        false by default.
    o_bias: whether the output projection has a bias even so (Megatron-LM); false by default.
    mla_use_nope: whether there are no positions at all; the shared key keeps its size, without RoPE (Kimi Linear).
        False by default.
    output_gate: the gate on the output of the heads (Ling 3, Hy 4), none by default.
    query_gate: whether one projection makes the queries and a gate with one value per element. Its input is the
        compressed query after and before its norm, concatenated (A.X-K2); its sigmoid is in float32. False by default.
    sinks: whether each head has one more key, with a learned score and no value (Hy 4); false by default.
    norm: the norm on the compressed query and on the latent; None for no norm.
    key_norm: whether the shared rotary part of the key has the norm too (Dots 3), false by default.
    sliding_window: the number of tokens that each token attends to, itself included (Dots 3); all by default.
    position: RoPE.
    position_scale: whether each head multiplies its queries by a learned linear function of the logarithm of the
        position (Mistral Large 4), false by default.
    kv_shared: whether the latents come from the nearest lower layer that computes its own with the same sizes (Mistral
        Large 4), false by default.
    indexer: the part that selects the tokens to attend to; none by default.
    """

    formula_source: ClassVar[str] = "DeepSeek-V2 2024, §2.1"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["mla"] = "mla"
    num_attention_heads: Heads
    q_lora_rank: QueryRank | None = None
    kv_lora_rank: KVRank
    qk_nope_head_dim: NopeDim
    qk_rope_head_dim: RopeDim
    v_head_dim: ValueDim
    attention_bias: Flag = False
    o_bias: Flag = False
    mla_use_nope: Flag = False
    output_gate: OutputGate | None = None
    query_gate: Flag = False
    sinks: Flag = False
    norm: Norm | None = Norm(type="rmsnorm", eps=1e-6)
    key_norm: Flag = False
    sliding_window: Window | None = None
    position: Rope = Rope()
    position_scale: Flag = False
    kv_shared: Flag = False
    indexer: AnyIndexer | None = None

    def check_fields(self) -> None:
        if self.indexer is not None and (
            (self.q_lora_rank is None) != self.indexer.reads_layer_input
            or self.indexer.index_head_dim < self.qk_rope_head_dim
        ):
            raise ValueError(
                "indexer: it reads the compressed query, or the layer's input after its input_norm, and rotates "
                "qk_rope_head_dim of its dimensions; expected a q_lora_rank or an input_norm, and a wider "
                "index_head_dim"
            )
        if self.key_norm and self.norm is None:
            raise ValueError("key_norm: there is no norm to apply; expected false, or a norm")
        if self.sliding_window is not None and self.indexer is not None:
            raise ValueError("sliding_window and indexer: a layer has one or the other")
        if self.query_gate and (self.q_lora_rank is None or self.output_gate is not None):
            raise ValueError(
                "query_gate: it is computed from the compressed query; expected a q_lora_rank, and no output_gate"
            )
        if self.qk_rope_head_dim % 2 and not self.mla_use_nope:
            raise ValueError(
                f"qk_rope_head_dim: {self.qk_rope_head_dim} is odd; expected an even number, because RoPE rotates pairs"
            )
        if self.qk_rope_head_dim == 0 and (not self.mla_use_nope or self.key_norm):
            raise ValueError("qk_rope_head_dim: 0 leaves nothing to rotate; expected mla_use_nope, and no key_norm")
        self.position.check_full_rotation()

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.num_attention_heads, None, self.qk_nope_head_dim + self.qk_rope_head_dim)

    def score_position_encoding(self) -> Rope:
        return self.position

    def cost_thresholds(self) -> tuple[int, ...]:
        selected_tokens = None if self.indexer is None else self.indexer.index_topk
        return tuple(length for length in (self.sliding_window, selected_tokens) if length is not None)

    def with_kv_heads(self, kv_heads: int, hidden_size: int) -> Self:
        """The mixer with a latent width equal to the keys and values of `kv_heads` heads."""
        nope_dim, rope_dim, v_dim = self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim
        return self.model_copy(update={"kv_lora_rank": kv_heads * (nope_dim + rope_dim + v_dim) - rope_dim})

    def shared_result_fields(self) -> Mapping[tuple[Any, ...], str]:
        shared_latents = {self._latent_sharing_key(): "kv_shared" if self.kv_shared else ""}
        if self.indexer is not None:
            shared_latents["indexer", *self.indexer.key_limit_arguments().values()] = (
                "indexer.shared" if self.indexer.shared else ""
            )
        return shared_latents

    def dependency_field(self) -> str:
        return next(filter(None, self.shared_result_fields().values()), "")

    def _latent_sharing_key(self) -> tuple[Any, ...]:
        """Returns the fields that must be equal for layers to share their latent vectors."""
        return "latent", self.kv_lora_rank, self.qk_rope_head_dim, self.mla_use_nope, self.sliding_window

    def flow(self, recorder: Flow, x: Value, output_axes: Shape | None = None) -> Value:
        heads, value_axis = Axis("heads", self.num_attention_heads), Axis("v_head_dim", self.v_head_dim)
        nope_axis, rope_axis = Axis("nope", self.qk_nope_head_dim), Axis("rope", self.qk_rope_head_dim)
        latent_axis = Axis("latent", self.kv_lora_rank)
        with recorder.function():
            query, query_latent = self._query_and_compressed_query(
                recorder, x, heads, JoinedShapes(((nope_axis,), (rope_axis,))), value_axis
            )
            query = record_position_scale(recorder, query, heads) if self.position_scale else query
        recorder.hold(q=query)
        if query_latent is not None:
            recorder.hold(small=query_latent)
        q_nope, q_rope, *gate = recorder.split(
            query, (heads, nope_axis), (heads, rope_axis), *([(heads, value_axis)] if self.query_gate else [])
        )
        q_rope = self._rotate(recorder, q_rope)
        recorder.hold(q_nope=q_nope, q_rope=q_rope)
        latents, k_rope = self._latent_and_key(recorder, x, latent_axis, rope_axis)
        recorder.mask(query, latents, causal=recorder.causal, window=self.sliding_window)
        if self.indexer is not None and not self.indexer.shared:
            full_rotation = self.position.model_copy(update={"rotary_dim": self.qk_rope_head_dim})
            rotation = None if self.mla_use_nope else full_rotation
            recorder.part("indexer", self.indexer, x, query_latent=query_latent, position=rotation, role="no_grad")
        key_limit_arguments: dict[str, Any] = (
            {"selected_keys": None} if self.indexer is None else dict(self.indexer.key_limit_arguments())
        )
        key_limit_arguments |= {} if self.sliding_window is None else {"window": self.sliding_window}
        selection: Value | None = None
        if self.indexer is not None:
            is_selection_shared = recorder.layer_memo.get("lends_selection", False)
            selection, latents, k_rope = recorder.selected(query, latents, k_rope, lends_selection=is_selection_shared)
            recorder.hold(latent=latents, k_rope=k_rope, mask=selection)
        attention_options: dict[str, Any] = {
            "causal": recorder.causal,
            "sinks": self.sinks,
            "selection": selection,
            **key_limit_arguments,
        }
        attention_op_class = (
            ops.AttentionCore if key_limit_arguments.get("pool_size") is None else ops.PooledAttentionCore
        )
        key_axis, latent_key_axis = (
            JoinedShapes(((nope_axis,), (rope_axis,))),
            JoinedShapes(((latent_axis,), (rope_axis,))),
        )

        def record_expanded() -> Value:
            """Records the operations of attention on keys and values expanded per head from all tokens' latents."""
            keys_and_values = recorder.linear(
                "kv_b_proj",
                latents,
                heads,
                JoinedShapes(((nope_axis,), (value_axis,))),
                rows=RowsWithPast(source_rows=latents.rows, **key_limit_arguments),
            )
            recorder.hold(expanded=keys_and_values)
            k_nope, values = recorder.split(keys_and_values, (heads, nope_axis), (heads, value_axis))
            k = recorder.cat(k_nope, k_rope, axes=(heads, key_axis), rows=latents.rows)
            recorder.hold(k=k)
            q = recorder.cat(q_nope, q_rope, axes=(heads, key_axis))
            return recorder.attention("core", q, k, values, core=attention_op_class, **attention_options)

        def record_absorbed() -> Value:
            """Records absorbed attention on the latents, with the expansion's weights applied to query and output."""
            weight = Weight("kv_b_proj", (heads, JoinedShapes(((nope_axis,), (value_axis,)))), (latent_axis,))
            q = recorder.cat(
                recorder.absorb("kv_b_proj", q_nope, weight, latent_axis), q_rope, axes=(heads, latent_key_axis)
            )
            k = recorder.cat(latents, k_rope, axes=(Axis("one", 1), latent_key_axis))
            recorder.hold(q=q, k=k)
            attn_output = recorder.attention(
                "core", q, k, latents.view(Axis("one", 1), latent_axis), core=attention_op_class, **attention_options
            )
            return recorder.absorb("", attn_output, weight, value_axis)

        attn_output = recorder.alternatives(expanded=record_expanded, absorbed=record_absorbed)
        recorder.hold(out=attn_output)
        if self.sinks:
            recorder.vector("sinks", heads)
        attn_output = attn_output if self.output_gate is None else self.output_gate.flow(recorder, x, attn_output)
        for head_gate in gate:
            attn_output = recorder.mul(
                attn_output, recorder.act(head_gate, "sigmoid", in_float32=True), in_float32=True
            )
        recorder.hold(out=attn_output)
        return recorder.linear("o_proj", attn_output, *(output_axes or x.axes), bias=self.attention_bias or self.o_bias)

    def _latent_and_key(self, recorder: Flow, x: Value, latent_axis: Axis, rope_axis: Axis) -> tuple[Value, Value]:
        """Returns the latent vectors and the shared rotary keys of all new and cached tokens."""
        sharing_key = self._latent_sharing_key()
        computed_latents: list[tuple[Any, Value, Value]] = recorder.layer_memo.setdefault("latents", [])
        if self.kv_shared:
            empty_latents = (
                Value(x.rows, (latent_axis,), is_constant=True),
                Value(x.rows, (rope_axis,), is_constant=True),
            )
            latest_latents = reversed(computed_latents)
            latents, k_rope = next(
                ((latents, k_rope) for memo_key, latents, k_rope in latest_latents if memo_key == sharing_key),
                empty_latents,
            )
            return latents.view(latent_axis), k_rope.view(rope_axis)
        latent_and_rope = recorder.linear(
            "kv_a_proj", x, JoinedShapes(((latent_axis,), (rope_axis,))), bias=self.attention_bias
        )
        recorder.hold(latent=latent_and_rope)
        latents, k_rope = recorder.split(latent_and_rope, (latent_axis,), (rope_axis,))
        latents = self._normalize(recorder, "kv_a_norm", latents)
        if self.key_norm:
            k_rope = self._normalize(recorder, "k_rope_norm", k_rope)
            recorder.hold(latent=latents, k_rope=k_rope)
        k_rope = self._rotate(recorder, k_rope)
        latents, k_rope = recorder.cache("cache", "latent_attention", latents, k_rope, token_limit=self.sliding_window)
        recorder.hold(latent=latents, k_rope=k_rope)
        computed_latents.append((sharing_key, latents, k_rope))
        if recorder.layer_memo.get("lends"):
            recorder.keep(**{f"latents of {sharing_key}": latents, f"rotary keys of {sharing_key}": k_rope})
        return latents, k_rope

    def _normalize(self, recorder: Flow, norm_name: str, x: Value) -> Value:
        if self.norm is None:
            return x
        if self.norm.gate_rank is None:
            return recorder.norm(norm_name, x, self.norm)
        return recorder.part(norm_name, self.norm, x)

    def _rotate(self, recorder: Flow, x: Value) -> Value:
        return x if self.mla_use_nope else recorder.rope(x, self.position)

    def _query_and_compressed_query(
        self, recorder: Flow, x: Value, heads: Axis, head_axes: JoinedShapes, value_axis: Axis
    ) -> tuple[Value, Value | None]:
        """Returns the query of each head, and the optional compressed query."""
        if self.q_lora_rank is None:
            return recorder.linear("q_proj", x, heads, head_axes), None
        raw_latent = recorder.linear("q_a_proj", x, Axis("q_lora", self.q_lora_rank), bias=self.attention_bias)
        latents = self._normalize(recorder, "q_a_norm", raw_latent)
        recorder.hold(raw=raw_latent, small=latents)
        if not self.query_gate:
            return recorder.linear("q_b_proj", latents, heads, head_axes), latents
        gate_input = recorder.cat(latents, raw_latent, axes=(JoinedShapes((latents.axes, raw_latent.axes)),))
        query_and_gate = recorder.linear(
            "q_gate_proj", gate_input, heads, JoinedShapes((*head_axes.shapes, (value_axis,)))
        )
        return query_and_gate, latents

    def describe(self, hidden_size: int) -> str:
        head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        selection_text = "" if self.indexer is None else f", to {self.indexer.index_topk} tokens"
        return (
            f"MLA {self.num_attention_heads} × {head_dim}, latent {self.kv_lora_rank} + "
            f"{self.qk_rope_head_dim}{selection_text}"
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        example_sizes: dict[str, Any] = {"num_attention_heads": 4, "kv_lora_rank": 12, "qk_rope_head_dim": 4}
        plain_fields: dict[str, Any] = {**example_sizes, "qk_nope_head_dim": 8, "v_head_dim": 6}
        low_rank_fields: dict[str, Any] = {**example_sizes, "q_lora_rank": 20, "qk_nope_head_dim": 6, "v_head_dim": 8}
        input_norm = Norm(type="layernorm", eps=1e-6)
        scaled_indexer = Indexer(
            index_n_heads=3, index_head_dim=10, index_topk=5, input_norm=input_norm, position_scale=True
        )
        indexer = PooledIndexer(index_n_heads=3, index_head_dim=10, index_topk=4, index_kpool=2)
        return [
            cls(**plain_fields),
            cls(**low_rank_fields, attention_bias=True),
            cls(**plain_fields, mla_use_nope=True, output_gate=OutputGate(per="head")),
            cls(**low_rank_fields, indexer=Indexer(index_n_heads=3, index_head_dim=10, index_topk=5)),
            cls(**plain_fields, sinks=True, output_gate=OutputGate(per="element")),
            cls(**low_rank_fields, query_gate=True),
            cls(**low_rank_fields, o_bias=True, norm=None),
            cls(**plain_fields, q_lora_rank=20, key_norm=True, sliding_window=5, output_gate=OutputGate(per="head")),
            cls(**plain_fields, position_scale=True, indexer=scaled_indexer),
            cls(**{**low_rank_fields, "qk_rope_head_dim": 0}, mla_use_nope=True, indexer=indexer),
            cls(**{**plain_fields, "qk_rope_head_dim": 0}, mla_use_nope=True, indexer=scaled_indexer),
            cls(**low_rank_fields, norm=Norm(type="rmsnorm", gate_rank=3)),
        ]


@cache
def latent_expansion_class() -> type[nn.Module]:
    from torch import nn

    class LatentExpansion(nn.Linear):
        """Expands latents to keys and values per head; in the absorbed form, applies the weight to query or output."""

        def __init__(self, latent_size: int, heads: int, nope_dim: int, value_size: int) -> None:
            super().__init__(latent_size, heads * (nope_dim + value_size), bias=False)
            self.heads, self.nope, self.value = heads, nope_dim, value_size

        def forward(self, x: Tensor, absorbed_form: str = "") -> Tensor:
            head_weights = self.weight.view(self.heads, self.nope + self.value, -1)
            if absorbed_form == "query":  # [batch, heads, tokens, nope] → [.., latent]
                return x @ head_weights[:, : self.nope]
            if absorbed_form == "value":  # [batch, heads, tokens, latent] → [.., value]
                return x @ head_weights[:, self.nope :].transpose(-1, -2)
            return super().forward(x)

    return LatentExpansion


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class MLAReference(nn.Module):
        """Attends with keys and values from small latents. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: MLA, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, hidden_size, heads = spec, model_properties.hidden_size, spec.num_attention_heads
            query_width = heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
            if spec.q_lora_rank is None:
                self.q_proj = nn.Linear(hidden_size, query_width, bias=False)
            else:
                self.q_a_proj = nn.Linear(hidden_size, spec.q_lora_rank, bias=spec.attention_bias)
                if spec.norm is not None:
                    self.q_a_norm = norm_reference(spec.norm, spec.q_lora_rank)
                if spec.query_gate:
                    self.q_gate_proj = nn.Linear(
                        2 * spec.q_lora_rank, query_width + heads * spec.v_head_dim, bias=False
                    )
                else:
                    self.q_b_proj = nn.Linear(spec.q_lora_rank, query_width, bias=False)
            if spec.position_scale:
                self.position_scale = position_scale_class()(heads)
            if not spec.kv_shared:
                self.kv_a_proj = nn.Linear(
                    hidden_size, spec.kv_lora_rank + spec.qk_rope_head_dim, bias=spec.attention_bias
                )
            if spec.norm is not None and not spec.kv_shared:
                self.kv_a_norm = norm_reference(spec.norm, spec.kv_lora_rank)
            if spec.norm is not None and spec.key_norm and not spec.kv_shared:
                self.k_rope_norm = norm_reference(spec.norm, spec.qk_rope_head_dim)
            self.kv_b_proj = latent_expansion_class()(spec.kv_lora_rank, heads, spec.qk_nope_head_dim, spec.v_head_dim)
            if spec.output_gate is not None:
                self.gate_proj = spec.output_gate.reference(model_properties, heads, spec.v_head_dim)
                self.gate = spec.output_gate.gate_func
            self.sinks = vector_module(torch.zeros(heads)) if spec.sinks else None
            self.o_proj = nn.Linear(
                heads * spec.v_head_dim,
                model_properties.output_size or hidden_size,
                bias=spec.attention_bias or spec.o_bias,
            )
            self.core = softmax_core_class()()
            if not spec.kv_shared:
                self.cache = tensor_cache_class()(spec.sliding_window)
            if spec.indexer is not None and not spec.indexer.shared:
                rotary_dim = 0 if spec.mla_use_nope else spec.qk_rope_head_dim
                self.indexer = spec.indexer.reference(
                    model_properties, spec.q_lora_rank or hidden_size, rotary_dim, spec.position.rope_theta
                )

        def _rotate(self, x: Tensor, pass_state: PassState) -> Tensor:
            if self.spec.mla_use_nope:
                return x
            return rotate(
                x, pass_state, pass_state.past_tokens, self.spec.qk_rope_head_dim, self.spec.position.rope_theta
            )

        def _queries_and_gate(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
            """Returns the queries [batch, tokens, heads, …], the optional query gate, and the indexer's input."""
            spec, head_shape = self.spec, (self.spec.num_attention_heads, -1)
            raw_latent = x if spec.q_lora_rank is None else self.q_a_proj(x)
            compressed_query = self.q_a_norm(raw_latent) if hasattr(self, "q_a_norm") else raw_latent
            if spec.query_gate:
                query_and_gate = self.q_gate_proj(torch.cat([compressed_query, raw_latent], -1)).unflatten(
                    -1, head_shape
                )
                q, gate = query_and_gate.split([query_and_gate.shape[-1] - spec.v_head_dim, spec.v_head_dim], -1)
                return q, gate, compressed_query
            q = self.q_proj(x) if spec.q_lora_rank is None else self.q_b_proj(compressed_query)
            return q.unflatten(-1, head_shape), None, compressed_query

        def _latent_and_key(self, x: Tensor, pass_state: PassState) -> tuple[Tensor, Tensor]:
            """Returns this layer's or a lower layer's latent vectors and rotary keys, [batch, tokens, …]."""
            spec = self.spec
            sharing_key = ("latent", spec.kv_lora_rank, spec.qk_rope_head_dim, spec.mla_use_nope, spec.sliding_window)
            if spec.kv_shared:
                return pass_state.shared_values[sharing_key]
            latent, k_rope = self.kv_a_proj(x).split([spec.kv_lora_rank, spec.qk_rope_head_dim], -1)
            latent = self.kv_a_norm(latent) if hasattr(self, "kv_a_norm") else latent
            k_rope = self.k_rope_norm(k_rope) if hasattr(self, "k_rope_norm") else k_rope
            latent, k_rope = self.cache(pass_state, latent, self._rotate(k_rope, pass_state))
            if pass_state.returns_keys_and_values:
                pass_state.shared_values[sharing_key] = latent, k_rope
            return latent, k_rope

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec, heads = self.spec, self.spec.num_attention_heads
            nope_dim, rope_dim = spec.qk_nope_head_dim, spec.qk_rope_head_dim
            q, gate, compressed_query = self._queries_and_gate(x)
            q = q.transpose(1, 2)
            if hasattr(self, "position_scale"):
                q = self.position_scale(q, pass_state)
            q_nope, q_rope = q.split([nope_dim, rope_dim], -1)
            q_rope = self._rotate(q_rope, pass_state)
            latent, k_rope = self._latent_and_key(x, pass_state)
            mask = attention_mask(pass_state, x, latent, causal=True, window=spec.sliding_window)
            score_scale = (nope_dim + rope_dim) ** -0.5
            if hasattr(self, "indexer"):
                pass_state.selected_tokens = self.indexer(x, compressed_query, mask, pass_state)
            if spec.indexer is not None:
                assert pass_state.selected_tokens is not None, (
                    "a layer that shares the choice of another stands above one that chooses"
                )
                if pass_state.past_tokens and x.shape[1] == 1:  # decoding one token reads only the selected tokens
                    latent, k_rope = (
                        tensor.gather(1, pass_state.selected_tokens[:, 0, :, None].expand(-1, -1, tensor.shape[-1]))
                        for tensor in (latent, k_rope)
                    )
                    mask = mask[:, -latent.shape[1] :]
                else:
                    mask = mask & torch.zeros_like(mask).expand(x.shape[0], -1, -1).scatter(
                        -1, pass_state.selected_tokens, True
                    )
                    mask = mask[:, None]
            sinks = None if self.sinks is None else self.sinks.weight
            if pass_state.mla_form == "absorbed" or (
                pass_state.mla_form == "auto" and pass_state.past_tokens and x.shape[1] == 1
            ):
                q = torch.cat([self.kv_b_proj(q_nope, absorbed_form="query"), q_rope], -1)
                k, v = torch.cat([latent, k_rope], -1)[:, None], latent[:, None]
                k, v = k.expand(-1, heads, -1, -1), v.expand(-1, heads, -1, -1)
                attn_output = self.kv_b_proj(
                    self.core(q, k, v, mask, sinks=sinks, scale=score_scale), absorbed_form="value"
                )
            else:
                keys_and_values = self.kv_b_proj(latent).unflatten(-1, (heads, -1)).transpose(1, 2)
                k_nope, v = keys_and_values.split([nope_dim, spec.v_head_dim], -1)
                k = torch.cat([k_nope, k_rope[:, None].expand(-1, heads, -1, -1)], -1)
                attn_output = self.core(torch.cat([q_nope, q_rope], -1), k, v, mask, sinks=sinks, scale=score_scale)
            attn_output = attn_output.transpose(1, 2)
            if hasattr(self, "gate_proj"):
                attn_output = attn_output * gate_values(self.gate, self.gate_proj(x)).unflatten(-1, (heads, -1))
            if gate is not None:
                attn_output = (attn_output * gate.float().sigmoid()).to(attn_output.dtype)
            return self.o_proj(attn_output.flatten(2))

    return MLAReference
