"""Memory measured on a GPU (tests/data/gpu), beside what is computed. `python -m tests.witnesses.test_gpu_measured`
prints every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from llmcalc.device_memory.device_memory import DeviceMemory
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.model import ModelSpec
from llmcalc.simulator.reductions import scratch_bytes
from llmcalc.simulator.sdpa import SdpaCall, sdpa_backend
from llmcalc.simulator.tensor import DTYPES, INT64
from llmcalc.sources.target import load
from llmcalc.witnesses.gpu import closed_form_bytes
from llmcalc.witnesses.memory import fill_reference_defaults
from tests.gpu_rows import GPUS, rows_of, training_options

OTHER = {
    "t5-large": "its class adds a bias inside scaled_dot_product_attention",
}
"""Preset → why the memory of its class of transformers differs by more than 0.1 % from the reference's."""


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


def reference_errors(gpu: str) -> Iterator[Error]:
    """The errors of the training runs of llmcalc's own PyTorch model on a GPU.

    Its passes without gradients had another cache when they were measured (tests/data/gpu/README.md).
    """
    for row in (row for row in rows_of(gpu, "reference") if row["phase"] == "training"):
        settings = Settings(row["phase"], batch=row["batch"], seq=row["seq"], **row["settings"])
        computed = closed_form_bytes(memory(load(row["model"]).model, fill_reference_defaults(settings)).device)
        for quantity, bytes in computed.items():
            yield Error(row, quantity, bytes, row["measured"][quantity])


@pytest.fixture(scope="module")
def reference() -> list[Error]:
    return list(reference_errors("h200"))


@pytest.fixture(scope="module")
def reference_of_h100() -> list[Error]:
    return list(reference_errors("h100"))


def share(errors: list[Error], within: float) -> float:
    return sum(abs(error.relative) <= within for error in errors) / len(errors)


def test_requested_bytes_are_near(reference: list[Error]) -> None:
    """At the commit that was measured 93 of 143 were equal, and of models with biases 1 MiB less for each thread.

    Since then the reference's head of BERT gives up its input before the vocabulary, as its class does: 4 MiB less.
    """
    requested = [error for error in reference if error.quantity == "requested_bytes"]
    assert share(requested, 0.0001) > 0.75
    assert share(requested, 0.001) == 1


def test_requested_bytes_are_equal(reference_of_h100: list[Error]) -> None:
    """Runs of models with biases take 1 MiB more in each thread: torch 2.11 gives cuBLASLt a workspace of its own."""
    requested = [error for error in reference_of_h100 if error.quantity == "requested_bytes"]
    assert len(requested) == 45
    for error in requested:
        is_biased = error.row["model"].startswith(("gpt2", "bart"))
        threads = 2 if error.row["settings"].get("recompute") == "full" else 1
        missing = error.measured - error.computed
        assert missing in ({threads * 2**20, threads * 2**20 - 96} if is_biased else {0}), error


def test_segments_of_the_h100_are_near(reference_of_h100: list[Error]) -> None:
    """Later runs of one process use addresses that earlier ones gave back, which decides among equal free blocks.

    The rows were measured while a sublayer's output had a name until the layer returned.
    """
    reserved = [error for error in reference_of_h100 if error.quantity == "reserved_bytes"]
    assert share(reserved, 0.01) > 0.6
    assert share(reserved, 0.15) == 1


def test_blocks_and_segments_are_near(reference: list[Error]) -> None:
    quantities = {
        name: [error for error in reference if error.quantity == name] for name in reference[0].row["measured"]
    }
    assert share(quantities["allocated_bytes"], 0.001) > 0.92
    assert share(quantities["after_step_bytes"], 0.005) == 1
    assert share(quantities["reserved_bytes"], 0.01) > 0.72
    assert share(quantities["reserved_bytes"], 0.17) == 1


# --- classes of transformers ------------------------------------------------------------------------------------------


def as_typed(row: dict[str, Any]) -> Settings:
    """The settings of a run of transformers, as a user states them."""
    options = training_options(row)
    if "lora_targets" in options:
        options["lora_targets"] = tuple(options["lora_targets"].split(","))
    return Settings("training", batch=row["batch"], seq=row["seq"], optimizer_impl="fused", **options)


def trained(row: dict[str, Any]) -> tuple[ModelSpec, DeviceMemory]:
    spec = load(row["model"]).model
    return spec, memory(spec, as_typed(row)).device


def class_errors() -> Iterator[Error]:
    """The errors of all training steps of transformers' classes."""
    for row in (row for gpu in GPUS for row in rows_of(gpu, "transformers")):
        if row["model"].startswith("t5"):
            continue
        device = trained(row)[1]
        yield Error(row, "peak_bytes", device.peak_bytes, max(row["allocated_bytes"].values()))
        yield Error(row, "reserved_bytes", device.reserved_bytes, row["reserved_bytes"])


def test_classes_of_transformers_take_what_is_computed() -> None:
    errors = [error for error in class_errors() if error.quantity == "peak_bytes"]
    alike = [error for error in errors if error.row["model"].partition("?")[0] not in OTHER]
    assert len(alike) > 40
    assert share(alike, 0.001) > 0.95
    assert share(alike, 0.0015) == 1
    assert share([error for error in errors if error not in alike], 0.012) == 1


def inference_errors() -> Iterator[Error]:
    """The errors of the peaks of prompts and tokens of transformers' classes with `DynamicCache`.

    While a token ran, the script kept the ids of the prompt, which a pass over one token does not have.
    """
    for row in rows_of("h100", "inference"):
        spec, prompt_ids = load(row["model"]).model, INT64.bytes * row["batch"] * row["context"]
        for phase, kept_by_script in (("prefill", 0), ("decode", prompt_ids)):
            settings = Settings(phase, batch=row["batch"], seq=row["context"], attn_implementation=row["attention"])
            device = memory(spec, settings).device
            yield Error(row, phase, device.peak_bytes + kept_by_script, row[f"{phase}_bytes"])
            requested = closed_form_bytes(device)["requested_bytes"] + kept_by_script
            yield Error(row, f"{phase} requested", requested, row[f"{phase}_requested_bytes"])


EXPLAINED = {
    ("qwen2.5-7b", "prefill requested"): "1 MiB: torch 2.11 gives cuBLASLt a workspace of its own",
    ("qwen2.5-7b", "decode requested"): "1 MiB: torch 2.11 gives cuBLASLt a workspace of its own",
    ("phi3-mini", "prefill requested"): "its class keeps the product of gate and up projections beside the result",
    ("mistral-7b", "decode requested"): "transformers 5.17 repeats keys where a window has a mask, later ones do not",
    ("gemma2-2b", "decode requested"): "not explained: 15 kB",
}
"""(preset, quantity) → why bytes differ by more than the buffers of RoPE's frequencies, which this model has not."""


def test_prompts_and_tokens_of_transformers_take_what_is_computed() -> None:
    errors = list(inference_errors())
    requested = [error for error in errors if error.quantity.endswith("requested")]
    equal = [error for error in requested if (error.row["model"], error.quantity) not in EXPLAINED]
    assert len(equal) == 42
    assert all(0 <= error.measured - error.computed < 4_000 for error in equal)
    assert all(abs(error.relative) < 0.004 for error in errors)
    assert share(errors, 0.0001) > 0.9


# --- kernels ----------------------------------------------------------------------------------------------------------


def test_the_backend_of_attention() -> None:
    """torch 2.11 does not ask cuDNN about the probability of dropout."""
    calls = [row for row in rows_of("h200", "kernels") if row["part"] == "sdpa" and row["kind"] != "dropout"]
    assert len(calls) > 40
    for row in calls:
        masked = row["kind"] == "mask"
        call = SdpaCall(DTYPES[row["dtype"]], row["qk"], row["v"], row["keys"], masked, row["grad"])
        assert sdpa_backend(90, call) == row["choice"], row


def test_the_workspace_of_cudnn() -> None:
    for row in rows_of("h200", "kernels"):
        if row["part"] == "sdpa" and row["choice"] == "cudnn" and row["grad"] and row["queries"] > 1:
            rows = row["batch"] * row["heads"] * row["queries"]
            assert 4 * rows * (row["qk"] + 1) + 256 == max(bytes for sign, bytes, _ in row["backward"] if sign == "+")
            assert [row["forward"][0][1], row["forward"][1][1]] == ([8, 8] if row["kind"] != "mask" else [2, 2])


def test_sums_of_rows_have_partial_sums_beside_them() -> None:
    """The gradient of 4096 weights is a sum over 2000 tokens."""
    sums = [row for row in rows_of("h200", "kernels") if row["part"] in ("gelu", "softmax32", "dropout")]
    for row in sums:
        allocated = [bytes for sign, bytes, _ in row["backward"] if sign == "+"]
        assert tuple(allocated[-2:]) == scratch_bytes(4096, 2000, 132)
    assert len(sums) == 3


def test_the_backward_pass_of_softmax_makes_a_product() -> None:
    (row,) = [row for row in rows_of("h200", "kernels") if row["part"] == "softmax32"]
    in_float32 = 2 * 1000 * 4096 * 4
    assert [bytes for sign, bytes, _ in row["backward"] if sign == "+"][:3] == [in_float32] * 3


def print_rows() -> None:
    for error in (*reference_errors("h200"), *reference_errors("h100"), *class_errors(), *inference_errors()):
        names = ("phase", "settings", "batch", "seq", "lora")
        shown = {name: value for name, value in error.row.items() if name in names}
        print(f"{error.row['model']:40} {error.quantity:18} {error.measured:>15,} {error.relative:+9.3%}  {shown}")


if __name__ == "__main__":
    print_rows()
