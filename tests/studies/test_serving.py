"""`llmcalc serve`: layouts that fit, Pareto front, the cheapest server that keeps the limits, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.questions.serving import serve_study
from llmcalc.questions.time_and_cost_options import ServeOptions, parse_price
from llmcalc.reports.time_estimate import duration_text
from llmcalc.sources.hardware import load_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.studies.server import LatencyLimits, LayoutSizes
from llmcalc.studies.serving import SizesRequest
from llmcalc.timing.batching import LoadLatencies
from llmcalc.timing.time_ranges import TIE_SHARE
from llmcalc.units import parse_count
from tests.families.remote_code.jet_nemotron import JET
from tests.in_process import command

MODEL = ("llama3.1-8b", "--hardware", "h100", "--input", "4k", "--output", "512")


def serve(run: Any, *words: str, code: int = 0) -> Any:
    return run("serve", *words, "--format", "json").document_with(code)


def point(document: Any, index: int, concurrency: int) -> Any:
    points = {entry["concurrency"]: entry for entry in document["servers"][index]["curve"]}
    return points[concurrency]


@pytest.mark.parametrize("layout", [("--tp", "1"), ("--tp", "2"), ("--tp", "2", "--pp", "2")], ids=" ".join)
def test_one_request_is_the_answer_of_time(run: Any, layout: tuple[str, ...]) -> None:
    served = point(serve(run, *MODEL, *layout, "--concurrency", "1"), 0, 1)
    model, accelerator = MODEL[:1], MODEL[1:3]
    words = ("time", *model, *accelerator, *layout)

    def seconds(*more: str) -> Any:
        return run(*words, *more, "--format", "json").document["seconds"]

    assert served["tpot"] == seconds("--phase", "decode", "--seq", str(4096 + 256))
    assert served["ttft"] == seconds("--phase", "prefill", "--seq", "4096", "--server")
    for end in ("estimate", "low", "high"):
        assert served["end_to_end"][end] == pytest.approx(served["ttft"][end] + 511 * served["tpot"][end])


@pytest.fixture(scope="module")
def everything() -> Any:
    return command("serve", *MODEL, "--price", "2.5", "--format", "json").document


def test_cost_is_price_times_time(everything: Any) -> None:
    for server in everything["servers"]:
        for entry in server["curve"]:
            hours = 1e6 / entry["output_tokens_per_second"] / 3600
            assert entry["cost_per_million"] == pytest.approx(2.5 * server["devices"] * hours)
            assert entry["per_device"] == pytest.approx(entry["output_tokens_per_second"] / server["devices"])


def test_more_requests_are_served_until_the_cache_is_full(everything: Any) -> None:
    for server in everything["servers"]:
        curve = server["curve"]
        assert [entry["concurrency"] for entry in curve] == sorted(entry["concurrency"] for entry in curve)
        assert curve[-1]["concurrency"] == server["most_sequences"] * server["replicas"]
        assert server["most_sequences"] * (4096 + 512) <= server["kv_tokens"]
        rates = [entry["output_tokens_per_second"] for entry in curve]
        assert rates == sorted(rates)


def test_no_point_beats_one_of_the_front(everything: Any) -> None:
    points = [(entry["tpot"]["estimate"], entry["per_device"]) for s in everything["servers"] for entry in s["curve"]]
    front = [point(everything, entry["server"], entry["concurrency"]) for entry in everything["front"]]
    assert len(front) > 3
    for entry in front:
        tpot, rate = entry["tpot"]["estimate"], entry["per_device"]
        assert not any(other_tpot < tpot and other_rate > rate for other_tpot, other_rate in points)
    for tpot, rate in points:
        assert any(entry["tpot"]["estimate"] <= tpot and entry["per_device"] >= rate for entry in front)


LAYOUTS = [("--tp", "1"), ("--tp", "2"), ("--tp", "4"), ("--tp", "8"), ("--tp", "4", "--pp", "2"), ("--pp", "2")]


def test_the_cheapest_is_never_dearer_than_a_layout_that_is_typed(run: Any) -> None:
    limits = ("--concurrency", "64", "--tpot", "20ms", "--ttft", "2s", "--price", "2.5")
    best = serve(run, *MODEL, *limits)["chosen"]
    assert best["tpot"]["estimate"] <= 0.02
    assert best["ttft"]["estimate"] <= 2
    assert best["concurrency"] == 64
    kept = 0
    for layout in LAYOUTS:
        exit_code, out, _ = run("serve", *MODEL, *limits, *layout, "--format", "json")
        document = json.loads(out)
        assert len(document["servers"]) == 1
        assert (document["chosen"] is None) == (exit_code == 1)
        if document["chosen"] is not None:
            kept += 1
            assert document["chosen"]["cost_per_million"] >= best["cost_per_million"] * (1 - TIE_SHARE)
    assert kept >= 3


def test_of_servers_that_cannot_be_told_apart_the_one_with_fewer_devices_is_chosen(run: Any) -> None:
    """It chose pp4 on 4 devices, and named pp2 on 2 beside it."""
    document = serve(run, "qwen3-14b", "--hardware", "h100", "--input", "1k", "--output", "500")
    (tie,) = [note for note in document["notes"] if note.endswith("a tie")]
    assert tie == "pp4 on 4 × H100 SXM has 1.4 % more tokens/s per device, within 3 %: a tie"
    assert document["chosen"]["devices"] == 2
    assert not any(note.endswith("a tie") for note in serve(run, *MODEL, "--tp", "2")["notes"])
    load = ("--input", "2k", "--output", "200", "--rate", "20")
    chosen = serve(run, "llama3.1-8b", "--hardware", "h100", *load)["chosen"]
    assert (chosen["replicas"], chosen["options"]["tp"], chosen["options"]["pp"]) == (2, 1, 1)  # it was pp2


def test_a_server_whose_time_was_never_tested_is_chosen_only_among_its_like(run: Any) -> None:
    """It chose experts on 16 DGX Spark, 8 % above one of them."""
    document = serve(run, "gpt-oss-120b", "--hardware", "dgx-spark")
    assert document["chosen"]["devices"] == 1
    assert any(note.endswith("but no time of it was ever tested") for note in document["notes"])


def test_limits_that_no_server_keeps(run: Any) -> None:
    document = serve(run, *MODEL, "--concurrency", "64", "--tpot", "1ms", code=1)
    assert document["chosen"] is None
    assert document["why_not"]["TPOT above --tpot"] > 0
    document = serve(run, *MODEL, "--concurrency", "8", "--ttft", "20ms", code=1)
    assert document["why_not"]["TTFT above --ttft"] > 0
    document = serve(run, "deepseek-v3", *MODEL[1:], "--devices", "1", code=1)
    assert document["servers"] == []
    assert document["why_not"] == {"weights and the cache of one request do not fit": 1}
    document = serve(run, *MODEL, "--tp", "1", "--devices", "1", "--concurrency", "1000", code=1)
    assert document["why_not"] == {"the cache holds fewer requests than --concurrency": 1}


def test_devices_are_those_of_all_replicas(run: Any) -> None:
    document = serve(run, *MODEL, "--devices", "4", "--concurrency", "64")
    assert all(server["devices"] == 4 for server in document["servers"])
    assert {server["replicas"] for server in document["servers"]} == {1, 2, 4}
    two = serve(run, *MODEL, "--tp", "2", "--dp", "2", "--concurrency", "64")["chosen"]
    one = serve(run, *MODEL, "--tp", "2", "--dp", "1", "--concurrency", "32")["chosen"]
    assert two["devices"] == 4
    assert two["tpot"] == one["tpot"]
    assert two["output_tokens_per_second"] == pytest.approx(2 * one["output_tokens_per_second"])


@pytest.mark.parametrize(
    ("rate", "words"),
    [(2.0, ("--tp", "1")), (0.05, ("--tp", "1")), (0.001, ("--devices", "8", "--tp", "2")), (20.0, ("--tp", "1"))],
)
def test_as_many_tokens_leave_as_requests_arrive(run: Any, rate: float, words: tuple[str, ...]) -> None:
    """Tokens/s were those of whole users who wait for nothing: 147 for 5 that arrive."""
    document = serve(run, *MODEL, *words, "--rate", str(rate), "--price", "2")
    chosen = document["chosen"]
    assert chosen["output_tokens_per_second"] == pytest.approx(rate * 512)
    assert chosen["cost_per_million"] == pytest.approx(2 * chosen["devices"] / 3600 / (rate * 512) * 1e6)
    assert chosen["concurrency"] == pytest.approx(rate * chosen["end_to_end"]["estimate"])  # Little's law
    curve = {entry["concurrency"]: entry for entry in document["servers"][0]["curve"]}
    below = [users for users in curve if users < chosen["concurrency"]]
    above = min(users for users in curve if users > chosen["concurrency"])
    for name in ("ttft", "tpot"):
        alone_or_fewer = curve[max(below)][name]["estimate"] if below else chosen[name]["estimate"]
        assert alone_or_fewer <= chosen[name]["estimate"] <= curve[above][name]["estimate"]
    assert (chosen["replicas"] > 1) == (rate == 20 or "--devices" in words)


def test_fewer_users_than_replicas_get_no_more_than_one_of_them_gives(run: Any) -> None:
    """One user of four replicas had the tokens/s of four."""
    alone, beside = (
        serve(run, *MODEL, "--tp", "1", "--devices", devices, "--concurrency", "1")["chosen"] for devices in "14"
    )
    assert beside["output_tokens_per_second"] == alone["output_tokens_per_second"]


def test_a_first_token_that_is_at_risk_is_said_to_be(run: Any) -> None:
    """The limit holds where all requests arrive at once, by the estimate; the range may end above it."""
    words = ("serve", *MODEL, "--tp", "1", "--ttft", "500ms")
    chosen = serve(run, *MODEL, "--tp", "1", "--ttft", "500ms")["chosen"]
    assert chosen["ttft"]["estimate"] <= 0.5 < chosen["ttft"]["high"]
    screen = " ".join(run(*words).out.split())
    assert "likely TTFT ≤ 500 ms" in screen
    assert "at risk: where all requests arrive at once the first token likely comes within" in screen
    words = ("serve", *MODEL, "--tp", "1", "--ttft", "200ms", "--rate", "20")
    chosen = serve(run, *words[1:])["chosen"]
    screen = " ".join(run(*words).out.split())
    assert chosen["ttft"]["estimate"] <= 0.2 < chosen["ttft"]["high"]
    likely_text = duration_text(chosen["ttft"]["estimate"])
    assert f"at risk: where arrivals are spread the first token likely comes within {likely_text}, and" in screen
    alone = " ".join(run("serve", *MODEL, "--tp", "1", "--concurrency", "1", "--ttft", "5s").out.split())
    assert "at risk" not in alone


def test_limits_are_compared_with_likely_latencies() -> None:
    load = LoadLatencies(8, 100, ttft=0.1, tpot=0.01, ttft_of_burst=0.4, tpot_of_burst=0.008)
    assert LatencyLimits(ttft=0.3, tpot=0.01).violation_reason(load) == ""
    assert LatencyLimits(ttft=0.09).violation_reason(load) == "TTFT above --ttft"
    assert LatencyLimits(ttft=0.5, tpot=0.009).violation_reason(load) == "TPOT above --tpot"
    assert LatencyLimits(ttft=0.3, tpot=0.009).violation_reason(load.latencies_in_waves) == "TTFT above --ttft"


def test_a_fixed_number_of_equal_requests_arrives_in_waves(run: Any) -> None:
    """Requests of `vllm bench serve --max-concurrency` have equal lengths (`--random-range-ratio 0`), so that they end
    together; TTFT, TPOT and tokens/s are those of one wave. At a rate, and on replicas of two kinds, arrivals are
    spread. Measured first tokens of equal requests: tests/data/timing/CAUSES.md, `arrives_in_bursts`.
    """
    words = (*MODEL, "--tp", "1", "--concurrency", "64")
    chosen = serve(run, *words)["chosen"]
    assert chosen["arrives_in_waves"]
    assert chosen["ttft"]["low"] < chosen["spread"]["ttft"] < chosen["ttft"]["estimate"] < chosen["ttft"]["high"]
    assert chosen["tpot"]["estimate"] < chosen["spread"]["tpot"]
    output_tokens = int(MODEL[MODEL.index("--output") + 1].replace("k", "000"))
    end_to_end = chosen["ttft"]["estimate"] + (output_tokens - 1) * chosen["tpot"]["estimate"]
    assert chosen["end_to_end"]["estimate"] == pytest.approx(end_to_end)
    assert chosen["output_tokens_per_second"] == pytest.approx(64 * output_tokens / end_to_end)
    for engine, client in (
        ("vllm", ", as those of `vllm bench serve --max-concurrency` do; of uneven ones"),
        ("sglang", " (`sglang.bench_serving` draws uneven ones unless --random-range-ratio is 1); of uneven ones"),
        ("tensorrt-llm", "; of uneven ones"),
    ):
        notes = serve(run, *words, "--engine", engine)["notes"]
        assert any(note.startswith(f"equal requests end and start together{client}") for note in notes)
    single_token = [*words[: words.index("--output") + 1], "1", *words[words.index("--output") + 2 :]]
    assert not any("end and start together" in note for note in serve(run, *single_token)["notes"])
    for further, arrivals in (
        (("--rate", "2"), "arrivals are evenly spread"),
        (("--concurrency", "64", "--disaggregate", "1:1"), "requests end apart and arrivals are spread; where all"),
    ):
        document = serve(run, *words[:-2], *further)
        chosen = document["chosen"]
        assert not chosen["arrives_in_waves"]
        assert chosen["spread"] == {name: chosen[name]["estimate"] for name in ("ttft", "tpot")}
        assert any(arrivals in note for note in document["notes"])
        assert "bursts of arrivals" in document["not_counted"]


def test_drafted_tokens_are_what_was_never_tested(run: Any) -> None:
    """The device was said to be untested, though servers without a draft are known there."""
    notes = serve(run, *MODEL, "--tp", "1", "--draft", "ngram", "--acceptance", "0.5", "--concurrency", "1")["notes"]
    assert "vLLM with drafted tokens was never tested: the range is the widest" in notes
    assert not any("on this device was never tested" in note for note in notes)


def test_the_accepted_length_states_the_chance(run: Any) -> None:
    """Three drafted tokens of which a step generates 2.533 are each accepted with the chance 0.7: 1 + a + a² + a³."""
    words = (*MODEL, "--tp", "1", "--draft", "ngram", "--concurrency", "1")
    by_chance, by_length = (serve(run, *words, "--acceptance", value) for value in ("0.7", "2.533"))
    assert by_length["speculation"] == by_chance["speculation"]
    assert by_length["chosen"] == by_chance["chosen"]
    assert serve(run, *words, "--acceptance", "3.9999")["servers"]
    assert "a step of 3 drafted tokens generates fewer than 4" in run("serve", *words, "--acceptance", "4").error


def test_a_draft_with_another_vocabulary_is_refused_as_the_engine_does(run: Any) -> None:
    words = ("qwen3-4b", *MODEL[1:], "--draft", "llama3.2-1b", "--acceptance", "0.7")
    refusal = run("serve", *words).error
    assert "--draft llama3.2-1b: its vocabulary of 128,256 tokens is not the target's, 151,936" in refusal
    table = {"model": "llama3.2-1b", "num_speculative_tokens": 3}
    options = {"engine": "vllm", "hardware": "h100"}
    with pytest.raises(InputError, match="vocabulary of 128,256 tokens is not the target's, 151,936"):
        llmcalc.memory("qwen3-4b", speculative_config=json.dumps(table), **options)


def test_formats_are_tried_beside_each_other(run: Any) -> None:
    words = (*MODEL, "--tp", "1", "--quantize", "auto,fp8-dynamic", "--kv-dtype", "auto,fp8")
    document = serve(run, *words)
    options = {(s["options"]["quantize"], s["options"]["kv_dtype"]): s for s in document["servers"]}
    assert set(options) == {(None, None), ("fp8-dynamic", None), (None, "fp8"), ("fp8-dynamic", "fp8")}
    assert options[None, "fp8"]["kv_tokens"] == pytest.approx(2 * options[None, None]["kv_tokens"], rel=0.01)
    assert document["chosen"]["options"]["kv_dtype"] == "fp8"


def test_a_cached_prefix_shortens_the_first_token(run: Any) -> None:
    whole = serve(run, *MODEL, "--tp", "1", "--concurrency", "16")["chosen"]
    half = serve(run, *MODEL, "--tp", "1", "--concurrency", "16", "--prefix-hit", "0.5")["chosen"]
    assert half["ttft"]["estimate"] < 0.7 * whole["ttft"]["estimate"]
    assert half["output_tokens_per_second"] > whole["output_tokens_per_second"]


def test_a_replica_holds_no_more_requests_than_it_has_states_for() -> None:
    """SGLang's scheduler runs no more than `max_mamba_cache_size // ratio` requests, however large the cache is."""
    model, run = "qwen3-next-80b-a3b", {"hardware": "h200", "engine": "sglang"}
    (server,) = llmcalc.serve(model, **run, input=1000, output=1000, tp=2).result.servers
    states = llmcalc.memory(model, **run, tp_size=2, context_length=2000).result
    assert server.most_sequences == states.requests_with_states == int(states.max_concurrency)


def test_a_replica_holds_the_requests_that_fit_its_blocks() -> None:
    """vLLM 0.20 to 0.26 logs more tokens than fit beside the unequal pages of DeepSeek-V4."""
    run: dict[str, Any] = {"hardware": "h200", "engine": "vllm==0.23.0", "tp": 2}
    (server,) = llmcalc.serve("deepseek-v4-flash", input=32_000, output=768, **run).result.servers
    memory = llmcalc.memory("deepseek-v4-flash", max_model_len=32_768, **run).result
    assert server.most_sequences == int(memory.max_concurrency) < memory.kv_tokens // 32_768


@pytest.mark.parametrize("engine", ["vllm==0.19", "sglang", "tensorrt-llm"])
def test_engines_have_layouts_and_rules_of_their_own(run: Any, engine: str) -> None:
    words = ("qwen3-30b-a3b", "--hardware", "h200", "--input", "1k", "--output", "256", "--engine", engine)
    document = serve(run, *words, "--devices", "4")
    assert document["chosen"]["devices"] == 4
    assert {"tp": 4, "pp": 1, "dp": 1, "ep": 4, "quantize": None, "kv_dtype": None} in [
        server["options"] for server in document["servers"]
    ]
    assert any(server["options"]["dp"] > 1 for server in document["servers"])  # copies of attention in SGLang


def test_a_range_ends_where_all_requests_arrive_at_once(run: Any) -> None:
    alone = serve(run, *MODEL, "--tp", "1", "--concurrency", "1")["chosen"]["ttft"]
    chosen = serve(run, *MODEL, "--tp", "1", "--concurrency", "64")["chosen"]
    loaded = chosen["ttft"]
    assert loaded["high"] / chosen["spread"]["ttft"] > alone["high"] / alone["estimate"]
    assert loaded["low"] / loaded["estimate"] < alone["low"] / alone["estimate"]


def test_a_first_token_beside_others_is_not_sooner_than_alone(run: Any) -> None:
    document = serve(run, "llama3.1-8b", "--hardware", "h100", "--devices", "1", "--input", "2k", "--output", "256")
    lows = [point(document, 0, users)["ttft"]["low"] for users in (1, 2, 4, 8, 16, 32)]
    assert lows == sorted(lows)


def test_a_first_token_under_load_has_a_class_of_its_own(run: Any) -> None:
    def median_error(concurrency: str) -> float:
        return float(serve(run, *MODEL, "--tp", "1", "--concurrency", concurrency)["class"]["ttft"]["median_error"])

    assert median_error("1") < median_error("64")


REFUSALS: dict[str, tuple[tuple[str, ...], str]] = {
    "two loads": (("--rate", "1", "--concurrency", "2"), "--rate: --concurrency says the load already"),
    "no duration": (("--tpot", "fast"), "--tpot: 'fast'; expected a duration such as"),
    "no rate": (("--rate", "-1"), "--rate: '-1'; expected a number above 0"),
    "no price": (("--price", "cheap"), "--price: 'cheap'; expected a number above 0"),
    "no share": (("--prefix-hit", "1"), "--prefix-hit: '1'; expected a share from 0 to below 1"),
    "an engine without layouts": (("--engine", "llama.cpp"), "expected one of vllm, sglang, tensorrt-llm"),
    "an unknown engine": (("--engine", "vlm"), "--engine: 'vlm' is not known"),
    "an unknown cache": (("--kv-dtype", "q8_0"), "--kv-dtype q8_0: vLLM has no such cache"),
    "an empty format": (("--quantize", "fp8,,"), "--quantize: 'fp8,,'; expected formats with commas"),
    "a layout that divides nothing": (
        ("--devices", "7", "--tp", "2"),
        "--devices 7: no layout of so many is possible with --tp 2; expected",
    ),
    "a stack that trains": (("--stack", "maxtext"), "--stack maxtext: is for training"),
}


@pytest.mark.parametrize(("words", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(run: Any, words: tuple[str, ...], message: str) -> None:
    assert message in run("serve", *MODEL, *words).error


@pytest.mark.parametrize("price", ["$2.5", "2.50 USD", "€2.5/h", "2.5 $ per hour"])
def test_a_price_may_have_its_currency_and_hour(price: str) -> None:
    assert parse_price("--price", price) == 2.5
    assert parse_count("15bn") == parse_count("15 billion") == 15 * 10**9


def test_accelerators_that_no_engine_runs_on(run: Any) -> None:
    words = ("serve", "gpt2", "--input", "8", "--output", "8", "--hardware")
    for hardware in ("m4-max", "tesla-p40"):
        refusal = run(*words, hardware).error
        assert "servers of vLLM on it are not modelled" in refusal
        assert "NVIDIA (compute capability 7.0 or higher) or AMD, or llmcalc time with --users N" in refusal
    assert "no memory bandwidth" in run(*words, "24GiB").error


def test_prompts_on_replicas_of_their_own(run: Any) -> None:
    document = serve(run, *MODEL, "--devices", "8", "--tp", "1", "--disaggregate", "auto")
    (server,) = document["servers"]
    assert sum(server["disaggregated"].values()) * server["replicas"] == server["devices"] == 8
    assert document["class"]["tpot"]["tested_rows"] == 0  # it was never measured
    options = ("--tp", "1", "--concurrency", "200", "--disaggregate", "1:3")
    chosen = serve(run, *MODEL, *options)["chosen"]
    assert chosen["disaggregated"] == {"prefill": 1, "decode": 3}
    assert chosen["devices"] == 4 * chosen["replicas"]
    assert serve(run, *MODEL, "--tp", "1")["servers"][0]["disaggregated"] is None
    document = serve(run, *MODEL, "--devices", "6", "--tp", "1", "--disaggregate", "1:3", code=1)
    assert list(document["why_not"]) == ["the devices are no whole number of groups of --disaggregate"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--disaggregate", "some"),
            "--disaggregate: 'some'; expected auto, or replicas for prompts and replicas that",
        ),
        (("--disaggregate", "1:65"), "each at most 64, such as 1:3"),
        (("--disaggregate", "0:1"), "--disaggregate: '0:1'"),
        (("--output", "1", "--disaggregate", "auto"), "--disaggregate: answers of one token are not decoded"),
    ],
)
def test_refused_ways_to_divide_replicas(run: Any, words: tuple[str, ...], message: str) -> None:
    assert message in run("serve", *MODEL, *words).error


def test_an_encoder_serves_no_tokens() -> None:
    """The error names no option that nobody typed: it was `--phase decode`."""
    with pytest.raises(InputError, match="an encoder-only model generates no tokens to serve; expected a decoder"):
        llmcalc.serve("bert-base", "h100", 512, 16)


def test_layouts_whose_ranks_a_scheme_cannot_store_are_ruled_out() -> None:
    """Groups of 128 weights divide Qwen3 4B's 9,728 columns over up to 4 ranks; over 8, no rank has whole groups."""
    servers = llmcalc.serve("qwen3-4b", "h100", 1024, 256, concurrency=8, quantize="awq-int4-g128").result
    assert {server.layout_sizes.tp for server in servers.servers} == {1, 2, 4}
    assert servers.rejection_counts["the layout does not divide the model"] >= 1
    expected = (
        r"--(tp|tensor-parallel-size) 8: of a rank's weights in awq-int4-g128, .*1,216 columns are not a multiple of "
        "group_size 128"
    )
    with pytest.raises(InputError, match=expected):
        llmcalc.memory("qwen3-4b", engine="vllm", hardware="h100", tp=8, quantize="awq-int4-g128")
    words: dict[str, Any] = {"hardware": "h100", "devices": 8, "tp": 8, "quantize": "awq-int4-g128"}
    for question in (llmcalc.memory, llmcalc.time):
        with pytest.raises(InputError, match=expected):
            question("qwen3-4b", **words)
    llmcalc.time("gpt-oss-20b", "h100", devices=4, tp=4)  # servers pad experts in MXFP4
    with pytest.raises(InputError, match=r"--quantize awq-int4-g128: .*2,880 columns"):  # the whole model cannot either
        llmcalc.serve("gpt-oss-20b", "h100", 1024, 256, concurrency=8, quantize="awq-int4-g128")


def test_a_stage_without_keys_is_no_reason_to_refuse_the_search(run: Any, tmp_path: Path) -> None:
    """The first half of the layers caches no keys and values, so two stages are not modelled, but one is."""
    config = {**JET, "layer_types": ["jet", "jet", "attn", "swa"]}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    words = (str(file), "--engine", "vllm", "--hardware", "h100", "--input", "32", "--output", "8")
    assert serve(run, *words)["servers"]
    document = serve(run, *words, "--tp", "1", "--pp", "2", code=1)
    assert document["servers"] == []
    assert "a pipeline stage without keys and values is not modelled" in json.dumps(document)


def test_layers_that_share_parameters_are_served_without_a_pipeline(run: Any) -> None:
    load = ("--concurrency", "1", "--input", "64", "--output", "16", "--devices", "2")
    answer = serve(run, "zamba2-1.2b?num_hidden_layers=14", "--hardware", "h100", *load)
    assert {server["options"]["pp"] for server in answer["servers"]} == {1}
    assert answer["why_not"]["a pipeline of layers that share parameters is not modelled"] == 1


def test_a_time_per_token_of_many_seconds_needs_its_unit(run: Any) -> None:
    """`--tpot 30` meant 30 seconds."""
    load = (*MODEL, "--concurrency", "8", "--tp", "1")
    assert "--tpot 30: has no unit; expected 30ms, or 30s for seconds" in run("serve", *load, "--tpot", "30").error
    limits = {text: serve(run, *load, "--tpot", text)["limits"]["tpot"] for text in ("30ms", "0.03", "30s", "4")}
    assert limits == {"30ms": 0.03, "0.03": 0.03, "30s": 30.0, "4": 4.0}
    assert serve(run, *load, "--ttft", "30")["limits"]["ttft"] == 30.0
    assert "--ttft 500: has no unit; expected 500ms, or 500s" in run("serve", *load, "--ttft", "500").error


@pytest.mark.parametrize(
    ("devices", "answer"),
    [
        (24, "tp8 pp3 on 24 × H100 SXM"),
        (12, "tp4 pp3 on 12 × H100 SXM"),
        (13, "tp4 pp3 on 12 × H100 SXM, 1 of 13 left idle"),
    ],
)
def test_replicas_whose_devices_are_no_power_of_two_are_tried_where_no_usual_one_fits(
    devices: int, answer: str
) -> None:
    """Of 405B parameters in 16 bits, 8 devices of 80 GB hold too little, and 16 do not divide these devices."""
    served = llmcalc.serve("llama3.1-405b", "h100", input=2000, output=100, devices=devices)
    assert served.report().tables[0].answer == answer
    assert all(devices % server.layout_sizes.devices <= devices % 12 for server in served.result.servers)


def test_more_layouts_are_tried_only_where_no_usual_one_fits() -> None:
    usual, *others = SizesRequest(devices=24).candidates(256)
    assert {sizes.devices for sizes in usual} == {1, 2, 4, 8}
    tried = [sizes for sizes_to_try in others for sizes in sizes_to_try]
    assert len({*usual, *tried}) == len(usual) + len(tried)
    assert [sizes.devices for sizes in tried] != sorted(sizes.devices for sizes in tried)
    assert LayoutSizes(8, 3) in tried
    assert LayoutSizes(8, 1, 2, 16) in tried
    unused = [24 % sizes.devices for sizes in tried]
    assert unused == sorted(unused)


def test_a_reserve_without_rest_rules_a_searched_layout_out_and_names_the_option_of_a_stated_one() -> None:
    """SGLang reserves 512 graphs · 4.5 MiB for each of 32 ranks with attention of their own: 72 GiB and more.

    2 GiB of them are for DeepEP, and 1 for graphs of prompts beside it, which the start command has.
    """
    words = {"input": 2000, "output": 100, "engine": "sglang"}
    with pytest.raises(InputError, match="--mem-fraction-static: of this layout SGLang's default reserves 93 GiB"):
        llmcalc.serve("qwen3-30b-a3b", "h100", devices=32, dp=32, ep=32, **words)
    stated = llmcalc.serve("qwen3-30b-a3b", "h100", devices=32, dp=32, ep=32, mem_fraction_static=0.85, **words)
    (server,) = stated.result.servers
    assert server.flags["mem_fraction_static"] == 0.85
    assert stated.result.chosen_server.load_point.tpot.untested_reason == "experts on 32 ranks"
    (command,) = [note for note in stated.report().tables[0].notes if note.startswith("each replica starts with")]
    assert command.endswith("--mem-fraction-static 0.85 --moe-a2a-backend deepep")
    with pytest.raises(InputError, match="--mem-fraction-static: vLLM has no such flag; expected --engine sglang"):
        llmcalc.serve("llama3.1-8b", "h100", input=2000, output=100, mem_fraction_static=0.85)
    options = ServeOptions(**words, devices=32)
    study = serve_study(load_preset("qwen3-30b-a3b"), load_hardware("h100-sxm"), options)
    reasons: Counter[str] = Counter()
    assert not list(study._replicas_of_layouts([LayoutSizes(1, 1, 32, 32)], reasons))
    assert reasons == {"the default --mem-fraction-static leaves no memory": 1}


@pytest.mark.parametrize("limits", [(), ("--ttft", "1s", "--tpot", "40ms")], ids=["no limits", "limits"])
def test_devices_too_few_for_a_rate_have_a_note_on_the_most_requests(run: Any, limits: tuple[str, ...]) -> None:
    """A little fewer requests per second than the note says are served, and a little more are not."""
    words = "llama3.1-8b", "--hardware", "h100", "--input", "1k", "--output", "256", "--devices", "1", *limits
    notes = serve(run, *words, "--rate", "100", code=1)["notes"]
    within_limits = " within the limits" if limits else ""
    (note,) = (note for note in notes if note.startswith("at most "))
    rate_text, rest = note.removeprefix("at most ").split(" ", 1)
    assert rest == f"requests/s can be served{within_limits}: tp1 on 1 × H100 SXM"
    served = serve(run, *words, "--rate", f"{0.98 * float(rate_text):.4g}")
    assert not any(note.startswith("at most ") for note in served["notes"])
    serve(run, *words, "--rate", f"{1.02 * float(rate_text):.4g}", code=1)
    unreachable = serve(run, *words[:9], "--rate", "1", "--tpot", "1ms", code=1)["notes"]
    assert not any(note.startswith("at most ") for note in unreachable)


def test_the_start_command_of_many_expert_ranks_starts() -> None:
    """With DeepEP's high-throughput kernels vLLM turns CUDA graphs off (config/compilation.py), and its low-latency
    buffers do not hold a step of 8,192 tokens of 256 experts: the command states the largest that they hold.
    """
    words: dict[str, Any] = {"input": 2000, "output": 100, "dp": 16, "ep": 16, "concurrency": 64}
    server = llmcalc.serve("deepseek-v3", "h200", **words).result.servers[0]
    assert server.flags["all2all_backend"] == "deepep_low_latency"
    assert server.flags["max_num_batched_tokens"] == 2304  # 2,305 tokens would take more than 32 GiB
    plain = llmcalc.memory("deepseek-v3", hardware="h200", engine="vllm", dp=16, enable_expert_parallel=True,
                           max_model_len=2100, max_num_batched_tokens=2304).result  # fmt: skip
    assert server.memory.term_bytes("non_torch") - plain.term_bytes("non_torch") == 33 * 2**30
    small = llmcalc.serve("qwen3-30b-a3b", "h200", **words).result.servers[0]  # whose buffers hold a whole step
    assert small.flags["all2all_backend"] == "deepep_low_latency"
    assert "max_num_batched_tokens" not in small.flags


@pytest.mark.parametrize(("version", "field"), [("0.10.2", "VLLM_ALL2ALL_BACKEND"), ("0.11.1", "all2all_backend")])
def test_the_library_of_an_exchange_is_named_as_the_version_names_it(version: str, field: str) -> None:
    """`--all2all-backend` replaces the variable from 0.11.1 on (vLLM pull request 26732); one typed stays alone."""
    words: dict[str, Any] = {"input": 2000, "output": 100, "dp": 16, "ep": 16, "concurrency": 64}
    words["engine"] = f"vllm=={version}"
    flags = llmcalc.serve("deepseek-v3", "h200", **words).result.servers[0].flags
    assert {name for name in flags if "all2all" in name.lower()} == {field}
    assert "max_num_batched_tokens" not in flags  # 256 tokens are sent at once (VLLM_MOE_DP_CHUNK_SIZE)
