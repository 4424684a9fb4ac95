"""`frozen` against `dataclasses.dataclass(frozen=True)`: the same class, with and without slots, for everything that
can be done with it.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from functools import cached_property
from typing import Any

import pytest

from llmcalc.frozen import frozen

NAN = float("nan")


def _classes(decorate: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Returns the same classes with another decorator: fields of every kind, none, one, and a subclass."""

    @decorate
    class Every:
        size: int
        name: str = "x"
        rows: list[int] = field(default_factory=list)
        note: str = field(default="", compare=False)
        secret: str = field(default="", repr=False)
        only: int = field(default=3, kw_only=True)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("size: is negative; expected at least 0")

    @decorate
    class Empty:
        """No field."""

    @decorate
    class Single:
        value: Any

    @decorate
    class Named(Single):
        name: str = "a"

        def __repr__(self) -> str:
            return "mine"

    return Every, Empty, Single, Named


OURS = {"plain": _classes(frozen), "slots": _classes(frozen(slots=True))}
STANDARD = {"plain": _classes(dataclass(frozen=True)), "slots": _classes(dataclass(frozen=True, slots=True))}


def _outcome(function: Callable[[], Any]) -> Any:
    """Returns the result, or the error's type and text without names of this file's functions."""
    try:
        return function()
    except Exception as error:
        return type(error).__name__, str(error).partition(".")[2]


@pytest.mark.parametrize("kind", OURS)
def test_behaves_as_the_standard_library_s(kind: str) -> None:
    def behavior(classes: tuple[Any, ...]) -> list[Any]:
        every, empty, single, named = classes
        first, second = every(1, rows=[2]), every(1, "x", [2], "another note", "s", only=3)
        calls: list[Callable[[], Any]] = [
            lambda: repr(first).partition(".")[2],
            lambda: (first == second, first == every(1, rows=[2], note="n"), first != every(2)),
            lambda: (first == 1, first == (1, "x", [2], "", 3), single(1) == named(1), named(1) == named(1, "a")),
            lambda: (single(NAN) == single(NAN), single(NAN) == single(float("nan"))),
            lambda: (empty() == empty(), hash(empty()) == hash(empty()), len({empty(), empty()})),
            lambda: (hash(single(1)) == hash(single(1)), len({named(1), named(1, "b"), named(1)})),
            lambda: hash(first),
            lambda: (repr(named(1)), repr(single("a")).partition(".")[2]),
            every,
            lambda: every(1, 2, 3, 4, 5, 6),
            lambda: every(1, none=2),
            lambda: every(-1),
            lambda: dataclasses.asdict(second),
            lambda: dataclasses.astuple(dataclasses.replace(first, size=7, only=1)),
            lambda: dataclasses.replace(first, size=-7),
            lambda: every(1).rows is every(1).rows,
            lambda: every.__match_args__,
            lambda: [(item.name, item.type, item.kw_only) for item in dataclasses.fields(every)],
            lambda: dataclasses.astuple(copy.copy(second)),
            lambda: (copy.deepcopy(second) == second, copy.deepcopy(second).rows is second.rows),
            lambda: hasattr(first, "__dict__"),
        ]
        return [_outcome(call) for call in calls]

    assert behavior(OURS[kind]) == behavior(STANDARD[kind])


@pytest.mark.parametrize("kind", OURS)
def test_no_field_is_set_or_deleted(kind: str) -> None:
    instance = OURS[kind][2](1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'value'"):
        instance.value = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'value'"):
        del instance.value
    assert instance.value == 1


@frozen(slots=True)
class Pickled:
    """A class that pickle finds by its name."""

    size: int
    name: str = "x"


def test_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pickled(3, "y"))) == Pickled(3, "y")


def test_equality_by_identity_and_a_base_s_repr() -> None:
    class Base:
        def __repr__(self) -> str:
            return "of the base"

    @frozen(eq=False, repr=False)
    class ByIdentity(Base):
        rows: list[int]

        @cached_property
        def total(self) -> int:
            return sum(self.rows)

    first, second = ByIdentity([1]), ByIdentity([1])
    assert first != second
    assert len({first, second}) == 2
    assert (repr(first), first.total) == ("of the base", 1)


def test_a_frozen_dataclass_below_it_is_refused() -> None:
    with pytest.raises(TypeError, match="frozen"):

        @dataclass(frozen=True)
        class Below(Pickled):
            more: int = 0
