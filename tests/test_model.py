"""Whole models: every combination of the parts around the layers agrees with a model that runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llmcalc.components.added_position import LearnedPositions, SinusoidalPositions
from llmcalc.components.classifier import Classifier
from llmcalc.components.distance_bias import RelativeBias
from llmcalc.components.head import LMHead
from llmcalc.components.head_transform import Transform
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.multi_token_prediction import MultiTokenPrediction
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.components.networks.router import LinearRouter
from llmcalc.components.no_head import NoHead
from llmcalc.components.norm import Norm
from llmcalc.components.pooler import Pooler
from llmcalc.components.rope import Rope
from llmcalc.components.stack import Stack
from llmcalc.components.token_types import TokenTypes
from llmcalc.components.unused_modules import UnusedEmbedding
from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.flow.tree import index_ranges
from llmcalc.model import ModelSpec
from llmcalc.sources.files import validate
from llmcalc.witnesses.reference import verify_reference
from tests.builders import recorded
from tests.samples import sampled

RMS, LAYERNORM = Norm(type="rmsnorm"), Norm(type="layernorm")
ATTENTION = Attention(num_attention_heads=4, num_key_value_heads=2, position=Rope())
SWIGLU = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
BLOCK = Block(attention=ATTENTION, feed_forward=SWIGLU, norm=RMS, norm_placement="pre")
SPARSE = BLOCK.model_copy(
    update={
        "feed_forward": MoE(
            num_experts=4, num_experts_per_tok=2, expert=SWIGLU, router=LinearRouter(score_correction="buffer")
        )
    }
)
WINDOWED = BLOCK.model_copy(update={"attention": ATTENTION.model_copy(update={"sliding_window": 4})})
CROSSED = BLOCK.model_copy(update={"cross_attention": Attention(num_attention_heads=4)})
POSTNORM = Block(
    attention=Attention(num_attention_heads=4, q_bias=True), feed_forward=SWIGLU, norm=LAYERNORM, norm_placement="post"
)


def spec(**fields: Any) -> ModelSpec:
    base: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "tie_word_embeddings": True}
    if not {"encoder", "decoder"} & set(fields):
        base["decoder"] = Stack(num_hidden_layers=2, block=BLOCK, final_norm=RMS)
    return ModelSpec(**{**base, **fields})


def both(block: Block, **fields: Any) -> dict[str, Stack]:
    return {
        "encoder": Stack(num_hidden_layers=2, block=BLOCK, **fields),
        "decoder": Stack(num_hidden_layers=3, block=block, **fields),
    }


DENSE_THEN_SPARSE = Stack(
    num_hidden_layers=5,
    block=BLOCK,
    variants={"dense": BLOCK, "sparse": SPARSE},
    first_layers=("dense",),
    pattern=("sparse",),
)
ALTERNATING = Stack(
    num_hidden_layers=5, block=BLOCK, variants={"window": WINDOWED}, pattern=("window", "window", "block")
)

MODELS = {
    "tied": spec(),
    "untied with a bias": spec(tie_word_embeddings=False, head=LMHead(bias=True)),
    "tied with a bias": spec(head=LMHead(bias=True)),
    "no head": spec(head=NoHead()),
    "a table that nothing reads": spec(**both(CROSSED, final_norm=RMS), unused_embedding=UnusedEmbedding()),
    "a score of each sequence beside the head": spec(pooler=Pooler(dense=False, num_labels=1)),
    "cross-attention that never runs": spec(
        decoder=Stack(num_hidden_layers=2, block=CROSSED.model_copy(update={"idle_cross_attention": True}))
    ),
    "factorised embedding, tied": spec(embedding_size=6),
    "factorised embedding, untied, biased": spec(
        embedding_size=6, tie_word_embeddings=False, embedding_projection_bias=True
    ),
    "factorised embedding, without a head": spec(embedding_size=6, head=NoHead()),
    "factorised embedding under a classifier": spec(embedding_size=6, head=Classifier(num_labels=3, over="token")),
    "factorised embedding under a transform": spec(embedding_size=6, head=LMHead(bias=True, transform=Transform())),
    "dense, then sparse": spec(decoder=DENSE_THEN_SPARSE),
    "alternating windows": spec(decoder=ALTERNATING),
    "two prediction modules": spec(
        decoder=DENSE_THEN_SPARSE, tie_word_embeddings=False, mtp=MultiTokenPrediction(num_nextn_predict_layers=2)
    ),
    "a prediction module of another kind, tied": spec(
        decoder=DENSE_THEN_SPARSE, mtp=MultiTokenPrediction(num_nextn_predict_layers=1, layer="dense")
    ),
    "encoder with segments, pooler and transform": spec(
        encoder=Stack(
            num_hidden_layers=2,
            block=POSTNORM,
            position=LearnedPositions(max_position_embeddings=80),
            token_types=TokenTypes(type_vocab_size=2, task_type_vocab_size=3),
            embedding_norm=LAYERNORM,
        ),
        head=LMHead(bias=True, transform=Transform()),
        pooler=Pooler(),
    ),
    "encoder with a pooler and no head": spec(
        encoder=Stack(num_hidden_layers=1, block=POSTNORM, position=SinusoidalPositions()),
        head=NoHead(),
        pooler=Pooler(),
    ),
    "encoder of windows": spec(encoder=Stack(num_hidden_layers=2, block=WINDOWED)),
    "encoder-decoder": spec(**both(CROSSED, final_norm=RMS)),
    "encoder-decoder with positions": spec(
        **both(CROSSED, position=LearnedPositions(max_position_embeddings=80, offset=2), embedding_norm=LAYERNORM)
    ),
    "encoder-decoder with one table of positions": spec(
        **both(CROSSED, position=LearnedPositions(max_position_embeddings=80)), shared_positions=True
    ),
    "encoder-decoder with relative bias": spec(
        **both(CROSSED, relative_bias=RelativeBias(num_attention_heads=4)), tie_word_embeddings=False
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_agrees_on_meta(name: str) -> None:
    verdict = verify_reference(MODELS[name], batch=2)
    assert verdict.ok, verdict.failures[:5]


@pytest.mark.parametrize("name", sampled({name: name for name in MODELS}, lambda name: [MODELS[name].kind]))
def test_it_agrees_on_a_cpu(name: str) -> None:
    verdict = verify_reference(MODELS[name], device="cpu", batch=2, seq=14)
    assert verdict.ok, verdict.failures[:5]
    assert verdict.info["measured"]["flops_per_second"] > 0


@pytest.mark.parametrize("name", MODELS)
def test_it_runs(name: str) -> None:
    model = MODELS[name]
    net = model.reference()
    ids = torch.randint(0, 40, (3, 9))
    out = net(ids, torch.randint(0, 40, (3, 5)) if model.kind == "encoder-decoder" else None)
    width = {"lm": 40, "classification": getattr(model.head, "num_labels", 0), "none": model.embedding_size or 16}[
        model.head.type
    ]
    assert out.shape == (3, 9, width)
    assert out.isfinite().all()


def test_an_encoder_reads_both_ways() -> None:
    torch.manual_seed(0)
    net = MODELS["encoder with segments, pooler and transform"].reference().eval()
    ids = torch.randint(0, 40, (1, 8))
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % 40
    assert not torch.allclose(net(ids)[:, 0], net(changed)[:, 0])


def test_tied_weights_are_one_tensor() -> None:
    net = MODELS["two prediction modules"].reference()
    assert net.mtp[0].lm_head.weight is net.lm_head.weight  # type: ignore[union-attr, index]
    assert MODELS["tied"].reference().lm_head.weight is not MODELS["tied"].reference().lm_head.weight  # type: ignore[union-attr]
    tied = MODELS["tied"].reference()
    assert tied.lm_head.weight is tied.embed_tokens.weight  # type: ignore[union-attr]


def test_layers_stand_where_the_pattern_says() -> None:
    assert DENSE_THEN_SPARSE.layer_names() == ["dense", "sparse", "sparse", "sparse", "sparse"]
    assert ALTERNATING.layer_names() == ["window", "window", "block", "window", "window"]
    assert [(name, which) for name, _, _, which in ALTERNATING.layer_groups()] == [
        ("window", [0, 1, 3, 4]),
        ("block", [2]),
    ]
    tree = recorded(ALTERNATING, 16)
    assert [node.path_segment for node in tree.children] == ["layers.{0-1,3-4}", "layers.2"]


def test_spans() -> None:
    assert [index_ranges(x) for x in ([3], range(4), [0, 1, 5], [0, 2, 4, 6])] == ["3", "0-3", "{0-1,5}", "0..6/2"]


def test_optional_parts_are_left_out_of_totals_unless_asked_for() -> None:
    model = MODELS["two prediction modules"]
    without, with_ = params(model), params(model, frozenset({"mtp"}))
    # two norms, a projection from 2h to h, a sparse layer (4·16·8 + 4·16·8 + ... counted by its own node), a norm; no
    # separate head
    assert with_.total - without.total == without.left_out["mtp"]
    assert without.left_out["mtp"] == 2 * (3 * 16 + 2 * 16 * 16 + recorded(SPARSE, 16).total(lambda use: use.params()))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"decoder": None}, "decoder: a model has a decoder, an encoder or both"),
        ({"hidden_size": 18}, "num_attention_heads: 4 does not divide hidden_size 18"),
        ({"mtp": {"num_nextn_predict_layers": 1, "layer": "x"}}, "mtp.layer: there is no layer called 'x'"),
        (
            {"head": {"type": "none"}, "mtp": {"num_nextn_predict_layers": 1}},
            "mtp: multi-token prediction stands on a decoder",
        ),
        (
            {"decoder": Stack(num_hidden_layers=1, block=CROSSED).model_dump()},
            "cross_attention: only the decoder of an encoder-decoder has one",
        ),
        (
            {"encoder": Stack(num_hidden_layers=1, block=BLOCK).model_dump()},
            "decoder.block.cross_attention: an encoder-decoder needs one",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(table: dict[str, Any], message: str) -> None:
    base = spec().model_dump()
    with pytest.raises(InputError) as error:
        validate(ModelSpec, {**base, **table}, "x")
    assert message in str(error.value)
