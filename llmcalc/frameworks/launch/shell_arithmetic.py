"""Evaluates whole-number expressions of launch files without a shell: sums, products, brackets, lists.

Two grammars: the shell's `$((…))`, and the lists in which Megatron-LM gives a pattern of layers (`([0]*3+[1]*45)`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

LARGEST_NUMBER = 10**12
DEEPEST_NESTING = 20
LONGEST_LIST = 20_000
LONGEST_NUMBER = 100

_TOKEN = re.compile(r"\s*(\d{1,15}|[A-Za-z_]\w*|\$\{?[A-Za-z_]\w*\}?|[<>=!]=|[-+*/%(),\[\]<>?:])")

COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def arithmetic_tokens(expression_text: str) -> list[str] | None:
    """Returns the tokens of an arithmetic expression; None if any text in it is no token."""
    tokens, text_position = [], 0
    expression_text = expression_text.rstrip()
    if len(expression_text) > 2000:
        return None
    while text_position < len(expression_text):
        token_match = _TOKEN.match(expression_text, text_position)
        if token_match is None:
            return None
        tokens.append(token_match[1])
        text_position = token_match.end()
    return tokens


class _ArithmeticParser:
    """Parses and evaluates the tokens of an expression. Raises `ValueError` for tokens that are not an expression."""

    def __init__(self, tokens: list[str], shell_variables: Mapping[str, str | list[str]]) -> None:
        self.tokens, self.variables, self.at = tokens, shell_variables, 0

    def next_token(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take_token(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def evaluate_conditional(self, nesting_depth: int = 0) -> int | list[int]:
        """Returns the value of a sum, of a comparison (1 or 0), or of a conditional `a ? b : c`."""
        left_value = self.evaluate_sum(nesting_depth)
        if self.next_token() in COMPARISONS:
            operator, right_value = self.take_token(), self.evaluate_sum(nesting_depth)
            if isinstance(left_value, list) or isinstance(right_value, list):
                raise ValueError("a list is compared")
            left_value = int(COMPARISONS[operator](left_value, right_value))
        if self.next_token() == "?":
            self.take_token()
            if isinstance(left_value, list) or nesting_depth > DEEPEST_NESTING:
                raise ValueError("a choice by a list")
            true_value = self.evaluate_conditional(nesting_depth + 1)
            self.expect_token(":")
            false_value = self.evaluate_conditional(nesting_depth + 1)
            left_value = true_value if left_value else false_value
        return left_value

    def evaluate_sum(self, nesting_depth: int = 0) -> int | list[int]:
        left_value = self.evaluate_product(nesting_depth)
        while self.next_token() in ("+", "-"):
            operator, right_value = self.take_token(), self.evaluate_product(nesting_depth)
            if isinstance(left_value, list) and isinstance(right_value, list) and operator == "+":
                left_value = left_value + right_value
            elif isinstance(left_value, int) and isinstance(right_value, int):
                left_value = left_value + right_value if operator == "+" else left_value - right_value
            else:
                raise ValueError("a sum of a list and a number")
            self.check_value_size(left_value)
        return left_value

    def evaluate_product(self, nesting_depth: int) -> int | list[int]:
        left_value = self.evaluate_atom(nesting_depth)
        while self.next_token() in ("*", "/", "%"):
            operator, right_value = self.take_token(), self.evaluate_atom(nesting_depth)
            if isinstance(left_value, int) and isinstance(right_value, int):
                if operator != "*" and right_value == 0:
                    raise ValueError("division by zero")
                if operator == "*":
                    left_value = left_value * right_value
                else:
                    quotient = (
                        abs(left_value) // abs(right_value) * (1 if (left_value < 0) == (right_value < 0) else -1)
                    )
                    left_value = quotient if operator == "/" else left_value - quotient * right_value
            elif operator == "*" and isinstance(left_value, list) != isinstance(right_value, list):
                list_items, repeat_count = (
                    (left_value, right_value) if isinstance(left_value, list) else (right_value, left_value)
                )
                assert isinstance(list_items, list)
                assert isinstance(repeat_count, int)
                if len(list_items) * max(0, repeat_count) > LONGEST_LIST:
                    raise ValueError("a list that is too long")
                left_value = list_items * max(0, repeat_count)
            else:
                raise ValueError("not a product")
            self.check_value_size(left_value)
        return left_value

    def evaluate_atom(self, nesting_depth: int) -> int | list[int]:
        if nesting_depth > DEEPEST_NESTING or self.at >= len(self.tokens):
            raise ValueError("nested too deeply, or cut off")
        token = self.take_token()
        if token.isdecimal():
            return int(token)
        if token == "-":
            bracketed_value = self.evaluate_atom(nesting_depth + 1)
            if isinstance(bracketed_value, list):
                raise ValueError("a list with a sign")
            return -bracketed_value
        if token == "(":
            atom_value = self.evaluate_conditional(nesting_depth + 1)
            self.expect_token(")")
            return atom_value
        if token == "[":
            list_items: list[int] = []
            while self.next_token() != "]":
                atom_value = self.evaluate_sum(nesting_depth + 1)
                if isinstance(atom_value, list):
                    raise ValueError("a list in a list")
                list_items.append(atom_value)
                if self.next_token() != ",":
                    break
                self.take_token()
            self.expect_token("]")
            return list_items
        variable_text = self.variables.get(token.strip("${}"), "")
        if (
            not isinstance(variable_text, str)
            or len(variable_text) > LONGEST_NUMBER
            or not re.fullmatch(r"\s*-?\d{1,15}\s*", variable_text)
        ):
            raise ValueError("a name without a value")
        return int(variable_text)

    def expect_token(self, expected_token: str) -> None:
        if self.next_token() != expected_token:
            raise ValueError(f"no {expected_token}")
        self.take_token()

    def check_value_size(self, result_value: int | list[int]) -> None:
        is_too_large = (
            len(result_value) > LONGEST_LIST if isinstance(result_value, list) else abs(result_value) > LARGEST_NUMBER
        )
        if is_too_large:
            raise ValueError("too large")


def evaluate_expression(expression_text: str, shell_variables: Mapping[str, str | list[str]]) -> int | list[int] | None:
    """Returns the number, or the list of numbers, of an expression; None if it cannot be evaluated."""
    tokens = arithmetic_tokens(expression_text)
    if not tokens:
        return None
    expression = _ArithmeticParser(tokens, shell_variables)
    try:
        result_value = expression.evaluate_conditional()
    except ValueError:
        return None
    return result_value if expression.at == len(tokens) else None


def whole_number_of(expression_text: str, shell_variables: Mapping[str, str | list[str]]) -> int | None:
    """Returns the whole number of an expression; None if it cannot be evaluated."""
    result_value = evaluate_expression(expression_text, shell_variables)
    return result_value if isinstance(result_value, int) else None
