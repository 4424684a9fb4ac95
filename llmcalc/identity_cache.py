"""Caches results for objects that are distinguished by identity (`is`), not by equality.

Models, presets and devices are equal if all their parts are, and to compare or to hash them takes longer than most of
what is asked of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class IdentityCache(Generic[Result]):
    """A cache of results by the identities of objects and a key. It is emptied at `max_results` results."""

    def __init__(self, max_results: int) -> None:
        self._max_results: int = max_results
        self._results: dict[tuple[object, ...], tuple[tuple[object, ...], Result]] = {}

    def result(
        self, objects: tuple[object, ...], key: tuple[object, ...], compute_result: Callable[[], Result]
    ) -> Result:
        """Returns the cached result for these objects and this key, computed on the first call.

        The objects are kept with it, so that no others get their ids.
        """
        result_key = *map(id, objects), *key
        if result_key not in self._results:
            if len(self._results) >= self._max_results:
                self._results.clear()
            self._results[result_key] = objects, compute_result()
        return self._results[result_key][1]

    def clear(self) -> None:
        """Drops all results."""
        self._results.clear()
