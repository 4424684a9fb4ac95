"""Runs on a GPU whose memory is measured, and the files of what was measured.

    python -m tests.witnesses.gpu_memory -o tests/data/gpu_memory_h100.json [NAME…]
    python -m tests.witnesses.gpu_memory --list

runs every configuration in a process of its own, prints how far `llmcalc memory` is from it, and writes the file after
each; with names, only those that begin with one of them, in addition to what the file has. `test_memory.py` reads every
`tests/data/gpu_memory_*.json`, and asks for the bounds of `llmcalc.witnesses.gpu.TOLERANCE_BY_QUANTITY`.

A file has
    schema: 1
    device: the GPU (gpu, memory_bytes, compute_capability, driver, cuda, torch, date), as `gpu.device_facts` gives it
    runs: one object per configuration, with
        name: the configuration
        target: the TARGET of `llmcalc memory`
        settings: the settings that are not default, as fields of `llmcalc.device_memory.settings.Settings`
        environment: the variables of `gpu.ALLOCATOR_VARIABLES` that were set
        measured: the bytes that torch.cuda.memory_stats counted, as fields of `gpu.Measured`
      or, if it did not run,
        name, and left_out: the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llmcalc
from llmcalc.device_memory.device_memory import DeviceMemory
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings, settings_of
from llmcalc.model import ModelSpec
from llmcalc.witnesses import gpu
from llmcalc.witnesses.checks import Check
from llmcalc.witnesses.memory import unsupported_reason

SCHEMA = 1
DATA = Path(__file__).parents[1] / "data"

LONGEST = 240
"""The most seconds that one configuration may take."""


@dataclass(frozen=True)
class Configuration:
    """A run. target: the TARGET. settings: of `llmcalc memory`. environment: variables that are set for it."""

    target: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)


def training(
    target: str, batch: int, seq: int, environment: Mapping[str, str] | None = None, **more: Any
) -> Configuration:
    settings = {"phase": "training", "batch": batch, "seq": seq, "attn_implementation": "eager", **more}
    return Configuration(target, settings, environment or {})


def passing(target: str, phase: str, batch: int, seq: int, **more: Any) -> Configuration:
    return Configuration(target, {"phase": phase, "batch": batch, "seq": seq, **more})


FLASH = {"attn_implementation": "flash", "norm": "fused"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

CONFIGURATIONS: dict[str, Configuration] = {
    # dense, as their classes are trained
    "dense-0.1b-gpt2": training("gpt2", 4, 1024),
    "dense-0.1b": training("smollm2-135m", 4, 2048),
    "dense-0.1b-encoder": training("bert-base", 16, 512),
    "dense-0.2b-encoder-decoder": training("t5-base", 8, 512),
    "dense-0.6b-bf16": training("qwen3-0.6b", 2, 2048, precision="bf16"),
    "dense-1b-fp32": training("pythia-1b", 1, 2048, precision="fp32"),
    "dense-1b-autocast": training("llama3.2-1b", 2, 2048, precision="autocast"),
    "dense-1b-window": training("gemma3-1b", 1, 2048),
    "dense-1.7b-flash": training("qwen3-1.7b", 2, 2048, **FLASH),
    "dense-0.1b-microbatches": training("smollm2-135m", 2, 1024, num_microbatches=4),
    "dense-0.1b-kept-gradients": training("smollm2-135m", 2, 1024, zero_grad="zeros"),
    "dense-0.4b-expandable": training("smollm2-360m", 4, 2048, EXPANDABLE),
    # optimizers
    "adamw-fused-0.6b": training("qwen3-0.6b", 2, 1024, precision="bf16", optimizer_impl="fused"),
    "adamw-loop-0.4b": training("smollm2-360m", 2, 1024, optimizer_impl="loop"),
    "sgd-3b": training("llama3.2-3b", 1, 2048, precision="bf16", optimizer="sgd", momentum=True),
    "adafactor-1.7b": training("smollm2-1.7b", 1, 1024, precision="bf16", optimizer="adafactor"),
    "muon-0.4b": training("smollm2-360m", 2, 1024, precision="bf16", optimizer="muon"),
    # recomputation
    "recompute-full-1b": training("llama3.2-1b", 2, 4096, recompute="full"),
    "recompute-reentrant-0.4b": training("smollm2-360m", 4, 2048, recompute="full-reentrant"),
    "recompute-attention-1b": training("tinyllama-1.1b", 2, 2048, recompute="attention"),
    "recompute-selective-1b": training("tinyllama-1.1b", 4, 2048, recompute="attention+matmuls", **FLASH),
    "recompute-every-2-0.1b": training("smollm2-135m", 8, 2048, recompute="every:2"),
    "recompute-full-8b": training("llama3-8b", 1, 4096, precision="bf16", optimizer="sgd", recompute="full"),
    # mixtures of experts
    "moe-1b": training("granite-3.0-1b-a400m", 2, 2048),
    "moe-7b": training("olmoe-1b-7b", 1, 2048, precision="bf16", optimizer="sgd", recompute="full"),
    "moe-6b-of-8": training("mixtral-8x7b?num_hidden_layers=4", 1, 2048, precision="bf16", optimizer="sgd"),
    "moe-2b-latent": training("deepseek-v2-lite?num_hidden_layers=4", 1, 2048, precision="bf16"),
    # low-rank adapters
    "lora-1b": training("llama3.2-1b", 2, 2048, lora_rank=16),
    "lora-8b": training("llama3-8b", 1, 2048, lora_rank=16, recompute="full"),
    "lora-8b-all": training(
        "llama3-8b", 1, 2048, lora_rank=16, lora_targets=ALL_LINEAR, lora_dropout=True, recompute="full", **FLASH
    ),
    # without gradients
    "prefill-8b": passing("llama3-8b", "prefill", 1, 4096),
    "prefill-8b-flash": passing("llama3-8b", "prefill", 1, 8192, **FLASH),
    "prefill-1b-chunks": passing("llama3.2-1b", "prefill", 4, 4096, chunk=1024),
    "prefill-7b-moe": passing("olmoe-1b-7b", "prefill", 2, 2048),
    "decode-8b": passing("llama3-8b", "decode", 8, 4096),
    "decode-2b-latent": passing("deepseek-v2-lite?num_hidden_layers=4", "decode", 8, 4096),
}
"""Name → what is run. All fit a GPU with 80 GB."""


def spec_of(run: Configuration) -> ModelSpec:
    return llmcalc.load(run.target).model


def settings_in(run: Configuration) -> Settings:
    return settings_of(**run.settings)


def answer(run: Configuration, facts: Mapping[str, Any]) -> DeviceMemory:
    """What `llmcalc memory` answers for a run on that GPU."""
    return memory(spec_of(run), settings_in(run), cuda_runtime=gpu.cuda_runtime_of_gpu(facts, run.environment)).device


# --- files ------------------------------------------------------------------------------------------------------------


def files() -> list[Path]:
    return sorted(DATA.glob("gpu_memory_*.json"))


def checks(document: Mapping[str, Any]) -> Iterator[tuple[str, Check]]:
    """The checks of every run of a file, with the run's name."""
    assert document["schema"] == SCHEMA
    for row in document["runs"]:
        if "left_out" in row:
            continue
        run = Configuration(row["target"], row["settings"], row["environment"])
        ours = gpu.closed_form_bytes(answer(run, document["device"]))
        for check in gpu.memory_checks(ours, row["measured"], row["settings"]["phase"], document["device"]["gpu"]):
            yield row["name"], check


# --- on the GPU -------------------------------------------------------------------------------------------------------


def measured(name: str) -> dict[str, Any]:
    """Runs a configuration in this process: what its row has. Left out if the GPU has no room for it."""
    run, statistics = CONFIGURATIONS[name], gpu.CudaStatistics()
    spec, settings = spec_of(run), settings_in(run)
    facts = gpu.gpu_properties()
    why = unsupported_reason(spec, settings, "cuda")
    needed, room = answer(run, facts).reserved_bytes, gpu.free_bytes(statistics)
    assert room is not None
    if not why and needed > room:
        why = f"it needs {needed:,} bytes of {room:,} free"
    row: dict[str, Any] = {"name": name}
    if why:
        return {"device": facts, "row": {**row, "left_out": why}}
    row |= {"target": run.target, "settings": dict(run.settings), "environment": gpu.allocator_variables()}
    return {"device": facts, "row": {**row, "measured": gpu.measure_gpu(spec, settings, statistics).data()}}


def in_another_process(name: str) -> dict[str, Any]:
    """`measured` in a new process, which has an empty allocator and the variables of the configuration."""
    command = [sys.executable, "-m", "tests.witnesses.gpu_memory", "--one", name]
    variables = {**os.environ, **CONFIGURATIONS[name].environment}
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return {"row": {"name": name, "left_out": f"it took more than {LONGEST} seconds"}}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"row": {"name": name, "left_out": f"it failed: {lines[-1]}"}}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def written(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a file with one line per run."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in document["runs"])
    device = json.dumps(document["device"])
    path.write_text(f'{{"schema": {SCHEMA},\n "device": {device},\n "runs": [\n{rows}\n ]}}\n')


def line(check: Check) -> str:
    assert check.measured_value
    off = check.closed_form / check.measured_value - 1
    sizes = f"{check.closed_form:>15,} {check.measured_value:>15,}"
    return f"    {'=' if check.ok else '≠'} {check.quantity:40} {sizes} {off:+.3%}"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.witnesses.gpu_memory")
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of names; all if not given")
    parser.add_argument("-o", "--output", type=Path, help="the file; gpu_memory_GPU.json in tests/data if not given")
    parser.add_argument("--list", action="store_true", help="print what each needs, and run none")
    parser.add_argument("--one", metavar="NAME", help="run one in this process and print its row")
    given = parser.parse_args(words)
    if given.one:
        print(json.dumps(measured(given.one)))
        return 0
    names = [name for name in CONFIGURATIONS if not given.names or name.startswith(tuple(given.names))]
    if given.list:
        for name in names:
            run = CONFIGURATIONS[name]
            needed = answer(run, {"compute_capability": "9.0"})
            print(
                f"{name:28} {run.target:38} {needed.reserved_bytes / 2**30:7.2f} GiB  {dict(run.settings)}", flush=True
            )
        return 0
    return _all(names, given.output)


def _all(names: list[str], output: Path | None) -> int:
    """Runs the configurations and writes what was measured. Returns 1 if one is not within bounds, or has failed."""
    rows: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    wrong = False
    for name in names:
        found = in_another_process(name)
        row = found["row"]
        facts = found.get("device", facts)
        print(name, row.get("left_out", ""), flush=True)
        wrong = wrong or row.get("left_out", "").startswith("it failed")
        if not facts:
            continue
        path = output or DATA / f"gpu_memory_{facts['gpu'].split()[1].lower()}.json"
        if not rows and path.exists():
            rows = {one["name"]: one for one in json.loads(path.read_text())["runs"]}
        rows[name] = row
        document = {"schema": SCHEMA, "device": facts, "runs": list(rows.values())}
        written(path, document)
        for _, check in checks({**document, "runs": [row]}):
            print(line(check), flush=True)
            wrong = wrong or not check.ok
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
