"""Simulated traces: alone a request takes the times of `time`, equal ones in even distances those in closed form."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from llmcalc.parallel.layout import Layout
from llmcalc.sources.hardware import find_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.timing.batching import Replica, RequestSizes
from llmcalc.timing.device import device_of
from llmcalc.timing.software_stacks import find_stack
from llmcalc.timing.trace import ServedBatch, ServedRequest, StepSeconds, TracedRequest, serve_trace

H100, VLLM = device_of(find_hardware("h100")), find_stack("vllm")

REPLICAS: dict[str, Replica] = {
    "dense": Replica(load_preset("llama3-8b").model, H100, VLLM, RequestSizes(1024, 256), step_tokens=8192),
    "pipeline": Replica(
        load_preset("llama3-70b").model, H100, VLLM, RequestSizes(2048, 256), Layout(tp=4, pp=2), step_tokens=8192
    ),
    "experts": Replica(load_preset("qwen3-30b-a3b").model, H100, VLLM, RequestSizes(512, 512), step_tokens=8192),
}


def served(
    replica: Replica, requests: list[TracedRequest], sequences: int = 256, **options: Any
) -> list[ServedRequest]:
    most = max(request.input_tokens + request.output_tokens for request in requests)
    steps = StepSeconds.tabulate(replica, sequences // replica.batch_count, most, replica.requests.input_tokens)
    return serve_trace(replica, steps, 1, requests, sequences, 10**9, **options)


def evenly(replica: Replica, rate: float, number: int) -> list[TracedRequest]:
    requests = replica.requests
    return [TracedRequest(i / rate, requests.input_tokens, requests.output_tokens) for i in range(number)]


@pytest.mark.parametrize("name", REPLICAS)
def test_a_request_alone_takes_the_time_of_a_prompt_and_of_tokens(name: str) -> None:
    replica = REPLICAS[name]
    (alone,) = served(replica, evenly(replica, 1.0, 1))
    load = replica.latencies(1)
    assert alone.ttft == pytest.approx(load.ttft, rel=0.01)
    assert alone.tpot == pytest.approx(load.tpot, rel=0.01)


@pytest.mark.parametrize("concurrency", [4, 16, 48])
@pytest.mark.parametrize("name", REPLICAS)
def test_evenly_spread_requests_take_the_times_in_closed_form(name: str, concurrency: int) -> None:
    replica = REPLICAS[name]
    load = replica.latencies(concurrency)
    times = served(replica, evenly(replica, load.requests_per_second, 40 * concurrency))
    settled = times[len(times) // 4 : -len(times) // 4]
    seconds = mean(request.ttft + request.tpot * (replica.requests.output_tokens - 1) for request in settled)
    assert mean(request.tpot for request in settled) == pytest.approx(load.tpot, rel=0.12)
    assert seconds == pytest.approx(load.end_to_end_seconds, rel=0.12)
    assert load.requests_per_second * seconds == pytest.approx(concurrency, rel=0.12)  # Little's law


@pytest.mark.parametrize("concurrency", [8, 64])
def test_a_burst_is_a_round(concurrency: int) -> None:
    """Requests that arrive at once end after one round, and the last first token waits for all prompts."""
    replica = REPLICAS["dense"]
    requests = [TracedRequest(0.0, replica.requests.input_tokens, replica.requests.output_tokens)] * concurrency
    times = served(replica, requests)
    assert max(request.end_seconds for request in times) == pytest.approx(
        replica.latencies(concurrency).latencies_in_waves.end_to_end_seconds, rel=0.1
    )
    assert mean(request.ttft for request in times) == pytest.approx(
        replica.latencies(concurrency).ttft_of_burst, rel=0.35
    )


def poisson(rate: float, number: int) -> list[TracedRequest]:
    rng, now, requests = random.Random(1), 0.0, []
    for _ in range(number):
        now += rng.expovariate(rate)
        requests.append(TracedRequest(now, rng.randrange(1, 4000), rng.randrange(1, 600)))
    return requests


def test_uneven_requests_and_arrivals_wait_longer() -> None:
    replica, requests = REPLICAS["dense"], poisson(4.0, 400)
    calm, busy = (
        served(replica, requests),
        served(replica, [replace(r, arrival_seconds=r.arrival_seconds / 5) for r in requests]),
    )
    assert mean(request.ttft for request in busy) > mean(request.ttft for request in calm)
    halves = served(replica, requests, cached_share=0.5)
    assert mean(request.ttft for request in halves) < mean(request.ttft for request in calm)
    slow = served(replica, requests, seconds_scale=2.0)
    assert min(request.ttft for request in slow) == pytest.approx(2 * min(request.ttft for request in calm), rel=0.5)
    apart = served(replace(replica, stack=VLLM.model_copy(update={"mixed_steps": False})), requests)
    assert mean(r.tpot for r in apart if r.tpot) > mean(r.tpot for r in calm if r.tpot)


CONSTANT = StepSeconds(
    decoding_seconds=lambda sequences, context: 1.0,
    added_decoding_seconds=lambda sequences, context: 0.25,
    prompt_seconds=lambda tokens, before: tokens / 100,
    server_seconds=0.0,
)
"""A token takes a second, a token of a prompt 10 ms, and decoding beside a prompt a quarter of a second."""


def test_steps_by_hand() -> None:
    batch = ServedBatch(CONSTANT, most_sequences=8, cache_tokens=10_000, most_step_tokens=100, mixes_prompts=True)
    first, second = batch.serve_requests([TracedRequest(0.0, 100, 5), TracedRequest(2.5, 150, 2)])
    # 0 to 1: the prompt; 1 to 3: two tokens; 3 to 4.24: 99 tokens of the other prompt; 4.24 to 5: 51 of it
    assert first.ttft == 1.0
    assert first.end_seconds == pytest.approx(3 + 0.99 + 0.25 + 0.51 + 0.25)
    assert second.ttft == pytest.approx(5.0 - 2.5)
    assert second.tpot == 1.0


def test_decoding_sequences_count_among_the_tokens_of_a_graph() -> None:
    """Half a second of launches in a step of 50 tokens of a prompt and one of the other request."""
    steps = replace(CONSTANT, graph_tokens=50, added_launch_seconds=lambda tokens, before: 0.5)
    batch = ServedBatch(steps, most_sequences=8, cache_tokens=10_000, most_step_tokens=200, mixes_prompts=True)
    _, second = batch.serve_requests([TracedRequest(0.0, 50, 9), TracedRequest(2.0, 50, 2)])
    _, shorter = batch.serve_requests([TracedRequest(0.0, 50, 9), TracedRequest(2.0, 49, 2)])
    assert second.ttft - shorter.ttft == pytest.approx(0.01 + 0.5)


def test_a_request_waits_for_the_step_that_is_planned() -> None:
    """The second request arrives in the step from 2 to 3; the one from 3 to 4 is planned already."""
    batch = ServedBatch(
        CONSTANT, most_sequences=8, cache_tokens=10_000, most_step_tokens=200, mixes_prompts=True, steps_ahead=1
    )
    first, second = batch.serve_requests([TracedRequest(0.0, 100, 9), TracedRequest(2.5, 150, 2)])
    assert second.ttft == pytest.approx(4 + 1.5 + 0.25 - 2.5)
    assert first.end_seconds == pytest.approx(9 + 0.75)  # beside the prompt one of its tokens takes 1.75 seconds
    (alone,) = batch.serve_requests([TracedRequest(2.5, 150, 2)])
    assert alone.ttft == pytest.approx(1.5)


def test_requests_wait_for_cache_and_sequences() -> None:
    requests = [TracedRequest(0.0, 100, 11), TracedRequest(0.0, 100, 11)]
    together = ServedBatch(CONSTANT, 8, 10_000, 400, True).serve_requests(requests)
    one_by_one = ServedBatch(CONSTANT, 1, 10_000, 400, True).serve_requests(requests)
    narrow = ServedBatch(CONSTANT, 8, 150, 400, True).serve_requests(requests)
    assert together[1].ttft == 2.0  # both prompts are one step
    assert one_by_one[1].ttft == narrow[1].ttft == 1.0 + 10.0 + 1.0
