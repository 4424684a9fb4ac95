"""Selects the layers for graph building: in a repeating layer pattern, the first few repeats and the last.

From its second repeat on, a pattern allocates and frees the same bytes, but its results may alternate between two free
blocks; so an even number of repeats is left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

LONGEST_PATTERN = 8
"""Layers of the longest pattern that is looked for; llama-quantize gives every third layer a larger type."""

FIRST_REPEATS, LAST_REPEATS = 3, 2
"""Repeats of a pattern that are laid out before and after those that are left out."""


def laid_out_layers(keys: Sequence[Hashable]) -> list[int]:
    """Returns the indices of the layers for graph building. keys: one per layer, equal for equal graphs."""
    layer_indices: list[int] = []
    start = 0
    while start < len(keys):
        dropped_count, pattern = max(
            (_droppable_layers(keys, start, pattern), -pattern) for pattern in range(1, LONGEST_PATTERN + 1)
        )
        if not dropped_count:
            layer_indices.append(start)
            start += 1
            continue
        last_first_repeat = start + FIRST_REPEATS * -pattern
        layer_indices += range(start, last_first_repeat)
        start = last_first_repeat + dropped_count
        layer_indices += range(start, start + LAST_REPEATS * -pattern)
        start += LAST_REPEATS * -pattern
    return layer_indices


def _droppable_layers(keys: Sequence[Hashable], start: int, pattern: int) -> int:
    """Returns the number of layers to leave out, a multiple of `pattern`, where the pattern repeats from `start` on."""
    end = start + pattern
    while end < len(keys) and keys[end] == keys[end - pattern]:
        end += 1
    repeats = (end - start) // pattern - FIRST_REPEATS - LAST_REPEATS
    return max(0, repeats) // 2 * 2 * pattern
