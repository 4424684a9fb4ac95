"""Published kernels and modules hold, to the byte, what their own code was recorded to hold.

`records.json` has the records; `python -m tests.simulator.published.record` makes them anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from llmcalc.components.evidence import part_evidence
from llmcalc.flow.axis import Axis
from llmcalc.flow.record import Flow
from llmcalc.flow.value import Value
from llmcalc.simulator.autograd import AutogradGraph
from llmcalc.simulator.evidence import evidence_of_kernels
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.profiles.eager import EagerKernels
from llmcalc.simulator.published import KERNELS as TABLE
from llmcalc.simulator.published import LIBRARIES
from llmcalc.simulator.tensor import BFLOAT16, Tensor, empty
from llmcalc.workload.rows import TOKENS
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Workload
from tests.comparisons import Thing, compares
from tests.samples import in_one_test
from tests.simulator.published import launchless
from tests.simulator.published.kernels import KERNELS, KernelCase, Of
from tests.simulator.published.modules import MODULES, NORM, ModuleCase
from tests.simulator.published.record import RECORDS
from tests.simulator.replayed_kernel import held, held_by_kernel
from tests.simulator.witness import Held

RECORDED_REPEATS = json.loads(RECORDS.read_text())
MISSING = launchless.missing()


def each(kind: str) -> list[Any]:
    """(name, sizes, recorded) of every case."""
    return [
        pytest.param(name, Of(**one["sizes"]), Held(**one["held"]), id=f"{name} {i}")
        for name, cases in RECORDED_REPEATS[kind].items()
        for i, one in enumerate(cases)
    ]


def by_kernel(case: KernelCase, sizes: Of) -> Held:
    inputs = [(shape, dtype, True) for shape, dtype in case.inputs(sizes)]
    return held_by_kernel(lambda aten, *tensors: case.ours(aten, sizes, *tensors), inputs)


def program_of(case: ModuleCase, sizes: Of) -> tuple[Flow, Value]:
    """The program of a module in layers, and the value that it reads."""
    part, program, x = case.part(sizes), Flow(), Value(TOKENS, (Axis("hidden", sizes.h),))

    def layer(v: Value) -> Value:
        return program.add(v, program.part("module", part, program.part("norm", NORM, v)))

    program.result = program.layers(x, layer, sizes.n, None)
    return program, x


def things(name: str, sizes: Of) -> set[Thing]:
    """The part that a module is, and its kernels."""
    case = MODULES[name]
    kernels = evidence_of_kernels(EagerKernels, program_of(case, sizes)[0], case.choices)
    return Thing.of([part_evidence(case.part(sizes)), *kernels])


def by_module(case: ModuleCase, sizes: Of) -> Held:
    program, x = program_of(case, sizes)
    meter = Meter()
    graph = AutogradGraph(meter)
    graph.adds_in_place = False
    run_config = RunConfig(Workload(batch=sizes.B, seq=sizes.T, phase="training"))
    run = EagerKernels(graph, run_config, BFLOAT16, recompute=case.recompute, choices=case.choices)
    meter.kind = "weights"
    input_tensor = empty(meter, (sizes.B, sizes.T, sizes.h), BFLOAT16, is_leaf=True)
    meter.kind = "temporary"

    def once() -> Tensor:
        run.values[id(x)] = input_tensor
        return run.run(program)

    once()  # makes the weights
    run.left.clear()
    base = meter.now
    meter.restart()
    return held(meter, graph, once(), base, counts_saved=not case.recompute.layers)


@in_one_test
@pytest.mark.parametrize(("name", "sizes", "recorded"), each("kernels"))
def test_a_kernel_holds_what_its_own_code_held(name: str, sizes: Of, recorded: Held) -> None:
    assert by_kernel(KERNELS[name], sizes) == recorded


@compares(things, torch=False)
@pytest.mark.parametrize(("name", "sizes", "recorded"), each("modules"))
def test_a_module_holds_what_its_own_code_held(name: str, sizes: Of, recorded: Held) -> None:
    assert by_module(MODULES[name], sizes) == recorded


def test_every_case_is_recorded() -> None:
    for kind, cases in (("kernels", KERNELS), ("modules", MODULES)):
        recorded = {name: [one["sizes"] for one in found] for name, found in RECORDED_REPEATS[kind].items()}
        assert recorded == {name: list(case.sizes) for name, case in cases.items()}


def test_records_are_of_the_named_commits() -> None:
    assert RECORDED_REPEATS["commits"] == {library.name: library.commit for library in LIBRARIES.values()}


def test_every_kernel_that_ran_on_meta_has_a_record() -> None:
    recorded = {name.split(",")[0] for name in RECORDED_REPEATS["kernels"]}
    assert {kernel.name for kernel in TABLE if kernel.memory_source == "run on meta"} == recorded
    assert {kernel.library for kernel in TABLE} <= set(LIBRARIES)


@pytest.mark.skipif(bool(MISSING), reason=f"not importable: {', '.join(MISSING)}")
def test_the_libraries_hold_what_was_recorded() -> None:
    """Runs the libraries in a process of their own, since their stand-ins for Triton change torch."""
    command = [sys.executable, "-m", "tests.simulator.published.record", "--check"]
    found = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
