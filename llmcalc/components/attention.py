"""Softmax attention over heads.

Multi-head (Vaswani 2017, §3.2), multi-query (Shazeer 2019, arXiv:1911.02150) and grouped-query (Ainslie 2023,
arXiv:2305.13245); sliding windows (Beltagy 2020; Jiang 2023), chunks (Llama 4), QK-norm (Dehghani 2023), sinks
(gpt-oss), logit soft-capping (Gemma 2). The same part attends to the encoder's output where it stands as
cross-attention.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .. import ops
from ..algebra import Number, exact_div
from ..tree import Node
from .base import Around, Component, Flag, HeadDim, Heads, KVHeads, Part, Real, ValueDim, Window, check_groups
from .choice import only
from .norm import Norm, norm_reference
from .position import Alibi, LayerBias, Rope, ScorePosition, TransformerXL, alibi_bias
from .runtime import Run, allowed, cache_class, vector

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .block_indexer import BlockIndexer
else:
    BlockIndexer = only("block_indexer:BlockIndexer")


class QKNorm(Part):
    """A norm on queries and keys.

    scope: `head`, one set of head_dim weights for all heads (Qwen3); `per_head`, one set for each head (Command R+);
    `projection`, over all heads at once (OLMo 2). order: before or after RoPE.
    """

    norm: Norm
    scope: Literal["head", "per_head", "projection"] = "head"
    order: Literal["before_rope", "after_rope"] = "before_rope"


class Attention(Component):
    """Multi-head attention; grouped-query where num_key_value_heads is smaller, multi-query where it is 1.

    num_key_value_heads: all heads, if not given. head_dim: hidden_size / num_attention_heads, if not given. v_head_dim:
    of a value, where it is not that of a query and a key (MiMo-V2).
    sliding_window: a token sees so many tokens, itself included (in an encoder in the middle of them).
    attention_chunk_size: a token sees only its own chunk. attention_k_eq_v: values are the projected keys, before their
    norm and positions, so there is no value projection; both are still cached (Gemma 4).
    output_gate: what the heads give is multiplied by the sigmoid of a map of the layer's input (Qiu 2025,
    arXiv:2505.06708), one value for each element of it or one for each head; Qwen3-Next holds that map in q_proj.
    gate_bias: of that map.
    sub_norm: on what the heads give together, before the output map (Sub-LN: Wang 2022, arXiv:2210.06423; BitNet).
    v_norm: on each value. kv_shared: keys and values are those of the nearest layer below that attends alike and makes
    its own (Gemma 3n, Gemma 4).
    block_indexer: chooses which blocks of earlier tokens are attended to (MiniMax-M3).
    """

    node_name: ClassVar[str] = "self_attn"
    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")

    type: Literal["attention"] = "attention"
    num_attention_heads: Heads
    num_key_value_heads: KVHeads | None = None
    head_dim: HeadDim | None = None
    v_head_dim: ValueDim | None = None
    q_bias: Flag = False
    k_bias: Flag = False
    v_bias: Flag = False
    o_bias: Flag = False
    qk_norm: QKNorm | None = None
    sliding_window: Window | None = None
    attention_chunk_size: Window | None = None
    sinks: Flag = False
    attention_k_eq_v: Flag = False
    output_gate: Literal["element", "head"] | None = None
    gate_bias: Flag = False
    sub_norm: Norm | None = None
    v_norm: Norm | None = None
    kv_shared: Flag = False
    attn_logit_softcapping: Real | None = Field(default=None, gt=0)
    position: ScorePosition | None = None
    block_indexer: BlockIndexer | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        a, k = self.num_attention_heads, self.num_key_value_heads
        if k is not None:
            check_groups(a, k)
        if self.sliding_window is not None and self.attention_chunk_size is not None:
            raise ValueError("sliding_window and attention_chunk_size: a layer has one or the other")
        if self.v_head_dim is not None and (self.attention_k_eq_v or isinstance(self.position, TransformerXL)):
            raise ValueError(
                "v_head_dim: values that are the keys, and transformer_xl, have the size of a key; expected none"
            )
        if self.block_indexer is not None and (
            self.sliding_window is not None or self.attention_chunk_size is not None or self.kv_shared
        ):
            raise ValueError(
                "block_indexer: chooses among all earlier tokens; expected no window, no chunks and no kv_shared"
            )
        if self.block_indexer is not None and (
            self.num_attention_heads % self.block_indexer.index_n_heads or self.block_indexer.index_head_dim % 2
        ):
            raise ValueError(
                "block_indexer: its index_n_heads divide num_attention_heads, and its index_head_dim is even"
            )
        if self.gate_bias and self.output_gate is None:
            raise ValueError("gate_bias: there is no output_gate to have one")
        if isinstance(self.position, TransformerXL) and (
            self.sliding_window is not None or self.attention_chunk_size is not None
        ):
            raise ValueError(
                "position.type: 'transformer_xl' is for full attention; expected no sliding_window and no "
                "attention_chunk_size"
            )
        return self

    def check_width(self, where: str, width: int) -> None:
        """Raises `ValueError` where no whole heads can be made of what it reads, or RoPE cannot turn them.
        where: what to call it.
        """
        a = self.num_attention_heads
        if self.head_dim is None and width % a:
            raise ValueError(
                f"{where}.num_attention_heads: {a} does not divide hidden_size {width}; expected a divisor, or a "
                "head_dim of its own"
            )
        if isinstance(self.position, Rope):
            self.position.check(width // a if self.head_dim is None else self.head_dim, f"{where}.position")

    def sizes(self, hidden_size: Number) -> tuple[Number, Number, Number]:
        """(query heads, key/value heads, head size)."""
        a = self.num_attention_heads
        k = a if self.num_key_value_heads is None else self.num_key_value_heads
        d = exact_div(hidden_size, a) if self.head_dim is None else self.head_dim
        return a, k, d

    def attends_like(self) -> tuple[int | None, ...]:
        """What layers must have in common to share keys and values."""
        heads = self.num_key_value_heads or self.num_attention_heads
        return heads, self.head_dim, self.v_head_dim, self.sliding_window, self.attention_chunk_size

    def anatomy(self, name: str, around: Around) -> Node:
        h = around.hidden_size
        seen = around.source_size if around.cross and around.source_size is not None else h
        a, k, d = self.sizes(h)
        v = d if self.v_head_dim is None else self.v_head_dim
        queries, keys, values, mixed = a * d, k * d, k * v, a * v
        rows: Literal["source", "tokens"] = "source" if around.cross else "tokens"
        kind = "cross_attention" if around.cross else "attention"
        parts = [Node("q_proj", ops.Linear(h, queries, self.q_bias))]
        if not self.kv_shared:
            parts.append(Node("k_proj", ops.Linear(seen, keys, self.k_bias, rows)))
        if not self.attention_k_eq_v and not self.kv_shared:
            parts.append(Node("v_proj", ops.Linear(seen, values, self.v_bias, rows)))
        if self.qk_norm is not None:
            norm, scope = self.qk_norm.norm, self.qk_norm.scope
            q_width, k_width = (d, d) if scope == "head" else (queries, keys)
            q_heads, k_heads = (a, k) if scope == "per_head" else (None, None)
            parts.append(Node("q_norm", norm.op(q_width, q_heads)))
            if not self.kv_shared:
                parts.append(Node("k_norm", norm.op(k_width, k_heads)))
        if self.v_norm is not None and not self.kv_shared:
            parts.append(Node("v_norm", self.v_norm.op(v)))
        if isinstance(self.position, LayerBias):
            parts.append(self.position.anatomy("relative_bias", around, a))
        if self.position is not None and self.position.type == "disentangled":
            parts.append(self.position.anatomy("disentangled", around, a, d, (self.q_bias, self.k_bias)))
        if isinstance(self.position, TransformerXL):
            parts.append(self.position.anatomy("relative", around, a, d))
        core = ops.AttentionCore(
            heads=a,
            qk_dim=d,
            v_dim=v,
            causal=around.causal,
            window=self.sliding_window,
            chunk=self.attention_chunk_size,
            cross=around.cross,
        )
        if self.block_indexer is not None:
            core = self.block_indexer.core(a, d, v)
            parts.append(self.block_indexer.anatomy("indexer", around))
        parts.append(Node("core", core))
        if self.sinks:
            parts.append(Node("sinks", ops.Weight(a)))
        if (around.causal or around.cross) and not self.kv_shared:
            limit, held = self._held(around)
            parts.append(Node("cache", ops.KVCache(keys + values, held, limit, around.cross)))
        if self.output_gate is not None:
            parts.append(
                Node("gate_proj", ops.Linear(h, mixed if self.output_gate == "element" else a, self.gate_bias))
            )
        if self.sub_norm is not None:
            parts.append(self.sub_norm.anatomy("sub_norm", Around(mixed)))
        parts.append(
            Node("o_proj", ops.Linear(mixed, h if around.output_size is None else around.output_size, self.o_bias))
        )
        return Node(name, children=tuple(parts), kind=kind, source=self._source())

    def _held(self, around: Around) -> tuple[Number, str]:
        """How many tokens the cache holds, and what kind of cache that is."""
        if around.cross:
            return None, "cross_attention"
        if self.sliding_window is not None:
            return self.sliding_window, "sliding_attention"
        if self.attention_chunk_size is not None:
            return self.attention_chunk_size, "chunked_attention"
        return None, "full_attention"

    def _source(self) -> str:
        if self.num_key_value_heads is None:
            return "Vaswani et al. 2017, §3.2.2"
        one = (
            isinstance(self.num_key_value_heads, int) and self.num_key_value_heads == 1
        )  # an array or a symbol is no one number
        return "Shazeer 2019, §3" if one else "Ainslie et al. 2023, §2"

    def describe(self, hidden_size: int) -> str:
        a, k, d = self.sizes(hidden_size)
        name = "MHA" if k == a else "MQA" if k == 1 else "GQA"
        window = f", window {self.sliding_window}" if self.sliding_window else ""
        chunk = f", chunks of {self.attention_chunk_size}" if self.attention_chunk_size else ""
        return f"{name} {a if k == a else f'{a}/{k}'} × {d}{window}{chunk}"

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around)

    @classmethod
    def examples(cls) -> list[Self]:
        rms, layernorm = Norm(type="rmsnorm"), Norm(type="layernorm")
        from .block_indexer import BlockIndexer

        indexer = BlockIndexer(index_n_heads=2, index_head_dim=6, index_block_size=3, index_topk_blocks=2)
        rope, half_rope = Rope(), Rope(partial_rotary_factor=0.5)
        return [
            cls(num_attention_heads=4),
            cls(
                num_attention_heads=4, num_key_value_heads=2, head_dim=16, position=rope
            ),  # head_dim is not hidden / heads
            cls(num_attention_heads=4, num_key_value_heads=1, position=Alibi(), q_bias=True, o_bias=True),
            cls(num_attention_heads=4, k_bias=True, v_bias=True, position=half_rope),
            cls(num_attention_heads=4, num_key_value_heads=2, qk_norm=QKNorm(norm=rms), position=rope),
            cls(
                num_attention_heads=4,
                num_key_value_heads=2,
                qk_norm=QKNorm(norm=layernorm, scope="per_head", order="after_rope"),
                position=rope,
            ),
            cls(
                num_attention_heads=4,
                num_key_value_heads=1,
                head_dim=6,
                qk_norm=QKNorm(norm=rms, scope="projection"),
                position=rope,
            ),
            cls(num_attention_heads=4, num_key_value_heads=2, sliding_window=5, sinks=True, position=rope),
            cls(num_attention_heads=4, attention_chunk_size=6, attn_logit_softcapping=30.0),
            cls(num_attention_heads=4, position=TransformerXL()),
            cls(num_attention_heads=4, num_key_value_heads=2, position=rope, block_indexer=indexer),
            cls(
                num_attention_heads=4,
                head_dim=8,
                position=LayerBias(relative_attention_num_buckets=8, relative_attention_max_distance=16),
            ),
            cls(
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                output_gate="element",
                gate_bias=True,
                position=rope,
            ),
            cls(num_attention_heads=4, num_key_value_heads=2, output_gate="head", position=rope),
            cls(num_attention_heads=4, num_key_value_heads=2, head_dim=8, sub_norm=rms, position=rope),
            cls(
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                v_head_dim=5,
                sliding_window=5,
                output_gate="element",
                position=rope,
            ),
            cls(
                num_attention_heads=4,
                num_key_value_heads=2,
                attention_k_eq_v=True,
                qk_norm=QKNorm(norm=rms),
                v_norm=rms,
                position=rope,
            ),
        ]


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class Core(nn.Module):
        """q: [batch, heads, queries, d], k and v: [batch, heads, keys, d] → [batch, heads, queries, d]."""

        def forward(
            self,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            mask: Tensor | None,
            bias: Tensor | None,
            cap: float | None,
            sinks: Tensor | None,
        ) -> Tensor:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            if bias is not None:
                scores = scores + bias.to(scores.dtype)
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            if sinks is not None:  # one more key that every query sees and that has no value
                sink = sinks[None, :, None, None].expand(*scores.shape[:-1], 1).to(scores.dtype)
                return torch.softmax(torch.cat([scores, sink], -1).float(), -1)[..., :-1].to(v.dtype) @ v
            return torch.softmax(scores.float(), -1).to(v.dtype) @ v

    class AttentionReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: Attention, around: Around) -> None:
            super().__init__()
            self.spec, self.causal, self.cross = spec, around.causal, around.cross
            self.heads = spec.num_attention_heads
            self.kv_heads = spec.num_key_value_heads or spec.num_attention_heads
            self.head_dim = spec.head_dim or around.hidden_size // spec.num_attention_heads
            self.value_dim = spec.v_head_dim or self.head_dim
            width = around.hidden_size
            seen = around.source_size or width if around.cross else width
            self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=spec.q_bias)
            if not spec.kv_shared:
                self.k_proj = nn.Linear(seen, self.kv_heads * self.head_dim, bias=spec.k_bias)
            if not spec.attention_k_eq_v and not spec.kv_shared:
                self.v_proj = nn.Linear(seen, self.kv_heads * self.value_dim, bias=spec.v_bias)
            self.o_proj = nn.Linear(self.heads * self.value_dim, around.output_size or width, bias=spec.o_bias)
            if spec.output_gate is not None:
                gates = self.heads * self.value_dim if spec.output_gate == "element" else self.heads
                self.gate_proj = nn.Linear(width, gates, bias=spec.gate_bias)
            if spec.sub_norm is not None:
                self.sub_norm = norm_reference(spec.sub_norm, self.heads * self.value_dim)
            self.core = Core()
            if spec.block_indexer is not None:
                self.indexer: Any = spec.block_indexer.reference(around, getattr(spec.position, "rope_theta", 10000.0))
            if isinstance(spec.position, LayerBias):
                self.relative_bias = spec.position.reference(around, self.heads)
            if spec.position is not None and spec.position.type == "disentangled":
                self.disentangled = spec.position.reference(around, self.heads, self.head_dim)
            if isinstance(spec.position, TransformerXL):
                self.relative = spec.position.reference(around, self.heads, self.head_dim)
            self.sinks = vector(torch.zeros(self.heads)) if spec.sinks else None
            if (self.causal or self.cross) and not spec.kv_shared:
                self.cache = cache_class()(None if self.cross else spec.sliding_window or spec.attention_chunk_size)
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

        def _normed(self, x: Tensor, norm: nn.Module) -> Tensor:
            """x: [batch, heads, tokens, head_dim]."""
            assert self.spec.qk_norm is not None
            if self.spec.qk_norm.scope != "projection":
                normed: Tensor = norm(x)
                return normed
            flat = x.transpose(1, 2).flatten(2)
            whole: Tensor = norm(flat).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            return whole

        def _placed(self, x: Tensor, norm: str, run: Run, start: int) -> Tensor:
            """Queries or keys with their norm and their positions, in the order the spec gives."""
            order = self.spec.qk_norm.order if self.spec.qk_norm is not None else None
            if order == "before_rope":
                x = self._normed(x, getattr(self, norm))
            if isinstance(self.spec.position, Rope):
                x = self.spec.position.rotated(x, run, start)
            return self._normed(x, getattr(self, norm)) if order == "after_rope" else x

        def _heads_of(self, projected: Tensor, width: int) -> Tensor:
            heads: Tensor = projected.unflatten(-1, (-1, width)).transpose(1, 2)
            return heads

        def _keys_and_values(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor]:
            if self.cross:
                held = None if run.store is None else run.store.get(self.cache)
                if held is not None:
                    return held[0], held[1]
                assert run.memory is not None, "cross-attention needs the encoder's output or a filled cache"
                x = run.memory
            raw = self._heads_of(self.k_proj(x), self.head_dim)
            k = self._placed(raw, "k_norm", run, 0 if self.cross else run.past)
            v = raw if self.spec.attention_k_eq_v else self._heads_of(self.v_proj(x), self.value_dim)
            v = self.v_norm(v) if hasattr(self, "v_norm") else v
            return self.cache(run, k, v) if hasattr(self, "cache") else (k, v)

        def _own_or_shared(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor]:
            """Keys and values that this layer makes, or those of the last one that attends alike."""
            if self.cross:
                return self._keys_and_values(x, run)
            spec = self.spec
            alike = (
                "kv", self.kv_heads, self.head_dim, self.value_dim, spec.sliding_window, spec.attention_chunk_size
            )  # fmt: skip
            if not self.spec.kv_shared:
                run.memo[alike] = self._keys_and_values(x, run)
            made: tuple[Tensor, Tensor] = run.memo[alike]
            return made

        def _seen(self, x: Tensor, k: Tensor, run: Run) -> tuple[Tensor, Tensor | None]:
            """Which keys each query may see, and what is added to their scores."""
            queries, keys, end, spec = x.shape[1], k.shape[-2], run.past + x.shape[1], self.spec
            mask = allowed(
                run,
                end,
                queries,
                keys,
                x.device,
                causal=self.causal,
                window=spec.sliding_window,
                chunk=spec.attention_chunk_size,
            )
            if hasattr(self, "relative_bias"):
                return mask, self.relative_bias(run.span(run.past, end, x.device), run.span(end - keys, end, x.device))
            make: Any = partial(alibi_bias, self.heads) if isinstance(spec.position, Alibi) else run.bias
            if make is None:
                return mask, None
            spans = run.span(run.past, end, x.device), run.span(end - keys, end, x.device)
            return mask, run.once(("bias", self.heads, end, queries, keys), lambda: make(*spans))

        def forward(self, x: Tensor, run: Run) -> Tensor:
            q = self._placed(self._heads_of(self.q_proj(x), self.head_dim), "q_norm", run, run.past)
            k, v = self._own_or_shared(x, run)
            mask, bias = (None, None) if self.cross else self._seen(x, k, run)
            if hasattr(self, "relative"):
                q, bias = self.relative(q, run, run.past + x.shape[1])
            if hasattr(self, "disentangled"):
                q, bias = self.disentangled(q, k, run.memo["relative_embedding"], run, self.q_proj, self.k_proj)
            group = self.heads // self.kv_heads
            if group > 1:
                k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            if hasattr(self, "indexer"):
                k, v, mask = self.indexer.narrow(x, k, v, run)
            sinks = self.sinks.weight if self.sinks is not None else None
            out = self.core(q, k, v, mask, bias, self.spec.attn_logit_softcapping, sinks)
            out = out.transpose(1, 2)
            if hasattr(self, "gate_proj"):
                out = out * self.gate_proj(x).sigmoid().unflatten(-1, (self.heads, -1))
            whole = out.flatten(2)
            result: Tensor = self.o_proj(self.sub_norm(whole) if hasattr(self, "sub_norm") else whole)
            return result

    return AttentionReference
