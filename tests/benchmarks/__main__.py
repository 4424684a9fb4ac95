"""`python -m tests.benchmarks [startup|sweep|verify|memory|layouts|fsdp|page ...]` from the root of the repository
prints every ratio with its target.

A target is a ratio that a change should not worsen. Times differ between machines, so nothing here passes or fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from . import fsdp, layouts, memory, page, startup, sweep, verify

BENCHMARKS: dict[str, Callable[[], None]] = {
    "startup": startup.main,
    "sweep": sweep.main,
    "verify": verify.main,
    "memory": memory.main,
    "layouts": layouts.main,
    "fsdp": fsdp.main,
    "page": page.main,
}


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; expected {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or list(BENCHMARKS):
        BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
