"""What a launch file says, whatever framework it is for, and how a kind of launch file is told and read."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ...errors import InputError, shown
from ...parallel.layout import ONE_DEVICE, Layout

if TYPE_CHECKING:
    from ...model import ModelSpec

Table: TypeAlias = Mapping[str, Any]

Fetch: TypeAlias = Callable[[str], Table]
"""Reads the tables of a file that another names."""


@dataclass(frozen=True)
class Launch:
    """A run as its launch file says it.

    where: the file's name in messages. kind: the name of its `LaunchFile`. framework: what runs it.
    spec: the model; None where the file names none.
    target: a name of the model that the file gives, such as a hub id; empty without one.
    layout: how it is laid out over devices.
    settings: option → value, in the words of the options of `llmcalc memory`; what is absent has its default.
    own: the framework's own settings; None without any.
    env: environment variables that the file sets.
    gpu: a name of the device; empty where the file says none.
    unknown: argument → why its memory is not known. Empty unless unknown arguments are allowed.
    ignored: arguments that change no memory.
    notes: what a reader of the answer should know: assumed values.
    """

    where: str
    kind: str
    framework: str
    spec: ModelSpec | None = None
    target: str = ""
    layout: Layout = ONE_DEVICE
    settings: Mapping[str, Any] = field(default_factory=dict)
    own: Any = None
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: str = ""
    unknown: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A launch file beside its contents.

    where: the file's name in messages.
    world_size: devices; None (default) for what the file says, or as few as its layout can have.
    allow_unknown: whether to go on with arguments that may change memory and are not understood.
    date: when the framework's version is from; None (default) for the newest.
    gpu: a name of the device; empty where it is not known.
    fetch: reads a file that this one names; None (default) where none can be read.
    env: environment variables beside those of the file.
    script: the name of the Python file that a script runs.
    unset: variables of a script that nothing sets.
    """

    where: str
    world_size: int | None = None
    allow_unknown: bool = False
    date: datetime.date | None = None
    gpu: str = ""
    fetch: Fetch | None = None
    env: Table = field(default_factory=dict)
    script: str = ""
    unset: Sequence[str] = ()


@dataclass(frozen=True)
class LaunchFile:
    """A kind of launch file: how it is told from others, and how it is read.

    name: the word for it in documents. title: what it is, in words.
    is_one: whether the tables of a file are of this kind.
    read: the launch that tables say. Raises `InputError`, which names file and field.
    arguments_of: whose arguments a script's command has that runs it; empty (default) for files that no script runs.
    is_run_by: whether the words of a script's command are such arguments.
    read_arguments: the launch that a command's arguments say: argument → value, True without one, several as a list.
    """

    name: str
    title: str
    is_one: Callable[[Table], bool]
    read: Callable[[Table, Source], Launch]
    arguments_of: str = ""
    is_run_by: Callable[[Sequence[str]], bool] = lambda _: False
    read_arguments: Callable[[Table, Source], Launch] | None = None


class RunUnder(NamedTuple):
    """A run under a framework, as a part of a file says it: fields of `Launch`."""

    layout: Layout
    settings: dict[str, Any]
    own: Any = None


@dataclass(frozen=True)
class Plugin:
    """How files of accelerate and of the Trainer ask for a framework.

    distributed_type: accelerate's word for it. table: accelerate's table of its settings.
    accelerate: (reading, the file's tables, devices, the settings without it) → the run under it.
    trainer_keys: arguments of the Trainer, of which any that is set asks for it; empty (default) for none.
    trainer: as `accelerate`, for arguments of the Trainer.
    """

    distributed_type: str
    table: str
    accelerate: Callable[[Reading, Table, int, dict[str, Any]], RunUnder]
    trainer_keys: tuple[str, ...] = ()
    trainer: Callable[[Reading, Table, int, dict[str, Any]], RunUnder] | None = None


@dataclass
class Reading:
    """What is found while a file is read. source: the file."""

    source: Source
    unknown: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The file's name in messages."""
        return self.source.where

    def check_unknown(self) -> None:
        """Raises `InputError`, which lists what is not understood, unless that is allowed."""
        if not self.unknown or self.source.allow_unknown:
            return
        listed = "; ".join(f"{name} ({why})" for name, why in list(self.unknown.items())[:MOST_LISTED])
        more = len(self.unknown) - MOST_LISTED
        raise InputError(
            f"{self.where}: not understood, and may change memory: {listed}"
            f"{f'; and {more} more' if more > 0 else ''}; expected a run without, or --allow-unknown"
        )

    def wrong(self, name: str, text: str) -> InputError:
        """The error of one field."""
        return InputError(f"{self.where}: {name}: {text}")

    def devices(self, world_size: int | None) -> int:
        """How many devices are asked for: of a file that does not say it, one, which is noted."""
        if world_size is None:
            self.notes.append("1 device is assumed; --devices says another number")
        return world_size or 1

    def fetched(self, name: str, path: Any, expected: str) -> Table:
        """The tables of a file that a field names. expected: what it is, in words."""
        if not isinstance(path, str) or self.source.fetch is None:
            raise self.wrong(name, f"{shown(path)}; expected the path of {expected} that can be read")
        return self.source.fetch(path)

    def table(self, data: Table, name: str) -> Table:
        """A table in a table; an empty one where there is none. Raises `InputError` for another value."""
        found = data.get(name)
        if found in (None, []):
            return {}
        if not isinstance(found, Mapping):
            raise self.wrong(name, f"{shown(found)}; expected a table")
        return found

    def launch(self, kind: str, framework: str, **found: Any) -> Launch:
        """The run, with what has been found on the way. found: further fields of `Launch`.

        Raises `InputError` for what is not understood, as `check_unknown` does.
        """
        self.check_unknown()
        return Launch(
            where=self.where,
            kind=kind,
            framework=framework,
            unknown=self.unknown,
            ignored=tuple(self.ignored),
            notes=tuple(self.notes),
            **found,
        )


MOST_LISTED = 12
"""Arguments that one message lists."""


@contextmanager
def reading_of(source: Source) -> Iterator[Reading]:
    """A reading of a file, whose name stands before every error that is raised meanwhile."""
    where = source.where
    try:
        yield Reading(source)
    except InputError as error:
        text = str(error)
        raise (error if text.startswith(f"{where}: ") else InputError(f"{where}: {text}")) from None


def allocator_of(env: Mapping[str, str]) -> Literal["segments", "expandable"]:
    """The setting of torch's allocator that the environment asks for (docs: `PYTORCH_CUDA_ALLOC_CONF`)."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        options = env.get(name, "").replace(" ", "").lower().split(",")
        if "expandable_segments:true" in options:
            return "expandable"
    return "segments"


def check_env(reading: Reading, env: Mapping[str, str]) -> None:
    """Notes options of torch's allocator that change memory and are not understood."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        for option in filter(None, env.get(name, "").replace(" ", "").split(",")):
            key = option.partition(":")[0].lower()
            if key not in ("expandable_segments", *HARMLESS):
                reading.unknown[f"{name}={option}"[:80]] = "the allocator is modelled without it"


HARMLESS = ("garbage_collection_threshold", "backend")
"""Options of torch's allocator that change nothing until memory runs out, or whose only other value is not its own."""


def size_of(reading: Reading, name: str, value: Any, *, least: int = 1) -> int:
    """A whole number of at least `least`. Raises `InputError`, naming the field."""
    number = value
    if isinstance(value, str) and len(value) < 20 and value.strip().lstrip("+-").isdecimal() and value.isascii():
        number = int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST:
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number < LARGEST:
        raise reading.wrong(name, f"{shown(value)}; expected a whole number of at least {least}")
    return number


def flag_value(reading: Reading, name: str, value: Any) -> bool:
    """True or false. Raises `InputError`, naming the field."""
    said = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
    if isinstance(value, bool):
        return value
    found = said.get(str(value).strip().lower()[:10])
    if found is None:
        raise reading.wrong(name, f"{shown(value)}; expected true or false")
    return found


LARGEST = 2**40
"""More than any size in a launch file."""


def unknown_keys(reading: Reading, table: Mapping[str, Any], known: Iterable[str], at: str, why: str) -> None:
    """Notes keys of a table that are not known."""
    names = set(known)
    for key in table:
        if key not in names:
            reading.unknown[f"{at}.{key}".strip(".")[:100]] = why
