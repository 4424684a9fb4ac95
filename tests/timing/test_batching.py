"""What holds of servers under load without any measured run: one request is `time`, more requests give more tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import exp
from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.parallel.layout import Layout
from llmcalc.sources.hardware import find_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.timing.batching import Replica, RequestSizes, seconds_added_to_prompt_step
from llmcalc.timing.device import device_of
from llmcalc.timing.inference import decode, prefill
from llmcalc.timing.software_stacks import find_stack
from llmcalc.timing.time_estimator import NumberFormats
from tests.samples import in_one_test

H100 = device_of(find_hardware("h100"))
VLLM, SGLANG = find_stack("vllm"), find_stack("sglang")

REPLICAS: dict[str, tuple[str, Layout]] = {
    "dense": ("llama3-8b", Layout()),
    "tensor parallel": ("llama3-70b", Layout(tp=8)),
    "pipeline": ("llama3-70b", Layout(tp=4, pp=2)),
    "experts": ("qwen3-30b-a3b", Layout(tp=4, ep=4, etp=1)),
    "attention of each rank": ("deepseek-v3", Layout(dp=16, ep=16, etp=1)),
    "recurrent": ("mamba2-2.7b", Layout()),
}

REQUESTS = {"chat": RequestSizes(1024, 1024), "documents": RequestSizes(16384, 128), "short": RequestSizes(128, 128)}


def replica(name: str = "dense", requests: RequestSizes = REQUESTS["chat"], **changes: Any) -> Replica:
    model, layout = REPLICAS[name]
    made = Replica(load_preset(model).model, H100, VLLM, requests, layout, step_tokens=8192)
    return replace(made, **changes)


@pytest.mark.parametrize("name", REPLICAS)
def test_one_request_takes_the_time_of_a_prompt_and_of_tokens(name: str) -> None:
    server, requests = replica(name), REQUESTS["chat"]
    load = server.latencies(1)
    context = 1024 + 512
    assert load.tpot == decode(server.spec, H100, VLLM, 1, context, server.layout).seconds
    assert load.ttft == prefill(server.spec, H100, VLLM, 1, 1024, 0, None, server.layout, has_server_delay=True).seconds
    assert load.end_to_end_seconds == pytest.approx(load.ttft + 1023 * load.tpot, rel=1e-12)
    assert load.output_tokens_per_second == pytest.approx(requests.output_tokens / load.end_to_end_seconds, rel=1e-12)


def test_long_prompts_run_in_chunks() -> None:
    server = replica(requests=REQUESTS["documents"])
    expected = prefill(server.spec, H100, VLLM, 1, 16384, 0, 8192, has_server_delay=True).seconds
    assert server.latencies(1).ttft == expected
    assert len(server.pass_of_equal_prompts(1).timed_passes) == 2


def test_the_passes_of_a_long_prompt_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of a million tokens has 128 passes, and every point of a curve of loads asks for them."""
    counts: list[float] = []
    prompt_pass = Replica.prompt_pass

    def counted(self: Replica, prompt_count: float, *arguments: Any) -> Any:
        counts.append(prompt_count)
        return prompt_pass(self, prompt_count, *arguments)

    monkeypatch.setattr(Replica, "prompt_pass", counted)
    server = replica(requests=REQUESTS["documents"])
    for concurrency in (1, 2, 3, 5, 8):
        server.latencies(concurrency)
    assert counts == [1]  # on an idle server with its time it is the same pass


@pytest.mark.parametrize("requests", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("name", REPLICAS)
@pytest.mark.parametrize("stack", [VLLM, SGLANG], ids=lambda stack: stack.name)
def test_more_requests_give_more_tokens_and_longer_waits(name: str, requests: RequestSizes, stack: Any) -> None:
    server = replica(name, requests, stack=stack)
    loads = [server.latencies(2**i) for i in range(11)]
    for fewer, more in pairwise(loads):
        assert more.output_tokens_per_second >= fewer.output_tokens_per_second * 0.9999
        assert more.end_to_end_seconds >= fewer.end_to_end_seconds
        assert more.tpot >= fewer.tpot * 0.9999


@in_one_test
@pytest.mark.parametrize(
    ("changes", "concurrency", "share"),
    [
        ({}, 1, 0.0),
        ({}, 128, 1 - exp(-1) * (1 + 1 + 1 / 2)),  # up to two others fit: 3 prompts and 125 sequences are 509 tokens
        ({}, 385, 1 - exp(-384 / 127)),  # no other fits: a prompt and 384 sequences are 512 tokens
        ({}, 386, 1.0),
        ({"stack": VLLM.model_copy(update={"prompt_graph_tokens": 0})}, 386, 0.0),
        ({"stack": SGLANG}, 386, 0.0),  # 16 prompts are 2,048 tokens, and no sequence decodes beside them
        ({"requests": REQUESTS["chat"]}, 2, 1.0),
    ],
)
def test_graphs_launch_steps_by_all_of_their_tokens(changes: dict[str, Any], concurrency: int, share: float) -> None:
    """Of prompts of 128 tokens in steps with those of others, whose number is of a Poisson distribution."""
    server = replica(requests=REQUESTS["short"])
    assert replace(server, **changes).uncaptured_prompt_share(concurrency) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("concurrency", [2, 16, 300])
def test_little_s_law_and_every_prompt_is_somewhere(concurrency: int) -> None:
    """In one round every other request has one prompt: in the wait for the first token, or between tokens."""
    server = replica()
    load, token = server.latencies(concurrency), server.decoding_pass(concurrency).seconds
    assert load.requests_per_second * load.end_to_end_seconds == pytest.approx(concurrency, rel=1e-12)
    others = load.end_to_end_seconds - server.prompt_seconds - 1023 * token
    assert others > 0
    assert load.ttft > server.prompt_seconds
    assert load.tpot > token


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("concurrency", [2, 16, 300])
def test_prompts_of_others_are_spread_evenly_over_the_work_of_a_request(concurrency: int, mixed: bool) -> None:
    """Of their seconds, (C − 1) e, the wait for the first token has the share p / (p + (O − 1) d), and where all arrive
    at once half of the others' prompts, in steps that are full of them, without the steps that p has before a prompt.
    """
    server = replica(stack=VLLM.model_copy(update={"mixed_steps": mixed}))
    load, token_pass = server.latencies(concurrency), server.decoding_pass(concurrency)
    prompt_step = server.prompt_seconds + (
        seconds_added_to_prompt_step(token_pass) if mixed else 0.0
    )  # a prompt of one step
    prompt = prompt_step + 2 * token_pass.seconds  # p: the step that runs, and the one that vLLM has planned after it
    further = 1023 * token_pass.seconds
    others = load.end_to_end_seconds - prompt - further
    assert others > 0
    assert (load.ttft - prompt) / others == pytest.approx(prompt / (prompt + further), rel=1e-9)
    at_once = min(8, concurrency)  # prompts of 1024 tokens in a step of 8192
    saved = token_pass.seconds - seconds_added_to_prompt_step(token_pass) if mixed else 0.0
    of_each = (server.pass_of_equal_prompts(at_once).seconds - saved) / at_once
    wait = (concurrency - 1 + at_once - 1) / 2 * of_each
    assert load.ttft_of_burst - prompt_step == pytest.approx(max(load.ttft - prompt_step, wait), rel=1e-9)
    round_of_burst = prompt_step + (concurrency - 1) * of_each + further
    assert load.latencies_in_waves.end_to_end_seconds == pytest.approx(
        max(load.ttft_of_burst + further, round_of_burst)
    )
    assert token_pass.seconds <= load.tpot_of_burst < load.tpot


@pytest.mark.parametrize(
    ("stack", "layout", "steps"),
    [
        (VLLM, Layout(), 2),  # asynchronous scheduling: two batches at a time
        (find_stack("vllm-2025"), Layout(), 1),
        (SGLANG, Layout(), 2),
        (find_stack("tensorrt-llm"), Layout(), 2),
        (VLLM, Layout(pp=4), 1 / 4),  # the next of four batches takes the prompt
    ],
    ids=["vllm", "vllm-2025", "sglang", "tensorrt-llm", "pipeline"],
)
def test_a_request_waits_for_the_steps_that_are_planned(stack: Any, layout: Layout, steps: float) -> None:
    """Beside one long answer, whose own prompt is too rare to count."""
    server = replica(requests=RequestSizes(1024, 100_000), stack=stack, layout=layout)
    token_pass = server.decoding_pass(2)
    prompt = server.prompt_seconds + (seconds_added_to_prompt_step(token_pass) if stack.mixed_steps else 0.0)
    assert (server.latencies(2).ttft - prompt) / token_pass.seconds == pytest.approx(steps, rel=0.01)
    assert server.latencies(1).ttft == server.prompt_seconds
    spread = replace(server, waited_step_share=0.5)  # arrivals at any time find half of the running step
    earlier = (server.latencies(2).ttft - spread.latencies(2).ttft) / token_pass.seconds
    assert earlier == pytest.approx(0.5 / layout.pp, rel=0.01)


def test_requests_beyond_those_that_every_step_has_prompts_for_only_wait() -> None:
    server = replica(requests=REQUESTS["documents"])
    full, more = server.latencies(server.saturation_concurrency), server.latencies(2 * server.saturation_concurrency)
    assert more.output_tokens_per_second == pytest.approx(full.output_tokens_per_second, rel=1e-12)
    assert more.tpot == full.tpot
    assert more.ttft - full.ttft == pytest.approx(full.end_to_end_seconds, rel=1e-12)  # as many again wait for as long


def test_a_step_with_a_prompt_reads_weights_once() -> None:
    token_pass = replica().decoding_pass(32)
    assert 0 < seconds_added_to_prompt_step(token_pass) < token_pass.seconds
    apart = replica(stack=VLLM.model_copy(update={"mixed_steps": False}))
    assert apart.latencies(64).end_to_end_seconds > replica().latencies(64).end_to_end_seconds
    assert apart.latencies(1) == replica().latencies(1)


def test_cached_prompts_and_narrow_caches_are_faster() -> None:
    cached = replica(requests=RequestSizes(1024, 1024, cached_tokens=512)).latencies(64)
    whole = replica().latencies(64)
    assert cached.ttft < whole.ttft
    assert cached.output_tokens_per_second > whole.output_tokens_per_second
    narrow = replica(number_formats=NumberFormats(cache_bits=8)).latencies(64)
    assert narrow.output_tokens_per_second > whole.output_tokens_per_second


def test_an_answer_of_one_token_is_a_prompt() -> None:
    load = replica(requests=RequestSizes(1024, 1)).latencies(8)
    assert load.end_to_end_seconds == load.ttft


def test_less_than_a_request_is_refused() -> None:
    with pytest.raises(InputError, match="--concurrency 0: expected at least 1 request"):
        replica().latencies(0)


def test_a_batch_is_padded_to_the_next_captured_graph() -> None:
    """The sequences that pad it are computed, but have no cache; beyond the largest graph nothing is padded."""
    graphs = replica(graph_batches=(64, 128))
    exact = replica()
    assert graphs.decoding_pass(64).seconds == exact.decoding_pass(64).seconds
    assert graphs.decoding_pass(200).seconds == exact.decoding_pass(200).seconds
    padded = graphs.decoding_pass(96).seconds
    assert exact.decoding_pass(96).seconds < padded < exact.decoding_pass(128).seconds
    assert padded == exact.batch_pass(128, round(exact.requests.mean_context * 96 / 128)).seconds


def test_the_busiest_rank_takes_longer() -> None:
    """Products of experts that are bound by computing; of weights a rank reads its own, whatever the load."""
    even = VLLM.model_copy(update={"slowdown_of_busiest_rank": 0.0})
    server = replica("experts", step_tokens=None)
    assert server.pass_of_equal_prompts(16).seconds > replace(server, stack=even).pass_of_equal_prompts(16).seconds
    assert server.decoding_pass(1).seconds == replace(server, stack=even).decoding_pass(1).seconds
    dense = replica("tensor parallel", step_tokens=None)
    assert dense.pass_of_equal_prompts(16).seconds == replace(dense, stack=even).pass_of_equal_prompts(16).seconds


def test_gathered_tokens_in_the_products_format_are_fewer_bytes() -> None:
    gathers = VLLM.model_copy(update={"most_gathering_ranks": 0})
    casts = gathers.model_copy(update={"casts_before_gathering": True})
    server = replica("attention of each rank", number_formats=NumberFormats("fp8", 8, 8))
    assert (
        replace(server, stack=casts).pass_of_equal_prompts(1).seconds
        < replace(server, stack=gathers).pass_of_equal_prompts(1).seconds
    )
