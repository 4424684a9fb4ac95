"""Reads a server command's arguments and config file as engine flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ...errors import InputError
from ..argument_names import keyword_of
from ..engines.engine import Engine
from ..engines.flags import Flag, find_flag, flags_by_spelling, split_arguments
from ..engines.registry import ENGINE_FOLDERS, engine
from ..launch.unresolved import UNRESOLVED_MARK, is_unresolved, is_unset_variable, printable_word, unresolved_reason
from ..launch.yaml_text import parse_yaml
from .programs import PROGRAMS, REPOSITORY_FLAGS, ServerProgram
from .server import ReadNamedFile

MODEL_FLAG, CONFIG_FLAG = "model-of-the-command", "config-of-the-command"


@dataclass
class ParsedArguments:
    """The parsed arguments of a server's command.

    model: the model's name, with its marks if it is unresolved; empty without one.
    values: the fields of the engine's flags → their values.
    ignored_flags: flags that change no memory.
    unknown_flags: flag → why it is not modelled.
    notes: remarks on words that are left out.
    """

    model: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    ignored_flags: list[str] = field(default_factory=list)
    unknown_flags: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_arguments(
    server_program: ServerProgram,
    serving_engine: Engine,
    command_words: Sequence[str],
    place_in_file: str,
    read_named_file: ReadNamedFile,
    allows_unknown_flags: bool,
    typed_fields: Sequence[str] = (),
) -> ParsedArguments:
    """Returns the parsed arguments of a server's command. serving_engine: the engine.

    place_in_file: the file and the place in messages.
    read_named_file: reads a configuration that the command names.
    typed_fields: fields of flags that are typed beside the file, whose values in it do not matter.
    Raises `InputError` for an unknown flag, for a word that is no flag's, and for a value that only a run has.
    """
    known_flags = flags_of_program(server_program, serving_engine)
    flags_by_name = flags_by_spelling(reversed(known_flags))
    parsed_arguments = ParsedArguments()
    unknown_flags = parsed_arguments.unknown_flags if allows_unknown_flags else None
    ignored_arguments = [
        argument_word
        for flag, argument_word in pairwise(command_words)
        if is_unset_variable(argument_word) and not _takes_value(flag)
    ]
    command_words = [command_word for command_word in command_words if command_word not in {*ignored_arguments}]
    parsed_arguments.notes += [
        f"{printable_word(ignored_argument)} is not set and left out"
        for ignored_argument in dict.fromkeys(ignored_arguments[:MAX_NOTES])
    ]
    try:
        positional_words, flag_values = split_arguments(
            serving_engine.title, known_flags[::-1], command_words, {}, {}, unknown_flags
        )
        config = (
            flag_values.pop(_field_of(flags_by_name, f"--{CONFIG_FLAG}"), None) if server_program.config_flags else None
        )
        if config is not None:
            if is_unresolved(str(config)):
                raise InputError(unresolved_reason(str(config)))
            config_words = list(
                words_of_tables(_parse_marked_yaml(read_named_file(str(config)), str(config)), flags_by_name)
            )
            positional_words, flag_values = split_arguments(
                serving_engine.title, known_flags[::-1], [*config_words, *command_words], {}, {}, unknown_flags
            )
            flag_values.pop(_field_of(flags_by_name, f"--{CONFIG_FLAG}"), None)
        parsed_arguments.model = str(flag_values.pop(_field_of(flags_by_name, server_program.model_flags[0]), "") or "")
        has_repository_flag = any(command_word.partition("=")[0] in REPOSITORY_FLAGS for command_word in command_words)
        if has_repository_flag and "--mmproj-auto" in flags_by_name:
            parsed_arguments.values["mmproj_auto"] = True
        elif flag_values.get("mmproj_auto"):
            del flag_values["mmproj_auto"]  # no repository, no file of an encoder
        if HF_FILE_FIELD in flag_values:
            parsed_arguments.model = f"{parsed_arguments.model}/{flag_values.pop(HF_FILE_FIELD)}"
        if server_program.has_positional_model and positional_words:
            parsed_arguments.model = positional_words.pop(0)
        for ignored_name in positional_words:
            if is_unresolved(ignored_name):
                raise InputError(unresolved_reason(ignored_name))
            if ignored_name != "--":
                raise InputError(f"'{printable_word(ignored_name)[:60]}' stands behind no flag; expected --flag value")
        for flag_field, flag_value in flag_values.items():
            flag = next(flag for flag in known_flags[::-1] if flag.field_name == flag_field)
            if flag.is_memory_neutral and not flag.choices:
                parsed_arguments.ignored_flags.append(flag.names[0])
                continue
            if flag_field not in typed_fields:
                _require_resolved(flag, flag_value)
            parsed_arguments.values[flag_field] = flag_value
    except InputError as error:
        if any(TEMPLATE_WORD.match(command_word) for command_word in command_words):
            raise InputError(f"{place_in_file}: a template with {{{{ … }}}}; expected the file that it makes") from None
        raise InputError(f"{place_in_file}: {error}") from None
    return parsed_arguments


def _field_of(flags_by_name: Mapping[str, Flag], flag_name: str) -> str:
    return flags_by_name[flag_name].field_name if flag_name in flags_by_name else keyword_of(flag_name)


HF_FILE_FIELD = "hf_file"
"""Field of llama-server's flag for a file of a repository, whose name states the quantization."""

TEMPLATE_WORD = re.compile(r"\{\{|-[^=]*(?:\{\{|\}\})")
"""Pattern of a word with an unfilled template placeholder; text after `=` may also be JSON."""

MAX_NOTES = 10
"""Largest number of unset variables in notes."""

FEWEST_TYPED_FLAGS = 2
"""Smallest number of flags by which the engine of a command is recognized."""

MAX_TYPED_FLAGS = 300
"""Largest number of flags for which the engine of a command is searched."""


def flags_of_program(server_program: ServerProgram, serving_engine: Engine) -> tuple[Flag, ...]:
    """Returns the flags of a server program: the program's additional flags, then the engine's flags."""
    return (
        Flag((*server_program.model_flags, f"--{MODEL_FLAG}")),
        *([Flag(("--hf-file", "-hff"))] if "--hf-repo" in server_program.model_flags else []),
        Flag((f"--{CONFIG_FLAG}", *server_program.config_flags)),
        *(Flag((ignored_spelling,), is_memory_neutral=True) for ignored_spelling in server_program.ignored_flags),
        *(Flag((spelling,), "switch", is_memory_neutral=True) for spelling in server_program.ignored_switches),
        *serving_engine.known_flags(),
    )


def engine_of_flags(command_words: Sequence[str]) -> str:
    """Returns the first engine that has all flags of a command; empty if none has, or no flag changes memory."""
    typed_names = {command_word.partition("=")[0] for command_word in command_words if command_word.startswith("--")}
    if not FEWEST_TYPED_FLAGS <= len(typed_names) <= MAX_TYPED_FLAGS:
        return ""
    for server_program in PROGRAMS:
        if server_program.engine not in ENGINE_FOLDERS:
            continue
        flags_by_name = flags_by_spelling(reversed(flags_of_program(server_program, engine(server_program.engine))))
        named_flags = [
            find_flag(flags_by_name, typed_name) for typed_name in typed_names - set(server_program.model_flags)
        ]
        if all(named_flags) and any(
            matched_flag is not None and not matched_flag.flag.is_memory_neutral for matched_flag in named_flags
        ):
            return server_program.engine
    return ""


def _takes_value(argument_word: str) -> bool:
    """Whether an argument is a flag that may take the next word as its value."""
    return argument_word.startswith("-") and "=" not in argument_word


def _require_resolved(flag: Flag, flag_value: Any) -> None:
    """Raises `InputError` for a flag whose value has a part that is known only when the file runs."""
    nested_values = (
        flag_value.values()
        if isinstance(flag_value, Mapping)
        else flag_value
        if isinstance(flag_value, list)
        else [flag_value]
    )
    for nested_value in nested_values:
        if isinstance(nested_value, str) and is_unresolved(nested_value):
            raise InputError(f"{flag.names[0]}: {unresolved_reason(nested_value)}")


def _parse_marked_yaml(yaml_text: str, file_name: str) -> Any:
    """Parses YAML with unresolved names. Raises `InputError`, which names a line that a command prints."""
    try:
        return parse_yaml(yaml_text.replace("\0", YAML_MARK), file_name)
    except InputError:
        printed_lines = (
            (line_number, yaml_line)
            for line_number, yaml_line in enumerate(yaml_text.splitlines(), 1)
            if is_unresolved(yaml_line)
            and ":" not in re.sub(f"{UNRESOLVED_MARK}[^{UNRESOLVED_MARK}]*{UNRESOLVED_MARK}", "", yaml_line)
        )
        line_number, yaml_line = next(printed_lines, (0, ""))
        if not line_number:
            raise
        raise InputError(f"{file_name}: line {line_number}: {unresolved_reason(yaml_line)}") from None


YAML_MARK = "\ue000"
"""Replacement for the mark of an unresolved name while YAML is parsed."""


MAX_KEYS = 1_000
"""Largest number of keys in a table of a config file."""


def words_of_tables(
    config_table: Any, known_flags: Mapping[str, Flag], outer_keys: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yields command-line words equivalent to a config file's keys. known_flags: spelling → flag.

    A key of an inner table is `--outer.key`, or `--key` where only that is a flag. Raises `InputError` for no table.
    """
    if not isinstance(config_table, Mapping):
        raise InputError("the configuration is no table; expected flags by their names")
    if len(config_table) > MAX_KEYS:
        raise InputError(f"the configuration has {len(config_table):,} keys; expected at most {MAX_KEYS:,}")
    for config_key, config_value in config_table.items():
        key_path = (*outer_keys, str(config_key).replace(YAML_MARK, "\0"))
        flag = find_flag(known_flags, f"--{'.'.join(key_path)}") or find_flag(known_flags, f"--{key_path[-1]}")
        outer_flag = known_flags.get(f"--{key_path[0].replace('_', '-')}")
        if isinstance(config_value, Mapping) and not (outer_flag is not None and outer_flag.value_kind == "table"):
            yield from words_of_tables(config_value, known_flags, key_path)
            continue
        if isinstance(config_value, Mapping):
            for inner_key, inner_item in config_value.items():
                yield from (f"--{'.'.join((*key_path, str(inner_key)))}={_word_of_value(inner_item)}",)
            continue
        if flag is None or find_flag(known_flags, f"--{'.'.join(key_path)}"):
            flag_name = f"--{'.'.join(key_path)}"
        else:
            flag_name = f"--{key_path[-1]}"
        if isinstance(config_value, bool) and (flag is None or flag.flag.value_kind == "switch"):
            yield flag_name if config_value else f"--no-{flag_name[2:]}"
        elif isinstance(config_value, list) and flag is not None and flag.flag.value_kind in ("list", "numbers"):
            yield flag_name
            yield from map(_word_of_value, config_value)
        elif config_value is not None:
            yield f"{flag_name}={_word_of_value(config_value)}"


def _word_of_value(config_value: Any) -> str:
    """Returns a value as a word of a command line."""
    if isinstance(config_value, bool):
        return str(config_value).lower()
    if isinstance(config_value, Mapping | list):
        import json

        return json.dumps(config_value).replace("\\ue000", "\0")
    return str(config_value).replace(YAML_MARK, "\0")
