"""Evaluates constants in a Python file from its syntax tree, without importing or running it.

It evaluates literals, tables and their items, arithmetic of whole numbers, negations, comparisons of equality,
conditional expressions, names of constants, attributes of names, and the arguments of calls. A value of any other form
is an `UnknownValue`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from ...errors import InputError, one_line

MAX_LETTERS = 150_000
"""Largest number of characters in a Python file without its pictures; real configurations have under 60 000."""

PICTURE = re.compile(r"[\w+/=]{2000,}", re.ASCII)
"""Pattern of encoded data in a notebook, such as a picture, which a parser reads as one constant."""

MAX_LETTERS_WITH_PICTURES = 4_000_000

LARGEST_NUMBER = 2**62

DEEPEST_EXPRESSION = 40
"""Largest nesting depth of an expression."""

BF16_SUPPORT_FUNCTION = re.compile(r"(?:^|\.)is_bf(loat)?16_supported$")
"""Torch's test for bf16 support, which devices of compute capability 8.0 and later have."""


class UnknownValue:
    """A value that the syntax tree does not determine. text: the source of the expression."""

    def __init__(self, source_text: str) -> None:
        self.text = source_text


def is_python(file_text: str, name_in_errors: str) -> bool:
    """Whether a file is Python source, by the suffix of its name or by its first statement."""
    if name_in_errors.endswith((".py", ".ipynb")) and not file_text.startswith("#!/bin/bash\n"):
        return True
    first_line = next((line for line in file_text.splitlines() if line.strip() and not line.startswith("#")), "")
    return re.match(r"(from [\w.]+ import |import [\w.]+(\s|$)|def \w+\(|class \w+)", first_line) is not None


def parse_python(python_text: str, name_in_errors: str) -> ast.Module:
    """Returns the syntax tree of a Python file. Raises `InputError` for a text that is too large, or is not Python."""
    text_length = (
        len(python_text) if len(python_text) > MAX_LETTERS_WITH_PICTURES else len(PICTURE.sub("", python_text))
    )
    if text_length > MAX_LETTERS:
        raise InputError(f"{name_in_errors}: {text_length:,} letters of Python; expected at most {MAX_LETTERS:,}")
    try:
        return ast.parse(python_text)
    except SyntaxError as error:
        raise InputError(
            f"{name_in_errors}: not valid Python: {one_line(str(error.msg))[:80]} at line {error.lineno}"
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise InputError(f"{name_in_errors}: not valid Python; expected a configuration") from None


def expression_value(expression: ast.expr, known_values: Mapping[str, Any], nesting_depth: int = 0) -> Any:
    """Returns the value of an expression. known_values: variable or dotted name → value."""
    if nesting_depth > DEEPEST_EXPRESSION:
        return UnknownValue("…")
    if isinstance(expression, ast.Constant):
        return expression.value
    if isinstance(expression, ast.Name | ast.Attribute):
        dotted_name = dotted_name_of(expression)
        return known_values[dotted_name] if dotted_name in known_values else UnknownValue(dotted_name)
    if isinstance(expression, ast.List | ast.Tuple):
        return [
            expression_value(element_node, known_values, nesting_depth + 1) for element_node in expression.elts[:1000]
        ]
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        operand_value = expression_value(expression.operand, known_values, nesting_depth + 1)
        return -operand_value if isinstance(operand_value, int | float) else UnknownValue("-")
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
        operand_value = expression_value(expression.operand, known_values, nesting_depth + 1)
        return UnknownValue("not …") if isinstance(operand_value, UnknownValue) else not operand_value
    if isinstance(expression, ast.IfExp):
        condition_value = expression_value(expression.test, known_values, nesting_depth + 1)
        if isinstance(condition_value, UnknownValue):
            return UnknownValue("a choice")
        return expression_value(
            expression.body if condition_value else expression.orelse, known_values, nesting_depth + 1
        )
    if isinstance(expression, ast.Call) and BF16_SUPPORT_FUNCTION.search(dotted_name_of(expression.func)) is not None:
        return True
    if isinstance(expression, ast.Compare) and len(expression.ops) == 1:
        return _equality_result(expression, known_values, nesting_depth + 1)
    if isinstance(expression, ast.Subscript):
        known_table = known_values.get(dotted_name_of(expression.value))
        item_key = expression_value(expression.slice, known_values, nesting_depth + 1)
        if isinstance(known_table, dict) and isinstance(item_key, str) and item_key in known_table:
            return known_table[item_key]
    if isinstance(expression, ast.Dict):
        return _table_value(expression, known_values, nesting_depth + 1)
    if isinstance(expression, ast.Call) and dotted_name_of(expression.func) == "dict" and not expression.args:
        return keyword_arguments(expression, known_values, nesting_depth + 1)
    if isinstance(expression, ast.BinOp):
        left_value = expression_value(expression.left, known_values, nesting_depth + 1)
        right_value = expression_value(expression.right, known_values, nesting_depth + 1)
        if type(left_value) is int and type(right_value) is int:
            return _whole_number_result(expression.op, left_value, right_value)
        if isinstance(left_value, list):
            return _list_result(expression.op, left_value, right_value)
    return UnknownValue(expression_description(expression))


LONGEST_LIST = 10_000
"""Largest number of elements in a computed list, including the elements of nested lists."""


def _list_result(operation: ast.operator, list_items: list[Any], operand_value: Any) -> Any:
    """Returns the sum of two lists, or a repeated list; unknown for other operations and for long lists."""
    is_sum = isinstance(operation, ast.Add) and isinstance(operand_value, list)
    is_product = isinstance(operation, ast.Mult) and type(operand_value) is int
    item_count = sum(len(list_item) if isinstance(list_item, list) else 1 for list_item in list_items)
    if is_sum and item_count + len(operand_value) <= LONGEST_LIST:
        return list_items + operand_value
    if is_product and item_count * max(0, operand_value) <= LONGEST_LIST:
        return list_items * operand_value
    return UnknownValue("a list")


def _equality_result(comparison: ast.Compare, known_values: Mapping[str, Any], nesting_depth: int) -> Any:
    """Evaluates a comparison of two known values, such as number formats, or of the device's support of bf16."""
    operation, right_node = comparison.ops[0], comparison.comparators[0]
    attribute_names = {getattr(syntax_node, "attr", "") for syntax_node in ast.walk(comparison.left)}
    if "get_device_capability" in attribute_names and isinstance(operation, ast.GtE):
        return True  # of 8 and later, as `BF16_SUPPORT_FUNCTION`
    left_value, right_value = (
        number_format_name(expression_value(syntax_node, known_values, nesting_depth))
        for syntax_node in (comparison.left, right_node)
    )
    if (
        contains_unknown_value(left_value)
        or contains_unknown_value(right_value)
        or not isinstance(operation, ast.Eq | ast.NotEq)
    ):
        return UnknownValue("a comparison")
    return (left_value == right_value) == isinstance(operation, ast.Eq)


def number_format_name(known_value: Any) -> Any:
    """Returns the name of a torch number format (`torch.bfloat16`); other values unchanged."""
    if isinstance(known_value, UnknownValue) and known_value.text.startswith("torch."):
        return known_value.text.removeprefix("torch.")
    return known_value


def contains_unknown_value(evaluated_value: Any) -> bool:
    """Whether a value is unknown, or contains an unknown value in a table."""
    return (
        any(map(contains_unknown_value, evaluated_value.values()))
        if isinstance(evaluated_value, dict)
        else isinstance(evaluated_value, UnknownValue)
    )


def _table_value(expression: ast.Dict, known_values: Mapping[str, Any], nesting_depth: int) -> Any:
    """Returns the value of a dict literal with text keys, as a dict; unknown for other keys."""
    known_table: dict[str, Any] = {}
    for key_node, value_node in list(zip(expression.keys, expression.values, strict=True))[:1000]:
        item_value = nested_item_value(value_node, known_values, nesting_depth)
        if isinstance(key_node, ast.Constant) and isinstance(key_node.value, str):
            known_table[key_node.value] = item_value
        elif key_node is None and isinstance(item_value, dict):
            known_table |= item_value
        else:
            return UnknownValue("a table")
    return known_table


def nested_item_value(expression: ast.expr, known_values: Mapping[str, Any], nesting_depth: int = 0) -> Any:
    """Returns the value of an expression; unknown for a variable with lists or tables inside its value."""
    item_value = expression_value(expression, known_values, nesting_depth)
    inner_values = list(item_value.values()) if isinstance(item_value, dict) else item_value
    is_nested = isinstance(inner_values, list) and any(
        isinstance(inner_value, dict | list) for inner_value in inner_values
    )
    return UnknownValue("a table") if is_nested and not isinstance(expression, ast.Dict) else item_value


def keyword_arguments(call_node: ast.Call, known_values: Mapping[str, Any], nesting_depth: int = 0) -> dict[str, Any]:
    """Returns keyword → value of a call's arguments, including those of an unpacked table (`**arguments`)."""
    arguments: dict[str, Any] = {}
    for keyword in call_node.keywords[:1000]:
        keyword_value = nested_item_value(keyword.value, known_values, nesting_depth)
        if keyword.arg:
            arguments[keyword.arg] = keyword_value
        elif isinstance(keyword_value, dict):
            arguments |= keyword_value
    return arguments


def _whole_number_result(operation: ast.operator, left_value: int, right_value: int) -> Any:
    result_number: Any = UnknownValue("…")
    if isinstance(operation, ast.Add):
        result_number = left_value + right_value
    elif isinstance(operation, ast.Sub):
        result_number = left_value - right_value
    elif isinstance(operation, ast.Mult):
        result_number = left_value * right_value
    elif isinstance(operation, ast.FloorDiv) and right_value:
        result_number = left_value // right_value
    elif isinstance(operation, ast.Pow) and 0 <= right_value < 64 and abs(left_value) < 1000:
        result_number = left_value**right_value
    if isinstance(result_number, UnknownValue) or abs(result_number) < LARGEST_NUMBER:
        return result_number
    return UnknownValue("…")


def _comparison_result(operator_node: ast.cmpop, left_value: Any, right_values: Any) -> bool | None:
    """Returns the result of comparing plain values; None for an unsupported comparison operator."""
    if isinstance(operator_node, ast.Is | ast.IsNot) and (left_value is None or right_values is None):
        return (left_value is right_values) == isinstance(operator_node, ast.Is)
    if isinstance(operator_node, ast.Eq | ast.NotEq):
        return bool(left_value == right_values) == isinstance(operator_node, ast.Eq)
    if isinstance(operator_node, ast.In | ast.NotIn) and isinstance(right_values, list):
        contains_unknown_value = any(isinstance(compared_value, UnknownValue) for compared_value in right_values)
        return None if contains_unknown_value else (left_value in right_values) == isinstance(operator_node, ast.In)
    if (
        isinstance(operator_node, ast.Gt | ast.Lt)
        and isinstance(left_value, int | float)
        and isinstance(right_values, int | float)
    ):
        return left_value > right_values if isinstance(operator_node, ast.Gt) else left_value < right_values
    return None


def dotted_name_of(name_expression: ast.expr) -> str:
    """Returns an expression's dotted name, such as `Trainer.Config`; empty for an expression that is no name."""
    name_parts: list[str] = []
    while isinstance(name_expression, ast.Attribute) and len(name_parts) < DEEPEST_EXPRESSION:
        name_parts.append(name_expression.attr)
        name_expression = name_expression.value
    return ".".join([name_expression.id, *reversed(name_parts)]) if isinstance(name_expression, ast.Name) else ""


def expression_description(syntax_node: ast.AST) -> str:
    """Returns an expression's description for error messages: kind and name."""
    if isinstance(syntax_node, ast.Call):
        return f"{dotted_name_of(syntax_node.func) or 'a call'}(…)"[:60]
    return type(syntax_node).__name__


def module_constants(module_statements: list[ast.stmt]) -> dict[str, Any]:
    """Returns variable → value of plain assignments, in order."""
    values_by_variable: dict[str, Any] = {}
    for statement in module_statements:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target_node, value_node = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target_node, value_node = statement.target, statement.value
        else:
            continue
        values_by_variable |= assigned_values(target_node, value_node, values_by_variable)
    return values_by_variable


def assigned_values(target_node: ast.expr, value_node: ast.expr, known_values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns variable → value of an assignment to a name, or to several (`model_id, output_dir = "…", "…"`)."""
    if isinstance(target_node, ast.Name):
        return {target_node.id: expression_value(value_node, known_values)}
    if not isinstance(target_node, ast.Tuple) or not isinstance(value_node, ast.Tuple):
        return {}
    if len(target_node.elts) != len(value_node.elts):
        return {}
    names_and_values = zip(target_node.elts, value_node.elts, strict=True)
    return {
        variable_name.id: expression_value(value_element, known_values)
        for variable_name, value_element in names_and_values
        if isinstance(variable_name, ast.Name)
    }


def statements_of_module(syntax_tree: ast.Module) -> list[ast.stmt]:
    """Returns the statements of a module, followed by the statements of its functions (cells of marimo notebooks)."""
    functions = [statement for statement in syntax_tree.body if isinstance(statement, ast.FunctionDef)]
    return [*syntax_tree.body, *(statement for function in functions for statement in function.body)]


MAX_CALLS = 2000
"""Largest number of calls in a Python file that are read."""


def calls_in_order(syntax_tree: ast.Module) -> list[ast.Call]:
    """Returns the calls of a Python file by line, at most `MAX_CALLS`."""
    calls = [syntax_node for syntax_node in ast.walk(syntax_tree) if isinstance(syntax_node, ast.Call)][:MAX_CALLS]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def function_by_name(syntax_tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Returns name → function definition of a module."""
    return {statement.name: statement for statement in syntax_tree.body if isinstance(statement, ast.FunctionDef)}


CALLED_NAME_KEY = "()"
"""Last part of the key that holds the name of a called object."""

MAX_VALUES = 5_000
"""Largest number of values in a configuration."""

MAX_READ_VALUES = 400_000
"""Largest number of values that are read or copied while a configuration is evaluated."""

Config: TypeAlias = dict[str, Any]
"""Dotted path → value. `path.()` holds a called object's name; arguments stand under their names or positions."""


class ConfigurationBuilder:
    """Evaluates functions that build a configuration by calls and assignments, without running them.

    known_configurations: called name → the configuration that it returns, for functions of other modules.
    """

    def __init__(self, syntax_tree: ast.Module, known_configurations: Mapping[str, Config] | None = None) -> None:
        self.functions: dict[str, ast.FunctionDef] = function_by_name(syntax_tree)
        self.constants: dict[str, Any] = module_constants(syntax_tree.body)
        self.known_configurations: Mapping[str, dict[str, Any]] = known_configurations or {}
        self.evaluated_value_count: int = 0

    def count_evaluated_values(self, value_count: int) -> None:
        """Counts evaluated values. Raises `RecursionError` beyond `MAX_READ_VALUES`."""
        self.evaluated_value_count += value_count
        if self.evaluated_value_count > MAX_READ_VALUES:
            raise RecursionError

    def configuration_of(
        self, function_name: str, arguments: Mapping[str, Any] | None = None, nesting_depth: int = 0
    ) -> Config:
        """Returns the configuration that a function builds. Raises `RecursionError` for recursive functions."""
        if nesting_depth > 10:
            raise RecursionError
        function = self.functions[function_name]
        parameters = [*function.args.args, *function.args.kwonlyargs]
        default_nodes = [
            *function.args.defaults,
            *(default_node for default_node in function.args.kw_defaults if default_node is not None),
        ]
        variables = dict(self.constants)
        for parameter, default_node in zip(reversed(parameters), reversed(default_nodes), strict=False):
            variables[parameter.arg] = expression_value(default_node, self.constants)
        variables |= arguments or {}
        configs_by_variable: dict[str, Config] = {}
        for statement in function.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self.evaluate(statement.value, variables, configs_by_variable, nesting_depth)
            self.read_statement(statement, variables, configs_by_variable, nesting_depth)
        return {}

    def read_statement(
        self, statement: ast.stmt, variables: Config, configs_by_variable: dict[str, Config], depth: int
    ) -> None:
        """Evaluates a statement in a Python function.

        A condition that is known runs its branch; assignments in another one, or in a loop, give unknown values.
        """
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target_nodes = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target_node in target_nodes:
                self.assign_value(
                    target_node,
                    self.evaluate(statement.value, variables, configs_by_variable, depth),
                    variables,
                    configs_by_variable,
                )
            return
        condition_truth = (
            self.evaluate_condition(statement.test, variables, configs_by_variable)
            if isinstance(statement, ast.If)
            else None
        )
        if isinstance(statement, ast.If) and condition_truth is not None:
            if depth > DEEPEST_EXPRESSION:
                raise RecursionError
            for inner_statement in statement.body if condition_truth else statement.orelse:
                self.read_statement(inner_statement, variables, configs_by_variable, depth + 1)
            return
        for inner_node in ast.walk(statement):
            if isinstance(inner_node, ast.Assign):
                for target_node in inner_node.targets:
                    self.assign_value(target_node, {"": UnknownValue("a condition")}, variables, configs_by_variable)

    def evaluate_condition(
        self, condition: ast.expr, variables: Config, configs_by_variable: dict[str, Config]
    ) -> bool | None:
        """Returns whether a condition on plain values is true; None if unknown."""
        if isinstance(condition, ast.BoolOp):
            operand_truths = [
                self.evaluate_condition(operand, variables, configs_by_variable) for operand in condition.values
            ]
            is_disjunction = isinstance(condition.op, ast.Or)
            if is_disjunction in operand_truths:
                return is_disjunction
            if None in operand_truths:
                return None
            return not is_disjunction
        if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
            operand_truth = self.evaluate_condition(condition.operand, variables, configs_by_variable)
            return None if operand_truth is None else not operand_truth
        if (
            isinstance(condition, ast.Call)
            and dotted_name_of(condition.func) == "isinstance"
            and len(condition.args) == 2
        ):
            parsed_argument_value = self._plain_value(condition.args[0], variables, configs_by_variable)
            is_known = dotted_name_of(condition.args[1]) == "str" and not isinstance(
                parsed_argument_value, UnknownValue
            )
            return isinstance(parsed_argument_value, str) if is_known else None
        if not isinstance(condition, ast.Compare) or len(condition.ops) != 1:
            parsed_argument_value = self._plain_value(condition, variables, configs_by_variable)
            return None if isinstance(parsed_argument_value, UnknownValue) else bool(parsed_argument_value)
        left_value, right_value = (
            self._plain_value(operand, variables, configs_by_variable)
            for operand in (condition.left, condition.comparators[0])
        )
        if isinstance(left_value, UnknownValue) or isinstance(right_value, UnknownValue):
            return None
        return _comparison_result(condition.ops[0], left_value, right_value)

    def _plain_value(self, expression: ast.expr, variables: Config, configs_by_variable: dict[str, Config]) -> Any:
        """Returns the value of an expression that builds no configuration object; supports `.lower()` on a text."""
        if isinstance(expression, ast.Call):
            if isinstance(expression.func, ast.Attribute) and expression.func.attr == "lower" and not expression.args:
                text_value = self._plain_value(expression.func.value, variables, configs_by_variable)
                if isinstance(text_value, str):
                    return text_value.lower()
            return UnknownValue(expression_description(expression))
        config = self.evaluate(expression, variables, configs_by_variable, 0)
        return config[""] if set(config) == {""} else UnknownValue(expression_description(expression))

    def assign_value(
        self, target_node: ast.expr, config: Config, variables: Config, configs_by_variable: dict[str, Config]
    ) -> None:
        """Assigns a value to a name or to an attribute of a configuration."""
        target_path = dotted_name_of(target_node)
        variable_name, _, attr_name = target_path.partition(".")
        if not target_path:
            return
        if not attr_name:
            configs_by_variable.pop(variable_name, None)
            variables.pop(variable_name, None)
            if set(config) == {""}:
                variables[variable_name] = config[""]
            else:
                configs_by_variable[variable_name] = dict(config)
            return
        owner_config = configs_by_variable.setdefault(variable_name, {})
        self.count_evaluated_values(len(owner_config) + len(config))
        for config_key in [key for key in owner_config if key == attr_name or key.startswith(f"{attr_name}.")]:
            del owner_config[config_key]
        owner_config |= {f"{attr_name}.{key}".rstrip("."): config_value for key, config_value in config.items()}
        if len(owner_config) > MAX_VALUES:
            raise RecursionError

    def evaluate(
        self, expression: ast.expr, variables: Config, configs_by_variable: dict[str, Config], depth: int
    ) -> Config:
        """Returns the configuration that an expression builds; for a plain value, the table `{"": value}`."""
        self.count_evaluated_values(1)
        if depth > DEEPEST_EXPRESSION:
            raise RecursionError
        called_path = dotted_name_of(expression)
        if called_path in configs_by_variable:
            return dict(configs_by_variable[called_path])
        if not isinstance(expression, ast.Call):
            variable_name, _, attribute_name = called_path.partition(".")
            if attribute_name and variable_name in configs_by_variable:
                owner_config = configs_by_variable[variable_name]
                inner_config = {
                    config_key[len(attribute_name) + 1 :]: config_value
                    for config_key, config_value in owner_config.items()
                    if config_key.startswith(f"{attribute_name}.")
                }
                return inner_config or {"": owner_config.get(attribute_name, UnknownValue(called_path))}
            return {"": expression_value(expression, variables)}
        called_name = dotted_name_of(expression.func)
        keyword_nodes = {keyword.arg: keyword.value for keyword in expression.keywords if keyword.arg is not None}
        if called_name in self.functions:
            argument_values = {
                argument_key: expression_value(value, variables) for argument_key, value in keyword_nodes.items()
            }
            parameters = [parameter.arg for parameter in self.functions[called_name].args.args]
            argument_values |= {
                argument_key: expression_value(value, variables)
                for argument_key, value in zip(parameters, expression.args, strict=False)
            }
            return self.configuration_of(called_name, argument_values, depth + 1)
        config: Config = dict(self.known_configurations.get(called_name, {}))
        if not called_name and isinstance(expression.func, ast.Attribute):  # a method of what another call returns
            config = self.evaluate(expression.func.value, variables, configs_by_variable, depth + 1)
            called_name = f"….{expression.func.attr}"
        config[CALLED_NAME_KEY] = called_name
        for config_key, argument in (
            *((str(i), config_value) for i, config_value in enumerate(expression.args)),
            *keyword_nodes.items(),
        ):
            inner_config = self.evaluate(argument, variables, configs_by_variable, depth + 1)
            config |= {f"{config_key}.{inner_path}".rstrip("."): value for inner_path, value in inner_config.items()}
        self.count_evaluated_values(len(config))
        if len(config) > MAX_VALUES:
            raise RecursionError
        return config
