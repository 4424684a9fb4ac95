"""Computes divisors of whole numbers."""

from __future__ import annotations

from math import isqrt


def divisors(dividend: int, maximum: int | None = None) -> list[int]:
    """Returns the divisors of a positive number in ascending order, in √number operations.

    maximum: the largest divisor to return; None (default) for no limit.
    """
    if maximum is not None and maximum < isqrt(dividend):
        return [divisor for divisor in range(1, maximum + 1) if dividend % divisor == 0]
    sorted_divisors, remainder, prime_factor = [1], dividend, 2
    while prime_factor * prime_factor <= remainder:
        factor_powers, factor_power = [1], prime_factor
        while remainder % prime_factor == 0:
            factor_powers.append(factor_power)
            remainder, factor_power = remainder // prime_factor, factor_power * prime_factor
        if len(factor_powers) > 1:
            sorted_divisors = [divisor * factor_power for divisor in sorted_divisors for factor_power in factor_powers]
        prime_factor += 1 if prime_factor == 2 else 2
    if remainder > 1:
        sorted_divisors += [divisor * remainder for divisor in sorted_divisors]
    return sorted(divisor for divisor in sorted_divisors if maximum is None or divisor <= maximum)
