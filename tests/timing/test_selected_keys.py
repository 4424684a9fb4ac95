"""Attention to selected keys: what an indexer and the attention after it compute and read, and how they are priced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llmcalc.model import ModelSpec
from llmcalc.sources.hardware import load_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.timing.device import device_of
from llmcalc.timing.inference import prefill
from llmcalc.timing.kernels import Kernel, RankPass
from llmcalc.timing.time_estimator import TimeEstimator, _copies_per_domain
from llmcalc.timing.timing_constants import software_stacks
from llmcalc.timing.work_recorder import rank_work

LATENT, ROTARY, SELECTED = 512, 64, 2048
"""DeepSeek-V3.2: widths of the cached latent and of the rotary key, and tokens that its indexer selects."""

INDEX_HEADS, INDEX_WIDTH = 64, 128


def spec(name: str = "deepseek-v3.2") -> ModelSpec:
    return load_preset(name).model


def kernels(rank_pass: RankPass, verb: str, name: str = "deepseek-v3.2") -> Iterator[Kernel]:
    """The kernels of a verb in the first kind of layer."""
    return (
        kernel
        for kernel in rank_work(spec(name), rank_pass).kernels
        if (kernel.layer_kind_index, kernel.step_verb) == (0, verb)
    )


@pytest.mark.parametrize("context", [1023, 8191, 131071])
def test_a_token_reads_all_keys_of_the_indexer_and_the_selected_latents(context: int) -> None:
    token = RankPass(3, 1, context, "decode")
    (scores,), (attention,) = kernels(token, "scores"), kernels(token, "attention")
    assert scores.cache_elements == 3 * (context + 1) * INDEX_WIDTH
    assert attention.cache_elements == 3 * min(context + 1, SELECTED) * (LATENT + ROTARY)
    assert scores.flops[0] == 3 * 2 * (context + 1) * INDEX_HEADS * (INDEX_WIDTH + 1)


def test_layers_that_reuse_a_selection_read_no_more() -> None:
    """GLM-5.2: most layers have no indexer of their own."""
    work = rank_work(spec("glm-5.2"), RankPass(1, 1, 65535, "decode"))
    cores = [kernel.cache_elements for kernel in work.kernels if kernel.step_verb == "attention"]
    assert len(cores) > 2
    assert set(cores) == {SELECTED * (LATENT + ROTARY)}


def test_attention_with_one_softmax_over_tokens_and_entries_keeps_its_scores() -> None:
    """DeepSeek-V4: a window of 128 tokens, and entries of four tokens each of which 512 are selected, 512 wide."""
    work = rank_work(spec("deepseek-v4-flash"), RankPass(1, 1, 131071, "decode"))
    sparse = next(kernel.layer_kind_index for kernel in work.kernels if "entry_core" in kernel.path)
    reads = {
        kernel.path.rpartition("self_attn.")[2]: kernel.cache_elements
        for kernel in work.kernels
        if kernel.step_verb == "scores" and kernel.layer_kind_index == sparse
    }
    assert reads == {"core": 128 * 512, "entry_core": 512 * 512, "indexer.core": 131072 // 4 * 128}
    assert {kernel.kind for kernel in work.kernels if kernel.step_verb == "scores"} == {"attention", "scores"}
    widest = max(kernel.moved_elements[0] for kernel in work.kernels if kernel.kind == "elementwise")
    assert widest < 64 * 131072  # no values of 64 heads and all pairs leave the kernel
    eager = rank_work(spec("deepseek-v4-flash"), RankPass(1, 1, 131071, "decode", fuses_elementwise=False))
    assert max(kernel.moved_elements[0] for kernel in eager.kernels if kernel.kind == "elementwise") > 64 * 131072


def seconds_by_kind(name: str, tokens: int, tp: int = 1) -> dict[str, float]:
    passes = TimeEstimator(
        device_of(load_hardware("h200")),
        software_stacks()["vllm"],
        formats(),
        RankPass(1, tokens, phase="prefill", tp=tp),
    )
    priced = passes.timed_pass(rank_work(spec(name), passes.rank_pass))
    seconds: dict[str, float] = {}
    for line in priced.operations:
        seconds[line.kind] = seconds.get(line.kind, 0) + float(
            line.runs_per_layer * line.seconds * priced.rank_work.layer_count(line.layer_kind_index)
        )
    return seconds


def formats() -> Any:
    from llmcalc.timing.time_estimator import NumberFormats

    return NumberFormats("fp8", 8, 16)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "recurrentgemma-2b", "deepseek-v4-flash"])
def test_products_are_not_priced_as_recurrences(name: str) -> None:
    """Scores, projections of groups and block-diagonal layers run on the units of products."""
    work = rank_work(spec(name), RankPass(1, 8192, phase="prefill"))
    verbs = {
        kernel.step_verb: kernel.kind
        for kernel in work.kernels
        if kernel.step_verb in ("scores", "per_group", "blocks")
    }
    assert verbs
    assert "scan" not in verbs.values()


def test_an_indexer_takes_less_than_a_third_of_a_prompt_of_32k_tokens() -> None:
    """vLLM 0.13 took 3.3 s for it on 8 H200 with all else (gpustack's rows); priced as a recurrence it took 6.8 s."""
    seconds = seconds_by_kind("deepseek-v3.2", 32768, tp=8)
    assert 0.3 < seconds["scores"] < 2.2


def test_servers_attend_to_selected_latents_in_prompts_too() -> None:
    """Query heads are then as wide as a latent with its rotary key, and FlashMLA's kernel pads them to 64."""
    expanded = RankPass(1, 4096, phase="prefill", tp=8)
    absorbed = RankPass(1, 4096, phase="prefill", tp=8, padded_sparse_heads=64)
    (of_expanded,), (of_absorbed,) = kernels(expanded, "attention"), kernels(absorbed, "attention")
    assert (of_expanded.key_width, of_expanded.k, of_expanded.head_padding_ratio) == (192, 128, 1)
    assert (of_absorbed.key_width, of_absorbed.k, of_absorbed.heads, of_absorbed.head_padding_ratio) == (
        576,
        512,
        16,
        4,
    )
    assert of_absorbed.flops[0] * (192 + 128) == of_expanded.flops[0] * (576 + 512)
    (dense,) = kernels(absorbed, "attention", "deepseek-v3")
    assert (dense.key_width, dense.k, dense.head_padding_ratio) == (192, 128, 1)
    server, device = software_stacks()["vllm"], device_of(load_hardware("h200"))
    without = server.model_copy(update={"padded_sparse_heads": 0})
    assert prefill(spec(), device, server, 1, 4096).seconds > prefill(spec(), device, without, 1, 4096).seconds


def test_copies_of_a_token_to_the_domains_of_its_experts() -> None:
    """Each of k experts is in one of D domains by chance; one copy goes to each domain that has any of them."""
    from itertools import product

    assert _copies_per_domain(8, 1) == 1
    for domains, top_k in ((2, 2), (3, 4), (4, 5)):
        choices = list(product(range(domains), repeat=top_k))
        reached = sum(len(set(choice)) for choice in choices) / len(choices)
        assert _copies_per_domain(domains, top_k) == pytest.approx(reached / top_k)


@pytest.mark.parametrize(("name", "top_k"), [("mixtral-8x7b", 2), ("deepseek-v3", 8), ("llama4-scout", 1)])
def test_exchanges_of_experts_have_the_model_s_number_of_copies(name: str, top_k: int) -> None:
    work = rank_work(spec(name), RankPass(1, 256, ep=2, etp=1))
    copies = {message.copies_per_token for message in work.messages if message.collective.process_group == "ep"}
    assert copies == {top_k}
