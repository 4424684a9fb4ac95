"""The accelerators on which a run fits, and the minimum number of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import takewhile, tee
from typing import Any, NamedTuple

from ..accelerator import Hardware, MemoryFit
from ..device_memory.cuda_runtime import CudaRuntime
from ..device_memory.device_memory import DeviceMemory
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..frameworks.framework import Framework
from ..frameworks.ranks import Cluster, rank_with_most_memory
from ..frameworks.registry import framework, framework_of, layout_of
from ..frozen import frozen
from ..parallel.layout import ImpossibleLayout, Layout
from ..parallel.layout_request import LayoutRequest
from .fit import SettingChange, cli_options, devices_option, least_static_bytes
from .fit_serving import is_separate_computer, serving_layouts

MAX_DEVICES = 64
"""Largest number of accelerators that is tried."""

MAX_COMPUTERS = 4
"""Largest number of Macs that work together: MLX's documentation joins each to every other by a Thunderbolt cable
(https://ml-explore.github.io/mlx/build/html/usage/launching_distributed.html).
"""

MAX_TRAINING_COMPUTERS = 1
"""Largest number of Macs in a training run: torch has no messages between Macs (no NCCL), so no sharded training."""

MAX_SPLIT_DEVICES = 16
"""Largest number of accelerators among which llama.cpp divides layers: GGML_CUDA_MAX_DEVICES of ggml-cuda.h."""

RuntimeFunction = Callable[[Hardware], CudaRuntime]
"""A function that returns the CUDA runtime of a run on an accelerator."""


@frozen
class HardwareOption:
    """A number of accelerators of one kind on which a run was tried, with its layout and verdict.

    layout: the parallel layout; None for one accelerator. fit: the verdict.
    users: users of each replica, where replicas share those of the run; None (default) for one replica.
    seq: tokens of each sequence, where so many accelerators have others by default; default None.
    engine_title: the engine whose buffers decide; empty (default) for the kernels of torch.
    """

    devices: int
    layout: Layout | None
    fit: MemoryFit
    users: int | None = None
    seq: int | None = None
    engine_title: str = ""

    @property
    def command_options(self) -> str:
        """The accelerators and their layout as options of the command line."""
        return devices_option(self.devices, self.layout, self.users) + (
            "" if self.seq is None else f" --seq {self.seq}"
        )


class _RunOnDevices(NamedTuple):
    """A run divided over a number of accelerators, with its memory per device.

    devices: number of accelerators.
    layout: the layout over them; None for one accelerator.
    memory_on: runtime → the memory of the accelerator that needs most, which is computed once for each runtime.
    static_bytes: bytes that this accelerator needs at least, found without a replay.
    least_tensor_bytes_on: runtime → bytes of tensors that each rank which may need most needs at least, counted without
        an allocator when the rank is reached; 0 if not known.
    memory_of_fullest_rank: runtime → the memory of the accelerator with most weights and cache, which seldom needs less
        than another and is known sooner than `memory_on`; None (default) if not known.
    users: users of each replica, where replicas share those of the run; None (default) for one replica.
    replicated_runs: the runs on as many accelerators in which replicas share the users, most replicas first.
    """

    devices: int
    layout: Layout | None
    memory_on: Callable[[CudaRuntime], DeviceMemory]
    static_bytes: int
    least_tensor_bytes_on: Callable[[CudaRuntime], Iterable[int]] = lambda runtime: ()
    memory_of_fullest_rank: Callable[[CudaRuntime], DeviceMemory] | None = None
    users: int | None = None
    replicated_runs: Callable[[], Sequence[_RunOnDevices]] = tuple

    def fit_on(self, hardware: Hardware, default_runtime: CudaRuntime, cuda_runtime: CudaRuntime) -> MemoryFit:
        """Returns whether the run fits on an accelerator; replays it with the accelerator's runtime if it may fit.

        default_runtime: a runtime with which the memory is known already.
        """
        default_fit = self.memory_on(default_runtime).fit_on(hardware)
        fits_without_overhead = _bytes_without_overhead(default_fit, default_runtime) <= default_fit.capacity_bytes
        return self.memory_on(cuda_runtime).fit_on(hardware) if fits_without_overhead else default_fit

    def with_most_replicas(
        self, fit: MemoryFit, default_runtime: CudaRuntime, cuda_runtime: CudaRuntime
    ) -> tuple[_RunOnDevices, MemoryFit]:
        """Returns the run with the most replicas, on equally many accelerators, that fits no worse than this run."""
        for replicated_run in self.replicated_runs() if fit.verdict != "no" else ():
            if replicated_run.static_bytes <= fit.hardware.capacity_bytes:
                fit_of_replicas = replicated_run.fit_on(fit.hardware, default_runtime, cuda_runtime)
                if fit_of_replicas.verdict in ("fits", fit.verdict):
                    return replicated_run, fit_of_replicas
        return self, fit

    def option(self, fit: MemoryFit) -> HardwareOption:
        """Returns the run as a `HardwareOption`, with the verdict for one kind of accelerator."""
        return HardwareOption(self.devices, self.layout, fit, self.users)

    def lower_bounds(self, hardware: Hardware, cuda_runtime: CudaRuntime) -> Iterator[int]:
        """Yields lower bounds of the bytes that the run needs, starting with the quickest to compute."""
        yield from self.bounds_without_replay(cuda_runtime)
        yield self.replayed_bytes(hardware, cuda_runtime)

    def bounds_without_replay(self, cuda_runtime: CudaRuntime) -> Iterator[int]:
        """Yields lower bounds of the bytes without a replay: static bytes, and each rank's tensors if supported."""
        yield self.static_bytes
        try:
            yield from self.least_tensor_bytes_on(cuda_runtime)
        except InputError:  # the framework does not support the layout, as `on` says
            return

    def replayed_bytes(self, hardware: Hardware, cuda_runtime: CudaRuntime) -> int:
        """Returns the bytes that the run needs without the allocator's overhead, from one replay; 0 if unknown."""
        if self.memory_of_fullest_rank is None:
            return 0
        try:
            return _bytes_without_overhead(self.memory_of_fullest_rank(cuda_runtime).fit_on(hardware), cuda_runtime)
        except InputError:  # as in `least_bytes`
            return 0

    def least_bytes(self, cuda_runtime: CudaRuntime) -> int:
        """Returns the largest lower bound of the required bytes that is computed without a replay."""
        return max(self.bounds_without_replay(cuda_runtime))


def _bytes_without_overhead(memory_fit: MemoryFit, cuda_runtime: CudaRuntime) -> int:
    """Returns the bytes that a run needs, without the CUDA context and the allocator's free blocks."""
    return memory_fit.needed_bytes - (cuda_runtime.context_bytes + memory_fit.fragmentation)


def _run_over_ranks(cluster: Cluster) -> _RunOnDevices:
    """Returns a run in a parallel layout, with the memory of the rank that needs most."""

    def largest_memory(cuda_runtime: CudaRuntime) -> DeviceMemory:
        return rank_with_most_memory(
            [cluster.rank_memory(rank, cuda_runtime) for rank in cluster.ranks_that_may_need_most]
        ).device

    def least_tensor_bytes_on(runtime: CudaRuntime) -> Iterator[int]:
        for rank in cluster.ranks_that_may_need_most:
            yield cluster.tensor_bytes(rank, runtime) if cluster.trains else _least_bytes(cluster.inference_rank(rank))

    def memory_of_fullest_rank(runtime: CudaRuntime) -> DeviceMemory:
        candidate_ranks = cluster.ranks_that_may_need_most
        fullest_rank = max(candidate_ranks, key=lambda rank: _least_bytes(cluster.inference_rank(rank)))
        return cluster.rank_memory(fullest_rank, runtime).device

    if cluster.trains:
        least_bytes = least_static_bytes(cluster.memory) // cluster.layout.world_size
        return _RunOnDevices(
            cluster.layout.world_size, cluster.layout, largest_memory, least_bytes, least_tensor_bytes_on
        )
    least_bytes = _least_bytes(cluster.inference_rank(0))
    layout = cluster.layout
    return _RunOnDevices(
        layout.world_size, layout, largest_memory, least_bytes, least_tensor_bytes_on, memory_of_fullest_rank
    )


def _least_bytes(model_memory: Memory) -> int:
    """Returns a lower bound of an accelerator's bytes at the end of a pass: weights and cache."""
    return int(model_memory.states.weights + model_memory.states.kv_cache)


def hardware_options(
    model_memory: Memory,
    accelerators: Iterable[Hardware],
    layout_request: LayoutRequest,
    cuda_runtime_of: RuntimeFunction,
    option_with_engine: Callable[[Hardware], HardwareOption | None] = lambda hardware: None,
) -> tuple[HardwareOption, ...]:
    """Returns the fewest accelerators of each kind on which a run fits; those that fit best come first.

    Of those on which it fits alike, accelerators that have no products in the run's number format come last.
    Accelerators on which it fits on none of the numbers tried come last, with the number that needs least.
    Unless the user states a number, at most `MAX_COMPUTERS` of chips that are computers, and one laptop, are tried.
    layout_request: parallelism options; its group sizes apply to every number; `devices`, if given, is the only number.
    cuda_runtime_of: the runtime of the run on an accelerator.
    option_with_engine: accelerator → the fewest of them by an engine's buffers; None (default) for torch's kernels.
    Raises `InputError` if no layout is possible at all, and for training under a framework that shards no weights.
    """
    is_training, framework_name = model_memory.settings.phase == "training", layout_request.framework
    if (
        is_training
        and framework_name is not None
        and replace(layout_request, devices=1).is_undivided
        and framework(framework_name).layout_rules.default_zero_stage != 3
    ):
        raise InputError(
            f"--framework {framework_name}: its layouts are planned for one kind of accelerator; add --hardware"
        )
    device_runs, options = _runs_on_devices(model_memory, layout_request), []
    needs_bfloat16 = model_memory.states.dtype == "bfloat16" and model_memory.states.quantized_size is None
    is_undivided = replace(layout_request, devices=1).is_undivided and layout_request.devices is None
    for hardware in accelerators:
        if is_undivided and (engine_option := option_with_engine(hardware)) is not None:
            options.append(engine_option)
            continue
        # runs are made as far as an accelerator needs them, and once for all
        device_runs, candidate_runs = tee(device_runs)
        usual_runs = _runs_on_usual_number(candidate_runs, hardware, layout_request, is_training)
        options.append(_hardware_option(usual_runs, hardware, model_memory.cuda_runtime, cuda_runtime_of(hardware)))
    return tuple(
        sorted(
            options,
            key=lambda hardware_option: (
                ("fits", "tight", "no").index(hardware_option.fit.verdict),
                needs_bfloat16 and not hardware_option.fit.hardware.has_bfloat16_units,
                hardware_option.devices * hardware_option.fit.capacity_bytes,
                hardware_option.devices,
                hardware_option.fit.hardware.name,
            ),
        )
    )


def _runs_on_usual_number(
    device_runs: Iterable[_RunOnDevices], hardware: Hardware, layout_request: LayoutRequest, is_training: bool
) -> Iterable[_RunOnDevices]:
    """Returns the runs on a usual number of accelerators of a kind; all runs if the user states the number."""
    has_stated_number = layout_request.devices or not replace(layout_request, devices=1).is_undivided
    if has_stated_number or not is_separate_computer(hardware):
        return device_runs
    if hardware.is_laptop_gpu:
        most_computers = 1
    else:
        most_computers = MAX_TRAINING_COMPUTERS if is_training else MAX_COMPUTERS
    return takewhile(lambda device_run: device_run.devices <= most_computers, device_runs)


def _hardware_option(
    device_runs: Iterable[_RunOnDevices], hardware: Hardware, default_runtime: CudaRuntime, cuda_runtime: CudaRuntime
) -> HardwareOption:
    """Returns the fewest accelerators of one kind on which the run fits.

    default_runtime: a runtime under which each run is known, by which those that surely do not fit are passed over.
    """
    tried_options: list[tuple[int, HardwareOption]] = []
    too_large_runs: list[tuple[int, int, _RunOnDevices]] = []

    def try_run(run_index: int, device_run: _RunOnDevices) -> HardwareOption | None:
        try:
            memory_fit = device_run.fit_on(hardware, default_runtime, cuda_runtime)
        except InputError:  # the framework does not support the layout
            return None
        device_run, memory_fit = device_run.with_most_replicas(memory_fit, default_runtime, cuda_runtime)
        tried_options.append((run_index, hardware_option := device_run.option(memory_fit)))
        return hardware_option

    for run_index, device_run in enumerate(device_runs):
        byte_lower_bounds = device_run.lower_bounds(hardware, default_runtime)
        excessive_bytes = next(
            (bound_bytes for bound_bytes in byte_lower_bounds if bound_bytes > hardware.capacity_bytes), None
        )
        if excessive_bytes is not None:
            too_large_runs.append((excessive_bytes, run_index, device_run))
        elif (hardware_option := try_run(run_index, device_run)) is not None and hardware_option.fit.verdict == "fits":
            return hardware_option
    while too_large_runs:
        least_bytes, run_index, device_run = smallest_run = min(too_large_runs, key=lambda skipped_run: skipped_run[:2])
        if tried_options and least_bytes > min(tried_option.fit.needed_bytes for _, tried_option in tried_options):
            break
        too_large_runs.remove(smallest_run)
        lower_bound_bytes = device_run.least_bytes(default_runtime)
        if lower_bound_bytes > least_bytes:
            too_large_runs.append((lower_bound_bytes, run_index, device_run))  # others may need less
        else:
            try_run(run_index, device_run)
    if not tried_options:
        raise ImpossibleLayout("--devices: no layout of this number is possible")
    return min(tried_options, key=lambda indexed_option: (indexed_option[1].fit.needed_bytes, indexed_option[0]))[1]


MAX_CHANGES_PER_NUMBER = 2
"""Largest number of changes that are listed for a number of accelerators."""


def fitting_changes_on_several_devices(
    model_memory: Memory,
    options: Sequence[HardwareOption],
    layout_request: LayoutRequest,
    cuda_runtime_of: RuntimeFunction,
    setting_changes: Sequence[Mapping[str, Any]],
) -> Iterator[SettingChange]:
    """Yields setting changes with which the run fits on several accelerators; the unchanged run comes last.

    options: the fewest accelerators of each kind for the unchanged run.
    setting_changes: changes of settings that are tried on fewer accelerators than that.
    """
    for hardware_option in options:
        fits_without_changes, hardware = hardware_option.fit.verdict != "no", hardware_option.fit.hardware
        most_devices = hardware_option.devices - 1 if fits_without_changes else MAX_DEVICES
        changes_by_devices: list[tuple[int, SettingChange]] = []
        for changed_settings in setting_changes:
            try:
                runs_and_fits = list(
                    _fitting_runs(
                        model_memory.with_changes(**changed_settings),
                        hardware,
                        layout_request,
                        cuda_runtime_of,
                        most_devices,
                    )
                )
            except InputError:
                continue
            if not runs_and_fits:
                continue
            device_run, memory_fit = min(runs_and_fits, key=lambda run_and_fit: run_and_fit[1].verdict != "fits")
            changes_text = cli_options(changed_settings, model_memory.settings.phase != "training")
            options_text = f"{device_run.option(memory_fit).command_options} {changes_text}"
            if sum(devices == device_run.devices for devices, _ in changes_by_devices) < MAX_CHANGES_PER_NUMBER:
                changes_by_devices.append((device_run.devices, SettingChange(options_text, memory_fit)))
        yield from (change for _, change in sorted(changes_by_devices, key=lambda change_entry: change_entry[0]))
        if fits_without_changes and hardware_option.devices > 1:
            yield SettingChange(hardware_option.command_options, hardware_option.fit)


def _fitting_runs(
    model_memory: Memory,
    hardware: Hardware,
    layout_request: LayoutRequest,
    cuda_runtime_of: RuntimeFunction,
    most_devices: int,
) -> Iterator[tuple[_RunOnDevices, MemoryFit]]:
    """Yields runs that fit on 2 to `most_devices` accelerators: with little headroom, and the first with enough."""
    is_training = model_memory.settings.phase == "training"
    tried_runs = _runs_on_usual_number(
        _runs_on_devices(model_memory, layout_request), hardware, layout_request, is_training
    )
    for device_run in takewhile(lambda device_run: device_run.devices <= most_devices, tried_runs):
        lower_bounds = device_run.bounds_without_replay(model_memory.cuda_runtime)
        if device_run.devices > 1 and all(byte_count <= hardware.capacity_bytes for byte_count in lower_bounds):
            memory_fit = device_run.memory_on(cuda_runtime_of(hardware)).fit_on(hardware)
            if memory_fit.verdict != "no":
                yield device_run.with_most_replicas(memory_fit, model_memory.cuda_runtime, cuda_runtime_of(hardware))
            if memory_fit.verdict == "fits":
                return


def _runs_on_devices(model_memory: Memory, layout_request: LayoutRequest) -> Iterator[_RunOnDevices]:
    """Yields the run in possible layouts on more and more accelerators."""
    framework_version, framework_record = layout_request.framework_version or "", framework_of(layout_request)
    is_training = model_memory.settings.phase == "training"
    device_counts = [2**exponent for exponent in range(MAX_DEVICES.bit_length())]
    for devices in device_counts if layout_request.devices is None else [layout_request.devices]:
        request_of_number = replace(layout_request, devices=devices)
        if devices == 1 and request_of_number.is_undivided:
            yield _RunOnDevices(
                1,
                None,
                model_memory.memory_for_runtime,
                (least_static_bytes if is_training else _least_bytes)(model_memory),
            )
        elif is_training:
            is_sharded = request_of_number.is_undivided  # fully, unless the user divides the run
            yield from _possible_runs(
                model_memory, replace(request_of_number, zero=3) if is_sharded else request_of_number, framework_version
            )
        else:
            layouts = list(serving_layouts(model_memory, request_of_number, devices))
            replicated_runs = cache(
                partial(_runs_of_replicas, model_memory, framework_record, framework_version, layouts)
            )
            for layout in layouts:
                if layout.dp == (request_of_number.dp or 1):
                    device_run = _run_over_ranks(
                        Cluster.with_framework(model_memory, layout, framework_record, framework_version)
                    )
                    # replicas have the stated users each where the user states the number of devices or of replicas
                    shares_users = layout_request.devices is None and layout_request.dp is None
                    yield device_run._replace(replicated_runs=replicated_runs) if shares_users else device_run


def _runs_of_replicas(
    model_memory: Memory, framework_record: Framework, version: str, layouts: Sequence[Layout]
) -> tuple[_RunOnDevices, ...]:
    """Returns one run per number of replicas, most replicas first; each replica serves a share of the users.

    layouts: layouts of as many devices, the fewest stages of each number of replicas first.
    """
    layout_of_replicas = {layout.dp: layout for layout in reversed(layouts) if layout.dp > 1}
    runs_and_fits = []
    for replica_count, layout in sorted(layout_of_replicas.items(), reverse=True):
        users_per_replica = -(-model_memory.states.workload.batch // replica_count)
        if replica_count <= model_memory.states.workload.batch:
            cluster = Cluster.with_framework(
                model_memory.with_changes(batch=users_per_replica), layout, framework_record, version
            )
            runs_and_fits.append(_run_over_ranks(cluster)._replace(users=users_per_replica))
    return tuple(runs_and_fits)


def _possible_runs(model_memory: Memory, layout_request: LayoutRequest, version: str) -> Iterator[_RunOnDevices]:
    """Yields the run in the layout of the request, or nothing if no layout is possible.

    If the framework does not support the run, computing its memory raises `InputError`, without delay from the second
    call on.
    """
    try:
        trained_spec = model_memory.spec if model_memory.settings.phase == "training" else None
        layout = layout_of(layout_request, trained_spec)
        device_run = _run_over_ranks(
            Cluster.with_framework(model_memory, layout, framework_of(layout_request), version)
        )
    except InputError:
        return
    refusal_errors: list[InputError] = []

    def memory_on(cuda_runtime: CudaRuntime) -> DeviceMemory:
        if refusal_errors:
            raise refusal_errors[0]
        try:
            return device_run.memory_on(cuda_runtime)
        except InputError as error:
            refusal_errors.append(error)
            raise

    yield device_run._replace(memory_on=memory_on)
