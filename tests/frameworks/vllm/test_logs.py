"""Terms of vLLM's memory against start-up logs. `pytest -s` prints the error of each term and the rows that are off."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

import llmcalc
from llmcalc.frameworks.engines.engine import EngineMemory
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.sources.hardware import find_hardware

LOGS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data/engines/vllm_logs.json").read_text())["rows"]
GIB = 2**30


class Compared(NamedTuple):
    """A term of a log: its error as a share of the log's figure."""

    row: dict[str, Any]
    term: str
    computed: float
    log: float

    @property
    def error(self) -> float:
        return (self.computed - self.log) / self.log


@cache
def computed(number: int) -> EngineMemory:
    """What llmcalc computes for a log."""
    row = LOGS[number]
    hardware = find_hardware(row["hardware"])
    if row["total_gib"]:
        total = round(row["total_gib"] * GIB)
        hardware = hardware.model_copy(update={"driver_total": total, "usable_memory_bytes": None})
    record, version = engine_and_version(f"vllm=={row['version']}")
    scheme = {} if row["quantize"] is None else {"quantize": row["quantize"]}
    return record.memory_on(llmcalc.load(row["target"]), hardware, version, {**row["flags"], **scheme})


@cache
def compared() -> list[Compared]:
    """Every term of every log that states its accelerator, and of all logs the weights."""
    rows: list[Compared] = []
    for number, row in enumerate(LOGS):
        result = computed(number)
        terms = {"weights": "weights", "profile_run": "peak", "kv_cache": "kv"}
        for term, key in terms.items():
            if row[f"{key}_gib"] and (term == "weights" or row["accelerator_stated"]):
                rows.append(Compared(row, term, result.bytes_of(term) / GIB, row[f"{key}_gib"]))
        if row["kv_tokens"] and row["accelerator_stated"]:
            rows.append(Compared(row, "kv_tokens", result.kv_tokens, row["kv_tokens"]))
            if row["complete"]:
                rows.append(Compared(row, "kv_tokens, complete flags", result.kv_tokens, row["kv_tokens"]))
    return rows


def share(rows: list[Compared], within: float) -> float:
    """The share of rows whose error is at most `within`."""
    return sum(abs(row.error) <= within for row in rows) / len(rows)


@pytest.mark.parametrize(
    ("term", "most", "within", "least"),
    [
        ("weights", 0.001, 0.01, 0.8),
        ("profile_run", 0.01, 0.05, 0.85),
        ("kv_cache", 0.005, 0.05, 0.8),
        ("kv_tokens", 0.005, 0.05, 0.75),
        ("kv_tokens, complete flags", 0.001, 0.01, 0.9),
    ],
)
def test_a_term_is_that_of_the_logs(term: str, most: float, within: float, least: float) -> None:
    """most: the largest median error. within, least: the least share of rows with an error of at most `within`."""
    rows = [row for row in compared() if row.term == term]
    errors = [abs(row.error) for row in rows]
    shares = f"within 1 % {share(rows, 0.01):.0%}, 5 % {share(rows, 0.05):.0%}"
    print(f"\n{term}: {len(rows)} logs, median {median(errors):.2%}, {shares}")
    for row in sorted(rows, key=lambda row: -abs(row.error))[:8]:
        source = f"{row.row['target']} {row.row['version']} #{row.row['id']}"
        print(f"  {row.error:+8.2%} {row.computed:14,.2f} {row.log:14,.2f} {source}")
    assert median(errors) <= most
    assert share(rows, within) >= least


def test_whether_it_starts() -> None:
    rows = [(row, computed(number).starts) for number, row in enumerate(LOGS) if row["starts"] is not None]
    wrong = [
        f"{row['target']} {row['version']} #{row['id']}: {row['note'][:40]}"
        for row, starts in rows
        if starts != row["starts"]
    ]
    print(f"\nstarts: {len(rows) - len(wrong)} of {len(rows)}; wrong: {wrong}")
    assert len(wrong) <= 4


def test_no_answer_is_far_off_without_an_estimate() -> None:
    for row in compared():
        if row.term == "kv_tokens" and abs(row.error) > 0.3:
            number = LOGS.index(row.row)
            assert {term.name: term.status for term in computed(number).terms}["kv_cache"] == "estimate"
