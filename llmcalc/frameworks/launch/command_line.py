"""Splits a shell command into launcher, program and arguments, and the value of `--launch` into its parts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import InputError, one_line
from ...sources.huggingface.family import field_names
from ..argument_names import keyword_of
from .launch_types import CommandLine, LaunchReader
from .shell_words import ShellCommand
from .unresolved import is_unresolved, is_unset_variable, printable_word, unresolved_reason

CONSOLE_PROGRAMS = {
    "swift": ("sft", "pt", "rlhf", "infer", "export"),
    "megatron": ("sft", "pt", "rlhf", "export"),
    "trl": ("sft", "dpo", "grpo", "kto", "reward", "rloo", "distillation"),
    "llamafactory-cli": ("train",),
    "axolotl": ("train", "preprocess"),
    "litgpt": ("finetune", "finetune_full", "finetune_lora", "finetune_adapter", "finetune_adapter_v2", "pretrain"),
    "tune": ("run",),
    "composer": (),
    "nemo": ("llm",),
    "oumi": ("train",),
    "automodel": ("finetune", "pretrain", "benchmark"),
}
"""Installed command of a Python package → its subcommands that start work; empty for a command without subcommands."""

PACKAGE_FILE_PATH = re.compile(r"(?:^|/)(swift/cli/\w+)\.py$")
"""Pattern of the paths of package files that are also modules: `swift/cli/sft.py` is `swift.cli.sft`."""

TRL_SCRIPT = re.compile(rf"(?:.*[/_])?({'|'.join(CONSOLE_PROGRAMS['trl'])})(?:_(?!trainer)\w+)?\.py")
"""Pattern of the paths of scripts that train by a method of TRL: `examples/scripts/dpo_vlm.py` is `trl dpo`."""

TRL_MODULE = re.compile(rf"trl\.scripts\.({'|'.join(CONSOLE_PROGRAMS['trl'])})")
"""Pattern of TRL's modules started with `python -m`: `trl.scripts.sft` is `trl sft`."""

TRL_FOLDER = re.compile(r"(?:^|/)(?:trl|examples)/scripts/")
"""Pattern of the folder in TRL's repository whose scripts the command `trl` also runs."""

TRL_OPTIONS = ("--model_name_or_path", "--dataset_name")
"""Options of TRL's scripts (`ModelConfig`, `ScriptArguments`); transformers' examples have `--do_train` beside them."""

PEFT_OPTIONS = ("--use_peft_lora", "--use_4bit_quantization", "--use_8bit_quantization", "--use_nested_quant")
"""Options of PEFT's examples/sft/train.py, which runs TRL's `SFTTrainer`."""

LLAMA_FACTORY_SCRIPT = re.compile(r"(?:^|/)src/train\.py$")
"""Pattern of LLaMA-Factory's script if its words have `--stage`; before version 0.7 it was `src/train_bash.py`."""

SCRIPT_STARTERS = ("bash", "sh", "sbatch", "source", ".")
"""Commands that start the script named after them."""

LONGEST_TYPED_COMMAND = 20_000
"""Largest number of characters in the value of `--launch` that names a file, with variables and arguments."""

NON_PROGRAM_COMMANDS = field_names("""
    echo printf cat cp mv rm ls find sed grep tee mkdir pip pip3 chmod wget curl test [ [[ tail head kill wait cd log
    """)
"""Commands that start no program, although their words may name one."""

CONFIG_ENDINGS = (".yaml", ".yml", ".json", ".toml")


class TypedLaunch(NamedTuple):
    """The parts of the value of `--launch`: `NAME=VALUE … FILE ARGUMENT …`.

    path: the file's name.
    variables: variables typed before it.
    arguments: words typed behind it.
    """

    path: str
    variables: Mapping[str, str]
    arguments: Sequence[str]


def split_typed_launch(typed_text: str) -> TypedLaunch:
    """Splits the value of `--launch` into variables, file and arguments; the name of an existing file stays whole."""
    if len(typed_text) > LONGEST_TYPED_COMMAND:
        raise InputError(f"--launch: {len(typed_text):,} letters; expected at most {LONGEST_TYPED_COMMAND:,}")
    if not re.search(r"\s", typed_text) or _file_exists(typed_text):
        return TypedLaunch(typed_text, {}, ())
    try:
        command_words = shlex.split(typed_text)
    except ValueError:
        raise InputError(
            f"--launch: '{one_line(typed_text)[:60]}': a quote does not end; expected FILE ARGUMENTS"
        ) from None
    variables: dict[str, str] = {}
    while command_words and re.match(r"[A-Za-z_][A-Za-z0-9_]*=", command_words[0]):
        variable_name, _, variable_value = command_words.pop(0).partition("=")
        variables[variable_name] = variable_value
    if command_words and command_words[0] in SCRIPT_STARTERS:
        command_words.pop(0)
    if not command_words:
        raise InputError("--launch: no file; expected NAME=VALUE … FILE ARGUMENTS")
    if not variables and not _file_exists(command_words[0]):
        return TypedLaunch(typed_text, {}, ())
    return TypedLaunch(command_words[0], variables, tuple(command_words[1:]))


LAUNCH_OPTION = "--launch"
"""Name in messages for a command typed as the value of `--launch`."""


def words_of_typed_command(typed_text: str) -> tuple[str, ...]:
    """Returns the words of a command in `--launch`, without leading variables; empty if it is a file's name."""
    if len(typed_text) > LONGEST_TYPED_COMMAND or not re.search(r"\s", typed_text) or _file_exists(typed_text):
        return ()
    try:
        command_words = shlex.split(typed_text)
    except ValueError:
        return ()
    while command_words and re.match(r"[A-Za-z_][A-Za-z0-9_]*=", command_words[0]):
        command_words.pop(0)
    is_file = bool(command_words) and (command_words[0] in SCRIPT_STARTERS or _file_exists(command_words[0]))
    return () if is_file else tuple(command_words)


def refuse_unread_command(typed_text: str) -> None:
    """Raises `InputError` for a typed command whose program llmcalc cannot read."""
    command_words = words_of_typed_command(typed_text)
    program = command_words[0] if command_words else ""
    is_path = re.search(r"[/\\]|\.(sh|bash|slurm|sbatch|bat|cmd|ps1|ya?ml|json|toml|py|ipynb|txt)$", program)
    if is_path is None and any(command_word.startswith("--") for command_word in command_words[1:]):
        raise InputError(
            f"{LAUNCH_OPTION}: {printable_word(program)[:60]}: neither a file nor a program whose commands are read; "
            "expected FILE ARGUMENTS, a command such as torchrun train.py …, or TARGET with --phase training and the "
            "run's settings, such as --batch 4 --seq 2048 --recompute full"
        )


def is_training_command(typed_text: str) -> bool:
    """Whether the value of `--launch` is a training command, such as `tune run … --config FILE`."""
    command_words = words_of_typed_command(typed_text)
    typed_variables = dict(re.findall(r"(?:^|\s)([A-Za-z_]\w*)=(\S*)", typed_text)) if command_words else {}
    return bool(command_words) and parse_command_line(ShellCommand(command_words, typed_variables, 1)) is not None


def _file_exists(file_name: str) -> bool:
    """Whether a file exists; false for a name that the file system cannot have."""
    try:
        return Path(file_name).exists()
    except (OSError, ValueError):
        return False


TRAINING_COMMAND = re.compile(
    r"^[^#\n]*\b(accelerate\s+launch|torchrun|deepspeed|llamafactory-cli\s+train|axolotl\s+train|tune\s+run|swift\s+(sft|pt|rlhf)"
    rf"|trl\s+({'|'.join(CONSOLE_PROGRAMS['trl'])})|python[\d.]*\s+(-u\s+)?\S*(sft|dpo|grpo|train|tune|tuning)\w*\.py)\s",
    re.MULTILINE,
)
"""Pattern of a script's line that trains; an unmodelled engine in such a script only tries the trained model."""

TORCHTITAN_SCRIPTS = ("run_train.sh", "run_llama_train.sh")
"""torchtitan's own scripts, which run the job of `CONFIG_FILE` on `NGPU` devices, 8 by default."""


def parse_command_line(command: ShellCommand) -> CommandLine | None:
    """Returns a command's launcher, program and arguments; None unless it starts Python or a known program."""
    command_words = list(command.words)
    line_and_loops = (command.line, command.loop_values)
    for i, command_word in enumerate(command_words):
        file_name = command_word.rpartition("/")[2]
        if file_name in TORCHTITAN_SCRIPTS and command.env.get("CONFIG_FILE"):
            launcher_words = ["torchrun", "--nproc-per-node", command.env.get("NGPU", "8")]
            config_words = ["--job.config_file", command.env["CONFIG_FILE"]]
            return CommandLine(
                launcher_words, "torchtitan.train", [*config_words, *command_words[i + 1 :]], *line_and_loops
            )
        next_word = command_words[i + 1] if i + 1 < len(command_words) else ""
        if command_word.endswith(".py") and not command_word.startswith("-"):
            package_match = PACKAGE_FILE_PATH.search(command_word)
            program_name = (
                _trl_command_of_script(command_word, command_words[i + 1 :]) or file_name
                if package_match is None
                else package_match[1].replace("/", ".")
            )
            if LLAMA_FACTORY_SCRIPT.search(command_word) and "--stage" in command_words:
                program_name = "train_bash.py"
            return CommandLine(
                command_words[:i],
                program_name,
                _without_separator(command_words[i + 1 :]),
                *line_and_loops,
                path=command_word,
            )
        if (
            command_word in ("-m", "--module")
            and next_word
            and next_word not in CONSOLE_PROGRAMS
            and not next_word.startswith(("torch.distributed", "-", "accelerate."))
        ):
            trl_script = TRL_MODULE.fullmatch(next_word)
            program_name = next_word if trl_script is None else f"trl {trl_script[1]}"
            return CommandLine(
                command_words[:i], program_name, _without_separator(command_words[i + 2 :]), *line_and_loops
            )
        if file_name == "tune" and next_word == "run":
            arguments = command_words[i + 2 :]
            program_start = next(
                (program_index for program_index, argument in enumerate(arguments) if argument.startswith("--config")),
                len(arguments),
            )
            return CommandLine(
                [*command_words[:i], *arguments[:program_start]], "tune run", arguments[program_start:], *line_and_loops
            )
        if (
            file_name in CONSOLE_PROGRAMS
            and (next_word in CONSOLE_PROGRAMS[file_name] or not CONSOLE_PROGRAMS[file_name])
            and i < 12
        ):
            program_name = f"{file_name} {next_word}".strip()
            return CommandLine(command_words[:i], program_name, command_words[i + 2 :], *line_and_loops)
        if file_name in CONSOLE_PROGRAMS and next_word.endswith(CONFIG_ENDINGS):
            return CommandLine(command_words[:i], file_name, command_words[i + 1 :], *line_and_loops)
    return None


def _trl_command_of_script(script_path: str, command_words: Sequence[str]) -> str:
    """Returns the `trl` command with the same arguments as a Python script of TRL; empty for other scripts."""
    options = {command_word.partition("=")[0] for command_word in command_words}
    if options.intersection(PEFT_OPTIONS):
        return "trl sft"
    script_match = TRL_SCRIPT.fullmatch(script_path)
    is_trl_script = options.issuperset(TRL_OPTIONS) and "--do_train" not in options
    return f"trl {script_match[1]}" if script_match and (TRL_FOLDER.search(script_path) or is_trl_script) else ""


def _without_separator(command_words: list[str]) -> list[str]:
    """Returns the words without a leading `--`, which separates a launcher's arguments from the program."""
    return command_words[1:] if command_words[:1] == ["--"] else command_words


def parse_arguments(command_words: Sequence[str], name_in_errors: str) -> dict[str, Any]:
    """Returns the arguments by name: True without a value, a text for one value, a list for several."""
    argument_values: dict[str, Any] = {}
    argument_name = ""
    value_texts: list[str] = []

    def store_argument() -> None:
        if argument_name:
            argument_values[argument_name] = (
                True if not value_texts else value_texts[0] if len(value_texts) == 1 else list(value_texts)
            )

    for command_word in command_words:
        if re.match(r"--[A-Za-z]", command_word):
            store_argument()
            argument_name, equals_sign, inline_value = command_word.partition("=")
            value_texts = [inline_value] if equals_sign else []
        elif not command_word:
            continue
        elif argument_name:
            if not (value_texts and is_unset_variable(command_word)):
                value_texts.append(command_word)
        else:
            if is_unresolved(command_word):
                raise InputError(f"{name_in_errors}: {unresolved_reason(command_word)}")
            raise InputError(
                f"{name_in_errors}: '{printable_word(command_word)[:60]}' stands before every argument; expected "
                "--name value"
            )
    store_argument()
    return argument_values


def hydra_overrides_of(command_words: Sequence[str]) -> dict[str, Any]:
    """Returns Hydra's overrides (`key=value` or `+key=value`) in a command, by dotted key."""
    overrides_by_key: dict[str, Any] = {}
    for command_word in command_words:
        override_match = re.fullmatch(r"\+{0,2}([A-Za-z_][\w.@/-]{0,150})=(.*)", command_word, re.DOTALL)
        if override_match is not None:
            overrides_by_key[override_match[1]] = override_match[2]
    return overrides_by_key


def parsed_arguments(
    arguments: Mapping[str, Any], reader: LaunchReader, recognized_names: Sequence[str] | frozenset[str]
) -> dict[str, Any]:
    """Returns arguments with underscores in their names, and with booleans and integers parsed.

    recognized_names: names whose values matter. One of them that is known only when the script runs is an error.
    """
    plain_values: dict[str, Any] = {}
    for flag_name, argument_value in arguments.items():
        argument_keyword = keyword_of(flag_name)
        for written_value in argument_value if isinstance(argument_value, list) else [argument_value]:
            if isinstance(written_value, str) and is_unresolved(written_value) and argument_keyword in recognized_names:
                raise reader.argument_error(flag_name, unresolved_reason(written_value))
        plain_values[argument_keyword] = parsed_argument_value(argument_value)
    return plain_values


def parsed_argument_value(written_value: Any) -> Any:
    """Returns an argument's text as a boolean, None or integer if it stands for one, else unchanged."""
    if isinstance(written_value, list):
        return [parsed_argument_value(list_element) for list_element in written_value]
    if not isinstance(written_value, str):
        return written_value
    if is_unresolved(written_value):
        return printable_word(written_value)
    constants_by_word = {"true": True, "false": False, "none": None, "null": None}
    if written_value.lower() in constants_by_word:
        return constants_by_word[written_value.lower()]
    return int(written_value) if re.fullmatch(r"-?\d{1,12}", written_value) else written_value


def marked_model_name(written_name: Any) -> str:
    """Returns the model name in an argument, with a leading `$` if it is known only when the script runs."""
    if isinstance(written_name, str) and is_unresolved(written_name):
        return f"${printable_word(written_name).lstrip('$')}"
    return "" if written_name is None else str(written_name)[:200]
