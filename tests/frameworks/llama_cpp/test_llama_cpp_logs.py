"""Buffers of llama.cpp and ik_llama.cpp against start-up logs. `pytest -s` prints errors and the rows that are off."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import llmcalc
from llmcalc.frameworks.engines.engine import EngineMemory
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.sources.hardware import find_hardware
from llmcalc.sources.preset import Preset

FILE = Path(__file__).parents[2] / "data/engines/llama_cpp_logs.json"
LOGS: list[dict[str, Any]] = json.loads(FILE.read_text())["rows"]
MIB = 2**20


@cache
def loaded(target: str) -> Preset:
    """The model of a log; logs of the same weights share its tensors."""
    return llmcalc.load(target)


@cache
def computed(number: int) -> EngineMemory:
    """What llmcalc computes for a log, on a GPU that holds everything."""
    row = LOGS[number]
    record, version = engine_and_version(f"{row['engine']}=={row['version']}")
    flags = {**row["flags"], "quantize": row["quantize"]}
    return record.memory_on(loaded(row["target"]), find_hardware("b300"), version, flags)


def largest_phase(sizes: dict[str, float]) -> float:
    """The largest size of a GPU, or that of the host where there is none."""
    gpus = [size for device, size in sizes.items() if re.fullmatch(r"CUDA\d+", device)]
    return max(gpus or [sizes.get("CPU", 0.0)])


def compute_rows() -> list[tuple[float, dict[str, Any], float, float]]:
    """Error, row, computed and logged compute buffer of the fullest device. Rows divided tensors are left out."""
    rows = []
    for number, row in enumerate(LOGS):
        log = largest_phase(row["compute_mib"])
        if not log or row["note"] == "split by rows":
            continue
        terms = computed(number).terms
        size = largest_phase({term.device: term.bytes / MIB for term in terms if term.name == "compute_buffer"})
        rows.append(((size - log) / log, row, size, log))
    return rows


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.exhaustive)], ids=["every twelfth", "all"])
def test_kv_buffers_are_those_of_the_logs(step: int) -> None:
    with_buffer = [number for number, row in enumerate(LOGS) if row["kv_mib"]][::step]
    rows = [(LOGS[number], computed(number).term_bytes("kv_buffer") / MIB) for number in with_buffer]
    off = [f"#{row['id']} {row['target']}: {size:.2f}, log {row['kv_mib']}" for row, size in rows
           if abs(size - row["kv_mib"]) > 0.011]  # fmt: skip
    print(f"\nKV buffers: {len(rows)} logs, exact {len(rows) - len(off)}; off: {off}")
    assert len(off) <= 0.02 * len(rows)


def test_compute_buffers_are_near_those_of_the_logs() -> None:
    rows = compute_rows()
    errors = [abs(error) for error, *_ in rows]
    exact, near = sum(error < 0.002 for error in errors), sum(error <= 0.05 for error in errors)
    print(f"\ncompute buffers: {len(rows)} logs, median {median(errors):.2%}, exact {exact}, within 5 % {near}")
    for error, row, size, log in sorted(rows, key=lambda found: -abs(found[0]))[:12]:
        print(f"  {error:+8.2%} {size:10,.2f} {log:10,.2f} #{row['id']} {row['target']} {row['note']}")
    assert median(errors) < 0.001
    assert near >= 0.87 * len(rows)
    assert exact >= 0.74 * len(rows)


def test_compute_buffers_of_the_host() -> None:
    errors = []
    for number, row in enumerate(LOGS):
        log = row["compute_mib"].get("CUDA_Host")
        if log and not row["note"] and not row["flags"].get("no_kv_offload"):
            size = computed(number).term_bytes("compute_buffer", "CPU") / MIB
            errors.append(abs(size - log) / log)
    print(f"\nhost's compute buffers: {len(errors)} logs, within 5 % {sum(error <= 0.05 for error in errors)}")
    assert sum(error <= 0.05 for error in errors) >= 0.9 * len(errors)


LONG_BATCH = {"ctx_size": 8192, "batch_size": 2048, "ubatch_size": 2048}


@pytest.mark.parametrize(
    ("target", "version", "quantize", "flags", "log_mib"),
    [
        # vectors of layers (Gemma 4 E2B, E4B); index:67250378044, index:71581386961
        ("gemma-4-e2b", "b9849", "q4_0", LONG_BATCH, 142.09),
        ("gemma-4-e4b", "b11000", "q4_k_m",
         {"ctx_size": 65536, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "parallel": 1}, 97.30),
        # an input that no operation reads has a single copy; https://github.com/ggml-org/llama.cpp/issues/21730
        ("gemma-4-e4b", "b8750", "q8_0", {"ctx_size": 131072, "tensor_split": "1,1,1,1", "parallel": 1}, 1063.09),
        # layers on the host, whose operations move to the GPU; index:67105617141, index:67369886488, index:67326407303
        ("qwen3.5-9b", "b9849", "q4_k_m", {**LONG_BATCH, "parallel": 1}, 96.07),
        ("qwen3.5-9b", "b9849", "q4_k_m", {**LONG_BATCH, "parallel": 1, "n_gpu_layers": 20}, 128.16),
        ("qwen3.5-9b", "b9849", "q4_k_m", {**LONG_BATCH, "n_gpu_layers": 31}, 128.44),
    ],
)  # fmt: skip
def test_compute_buffers_of_the_host_of_newer_builds(
    target: str, version: str, quantize: str, flags: dict[str, Any], log_mib: float
) -> None:
    record, engine_version = engine_and_version(f"llama.cpp=={version}")
    memory = record.memory_on(loaded(target), find_hardware("b300"), engine_version, flags | {"quantize": quantize})
    assert memory.term_bytes("compute_buffer", "CPU") / MIB == pytest.approx(log_mib, abs=0.06)


def test_the_graph_of_modules_that_draft_has_two_inputs_and_all_tokens() -> None:
    """Qwen3.8 27B with -b 2048 -ub 2048: 520.06 MiB of the GPU and 112.07 of the host; index:67314251052."""
    record, version = engine_and_version("llama.cpp==b9849")
    flags: dict[str, Any] = {**LONG_BATCH, "parallel": 1, "quantize": "q5_k_m"}
    plain, drafting = (
        record.memory_on(loaded("qwen3.8-27b"), find_hardware("b300"), version, flags | more)
        for more in ({}, {"spec_type": "draft-mtp", "draft_max": 2})
    )
    for device, log_mib in (("CUDA0", 520.06), ("CPU", 112.07)):
        added = drafting.term_bytes("compute_buffer", device) - plain.term_bytes("compute_buffer", device)
        assert added / MIB == pytest.approx(log_mib, abs=0.06)


def test_models_with_gated_delta_nets() -> None:
    """Qwen3.5 35B-A3B, 27B with a cache in q8_0, whose heads are rotated, and 9B, of short contexts 8 MiB too small."""
    errors = [error for error, row, *_ in compute_rows() if row["target"].startswith("qwen3.5")]
    assert len(errors) == 4
    assert sum(abs(error) < 1e-4 for error in errors) == 3
    assert min(errors) > -0.017


@pytest.mark.parametrize(
    ("build", "cells"),
    [
        ("b5452", 16 * 1024 + 2048),  # issue 13703 prints 18,432 cells and 7,488 MiB
        ("b5600", 16 * 1024 + 512),
        ("b6200", 16 * (1024 + 512)),
        ("b7000", 16 * (1024 + 512)),
    ],
)
def test_sequences_shared_a_cache_of_windows_before_each_had_one(build: str, cells: int) -> None:
    record, version = engine_and_version(f"llama.cpp=={build}")
    flags = {"parallel": 16, "ctx_size": 49_152, "n_gpu_layers": "99", "flash_attn": "on", "quantize": "q4_k_m"}
    memory = record.memory_on(llmcalc.load("gemma3-27b"), find_hardware("l40s"), version, flags)
    assert memory.term_bytes("kv_buffer") == (10 * 49_152 + 52 * cells) * 2 * 16 * 128 * 2
    assert (memory.max_model_len, memory.max_concurrency) == (49_152 // 16, 16)


def test_the_cache_of_ollamas_plan_is_compared(tmp_path: Path) -> None:
    """msg=offload prints the cache of all devices; https://github.com/ollama/ollama/issues/9181, 80 layers."""
    file = tmp_path / "ollama.log"
    file.write_text(
        'level=INFO source=server.go:130 msg=offload library=cuda layers.model=81 memory.required.kv="19.5 GiB" '
        'memory.weights.total="87.3 GiB" memory.graph.full="8.2 GiB"\n'
        'level=INFO msg="starting llama server" cmd="ollama runner --ctx-size 64000 --parallel 1"\n'
    )
    answer = llmcalc.explain_log(file, "qwen2.5-72b", hardware="a10g")
    computed = {term["name"]: term["computed"] for term in answer.document["terms"]}
    assert computed["kv_buffer"] == 64_000 * 80 * 2 * 8 * 128 * 2
    assert computed["model_buffer"] is None
    assert any("msg=offload is what Ollama reckoned" in note for note in answer.document["notes"])


def test_buffers_of_ollamas_engine_before_it_called_them_devices(tmp_path: Path) -> None:
    """Ollama 0.7 to 0.11 print `buffer=` and `backend=`; https://github.com/ollama/ollama/pull/11090."""
    file = tmp_path / "ollama.log"
    file.write_text(
        'source=ggml.go:116 msg="" architecture=mistral3 file_type=Q8_0 name="" description=""\n'
        'source=ggml.go:365 msg="model weights" buffer=CUDA0 size="11.5 GiB"\n'
        'source=ggml.go:672 msg="compute graph" backend=CUDA0 buffer_type=CUDA0 size="1.25 GiB"\n'
    )
    answer = llmcalc.explain_log(file, "mistral-small-3.1-24b", hardware="rtx-3090")
    assert {(term["name"], term["device"]): term["log"] for term in answer.document["terms"]} == {
        ("model_buffer", "CUDA0"): int(11.5 * 2**30),
        ("compute_buffer", "CUDA0"): int(1.25 * 2**30),
    }
