"""Memory measured on a GPU (tests/data/gpu), beside what is computed. `python -m tests.witnesses.test_gpu_measured`
prints every row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llmcalc.device_memory.device_memory import DeviceMemory
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.model import ModelSpec
from llmcalc.simulator.reductions import scratch_bytes
from llmcalc.simulator.sdpa import SdpaCall, sdpa_backend
from llmcalc.simulator.tensor import DTYPES
from llmcalc.sources.target import load
from llmcalc.witnesses.gpu import closed_form
from llmcalc.witnesses.memory import reference_settings

MEASURED = Path(__file__).parents[1] / "data" / "gpu" / "h200"

OTHER = {
    "gemma3-1b": "not explained: 0.3 %",
    "qwen3-30b-a3b": "experts' rows are put back into the order of tokens by an index",
    "mixtral-8x7b": "experts' rows are put back into the order of tokens by an index",
    "gpt-oss-20b": "not explained: 0.4 %",
    "t5-large": "its class adds a bias inside scaled_dot_product_attention",
}
"""Preset → why the memory of its class of transformers differs by more than 0.1 % from the reference's."""


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (MEASURED / f"{name}.jsonl").read_text().splitlines()]


class Error(NamedTuple):
    """computed, measured: in bytes."""

    row: dict[str, Any]
    quantity: str
    computed: int
    measured: int

    @property
    def relative(self) -> float:
        return self.computed / self.measured - 1


# --- the reference ----------------------------------------------------------------------------------------------------


def reference_errors() -> Iterator[Error]:
    """The errors of all runs of llmcalc's own PyTorch model."""
    for row in rows_of("reference"):
        settings = Settings(row["phase"], batch=row["batch"], seq=row["seq"], **row["settings"])
        computed = closed_form(memory(load(row["model"]).model, reference_settings(settings)).device)
        for quantity, bytes in computed.items():
            yield Error(row, quantity, bytes, row["measured"][quantity])


@pytest.fixture(scope="module")
def reference() -> list[Error]:
    return list(reference_errors())


def share(errors: list[Error], within: float) -> float:
    return sum(abs(error.relative) <= within for error in errors) / len(errors)


def test_requested_bytes_are_near(reference: list[Error]) -> None:
    """At the commit that was measured 93 of 143 were equal, and of models with biases 1 MiB less for each thread.

    Since then the reference's head of BERT gives up its input before the vocabulary, as its class does: 4 MiB less.
    """
    requested = [error for error in reference if error.quantity == "requested_bytes"]
    assert share(requested, 0.0001) > 0.65
    assert share(requested, 0.001) > 0.94
    assert share(requested, 0.007) == 1


def test_blocks_and_segments_are_near(reference: list[Error]) -> None:
    quantities = {
        name: [error for error in reference if error.quantity == name] for name in reference[0].row["measured"]
    }
    assert share(quantities["allocated_bytes"], 0.001) > 0.94
    assert share(quantities["after_step_bytes"], 0.005) == 1
    assert share(quantities["reserved_bytes"], 0.01) > 0.78
    assert share(quantities["reserved_bytes"], 0.13) == 1


# --- classes of transformers ------------------------------------------------------------------------------------------


def as_typed(row: dict[str, Any]) -> Settings:
    """The settings of a run of transformers, as a user states them."""
    precision = "autocast" if row.get("autocast") else "bf16" if row["weights"] == "bfloat16" else "fp32"
    options: dict[str, Any] = {"precision": precision, "attn_implementation": row["attention"]}
    if row.get("recompute"):
        options["recompute"] = "full"
    if "lora" in row:
        targets = row.get("lora_targets", "q_proj,v_proj").split(",")
        options |= {"lora_rank": row["lora"], "lora_targets": tuple(targets)}
    if "accumulate" in row:
        options["num_microbatches"] = row["accumulate"]
    return Settings("training", batch=row["batch"], seq=row["seq"], optimizer_impl="fused", **options)


def trained(row: dict[str, Any]) -> tuple[ModelSpec, DeviceMemory]:
    spec = load(row["model"]).model
    return spec, memory(spec, as_typed(row)).device


def class_errors() -> Iterator[Error]:
    """The errors of all training steps of transformers' classes."""
    for row in rows_of("transformers"):
        if row["model"].startswith("t5"):
            continue
        device = trained(row)[1]
        yield Error(row, "peak_bytes", device.peak_bytes, max(row["allocated_bytes"].values()))
        yield Error(row, "reserved_bytes", device.reserved_bytes, row["reserved_bytes"])


def test_classes_of_transformers_take_what_is_computed() -> None:
    errors = [error for error in class_errors() if error.quantity == "peak_bytes"]
    alike = [error for error in errors if error.row["model"].partition("?")[0] not in OTHER]
    assert len(alike) > 20
    assert share(alike, 0.001) > 0.95
    assert share(alike, 0.0015) == 1
    assert share([error for error in errors if error not in alike], 0.05) > 0.6


# --- kernels ----------------------------------------------------------------------------------------------------------


def test_the_backend_of_attention() -> None:
    """torch 2.11 does not ask cuDNN about the probability of dropout."""
    calls = [row for row in rows_of("kernels") if row["part"] == "sdpa" and row["kind"] != "dropout"]
    assert len(calls) > 40
    for row in calls:
        masked = row["kind"] == "mask"
        call = SdpaCall(DTYPES[row["dtype"]], row["qk"], row["v"], row["keys"], masked, row["grad"])
        assert sdpa_backend(90, call) == row["choice"], row


def test_the_workspace_of_cudnn() -> None:
    for row in rows_of("kernels"):
        if row["part"] == "sdpa" and row["choice"] == "cudnn" and row["grad"] and row["queries"] > 1:
            rows = row["batch"] * row["heads"] * row["queries"]
            assert 4 * rows * (row["qk"] + 1) + 256 == max(bytes for sign, bytes, _ in row["backward"] if sign == "+")
            assert [row["forward"][0][1], row["forward"][1][1]] == ([8, 8] if row["kind"] != "mask" else [2, 2])


def test_sums_of_rows_have_partial_sums_beside_them() -> None:
    """The gradient of 4096 weights is a sum over 2000 tokens."""
    sums = [row for row in rows_of("kernels") if row["part"] in ("gelu", "softmax32", "dropout")]
    for row in sums:
        allocated = [bytes for sign, bytes, _ in row["backward"] if sign == "+"]
        assert tuple(allocated[-2:]) == scratch_bytes(4096, 2000, 132)
    assert len(sums) == 3


def test_the_backward_pass_of_softmax_makes_a_product() -> None:
    (row,) = [row for row in rows_of("kernels") if row["part"] == "softmax32"]
    in_float32 = 2 * 1000 * 4096 * 4
    assert [bytes for sign, bytes, _ in row["backward"] if sign == "+"][:3] == [in_float32] * 3


def print_rows() -> None:
    for error in (*reference_errors(), *class_errors()):
        names = ("phase", "settings", "batch", "seq", "lora")
        shown = {name: value for name, value in error.row.items() if name in names}
        print(f"{error.row['model']:40} {error.quantity:18} {error.measured:>15,} {error.relative:+9.3%}  {shown}")


if __name__ == "__main__":
    print_rows()
