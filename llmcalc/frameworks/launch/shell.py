"""Reads the commands of a shell script without running it.

It evaluates assignments, arrays, `${NAME:-default}`, arithmetic, continued lines, quotes, exported variables, `sh -c`,
`eval`, `shift`, loops over known words, here-documents that are written to a file, files that it sources, and branches
whose condition compares known texts or numbers, or tests whether such a file exists. Variables and arguments may be
typed beside the file's name. Values that only a run has stay unresolved: a command's output, the environment, arguments
that are not typed, variables that a command sets. They are an error only in arguments that matter.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from ...errors import InputError
from .shell_conditions import WHOLE_NUMBER, ShellBranch, evaluate_test
from .shell_words import LONGEST_VALUE, ReadSourcedFile, ShellCommand, ShellScript, UnsplittableText, WordReader
from .slurm import slurm_variables
from .unresolved import (
    ITEM_SEPARATOR,
    UNRESOLVED_MARK,
    UNSET_VARIABLE,
    VARIABLE_NAME,
    is_unresolved,
    mark_unresolved,
    printable_word,
)

MAX_WORDS = 20_000
"""Largest number of words in all commands of a script."""

MAX_BLOCKS = 50
"""Largest nesting depth of `if`, loops and other blocks."""

MAX_SOURCED_FILES = 50
"""Largest number of files that a script sources, counted as often as each is sourced."""

MAX_EXPORTED_VARIABLES = 500
"""Largest number of variables that a script exports; each command stores all of them in its environment."""

LEAST_LOOP_LETTERS = 1_000
"""Smallest number of characters that a pass through a loop counts, so that endless loops reach the limit soon."""

LONGEST_PATTERN = 1_000
"""Largest number of characters in the value and in a wildcard pattern of a `case` that are compared."""

BLOCK_BEGINNINGS = ("if", "for", "while", "until", "case", "{", "select")
BLOCK_ENDS = ("fi", "done", "esac", "}")
COMMAND_PREFIXES = ("then", "else", "do", "!", "time", "exec", "command", "nohup", "function")
DECLARING_COMMANDS = ("export", "declare", "local", "readonly", "typeset")
CONDITION_COMMANDS = ("[", "[[", "test")
FOLDER_COMMANDS = ("cd", "pushd", "popd")
VARIABLE_COMMANDS = ("read", "unset", "mapfile", "readarray")
SOURCING_COMMANDS = ("source", ".")
ENDING_COMMANDS = ("return", "exit")
EXPORT_ALL_OPTIONS = {("-a",): True, ("-o", "allexport"): True, ("+a",): False, ("+o", "allexport"): False}
"""Arguments of the command `set` → whether variables set afterwards are exported."""


def read_script(
    script_text: str,
    name_in_errors: str,
    typed_variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    devices_per_machine: int | None = None,
    *,
    read_sourced_file: ReadSourcedFile | None = None,
    first_line_number: int = 1,
) -> ShellScript:
    """Returns the variables and commands of a shell script, without running the script.

    typed_variables: variables that are set before the script runs.
    arguments: arguments of the script.
    devices_per_machine: number of devices of the container that runs the script; None (default) if unknown.
    read_sourced_file: reads a file that the script sources; None (default) to read none.
    first_line_number: the line of the file on which the script begins; 1 by default.
    Raises `InputError` for quotes or brackets that do not end, and for texts that grow too long.
    """
    typed_variables = {
        name: variable_value.replace(UNRESOLVED_MARK, "").replace(ITEM_SEPARATOR, " ")
        for name, variable_value in (typed_variables or {}).items()
    }
    shell_script = ShellScript(
        name_in_errors,
        typed_variables,
        [command_word.replace(UNRESOLVED_MARK, "").replace(ITEM_SEPARATOR, " ") for command_word in arguments],
        devices_per_machine=devices_per_machine,
        read_sourced_file=read_sourced_file,
    )
    shell_script.variables |= {
        "PWD": ".",
        "BASH_SOURCE": shell_script.path_in_folder,
        **slurm_variables(script_text),
        **typed_variables,
    }
    StatementReader(shell_script, _plain_lines(script_text), first_line_number=first_line_number).read_statements()
    return shell_script


def _plain_lines(script_text: str) -> str:
    """Returns a script's text with Unix line ends, and without the mark that stands for unresolved values."""
    return script_text.replace("\r\n", "\n").replace(UNRESOLVED_MARK, "")


_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BLANKS = " \t"


class StatementReader(WordReader):
    """Parses shell source and appends the commands to a script.

    branches: the blocks around the current position.
    pending_here_documents: (name of its end, whether it expands) of each here-document whose text comes after the line.
    statement_start: the position and the line of the current statement.
    here_string: the text on the current command's standard input; None for none.
    output_file: the file that the current command writes.
    joining_operator: the sign between the last command and the next one, && or ||; empty for another separator.
    has_succeeded: whether the last command of a list joined by && and || succeeds; None if unresolved.
    is_negated: whether a ! stands before the current command.
    subshell_depth: number of open parentheses around the current command.
    """

    def __init__(
        self, shell_script: ShellScript, script_text: str, nesting_depth: int = 0, first_line_number: int = 1
    ) -> None:
        super().__init__(shell_script, script_text, nesting_depth, first_line_number)
        self.branches: list[ShellBranch] = []
        self.pending_here_documents: list[tuple[str, bool]] = []
        self.statement_start = (0, first_line_number)
        self.here_string: str | None = None
        self.output_file = ""
        self.joining_operator = ""
        self.has_succeeded: bool | None = None
        self.is_negated = False
        self.subshell_depth = 0

    def read_statements(self) -> None:
        while self.position < len(self.text):
            self.read_statement()

    def read_statement(self) -> None:
        """Reads a simple command and applies its effect to the script."""
        statement_words: list[str] = []
        assignments: dict[str, str | list[str]] = {}
        start_line, separator, is_double_separator = self.line_number, "", False
        self.statement_start = (self.position, start_line)
        self.here_string, self.output_file, self.is_negated = None, "", False
        while not separator:
            self.skip_space()
            if self.position >= len(self.text):
                break
            character = self.text[self.position]
            assignment = _ASSIGNMENT.match(self.text, self.position)
            if character == "#":
                self.skip_comment()
            elif character in "\n;&|()":
                separator = self.read_separator()
                is_double_separator = separator in ("&", "|") and self.text.startswith(separator, self.position)
                self.position += is_double_separator
            elif (
                character in "<>" or re.match(r"\d[<>]", self.text[self.position : self.position + 2])
            ) and not self.is_at_placeholder():
                self.skip_redirection()
            elif assignment and (not statement_words or statement_words[0] in DECLARING_COMMANDS):
                self.position = assignment.end()
                variable_name, is_append = assignment[1], bool(assignment[2])
                assignments[variable_name] = self.read_assigned_value(variable_name, is_append)
                statement_words += [variable_name] if statement_words else []
            else:
                statement_words += self.read_word()
                statement_words = self.without_keyword(statement_words)
        if not self.read_patterns(statement_words, separator) and not self.read_conditional_command(
            statement_words, assignments
        ):
            self.apply_command(statement_words, assignments, start_line, separator)
        if separator in ("(", ")"):
            self.subshell_depth = max(0, self.subshell_depth + (1 if separator == "(" else -1))
        if statement_words or assignments or separator in ("(", ")"):
            self.joining_operator = separator * 2 if is_double_separator else ""
        if separator == ";;" and self.branches and self.branches[-1].case_text is not None:
            self.branches[-1].patterns = []

    def skips_next_command(self) -> bool:
        """Whether the shell certainly skips the next command of a list joined by && and ||."""
        return bool(self.joining_operator) and self.has_succeeded is (self.joining_operator == "||")

    def read_conditional_command(self, command_words: list[str], assignments: dict[str, str | list[str]]) -> bool:
        """Reads a command of a list joined by && and ||, and decides by known conditions whether the command runs.

        Returns whether the command needs nothing more: it is a condition, or it surely does not run.
        """
        first_word = command_words[0] if command_words else ""
        is_inside_condition = bool(self.branches and self.branches[-1].joining_operator)
        if is_inside_condition or not (command_words or assignments):
            return False
        if first_word in (*BLOCK_BEGINNINGS, *BLOCK_ENDS, "elif"):
            self.has_succeeded = None
            return False
        if self.skips_next_command():
            self.skip_assignments(assignments)
            return True
        is_condition = first_word in CONDITION_COMMANDS or command_words[-1:] == ["]]"]
        self.has_succeeded = True if assignments and not command_words else None
        if is_condition and self.is_position_executed() and not self.is_negated:
            self.has_succeeded = self.evaluate_condition(command_words)
        return is_condition

    def skip_comment(self) -> None:
        """Skips a comment, up to the end of the line."""
        line_end = self.text.find("\n", self.position)
        self.position = len(self.text) if line_end < 0 else line_end

    def read_separator(self) -> str:
        """Reads and returns the separator that ends a command; empty for `&>`, which is a redirection."""
        character = self.text[self.position]
        self.position += 1
        next_character = self.text[self.position : self.position + 1]
        if character == "\n":
            self.skip_here_documents()
        elif character == ";" and next_character == ";":
            self.position += 1
            return ";;"
        elif character == "&" and next_character == ">":
            self.position += 2 if self.text[self.position + 1 : self.position + 2] == ">" else 1
            self.skip_space()
            if self.text[self.position : self.position + 1] not in ("", *"\n;&|()<>"):
                self.read_word()
            return ""
        return character

    def without_keyword(self, command_words: list[str]) -> list[str]:
        """Removes a leading shell keyword, such as `then`, from a command's words, and opens or closes its block."""
        if command_words == ["{"]:
            self.open_block(command_words, "")
            if self.joining_operator and self.has_succeeded is not None:
                self.branches[-1].is_executed = not self.skips_next_command()
            self.joining_operator = ""
            return []
        if len(command_words) == 1 and command_words[0] in COMMAND_PREFIXES:
            if command_words[0] == "else" and self.branches:
                self.branches[-1].enter_next_branch(True)
            self.is_negated = command_words[0] == "!"
            return []
        return command_words

    def read_patterns(self, command_words: list[str], separator: str) -> bool:
        """Reads the patterns of a `case` branch; returns False if the words are an ordinary command."""
        branch = self.branches[-1] if self.branches else None
        if branch is None or branch.case_text is None or branch.patterns is None or command_words[:1] == ["esac"]:
            return False
        branch.patterns += command_words
        if separator == ")":
            has_unresolved = is_unresolved(branch.case_text) or any(map(is_unresolved, branch.patterns))
            is_match = None if has_unresolved else self.matches_patterns(branch.case_text, branch.patterns)
            branch.patterns = None
            branch.enter_next_branch(is_match)
        return True

    def matches_patterns(self, case_text: str, patterns: list[str]) -> bool | None:
        """Whether a text matches a pattern of a `case`; None if the text is too long for the comparison."""
        has_long_pattern = False
        for case_pattern in patterns:
            if not set(case_pattern) & set("*?["):
                if case_pattern == case_text:
                    return True
            elif max(len(case_text), len(case_pattern)) > LONGEST_PATTERN:
                has_long_pattern = True
            else:
                self.count_characters(LONGEST_PATTERN)
                if fnmatchcase(case_text, case_pattern):
                    return True
        return None if has_long_pattern else False

    def read_condition(self, command_words: list[str], separator: str, branch: ShellBranch) -> None:
        """Evaluates a condition of `if`, `elif`, && or ||, and opens the branch after the last condition.

        separator: the separator after the condition.
        """
        condition_holds = self.evaluate_condition(command_words)
        if branch.joining_operator == "&":
            condition_holds = (
                False
                if False in (branch.condition_result, condition_holds)
                else (None if None in (branch.condition_result, condition_holds) else True)
            )
        elif branch.joining_operator == "|":
            condition_holds = (
                True
                if True in (branch.condition_result, condition_holds)
                else (None if None in (branch.condition_result, condition_holds) else False)
            )
        branch.joining_operator, branch.condition_result = (
            (separator if separator in ("&", "|") else ""),
            condition_holds,
        )
        if not branch.joining_operator:
            branch.enter_next_branch(condition_holds)
        else:
            branch.is_executed = None if branch.is_executed is not False else False

    def evaluate_condition(self, command_words: list[str]) -> bool | None:
        """Returns whether a condition of a shell script is true; None if its value is not known before the script runs.

        Records the variables that it assumes to be unset.
        """
        if command_words[:1] == ["[["] and command_words[-1] != "]]":  # && or || inside of the brackets
            command_words = [*command_words, "]]"]
        elif command_words[-1:] == ["]]"] and command_words[0] != "[[":
            command_words = ["[[", *command_words]
        condition_holds = evaluate_test(command_words, self.file_exists)
        if condition_holds is not None:
            self.script.unset_variables |= {
                printable_word(command_word) for command_word in command_words if UNSET_VARIABLE.fullmatch(command_word)
            }
        return condition_holds

    def file_exists(self, file_name: str) -> bool | None:
        """Whether a file exists among the files that a script may source; None if unknown."""
        read_file = self.script.read_sourced_file
        return True if read_file is not None and read_file(file_name) is not None else None

    def open_block(self, command_words: list[str], separator: str) -> None:
        """Opens the block of a keyword such as `if`."""
        if len(self.branches) >= MAX_BLOCKS:
            raise self.error(f"blocks nested too deeply; expected at most {MAX_BLOCKS}")
        if command_words[0] == "if":
            branch = ShellBranch(None)
            self.read_condition(command_words[1:], separator, branch)
        elif command_words[0] == "case" and len(command_words) > 2 and command_words[2] == "in":
            branch = ShellBranch(False, case_text=command_words[1], patterns=[])
            self.branches.append(branch)
            if len(command_words) > 3:
                self.read_patterns(command_words[3:], ")")
            return
        elif command_words[0] in ("while", "until"):
            condition_holds = self.evaluate_condition(command_words[1:]) if separator not in ("&", "|") else None
            enters_block = (
                condition_holds if condition_holds is None or command_words[0] == "while" else not condition_holds
            )
            branch = ShellBranch(
                enters_block, earlier_branch_runs=None, loop_start=self.statement_start if enters_block else None
            )
        elif command_words[0] in ("for", "select") and len(command_words) > 1:
            branch = self.loop_block(
                command_words[1][:80], command_words[3:] if command_words[2:3] == ["in"] else [mark_unresolved("$@")]
            )
        else:
            branch = ShellBranch(None, earlier_branch_runs=None, is_group=True)
        self.branches.append(branch)

    def loop_block(self, variable_name: str, loop_items: list[str]) -> ShellBranch:
        """Returns the block of a shell loop over values, or over the value that the user typed for the variable."""
        if variable_name in self.script.typed_variables:
            loop_items = [self.script.typed_variables[variable_name]]
        if (
            not VARIABLE_NAME.fullmatch(variable_name)
            or any(is_unresolved(loop_item) for loop_item in loop_items)
            or self.is_in_uncertain_branch()
        ):
            if variable_name not in self.script.typed_variables:
                self.script.variables[variable_name] = mark_unresolved(variable_name)
            return ShellBranch(None, earlier_branch_runs=None)
        if not loop_items or not self.is_position_executed():
            return ShellBranch(False, earlier_branch_runs=None)
        self.script.variables[variable_name] = self.script.loop_values[variable_name] = loop_items[0]
        return ShellBranch(
            True,
            earlier_branch_runs=None,
            loop_start=(self.position, self.line_number),
            loop_variable=variable_name,
            remaining_loop_values=loop_items[1:],
        )

    def close_block(self) -> None:
        """Closes a block, or returns to the start of an unfinished loop."""
        branch = self.branches.pop()
        if branch.loop_start is None:
            return
        if branch.loop_variable and not branch.remaining_loop_values:
            self.script.loop_values.pop(branch.loop_variable, None)
            return
        self.count_characters(max(LEAST_LOOP_LETTERS, self.position - branch.loop_start[0]))
        self.position = branch.loop_start[0]
        self.lines = branch.loop_start
        if branch.loop_variable:
            self.script.variables[branch.loop_variable] = self.script.loop_values[branch.loop_variable] = (
                branch.remaining_loop_values.pop(0)
            )
            self.branches.append(branch)

    def is_position_executed(self) -> bool:
        """Whether the current position is executed, because all enclosing blocks are."""
        return not any(branch.is_executed is False for branch in self.branches)

    def is_in_uncertain_branch(self) -> bool:
        """Whether the commands at the current position may run any number of times, also never."""
        return any(branch.is_executed is None for branch in self.branches)

    def apply_command(
        self, command_words: list[str], assignments: dict[str, str | list[str]], line_number: int, separator: str
    ) -> None:
        """Applies a simple command: opens or closes a block, sets variables, or adds the command to the script."""
        first_word = command_words[0] if command_words else ""
        open_branch = self.branches[-1] if self.branches and self.branches[-1].joining_operator else None
        if open_branch is not None:
            if command_words:
                self.read_condition(command_words, separator, open_branch)
        elif first_word in BLOCK_BEGINNINGS:
            self.open_block(command_words, separator)
        elif first_word == "elif" and self.branches:
            self.read_condition(command_words[1:], separator, self.branches[-1])
        elif first_word in BLOCK_ENDS:
            if self.branches:
                self.close_block()
        elif not self.is_position_executed():
            self.skip_assignments(assignments)
        elif not command_words or first_word in DECLARING_COMMANDS:
            self.set_variables(command_words, assignments)
        elif first_word == "shift" and len(command_words) < 3:
            loop_count = int(command_words[1]) if command_words[1:] and WHOLE_NUMBER.fullmatch(command_words[1]) else 1
            if not self.is_in_uncertain_branch():
                del self.script.arguments[: max(0, loop_count)]
        elif first_word == "eval" and self.depth < 3:
            StatementReader(self.script, " ".join(command_words[1:]), self.depth + 1, line_number).read_statements()
        elif first_word == "read" and self.here_string is not None:
            variable_names = [
                variable_word for variable_word in command_words[1:] if VARIABLE_NAME.fullmatch(variable_word)
            ]
            if "-d" in command_words and variable_names:  # the whole text
                self.script.variables[variable_names[-1]] = self.here_string.strip()
            else:
                self.here_string = self.here_string.partition("\n")[0]
                self.apply_read_command(variable_names, assignments.get("IFS"))
        elif first_word in SOURCING_COMMANDS and command_words[1:]:
            self.read_sourced_file(command_words[1], command_words[2:], line_number)
        elif first_word in ENDING_COMMANDS:
            self.end_script(first_word, line_number)
        elif first_word == "set" and tuple(command_words[1:]) in EXPORT_ALL_OPTIONS:
            self.script.exports_assignments = EXPORT_ALL_OPTIONS[tuple(command_words[1:])]
        elif first_word in VARIABLE_COMMANDS:
            for variable_name in filter(VARIABLE_NAME.fullmatch, command_words[1:]):
                self.script.variables[variable_name] = self.script.typed_variables.get(
                    variable_name, mark_unresolved(variable_name)
                )
        else:
            self.add_command(command_words, assignments, line_number)

    def read_sourced_file(self, file_name: str, arguments: list[str], line_number: int) -> None:
        """Reads the commands of a file in the place of `source FILE`, or records that the file cannot be read.

        arguments: words behind the file's name, which replace the script's arguments in the file.
        line_number: the line of the command.
        """
        script = self.script
        read_file = script.read_sourced_file
        file_text = None if read_file is None or is_unresolved(file_name) else read_file(file_name)
        if file_text is None:
            if posixpath.basename(file_name) != "activate":  # of a virtual environment
                script.unread_files.append(printable_word(file_name))
            return
        script.sourced_file_count += 1
        if script.sourced_file_count > MAX_SOURCED_FILES:
            source_line = script.sourcing_line_number or line_number
            raise InputError(
                f"{script.name_in_errors}: line {source_line}: too many files are sourced; expected at most "
                f"{MAX_SOURCED_FILES}"
            )
        outer_state = (
            script.sourced_file,
            script.sourcing_line_number,
            script.variables["BASH_SOURCE"],
            script.arguments,
        )
        script.sourcing_line_number = script.sourcing_line_number or line_number
        script.sourced_file = script.variables["BASH_SOURCE"] = posixpath.normpath(file_name)
        script.arguments = arguments or script.arguments
        file_reader = StatementReader(script, _plain_lines(file_text), self.depth)
        if self.is_in_uncertain_branch():
            file_reader.branches.append(ShellBranch(None, earlier_branch_runs=None))
        try:
            file_reader.read_statements()
        except UnsplittableText:
            script.unread_files.append(printable_word(file_name))
        script.sourced_file, script.sourcing_line_number, script.variables["BASH_SOURCE"], script.arguments = (
            outer_state
        )

    def end_script(self, command_name: str, line_number: int) -> None:
        """Ends a sourced file at `return`, and the script itself at `exit`, outside functions and subshells.

        Where a branch is uncertain, the rest of a sourced file is. An uncertain `exit` is a failure, after which
        nothing is trained, and has no effect here.
        """
        ends_file = command_name == "return" if self.script.sourced_file else command_name == "exit" and not self.depth
        if not ends_file or self.subshell_depth or any(branch.is_group for branch in self.branches):
            return
        if not self.joining_operator and not self.is_in_uncertain_branch():
            self.position = len(self.text)
            if command_name == "exit":
                self.script.exit_line_number = self.script.sourcing_line_number or line_number
        elif command_name == "return":
            self.branches.insert(0, ShellBranch(None, earlier_branch_runs=None))

    def skip_assignments(self, assignments: Mapping[str, object]) -> None:
        """Records the variables that a skipped command would have set."""
        if not self.script.missing_argument:
            self.script.skipped_variables |= set(assignments)

    def set_variables(self, command_words: list[str], assignments: dict[str, str | list[str]]) -> None:
        """Sets shell variables, which `export` and `declare -x` also make environment variables.

        command_words: the command's; none for `NAME=…`.
        """
        is_certain_to_run = all(branch.is_executed for branch in self.branches)
        for variable_name, assigned_value in assignments.items():
            has_known_value = is_certain_to_run and not (
                isinstance(assigned_value, str) and is_unresolved(assigned_value)
            )
            if has_known_value or variable_name not in self.script.typed_variables:
                self.script.variables[variable_name] = (
                    assigned_value if is_certain_to_run else mark_unresolved(variable_name)
                )
        is_export = command_words and command_words[0] != "local" and {"export", "-x"} & set(command_words)
        exported_words = [
            *(command_words[1:] if is_export else ()),
            *(assignments if self.script.exports_assignments else ()),
        ]
        if exported_words:
            self.script.exported_names |= set(filter(VARIABLE_NAME.fullmatch, exported_words))
            if len(self.script.exported_names) > MAX_EXPORTED_VARIABLES:
                raise self.error(f"too many exported variables; expected at most {MAX_EXPORTED_VARIABLES:,}")

    def apply_read_command(self, variables: list[str], separators: str | list[str] | None) -> None:
        """Sets variables to the words of a here-string, as the shell command `read` does."""
        input_text = self.here_string or ""
        input_words = (
            input_text.split(separators[0]) if isinstance(separators, str) and separators else input_text.split()
        )
        for i, variable_name in enumerate(variables):
            words_value = (
                " ".join(input_words[i:]) if i == len(variables) - 1 else input_words[i] if i < len(input_words) else ""
            )
            self.script.variables[variable_name] = words_value.strip()

    def add_command(self, command_words: list[str], assignments: dict[str, str | list[str]], line_number: int) -> None:
        """Adds a command to the script, or for `sh -c` the commands of the quoted script."""
        self.script.word_count += len(command_words)
        if self.script.word_count > MAX_WORDS:
            raise self.error(f"too many words; expected at most {MAX_WORDS:,}")
        for i, word in enumerate(command_words[:-1]):
            if word in ("-c", "-lc") and self.depth < 3 and command_words[i - 1].rpartition("/")[2] in ("sh", "bash"):
                self.set_container_variables(command_words[:i])
                outer_arguments = self.script.arguments
                self.script.arguments = (
                    command_words[i + 3 :] or outer_arguments
                )  # the first word is the name of the script
                StatementReader(self.script, command_words[i + 1], self.depth + 1, line_number).read_statements()
                self.script.arguments = outer_arguments
                return
        if command_words[0] in FOLDER_COMMANDS and posixpath.normpath(command_words[-1]) != ".":
            self.script.variables["PWD"] = self.script.typed_variables.get("PWD", mark_unresolved("$PWD"))
        env = {
            assigned_name: value_text
            for assigned_name, value_text in assignments.items()
            if isinstance(value_text, str)
        }
        line_number = self.script.sourcing_line_number or line_number
        self.script.commands.append(
            ShellCommand(tuple(command_words), env, line_number, tuple(self.script.loop_values.items()))
        )

    def set_container_variables(self, command_words: list[str]) -> None:
        """Sets the environment variables of container options, `-e NAME=VALUE`, for the script in the container."""
        for option_word, command_word in pairwise(command_words):
            variable_name, equals_sign, variable_value = command_word.partition("=")
            if option_word in ("-e", "--env") and equals_sign and VARIABLE_NAME.fullmatch(variable_name):
                self.script.variables[variable_name] = self.script.typed_variables.get(variable_name, variable_value)

    def skip_space(self) -> None:
        while self.position < len(self.text):
            if self.text[self.position] in _BLANKS:
                self.position += 1
            elif self.text.startswith("\\\n", self.position):
                self.position += 2
            else:
                return

    def skip_redirection(self) -> None:
        """Skips a redirection. The text of a here-document is skipped at the end of the line."""
        operator_match = re.compile(r"\d?(<<<|<<-?|>>|[<>]&?|<>)").match(self.text, self.position)
        assert operator_match is not None
        self.position = operator_match.end()
        self.skip_space()
        if operator_match[1] in ("<<", "<<-"):
            delimiter_match = re.compile(r"(['\"\\]?)([A-Za-z0-9_]+)['\"]?").match(self.text, self.position)
            if delimiter_match is None:
                raise self.error("a here-document without a name")
            self.position = delimiter_match.end()
            self.pending_here_documents.append((delimiter_match[2], not delimiter_match[1]))
        elif self.position < len(self.text) and self.text[self.position] not in "\n;&|()":
            file_name = " ".join(self.read_word())
            if operator_match[1] == "<<<":
                self.here_string = file_name
            elif operator_match[1] in (">", ">>") and not operator_match[0].startswith("2"):
                self.output_file = file_name

    def skip_here_documents(self) -> None:
        """Skips the text of here-documents, and stores the text that a command writes to a file."""
        pending_documents, self.pending_here_documents = self.pending_here_documents, []
        for delimiter, is_expanded in pending_documents:
            document_start = self.position
            while True:
                if self.position >= len(self.text):
                    raise self.error(f"a here-document without its end, {delimiter}")
                line_end = self.text.find("\n", self.position)
                line_end = len(self.text) if line_end < 0 else line_end
                line_text = self.text[self.position : line_end]
                self.position = line_end + 1
                if line_text.lstrip("\t").rstrip(_BLANKS) == delimiter:
                    document_text, self.position = self.text[document_start : line_end - len(line_text)], line_end
                    if self.is_position_executed() and self.depth < 3:
                        self.here_string = self.expand_here_document(document_text) if is_expanded else document_text
                        if self.output_file:
                            self.script.written_files[self.output_file] = self.here_string
                    break

    def read_assigned_value(self, variable_name: str, is_append: bool) -> str | list[str]:
        """Reads and returns the assigned value after `NAME=`."""
        if self.text[self.position : self.position + 1] == "(":
            self.position += 1
            array_items = self.read_array()
            previous_value = self.script.variables.get(variable_name, [])
            if not is_append:
                return array_items
            self.count_characters(len(previous_value))
            return [*(previous_value if isinstance(previous_value, list) else [previous_value]), *array_items]
        text_value = "".join(piece_text for piece_text, _ in self.read_word_pieces())
        if is_append:
            previous_value = self.script.variables.get(variable_name, "")
            self.count_characters(len(previous_value))
            text_value = (" ".join(previous_value) if isinstance(previous_value, list) else previous_value) + text_value
        if len(text_value) > LONGEST_VALUE:
            raise self.error(f"{variable_name} grows too long; expected at most {LONGEST_VALUE:,} letters")
        return text_value

    def read_array(self) -> list[str]:
        array_items: list[str] = []
        character_count = 0
        while True:
            self.skip_space()
            if self.position >= len(self.text):
                raise self.error("an array that does not end; expected )")
            character = self.text[self.position]
            if character == ")":
                self.position += 1
                return array_items
            if character == "#":
                self.skip_comment()
            elif character in "\n;&|(":
                self.position += 1
            elif character in "<>" and not self.is_at_placeholder():
                self.skip_redirection()
            else:
                array_item = self.read_word()
                array_items += array_item
                character_count += sum(map(len, array_item))
            if character_count > LONGEST_VALUE:
                raise self.error("an array grows too long")
