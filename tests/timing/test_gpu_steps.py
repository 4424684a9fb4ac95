"""Seconds of training steps of transformers' classes on two GPUs (tests/data/gpu), on which no constant of a device was
found, beside what `llmcalc time` estimates for the same options.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any, Literal

import pytest

import llmcalc
from llmcalc.questions import times
from tests.gpu_rows import rows_of, training_options
from tests.witnesses.test_gpu_families import LOOPS, TRAINING
from tests.witnesses.test_gpu_newer import measured_spec, model_type


@pytest.fixture
def without_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the peak memory of each run out, which takes most of the time of an answer: all of these runs fit, as they
    were measured. test_gpu_families.py and test_gpu_measured.py compare the peaks of the same rows.
    """
    monkeypatch.setattr(times, "_peak_training_bytes", lambda *run: 0)


def estimate(row: dict[str, Any], gpu: str) -> float:
    """The seconds that `llmcalc time` says for a row."""
    size = {"batch": row["batch"], "seq": row["seq"]}
    answer = llmcalc.time(row["model"], phase="training", hardware=gpu, **size, **training_options(row))
    return float(answer.report().data["seconds"]["estimate"])  # type: ignore[call-overload]


@pytest.mark.usefixtures("without_peaks")
@pytest.mark.parametrize(("gpu", "count"), [("h200", 37), ("h100", 23)])
def test_steps_of_transformers_on_a_gpu(gpu: str, count: int) -> None:
    rows = [row for row in rows_of(gpu, "transformers") if not row["model"].startswith("t5")]
    errors = sorted(abs(estimate(row, gpu) / row["seconds"] - 1) for row in rows)
    assert len(errors) == count
    assert median(errors) < 0.1
    assert errors[int(0.9 * count)] < 0.4


def families() -> list[dict[str, Any]]:
    """Returns the rows of families whose classes ran no loops of torch."""
    rows = [row for row in rows_of("h200", "families") if TRAINING.get(row["model"].partition("?")[0]) != LOOPS]
    return [row for row in rows if not row["model"].startswith("recurrentgemma")]


@pytest.mark.usefixtures("without_peaks")
def test_steps_of_families_on_an_h200() -> None:
    """Steps of 2 to 500 ms, half of them shorter than 50 ms, without those whose classes ran loops of torch.

    The largest errors are of layers with many norms (Gemma 4 E2B +72 %) and of ModernBERT (+53 %), whose host was
    faster for each operation than that of the layers on which the host's time was found.
    """
    errors = []
    for row in families():
        options: dict[str, Any] = {"recompute": "full"} if row.get("recompute") else {}
        if "ForConditionalGeneration" not in row["class"]:
            options["attn_implementation"] = row["attention"]
        answer = llmcalc.time(
            row["model"],
            phase="training",
            hardware="h200",
            precision="bf16",
            batch=row["batch"],
            seq=row["seq"],
            **options,
        )
        seconds = float(answer.report().data["seconds"]["estimate"])  # type: ignore[call-overload]
        errors.append(abs(seconds / row["seconds"] - 1))
    assert len(errors) == 116
    assert median(errors) < 0.11
    assert sorted(errors)[int(0.9 * len(errors))] < 0.43


def test_steps_of_newer_families_on_an_h200(tmp_path: Path) -> None:
    """DeepSeek-V4's step was estimated at 0.32 of its time before the 39 divisions of each mixing matrix were counted.

    The largest errors are of LFM 3 (+30 %) and of VaultGemma (-37 %), whose host took 35 and 79 microseconds a kernel.
    The states of AdamW in bf16 have half of the bytes of those in fp32, with which the median error was 9.5 %.
    """
    errors = {}
    for row in (row for row in rows_of("h200", "newer") if "config" in row):
        measured_spec(row, tmp_path)
        target, size = str(tmp_path / "config.json"), {"batch": row["batch"], "seq": row["seq"]}
        answer = llmcalc.time(target, phase="training", hardware="h200", precision="bf16", **size)
        seconds = float(answer.report().data["seconds"]["estimate"])  # type: ignore[call-overload]
        errors[model_type(row)] = abs(seconds / row["seconds"] - 1)
    assert median(errors.values()) < 0.12
    assert errors["deepseek_v4"] < 0.33
    assert max(errors.values()) < 0.38


def test_classes_without_sdpa_are_timed_with_eager_attention() -> None:
    """Gemma 2 caps its scores, which scaled_dot_product_attention does not, so that its class runs eager attention."""
    seconds = {}
    for implementation in (None, "eager", "flash"):
        options: dict[str, Any] = {"attn_implementation": implementation} if implementation else {}
        answer = llmcalc.time("gemma2-2b", phase="training", hardware="h200", precision="bf16", seq=1024, **options)
        seconds[implementation] = answer.report().data["seconds"]["estimate"]  # type: ignore[call-overload]
    assert seconds[None] == seconds["eager"] > 1.1 * seconds["flash"]


def forward_error(row: dict[str, Any], gpu: str, phase: Literal["prefill", "decode"], stack: str) -> float:
    """The error of the seconds of a prompt, or of a token in a captured graph."""
    options: dict[str, Any] = {"seq": row.get("seq") or row["context"], "dtype": "bfloat16"}
    if phase == "prefill" and "attention" in row and "ForConditionalGeneration" not in row.get("class", ""):
        options["attn_implementation"] = row["attention"]
    answer = llmcalc.time(row["model"], phase=phase, hardware=gpu, batch=row["batch"], stack=stack, **options)
    seconds = float(answer.report().data["seconds"]["estimate"])  # type: ignore[call-overload]
    return abs(seconds / float(row["prefill_seconds" if phase == "prefill" else "captured_token_seconds"]) - 1)


@pytest.mark.parametrize(
    ("gpu", "name", "count", "middle", "high"),
    [
        ("h100", "inference", 26, 0.09, 0.35),
        ("h200", "inference", 11, 0.12, 0.31),
        ("h200", "families", 94, 0.36, 0.67),
    ],
)
def test_prompts_of_transformers(gpu: str, name: str, count: int, middle: float, high: float) -> None:
    """Prompts of families last 4 to 40 ms, and their host took 19 to 45 microseconds an operation: all are too fast."""
    rows = families() if name == "families" else rows_of(gpu, name)
    errors = sorted(forward_error(row, gpu, "prefill", "transformers") for row in rows if "prefill_seconds" in row)
    assert len(errors) == count
    assert median(errors) < middle
    assert errors[int(0.9 * count)] < high


@pytest.mark.parametrize(
    ("gpu", "name", "stack", "count", "middle", "high"),
    [
        ("h100", "inference", "transformers-graphs-before-5-23", 24, 0.16, 0.35),
        ("h200", "families", "transformers-graphs", 44, 0.24, 0.32),
    ],
)
def test_captured_tokens_of_transformers(
    gpu: str, name: str, stack: str, count: int, middle: float, high: float
) -> None:
    rows = [row for row in rows_of(gpu, name) if row.get("captured_token_seconds")]
    errors = sorted(forward_error(row, gpu, "decode", stack) for row in rows)
    assert len(errors) == count
    assert median(errors) < middle
    assert errors[int(0.9 * count)] < high
