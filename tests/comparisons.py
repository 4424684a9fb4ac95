"""Marks of tests that compare bytes with a witness, and what such tests run.

`@compares(things)` stands above a test. Its function takes the test's arguments and returns what the test runs: parts,
kernels, optimizers and frameworks. `compared_things` collects them over all of the test's parameters. A marked test
fails where it does not run both a replay and torch, unless it says that torch was recorded.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode

from llmcalc.components.evidence import evidence_of_parts
from llmcalc.device_memory.evidence import evidence_of_run
from llmcalc.evidence import Evidence
from llmcalc.model import ModelSpec
from llmcalc.simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from llmcalc.simulator.meter import Meter


class Thing(NamedTuple):
    """A part, kernel, optimizer or framework. under: the framework that runs it; empty for the thing by itself."""

    kind: str
    name: str
    under: str = ""

    @classmethod
    def of(cls, evidence: Iterable[Evidence]) -> set[Thing]:
        """The things of an answer's evidence."""
        return {cls(one.kind, one.name, one.framework) for one in evidence}


def of_run(
    spec: ModelSpec,
    choices: KernelChoices = EAGER_CHOICES,
    optimizer: str | None = None,
    include: frozenset[str] = frozenset(),
) -> set[Thing]:
    """What a run of torch's own operations uses."""
    return Thing.of(evidence_of_run(spec, choices, optimizer, include))


def under(framework: str, spec: ModelSpec, optimizer: str | None = None) -> set[Thing]:
    """What a run of a framework uses."""
    parts = {Thing(one.kind, one.name, framework) for one in evidence_of_parts(spec)}
    optimizers = {Thing("optimizer", optimizer, framework)} if optimizer else set()
    return {Thing("framework", framework), *parts, *optimizers}


def compares(things: Callable[..., Iterable[Thing]], torch: bool = True) -> Callable[[Any], Any]:
    """Marks a test that compares a replay with a witness.

    things: the test's arguments → what it runs. torch: whether the test runs torch, and not only what was recorded of
    it, published measurements, or arithmetic by hand; by default it does, and fails where it does not.
    """

    def mark(test: Any) -> Any:
        @functools.wraps(test)
        def run(*args: Any, **given: Any) -> Any:
            if not torch:
                test(*args, **given)
                return
            with counted(Meter, "__init__") as replays, counted(TorchDispatchMode, "__enter__") as measurements:
                test(*args, **given)
            assert replays, f"{test.__name__} replays nothing"
            assert measurements, f"{test.__name__} runs no torch"

        run.compares = things  # type: ignore[attr-defined]
        return run

    return mark


@contextmanager
def counted(cls: Any, name: str) -> Iterator[list[str]]:
    """A list with an entry for each call of a method meanwhile."""
    method, calls = getattr(cls, name), list[str]()

    @functools.wraps(method)
    def call(*args: Any, **given: Any) -> Any:
        calls.append(name)
        return method(*args, **given)

    setattr(cls, name, call)
    try:
        yield calls
    finally:
        setattr(cls, name, method)


def compared_things(module: str) -> set[Thing]:
    """What the marked tests of a module run. module: its path in the repository."""
    tests = vars(importlib.import_module(module.removesuffix(".py").replace("/", "."))).values()
    marked = [test for test in tests if hasattr(test, "compares")]
    return {Thing(*thing) for test in marked for given in arguments(test) for thing in test.compares(**given)}


def arguments(test: Any) -> Iterator[dict[str, Any]]:
    """The arguments of every run of a test that is not skipped, as far as its function of things takes them."""
    taken = inspect.signature(test.compares).parameters
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    assert not any(mark.name in ("skip", "skipif", "xfail") for mark in getattr(test, "pytestmark", [])), test
    for values in itertools.product(*(list(mark.args[1]) for mark in marks)):
        given: dict[str, Any] = {}
        for mark, value in zip(marks, values, strict=True):
            names = mark.args[0].replace(" ", "").split(",") if isinstance(mark.args[0], str) else list(mark.args[0])
            if hasattr(value, "marks"):  # pytest.param
                value = value.values if len(names) > 1 else value.values[0]
            given |= dict(zip(names, value, strict=True)) if len(names) > 1 else {names[0]: value}
        yield {name: value for name, value in given.items() if name in taken}
