"""Each benchmark runs with sizes that take no time, so that a renamed module or field does not leave it behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.training import TrainingConfig
from llmcalc.parallel.layout import Layout
from tests.benchmarks import fsdp, layouts, memory, page, startup, sweep, verify
from tests.benchmarks.__main__ import BENCHMARKS, main
from tests.benchmarks.timing import Run, process

SMALL = "smollm2-135m?num_hidden_layers=6&vocab_size=64"
SHORT = TrainingConfig(batch=1, seq=16)
TRAINING = Settings("training", seq=16, batch=1, num_microbatches=2)
PIPELINE = (SMALL, Layout(pp=2), TRAINING)

SMALLEST: dict[str, tuple[Any, dict[str, Any]]] = {
    "startup": (startup, {"RUNS": 1, "COMMAND": ["params", "gpt2"], "LONGER": {}}),
    "sweep": (sweep, {"RUNS": 1, "SHAPES": 100}),
    "verify": (verify, {"RUNS": 1, "TARGET": "smollm2-135m?num_hidden_layers=1"}),
    "memory": (memory, {"RUNS": 1, "TARGET": SMALL, "SEQ": 16, "COMPARED": {SMALL: SHORT}}),
    "layouts": (
        layouts,
        {
            "RUNS": 1,
            "PRICED": 10,
            "PLANNED": (2,),
            "PLANNED_MODEL": SMALL,
            "WALKED": ((PIPELINE, ""),),
            "REPLAYED": {"FSDP2": ("fsdp2", SMALL, Layout(dp=2, zero=3), TRAINING), "torch": ("torch", *PIPELINE)},
        },
    ),
    "fsdp": (fsdp, {"RUNS": 1, "TARGET": SMALL, "LAYOUT": Layout(dp=2, zero=3), "HOW": SHORT}),
    "page": (page, {"DIST": Path("no page is built here")}),
}
"""Benchmark → its module, and constants of its smallest case."""


def processes_once(commands: list[list[str]], times: int) -> list[Run]:
    """Runs each command once, with the modules that are compiled already."""
    return [process(command, "") for command in commands]


def test_every_benchmark_is_listed() -> None:
    files = {path.stem for path in Path(page.__file__).parent.glob("*.py")} - {"__init__", "__main__", "timing"}
    assert files == BENCHMARKS.keys() == SMALLEST.keys()


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_case_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module, constants = SMALLEST[name]
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(startup, "processes", processes_once)
    assert main([name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{name}: ")
    assert len(lines) > 1 or name == "page"


def test_a_benchmark_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    assert "no benchmark called speed; expected startup, sweep" in capsys.readouterr().err
