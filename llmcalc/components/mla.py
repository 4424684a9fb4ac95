"""Multi-head latent attention: keys and values are expanded from one small latent vector a token, and only that is
cached.

DeepSeek-V2 (arXiv:2405.04434), §2.1; with and without a low-rank query (V2-Lite has none). In a full pass keys and
values are expanded and attention runs per head; while decoding, the expansion is absorbed into query and output
(§2.1.2), so that each head attends to the latent itself. With an indexer (DeepSeek-V3.2) a token attends to few of
those before it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from .. import ops
from ..flow.tree import Node
from .base import Around, Component, Flag, Heads, KVRank, NopeDim, QueryRank, RopeDim, ValueDim
from .indexer import Indexer
from .norm import Norm, norm_reference
from .position import Rope, rotate
from .runtime import Run, allowed, cache_class, softmax_core_class, vector

if TYPE_CHECKING:
    from torch import Tensor, nn


class MLA(Component):
    """Multi-head latent attention, under DeepSeek's field names.

    q_lora_rank: width of the compressed query; none projects queries directly. kv_lora_rank: width of the latent.
    indexer: chooses the tokens that are attended to. Each head's query and key are qk_nope_head_dim from the latent and
    qk_rope_head_dim with positions, the latter's key shared by all heads. attention_bias: on the projections that read
    or write the residual stream (not on a direct q_proj).
    mla_use_nope: no positions at all; the shared key has the same size, and is not turned (Kimi Linear).
    output_gate: each head's output is multiplied by the sigmoid of a map of the layer's input (Ling 3), one value a
    head, or one for each `element` of it (Hy 4). query_gate: that gate, for each element, and the queries are one map
    of the compressed query, after its norm and before it side by side (A.X-K2). sinks: one more key for each head, with
    a learned score and no value (Hy 4).
    """

    node_name: ClassVar[str] = "self_attn"

    type: Literal["mla"] = "mla"
    num_attention_heads: Heads
    q_lora_rank: QueryRank | None = None
    kv_lora_rank: KVRank
    qk_nope_head_dim: NopeDim
    qk_rope_head_dim: RopeDim
    v_head_dim: ValueDim
    attention_bias: Flag = False
    mla_use_nope: Flag = False
    output_gate: Flag | Literal["element"] = False
    query_gate: Flag = False
    sinks: Flag = False
    norm: Norm = Norm(type="rmsnorm", eps=1e-6)
    position: Rope = Rope()
    indexer: Indexer | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.indexer is not None and (
            self.q_lora_rank is None or self.indexer.index_head_dim < self.qk_rope_head_dim
        ):
            raise ValueError(
                "indexer: it reads the compressed query and turns qk_rope_head_dim of its own; expected a "
                "q_lora_rank and a wider index_head_dim"
            )
        if self.query_gate and (self.q_lora_rank is None or self.output_gate):
            raise ValueError(
                "query_gate: it is made of the compressed query; expected a q_lora_rank, and no output_gate beside it"
            )
        if self.qk_rope_head_dim % 2 and not self.mla_use_nope:
            raise ValueError(f"qk_rope_head_dim: {self.qk_rope_head_dim} is odd; RoPE turns pairs")
        self.position.check_whole("qk_rope_head_dim")
        return self

    def anatomy(self, name: str, around: Around) -> Node:
        h, a = around.hidden_size, self.num_attention_heads
        nope, rope, v = self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim
        latent, biased = self.kv_lora_rank, self.attention_bias
        if self.q_lora_rank is None:
            query = [Node("q_proj", ops.Linear(h, a * (nope + rope)))]
        else:
            query = [
                Node("q_a_proj", ops.Linear(h, self.q_lora_rank, biased)),
                Node("q_a_norm", self.norm.op(self.q_lora_rank)),
                Node("q_b_proj", ops.Linear(self.q_lora_rank, a * (nope + rope))),
            ]
        if self.query_gate and self.q_lora_rank is not None:
            query[-1] = Node("q_gate_proj", ops.Linear(2 * self.q_lora_rank, a * (nope + rope + v)))
        chosen = None if self.indexer is None else self.indexer.index_topk
        core = ops.AttentionCore(a, qk_dim=nope + rope, v_dim=v, causal=around.causal, selected=chosen)
        indexer = (
            []
            if self.indexer is None or self.indexer.shared
            else [self.indexer.anatomy("indexer", around, self.q_lora_rank)]
        )
        parts = [
            *query,
            Node("kv_a_proj", ops.Linear(h, latent + rope, biased)),
            Node("kv_a_norm", self.norm.op(latent)),
            Node("kv_b_proj", ops.Linear(latent, a * (nope + v))),
            *indexer,
            Node("core", core, forms={"absorbed": replace(core, qk_dim=latent + rope, v_dim=latent)}),
            Node("cache", ops.KVCache(latent + rope, "latent_attention")),
            *([Node("sinks", ops.Weight(a))] if self.sinks else []),
            *(
                [Node("gate_proj", ops.Linear(h, a * v if self.output_gate == "element" else a))]
                if self.output_gate
                else []
            ),
            Node("o_proj", ops.Linear(a * v, h, biased)),
        ]
        return Node(name, children=tuple(parts), kind="attention", source="DeepSeek-V2 2024, §2.1")

    def describe(self, hidden_size: int) -> str:
        head = self.qk_nope_head_dim + self.qk_rope_head_dim
        chosen = "" if self.indexer is None else f", to {self.indexer.index_topk} tokens"
        return f"MLA {self.num_attention_heads} × {head}, latent {self.kv_lora_rank} + {self.qk_rope_head_dim}{chosen}"

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6),
            cls(
                num_attention_heads=4,
                q_lora_rank=20,
                kv_lora_rank=12,
                qk_nope_head_dim=6,
                qk_rope_head_dim=4,
                v_head_dim=8,
                attention_bias=True,
            ),
            cls(
                num_attention_heads=4,
                kv_lora_rank=12,
                qk_nope_head_dim=8,
                qk_rope_head_dim=4,
                v_head_dim=6,
                mla_use_nope=True,
                output_gate=True,
            ),
            cls(
                num_attention_heads=4,
                q_lora_rank=20,
                kv_lora_rank=12,
                qk_nope_head_dim=6,
                qk_rope_head_dim=4,
                v_head_dim=8,
                indexer=Indexer(index_n_heads=3, index_head_dim=10, index_topk=5),
            ),
            cls(
                num_attention_heads=4,
                kv_lora_rank=12,
                qk_nope_head_dim=8,
                qk_rope_head_dim=4,
                v_head_dim=6,
                sinks=True,
                output_gate="element",
            ),
            cls(
                num_attention_heads=4,
                q_lora_rank=20,
                kv_lora_rank=12,
                qk_nope_head_dim=6,
                qk_rope_head_dim=4,
                v_head_dim=8,
                query_gate=True,
            ),
        ]


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class Expansion(nn.Linear):
        """Latent → every head's key part and value; or, absorbed, the same weight on the other side of the product."""

        def __init__(self, latent: int, heads: int, nope: int, value: int) -> None:
            super().__init__(latent, heads * (nope + value), bias=False)
            self.heads, self.nope, self.value = heads, nope, value

        def forward(self, x: Tensor, absorb: str = "") -> Tensor:
            per_head = self.weight.view(self.heads, self.nope + self.value, -1)
            if absorb == "query":  # [batch, heads, tokens, nope] → [.., latent]
                return x @ per_head[:, : self.nope]
            if absorb == "value":  # [batch, heads, tokens, latent] → [.., value]
                return x @ per_head[:, self.nope :].transpose(-1, -2)
            return super().forward(x)

    class MLAReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: MLA, around: Around) -> None:
            super().__init__()
            self.spec, hidden, heads = spec, around.hidden_size, spec.num_attention_heads
            query = heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
            if spec.q_lora_rank is None:
                self.q_proj = nn.Linear(hidden, query, bias=False)
            else:
                self.q_a_proj = nn.Linear(hidden, spec.q_lora_rank, bias=spec.attention_bias)
                self.q_a_norm = norm_reference(spec.norm, spec.q_lora_rank)
                if spec.query_gate:
                    self.q_gate_proj = nn.Linear(2 * spec.q_lora_rank, query + heads * spec.v_head_dim, bias=False)
                else:
                    self.q_b_proj = nn.Linear(spec.q_lora_rank, query, bias=False)
            self.kv_a_proj = nn.Linear(hidden, spec.kv_lora_rank + spec.qk_rope_head_dim, bias=spec.attention_bias)
            self.kv_a_norm = norm_reference(spec.norm, spec.kv_lora_rank)
            self.kv_b_proj = Expansion(spec.kv_lora_rank, heads, spec.qk_nope_head_dim, spec.v_head_dim)
            if spec.output_gate:
                self.gate_proj = nn.Linear(
                    hidden, heads * spec.v_head_dim if spec.output_gate == "element" else heads, bias=False
                )
            self.sinks = vector(torch.zeros(heads)) if spec.sinks else None
            self.o_proj = nn.Linear(heads * spec.v_head_dim, hidden, bias=spec.attention_bias)
            self.core, self.cache = softmax_core_class()(), cache_class()()
            if spec.indexer is not None and not spec.indexer.shared:
                assert spec.q_lora_rank is not None
                self.indexer = spec.indexer.reference(
                    around, spec.q_lora_rank, spec.qk_rope_head_dim, spec.position.rope_theta
                )

        def _turn(self, x: Tensor, run: Run) -> Tensor:
            return (
                x
                if self.spec.mla_use_nope
                else rotate(x, run, run.past, self.spec.qk_rope_head_dim, self.spec.position.rope_theta)
            )

        def _queries(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
            """[batch, tokens, heads, …]: queries and the gate, where there is one; and what an indexer reads."""
            spec, apart = self.spec, (self.spec.num_attention_heads, -1)
            raw = x if spec.q_lora_rank is None else self.q_a_proj(x)
            small = x if spec.q_lora_rank is None else self.q_a_norm(raw)
            if spec.query_gate:
                both = self.q_gate_proj(torch.cat([small, raw], -1)).unflatten(-1, apart)
                q, gate = both.split([both.shape[-1] - spec.v_head_dim, spec.v_head_dim], -1)
                return q, gate, small
            q = self.q_proj(x) if spec.q_lora_rank is None else self.q_b_proj(small)
            return q.unflatten(-1, apart), self.gate_proj(x).unflatten(-1, apart) if spec.output_gate else None, small

        def forward(self, x: Tensor, run: Run) -> Tensor:
            spec, heads = self.spec, self.spec.num_attention_heads
            nope, rope = spec.qk_nope_head_dim, spec.qk_rope_head_dim
            q, gate, small = self._queries(x)
            q_nope, q_rope = q.transpose(1, 2).split([nope, rope], -1)
            q_rope = self._turn(q_rope, run)
            latent, k_rope = self.kv_a_proj(x).split([spec.kv_lora_rank, rope], -1)
            latent, k_rope = self.cache(run, self.kv_a_norm(latent), self._turn(k_rope, run))
            end = run.past + x.shape[1]
            mask = allowed(run, end, x.shape[1], latent.shape[1], x.device, causal=True)
            scale = (nope + rope) ** -0.5
            if hasattr(self, "indexer"):
                run.selected = self.indexer(x, small, mask, run)
            if spec.indexer is not None:
                assert run.selected is not None, (
                    "a layer that shares the choice of another stands above one that chooses"
                )
                if run.past and x.shape[1] == 1:  # one token goes on: nothing but what it chose is read
                    latent, k_rope = (
                        t.gather(1, run.selected[:, 0, :, None].expand(-1, -1, t.shape[-1])) for t in (latent, k_rope)
                    )
                    mask = mask[:, -latent.shape[1] :]
                else:
                    mask = mask & torch.zeros_like(mask).expand(x.shape[0], -1, -1).scatter(-1, run.selected, True)
                    mask = mask[:, None]
            sinks = None if self.sinks is None else self.sinks.weight
            if run.past:
                q = torch.cat([self.kv_b_proj(q_nope, absorb="query"), q_rope], -1)
                k, v = torch.cat([latent, k_rope], -1)[:, None], latent[:, None]
                k, v = k.expand(-1, heads, -1, -1), v.expand(-1, heads, -1, -1)
                out = self.kv_b_proj(self.core(q, k, v, mask, scale, sinks), absorb="value")
            else:
                expanded = self.kv_b_proj(latent).unflatten(-1, (heads, -1)).transpose(1, 2)
                k_nope, v = expanded.split([nope, spec.v_head_dim], -1)
                k = torch.cat([k_nope, k_rope[:, None].expand(-1, heads, -1, -1)], -1)
                out = self.core(torch.cat([q_nope, q_rope], -1), k, v, mask, scale, sinks)
            out = out.transpose(1, 2)
            out = out if gate is None else out * gate.sigmoid()
            result: Tensor = self.o_proj(out.flatten(2))
            return result

    return MLAReference
