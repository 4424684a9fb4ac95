"""Bytes on the host: offloaded activations, paged states, and ZeRO-HostOffload, each by hand from its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.device_memory.host_memory import pinned_bytes
from tests.samples import in_one_test

TRAINING: dict[str, Any] = {"phase": "training", "seq": 512, "precision": "bf16"}


def document(model: str, **settings: Any) -> dict[str, Any]:
    """The document of training on one device."""
    answer: Any = llmcalc.memory(model, **{**TRAINING, **settings})
    data: dict[str, Any] = answer.report().data
    return data


def host(model: str, **settings: Any) -> dict[str, int]:
    """Term → its bytes on the host, of training on one device."""
    data = document(model, **settings)
    assert data.get("host_bytes", 0) == sum(term["bytes"] for term in data.get("host", ()))
    return {term["name"]: term["bytes"] for term in data.get("host", ())}


def test_nothing_is_on_the_host_by_default() -> None:
    data = document("gpt2")
    assert "host" not in data
    assert "host_bytes" not in data


@in_one_test
@pytest.mark.parametrize(("size", "pinned"), [(0, 0), (1, 1), (3, 4), (4096, 4096), (4097, 8192)])
def test_pinned_memory_is_a_power_of_two(size: int, pinned: int) -> None:
    assert pinned_bytes(size) == pinned


def test_each_rank_of_shards_keeps_its_activations_on_the_host() -> None:
    options = {"recompute": "full", "offload_activations": True, "seq": 256}
    model = "llama3.2-1b?num_hidden_layers=4"
    whole = host(model, **options)
    for sharded in ({"fsdp": 2}, {"zero": 3, "devices": 2, "framework": "deepspeed"}):
        data = llmcalc.memory(model, phase="training", **options, **sharded).document
        assert {term["name"]: term["bytes"] for term in data["host"]} == whole


def test_recomputed_layers_keep_their_inputs_on_the_host() -> None:
    """16 inputs of 512 · 2048 numbers in bf16; what the norm and the loss after the layers keep moves too."""
    sizes = [
        host("llama3.2-1b?num_hidden_layers=" + str(n), recompute="full", offload_activations=True) for n in (8, 16)
    ]
    more = sizes[1]["activations (pinned)"] - sizes[0]["activations (pinned)"]
    assert more == 8 * 512 * 2048 * 2


def test_paged_states_are_those_of_large_tensors() -> None:
    """Matrices of GPT-2; its vectors and the narrow ones have under 100,000 elements."""
    layer = 768 * (4 * 768 + 2 * 3072)
    matrices = 50257 * 768 + 1024 * 768 + 12 * layer
    assert host("gpt2", optimizer="paged_adamw_8bit") == {"paged optimizer states, at most": 2 * matrices}
    assert host("gpt2", optimizer="paged_adamw_32bit") == {"paged optimizer states, at most": 8 * matrices}
    assert host("gpt2", optimizer="adamw_8bit") == {}


def test_paged_states_of_shards_are_on_the_device_with_a_note() -> None:
    paged, plain = (
        llmcalc.memory("llama3.2-1b?num_hidden_layers=2", phase="training", optimizer=name, fsdp=2, seq=64)
        for name in ("paged_adamw_32bit", "adamw")
    )
    note = "paged optimizer states are counted on the device; the driver may move them to the host"
    assert any(note in line for line in paged.report().tables[0].notes)
    assert not any(note in line for line in plain.report().tables[0].notes)


def test_paged_states_leave_a_full_device() -> None:
    """torchtune's recipe of an 8B on 24 GB: 15 GiB of states page to the host, and all else fits."""
    settings: dict[str, Any] = {
        "optimizer": "paged-adamw-8bit", "recompute": "full", "cross_entropy": "split", "optimizer_in_backward": True,
        "seq": 2048,
    }  # fmt: skip
    answer: Any = llmcalc.memory("llama3.1-8b", hardware="rtx-4090", **{**TRAINING, **settings})
    (fit,) = answer.fits
    assert answer.device.device_bytes > fit.capacity_bytes
    assert (fit.verdict, fit.left_bytes) == ("fits", 0)
    bigger: Any = llmcalc.memory("llama3.1-8b", hardware="rtx-4090", **{**TRAINING, **settings, "seq": 8192})
    assert [fit.verdict for fit in bigger.fits] == ["no"]


@pytest.mark.parametrize("pins", [False, True])
@pytest.mark.parametrize("stage", [2, 3])
def test_zero_offload(tmp_path: Path, stage: int, pins: bool) -> None:
    """GPT-2 on two ranks: fp32 weights, gradients and two states of half of it; and DeepSpeed's buffers."""
    file = tmp_path / "zero.json"
    section = {"stage": stage, "offload_optimizer": {"device": "cpu", "pin_memory": pins}}
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    file.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": section, **batch}))
    answer: Any = llmcalc.memory("gpt2", launch=file, devices=2, seq=64)
    data = answer.report().data
    half, embedding = 124_439_808 // 2, 50257 * 768
    taken = pinned_bytes if pins else int
    terms = {term["name"]: term["bytes"] for term in data["host"]}
    if stage == 2:
        weights, buffers = 2 * taken(4 * half), taken(2 * half) + taken(2 * embedding)
    else:
        weights, buffers = 4 * half + taken(4 * half), taken(2 * half)
    assert terms == {"fp32 weights and gradients": weights, "optimizer states": 8 * half, "buffers": buffers}
    assert data["host_bytes"] == sum(terms.values())
    assert {term["status"] for term in data["host"]} == {"source"}


def test_the_option_of_zero_offload_is_that_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    file.write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}, **batch}))
    launched: Any = llmcalc.memory("gpt2", launch=file, devices=2, seq=64)
    options: dict[str, Any] = {"phase": "training", "framework": "deepspeed", "devices": 2, "zero": 2, "seq": 64}
    typed: Any = llmcalc.memory("gpt2", optimizer_offload=True, **options)
    assert typed.report().data["memory"] == launched.report().data["memory"]
