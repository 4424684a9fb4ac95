"""Creates the registry record of an engine that is built on ggml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engines.engine import Engine
from ..framework import LazyFunction

LLAMA_SERVER: dict[str, Any] = {
    "flags_by_option": {
        "--seq": "--ctx-size",
        "--context": "--ctx-size",
        "--users": "--parallel",
        "--kv-dtype": "--cache-type-k --cache-type-v",
        "--devices": "--device",
    },
    "shows_alternatives": True,
    "shown_defaults": ("--ctx-size", "--ubatch-size"),
}
"""Arguments of `ggml_engine` that are equal for all programs with `llama-server`."""


def ggml_engine(
    engine_package: str,
    engine_name: str,
    engine_title: str,
    flags_by_option: Mapping[str, str],
    shows_alternatives: bool = False,
    shown_defaults: tuple[str, ...] = (),
    server_factory: str = "create_server",
    engine_functions: tuple[str, str] = (__package__, "changes"),
    usual_scheme: tuple[str, str] | None = None,
    default_context: LazyFunction | None = None,
    tag_flags: LazyFunction | None = None,
) -> Engine:
    """Returns the record of an engine that is built on ggml. engine_package: the folder with its flags and server.

    server_factory: the function or class in its file `server.py` that returns a server.
    engine_functions: package and file of the functions that take a server; by default those of llama.cpp.
    usual_scheme, default_context, tag_flags: as of `Engine`.
    """
    functions_folder, functions_file = engine_functions
    return Engine(
        name=engine_name,
        title=engine_title,
        flags=LazyFunction(engine_package, "flags:flags"),
        rules=LazyFunction(engine_package, "server:read_record"),
        server=LazyFunction(engine_package, f"server:{server_factory}"),
        check_model=LazyFunction(engine_package, "server:check_model"),
        memory=LazyFunction(functions_folder, f"{functions_file}:memory"),
        flag_changes=LazyFunction(functions_folder, f"{functions_file}:flag_changes"),
        larger_layouts=LazyFunction(functions_folder, f"{functions_file}:larger_layouts"),
        serving_flags=LazyFunction(functions_folder, f"{functions_file}:serving_flags"),
        flags_by_option=flags_by_option,
        alternatives_by_option=dict.fromkeys(
            ("--tp", "--pp", "--devices"), "--devices 2, over which it divides the layers"
        ),
        vendors=("NVIDIA", "AMD", "Apple", "Intel"),
        runs_on_processors=True,
        shows_alternatives=shows_alternatives,
        shown_defaults=shown_defaults,
        stacks_by_version=(((0,), "llamacpp"),),
        usual_scheme=usual_scheme,
        reads_library_tags=True,
        default_context=default_context,
        tag_flags=tag_flags,
    )
