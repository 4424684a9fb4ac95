"""Parts with odd sizes: rejected with the field's name if they could not run, counted correctly if they can.

Each case was once a crash or a wrong count.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llmcalc.components.base import Component, Part
from llmcalc.components.choices import MIXERS
from llmcalc.components.disentangled import DisentangledScores, SideConvolution
from llmcalc.components.distance_bias import LayerBias, RelativeBias
from llmcalc.components.head import LMHead
from llmcalc.components.head_transform import Transform
from llmcalc.components.layers.block import Block
from llmcalc.components.layers.gemma4_layer import Gemma4Layer
from llmcalc.components.layers.hybrid_block import HybridBlock
from llmcalc.components.layers.hyper_layer import hyper_example
from llmcalc.components.layers.zamba_layer import ZambaLayer
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.compressed_attention import CompressedAttention
from llmcalc.components.mixers.compressed_conv_attention import CompressedConvAttention
from llmcalc.components.mixers.differential_attention import DifferentialAttention
from llmcalc.components.mixers.indexer import Indexer
from llmcalc.components.mixers.kimi_delta_attention import KimiDeltaAttention
from llmcalc.components.mixers.mamba import Mamba
from llmcalc.components.mixers.mixture_of_attention import MixtureOfAttention
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.mixers.rglru import RGLRU
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.grove_moe import GroveMoE
from llmcalc.components.networks.moe import MoE
from llmcalc.components.stack import Stack
from llmcalc.model import ModelSpec
from llmcalc.witnesses.reference import verify_reference
from tests.builders import verbs_of
from tests.contracts.test_parts import around_a_model, decoder
from tests.samples import in_one_test, sampled, spread


def changed(part: Any, **fields: Any) -> Any:
    """The part with other fields, validated again."""
    return type(part).model_validate({**part.model_dump(), **fields})


ROPE = {"rotary_dim": 5}
ALIBI = {"num_attention_heads": 4, "position": {"type": "alibi"}}
GATED = {"intermediate_size": 8, "hidden_act": "silu", "gated": True}
SHARES = {"num_attention_heads": 4, "kv_shared": True}

REFUSED = [
    pytest.param(
        RGLRU.examples()[0],
        {"num_attention_heads": 3},
        "num_attention_heads: 3 does not divide lru_width 20; expected a divisor of 20",
        id="heads of an RG-LRU",
    ),
    pytest.param(
        Mamba.examples()[0],
        {"intermediate_size": 20, "num_heads": 3, "norm": None},
        "num_heads: 3 does not divide intermediate_size 20; expected a divisor of 20",
        id="heads of Mamba",
    ),
    pytest.param(
        GroveMoE.examples()[0],
        {"num_experts": 8, "experts_per_group": 3},
        "experts_per_group: 3 does not divide num_experts 8; expected a divisor of 8",
        id="groups of experts with an adjugate one",
    ),
    pytest.param(
        MixtureOfAttention.examples()[0],
        {"position": ROPE},
        "RoPE would rotate 5",
        id="an odd turn, mixture of attention",
    ),
    pytest.param(
        DifferentialAttention.examples()[0], {"head_dim": 5}, "RoPE would rotate 5", id="an odd head, differential"
    ),
    pytest.param(
        DifferentialAttention.examples()[0],
        {"position": {"rotary_dim": 8}},
        "RoPE would rotate 8",
        id="more turned than there is, differential",
    ),
    pytest.param(
        CompressedConvAttention.examples()[0], {"position": ROPE}, "RoPE would rotate 5", id="an odd turn, CCA"
    ),
    pytest.param(
        MLA.examples()[0],
        {"position": {"rotary_dim": 2}},
        "all qk_rope_head_dim dimensions are rotated",
        id="a turn that MLA would not look at",
    ),
    pytest.param(
        CompressedAttention.examples()[0],
        {"position": {"partial_rotary_factor": 0.5}},
        "all qk_rope_head_dim",
        id="one that DeepSeek-V4 would not",
    ),
    pytest.param(LayerBias(), {"relative_attention_num_buckets": 3}, "expected at least 4", id="too few buckets"),
    pytest.param(
        RelativeBias.examples()[0],
        {"relative_attention_max_distance": 4},
        "is among the 4 near distances",
        id="no far distance",
    ),
    pytest.param(
        DisentangledScores(max_relative_positions=8),
        {"position_buckets": 14},
        "position_buckets: 14",
        id="more bins than distances",
    ),
    pytest.param(KimiDeltaAttention.examples()[0], {"chunk_size": 1}, "chunk_size: chunks of 1", id="a chunk of one"),
    pytest.param(
        FeedForward.examples()[0], {"gate_bias": True}, "there is no gate to have one", id="a bias of no gate"
    ),
    pytest.param(
        MoE.examples()[0],
        {"vision_experts": {"expert": {"intermediate_size": 8, "hidden_act": "xielu"}}},
        "expert.hidden_act",
        id="experts for images",
    ),
    pytest.param(
        MoE.examples()[0],
        {"identity_experts": {"zero_expert_num": 2}, "router": {"type": "mlp", "router_hidden_size": 4}},
        "identity_experts: a router of type 'mlp' sends no tokens to them",
        id="experts that a router cannot choose",
    ),
    pytest.param(
        MoE.examples()[0],
        {"router": {"type": "mlp", "router_hidden_size": 4, "bias": True}},
        "1 validation error for RouterMLP\nbias",
        id="a router with a field of another",
    ),
    pytest.param(
        MoE.examples()[0],
        {"vision_expert": {"intermediate_size": 8, "hidden_act": "silu"}},
        "vision_expert: this field was renamed; expected vision_experts = { expert = … }",
        id="a field under its old name",
    ),
    pytest.param(hyper_example(), {"hc_sinkhorn_iters": 0}, "hc_sinkhorn_iters", id="no step of mixing"),
    pytest.param(
        ZambaLayer.examples()[0],
        {"transformer": {"attention": SHARES, "feed_forward": GATED}},
        "no kv_shared",
        id="a block that shares keys",
    ),
    pytest.param(
        Block.examples()[-1],
        {"cross_attention": SHARES},
        "each token sees all of the other sequence",
        id="crossing to shared keys",
    ),
    pytest.param(Block.examples()[-1], {"cross_attention": ALIBI}, "goes by distances", id="crossing by distance"),
]


@in_one_test
@pytest.mark.parametrize(("part", "fields", "message"), REFUSED)
def test_what_could_not_run_is_refused(part: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        changed(part, **fields)
    assert message in str(caught.value)


def narrow_groups() -> dict[str, Any]:
    return encoder(side_convolution=SideConvolution(conv_kernel_size=3, conv_groups=5))


def encoder(**stack: Any) -> dict[str, Any]:
    block = Block.examples()[0].model_copy(update={"attention": Attention(num_attention_heads=4)})
    table = {"num_hidden_layers": 2, "block": block, **stack}
    return {
        "vocab_size": 50,
        "hidden_size": 24,
        "tie_word_embeddings": False,
        "encoder": {name: part.model_dump() if isinstance(part, Part) else part for name, part in table.items()},
    }


def of_two_stacks(encoder: dict[str, Any], **fields: Any) -> dict[str, Any]:
    model = around_a_model(Block.examples()[-1]).model_dump()
    return {**model, **fields, "encoder": {**model["encoder"], **encoder}}


def with_prediction(**fields: Any) -> dict[str, Any]:
    return {**decoder(**fields).model_dump(), "mtp": {"num_nextn_predict_layers": 1}}


INDEXED = next(e for e in Attention.examples() if e.block_indexer is not None)
TABLED = next(e for e in MoE.examples() if e.dependency_field())
DISENTANGLED = Block.examples()[0].model_copy(
    update={"attention": Attention(num_attention_heads=4, position=DisentangledScores(max_relative_positions=8))}
)
ODD_HEADS = ZambaLayer.examples()[0].model_copy(
    update={
        "transformer": ZambaLayer.examples()[0].transformer.model_copy(
            update={"attention": Attention(num_attention_heads=5)}
        )
    }
)

HYPER = {"type": "hyper", "hc_mult": 3}
PER_LAYER = {"hidden_size_per_layer_input": 6, "hidden_act": "gelu"}
SHARED_CHOICE = MLA.examples()[0].model_copy(
    update={"q_lora_rank": 8, "indexer": Indexer(index_n_heads=2, index_head_dim=8, index_topk=3, shared=True)}
)


def in_a_stack(example: Any, **fields: Any) -> dict[str, Any]:
    """A decoder of two such layers, with further fields."""
    model = decoder().model_dump()
    stack = {"num_hidden_layers": 2, "block": example.model_dump(), **fields}
    return {**model, "decoder": stack}


REFUSED_MODELS = [
    pytest.param(
        lambda: in_a_stack(hyper_example()),
        "streams: missing; the layers called 'block' need one with type = 'hyper', hc_mult = 3",
        id="layers of several streams without them",
    ),
    pytest.param(
        lambda: in_a_stack(hyper_example(), streams={**HYPER, "hc_mult": 4}),
        "streams: those of type 'hyper' stand where every layer",
        id="another number of streams",
    ),
    pytest.param(
        lambda: in_a_stack(hyper_example(), streams={"type": "altup", "altup_num_inputs": 3}),
        "streams: those of type 'altup' stand where every layer",
        id="streams of another kind",
    ),
    pytest.param(
        lambda: in_a_stack(changed(Gemma4Layer.examples()[0], per_layer_input=PER_LAYER)),
        "per_layer_embedding: missing; the layers called 'block' need one with hidden_size_per_layer_input = 6",
        id="per-layer inputs that nothing makes",
    ),
    pytest.param(
        lambda: encoder(relative_embedding={"span": 7}, block=DISENTANGLED),
        "relative_embedding: disentangled attention needs a table of its span",
        id="a table of another span",
    ),
    pytest.param(
        lambda: encoder(block=DISENTANGLED),
        "relative_embedding: missing; the layers called 'block' need one with span = 8",
        id="no table of positions",
    ),
    pytest.param(
        lambda: in_a_stack(Block.examples()[0], relative_bias={"num_attention_heads": 3}),
        "relative_bias.num_attention_heads: 3 is not the layers' 4",
        id="a bias for other heads",
    ),
    pytest.param(
        lambda: in_a_stack(changed(Block.examples()[0], attention=SHARES)),
        "kv_shared: no layer below 'block' attends alike",
        id="keys that no layer makes",
    ),
    pytest.param(
        lambda: in_a_stack(changed(Block.examples()[0], attention=SHARED_CHOICE.model_dump())),
        "indexer.shared: no layer below 'block' attends alike",
        id="a choice that no layer makes",
    ),
    pytest.param(lambda: encoder(token_types={}), "token_types have a type_vocab_size or", id="types of nothing"),
    pytest.param(
        lambda: decoder(block=ODD_HEADS).model_dump(),
        "attention.num_attention_heads: 5 does not divide hidden_size 48",
        id="a shared block",
    ),
    pytest.param(
        lambda: encoder(block=HybridBlock.examples()[0]),
        "state_space.type: 'mamba2' is for decoders",
        id="a state-space part in an encoder",
    ),
    pytest.param(
        lambda: encoder(block=changed(Block.examples()[0], attention=INDEXED)),
        "block_indexer: stands in causal",
        id="an indexer there",
    ),
    pytest.param(
        narrow_groups,
        "conv_groups: 5 does not divide hidden_size 24; expected a divisor of 24",
        id="groups of a convolution",
    ),
    pytest.param(
        lambda: of_two_stacks({"input_size": 8}),
        "encoder.input_size: embeddings narrower",
        id="narrow embeddings under one of two stacks",
    ),
    pytest.param(
        lambda: of_two_stacks({}, embedding_size=8),
        "embedding_size: two stacks read",
        id="and under both, mapped twice and counted once",
    ),
    pytest.param(
        lambda: with_prediction(embedding_size=10),
        "expected no embedding_size",
        id="prediction from a narrow embedding",
    ),
    pytest.param(
        lambda: with_prediction(head=LMHead(transform=Transform())),
        "no head.transform",
        id="prediction through a transform",
    ),
    pytest.param(
        lambda: with_prediction(feed_forward=TABLED),
        "feed_forward.router.type 'token_table'",
        id="prediction that looks tokens up",
    ),
    pytest.param(
        lambda: with_prediction(block=ZambaLayer.examples()[0]),
        "a layer with type 'zamba'",
        id="prediction by a shared block",
    ),
]


@in_one_test
@pytest.mark.parametrize(("table", "message"), REFUSED_MODELS)
def test_what_cannot_stand_there_is_refused(table: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSpec.model_validate(table())
    assert message in str(caught.value)


@pytest.mark.parametrize("seq", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("example", CompressedAttention.examples()[1:])
def test_a_pass_too_short_for_an_entry(example: CompressedAttention, seq: int) -> None:
    """Without a complete entry no gradient reaches the compressor's projections, and no last window is cached."""
    verdict = verify_reference(around_a_model(example.model_copy(update={"compress_rate": 8})), batch=2, seq=seq)
    assert verdict.ok, verdict.failures


def test_layers_that_share_parameters_share_what_is_kept_beside_them() -> None:
    """Gemma 4's layer scale is a buffer, and counts once for layers that share parameters."""
    stack = Stack(num_hidden_layers=3, block=Gemma4Layer.examples()[0], shared_layers=("block",))
    verdict = verify_reference(around_a_model(stack))
    assert verdict.ok, verdict.failures


MIXING = [cls for cls in MIXERS.load_component_classes() if issubclass(cls, Component)]


def verbs_of_mixer(case: tuple[type[Component], int]) -> set[Any]:
    """What may go wrong in a short pass: the mixer with one token, and each of its verbs at either length."""
    part, seq = case
    return {part if seq == 1 else None, *((verb, seq) for verb in verbs_of(around_a_model(part.examples()[0])))}


@pytest.mark.parametrize(
    ("part", "seq"),
    spread(sampled({f"{part.__name__}-{seq}": (part, seq) for part in MIXING for seq in (1, 2)}, verbs_of_mixer)),
)
def test_passes_of_one_token_and_of_two(part: type[Component], seq: int) -> None:
    verdict = verify_reference(around_a_model(part.examples()[0]), batch=2, seq=seq)
    assert verdict.ok, verdict.failures


RENAMED = [
    pytest.param(lambda: {**decoder().model_dump(), "pooler_labels": 2}, "pooler = { num_labels", id="a score"),
    pytest.param(
        lambda: encoder() | {"encoder": {**encoder()["encoder"], "type_vocab_size": 2}},
        "token_types = { type_vocab_size",
        id="segments",
    ),
]


@pytest.mark.parametrize(("table", "now"), RENAMED)
def test_a_field_under_its_old_name_is_told_the_new_one(table: Any, now: str) -> None:
    with pytest.raises(ValidationError, match=f"this field was renamed; expected {now}"):
        ModelSpec.model_validate(table())
