"""FLOPs: hand arithmetic, masks counted pair by pair, and checkpointing as torch runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

import llmcalc
from llmcalc.components.base import Nothing
from llmcalc.components.choices import LAYERS, MIXERS
from llmcalc.components.layers.block import Block
from llmcalc.components.layers.looped_layer import LoopedLayer
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.chunked_attention import ChunkedAttention
from llmcalc.components.mixers.context_attention import ContextAttention
from llmcalc.components.mixers.latent_context import LatentContextAttention
from llmcalc.components.mixers.local_attention import LocalAttention
from llmcalc.components.mixers.merged_attention import MergedAttention
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.mixers.ngram import NgramAttention
from llmcalc.components.mixers.rwkv4 import RwkvChannelMix
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import Latent, MoE
from llmcalc.components.networks.product_key import ProductKeyMoE
from llmcalc.components.runtime import PassState
from llmcalc.components.stack import Stack
from llmcalc.costs.flops import FlopCount, flops, run_config_of
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.ops import AttentionCore
from llmcalc.witnesses.flop_counter import flop_counter
from llmcalc.witnesses.kernel_variants import SAVED_OPERATIONS, add_checkpoints
from llmcalc.workload.recompute import parse_recompute
from tests.builders import run_config, verbs_of
from tests.contracts.test_parts import around_a_model, decoder, encoder_decoder
from tests.samples import in_one_test, sampled

LAYER_PRODUCTS = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336  # q, o; k, v; gate, up, down of Llama 3 8B
LOGITS = 4096 * 128256


def llama(**settings: Any) -> FlopCount:
    return llmcalc.flops(llmcalc.load("llama3-8b"), **settings)


def counted(spec: ModelSpec, **settings: Any) -> FlopCount:
    return flops(spec, run_config_of(spec, **settings))


# Hand arithmetic


@pytest.mark.parametrize(("seq", "expected"), [(128, 1_929_782_493_184), (512, 7_822_209_187_840)])
def test_llama_forward(seq: int, expected: int) -> None:
    scores = 4 * seq * 4096  # per token and layer: 2·S·h for q·kᵀ, 2·S·h for p·v
    assert seq * (32 * (2 * LAYER_PRODUCTS + scores) + 2 * LOGITS) == expected
    count = llama(seq=seq)
    assert (count.total, count.full) == (expected, expected)
    assert count.scores == seq * 32 * scores
    assert count.causal == expected - 32 * 4 * 4096 * (seq * seq - seq * (seq + 1) // 2)


def test_a_training_step_is_three_forward_passes() -> None:
    forward, train = llama(batch=2, seq=64), llama(batch=2, seq=64, phase="training")
    assert train.total == 3 * forward.total
    assert (train.forward, train.backward) == (forward.total, 2 * forward.total)


def test_flash_backward_is_two_and_a_half_times_its_forward() -> None:
    eager, flash = (llama(seq=64, phase="training", attn_implementation=kind) for kind in ("eager", "flash"))
    scores = 32 * 4 * 64 * 64 * 4096
    assert eager.scores == 3 * scores
    assert flash.scores == scores + scores * 5 // 2
    assert flash.total - eager.total == scores // 2


def test_decode_and_prefill() -> None:
    products = 2 * 32 * LAYER_PRODUCTS
    decode = llama(phase="decode", context=1000, batch=3)
    assert decode.total == 3 * (products + 32 * 4 * 1001 * 4096 + 2 * LOGITS)  # 1000 cached tokens and the token itself
    assert decode.causal == decode.full
    prefill = llama(phase="prefill", seq=1000)
    assert prefill.total == 1000 * (products + 32 * 4 * 1000 * 4096) + 2 * LOGITS  # logits once
    assert prefill.tokens == 1000


def test_decode_takes_seq_as_the_context_where_that_alone_is_given() -> None:
    assert llama(phase="decode", seq=77).workload == llama(phase="decode", context=77).workload
    assert llama(phase="decode", seq=77).workload.seq == 1
    assert llama(phase="decode", seq=1, context=77).workload.context == 77


def test_latent_attention_reads_the_latent_while_decoding() -> None:
    """Each of 128 heads: 512 + 64 for the scores, 512 for the values, in 61 layers."""
    v3 = llmcalc.load("deepseek-v3")
    assert llmcalc.flops(v3, phase="decode", context=99).scores == 61 * 128 * 2 * 100 * (576 + 512)
    assert llmcalc.flops(v3, seq=100).scores == 61 * 128 * 2 * 100 * 100 * (192 + 128)  # expanded in a full pass


def test_latent_attention_in_both_forms_on_top_of_a_context() -> None:
    """4,096 tokens after a number of cached ones.

    Expanded: the 128 heads have keys of 192 and values of 128, which kv_b_proj computes from cached and new latents.
        Absorbed: keys of 576 and values of 512, and kv_b_proj runs for the new tokens only.
    """
    whole = llmcalc.flops("deepseek-v3", phase="prefill", seq=4096)
    kv_b = 61 * 2 * 512 * 128 * (128 + 128)  # per latent
    for past in (1, 300):
        expanded, absorbed = (
            llmcalc.flops("deepseek-v3", phase="prefill", seq=4096, context=past, mla=form)
            for form in ("expanded", "absorbed")
        )
        pairs = 4096 * (past + 4096)
        assert expanded.scores == 61 * 128 * 2 * pairs * (192 + 128)
        assert absorbed.scores == 61 * 128 * 2 * pairs * (576 + 512)
        assert expanded.total - whole.total == expanded.scores - whole.scores + past * kv_b
        assert absorbed.total - whole.total == absorbed.scores - whole.scores
        assert llmcalc.flops("deepseek-v3", phase="prefill", seq=4096, context=past).total == expanded.total
    decode = {form: llmcalc.flops("deepseek-v3", phase="decode", context=99, mla=form) for form in ("expanded", "auto")}
    assert decode["expanded"].scores == 61 * 128 * 2 * 100 * (192 + 128)
    products = {form: count.total - count.scores for form, count in decode.items()}
    assert products["expanded"] - products["auto"] == 99 * kv_b


def test_prediction_modules_count_where_they_are_asked_for(run: Any) -> None:
    """DeepSeek-V3's MTP module: a projection of two vectors to one, a layer with 9 of 257 experts, and the output
    projection.
    """
    tokens, h, latent = 100, 7168, 512
    attention = h * 1536 + 1536 * 128 * 192 + h * (latent + 64) + latent * 128 * (128 + 128) + 128 * 128 * h
    scores = tokens * 128 * (192 + 128)
    module = 2 * h * h + attention + scores + 256 * h + 9 * 3 * h * 2048 + 129280 * h
    without, with_mtp = (llmcalc.flops("deepseek-v3", seq=tokens, with_mtp=asked) for asked in (False, True))
    assert with_mtp.total - without.total == 2 * tokens * module
    assert sum(with_mtp.by_component.values()) == with_mtp.total
    words = ("flops", "deepseek-v3", "--seq", str(tokens), "--format", "json")
    for more, count in (((), without), (("--with-mtp",), with_mtp)):
        assert run(*words, *more).document["flops"]["total"] == count.total


def test_components_add_up() -> None:
    count = llama(seq=32, phase="training", recompute="full", pairs="causal")
    assert sum(count.by_component.values()) == count.total == count.causal < count.full
    assert count.total == count.forward + count.backward + count.recomputed


def test_chunks_of_a_prefill_see_all_pairs_of_the_whole() -> None:
    whole = llama(phase="prefill", seq=300)
    parts = [llama(phase="prefill", seq=100, context=past) for past in (0, 100, 200)]
    assert sum(p.causal for p in parts) - 2 * 2 * LOGITS == whole.causal  # each chunk computes one more row of logits


def test_an_encoder_decoder_reads_its_source() -> None:
    spec = encoder_decoder(Block.examples()[-1])
    assert counted(spec, seq=10).total == counted(spec, seq=10, source=10).total
    longer = counted(spec, seq=10, source=30)
    assert longer.workload.source == 30
    assert longer.total > counted(spec, seq=10).total
    assert counted(spec, seq=10, phase="decode").workload.source == 10
    with pytest.raises(InputError, match="--source"):
        llama(seq=10, source=30)


@in_one_test
@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"phase": "decode", "context": 0}, "--context"),
        ({"phase": "decode", "context": 9, "seq": 4}, "--seq"),
        ({"phase": "forward", "seq": 4, "context": 9}, "--context"),
        ({"phase": "prefill", "seq": 4, "recompute": "full"}, "--recompute"),
        ({"phase": "forward", "seq": 4, "attn_implementation": "flash"}, "--attn-implementation"),
        ({"phase": "training", "seq": 4, "recompute": "some"}, "--recompute some: not known"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        llama(**settings)


def test_an_encoder_does_not_decode() -> None:
    block = decoder().decoder.block
    encoder = ModelSpec(
        vocab_size=50, hidden_size=24, tie_word_embeddings=False, encoder=Stack(num_hidden_layers=1, block=block)
    )
    assert counted(encoder, seq=5).causal == counted(encoder, seq=5).full  # nothing is masked
    with pytest.raises(InputError, match="encoder-only"):
        counted(encoder, seq=1, context=5, phase="decode")


# Pairs, against masks counted pair by pair


def visible(query: int, key: int, causal: bool, window: int | None, chunk: int | None) -> bool:
    """Whether a token attends to another, from the definitions of windows and chunks."""
    if not causal:
        return window is None or key in range(query - (window - 1) // 2, query + window // 2 + 1)
    return (
        key <= query and (window is None or query - key < window) and (chunk is None or query // chunk == key // chunk)
    )


sizes = st.integers(1, 14)
drawn = settings(deadline=None, derandomize=True)


@drawn
@given(seq=sizes, context=st.integers(0, 14), limit=st.sampled_from(["", "window", "chunk"]), size=sizes)
def test_causal_pairs(seq: int, context: int, limit: str, size: int) -> None:
    limits = {"window": None, "chunk": None} | ({limit: size} if limit else {})
    core = AttentionCore(1, 1, 1, **limits)
    mask = [
        (q, k) for q in range(context, context + seq) for k in range(context + seq) if visible(q, k, True, **limits)
    ]
    workload = run_config(seq=seq, context=context, phase="prefill", pairs="causal")
    assert core.pairs(workload) == len(mask)
    assert len(mask) <= core.pairs(workload.with_pairs("full")) <= seq * (context + seq)


@drawn
@given(seq=sizes, window=st.none() | sizes)
def test_pairs_of_an_encoder(seq: int, window: int | None) -> None:
    core = AttentionCore(1, 1, 1, causal=False, window=window)
    mask = [(q, k) for q in range(seq) for k in range(seq) if visible(q, k, False, window, None)]
    assert core.pairs(run_config(seq=seq, pairs="causal")) == len(mask)
    assert core.pairs(run_config(seq=seq, pairs="full")) == seq * seq


@drawn
@given(seq=sizes, context=sizes, window=sizes)
def test_full_pairs_are_those_with_every_key_in_memory(seq: int, context: int, window: int) -> None:
    """A window of W keeps the W − 1 context tokens that the first new token can attend to."""
    kept = [k for k in range(context) if visible(context, k, True, window, None)]
    assert AttentionCore(1, 1, 1, window=window).pairs(run_config(seq=seq, context=context)) == seq * (len(kept) + seq)


# Recomputation, against torch.utils.checkpoint

SWIGLU = FeedForward(intermediate_size=12, hidden_act="silu", gated=True)
CHECKPOINTED = {
    **{f"block-{i}": around_a_model(block) for i, block in enumerate(Block.examples())},
    **{f"moe-{i}": decoder(feed_forward=part) for i, part in enumerate(MoE.examples())},
    **{
        f"{layer.__name__}-{i}": around_a_model(part)
        for layer in (*LAYERS.load_component_classes(), Stack)
        if layer is not Block
        for i, part in enumerate(layer.examples())
    },
    **{
        f"{mixer.__name__}-{at}-alone": decoder(attention=mixer.examples()[at], feed_forward=Nothing())
        for mixer in MIXERS.load_component_classes()
        if "decoder" in getattr(mixer, "allowed_stacks", ())
        if mixer not in (MergedAttention, ContextAttention, LatentContextAttention, NgramAttention, ChunkedAttention)
        for at in dict.fromkeys((0, len(mixer.examples()) - 1))
    },
    **{f"merged-{i}": around_a_model(part) for i, part in enumerate(MergedAttention.examples())},
    **{f"ngram-{i}": around_a_model(part) for i, part in enumerate(NgramAttention.examples())},
    "local": around_a_model(LocalAttention.examples()[0]),
    "product keys": decoder(feed_forward=ProductKeyMoE.examples()[0]),
    **{f"channel-{i}": decoder(feed_forward=part) for i, part in enumerate(RwkvChannelMix.examples())},
    "moe-latent": decoder(
        feed_forward=MoE(num_experts=4, num_experts_per_tok=2, expert=SWIGLU, latent=Latent(moe_latent_size=10))
    ),
    "moe-shared": decoder(feed_forward=MoE(num_experts=4, num_experts_per_tok=2, expert=SWIGLU, shared_expert=SWIGLU)),
    "mla": decoder(attention=MLA.examples()[1]),
    "window": decoder(attention=Attention(num_attention_heads=4, sliding_window=5)),
}


READ = ("encoder_output", "first_layer_input", "per_layer_embeddings")
"""Tensors with a gradient that layers read in addition to the residual."""


class Checkpointed(torch.nn.Module):
    """A layer whose activations are recomputed.

    Other tensors with a gradient that it reads are also inputs, so that their gradient arrives once. Outputs of lower
    layers are among them, as Funnel's decoder reads that of the first block.
    """

    def __init__(self, layer: torch.nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def forward(self, x: torch.Tensor, run: PassState) -> Any:
        outputs = {
            key: y for key, y in run.shared_values.items() if isinstance(y, torch.Tensor) and y.grad_fn is not None
        }

        def through(x: torch.Tensor, *read: torch.Tensor | None) -> Any:
            x = (
                x if torch.is_grad_enabled() else x.detach()
            )  # otherwise the counter would look for the gradient function of its slices
            run.shared_values.update(zip(outputs, read[len(READ) :], strict=True))
            return self.layer(x, replace(run, **dict(zip(READ, read[: len(READ)], strict=True))))

        inputs = (x, *(getattr(run, name) for name in READ), *outputs.values())
        return checkpoint(through, *inputs, use_reentrant=self.reentrant, preserve_rng_state=False)


def measured_training_step(spec: ModelSpec, batch: int, seq: int, reentrant: bool) -> int:
    """Returns torch's count of a step on meta with every layer recomputed. reentrant: the kind of checkpointing."""
    with torch.device("meta"):
        net = spec.reference()
    for stack in [net] if spec.kind != "encoder-decoder" else [net.encoder, net.decoder]:
        for i, layer in enumerate(stack.layers):
            stack.layers[i] = Checkpointed(layer, reentrant)
    ids = torch.empty(batch, seq, dtype=torch.long, device="meta")
    source = ids if spec.kind == "encoder-decoder" else None
    with flop_counter() as counter:
        net(ids, source).float().sum().backward()
    return counter.get_total_flops()


def shares_entries(spec: ModelSpec) -> bool:
    """Whether layers read entries of lower layers, which would be those of later ones when they run again."""
    blocks = (block for _, stack in spec.stacks() for _, block, _, _ in stack.layer_groups())
    return any(getattr(block.attention, "entries_shared", False) for block in blocks)


@pytest.mark.parametrize(
    "name",
    sampled(
        {name: name for name in CHECKPOINTED if not shares_entries(CHECKPOINTED[name])},
        lambda name: verbs_of(CHECKPOINTED[name]),
    ),
)
def test_recompute_full_is_reentrant_checkpointing(name: str) -> None:
    spec = CHECKPOINTED[name]
    count = counted(spec, batch=2, seq=7, phase="training", recompute="full")
    blocks = [block for _, stack in spec.stacks() for _, block, _, _ in stack.layer_groups()]
    if not any(getattr(block.attention, "kv_shared", False) or isinstance(block, LoopedLayer) for block in blocks):
        # (it cannot pass the gradient of keys and values between layers)
        assert measured_training_step(spec, 2, 7, reentrant=True) == count.total
    assert measured_training_step(spec, 2, 7, reentrant=False) == count.total - count.skipped_by_early_stop


@pytest.mark.parametrize(
    "mode", ["every:2", "every:3", "but-every:3", "attention", "attention+matmuls", "nodes:self_attn,mlp"]
)
@pytest.mark.parametrize("number", [0, 1, 3, 12])
def test_other_modes_recompute_what_torch_does(mode: str, number: int) -> None:
    """Of three layers; without reentrance, which stops early."""
    example = around_a_model(Block.examples()[number])
    spec = example.model_copy(update={"decoder": example.main.model_copy(update={"num_hidden_layers": 3})})
    count = counted(spec, batch=2, seq=7, phase="training", recompute=mode)
    with torch.device("meta"):
        net = spec.reference()
    add_checkpoints(net, parse_recompute(mode))
    with flop_counter() as counter:
        net(torch.empty(2, 7, dtype=torch.long, device="meta"), None).float().sum().backward()
    assert counter.get_total_flops() == count.total - count.skipped_by_early_stop
    assert (count.recomputed == 0) == (mode == "attention+matmuls")


def test_the_saved_operations_are_those_with_flops() -> None:
    """The products and kernels for which torch has a formula, and the product of experts, for which it has none."""
    counted_by_torch = {name for name, op in SAVED_OPERATIONS.items() if op._overloadpacket in flop_registry}
    assert parse_recompute("attention+matmuls").saved_operations == counted_by_torch | {"grouped_mm"}


def test_a_module_that_no_layer_has_is_refused() -> None:
    with pytest.raises(InputError, match="--recompute nodes:attn: no layer has that module"):
        _ = counted(CHECKPOINTED["block-0"], seq=7, phase="training", recompute="nodes:attn").total


def test_what_early_stopping_skips_is_not_always_nothing() -> None:
    saved = {
        name: counted(spec, batch=2, seq=11, phase="training", recompute="full").skipped_by_early_stop
        for name, spec in CHECKPOINTED.items()
    }
    assert saved["block-0"] == 2 * (2 * 22 * 40 * 24)  # the down projection, 40 → 24, of 22 tokens in each of 2 layers
    assert saved["block-1"] == saved["moe-0"] == 0  # a norm, and a weighted sum, need all products before them
    assert saved["moe-shared"] == 2 * (2 * 22 * 12 * 24)
    assert counted(CHECKPOINTED["block-0"], seq=11, phase="training").skipped_by_early_stop == 0


# The command


def test_json(run: Any) -> None:
    code, out, err = run("flops", "llama3-8b", "gpt2", "--seq", "512", "--pairs", "causal", "--format", "json")
    documents = json.loads(out)
    assert (code, err) == (0, "")
    assert [d["model"]["name"] for d in documents] == ["llama3-8b", "gpt2"]
    found = documents[0]["flops"]
    assert found["full"] == 7_822_209_187_840
    assert found["total"] == found["causal"] == sum(found["by_component"].values()) == documents[0]["tree"]["flops"]
    assert found["per_token"] == found["total"] / 512
    assert documents[0]["workload"]["seq"] == 512
    assert "conventions" not in found


def test_every_level_of_the_tree_adds_up(run: Any) -> None:
    def check(node: dict[str, Any]) -> int:
        """Returns the number of nodes in this tree, itself included, that are sums."""
        inside = [c for c in node.get("children", ()) if not c.get("optional")]
        if inside:
            assert sum(c["flops"] for c in inside) == node.get("flops_each", node["flops"])
        return bool(inside) + sum(check(child) for child in inside)

    for target in ("t5-base", "deepseek-v3"):
        _, out, _ = run("flops", target, "--seq", "64", "--phase", "training", "--format", "json")
        assert check(json.loads(out)["tree"]) > 8


@pytest.mark.parametrize(
    "words",
    [(), ("--phase", "training", "--recompute", "full", "--conventions"), ("--phase", "decode", "--batch", "64")],
)
def test_the_table_says_it_in_eighty_columns(run: Any, words: tuple[str, ...]) -> None:
    code, out, _ = run("flops", "llama3-8b", "deepseek-v3", *words, "--notes")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    for text in ("total, full pairs", "total, causal pairs", "1 multiply-add = 2 FLOPs", "TFLOPs"):
        assert text in out
    assert ("recomputation" in out) == ("--recompute" in words)
    assert ("one new token of each sequence after 2,048 in its cache" in " ".join(out.split())) == ("decode" in words)


def test_more_tokens_than_positions_are_said_in_every_format(run: Any) -> None:
    for fmt in ("table", "json", "markdown", "csv"):
        _, out, err = run("flops", "gpt2", "--format", fmt, "--seq", "2048")
        assert "1,024 learned positions" in " ".join((err if fmt == "csv" else out).split())
        _, out, err = run("flops", "gpt2", "--format", fmt, "--seq", "1024")
        assert "learned positions" not in out + err


@pytest.mark.parametrize(
    "words", [("--phase", "sideways"), ("--seq", "0"), ("--source", "4"), ("--phase", "decode", "--context", "0")]
)
def test_bad_usage_is_one_line_and_exit_code_2(run: Any, words: tuple[str, ...]) -> None:
    assert run("flops", "llama3-8b", *words).error


def test_scores_of_an_indexer_stand_apart(run: Any) -> None:
    """DeepSeek-V3.2 scores all 1,001 tokens in 61 layers with 64 heads of 128, and sums the heads by weights."""
    _, out, _ = run("flops", "deepseek-v3.2", "--phase", "decode", "--context", "1000", "--format", "csv")
    rows = {line.split(",")[1].removeprefix("attention / "): float(line.split(",")[3]) for line in out.splitlines()[1:]}
    assert rows["scores of the indexer"] == 61 * 2 * 64 * (128 + 1) * 1001
    assert rows["projections"] + rows["scores"] + rows["scores of the indexer"] == rows["attention"]


def test_an_encoders_prefill_is_its_one_pass() -> None:
    forward, prefill = (llmcalc.flops("bge-m3", seq=64, phase=phase) for phase in ("forward", "prefill"))
    assert forward.total == prefill.total
    with pytest.raises(InputError, match="--context: an encoder-only model keeps no cache; expected none"):
        llmcalc.flops("bge-m3", seq=64, phase="prefill", context=8)
