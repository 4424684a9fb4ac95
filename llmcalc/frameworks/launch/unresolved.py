"""Marks script words whose values are unknown before the script runs, and explains such words in messages."""

from __future__ import annotations

import re

from ...errors import one_line

UNRESOLVED_MARK = "\0"
"""Mark before and after an unresolved variable's name in a word."""

ITEM_SEPARATOR = "\x1f"
"""The separator between the items of an expanded array."""

UNSET_VARIABLE = re.compile(rf"{UNRESOLVED_MARK}\$[A-Za-z0-9_]+{UNRESOLVED_MARK}")
"""Pattern of a marked variable that the script never sets."""

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def mark_unresolved(variable_name: str) -> str:
    """Returns a marked name that replaces a value unknown before the script runs."""
    printable_characters = (
        character
        for character in variable_name
        if not character.isspace() and character not in (UNRESOLVED_MARK, ITEM_SEPARATOR)
    )
    return f"{UNRESOLVED_MARK}{''.join(printable_characters)}{UNRESOLVED_MARK}"


def is_unresolved(shell_text: str) -> bool:
    """Whether a part of a word is unknown before the script runs."""
    return UNRESOLVED_MARK in shell_text


def is_unset_variable(shell_word: str) -> bool:
    """Whether a word is a variable that the script never sets, which a shell expands to nothing."""
    return UNSET_VARIABLE.fullmatch(shell_word) is not None and not shell_word[2:3].isdecimal()


def printable_word(shell_text: str, character_limit: int = 80) -> str:
    """Returns a word for an error message: without marks, on one line, and cut to `character_limit` characters."""
    return one_line(shell_text.replace(UNRESOLVED_MARK, ""))[:character_limit]


def unresolved_reason(shell_text: str) -> str:
    """Returns the message about an unresolved word: the variable, and the command that sets it."""
    marked_name = (
        shell_text.split(UNRESOLVED_MARK)[1] if shell_text.count(UNRESOLVED_MARK) > 1 else printable_word(shell_text)
    )
    reason_text = f"'{printable_word(shell_text)[:60]}' is known only when the script runs"
    variable_match = VARIABLE_NAME.match(marked_name, 1) if marked_name.startswith("$") else None
    if variable_match is not None and variable_match.end() == len(marked_name):
        unset_name = variable_match[0][:60]
        launch_example = f"--launch '{unset_name}=… FILE'"
        return f"{reason_text}: the variable {unset_name} is not set in it; expected {launch_example}, or a value"
    if marked_name.startswith("$(("):
        names_text = ", ".join(dict.fromkeys(VARIABLE_NAME.findall(marked_name)))
        return f"{reason_text}: the script does not set all of {names_text or 'it'}; expected whole numbers, or a value"
    if VARIABLE_NAME.fullmatch(marked_name):
        return (
            f"{reason_text}: a loop, a condition or a command sets the variable {marked_name[:60]}; expected "
            f"--launch '{marked_name[:60]}=… FILE', or a value"
        )
    if marked_name[:2] in ("$(", "`…"):
        return f"{reason_text}: a command prints it; expected a value"
    if re.fullmatch(r"\$[0-9]{1,3}", marked_name):
        argument_number = int(marked_name[1:])
        arguments_text = " ".join(
            ("ARG1", "ARG2", f"… ARG{argument_number}" if argument_number > 3 else "ARG3")[: min(argument_number, 3)]
        )
        reason_text += f": it is argument {argument_number} of the script"
        return f"{reason_text}; expected --launch 'FILE {arguments_text}', or a value"
    return f"{reason_text}; expected a value"
