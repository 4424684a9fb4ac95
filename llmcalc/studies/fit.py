"""Whether a run fits on an accelerator, the largest run that fits, and changes that make it fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, cached_property, partial
from heapq import heappop, heappush
from itertools import combinations
from typing import Any, TypeAlias

from ..accelerator import Hardware, MemoryFit
from ..costs.context_length import learned_positions
from ..device_memory.estimate import Memory
from ..device_memory.host_memory import paged_bytes
from ..device_memory.simulated_run import cache_block_tokens, default_attention, optimizer_implementation
from ..errors import InputError
from ..frozen import frozen
from ..parallel.layout import Layout
from ..workload.lora import ALL_LINEAR
from ..workload.setting import option
from .decoding import LLAMA_CPP_STACK, SHORT_CONTEXT, runs_llama_cpp, time_decoded_token, usual_stack
from .timed_run import TimedRun

MAX_BATCH = 2**20
"""Largest number of sequences that a search for the largest run tries."""

MAX_SEQ = 2**24
"""Longest sequence, in tokens, that a search for the largest run tries."""

PROMPT_CHUNK_TOKENS = 2048
"""Tokens per chunk in the suggested change to read prompts in chunks."""

MAX_INSUFFICIENT_CHANGES = 5
"""Number of reported changes that are not sufficient: those with the least required memory."""

DEEP_MODEL_LAYERS = 256
"""Number of layers above which few changes are tried, because each requires a replay of all layers."""

MAX_CHANGES_OF_DEEP_MODEL = 4
"""Number of changes that are tried for a deep model: those with the least static bytes."""

TRIED_LORA_RANK = 16
"""Rank of the low-rank adapters in a suggested change, the default of many recipes."""


@frozen
class SettingChange:
    """A change of settings. option: the settings as command-line options.

    changed_fit: the required bytes and the verdict with the change.
    """

    option: str
    changed_fit: MemoryFit


@frozen
class FitAnswer:
    """Whether a run fits on one accelerator, with the largest runs that fit and changes that make it fit.

    memory: the memory of the run.
    fit: the verdict on the run.
    largest_batch: number of sequences that fits with the run's sequence length, where one more does not; 0 if none
        does.
    largest_seq: sequence length that fits with the run's batch, where one token more does not; 0 if none does.
    find_changes: finds `changes`, which may take longer than all the rest.
    decoding_runs: a token of every user, of the run and of the most users that fit; empty without a time.
    engine_title: the engine whose buffers decide; empty for the kernels of torch.
    short_context_run: a token of every user of the run after fewer tokens; None where a length was asked for.
    """

    memory: Memory
    fit: MemoryFit
    largest_batch: int
    largest_seq: int
    find_changes: Callable[[], Iterable[SettingChange]] = field(repr=False, compare=False)
    decoding_runs: tuple[TimedRun, ...] = ()
    engine_title: str = ""
    short_context_run: TimedRun | None = None

    @cached_property
    def changes(self) -> tuple[SettingChange, ...]:
        """Changes that make the run fit, cheapest first, then changes that save too little; empty if the run fits."""
        return tuple(self.find_changes())


EngineFit: TypeAlias = Callable[[Memory, Hardware], MemoryFit | None]
"""(run, accelerator) → the verdict by the buffers of the engine that usually runs the weights; None if torch runs them.
"""


def fit(model_memory: Memory, hardware: Hardware, fit_with_engine: EngineFit = lambda *_: None) -> FitAnswer:
    """Returns whether a run fits on one accelerator, and changes that make it fit.

    fit_with_engine: the verdict on a changed run by an engine's buffers; default none.
    """
    current_fit = model_memory.device.fit_on(hardware)
    largest_batch, largest_seq = largest_run(model_memory, hardware)
    find_changes: Callable[[], Iterable[SettingChange]] = tuple
    if current_fit.verdict == "no":
        find_changes = partial(
            _memory_saving_changes, model_memory, current_fit, largest_batch, largest_seq, fit_with_engine
        )
    return FitAnswer(model_memory, current_fit, largest_batch, largest_seq, find_changes)


def with_decoding_seconds(
    fit_answer: FitAnswer, hardware: Hardware, user_counts: Iterable[int], has_default_length: bool = False
) -> FitAnswer:
    """Adds the seconds per decoded token and user for several numbers of users.

    has_default_length: whether no sequence length was asked for: the first number of users is timed after fewer tokens
        too, as most requests are shorter than the longest for which memory is reserved. Default false.
    """
    run_memory = fit_answer.memory
    timed_runs = (time_decoded_token(run_memory, hardware, users=user_count) for user_count in user_counts)
    decoding_runs = tuple(timed_run for timed_run in timed_runs if timed_run is not None)
    short_run = None
    if has_default_length and decoding_runs and run_memory.states.workload.seq > SHORT_CONTEXT:
        short_run = time_decoded_token(run_memory, hardware, users=int(decoding_runs[0].sequences), seq=SHORT_CONTEXT)
    return replace(fit_answer, decoding_runs=decoding_runs, short_context_run=short_run)


def largest_run(
    model_memory: Memory, hardware: Hardware, most_batch: int | None = None, most_seq: int | None = None
) -> tuple[int, int]:
    """Returns two maxima: the most sequences of the run's length, and the longest sequences at its batch size.

    most_batch, most_seq: the largest numbers that are asked about; they are tried first. None (default) for as many as
        fit.
    """
    capacity_bytes, workload = hardware.capacity_bytes, model_memory.states.workload
    static_bytes = least_static_bytes(model_memory)  # of every size
    longest_length = learned_positions(model_memory.spec) or MAX_SEQ
    longest_length = longest_length if most_seq is None else min(longest_length, most_seq)

    @cache
    def run_of_size(setting_name: str, candidate_size: int) -> Memory:
        if candidate_size == getattr(workload, setting_name):
            return model_memory
        return model_memory.with_changes(**{setting_name: candidate_size})

    def needed_bytes(setting_name: str, candidate_size: int) -> int:
        """Returns the bytes that a run needs, or a lower bound of them if the bound alone exceeds the capacity."""
        least_bytes = static_bytes
        if candidate_size in (1, block_tokens) and static_bytes <= capacity_bytes:
            least_bytes = run_of_size(setting_name, candidate_size).least_device_bytes
        if least_bytes > capacity_bytes:
            return least_bytes
        return run_of_size(setting_name, candidate_size).device.fit_on(hardware).needed_bytes

    # memory grows mostly by whole blocks of the cache
    block_tokens = cache_block_tokens(model_memory.settings, model_memory.states) or 1

    # a paged cache is beside what is replayed, and without scores that grows slowly
    grows_linearly = block_tokens > 1 and model_memory.attention == "flash"

    def largest_size(setting_name: str, max_size: int | None, maximum: int, size_step: int = 1) -> int:
        start_size = int(getattr(workload, setting_name)) if max_size is None else maximum
        stored_bytes = (
            (lambda size: int(run_of_size(setting_name, size).states.total_bytes))
            if max_size is None and grows_linearly
            else None
        )
        if maximum:
            return largest_fitting_number(
                partial(needed_bytes, setting_name), capacity_bytes, start_size, maximum, size_step, stored_bytes
            )
        return 0

    batch = largest_size("batch", most_batch, MAX_BATCH if most_batch is None else most_batch)
    return batch, largest_size("seq", most_seq, longest_length, block_tokens)


def largest_fitting_number(
    required_bytes: Callable[[int], int],
    capacity_bytes: int,
    first_number: int,
    maximum: int,
    size_step: int = 1,
    stored_bytes: Callable[[int], int] | None = None,
) -> int:
    """Finds the largest number up to `maximum` for which a run needs at most `capacity_bytes` bytes.

    Bytes that grow have one such number, the largest. Those of torch's allocator do not only grow: a larger number may
    fit again, and a smaller one may not. The answer is 0 if the smallest number does not fit.

    required_bytes: number → bytes.
    first_number: the number that is tried first.
    size_step: bytes grow mostly beyond its multiples, which are tried before other numbers. Default 1.
    stored_bytes: number → the part of the bytes that a closed form has. If it grows, the search starts where the
        capacity would be reached if the rest did not grow. None (default) for no such part.
    """
    excess_by_number: dict[int, int] = {}

    def excess_bytes(candidate_number: int) -> int:
        if candidate_number not in excess_by_number:
            excess_by_number[candidate_number] = required_bytes(candidate_number) - capacity_bytes
        return excess_by_number[candidate_number]

    lower_number, upper_number = min(size_step, maximum), min(size_step, maximum)
    has_prediction = stored_bytes is not None and stored_bytes(maximum) > stored_bytes(lower_number)
    if excess_bytes(lower_number) > 0:
        lower_number = 1
        if excess_bytes(lower_number) > 0:
            return 0
    elif lower_number < maximum:
        if stored_bytes is not None and has_prediction:
            known_fitting_number = lower_number
            if lower_number < first_number <= maximum and excess_bytes(first_number) <= 0:
                known_fitting_number = first_number
                lower_number = first_number
            first_number = largest_fitting_number(
                stored_bytes,
                stored_bytes(known_fitting_number) - excess_bytes(known_fitting_number),
                first_number,
                maximum,
            )
        upper_number = max(lower_number + 1, min(first_number // size_step * size_step, maximum))
        is_next_number_tried = has_prediction
        while excess_bytes(upper_number) <= 0:
            lower_number = upper_number
            if lower_number == maximum:
                return maximum
            next_upper_number = min(
                LARGEST_GROWTH_FACTOR * lower_number, _number_at_capacity(excess_by_number, lower_number) * 51 // 50
            )
            next_upper_number = (
                max(lower_number + size_step if has_prediction else 2 * lower_number, next_upper_number)
                // size_step
                * size_step
            )
            upper_number = min(maximum, lower_number + 1 if is_next_number_tried else next_upper_number)
            is_next_number_tried = False
    trial_count = 0
    while upper_number - lower_number > 1:
        if has_prediction and upper_number - lower_number <= size_step > 1:  # most numbers of a block need equal bytes
            is_block_start = lower_number % size_step == 0
            candidate_number = lower_number + 1 if is_block_start else (lower_number + upper_number) // 2
        elif upper_number > INTERPOLATION_RATIO * lower_number and not has_prediction:
            candidate_number = math.isqrt(lower_number * upper_number)
        else:
            candidate_number = _next_trial_number(
                excess_by_number, lower_number, upper_number, trial_count, stored_bytes if has_prediction else None
            )
        candidate_number = max(lower_number + 1, min(upper_number - 1, candidate_number))
        if upper_number - lower_number > size_step:
            candidate_number = max(lower_number + 1, candidate_number // size_step * size_step)
        trial_count += 1
        lower_number, upper_number = (
            (candidate_number, upper_number)
            if excess_bytes(candidate_number) <= 0
            else (lower_number, candidate_number)
        )
    return lower_number


LARGEST_GROWTH_FACTOR = 16
"""Largest factor from one tried number to the next, as long as every tried number fits."""

INTERPOLATION_RATIO = 4
"""Largest ratio of a search interval's ends at which linear interpolation replaces bisection."""


def _next_trial_number(
    excess_by_number: Mapping[int, int],
    fitting_number: int,
    too_large_number: int,
    trial_number: int,
    stored_bytes: Callable[[int], int] | None,
) -> int:
    """Returns the next number to try, between the largest that fits and the smallest that does not.

    Bytes grow faster than linearly. So a line through both ends reaches the capacity too early, and a line through the
    two points up to `fitting_number` too late. The search uses both lines and bisection in turn. Where a part of the
    bytes has a closed form, bytes grow at least as fast as this part, which bounds the number from both ends: then the
    closer bound takes the place of the second line.
    """
    fitting_excess, too_large_excess = excess_by_number[fitting_number], excess_by_number[too_large_number]
    number_difference = too_large_number - fitting_number
    number_on_line = fitting_number + number_difference * -fitting_excess // (too_large_excess - fitting_excess)
    stored_difference = 0 if stored_bytes is None else stored_bytes(too_large_number) - stored_bytes(fitting_number)
    if stored_difference > 0:
        least_number = too_large_number - -(-too_large_excess * number_difference // stored_difference)
        largest_number = fitting_number - fitting_excess * number_difference // stored_difference + 1
        if trial_number % 3 == 1:
            return largest_number if -fitting_excess < too_large_excess else least_number
        if trial_number % 3 == 2:
            return (fitting_number + too_large_number) // 2
        return max(least_number, min(largest_number, number_on_line))
    if trial_number % 3 == 0:
        return number_on_line
    if trial_number % 3 == 1:
        return _number_at_capacity(excess_by_number, fitting_number) + 1
    return (fitting_number + too_large_number) // 2


def _number_at_capacity(excess_by_number: Mapping[int, int], fitting_number: int) -> int:
    """Returns the number at which bytes reach the capacity, extrapolated from the two largest fitting numbers."""
    lower_number = max(
        (candidate_number for candidate_number in excess_by_number if candidate_number < fitting_number),
        default=fitting_number,
    )
    excess_difference = excess_by_number[fitting_number] - excess_by_number[lower_number]
    if excess_difference > 0:
        return fitting_number + (fitting_number - lower_number) * -excess_by_number[fitting_number] // excess_difference
    return LARGEST_GROWTH_FACTOR * fitting_number


def _memory_saving_changes(
    model_memory: Memory, current_fit: MemoryFit, batch: int, seq: int, fit_with_engine: EngineFit
) -> Iterable[SettingChange]:
    """Returns the changes of one setting, and of few together, that need less memory than the current settings.

    If no change suffices, all cheap changes are combined with each costly one; if that does not suffice, with each pair
    of costly ones.
    """
    cheap_changes, costly_changes = single_setting_changes(model_memory, current_fit.hardware, batch, seq)
    bytes_of_insufficient_changes: list[int] = []
    most_changes = MAX_CHANGES_OF_DEEP_MODEL if has_many_layers(model_memory) else None
    evaluate_changes = partial(
        _evaluate_changes,
        model_memory,
        current_fit,
        bytes_of_insufficient_changes,
        fit_with_engine,
        most_changes=most_changes,
    )
    combined_changes = _combine_changes(cheap_changes)
    change_pairs = [
        {**first_change, **second_change}
        for first_change, second_change in combinations(costly_changes, 2)
        if first_change.keys().isdisjoint(second_change)
    ]
    if model_memory.states.kv_dtype in WIDE_CACHES:  # llama.cpp, which runs GGUF files, has no cache in fp8
        gguf_changes = [change for change in costly_changes if change.get("quantize") in GGUF_SCHEMES]
        change_pairs = [
            *(
                change_pair
                for change_pair in change_pairs
                if "kv_dtype" not in change_pair or change_pair.get("quantize") not in GGUF_SCHEMES
            ),
            *({"kv_dtype": GGUF_CACHE, **change} for change in gguf_changes),
        ]
    change_groups: list[Sequence[Mapping[str, Any]]] = [[*cheap_changes, *costly_changes]]
    change_groups += [
        [{**combined_changes, **extra_changes} for extra_changes in changes_to_combine]
        for changes_to_combine in ([{}, *costly_changes], change_pairs)
    ]
    if has_many_layers(model_memory):
        change_groups = [[setting_changes for change_group in change_groups for setting_changes in change_group]]
    candidate_changes: list[SettingChange] = []
    for change_group in change_groups:
        candidate_changes += evaluate_changes(change_group)
        if any(setting_change.changed_fit.verdict != "no" for setting_change in candidate_changes):
            break
    fitting_changes = [
        setting_change for setting_change in candidate_changes if setting_change.changed_fit.verdict != "no"
    ]
    insufficient_changes = sorted(
        (setting_change for setting_change in candidate_changes if setting_change.changed_fit.verdict == "no"),
        key=lambda setting_change: setting_change.changed_fit.needed_bytes,
    )
    shown_changes = (*fitting_changes, *insufficient_changes[:MAX_INSUFFICIENT_CHANGES])
    return list({change.option: change for change in shown_changes}.values())


WIDE_CACHES = ("bfloat16", "float16", "float32")
"""Cache formats that a suggested change replaces by a narrower format."""

GGUF_SCHEMES, GGUF_CACHE = ("q8_0", "q4_k_m"), "q8_0"
"""The GGUF mixes that a suggested change names, and the narrower format of llama.cpp's cache."""


def has_many_layers(model_memory: Memory) -> bool:
    """Whether the model has so many layers that only a few setting changes are tried, because each is slow."""
    return model_memory.spec.layer_count > DEEP_MODEL_LAYERS


def _evaluate_changes(
    model_memory: Memory,
    current_fit: MemoryFit,
    bytes_of_insufficient_changes: list[int],
    fit_with_engine: EngineFit,
    change_options: Sequence[Mapping[str, Any]],
    most_changes: int | None = None,
) -> list[SettingChange]:
    """Returns the changes that need less memory than the current settings, in the order of the input.

    A change is left out if the bytes that it needs at least save nothing, or neither fit nor are among the
    `MAX_INSUFFICIENT_CHANGES` smallest.

    bytes_of_insufficient_changes: the bytes of the changes so far that do not suffice, to which those of these are
        added.
    most_changes: number of changes that are tried, those with the fewest bytes at least; None (default) for all.
    """
    candidate_runs: list[tuple[int, int, Memory]] = []
    for change_index, setting_changes in enumerate(change_options):
        try:
            changed_memory = model_memory.with_changes(**setting_changes)
            candidate_runs.append((least_static_bytes(changed_memory), change_index, changed_memory))
        except InputError:
            continue
    # the run with the smallest lower bound is next: it is recorded, and replayed if its tensors' bound is the smallest
    runs_by_bound = [
        (static_bytes, change_index, False, changed_memory)
        for static_bytes, change_index, changed_memory in sorted(candidate_runs, key=lambda run: run[:2])[:most_changes]
    ]
    change_by_index: dict[int, SettingChange] = {}

    def is_excluded(least_bytes: int) -> bool:
        return least_bytes >= current_fit.needed_bytes or (
            least_bytes > current_fit.capacity_bytes
            and sum(byte_count < least_bytes for byte_count in bytes_of_insufficient_changes)
            >= MAX_INSUFFICIENT_CHANGES
        )

    while runs_by_bound:
        least_bytes, change_index, has_recorded_bound, changed_run = heappop(runs_by_bound)
        if is_excluded(least_bytes):
            continue
        try:
            if not has_recorded_bound:
                heappush(
                    runs_by_bound, (max(least_bytes, changed_run.least_device_bytes), change_index, True, changed_run)
                )
                continue
            hardware = current_fit.hardware
            changed_fit = fit_with_engine(changed_run, hardware) or changed_run.device.fit_on(hardware)
        except InputError:
            continue
        if changed_fit.needed_bytes < current_fit.needed_bytes:
            change_text = cli_options(change_options[change_index], model_memory.settings.phase != "training")
            change_by_index[change_index] = SettingChange(change_text, changed_fit)
            if changed_fit.verdict == "no":
                bytes_of_insufficient_changes.append(changed_fit.needed_bytes)
    return [change_by_index[change_index] for change_index in sorted(change_by_index)]


def least_static_bytes(model_memory: Memory) -> int:
    """Returns a lower bound of a device's bytes: weights, master weights, and optimizer states that are not paged."""
    memory_use = model_memory.states
    return int(memory_use.weights + memory_use.master_weights + memory_use.optimizer_bytes) - paged_bytes(memory_use)


def devices_option(devices: int, layout: Layout | None, users: int | None = None) -> str:
    """Returns a number of accelerators, a layout and a replica's users as command-line options."""
    option_texts = [f"--devices {devices}", "" if layout is None else layout.options()]
    return " ".join(filter(None, [*option_texts, "" if users is None else f"--users {users}"]))


def cli_options(setting_changes: Mapping[str, Any], serves_users: bool = False) -> str:
    """Returns settings as command-line options.

    serves_users: whether the sequences of a batch are named `--users`, as in inference; false by default.
    """
    option_texts: list[str] = []
    for setting_name, setting_value in setting_changes.items():
        if setting_value is None:
            continue
        option_name = "--users" if serves_users and setting_name == "batch" else option(setting_name)
        value_text = ",".join(setting_value) if isinstance(setting_value, tuple) else str(setting_value)
        option_texts.append(option_name if setting_value is True else f"{option_name} {value_text}")
    return " ".join(option_texts)


def changes_with_more_devices(
    model_memory: Memory, hardware: Hardware, sufficient_changes: Sequence[SettingChange]
) -> list[dict[str, Any]]:
    """Returns the changes of a single setting that are also tried with several accelerators.

    All changes that keep the results are combined into one; every other change is tried separately, unless one suffices
    on one accelerator.
    """
    if has_many_layers(model_memory):
        return []
    cheap_changes, costly_changes = _possible_setting_changes(model_memory, hardware)
    return [
        *([_combine_changes(cheap_changes)] if cheap_changes else []),
        *([] if sufficient_changes else costly_changes),
    ]


def change_to_narrow_weights(
    model_memory: Memory, current_fit: MemoryFit, fit_with_engine: EngineFit
) -> list[SettingChange]:
    """Returns the change to the narrowest weight format, with the longest sequences that then fit.

    It is empty in training, and where less than `LEAST_PART_OF_SEQUENCE` of the sequences remains.
    """
    if has_many_layers(model_memory):
        return []
    hardware, seq = current_fit.hardware, model_memory.states.workload.seq
    bytes_changes_and_runs: list[tuple[int, Mapping[str, Any], Memory]] = []
    for change in _possible_setting_changes(model_memory, hardware)[1]:
        if change.keys() == {"quantize"}:
            try:
                narrow_memory = model_memory.with_changes(**change)
            except InputError:  # the scheme cannot store the model's sizes
                continue
            bytes_changes_and_runs.append((least_static_bytes(narrow_memory), change, narrow_memory))
    if not bytes_changes_and_runs:
        return []
    _, narrow_change, narrow_run = min(bytes_changes_and_runs, key=lambda bytes_and_run: bytes_and_run[0])
    if fit_with_engine(narrow_run, hardware) is None:
        longest_seq = largest_run(narrow_run, hardware, most_batch=0)[1]
    else:
        longest_seq = _longest_seq_with_engine(narrow_run, hardware, fit_with_engine)
    if not LEAST_PART_OF_SEQUENCE * seq <= longest_seq < seq:
        return []
    return _evaluate_changes(model_memory, current_fit, [], fit_with_engine, [{**narrow_change, "seq": longest_seq}])


def _longest_seq_with_engine(narrow_run: Memory, hardware: Hardware, fit_with_engine: EngineFit) -> int:
    """Returns the longest sequences, at most the run's, that fit beside an engine's buffers; 0 if none fit."""

    def needed_bytes(longest_seq: int) -> int:
        engine_fit = fit_with_engine(narrow_run.with_changes(seq=longest_seq), hardware)
        return 2 * hardware.capacity_bytes if engine_fit is None else engine_fit.needed_bytes

    longest_seq = int(narrow_run.states.workload.seq)
    return largest_fitting_number(needed_bytes, hardware.capacity_bytes, longest_seq, longest_seq)


def _combine_changes(setting_changes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        setting_name: setting_value
        for changed_settings in setting_changes
        for setting_name, setting_value in changed_settings.items()
    }


def single_setting_changes(
    model_memory: Memory, hardware: Hardware, batch: int, seq: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns two lists of single-setting changes, cheap and costly; the costly list ends with smaller workloads.

    batch, seq: the most sequences of the run's length, and the longest sequences of the run's batch, that fit.
    """
    cheap_changes, costly_changes = _possible_setting_changes(model_memory, hardware)
    return cheap_changes, [*costly_changes, *_smaller_workloads(model_memory, batch, seq)]


def _possible_setting_changes(
    model_memory: Memory, hardware: Hardware
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns two lists: changes that do not alter results; changes of formats, optimizer and trained tensors."""
    is_training = model_memory.settings.phase == "training"
    return _training_changes(model_memory, hardware) if is_training else _inference_changes(model_memory, hardware)


def _training_changes(model_memory: Memory, hardware: Hardware) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns two lists for training: changes that keep results; changes of optimizer, formats, trained tensors."""
    run_settings = model_memory.settings
    cheap_changes: list[dict[str, Any]] = []
    if default_attention(run_settings, model_memory.spec) not in ("flash", "sdpa"):
        cheap_changes.append({"attn_implementation": "flash"})
    if optimizer_implementation(run_settings, model_memory.states) == "foreach":
        cheap_changes.append({"optimizer_impl": "fused"})
    if run_settings.cross_entropy != "chunked":
        cheap_changes.append({"cross_entropy": "chunked"})
    recompute = run_settings.recompute or "none"
    cheap_changes += [
        {"recompute": recompute_mode} for recompute_mode in ("attention+matmuls", "full") if recompute == "none"
    ]
    batch = model_memory.states.workload.batch
    if batch > 1:
        cheap_changes.append({"batch": 1, "num_microbatches": batch * (run_settings.num_microbatches or 1)})
    costly_changes: list[dict[str, Any]] = []
    if run_settings.lora_rank is None:
        if run_settings.optimizer in (None, "adamw") and hardware.has_8bit_optimizers:
            costly_changes.append({"optimizer": "adamw-8bit", "optimizer_impl": None})
        precision_without_master_weights = {None: "bf16", "fp16-master": "fp16"}
        if run_settings.precision in precision_without_master_weights and run_settings.dtype is None:
            costly_changes.append({"precision": precision_without_master_weights[run_settings.precision]})
        adapter_settings = {"lora_rank": TRIED_LORA_RANK, "lora_targets": (ALL_LINEAR,), "master_weights": None}
        costly_changes += [
            adapter_settings,
            *([{**adapter_settings, "base": "nf4"}] if hardware.supports_nf4_weights else []),
        ]
    elif run_settings.base is None and hardware.supports_nf4_weights:
        costly_changes.append({"base": "nf4"})
    elif run_settings.keeps_experts_in_16_bits and model_memory.spec.has_experts:
        costly_changes.append({"quantized_experts": True})
    return cheap_changes, costly_changes


LEAST_CAPABILITY_OF_AWQ = 7.5
"""NVIDIA's least compute capability with vLLM's kernels for AWQ (`get_min_capability`)."""


def _inference_changes(model_memory: Memory, hardware: Hardware) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns two lists for inference: changes that do not alter results; narrower cache and weight formats."""
    run_settings, memory_use = model_memory.settings, model_memory.states
    is_llama_cpp = usual_stack(hardware, model_memory) == LLAMA_CPP_STACK
    cheap_changes: list[dict[str, Any]] = []
    if model_memory.attention != "flash":
        cheap_changes.append({"attn_implementation": "flash"})
    if run_settings.phase == "prefill" and run_settings.chunk is None and memory_use.workload.seq > PROMPT_CHUNK_TOKENS:
        cheap_changes.append({"chunk": PROMPT_CHUNK_TOKENS})
    costly_changes: list[dict[str, Any]] = []
    if memory_use.kv_dtype in WIDE_CACHES and (is_llama_cpp or hardware.has_fp8_kernels):
        costly_changes.append({"kv_dtype": GGUF_CACHE if is_llama_cpp else "fp8"})
    if run_settings.dtype is None:
        if memory_use.quantized_size is None and memory_use.dtype == "float32":  # as engines load such weights
            has_bfloat16 = not hardware.peak_flops or "bfloat16" in hardware.peak_flops
            costly_changes.insert(0, {"dtype": "bfloat16" if has_bfloat16 else "float16"})
        has_kernels_by_scheme = {
            "fp8": not is_llama_cpp and hardware.has_fp8_kernels,
            "q8_0": runs_llama_cpp(hardware),
            "q4_k_m": runs_llama_cpp(hardware),
            "awq-int4-g128": not is_llama_cpp
            and float(hardware.compute_capability or LEAST_CAPABILITY_OF_AWQ) >= LEAST_CAPABILITY_OF_AWQ,
        }
        narrower_schemes = (
            scheme_name
            for scheme_name, has_kernels in has_kernels_by_scheme.items()
            if has_kernels and _is_narrower(model_memory, scheme_name)
        )
        costly_changes += [{"quantize": scheme_name} for scheme_name in narrower_schemes]
    return cheap_changes, costly_changes


LARGEST_NARROWER_SHARE = 0.75
"""Largest fraction of a quantized checkpoint's bytes that a suggested narrower format may leave."""


def _is_narrower(model_memory: Memory, scheme_name: str) -> bool:
    """Whether a quantization scheme makes the weights smaller, and already quantized weights much smaller."""
    if model_memory.states.quantized_size is None:
        return True
    try:
        narrower_weights = model_memory.with_changes(quantize=scheme_name).states.weights
    except InputError:
        return False
    return bool(narrower_weights <= LARGEST_NARROWER_SHARE * model_memory.states.weights)


LEAST_PART_OF_SEQUENCE = 1 / 8
"""Least fraction of the sequence length in a suggested shorter run, because much shorter sequences are another task."""


def _smaller_workloads(model_memory: Memory, batch: int, seq: int) -> list[dict[str, Any]]:
    """Returns the setting changes to fewer sequences and to shorter sequences."""
    workload, setting_changes = model_memory.states.workload, []
    if 0 < batch < workload.batch:
        setting_changes.append({"batch": batch})
    if LEAST_PART_OF_SEQUENCE * workload.seq <= seq < workload.seq:
        setting_changes.append({"seq": seq})
    return setting_changes
