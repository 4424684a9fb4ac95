"""A serving engine's memory for a model on one accelerator type, and layouts in which it can serve all users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...accelerator import Hardware
from ...sources.preset import Preset
from .engine import Engine, EngineMemory, EngineVersion, FlagChange

if TYPE_CHECKING:
    from ..server_files.server import LaunchedServer


@dataclass(frozen=True)
class EngineUse:
    """A model on one type of accelerator in a serving engine, with its memory and suggested flag changes.

    preset: the model. engine, version: the engine. hardware: the accelerator. flags: values of the engine's flags.
    memory: its memory. find_flag_changes: finds `flag_changes`, which counts the server again with each.
    launch: the file that starts it; None without.
    """

    preset: Preset
    engine: Engine
    version: EngineVersion
    hardware: Hardware
    flags: Mapping[str, Any]
    memory: EngineMemory
    find_flag_changes: Callable[[], Iterable[FlagChange]] = field(default=tuple, repr=False, compare=False)
    launch: LaunchedServer | None = None

    @cached_property
    def flag_changes(self) -> tuple[FlagChange, ...]:
        """Flag changes that leave more memory for the KV cache, cheapest first."""
        return tuple(self.find_flag_changes())


@dataclass(frozen=True)
class EngineOption:
    """A parallel layout of an engine on one type of accelerator, with its flags and memory.

    serves_all_users: whether it starts and holds all users.
    """

    hardware: Hardware
    flags: Mapping[str, Any]
    memory: EngineMemory
    serves_all_users: bool
