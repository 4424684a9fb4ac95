"""Parses YAML into dictionaries and lists, with limits against malicious files.

YAML has aliases, with which a short text stands for a huge one, and a list can contain itself. Both are refused before
anything is built. What is built are texts, numbers, flags, lists and tables with texts as keys; a tag of any other type
is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import InputError, MissingExtra, one_line, short_repr
from ...sources.files import DEEPEST_NESTING, parse_json
from .unresolved import UNRESOLVED_MARK

LARGEST_FILE_BYTES = 400_000
"""Size of the largest launch file that is read, in bytes; real files are under 20 000."""

MAX_VALUES = 50_000
"""Largest number of values in a YAML file, counting keys and expanded aliases; real files have under 2 000."""

MAX_DOCUMENTS = 200
"""Largest number of YAML documents in a file."""

LONGEST_NUMBER = 400
"""Largest number of characters in a YAML number, because reading base 60 (`1:30:00`) takes quadratic time."""

YAML_TYPES = {"int": "whole number", "float": "number", "bool": "truth value (true or false)"}
"""YAML's name of a type → the name in messages."""


def split_documents(file_text: str, name_in_errors: str) -> list[str]:
    """Returns the documents of a YAML file, which are separated by lines of three hyphens."""
    yaml_documents = [
        document for document in re.split(r"^---(?:[ \t].*)?$", file_text, flags=re.MULTILINE) if document.strip()
    ]
    if len(yaml_documents) > MAX_DOCUMENTS:
        raise InputError(f"{name_in_errors}: {len(yaml_documents):,} documents; expected at most {MAX_DOCUMENTS}")
    return yaml_documents


def parse_yaml(yaml_text: str, name_in_errors: str) -> Any:
    """Parses YAML. Raises `InputError` with line and column, and `MissingExtra` without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise MissingExtra(f"{name_in_errors}: YAML", "PyYAML", "launch") from None
    yaml_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_yaml_size_and_nesting(yaml, yaml_text, name_in_errors)
        root_node = yaml.compose(yaml_text, Loader=yaml_loader)
        return None if root_node is None else _ValueBuilder(yaml, name_in_errors).build_value(root_node)
    except yaml.MarkedYAMLError as error:
        error_mark = error.problem_mark or error.context_mark
        error_location = "" if error_mark is None else f" at line {error_mark.line + 1}, column {error_mark.column + 1}"
        raise InputError(
            f"{name_in_errors}: not valid YAML: {one_line(error.problem or str(error))}{error_location}"
        ) from None
    except InputError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError, AttributeError) as error:
        raise InputError(f"{name_in_errors}: not valid YAML: {one_line(str(error))[:200]}") from None


def parse_braced_text(braces_text: str, name_in_errors: str) -> Any:
    """Returns the tables of JSON, or of YAML in braces. Raises `InputError` for a text that is neither."""
    try:
        return parse_json(braces_text, name_in_errors)
    except InputError as error:
        try:
            parsed_tables = parse_yaml(braces_text, name_in_errors)
        except (InputError, MissingExtra):
            raise error from None
        if not isinstance(parsed_tables, Mapping):
            raise
        return parsed_tables


def _check_yaml_size_and_nesting(yaml_module: Any, yaml_text: str, name_in_errors: str) -> None:
    """Raises `InputError` for deep nesting, for a list that contains itself, and for too many expanded values.

    An alias counts as many values, and is as deep, as the value of its anchor with all aliases expanded.
    """
    values_by_anchor: dict[str, tuple[int, int]] = {}  # anchor → values and depth of what it names
    open_anchors: list[str | None] = []
    counts_at_start: list[int] = []
    nesting_depths: list[int] = []
    expanded_values = 0
    for yaml_event in yaml_module.parse(yaml_text, Loader=getattr(yaml_module, "CSafeLoader", yaml_module.SafeLoader)):
        nesting_depth = -1  # of the value that ends here
        if isinstance(yaml_event, yaml_module.events.CollectionStartEvent):
            open_anchors.append(yaml_event.anchor)
            counts_at_start.append(expanded_values)
            nesting_depths.append(0)
            expanded_values += 1
        elif isinstance(yaml_event, yaml_module.events.CollectionEndEvent):
            anchor, node_start, nesting_depth = open_anchors.pop(), counts_at_start.pop(), nesting_depths.pop() + 1
            if anchor is not None:
                values_by_anchor[anchor] = (expanded_values - node_start, nesting_depth)
        elif isinstance(yaml_event, yaml_module.events.ScalarEvent):
            expanded_values, nesting_depth = expanded_values + 1, 0
            if yaml_event.anchor is not None:
                values_by_anchor[yaml_event.anchor] = (1, 0)
        elif isinstance(yaml_event, yaml_module.events.AliasEvent):
            if yaml_event.anchor in open_anchors:
                raise InputError(
                    f"{name_in_errors}: line {yaml_event.start_mark.line + 1}: *{yaml_event.anchor} stands inside "
                    "what it names"
                )
            value_count, nesting_depth = values_by_anchor.get(yaml_event.anchor, (1, 0))
            expanded_values += value_count
        if nesting_depth >= 0 and nesting_depths:
            nesting_depths[-1] = max(nesting_depths[-1], nesting_depth)
        if len(open_anchors) + max(nesting_depth, 0) > DEEPEST_NESTING:
            raise InputError(
                f"{name_in_errors}: nested too deeply; expected at most {DEEPEST_NESTING} tables and lists"
            )
        if expanded_values > MAX_VALUES:
            raise InputError(
                f"{name_in_errors}: line {yaml_event.start_mark.line + 1}: too many values, with aliases expanded; "
                "expected at most "
                f"{MAX_VALUES:,}"
            )


class _ValueBuilder:
    """Builds Python values from PyYAML's nodes, once per node for all aliases."""

    def __init__(self, yaml_module: Any, name_in_errors: str) -> None:
        self.yaml, self.name_in_errors = yaml_module, name_in_errors
        self.constructor = yaml_module.constructor.SafeConstructor()
        self.built_values: dict[int, Any] = {}

    def error(self, yaml_node: Any, description: str) -> InputError:
        return InputError(f"{self.name_in_errors}: line {yaml_node.start_mark.line + 1}: {description}")

    def build_value(self, yaml_node: Any) -> Any:
        """Returns the Python value of a YAML node."""
        if id(yaml_node) not in self.built_values:
            if isinstance(yaml_node, self.yaml.ScalarNode):
                built_value = self.build_scalar(yaml_node)
            elif isinstance(yaml_node, self.yaml.SequenceNode):
                self.require_tag(yaml_node, "seq")
                built_value = [self.build_value(element_node) for element_node in yaml_node.value]
            else:
                self.require_tag(yaml_node, "map")
                built_value = self.build_table(yaml_node)
            self.built_values[id(yaml_node)] = built_value
        return self.built_values[id(yaml_node)]

    def require_tag(self, yaml_node: Any, *tag_names: str) -> str:
        """Returns the tag (type) of a YAML node. Raises `InputError` for a tag that is not supported."""
        tag_name = str(yaml_node.tag).removeprefix("tag:yaml.org,2002:")
        if tag_name not in tag_names:
            raise InputError(
                f"{self.name_in_errors}: not valid YAML: the tag {one_line(yaml_node.tag[:80])} at line "
                f"{yaml_node.start_mark.line + 1} is not read; expected texts, numbers, lists and tables"
            )
        return tag_name

    def build_scalar(self, yaml_node: Any) -> Any:
        """Returns the value of a YAML scalar: text, number, boolean or None. A date stays text."""
        yaml_tag = self.require_tag(yaml_node, "str", "int", "float", "bool", "null", "timestamp", "value")
        if yaml_tag in ("int", "float") and len(yaml_node.value) > LONGEST_NUMBER:
            raise self.error(
                yaml_node, f"a number of {len(yaml_node.value):,} letters; expected at most {LONGEST_NUMBER}"
            )
        if yaml_tag in YAML_TYPES:
            try:
                return getattr(self.constructor, f"construct_yaml_{yaml_tag}")(yaml_node)
            except (ValueError, LookupError):  # of a tag in the file (`!!bool x`), or of a sign without digits (`0x_`)
                raise self.error(
                    yaml_node,
                    f"{short_repr(yaml_node.value)} is no {YAML_TYPES[yaml_tag]}; expected one, or quotes around it",
                ) from None
        return None if yaml_tag == "null" else yaml_node.value

    def build_table(self, yaml_node: Any) -> dict[str, Any]:
        """Returns the entries of a YAML mapping, which take precedence over entries merged by `<<`.

        Raises `InputError` for a key that the table has twice with two values; YAML would keep the last.
        """
        merged_entries: dict[str, Any] = {}
        nodes_by_key: dict[str, tuple[Any, Any]] = {}  # key as written → key and value nodes
        for key_node, value_node in yaml_node.value:
            if isinstance(key_node, self.yaml.ScalarNode) and key_node.tag == "tag:yaml.org,2002:merge":
                for merged_table in self.merged_tables(value_node):
                    for merged_key, merged_value in merged_table.items():
                        merged_entries.setdefault(merged_key, merged_value)
                continue
            if not isinstance(key_node, self.yaml.ScalarNode):
                raise self.error(key_node, "a key is a list or a table; expected text")
            previous_value = nodes_by_key.setdefault(key_node.value, (key_node, value_node))[1]
            if previous_value is not value_node and not self.are_equal_scalars(previous_value, value_node):
                raise self.error(key_node, f"{one_line(key_node.value)[:60]} is given twice; expected once")
        return merged_entries | {
            str(self.build_value(key_node)): self.build_value(value_node)
            for key_node, value_node in nodes_by_key.values()
        }

    def merged_tables(self, yaml_node: Any) -> list[dict[str, Any]]:
        """Returns the YAML mappings that `<<` merges, in the order of precedence."""
        table_nodes = yaml_node.value if isinstance(yaml_node, self.yaml.SequenceNode) else [yaml_node]
        if not all(isinstance(table_node, self.yaml.MappingNode) for table_node in table_nodes):
            raise self.error(yaml_node, "<< merges something that is no table; expected a table or a list of tables")
        return [self.build_value(table_node) for table_node in table_nodes]

    def are_equal_scalars(self, first_node: Any, second_node: Any) -> bool:
        """Whether two YAML nodes are scalars with the same text."""
        scalar_node_type = self.yaml.ScalarNode
        return (
            isinstance(first_node, scalar_node_type)
            and isinstance(second_node, scalar_node_type)
            and first_node.value == second_node.value
        )


def environment_variables(environment_value: Any) -> dict[str, str]:
    """Returns environment variables, from a list of `NAME=VALUE`, a list of `name` and `value` tables, or a table."""
    if isinstance(environment_value, Mapping):
        return {
            str(env_name): str(env_text)
            for env_name, env_text in environment_value.items()
            if is_text_or_number(env_text)
        }
    env: dict[str, str] = {}
    for env_element in environment_value if isinstance(environment_value, list) else ():
        if isinstance(env_element, Mapping) and is_text_or_number(env_element.get("value")):
            env[str(env_element.get("name"))] = str(env_element["value"])
        elif isinstance(env_element, str) and "=" in env_element:
            variable_name, _, env_text = env_element.partition("=")
            env[variable_name] = env_text
    return {variable_name: env_text for variable_name, env_text in env.items() if UNRESOLVED_MARK not in env_text}


def is_text_or_number(manifest_value: Any) -> bool:
    """Whether a value of YAML is a text or a number."""
    return isinstance(manifest_value, str | int | float) and not isinstance(manifest_value, bool)
