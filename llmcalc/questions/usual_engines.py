"""The serving engine that an inference run without a named engine usually has, and the engine's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from ..accelerator import Hardware, MemoryFit
from ..device_memory.device_memory import MAX_RECORDED_LAYERS
from ..device_memory.estimate import Memory
from ..device_memory.settings import SERVING_PHASES, Settings
from ..errors import InputError
from ..frameworks.engines.engine import HOST_DEVICE, NEWEST_VERSION, Engine, EngineMemory
from ..frameworks.engines.flags import read_flag_values
from ..frameworks.engines.rank import MissingKernels
from ..frameworks.engines.registry import ENGINE_FOLDERS, engine, engine_and_version
from ..parallel.divisors import divisors
from ..parallel.layout import Layout
from ..parallel.layout_request import LayoutRequest
from ..parallel.layout_search import even_stage_sizes
from ..reports.notes import counted_noun, tagged_format_note
from ..sources.hardware import chips_of_generation
from ..sources.preset import Preset
from ..sources.presets import LIBRARY_ENGINE, checkpoint_of_tag, is_library_tag
from ..studies.decoding import time_decoded_token, usual_stack
from ..studies.fit import (
    MAX_BATCH,
    MAX_SEQ,
    FitAnswer,
    SettingChange,
    cli_options,
    largest_fitting_number,
    single_setting_changes,
)
from ..studies.fit_options import MAX_SPLIT_DEVICES, HardwareOption
from ..studies.fit_serving import COMPUTER_VENDORS, ReplicaFit, ServingFitAnswer, is_separate_computer
from ..units import DTYPE_BITS, dtype

FORMAT_SETTINGS = "dtype", "kv_dtype", "quantize"
"""Settings that state a number format of weights or cache."""


def usual_scheme_of(memory: Memory, engine_name: str, model_target: str) -> tuple[str, str] | None:
    """Returns the quantization scheme in which an engine usually runs a model, and a remark on the scheme.

    model_target: the TARGET; a tag of Ollama's library may state the scheme.
    None where the engine has none, where a format of the weights is stated, or one of 4 bits is published.
    """
    settings, tagged_checkpoint = memory.settings, checkpoint_of_tag(model_target)
    if settings.quantize or settings.dtype is not None:
        return None
    if tagged_checkpoint is not None:
        return tagged_checkpoint[1], tagged_format_note(tagged_checkpoint[1], model_target)
    is_encoder = memory.spec.kind == "encoder"  # nomic-embed-text and mxbai-embed-large are in F16: 274 and 669 MB
    published_bits = DTYPE_BITS[memory.published_dtype]
    is_quantized = memory.states.quantized_size is not None and published_bits != 8  # GGUF has no type in FP8
    if is_quantized or published_bits < 8 or is_encoder:
        return None
    return engine_and_version(engine_name)[0].usual_scheme


@dataclass(frozen=True)
class UsualEngine:
    """The serving engine with which people usually run a model on an accelerator.

    settings: settings of the run.
    seq: tokens of each request.
    options: options of llmcalc that name the format of weights and cache, by their Python names.
    devices: accelerators among which the engine divides the layers; default 1.
    default_context: accelerators of a replica → the context in tokens, where it follows from the number of
        accelerators; None (default) for `seq` on any number.
    """

    preset: Preset
    engine_record: Engine
    hardware: Hardware
    settings: Settings
    seq: int
    options: Mapping[str, Any]
    devices: int = 1
    default_context: Callable[[int], int] | None = None

    @classmethod
    def of_run(
        cls, preset: Preset, memory: Memory, hardware: Hardware, default_context: Callable[[int], int] | None = None
    ) -> UsualEngine | None:
        """Returns the usual engine of a run; None for a run of a single phase, or on an unsupported accelerator.

        default_context: see the class.
        """
        settings, stack_name = memory.settings, usual_stack(hardware, memory)
        engine_records = [
            engine_record
            for engine_record in map(engine, ENGINE_FOLDERS)
            if engine_record.software_stack(NEWEST_VERSION) == stack_name
        ]
        if settings.phase not in SERVING_PHASES or not engine_records or not engine_records[0].runs_on(hardware):
            return None
        format_settings = {format_field: getattr(settings, format_field) for format_field in FORMAT_SETTINGS}
        typed_options = {
            setting_name: format_name
            for setting_name, format_name in format_settings.items()
            if format_name is not None
        }
        seq = int(memory.states.workload.seq)
        return cls(preset, engine_records[0], hardware, settings, seq, typed_options, default_context=default_context)

    def memory_for_users(self, users: int) -> EngineMemory | None:
        """Returns the engine's memory for this number of users; None if unsupported or unknown."""
        try:
            engine_memory: EngineMemory = self.engine_record.memory(self._server_for_users(users))
        except InputError:
            return None
        return engine_memory

    def _server_for_users(self, users: int) -> Any:
        """Returns the engine's server for this number of users. Raises `InputError` for an unsupported run."""
        server_options = dict(self.options)
        scheme_name = server_options.pop("quantize", None)
        is_16_bits = DTYPE_BITS[dtype(server_options.get("dtype", "bfloat16"))] == 16
        if self.engine_record.shows_alternatives and is_16_bits:
            server_options.pop("dtype", None)  # a GGUF file in 16 bits, as without the option
        known_flags = self.engine_record.known_flags()
        engine_flags = read_flag_values(
            self.engine_record.title, known_flags, server_options, self.engine_record.flags_by_option
        )
        engine_flags |= {} if scheme_name is None else {"quantize": scheme_name}
        if self.engine_record.shows_alternatives:  # layers on the host are another run
            engine_flags |= {"fit": "off"} | ({} if self.hardware.is_processor else {"n_gpu_layers": "all"})
            ollama_engine = engine(LIBRARY_ENGINE)
            if is_library_tag(self.preset.target) and ollama_engine.tag_flags is not None:
                engine_flags |= ollama_engine.tag_flags(self.preset)
        if self.devices > 1:
            engine_flags |= {"tensor_split": ",".join(["1"] * self.devices)}
        engine_flags = self.engine_record.flags_for_users(self.preset, engine_flags, users, self.seq)
        _, version = engine_and_version(self.engine_record.name)
        return self.engine_record.server(self.preset, self.hardware, version, engine_flags)

    def lacks_kernels(self, users: int) -> bool:
        """Whether the engine has no kernels on the accelerator for the weights, the cache or the attention."""
        try:
            self._server_for_users(users)
        except MissingKernels:
            return True
        except InputError:
            return False
        return False

    def largest_user_count(self, users: int) -> int:
        """Returns the number of users whose requests the engine's cache holds; all users if its memory is unknown."""
        engine_memory = self.memory_for_users(users)
        if engine_memory is None or engine_memory.has_room_for(users):
            return users
        if self.device_bytes(1) is not None:
            return self._largest_fitting_number(self.device_bytes, 1, users)
        has_data_parallel_caches = self.engine_record.serving_flags is None  # one cache for any number of users
        return min(users, int(engine_memory.max_users())) if has_data_parallel_caches and engine_memory.can_start else 0

    def device_bytes(self, users: int) -> int | None:
        """Returns the bytes on the device with the highest need, with the bytes in use before the engine starts.

        None for an engine that fills a budget, and where its memory is not known.
        """
        bytes_by_device = self._bytes_of_each_device(users)
        return None if bytes_by_device is None else max(bytes_by_device, default=0)

    def _bytes_of_each_device(self, users: int) -> list[int] | None:
        """Returns the bytes of each device, with the bytes in use before the engine starts; None if unknown."""
        if not self.engine_record.shows_alternatives:
            return None
        try:
            server = self._server_for_users(users)
            memory_terms = self.engine_record.memory(server).terms
        except InputError:
            return None
        used_bytes = self.hardware.capacity_bytes - server.free_bytes
        return [
            int(
                sum(memory_term.bytes for memory_term in memory_terms if memory_term.device == device_name) + used_bytes
            )
            for device_name in server.devices or (HOST_DEVICE,)
        ]

    def change_to_engine(self, users: int) -> SettingChange | None:
        """Returns the change that runs this engine instead of torch's kernels; the engine reads prompts in chunks.

        None where the engine fills a budget, or does not hold the users.
        """
        device_bytes = self.device_bytes(users)
        if device_bytes is None or device_bytes > self.hardware.capacity_bytes:
            return None
        return SettingChange(f"--engine {self.engine_record.name}", MemoryFit(self.hardware, device_bytes))

    def changes_to_larger_computers(self, memory_fit: MemoryFit) -> list[SettingChange]:
        """Returns the smallest computer with a chip of the same generation in which the run fits, such as a larger Mac.

        Empty for a run that fits here, for accelerators that are no computers, and if no computer is large enough.
        """
        if memory_fit.verdict != "no" or self.hardware.vendor not in COMPUTER_VENDORS:
            return []
        chip_fits = (replace(memory_fit, hardware=chip) for chip in chips_of_generation(self.hardware))
        chip_fit = next((chip_fit for chip_fit in chip_fits if chip_fit.verdict != "no"), None)
        if chip_fit is None:
            return []
        library_context = engine(LIBRARY_ENGINE).default_context
        change_text = f"--hardware {chip_fit.hardware.name}"
        if self.default_context is not None and library_context is not None:
            seq = self.settings.seq_in_context(library_context(self.preset, chip_fit.hardware, 1))
            change_text += "" if seq == self.seq else f" --seq {self.seq}"
        return [SettingChange(change_text, chip_fit)]

    def fit_with_engine_buffers(self, run_memory: Memory) -> FitAnswer | None:
        """Returns whether a run and the engine's buffers fit together; None if the bytes of the buffers are unknown."""
        user_count = int(run_memory.states.workload.batch)
        device_bytes = self.device_bytes(user_count)
        if device_bytes is None:
            return None
        memory_fit = MemoryFit(self.hardware, device_bytes)
        largest_batch = self._largest_fitting_number(self.device_bytes, user_count, MAX_BATCH)
        largest_seq = self._largest_fitting_number(
            lambda tokens: replace(self, seq=tokens).device_bytes(user_count), self.seq, MAX_SEQ
        )
        memory_changes: list[SettingChange] = []
        if memory_fit.verdict == "no":
            for changed_settings in chain(
                *single_setting_changes(run_memory, self.hardware, largest_batch, largest_seq)
            ):
                format_settings = {
                    field_name: changed_settings[field_name]
                    for field_name in FORMAT_SETTINGS
                    if field_name in changed_settings
                }
                changed_engine = replace(
                    self, seq=changed_settings.get("seq", self.seq), options={**self.options, **format_settings}
                )
                needed_bytes = changed_engine.device_bytes(changed_settings.get("batch", user_count))
                if needed_bytes is not None and needed_bytes < device_bytes:
                    change_text = cli_options(changed_settings, serves_users=True)
                    memory_changes.append(SettingChange(change_text, MemoryFit(self.hardware, needed_bytes)))
        memory_changes.sort(key=lambda memory_change: memory_change.changed_fit.verdict == "no")
        return FitAnswer(
            run_memory,
            memory_fit,
            largest_batch,
            largest_seq,
            partial(tuple, memory_changes),
            engine_title=self.engine_record.title,
        )

    def fit_replicas(self, run_memory: Memory, layout_request: LayoutRequest) -> ServingFitAnswer | None:
        """Returns whether replicas fit, each with its layers divided among accelerators; None if bytes are unknown.

        layout_request: `devices` accelerators, in replicas of `pp` each or of any number.
        """
        replica_fits = self.tried_replicas(run_memory, layout_request)
        if not replica_fits:
            return None
        best_replica = best_replica_fit(replica_fits)
        best_engine = self._divided_among_devices(best_replica.layout.pp)
        run_memory = _with_sequence_length(run_memory, best_engine.seq)
        fit_answer = best_engine.fit_with_engine_buffers(run_memory)
        if fit_answer is None:
            return None
        fewest_layout: Layout | None = best_replica.layout
        if best_replica.fit.verdict == "no":
            larger_option = best_engine.fewest_devices(run_memory, best_replica.layout.pp + 1)
            fewest_layout = None
            if larger_option is not None and larger_option.fit.verdict != "no":
                fewest_layout = larger_option.layout
                device_change = SettingChange(larger_option.command_options, larger_option.fit)
                all_changes = (device_change, *fit_answer.changes)
                fit_answer = replace(fit_answer, find_changes=partial(tuple, all_changes))
        fewest_devices = None if fewest_layout is None else fewest_layout.replica_devices
        return ServingFitAnswer(
            run_memory, tuple(replica_fits), best_replica, fewest_devices, fewest_layout, fit_answer
        )

    def tried_replicas(self, run_memory: Memory, layout_request: LayoutRequest) -> list[ReplicaFit]:
        """Returns the candidates of `fit_replicas`, most replicas first; empty if the bytes of any are unknown."""
        devices, layer_count = layout_request.devices, run_memory.spec.layer_count
        assert devices is not None
        layouts = [
            layout_divided_by_layers(layer_count, split_devices, devices // split_devices)
            for split_devices in divisors(devices, min(MAX_SPLIT_DEVICES, layer_count))
            if layout_request.pp in (None, split_devices) and layout_request.dp in (None, devices // split_devices)
        ]
        replica_fits = [
            replica_fit for replica_fit in (self._replica_fit(run_memory, layout) for layout in layouts) if replica_fit
        ]
        return replica_fits if len(replica_fits) == len(layouts) else []

    def fewest_devices(self, run_memory: Memory, least_devices: int = 1) -> HardwareOption | None:
        """Returns the fewest accelerators, `least_devices` or more, among which the layers fit.

        If the layers fit only tightly, the fewest on which they do; if they fit on no number, the number that needs
        least memory per device. Whole computers are tried as one. None if bytes are unknown.
        """
        most_devices = min(MAX_SPLIT_DEVICES, run_memory.spec.layer_count)
        if is_separate_computer(self.hardware):
            most_devices = 1
        tried_options: list[HardwareOption] = []
        for device_count in range(least_devices, most_devices + 1):
            needed_bytes = replace(self, devices=device_count).device_bytes(int(run_memory.states.workload.batch))
            if needed_bytes is None:
                return None
            memory_fit = MemoryFit(self.hardware, needed_bytes)
            layout = None if device_count == 1 else LayoutRequest(devices=device_count, pp=device_count).layout()
            seq = None if self._default_seq(device_count) == self.seq else self.seq
            hardware_option = HardwareOption(
                device_count, layout, memory_fit, seq=seq, engine_title=self.engine_record.title
            )
            if memory_fit.verdict == "fits":
                return hardware_option
            tried_options.append(hardware_option)
        tried_options.sort(
            key=lambda hardware_option: (
                hardware_option.fit.verdict == "no",
                hardware_option.fit.verdict == "no" and hardware_option.fit.used_fraction,
            )
        )
        return next(iter(tried_options), None)

    def _replica_fit(self, run_memory: Memory, layout: Layout) -> ReplicaFit | None:
        """Returns whether a replica's fullest device fits, and the seconds per token; None for unknown bytes."""
        split_engine = self._divided_among_devices(layout.pp)
        run_memory = _with_sequence_length(run_memory, split_engine.seq)
        bytes_by_device = split_engine._bytes_of_each_device(int(run_memory.states.workload.batch))
        if not bytes_by_device:
            return None
        fullest_device_index = bytes_by_device.index(max(bytes_by_device))
        memory_fit = MemoryFit(
            self.hardware, bytes_by_device[fullest_device_index], engine_name=self.engine_record.name
        )
        decoding_run = None if memory_fit.verdict == "no" else time_decoded_token(run_memory, self.hardware, layout)
        return ReplicaFit(layout, layout.rank(pp=fullest_device_index), memory_fit, decoding_run, split_engine.seq)

    def _divided_among_devices(self, devices: int) -> UsualEngine:
        """Returns the engine with its layers divided among `devices` accelerators, and their default context."""
        return replace(self, devices=devices, seq=self._default_seq(devices))

    def _default_seq(self, devices: int) -> int:
        """Returns the engine's default tokens per request on `devices` accelerators."""
        if self.default_context is None:
            return self.seq
        return self.settings.seq_in_context(self.default_context(devices))

    def _largest_fitting_number(
        self, bytes_of_number: Callable[[int], int | None], first_number: int, maximum: int
    ) -> int:
        """Returns the largest number whose bytes fit. bytes_of_number: returns None for too large a number."""
        excessive_bytes = 2 * self.hardware.capacity_bytes

        def needed_bytes(tried_number: int) -> int:
            device_bytes = bytes_of_number(tried_number)
            return excessive_bytes if device_bytes is None else device_bytes

        return largest_fitting_number(needed_bytes, self.hardware.capacity_bytes, first_number, maximum)


def _with_sequence_length(run_memory: Memory, seq: int) -> Memory:
    """Returns a run with `seq` tokens per sequence."""
    return run_memory if seq == run_memory.states.workload.seq else run_memory.with_changes(seq=seq)


def best_replica_fit(replica_fits: Sequence[ReplicaFit]) -> ReplicaFit:
    """Returns the first replica that fits; if none fits, the one that requires least."""
    fitting_replicas = (replica_fit for replica_fit in replica_fits if replica_fit.fit.verdict != "no")
    return next(fitting_replicas, None) or min(replica_fits, key=lambda replica_fit: replica_fit.fit.needed_bytes)


def with_replicas_divided_by_layers(run_memory: Memory, layout: Layout) -> Layout:
    """Returns a layout with the same number of replicas, whose layers are divided among each replica's accelerators."""
    layer_count = run_memory.spec.layer_count
    return layout_divided_by_layers(layer_count, min(layout.replica_devices, layer_count), layout.dp)


def layout_divided_by_layers(layer_count: int, split_devices: int, replica_count: int) -> Layout:
    """Returns the layout of replicas whose layers are divided among accelerators, as stages of a pipeline."""
    stage_sizes = None if layer_count % split_devices == 0 else even_stage_sizes(layer_count, split_devices)
    return LayoutRequest(
        devices=split_devices * replica_count, tp=1, pp=split_devices, dp=replica_count, pp_layout=stage_sizes
    ).layout()


def replicas_under_usual_engine(
    preset: Preset,
    run_memory: Memory,
    hardware: Hardware,
    layout_request: LayoutRequest,
    default_context: Callable[[int], int] | None = None,
) -> ServingFitAnswer | None:
    """Returns whether replicas of a run fit, by llama.cpp's buffers; None if another engine usually runs it.

    default_context: see `UsualEngine`.
    None for another engine, for options that divide more than layers, and where the buffers are not known.
    """
    usual_engine = _engine_that_divides_layers(preset, run_memory, hardware, layout_request, default_context)
    return None if usual_engine is None else usual_engine.fit_replicas(run_memory, layout_request)


def best_replica_under_usual_engine(
    preset: Preset,
    run_memory: Memory,
    hardware: Hardware,
    layout_request: LayoutRequest,
    default_context: Callable[[int], int] | None = None,
) -> ReplicaFit | None:
    """Returns the best replica by `replicas_under_usual_engine`; None if that function returns None."""
    usual_engine = _engine_that_divides_layers(preset, run_memory, hardware, layout_request, default_context)
    replica_fits = [] if usual_engine is None else usual_engine.tried_replicas(run_memory, layout_request)
    return best_replica_fit(replica_fits) if replica_fits else None


def _engine_that_divides_layers(
    preset: Preset,
    run_memory: Memory,
    hardware: Hardware,
    layout_request: LayoutRequest,
    default_context: Callable[[int], int] | None,
) -> UsualEngine | None:
    """Returns the usual engine of a run if only whole layers are divided among devices; otherwise None."""
    divides_layers = replace(layout_request, pp=None, dp=None).is_undivided and layout_request.framework is None
    is_several_computers = is_separate_computer(hardware) and (layout_request.devices or 1) > 1
    is_several_computers |= hardware.vendor in COMPUTER_VENDORS and layout_request.devices != 1
    if not divides_layers or is_several_computers:
        return None
    return UsualEngine.of_run(preset, run_memory, hardware, default_context)


def fit_under_usual_engine(preset: Preset, run_memory: Memory, hardware: Hardware) -> MemoryFit | None:
    """Returns whether a run fits on one accelerator, by llama.cpp's buffers; None if another engine usually runs it.

    None for another engine, where the buffers are not known, and for more layers than are recorded one by one.
    """
    usual_engine = UsualEngine.of_run(preset, run_memory, hardware)
    if usual_engine is None or run_memory.spec.layer_count > MAX_RECORDED_LAYERS:
        return None
    device_bytes = usual_engine.device_bytes(int(run_memory.states.workload.batch))
    engine_name = usual_engine.engine_record.name
    return None if device_bytes is None else MemoryFit(hardware, device_bytes, engine_name=engine_name)


def fewest_devices_under_usual_engine(
    preset: Preset, run_memory: Memory, default_context: Callable[[int], int] | None, hardware: Hardware
) -> HardwareOption | None:
    """Returns the fewest accelerators on which a run fits, by llama.cpp's buffers; None for other usual engines.

    default_context: see `UsualEngine`.
    If the run fits on no number, the number that needs least. None as in `fit_under_usual_engine`.
    """
    usual_engine = UsualEngine.of_run(preset, run_memory, hardware, default_context)
    return None if usual_engine is None else usual_engine.fewest_devices(run_memory)


@dataclass(frozen=True)
class ServedUsers:
    """The numbers of users whose decoding is timed: the run's, and the most that the usual engine's cache holds.

    users: numbers of users whose tokens are timed. notes: which of them the engine does not hold.
    changes: the engine in place of torch's kernels, for a run that does not fit.
    """

    users: tuple[int, ...]
    notes: tuple[str, ...] = ()
    changes: tuple[SettingChange, ...] = ()

    @classmethod
    def of_answer(cls, fit_result: FitAnswer, usual_engine: UsualEngine | None) -> ServedUsers:
        """Returns the users of a run, and the most users that fit. usual_engine: None without one."""
        run_users = int(fit_result.memory.states.workload.batch)
        is_fitting = fit_result.fit.verdict != "no"
        user_counts = [
            user_count
            for user_count in dict.fromkeys((run_users if is_fitting else 0, fit_result.largest_batch))
            if user_count
        ]
        if usual_engine is None:
            return cls(tuple(user_counts))
        if usual_engine.lacks_kernels(run_users):
            engine_record = usual_engine.engine_record
            kernel_remark = (
                f"{engine_record.title} has no kernels for it on this accelerator (--engine "
                f"{engine_record.name} says why)"
            )
            return cls(tuple(user_counts), (kernel_remark,))
        engine_change = None if is_fitting else usual_engine.change_to_engine(run_users)
        largest_user_count = {user_count: usual_engine.largest_user_count(user_count) for user_count in user_counts}
        engine_title, option_name = usual_engine.engine_record.title, f"--engine {usual_engine.engine_record.name}"
        notes = [
            f"by its own budget {engine_title} holds {counted_noun(user_limit, 'user')}, not {user_count:,} "
            f"({option_name})"
            if user_limit
            else f"by its own budget {engine_title} does not start with it ({option_name} says why)"
            for user_count, user_limit in largest_user_count.items()
            if user_limit < user_count
        ]
        return cls(
            tuple(user_count for user_count in dict.fromkeys(largest_user_count.values()) if user_count),
            tuple(notes[:1]),
            () if engine_change is None else (engine_change,),
        )
