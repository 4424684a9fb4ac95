"""Writes formulas, with letters or numbers: `12·L·h² + 2·V·h` for a terminal, `12\\,L\\,h^{2} + 2\\,V\\,h` for LaTeX.

Products and sums stand in the order papers write them: the number, the depth, then h; terms of the highest degree
first.
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
class Style:
    """How a formula is written.

    latex: whether it is LaTeX.
    values: symbol → number that is written in its place.
    grouped: whether thousands have commas and constants come first, as in results.
    """

    latex: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    grouped: bool = False

    def number(self, value: Fraction) -> str:
        """Writes all digits of a whole number; else a decimal of at most four digits, or a fraction."""
        if value.denominator == 1:
            text = f"{value.numerator:,}" if self.grouped else str(value.numerator)
        else:
            text = decimal(value)
            if not text:
                return (
                    rf"\tfrac{{{value.numerator}}}{{{value.denominator}}}"
                    if self.latex
                    else f"({value.numerator}/{value.denominator})"
                )
        return text.replace(",", "{,}") if self.latex else text

    def symbol(self, name: str) -> str:
        if name in self.values:
            return self.number(Fraction(self.values[name]))
        letter, _, subscript = name.partition("_")
        if not subscript or not self.latex:
            return name
        return rf"{letter}_{{\text{{{latex_text(subscript)}}}}}"


LATEX_TEXT = {
    **{character: rf"\{character}" for character in "_%#$&{}"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
}
"""Special character of LaTeX → its escape."""


def latex_text(text: str) -> str:
    """Escapes a name for LaTeX, so that no command in it runs."""
    return "".join(LATEX_TEXT.get(character, character) for character in printable(text))


PLAIN = Style()
LATEX = Style(latex=True)


def decimal(value: Fraction) -> str:
    """Writes `3.5` or `12.0625`; empty if the value has more than four decimals."""
    text = f"{float(value):.4f}".rstrip("0").rstrip(".")
    return text if Fraction(text) == value else ""


def write(expression: Any, style: Style = PLAIN) -> str:
    """Writes a SymPy expression of sums, products, integer powers, minima and floors.

    Raises `ArithmeticError` for other expressions.
    """
    import sympy

    expression = sympy.sympify(expression)
    if expression.is_Rational:
        return style.number(Fraction(int(expression.p), int(expression.q)))
    if expression.is_Symbol:
        return style.symbol(expression.name)
    if expression.is_Add:
        return _sum(expression, style)
    if expression.is_Mul or (expression.is_Pow and expression.exp.is_Integer):
        ceiling = _as_ceiling(expression)
        return _bracketed(ceiling, style, "⌈⌉", "ceil") if ceiling is not None else _product(expression, style)
    if isinstance(expression, sympy.Min | sympy.Max):
        name = "min" if isinstance(expression, sympy.Min) else "max"
        inner = ", ".join(write(a, style) for a in sorted(expression.args, key=_term_order))
        return rf"\{name}({inner})" if style.latex else f"{name}({inner})"
    if isinstance(expression, sympy.floor):
        return _bracketed(expression.args[0], style, "⌊⌋", "floor")
    raise ArithmeticError(f"no way to write {expression}")


def terms(expression: Any, style: Style = PLAIN) -> list[str]:
    """Returns the terms of a sum; each after the first begins with its sign."""
    if not getattr(expression, "is_Add", False):
        return [write(expression, style)]
    constants_first = style.grouped and len(expression.free_symbols) == 1
    ordered = sorted(expression.args, key=_degree if constants_first else _term_order)
    texts: list[str] = []
    for i, term in enumerate(ordered):
        negative = term.could_extract_minus_sign()
        text = write(-term if negative else term, style)
        sign = ("-" if style.latex else "−") if negative else "+"
        texts.append(f"{sign} {text}" if i else (sign + text if negative else text))
    return texts


def _sum(expression: Any, style: Style) -> str:
    return " ".join(terms(expression, style))


def _product(expression: Any, style: Style) -> str:
    coefficient, rest = expression.as_coeff_Mul()
    above: list[str] = []
    below: list[str] = []
    for base, exponent in sorted(
        (f.as_base_exp() for f in rest.as_ordered_factors()), key=lambda p: (bool(p[1] < 0), _factor_order(p[0]))
    ):
        (above if exponent > 0 else below).append(_power(base, abs(int(exponent)), style))
    number = Fraction(int(coefficient.p), int(coefficient.q))
    if (
        not style.latex and number.denominator != 1 and (abs(number.numerator) == 1 or not decimal(number))
    ):  # h/4, 3·h/7; but 3.5·h
        below.insert(0, str(number.denominator))
        number = Fraction(number.numerator)
    if number == -1 and above:
        above[0] = ("-" if style.latex else "−") + above[0]
    elif number != 1 or not above:
        above.insert(0, style.number(number))
    dot = r"\cdot " if style.latex and style.values else r"\," if style.latex else "·"
    top, bottom = dot.join(above), dot.join(below)
    if not below:
        return top
    if style.latex:
        return rf"\frac{{{top}}}{{{bottom}}}"
    return f"{top}/{bottom}" if len(below) == 1 else f"{top}/({bottom})"


def _power(base: Any, exponent: int, style: Style) -> str:
    text = write(base, style)
    if base.is_Add or (exponent > 1 and not text.isalnum() and not base.is_Symbol):
        text = f"({text})"
    if exponent == 1:
        return text
    return rf"{text}^{{{exponent}}}" if style.latex else text + str(exponent).translate(SUPERSCRIPTS)


def _bracketed(inner: Any, style: Style, marks: str, name: str) -> str:
    text = write(inner, style)
    return rf"\l{name} {text} \r{name}" if style.latex else marks[0] + text + marks[1]


def _as_ceiling(expression: Any) -> Any:
    """Returns x if the expression is −⌊−x⌋, which is ⌈x⌉; else None."""
    import sympy

    if (
        expression.is_Mul
        and len(expression.args) == 2
        and expression.args[0] == -1
        and isinstance(expression.args[1], sympy.floor)
    ):
        inner = expression.args[1].args[0]
        return -inner if inner.could_extract_minus_sign() else None
    return None


# --- order ------------------------------------------------------------------------------------------------------------


def _letter_rank(order: str) -> Callable[[str], tuple[int, str]]:
    return lambda name: (order.find(name[0]) if name[0] in order else len(order), name)


def _factor_order(base: Any) -> tuple[int, tuple[int, str]]:
    """Returns the sort key of a factor: symbols in the order of papers, then brackets."""
    return (0, _letter_rank(PRODUCT_ORDER)(base.name)) if base.is_Symbol else (1, (0, str(base)))


def _degree(expression: Any) -> Any:
    """Returns the degree: for a product the sum of exponents, for a sum the largest degree of a term."""
    if expression.is_Symbol:
        return 1
    if expression.is_Add:
        return max(_degree(t) for t in expression.args)
    if expression.is_Mul:
        return sum(_degree(f) for f in expression.args)
    if expression.is_Pow:
        return _degree(expression.base) * expression.exp
    return max((_degree(a) for a in expression.args), default=0)


def _term_order(term: Any) -> tuple[Any, ...]:
    """Returns the sort key of a term.

    Added terms come before subtracted ones, then the highest degree first, then V before L before h, and S last.
    """
    rank = _letter_rank(SUM_ORDER)
    letters: list[tuple[int, str]] = []
    for factor in term.as_ordered_factors() if term.is_Mul else [term]:
        base, exponent = factor.as_base_exp()
        names = [s.name for s in base.free_symbols]
        repeat = abs(int(exponent)) if base.is_Symbol else 1
        letters += [rank(name) for name in names] * repeat
    return (bool(term.could_extract_minus_sign()), -_degree(term), sorted(letters), str(term))
