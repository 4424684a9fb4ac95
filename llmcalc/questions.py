"""Questions about a run, assembled once for the command line, for Python and for the page.

A question is a model with the settings of a run and, over several devices, a layout; its answer has a report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .accelerator import Hardware
from .costs.context_length import usual_sequence
from .device_memory.cuda_runtime import runtime_of
from .device_memory.estimate import Memory, memory
from .device_memory.settings import Settings
from .errors import InputError
from .parallel.layout_request import ANY, Asked
from .parallel.nearest import nearest_text, with_nearest
from .reports.answer import Answer
from .reports.document import Report
from .sources.preset import Preset


@dataclass(frozen=True)
class RunQuestion:
    """A model, and the run that is asked about.

    settings: of the run. layout: the options of a layout; none by default. include: optional parts of the model.
    hardware: the accelerator whose runtime is taken; None (default) for an H100. workspace: CUBLAS_WORKSPACE_CONFIG.
    """

    preset: Preset
    settings: Settings
    layout: Asked = ANY
    include: frozenset[str] = frozenset()
    hardware: Hardware | None = None
    workspace: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens of a sequence by which the nearest possible layouts are looked for."""
        return usual_sequence(self.preset.model) if self.settings.seq is None else self.settings.seq

    def on_one_device(self) -> Memory:
        """The memory on one device. Raises `InputError` for settings that contradict each other or the model."""
        preset, expandable = self.preset, self.settings.allocator == "expandable"
        runtime = runtime_of(self.hardware, self.workspace, expandable)
        return memory(preset.model, self.settings, preset.dtype, self.include, preset.checkpoint, runtime)


@dataclass(frozen=True, repr=False)
class RunAnswer(Answer):
    """The answer to a question about a run.

    found: the result, with fields of its own. verdict: `fits`, `tight` or `no`; empty where nothing has to fit.
    """

    preset: Preset
    found: Any
    make_report: Callable[[], Report]
    verdict: str = ""

    def report(self) -> Report:
        return self.make_report()


def ask_fit(question: RunQuestion, global_batch: int | None = None) -> RunAnswer:
    """Whether a run fits on the accelerators, and what would make it fit.

    global_batch: sequences of a training step over all devices; None (default) for a micro-batch of each.
    Raises `InputError` for options that contradict each other, and where no layout can be tried.
    """
    from .reports import fit as reports
    from .studies.fit import fit
    from .studies.fit_devices import fit_devices
    from .studies.fit_serving import fit_serving

    layout, settings, preset = question.layout, question.settings, question.preset
    assert question.hardware is not None
    if layout.anything and layout.devices is None:
        raise InputError("--devices: missing; expected the number of accelerators that the layout is over")
    if global_batch is not None:
        if layout.devices is None:
            raise InputError("--global-batch: is of many devices; expected --devices too")
        if settings.phase != "training":
            raise InputError("--global-batch: is of training; expected --users, of each replica")
    with with_nearest(preset.model, layout, question.tokens):
        one = question.on_one_device()
        if layout.devices is None:
            alone = fit(one, question.hardware)
            return RunAnswer(preset, alone, lambda: reports.report(preset, alone), alone.fit.verdict)
        if settings.phase != "training":
            served = fit_serving(one, question.hardware, layout)
            return RunAnswer(preset, served, lambda: reports.serving_report(preset, served), served.best.fit.verdict)
        spread = fit_devices(one, question.hardware, layout, global_batch)
        return RunAnswer(preset, spread, lambda: reports.devices_report(preset, spread), spread.fit.verdict)


def ask_plan(question: RunQuestion, global_batch: int | None = None, rows: int = 10) -> RunAnswer:
    """The layouts of a training run over many devices that fit, the best first.

    global_batch: as of `ask_fit`. rows: layouts that are replayed and shown.
    Raises `InputError` without a number of devices, for another phase, and where no layout can be tried.
    """
    from .reports.plan import report
    from .studies.plan import plan_of

    layout, preset = question.layout, question.preset
    assert question.hardware is not None
    if layout.devices is None:
        raise InputError("--devices: missing; expected the number of accelerators")
    if question.settings.phase != "training":
        raise InputError(
            f"--phase {question.settings.phase}: plans are of training; expected training (llmcalc fit --devices has "
            "layouts of inference)"
        )
    one = question.on_one_device()
    found = plan_of(one, question.hardware, layout, global_batch, rows)
    none = not found.plan.feasible and found.plan.nearest is None
    nearest = nearest_text(preset.model, layout, one.states.workload.seq) if none else ""
    verdict = "fits" if found.plan.feasible else "no"
    return RunAnswer(preset, found, lambda: report(preset, found, nearest), verdict)
