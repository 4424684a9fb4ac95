"""Evaluates the command-line arguments that a Python file declares, from the typed command and the defaults.

Read are `add_argument` of argparse, and the fields of dataclasses (HfArgumentParser, tyro, a table in the file).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import short_repr
from .python_source import UnknownValue, dotted_name_of, expression_value
from .unresolved import is_unresolved, printable_word

PARSER_FUNCTION = re.compile(
    r"(parse_args|parse_known_args|parse_args_into_dataclasses|parse_args_and_config|parse|cli)$"
)
"""Last part of the name of a function that parses and returns the command-line arguments."""

MAX_ARGUMENTS = 500
"""Largest number of declared arguments in a Python file."""

MAX_NOTED_ARGUMENTS = 12
"""Largest number of arguments that a note lists."""


class ScriptArguments(NamedTuple):
    """The command-line arguments of a Python file: declared defaults and typed values.

    defaults: argument → its default; None for an argument without one.
    typed_values: argument → its typed value.
    variables: dotted name in the file, such as `args.lora_r` → value.
    undeclared_flag: the first typed flag that the file does not declare; empty for none.
    used_values_text: the arguments and values that calls of the file read, as a text; empty for none.
    """

    defaults: Mapping[str, Any]
    typed_values: Mapping[str, Any]
    variables: Mapping[str, Any]
    undeclared_flag: str
    used_values_text: str


def arguments_of_file(syntax_tree: ast.Module, typed_words: Sequence[str]) -> ScriptArguments:
    """Returns the arguments that a Python file declares, with the values typed after the file's name."""
    default_values = dict([*_declared_arguments(syntax_tree)][:MAX_ARGUMENTS])
    typed_values = dict(_typed_values(typed_words))
    undeclared_flag = next(
        (f"--{argument_name}" for argument_name in typed_values if argument_name not in default_values), ""
    )
    positional_word = typed_words[0] if typed_words and not typed_values else ""
    argument_values = {
        argument_name: value for argument_name, value in {**default_values, **typed_values}.items() if value is not None
    }
    argument_variables = set(_argument_variables(syntax_tree))
    variables: dict[str, Any] = {}
    for node in ast.walk(syntax_tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in argument_values
            and dotted_name_of(node.value).removeprefix("self.") in argument_variables
        ):
            variables[dotted_name_of(node)] = argument_values[node.attr]
    used_arguments = {argument_name.rpartition(".")[2]: short_repr(value) for argument_name, value in variables.items()}
    used_values_text = ", ".join(
        f"{argument_name} {value_text}" for argument_name, value_text in [*used_arguments.items()][:MAX_NOTED_ARGUMENTS]
    )
    return ScriptArguments(
        default_values, typed_values, variables, undeclared_flag or positional_word, used_values_text
    )


def _declared_arguments(syntax_tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yields (argument, default) of each argument that the file declares, by argparse or in a dataclass."""
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            keywords = {keyword.arg: expression_value(keyword.value, {}) for keyword in node.keywords if keyword.arg}
            declared_flags = [
                flag
                for flag in (expression_value(argument_node, {}) for argument_node in node.args)
                if isinstance(flag, str)
            ]
            argument_name = str(
                keywords.get("dest") or next((flag for flag in declared_flags if flag.startswith("--")), "")
            )
            action_name = keywords.get("action")
            default_value = keywords.get("default", {"store_true": False, "store_false": True}.get(str(action_name)))
            if argument_name:
                yield argument_name.lstrip("-").replace("-", "_"), default_value
        elif isinstance(node, ast.ClassDef) and any(
            "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id, _field_default(statement.value)


def _field_default(value_node: ast.expr | None) -> Any:
    """Returns the default value of a dataclass field; None for a field without a default."""
    if isinstance(value_node, ast.Call) and dotted_name_of(value_node.func).rpartition(".")[2] == "field":
        value_node = next((keyword.value for keyword in value_node.keywords if keyword.arg == "default"), None)
    return None if value_node is None else expression_value(value_node, {})


def _argument_variables(syntax_tree: ast.Module) -> Iterator[str]:
    """Yields names that may hold parsed arguments: of results of a parser, parameters and classes."""
    class_names = {node.name for node in ast.walk(syntax_tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.FunctionDef):
            yield from (parameter.arg for parameter in node.args.args)
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            call_node = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if isinstance(call_node, ast.Call) and _returns_arguments(call_node, class_names):
                for target_node in node.targets:
                    name_nodes = target_node.elts if isinstance(target_node, ast.Tuple | ast.List) else [target_node]
                    yield from (name_node.id for name_node in name_nodes if isinstance(name_node, ast.Name))


def _returns_arguments(call_node: ast.Call, class_names: set[str]) -> bool:
    """Whether a call parses the command line, or creates an object of a class that the file defines."""
    function_name = call_node.func.attr if isinstance(call_node.func, ast.Attribute) else dotted_name_of(call_node.func)
    return PARSER_FUNCTION.search(function_name) is not None or function_name in class_names


def _typed_values(typed_words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yields (argument, value) of typed words: `--rank 8`, `--rank=8`, or `--flag` alone."""
    for i, typed_word in enumerate(typed_words):
        if not typed_word.startswith("--"):
            continue
        argument_name, equals_sign, value_text = typed_word[2:].partition("=")
        if not equals_sign:
            value_text = (
                typed_words[i + 1] if i + 1 < len(typed_words) and not typed_words[i + 1].startswith("--") else "True"
            )
        yield argument_name.replace("-", "_"), _parsed_argument_value(value_text)


def _parsed_argument_value(value_text: str) -> Any:
    """Converts a typed text to a number or boolean if possible; unresolved script words become an `UnknownValue`."""
    if is_unresolved(value_text):
        return UnknownValue(printable_word(value_text))
    if value_text in ("True", "true", "False", "false"):
        return value_text.lower() == "true"
    if re.fullmatch(r"-?[0-9]{1,18}", value_text, re.ASCII) is not None:
        return int(value_text)
    if re.fullmatch(r"-?[0-9]{0,18}\.?[0-9]{1,18}(e-?[0-9]{1,3})?", value_text) is not None:
        return float(value_text)
    return value_text
