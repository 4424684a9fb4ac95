"""Contract: for every part and example, closed form and PyTorch reference agree in parameters, FLOPs and cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llmcalc.components.added_position import AxialPositions, LearnedPositions, SinusoidalPositions
from llmcalc.components.base import Component, Nothing
from llmcalc.components.block_proposal import Proposal
from llmcalc.components.choices import CHANNEL_MIXERS, LAYERS, MIXERS, load_all_components
from llmcalc.components.classifier import Classifier
from llmcalc.components.contact_head import ContactHead
from llmcalc.components.disentangled import DisentangledScores, RelativeEmbedding, SideConvolution
from llmcalc.components.distance_bias import RelativeBias
from llmcalc.components.entities import Entities
from llmcalc.components.head import LMHead
from llmcalc.components.input_features import InputFeatures
from llmcalc.components.latent_head import LatentHead
from llmcalc.components.layers.block import Block, Layer
from llmcalc.components.layers.conformer import ConformerLayer
from llmcalc.components.layers.funnel_layer import FunnelAttention, FunnelLayer
from llmcalc.components.layers.global_local import GlobalLocalAttention, GlobalLocalLayer, GlobalTokens
from llmcalc.components.layers.looped_layer import LoopedAttention, LoopedLayer
from llmcalc.components.layers.reversible_layer import ReversibleLayer, ReversibleStreams
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.chunked_attention import ChunkedAttention
from llmcalc.components.mixers.context_attention import ContextAttention
from llmcalc.components.mixers.exclusive_attention import ExclusiveAttention
from llmcalc.components.mixers.fourier import FourierMixer
from llmcalc.components.mixers.grouped_projections import GroupedProjectionAttention
from llmcalc.components.mixers.latent_context import LatentContextAttention
from llmcalc.components.mixers.local_attention import LocalAttention
from llmcalc.components.mixers.merged_attention import MergedAttention
from llmcalc.components.mixers.ngram import NgramAttention, PredictStreams
from llmcalc.components.mixers.relative_attention import RelativeAttention
from llmcalc.components.mixers.sampled_blocks import SampledBlockAttention
from llmcalc.components.mixers.span_convolution import SpanConvolution
from llmcalc.components.multi_token_prediction import MultiTokenPrediction
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.ngram_embedding import NgramEmbedding
from llmcalc.components.norm import Norm
from llmcalc.components.pooler import Pooler
from llmcalc.components.projection_head import ProjectionHead
from llmcalc.components.relative_keys import RelativeKeyAttention, RelativeKeys
from llmcalc.components.stack import Stack
from llmcalc.components.stem import Stem
from llmcalc.components.target_states import TargetStates
from llmcalc.components.token_types import TokenTypes
from llmcalc.components.unused_modules import SecondStream, UnusedEmbedding
from llmcalc.model import ModelSpec
from llmcalc.witnesses.reference import verify_reference
from tests.builders import fields_of, parts_of, verbs_of
from tests.samples import sampled

HIDDEN = 24
FEED_FORWARD = FeedForward(intermediate_size=40, hidden_act="silu", gated=True)
ATTENTION = Attention(num_attention_heads=4, num_key_value_heads=2)
NORM = Norm(type="rmsnorm")
STACK_SLOTS = {
    "token_types": TokenTypes,
    "second_stream": SecondStream,
    "entities": Entities,
    "input_features": InputFeatures,
    "ngram_embedding": NgramEmbedding,
}
"""Field of a stack → the part that stands in it."""


def decoder(**fields: Any) -> ModelSpec:
    block = {"attention": ATTENTION, "feed_forward": FEED_FORWARD, "norm": NORM, "norm_placement": "pre"}
    whole = fields.pop("block", None)
    of_block = {k: fields.pop(k) for k in [*block, "parallel"] if k in fields}
    of_stack = {k: fields.pop(k) for k in ("position", "relative_bias", "final_norm", "embedding_norm") if k in fields}
    stack = Stack(num_hidden_layers=2, block=whole or Block(**{**block, **of_block}), **of_stack)
    return ModelSpec(
        **{"vocab_size": 50, "hidden_size": HIDDEN, "tie_word_embeddings": False, "decoder": stack, **fields}
    )


def encoder_decoder(block: Block) -> ModelSpec:
    encoder = block.model_copy(update={"cross_attention": None})
    return ModelSpec(
        vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=True,
        encoder=Stack(num_hidden_layers=2, block=encoder), decoder=Stack(num_hidden_layers=2, block=block),
    )  # fmt: skip


def local_encoder(attention: LocalAttention, bias: RelativeBias | None) -> ModelSpec:
    stack = Stack(
        num_hidden_layers=2,
        block=Block(attention=attention, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="pre"),
        relative_bias=bias,
    )
    return ModelSpec(vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, encoder=stack)


def encoder(**fields: Any) -> ModelSpec:
    stack = Stack(num_hidden_layers=2, **fields)
    return ModelSpec(vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, encoder=stack)


def encoder_with_keys(part: RelativeKeyAttention | RelativeKeys) -> ModelSpec:
    keys = RelativeKeys(max_distance=part.max_distance, head_dim=part.head_dim)
    attention = RelativeKeyAttention(num_attention_heads=4, head_dim=part.head_dim, max_distance=part.max_distance)
    attention = part if isinstance(part, RelativeKeyAttention) else attention
    block = Block(attention=attention, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="post")
    return encoder(block=block, relative_keys=keys)


def with_streams(part: NgramAttention | GlobalLocalAttention | GlobalLocalLayer) -> ModelSpec:
    """A small model with the part and the streams that it needs."""
    if isinstance(part, NgramAttention):
        block = Block(attention=part, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="pre")
        return decoder().model_copy(
            update={"decoder": Stack(num_hidden_layers=2, block=block, streams=PredictStreams(ngram=part.ngram))}
        )
    layer = part if isinstance(part, GlobalLocalLayer) else GlobalLocalLayer.examples()[0]
    attention = layer.attention if isinstance(part, GlobalLocalLayer) else part
    streams = GlobalTokens(num_global_tokens=attention.num_global_tokens, block_size=attention.block_size)
    stack = Stack(num_hidden_layers=2, block=layer.model_copy(update={"attention": attention}), streams=streams)
    return ModelSpec(vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, encoder=stack)


def looped_decoder(part: LoopedAttention | LoopedLayer) -> ModelSpec:
    """A decoder of two layers with the part, each of which runs in two loops."""
    layer = part if isinstance(part, LoopedLayer) else LoopedLayer.examples()[0].model_copy(update={"attention": part})
    loop = ("block", "other")
    stack = Stack(
        num_hidden_layers=4, block=layer, variants={"other": layer}, first_layers=(*loop, *loop), shared_layers=loop
    )
    return ModelSpec(vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, decoder=stack)


def reversible_decoder(part: ChunkedAttention | ReversibleLayer) -> ModelSpec:
    """A decoder of two reversible layers with the part."""
    layer = part if isinstance(part, ReversibleLayer) else ReversibleLayer.examples()[0]
    attention = layer.attention if isinstance(part, ReversibleLayer) else part
    streams = ReversibleStreams(block=attention.chunk_length, least=attention.chunk_length, norm=NORM)
    stack = Stack(num_hidden_layers=2, block=layer.model_copy(update={"attention": attention}), streams=streams)
    return ModelSpec(vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, decoder=stack)


def funnel_encoder(part: FunnelAttention | FunnelLayer) -> ModelSpec:
    """An encoder of two halvings, and a decoder, whose layers all have the part."""
    layer = part if isinstance(part, FunnelLayer) else FunnelLayer.examples()[0].model_copy(update={"attention": part})
    kinds: dict[str, dict[str, Any]] = {
        "first": {"ends_first_block": True},
        "halved": {"halves": True},
        "second": {"halvings": 1},
        "quartered": {"halves": True, "halvings": 1},
        "decoder": {"lengthens": True, "halvings": 2},
    }
    variants = {name: layer.model_copy(update=fields) for name, fields in kinds.items()}
    stack = Stack(
        num_hidden_layers=6,
        block=layer,
        variants=variants,
        first_layers=("first", "halved", "halved", "second", "quartered", "decoder"),
        shared_layers=("halved",),
    )
    return ModelSpec(vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, encoder=stack)


def around_a_model(part: Component) -> ModelSpec:
    """A small model that contains the part."""
    match part:
        case FeedForward():
            return decoder(feed_forward=part)
        case Attention():
            return decoder(attention=part)
        case (
            RelativeAttention()
            | FourierMixer()
            | ExclusiveAttention()
            | GroupedProjectionAttention()
            | SampledBlockAttention()
            | SpanConvolution()
        ):
            return encoder(block=Block(attention=part, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="post"))
        case RelativeKeyAttention() | RelativeKeys():
            return encoder_with_keys(part)
        case NgramAttention() | GlobalLocalAttention() | GlobalLocalLayer():
            return with_streams(part)
        case MergedAttention():
            both = encoder_decoder(Block.examples()[-1])
            block = Block(attention=part, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="pre")
            return both.model_copy(update={"decoder": Stack(num_hidden_layers=2, block=block)})
        case Norm():
            return decoder(norm=part, final_norm=part, embedding_norm=part)
        case ChunkedAttention() | ReversibleLayer():
            return reversible_decoder(part)
        case LearnedPositions() | SinusoidalPositions() | AxialPositions():
            return decoder(position=part)
        case RelativeBias():
            return local_encoder(LocalAttention.examples()[1], part) if part.of_blocks else decoder(relative_bias=part)
        case LocalAttention():
            bias = RelativeBias(
                num_attention_heads=part.num_attention_heads, of_blocks=part.global_block_size is not None
            )
            return local_encoder(part, None if part.global_norm is None else bias)
        case TokenTypes() | SecondStream() | InputFeatures() | NgramEmbedding() | Entities():
            slot = next(name for name, field in STACK_SLOTS.items() if isinstance(part, field))
            block = Block(attention=ATTENTION, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="post")
            return encoder(block=block, **{slot: part})
        case LatentHead():
            block = Block(attention=ATTENTION, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="post")
            return encoder(block=block).model_copy(update={"head": part})
        case SideConvolution():
            block = Block(attention=ATTENTION, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="post")
            return encoder(block=block, side_convolution=part)
        case RelativeEmbedding():
            position = DisentangledScores(max_relative_positions=part.span, within_sequence=part.norm is None)
            block = Block(
                attention=Attention(num_attention_heads=4, position=position),
                feed_forward=FEED_FORWARD,
                norm=NORM,
                norm_placement="post",
            )
            return encoder(block=block, relative_embedding=part)
        case Classifier() if part.over == "sequence":
            return decoder(head=part).model_copy(
                update={
                    "encoder": decoder().decoder,
                    "decoder": None,
                    "pooler": Pooler() if part.transform is None else None,
                }
            )
        case Pooler() | ContactHead():
            slot = "pooler" if isinstance(part, Pooler) else "contact_head"
            head = Classifier(num_labels=2) if isinstance(part, Pooler) and part.dense else LMHead()
            return decoder(head=head).model_copy(update={"encoder": decoder().decoder, "decoder": None, slot: part})
        case UnusedEmbedding():
            return decoder(unused_embedding=part)
        case ContextAttention() | LatentContextAttention():
            states = TargetStates(states=2, start="embedding", output_norm=NORM)
            block = Block(attention=part, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="pre")
            stack = Stack(num_hidden_layers=2, block=block, streams=states, final_norm=NORM)
            shared = ("embed_tokens", "lm_head")
            return ModelSpec(
                vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, decoder=stack, from_target=shared
            )
        case Proposal():
            return decoder(proposal=part)
        case MultiTokenPrediction():
            return decoder(mtp=part)
        case Stem():
            spec = encoder_decoder(Block.examples()[-1])
            assert spec.encoder is not None
            return spec.model_copy(update={"encoder": spec.encoder.model_copy(update={"stem": part})})
        case Block():
            return (
                encoder_decoder(part) if part.cross_attention and not part.idle_cross_attention else decoder(block=part)
            )
        case ConformerLayer():
            return encoder(block=part)
        case FunnelAttention() | FunnelLayer():
            return funnel_encoder(part)
        case LoopedAttention() | LoopedLayer():
            return looped_decoder(part)
        case Layer():
            return decoder(block=part)
        case Stack():
            return ModelSpec(vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, decoder=part)
    kind = type(part)
    if kind in MIXERS.load_component_classes():
        return decoder(attention=part)
    if kind in CHANNEL_MIXERS.load_component_classes():
        return decoder(feed_forward=part)
    return decoder(head=part)


def source_of(spec: ModelSpec, tokens: int) -> torch.Tensor | None:
    """The input of the encoder, if the model is an encoder-decoder."""
    if spec.kind != "encoder-decoder" or spec.encoder is None:
        return None
    return (
        torch.randint(0, spec.vocab_size, (2, tokens))
        if spec.encoder.stem is None
        else torch.randn(spec.encoder.stem.input_shape(2, tokens))
    )


EXAMPLES = [
    pytest.param(example, id=f"{part.__name__}-{i}")
    for part in (*load_all_components(), *LAYERS.load_component_classes(), Stack)
    for i, example in enumerate(part.examples())
]


@pytest.mark.parametrize(
    "example",
    sampled({str(p.id): p.values[0] for p in EXAMPLES}, lambda part: {type(part).__name__, *fields_of(part)}),
)
def test_reference_agrees_on_meta(example: Component) -> None:
    """Of the examples, a sample in which each field of a part has each of its values."""
    verdict = verify_reference(around_a_model(example), batch=2, seq=11)
    assert verdict.ok, verdict.failures


def is_causal(example: Any) -> bool:
    """Whether a token of the model around an example depends on earlier tokens alone, also within one pass."""
    recurs_in_a_block = isinstance(example, Proposal) and (example.markov == "rnn" or example.gru_size is not None)
    model = around_a_model(example)
    layer = model.main.block
    attends_to_block = getattr(layer.attention, "attends_to_whole_pass", False)
    sees_whole_pass = attends_to_block or recurs_in_a_block or getattr(example, "whole_pass", False)
    gives_further_rows = getattr(example, "ngram", 1) > 1  # the logits of each predict stream
    return not model.one_pass_model_name and not sees_whole_pass and not gives_further_rows


CAUSAL = [p for p in EXAMPLES if is_causal(p.values[0])]


def computed(example: Component) -> set[Any]:
    """A part's class with the kinds of the parts in it, and the verbs of a small model around it."""
    return {type(example).__name__, *parts_of(example), *verbs_of(around_a_model(example))}


COMPUTED = sampled({str(p.id): p.values[0] for p in CAUSAL}, computed)


@pytest.mark.parametrize("example", COMPUTED)
def test_decoding_from_the_cache_gives_the_full_pass(example: Component) -> None:
    """The reference computes the same outputs token by token as in one pass, so it is a working model and not only its
    shapes.
    """
    torch.manual_seed(0)
    spec = around_a_model(example)
    net = spec.reference().eval()
    ids = torch.randint(0, spec.vocab_size, (2, 13))
    source = source_of(spec, 7)
    with torch.no_grad():
        at_once = net(ids, source)
        store: dict[torch.nn.Module, Any] = {}
        pieces = [net(ids[:, :4], source, cached_tensors=store)]
        pieces += [net(ids[:, i : i + 1], cached_tensors=store, past=i) for i in range(4, 13)]
    proposed = spec.vocab_size if not isinstance(spec.head, LMHead) else spec.head.draft_vocab_size or spec.vocab_size
    sizes = {Classifier: "num_labels", ProjectionHead: "size"}
    proposed = getattr(spec.head, sizes.get(type(spec.head), ""), proposed)
    assert at_once.shape == (2, 13, proposed)
    torch.testing.assert_close(torch.cat(pieces, 1), at_once, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("example", COMPUTED)
def test_a_token_sees_only_those_before_it(example: Component) -> None:
    torch.manual_seed(0)
    spec = around_a_model(example)
    net = spec.reference().eval()
    ids = torch.randint(0, spec.vocab_size, (2, 12))
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % spec.vocab_size
    source = source_of(spec, 12)
    with torch.no_grad():
        torch.testing.assert_close(net(ids, source)[:, :-1], net(changed, source)[:, :-1])


def test_every_member_of_a_union_is_a_part_with_examples() -> None:
    for part in {*MIXERS.load_component_classes(), *CHANNEL_MIXERS.load_component_classes()} - {Nothing}:
        assert part in load_all_components()
        assert part.examples()  # type: ignore[attr-defined]


def test_training_reduces_the_loss() -> None:
    torch.manual_seed(0)
    spec = around_a_model(Attention.examples()[1])
    net = spec.reference()
    ids = torch.randint(0, spec.vocab_size, (4, 12))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
