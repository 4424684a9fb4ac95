"""Tokens of SGLang's cache against the start-up logs that are known. `pytest -s` prints the errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import llmcalc
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.frameworks.sglang.versions import sglang_record
from llmcalc.sources.hardware import find_hardware

GIB, MIB = 2**30, 2**20


class Log(NamedTuple):
    """A start-up log.

    free_gib: memory that is free before loading, in GiB; None where the log does not print it.
    tokens: tokens of the cache. error: the error that was reached.
    """

    source: str
    target: str
    hardware: str
    version: str
    flags: dict[str, Any]
    free_gib: float | None
    tokens: int
    error: float


LOGS = (
    Log(
        "https://github.com/vllm-project/vllm/issues/21348",
        "qwen3-235b-a22b",
        "h100-sxm",
        "0.4.9",
        {"tp_size": 4, "mem_fraction_static": 0.93, "quantize": "fp8-block128"},
        None,
        367_404,
        0.037,
    ),
    # the log is of a model with an encoder of images, whose default fraction is 0.826 of 0.908; the preset has none
    Log("index:1272019175", "kimi-k2.5", "mi355x", "0.5.8", {"tp_size": 8}, 283.56, 2_454_421, 0.191),
    Log(
        "index:1272019175, with the fraction of the log",
        "kimi-k2.5",
        "mi355x",
        "0.5.8",
        {"tp_size": 8, "mem_fraction_static": 0.826},
        283.56,
        2_454_421,
        0.047,
    ),
    # the card of the log has no ECC: 48 GiB, of which the preset's driver offers 44.43
    Log("index:70645670224", "phi-4", "rtx-6000-ada", "0.5.9", {"mem_fraction_static": 0.78}, 47.99, 53_738, -0.013),
    # other programs use the memory of the DGX Spark: 41.29 GiB are free
    Log("index:56671970114", "qwen3.5-9b", "dgx-spark", "0.5.9", {"mem_fraction_static": 0.8}, 41.29, 268_319, -0.007),
)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.source)
def test_tokens_of_a_log(log: Log) -> None:
    hardware = find_hardware(log.hardware)
    if log.free_gib is not None:
        context = sglang_record().context_of(log.flags.get("tp_size", 1)).mib * MIB
        hardware = hardware.model_copy(update={"driver_total": int(log.free_gib * GIB) + context})
    record, version = engine_and_version(f"sglang=={log.version}")
    tokens = record.memory_on(llmcalc.load(log.target), hardware, version, log.flags).kv_tokens
    error = tokens / log.tokens - 1
    print(f"\n{error:+7.1%} {tokens:12,} {log.tokens:12,} {log.target} {log.version}")
    assert error == pytest.approx(log.error, abs=0.01)
