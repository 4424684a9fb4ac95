"""Reads launch files of any kind, which it recognizes by their contents."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import InputError, MissingExtra
from ...sources.files import parse_json, parse_toml, read_text
from ..registry import NAMES, framework
from .kinds import kinds, launch_files
from .options import NO_OPTIONS, read_with_options
from .record import Fetch, Launch, Source
from .refused import refuse_program
from .shell import Command, Script, is_unresolved, printable, read_script, unresolved_reason
from .text import LARGEST, parse_yaml


def read_launch(
    path: str | Path,
    world_size: int | None = None,
    allow_unknown: bool = False,
    *,
    date: datetime.date | None = None,
    gpu: str = "",
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Launch:
    """Reads a launch file.

    world_size: number of devices; by default that of the file, or the smallest number that its layout allows.
    allow_unknown: whether to accept arguments that may change memory and are not modelled.
    date: date of the framework's version; None (default) for the newest.
    gpu: name of the device.
    options: options typed beside the file → values, which replace the file's.
    Raises `InputError`, which names file, field and fix.
    """
    where = Path(path)
    return launch_of(
        read_text(where, LARGEST),
        str(path),
        world_size,
        allow_unknown,
        date=date,
        gpu=gpu,
        folder=where.parent,
        options=options,
    )


def launch_of(
    text: str,
    where: str,
    world_size: int | None = None,
    allow_unknown: bool = False,
    *,
    date: datetime.date | None = None,
    gpu: str = "",
    folder: Path | None = None,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Launch:
    """Reads the text of a launch file.

    folder: folder of files that it names; None (default) to read no such file.
    options: options typed beside the file → values, which replace the file's.
    """
    if world_size is not None and world_size < 1:
        raise InputError(f"--devices: {world_size}; expected a positive whole number")
    source = Source(where, world_size, allow_unknown, date, gpu, _fetcher(where, folder))
    kind, data = _parsed(text, where)
    if kind == "script":
        sbatch_options = re.findall(r"^#SBATCH[ \t]+(-\S+)[ \t]*([^\s#]*)", text, re.MULTILINE)
        batch = [word for words in sbatch_options for word in words if word]
        return _script(data, source, batch, options)
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: is no launch file; expected {launch_files()}")
    refuse_program(data, where)
    for file in kinds():
        if file.matches(data):
            return read_with_options(file, file.read, data, source, options)
    keys = ", ".join(str(key)[:30] for key in list(data)[:4])
    raise InputError(f"{where}: is no launch file: it has {keys or 'nothing'}; expected {launch_files()}")


def _parsed(text: str, where: str) -> tuple[str, Any]:
    """The kind of the text, `script` or `tables`, with its commands or its tables."""
    start = text.lstrip()[:2]
    if not start:
        raise InputError(f"{where}: is empty; expected {launch_files()}")
    if start == "#!" or _is_script(text):
        return "script", read_script(text, where)
    if start.startswith("{"):
        return "tables", _parsed_braces(text, where)
    toml = re.search(r"^[ \t]*\[[A-Za-z_][\w.\- \"]*\][ \t]*(#.*)?$", text, re.MULTILINE)
    if toml is not None:
        return "tables", parse_toml(text, where)
    return "tables", parse_yaml(text, where)


def _parsed_braces(text: str, where: str) -> Any:
    """The tables of JSON, or of YAML in braces. Raises `InputError` for a text that is neither, as JSON."""
    try:
        return parse_json(text, where)
    except InputError as error:
        try:
            tables = parse_yaml(text, where)
        except (InputError, MissingExtra):
            raise error from None
        if not isinstance(tables, Mapping):
            raise
        return tables


@cache
def _command() -> re.Pattern[str]:
    """A pattern of script lines that start Python, directly or with a launcher."""
    launchers = (framework(name).launcher for name in NAMES)
    programs = "|".join((*filter(None, launchers), "srun", "mpirun", r"accelerate\s+launch", "python3?"))
    return re.compile(rf"^[^#\n:]*\b({programs}|torch\.distributed\.(run|launch))\s", re.M)


def starts_python(text: str) -> bool:
    """Whether a line of a text starts Python."""
    return _command().search(text) is not None


def _is_script(text: str) -> bool:
    """Whether a text is a shell script: it starts Python, and has arguments or variables."""
    if not starts_python(text) or not re.search(r"(^|[\s(\"'])(--[A-Za-z]|\$[A-Za-z_{@*])", text):
        return False
    return re.search(r"\A\s*\{", text) is None and re.search(r"^[A-Z_]+:[ \t]*$", text, re.MULTILINE) is None


def _fetcher(where: str, folder: Path | None) -> Fetch:
    def fetch(name: str) -> Mapping[str, Any]:
        if folder is None:
            raise InputError(f"{where}: {name[:80]}: names a file, which is not read; expected its contents")
        path = folder / name  # an absolute path stands alone
        if not path.exists() and Path(name).exists():
            path = Path(name)
        if not path.exists():
            raise InputError(
                f"{where}: {name[:200]}: no such file beside it nor in the current folder; expected the file in one of "
                "the two"
            )
        text = read_text(path, LARGEST)
        data = parse_yaml(text, str(path)) if path.suffix in (".yaml", ".yml") else parse_json(text, str(path))
        if not isinstance(data, Mapping):
            raise InputError(f"{path}: expected a table of keys")
        return data

    return fetch


# ---- scripts


def _script(script: Script, source: Source, batch: list[str], options: Mapping[str, Any] = NO_OPTIONS) -> Launch:
    where = source.where
    readers = [file for file in kinds() if file.read_arguments is not None]
    runs = {file.name: [command for command in script.commands if file.is_run_by(command.words)] for file in readers}
    file = next((file for file in readers if runs[file.name]), None)
    if file is None or file.read_arguments is None:
        starts = (start for start in script.commands if starts_python(" ".join(start.words[:20]) + " "))
        unresolved = ((start.line, word) for start in starts for word in start.words if is_unresolved(word))
        line, word = next(unresolved, (0, ""))
        why = f" (line {line}: {unresolved_reason(word)})" if word else ""
        known = " or ".join(file.arguments_of for file in readers)
        raise InputError(f"{where}: no command runs with arguments of {known}{why}; expected {launch_files()}")
    commands = runs[file.name]
    if len({command.words for command in commands}) > 1:
        lines = ", ".join(str(command.line) for command in commands[:5])
        raise InputError(f"{where}: several commands train (lines {lines}); expected one")
    command = commands[0]
    launcher, program, words = _split_command(command, where)
    env = {**script.env(), **{name: value for name, value in command.env.items() if not is_unresolved(value)}}
    world = source.world_size or _world([*batch, *launcher])
    run = replace(source, world_size=world, env=env, script=program, unset=sorted(script.unset))
    return read_with_options(file, file.read_arguments, _arguments(words, where), run, options)


def _split_command(command: Command, where: str) -> tuple[list[str], str, list[str]]:
    """The words before the Python file of a command, the file's name, and the words after it."""
    words = list(command.words)
    for i, word in enumerate(words):
        if word.endswith(".py") and not word.startswith("--"):
            return words[:i], word.rpartition("/")[2], words[i + 1 :]
        if word == "-m" and i + 1 < len(words) and not words[i + 1].startswith("torch.distributed"):
            return words[:i], words[i + 1], words[i + 2 :]
    first = next((i for i, word in enumerate(words) if word.startswith("--")), 0)
    start = printable(" ".join(words[:first]))[:60]
    raise InputError(
        f"{where}: line {command.line}: no Python file is run by '{start}'; expected one, such as pretrain_gpt.py"
    )


def _world(launcher: list[str]) -> int | None:
    """The number of devices in arguments of the batch system and of the launcher: processes per machine · machines."""
    counts: dict[str, int] = {}
    names = {
        "--nproc-per-node": "each",
        "--nnodes": "machines",
        "--num-gpus": "each",
        "--num-nodes": "machines",
        "--num-processes": "all",
        "--nproc": "each",
        "-np": "all",
        "--ntasks": "all",
        "--ntasks-per-node": "each",
        "--nodes": "machines",
        "-N": "machines",
    }
    for i, word in enumerate(launcher):
        name, equals, value = word.partition("=")
        key = names.get(f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name)
        text = value if equals else (launcher[i + 1] if i + 1 < len(launcher) else "")
        if key is not None and text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0:
            counts[key] = int(text)
    if "all" in counts:
        return counts["all"]
    return counts["each"] * counts.get("machines", 1) if "each" in counts else None


def _arguments(words: list[str], where: str) -> dict[str, Any]:
    """Argument → its value: True without a value, a text for one value, a list for several."""
    out: dict[str, Any] = {}
    name = ""
    values: list[str] = []

    def keep() -> None:
        if name:
            out[name] = True if not values else values[0] if len(values) == 1 else list(values)

    for word in words:
        if re.match(r"--[A-Za-z]", word):
            keep()
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        elif not word:
            continue
        elif name:
            values.append(word)
        else:
            if is_unresolved(word):
                raise InputError(f"{where}: {unresolved_reason(word)}")
            raise InputError(f"{where}: '{printable(word)[:60]}' stands before every argument; expected --name value")
    keep()
    return out
