"""`llmcalc serve --trace` and `--draft`: percentiles and replicas of a trace, drafted tokens, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.questions.traces import MAX_REQUESTS, read_trace
from tests.bounds import bounded
from tests.studies.test_draft import spec_of

MODEL = ("llama3.1-8b", "--hardware", "h100")
LOAD = (*MODEL, "--input", "2k", "--output", "512", "--concurrency", "16", "--tp", "1")


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., str]:
    def write(text: str, name: str = "trace.csv") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def requests(rate: float, number: int = 120) -> str:
    lines = [f"{i / rate:.4f},{500 + 37 * i % 900},{100 + 11 * i % 300}" for i in range(number)]
    return "\n".join(["arrival,input,output", *lines, ""])


def serve(run: Any, *words: str, code: int = 0) -> Any:
    return run("serve", *words, "--format", "json").document_with(code)


def test_percentiles_of_a_trace(run: Any, trace: Any) -> None:
    words = (*MODEL, "--trace", trace(requests(5.0)), "--price", "3", "--tp", "1")
    document = serve(run, *words)
    (server,) = document["servers"]
    times = server["trace"]
    assert document["trace"] == {"requests": 120, "span": pytest.approx(119 / 5), "longest": max(
        500 + 37 * i % 900 + 100 + 11 * i % 300 for i in range(120)
    )}  # fmt: skip
    for name in ("ttft", "tpot"):
        percentiles = [times[name][f"p{percent}"] for percent in (50, 90, 99)]
        assert [entry["estimate"] for entry in percentiles] == sorted(entry["estimate"] for entry in percentiles)
        assert all(entry["low"] < entry["estimate"] < entry["high"] for entry in percentiles)
    tokens = sum(100 + 11 * i % 300 for i in range(120))
    assert times["output_tokens_per_second"] == pytest.approx(tokens / times["seconds"])
    assert times["cost_per_million"] == pytest.approx(3 / 3600 / times["output_tokens_per_second"] * 1e6)


def test_replicas_are_as_few_as_keep_the_limits(run: Any, trace: Any) -> None:
    words = (*MODEL, "--trace", trace(requests(60.0, 400)), "--tp", "1", "--ttft", "150ms")
    document = serve(run, *words)
    (server,) = document["servers"]
    number = server["replicas"]
    assert number > 1
    assert server["trace"]["ttft"]["p90"]["high"] <= 0.15
    assert document["chosen"]["replicas"] == number
    fewer = serve(run, *words, "--devices", str(number - 1), code=1)
    assert fewer["servers"][0]["trace"]["ttft"]["p90"]["high"] > 0.15
    assert fewer["chosen"] is None
    assert fewer["why_not"] == {"TTFT of one request in ten above --ttft": 1}


def test_lines_of_json_are_the_same_trace(trace: Any) -> None:
    text = requests(5.0, 10)
    rows = [line.split(",") for line in text.split()[1:]]
    lines = [json.dumps({"arrival": float(a), "input": int(i), "output": o}) for a, i, o in rows]
    assert read_trace(trace("\n".join(lines), "trace.jsonl")) == read_trace(trace(text))
    shuffled = "\n".join(["output,arrival,input", "7,35ms,2k", "9,0.01s,1", ""])
    assert [(r.arrival_seconds, r.input_tokens, r.output_tokens) for r in read_trace(trace(shuffled))] == [
        (0.0, 1, 9), (pytest.approx(0.025), 2048, 7),
    ]  # fmt: skip


FILES: dict[str, tuple[str, str]] = {
    "an unknown column": ("arival,input,output\n0,1,1\n", "column 'arival' is not known; expected arrival, input"),
    "a missing column": ("arrival,input\n0,1\n", "the column 'output' is missing"),
    "nothing": ("", "the column 'arrival' is missing"),
    "no request": ("arrival,input,output\n", "has no request"),
    "too many cells": ("arrival,input,output\n0,1,1,1\n", ":2: has another number of cells than the heading"),
    "no time": ("arrival,input,output\nsoon,1,1\n", ":2: arrival: 'soon'; expected a duration"),
    "before the beginning": ('{"arrival": -1, "input": 1, "output": 1}', ":1: arrival: -1; expected seconds from 0"),
    "infinite": ('{"arrival": 1e999, "input": 1, "output": 1}', ":1: arrival: inf; expected seconds from 0"),
    "not a number": ('{"arrival": NaN, "input": 1, "output": 1}', ":1: arrival: nan; expected seconds from 0"),
    "true": ('{"arrival": true, "input": 1, "output": 1}', ":1: arrival: True; expected a duration"),
    "no tokens": ("arrival,input,output\n0,0,1\n", ":2: input: 0 is too small"),
    "half a token": ('{"arrival": 0, "input": 1.5, "output": 1}', "input: 1.5 is not a whole number"),
    "too many tokens": ("arrival,input,output\n0,1,99999999999\n", "output: 99999999999 is too large"),
    "broken JSON": ('{"arrival": 0, "input": 1', ":1: is no JSON object"),
    "a deep list": ('{"arrival": ' + "[" * 100_000, ":1: is no JSON object"),
    "a list": ('{"arrival": 0, "input": 1, "output": 1}\n[1]', ":2: is no JSON object"),
    "too many requests": ("arrival,input,output\n" + "0,1,1\n" * (MAX_REQUESTS + 1), "more than 20,000 requests"),
    "too many prompts": ("arrival,input,output\n" + "0,16000000,1\n" * 13, "more than 200,000,000 tokens"),
}


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES)
def test_files_that_are_refused(run: Any, trace: Any, text: str, message: str) -> None:
    assert message in run("serve", *MODEL, "--trace", trace(text)).error


def test_a_trace_says_the_requests(run: Any, trace: Any) -> None:
    file = trace(requests(5.0, 3))
    for option in ("--input", "--output", "--concurrency", "--rate"):
        error = run("serve", *MODEL, "--trace", file, option, "8").error
        assert f"{option}: --trace says the requests already" in error
    longer = trace("arrival,input,output\n0,9000000,1\n0,1,1\n")
    document = serve(run, *MODEL, "--tp", "1", "--trace", longer, code=1)
    assert document["why_not"] == {"weights and the cache of one request do not fit": 1}


@pytest.mark.parametrize("acceptance", [0.3, 0.7, 0.9])
def test_drafted_tokens(run: Any, acceptance: float) -> None:
    """Text that drafts costs no pass: a step over four tokens gives 1 + a + a² + a³ tokens."""
    plain = serve(run, *LOAD)
    drafted = serve(run, *LOAD, "--draft", "ngram", "--acceptance", str(acceptance))
    tokens = 1 + acceptance + acceptance**2 + acceptance**3
    assert drafted["speculation"] == {
        "tokens": 3, "acceptance": acceptance, "tokens_per_step": pytest.approx(tokens),
    }  # fmt: skip
    first, same = (document["servers"][0]["curve"][0]["tpot"]["estimate"] for document in (drafted, plain))
    assert same / tokens < first < 1.3 * same / tokens  # the pass checks four tokens in little more time than one
    assert drafted["class"]["tpot"]["tested_rows"] == 0
    assert plain["speculation"] is None


def test_a_draft_takes_time_and_memory(run: Any) -> None:
    words = (*LOAD, "--acceptance", "0.7", "--draft-tokens", "3")
    text = serve(run, *words, "--draft", "ngram")["servers"][0]
    model = serve(run, *words, "--draft", "llama3.2-1b")["servers"][0]
    assert model["kv_tokens"] < text["kv_tokens"]
    # The last entry of each is at its server's own limit.
    for entry, other in zip(model["curve"][:-1], text["curve"][:-1], strict=True):
        assert entry["concurrency"] == other["concurrency"]
        assert entry["tpot"]["estimate"] > other["tpot"]["estimate"]
        assert entry["ttft"]["estimate"] > other["ttft"]["estimate"]
    more = serve(run, *words[:-1], "8", "--draft", "llama3.2-1b")["servers"][0]
    assert more["curve"][0]["tpot"]["estimate"] != model["curve"][0]["tpot"]["estimate"]


def test_a_draft_model_runs_once_per_token_and_a_block_once() -> None:
    """A draft model takes a token's time of that model alone per drafted token; DFlash drafts its block in one pass."""

    def draft_seconds(target: str, draft: Any, draft_tokens: int) -> float:
        load: dict[str, Any] = {"hardware": "h100", "tp": 1, "concurrency": 1, "input": 1024, "output": 64}
        served = llmcalc.serve(target, **load, draft=draft, acceptance=0.7, draft_tokens=draft_tokens)
        return served.result.servers[0].replica.batch_pass(1, 1024).seconds_by_part["draft"]

    token_seconds = llmcalc.time("llama3.2-1b", "h100", "decode", seq=1024, users=1).result.seconds
    for draft_tokens in (1, 3):
        drafted_seconds = draft_seconds("llama3-8b", "llama3.2-1b", draft_tokens)
        assert drafted_seconds == pytest.approx(draft_tokens * token_seconds, rel=0.01)
    block = spec_of("qwen3-8b-dflash")
    assert draft_seconds("qwen3-8b", block, 7) < 1.1 * draft_seconds("qwen3-8b", block, 1)


def test_modules_of_multi_token_prediction_draft() -> None:
    load = {"hardware": "h200", "input": "1k", "output": 256, "tp": 8, "concurrency": 8}
    drafted: Any = llmcalc.serve("deepseek-v3", **load, draft="mtp", acceptance=0.8, draft_tokens=1)
    plain: Any = llmcalc.serve("deepseek-v3", **load)
    ratio = (
        plain.result.chosen_server.load_point.replica_latencies.tpot
        / drafted.result.chosen_server.load_point.replica_latencies.tpot
    )
    assert 1 < ratio < 1.8  # at most the tokens of a step, less the pass of the module
    server = drafted.result.servers[0]
    assert server.replica.batch_pass(8, 1024).seconds_by_part["draft"] > 0
    assert server.kv_tokens < plain.result.servers[0].kv_tokens


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--acceptance", "0.7"), "--acceptance: is of a draft; expected --draft"),
        (("--draft-tokens", "2"), "--draft-tokens: is of a draft; expected --draft"),
        (("--draft", "ngram"), "expected --acceptance, such as 0.7"),
        (("--draft", "ngram", "--acceptance", "1"), "--acceptance: '1'; expected a chance below 1"),
        (("--draft", "mtp", "--acceptance", "0.5"), "--draft mtp: the model has no modules"),
        (("--draft", "bert-base-uncased", "--acceptance", "0.5"), "tokens are drafted by a decoder"),
        (("--draft", "ngram", "--acceptance", "0.5", "--draft-tokens", "99"), "--draft-tokens: 99 is too large"),
        (("--draft", "ngram", "--acceptance", "0.5", "--engine", "sglang"), "SGLang's servers is not modelled"),
    ],
)
def test_drafts_that_are_refused(run: Any, words: tuple[str, ...], message: str) -> None:
    assert message in run("serve", *LOAD, *words).error


def test_a_draft_model_runs_in_one_stage(run: Any) -> None:
    words = (*LOAD[:-1], "1", "--pp", "2", "--draft", "llama3.2-1b", "--acceptance", "0.7")
    assert serve(run, *words, code=1)["why_not"] == {"a draft model beside stages is not modelled": 1}


@pytest.mark.parametrize(
    ("words", "code"), [((), 2), (("--tp", "8", "--devices", "8"), 0)], ids=["every server", "one server"]
)
def test_a_trace_of_the_most_requests_is_answered_or_refused_in_seconds(
    trace: Any, words: tuple[str, ...], code: int
) -> None:
    file = trace(requests(20.0, MAX_REQUESTS))
    done = bounded("serve", *MODEL, "--trace", file, *words, timeout=15)
    assert done.returncode == code, done.stderr
    assert ("--trace: its servers take more than 400,000 steps to simulate" in done.stderr) == (code == 2)


def test_requests_that_nobody_states_are_those_of_the_usual_benchmark(run: Any) -> None:
    """`serve llama3-8b --hardware h100` was refused, though `time`, `fit` and `cost` state what they assume."""
    words = ("gpt2", "--hardware", "h100", "--tp", "1")
    assumed = serve(run, *words)
    typed = serve(run, *words, "--input", "896", "--output", "128")
    assert "assumed: --input 896 --output 128 (the longest request of the model)" in assumed["notes"]
    assert not any("learned positions" in note for note in assumed["notes"])
    without_notes = [{key: value for key, value in answer.items() if key != "notes"} for answer in (assumed, typed)]
    assert without_notes[0] == without_notes[1]
    longer = serve(run, *words, "--input", "256")
    assert "assumed: --output 128 (as `vllm bench serve` sends by default)" in longer["notes"]
