"""Questions about a run: a model with its settings and, over several devices, a layout or the file that starts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..accelerator import Hardware
from ..costs.context_length import usual_sequence
from ..device_memory.cuda_runtime import runtime_of
from ..device_memory.estimate import Memory, memory
from ..device_memory.settings import Settings
from ..errors import InputError
from ..parallel.layout_request import NO_LAYOUT_OPTIONS, LayoutRequest, version_date
from ..reports.answer import ReportedAnswer
from ..reports.memory_answer import ASSUMED, DeviceUse
from ..sources.preset import Preset
from ..workload.recompute import SELECTIVE
from ..workload.setting import option

if TYPE_CHECKING:
    from ..frameworks.framework import Framework
    from ..frameworks.launch.record import Launch
    from ..reports.ranks_answer import RanksUse


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The run that is asked about, without its model.

    settings: of the run. layout: the options of a layout; none by default. include: optional parts of the model.
    accelerators: those on which it has to fit; the runtime of the first is taken, and without one that of an H100.
    workspace: CUBLAS_WORKSPACE_CONFIG.
    """

    settings: Settings
    layout: LayoutRequest = NO_LAYOUT_OPTIONS
    include: frozenset[str] = frozenset()
    accelerators: tuple[Hardware, ...] = ()
    workspace: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunQuestion(RunOptions):
    """A model, and the run that is asked about. launch: the file that starts the run; None without one."""

    preset: Preset
    launch: Launch | None = None

    def under(self, record: Framework) -> RunQuestion:
        """The same question with what `--recompute selective` stands for under a framework."""
        if self.settings.recompute != SELECTIVE:
            return self
        return replace(self, settings=self.settings.with_(recompute=record.selective_recompute))

    @property
    def hardware(self) -> Hardware | None:
        """The accelerator whose runtime is taken; None where none is named."""
        return self.accelerators[0] if self.accelerators else None

    @property
    def tokens(self) -> int:
        """Tokens of a sequence by which the nearest possible layouts are looked for."""
        return usual_sequence(self.preset.model) if self.settings.seq is None else self.settings.seq

    def on_one_device(self) -> Memory:
        """The memory on one device. Raises `InputError` for settings that contradict each other or the model."""
        preset, expandable = self.preset, self.settings.allocator == "expandable"
        runtime = runtime_of(self.hardware, self.workspace, expandable)
        return memory(preset.model, self.settings, preset.dtype, self.include, preset.checkpoint, runtime)


def fit_settings(settings: Settings, layout: LayoutRequest, is_given: Callable[[str], bool]) -> Settings:
    """The settings of `fit`, which over many devices is of training unless the phase or users are given."""
    trains = layout.devices is not None and not is_given("users") and not is_given("phase")
    return settings.with_(phase="training") if trains else settings


def plan_settings(settings: Settings, is_given: Callable[[str], bool]) -> Settings:
    """The settings of `plan`, which is of training unless the phase is given."""
    return settings if is_given("phase") else settings.with_(phase="training")


def memory_question(
    target: Any,
    read_model: Callable[[Any], Preset],
    run: RunOptions,
    *,
    launch_file: str | Path | None = None,
    phase_given: bool = False,
    allow_unknown: bool = False,
    **model_options: Any,
) -> RunQuestion:
    """The question of `memory`, about a model that is given or about the run that a file starts.

    target: the model that was given; None where none was. read_model: reads it. run: the options beside it.
    phase_given: whether the phase was given. allow_unknown: whether to go on with arguments of the file that are not
    understood. model_options: name → value of the options that change the model.
    Raises `InputError` for an option that says again what the file says, and without a model.
    """
    if launch_file is None:
        return RunQuestion(preset=read_model(_given(target)), **vars(run))
    from ..frameworks.launch.read import read_launch

    gpu = run.accelerators[0].name.upper() if run.accelerators else ASSUMED
    date = version_date(run.layout.framework_version or "")
    launch = read_launch(launch_file, run.layout.devices, allow_unknown, date=date, gpu=gpu)
    if phase_given and run.settings.phase != "training":
        raise InputError(f"--phase: {launch.where} is a run of training; expected no such option")
    for name, value in model_options.items() if launch.spec is not None else ():
        if value:
            raise InputError(f"{option(name)}: {launch.where} says which model it trains; expected no such option")
    run = replace(run, settings=launched_settings(launch, run.settings, run.layout))
    if launch.spec is None:
        if target is None and launch.target.startswith(("$", "`")):
            raise InputError(
                f"{launch_file}: the model, '{launch.target[:80]}', is known only when the script runs; expected "
                "TARGET, the model's name"
            )
        preset = read_model(_given(target or launch.target))
    elif target is None:
        preset = Preset(name=str(launch_file), model=launch.spec)
    else:
        raise InputError(f"TARGET {target}: {launch_file} says which model it trains; expected no TARGET")
    return RunQuestion(preset=preset, **vars(run), launch=launch)


def _given(target: Any) -> Any:
    """The model that was given. Raises `InputError` where there is none."""
    if target is None or target == "":
        raise InputError(
            "missing argument TARGET, or --launch FILE with a model in it (llmcalc memory --help explains)"
        )
    return target


def launched_settings(launch: Launch, settings: Settings, layout: LayoutRequest) -> Settings:
    """The settings that a file says, with those that options add where it names no model.

    Raises `InputError` for an option that says again what the file says.
    """
    added: dict[str, Any] = {}
    for given, usual, but in (
        (settings, Settings(), ("phase",)),
        (layout, LayoutRequest(), ("devices", "framework_version")),
    ):
        for field in fields(given):
            name = field.name
            if name in but or getattr(given, name) == getattr(usual, name):
                continue
            if given is layout or launch.spec is not None or name in launch.settings:
                raise InputError(f"{option(name)}: {launch.where} says how it is run; expected no such option")
            added[name] = getattr(given, name)
    return Settings(**{"phase": "training", **launch.settings, **added})


def ask_memory(question: RunQuestion) -> DeviceUse | RanksUse:
    """The memory of one device, or of the ranks of a layout, and the accelerators that hold it.

    Raises `InputError` for settings that contradict each other or the model; of many devices also where no kernels
    are known.
    """
    layout, launch = question.layout, question.launch
    asked: dict[str, Any] = {
        "preset": question.preset,
        "accelerators": question.accelerators,
        "workspace": question.workspace,
    }
    if launch is None and not layout.has_options:
        if question.settings.recompute == SELECTIVE:  # without a framework
            question = replace(question, settings=question.settings.with_(recompute="attention"))
        return DeviceUse.made(question.on_one_device(), **asked)
    from ..frameworks.ranks import Cluster
    from ..frameworks.registry import framework, framework_of, layout_of
    from ..parallel.nearest import suggest_nearest_layouts
    from ..reports.ranks_answer import RanksUse

    record = framework_of(layout) if launch is None else framework(launch.framework)
    version = layout.framework_version or ""
    with suggest_nearest_layouts(
        question.preset.model, layout if launch is None else NO_LAYOUT_OPTIONS, question.tokens
    ):
        one = question.under(record).on_one_device()
        if launch is not None:
            ranks = Cluster.of(one, launch.layout, record, version, launch.own)
        else:
            ranks = Cluster.of(one, layout_of(layout), record, version)
        answer = RanksUse.made(ranks, **asked, launch=launch)
        _ = answer.fits  # replays every rank that differs: a layout that is impossible is refused here
        return answer


def ask_fit(question: RunQuestion, global_batch: int | None = None) -> ReportedAnswer:
    """Whether a run fits on the accelerators, and what would make it fit.

    global_batch: sequences of a training step over all devices; None (default) for a micro-batch of each.
    Raises `InputError` for options that contradict each other, and where no layout can be tried.
    """
    from ..frameworks.registry import FOR_PLANS, framework, framework_of
    from ..parallel.nearest import suggest_nearest_layouts
    from ..reports import fit as reports
    from ..studies.fit import fit
    from ..studies.fit_devices import fit_devices
    from ..studies.fit_serving import fit_serving

    layout = question.layout
    question = question.under(framework(layout.framework or FOR_PLANS) if layout.devices else framework_of(layout))
    settings, preset = question.settings, question.preset
    assert question.hardware is not None
    if layout.has_options and layout.devices is None:
        raise InputError("--devices: missing; expected the number of accelerators that the layout is over")
    if global_batch is not None:
        if layout.devices is None:
            raise InputError("--global-batch: is of many devices; expected --devices too")
        if settings.phase != "training":
            raise InputError("--global-batch: is of training; expected --users, of each replica")
    with suggest_nearest_layouts(preset.model, layout, question.tokens):
        one = question.on_one_device()
        if layout.devices is None:
            alone = fit(one, question.hardware)
            return ReportedAnswer(alone, lambda: reports.report(preset, alone), alone.fit.verdict != "no")
        if settings.phase != "training":
            served = fit_serving(one, question.hardware, layout)
            return ReportedAnswer(
                served, lambda: reports.serving_report(preset, served), served.best.fit.verdict != "no"
            )
        spread = fit_devices(one, question.hardware, layout, global_batch)
        return ReportedAnswer(spread, lambda: reports.devices_report(preset, spread), spread.fit.verdict != "no")


def ask_plan(question: RunQuestion, global_batch: int | None = None, rows: int = 10) -> ReportedAnswer:
    """The layouts of a training run over many devices that fit, the best first.

    global_batch: as of `ask_fit`. rows: layouts that are replayed and shown.
    Raises `InputError` without a number of devices, for another phase, and where no layout can be tried.
    """
    from ..frameworks.registry import FOR_PLANS, framework
    from ..parallel.nearest import nearest_layouts_text
    from ..reports.plan import report
    from ..studies.plan import plan_of

    layout, preset = question.layout, question.preset
    question = question.under(framework(layout.framework or FOR_PLANS))
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
    nearest = nearest_layouts_text(preset.model, layout, one.states.workload.seq) if none else ""
    return ReportedAnswer(found, lambda: report(preset, found, nearest), bool(found.plan.feasible))
