"""What a launch file says, whatever framework it is for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ...errors import InputError
from ...model import ModelSpec
from ...parallel.layout import ALONE, Layout

FileKind: TypeAlias = Literal["megatron", "torchtitan", "deepspeed", "accelerate", "trainer"]


@dataclass(frozen=True)
class Launch:
    """A run as its launch file says it.

    where: the file's name in messages. kind: whose file it is. framework: what runs it.
    spec: the model; None where the file names none.
    target: a name of the model that the file gives, such as a hub id; empty without one.
    layout: how it is laid out over devices.
    settings: option → value, in the words of the options of `llmcalc memory`; what is absent has its default.
    own: the framework's own settings: `MegatronSettings`, or the tables of the file.
    env: environment variables that the file sets.
    gpu: a name of the device; empty where the file says none.
    unknown: argument → why its memory is not known. Empty unless unknown arguments are allowed.
    ignored: arguments that change no memory.
    notes: what a reader of the answer should know: assumed values.
    """

    where: str
    kind: FileKind
    framework: str
    spec: ModelSpec | None = None
    target: str = ""
    layout: Layout = ALONE
    settings: Mapping[str, Any] = field(default_factory=dict)
    own: Any = None
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: str = ""
    unknown: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class Reading:
    """What is found while a file is read.

    where: the file's name in messages. allow_unknown: whether to go on with arguments that are not understood.
    """

    where: str
    allow_unknown: bool = False
    unknown: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def check_unknown(self) -> None:
        """Raises `InputError`, which lists what is not understood, unless that is allowed."""
        if not self.unknown or self.allow_unknown:
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

    def launch(self, kind: FileKind, framework: str, **found: Any) -> Launch:
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
def reading_of(where: str, allow_unknown: bool) -> Iterator[Reading]:
    """A reading of a file, whose name stands before every error that is raised meanwhile."""
    try:
        yield Reading(where, allow_unknown)
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
        from ...errors import shown

        raise reading.wrong(name, f"{shown(value)}; expected a whole number of at least {least}")
    return number


def flag_value(reading: Reading, name: str, value: Any) -> bool:
    """True or false. Raises `InputError`, naming the field."""
    said = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
    if isinstance(value, bool):
        return value
    found = said.get(str(value).strip().lower()[:10])
    if found is None:
        from ...errors import shown

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
