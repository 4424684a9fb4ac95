"""Computes divisors of whole numbers."""

from __future__ import annotations

from math import isqrt


def divisors(number: int, maximum: int | None = None) -> list[int]:
    """Returns the divisors of a positive number in ascending order, in √number operations.

    maximum: the largest divisor to return; None (default) for no limit.
    """
    if maximum is not None and maximum < isqrt(number):
        return [divisor for divisor in range(1, maximum + 1) if number % divisor == 0]
    results, remainder, factor = [1], number, 2
    while factor * factor <= remainder:
        powers, power = [1], factor
        while remainder % factor == 0:
            powers.append(power)
            remainder, power = remainder // factor, power * factor
        if len(powers) > 1:
            results = [divisor * power for divisor in results for power in powers]
        factor += 1 if factor == 2 else 2
    if remainder > 1:
        results += [divisor * remainder for divisor in results]
    return sorted(divisor for divisor in results if maximum is None or divisor <= maximum)
