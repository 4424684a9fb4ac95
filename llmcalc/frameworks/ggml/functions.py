"""The functions of an engine's record, for every engine whose servers follow ggml's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ...accelerator import Hardware
from ...sources.preset import Preset
from ..engines.engine import EngineMemory, EngineVersion
from . import changes
from .server import GgmlServer


class ServerFunctions(NamedTuple):
    """Functions of a record. server: (preset, hardware, version, flags) → a server of the engine."""

    server: Callable[[Preset, Hardware, EngineVersion, Mapping[str, Any]], GgmlServer]

    def memory(
        self, preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]
    ) -> EngineMemory:
        """Computes the buffers of each device and of the host."""
        return changes.memory(self.server(preset, hardware, version, flags))

    def candidates(
        self, preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields changes that leave more room on the GPUs, the cheapest first."""
        return changes.candidates(self.server(preset, hardware, version, flags))

    def layouts(
        self, preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any], most: int
    ) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
        """Yields the flags of each placement with what the server then does, the cheapest first."""
        return changes.layouts(self.server(preset, hardware, version, flags), most)
