"""Writes formulas, with letters or numbers: `12·L·h² + 2·V·h` for a terminal, `12\\,L\\,h^{2} + 2\\,V\\,h` for LaTeX.

Products and sums are in the order in which papers write them: the number, the depth, then h; terms of the highest
degree first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..characters import printable

PRODUCT_ORDER = "LVPEtBShqcaknrvdefWb"
SUM_ORDER = "VPELthqcaknrvdefWbBS"
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True)
class FormulaStyle:
    """The style in which a formula is written: plain text or LaTeX, letters or numbers.

    is_latex: whether it is LaTeX.
    values: symbol → number that is written in its place.
    groups_digits: whether thousands have commas and constants come first, as in results.
    """

    is_latex: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    groups_digits: bool = False

    def write_number(self, exact_number: Fraction) -> str:
        """Returns a number as text: integers with all digits, others as a fraction or with at most four decimals."""
        if exact_number.denominator == 1:
            digit_text = f"{exact_number.numerator:,}" if self.groups_digits else str(exact_number.numerator)
        else:
            digit_text = short_decimal(exact_number)
            if not digit_text:
                if self.is_latex:
                    return rf"\tfrac{{{exact_number.numerator}}}{{{exact_number.denominator}}}"
                return f"({exact_number.numerator}/{exact_number.denominator})"
        return digit_text.replace(",", "{,}") if self.is_latex else digit_text

    def write_symbol(self, symbol_name: str) -> str:
        if symbol_name in self.values:
            return self.write_number(Fraction(self.values[symbol_name]))
        letter, _, subscript = symbol_name.partition("_")
        if not subscript or not self.is_latex:
            return symbol_name
        return rf"{letter}_{{\text{{{latex_text(subscript)}}}}}"


LATEX_TEXT = {
    **{character: rf"\{character}" for character in "_%#$&{}"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
}
"""Special character of LaTeX → its escape."""


def latex_text(plain_text: str) -> str:
    """Escapes a name for LaTeX, so that LaTeX finds no commands."""
    return "".join(LATEX_TEXT.get(character, character) for character in printable(plain_text))


PLAIN = FormulaStyle()
LATEX = FormulaStyle(is_latex=True)


def short_decimal(exact_number: Fraction) -> str:
    """Returns a number as text with at most four decimals, such as `3.5` or `12.0625`; empty if it needs more."""
    digit_text = f"{float(exact_number):.4f}".rstrip("0").rstrip(".")
    return digit_text if Fraction(digit_text) == exact_number else ""


def write_expression(expression: Any, formula_style: FormulaStyle = PLAIN) -> str:
    """Returns a number or a SymPy expression of sums, products, integer powers, minima and floors as text.

    Raises `ArithmeticError` for other expressions.
    """
    if isinstance(expression, Fraction):
        return formula_style.write_number(expression)
    import sympy

    expression = sympy.sympify(expression)
    if expression.is_Rational:
        return formula_style.write_number(Fraction(int(expression.p), int(expression.q)))
    if expression.is_Symbol:
        return formula_style.write_symbol(expression.name)
    if expression.is_Add:
        return " ".join(terms_of_sum(expression, formula_style))
    if expression.is_Mul or (expression.is_Pow and expression.exp.is_Integer):
        ceiling_operand = _ceiling_argument(expression)
        if ceiling_operand is not None:
            return _write_in_brackets(ceiling_operand, formula_style, "⌈⌉", "ceil")
        return _write_product(expression, formula_style)
    if isinstance(expression, sympy.Min | sympy.Max):
        function_name = "min" if isinstance(expression, sympy.Min) else "max"
        ordered_arguments = sorted(expression.args, key=_term_sort_key)
        arguments_text = ", ".join(write_expression(argument, formula_style) for argument in ordered_arguments)
        return (
            rf"\{function_name}({arguments_text})" if formula_style.is_latex else f"{function_name}({arguments_text})"
        )
    if isinstance(expression, sympy.floor):
        return _write_in_brackets(expression.args[0], formula_style, "⌊⌋", "floor")
    raise ArithmeticError(f"no way to write {expression}")


def terms_of_sum(expression: Any, formula_style: FormulaStyle = PLAIN) -> list[str]:
    """Returns the terms of a sum as texts. Each text after the first begins with its sign."""
    if not getattr(expression, "is_Add", False):
        return [write_expression(expression, formula_style)]
    puts_constants_first = formula_style.groups_digits and len(expression.free_symbols) == 1
    ordered_terms = sorted(expression.args, key=_polynomial_degree if puts_constants_first else _term_sort_key)
    term_texts: list[str] = []
    for term_index, formula_term in enumerate(ordered_terms):
        is_negative = formula_term.could_extract_minus_sign()
        term_text = write_expression(-formula_term if is_negative else formula_term, formula_style)
        sign_text = ("-" if formula_style.is_latex else "−") if is_negative else "+"
        term_texts.append(
            f"{sign_text} {term_text}" if term_index else (sign_text + term_text if is_negative else term_text)
        )
    return term_texts


def _write_product(expression: Any, formula_style: FormulaStyle) -> str:
    coefficient, symbolic_factor = expression.as_coeff_Mul()
    numerator_factors: list[str] = []
    denominator_factors: list[str] = []
    for base_expression, exponent in sorted(
        (factor_and_exponent.as_base_exp() for factor_and_exponent in symbolic_factor.as_ordered_factors()),
        key=lambda power: (bool(power[1] < 0), _factor_sort_key(power[0])),
    ):
        (numerator_factors if exponent > 0 else denominator_factors).append(
            _write_power(base_expression, abs(int(exponent)), formula_style)
        )
    coefficient_value = Fraction(int(coefficient.p), int(coefficient.q))
    if (
        not formula_style.is_latex
        and coefficient_value.denominator != 1
        and (abs(coefficient_value.numerator) == 1 or not short_decimal(coefficient_value))
    ):  # h/4, 3·h/7; but 3.5·h
        denominator_factors.insert(0, str(coefficient_value.denominator))
        coefficient_value = Fraction(coefficient_value.numerator)
    if coefficient_value == -1 and numerator_factors:
        numerator_factors[0] = ("-" if formula_style.is_latex else "−") + numerator_factors[0]
    elif coefficient_value != 1 or not numerator_factors:
        numerator_factors.insert(0, formula_style.write_number(coefficient_value))
    is_latex = formula_style.is_latex
    multiplication_sign = r"\cdot " if is_latex and formula_style.values else r"\," if is_latex else "·"
    numerator, denominator = multiplication_sign.join(numerator_factors), multiplication_sign.join(denominator_factors)
    if not denominator_factors:
        return numerator
    if formula_style.is_latex:
        return rf"\frac{{{numerator}}}{{{denominator}}}"
    return f"{numerator}/{denominator}" if len(denominator_factors) == 1 else f"{numerator}/({denominator})"


def _write_power(base_expression: Any, exponent: int, formula_style: FormulaStyle) -> str:
    base_text = write_expression(base_expression, formula_style)
    if base_expression.is_Add or (exponent > 1 and not base_text.isalnum() and not base_expression.is_Symbol):
        base_text = f"({base_text})"
    if exponent == 1:
        return base_text
    return (
        rf"{base_text}^{{{exponent}}}" if formula_style.is_latex else base_text + str(exponent).translate(SUPERSCRIPTS)
    )


def _write_in_brackets(expression: Any, formula_style: FormulaStyle, brackets: str, latex_bracket: str) -> str:
    content_text = write_expression(expression, formula_style)
    if formula_style.is_latex:
        return rf"\l{latex_bracket} {content_text} \r{latex_bracket}"
    return brackets[0] + content_text + brackets[1]


def _ceiling_argument(expression: Any) -> Any:
    """Returns x if the expression is −⌊−x⌋ (which equals ⌈x⌉); None for other expressions."""
    import sympy

    if (
        expression.is_Mul
        and len(expression.args) == 2
        and expression.args[0] == -1
        and isinstance(expression.args[1], sympy.floor)
    ):
        floor_argument = expression.args[1].args[0]
        return -floor_argument if floor_argument.could_extract_minus_sign() else None
    return None


# --- order ------------------------------------------------------------------------------------------------------------


def _letter_order_key(letter_order: str) -> Callable[[str], tuple[int, str]]:
    return lambda name: (letter_order.find(name[0]) if name[0] in letter_order else len(letter_order), name)


def _factor_sort_key(base_expression: Any) -> tuple[int, tuple[int, str]]:
    """Returns the sort key of a factor in a product: symbols in the order that papers use, then sums in brackets."""
    if base_expression.is_Symbol:
        return (0, _letter_order_key(PRODUCT_ORDER)(base_expression.name))
    return (1, (0, str(base_expression)))


def _polynomial_degree(expression: Any) -> Any:
    """Returns an expression's degree: a product's sum of exponents, or the highest degree in a sum."""
    if expression.is_Symbol:
        return 1
    if expression.is_Add:
        return max(_polynomial_degree(summand) for summand in expression.args)
    if expression.is_Mul:
        return sum(_polynomial_degree(product_factor) for product_factor in expression.args)
    if expression.is_Pow:
        return _polynomial_degree(expression.base) * expression.exp
    return max((_polynomial_degree(argument) for argument in expression.args), default=0)


def _term_sort_key(formula_term: Any) -> tuple[Any, ...]:
    """Returns the sort key of a term in a sum: added terms first, then terms of a higher degree.

    Added terms come before subtracted ones, then the highest degree first, then V before L before h, and S last.
    """
    letter_order_key = _letter_order_key(SUM_ORDER)
    symbol_order: list[tuple[int, str]] = []
    for factor in formula_term.as_ordered_factors() if formula_term.is_Mul else [formula_term]:
        base_expression, exponent = factor.as_base_exp()
        symbol_names = [symbol.name for symbol in base_expression.free_symbols]
        repeat_count = abs(int(exponent)) if base_expression.is_Symbol else 1
        symbol_order += [letter_order_key(symbol_name) for symbol_name in symbol_names] * repeat_count
    return (
        bool(formula_term.could_extract_minus_sign()),
        -_polynomial_degree(formula_term),
        sorted(symbol_order),
        str(formula_term),
    )
