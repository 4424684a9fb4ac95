"""The contents of a log: program, model, version, flags, device and memory sizes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

from ...units import exact_number
from .log_text import LogText

LogKind: TypeAlias = Literal["startup", "oom"]
TermUnit: TypeAlias = Literal["bytes", "tokens", "blocks", "parameters"]

MEMORY_AMOUNT = r"-?[0-9]{1,12}(?:\.[0-9]{1,15})? ?(?:[KMGT]i?B|B|bytes)\b"
"""Pattern of an amount of memory: `14.99 GiB`, `17.12GiB`. Programs print GB and MB for GiB and MiB."""

WHOLE_NUMBER = r"[0-9][0-9,]{0,20}"
"""Pattern of a whole number, with or without commas."""

VERSION_NUMBER = r"v?[0-9]{1,6}(?:\.[0-9]{1,6}){1,3}"
"""Pattern of a version number; any suffix is left out."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_AMOUNT_PARTS = re.compile(r"(-?)([0-9.]+) ?([KMGT]?)")


class LogTerm(NamedTuple):
    """A named memory size that a log prints.

    name: `weights`, `kv_cache`, `allocated`, ….
    value: the size, in `unit`.
    device: the device that has it, where a log has terms of several.
    bytes_per_parameter, constant_bytes: where the program computes it from the number of parameters: by which rule. 0
        for no rule.
    """

    name: str
    value: int
    unit: TermUnit = "bytes"
    device: str = ""
    bytes_per_parameter: Fraction = Fraction(0)
    constant_bytes: int = 0


@dataclass(frozen=True)
class ParsedLog:
    """The contents of a log that readers extract.

    program: the word of `--engine`, or the name of another program. title: its name on screens.
    terms: the memory sizes in the log. kind: whether it is a start-up or an out-of-memory message.
    version, model, device: as printed; empty where the log has none. total_bytes: the device's memory.
    free_bytes: free bytes of the device before the engine loaded weights; None if the log does not state them.
    flags: name of a flag's value → value, as printed. has_complete_arguments: whether flags that are not there are
        defaults.
    scheme: how the weights are stored, as `--quantize` names it; empty where the log does not say.
    stop_message: why the program stopped, in its words. refused_to_start: whether it refused to start by a rule of its
        own.
    too_large_term, suggested_flag: the term that the log itself shows to be too large, and what changes it.
    memory_saving_flag: what makes the program allocate less while it runs.
    cache_tokens, cache_dtype: the cache's length and number format, where they follow from the log alone.
    note: a remark on the start that the log shows; empty for none.
    layout_note: a remark on the layout where the names of processes show it, and no arguments do; empty for none.
    """

    program: str
    title: str
    terms: tuple[LogTerm, ...]
    kind: LogKind = "startup"
    version: str = ""
    model: str = ""
    device: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    has_complete_arguments: bool = False
    scheme: str = ""
    stop_message: str = ""
    refused_to_start: bool = False
    too_large_term: str = ""
    suggested_flag: str = ""
    memory_saving_flag: str = ""
    cache_tokens: int = 0
    cache_dtype: str = ""
    note: str = ""
    layout_note: str = ""


class LinePattern(NamedTuple):
    """A regular expression that is tried only in lines with a fixed text.

    required_text: a part of the line. regex: matches in the hint or after it; its groups are named as the values.
    """

    required_text: str
    regex: re.Pattern[str]


def line_pattern(line_hint: str, line_regex: str) -> LinePattern:
    """Returns a regular expression that is tried only after the fixed text `line_hint` in a line."""
    return LinePattern(line_hint, re.compile(line_regex))


def _skip_no_line(log_line: str) -> bool:
    """Returns False for every log line: the default test of lines to skip."""
    return False


class LogValues:
    """The values of regular expressions in a log, by regex group, in line order."""

    def __init__(
        self, log_text: LogText, line_patterns: Sequence[LinePattern], is_skipped: Callable[[str], bool] = _skip_no_line
    ) -> None:
        """Matches the patterns in a log. is_skipped: whether a line is skipped; by default no line is."""
        matches_by_group: dict[str, list[tuple[int, str]]] = {}
        for line_hint, line_regex in line_patterns:
            for line_start, hint_start, line_end in log_text.line_spans(line_hint):
                value_match = line_regex.search(log_text.text, hint_start, line_end)
                if value_match is not None and not is_skipped(log_text.text[line_start:line_end]):
                    for group_name, matched_text in value_match.groupdict().items():
                        matches_by_group.setdefault(group_name, []).append((hint_start, matched_text))
        self.values: dict[str, list[str]] = {
            group_name: [matched_text for _, matched_text in sorted(positions_and_values)]
            for group_name, positions_and_values in matches_by_group.items()
        }

    def __contains__(self, group_name: str) -> bool:
        return bool(self.values.get(group_name))

    def last_text(self, group_name: str) -> str:
        """Returns the last text that a named regex group matched; empty if there is none."""
        return (self.values.get(group_name) or [""])[-1].strip()

    @property
    def version(self) -> str:
        """The program's version from the regex group `version`, without a leading `v`."""
        return self.last_text("version").removeprefix("v")

    def stated_numbers(self, *group_names: str) -> dict[str, str]:
        """Returns regex group → matched number as text, without commas."""
        return {
            group_name: self.last_text(group_name).replace(",", "") for group_name in group_names if group_name in self
        }

    def byte_sizes(self, group_name: str) -> list[int]:
        """Returns the memory sizes, in bytes, that a named regex group matched."""
        return [parse_bytes(matched_text) for matched_text in self.values.get(group_name, ())]

    def whole_numbers(self, group_name: str) -> list[int]:
        """Returns the whole numbers that a named regex group matched."""
        return [int(matched_text.replace(",", "")) for matched_text in self.values.get(group_name, ())]

    def largest_terms(self, *group_names: str) -> list[LogTerm]:
        """Returns name → the largest logged size over the ranks."""
        return [
            LogTerm(group_name, max(self.byte_sizes(group_name))) for group_name in group_names if group_name in self
        ]

    def last_size(self, group_name: str) -> int | None:
        """Returns the last memory size, in bytes, that a named regex group matched; None if there is none."""
        matched_sizes = self.byte_sizes(group_name)
        return matched_sizes[-1] if matched_sizes else None


def parse_bytes(size_text: str) -> int:
    """Returns the bytes of a size such as `14.99 GiB`; in logs GB means GiB."""
    size_match = _AMOUNT_PARTS.match(size_text.strip())
    if size_match is None or size_match[2].count(".") > 1:
        return 0
    byte_count = exact_number(size_match[2].rstrip("."), size_text) * _UNITS[size_match[3]]
    return -round(byte_count) if size_match[1] else round(byte_count)


_RANK = re.compile(r"(?<![A-Za-z0-9])(DP|PP|TP|EP)([0-9]{1,4})(?![A-Za-z0-9])")


def ranks_by_group(process_name: str) -> dict[str, int]:
    """Returns parallel group → rank, from a process's name: `Worker_PP0_TP1` is {"PP": 0, "TP": 1}."""
    return {rank_match[1]: int(rank_match[2]) for rank_match in _RANK.finditer(process_name.replace("_", " "))}


def sizes_of_groups(process_names: Iterable[str]) -> tuple[dict[str, int], str]:
    """Returns the size of each parallel group by the largest rank in process names, and a note on them.

    A group of which no name has another rank than 0 is not there, since some programs name the rank of one device too.
    """
    named_ranks = [ranks_by_group(process_name) for process_name in process_names]
    group_names = sorted({group_name for process_ranks in named_ranks for group_name in process_ranks} - {"EP"})
    sizes_by_group = {
        group: max(process_ranks.get(group, 0) for process_ranks in named_ranks) + 1 for group in group_names
    }
    ranks_text = ", ".join(f"{group}{group_size - 1}" for group, group_size in sizes_by_group.items() if group_size > 1)
    origin_remark = f"the log shows no arguments, but ranks up to {ranks_text}: computed with as many ranks"
    if not ranks_text:
        origin_remark = (
            f"the log shows no arguments, and of the ranks {'0, '.join(group_names)}0 alone: computed with no others"
        )
    return {
        group: group_size for group, group_size in sizes_by_group.items() if group_size > 1
    }, origin_remark if group_names else ""


_NAME_AND_VALUE = re.compile(
    r"['\"]?\b(?P<name>[a-z][a-z_0-9]{0,50})['\"]?[=:] ?"
    r"(?P<value>'[^'\n]{0,400}'|\"[^\"\n]{0,400}\"|True|False|[\[{]|[a-z0-9][A-Za-z0-9_.+-]{0,60})"
)

_BRACKET_OR_QUOTED = re.compile(r"[\[{(]|[\]})]|'[^'\n]*'|\"[^\"\n]*\"")

DEEPEST_CONTAINER = 20
"""Largest nesting depth of brackets in a printed list or table."""


def argument_pairs(arguments_text: str) -> dict[str, Any]:
    """Returns name → value, from arguments as Python prints them: `{'a': 1}`, `Namespace(a=1)`, `a=1, b='x'`.

    A list or a table of Python's literals is that list or table, another one is its text.
    """
    values_by_name: dict[str, Any] = {}
    text_position, is_cut_off = 0, False
    while (pair_match := _NAME_AND_VALUE.search(arguments_text, text_position)) is not None:
        printed_value: Any = pair_match["value"]
        text_position = pair_match.end()
        if printed_value in ("True", "False"):
            printed_value = printed_value == "True"
        elif printed_value[0] in "'\"":
            printed_value = printed_value[1:-1]
        elif printed_value in "[{":
            bracketed_text = "" if is_cut_off else _bracketed_text(arguments_text, pair_match.start("value"))
            if not bracketed_text:
                is_cut_off = True
                continue
            text_position = pair_match.start("value") + len(bracketed_text)
            printed_value = _literal_value(bracketed_text)
        values_by_name.setdefault(pair_match["name"], printed_value)
    return values_by_name


def _bracketed_text(arguments_text: str, container_start: int) -> str:
    """Returns the text of a list or table from its opening to its closing bracket; empty if it is not closed."""
    bracket_depth = 0
    for bracket_match in _BRACKET_OR_QUOTED.finditer(arguments_text, container_start):
        bracket_depth += (bracket_match[0] in "[{(") - (bracket_match[0] in "]})")
        if bracket_depth == 0:
            return arguments_text[container_start : bracket_match.end()]
        if bracket_depth > DEEPEST_CONTAINER:
            break
    return ""


def _literal_value(bracketed_text: str) -> Any:
    """Returns the list or table that Python printed as a text; the text itself if it contains other objects."""
    try:
        literal_value = ast.literal_eval(bracketed_text)
        repr(literal_value)  # a ValueError for a number of thousands of digits, which no message could print
        return literal_value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return bracketed_text
