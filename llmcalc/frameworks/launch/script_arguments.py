"""Evaluates the command-line arguments that a Python file declares, from the typed command and the defaults.

Read are `add_argument` of argparse, and the fields of dataclasses (HfArgumentParser, tyro, a table in the file).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import shown
from .python_source import UnknownValue, dotted, value_of
from .unresolved import is_unresolved, printable

PARSERS = re.compile(r"(parse_args|parse_known_args|parse_args_into_dataclasses|parse_args_and_config|parse|cli)$")
"""The last part of the name of a call that returns the arguments."""

MOST_ARGUMENTS = 500
"""Largest number of arguments of a file."""

MOST_SHOWN = 12
"""Largest number of arguments that a note lists."""


class ScriptArguments(NamedTuple):
    """The command-line arguments of a Python file: declared defaults and typed values.

    defaults: argument → its default; None for an argument without one.
    typed: argument → its typed value.
    variables: dotted name in the file, such as `args.lora_r` → value.
    undeclared: the first typed flag that the file does not declare; empty for none.
    values_used: the arguments and values that calls of the file read, as a text; empty for none.
    """

    defaults: Mapping[str, Any]
    typed: Mapping[str, Any]
    variables: Mapping[str, Any]
    undeclared: str
    values_used: str


def arguments_of_file(syntax_tree: ast.Module, typed_words: Sequence[str]) -> ScriptArguments:
    """Returns the arguments that a Python file declares, with the values typed after the file's name."""
    defaults = dict([*_declared_arguments(syntax_tree)][:MOST_ARGUMENTS])
    typed = dict(_typed_values(typed_words))
    undeclared = next((f"--{name}" for name in typed if name not in defaults), "")
    loose_word = typed_words[0] if typed_words and not typed else ""
    values = {name: argument for name, argument in {**defaults, **typed}.items() if argument is not None}
    holders = set(_argument_variables(syntax_tree))
    variables: dict[str, Any] = {}
    for node in ast.walk(syntax_tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in values
            and dotted(node.value).removeprefix("self.") in holders
        ):
            variables[dotted(node)] = values[node.attr]
    used = {name.rpartition(".")[2]: shown(value) for name, value in variables.items()}
    values_used = ", ".join(f"{name} {text}" for name, text in [*used.items()][:MOST_SHOWN])
    return ScriptArguments(defaults, typed, variables, undeclared or loose_word, values_used)


def _declared_arguments(syntax_tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yields (argument, default) of each argument that the file declares, by argparse or in a dataclass."""
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            keywords = {keyword.arg: value_of(keyword.value, {}) for keyword in node.keywords if keyword.arg}
            flags = [flag for flag in (value_of(argument, {}) for argument in node.args) if isinstance(flag, str)]
            name = str(keywords.get("dest") or next((flag for flag in flags if flag.startswith("--")), ""))
            action = keywords.get("action")
            default = keywords.get("default", {"store_true": False, "store_false": True}.get(str(action)))
            if name:
                yield name.lstrip("-").replace("-", "_"), default
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(line) for line in node.decorator_list):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id, _field_default(statement.value)


def _field_default(value: ast.expr | None) -> Any:
    """Returns the default of a dataclass's field; None without one."""
    if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] == "field":
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    return None if value is None else value_of(value, {})


def _argument_variables(syntax_tree: ast.Module) -> Iterator[str]:
    """Yields names that may refer to parsed arguments: results of a parser, function parameters, and classes."""
    classes = {node.name for node in ast.walk(syntax_tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.FunctionDef):
            yield from (parameter.arg for parameter in node.args.args)
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            call = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if isinstance(call, ast.Call) and _returns_arguments(call, classes):
                for target in node.targets:
                    names = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                    yield from (name.id for name in names if isinstance(name, ast.Name))


def _returns_arguments(call: ast.Call, classes: set[str]) -> bool:
    """Whether a call parses the command line, or creates an object of a class that the file defines."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
    return PARSERS.search(name) is not None or name in classes


def _typed_values(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yields (argument, value) of typed words: `--rank 8`, `--rank=8`, or `--flag` alone."""
    for i, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals_sign, text = word[2:].partition("=")
        if not equals_sign:
            text = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else "True"
        yield name.replace("-", "_"), _plain_value(text)


def _plain_value(text: str) -> Any:
    """Converts a typed text to a number or boolean where possible; an unresolved script word is an `UnknownValue`."""
    if is_unresolved(text):
        return UnknownValue(printable(text))
    if text in ("True", "true", "False", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII) is not None:
        return int(text)
    return float(text) if re.fullmatch(r"-?[0-9]{0,18}\.?[0-9]{1,18}(e-?[0-9]{1,3})?", text) is not None else text
