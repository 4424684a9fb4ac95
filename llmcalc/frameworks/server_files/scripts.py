"""Finds the servers that shell scripts start: directly, in a container, on another machine, or in quoted scripts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ...errors import InputError
from ..engines.registry import ENGINE_FOLDERS
from ..launch.command_line import NON_PROGRAM_COMMANDS, TRAINING_COMMAND
from ..launch.shell import read_script
from ..launch.shell_words import ShellScript
from ..launch.unresolved import is_unresolved
from .docker_command import container_of_command
from .modelfile import is_modelfile, server_in_modelfile
from .programs import PROGRAMS, ServerStart, program_named, program_of_image, server_start_of, version_of_image
from .server import Container, StartedServer

SHELLS = ("bash", "sh", "zsh", "dash", "ash")

DEEPEST_SCRIPT = 3
"""Largest nesting depth of quoted scripts."""

MAX_SCRIPTS = 60
"""Largest number of scripts in a file: the file itself, quoted scripts, and scripts of containers."""


def starts_server(file_text: str) -> bool:
    """Whether a text contains the name of a program that starts servers."""
    return _SERVER_NAMES.search(file_text) is not None


_SERVER_NAMES = re.compile(
    "|".join(
        sorted(
            {re.escape(name.split()[0]) for program in PROGRAMS for name in program.commands}
            | {re.escape(module_name.split(".")[0]) for program in PROGRAMS for module_name in program.python_modules}
            | {re.escape(image) for program in PROGRAMS for image in program.image_names}
        )
    )
)


@dataclass
class ServerFinder:
    """Finds servers in a file's scripts and commands.

    name_in_errors: the file's name in messages. script_count: number read.
    """

    name_in_errors: str
    script_count: int = 0

    def servers_in_script(
        self,
        script_text: str,
        variables: Mapping[str, str],
        arguments: Sequence[str],
        outer_container: Container,
        nesting_depth: int = 0,
    ) -> Iterator[StartedServer]:
        """Yields the servers that a shell script starts.

        variables, arguments: those of the script. outer_container: what runs it, a container or the user's shell.
        """
        self.script_count += 1
        if self.script_count > MAX_SCRIPTS:
            raise InputError(f"{self.name_in_errors}: too many scripts inside it; expected at most {MAX_SCRIPTS}")
        shell_script = read_script(script_text, self.name_in_errors, variables, arguments, outer_container.gpu_count)
        engine_versions = engine_versions_in(script_text)
        daemon_environment = {
            variable_name: variable_value
            for command_line in shell_script.commands
            if any(_is_command(command_line.words, server_program.daemon_command) for server_program in PROGRAMS)
            for variable_name, variable_value in _known_variables(command_line.env).items()
        }
        started_engines: set[str] = set()
        daemon_servers: list[StartedServer] = []
        for command_line in shell_script.commands:
            command_words = [shell_word for shell_word in command_line.words if shell_word not in ("&", "&&", "|", ";")]
            if not command_words or command_words[0] in NON_PROGRAM_COMMANDS:
                continue
            line_location = outer_container.place_in_file if outer_container.image else f"line {command_line.line}"
            command_environment = {
                **outer_container.env,
                **shell_script.env(),
                **daemon_environment,
                **_known_variables(command_line.env),
            }
            container = replace(
                outer_container, place_in_file=line_location, command_words=command_words, env=command_environment
            )
            for started_server in self.servers_in_command(container, shell_script.written_files, nesting_depth, True):
                started_engines.add(started_server.server_start.program.engine)
                yield started_server.with_version_in_file(engine_versions)
            daemon_servers += _servers_of_daemon(command_words, container)
        if TRAINING_COMMAND.search(script_text) is None:
            yield from _daemon_servers_without_start(daemon_servers, started_engines)
        yield from _modelfile_servers(shell_script, self.name_in_errors, outer_container)

    def servers_in_command(
        self,
        container: Container,
        text_by_written_file: Mapping[str, str] | None = None,
        depth: int = 0,
        is_shell_command: bool = False,
    ) -> Iterator[StartedServer]:
        """Yields the servers that a container's command starts.

        text_by_written_file: file name → text that the script writes. is_shell_command: whether a script has the
        command; default false, for arguments of the image's entry point.
        """
        command_words = list(container.command_words)
        server_program = program_named(container.engine_name)
        if not command_words and server_program is not None and container.model_name:
            yield StartedServer(
                ServerStart(server_program, ()),
                container,
                text_by_written_file or {},
                version_of_image(container.image),
            )
        image_program = program_of_image(container.image)
        if not command_words and image_program is not None and image_program.engine not in ENGINE_FOLDERS:
            yield StartedServer(ServerStart(image_program, ()), container)  # to be refused by its name
        if depth > DEEPEST_SCRIPT or not command_words:
            return
        inner_container = container_of_command(command_words, container.place_in_file)
        if inner_container is not None:
            inner_environment = {**container.env, **inner_container.env}
            gpu_count = container.gpu_count if inner_container.gpu_count is None else inner_container.gpu_count
            yield from self.servers_in_command(
                replace(inner_container, env=inner_environment, gpu_count=gpu_count), text_by_written_file, depth + 1
            )
            return
        script_text, script_arguments = _quoted_script(command_words)
        if script_text:
            yield from self.servers_in_script(script_text, container.env, script_arguments, container, depth + 1)
            return
        server_start = server_start_of(command_words, container.image, is_shell_command)
        if server_start is None and server_program is not None and command_words[0].startswith("-"):
            server_start = ServerStart(server_program, tuple(command_words))
        if server_start is not None:
            yield StartedServer(server_start, container, text_by_written_file or {}, version_of_image(container.image))
            return
        for command_word in command_words:
            if any(character.isspace() for character in command_word) and starts_server(command_word):
                yield from self.servers_in_script(command_word, container.env, (), container, depth + 1)


def _is_command(command_words: Sequence[str], command_name: str) -> bool:
    """Whether a command contains the two words of `command_name`; the program's name may follow a folder."""
    first_word, _, second_word = command_name.partition(" ")
    return bool(command_name) and any(
        command_word.rpartition("/")[2] == first_word and next_word == second_word
        for command_word, next_word in pairwise(command_words)
    )


def _servers_of_daemon(command_words: Sequence[str], container: Container) -> Iterator[StartedServer]:
    """Yields the server of a daemon's command, or of a model that the command downloads."""
    for server_program in PROGRAMS:
        if _is_command(command_words, server_program.daemon_command):
            yield StartedServer(ServerStart(server_program, ()), container)
        elif _is_command(command_words, server_program.download_command):
            download_end = command_words.index(server_program.download_command.partition(" ")[2]) + 1
            yield StartedServer(ServerStart(server_program, tuple(command_words[download_end:])), container)


def _daemon_servers_without_start(
    daemon_servers: Sequence[StartedServer], started_engines: Collection[str]
) -> Iterator[StartedServer]:
    """Yields servers of daemons whose engine no other command starts: those with a model, else the first."""
    daemon_servers = [server for server in daemon_servers if server.server_start.program.engine not in started_engines]
    yield from [server for server in daemon_servers if server.server_start.arguments] or daemon_servers[:1]


def _known_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables whose values are known without running the file."""
    return {
        variable_name: variable_value
        for variable_name, variable_value in env.items()
        if not is_unresolved(variable_value)
    }


def _modelfile_servers(
    shell_script: ShellScript, name_in_errors: str, outer_container: Container
) -> Iterator[StartedServer]:
    """Yields the servers of the Modelfiles that a script writes."""
    for file_name, file_text in shell_script.written_files.items():
        if is_modelfile(file_text, file_name):
            yield server_in_modelfile(
                file_text,
                f"{name_in_errors}: {file_name}",
                replace(outer_container, env={**outer_container.env, **shell_script.env()}),
            )


def _quoted_script(command_words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Returns script and arguments of `bash -c SCRIPT NAME ARGUMENT …`; empty for other commands."""
    for i, command_word in enumerate(command_words[:-1]):
        if command_word.rpartition("/")[2] in SHELLS:
            script_word_index = next(
                (
                    script_index
                    for script_index in range(i + 1, min(i + 5, len(command_words) - 1))
                    if not command_words[script_index].startswith("-")
                ),
                None,
            )
            shell_flags = command_words[i + 1 : script_word_index]
            if script_word_index is not None and any(
                re.fullmatch(r"-[a-z]*c", shell_flag) for shell_flag in shell_flags
            ):
                return command_words[script_word_index], command_words[script_word_index + 2 :]
            return "", ()
        if i > 6:
            break
    return "", ()


def engine_versions_in(file_text: str) -> Mapping[str, str]:
    """Returns engine → the single version that a text installs or names in an image's tag."""
    versions_by_engine: dict[str, set[str]] = {}
    for server_program in PROGRAMS:
        if server_program.package:
            for match in re.finditer(rf"\b{server_program.package}(?:\[[\w,]*\])?==([0-9][\w.]{{0,20}})", file_text):
                versions_by_engine.setdefault(server_program.engine, set()).add(match[1])
    for match in re.finditer(r"[\w./-]{1,200}:[\w.-]{1,80}", file_text):
        program_of_tag, image_version = program_of_image(match[0]), version_of_image(match[0])
        if program_of_tag is not None and image_version:
            versions_by_engine.setdefault(program_of_tag.engine, set()).add(image_version)
    return {engine_name: versions.pop() for engine_name, versions in versions_by_engine.items() if len(versions) == 1}
