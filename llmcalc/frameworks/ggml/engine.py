"""Creates the registry record of an engine that is based on ggml."""

from __future__ import annotations

from collections.abc import Mapping

from ..engines.engine import Engine
from ..framework import FromFile


def ggml_engine(
    package: str,
    name: str,
    title: str,
    instead: Mapping[str, str],
    shows_alternatives: bool = False,
    shown_defaults: tuple[str, ...] = (),
) -> Engine:
    """Returns the record of an engine based on ggml. package: the engine's folder, with its flags and functions."""
    return Engine(
        name=name,
        title=title,
        flags=FromFile(package, "flags:flags"),
        version=FromFile(package, "server:version_of"),
        memory=FromFile(package, "server:memory"),
        candidates=FromFile(package, "server:candidates"),
        layouts=FromFile(package, "server:layouts"),
        serving=FromFile(package, "server:serving"),
        instead=instead,
        vendors=("NVIDIA", "AMD", "Apple", "Intel"),
        shows_alternatives=shows_alternatives,
        shown_defaults=shown_defaults,
        stacks=(((0,), "llamacpp"),),
    )
