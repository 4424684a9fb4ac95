"""Frozen dataclasses whose class is made in a third of the time, for the modules that every command imports.

Before Python 3.13 `dataclasses.dataclass(frozen=True)` compiles six methods of each class, one by one. Here only the
constructor is compiled with the class, `==` and `hash` when they are first called, and the rest is the same function for
all classes. For everything else of `dataclasses` (`fields`, `replace`, `asdict`, `field`) the class is a dataclass. Its
subclasses with fields are `frozen` too: `dataclasses` refuses a frozen one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform, overload

Class = TypeVar("Class", bound=type)

_set = object.__setattr__


@overload
def frozen(cls: Class, /) -> Class: ...
@overload
def frozen(*, slots: bool = False, eq: bool = True, repr: bool = True) -> Callable[[Class], Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def frozen(cls: Any = None, /, *, slots: bool = False, eq: bool = True, repr: bool = True) -> Any:
    """Makes a class of annotated fields a frozen dataclass, as `dataclasses.dataclass(frozen=True)` does.

    slots: whether instances have slots and no dictionary, false by default.
    eq: whether instances are compared, and hashed, by their fields rather than by identity, true by default.
    repr: whether `repr` shows the fields, true by default; else a base class says what it shows.

    Methods that the class defines itself are kept.
    """

    def build(cls: Any) -> Any:
        defined = set(vars(cls))
        cls = dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        methods = {"__init__": _constructor(cls), "__setattr__": _refuse, "__delattr__": _refuse}
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods |= _comparison(cls)
        if slots:  # a copy would set each slot by `setattr`
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
        for name, method in methods.items():
            if name not in defined:
                setattr(cls, name, method)
        return cls

    return build if cls is None else build(cls)


def _constructor(cls: type) -> Any:
    """Returns the class's `__init__`, compiled from its fields."""
    names: dict[str, Any] = {"set_field": _set, "MISSING": MISSING}
    positional, keyword, lines = ["self"], [], []
    for item in fields(cls):
        parameter = value = item.name
        if item.default is not MISSING:
            names[f"default_{item.name}"] = item.default
            parameter += f"=default_{item.name}"
        elif item.default_factory is not MISSING:
            names[f"make_{item.name}"] = item.default_factory
            parameter += "=MISSING"
            value = f"make_{item.name}() if {item.name} is MISSING else {item.name}"
        (keyword if item.kw_only else positional).append(parameter)
        lines.append(f" set_field(self, {item.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *keyword] if keyword else [])])
    exec(f"def __init__({parameters}):\n" + "\n".join(lines or [" pass"]), names)
    constructor = names["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    constructor.__annotations__ = {item.name: item.type for item in fields(cls)} | {"return": None}
    return constructor


def _comparison(cls: Any) -> dict[str, Any]:
    """Returns `__eq__` and `__hash__` of the class's fields. They are compiled when one of them is first called."""

    def __eq__(self: Any, other: Any) -> Any:
        return compiled()["__eq__"](self, other)

    def __hash__(self: Any) -> Any:
        return compiled()["__hash__"](self)

    def compiled() -> dict[str, Any]:
        left, right = (
            "".join(f"{name}.{item.name}, " for item in fields(cls) if item.compare) for name in ("self", "other")
        )
        methods: dict[str, Any] = {}
        exec(
            "def __eq__(self, other):\n"
            f" return ({left}) == ({right}) if other.__class__ is self.__class__ else NotImplemented\n"
            f"def __hash__(self):\n return hash(({left}))",
            {},
            methods,
        )
        for method, first in ((methods["__eq__"], __eq__), (methods["__hash__"], __hash__)):
            if vars(cls)[method.__name__] is first:
                setattr(cls, method.__name__, method)
        return methods

    return {"__eq__": __eq__, "__hash__": __hash__}


def _repr(self: Any) -> str:
    shown = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse(self: Any, name: str, *value: Any) -> None:
    """Raises `FrozenInstanceError`: a field is neither set nor deleted."""
    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for item, value in zip(fields(self), state, strict=True):
        _set(self, item.name, value)
