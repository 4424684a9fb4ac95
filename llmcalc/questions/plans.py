"""Answers about a training run on many devices whose layout is open: the layouts that fit, best first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..device_memory.estimate import Memory
from ..device_memory.settings import PRODUCT_FORMAT_BY_PRECISION, Settings
from ..errors import InputError
from ..parallel.layout_request import LayoutRequest
from ..processes import ForkedCalls, usable_processes
from ..reports.answer import ReportedAnswer
from ..simulator.simulated_work import SIMULATED_WORK
from .runs import RunQuestion, check_loss_and_precision_of_framework

if TYPE_CHECKING:
    from ..frameworks.framework import Framework
    from ..studies.plan import ComparedLayout, CompareFrameworks, LayoutPlan, OrderName
    from ..studies.run_time import TimeSettings


def plan_settings(settings: Settings, is_setting_given: Callable[[str], bool]) -> Settings:
    """Returns the settings of `plan`: training, unless a phase is set.

    Raises `InputError` if `users` is set in them.
    """
    if is_setting_given("users"):
        raise InputError("--users: plan is for training; expected --batch, or llmcalc fit --devices --users")
    settings = settings if is_setting_given("phase") else settings.with_changes(phase="training")
    return settings.with_usual_recomputation()


def refuse_precision_without_units(run_question: RunQuestion) -> None:
    """Raises `InputError` for training in a precision whose products the accelerator has no units for."""
    from ..studies.run_time import missing_units_error
    from ..timing.device import has_product_units

    precision, hardware = run_question.settings.precision or "", run_question.hardware
    product_format = PRODUCT_FORMAT_BY_PRECISION.get(precision)
    if product_format is not None and hardware is not None and not has_product_units(hardware, product_format):
        raise missing_units_error(precision, product_format, hardware)


def untried_framework_sentences(run_question: RunQuestion, framework_name: str) -> tuple[str, ...]:
    """Returns a sentence for each usual framework that comes before the plan's framework and cannot train the run.

    The first sentence is about a framework that would shard the plan's whole replicas, with what it expects.

    framework_name: the framework of the plan.
    """
    untried_sentences: list[str] = []
    for framework_record, refusal_error in run_question.frameworks_for_plans():
        if framework_record.name == framework_name:
            break
        if refusal_error is not None and framework_record.layout_rules.divides_weights:
            refusal_reason = str(refusal_error).partition(", or whole replicas")[0]
            untried_sentences.insert(0, f"replicas are whole: {framework_record.title} is not tried. {refusal_reason}")
        elif refusal_error is not None:
            untried_sentences.append(f"{framework_record.title} is not tried: {str(refusal_error).partition(';')[0]}")
    return tuple(untried_sentences)


Answer = TypeVar("Answer")


def answers_of_planned_runs(
    run_question: RunQuestion, answer_run: Callable[[Memory, LayoutRequest], Answer]
) -> Iterator[Answer]:
    """Yields the answer about each run of a plan. Raises the first run's `InputError` if no run has an answer."""
    from ..frameworks.registry import framework_of

    refuse_precision_without_units(run_question)
    refusal_error, has_answer = None, False
    for run_memory, layout, ends_plan in run_question.planned_runs():
        check_loss_and_precision_of_framework(run_question.settings, framework_of(layout))
        try:
            run_answer = answer_run(run_memory, layout)
        except InputError as error:
            refusal_error = refusal_error or error
            continue
        has_answer = True
        yield run_answer
        if ends_plan:
            return
    if refusal_error is not None and not has_answer:
        raise refusal_error


def answer_of_fitting_run(
    run_question: RunQuestion,
    answer_run: Callable[[Memory, LayoutRequest], Answer],
    is_fitting: Callable[[Answer], bool],
) -> Answer:
    """Returns the answer about the first run of a plan that fits, or about the last run with an answer."""
    for run_answer in answers_of_planned_runs(run_question, answer_run):
        if is_fitting(run_answer):
            break
    return run_answer


def ask_plan(
    run_question: RunQuestion,
    global_batch: int | None = None,
    row_count: int | None = None,
    order_name: OrderName | None = None,
    size_filter: str | None = None,
    time_settings: Callable[[Framework], TimeSettings] | None = None,
    is_for_screen: bool = False,
) -> ReportedAnswer:
    """Finds the layouts of a training run over many devices that fit, best first.

    global_batch: see `ask_fit`.
    row_count: number of layouts that are replayed and shown; default `LISTED_LAYOUTS`, on a screen `SCREEN_LAYOUTS`.
    order_name: order of the layouts, time or memory; None (default) for time where it can be estimated.
    size_filter: sizes of a layout whose place in the order is asked for, such as `tp=8,pp=16`; None (default) for none.
    time_settings: see `plan_layouts`.
    is_for_screen: whether the answer is shown on a screen alone, without all rows; false by default.
    Raises `InputError` without a number of devices, for another phase, and if no layout is possible.
    """
    from ..studies.layout_candidates import parse_layout_sizes

    requested_sizes = None if size_filter is None else parse_layout_sizes(size_filter)
    run_question = replace(run_question, is_trial=True)
    if run_question.hardware is None:
        raise InputError("--hardware: missing; expected the accelerator, such as h100")
    if run_question.layout.devices is None:
        raise InputError("--devices: missing; expected the number of accelerators, such as 8")
    if run_question.settings.phase != "training":
        raise InputError(
            f"--phase {run_question.settings.phase}: plan is for training; expected training "
            "(llmcalc fit --devices finds layouts for inference)"
        )
    with FrameworkComparison(run_question, global_batch, time_settings) as comparison:
        if order_name != "memory":
            comparison.begin()
        return _planned_answer(
            run_question, global_batch, row_count, order_name, requested_sizes, time_settings, is_for_screen, comparison
        )


def _planned_answer(
    run_question: RunQuestion,
    global_batch: int | None,
    row_count: int | None,
    order_name: OrderName | None,
    requested_sizes: Mapping[str, int] | None,
    time_settings: Callable[[Framework], TimeSettings] | None,
    is_for_screen: bool,
    comparison: FrameworkComparison,
) -> ReportedAnswer:
    """Returns the answer of `ask_plan`, while other processes compare other frameworks.

    requested_sizes: sizes of a layout whose place in the order is asked for; None for none.
    """
    from ..frameworks.registry import framework_of
    from ..parallel.layout_search import UNDIVIDED_BATCH, UNEVEN_ROUNDS, check_plannable_layout, divisible_batch
    from ..parallel.nearest_layouts import nearest_layouts_text
    from ..reports.plan import report
    from ..studies.layout_order import FURTHER_REPLAYS
    from ..studies.plan import LISTED_LAYOUTS, SCREEN_LAYOUTS, first_fitting_plan, plan_layouts

    layout, preset, hardware = run_question.layout, run_question.preset, run_question.hardware
    assert hardware is not None
    assert layout.devices is not None
    plans_all_frameworks = run_question.settings.lora_rank is not None  # other frameworks have rows of their own
    default_rows = SCREEN_LAYOUTS if is_for_screen and requested_sizes is None else LISTED_LAYOUTS

    def layouts_of_other_frameworks(planned_framework: Framework) -> CompareFrameworks:
        return partial(comparison.layouts, planned_framework.name)

    framework_plans = answers_of_planned_runs(
        run_question,
        lambda memory, run_layout: plan_layouts(
            memory,
            hardware,
            run_layout,
            global_batch,
            row_count or default_rows,
            order_name=order_name,
            suggests_nearest="if none fits",
            time_settings=time_settings,
            replay_limit=(row_count or LISTED_LAYOUTS) + FURTHER_REPLAYS,
            compare_frameworks=None
            if plans_all_frameworks
            else partial(comparison.layouts, framework_of(run_layout).name),
        ),
    )
    plan = replace(first_fitting_plan(list(framework_plans)), published_step_tokens=preset.training.step_tokens)
    if plans_all_frameworks and plan.training_times is not None and not plan.other_plans:
        compared_layouts = comparison.layouts(
            plan.framework.name, plan.training_times.settings.stack, plan.global_batch
        )
        plan = replace(plan, compared_layouts=compared_layouts)
    if not plan.ranked_layouts.fitting_candidates and plan.ranked_layouts.nearest_candidate is None:
        workload, layout_rules = plan.memory.states.workload, plan.framework.layout_rules
        batch_sizes = plan.global_batch, int(workload.batch)
        nearest_layouts = nearest_layouts_text(
            preset.model,
            layout,
            workload.seq,
            check_layout=lambda nearby_layout: check_plannable_layout(nearby_layout, layout_rules, *batch_sizes),
        )
        refusal_counts, batch_reasons = plan.ranked_layouts.refusal_counts, (UNDIVIDED_BATCH, UNEVEN_ROUNDS)
        refusals_by_batch = [batch_reason for batch_reason in batch_reasons if batch_reason in refusal_counts]
        if refusals_by_batch and (
            plan.is_batch_assumed or not nearest_layouts or len(refusal_counts) == len(refusals_by_batch)
        ):
            suitable_batch = divisible_batch(layout.devices, *batch_sizes)
            nearest_layouts = f"{refusals_by_batch[0]}; expected such as --global-batch {suitable_batch}"
        raise InputError(_no_possible_layout_text(plan, nearest_layouts, layout.undivided_devices_text))
    if global_batch is not None:
        plan = replace(plan, longer_micro_batches=longer_micro_batches(run_question, plan, time_settings))
    if not plan.ranked_layouts.fitting_candidates:
        plan = replace(plan, untried_framework_sentences=untried_framework_sentences(run_question, plan.framework.name))
    return ReportedAnswer(
        plan, lambda: report(preset, plan, requested_sizes), bool(plan.ranked_layouts.fitting_candidates)
    )


def _no_possible_layout_text(plan: LayoutPlan, suggestion: str, unrefused_reason: str) -> str:
    """Returns the error about devices over which no layout of a plan is possible, whatever their memory.

    unrefused_reason: the reason if no layout was tried and refused.
    """
    refusal_reason = plan.ranked_layouts.most_frequent_refusal(unrefused_reason)
    sentences = [suggestion] if suggestion.startswith(refusal_reason) else [refusal_reason, suggestion]
    return ": ".join(
        filter(None, (f"--devices {plan.devices}: no layout is possible", "; ".join(filter(None, sentences))))
    )


class FrameworkComparison:
    """Finds the fastest layouts of a plan's training run under frameworks other than the plan's framework.

    A process of its own finds them from the start, for the framework and the sequences per step that the plan probably
    has. Without such a process, and for another plan, they are found when they are asked for.

    run_question, global_batch, time_settings: as of `ask_plan`.
    """

    def __init__(
        self,
        run_question: RunQuestion,
        global_batch: int | None,
        time_settings: Callable[[Framework], TimeSettings] | None,
    ) -> None:
        self._run_question: RunQuestion = run_question
        self._global_batch: int | None = global_batch
        self._time_settings: Callable[[Framework], TimeSettings] | None = time_settings
        self._calls: ForkedCalls[None, PrecomputedComparison | None] = ForkedCalls(
            lambda _: self._precompute_comparison(), usable_processes()
        )
        self._has_begun: bool = False

    def __enter__(self) -> FrameworkComparison:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.close()

    def begin(self) -> None:
        """Starts comparing frameworks in another process, if the plan names no framework and processes can fork."""
        run_question = self._run_question
        names_framework = run_question.layout.framework is not None or run_question.settings.lora_rank is not None
        self._has_begun = self._calls.can_fork and not names_framework
        if self._has_begun:
            self._calls.begin([(None, None)], is_beside_other_work=True)

    def layouts(self, planned_framework: str, stack_name: str, global_batch: int) -> tuple[ComparedLayout, ...]:
        """Returns, for each other usual framework that shards weights, the fastest layout, or the fact that none fits.

        The tuple is empty if a framework was named.
        stack_name, global_batch: software of the times, and sequences per step of the plan.
        """
        plan_key = planned_framework, stack_name, global_batch
        expected_comparison = self._calls.result(None) if self._has_begun else None
        if expected_comparison is not None and expected_comparison.plan_key == plan_key:
            SIMULATED_WORK.units += expected_comparison.work_units
            return expected_comparison.layouts
        return _compared_layouts(self._run_question, self._time_settings, *plan_key)

    def _precompute_comparison(self) -> PrecomputedComparison | None:
        """Computes the comparison ahead, for the plan of the first usual framework; None if that plan has no times.

        The work is not counted, but returned.
        """
        from ..frameworks.registry import frameworks_for_plans
        from ..studies.step_size import default_batch

        run_question, time_settings = self._run_question, self._time_settings
        first_framework = frameworks_for_plans(run_question.layout, run_question.hardware)[0]
        device_count = run_question.layout.devices
        if time_settings is None or device_count is None:
            return None
        units_before = SIMULATED_WORK.units
        try:
            stack_name, global_batch = time_settings(first_framework).stack, self._global_batch
            if global_batch is None:
                run_memory = run_question.with_selective_modules_of_framework(first_framework).memory_on_one_device()
                workload = run_memory.states.workload
                global_batch = default_batch(int(workload.seq), device_count, int(workload.batch))
        except InputError:
            return None
        plan_key = first_framework.name, stack_name, global_batch
        compared_layouts = _compared_layouts(run_question, time_settings, *plan_key)
        return PrecomputedComparison(plan_key, compared_layouts, SIMULATED_WORK.subtract_work_since(units_before))


class PrecomputedComparison(NamedTuple):
    """A comparison with other frameworks, computed ahead for the plan that will probably be asked about.

    plan_key: the plan's framework, the software of its times, and its sequences per step.
    layouts: the fastest layouts under other frameworks.
    work_units: units of `SimulatedWork` of the comparison.
    """

    plan_key: tuple[str, str, int]
    layouts: tuple[ComparedLayout, ...]
    work_units: int


LONGER_MICRO_BATCHES = 2, 3, 4, 6, 8
"""Numbers of sequences per micro-batch that a plan compares with one, if its fastest layout waits for the host."""


def longer_micro_batches(
    run_question: RunQuestion, plan: LayoutPlan, time_settings: Callable[[Framework], TimeSettings] | None
) -> ComparedLayout | None:
    """Returns the fastest layout with more than one sequence in a micro-batch, if it is faster than the plan's first.

    None where the micro-batch is stated, and where the first layout hardly waits for the host. A longer micro-batch
    takes more memory and idles longer in a pipeline. So the first one that is slower is the last one tried, unless it
    does not divide the sequences of a replica of the fastest layout.
    """
    from ..simulator.simulated_work import WorkBudget
    from ..studies.plan import WORK_OF_COMPARISON, ComparedLayout, plan_layouts
    from ..timing.time_ranges import TIE_SHARE

    first_plan, first_candidate = plan.first_candidate
    if (
        first_candidate is None
        or first_candidate.seconds is None
        or run_question.settings.batch is not None
        or first_plan.host_wait_share(first_candidate) < TIE_SHARE
    ):
        return None
    least_seconds, replica_count, fastest_layout = first_candidate.seconds, first_candidate.layout.dp, None
    work_budget = WorkBudget(WORK_OF_COMPARISON)
    for micro_batch in LONGER_MICRO_BATCHES:
        if plan.global_batch % micro_batch:
            continue
        try:
            longer_plan = plan_layouts(
                first_plan.memory.with_changes(batch=micro_batch),
                plan.hardware,
                replace(run_question.layout, framework=first_plan.framework.name),
                plan.global_batch,
                1,
                order_name="time",
                suggests_nearest="never",
                time_settings=time_settings,
                budget=work_budget,
            )
        except InputError:
            continue
        _, candidate = longer_plan.first_candidate
        if candidate is None or candidate.seconds is None or candidate.seconds >= least_seconds:
            if work_budget.is_spent() or not plan.global_batch % (micro_batch * replica_count):
                break
            continue
        least_seconds, replica_count = candidate.seconds, candidate.layout.dp
        counted_candidate = replace(candidate, count_sent_bytes=partial(int, candidate.communication_bytes or 0))
        time_range = longer_plan.step_time_range(candidate)
        fastest_layout = ComparedLayout(
            first_plan.framework.name, counted_candidate, time_range, micro_batch=micro_batch
        )
        if work_budget.is_spent():
            break
    return fastest_layout if least_seconds < first_candidate.seconds * (1 - TIE_SHARE) else None


def _compared_layouts(
    run_question: RunQuestion,
    time_settings: Callable[[Framework], TimeSettings] | None,
    planned_framework: str,
    stack_name: str,
    global_batch: int,
) -> tuple[ComparedLayout, ...]:
    """Returns the fastest layout under each other framework, as `FrameworkComparison.layouts` describes."""
    from ..frameworks.registry import DEFAULT_FRAMEWORK, frameworks_for_plans
    from ..simulator.simulated_work import WorkBudget
    from ..studies.plan import WORK_OF_COMPARISON, ComparedLayout, IncompleteSearchError, plan_layouts

    if planned_framework == DEFAULT_FRAMEWORK or run_question.hardware is None:
        return ()
    compared_layouts: list[ComparedLayout] = []
    for framework_record in frameworks_for_plans(run_question.layout, run_question.hardware):
        if framework_record.name in (DEFAULT_FRAMEWORK, planned_framework):
            continue
        try:
            if time_settings is not None and time_settings(framework_record).stack == stack_name:
                continue  # `--stack` names the software of one framework
            run_memory = run_question.with_selective_modules_of_framework(framework_record).memory_on_one_device()
            framework_record.check_run(run_memory, "")
            check_loss_and_precision_of_framework(run_question.settings, framework_record)
            plan = plan_layouts(
                run_memory,
                run_question.hardware,
                replace(run_question.layout, framework=framework_record.name),
                global_batch,
                1,
                order_name="time",
                suggests_nearest="never",
                time_settings=time_settings,
                budget=WorkBudget(WORK_OF_COMPARISON),
            )
        except IncompleteSearchError:
            compared_layouts.append(ComparedLayout(framework_record.name, has_unknown_layouts=True))
            continue
        except InputError:  # it does not train this model, or has no such layouts
            continue
        ranked_layouts = plan.ranked_layouts
        for candidate in ranked_layouts.fitting_candidates:
            counted_candidate = replace(candidate, count_sent_bytes=partial(int, candidate.communication_bytes or 0))
            compared_layouts.append(
                ComparedLayout(framework_record.name, counted_candidate, plan.step_time_range(candidate))
            )
        if not ranked_layouts.fitting_candidates:
            has_unknown_layouts = ranked_layouts.ended_early or bool(ranked_layouts.unreplayed_candidates)
            compared_layouts.append(ComparedLayout(framework_record.name, has_unknown_layouts=has_unknown_layouts))
    return tuple(compared_layouts)
