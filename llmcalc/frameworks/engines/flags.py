"""Flags of serving engines, and the division of a command line into llmcalc's options and an engine's flags."""

from __future__ import annotations

import re
import tomllib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from ...device_memory.settings import Settings
from ...errors import InputError, short_repr, suggest
from ...parallel.layout_request import LayoutRequest
from ...sources.files import parse_json, require_shallow_nesting
from ...units import exact_number, parse_length
from ...workload.setting import declarations_of
from ..argument_names import keyword_of

FlagKind: TypeAlias = Literal[
    "tokens", "number", "numbers", "share", "ratio", "gib", "switch", "word", "text", "list", "table"
]

LARGEST_NUMBER = 10**12
"""Largest number that is accepted as a flag's value."""

AUTO_WORDS = ("auto", "-1")
"""Values that leave the number of tokens to the engine."""

AMOUNT_RANGES: dict[FlagKind, str] = {
    "share": "a share above 0, at most 1", "ratio": "a ratio, 0 or more", "gib": "GiB, 0 or more",
}  # fmt: skip
"""Kind of a flag with a fractional value → the accepted values, in words."""

VALUE_KINDS = ("tokens", "number", "numbers", "share", "ratio", "gib", "table", "word")
"""Kinds of flags that a truth value cannot turn off."""

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


OFFLOAD_FLAG_NAME = re.compile(r"-offload-gb$")
"""Pattern of flag names whose value 0 turns a feature off."""

COMPILATION_FLAG = "--compilation-config"
"""vLLM's flag whose value is a table, or a whole number for the optimization level."""

RANK_COUNT_NAME = re.compile(r"-(?:cp|dcp|dp|dwdp|parallel)-size$|^-pcp$")
"""Pattern of flag names whose value 1 turns a feature off."""


class Flag(NamedTuple):
    """A command-line flag of a serving engine.

    names: spellings of the flag, the usual one first.
    value_kind: how its value is read: tokens (`32k`, `32K`), number, numbers, share (0 to 1), ratio, gib, switch (no
        value), word, text, list (several words), or table (JSON, `name=1,other=2`, or keys behind the
        flag: `--flag.key 1`).
    choices: the values that are modelled, for a word; words that may stand for a number.
    value_if_bare: the value of a flag that is written without one, for a word; empty if it needs a value.
    is_repeatable: whether the flag may be written several times, with the values joined by commas.
    disabling_spellings: spellings that turn a switch off, beside its name behind `--no-`.
    refusal_reason: why the flag is not modelled, in words; empty if it is.
    is_memory_neutral: whether the flag changes no memory of the device.
    minimum, maximum: bounds of a number.
    value_kinds: the keys of a table whose values are read as those of a flag, with their kinds.
    """

    names: tuple[str, ...]
    value_kind: FlagKind = "text"
    choices: tuple[str, ...] = ()
    refusal_reason: str = ""
    is_memory_neutral: bool = False
    minimum: int = 1
    maximum: int = LARGEST_NUMBER
    value_if_bare: str = ""
    is_repeatable: bool = False
    disabling_spellings: tuple[str, ...] = ()
    value_kinds: tuple[tuple[str, FlagKind], ...] = ()

    @property
    def field_name(self) -> str:
        """The field name of the flag's value, such as `max_model_len` for `--max-model-len`."""
        return keyword_of(self.names[0])

    def read_value(self, flag_value: Any) -> Any:
        """Returns the flag's value from text. Raises `InputError` with the flag's name."""
        flag_name = self.names[0]
        if self.refusal_reason:
            if self._is_turned_off(flag_value):
                return flag_value
            raise InputError(f"{flag_name}: {self.refusal_reason}")
        try:
            str(flag_value)
        except ValueError:  # a number of thousands of digits, from Python
            raise InputError(f"{flag_name}: {short_repr(flag_value)} is too long; expected a shorter value") from None
        if self.value_kind == "switch":
            return _read_switch(flag_name, flag_value)
        if self.value_kind in ("tokens", "number") and str(flag_value).lower() in self.choices:
            return str(flag_value).lower()
        if self.value_kind == "tokens":
            return self._check_bounds(_read_tokens(flag_name, flag_value))
        if self.value_kind == "number":
            return self._check_bounds(_read_number(flag_name, flag_value))
        if self.value_kind in AMOUNT_RANGES:
            return _read_amount(flag_name, flag_value, self.value_kind)
        if self.value_kind == "numbers":
            return tuple(
                self._check_bounds(_read_number(flag_name, list_item))
                for list_item in _read_list(flag_name, flag_value)
            )
        if self.value_kind == "table":
            return self._read_keys(_read_table(flag_name, flag_value))
        value_text = str(flag_value).strip()
        if self.value_kind == "word" and value_text.lower() not in self.choices:
            expected_text = f"{'one of ' * (len(self.choices) > 1)}{', '.join(self.choices)}"
            raise InputError(
                f"{flag_name} {short_repr(value_text)}: is not modelled; expected {expected_text}."
                f"{suggest(value_text, list(self.choices))}"
            )
        return value_text.lower() if self.value_kind == "word" else value_text

    def _is_turned_off(self, flag_value: Any) -> bool:
        """Whether a value turns the feature off: `false` for a switch, 0 for an amount, 1 for a group of ranks."""
        value_text = str(flag_value).strip().lower()[:10]
        if self.value_kind == "switch":
            return value_text == "false"
        is_amount = OFFLOAD_FLAG_NAME.search(self.names[0]) is not None
        is_rank_count = RANK_COUNT_NAME.search(self.names[0]) is not None
        return (is_amount and value_text in ("0", "0.0")) or (is_rank_count and value_text == "1")

    def _read_keys(self, flag_table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns a table with parsed values for the keys in `value_kinds`. Raises `InputError` with flag and key."""
        unset_keys = {unset_key for unset_key, _ in self.value_kinds if flag_table.get(unset_key) is None}
        read_values = {
            unset_key: Flag((f"{self.names[0]}: {unset_key}",), value_kind, minimum=0).read_value(flag_table[unset_key])
            for unset_key, value_kind in self.value_kinds
            if unset_key not in unset_keys and not (value_kind == "numbers" and flag_table[unset_key] == [])
        }
        return {
            unset_key: read_values.get(unset_key, key_value)
            for unset_key, key_value in flag_table.items()
            if unset_key not in unset_keys
        }

    def _check_bounds(self, checked_number: int) -> int:
        if not self.minimum <= checked_number <= self.maximum:
            raise InputError(f"{self.names[0]}: {checked_number:,}; expected {self.minimum:,} to {self.maximum:,}")
        return checked_number


def _read_switch(flag_name: str, flag_value: Any) -> bool:
    if isinstance(flag_value, bool):
        return flag_value
    if str(flag_value).lower() in ("true", "false"):
        return str(flag_value).lower() == "true"
    raise InputError(f"{flag_name} {short_repr(flag_value)}: expected true or false, or no value")


def _read_number(flag_name: str, flag_value: Any) -> int:
    if isinstance(flag_value, int) and not isinstance(flag_value, bool):
        return flag_value
    if isinstance(flag_value, str) and re.fullmatch(r"-?[0-9][0-9_,]{0,19}", flag_value):
        return int(flag_value.replace(",", "").replace("_", ""))
    raise InputError(f"{flag_name}: {short_repr(flag_value)}; expected a whole number")


def _read_tokens(flag_name: str, flag_value: Any) -> int:
    """Returns a number of tokens in the notation of vLLM and SGLang: 32k is 32,000 and 32K is 32,768."""
    if isinstance(flag_value, int) and not isinstance(flag_value, bool):
        return flag_value
    number_match = re.fullmatch(r"([0-9][0-9_,]{0,20}(?:\.[0-9]{1,9})?)([kKmMgG]?)", str(flag_value).strip())
    token_count = None
    if number_match is not None:
        token_count = exact_number(number_match[1], f"{flag_name} {flag_value}") * _SUFFIXES[number_match[2]]
    if token_count is None or token_count.denominator != 1:
        raise InputError(
            f"{flag_name}: {short_repr(flag_value)}; expected a number of tokens such as 32768, 32k (32,000) or 32K"
        )
    return int(token_count)


def _read_amount(flag_name: str, flag_value: Any, flag_kind: FlagKind) -> float:
    try:
        parsed_number = float(str(flag_value)[:40])
    except ValueError:
        parsed_number = -1.0
    is_percentage = flag_kind == "share"
    if not 0 <= parsed_number <= (1 if is_percentage else 10**6) or (is_percentage and parsed_number == 0):
        raise InputError(f"{flag_name}: {short_repr(flag_value)}; expected {AMOUNT_RANGES[flag_kind]}")
    return parsed_number


def refused_flags(feature_name: str, spellings_with_value: str = "", switch_names: str = "") -> list[Flag]:
    """Returns definitions of flags that raise an error, because their effect on memory is not modelled.

    feature_name: the subject of the error message. spellings_with_value, switch_names: the flags with and without a
        value, with spaces between; spellings of one flag have `|` between them.
    """
    refusal_text = f"{feature_name}: not modelled; remove the flag"
    flags_with_value = [
        Flag(tuple(spellings.split("|")), refusal_reason=refusal_text) for spellings in spellings_with_value.split()
    ]
    return flags_with_value + [
        Flag(tuple(spellings.split("|")), "switch", refusal_reason=refusal_text) for spellings in switch_names.split()
    ]


def memory_neutral_flags(flag_names: str, flag_kind: FlagKind = "text") -> list[Flag]:
    """Returns definitions of flags that do not affect device memory. flag_kind: type of the flags' values."""
    return [Flag(tuple(names_text.split("|")), flag_kind, is_memory_neutral=True) for names_text in flag_names.split()]


def memory_neutral_flags_of_engine(engine_file: str) -> list[Flag]:
    """Returns the flags in `memory_neutral_flags.toml`, in the same folder as an engine's file, by value type."""
    flags_by_kind = tomllib.loads(Path(engine_file).with_name("memory_neutral_flags.toml").read_text())
    return [
        flag
        for flag_kind, flag_names in flags_by_kind.items()
        for flag in memory_neutral_flags(flag_names, cast(FlagKind, flag_kind))
    ]


MAX_ITEMS = 10_000
"""Largest number of items in a flag's list."""


def _read_list(flag_name: str, flag_value: Any) -> list[Any]:
    """Returns the items of a list, given as a sequence, as JSON, or as words separated by spaces or commas."""
    if isinstance(flag_value, list | tuple):
        list_items = list(flag_value)
    elif isinstance(flag_value, int):
        list_items = [flag_value]
    else:
        list_items = re.findall(r"[^\s,\[\]]+", str(flag_value))
    if not 0 < len(list_items) <= MAX_ITEMS:
        raise InputError(f"{flag_name}: {len(list_items):,} numbers; expected 1 to {MAX_ITEMS:,}")
    return list_items


def _read_table(flag_name: str, flag_value: Any) -> Mapping[str, Any]:
    """Returns key → value for a mapping, JSON text or `name=1,other=2`; for `COMPILATION_FLAG` also for a number."""
    if isinstance(flag_value, Mapping):
        require_shallow_nesting(dict(flag_value), flag_name)
        return {str(table_key): _read_scalar(value_text_of_key) for table_key, value_text_of_key in flag_value.items()}
    value_text = str(flag_value).strip()
    if value_text.startswith("{"):
        parsed_table: Mapping[str, Any] = parse_json(value_text, flag_name)
        return parsed_table
    if flag_name == COMPILATION_FLAG and re.fullmatch(r"[0-9]{1,3}", value_text):
        return {"level": int(value_text)}
    keys_and_values = [key_and_value.partition("=") for key_and_value in value_text.split(",")]
    if not all(equals_sign and re.fullmatch(r"\w{1,80}", table_key) for table_key, equals_sign, _ in keys_and_values):
        raise InputError(f"{flag_name}: {short_repr(value_text)}; expected a JSON object")
    return {table_key: _read_scalar(value_text_of_key) for table_key, _, value_text_of_key in keys_and_values}


def _read_scalar(written_value: Any) -> Any:
    """Returns the number, boolean or JSON value that a text stands for, also inside tables; otherwise the text."""
    if isinstance(written_value, Mapping):
        return {str(table_key): _read_scalar(inner_value) for table_key, inner_value in written_value.items()}
    if not isinstance(written_value, str) or not re.match(r"[-0-9\[{]|true$|false$|null$", written_value):
        return written_value
    try:
        return parse_json(written_value, "value")
    except InputError:
        return written_value


def flags_by_spelling(flags: Iterable[Flag]) -> dict[str, Flag]:
    """Returns flags by spelling; a long flag has spellings with hyphens and with underscores."""
    return {
        spelling: flag
        for flag in flags
        for flag_name in flag.names
        for spelling in (flag_name, spelling_with_hyphens(flag_name))
    }


def spelling_with_hyphens(argument: str) -> str:
    """Returns a flag with hyphens for underscores, such as `--max-model-len` for `--max_model_len`."""
    return argument.replace("_", "-") if argument.startswith("--") else argument


EQUIVALENT_FLAGS = (
    ("--max-model-len", "--context-length", "--ctx-size", "--num-ctx", "--max-seq-len", "--context", "--ctx",
     "--context-len", "--context-size", "--context-window", "--seq-len", "--sequence-length", "--max-length"),
    ("--gpu-memory-utilization", "--mem-fraction-static", "--free-gpu-memory-fraction"),
    ("--max-num-seqs", "--max-running-requests", "--max-batch-size", "--num-parallel", "--parallel",
     "--batch-size"),
    ("--max-num-batched-tokens", "--chunked-prefill-size", "--max-num-tokens"),
    ("--tensor-parallel-size", "--tp-size", "--tp"),
    ("--pipeline-parallel-size", "--pp-size"),
    ("--data-parallel-size", "--dp-size"),
    ("--enforce-eager", "--disable-cuda-graph"),
    ("--kv-cache-dtype", "--cache-type-k"),
)  # fmt: skip
"""Flags of different engines with one meaning, in each group: the tokens of a request, the share of the device's
memory, the requests at once, the tokens of a step, the ranks of a layout, no CUDA graphs, the format of the cache. The
last names in a group are those that people type and no engine has."""

NAMES_OF_HARDWARE = ("--gpu", "--gpu-type", "--accelerator", "--card")
"""Names that users type for llmcalc's option `--hardware`."""


def read_flag_values(
    engine_title: str,
    flags: Sequence[Flag],
    typed_values: Mapping[str, Any],
    renamed_flags: Mapping[str, str] = MappingProxyType({}),
    alternatives_by_flag: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the parsed values of flags, keyed by field name such as `max_model_len`.

    renamed_flags, alternatives_by_flag: as in `split_arguments`; default none.
    Raises `InputError` for an unknown flag, with the nearest name.
    """
    flags_by_name = flags_by_spelling(flags)
    flags_by_keyword = {keyword_of(flag_name): flag for flag_name, flag in flags_by_name.items()}
    options_by_keyword = {keyword_of(llmcalc_option): llmcalc_option for llmcalc_option in renamed_flags}
    field_values: dict[str, Any] = {}
    for flag_name, flag_value in typed_values.items():
        llmcalc_option = options_by_keyword.get(flag_name)
        if flag_name not in flags_by_keyword and llmcalc_option is not None:
            if flag_value is not None:
                for flag in (flags_by_name[engine_flag] for engine_flag in renamed_flags[llmcalc_option].split()):
                    field_values[flag.field_name] = flag.read_value(
                        _value_in_engine_form(llmcalc_option, flag, str(flag_value))
                    )
            continue
        if flag_name not in flags_by_keyword:
            spellings = (flag_spelling for flag in flags for flag_spelling in flag.names)
            suggestion = suggest(flag_name, {keyword_of(flag_spelling): flag_spelling for flag_spelling in spellings})
            typed_flag = flag_name if flag_name.isupper() else f"--{flag_name.replace('_', '-')}"
            raise _unknown_flag_error(engine_title, typed_flag, flags_by_name, suggestion, alternatives_by_flag)
        flag = flags_by_keyword[flag_name]
        needs_value = flag.value_kind in VALUE_KINDS and not (
            flag.value_if_bare or flag.disabling_spellings or flag.refusal_reason or flag.is_memory_neutral
        )
        is_turned_off = flag_value is False and not needs_value
        if flag_value is not None:
            field_values[flag.field_name] = False if is_turned_off else flag.read_value(flag_value)
    return {
        field_name: field_value
        for field_name, field_value in field_values.items()
        if not _is_memory_neutral_field(flags, field_name)
    }


def _suggested_equivalent(flag_name: str, flags_by_name: Mapping[str, Flag]) -> str:
    """Returns a hint at this engine's flag that means the same as another engine's flag; empty if there is none.

    `--pp` and the like are short for `--pp-size`.
    """
    typed_flag = spelling_with_hyphens(flag_name)
    equivalents = [spelling for synonyms in EQUIVALENT_FLAGS if typed_flag in synonyms for spelling in synonyms]
    equivalents.append(f"{typed_flag}-size")
    equivalent_flag = next((spelling for spelling in equivalents if spelling in flags_by_name), "")
    return equivalent_flag and f" Did you mean {equivalent_flag}?"


def _check_refused_flags(flags_by_name: Mapping[str, Flag], arguments: Sequence[str]) -> None:
    """Raises `InputError` for the first refused flag, which may be why other flags are unknown (`--omni`)."""
    for argument in arguments:
        flag = flags_by_name.get(argument.partition("=")[0]) if argument.startswith("--") else None
        if flag is not None and flag.refusal_reason:
            flag.read_value(True)


def _unknown_flag_error(
    engine_title: str,
    flag_name: str,
    flags_by_name: Mapping[str, Flag],
    suggestion: str,
    alternatives_by_flag: Mapping[str, str],
) -> InputError:
    """Returns the error for an unknown flag, with llmcalc's option for the same, or similar names of flags.

    An option of runs without an engine, such as `--optimizer`, is named as such, unless a flag means the same.
    """
    if flag_name in alternatives_by_flag:
        return InputError(f"{flag_name}: {engine_title} has no such flag; expected {alternatives_by_flag[flag_name]}")
    equivalent_suggestion = _suggested_equivalent(flag_name, flags_by_name)
    if spelling_with_hyphens(flag_name) in NAMES_OF_HARDWARE:
        equivalent_suggestion = " Did you mean --hardware?"
    run_options = {*declarations_of(Settings), *declarations_of(LayoutRequest)}
    if keyword_of(flag_name) in run_options and not equivalent_suggestion:
        return InputError(
            f"{flag_name}: {engine_title} has no such flag; remove it, or remove --engine "
            f"({flag_name} is an option of runs without an engine)"
        )
    suggestion = equivalent_suggestion or suggestion
    return InputError(
        f"{flag_name}: {engine_title} has no such flag{f'.{suggestion}' if suggestion else '; remove it'}"
    )


def _is_memory_neutral_field(flags: Sequence[Flag], field_name: str) -> bool:
    return any(flag.field_name == field_name and flag.is_memory_neutral for flag in flags)


class MatchedFlag(NamedTuple):
    """The flag that an argument names. nested_keys: keys of inner tables, for arguments such as `--flag.key`."""

    flag: Flag
    nested_keys: tuple[str, ...] = ()


def find_flag(flags_by_name: Mapping[str, Flag], flag_name: str) -> MatchedFlag | None:
    """Returns the flag that an argument names by a spelling, an unambiguous prefix or a table key.

    flags_by_name: spelling → flag.
    """
    flag = flags_by_name.get(flag_name) or flags_by_name.get(spelling_with_hyphens(flag_name))
    if flag is not None:
        return MatchedFlag(flag)
    flag_before_dot, dot, nested_keys = flag_name.partition(".")
    table_flag = flags_by_name.get(flag_before_dot) or flags_by_name.get(spelling_with_hyphens(flag_before_dot))
    if (
        dot
        and table_flag is not None
        and (table_flag.value_kind == "table" or table_flag.is_memory_neutral or table_flag.refusal_reason)
    ):
        return MatchedFlag(table_flag, tuple(nested_keys.split(".")[:MAX_NESTED_KEYS]))
    if flag_name.startswith("--") and len(flag_name) > MAX_NESTED_KEYS:
        matching_flags = {
            known_flag.field_name: known_flag
            for known_spelling, known_flag in flags_by_name.items()
            if known_spelling.startswith(spelling_with_hyphens(flag_name))
        }
        if len(matching_flags) == 1:
            return MatchedFlag(next(iter(matching_flags.values())))
    return None


MAX_NESTED_KEYS = 4
"""Largest number of keys behind a flag; letters of an abbreviated flag, at least."""


def split_arguments(
    engine_title: str,
    flags: Sequence[Flag],
    arguments: Sequence[str],
    other_arguments: Mapping[str, bool],
    renamed_flags: Mapping[str, str],
    unknown_flags: dict[str, str] | None = None,
    alternatives_by_flag: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[str], dict[str, Any]]:
    """Splits a command line into llmcalc's own arguments, and values of engine flags by field name.

    other_arguments: options of llmcalc that stay → whether they take a value.
    renamed_flags: options of llmcalc, each → the engine's flags that it sets, with spaces between. Their values are
        kept under their own names, for `read_values`.
    unknown_flags: takes the reasons of unknown flags, by their names; None (default) to raise.
    alternatives_by_flag: option of llmcalc that the engine lacks → what says the same, as users type it; default none.
    Raises `InputError` for an unknown flag, with the nearest name, for a flag without its value, and for a number
    behind a flag that takes none.
    """
    flags_by_name = flags_by_spelling(flags)
    remaining_arguments: list[str] = []
    flag_values: dict[str, Any] = {}
    argument_queue = deque(arguments)
    while argument_queue:
        argument = argument_queue.popleft()
        if argument == "--":
            remaining_arguments += [argument, *argument_queue]
            break
        option_name, equals_sign, attached_value = argument.partition("=")
        flag = flags_by_name.get(option_name) or flags_by_name.get(spelling_with_hyphens(option_name))
        if (
            not argument.startswith("-") and flag is not None and equals_sign
        ):  # a variable of the environment: NAME=VALUE
            flag_values[flag.field_name] = attached_value
            continue
        if not argument.startswith("-") or argument == "-":
            remaining_arguments.append(argument)
            continue
        if (
            option_name in other_arguments
            and option_name not in flags_by_name
            and spelling_with_hyphens(option_name) not in flags_by_name
        ):
            remaining_arguments.append(argument)
            if other_arguments[option_name] and not equals_sign and argument_queue:
                remaining_arguments.append(argument_queue.popleft())
            continue
        # a name of llmcalc's option, such as --gpu, is no shortened flag
        matched_flag = (
            None
            if flag is None and alternatives_by_flag.get(option_name) in other_arguments
            else find_flag(flags_by_name, option_name)
        )
        switch_turned_off = None if matched_flag is not None else _switch_turned_off(flags_by_name, flags, option_name)
        if switch_turned_off is not None:
            flag_values[switch_turned_off.field_name] = False
            continue
        if matched_flag is None:
            if option_name in renamed_flags:
                if not equals_sign and not argument_queue:
                    raise InputError(f"{option_name}: the value is missing")
                flag_values[keyword_of(option_name)] = attached_value if equals_sign else argument_queue.popleft()
                continue
            known_spellings = {
                spelling_with_hyphens(spelling): spelling
                for spelling in (*(spelling for flag in flags for spelling in flag.names), *other_arguments)
            }
            suggestion = suggest(spelling_with_hyphens(option_name), known_spellings)
            if unknown_flags is None:
                _check_refused_flags(flags_by_name, arguments)
                raise _unknown_flag_error(engine_title, option_name, flags_by_name, suggestion, alternatives_by_flag)
            unknown_flags[option_name] = f"{engine_title} has no such flag"
            _take_values(argument_queue)
            continue
        flag = matched_flag.flag
        flag_value = attached_value if equals_sign else _take_value(option_name, flag, argument_queue)
        if (
            flag_value is True
            and unknown_flags is None
            and argument_queue
            and re.fullmatch(r"[0-9]+", argument_queue[0])
        ):
            raise InputError(
                f"{option_name} {argument_queue[0]}: {flag.names[0]} of {engine_title} takes no value; "
                + (
                    f"expected {alternatives_by_flag[option_name]}"
                    if option_name in alternatives_by_flag
                    else f"remove {argument_queue[0]}"
                )
            )
        if matched_flag.nested_keys:
            _set_nested_key(flag_values, (flag.field_name, *matched_flag.nested_keys), flag_value)
        else:
            flag_values[flag.field_name] = (
                f"{flag_values[flag.field_name]},{flag_value}"
                if flag.is_repeatable and flag.field_name in flag_values
                else flag_value
            )
    return remaining_arguments, flag_values


def _value_in_engine_form(option_name: str, flag: Flag, value_text: str) -> str:
    """Converts the value of an llmcalc option for an engine's flag: 8k becomes 8,192 tokens, 2 devices become 0,1."""
    lists_devices = option_name == "--devices" and flag.value_kind == "text"
    if flag.value_kind not in ("tokens", "number") and not lists_devices:
        return value_text
    try:
        parsed_number = parse_length(value_text)
    except InputError as error:
        raise InputError(f"{option_name}: {error}") from None
    if not lists_devices:
        return str(parsed_number)
    if not 1 <= parsed_number <= MAX_DEVICES:
        raise InputError(f"{option_name}: {parsed_number:,}; expected 1 to {MAX_DEVICES}")
    return ",".join(map(str, range(parsed_number)))


MAX_DEVICES = 64
"""Largest number of devices in an engine's list of devices."""


def _switch_turned_off(flags_by_name: Mapping[str, Flag], flags: Sequence[Flag], flag_name: str) -> Flag | None:
    """Returns the switch that a spelling such as `--no-flag` turns off; None for any other spelling."""
    flag = (
        flags_by_name.get("--" + spelling_with_hyphens(flag_name)[5:])
        if spelling_with_hyphens(flag_name).startswith("--no-")
        else None
    )
    if flag is not None and flag.value_kind == "switch":
        return flag
    return next((flag for flag in flags if flag_name in flag.disabling_spellings), None)


def _take_value(flag_name: str, flag: Flag, argument_queue: deque[str]) -> Any:
    """Removes and returns a flag's value from the queue of arguments. Raises `InputError` if it is missing."""
    next_argument = argument_queue[0].lower() if argument_queue else ""
    if flag.value_kind == "switch":
        return argument_queue.popleft() if next_argument in ("true", "false") else True
    if flag.value_kind in ("list", "numbers"):
        return " ".join(_take_values(argument_queue))
    if flag.value_if_bare and next_argument not in flag.choices:
        return flag.value_if_bare
    if not argument_queue:
        raise InputError(f"{flag_name}: the value is missing")
    return argument_queue.popleft()


def _take_values(argument_queue: deque[str]) -> list[str]:
    """Removes and returns all arguments in the queue before the next flag."""
    option_values = []
    while argument_queue and not re.match(r"--?[A-Za-z]", argument_queue[0]):
        option_values.append(argument_queue.popleft())
    return option_values


def _set_nested_key(nested_table: dict[str, Any], nested_keys: Sequence[str], new_value: Any) -> None:
    """Sets a value in nested tables at a sequence of keys; creates missing inner tables."""
    *outer_keys, last_key = nested_keys
    for outer_key in outer_keys:
        if not isinstance(nested_table.get(outer_key), dict):
            nested_table[outer_key] = {}
        nested_table = nested_table[outer_key]
    nested_table[last_key] = new_value
