"""Finds the servers that shell scripts start: as they are, in a container, on another machine, or in quoted scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..launch.command_line import WITHOUT_PROGRAMS
from ..launch.shell import Script, is_unresolved, read_script
from .docker_command import container_of
from .programs import PROGRAMS, Start, program_named, program_of_image, start_of, version_of_image
from .server import Container

SHELLS = ("bash", "sh", "zsh", "dash", "ash")

DEEPEST = 3
"""Largest number of scripts in quotes inside each other."""


@dataclass(frozen=True)
class Started:
    """A server with the container or the shell that starts it.

    files: texts that its script writes to files, by the files' names.
    version: the engine's version, where the script installs it or names an image; else empty.
    """

    start: Start
    container: Container
    files: Mapping[str, str] = field(default_factory=dict)
    version: str = ""


def starts_server(text: str) -> bool:
    """Whether a text may start a server: it has the words of a program that does."""
    return _SERVERS.search(text) is not None


_SERVERS = re.compile(
    "|".join(
        [r"\bollama\s+(run|create)\b", r"--[a-z]+\.[a-z]+\.cli="]
        + [r"(?<![\w-])" + re.escape(c).replace(r"\ ", r"\s+") for program in PROGRAMS for c in program.commands]
        + [re.escape(m) for program in PROGRAMS for m in program.modules if "." in m]
        + [rf"[\w.-]*/[\w./-]*{re.escape(image)}[\w./-]*:[\w.-]+" for program in PROGRAMS for image in program.images]
    )
)


def servers_in_script(
    text: str, where: str, variables: Mapping[str, str], arguments: Sequence[str], outer: Container, depth: int = 0
) -> Iterator[Started]:
    """Yields the servers that a script starts, with the files that it writes.

    variables, arguments: those of the script. outer: the container that runs the script, or the user's shell.
    """
    script = read_script(text, where, variables, arguments)
    version = version_in(text)
    for command in script.commands:
        words = [word for word in command.words if not _is_sign(word)]
        if not words or words[0] in WITHOUT_PROGRAMS:
            continue
        env = {**outer.env, **script.env(), **_known(command.env)}
        line = f"line {command.line}" if not outer.image else outer.place
        container = replace(outer, place=line, words=words, env=env)
        for started in servers_in_words(container, where, script.files, depth):
            yield started if started.version else replace(started, version=version_of(started, version))
    yield from _written(script, where, outer)


def _is_sign(word: str) -> bool:
    return word in ("&", "&&", "|", ";")


def _known(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not is_unresolved(value)}


def _written(script: Script, where: str, outer: Container) -> Iterator[Started]:
    """Yields the servers of the model files that a script writes."""
    from .modelfile import is_modelfile, server_in_modelfile

    for name, text in script.files.items():
        if is_modelfile(text, name):
            yield server_in_modelfile(text, f"{where}: {name}", replace(outer, env={**outer.env, **script.env()}))


def servers_in_words(
    container: Container, where: str, files: Mapping[str, str] | None = None, depth: int = 0
) -> Iterator[Started]:
    """Yields the servers that a command starts. files: texts that its script writes."""
    words = list(container.words)
    if depth > DEEPEST or not words:
        return
    inner = container_of(words, container.place)
    if inner is not None:
        env = {**container.env, **inner.env}
        gpus = container.gpus if inner.gpus is None else inner.gpus
        yield from servers_in_words(replace(inner, env=env, gpus=gpus), where, files, depth + 1)
        return
    text, arguments = _script_in(words)
    if text:
        yield from servers_in_script(text, where, container.env, arguments, container, depth + 1)
        return
    start = start_of(words, container.image)
    program = program_named(container.engine)
    if start is None and program is not None and words[0].startswith("-"):
        start = Start(program, tuple(words))
    if start is None:
        for word in words:
            if any(sign.isspace() for sign in word) and starts_server(word):
                yield from servers_in_script(word, where, container.env, (), container, depth + 1)
        return
    yield Started(start, container, files or {}, version_of_image(container.image))


def _script_in(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The text of `bash -c TEXT NAME ARGUMENT …`, and its arguments; empty for any other command."""
    for i, word in enumerate(words[:-1]):
        if word.rpartition("/")[2] in SHELLS:
            option = next((j for j in range(i + 1, min(i + 5, len(words) - 1)) if not words[j].startswith("-")), None)
            flags = words[i + 1 : option]
            if option is not None and any(re.fullmatch(r"-[a-z]*c", flag) for flag in flags):
                return words[option], words[option + 2 :]
            return "", ()
        if i > 6:
            break
    return "", ()


def version_in(text: str) -> Mapping[str, str]:
    """Returns engine → the one version that a text installs, or has in the tag of an image."""
    versions: dict[str, set[str]] = {}
    for program in PROGRAMS:
        if program.package:
            for match in re.finditer(rf"\b{program.package}(?:\[[\w,]*\])?==([0-9][\w.]{{0,20}})", text):
                versions.setdefault(program.engine, set()).add(match[1])
    for match in re.finditer(r"[\w./-]{1,200}:[\w.-]{1,80}", text):
        program_of_tag, version = program_of_image(match[0]), version_of_image(match[0])
        if program_of_tag is not None and version:
            versions.setdefault(program_of_tag.engine, set()).add(version)
    return {engine: known.pop() for engine, known in versions.items() if len(known) == 1}


def version_of(started: Started, versions: Mapping[str, str]) -> str:
    """Returns the version of a server's engine; empty if none is known."""
    return versions.get(started.start.program.engine, "")
