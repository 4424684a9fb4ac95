"""A server that a launch file starts, in one form for all engines, with its container or shell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..launch.launch_types import OptionOverride, json_value_of
from .programs import ServerStart

ReadNamedFile: TypeAlias = Callable[[str], str]
"""A function that reads the text of a file named in another file."""


@dataclass(frozen=True)
class Container:
    """The container or shell in which a command of a launch file runs.

    place_in_file: location in the file for messages, such as `line 3` or `services.chat`.
    command_words: the words of its command.
    image: the name of its image; empty for a shell.
    env: its environment variables.
    gpu_name: the accelerator of its node, as the file writes it; empty if the file has none.
    gpu_count: number of accelerators; None if the file does not say.
    model_name: the model that the file names outside the command; empty without one.
    engine_name: the engine that the file names outside the command; empty without one.
    parallel_sizes: fields of the layout that the file states outside the command → their values.
    mounts: folder in the container → the host's folder or file that it shows.
    """

    place_in_file: str
    command_words: Sequence[str] = ()
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    gpu_name: str = ""
    gpu_count: int | None = None
    model_name: str = ""
    engine_name: str = ""
    parallel_sizes: Mapping[str, Any] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)

    def host_path(self, container_path: str) -> str:
        """Returns the host's path for a path in a mounted folder of the container; other paths unchanged."""
        for container_folder, host_folder in self.mounts.items():
            if container_path == container_folder or container_path.startswith(f"{container_folder}/"):
                return host_folder + container_path[len(container_folder) :]
        return container_path


@dataclass(frozen=True)
class StartedServer:
    """A server that a command of a launch file starts, with the command's container, before its flags are read.

    text_by_written_file: texts that its script writes to files, by the files' names.
    version: the engine's version, where the script installs it or names an image; else empty.
    """

    server_start: ServerStart
    container: Container
    text_by_written_file: Mapping[str, str] = field(default_factory=dict)
    version: str = ""

    def with_version_in_file(self, engine_versions: Mapping[str, str]) -> StartedServer:
        """Returns the server with the engine version in the file's text, unless the server's command states a version.

        engine_versions: engine → version.
        """
        return replace(self, version=self.version or engine_versions.get(self.server_start.program.engine, ""))


@dataclass(frozen=True)
class LaunchedServer:
    """A server that a launch file starts: its engine, model and flags, and its location in the file.

    name_in_errors: the file's name in messages.
    place_in_file: the server's place in the file.
    engine: the word of `--engine`.
    version: the engine's version; empty if the file names none.
    model_name: the model's name; empty without one, with a mark before it if it is known only when the file runs.
    flag_values: flags of the engine by their fields, as the file writes them.
    env: environment variables of the server.
    hardware: the accelerator's name; empty if the file names none that is known.
    gpu_name: the accelerator as the file writes it.
    gpu_count: number of accelerators; None if the file does not say.
    ignored_flags: flags that change no memory.
    unknown_flags: flag → why it is not modelled. Empty unless unknown flags are allowed.
    notes: values that were assumed.
    option_overrides: flag typed beside the file → its value, and the file's.
    """

    name_in_errors: str
    place_in_file: str
    engine: str
    version: str = ""
    model_name: str = ""
    flag_values: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    hardware: str = ""
    gpu_name: str = ""
    gpu_count: int | None = None
    ignored_flags: tuple[str, ...] = ()
    unknown_flags: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    option_overrides: Mapping[str, OptionOverride] = field(default_factory=dict)

    @property
    def location(self) -> str:
        """The file name, and the server's location in the file, for messages."""
        return f"{self.name_in_errors}: {self.place_in_file}" if self.place_in_file else self.name_in_errors

    def data(self, program_name: str, engine_version: str, default_flags: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the launch file's values as part of a JSON document.

        program_name: the engine's title. engine_version: version of the defaults. default_flags: flag → its default.
        """
        return {
            "file": self.name_in_errors,
            "kind": self.engine,
            "place": self.place_in_file,
            "program": program_name,
            "version": engine_version,
            "model": self.model_name or None,
            "filled_in": {
                flag_field: json_value_of(default_value) for flag_field, default_value in default_flags.items()
            },
            "overridden": {flag_name: override.json_data() for flag_name, override in self.option_overrides.items()},
            "env": dict(self.env),
            "gpu": self.gpu_name or None,
            "gpus": self.gpu_count,
            "ignored": list(self.ignored_flags),
            "unknown": dict(self.unknown_flags),
            "notes": list(self.notes),
        }
