"""The registry record of a serving engine, and the memory of its devices.

A record names functions by their files, which are imported when they are called, so that help pages stay fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ...errors import InputError
from ...frozen import frozen
from ...identity_cache import IdentityCache
from ...parallel.layout import ImpossibleLayout
from ...workload.setting import option
from ..framework import LazyFunction

if TYPE_CHECKING:
    from ...accelerator import Hardware
    from ...parallel.layout import Layout
    from ...sources.preset import Preset
    from .flags import Flag

NEWEST_VERSION = (10**9,)
"""A version number above all released ones, for the newest software stack."""

TermStatus: TypeAlias = Literal["exact", "source", "estimate", "measured"]


class MemoryTerm(NamedTuple):
    """A named part of an engine's device memory, such as the weights or the CUDA graphs.

    name: `budget`, `weights`, `profile_run`, `non_torch`, `cuda_graphs` or `kv_cache`; of engines that divide a model
        over GPUs and the host: `model_buffer`, `kv_buffer` or `compute_buffer`.
    bytes: size of the part in bytes.
    status: exact, source (read in the engine's code), estimate or measured (printed in a log of the user).
    source: the file and function, the number of logs, or the log.
    origin: what the size comes from, in a few words.
    device: the device that has it, such as `CUDA0` or `CPU`; empty for any rank's.
    """

    name: str
    bytes: int
    status: TermStatus
    source: str
    origin: str
    device: str = ""


HOST_DEVICE = "CPU"
"""Value of `MemoryTerm.device` for memory of the host."""

MAX_DEVICES = 64
"""Largest number of devices of a suggested layout, for a server that no change of a flag makes start."""


class FlagChange(NamedTuple):
    """A suggested change of a flag, with the resulting KV cache. flag: the flag and its value as users type it.

    devices: the number of devices with the change; default 1.
    """

    flag: str
    kv_tokens: int
    max_concurrency: float
    can_start: bool
    devices: int = 1


@frozen
class EngineMemory:
    """The memory of each device on which a serving engine runs, and the KV cache for which room remains.

    terms: the terms of the fullest rank, in the order in which they are taken.
    kv_tokens: tokens of the cache as the engine prints them. block_count: blocks of the cache.
    max_concurrency: requests of the longest length that the caches hold.
    can_start: whether the engine starts. startup_error: its message where it does not, else empty.
    max_model_len: the longest request. assumed_flags: flag → its default, where the user gave none.
    devices: number of devices. block_size: tokens of a block.
    notes: remarks for the reader. settings: name of a flag's value → the value in effect.
    layout: the layout of all devices, whose passes are timed: `dp` counts replicas, or ranks with attention of their
        own among those that divide experts. None for an engine that places whole layers on devices.
    host: what the host needs: `ram_bytes`, `disk_bytes`, whether the file is mapped (`mmap`), and the share of all that
        is in use (`share`); empty if not known.
    format_note: a note on the format of a tag's weights; default none.
    largest_request_limit: sequences of a step above which the engine refuses to start; 0 where that is not why it
        refuses.
    requests_with_states: requests of a rank for which there are slots of recurrent states; None for no such slots.
    has_all_layers_on_devices: whether an engine that may place layers on the host has none of their tensors and caches
        there; default false.
    divides_request_limit: whether the limit of requests, `Engine.request_limit`, is that of all data-parallel ranks
        together; false where each rank runs as many.
    """

    terms: tuple[MemoryTerm, ...]
    kv_tokens: int
    block_count: int
    max_concurrency: float
    can_start: bool
    startup_error: str
    max_model_len: int
    devices: int
    block_size: int
    assumed_flags: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)
    layout: Layout | None = None
    format_note: str = ""
    largest_request_limit: int = 0
    requests_with_states: int | None = None
    divides_request_limit: bool = False
    has_all_layers_on_devices: bool = False

    @property
    def data_parallel_ranks(self) -> int:
        """The number of data-parallel ranks that share the requests, each with a cache for `kv_tokens` tokens."""
        return 1 if self.layout is None else self.layout.dp

    def max_users(self, max_concurrency: float | None = None) -> float:
        """Returns the number of requests for which the caches of all data-parallel ranks have room at the same time.

        max_concurrency: requests that a rank's cache holds; None (default) for this memory's number.
        """
        return (self.max_concurrency if max_concurrency is None else max_concurrency) * self.data_parallel_ranks

    def has_room_for(self, user_count: int) -> bool:
        """Whether the engine starts and its caches have room for all users' requests, divided evenly over ranks."""
        return self.can_start and self.max_concurrency >= -(-user_count // self.data_parallel_ranks)

    def term_bytes(self, term_name: str, device_name: str | None = None) -> int:
        """Returns the bytes of a named term of the memory, on one device or all; 0 if there is no such term."""
        return sum(term.bytes for term in self.terms if term.name == term_name and device_name in (None, term.device))


class EngineVersion(NamedTuple):
    """A version of an engine, and the range of versions in which the same rules for memory apply.

    version: the version. rules_version: the range of versions whose rules hold, such as `0.21`.
    note: a remark where the version is assumed or newer than the newest record; else empty.
    """

    version: str
    rules_version: str
    note: str = ""


_names_by_field: IdentityCache[Mapping[str, tuple[str, ...]]] = IdentityCache(64)
"""Field name → spellings, of the flags of an engine."""


@frozen
class Engine:
    """The registry record of one serving engine: its name, flags, versions and functions.

    name: the word of `--engine`. title: its name on screens.
    flags: () → its flags. rules: () → the `EngineRecord` with the memory rules of its versions.
    server: (preset, hardware, named_version, flags) → a server of the model, which the next three functions take.
    memory: (server) → the `EngineMemory`.
    flag_changes: (server) → changes that may give more cache, the cheapest first: as users type them, and as values of
        flags.
    layouts: (server, most devices) → flags of layouts with more devices and their `EngineMemory`, the fewest first.
    flags_by_option: option of llmcalc → the engine's flag that it sets, or several flags with spaces between.
    alternatives_by_option: option of llmcalc that the engine lacks → what says the same, as users type it.
    flags_by_term: term → the flag that changes it.
    serving_flags: (preset, flags, users, seq) → the flags of a server for so many users of so many tokens (None: the
        longest request); default the flag of the length.
    check_model: (preset, version) → None; raises `InputError` for a model that the version does not run. None: none is
        refused by its class.
    vendors: makers of the accelerators on which it runs; default NVIDIA and AMD.
    runs_on_processors: whether it runs on processors too, of any maker; default false.
    plugin_vendors: makers of further accelerators, on which a package beside the main one runs it. Times there are
        estimated, memory is not modelled.
    plugin_stacks: vendor → name of the stack that times the plugin there; default those of `stacks_by_version`.
    minimum_compute_capability: the lowest compute capability of NVIDIA's GPUs on which it runs; default any.
    shows_alternatives: whether `fit` lists every layout of the fewest devices that serves, not only the first.
    budgets_free_memory: whether its budget is a share of what is free before it starts; default of the device's total.
    shown_defaults: flags whose defaults stand below the heading of a screen; default none.
    stacks_by_version: (first version, name of the stack that times its passes from there on), the oldest first.
    layout_flags: (tp, pp, dp, ep) → flags of a replica of that layout, None for a layout that the engine does not have;
        None for an engine whose servers have no such layouts. dp: ranks with attention of their own among `ep`.
    exchange_flags: (server, library) → the flags with which the server's ranks send tokens to experts by a library;
        None for an engine in which the library's flag is all.
    draft_flags: (method, draft preset or None, tokens of a step) → the flags of speculative decoding; method: `mtp`,
        `ngram` or `model`. None for an engine whose servers with a draft are not modelled.
    start_command_words: words of the command that starts it, up to the model's name; empty if none is known.
    applied_schemes: scheme of `--quantize` → the flags with which it applies it to published weights as it loads them.
    usual_scheme: scheme of `--quantize` in which its users run weights of 16 bits if nothing else is stated, and the
        remark on it; None (default) for the published weights.
    reads_library_tags: whether it loads the GGUF files of Ollama's library, so that a tag names its weights; default
        false.
    default_context: (preset, hardware, devices) → tokens of a sequence by default on so many accelerators; None for an
        engine whose default does not follow from their memory alone.
    tag_flags: preset → flags of llama-server for the files of the model's tag in the engine's library, such as that of
        an encoder; None for an engine without a library.
    benchmark_remark: how its own benchmark sends equal requests, as the end of a clause; empty for no remark.
    batch_tokens_flag, request_limit_flag: settings of `EngineMemory`: most tokens and sequences of a step; empty for
        none.
    """

    name: str
    title: str
    flags: LazyFunction
    rules: LazyFunction
    server: LazyFunction
    memory: LazyFunction
    flag_changes: LazyFunction
    larger_layouts: LazyFunction
    flags_by_option: Mapping[str, str] = field(default_factory=dict)
    alternatives_by_option: Mapping[str, str] = field(default_factory=dict)
    flags_by_term: Mapping[str, str] = field(default_factory=dict)
    serving_flags: LazyFunction | None = None
    check_model: LazyFunction | None = None
    vendors: tuple[str, ...] = ("NVIDIA", "AMD")
    runs_on_processors: bool = False
    plugin_vendors: tuple[str, ...] = ()
    plugin_stacks: Mapping[str, str] = field(default_factory=dict)
    minimum_compute_capability: float = 0.0
    shows_alternatives: bool = False
    budgets_free_memory: bool = False
    shown_defaults: tuple[str, ...] = ()
    stacks_by_version: tuple[tuple[tuple[int, ...], str], ...] = ()
    layout_flags: LazyFunction | None = None
    exchange_flags: LazyFunction | None = None
    draft_flags: LazyFunction | None = None
    benchmark_remark: str = ""
    batch_tokens_flag: str = ""
    request_limit_flag: str = ""
    start_command_words: tuple[str, ...] = ()
    applied_schemes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    usual_scheme: tuple[str, str] | None = None
    reads_library_tags: bool = False
    default_context: LazyFunction | None = None
    tag_flags: LazyFunction | None = None

    def request_limit(self, engine_memory: EngineMemory) -> int | None:
        """Returns the number of requests that a flag lets a data-parallel rank run at once; None for no limit."""
        request_limit = engine_memory.settings.get(self.request_limit_flag)
        if not request_limit:
            return None
        replica_count = engine_memory.data_parallel_ranks if engine_memory.divides_request_limit else 1
        return max(1, int(request_limit) // replica_count)

    def default_context_note(self, context_tokens: int) -> str:
        """Returns a note on the engine's default context length, for answers without `--seq`."""
        return f"{self.title} has a context of {context_tokens:,} tokens here by default; --seq for another"

    def runs_on(self, hardware: Hardware) -> bool:
        """Whether the engine runs on an accelerator, judged by vendor and compute capability; true if unknown."""
        if hardware.is_processor:
            return self.runs_on_processors
        if float(hardware.compute_capability or self.minimum_compute_capability) < self.minimum_compute_capability:
            return False
        return hardware.is_gpu and self._has_vendor(self.vendors, hardware)

    def is_timed_on(self, hardware: Hardware) -> bool:
        """Whether llmcalc estimates times on an accelerator, because the engine or one of its plugins runs there."""
        return self.runs_on(hardware) or self._has_vendor(self.plugin_vendors, hardware)

    @staticmethod
    def _has_vendor(vendor_names: tuple[str, ...], hardware: Hardware) -> bool:
        return not hardware.vendor or hardware.vendor.split(" ")[0].upper() in map(str.upper, vendor_names)

    @property
    def supported_accelerators(self) -> str:
        """The accelerators on which the engine runs, in words for messages: `a GPU of NVIDIA or AMD`."""
        least_capability_text = (
            f" (compute capability {self.minimum_compute_capability} or higher)"
            if self.minimum_compute_capability
            else ""
        )
        return f"a GPU of {' or '.join(self.vendors)}".replace("NVIDIA", f"NVIDIA{least_capability_text}")

    def software_stack(self, version_numbers: tuple[int, ...], vendor: str = "") -> str:
        """Returns the name of the software stack (`presets/timing/stacks.toml`) by which a version is timed.

        vendor: maker of the accelerator, of which a plugin may have a stack of its own; default one without.
        """
        if vendor in self.plugin_stacks:
            return self.plugin_stacks[vendor]
        return [stack for first_version, stack in self.stacks_by_version if first_version <= version_numbers][-1]

    def named_version(self, version_text: str) -> EngineVersion:
        """Returns the named version (the newest for an empty text), and the version range with the same rules."""
        engine_version: EngineVersion = self.rules().named_version(version_text)
        return engine_version

    def known_flags(self) -> tuple[Flag, ...]:
        """Returns the command-line flags of the engine."""
        flags: tuple[Flag, ...] = self.flags()
        return flags

    def spelling(self, field_name: str, is_shortest: bool = False) -> str:
        """Returns the flag of a field as users type it, such as `--max-model-len` for `max_model_len`.

        is_shortest: whether by its shortest spelling, `-tp` of `tensor_parallel_size`; by the usual one by default.
        """
        flags = self.known_flags()
        names_by_field = _names_by_field.result((flags,), (), lambda: {flag.field_name: flag.names for flag in flags})
        spellings = names_by_field.get(field_name, (option(field_name),))
        return min(spellings, key=len) if is_shortest else spellings[0]

    def field_of_option(self, option_name: str) -> str:
        """Returns the field name of the engine flag that corresponds to an option of llmcalc."""
        from ..argument_names import keyword_of

        return keyword_of(self.flags_by_option[option_name])

    def read_options(self, option_values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the flags that say the same as llmcalc's options. Raises `InputError` for the first that has none.

        option_values: keyword of the option → its value; None for an option that was not typed. `quantize`, which
            describes the weights, stays as it is.
        """
        from .flags import read_flag_values

        typed_values = {keyword: value for keyword, value in option_values.items() if value is not None}
        weight_format = {keyword: typed_values.pop(keyword) for keyword in ("quantize",) if keyword in typed_values}
        flags = read_flag_values(
            self.title, self.known_flags(), typed_values, self.flags_by_option, self.alternatives_by_option
        )
        return flags | weight_format

    def flags_for_users(
        self, preset: Preset, flags: dict[str, Any], user_count: int, seq: int | None
    ) -> dict[str, Any]:
        """Returns flags with which a server accepts `user_count` sequences of `seq` tokens.

        Raises `InputError` if a flag also sets a length.
        """
        if self.serving_flags is not None:
            serving_flags: dict[str, Any] = self.serving_flags(preset, flags, user_count, seq)
            return serving_flags
        length_flag, length_flag_name = self.flags_by_option["--seq"], self.field_of_option("--seq")
        if seq is not None and flags.get(length_flag_name, seq) != seq:
            raise InputError(f"--seq {seq}: {length_flag} says {flags[length_flag_name]}; expected one of the two")
        return flags | ({} if seq is None else {length_flag_name: seq})

    def flags_with_request_limit(self, flags: dict[str, Any], user_count: int) -> dict[str, Any]:
        """Returns the flags with a limit of `user_count` concurrent sequences, unless the flags state a limit.

        Raises `InputError` for a limit that fewer users reach. Of replicas each has the limit (`data_parallel_size`).
        """
        limit_field = self.field_of_option("--users")
        users_of_rank = -(-user_count // flags.get("data_parallel_size", 1))
        request_limit = flags.get(limit_field, users_of_rank)
        if request_limit < users_of_rank:
            raise InputError(
                f"--users {user_count}: {self.spelling(limit_field)} says {request_limit}; "
                f"expected at least {users_of_rank}"
            )
        return flags | {limit_field: request_limit}

    def memory_on(
        self, preset: Preset, hardware: Hardware, engine_version: EngineVersion, flags: Mapping[str, Any]
    ) -> EngineMemory:
        """Computes the memory of the engine's devices.

        Raises `InputError` for flags and models that are not modelled. Its message names the engine's flag of tensor
        parallelism where the shared code of layouts has `--tp`, and the flags of vLLM whose product is its `--etp`.
        """
        try:
            engine_memory: EngineMemory = self.memory(self.server(preset, hardware, engine_version, flags))
        except ImpossibleLayout as error:
            flag_name = self.flags_by_option.get("--devices", "--tp")
            message = re.sub(r"(?<![\w-])--tp(?![\w-])", flag_name, str(error))
            if "data_parallel_size" in flags:
                message = message.replace("--etp ", f"{flag_name} · --data-parallel-size = ")
            raise ImpossibleLayout(message) from None
        return engine_memory

    def flag_changes_on(
        self, preset: Preset, hardware: Hardware, engine_version: EngineVersion, flags: Mapping[str, Any]
    ) -> list[FlagChange]:
        """Returns flag changes that may enlarge the KV cache, cheapest first, each with the resulting memory.

        A change is of a single flag; where none suffices on the same devices, of the longest request that fits then
        too; where no change suffices, the layout of the fewest devices that starts is the last one.
        """
        flag_changes: list[FlagChange] = []
        tried_flags: list[Mapping[str, Any]] = []
        for typed_flag, changed_values in self.flag_changes(self.server(preset, hardware, engine_version, flags)):
            try:
                engine_memory = self.memory_on(preset, hardware, engine_version, {**flags, **changed_values})
            except InputError:  # a layout that does not divide the model
                continue
            flag_changes.append(
                FlagChange(
                    typed_flag,
                    engine_memory.kv_tokens,
                    engine_memory.max_concurrency,
                    engine_memory.can_start,
                    engine_memory.devices,
                )
            )
            tried_flags.append({**flags, **changed_values})
        fewest_devices = min((flag_change.devices for flag_change in flag_changes), default=0)
        if not any(flag_change.can_start and flag_change.devices == fewest_devices for flag_change in flag_changes):
            for change_index, (flag_change, changed_flags) in enumerate(zip(flag_changes, tried_flags, strict=True)):
                if not flag_change.can_start:
                    flag_changes[change_index] = self._with_shorter_requests(
                        preset, hardware, engine_version, changed_flags, flag_change
                    )
        if not any(flag_change.can_start for flag_change in flag_changes) and not self.shows_alternatives:
            for layout_flags, engine_memory in self.larger_layouts(
                self.server(preset, hardware, engine_version, flags), MAX_DEVICES
            ):
                if engine_memory.can_start and not layout_flags:  # it starts as it is
                    return flag_changes
                if engine_memory.can_start:
                    typed_layout = " ".join(
                        f"{self.spelling(flag_field)} {flag_value}" for flag_field, flag_value in layout_flags.items()
                    )
                    last_change = FlagChange(
                        typed_layout,
                        engine_memory.kv_tokens,
                        engine_memory.max_concurrency,
                        True,
                        engine_memory.devices,
                    )
                    return [*flag_changes, last_change]
        return flag_changes

    def _with_shorter_requests(
        self,
        preset: Preset,
        hardware: Hardware,
        engine_version: EngineVersion,
        flags: Mapping[str, Any],
        flag_change: FlagChange,
    ) -> FlagChange:
        """Returns a flag change together with the longest request limit that fits, if any fits."""
        server = self.server(preset, hardware, engine_version, flags)
        if not flag_change.kv_tokens:
            return flag_change
        for typed_flag, changed_values in self.flag_changes(server):
            if typed_flag.startswith(self.spelling(server.length_flag_name)):
                engine_memory = self.memory_on(preset, hardware, engine_version, {**flags, **changed_values})
                if engine_memory.can_start:
                    return FlagChange(
                        f"{flag_change.flag} {typed_flag}",
                        engine_memory.kv_tokens,
                        engine_memory.max_concurrency,
                        True,
                        engine_memory.devices,
                    )
        return flag_change
