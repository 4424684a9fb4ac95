"""What holds of servers whose prompts and further tokens are computed by replicas of their own."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.parallel.layout import Layout
from llmcalc.sources.hardware import find_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.timing.batching import Replica, RequestSizes
from llmcalc.timing.device import device_of
from llmcalc.timing.disaggregation import DisaggregatedServer
from llmcalc.timing.software_stacks import find_stack


def group_of(prefill: int = 1, decode: int = 2, tp: int = 8, **requests: Any) -> DisaggregatedServer:
    sizes = {"input_tokens": 8192, "output_tokens": 512, **requests}
    model, device = load_preset("llama3.1-70b").model, device_of(find_hardware("h100"))
    replica = Replica(model, device, find_stack("vllm"), RequestSizes(**sizes), Layout(tp=tp), step_tokens=8192)
    return DisaggregatedServer(replica, prefill, decode)


def test_one_request_takes_its_prompt_its_transfer_and_its_tokens() -> None:
    group = group_of()
    load = group.latencies(1)
    # 80 layers · 8,192 tokens · 2 · 8 heads · 128 · 2 bytes, an eighth of it on each device
    assert group.sent_bytes == 80 * 8192 * 2 * 8 * 128 * 2 / 8
    device = group.replica.device
    assert group.transfer_seconds == pytest.approx(
        group.sent_bytes / (device.network_bandwidth * device.generation.nic) + device.latency
    )
    assert load.ttft == group.replica.prompt_seconds + group.transfer_seconds
    assert load.tpot == float(group.replica.decoding_pass(1).seconds)


def test_requests_are_on_one_of_the_two_sides() -> None:
    group = group_of(prefill=2)
    for concurrency in (2, 8, 24):
        load = group.latencies(concurrency)
        rate = load.requests_per_second
        decoding = rate * (load.output_tokens - 1) * load.tpot
        assert load.ttft == pytest.approx(group.first_token_seconds)  # no one waits
        assert decoding + rate * group.first_token_seconds == pytest.approx(concurrency)
        assert load.tpot == pytest.approx(group.token_seconds(max(1.0, decoding / group.decode_replicas)), rel=1e-3)


def test_prompts_wait_for_their_replicas_and_do_not_slow_tokens() -> None:
    group = group_of()
    loads = [group.latencies(2**step) for step in range(10)]
    rates = [load.output_tokens_per_second for load in loads]
    assert all(later >= earlier * (1 - 1e-6) for earlier, later in pairwise(rates))
    assert loads[-1].requests_per_second == pytest.approx(group.prefill_replicas / group.busy_seconds)
    assert loads[-1].tpot == pytest.approx(loads[-2].tpot)
    assert loads[-1].ttft > loads[-2].ttft > group.first_token_seconds
    mixed = group.replica.latencies(64)
    assert group.latencies(128).tpot < mixed.tpot  # 64 decoding sequences a replica, with prompts in between


def test_the_ratio_leaves_neither_side_waiting() -> None:
    replica, sequences = group_of(output_tokens=2048).replica, 32
    group = DisaggregatedServer.balanced_group(replica, sequences)
    prompts, tokens = (
        group.prefill_replicas / group.busy_seconds,
        group.decode_replicas * group._decoded_requests_per_second(sequences),
    )
    assert 0.7 < prompts / tokens < 1.5
    longer = replace(replica, requests=RequestSizes(8192, 8192))
    needed = DisaggregatedServer.balanced_group(longer, sequences)
    assert (
        needed.decode_replicas / needed.prefill_replicas > group.decode_replicas / group.prefill_replicas
    )  # longer answers need more that decode
    for total in (2, 5, 8):
        fixed = DisaggregatedServer.balanced_group(replica, sequences, total)
        assert fixed.replicas == total
        rate = fixed._most_requests_per_second(sequences)
        others = [DisaggregatedServer(replica, size, total - size) for size in range(1, total)]
        assert rate == max(other._most_requests_per_second(sequences) for other in others)


def test_less_than_one_request_is_refused() -> None:
    with pytest.raises(InputError, match=r"--concurrency 0\.5: expected at least 1 request"):
        group_of().latencies(0.5)
