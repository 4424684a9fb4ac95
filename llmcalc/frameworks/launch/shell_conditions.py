"""Evaluates conditions of a shell script, `[ … ]` and `test`, and tracks the blocks that they select."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .unresolved import UNSET_VARIABLE, is_unresolved

WHOLE_NUMBER = re.compile(r"-?[0-9]{1,15}")

NUMBER_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


@dataclass
class ShellBranch:
    """An open block of a shell script: a branch of `if` or `case`, or a loop.

    is_executed: whether its lines run; None if unresolved.
    earlier_branch_runs: whether an earlier branch of the same `if` or `case` runs; None if unresolved.
    case_text: the value that a `case` compares; None in other blocks.
    patterns: patterns of the next branch of a `case`; None inside a branch.
    loop_start: place and line to which a loop goes back; None in other blocks.
    loop_variable: the variable of a `for` loop; empty in other blocks.
    remaining_loop_values: the values that the variable of a loop has yet to take.
    joining_operator: the sign between a condition and the next one, & or |; empty after the last condition.
    condition_result: whether the conditions so far hold; None if unresolved.
    is_group: whether the block is a group in braces, such as the body of a function; false by default.
    """

    is_executed: bool | None
    earlier_branch_runs: bool | None = False
    case_text: str | None = None
    patterns: list[str] | None = None
    loop_start: tuple[int, int] | None = None
    loop_variable: str = ""
    remaining_loop_values: list[str] = field(default_factory=list)
    joining_operator: str = ""
    condition_result: bool | None = None
    is_group: bool = False

    def enter_next_branch(self, condition_holds: bool | None) -> None:
        """Enters the next branch of an if or case block. condition_holds: None if unresolved."""
        self.is_executed = (
            False if self.earlier_branch_runs else (None if self.earlier_branch_runs is None else condition_holds)
        )
        self.earlier_branch_runs = (
            self.earlier_branch_runs
            or (None if condition_holds is None else condition_holds)
            or (None if self.earlier_branch_runs is None else False)
        )


FILE_TESTS = ("-f", "-e", "-r", "-s")
"""Options of `test` that test whether a file exists."""


def evaluate_test(command_words: list[str], file_exists: Callable[[str], bool | None]) -> bool | None:
    """Whether a condition `[ … ]` is true; None if it is unresolved or not supported.

    A variable that the script never sets is assumed to be unset.
    file_exists: whether a file exists; None if unknown.
    """
    closing_words = {"[": "]", "[[": "]]", "test": ""}
    command_words = ["" if UNSET_VARIABLE.fullmatch(command_word) else command_word for command_word in command_words]
    if (
        not command_words
        or command_words[0] not in closing_words
        or any(is_unresolved(command_word) for command_word in command_words)
    ):
        return None
    if closing_words[command_words[0]] and command_words[-1] != closing_words[command_words[0]]:
        return None
    operands = command_words[1:-1] if closing_words[command_words[0]] else command_words[1:]
    negation_count = next((i for i, operand in enumerate(operands) if operand != "!"), len(operands))
    if negation_count:
        negated_result = evaluate_test(["test", *operands[negation_count:]], file_exists)
        return None if negated_result is None else negated_result == (negation_count % 2 == 0)
    if len(operands) == 1 and not operands[0].startswith("-"):
        return operands[0] != ""
    if operands in (["-z"], ["-n"]) or (len(operands) == 2 and operands[0] in ("-z", "-n")):
        return (operands[1:] in ([], [""])) == (operands[0] == "-z")
    if len(operands) == 2 and operands[0] in FILE_TESTS:
        return file_exists(operands[1])
    if len(operands) != 3:
        return None
    left_word, operator, right_word = operands
    if operator in ("=", "==", "!="):
        if command_words[0] == "[[" and set(right_word) & set("*?["):
            return None
        return (left_word == right_word) == (operator != "!=")
    if operator in NUMBER_COMPARISONS and WHOLE_NUMBER.fullmatch(left_word) and WHOLE_NUMBER.fullmatch(right_word):
        return NUMBER_COMPARISONS[operator](int(left_word), int(right_word))
    return None
