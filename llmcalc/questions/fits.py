"""Answers about whether a run fits on accelerators, and the changes with which it would fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..accelerator import Hardware
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..parallel.layout_request import LayoutRequest
from ..reports.answer import ReportedAnswer
from .runs import RunQuestion, check_loss_and_precision_of_framework

if TYPE_CHECKING:
    from ..studies.fit import SettingChange


def ask_fit(run_question: RunQuestion, global_batch: int | None = None) -> ReportedAnswer:
    """Computes whether a run fits on the accelerators, and changes that make it fit.

    global_batch: sequences per training step of all devices; None (default) for one micro-batch per device.
    Raises `InputError` for options that contradict each other, and if no layout is possible.
    """
    from ..frameworks.registry import framework_of
    from ..parallel.nearest_layouts import suggest_nearest_layouts

    run_question.refuse_images_and_audio("fit")
    run_question.require_one_accelerator()
    layout, hardware = run_question.layout, run_question.hardware
    is_training = run_question.settings.phase == "training"
    has_default_length = run_question.settings.seq is None
    run_question = replace(run_question, is_trial=True).with_defaults_of_tag()
    if hardware is not None and layout.has_options and layout.devices is None:
        with suggest_nearest_layouts(run_question.preset.model, layout, run_question.tokens):
            layout_devices = layout.layout().world_size
        if layout_devices == 1:
            raise InputError("--devices: missing; expected the number of accelerators of the layout")
        layout = replace(layout, devices=layout_devices)
        run_question = replace(run_question, layout=layout)
    if global_batch is not None:
        if hardware is None:
            raise InputError("--global-batch: only applies to one kind of accelerator; add --hardware")
        if layout.devices is None:
            raise InputError("--global-batch: only applies to many devices; add --devices")
        if not is_training:
            raise InputError("--global-batch: only applies to training; use --users, the sequences of each replica")
    with suggest_nearest_layouts(run_question.preset.model, layout, run_question.tokens):
        if hardware is not None and layout.devices is not None and is_training:
            return _fit_layouts(run_question, hardware, global_batch)
        check_loss_and_precision_of_framework(run_question.settings, framework_of(layout))
        run_memory = run_question.with_selective_modules_of_framework(framework_of(layout)).memory_on_one_device()
        if hardware is None:
            return _fit_on_common_hardware(run_question, run_memory)
        if layout.devices is None:
            return _fit_on_one_device(run_question, run_memory, hardware, has_default_length)
        return _fit_replicas(run_question, run_memory, hardware)


def _fit_layouts(run_question: RunQuestion, hardware: Hardware, global_batch: int | None) -> ReportedAnswer:
    """Finds the best layout of training on many devices: the first framework's layout that fits, else a tight one.

    global_batch: see `ask_fit`.
    """
    from ..reports.fit import devices_report
    from ..studies.fit_devices import DevicesFitAnswer, fit_devices
    from .plans import answer_of_fitting_run, untried_framework_sentences

    tight_answers: list[DevicesFitAnswer] = []
    many_devices_run, several_devices_run = _runs_by_devices(run_question, global_batch)

    def fit_layouts(memory: Memory, layout: LayoutRequest) -> DevicesFitAnswer:
        fit_result = fit_devices(memory, hardware, layout, global_batch, several_devices_run)
        tight_answers.extend([fit_result] if fit_result.fit.verdict == "tight" else [])
        return fit_result

    layout_answer = answer_of_fitting_run(
        many_devices_run, fit_layouts, lambda fit_result: fit_result.fit.verdict == "fits"
    )
    if layout_answer.fit.verdict != "fits":
        layout_answer = next(iter(tight_answers), layout_answer)
    if layout_answer.fit.verdict == "no":
        layout_plan = layout_answer.layout_plan
        untried_sentences = untried_framework_sentences(many_devices_run, layout_plan.framework.name)
        layout_answer = replace(
            layout_answer, layout_plan=replace(layout_plan, untried_framework_sentences=untried_sentences)
        )
    return ReportedAnswer(
        layout_answer, lambda: devices_report(run_question.preset, layout_answer), layout_answer.fit.verdict != "no"
    )


def _runs_by_devices(
    run_question: RunQuestion, global_batch: int | None
) -> tuple[RunQuestion, tuple[Memory, LayoutRequest] | None]:
    """Returns the training run on one accelerator, and the run on several if these need another framework.

    One accelerator without a framework runs that of `memory`, which has no `--global-batch`; several run the usual one
    of plans.
    """
    from ..frameworks.registry import framework_of

    layout = run_question.layout
    if layout.devices != 1 or layout.framework is not None or global_batch is not None:
        return run_question, None
    single_device_run = replace(run_question, layout=replace(layout, framework=framework_of(layout).name))
    try:
        return single_device_run, replace(run_question, layout=replace(layout, devices=2)).planned_run()
    except InputError:  # several accelerators cannot train it
        return single_device_run, None


def _fit_on_one_device(
    run_question: RunQuestion, run_memory: Memory, hardware: Hardware, has_default_length: bool
) -> ReportedAnswer:
    """Computes whether a run fits on one accelerator, the largest runs that fit, and changes that make it fit.

    has_default_length: whether no sequence length was asked for.
    """
    from ..reports.fit import report
    from ..studies.fit import change_to_narrow_weights, changes_with_more_devices, fit, with_decoding_seconds
    from ..studies.fit_options import fitting_changes_on_several_devices, hardware_options
    from .usual_engines import ServedUsers, UsualEngine, fewest_devices_under_usual_engine, fit_under_usual_engine

    preset, layout = run_question.preset, run_question.layout
    usual_engine = UsualEngine.of_run(preset, run_memory, hardware, run_question.default_context)
    engine_answer = None if usual_engine is None else usual_engine.fit_with_engine_buffers(run_memory)
    engine_fit = partial(fit_under_usual_engine, preset)
    answer_on_device = engine_answer or fit(run_memory, hardware, engine_fit)
    served_users = ServedUsers.of_answer(answer_on_device, usual_engine)
    option_with_engine = partial(fewest_devices_under_usual_engine, preset, run_memory, run_question.default_context)
    device_options = hardware_options(
        run_memory, run_question.accelerators, layout, run_question.cuda_runtime_on, option_with_engine
    )
    memory_fit = answer_on_device.fit

    def find_changes() -> Iterable[SettingChange]:
        if memory_fit.verdict != "no":
            return answer_on_device.changes
        sufficient_changes = [
            setting_change for setting_change in answer_on_device.changes if setting_change.changed_fit.verdict != "no"
        ]
        engine_title = answer_on_device.engine_title
        device_changes = fitting_changes_on_several_devices(
            run_memory,
            device_options,
            layout,
            run_question.cuda_runtime_on,
            [] if engine_title else changes_with_more_devices(run_memory, hardware, sufficient_changes),
        )
        insufficient_changes = answer_on_device.changes[len(sufficient_changes) :]
        shorter_runs = [] if sufficient_changes else change_to_narrow_weights(run_memory, memory_fit, engine_fit)
        return (
            *served_users.changes,
            *sufficient_changes,
            *device_changes,
            *shorter_runs,
            *(usual_engine.changes_to_larger_computers(memory_fit) if usual_engine and engine_title else ()),
            *insufficient_changes,
        )  # fmt: skip

    fit_answer = with_decoding_seconds(answer_on_device, hardware, served_users.users, has_default_length)
    fit_answer = replace(fit_answer, find_changes=find_changes)
    return ReportedAnswer(
        fit_answer, lambda: report(preset, fit_answer, device_options, served_users.notes), memory_fit.verdict != "no"
    )


def _fit_replicas(run_question: RunQuestion, run_memory: Memory, hardware: Hardware) -> ReportedAnswer:
    """Finds the best replicas of inference on many devices, and the fewest devices."""
    from ..reports.fit import serving_report
    from ..studies.fit_serving import fit_serving
    from .usual_engines import replicas_under_usual_engine

    serving_answer = replicas_under_usual_engine(
        run_question.preset, run_memory, hardware, run_question.layout, run_question.default_context
    ) or fit_serving(run_memory, hardware, run_question.layout)
    preset, best_replica = run_question.preset, serving_answer.best_replica
    if run_question.default_context is not None and best_replica.seq is not None:
        preset = run_question.preset_with_ollama_context(
            run_question.default_context(best_replica.layout.replica_devices)
        )
    return ReportedAnswer(
        serving_answer, lambda: serving_report(preset, serving_answer), best_replica.fit.verdict != "no"
    )


def _fit_on_common_hardware(run_question: RunQuestion, run_memory: Memory) -> ReportedAnswer:
    """Finds the common accelerators on which a run fits, and the fewest of each kind."""
    from ..reports.fit import common_hardware_report
    from ..sources.hardware import COMMON_HARDWARE, load_hardware
    from ..studies.fit_options import hardware_options
    from .usual_engines import fewest_devices_under_usual_engine

    option_with_engine = partial(fewest_devices_under_usual_engine, run_question.preset, run_memory, None)
    accelerators = map(load_hardware, COMMON_HARDWARE)
    fitting_options = hardware_options(
        run_memory, accelerators, run_question.layout, run_question.cuda_runtime_on, option_with_engine
    )
    return ReportedAnswer(
        fitting_options,
        lambda: common_hardware_report(run_question.preset, run_memory, fitting_options),
        fitting_options[0].fit.verdict != "no",
    )
