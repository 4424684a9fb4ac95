"""Tokens of SGLang's cache against the start-up logs that are known. `pytest -s` prints the errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import llmcalc
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.frameworks.sglang.versions import sglang_record
from llmcalc.sources.hardware import find_hardware

GIB, MIB = 2**30, 2**20

KIMI_CONFIG = Path(__file__).parents[2] / "data/engines/kimi_k2.5_config.json"
"""The config of https://huggingface.co/moonshotai/Kimi-K2.5, whose preset has no encoder of images."""


class Log(NamedTuple):
    """A start-up log.

    free_gib: memory that is free before loading, in GiB; None where the log does not print it.
    tokens: tokens of the cache. error: the error with that free memory. alone: the error with the accelerator's own.
    unseen: why the accelerator's memory is not what was free; empty where it is.
    """

    source: str
    target: str
    hardware: str
    version: str
    flags: dict[str, Any]
    free_gib: float | None
    tokens: int
    error: float
    alone: float
    unseen: str = ""


LOGS = (
    Log(
        "https://github.com/vllm-project/vllm/issues/21348",
        "qwen3-235b-a22b",
        "h100-sxm",
        "0.4.9",
        {"tp_size": 4, "mem_fraction_static": 0.93, "quantize": "fp8-block128"},
        None,
        367_404,
        0.010,
        0.010,
    ),
    Log("index:1272019175", str(KIMI_CONFIG), "mi355x", "0.5.8", {"tp_size": 8}, 283.48, 2_454_421, 0.015, 0.015),
    Log(
        "index:70645670224",
        "phi-4",
        "rtx-6000-ada",
        "0.5.9",
        {"mem_fraction_static": 0.78},
        47.99,
        53_738,
        -0.020,
        -0.330,
        "the card has no ECC: 48 GiB, of which the preset's driver offers 44.43",
    ),
    Log(
        "index:56671970114",
        "qwen3.5-9b",
        "dgx-spark",
        "0.5.9",
        {"mem_fraction_static": 0.8},
        41.29,
        268_319,
        -0.007,
        3.998,
        "other programs use the memory of the DGX Spark",
    ),
    Log("docs.sglang.ai, quick start", "llama3.1-8b", "h100-sxm", "0.4.1", {}, 78.81, 444_500, 0.001, -0.001),
    Log(
        "https://github.com/sgl-project/sglang/pull/4760",
        "llama3.1-8b",
        "h100-sxm",
        "0.4.4",
        {},
        78.59,
        442_750,
        0.002,
        0.003,
    ),
    Log("index:49361099215", "llama3.1-8b", "rtx-4090", "0.4.9", {}, 22.39, 38_141, 0.001, 0.141, "WSL on Windows"),
    Log("index:47376055009", "qwen2.5-32b", "l4", "0.4.3", {"tp_size": 4}, 21.63, 46_611, 0.000, -0.046),
    Log(
        "index:53944457073",
        "qwen3.5-9b",
        "rtx-4090",
        "0.5.9",
        {"tp_size": 2, "mem_fraction_static": 0.8},
        22.93,
        327_310,
        -0.001,
        0.012,
    ),
    Log(
        "https://github.com/jerryzsj/my-deepseek-r1",
        "qwen2.5-7b",
        "rtx-3090",
        "0.4.2",
        {},
        22.76,
        105_531,
        0.009,
        0.076,
        "WSL on Windows",
    ),
    Log("index:43425326930", "llama3-8b", "mi300x", "0.3.6", {}, 191.33, 1_256_440, 0.000, 0.001),
    Log("index:46857556603", "granite-4.0-h-micro", "16GiB", "0.5.8", {}, 15.24, 399_740, 0.000, 0.033),
)


def tokens_of(log: Log, free_gib: float | None) -> int:
    """The tokens that are computed for a log. free_gib: free memory before loading; None for the accelerator's own."""
    hardware = find_hardware(log.hardware)
    if free_gib is not None:
        context = sglang_record().context_of(hardware, log.flags.get("tp_size", 1)).mib * MIB
        hardware = hardware.model_copy(update={"driver_total": int(free_gib * GIB) + context})
    record, version = engine_and_version(f"sglang=={log.version}")
    return record.memory_on(llmcalc.load(log.target), hardware, version, log.flags).kv_tokens


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.source} {Path(log.target).stem}")
def test_tokens_of_a_log(log: Log) -> None:
    errors = [tokens_of(log, free) / log.tokens - 1 for free in (log.free_gib, None)]
    print(f"\n{errors[0]:+7.1%} {errors[1]:+7.1%} {log.tokens:12,} {Path(log.target).stem} {log.version}  {log.unseen}")
    assert errors == pytest.approx([log.error, log.alone], abs=0.003)


def test_three_quarters_are_within_five_percent_where_the_free_memory_is_the_accelerators_own() -> None:
    """Of all logs two in three, and all of them with the free memory of the log."""
    seen = [log for log in LOGS if not log.unseen]
    assert all(abs(log.error) <= 0.02 for log in LOGS)
    assert sum(abs(log.alone) <= 0.05 for log in seen) >= 0.75 * len(seen)
    assert sum(abs(log.alone) <= 0.05 for log in LOGS) >= 2 / 3 * len(LOGS)
