"""Reads the words of a shell script: quotes, variables, arrays, arguments, arithmetic and default values.

A script is read in one pass, so its words expand to what its variables are at that place. What only a run has stays
unresolved.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ...errors import InputError
from .unresolved import ITEM_SEPARATOR, UNRESOLVED_MARK, VARIABLE_NAME, is_unresolved, mark_unresolved, printable_word

ReadSourcedFile: TypeAlias = Callable[[str], str | None]
"""A function that reads the text of a file that a script sources; it returns None if the file cannot be read."""

DEVICE_COUNT_COMMAND = re.compile(r"nvidia-smi\s[^|]*\|\s*wc\s+-l\s*$")
"""Pattern of commands that count the devices of a machine."""

NPU_TEST_COMMAND = re.compile(r"python3? -c (['\"])import torch_npu\1.*&& *echo [\w.-]+ *\|\| *echo ([\w.-]+) *$")
"""Pattern of commands that print one word with torch's plugin for Ascend devices, and another word without."""

NODES_OF_SKYPILOT = re.compile(r"echo\s+[\"']?\$\{?SKYPILOT_NODE_IPS\}?[\"']?\s*\|\s*wc\s+-l\s*$")
"""Pattern of commands that count the nodes of a SkyPilot task, whose number is also in `SKYPILOT_NUM_NODES`."""

PATH_COMMANDS = ("cd", "dirname", "basename", "realpath", "readlink", "pwd")
"""Commands that print a path; `cd` counts because `pwd` may follow."""

PATH_COMMAND = re.compile(r"(?P<command>dirname|basename|realpath|readlink)\s+(?:-[efLPs]\s+|--\s+)*(?P<path>\S.*)")
"""Pattern of commands that print their path argument, a part of it, or the target of a link."""

FOLDER_COMMAND = re.compile(
    r"cd\s+(?:-P\s+|--\s+)*(?P<path>\S.*?)\s*(?:[12&]?>\s*/dev/null\s*|2>&1\s*)*(?:&&|;)\s*pwd(?:\s+-[LP])?"
)
"""Pattern of `cd FOLDER && pwd`, which prints the folder's path."""


class UnsplittableText(InputError):
    """A text that a shell cannot split into words."""


LONGEST_VALUE = 200_000
"""Largest number of characters in a variable's value."""

MAX_EXPANDED_LETTERS = 4_000_000
"""Largest number of characters read and produced: the script's, those read again, and those of expansions."""


@dataclass(frozen=True)
class ShellCommand:
    """A command of a shell script: its words, the variables that are set for it, and its line.

    words: the command's words.
    env: the variables set for this command.
    line: line number in the script.
    loop_values: variables of the loops around it, with their values.
    """

    words: tuple[str, ...]
    env: dict[str, str]
    line: int
    loop_values: tuple[tuple[str, str], ...] = ()


@dataclass
class ShellScript:
    """A shell script that is being read: its variables, its commands, and the reader's current state.

    name_in_errors: the file's name in messages.
    variables: name → text, or a list of texts for an array.
    exported_names: names of exported variables.
    commands: the commands that would run, in order.
    unset_variables: variables that a condition assumes to be unset.
    word_count: number of words of all commands.
    work_count: number of letters read and produced so far.
    typed_variables: variables typed beside the file's name. They replace values that are unresolved or that a loop
        sets.
    arguments: arguments of the script, typed behind the file's name, that `shift` has left.
    loop_values: variables of the loops that are being read, with their values.
    written_files: texts that the script writes to files, by the files' names.
    skipped_variables: variables that only branches set that do not run. They expand to nothing, as in a shell.
    missing_argument: the last argument that the script uses and that is not typed; 0 for none.
    devices_per_machine: number of devices that `nvidia-smi` lists; None if unknown, outside of Slurm.
    read_sourced_file: reads a file that the script sources; None (default) to read none.
    sourced_file: path of the sourced file that is being read, from the script's folder; empty outside of one.
    sourcing_line_number: the line of the script that sources that file; 0 outside of one.
    sourced_file_count: number of sourced files that were read.
    unread_files: files that the script sources and that were not read.
    exports_assignments: whether variables that are set are exported, after `set -a`.
    exit_line_number: the line of the `exit` that ends the script; 0 without one.
    """

    name_in_errors: str
    typed_variables: Mapping[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    loop_values: dict[str, str] = field(default_factory=dict)
    written_files: dict[str, str] = field(default_factory=dict)
    skipped_variables: set[str] = field(default_factory=set)
    missing_argument: int = 0
    devices_per_machine: int | None = None
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    exported_names: set[str] = field(default_factory=set)
    commands: list[ShellCommand] = field(default_factory=list)
    unset_variables: set[str] = field(default_factory=set)
    word_count: int = 0
    work_count: int = 0
    read_sourced_file: ReadSourcedFile | None = None
    sourced_file: str = ""
    sourcing_line_number: int = 0
    sourced_file_count: int = 0
    unread_files: list[str] = field(default_factory=list)
    exports_assignments: bool = False
    exit_line_number: int = 0

    @property
    def path_in_folder(self) -> str:
        """The script's path from its own folder."""
        return f"./{self.name_in_errors.rpartition('/')[2]}"

    def env(self) -> dict[str, str]:
        """The script's exported variables with known values."""
        exported_values = {
            exported_name: self.variables.get(exported_name, "") for exported_name in sorted(self.exported_names)
        }
        return {
            variable_name: exported_value
            for variable_name, exported_value in exported_values.items()
            if isinstance(exported_value, str) and not is_unresolved(exported_value)
        }


def variable_expander(name_in_errors: str, variables: Mapping[str, str]) -> Callable[[str], str]:
    """Returns a function that expands variables like Docker Compose, where only `$` is special.

    variables: those that are set. The letters of all texts count as those of one script.
    """
    shell_script = ShellScript(name_in_errors, variables=dict(variables))

    def expand_variables(shell_text: str) -> str:
        escaped_text = re.sub(r"[\\`]", r"\\\g<0>", shell_text.replace(UNRESOLVED_MARK, ""))
        return WordReader(shell_script, "").expand_here_document(escaped_text)

    return expand_variables


_PLACEHOLDER = re.compile(r"<[A-Za-z](?:[\w ./:-]{0,80}[\w.])?>(?=[\s/'\"_]|$)")
"""Pattern of a placeholder that the user must fill, such as `<path to the data>`; a shell would read a file there."""
_PLAIN_TEXT = re.compile(r"[^ \t\n;&|()<>\\'\"$`\0]+")
_QUOTED_TEXT = re.compile(r'[^"\\$`\0]+')
_ESCAPED_TEXT = re.compile(r"((?:[^'\\]|\\.)*+)'", re.DOTALL)
"""Pattern of the text in a string with escapes, `$'…'`, up to the closing quote."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
"""Letter after a backslash in `$'…'` → the character that both stand for; a letter not listed stands for itself."""


class WordReader:
    """Reads words of shell source.

    script: the script whose variables and arguments the words have.
    depth: number of `sh -c` and of default values around the source.
    position: the position in the source.
    lines: a position, and its line in the script.
    """

    def __init__(self, shell_script: ShellScript, shell_text: str, nesting_depth: int = 0, first_line: int = 1) -> None:
        self.script, self.text, self.depth = shell_script, shell_text, nesting_depth
        self.position = 0
        self.lines = (0, first_line)
        self.count_characters(len(shell_text))

    def count_characters(self, character_count: int) -> None:
        """Counts characters that are read or produced. Raises `InputError` beyond `MAX_EXPANDED_LETTERS`."""
        self.script.work_count += character_count
        if self.script.work_count > MAX_EXPANDED_LETTERS:
            raise self.error(
                f"the script grows too long; expected at most {MAX_EXPANDED_LETTERS:,} letters read and expanded in all"
            )

    def error(self, description: str) -> UnsplittableText:
        file_name = printable_word(self.script.sourced_file) or self.script.name_in_errors
        return UnsplittableText(f"{file_name}: line {self.line_number}: {description}")

    @property
    def line_number(self) -> int:
        line_start, line_number = self.lines
        self.lines = (self.position, line_number + self.text.count("\n", line_start, self.position))
        return self.lines[1]

    def is_at_placeholder(self) -> bool:
        """Whether a placeholder for the user, such as `<path>`, begins at the current position."""
        return self.text.startswith("<", self.position) and _PLACEHOLDER.match(self.text, self.position) is not None

    def read_word(self) -> list[str]:
        """Reads and returns a shell word, split into several words at an unquoted expansion."""
        finished_words: list[str] = []
        open_word_parts: list[str] = []  # the parts of the word that is not finished; empty if there is none
        word_start = self.position
        for piece_text, splits_words in self.read_word_pieces():
            if not splits_words:
                open_word_parts.append(piece_text)
                continue
            split_texts = piece_text.split(ITEM_SEPARATOR) if ITEM_SEPARATOR in piece_text else piece_text.split()
            continues_word = ITEM_SEPARATOR in piece_text or not piece_text[:1].isspace()
            if split_texts and open_word_parts and continues_word:
                split_texts[0] = "".join([*open_word_parts, split_texts[0]])
                open_word_parts = []
            if open_word_parts and split_texts:
                finished_words.append("".join(open_word_parts))
                open_word_parts = []
            if split_texts:
                finished_words += split_texts[:-1]
                open_word_parts = [split_texts[-1]]
                if piece_text[-1:].isspace():
                    finished_words.append(split_texts[-1])
                    open_word_parts = []
        if open_word_parts:
            finished_words.append("".join(open_word_parts))
        if self.position == word_start:
            self.position += 1
        return finished_words

    def read_word_pieces(self) -> list[tuple[str, bool]]:
        """Reads and returns the pieces of a word: (text, whether spaces in the text split the word)."""
        word_pieces: list[tuple[str, bool]] = []
        character_count, checked_piece_count = 0, 0
        while self.position < len(self.text):
            character = self.text[self.position]
            if self.is_at_placeholder():
                word_pieces.append(self.read_plain_text(_PLACEHOLDER))
                continue
            if character == UNRESOLVED_MARK:
                word_pieces.append(self.read_marked_name())
                continue
            if character in " \t\n;&|()<>":
                break
            if character == "\\":
                if self.text[self.position + 1 : self.position + 2] != "\n":
                    word_pieces.append((self.text[self.position + 1 : self.position + 2], False))
                self.position += 2
            elif character == "'":
                quote_end = self.text.find("'", self.position + 1)
                if quote_end < 0:
                    raise self.error("a quote ' that does not end")
                word_pieces.append((self.text[self.position + 1 : quote_end], False))
                self.position = quote_end + 1
            elif character == '"':
                self.position += 1
                word_pieces += self.read_quoted_text()
            elif self.text.startswith(("$'", '$"'), self.position):
                word_pieces += self.read_dollar_quote()
            elif character in "$`":
                expanded_text = self.read_expansion()
                word_pieces.append((expanded_text.replace(ITEM_SEPARATOR, " "), True))
            else:
                word_pieces.append(self.read_plain_text(_PLAIN_TEXT))
            character_count += sum(len(expanded_text) for expanded_text, _ in word_pieces[checked_piece_count:])
            checked_piece_count = len(word_pieces)
            if character_count > LONGEST_VALUE:
                raise self.error(f"a word grows too long; expected at most {LONGEST_VALUE:,} letters")
        return word_pieces

    def read_dollar_quote(self) -> list[tuple[str, bool]]:
        """Reads and returns the pieces of a string with escapes, `$'…'`, or of a text to be translated, `$"…"`."""
        if self.text[self.position + 1] == '"':
            self.position += 2
            return self.read_quoted_text()
        escaped_match = _ESCAPED_TEXT.match(self.text, self.position + 2)
        if escaped_match is None:
            raise self.error("a quote ' that does not end")
        self.position = escaped_match.end()
        unescaped_text = _ESCAPE.sub(lambda escape: ESCAPES.get(escape[1], escape[1]), escaped_match[1])
        return [(unescaped_text, False)]

    def read_quoted_text(self) -> list[tuple[str, bool]]:
        """Reads and returns the pieces of a text in double quotes."""
        text_pieces: list[tuple[str, bool]] = [("", False)]
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == '"':
                self.position += 1
                return text_pieces
            if character == "\\":
                next_character = self.text[self.position + 1 : self.position + 2]
                if next_character != "\n":
                    text_pieces.append((next_character if next_character in '$`"\\' else f"\\{next_character}", False))
                self.position += 2
            elif character == UNRESOLVED_MARK:
                text_pieces.append(self.read_marked_name())
            elif character in "$`":
                expanded_text = self.read_expansion()
                if ITEM_SEPARATOR not in expanded_text:
                    text_pieces.append((expanded_text, False))
                elif expanded_text == ITEM_SEPARATOR:  # an array without items is no word at all
                    text_pieces = [] if text_pieces == [("", False)] else text_pieces
                else:
                    text_pieces.append((expanded_text, True))
            else:
                text_pieces.append(self.read_plain_text(_QUOTED_TEXT))
        raise self.error('a quote " that does not end')

    def read_marked_name(self) -> tuple[str, bool]:
        """Reads a variable's name that an earlier parse left unresolved, between two `UNRESOLVED_MARK`s."""
        name_end = self.text.find(UNRESOLVED_MARK, self.position + 1)
        name_end = len(self.text) if name_end < 0 else name_end + 1
        name_start, self.position = self.position, name_end
        return self.text[name_start:name_end], False

    def read_plain_text(self, letter_pattern: re.Pattern[str]) -> tuple[str, bool]:
        """Reads and returns characters without a special meaning in the shell.

        letter_pattern: the pattern of such characters.
        """
        text_match = letter_pattern.match(self.text, self.position)
        assert text_match is not None
        self.position = text_match.end()
        return text_match[0], False

    def read_expansion(self) -> str:
        """Returns the text of an expansion at a dollar sign or a backquote; its length is part of the counted work."""
        expanded_text = self.read_dollar_expansion()
        self.count_characters(len(expanded_text))
        return expanded_text

    def read_dollar_expansion(self) -> str:
        """Reads an expansion at a dollar sign or a backquote, and returns the text."""
        dollar_index = self.position
        if self.text[dollar_index] == "`":
            end_index = self.text.find("`", dollar_index + 1)
            if end_index < 0:
                raise self.error("a backquote that does not end")
            self.position = end_index + 1
            command_text = self.text[dollar_index + 1 : end_index].strip()
            printed_text = self.command_output(command_text)
            return printed_text if not is_unresolved(printed_text) else mark_unresolved("`…`")
        if self.text.startswith("$((", dollar_index):
            inner_text = self.read_balanced_text(dollar_index + 1)
            return self.evaluate_arithmetic(
                inner_text[1:-1] if inner_text.startswith("(") and inner_text.endswith(")") else inner_text
            )
        if self.text.startswith("$(", dollar_index):
            inner_text = self.read_balanced_text(dollar_index + 1)
            return self.command_output(inner_text.strip())
        if self.text.startswith("${", dollar_index):
            return self.expand_braces(self.read_balanced_text(dollar_index + 1))
        name_match = VARIABLE_NAME.match(self.text, dollar_index + 1)
        if name_match is not None:
            self.position = name_match.end()
            variable_value = self.script.variables.get(name_match[0])
            if variable_value is None:
                return "" if name_match[0] in self.script.skipped_variables else mark_unresolved(f"${name_match[0]}")
            return variable_value if isinstance(variable_value, str) else (variable_value[0] if variable_value else "")
        next_character = self.text[dollar_index + 1 : dollar_index + 2]
        self.position = dollar_index + 2
        if next_character == "0":
            return self.script.path_in_folder
        if next_character and next_character in "@*":
            return ITEM_SEPARATOR.join(self.script.arguments) or ITEM_SEPARATOR
        if next_character == "#":
            return str(len(self.script.arguments))
        if next_character and next_character in "123456789":
            return self.script_argument(int(next_character))
        return (
            mark_unresolved(f"${next_character}")
            if next_character and next_character in "0123456789#?$!-"
            else f"${next_character}".rstrip()
        )

    def command_output(self, command_text: str) -> str:
        """Returns the output of a shell command, or an unresolved mark if the output is unknown.

        Known are those of `expr` and of `echo` with known words, the number of devices that `nvidia-smi` lists on a
        machine of Slurm or in a container with a limit, and those that ask for Ascend's devices, which are not counted.
        """
        command_name, _, arguments = command_text.partition(" ")
        if command_name in ("expr", "echo") and self.depth < 3 and not set(arguments) & set("|<>;&`()"):
            arithmetic_text = self.expand_nested_text(
                arguments.replace("\\*", "*").replace("'*'", "*") if command_name == "expr" else arguments
            )
            if command_name == "expr" and not is_unresolved(arithmetic_text):
                result_text = self.evaluate_arithmetic(arithmetic_text)
                return result_text if not is_unresolved(result_text) else mark_unresolved(f"$({command_name}…)")
            if command_name == "echo" and not is_unresolved(arithmetic_text) and not arithmetic_text.startswith("-"):
                return arithmetic_text.strip()
        if command_name in PATH_COMMANDS and self.depth < 6:
            printed_path = self.printed_path(command_text)
            if printed_path:
                return printed_path
        if NODES_OF_SKYPILOT.match(command_text) is not None:
            node_count_text = self.script.variables.get("SKYPILOT_NUM_NODES")
            if isinstance(node_count_text, str):
                return node_count_text
        if DEVICE_COUNT_COMMAND.match(command_text) is not None:
            device_count_text = self.script.variables.get("SLURM_GPUS_ON_NODE", self.script.devices_per_machine)
            if isinstance(device_count_text, str | int):
                return str(device_count_text)
        npu_import_match = NPU_TEST_COMMAND.match(command_text)
        if npu_import_match is not None:
            return npu_import_match[2]
        return mark_unresolved(f"$({command_name}…)" if arguments else f"$({command_name})")

    def printed_path(self, command_text: str) -> str:
        """Returns the path that a command such as `dirname` prints; empty if the path is unknown.

        Paths are relative to the script's folder, in which files that a script names are looked up first.
        """
        if re.fullmatch(r"pwd(\s+-[LP])?", command_text):
            current_folder = self.script.variables.get("PWD")
            return current_folder if isinstance(current_folder, str) else ""
        folder_match = FOLDER_COMMAND.fullmatch(command_text)
        command_match = PATH_COMMAND.fullmatch(command_text) if folder_match is None else folder_match
        if command_match is None:
            return ""
        path_text = self.expand_nested_text(command_match["path"]).strip()
        if not path_text or is_unresolved(path_text) or ITEM_SEPARATOR in path_text or " " in path_text:
            return ""
        if folder_match is not None or command_match["command"] in ("realpath", "readlink"):
            return posixpath.normpath(path_text)
        if set(path_text.split("/")) <= {".", "..", ""} and not path_text.startswith("/"):
            return posixpath.normpath(f"{path_text}/..") if command_match["command"] == "dirname" else ""
        printed_name = getattr(posixpath, command_match["command"])(path_text.rstrip("/") or "/")
        return printed_name or "."

    def script_argument(self, argument_number: int) -> str:
        """Returns the script's positional argument `argument_number`, from 1, or an unresolved mark if not typed."""
        arguments = self.script.arguments
        if argument_number > len(arguments):
            self.script.missing_argument = max(self.script.missing_argument, argument_number)
        if 0 < argument_number <= len(arguments):
            return arguments[argument_number - 1]
        return mark_unresolved(f"${argument_number}")

    def read_balanced_text(self, start_index: int) -> str:
        """Reads and returns the text inside the brackets that open at `start_index`."""
        opening_bracket, closing_bracket = self.text[start_index], {"(": ")", "{": "}"}[self.text[start_index]]
        bracket_depth, character_index = 0, start_index
        while character_index < len(self.text):
            character = self.text[character_index]
            if character == "\\":
                character_index += 1
            elif character == "'" and opening_bracket == "(":
                character_index = self.text.find("'", character_index + 1)
                if character_index < 0:
                    break
            elif character == opening_bracket:
                bracket_depth += 1
            elif character == closing_bracket:
                bracket_depth -= 1
                if bracket_depth == 0:
                    self.position = character_index + 1
                    return self.text[start_index + 1 : character_index]
            character_index += 1
        raise self.error(f"{opening_bracket} that does not end; expected {closing_bracket}")

    def expand_braces(self, text_in_braces: str) -> str:
        """Returns the text to which `${…}` expands, such as a variable's value or a default value."""
        script_match = re.fullmatch(
            r"(?P<name>0|BASH_SOURCE(?:\[0\])?)(?P<operation>%/\*|:?-.*)?", text_in_braces, re.DOTALL
        )
        if script_match is not None:  # the script's path, or its folder; a default after `:-` is not used
            script_path = (script_match["name"] != "0" and self.script.sourced_file) or self.script.path_in_folder
            return posixpath.dirname(script_path) or "." if script_match["operation"] == "%/*" else script_path
        array_match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]", text_in_braces)
        if array_match is not None:
            variable_value = self.script.variables.get(array_match[1])
            if variable_value is None:
                return (
                    ITEM_SEPARATOR
                    if array_match[1] in self.script.skipped_variables
                    else mark_unresolved(f"${array_match[1]}")
                )
            array_items = variable_value if isinstance(variable_value, list) else [variable_value]
            return (
                ITEM_SEPARATOR.join(array_items)
                if len(array_items) > 1
                else (array_items[0] if array_items else ITEM_SEPARATOR)
            )
        arguments_match = re.fullmatch(r"[@*]:([0-9]{1,3})", text_in_braces)
        if arguments_match is not None:
            return ITEM_SEPARATOR.join(self.script.arguments[max(0, int(arguments_match[1]) - 1) :]) or ITEM_SEPARATOR
        expansion_match = re.fullmatch(
            r"([A-Za-z_][A-Za-z0-9_]*|[0-9]{1,3}|[#@*])(?:(:?[-=+?])(.*))?", text_in_braces, re.DOTALL
        )
        if expansion_match is None:
            name_match = VARIABLE_NAME.match(text_in_braces)
            return mark_unresolved(f"${{{name_match[0] if name_match else text_in_braces[:20]}…}}")
        variable_name = expansion_match[1]
        expansion_operator = expansion_match[2] or ""
        alternative_text = expansion_match[3] or ""
        if variable_name == "#" and not expansion_operator:
            return str(len(self.script.arguments))
        variable_value = self.script.variables.get(variable_name)
        if variable_name.isdecimal() and 0 < int(variable_name) <= len(self.script.arguments):
            variable_value = self.script_argument(int(variable_name))
        elif variable_name.isdecimal() and not expansion_operator:
            return self.script_argument(int(variable_name))
        is_set = variable_value is not None and not (expansion_operator.startswith(":") and variable_value in ("", []))
        value_text = (
            ""
            if variable_value is None
            else (variable_value if isinstance(variable_value, str) else (variable_value[0] if variable_value else ""))
        )
        if expansion_operator.endswith("+"):
            return self.expand_nested_text(alternative_text) if is_set else ""
        if is_set:
            return value_text
        if expansion_operator.endswith(("-", "=")):
            value_text = self.expand_nested_text(alternative_text)
            if expansion_operator.endswith("=") and VARIABLE_NAME.fullmatch(variable_name):
                self.script.variables[variable_name] = value_text
            return value_text
        if variable_name in ("@", "*"):
            return ITEM_SEPARATOR.join(self.script.arguments) or ITEM_SEPARATOR
        if variable_value is not None or variable_name in self.script.skipped_variables:
            return value_text
        return mark_unresolved(f"${variable_name}")

    def expand_nested_text(self, nested_text: str) -> str:
        """Returns a nested text, such as a default value, after expansion."""
        if self.depth > 20:
            raise self.error("defaults nested too deeply")
        word_reader = WordReader(self.script, nested_text, self.depth + 1, self.line_number)
        expanded_text = ""
        while word_reader.position < len(nested_text):
            position_before = word_reader.position
            expanded_text += "".join(word_piece for word_piece, _ in word_reader.read_word_pieces())
            if word_reader.position == position_before:
                expanded_text += nested_text[word_reader.position]
                word_reader.position += 1
        return expanded_text

    def expand_here_document(self, here_document: str) -> str:
        """Returns the expanded text of a here-document, in which quotes are not special."""
        word_reader = WordReader(self.script, here_document, self.depth + 1, self.line_number)
        text_parts: list[str] = []
        while word_reader.position < len(here_document):
            character = here_document[word_reader.position]
            if character in "$`":
                text_parts.append(word_reader.read_expansion().replace(ITEM_SEPARATOR, " "))
            elif character == "\\" and here_document[word_reader.position + 1 : word_reader.position + 2] in (
                "$",
                "`",
                "\\",
                "\n",
            ):
                text_parts.append(here_document[word_reader.position + 1].replace("\n", ""))
                word_reader.position += 2
            else:
                text_parts.append(character)
                word_reader.position += 1
        document_text = "".join(text_parts)
        if len(document_text) > LONGEST_VALUE:
            raise self.error(f"a here-document grows too long; expected at most {LONGEST_VALUE:,} letters")
        return document_text

    def evaluate_arithmetic(self, expression_text: str) -> str:
        """Returns the value of a whole-number arithmetic expression, or an unresolved mark if the value is unknown."""
        from .shell_arithmetic import whole_number_of

        result_value = whole_number_of(expression_text, self.script.variables)
        return mark_unresolved(f"$(({expression_text.strip()[:60]}))") if result_value is None else str(result_value)
