"""Helpers for tests of damaged input: invalid sizes, strategies for random values, and the checks of the result.

A damaged description or config is either read and counted in every way, or rejected with one printable line, within 2
s.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import llmcalc
from llmcalc.costs.context_length import longest_sequence
from llmcalc.errors import LONGEST_MESSAGE, InputError
from llmcalc.sources.preset import Preset

NO_SIZES: tuple[Any, ...] = (
    -1,
    -(2**63),
    0,
    1.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "8",
    True,
    [],
    [8],
    {},
    {"a": 1},
    2**63,
    10**30,
)
ENDLESS = 10**5000
"""A number that Python refuses to print."""

LONGEST = 2.0
"""Largest CPU time for one input, in seconds."""

fuzzed = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)

numbers = st.one_of(st.sampled_from(NO_SIZES), st.integers(-3, 200_000), st.integers(2**39, 2**41), st.floats())


def anything_of(words: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Strategy for values and for lists and tables of them; `words` are strings and field names."""
    simple = st.one_of(numbers, words, st.none(), st.booleans())
    return st.recursive(simple, lambda x: st.lists(x, max_size=3) | st.dictionaries(words, x, max_size=3), max_leaves=8)


COUNTED: set[str] = set()
"""The models that `counts` has counted, as JSON: half of the damaged files that are read describe one of them."""


def counts(preset: Preset) -> None:
    """Checks that a preset can be counted in every way: integers, none negative."""
    spec = preset.model
    model = spec.model_dump_json()
    if model in COUNTED:
        return
    found = llmcalc.params(spec)
    assert found.total == sum(found.by_component.values())
    assert 0 <= found.embedding <= found.total
    assert all(type(n) is int and n >= 0 for n in (found.total, found.active, *found.by_component.values()))
    work = llmcalc.flops(spec, batch=2, seq=3)
    assert 0 <= work.causal <= work.full
    longest_sequence(spec)
    if spec.kind != "encoder" and not spec.one_pass_model_name:
        assert llmcalc.kv(spec, seq=5).bytes >= 0
    COUNTED.add(model)


def rewrite(path: Path, content: str | bytes) -> None:
    """Writes a file that may exist. It is removed first, because ext4 takes 4 ms to truncate a file and write it."""
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def refused(make: Callable[[], Preset], count: Callable[[Preset], None] = counts) -> str:
    """Returns the error message; empty if the input is read and can be counted, `within` the time for one input."""
    try:
        with within():
            count(make())
    except InputError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) <= LONGEST_MESSAGE + 3
        return message
    return ""


@contextmanager
def within(seconds: float = LONGEST) -> Iterator[None]:
    """Raises `TimeoutError` if the body takes longer in CPU time of this process, so that other work on the machine
    does not matter.
    """

    def stop(_: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"took more than {seconds} s, at {frame}")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
