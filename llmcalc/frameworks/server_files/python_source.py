"""Finds servers in Python files: Ray Serve's `LLMConfig`, and commands in lists or texts, as for Modal.

The file is read from its syntax tree; nothing in it is imported or run. What a call returns is unresolved, other than
of `dict`, `str`, `os.environ.get` with a default, and `" ".join`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...errors import InputError
from ..launch.python_source import DEEPEST_EXPRESSION, UnknownValue, dotted_name_of, expression_value, parse_python
from ..launch.shell_words import UnsplittableText
from ..launch.unresolved import mark_unresolved
from .engine_tables import server_of_table
from .scripts import ServerFinder, engine_versions_in, starts_server
from .server import Container, StartedServer

MAX_NODES = 200_000
"""Largest number of nodes in a syntax tree."""

MAX_WORDS = 2_000
"""Largest number of words in a command."""

LONGEST_TEXT = 100_000
"""Largest number of characters in a concatenated text."""

MAX_COMBINED_VALUES = 1_000_000
"""Most characters and items that a file's expressions combine; a variable used twice per line doubles each time."""

CONFIGURATION_CALLS = ("LLMConfig",)
"""Names of the calls that configure a Ray Serve server."""

ENGINE_CLASSES = {"LLM": "vllm", "AsyncEngineArgs": "vllm", "EngineArgs": "vllm"}
"""Call that starts an engine within a program → the module that the call is imported from."""

GPU_ARGUMENT = "gpu"
"""Argument of Modal's decorators that states accelerators, such as `H100` or `H100:2`."""


def servers_in_python(
    source_text: str, server_finder: ServerFinder, variables: Mapping[str, str]
) -> Iterator[StartedServer]:
    """Yields the servers that a Python file starts. server_finder: finds servers in commands of the file.

    Raises `InputError` for a file that is no Python, and for one that starts an engine inside its own program alone.
    """
    syntax_tree = parse_python(source_text, server_finder.name_in_errors)
    syntax_nodes = list(ast.walk(syntax_tree))
    if len(syntax_nodes) > MAX_NODES:
        raise InputError(
            f"{server_finder.name_in_errors}: {len(syntax_nodes):,} parts of Python; expected at most {MAX_NODES:,}"
        )
    module_evaluator = _Evaluator(syntax_tree, variables, server_finder.name_in_errors)
    server_count = 0
    engine_versions = engine_versions_in(source_text)
    for started_server in module_evaluator.servers(server_finder):
        server_count += 1
        yield started_server.with_version_in_file(engine_versions)
    if server_count:
        return
    modules_by_name = {
        alias.name: node.module for node in syntax_nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    for node in syntax_nodes:
        if not isinstance(node, ast.Call):
            continue
        called_name = dotted_name_of(node.func)
        if (
            called_name in ENGINE_CLASSES
            and str(modules_by_name.get(called_name, "")).split(".")[0] == ENGINE_CLASSES[called_name]
        ):
            raise InputError(
                f"{server_finder.name_in_errors}: line {node.lineno}: {called_name}(…) starts vLLM inside a program, "
                "whose defaults are not those of a server; expected the flags beside --engine vllm"
            )


class _Evaluator:
    """Evaluates values in a Python module's syntax tree. variables: environment variables. file_name: for errors."""

    def __init__(self, syntax_tree: ast.Module, variables: Mapping[str, str], file_name: str) -> None:
        self.module, self.variables = syntax_tree, variables
        self.names: dict[str, Any] = {}
        self.file_name = file_name
        self.combined_count = 0

    def _count_combined_items(self, evaluated_value: Any) -> None:
        """Counts the characters and items that are combined into another value, to limit the work.

        Raises `InputError` for more than `MAX_COMBINED_VALUES` in a file.
        """
        pending_values = [evaluated_value]
        while pending_values:
            pending_value = pending_values.pop()
            self.combined_count += 1 + (len(pending_value) if isinstance(pending_value, str | list | dict) else 0)
            if self.combined_count > MAX_COMBINED_VALUES:
                raise InputError(
                    f"{self.file_name}: its expressions put together more than {MAX_COMBINED_VALUES:,} letters and "
                    "values; "
                    "expected shorter texts and lists"
                )
            pending_values += (
                pending_value.values()
                if isinstance(pending_value, dict)
                else pending_value
                if isinstance(pending_value, list)
                else ()
            )

    def _plain_text(self, evaluated_value: Any) -> str:
        self._count_combined_items(evaluated_value)
        return str(evaluated_value)

    def _embedded_text(self, evaluated_value: Any) -> str:
        """Returns a value as text inside a longer text, and counts the characters to limit the work."""
        self._count_combined_items(evaluated_value)
        return _word_of_value(evaluated_value)

    def servers(self, server_finder: ServerFinder) -> Iterator[StartedServer]:
        """Yields the servers that the module's statements and functions start."""
        yield from self._servers_in_statements(self.module.body, Container(""), server_finder)
        outer_names = dict(self.names)
        for statement in self.module.body:
            function_nodes = [statement, *(statement.body if isinstance(statement, ast.ClassDef) else ())]
            for function_node in function_nodes:
                if isinstance(function_node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.names = dict(outer_names)
                    container = self._container_of_decorators(
                        [*function_node.decorator_list, *getattr(statement, "decorator_list", [])]
                    )
                    yield from self._servers_in_statements(function_node.body, container, server_finder)

    def _container_of_decorators(self, decorator_nodes: list[ast.expr]) -> Container:
        """Returns a container with the accelerators that Modal's decorators state."""
        for decorator_node in decorator_nodes:
            for keyword_node in decorator_node.keywords if isinstance(decorator_node, ast.Call) else ():
                if keyword_node.arg == GPU_ARGUMENT:
                    gpu_name, _, accelerator_count = self._plain_text(self.evaluate(keyword_node.value)).partition(":")
                    return Container(
                        "",
                        gpu_name=gpu_name.rstrip("!"),
                        gpu_count=int(accelerator_count) if accelerator_count.isdecimal() else 1,
                    )
        return Container("")

    def _servers_in_statements(
        self, statement_nodes: list[ast.stmt], container: Container, server_finder: ServerFinder, nesting_depth: int = 0
    ) -> Iterator[StartedServer]:
        """Yields the servers that statements start, and evaluates assignments in order."""
        lines_by_command: dict[str, int] = {}
        for statement in statement_nodes if nesting_depth < DEEPEST_EXPRESSION else ():
            variable_name = _assigned_name(statement)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and variable_name and statement.value is not None:
                self.names[variable_name] = self.evaluate(statement.value)
            elif isinstance(statement, ast.AugAssign) and variable_name:
                self.names[variable_name] = self._sum(self.names.get(variable_name), self.evaluate(statement.value))
            elif _extends_list(statement):
                call_node: Any = statement.value  # type: ignore[attr-defined]
                added_value = self.evaluate(call_node.args[0])
                variable_name = dotted_name_of(call_node.func.value)
                self.names[variable_name] = self._sum(
                    self.names.get(variable_name), added_value if call_node.func.attr == "extend" else [added_value]
                )
            if variable_name and _is_command(self.names.get(variable_name)):
                lines_by_command[variable_name] = statement.lineno
            for call_node in (syntax_node for syntax_node in _direct_calls(statement)):
                argument_table = self._configuration_arguments(call_node)
                named_server = None if argument_table is None else server_of_table(argument_table)
                if named_server is not None:
                    yield from server_finder.servers_in_command(
                        replace(named_server, place_in_file=f"line {call_node.lineno}")
                    )
                    continue
                for argument_node in call_node.args[:1]:
                    argument_value = self.evaluate(argument_node)
                    if _is_command(argument_value) and not isinstance(argument_node, ast.Name):
                        yield from self._servers_of_command(argument_value, container, call_node.lineno, server_finder)
            for inner_body in _inner_bodies(statement):
                yield from self._servers_in_statements(inner_body, container, server_finder, nesting_depth + 1)
        for variable_name, line_number in lines_by_command.items():
            if _is_command(self.names[variable_name]):
                yield from self._servers_of_command(self.names[variable_name], container, line_number, server_finder)

    def _servers_of_command(
        self, command_value: Any, container: Container, line_number: int, server_finder: ServerFinder
    ) -> Iterator[StartedServer]:
        """Yields the servers that a command starts: a list of words, or a text for a shell."""
        located_container = replace(container, place_in_file=f"line {line_number}")
        if isinstance(command_value, str):
            script_container = replace(located_container, image="script")
            try:
                yield from server_finder.servers_in_script(command_value, self.variables, (), script_container)
            except UnsplittableText:
                return  # a text for people that names a server
        else:
            command_words = [self._embedded_text(list_element) for list_element in command_value[:MAX_WORDS]]
            yield from server_finder.servers_in_command(replace(located_container, command_words=command_words))

    def _configuration_arguments(self, call_node: ast.Call) -> dict[str, Any] | None:
        """Returns the arguments of a call that configures a server; None for any other call."""
        if dotted_name_of(call_node.func).rpartition(".")[2] not in CONFIGURATION_CALLS:
            return None
        keyword_values = {keyword.arg: self.evaluate(keyword.value) for keyword in call_node.keywords if keyword.arg}
        self._count_combined_items(keyword_values)
        return {
            argument_name: _with_unresolved_marks(argument_value)
            for argument_name, argument_value in keyword_values.items()
        }

    def evaluate(self, syntax_node: ast.expr, depth: int = 0) -> Any:
        """Returns the value of an expression of the syntax tree."""
        if depth > DEEPEST_EXPRESSION:
            return UnknownValue("…")
        if isinstance(syntax_node, ast.Dict):
            keys_and_values = zip(syntax_node.keys, syntax_node.values, strict=True)
            return {
                self._plain_text(self.evaluate(key_node, depth + 1)): self.evaluate(element_node, depth + 1)
                for key_node, element_node in keys_and_values
                if key_node is not None
            }
        if isinstance(syntax_node, ast.List | ast.Tuple):
            return [
                element_node
                for element_value in syntax_node.elts[:MAX_WORDS]
                for element_node in self._list_items(element_value, depth)
            ]
        if isinstance(syntax_node, ast.JoinedStr):
            text_values = [
                element_value.value if isinstance(element_value, ast.FormattedValue) else element_value
                for element_value in syntax_node.values
            ]
            return "".join(self._embedded_text(self.evaluate(text_node, depth + 1)) for text_node in text_values)
        if isinstance(syntax_node, ast.BinOp) and isinstance(syntax_node.op, ast.Add):
            return self._sum(self.evaluate(syntax_node.left, depth + 1), self.evaluate(syntax_node.right, depth + 1))
        if isinstance(syntax_node, ast.IfExp):
            test_result = self.evaluate(syntax_node.test, depth + 1)
            chosen_node = syntax_node.body if test_result else syntax_node.orelse
            return (
                UnknownValue("if") if isinstance(test_result, UnknownValue) else self.evaluate(chosen_node, depth + 1)
            )
        if isinstance(syntax_node, ast.Call):
            return self._call_result(syntax_node, depth)
        return expression_value(syntax_node, self.names, depth)

    def _list_items(self, list_node: ast.expr, nesting_depth: int) -> list[Any]:
        if not isinstance(list_node, ast.Starred):
            return [self.evaluate(list_node, nesting_depth + 1)]
        list_value = self.evaluate(list_node.value, nesting_depth + 1)
        if not isinstance(list_value, list):
            return [UnknownValue("*…")]
        self._count_combined_items(list_value)
        return list_value

    def _sum(self, left_value: Any, right_value: Any) -> Any:
        sum_value = _add_values(left_value, right_value)
        if isinstance(sum_value, str):
            self._count_combined_items(sum_value)
        return sum_value

    def _call_result(self, call_node: ast.Call, depth: int) -> Any:
        """Returns the result of a call to a supported function, such as `dict`."""
        function_name = dotted_name_of(call_node.func)
        argument_values = [self.evaluate(argument_node, depth + 1) for argument_node in call_node.args[:3]]
        if function_name == "dict":
            return {
                keyword.arg: self.evaluate(keyword.value, depth + 1) for keyword in call_node.keywords if keyword.arg
            }
        if function_name == "str" and len(argument_values) == 1:
            return self._embedded_text(argument_values[0])
        if (
            function_name == "json.dumps"
            and len(argument_values) == 1
            and not isinstance(argument_values[0], UnknownValue)
        ):
            self._count_combined_items(argument_values[0])
            return json.dumps(_with_unresolved_marks(argument_values[0]))
        if function_name in ("os.environ.get", "os.getenv", "environ.get", "getenv") and argument_values:
            return self.variables.get(
                self._plain_text(argument_values[0]),
                argument_values[1] if len(argument_values) > 1 else UnknownValue("$"),
            )
        if isinstance(call_node.func, ast.Attribute) and call_node.func.attr == "join" and len(argument_values) == 1:
            separator_text = self.evaluate(call_node.func.value, depth + 1)
            if isinstance(separator_text, str) and isinstance(argument_values[0], list):
                list_words: list[str] = []
                for list_element in argument_values[0]:
                    self._count_combined_items(separator_text)
                    list_words.append(self._embedded_text(list_element))
                return separator_text.join(list_words)
        return expression_value(call_node, self.names, depth)


def _word_of_value(evaluated_value: Any) -> str:
    """Returns a value as a word of a command; parts unknown before the file runs become marks."""
    if isinstance(evaluated_value, UnknownValue):
        return mark_unresolved(evaluated_value.text or "…")
    return str(evaluated_value)


def _with_unresolved_marks(evaluated_value: Any) -> Any:
    """Returns a value with marks in place of parts that are known only when the file runs."""
    if isinstance(evaluated_value, dict):
        return {table_key: _with_unresolved_marks(nested_value) for table_key, nested_value in evaluated_value.items()}
    if isinstance(evaluated_value, list):
        return [_with_unresolved_marks(nested_value) for nested_value in evaluated_value]
    return _word_of_value(evaluated_value) if isinstance(evaluated_value, UnknownValue) else evaluated_value


def _add_values(left_value: Any, right_value: Any) -> Any:
    """Returns the sum of two texts, lists or numbers; an unknown operand becomes a word marked as unresolved."""
    if isinstance(left_value, list):
        return [*left_value, *(right_value if isinstance(right_value, list) else [UnknownValue("…")])][:MAX_WORDS]
    if isinstance(left_value, str) and isinstance(right_value, str | UnknownValue) and len(left_value) < LONGEST_TEXT:
        return left_value + _word_of_value(right_value)[:LONGEST_TEXT]
    if type(left_value) is int and type(right_value) is int:
        return left_value + right_value
    return UnknownValue("…")


def _is_command(evaluated_value: Any) -> bool:
    """Whether a value may be a command that starts a server: a list of words, or a text."""
    if isinstance(evaluated_value, str):
        return starts_server(evaluated_value) and " " in evaluated_value.strip()
    return (
        isinstance(evaluated_value, list)
        and len(evaluated_value) > 1
        and any(isinstance(command_word, str) and starts_server(command_word) for command_word in evaluated_value[:4])
    )


def _assigned_name(statement: ast.stmt) -> str:
    """Returns the variable that a statement assigns; empty for other statements."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return dotted_name_of(statement.targets[0])
    return dotted_name_of(statement.target) if isinstance(statement, ast.AnnAssign | ast.AugAssign) else ""


def _extends_list(statement: ast.stmt) -> bool:
    """Whether a statement adds items to a list: `words.extend([…])`, `words.append(…)`."""
    extension_call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(extension_call, ast.Call)
        and isinstance(extension_call.func, ast.Attribute)
        and extension_call.func.attr in ("extend", "append")
        and len(extension_call.args) == 1
    )


def _direct_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Yields the calls in a statement, without calls in nested statements."""
    pending_nodes: list[ast.AST] = [
        child_node for child_node in ast.iter_child_nodes(statement) if not isinstance(child_node, ast.stmt)
    ]
    while pending_nodes:
        tree_node = pending_nodes.pop()
        if isinstance(tree_node, ast.Call):
            yield tree_node
        pending_nodes += [
            child_node for child_node in ast.iter_child_nodes(tree_node) if not isinstance(child_node, ast.stmt)
        ]


def _inner_bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yields the bodies of `with`, `if`, `for` and `try`, in order."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for body_field in ("body", "orelse", "finalbody"):
        inner_body = getattr(statement, body_field, None)
        if isinstance(inner_body, list):
            yield inner_body
