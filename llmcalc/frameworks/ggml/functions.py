"""The functions that all engines based on ggml have in their registry records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ...accelerator import Hardware
from ...sources.preset import Preset
from ..engines.engine import EngineMemory, EngineVersion
from . import changes
from .server import GgmlServer


class ServerFunctions(NamedTuple):
    """The functions of a registry record.

    server: creates the engine's server from preset, hardware, version and flags.
    """

    server: Callable[[Preset, Hardware, EngineVersion, Mapping[str, Any]], GgmlServer]

    def memory(
        self, preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]
    ) -> EngineMemory:
        """Returns the memory of each device and of the host."""
        return changes.memory(self.server(preset, hardware, version, flags))

    def candidates(
        self, preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields flag changes that free memory of the GPUs, the cheapest first."""
        return changes.candidates(self.server(preset, hardware, version, flags))

    def layouts(
        self, preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any], most_devices: int
    ) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
        """Yields (flags, server's memory) of each placement, the fewest devices first."""
        return changes.layouts(self.server(preset, hardware, version, flags), most_devices)
