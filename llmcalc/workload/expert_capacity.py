"""The number of rows per expert: all rows routed to it, or a fixed capacity.

A fixed capacity: GShard (Lepikhin et al. 2020, arXiv:2006.16668, §2.2) and Switch (Fedus et al. 2021, arXiv:2101.03961,
§2.2); an expert's rows of the highest weights, padded: Megatron-Core, transformer/moe/moe_utils.py,
`topk_softmax_with_capacity` with `drop_policy="probs"` and `pad_to_capacity`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..algebra import Number, ceil_div, minimum
from ..errors import InputError, short_repr

if TYPE_CHECKING:
    from fractions import Fraction

DROPLESS_VALUE, CAPACITY_PREFIX = "dropless", "capacity:"


def parse_expert_capacity(option_text: str) -> Fraction | None:
    """Returns the capacity factor in a value of `--moe`; None for experts that drop no rows.

    Raises `InputError` for anything but `dropless` and `capacity:F` with a number F above 0.
    """
    from fractions import Fraction

    if option_text == DROPLESS_VALUE:
        return None
    try:
        capacity_factor = (
            Fraction(option_text.removeprefix(CAPACITY_PREFIX))
            if option_text.startswith(CAPACITY_PREFIX) and len(option_text) < 30
            else Fraction(0)
        )
    except (ValueError, ZeroDivisionError):
        capacity_factor = Fraction(0)
    if capacity_factor <= 0:
        raise InputError(
            f"--moe {short_repr(option_text)}: not known; expected dropless, or capacity:F with a number F above 0, "
            "such as capacity:1.25"
        )
    return capacity_factor


def expert_rows(tokens: Number, top_k: Number, expert_count: Number, capacity_factor: Fraction) -> Number:
    """Returns the number of rows per expert: ⌈tokens · top_k / experts · factor⌉, at most the number of tokens."""
    return minimum(
        ceil_div(tokens * top_k * capacity_factor.numerator, expert_count * capacity_factor.denominator), tokens
    )
