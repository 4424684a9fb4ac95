"""`llmcalc verify --memory`: the replay against torch, on meta and on the CPU, and against measurements of GPUs.

The protocol for GPUs runs here on a model of torch's allocator that is fed by what the reference allocates on meta.
"""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import llmcalc
from llmcalc.device_memory.cuda_runtime import LARGE_GPU_WORKSPACE_BYTES, WORKSPACE_BYTES, CudaRuntime
from llmcalc.device_memory.optimizers import adamw
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.simulator.autograd import AutogradGraph
from llmcalc.simulator.lowering import UnsupportedKernel
from llmcalc.simulator.profiles.eager import EagerKernels
from llmcalc.simulator.tensor import Tensor
from llmcalc.sources.target import load
from llmcalc.witnesses import gpu
from llmcalc.witnesses.checks import MEMORY_PREFIX, Check
from llmcalc.witnesses.gpu import AllocatorStatistics, compare_on_gpu
from llmcalc.witnesses.memory import MemoryComparison, compare_memory, default_run_settings, unsupported_reason
from llmcalc.witnesses.storage_tracker import StorageTracker
from tests.samples import in_one_test
from tests.simulator.allocator_witness import WitnessAllocator
from tests.witnesses import gpu_memory

SMALL = "smollm2-135m?num_hidden_layers=2&vocab_size=1000"

MODELS = [
    SMALL,
    "gpt2?num_hidden_layers=2&vocab_size=1000",
    "bert-tiny",
    "t5-small?encoder.num_hidden_layers=1&decoder.num_hidden_layers=1&vocab_size=1000",
    "olmoe-1b-7b?num_hidden_layers=2&num_experts=8&hidden_size=256&vocab_size=1000",
    "deepseek-v2-lite?num_hidden_layers=2&num_experts=8&hidden_size=256&vocab_size=1000",
    "apertus-8b?num_hidden_layers=1&hidden_size=256&vocab_size=1000",
    "gemma2-2b?num_hidden_layers=2&hidden_size=256&vocab_size=1000",
]


def compared(target: str, device: Any = "meta", seq: int = 24, **settings: Any) -> MemoryComparison:
    spec = load(target).model
    runs = [Settings(seq=seq, **settings)] if settings else default_run_settings(spec, 1, seq)
    return compare_memory(spec, runs, device)


@pytest.mark.parametrize("target", MODELS)
def test_every_phase_holds_what_torch_holds(target: str) -> None:
    found = compared(target)
    assert not found.skip_reasons
    assert [check.data() for check in found.checks if not check.ok] == []
    quantities = {check.quantity.removeprefix(MEMORY_PREFIX) for check in found.checks}
    expected = {"saved_bytes", "live_bytes", "backward_peak_bytes", "step_peak_bytes", "after_step_bytes"}
    assert quantities > expected | {"prefill_peak_bytes"}
    assert ("decode_peak_bytes" in quantities) == (target != "bert-tiny")
    assert all(check.closed_form > 0 and check.node == "" for check in found.checks)


@pytest.mark.parametrize(
    "settings",
    [
        {"recompute": "full"},
        {"recompute": "attention+matmuls", "attn_implementation": "flash", "norm": "fused"},
        {"precision": "bf16", "optimizer": "muon"},
        {"precision": "fp32", "optimizer": "sgd", "num_microbatches": 2, "zero_grad": "zeros"},
        {"lora_rank": 4, "lora_dropout": True, "optimizer_impl": "loop"},
        {"cross_entropy": "chunked", "batch": 2},
    ],
    ids=lambda settings: next(iter(settings.values())),
)
def test_settings_of_training_hold_what_torch_holds(settings: dict[str, Any]) -> None:
    found = compared(SMALL, phase="training", **settings)
    assert found.run_descriptions
    assert [check.data() for check in found.checks if not check.ok] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"phase": "training", "precision": "autocast"},
        {"phase": "training", "precision": "bf16", "optimizer_impl": "fused"},
        {"phase": "training", "optimizer": "adafactor"},
        {"phase": "prefill", "chunk": 10},
    ],
    ids=lambda settings: str(list(settings.values())[-1]),
)
def test_what_meta_does_not_run_runs_on_the_cpu(settings: dict[str, Any]) -> None:
    found = compared(SMALL.replace("1000", "64"), "cpu", **settings)
    assert found.run_descriptions
    assert [check.data() for check in found.checks if not check.ok] == []


# --- what is wrong is found -------------------------------------------------------------------------------------------


def one_temporary_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the replay of AdamW hold one temporary per parameter more than torch."""
    right = adamw._multi_tensor_adam

    def wrong(run: Any, trained: Any) -> None:
        spare = [run.aten.new_like(one.states[-1]) for one in trained]
        right(run, trained)
        del spare

    monkeypatch.setattr(adamw, "_multi_tensor_adam", wrong)


def test_a_wrong_replay_of_the_optimizer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one_temporary_more(monkeypatch)
    assert wrong_in(compared(SMALL)) == {"first_step_peak_bytes", "step_peak_bytes"}


def test_a_wrong_replay_of_a_layer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = EagerKernels.do_norm

    def wrong(self: Any, step: Any) -> None:
        self.kept = [*getattr(self, "kept", []), self.aten.new_like(self.tensor_of(step.input_values[0]))]
        right(self, step)

    monkeypatch.setattr(EagerKernels, "do_norm", wrong)
    assert wrong_in(compared(SMALL)) > {"live_bytes", "prefill_peak_bytes", "prefill_after_bytes"}


def wrong_in(found: MemoryComparison) -> set[str]:
    return {check.quantity.removeprefix(MEMORY_PREFIX) for check in found.checks if not check.ok}


# --- what is left out or refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["mamba-130m", "zamba2-1.2b", "lfm2-350m", "rwkv-4-169m", "xlstm-7b"])
def test_recurrent_layers_are_left_out_by_name(target: str) -> None:
    found = compared(target)
    assert not found.checks
    assert list(found.skip_reasons) == ["training", "prefill", "decode"]
    assert all(why.startswith("layers.") and "runs kernels of a library" in why for why in found.skip_reasons.values())


@in_one_test
@pytest.mark.parametrize(
    ("settings", "device", "why"),
    [
        ({"phase": "training", "precision": "autocast"}, "meta", "torch.autocast does nothing on meta"),
        ({"phase": "training", "precision": "bf16", "optimizer_impl": "fused"}, "meta", "no fused optimizer on meta"),
        ({"phase": "training", "optimizer": "adafactor"}, "meta", "adafactor reads values"),
        ({"phase": "training", "attn_implementation": "flash"}, "cpu", "no flash attention"),
        ({"phase": "training", "cross_entropy": "fused"}, "cuda", "of a library"),
        ({"phase": "training", "optimizer": "adamw-8bit"}, "cuda", "bitsandbytes"),
        ({"phase": "training", "lora_rank": 4, "base": "nf4"}, "cuda", "bitsandbytes"),
        ({"phase": "training", "compile": True}, "cuda", "an estimate"),
        ({"phase": "training", "grad_dtype": "fp32"}, "meta", "sums of gradients"),
        ({"phase": "prefill", "quantize": "q4_k_m"}, "meta", "quantized weights"),
        ({"phase": "prefill", "kv_block": 16}, "meta", "paged cache"),
        ({"phase": "inference"}, "cuda", "paged cache"),
    ],
)
def test_what_the_reference_does_not_have_is_left_out(settings: dict[str, Any], device: Any, why: str) -> None:
    found = compared(SMALL, device, **settings) if device != "cuda" else None
    said = unsupported_reason(load(SMALL).model, Settings(seq=24, **settings), device)
    assert why in said
    assert found is None or (not found.checks and list(found.skip_reasons.values()) == [said])


def test_a_run_that_is_too_large_for_the_cpu_is_refused() -> None:
    with pytest.raises(InputError, match=r"--device cpu: --memory: training takes .* bytes, which are too many"):
        compared("llama3-8b", "cpu")


def test_a_step_without_kernels_is_refused_by_name(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, step: Any) -> None:
        raise self.unsupported("no kernels")

    monkeypatch.setattr(EagerKernels, "do_norm", refuse)
    with pytest.raises(UnsupportedKernel, match=r"layers\.self_attn_pre_norm: no kernels"):
        compared(SMALL)
    assert "layers.self_attn_pre_norm: no kernels" in run("verify", SMALL, "--memory").error


def test_a_view_that_is_added_to_in_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatch mode cannot show it: under one, torch adds no gradient in place."""
    tied = "smollm2-135m?num_hidden_layers=2&vocab_size=6000"
    assert wrong_in(compared(tied, phase="training")) == set()

    def without_base(x: Tensor, shape: Any, strides: Any) -> Tensor:
        return Tensor(shape, x.dtype, x.storage, strides)

    monkeypatch.setattr(Tensor, "view", without_base)
    found = {name.removeprefix("cpu_events_") for name in wrong_in(compared(tied, phase="training"))}
    assert found == {"backward_peak_bytes", "sums_in_place_bytes", "sums_out_of_place_bytes"}


def test_a_model_that_is_too_large_for_the_cpu_is_named() -> None:
    found = compared("qwen3-1.7b", phase="training")
    assert list(found.skip_reasons) == ["sums of gradients"]
    assert "are too many" in found.skip_reasons["sums of gradients"]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_adds_checks_of_memory(run: Any) -> None:
    document = run("verify", SMALL, "--memory", "--format", "json").document
    memory_checks = [check for check in document["checks"] if check["quantity"].startswith(MEMORY_PREFIX)]
    assert {check["witness"] for check in memory_checks} == {"torch on meta", "CPU events"}
    assert all(check["ok"] and check["node"] == "" for check in memory_checks)
    assert len(document["memory"]["runs"]) == 4
    assert document["memory"]["left_out"] == {}


def test_a_mismatch_is_exit_code_1(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one_temporary_more(monkeypatch)
    code, out, _ = run("verify", SMALL, "--memory")
    assert code == 1
    assert out.splitlines()[0].split()[-2:] == ["memory", "checks"]
    assert "2 moments differ in bytes of memory" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert [line.split()[:2] for line in out.splitlines() if "peak" in line] == [["first", "step"], ["step", "peak"]]


def test_what_is_left_out_is_in_the_notes(run: Any) -> None:
    code, out, _ = run("verify", "mamba-130m?num_hidden_layers=1", "--memory", "--notes")
    assert code == 0
    assert "memory of training, prefill, decode not compared: layers.0.mamba runs" in " ".join(out.split())


@pytest.mark.parametrize("against", ["published", "transformers"])
def test_it_is_for_the_reference(run: Any, against: str) -> None:
    code, _, err = run("verify", "gpt2", "--memory", "--against", against)
    assert code == 2
    assert "--memory only apply to --against reference" in err


# --- on a GPU ---------------------------------------------------------------------------------------------------------


class Modelled(StorageTracker):
    """Statistics of a model of torch's allocator, which gets what torch allocates on meta.

    extra: bytes of a block that is there from the beginning of every run.
    """

    def __init__(self, extra: int = 0) -> None:
        super().__init__()
        self.allocator, self.extra = WitnessAllocator(), extra
        self.begun: list[Any] = []

    def _track_tensor(self, tensor: torch.Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.tracked:
            self.tracked.add(key)
            weakref.finalize(storage, self._freed, key, self.allocator.allocate(storage.nbytes()))

    def _freed(self, key: int, handle: Any) -> None:
        self.tracked.discard(key)
        self.allocator.free(handle)

    def empty_and_reset(self) -> None:
        gc.collect()
        for handle in self.begun:
            self.allocator.free(handle)
        self.allocator.release_cached()
        self.begun = [self.allocator.allocate(self.extra)]
        self.reset_peaks()

    def reset_peaks(self) -> None:
        self.allocator.reset_peaks()

    def read_bytes(self) -> AllocatorStatistics:
        found = self.allocator
        return AllocatorStatistics(found.allocated, found.peak_requested, found.peak_allocated, found.peak_reserved)

    def outside_bytes(self) -> int:
        return 0


@contextmanager
def on_the_model(monkeypatch: pytest.MonkeyPatch, extra: int = 0) -> Iterator[Callable[..., MemoryComparison]]:
    """Compares a model's runs, or one with these settings, on a device without workspaces."""
    right = AutogradGraph.__init__

    def without_sums_in_place(self: Any, *given: Any) -> None:
        right(self, *given)
        self.adds_in_place = False  # under a dispatch mode torch never does

    monkeypatch.setattr(AutogradGraph, "__init__", without_sums_in_place)
    statistics = Modelled(extra)
    with statistics:
        yield lambda target, seq=24, **settings: compare_on_gpu(
            load(target).model,
            [Settings(seq=seq, **settings)] if settings else default_run_settings(load(target).model, 2, seq),
            statistics,
            CudaRuntime(0, 0),
        )


@pytest.mark.parametrize("target", [SMALL, "olmoe-1b-7b?num_hidden_layers=1", "bert-tiny"])
def test_the_protocol_finds_what_the_allocator_holds(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    with on_the_model(monkeypatch) as compare:
        found = compare(target)
    assert [check.data() for check in found.checks if not check.ok] == []
    exact = [check for check in found.checks if check.quantity.endswith("_requested_bytes")]
    assert len(exact) == len(found.run_descriptions) > 0
    assert [check.closed_form for check in exact] == [check.measured_value for check in exact]
    first = found.info["runs_measured"][0]["measured"]
    assert list(first["phases"]) == ["set-up", "forward", "backward", "step"]
    assert all(run["measured"]["before_bytes"] == 0 for run in found.info["runs_measured"])
    assert first["requested_bytes"] == max(phase["requested_bytes"] for phase in first["phases"].values())


def test_what_the_replay_lacks_is_beyond_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_the_model(monkeypatch, extra=32 << 20) as compare:
        found = compare(SMALL, phase="training", batch=2)
    failed = {check.quantity.removeprefix(f"{MEMORY_PREFIX}training_") for check in found.checks if not check.ok}
    assert failed == set(gpu.TOLERANCE_BY_QUANTITY)


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "free_bytes", lambda _: 1000)
    with on_the_model(monkeypatch) as compare:
        found = compare(SMALL)
    assert not found.checks
    assert all(why.endswith("bytes of 1,000 free") for why in found.skip_reasons.values())


def test_counts_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of torch's counts; what they count needs a GPU."""
    counts = {
        "allocated_bytes.all.current": 1,
        "requested_bytes.all.peak": 2,
        "allocated_bytes.all.peak": 3,
        "reserved_bytes.all.peak": 4,
    }
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: counts)
    assert gpu.CudaStatistics().read_bytes() == (1, 2, 3, 4)


def test_the_runtime_is_that_of_the_measured_gpu() -> None:
    assert gpu.cuda_runtime_of_gpu({"compute_capability": "9.0"}, {}) == CudaRuntime(LARGE_GPU_WORKSPACE_BYTES)
    older = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert gpu.cuda_runtime_of_gpu({"compute_capability": "8.0"}, older) == CudaRuntime(
        WORKSPACE_BYTES, has_expandable_segments=True
    )
    set_to = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    assert gpu.cuda_runtime_of_gpu({"compute_capability": "8.0"}, set_to) == CudaRuntime(128 << 10)


@pytest.mark.parametrize(("closed_form", "ok"), [(1000, True), (1001, True), (999, True), (1002, False), (998, False)])
def test_a_check_within_a_bound(closed_form: int, ok: bool) -> None:
    check = Check("", f"{MEMORY_PREFIX}training_requested_bytes", closed_form, 1000, "torch on cuda", tolerance=0.001)
    assert check.ok == ok
    assert ok or check.explanation().endswith("(at most 0.1 % is expected)")


# --- the configurations that a GPU runs, and what one has measured ----------------------------------------------------


def test_the_grid_has_every_kind_of_run() -> None:
    """At least 20 runs, of models from 0.1 to 8 billion parameters."""
    grid = gpu_memory.CONFIGURATIONS
    assert len(grid) >= 20
    for name, run in grid.items():
        assert unsupported_reason(gpu_memory.spec_of(run), gpu_memory.settings_in(run), "cuda") == "", name
    for kind in ("dense", "moe", "recompute", "lora", "prefill", "decode"):
        assert sum(name.startswith(kind) for name in grid) >= 2, kind
    assert {run.settings.get("optimizer", "adamw") for run in grid.values()} >= {"adamw", "sgd", "adafactor", "muon"}
    sizes = {run.target: llmcalc.params(run.target).total for run in grid.values()}
    assert min(sizes.values()) < 2e8
    assert 8e9 < max(sizes.values()) < 8.1e9


@pytest.mark.parametrize("name", ["dense-0.4b-expandable", "dense-1b-autocast", "moe-1b"])
def test_the_largest_runs_fit_80_gb(name: str) -> None:
    found = gpu_memory.answer(gpu_memory.CONFIGURATIONS[name], {"compute_capability": "9.0"})
    assert 40 << 30 < found.device_bytes < 72 << 30


def test_a_file_is_read_back(tmp_path: Any) -> None:
    """A file of what `llmcalc memory` answers holds its bounds; one of other numbers does not."""
    name, facts = "dense-0.1b-encoder", {"gpu": "NVIDIA H100", "compute_capability": "9.0"}
    run = gpu_memory.CONFIGURATIONS[name]
    right = gpu.closed_form_bytes(gpu_memory.answer(run, facts))
    row = {"name": name, "target": run.target, "settings": dict(run.settings), "environment": {}, "measured": right}
    path = tmp_path / "gpu_memory_h100.json"
    gpu_memory.written(path, {"device": facts, "runs": [row, {"name": "other", "left_out": "it failed: so"}]})
    document = json.loads(path.read_text())
    found = [check for _, check in gpu_memory.checks(document)]
    assert len(found) == len(gpu.TOLERANCE_BY_QUANTITY)
    assert all(check.ok for check in found)
    document["runs"][0]["measured"] = {quantity: value * 1.02 for quantity, value in right.items()}
    assert not any(check.ok for _, check in gpu_memory.checks(document))


@pytest.mark.parametrize("extra", [0, 64 << 20])
def test_the_runner_writes_what_it_measures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str], extra: int
) -> None:
    """With a modelled allocator in the place of a GPU, in this process. Exit code 1 if a run is beyond the bounds."""
    facts = {"gpu": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0", "torch": "2.13"}
    statistics = Modelled(extra)
    monkeypatch.setattr(gpu, "CudaStatistics", lambda: statistics)
    monkeypatch.setattr(gpu, "gpu_properties", lambda: facts)
    monkeypatch.setattr(gpu, "cuda_runtime_of_gpu", lambda *_: CudaRuntime(0, 0))
    monkeypatch.setattr(gpu, "free_bytes", lambda _: 2 << 30)
    monkeypatch.setattr(gpu_memory, "in_another_process", gpu_memory.measured)
    runs = {"small": gpu_memory.passing(SMALL, "prefill", 1, 24), "large": gpu_memory.training("llama3-8b", 1, 24)}
    monkeypatch.setattr(gpu_memory, "CONFIGURATIONS", runs)
    path = tmp_path / "gpu_memory_h100.json"
    with statistics:
        assert gpu_memory.main(["-o", str(path)]) == bool(extra)
    document = json.loads(path.read_text())
    assert document["device"] == facts
    assert [row["name"] for row in document["runs"]] == ["small", "large"]
    assert document["runs"][1]["left_out"].endswith("bytes of 2,147,483,648 free")
    assert capsys.readouterr().out.count("=" if not extra else "≠") == len(gpu.TOLERANCE_BY_QUANTITY)
    with statistics:
        gpu_memory.main(["small", "-o", str(path)])
    assert [row["name"] for row in json.loads(path.read_text())["runs"]] == ["small", "large"]


@pytest.mark.parametrize("path", gpu_memory.files(), ids=lambda path: path.stem)
def test_a_gpu_has_measured_what_is_answered(path: Any) -> None:
    """No run has failed, and at least 20 were measured."""
    document = json.loads(path.read_text())
    found = list(gpu_memory.checks(document))
    wrong = [f"{name}: {gpu_memory.line(check).strip()}" for name, check in found if not check.ok]
    assert not wrong, "\n".join(wrong)
    assert len({name for name, _ in found}) >= 20
