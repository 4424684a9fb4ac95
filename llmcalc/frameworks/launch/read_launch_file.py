"""Reads training launch files, and recognizes the kind of a file by its contents."""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...errors import InputError, one_line
from ...sources.files import parse_json, parse_toml, read_text
from ..argument_names import keyword_of
from ..registry import FRAMEWORK_NAMES, framework
from .accelerate_command import accelerate_config_table, stated_process_count
from .command_config import config_file_and_words, with_typed_values
from .command_line import (
    CONSOLE_PROGRAMS,
    LAUNCH_OPTION,
    NON_PROGRAM_COMMANDS,
    is_training_command,
    parse_arguments,
    parse_command_line,
    parsed_argument_value,
    refuse_unread_command,
    split_typed_launch,
)
from .file_kinds import launch_file_kinds, launch_file_titles
from .kubernetes import job_script
from .launch_types import CommandLine, Launch, LaunchFile, LaunchSource, ReadTables, ReadText
from .notebook import read_launch_text
from .option_overrides import NO_OPTIONS, read_with_options
from .python_source import is_python
from .refused_programs import REFUSED_LAUNCH_FILES, refuse_config, refuse_text
from .shell import MAX_SOURCED_FILES, read_script
from .shell_words import ReadSourcedFile, ShellCommand, ShellScript
from .skypilot import TASK_SCRIPT, is_skypilot_task, script_of_task
from .slurm import requested_devices_per_machine
from .unresolved import UNRESOLVED_MARK, is_unresolved, is_unset_variable, printable_word, unresolved_reason
from .windows_scripts import posix_paths
from .yaml_text import LARGEST_FILE_BYTES, parse_braced_text, parse_yaml, split_documents

SERVER_FILES_HINT = "; of servers (vLLM, SGLang, llama.cpp, …) memory and fit read scripts, compose files and manifests"
"""End of messages that list the kinds of launch files: it says which commands read the files of servers."""


def read_launch(
    launch_path: str | Path,
    world_size: int | None = None,
    allow_unknown: bool = False,
    *,
    release_date: datetime.date | None = None,
    gpu_name: str = "",
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Launch:
    """Returns the training run of a launch file.

    launch_path: the file's name, or a text `NAME=VALUE … FILE ARGUMENT …` with variables and arguments of a script, as
        typed in a shell, or the command of a program that trains.
    world_size: number of devices; by default that of the file, or the smallest number that its layout allows.
    allow_unknown: whether to accept arguments that may change memory and are not modelled.
    release_date: date of the framework's version; None (default) for the newest.
    gpu_name: name of the device.
    options: options typed beside the file → values, which replace the file's.
    Raises `InputError`, which names file, field and fix.
    """
    if is_training_command(str(launch_path)):
        shell_script = read_script(posix_paths(str(launch_path)), LAUNCH_OPTION)
        source_file = LaunchSource(
            LAUNCH_OPTION,
            world_size,
            allow_unknown,
            release_date,
            gpu_name,
            _make_table_reader(LAUNCH_OPTION, Path()),
            read_text=_make_text_reader(LAUNCH_OPTION, Path()),
        )
        return _read_script(shell_script, source_file, [], options)
    refuse_unread_command(str(launch_path))
    typed_parts = split_typed_launch(str(launch_path))
    name_in_errors = Path(typed_parts.path)
    return launch_from_text(
        read_launch_text(name_in_errors),
        typed_parts.path,
        world_size,
        allow_unknown,
        release_date=release_date,
        gpu_name=gpu_name,
        launch_folder=name_in_errors.parent,
        shell_variables=typed_parts.variables,
        arguments=typed_parts.arguments,
        options=options,
    )


SCRIPT_ENDINGS = (".sh", ".bash", ".slurm", ".sbatch", ".bat", ".cmd", ".ps1")
"""Endings of the names of shell scripts."""


def launch_from_text(
    file_text: str,
    name_in_errors: str,
    world_size: int | None = None,
    allow_unknown: bool = False,
    *,
    release_date: datetime.date | None = None,
    gpu_name: str = "",
    launch_folder: Path | None = None,
    shell_variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Launch:
    """Returns the training run of a launch file's text.

    launch_folder: folder of files that it names; None (default) to read no such file.
    shell_variables: variables that are set before a script runs.
    arguments: arguments of a script, or names that select a part of a Python file.
    options: options typed beside the file → values, which replace the file's.
    """
    if world_size is not None and world_size < 1:
        raise InputError(f"--devices: {world_size}; expected a positive whole number")
    launch_source = LaunchSource(
        name_in_errors,
        world_size,
        allow_unknown,
        release_date,
        gpu_name,
        _make_table_reader(name_in_errors, launch_folder),
        arguments=arguments,
        read_text=_make_text_reader(name_in_errors, launch_folder),
    )
    if not file_text.strip():
        raise InputError(f"{name_in_errors}: is empty; expected {launch_file_titles()}")
    if is_python(file_text, name_in_errors):
        return _read_python(file_text, launch_source, options)
    skypilot_task = _skypilot_task(file_text, name_in_errors)
    if skypilot_task is not None:
        task_script = script_of_task(skypilot_task, shell_variables or {}, file_text)
        shell_script = read_script(
            task_script.text,
            name_in_errors,
            task_script.variables,
            arguments,
            read_sourced_file=_make_sourced_file_reader(launch_source.read_text),
            first_line_number=task_script.first_line_number,
        )
        launched_run = _read_script(shell_script, launch_source, task_script.sbatch_options, options)
        return replace(launched_run, accelerator_name=task_script.accelerator_name)
    kubernetes_job = job_script(file_text, name_in_errors, shell_variables or {})
    if kubernetes_job is not None:
        shell_script = read_script(
            kubernetes_job.text,
            name_in_errors,
            shell_variables,
            arguments,
            read_sourced_file=_make_sourced_file_reader(launch_source.read_text),
            first_line_number=kubernetes_job.first_line_number,
        )
        return _read_script(shell_script, launch_source, kubernetes_job.torchrun_option_words, options)
    if file_text.lstrip()[:2] == "#!" or name_in_errors.endswith(SCRIPT_ENDINGS) or _is_script(file_text):
        read_sourced_file = _make_sourced_file_reader(launch_source.read_text)
        shell_script = read_script(
            file_text, name_in_errors, shell_variables, arguments, read_sourced_file=read_sourced_file
        )
        sbatch_options = re.findall(r"^#SBATCH[ \t]+(-\S+)[ \t]*([^\s#]*)", file_text, re.MULTILINE)
        sbatch_words = [word for words in sbatch_options for word in words if word]
        return _read_script(shell_script, launch_source, sbatch_words, options)
    if shell_variables or arguments:
        typed_word = next(iter(shell_variables or arguments))
        raise InputError(
            f"{name_in_errors}: is no script; expected --launch {name_in_errors} without '{one_line(typed_word)[:40]}'"
        )
    refuse_text(file_text, name_in_errors)
    return _read_tables(_parse_tables(file_text, name_in_errors), launch_source, options)


def _skypilot_task(file_text: str, name_in_errors: str) -> Mapping[str, Any] | None:
    """Returns the parsed tables of a SkyPilot task; None for a file of another kind.

    Of several tasks, which SkyPilot runs one after another, it is the one that starts Python. Raises `InputError` for
    several such tasks.
    """
    if not name_in_errors.endswith((".yaml", ".yml")) or TASK_SCRIPT.search(file_text) is None:
        return None
    configs = (
        parse_yaml(document, name_in_errors)
        for document in split_documents(file_text, name_in_errors)
        if TASK_SCRIPT.search(document) is not None
    )
    tasks = [config for config in configs if is_skypilot_task(config)]
    tasks = [task for task in tasks if starts_python(task["run"])] or tasks
    if len(tasks) > 1:
        task_names = ", ".join(one_line(str(task.get("name", "without a name")))[:40] for task in tasks[:4])
        raise InputError(f"{name_in_errors}: several tasks ({task_names}); expected a file with the one that trains")
    return tasks[0] if tasks else None


def _read_tables(config: Any, source_file: LaunchSource, options: Mapping[str, Any]) -> Launch:
    """Returns the training run of the parsed tables of a launch file."""
    name_in_errors = source_file.name_in_errors
    if not isinstance(config, Mapping):
        raise InputError(f"{name_in_errors}: is no launch file; expected {launch_file_titles()}{SERVER_FILES_HINT}")
    refuse_config(config, name_in_errors)
    for launch_file in launch_file_kinds():
        if launch_file.read_tables is not None and launch_file.matches_tables(config):
            return read_with_options(launch_file, launch_file.read_tables, config, source_file, options)
    if isinstance(config.get("services"), Mapping):
        raise InputError(
            f"{name_in_errors}: is a compose file, of servers: llmcalc memory and fit read one that starts vLLM, "
            "SGLang or llama.cpp with its model; expected such a file, or TARGET with --engine NAME (Ollama starts "
            "without a model: llmcalc memory qwen3:8b --engine ollama --hardware rtx-3090)"
        )
    key_list = ", ".join(str(config_key)[:30] for config_key in list(config)[:4])
    raise InputError(
        f"{name_in_errors}: is no launch file: it has {key_list or 'nothing'}; "
        f"expected {launch_file_titles()}{SERVER_FILES_HINT}"
    )


def _parse_tables(file_text: str, name_in_errors: str) -> Any:
    """Returns the tables of a text, parsed as JSON, TOML or YAML."""
    if file_text.lstrip().startswith("{"):
        return parse_braced_text(file_text, name_in_errors)
    toml_section = re.search(r"^[ \t]*\[[A-Za-z_][\w.\- \"]*\][ \t]*(#.*)?$", file_text, re.MULTILINE)
    if toml_section is not None:
        return parse_toml(file_text, name_in_errors)
    return parse_yaml(file_text, name_in_errors)


ARGUMENT_PARSER = re.compile(r"\b(TrlParser|HfArgumentParser|H4ArgumentParser)\(")
"""Pattern of calls that read a trainer's configuration from the command line."""


def _read_python(file_text: str, source_file: LaunchSource, options: Mapping[str, Any]) -> Launch:
    """Returns the training run of a Python launch file, from the file's syntax tree."""
    for file_kind in launch_file_kinds():
        if file_kind.read_python is not None and file_kind.is_python(file_text):
            return read_with_options(file_kind, file_kind.read_python, file_text, source_file, options)
    if ARGUMENT_PARSER.search(file_text) is not None:
        if source_file.arguments:
            command_text = f"python {shlex.join([source_file.name_in_errors, *source_file.arguments])}"
            return _read_script(
                read_script(command_text, source_file.name_in_errors, None, ()), source_file, [], options
            )
        raise InputError(
            f"{source_file.name_in_errors}: its settings are arguments of its command; expected them behind the file's "
            f"name, as in --launch '{source_file.name_in_errors} --model_name_or_path … "
            "--per_device_train_batch_size …', or the script or YAML file that has them"
        )
    known_titles_text = ", ".join(
        file_kind.title
        for file_kind in launch_file_kinds()
        if file_kind.read_python is not None and file_kind not in REFUSED_LAUNCH_FILES
    )
    raise InputError(
        f"{source_file.name_in_errors}: a Python file of no program that is read (it is never run); expected "
        f"{_training_loop_advice(file_text)}, or the script that starts it, or {known_titles_text}{SERVER_FILES_HINT}"
    )


SETTINGS_ADVICE = "TARGET with --phase training and the run's settings, such as --batch 4 --seq 2048 --recompute full"
"""Advice on what to type for a run that llmcalc cannot read from a file."""

OPTIONS_BY_WRAPPER = {r"FullyShardedDataParallel|fully_shard\(": "--fsdp N", r"DistributedDataParallel": "--dp N"}
"""Pattern of a call that divides a model's training over devices → llmcalc's equivalent options."""


def _training_loop_advice(file_text: str) -> str:
    """Returns advice for a Python file with a custom training loop: the command to type, with the file's model."""
    loaded_model = re.search(r"\.from_pretrained\(\s*[\"']([\w.-]{1,60}/[\w.-]{1,60})[\"']", file_text)
    model_target = "TARGET" if loaded_model is None else loaded_model[1]
    wrapper_options = next(
        (
            wrapper_options
            for wrapper_pattern, wrapper_options in OPTIONS_BY_WRAPPER.items()
            if re.search(wrapper_pattern, file_text)
        ),
        "",
    )
    advice = SETTINGS_ADVICE.removeprefix("TARGET ")
    return f"{model_target} in its place, {advice}{wrapper_options and ' '}{wrapper_options}"


@cache
def _command_pattern() -> re.Pattern[str]:
    """Returns a regular expression for script lines that start Python, directly or with a launcher."""
    launchers = (framework(program_folder).launcher for program_folder in FRAMEWORK_NAMES)
    commands = (rf"{folder}\s+({'|'.join(verbs)})" if verbs else folder for folder, verbs in CONSOLE_PROGRAMS.items())
    regex = "|".join((*filter(None, launchers), "srun", "mpirun", r"accelerate\s+launch", "python3?", *commands))
    return re.compile(rf"^[^#\n:]*\b({regex}|torch\.distributed\.(run|launch))\s", re.M)


def starts_python(file_text: str) -> bool:
    """Whether a line of a shell script starts Python."""
    return _command_pattern().search(file_text) is not None


YAML_START = re.compile(r"(?:[ \t]*(?:#.*)?\n)*[A-Za-z_]\w*:[ \t]+\S")
"""Pattern of a first line `key: value`, which no script has; in a Makefile, a tab follows."""


def _is_script(file_text: str) -> bool:
    """Whether a text is a shell script that starts Python with arguments or variables."""
    if YAML_START.match(file_text) is not None and "\n\t" not in file_text:
        return False
    if not starts_python(file_text) or not re.search(
        r"(^|[\s(\"'])(--[A-Za-z]|\$[A-Za-z_{@*]|[a-z_.]++=)|\S\.ya?ml\b", file_text
    ):
        return False
    return re.search(r"\A\s*\{", file_text) is None and re.search(r"^[A-Z_]+:[ \t]*$", file_text, re.MULTILINE) is None


MAX_FOLDERS = 6
"""Largest number of folders above a launch file that are searched for a file named in it."""


def _make_text_reader(name_in_errors: str, folder: Path | None) -> ReadText:
    """Returns a function that reads a file named in the launch file, as (path, text).

    The file is in that one's folder, in the current folder, or below one of the folders above. An absolute path stands
    for itself, or, where it is one of another machine or of a container, for the end of its path in these folders.
    """

    def read_text_file(file_name: str) -> tuple[str, str]:
        if folder is None:
            raise InputError(
                f"{name_in_errors}: {file_name[:80]}: names a file, which is not read; expected its contents"
            )
        file_name = file_name.removeprefix("oumi://")  # a path in Oumi's repository
        parent_folders = [folder, *folder.resolve().parents][1 : MAX_FOLDERS + 1]  # scripts run in a repository's root
        tried_paths = (
            folder / file_name,
            Path(file_name),
            *(parent_folder / file_name for parent_folder in parent_folders),
        )
        path_parts = Path(file_name).parts[1:] if file_name.startswith("/") else ()
        path_ends = [Path(*path_parts[i:]) for i in range(1, len(path_parts) - 1)][-MAX_FOLDERS:]
        tried_paths += tuple(end_folder / end for end in path_ends for end_folder in (folder, *parent_folders))
        possible_path = next((possible_path for possible_path in tried_paths if possible_path.exists()), None)
        if possible_path is None:
            raise InputError(
                f"{name_in_errors}: {file_name[:200]}: no such file beside it, nor below the folders above, nor in the "
                "current folder; expected the file in one of them"
            )
        return str(possible_path), read_text(possible_path, LARGEST_FILE_BYTES)

    return read_text_file


def _make_sourced_file_reader(read_text: ReadText | None) -> ReadSourcedFile:
    """Returns a function that reads the files sourced by a script, each file only once.

    A path that is absolute or begins at a home folder sets up a machine, and is not read.
    """
    texts_by_name: dict[str, str | None] = {}

    def read_sourced_file(file_name: str) -> str | None:
        if file_name not in texts_by_name:
            is_read = read_text is not None and not file_name.startswith(("/", "~"))
            is_read = is_read and Path(file_name).name != "activate" and len(texts_by_name) < MAX_SOURCED_FILES
            try:
                texts_by_name[file_name] = read_text(file_name)[1] if is_read and read_text is not None else None
            except InputError:
                texts_by_name[file_name] = None
        return texts_by_name[file_name]

    return read_sourced_file


def _unread_files_text(file_names: Sequence[str]) -> str:
    """Returns a message's text about files that a script sources and that do not exist on the user's machine."""
    names_text = " or ".join(dict.fromkeys(file_names))[:120]
    return f"{names_text} may set it, which the script sources and which is not beside it"


def _make_table_reader(name_in_errors: str, launch_folder: Path | None) -> ReadTables:
    read_text = _make_text_reader(name_in_errors, launch_folder)

    def read_config_tables(file_name: str) -> Mapping[str, Any]:
        file_path, file_text = read_text(file_name)
        return _parse_table(file_text, file_path)

    return read_config_tables


def _parse_table(file_text: str, file_path: str) -> Mapping[str, Any]:
    """Parses a config file into a mapping: as YAML if its name ends in .yaml or .yml, otherwise as JSON."""
    config = (parse_yaml if file_path.endswith((".yaml", ".yml")) else parse_json)(file_text, file_path)
    if not isinstance(config, Mapping):
        raise InputError(f"{file_path}: expected a table of keys")
    return config


# ---- scripts


def _read_script(
    script: ShellScript, source_file: LaunchSource, sbatch_words: list[str], options: Mapping[str, Any]
) -> Launch:
    """Returns the training run of a shell script.

    An error names script arguments that were not typed, and it or a note sourced files that were not read.
    """
    notes: list[str] = []
    try:
        launched_run = _read_training_command(script, source_file, sbatch_words, options, notes)
    except InputError as error:
        error_text = str(error)
        if script.unread_files and "known only when" in error_text and "is not set in it" in error_text:
            raise InputError(f"{error_text}; {_unread_files_text(script.unread_files)}") from None
        if not script.missing_argument or "known only when" not in error_text or "is argument " in error_text:
            raise
        raise InputError(
            f"{error_text}; the script takes arguments, as in --launch "
            f"'{source_file.name_in_errors} ARG1 … ARG{script.missing_argument}'"
        ) from None
    unread_files_text = f"; {_unread_files_text(script.unread_files)}" if script.unread_files else ""
    return replace(launched_run, notes=(*launched_run.notes, *notes), unread_files_text=unread_files_text)


def _read_training_command(
    script: ShellScript,
    source_file: LaunchSource,
    sbatch_words: list[str],
    options: Mapping[str, Any],
    notes: list[str],
) -> Launch:
    """Returns the training run of the only command in a script that trains."""
    name_in_errors = source_file.name_in_errors
    script = replace(
        script, commands=[command for command in script.commands if command.words[0] not in NON_PROGRAM_COMMANDS]
    )
    command_lines = _program_command_lines(script.commands)
    readable_source = _with_written_files(source_file, script.written_files)

    def source_of_command(command_line: CommandLine) -> LaunchSource:
        """Returns the launch file's name, environment and number of devices for one command."""
        source_env = {
            **script.env(),
            **{variable: env_value for variable, env_value in command_line.env.items() if not is_unresolved(env_value)},
        }
        launcher_words = [*sbatch_words, *command_line.launcher]
        starts_on_all_devices = starts_on_every_device(command_line)
        world_size = source_file.world_size or process_count(
            launcher_words, source_env, counts_processes=not starts_on_all_devices
        )
        if world_size is None:
            launcher_config = accelerate_config_table(command_line.launcher, name_in_errors, readable_source.read_text)
            world_size = stated_process_count(launcher_config)
        if world_size is None and starts_on_all_devices:
            world_size = visible_process_count(launcher_words, source_env)
        skipped_variables = {
            printable_word(command_word)
            for previous_word, command_word in pairwise(command_line.words)
            if is_unset_variable(command_word) and not previous_word.startswith("--")
        }
        unset_variables = sorted(script.unset_variables | skipped_variables)
        count_variables = unset_count_variables(command_line.launcher) if world_size is None else ()
        missing_variables = ", ".join(dict.fromkeys((*unset_variables, *count_variables)))[:200]
        if missing_variables and script.unread_files:
            notes[:] = [f"{missing_variables}: not set; {_unread_files_text(script.unread_files)}"]
        return replace(
            readable_source,
            world_size=world_size,
            env=source_env,
            script_name=command_line.program,
            unset_variables=unset_variables,
            launcher=command_line.launcher,
            has_typed_device_count=source_file.world_size is not None,
            unset_count_variables=count_variables,
        )

    for launch_file in launch_file_kinds():
        if launch_file.read_command is not None:
            matching_lines = [line for line in command_lines if launch_file.starts_program(line)]
            matching_lines = [
                command for command in matching_lines if launch_file.is_training_command(command)
            ] or matching_lines
            if matching_lines:
                command = (
                    matching_lines[0]
                    if launch_file.reads_first_command
                    else _only_training_command(matching_lines, name_in_errors)
                )
                return read_with_options(
                    launch_file, launch_file.read_command, command, source_of_command(command), options
                )
    for program_line in command_lines:
        config_file_and_range = config_file_and_words(program_line)
        if config_file_and_range is not None:
            return _read_config(config_file_and_range[0], program_line, source_of_command(program_line), options)
    for program_line in command_lines:
        if program_line.program == "tune run":
            recipe_name = next((word for word in program_line.words if not word.startswith("-")), "NAME")
            recipe_path, command_source = f"recipes/configs/{recipe_name}.yaml", source_of_command(program_line)
            if _named_file_exists(command_source, recipe_path):  # in torchtune's repository
                changed_words = [recipe_path if word == recipe_name else word for word in program_line.words]
                return _read_config(recipe_path, program_line._replace(words=changed_words), command_source, options)
            raise InputError(
                f"{name_in_errors}: line {program_line.line}: --config {printable_word(recipe_name)}: a recipe that "
                "comes with torchtune, which is not read; expected a copy of it: "
                f"tune cp {printable_word(recipe_name)} recipe.yaml, and --config recipe.yaml"
            )
    for program_line in command_lines:
        file_kind = _config_kind_of_command(program_line)
        if file_kind is not None and file_kind.read_tables is not None:
            command_words = parse_arguments(program_line.words, name_in_errors)
            arguments_table = {
                keyword_of(flag): parsed_argument_value(argument_value)
                for flag, argument_value in command_words.items()
            }
            arguments_table = {**_values_implied_by_command(program_line), **arguments_table}
            command_source = source_of_command(program_line)
            try:
                return read_with_options(file_kind, file_kind.read_tables, arguments_table, command_source, options)
            except InputError as error:
                raise _unresolved_argument_error(error, command_words, name_in_errors) from None
    return _read_by_arguments(script, command_lines, source_file, source_of_command, options)


def _named_file_exists(source_file: LaunchSource, file_name: str) -> bool:
    """Whether a file named in a launch file exists."""
    if source_file.read_text is None:
        return False
    try:
        source_file.read_text(file_name)
    except InputError:
        return False
    return True


def _unresolved_argument_error(error: InputError, arguments: Mapping[str, Any], name_in_errors: str) -> InputError:
    """Returns an error that names the script variable which leaves the argument unresolved; other errors unchanged."""
    for flag, written_value in arguments.items():
        is_named = str(error).startswith(f"{name_in_errors}: {keyword_of(flag)}: ")
        if is_named and isinstance(written_value, str) and is_unresolved(written_value):
            return InputError(f"{name_in_errors}: {flag}: {unresolved_reason(written_value)}")
    return error


def _read_by_arguments(
    shell_script: ShellScript,
    command_lines: list[CommandLine],
    source_file: LaunchSource,
    source_of_command: Callable[[CommandLine], LaunchSource],
    options: Mapping[str, Any],
) -> Launch:
    """Returns the training run of a command whose program is unknown, recognized by its arguments."""
    name_in_errors, commands = source_file.name_in_errors, shell_script.commands
    argument_readers = [file_kind for file_kind in launch_file_kinds() if file_kind.read_arguments is not None]
    for file_kind in argument_readers:
        matching_commands = [
            command for command in shell_script.commands if file_kind.has_program_arguments(command.words)
        ]
        if not matching_commands or file_kind.read_arguments is None:
            continue
        program_lines = _program_command_lines(matching_commands)
        if not program_lines:
            command_words = list(matching_commands[0].words)
            first_flag = next((i for i, command_word in enumerate(command_words) if command_word.startswith("--")), 0)
            raise InputError(
                f"{name_in_errors}: line {matching_commands[0].line}: no Python file is run by "
                f"'{printable_word(' '.join(command_words[:first_flag]))[:60]}'; "
                "expected one, such as pretrain_gpt.py"
            )
        command = _only_training_command(program_lines, name_in_errors)
        arguments = parse_arguments(command.words, name_in_errors)
        return read_with_options(file_kind, file_kind.read_arguments, arguments, source_of_command(command), options)
    launch_of_python = _read_python_of_command(command_lines, source_of_command, options)
    if launch_of_python is not None:
        return launch_of_python
    start_commands = (command for command in shell_script.commands if starts_python(" ".join(command.words[:20]) + " "))
    unresolved_words = (
        (command.line, word) for command in start_commands for word in command.words if is_unresolved(word)
    )
    line_number, unresolved_word = next(unresolved_words, (0, ""))
    reason_text = f" (line {line_number}: {unresolved_reason(unresolved_word)})" if unresolved_word else ""
    programs_with_lines = dict.fromkeys(f"{command.program} (line {command.line})" for command in command_lines)
    programs_text = (
        f"; it runs {', '.join(map(printable_word, list(programs_with_lines)[:4]))}" if programs_with_lines else ""
    )
    if not command_lines and not unresolved_word:
        other_commands = [
            f"{printable_word(' '.join(command.words[:2]), 40)} (line {command.line})" for command in commands
        ]
        commands_text = f"; it runs {', '.join(other_commands[:4])}" if other_commands else ""
        if shell_script.exit_line_number and not shell_script.arguments:
            commands_text += (
                f"; `exit` in line {shell_script.exit_line_number} ends it, as scripts do that take arguments: "
                f"--launch '{name_in_errors} ARG1 ARG2 …'"
            )
        raise InputError(
            f"{name_in_errors}: no command trains a model{commands_text}; expected one that does, such as "
            f"torchrun train.py …, or {SETTINGS_ADVICE}{SERVER_FILES_HINT}"
        )
    program_names = " or ".join(file_kind.program_of_arguments for file_kind in argument_readers)
    raise InputError(
        f"{name_in_errors}: no command runs with arguments of {program_names}{reason_text}{programs_text}; expected "
        f"{SETTINGS_ADVICE}, or {launch_file_titles()}{SERVER_FILES_HINT}"
    )


def _read_python_of_command(
    command_lines: Sequence[CommandLine],
    source_of_command: Callable[[CommandLine], LaunchSource],
    options: Mapping[str, Any],
) -> Launch | None:
    """Returns the training run of the Python file that a command runs, if the file exists and trains."""
    for command_line in command_lines:
        source_file = source_of_command(command_line)
        if not command_line.path or is_unresolved(command_line.path):
            continue
        try:
            file_path, file_text = (
                ("", "") if source_file.read_text is None else source_file.read_text(command_line.path)
            )
        except InputError:
            continue
        if any(
            file_kind.read_python is not None and file_kind.is_python(file_text) for file_kind in launch_file_kinds()
        ):
            return _read_python(
                file_text, replace(source_file, name_in_errors=file_path, arguments=command_line.words), options
            )
    return None


def _only_training_command(program_commands: list[CommandLine], name_in_errors: str) -> CommandLine:
    """Returns the only training command. Raises `InputError` for several different commands."""
    if len({(program_command.program, tuple(program_command.words)) for program_command in program_commands}) == 1:
        return program_commands[0]
    loop_values_by_variable: dict[str, list[str]] = {}
    for program_command in program_commands:
        for variable, loop_value in program_command.loop_values:
            loop_values_by_variable.setdefault(variable, []).append(loop_value)
    distinct_values_by_variable = {
        variable: list(dict.fromkeys(loop_values)) for variable, loop_values in loop_values_by_variable.items()
    }
    varying_loops = {
        variable: loop_value_set
        for variable, loop_value_set in distinct_values_by_variable.items()
        if len(loop_value_set) > 1
    }
    line_numbers_text = ", ".join(dict.fromkeys(str(program_command.line) for program_command in program_commands[:5]))
    if varying_loops:
        assignments_text = " ".join(
            f"{variable}={printable_word(loop_values[0])[:40]}" for variable, loop_values in varying_loops.items()
        )
        loops_text = "; ".join(
            f"{variable}: {', '.join(map(printable_word, loop_value_set[:6]))}"[:120]
            for variable, loop_value_set in varying_loops.items()
        )
        raise InputError(
            f"{name_in_errors}: a loop trains several times (line {line_numbers_text}; {loops_text}); expected one of "
            f"them, as in --launch '{assignments_text} {name_in_errors}'"
        )
    raise InputError(f"{name_in_errors}: several commands train (lines {line_numbers_text}); expected one")


def _read_config(
    file_name: str, command_line: CommandLine, source_file: LaunchSource, options: Mapping[str, Any]
) -> Launch:
    """Returns the training run of a config file, whose values the command's other words may replace."""
    if is_unresolved(file_name):
        raise InputError(f"{source_file.name_in_errors}: line {command_line.line}: {unresolved_reason(file_name)}")
    if source_file.read_text is None:
        raise InputError(
            f"{source_file.name_in_errors}: {file_name[:80]}: names a file, which is not read; expected its contents"
        )
    file_path, file_text = source_file.read_text(file_name)
    try:
        config = _parse_tables(file_text, file_path)
        if isinstance(config, Mapping):
            config = {**_values_implied_by_command(command_line), **with_typed_values(config, command_line, file_path)}
        config_source = replace(source_file, name_in_errors=file_path)
        config_kind = _config_kind_of_command(command_line)
        if config_kind is None or config_kind.read_tables is None or not isinstance(config, Mapping):
            return _read_tables(config, config_source, options)
        return read_with_options(config_kind, config_kind.read_tables, config, config_source, options)
    except InputError as error:
        raise InputError(
            f"{source_file.name_in_errors}: line {command_line.line} runs {command_line.program} with {error}"
        ) from None


def _with_written_files(source_file: LaunchSource, written_files: Mapping[str, str]) -> LaunchSource:
    """Returns a launch file whose references to other files are first looked up in files that the script writes.

    A name that the script leaves open stands in a text as the script writes it, and is an error in a table.
    """
    read_file, read_named_tables = source_file.read_text, source_file.read_named_tables
    if not written_files or read_file is None or read_named_tables is None:
        return source_file

    def read_text_file(file_name: str) -> tuple[str, str]:
        if file_name in written_files:
            return file_name, written_files[file_name].replace(UNRESOLVED_MARK, "")
        return read_file(file_name)

    def read_table(file_name: str) -> Mapping[str, Any]:
        if file_name not in written_files:
            return read_named_tables(file_name)
        file_text = written_files[file_name]
        name_in_error = f"{source_file.name_in_errors}: {printable_word(file_name)}"
        if is_unresolved(file_text):
            unknown_word = next(unknown_word for unknown_word in file_text.split() if is_unresolved(unknown_word))
            raise InputError(f"{name_in_error}: {unresolved_reason(unknown_word)}")
        return _parse_table(file_text, name_in_error)

    return replace(source_file, read_text=read_text_file, read_named_tables=read_table)


def _program_command_lines(commands: Sequence[ShellCommand]) -> list[CommandLine]:
    """Returns the commands that start Python or a known program, with the launcher that the program starts."""
    program_lines = [
        program_line._replace(env=command.env)
        for command in commands
        if (program_line := parse_command_line(command)) is not None
    ]
    return [
        program_line
        if (file_kind := _kind_of_installed_program(program_line)) is None
        else file_kind.with_launcher(program_line)
        for program_line in program_lines
    ]


def _kind_of_installed_program(command_line: CommandLine) -> LaunchFile | None:
    """Returns the kind of launch files for the installed program (such as `trl`) that a command starts, or None."""
    program_name = "" if command_line.path else command_line.program.partition(" ")[0]
    return next(
        (file_kind for file_kind in launch_file_kinds() if file_kind.launcher and file_kind.launcher == program_name),
        None,
    )


def _config_kind_of_command(command_line: CommandLine) -> LaunchFile | None:
    """Returns the kind of config file that has a command's arguments as keys; None for other commands."""
    return next((file_kind for file_kind in launch_file_kinds() if command_line.program in file_kind.commands), None)


def _values_implied_by_command(command_line: CommandLine) -> Mapping[str, Any]:
    """Returns the config values that the program's name in a command implies, by key."""
    config_kind = _config_kind_of_command(command_line)
    return {} if config_kind is None else config_kind.commands[command_line.program]


COUNT_KIND_BY_OPTION = {
    "--nproc-per-node": "each",
    "--nnodes": "machines",
    "--num-gpus": "each",
    "--num-nodes": "machines",
    "--num-processes": "all",
    "--num-machines": "machines",
    "--nproc": "each",
    "-np": "tasks",
    "--ntasks": "tasks",
    "-n": "tasks",
    "--ntasks-per-node": "tasks of a machine",
    "--nodes": "machines",
    "-N": "machines",
}
"""Argument of a launcher → what its number counts: processes per machine, machines, or all processes. A task of srun or
mpirun is a process, unless it starts another launcher.
"""


def _counts_of_launcher(launcher_words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (kind of count, text) for the counts of machines and processes in a launcher's arguments."""
    for i, command_word in enumerate(launcher_words):
        option_name, equals_sign, option_value = command_word.partition("=")
        count_kind = COUNT_KIND_BY_OPTION.get(
            f"--{option_name[2:].replace('_', '-')}" if option_name.startswith("--") else option_name
        )
        if count_kind is not None:
            yield (
                count_kind,
                option_value if equals_sign else (launcher_words[i + 1] if i + 1 < len(launcher_words) else ""),
            )


def starts_on_every_device(command_line: CommandLine) -> bool:
    """Whether a command without a number of processes starts one process on each visible device.

    `accelerate launch` does (commands/launch.py), as do DeepSpeed's launcher, `torchrun --nproc-per-node gpu` and
    `oumi distributed` (core/distributed.py).
    """
    launcher_words = command_line.launcher
    program_names = [command_word.rpartition("/")[2] for command_word in launcher_words]
    count_texts = [count_text for _, count_text in _counts_of_launcher(launcher_words)]
    if any(count_text in ("gpu", "auto") for count_text in count_texts):
        return True
    if any(map(is_unresolved, count_texts)):
        return False
    return (
        not {("accelerate", "launch"), ("oumi", "distributed")}.isdisjoint(pairwise(program_names))
        or _kind_of_installed_program(command_line) is not None
        or any(
            framework_record.starts_on_every_device and framework_record.launcher in program_names
            for framework_record in map(framework, FRAMEWORK_NAMES)
        )
    )


def visible_process_count(launcher: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Returns the number of processes on the visible devices of all machines; None if it is not stated."""
    devices_text = environment.get("CUDA_VISIBLE_DEVICES", "")
    for option_name, option_value in pairwise([*launcher, ""]):
        if option_name.startswith("--include"):  # localhost:0,1,2,3
            devices_text = (option_name.partition("=")[2] or option_value).rpartition(":")[2]
    devices_match = re.fullmatch(r"[\w-]+(,[\w-]+){0,1000},?", devices_text)
    visible_count = (
        requested_devices_per_machine(launcher) if devices_match is None else len(devices_text.strip(",").split(","))
    )
    if visible_count is None:
        return None
    machine_count_texts = [
        environment.get("NNODES", ""),
        *(count_text for count_kind, count_text in _counts_of_launcher(launcher) if count_kind == "machines"),
    ]
    machine_counts = [
        int(count_text) for count_text in machine_count_texts if re.fullmatch(r"[1-9][0-9]{0,5}", count_text)
    ]
    return visible_count * (machine_counts[-1] if machine_counts else 1)


def unset_count_variables(launcher: Sequence[str]) -> tuple[str, ...]:
    """Returns unset script variables in a launcher's numbers of processes and machines, processes first."""
    launcher_counts = sorted(_counts_of_launcher(launcher), key=lambda kind_and_count: kind_and_count[0] == "machines")
    count_variables = (
        re.sub(r"\W+", "", printable_word(count_text))
        for _, count_text in launcher_counts
        if is_unresolved(count_text) and "(" not in count_text
    )
    return tuple(
        dict.fromkeys(variable_name for variable_name in count_variables if re.match(r"[A-Za-z_]", variable_name))
    )


def process_count(launcher: list[str], environment: Mapping[str, str], *, counts_processes: bool = True) -> int | None:
    """Returns the number of devices, processes per machine · machines, from a launcher's arguments.

    environment: the environment of the command, in which ms-swift and LLaMA-Factory have the number of processes.
    counts_processes: whether a task of srun or mpirun is a process, instead of a launcher that starts others.
    """
    counts_by_kind: dict[str, int] = {}
    for variable_name, count_kind in (("NPROC_PER_NODE", "each"), ("NNODES", "machines")):
        count_text = environment.get(variable_name, "")
        if count_text.isascii() and count_text.isdecimal() and len(count_text) < 7 and int(count_text) > 0:
            counts_by_kind[count_kind] = int(count_text)
    for count_kind, count_text in _counts_of_launcher(launcher):
        if count_text.isascii() and count_text.isdecimal() and len(count_text) < 7 and int(count_text) > 0:
            counts_by_kind[count_kind] = int(count_text)
    machine_count = counts_by_kind.get("machines", 1)
    if "all" in counts_by_kind:
        return counts_by_kind["all"]
    if "each" in counts_by_kind:
        return counts_by_kind["each"] * machine_count
    if not counts_processes:
        return None
    if "tasks" in counts_by_kind:
        return counts_by_kind["tasks"]
    tasks_per_machine = counts_by_kind.get("tasks of a machine")
    return None if tasks_per_machine is None else tasks_per_machine * machine_count
