"""Measures the memory of training steps and passes on a GPU, and compares it with `llmcalc memory`'s answer.

torch's caching allocator counts three sums (torch.cuda.memory_stats): bytes that tensors ask for (`requested_bytes`),
bytes of the blocks that they get (`allocated_bytes`), and bytes of its segments (`reserved_bytes`). The first is
compared with the tensors and workspaces of the replay, the others with its model of the allocator.

A run begins with an empty allocator. The model is made, and the segments that its making leaves free are returned. The
first products make cuBLAS workspaces, as in the replay.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..device_memory.cuda_runtime import CONTEXT, LARGE, LARGE_WORKSPACE, WORKSPACE, Runtime, workspace_bytes
from ..device_memory.device_memory import DeviceMemory
from ..device_memory.estimate import memory
from ..device_memory.settings import Settings
from ..device_memory.training import Training
from ..model import ModelSpec
from .checks import MEMORY, Check
from .loop import Passes, TrainingLoop, cache_shapes
from .memory import Compared, in_words, not_shown, program
from .speed import driver

STEPS = 3
"""Training steps that are measured: the first makes the optimizer's states, the second and third are alike."""

WITHIN = {"requested_bytes": 0.001, "allocated_bytes": 0.01, "reserved_bytes": 0.01, "after_step_bytes": 0.01}
"""Quantity → how far its closed form may be from it, as a share of what is measured."""


# --- what is read -----------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """The allocator's counts. allocated: bytes of blocks now. The others: the most since the last restart."""

    allocated: int
    peak_requested: int
    peak_allocated: int
    peak_reserved: int


class Statistics(Protocol):
    """The allocator of a device. device: the name that torch has for it."""

    device: str

    def begin(self) -> None:
        """Frees what nothing refers to, the allocator's free segments and workspaces; and restarts."""

    def restart(self) -> None:
        """Starts the peaks anew."""

    def read(self) -> Reading:
        """The counts, once everything has run."""

    def beside(self) -> int:
        """Bytes of the device that the allocator has not reserved and that are not free."""


class Cuda:
    """The statistics of torch's CUDA allocator."""

    device = "cuda"

    def begin(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        self.restart()

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> Reading:
        torch.cuda.synchronize()
        counts = torch.cuda.memory_stats()
        return Reading(
            counts["allocated_bytes.all.current"],
            counts["requested_bytes.all.peak"],
            counts["allocated_bytes.all.peak"],
            counts["reserved_bytes.all.peak"],
        )

    def beside(self) -> int:
        free, total = torch.cuda.mem_get_info()
        return int(total - free - torch.cuda.memory_reserved())


@dataclass
class Measured:
    """The memory of a run, in bytes.

    requested_bytes, allocated_bytes, reserved_bytes: the most of the allocator's sums.
    after_step_bytes: allocated after the last training step, or after the pass.
    before_bytes: allocated before the run, which should be 0. beside_bytes: what the device holds beside the
    allocator's segments after the run, such as the CUDA context; 0 for another device.
    phases: phase → the most of each sum during it.
    """

    requested_bytes: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    after_step_bytes: int = 0
    before_bytes: int = 0
    beside_bytes: int = 0
    phases: dict[str, dict[str, int]] = field(default_factory=dict)

    def take(self, phase: str, reading: Reading) -> None:
        """Takes the peaks of a phase."""
        here = self.phases.setdefault(phase, {"requested_bytes": 0, "allocated_bytes": 0, "reserved_bytes": 0})
        for name, value in zip(here, reading[1:], strict=True):
            here[name] = max(here[name], value)
            setattr(self, name, max(getattr(self, name), value))
        self.after_step_bytes = reading.allocated

    def data(self) -> dict[str, Any]:
        """The document."""
        return dict(vars(self))


# --- what is run ------------------------------------------------------------------------------------------------------


def measure(spec: ModelSpec, settings: Settings, statistics: Statistics) -> Measured:
    """Runs the reference with these settings. Raises torch's `OutOfMemoryError` if the device is too small."""
    how = program(spec, settings)
    found = Measured()
    statistics.begin()
    found.before_bytes = statistics.read().allocated

    def seen(phase: str, _: Tensor | None = None) -> None:
        found.take(phase, statistics.read())
        statistics.restart()

    if isinstance(how, Training):
        loop = TrainingLoop(spec, how, statistics.device)
        statistics.begin()
        seen("set-up")
        for _ in range(STEPS):
            loop.step(seen)
        found.beside_bytes = statistics.beside()
        return found
    shapes = cache_shapes(spec, how) if how.phase == "decode" else {}
    passes = Passes(spec, how, statistics.device)
    statistics.begin()
    if how.phase == "decode":
        passes.cache_of(shapes)
    seen("set-up")
    (passes.decode if how.phase == "decode" else passes.prefill)()
    seen(how.phase)
    found.beside_bytes = statistics.beside()
    return found


# --- what it is compared with -----------------------------------------------------------------------------------------


def closed_form(found: DeviceMemory) -> dict[str, int]:
    """Quantity → bytes of `llmcalc memory`. Workspaces are requested from the allocator, as tensors are."""
    workspaces = sum(term.bytes for term in found.terms if term.name == "cuBLAS workspaces")
    return {
        "requested_bytes": found.exact_bytes + workspaces,
        "allocated_bytes": found.peak_bytes,
        "reserved_bytes": found.reserved_bytes,
        "after_step_bytes": found.after_step_bytes,
    }


def checks(ours: Mapping[str, int], theirs: Mapping[str, Any], phase: str, witness: str) -> list[Check]:
    """One check per quantity of a phase, such as `memory.training_requested_bytes`."""
    return [
        Check("", f"{MEMORY}{phase}_{name}", ours[name], theirs[name], witness, within=within)
        for name, within in WITHIN.items()
    ]


def compare_on_gpu(
    spec: ModelSpec, settings: Sequence[Settings], statistics: Statistics | None = None, runtime: Runtime | None = None
) -> Compared:
    """Compares runs with a GPU. What does not fit, or what the reference cannot show, is left out with the reason.

    statistics, runtime: those of the GPU that torch sees, by default. Raises `Unsupported` for a step without kernels.
    """
    found = Compared(info={"runs_measured": []})
    if statistics is None:
        found.info |= {"device": (facts := device_facts()), "environment": (variables := environment())}
        statistics, runtime = Cuda(), runtime_of_facts(facts, variables)
    runtime = Runtime() if runtime is None else runtime
    for one in settings:
        why = not_shown(spec, one, "cuda")
        if why:
            found.left_out[one.phase] = why
            continue
        answer = memory(spec, one, runtime=runtime).device
        room = free_bytes(statistics)
        if room is not None and answer.reserved_bytes > room:
            found.left_out[one.phase] = f"{in_words(spec, one)} needs {answer.reserved_bytes:,} bytes of {room:,} free"
            continue
        ours, theirs = closed_form(answer), measure(spec, one, statistics).data()
        found.runs.append(in_words(spec, one))
        found.checks += checks(ours, theirs, one.phase, "torch on cuda")
        found.info["runs_measured"].append({"phase": one.phase, "closed_form": ours, "measured": theirs})
    return found


# --- the GPU ----------------------------------------------------------------------------------------------------------


def free_bytes(statistics: Statistics) -> int | None:
    """The free memory of the GPU when the allocator holds nothing; None for another device."""
    if statistics.device != "cuda":
        return None
    statistics.begin()
    return int(torch.cuda.mem_get_info()[0])


VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables of the environment that change what a run takes."""


def environment() -> dict[str, str]:
    """Those of `VARIABLES` that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def device_facts() -> dict[str, Any]:
    """The GPU that torch sees, its driver, torch's version and today's date."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": torch.cuda.get_device_name(0),
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": driver(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "date": date.today().isoformat(),
    }


def runtime_of_facts(facts: Mapping[str, Any], variables: Mapping[str, str]) -> Runtime:
    """What the runtime of a measured GPU takes. facts, variables: as of `device_facts` and `environment`."""
    major = int(facts["compute_capability"].partition(".")[0])
    config = variables.get("CUBLAS_WORKSPACE_CONFIG")
    workspace = (LARGE_WORKSPACE if major in LARGE else WORKSPACE) if config is None else workspace_bytes(config)
    expandable = any("expandable_segments:True" in variables.get(name, "") for name in VARIABLES[1:])
    return Runtime(workspace, CONTEXT, expandable)
