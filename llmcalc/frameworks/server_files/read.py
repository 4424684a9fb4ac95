"""Reads server launch files, and recognizes the kind of a file by its contents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import InputError, MissingExtra, one_line
from ...sources.files import read_text
from ..engines.flags import find_flag, flags_by_spelling
from ..engines.registry import ENGINE_FOLDERS, LLAMA_CPP_LAUNCHERS, engine
from ..launch.command_line import (
    LAUNCH_OPTION,
    TRAINING_COMMAND,
    TypedLaunch,
    is_training_command,
    refuse_unread_command,
    split_typed_launch,
    words_of_typed_command,
)
from ..launch.notebook import is_python_name, read_launch_text
from ..launch.python_source import is_python
from ..launch.unresolved import is_unresolved, printable_word
from ..launch.windows_scripts import posix_paths
from ..launch.yaml_text import LARGEST_FILE_BYTES, parse_braced_text, parse_yaml, split_documents
from .accelerators import accelerator_of_label
from .arguments import engine_of_flags, flags_of_program, read_arguments, words_of_tables
from .manifests import servers_in_tables
from .modelfile import is_modelfile, server_in_modelfile
from .programs import ServerProgram, ServerStart, program_named
from .python_source import CONFIGURATION_CALLS, servers_in_python
from .scripts import ServerFinder, starts_server
from .server import Container, LaunchedServer, ReadNamedFile, StartedServer

MAX_SERVERS = 200
"""Largest number of servers in a file."""

NO_FLAGS: Mapping[str, Any] = {}
"""No flags typed beside a launch file."""

SERVER_KEYS = re.compile(r"^(services|apiVersion|kind|modelArtifacts|decode|model)[ \t]*:", re.MULTILINE)
"""Pattern of top-level keys in YAML files that start servers."""


def servers_of_file(
    path: str | Path,
    allows_unknown_flags: bool = False,
    typed_flags: Mapping[str, Any] = NO_FLAGS,
    typed_engine: str = "",
) -> list[LaunchedServer]:
    """Returns the servers that a launch file starts; none for other files, such as training scripts.

    path: the file's name, or a text `NAME=VALUE … FILE ARGUMENT …` or a command as it is typed in a shell.
    allows_unknown_flags: whether unknown flags are accepted.
    typed_flags: flags of the engine that are typed beside the file, by their fields; they replace the file's.
    typed_engine: the engine that is typed beside the file; empty for the file's.
    Raises `InputError`, which names file, place, flag and fix.
    """
    typed_launch_file, launch_text, folder = _read_launch(path)
    return servers_of_text(launch_text, typed_launch_file, allows_unknown_flags, folder, typed_flags, typed_engine)


def _read_launch(launch_path: str | Path) -> tuple[TypedLaunch, str, Path]:
    """Returns name, text and folder of a launch file, or of a command that the user typed instead of a file."""
    typed_text = str(launch_path)
    if words_of_typed_command(typed_text):
        typed_text = posix_paths(typed_text)
        typed_command = TypedLaunch(LAUNCH_OPTION, {}, ())
        if is_training_command(typed_text) or any(_find_servers(typed_text, typed_command, Path())):
            return typed_command, typed_text, Path()
        refuse_unread_command(typed_text)
    typed_launch_file = split_typed_launch(typed_text)
    launch_file = Path(typed_launch_file.path)
    return typed_launch_file, read_launch_text(launch_file), launch_file.parent


def starts_any_server(typed_path: str | Path) -> bool:
    """Whether a file starts a server, even of an engine that is not modelled.

    A Python file that trains is not among them, though a server may write its data before.
    """
    file_path = Path(split_typed_launch(str(typed_path)).path)
    if is_python_name(file_path.name) and TRAINER_CALL.search(read_launch_text(file_path)) is not None:
        return False
    typed_launch_file, launch_text, launch_folder = _read_launch(typed_path)
    engine_names = (
        server.server_start.program.engine for server in _find_servers(launch_text, typed_launch_file, launch_folder)
    )
    first_engine = next(engine_names, None)
    if first_engine is None:
        return False
    is_modelled = first_engine in ENGINE_FOLDERS or any(engine_name in ENGINE_FOLDERS for engine_name in engine_names)
    return is_modelled or TRAINING_COMMAND.search(launch_text) is None


TRAINER_CALL = re.compile(r"^[ \t]*\w+[ \t]*=[ \t]*\w*Trainer\(", re.MULTILINE)
"""Pattern of a Python line that creates a trainer."""


def _servers_in_file(launch_path: str | Path) -> Iterator[StartedServer]:
    typed_launch_file, launch_text, launch_folder = _read_launch(launch_path)
    yield from _find_servers(launch_text, typed_launch_file, launch_folder)


def engines_of_file(launch_path: str | Path) -> list[str]:
    """Returns the names of the engines whose servers a file starts; none for other files."""
    try:
        started_servers = list(_servers_in_file(launch_path))
    except InputError:
        return []  # the same error is raised where the file is read for its servers
    engine_names = dict.fromkeys(started_server.server_start.program.engine for started_server in started_servers)
    return [engine_name for engine_name in engine_names if engine_name in ENGINE_FOLDERS]


def servers_of_text(
    file_text: str,
    typed_launch_file: TypedLaunch,
    allows_unknown_flags: bool = False,
    launch_folder: Path | None = None,
    typed_flags: Mapping[str, Any] = NO_FLAGS,
    typed_engine: str = "",
) -> list[LaunchedServer]:
    """Returns the servers that a launch file's text starts.

    typed_launch_file: the file's name, with variables and arguments of a script. launch_folder: folder of files that
        it names; None (default) to read no such file. Other parameters as of `servers_of_file`.
    """
    name_in_errors = typed_launch_file.path
    launched_servers: list[LaunchedServer] = []
    for started_server in _find_servers(file_text, typed_launch_file, launch_folder):
        if typed_engine and started_server.server_start.program.engine != typed_engine:
            continue
        server = _read_server(started_server, name_in_errors, allows_unknown_flags, launch_folder, typed_flags)
        if not _is_worker_command(started_server.server_start) and server not in launched_servers:
            launched_servers.append(server)
        if len(launched_servers) > MAX_SERVERS:
            raise InputError(f"{name_in_errors}: starts too many servers; expected at most {MAX_SERVERS}")
    return _without_duplicates(launched_servers)


def _without_duplicates(launched_servers: Sequence[LaunchedServer]) -> list[LaunchedServer]:
    """Returns the servers without copies that differ only in location or environment."""
    distinct_servers: dict[str, LaunchedServer] = {}
    for server in launched_servers:
        server_text = repr(replace(server, place_in_file="", env={}, notes=()))
        first_server = distinct_servers.setdefault(server_text, server)
        if first_server is not server:
            copy_note = f"{server.place_in_file} starts the same server"
            distinct_servers[server_text] = replace(first_server, notes=(*first_server.notes, copy_note))
    return list(distinct_servers.values())


def _is_worker_command(server_start: ServerStart) -> bool:
    """Whether a command joins a server on another machine, and so starts no separate server."""
    argument_text = " ".join(server_start.arguments)
    return (
        re.search(r"--headless\b|--(node[-_]rank|data[-_]parallel[-_]start[-_]rank)[ =][1-9]", argument_text)
        is not None
    )


# ---- kinds of files


def _find_servers(
    file_text: str, typed_launch_file: TypedLaunch, launch_folder: Path | None
) -> Iterator[StartedServer]:
    """Yields the servers that a launch file's text starts."""
    name_in_errors, shell_container = typed_launch_file.path, Container("")
    server_finder = ServerFinder(name_in_errors)
    file_name = name_in_errors.rpartition("/")[2].lower()
    if is_modelfile(file_text, file_name):
        yield server_in_modelfile(file_text, name_in_errors, shell_container)
        return
    has_tables = file_name.endswith((".yaml", ".yml", ".json")) or (
        SERVER_KEYS.search(file_text) is not None and file_text[:2] != "#!"
    )
    if not has_tables:
        if is_python(file_text, file_name) and is_python_name(file_name):
            if starts_server(file_text) or any(f"{called_name}(" in file_text for called_name in CONFIGURATION_CALLS):
                yield from servers_in_python(file_text, server_finder, typed_launch_file.variables)
            return
        if not starts_server(file_text) or file_name.endswith(".toml"):
            return
        yield from server_finder.servers_in_script(
            file_text, typed_launch_file.variables, typed_launch_file.arguments, shell_container
        )
        return
    variables = {**_read_env_file(launch_folder), **typed_launch_file.variables}
    yaml_data = []
    for yaml_document in split_documents(file_text, name_in_errors):
        try:
            yaml_data.append(
                parse_braced_text(yaml_document, name_in_errors)
                if yaml_document.lstrip().startswith("{")
                else parse_yaml(yaml_document, name_in_errors)
            )
        except (InputError, MissingExtra):
            if not SERVER_KEYS.search(file_text) and not starts_server(file_text):
                return
            if "{{" in file_text:
                raise InputError(
                    f"{name_in_errors}: a template with {{{{ … }}}}; expected the file that it makes (helm template …)"
                ) from None
            raise
    servers = list(servers_in_tables(yaml_data[0] if len(yaml_data) == 1 else yaml_data, server_finder, variables))
    yield from servers
    if not servers and len(yaml_data) == 1:
        yield from _server_of_bare_config(yaml_data[0])


def _read_env_file(launch_folder: Path | None) -> dict[str, str]:
    """Returns the variables in the file `.env` in a compose file's folder; none if there is no such file."""
    env_path = None if launch_folder is None else launch_folder / ".env"
    if env_path is None or not env_path.is_file():
        return {}
    env_assignments = (
        text_line.strip().removeprefix("export ") for text_line in read_text(env_path, LARGEST_FILE_BYTES).split("\n")
    )
    names_and_values = (env_line.partition("=") for env_line in env_assignments if re.match(r"[A-Za-z_]\w*=", env_line))
    return {variable_name: variable_value.strip().strip("'\"") for variable_name, _, variable_value in names_and_values}


def _server_of_bare_config(config_file: Any) -> Iterator[StartedServer]:
    """Yields the server of a config file without a command, if all keys are flags of one engine."""
    if isinstance(config_file, Mapping):
        engine_name = engine_of_flags(
            [
                f"--{table_key}.{inner_key}"
                for table_key, config_table in config_file.items()
                if isinstance(config_table, Mapping)
                for inner_key in config_table
            ]
            + [
                f"--{config_key}"
                for config_key, config_value in config_file.items()
                if not isinstance(config_value, Mapping)
            ]
        )
        server_program = program_named(engine_name)
        if server_program is not None and server_program.config_flags:
            command_words = tuple(
                words_of_tables(
                    config_file, flags_by_spelling(reversed(flags_of_program(server_program, engine(engine_name))))
                )
            )
            yield StartedServer(ServerStart(server_program, command_words), Container(""))


# ---- servers


def _read_server(
    started_server: StartedServer,
    name_in_errors: str,
    allows_unknown_flags: bool,
    launch_folder: Path | None,
    typed_flags: Mapping[str, Any],
) -> LaunchedServer:
    """Returns a server with parsed flags. Raises `InputError` for an unmodelled engine."""
    server_start, container = started_server.server_start, started_server.container
    server_location = f"{name_in_errors}: {container.place_in_file}" if container.place_in_file else name_in_errors
    engine_name = server_start.program.engine
    if engine_name not in ENGINE_FOLDERS:
        runs_llama_cpp = engine_name in LLAMA_CPP_LAUNCHERS.values()
        llama_cpp_hint = (
            ". It runs llama.cpp: type its flags to --engine llama.cpp"
            if runs_llama_cpp
            else ". Weights and cache alone: llmcalc memory MODEL --hardware NAME --seq TOKENS, without --launch"
        )
        raise InputError(
            f"{server_location}: starts a server of {engine_name}, which is not modelled; expected one of "
            f"{', '.join(ENGINE_FOLDERS)}{llama_cpp_hint}"
        )
    if engine_name in PYTHON_ENGINES and re.search(r"\bcpu\b", container.image):
        image_name = one_line(container.image)[:80]
        raise InputError(
            f"{server_location}: {image_name} serves from CPUs, which is not modelled; expected an image for "
            "accelerators"
        )
    serving_engine = engine(engine_name)
    arguments = read_arguments(
        server_start.program,
        serving_engine,
        (*_flags_of_variables(server_start.program, container.env), *server_start.arguments),
        server_location,
        _reader_of_named_files(name_in_errors, launch_folder, started_server.text_by_written_file),
        allows_unknown_flags,
        tuple(typed_flags),
    )
    flag_fields = {
        flag_name: flag.field_name
        for flag in serving_engine.known_flags()
        for flag_name in flag.names
        if not flag_name.startswith("-")
    }
    environment_flags = {
        field_name: container.env[variable_name]
        for variable_name, field_name in flag_fields.items()
        if variable_name in container.env
    }
    all_fields = {flag.field_name for flag in serving_engine.known_flags()}
    parallel_sizes = {
        variable_name: parallel_size
        for variable_name, parallel_size in container.parallel_sizes.items()
        if variable_name in all_fields
    }
    model_name = server_start.model_name or arguments.model or container.model_name
    if container.model_name and not re.fullmatch(r"[\w.-]+/[\w.-]+", model_name):
        model_name = container.model_name
    model_name = container.host_path(model_name)
    return LaunchedServer(
        name_in_errors=name_in_errors,
        place_in_file=container.place_in_file,
        engine=engine_name,
        version=started_server.version,
        model_name=f"${printable_word(model_name).lstrip('$')}" if is_unresolved(model_name) else model_name,
        flag_values={**parallel_sizes, **environment_flags, **arguments.values},
        env={
            variable_name: variable_value[:200]
            for variable_name, variable_value in container.env.items()
            if not SECRET_NAMES.search(variable_name)
        },
        hardware=accelerator_of_label(container.gpu_name) if container.gpu_name else "",
        gpu_name=one_line(container.gpu_name)[:80],
        gpu_count=container.gpu_count,
        ignored_flags=tuple(arguments.ignored_flags),
        unknown_flags=arguments.unknown_flags,
        notes=tuple(arguments.notes),
    )


def _flags_of_variables(server_program: ServerProgram, env: Mapping[str, str]) -> Iterator[str]:
    """Yields the flags equivalent to environment variables: `--ctx-size` for `LLAMA_ARG_CTX_SIZE=4096`."""
    if not server_program.variable_prefix or not any(
        env_name.startswith(server_program.variable_prefix) for env_name in env
    ):
        return
    flags_by_name = flags_by_spelling(reversed(flags_of_program(server_program, engine(server_program.engine))))
    for variable_name, variable_value in env.items():
        if variable_name.startswith(server_program.variable_prefix):
            flag_words = variable_name.removeprefix(server_program.variable_prefix).lower().replace("_", "-")
            spelling = f"--{FLAG_OF_VARIABLE.get(flag_words, flag_words)}"
            matched_flag = find_flag(flags_by_name, spelling)
            is_switch = matched_flag is None or matched_flag.flag.value_kind == "switch"
            if is_switch and variable_value.lower() in OFF_VALUES:
                yield f"--no-{spelling[2:]}"
            else:
                yield (
                    spelling if is_switch and variable_value.lower() in ON_VALUES else f"{spelling}={variable_value}"
                )


ON_VALUES, OFF_VALUES = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0")
"""Values of environment variables that turn a switch on, and values that turn it off."""

FLAG_OF_VARIABLE = {
    "n-parallel": "parallel",
    "rope-scaling-type": "rope-scaling",
    "static-path": "path",
    "reranking": "rerank",
    "endpoint-metrics": "metrics",
    "endpoint-props": "props",
    "endpoint-slots": "slots",
    "think": "reasoning-format",
    "think-budget": "reasoning-budget",
    "think-budget-message": "reasoning-budget-message",
    "checkpoint-min-spacing-nt": "checkpoint-min-step",
    "spec-draft-hf-repo": "spec-draft-hf",
    "spec-draft-cache-type-k": "spec-draft-type-k",
    "spec-draft-cache-type-v": "spec-draft-type-v",
}
"""llama-server's variable without its prefix → the flag, if their names differ (common/arg.cpp)."""

PYTHON_ENGINES = ("vllm", "sglang")
"""Engines whose CPU images keep the KV cache in host memory."""

SECRET_NAMES = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Pattern of the names of variables whose values are not shown."""


def _reader_of_named_files(
    name_in_errors: str, launch_folder: Path | None, text_by_written_file: Mapping[str, str]
) -> ReadNamedFile:
    """Returns a function that reads files named in a command: texts that the script writes, else files on disk."""

    def read(file_name: str) -> str:
        base_name = file_name.rpartition("/")[2]
        file_text = text_by_written_file.get(file_name) or next(
            (
                written_text
                for file_path, written_text in text_by_written_file.items()
                if file_path.endswith(f"/{base_name}")
            ),
            None,
        )
        if file_text is not None:
            return file_text
        possible_paths = () if launch_folder is None else (launch_folder / file_name, launch_folder / base_name)
        file_path = next((file_path for file_path in possible_paths if file_path.is_file()), None)
        if file_path is None:
            raise InputError(
                f"{one_line(file_name)[:200]}: no such file beside {name_in_errors}; expected the configuration there"
            )
        return read_text(file_path, LARGEST_FILE_BYTES)

    return read
