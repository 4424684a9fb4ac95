"""Reads Ollama's Modelfile, whose instructions FROM and PARAMETER determine memory.

The form is that of ollama's docs/modelfile.mdx and parser/parser.go: names of instructions in any case, texts in quotes
or in three of them over several lines, comments that begin with #.
"""

from __future__ import annotations

import re

from ...errors import InputError, one_line
from .programs import ServerStart, program_named
from .server import Container, StartedServer

INSTRUCTIONS = frozenset(
    {"from", "parameter", "template", "system", "adapter", "license", "message", "renderer", "parser", "requires"}
)

_INSTRUCTION = re.compile(r"^[ \t]*([A-Za-z]+)[ \t]+(.*)$")


def is_modelfile(file_text: str, file_name: str) -> bool:
    """Whether a text is an Ollama Modelfile: with FROM, and without instructions of Dockerfiles and scripts."""
    if not re.search(r"^[ \t]*FROM[ \t]+\S", file_text, re.IGNORECASE | re.MULTILINE):
        return False
    instruction_lines = [
        text_line
        for text_line in _without_quoted_texts(file_text).split("\n")
        if text_line.strip() and not text_line.lstrip().startswith("#")
    ]
    instruction_matches = [_INSTRUCTION.match(text_line) for text_line in instruction_lines]
    has_file_name = "modelfile" in file_name.rpartition("/")[2].lower()
    has_known_instructions = all(
        instruction_match is not None and instruction_match[1].lower() in INSTRUCTIONS
        for instruction_match in instruction_matches
    )
    return has_known_instructions and (
        has_file_name
        or any(
            instruction_match is not None and instruction_match[1].lower() == "parameter"
            for instruction_match in instruction_matches
        )
    )


def _without_quoted_texts(modelfile_text: str) -> str:
    """Removes quoted texts, possibly over several lines, from a Modelfile."""
    modelfile_text = re.sub(r'"""[\s\S]*?"""', '""', modelfile_text)
    return re.sub(r'"[^"]*"', '""', modelfile_text)


def server_in_modelfile(modelfile_text: str, name_in_errors: str, container: Container) -> StartedServer:
    """Returns the server of a Modelfile. Raises `InputError` for adapters and for a parameter without a value."""
    server_program = program_named("ollama")
    assert server_program is not None
    model_name, option_words = "", []
    for line_number, text_line in enumerate(_without_quoted_texts(modelfile_text).split("\n"), 1):
        instruction_match = _INSTRUCTION.match(text_line)
        if instruction_match is None or text_line.lstrip().startswith("#"):
            continue
        instruction_name, instruction_value = instruction_match[1].lower(), instruction_match[2].strip()
        if instruction_name == "from":
            model_name = instruction_value
        elif instruction_name == "adapter":
            raise InputError(
                f"{name_in_errors}: line {line_number}: ADAPTER: adapters are not modelled; remove the line"
            )
        elif instruction_name == "parameter":
            parameter_name, _, parameter_value = instruction_value.partition(" ")
            if not parameter_value.strip():
                raise InputError(
                    f"{name_in_errors}: line {line_number}: PARAMETER {one_line(parameter_name)[:40]}: "
                    "the value is missing"
                )
            option_words.append(f"--{parameter_name.lower()}={parameter_value.strip()}")
    return StartedServer(ServerStart(server_program, tuple(option_words), model_name), container)
