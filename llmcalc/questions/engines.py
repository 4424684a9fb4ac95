"""Questions about serving engines: whether one starts, for how many users, and on which accelerators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..accelerator import Hardware
from ..errors import InputError
from ..frameworks.engines.engine import Change, Engine, EngineVersion
from ..frameworks.engines.flags import read_values
from ..frameworks.engines.registry import engine_and_version
from ..frameworks.engines.use import EngineOption, EngineUse
from ..reports.answer import ReportedAnswer
from ..sources.hardware import COMMON_HARDWARE, find_hardware, load_hardware
from ..sources.preset import Preset

MOST_DEVICES = 64
"""The largest number of devices on which `fit` tries an engine."""


@dataclass(frozen=True)
class EngineQuestion:
    """A question about engines. engines: each `NAME` or `NAME==VERSION`. values: the flags as they were given.

    hardware: the accelerator; None if none is named. quantize: scheme of the weights; default the checkpoint's.
    """

    preset: Preset
    engines: tuple[str, ...]
    values: Mapping[str, Any]
    hardware: str | None = None
    quantize: str | None = None

    def uses(self, with_changes: bool = True) -> Iterator[EngineUse]:
        """Yields what each engine does. Raises `InputError` without an accelerator and for an unknown flag."""
        if self.hardware is None:
            raise InputError("--hardware: missing; an engine's budget is a share of the device's memory (such as h100)")
        accelerator = find_hardware(self.hardware)
        for text in self.engines:
            record, version = engine_and_version(text)
            hardware = _served(accelerator, record)
            flags = self.flags(record)
            memory = record.memory_on(self.preset, hardware, version, flags)
            more = record.changes_on(self.preset, hardware, version, flags) if with_changes else ()
            yield EngineUse(self.preset, record, version, hardware, flags, memory, tuple(more))

    def flags(self, record: Engine) -> dict[str, Any]:
        """Returns the values of an engine's flags. Raises `InputError` for an unknown flag."""
        flags = read_values(record.title, record.known_flags(), self.values)
        return flags | ({} if self.quantize is None else {"quantize": self.quantize})


def ask_engine_memory(question: EngineQuestion) -> ReportedAnswer:
    """Computes what engines do with the memory of an accelerator. `.ok` says whether all of them start."""
    from ..reports.engine import memory_report

    uses = list(question.uses())
    result = uses[0].memory if len(uses) == 1 else [use.memory for use in uses]
    return ReportedAnswer(result, lambda: memory_report(uses), all(use.memory.starts for use in uses))


def ask_engine_cache(question: EngineQuestion) -> ReportedAnswer:
    """Computes the cache that engines allocate. `.ok` says whether all of them start."""
    from ..reports.engine import cache_report

    uses = list(question.uses(with_changes=False))
    result = uses[0].memory if len(uses) == 1 else [use.memory for use in uses]
    return ReportedAnswer(result, lambda: cache_report(uses), all(use.memory.starts for use in uses))


def ask_engine_fit(
    question: EngineQuestion, users: int | None = None, seq: int | None = None, devices: int | None = None
) -> ReportedAnswer:
    """Finds the fewest accelerators on which an engine starts and its cache holds that many users.

    users: requests at once; default 1. seq: tokens of each; default the longest request. devices: at most that many.
    Raises `InputError` for several engines and for flags that contradict the users.
    """
    from ..reports.engine import fit_report

    if len(question.engines) != 1:
        raise InputError("--engine: fit answers for one engine; expected it once")
    record, version = engine_and_version(question.engines[0])
    wanted = users or 1
    flags = _flags_for_users(record, question.preset, question.flags(record), wanted, seq)
    names: Iterable[Hardware] = (
        map(load_hardware, COMMON_HARDWARE)
        if question.hardware is None
        else [_served(find_hardware(question.hardware), record)]
    )
    options = [
        option
        for hardware in names
        if _is_served(hardware, record)
        for option in _fewest(question.preset, record, version, hardware, flags, wanted, devices or MOST_DEVICES)
    ]
    if not options:
        raise InputError("--devices: no layout divides the model over so many; expected another number")
    options.sort(key=lambda option: (not option.serves, option.memory.devices, option.hardware.capacity_bytes))
    changes: list[Change] = []
    if question.hardware is not None:
        hardware = options[0].hardware
        unchanged = record.memory_on(question.preset, hardware, version, flags)
        changes = [for_users(change, wanted) for change in record.changes_on(question.preset, hardware, version, flags)]
        use = EngineUse(question.preset, record, version, hardware, flags, unchanged, tuple(changes))
    else:
        use = EngineUse(question.preset, record, version, options[0].hardware, flags, options[0].memory)
    serves = options[0].serves
    return ReportedAnswer(options, lambda: fit_report(use, options, wanted, question.hardware is not None), serves)


def for_users(change: Change, users: int) -> Change:
    """Returns the change, which starts only where its cache holds that many users."""
    return change._replace(starts=change.starts and change.max_concurrency >= users)


def _flags_for_users(
    record: Engine, preset: Preset, flags: dict[str, Any], users: int, seq: int | None
) -> dict[str, Any]:
    """Returns the flags of a server for so many users of `seq` tokens. Raises `InputError` for a second length."""
    if record.serving is not None:
        served: dict[str, Any] = record.serving(preset, flags, users, seq)
        return served
    length_flag = record.instead["--seq"]
    length_field = length_flag.lstrip("-").replace("-", "_")
    if seq is not None and flags.get(length_field, seq) != seq:
        raise InputError(f"--seq {seq}: {length_flag} says {flags[length_field]}; expected one of the two")
    return flags | ({} if seq is None else {length_field: seq})


def _served(hardware: Hardware, record: Engine) -> Hardware:
    """Returns the accelerator. Raises `InputError` for one on which the engine does not run."""
    if not _is_served(hardware, record):
        vendors = " or ".join(record.vendors)
        raise InputError(f"--hardware {hardware.name}: is not modelled with --engine; expected a GPU of {vendors}")
    return hardware


def _is_served(hardware: Hardware, record: Engine) -> bool:
    """Whether it is an accelerator of a vendor that the engine runs on, or one without a vendor."""
    vendors = [vendor.upper() for vendor in record.vendors]
    return not hardware.vendor or hardware.vendor.split(" ")[0].upper() in vendors


def _fewest(
    preset: Preset,
    record: Engine,
    version: EngineVersion,
    hardware: Hardware,
    flags: Mapping[str, Any],
    users: int,
    most: int,
) -> list[EngineOption]:
    """Returns the layout with the fewest devices that holds all users, else the largest; none if none is possible.

    Of an engine that shows alternatives, those are all layouts of that many devices that hold all users.
    """
    serving: list[EngineOption] = []
    largest: list[EngineOption] = []
    for layout_flags, memory in record.layouts(preset, hardware, version, flags, most):
        serves = memory.starts and memory.max_concurrency >= users
        if serving and memory.devices > serving[0].memory.devices:
            break
        largest = [EngineOption(hardware, layout_flags, memory, serves)]
        serving += largest if serves else []
        if serving and not record.shows_alternatives:
            break
    return serving or largest
