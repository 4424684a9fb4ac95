"""MFU and HFU of a measured run: the arithmetic by hand, and refusals."""

from __future__ import annotations

import json

import pytest

import llmcalc
from llmcalc.errors import InputError

RUN = {"tokens_per_second": "96k", "hardware": "h100", "devices": 8, "seq": 8192}

PEAK = 8 * 989_500_000_000_000


def row(answer, key):
    return next(one for one in answer.utilization.conventions if one.key == key)


def test_mfu_is_flops_per_token_times_the_rate_over_the_peak():
    answer = llmcalc.flops("llama3-8b", **RUN)
    exact, all_parameters = row(answer, "exact_causal"), row(answer, "total_6n")
    causal = llmcalc.flops("llama3-8b", seq=8192, phase="training").causal
    assert exact.mfu == pytest.approx(causal / 8192 * 96_000 / PEAK)
    assert all_parameters.mfu == pytest.approx(6 * 8_030_261_248 * 96_000 / PEAK)  # 6N, 58.4 %
    assert {one.hfu - one.mfu for one in answer.utilization.conventions} == {0.0}
    assert answer.utilization.peak_flops == PEAK


def test_hfu_adds_what_runs_again_to_every_convention():
    settings = {"recompute": "full", "attn_implementation": "flash"}
    answer = llmcalc.flops("llama3-8b", **RUN, **settings)
    once = llmcalc.flops("llama3-8b", seq=8192, phase="training")
    kernels = llmcalc.flops("llama3-8b", seq=8192, phase="training", **settings)
    repeated = (kernels.causal - once.causal) / 8192
    assert answer.utilization.repeated_flops_per_token == repeated
    for one in answer.utilization.conventions:
        if one.key != "exact_full":
            assert one.hfu - one.mfu == pytest.approx(repeated * 96_000 / PEAK)
    full = row(answer, "exact_full")
    assert full.mfu == pytest.approx(once.full / 8192 * 96_000 / PEAK)
    assert full.hfu == pytest.approx(kernels.full / 8192 * 96_000 / PEAK)
    assert not any(one.key == "megatron_recompute" for one in answer.utilization.conventions)


def test_a_measured_run_trains_unless_another_pass_is_named():
    assert llmcalc.flops("llama3-8b", **RUN).workload.phase == "training"
    prompt = llmcalc.flops("llama3-8b", **RUN, phase="prefill")
    assert (prompt.workload.phase, row(prompt, "total_2n").flops_per_token) == ("prefill", 2 * 8_030_261_248)
    assert llmcalc.flops("llama3-8b").workload.phase == "forward"


def test_the_peak_is_that_of_the_format():
    half = llmcalc.flops("gpt2", tokens_per_second=1000, hardware="v100").utilization
    assert (half.dtype, half.peak_flops) == ("float16", 125 * 10**12)  # it has no bf16
    narrow = llmcalc.flops("llama3-8b", **RUN, dtype="fp8").utilization
    assert narrow.peak_flops == 8 * 1_979_000_000_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hardware": "h100"}, "--hardware: only applies to a measured run; add --tokens-per-second"),
        ({"devices": 8}, "--devices: only applies to a measured run"),
        ({"tokens_per_second": "12k"}, "--tokens-per-second: needs the accelerator; add --hardware"),
        ({"tokens_per_second": "-3", "hardware": "h100"}, "--tokens-per-second: '-3' is not a positive number"),
        ({"tokens_per_second": "12k", "hardware": "h1000"}, "no accelerator called 'h1000'"),
        ({"tokens_per_second": "12k", "hardware": "a100", "dtype": "fp8"}, "no peak FLOP/s is known for fp8"),
        ({"tokens_per_second": "12k", "hardware": "h100", "tp": 2}, "--tokens-per-second: rules of thumb count whole"),
    ],
)
def test_what_is_missing_is_named(options, message):
    with pytest.raises(InputError, match=message):
        llmcalc.flops("llama3-8b", **options)


def test_more_than_the_peak_is_explained(run):
    code, out, _ = run("flops", "llama3-8b", "--tokens-per-second", "96k", "--hardware", "h100")
    assert code == 0
    assert "--tokens-per-second is of all of them together" in " ".join(out.split())


def test_the_document_has_every_convention(run):
    code, out, _ = run(
        "flops", "llama3-8b", "--tokens-per-second", "96k", "--hardware", "h100", "--devices", "8", "--format", "json"
    )
    run_data = json.loads(out)["utilization"]
    assert code == 0
    assert run_data["tokens_per_second_per_device"] == 12_000
    assert [one["key"] for one in run_data["conventions"]][:2] == ["exact_full", "exact_causal"]
    assert {"palm_b", "megatron"} < {one["key"] for one in run_data["conventions"]}


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("qwen3-30b-a3b --tokens-per-second 20k --hardware h100", "more than 100 % by all parameters, with FLOPs"),
        ("llama3-8b --tokens-per-second 20k --hardware m4-max", "of all of them together\n"),
        ("llama3-8b --tokens-per-second 90k --hardware h100", "has a higher peak (--dtype fp8)"),
    ],
    ids=["a rule counts more than is computed", "no narrower format", "a narrower format"],
)
def test_the_peak_is_compared_with_the_exact_count(run, words, note):
    out = run("flops", *words.split(), "--phase", "prefill", "--seq", "2k", columns=300)[1]
    assert note in out
    assert ("above the peak" in out) == ("by all parameters" not in note)
