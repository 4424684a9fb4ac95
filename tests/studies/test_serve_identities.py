"""What holds of every answer of `serve`, over architectures, accelerators and engines, without any measured run."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import llmcalc
from llmcalc.studies.serving import StudiedServers
from llmcalc.timing.time_ranges import TIE_SHARE
from tests.samples import sampled


class Case(NamedTuple):
    """A model on an accelerator with requests."""

    model: str
    hardware: str
    input: int
    output: int
    options: dict[str, Any]


CASES = [
    Case("llama3.1-8b", "h100", 4096, 512, {}),
    Case("llama3.1-8b", "l4", 1024, 256, {}),
    Case("llama3.1-8b", "mi300x", 8192, 1024, {}),
    Case("gemma-3-27b", "a100-80gb", 2048, 512, {}),
    Case("qwen3-30b-a3b", "h200", 1024, 1024, {"engine": "tensorrt-llm", "tp": 2}),
    Case("deepseek-v2-lite", "h200", 4096, 1024, {"devices": 4, "tp": 2}),
    Case("qwen3-8b", "b200", 1024, 8192, {"kv_dtype": "auto,fp8", "tp": 1}),
    Case("mistral-7b", "rtx-4090", 512, 512, {"engine": "sglang"}),
    Case("gpt2", "t4", 256, 256, {}),
    Case("llama3.3-70b", "h100", 4096, 256, {"quantize": "fp8-dynamic"}),
    Case("qwen2.5-14b", "l40s", 128, 2048, {"prefix_hit": 0.5}),
    Case("gpt-oss-20b", "b200", 16384, 512, {"quantize": "auto", "tp": 1}),
]


def causes(case: Case) -> set[Any]:
    """What `serve` has rules for: its options, and each engine."""
    return {"", *(name for name in case.options if name != "tp"), case.options.get("engine")}


@pytest.fixture(params=sampled({f"{case.model} {case.hardware}": case for case in CASES}, causes), scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return request.param  # type: ignore[no-any-return]


def serve(case: Case, **options: Any) -> StudiedServers:
    answer = llmcalc.serve(case.model, case.hardware, case.input, case.output, price=2.0, **{**case.options, **options})
    return answer.result  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def servers(case: Case) -> StudiedServers:
    found = serve(case)
    assert found.servers
    return found


def test_one_request_takes_the_time_of_time(case: Case, servers: StudiedServers) -> None:
    for server in servers.servers[:2]:
        replica, load = server.replica, server.replica.latencies(1)
        layout = {name: size for name, size in vars(server.layout_sizes).items() if size > 1}
        if (
            server.layout_sizes.dp > 1
            or server.kv_dtype
            or case.options.get("quantize")
            or case.options.get("prefix_hit")
        ):
            continue
        etp = {"etp": server.layout_sizes.tp // server.layout_sizes.ep} if server.layout_sizes.ep > 1 else {}
        options = {"engine": case.options.get("engine", "vllm"), **layout, **etp}
        context = replica.requests.mean_context
        token: Any = llmcalc.time(case.model, case.hardware, "decode", seq=context, **options)
        assert load.tpot == pytest.approx(token.result.seconds, rel=1e-9)


def test_tokens_per_second_grow_with_users(servers: StudiedServers) -> None:
    for curve in servers.load_curves:
        for fewer, more in pairwise(curve):
            assert more.concurrency > fewer.concurrency
            assert more.output_tokens_per_second >= fewer.output_tokens_per_second * 0.9999
            assert more.replica_latencies.tpot >= fewer.replica_latencies.tpot * 0.9999


def test_no_server_of_the_front_is_dominated(servers: StudiedServers) -> None:
    points = {(i, point.concurrency): point for i, curve in enumerate(servers.load_curves) for point in curve}
    front = [points[key] for key in servers.pareto_front]
    for kept in front:
        for point in points.values():
            assert not (
                point.replica_latencies.tpot < kept.replica_latencies.tpot
                and point.tokens_per_second_per_device > kept.tokens_per_second_per_device
            )
    for point in points.values():
        assert any(
            kept.replica_latencies.tpot <= point.replica_latencies.tpot
            and kept.tokens_per_second_per_device >= point.tokens_per_second_per_device
            for kept in front
        )


def test_cost_is_price_times_time(servers: StudiedServers) -> None:
    for curve in servers.load_curves:
        for point in curve:
            hours = 1e6 / point.output_tokens_per_second / 3600
            assert point.cost_per_million == pytest.approx(2.0 * point.devices * hours, rel=1e-12)


def test_the_cheapest_is_never_dearer_than_a_typed_one(case: Case, servers: StudiedServers) -> None:
    assert servers.chosen_server is not None
    cheapest = servers.chosen_server.load_point.cost_per_million
    assert cheapest is not None
    for server in servers.servers[:3]:
        sizes = {name: size for name, size in vars(server.layout_sizes).items() if name != "dp"}
        typed = serve(case, **sizes)
        if typed.chosen_server is not None:
            assert typed.chosen_server.load_point.cost_per_million is not None
            assert cheapest * (1 - TIE_SHARE) <= typed.chosen_server.load_point.cost_per_million


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e9", "9" * 400, "½", "", "x", "1e400"])
@pytest.mark.parametrize(
    "option", ["--price", "--rate", "--ttft", "--tpot", "--prefix-hit", "--acceptance", "--concurrency", "--devices"]
)
def test_hostile_numbers_are_refused_in_one_line(run: Any, option: str, value: str) -> None:
    words = ("serve", "gpt2", "--hardware", "h100", "--input", "64", "--output", "8", "--tp", "1", option, value)
    code, out, err = run(*words, *(("--draft", "ngram") if option == "--acceptance" else ()))
    if (value == "1e9" and option in ("--price", "--rate", "--concurrency")) or (
        value == "0"
        and option
        in (
            "--prefix-hit",
            "--acceptance",
        )
    ):
        assert code != 2  # such numbers are possible, though no server answers a billion requests
        return
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert option in err
