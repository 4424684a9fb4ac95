"""Offers commands as tools for language models: JSON schemas for the arguments, and answers in JSON.

The schemas are read from the options that the command line has; the answers are those of the Python function of the
command's name, whose arguments have the options' names. A tool reads presets and files and writes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from ..errors import InputError, short_repr, suggest
from ..sources.files import LARGEST_CONFIG, require_shallow_nesting
from ..sources.target_names import STDIN
from .main import build_command

TOOL_COMMANDS = ("params", "flops", "kv", "memory", "fit", "plan", "time", "serve", "cost", "compare")
"""Names of the commands that language models can call as tools."""

OMITTED_OPTIONS = frozenset({"format", "notes", "table", "offline", "help", "help-all", "measure"})
"""Options that tools do not have, for output, network access and running a transformers class."""

ENGINE_TOOLS = frozenset({"kv", "memory", "fit"})
"""Tools that take the flags of a serving engine."""

LONGEST_TEXT = 4096
"""Largest number of characters of a text argument."""

NUMBER_TYPE_BY_METAVAR = {"N": "integer", **dict.fromkeys(("P", "R", "RATE", "GB/s", "MONEY", "SECONDS"), "number")}
"""Placeholder of an option's value in help texts → the JSON type of numbers that the option accepts besides text."""

MODEL_DESCRIPTION = (
    "The model: a preset's name (llama3-8b), the path of a config.json, a .toml description or a .gguf file, a hub id "
    "(org/name, which uses the network where no preset has that name), or a config.json as an object."
)
KEYS_DESCRIPTION = 'Keys of the answer to return, such as ["params"]; all if not given. "tree" and "servers" are long.'


class Tool(NamedTuple):
    """An llmcalc command that a language model can call as a tool.

    name: the command's name.
    description: what it answers, a sentence.
    arguments: argument → its JSON schema, of every option of the command.
    common_arguments: the arguments that the tool's schema describes; the others are names in the description of
        `options`.
    required_arguments: the arguments that a call needs.
    """

    name: str
    description: str
    arguments: dict[str, dict[str, Any]]
    common_arguments: frozenset[str]
    required_arguments: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of a call: common arguments, other arguments in `options`, and `keys`."""
        common_schemas = {
            argument_name: value_schema
            for argument_name, value_schema in self.arguments.items()
            if argument_name in self.common_arguments
        }
        other_names_text = ", ".join(
            argument_name for argument_name in self.arguments if argument_name not in self.common_arguments
        )
        note_texts: list[str] = []
        if other_names_text:
            note_texts.append(
                f"Further options by name, as llmcalc {self.name} --help-all explains them: {other_names_text}."
            )
        if self.name in ENGINE_TOOLS:
            note_texts.append('With engine, its own flags: {"max_model_len": "32k", "max_num_seqs": 64}.')
        if note_texts:
            common_schemas["options"] = {"type": "object", "description": " ".join(note_texts), "maxProperties": 100}
        common_schemas["keys"] = {
            "type": "array",
            "items": _string_schema(),
            "maxItems": 100,
            "description": KEYS_DESCRIPTION,
        }
        required = list(self.required_arguments)
        return {"type": "object", "properties": common_schemas, "required": required, "additionalProperties": False}


@cache
def all_tools() -> tuple[Tool, ...]:
    """Returns the commands that language models can call as tools, with the schemas of the arguments."""
    return tuple(_tool_of_command(tool_name) for tool_name in TOOL_COMMANDS)


def _tool_of_command(command_name: str) -> Tool:
    command = build_command("", command_name)
    parameters = {
        _argument_name(command_name, parameter): parameter
        for parameter in command.params
        if _is_content_parameter(parameter)
    }
    return Tool(
        command_name,
        " ".join((command.help or "").split()),
        {argument_name: _argument_schema(argument_name, parameter) for argument_name, parameter in parameters.items()},
        frozenset(name for name, parameter in parameters.items() if parameter.name not in command.uncommon),
        tuple(argument_name for argument_name, parameter in parameters.items() if parameter.required),
    )


def _is_content_parameter(parameter: Any) -> bool:
    """Whether a command's parameter changes the content of the answer, and not just the format."""
    writes_output = parameter.metavar == "FILE" and not {"--output", "--output-file"}.isdisjoint(parameter.opts)
    return not writes_output and _option_name(parameter) not in OMITTED_OPTIONS


def _option_name(parameter: Any) -> str:
    """Returns an option's first long name without dashes, or an argument's name."""
    return next((spelling[2:] for spelling in parameter.opts if spelling.startswith("--")), str(parameter.name))


def _argument_name(tool_name: str, parameter: Any) -> str:
    """Returns the name of the API function's argument that corresponds to a command's parameter."""
    if parameter.param_type_name == "argument":
        return "models" if tool_name == "compare" else "model"
    return _option_name(parameter).replace("-", "_")


def _string_schema(**extra_fields: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": LONGEST_TEXT, **extra_fields}


def _model_schema(description: str) -> dict[str, Any]:
    return {"anyOf": [_string_schema(minLength=1), {"type": "object"}], "description": description}


def _argument_schema(argument_name: str, parameter: Any) -> dict[str, Any]:
    """Returns the JSON schema of an argument, from its type and help text."""
    if argument_name == "model":
        return _model_schema(MODEL_DESCRIPTION)
    if argument_name == "models":
        return {
            "type": "array",
            "items": _model_schema(MODEL_DESCRIPTION),
            "maxItems": 100,
            "description": "The models to compare.",
        }
    parameter_type, placeholder = parameter.type_descriptor.annotation, parameter.metavar or ""
    help_text = " ".join((parameter.help or "").split())
    if placeholder == "TARGET":
        return _model_schema(f"{help_text.rstrip('.')}. As model.")
    description = f"{help_text.rstrip('.')}. Value: {placeholder}." if "|" in placeholder else help_text
    if parameter.is_flag:
        return {"type": "boolean", "description": description}
    if get_origin(parameter_type) is list:
        return {
            "anyOf": [_string_schema(), {"type": "array", "items": _string_schema(), "maxItems": 100}],
            "description": description,
        }
    possible_values = [possible_value for possible_value in get_args(parameter_type) if isinstance(possible_value, str)]
    if possible_values:
        return {"type": "string", "enum": possible_values, "description": description}
    value_type = "integer" if parameter_type is int else NUMBER_TYPE_BY_METAVAR.get(placeholder)
    return _string_schema(description=description) | ({"type": [value_type, "string"]} if value_type else {})


def answer_of_tool(tool_name: str, arguments: Mapping[str, Any]) -> Any:
    """Calls a tool and returns the answer as a JSON document. arguments: values keyed by the schema's argument names.

    Raises `InputError`, whose message names the argument, for arguments that the schema or the command refuses.
    """
    from importlib import import_module

    if tool_name not in TOOL_COMMANDS:
        raise InputError(
            f"there is no tool '{tool_name}'.{suggest(tool_name, list(TOOL_COMMANDS))} "
            f"Expected one of {', '.join(TOOL_COMMANDS)}"
        )
    tool = next(tool for tool in all_tools() if tool.name == tool_name)
    _check_arguments_size(arguments)
    _check_arguments({**tool.arguments, **tool.schema["properties"]}, arguments)
    for argument_name in tool.required_arguments:
        if argument_name not in arguments:
            raise InputError(
                f"{argument_name}: missing; expected {_description_in_sentence(tool.arguments[argument_name])}"
            )
    call_arguments = dict(arguments)
    requested_keys, option_values = call_arguments.pop("keys", None), call_arguments.pop("options", {})
    repeated_names = sorted(option_values.keys() & call_arguments.keys())
    if repeated_names:
        raise InputError(f"options: {repeated_names[0]} is an argument too; expected it once")
    is_engine_question = "engine" in call_arguments or "launch" in call_arguments
    _check_arguments(
        tool.arguments,
        {
            option_name: option_value
            for option_name, option_value in option_values.items()
            if option_name in tool.arguments or not is_engine_question
        },
    )
    call_arguments |= option_values
    model_targets = call_arguments.pop("models", [call_arguments.pop("model")] if "model" in call_arguments else [])
    for model in (*model_targets, call_arguments.get("draft")):
        _check_model(model)
    if call_arguments.get("receipt") == STDIN:
        raise InputError(f"receipt: '{STDIN}' is standard input, which the protocol uses; expected a path")
    answer_document = getattr(import_module("..api", __package__), tool_name)(*model_targets, **call_arguments).document
    return answer_document if requested_keys is None else _document_with_keys(answer_document, requested_keys)


def _check_arguments_size(arguments: Mapping[str, Any]) -> None:
    """Raises `InputError` for arguments that are nested too deeply, too large, or have an infinite number."""
    require_shallow_nesting(dict(arguments), "arguments")
    try:
        character_count = len(json.dumps(arguments))
    except ValueError:
        raise InputError("arguments: a number has thousands of digits; expected shorter ones") from None
    if character_count > LARGEST_CONFIG:
        raise InputError(f"arguments: are larger than {LARGEST_CONFIG:,} bytes; expected a name or a shorter config")


def _check_arguments(known_arguments: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raises `InputError` for the first argument that is unknown or has the wrong type. known_arguments: schemas."""
    from jsonschema import Draft202012Validator

    for argument_name, argument_value in arguments.items():
        if argument_name not in known_arguments:
            from ..questions.other_names import unknown_name_suggestion

            suggestion = unknown_name_suggestion(argument_name, known_arguments)
            raise InputError(f"{argument_name}: there is no such argument{suggestion}")
        if not Draft202012Validator(known_arguments[argument_name]).is_valid(argument_value):
            expected_value = _description_in_sentence(known_arguments[argument_name])
            raise InputError(f"{argument_name}: {short_repr(argument_value)} does not fit; expected {expected_value}")


def _description_in_sentence(value_schema: Mapping[str, Any]) -> str:
    """Returns an argument's description in a form that can continue a sentence: `the accelerator: a name …`."""
    description = str(value_schema["description"])
    return description if description[1:2].isupper() else description[:1].lower() + description[1:]


def _check_model(model: Any) -> None:
    """Raises `InputError` for standard input as the model, because the protocol uses standard input."""
    if isinstance(model, str) and re.match(rf"\s*{STDIN}(\?|\s*$)", model):
        raise InputError(f"model: '{STDIN}' is standard input, which the protocol uses; expected a name or a path")


def _document_with_keys(answer_document: Any, requested_keys: list[str]) -> Any:
    """Returns the requested keys of a document, or of each document in a list."""
    if isinstance(answer_document, list):
        return [_document_with_keys(document_entry, requested_keys) for document_entry in answer_document]
    unknown_keys = [requested_key for requested_key in requested_keys if requested_key not in answer_document]
    if unknown_keys:
        raise InputError(f"keys: the answer has no '{unknown_keys[0]}'; expected some of {', '.join(answer_document)}")
    return {requested_key: answer_document[requested_key] for requested_key in requested_keys}
