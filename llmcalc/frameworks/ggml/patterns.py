"""Compiles the regular expressions of `--override-tensor` to automata, which match in linear time.

A pattern is the user's text, and Python's `re` needs exponential time for some. So a pattern becomes a small automaton
that is in all of its states at once. The syntax is ECMAScript's, as std::regex reads it, without look-ahead and
references.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import InputError, short_repr

MAX_CHARACTERS = 2_000
"""Largest number of characters in a pattern."""

MAX_STATES = 5_000
"""Largest number of states in the automaton of a pattern, with counted repeats written out."""

MAX_STEPS = 20_000_000
"""Largest number of states that a pattern visits, summed over all tensor names."""

LONGEST_NAME = 256
"""Number of characters of a tensor's name that are matched."""

CharacterTest: TypeAlias = Callable[[str], bool]

CHARACTER_CLASSES: dict[str, CharacterTest] = {
    "d": lambda c: c in string.digits,
    "D": lambda c: c not in string.digits,
    "w": lambda c: c in string.ascii_letters + string.digits + "_",
    "W": lambda c: c not in string.ascii_letters + string.digits + "_",
    "s": str.isspace,
    "S": lambda c: not c.isspace(),
}

ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}


@dataclass(frozen=True)
class _PatternAnchor:
    """An anchor in a regular expression: the start (`^`) or the end (`$`) of the name."""

    is_end: bool


_Step: TypeAlias = CharacterTest | _PatternAnchor | None
"""The way from one state to the next: by reading a character, at an end of the name, or without condition."""


def _character_range_test(first_character: str, last_character: str) -> CharacterTest:
    """Returns a function that tests whether a character is in a range, which includes both ends."""
    return lambda character: first_character <= character <= last_character


class NamePattern:
    """A compiled regular expression. Raises `InputError` with the flag's name for an invalid expression."""

    def __init__(self, pattern_text: str, flag: str) -> None:
        self._text, self._flag, self._at, self._depth, self._steps = pattern_text, flag, 0, 0, 0
        self._matched: dict[str, bool] = {}
        if len(pattern_text) > MAX_CHARACTERS:
            raise InputError(
                f"{flag}: a pattern of {len(pattern_text):,} characters; expected at most {MAX_CHARACTERS:,}"
            )
        self._edges: list[list[tuple[_Step, int]]] = [[]]
        self._end = self._parse_alternatives(0)
        if self._at < len(pattern_text):
            raise self._pattern_error("an unmatched )")

    def matches(self, tensor_name: str) -> bool:
        """Whether the pattern matches anywhere in a name (std::regex_search); results are cached."""
        if tensor_name not in self._matched:
            self._matched[tensor_name] = self._search(tensor_name[:LONGEST_NAME])
        return self._matched[tensor_name]

    def _search(self, tensor_name: str) -> bool:
        active_states: set[int] = set()
        for i in range(len(tensor_name) + 1):
            self._add_reachable_states(0, active_states, i == 0, i == len(tensor_name))
            if self._end in active_states:
                return True
            next_states: set[int] = set()
            if i < len(tensor_name):
                for automaton_state in active_states:
                    for edge_test, next_state in self._edges[automaton_state]:
                        if (
                            edge_test is not None
                            and not isinstance(edge_test, _PatternAnchor)
                            and edge_test(tensor_name[i])
                        ):
                            self._add_reachable_states(next_state, next_states, False, i + 1 == len(tensor_name))
            active_states = next_states
        return False

    def _add_reachable_states(
        self, start_state: int, reached_states: set[int], is_at_start: bool, is_at_end: bool
    ) -> None:
        """Adds a state of the automaton, and all states that are reachable from it without reading a character."""
        pending_states = [start_state]
        while pending_states:
            current_state = pending_states.pop()
            if current_state in reached_states:
                continue
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise InputError(
                    f"{self._flag} {short_repr(self._text)}: the pattern is too slow; expected a simpler one"
                )
            reached_states.add(current_state)
            for edge_test, next_state in self._edges[current_state]:
                if edge_test is None or (
                    isinstance(edge_test, _PatternAnchor) and (is_at_end if edge_test.is_end else is_at_start)
                ):
                    pending_states.append(next_state)

    def _new_state(self) -> int:
        if len(self._edges) >= MAX_STATES:
            raise InputError(f"{self._flag} {short_repr(self._text)}: the pattern's repeats are too many")
        self._edges.append([])
        return len(self._edges) - 1

    def _pattern_error(self, description: str) -> InputError:
        return InputError(
            f"{self._flag} {short_repr(self._text)}: {description} at character {self._at + 1} of the pattern"
        )

    def _next_character(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _parse_alternatives(self, start_state: int) -> int:
        self._depth += 1
        if self._depth > 50:
            raise self._pattern_error("too many groups in one another")
        end_states = [self._parse_sequence(start_state)]
        while self._next_character() == "|":
            self._at += 1
            end_states.append(self._parse_sequence(start_state))
        end_state = self._new_state()
        for end_state_of_branch in end_states:
            self._edges[end_state_of_branch].append((None, end_state))
        self._depth -= 1
        return end_state

    def _parse_sequence(self, start_state: int) -> int:
        end_state = self._new_state()
        self._edges[start_state].append((None, end_state))
        while self._next_character() not in ("", "|", ")"):
            end_state = self._parse_repetition(end_state)
        return end_state

    def _parse_repetition(self, start_state: int) -> int:
        """Parses an atom and its repeat count, adds its states once per repetition, and returns the end state."""
        atom_start = self._at
        end_state = self._parse_atom(start_state)
        first_new_state = self._at
        least_times, most_times = self._parse_counts()
        text_position = self._at
        if (least_times, most_times) == (1, 1):
            return end_state
        self._edges[start_state].clear()
        current_state = start_state
        for _ in range(least_times):
            current_state = self._copy_states(atom_start, first_new_state, current_state)
        if most_times is None:
            loop_state = self._new_state()
            self._edges[current_state].append((None, loop_state))
            self._edges[self._copy_states(atom_start, first_new_state, loop_state)].append((None, loop_state))
            current_state = loop_state
        else:
            exit_states = [current_state]
            for _ in range(most_times - least_times):
                current_state = self._copy_states(atom_start, first_new_state, current_state)
                exit_states.append(current_state)
            current_state = self._new_state()
            for exit_state in exit_states:
                self._edges[exit_state].append((None, current_state))
        self._at = text_position
        return current_state

    def _copy_states(self, first_state: int, states_end: int, start_state: int) -> int:
        self._at = first_state
        new_state = self._new_state()
        self._edges[start_state].append((None, new_state))
        end_state = self._parse_atom(new_state)
        assert self._at == states_end
        return end_state

    def _parse_counts(self) -> tuple[int, int | None]:
        """Parses `*`, `+`, `?` or `{m,n}`, and returns the minimum and maximum of repetitions; None for no maximum."""
        character = self._next_character()
        if character and character in "*+?":
            self._at += 1
            repetition_counts: tuple[int, int | None] = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        elif character == "{":
            text_in_braces, closing_brace, _ = self._text[self._at + 1 :].partition("}")
            least_text, separator, most_text = text_in_braces.partition(",")
            if (
                not closing_brace
                or not least_text.isdecimal()
                or (most_text and not most_text.isdecimal())
                or len(text_in_braces) > 9
            ):
                raise self._pattern_error("a wrong repeat")
            self._at += len(text_in_braces) + 2
            repetition_counts = (
                int(least_text),
                int(most_text) if most_text else (None if separator else int(least_text)),
            )
            if repetition_counts[1] is not None and repetition_counts[1] < repetition_counts[0]:
                raise self._pattern_error("a wrong repeat")
        else:
            return 1, 1
        if self._next_character() == "?":  # lazy: the same names match
            self._at += 1
        return repetition_counts

    def _parse_atom(self, start_state: int) -> int:
        character = self._next_character()
        if character == "(":
            return self._parse_group(start_state)
        if character in "*+?{":
            raise self._pattern_error("a repeat of nothing")
        self._at += 1
        end_state = self._new_state()
        state_edge: _Step
        if character in "^$":
            state_edge = _PatternAnchor(character == "$")
        elif character == "[":
            state_edge = self._parse_character_set()
        elif character == "\\":
            state_edge = self._parse_escape()
        elif character == ".":
            state_edge = lambda character_read: character_read not in "\n\r"  # noqa: E731
        else:
            state_edge = character.__eq__
        self._edges[start_state].append((state_edge, end_state))
        return end_state

    def _parse_group(self, start_state: int) -> int:
        self._at += 1
        if self._next_character() == "?":
            if self._text[self._at : self._at + 2] != "?:":
                raise self._pattern_error("look-ahead is not modelled")
            self._at += 2
        end_state = self._parse_alternatives(start_state)
        if self._next_character() != ")":
            raise self._pattern_error("an unmatched (")
        self._at += 1
        return end_state

    def _parse_escape(self) -> CharacterTest:
        character = self._next_character()
        if not character or character in "bB" or character.isdecimal():
            raise self._pattern_error("an escape that is not modelled")
        self._at += 1
        return CHARACTER_CLASSES.get(character) or ESCAPES.get(character, character).__eq__

    def _parse_character_set(self) -> CharacterTest:
        is_negated = self._next_character() == "^"
        self._at += is_negated
        character_tests: list[CharacterTest] = []
        while self._next_character() != "]":
            if not self._next_character():
                raise self._pattern_error("an unmatched [")
            first_character = self._next_character()
            self._at += 1
            if first_character == "\\":
                character_tests.append(self._parse_escape())
                continue
            if self._next_character() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                last_character = self._text[self._at + 1]
                self._at += 2
                if last_character < first_character:
                    raise self._pattern_error("a wrong range")
                character_tests.append(_character_range_test(first_character, last_character))
            else:
                character_tests.append(first_character.__eq__)
        self._at += 1
        return lambda character_read: (
            any(character_test(character_read) is True for character_test in character_tests) != is_negated
        )
