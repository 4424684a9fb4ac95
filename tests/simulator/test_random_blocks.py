"""Random blocks hold what torch holds, to the byte: what autograd saves, and what is alive at every moment."""

from __future__ import annotations

from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import DrawFn, SearchStrategy

from llmcalc.components.added_position import LearnedPositions
from llmcalc.components.distance_bias import AlibiBias
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.mixers.output_gate import OutputGate
from llmcalc.components.mixers.qk_norm import QKNorm
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.components.networks.router import LinearRouter
from llmcalc.components.norm import Norm
from llmcalc.components.rope import Rope
from llmcalc.components.stack import Stack
from llmcalc.model import ModelSpec
from tests.simulator.models import by_torch, without_values

T = TypeVar("T")

yes_or_no = st.booleans()
norms: SearchStrategy[Norm] = st.sampled_from(
    [
        Norm(type="rmsnorm"),
        Norm(type="rmsnorm", weight=False),
        Norm(type="rmsnorm", bias=True),
        Norm(type="layernorm"),
        Norm(type="layernorm", bias=False),
        Norm(type="layernorm", weight=False),
    ]
)


def maybe(strategy: SearchStrategy[T]) -> SearchStrategy[T | None]:
    return st.none() | strategy


def networks(multiple: int = 1, biased: SearchStrategy[bool] = yes_or_no) -> SearchStrategy[FeedForward]:
    """multiple: of which the inner width is one: rows of a grouped product are whole multiples of 16 bytes."""

    @st.composite
    def drawn(draw: DrawFn) -> FeedForward:
        gated = draw(yes_or_no)
        return FeedForward(
            intermediate_size=multiple * draw(st.integers(1, 64 // multiple)),
            hidden_act=draw(
                st.sampled_from(
                    ["silu", "gelu", "gelu_tanh", "gelu_new", "quick_gelu", "relu", "relu2", "sigmoid", "tanh"]
                )
            ),
            gated=gated,
            gate_bias=gated and draw(biased),
            up_bias=draw(biased),
            down_bias=draw(biased),
            sub_norm=draw(maybe(norms)) if multiple == 1 else None,
        )

    return drawn()


@st.composite
def mixtures(draw: DrawFn) -> MoE:
    experts = draw(st.integers(1, 6))
    shared = draw(maybe(networks()))
    router = LinearRouter(
        bias=draw(yes_or_no),
        scoring_func=draw(st.sampled_from(["softmax", "sigmoid", "sqrtsoftplus"])),
        score_correction=draw(st.sampled_from([None, "buffer", "parameter"])),
        norm=draw(maybe(norms)),
        expert_scale=draw(yes_or_no),
    )
    return MoE(
        num_experts=experts,
        num_experts_per_tok=draw(st.integers(1, experts)),
        expert=draw(networks(8)),
        shared_expert=shared,
        shared_expert_gate=shared is not None and draw(yes_or_no),
        router=router,
        output_bias=draw(yes_or_no),
    )


@st.composite
def attention(draw: DrawFn, hidden: int) -> Attention:
    """MHA, GQA or MQA; full, with a window or in chunks; with RoPE, ALiBi or no positions of its own."""
    kv_heads, group = draw(st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 2), (4, 1), (2, 3), (3, 1)]))
    heads, position = kv_heads * group, draw(st.sampled_from(["rope", "half rope", "alibi", "none"]))
    head_dim = draw(st.sampled_from([4, 6, 8, 10])) if hidden % heads or draw(yes_or_no) else None
    size = hidden // heads if head_dim is None else head_dim
    if "rope" in position and size % 4:
        position = "none"
    reach = draw(st.sampled_from(["full", "full", "window", "chunks"]))
    scope = st.sampled_from(["head", "per_head", "projection"])
    order = st.sampled_from(["before_rope", "after_rope"])
    return Attention(
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=draw(maybe(st.integers(1, 9))),
        q_bias=draw(yes_or_no),
        k_bias=draw(yes_or_no),
        v_bias=draw(yes_or_no),
        o_bias=draw(yes_or_no),
        qk_norm=draw(maybe(st.builds(QKNorm, norm=norms, scope=scope, order=order))),
        sliding_window=draw(st.integers(1, 6)) if reach == "window" else None,
        attention_chunk_size=draw(st.integers(1, 6)) if reach == "chunks" else None,
        sinks=draw(yes_or_no),
        output_gate=draw(maybe(st.builds(OutputGate, per=st.sampled_from(["element", "head"]), bias=yes_or_no))),
        sub_norm=draw(maybe(norms)),
        v_norm=draw(maybe(norms)),
        attn_logit_softcapping=draw(st.sampled_from([None, None, 30.0])),
        position={
            "rope": Rope(),
            "half rope": Rope(partial_rotary_factor=0.5),
            "alibi": AlibiBias(),
            "none": None,
        }[position],
    )


@st.composite
def latent(draw: DrawFn) -> MLA:
    q_rank = draw(maybe(st.integers(1, 20)))
    return MLA(
        num_attention_heads=draw(st.integers(1, 4)),
        q_lora_rank=q_rank,
        kv_lora_rank=draw(st.integers(1, 20)),
        qk_nope_head_dim=draw(st.integers(1, 8)),
        qk_rope_head_dim=2 * draw(st.integers(1, 3)),
        v_head_dim=draw(st.integers(1, 8)),
        attention_bias=draw(yes_or_no),
        mla_use_nope=draw(yes_or_no),
        sinks=draw(yes_or_no),
        norm=draw(norms),
        query_gate=q_rank is not None and draw(yes_or_no),
    )


@st.composite
def models(draw: DrawFn) -> ModelSpec:
    """One or two layers between an embedding and a head."""
    hidden = 8 * draw(st.integers(1, 6))
    placement = draw(st.sampled_from(["pre", "pre", "post", "sandwich", "output"]))
    parallel = draw(st.sampled_from([None, "shared", "separate"])) if placement == "pre" else None
    scaled = placement == "pre" and parallel is None
    more: dict[str, Any] = {"parallel": parallel} if parallel else {}
    if scaled:
        more["residual_scale"] = draw(st.sampled_from([False, False, True, "residual", "output"]))
    block = Block(
        attention=draw(attention(hidden) | attention(hidden) | latent()),
        feed_forward=draw(networks() | networks() | mixtures()),
        norm=draw(norms),
        norm_placement=placement,
        **more,
    )
    stack = Stack(
        num_hidden_layers=draw(st.integers(1, 2)),
        block=block,
        position=LearnedPositions(max_position_embeddings=16) if draw(yes_or_no) else None,
        final_norm=draw(maybe(norms)),
        embedding_norm=draw(maybe(norms)),
    )
    return ModelSpec(
        vocab_size=draw(st.integers(2, 60)),
        hidden_size=hidden,
        tie_word_embeddings=draw(yes_or_no),
        decoder=stack,
    )


@pytest.mark.parametrize("examples", [25, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_a_random_block_holds_what_torch_holds(examples: int) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(spec=models(), batch=st.integers(1, 3), seq=st.integers(2, 9))
    def compare(spec: ModelSpec, batch: int, seq: int) -> None:
        assert without_values(spec, batch, seq) == by_torch(spec, batch, seq)

    compare()
