"""Tokens of SGLang's cache against the start-up logs that are known. `pytest -s` prints the errors."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import llmcalc
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.frameworks.sglang.versions import sglang_record
from llmcalc.sources.hardware import find_hardware

GIB, MIB = 2**30, 2**20

DATA = Path(__file__).parents[2]
LOGS: list[dict[str, Any]] = json.loads((DATA / "data/engines/sglang_logs.json").read_text())["rows"]


@cache
def error_of(number: int, with_free_memory: bool) -> float:
    """The error of the computed tokens.

    with_free_memory: whether the log's free memory before loading is used, where it prints it; else the accelerator's.
    """
    log = LOGS[number]
    hardware = find_hardware(log["hardware"])
    if with_free_memory and log["free_gib"] is not None:
        context = sglang_record().cuda_context(hardware, log["flags"].get("tp_size", 1)).mib * MIB
        hardware = hardware.model_copy(update={"driver_total": int(log["free_gib"] * GIB) + context})
    record, version = engine_and_version(f"sglang=={log['version']}")
    # the config of https://huggingface.co/moonshotai/Kimi-K2.5, with its encoder of images
    target = str(DATA / log["target"]) if log["target"].endswith(".json") else log["target"]
    return record.memory_on(llmcalc.load(target), hardware, version, log["flags"]).kv_tokens / log["tokens"] - 1


@pytest.mark.parametrize("number", range(len(LOGS)), ids=lambda number: LOGS[number]["source"])
def test_tokens_of_a_log(number: int) -> None:
    """What is beside the weights at loading, about 0.1 GiB, is not counted, and shows on small cards."""
    log = LOGS[number]
    error, alone = error_of(number, True), error_of(number, False)
    print(f"\n{error:+7.1%} {alone:+7.1%} {log['tokens']:12,} {log['target']} {log['version']}  {log['unseen']}")
    assert abs(error) <= 0.045


def test_shares_of_logs() -> None:
    """Of all logs four in five are within 5 %, and all of them with the free memory of the log."""
    numbers = range(len(LOGS))
    errors = [abs(error_of(number, True)) for number in numbers if LOGS[number]["free_gib"] is not None]
    seen = [abs(error_of(number, False)) for number in numbers if not LOGS[number]["unseen"]]
    alone = [abs(error_of(number, False)) for number in numbers]
    shares = [sum(error <= 0.05 for error in group) / len(group) for group in (errors, seen, alone)]
    print(f"\n{len(LOGS)} logs: median {median(errors):.2%} with the log's memory; within 5 %: {shares}")
    assert median(errors) <= 0.005
    assert sum(error <= 0.02 for error in errors) >= 0.85 * len(errors)
    assert shares[0] == 1
    assert shares[1] >= 0.9
    assert shares[2] >= 0.7
