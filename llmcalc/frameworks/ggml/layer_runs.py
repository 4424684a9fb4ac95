"""Selects layers whose graphs are built: of a repeating layer pattern, only the first repeats and the last.

From its second repeat on, a pattern allocates and frees the same bytes, but its results may alternate between two free
blocks; so an even number of repeats is left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

LONGEST_PATTERN = 8
"""Largest number of layers in a pattern that is searched for; llama-quantize gives every third layer a larger type."""

LEADING_REPEATS, TRAILING_REPEATS = 3, 2
"""Number of repeats whose graphs are built before and after the omitted repeats."""


def layers_with_graphs(layer_keys: Sequence[Hashable]) -> list[int]:
    """Returns the indices of layers whose graphs are built. layer_keys: per layer, equal if graphs are equal."""
    layer_indices: list[int] = []
    pattern_start = 0
    while pattern_start < len(layer_keys):
        dropped_count, negative_length = max(
            (_omitted_layer_count(layer_keys, pattern_start, period_length), -period_length)
            for period_length in range(1, LONGEST_PATTERN + 1)
        )
        pattern_length = -negative_length
        if not dropped_count:
            layer_indices.append(pattern_start)
            pattern_start += 1
            continue
        last_first_repeat = pattern_start + LEADING_REPEATS * pattern_length
        layer_indices += range(pattern_start, last_first_repeat)
        pattern_start = last_first_repeat + dropped_count
        layer_indices += range(pattern_start, pattern_start + TRAILING_REPEATS * pattern_length)
        pattern_start += TRAILING_REPEATS * pattern_length
    return layer_indices


def _omitted_layer_count(layer_keys: Sequence[Hashable], pattern_start: int, pattern_length: int) -> int:
    """Returns how many layers of a repeated pattern are left out: a multiple of `pattern_length`."""
    pattern_end = pattern_start + pattern_length
    while pattern_end < len(layer_keys) and layer_keys[pattern_end] == layer_keys[pattern_end - pattern_length]:
        pattern_end += 1
    dropped_repeats = (pattern_end - pattern_start) // pattern_length - LEADING_REPEATS - TRAILING_REPEATS
    return max(0, dropped_repeats) // 2 * 2 * pattern_length
