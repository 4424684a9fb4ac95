"""Divisors of whole numbers."""

from __future__ import annotations

from math import isqrt


def divisors(number: int, most: int | None = None) -> list[int]:
    """Returns the divisors of a positive number in rising order, in at most √number steps.

    most: the largest divisor to return; None (default) for no limit.
    """
    if most is not None and most < isqrt(number):
        return [n for n in range(1, most + 1) if number % n == 0]
    results, rest, factor = [1], number, 2
    while factor * factor <= rest:
        powers, power = [1], factor
        while rest % factor == 0:
            powers.append(power)
            rest, power = rest // factor, power * factor
        if len(powers) > 1:
            results = [n * power for n in results for power in powers]
        factor += 1 if factor == 2 else 2
    if rest > 1:
        results += [n * rest for n in results]
    return sorted(n for n in results if most is None or n <= most)
