"""Lists the kinds of launch files: one kind per framework, and programs that run several frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypedDict

from ...workload.loaded_encoders import LoadedEncoders
from ..framework import LazyFunction
from ..registry import FRAMEWORK_NAMES, framework
from ..trl.commands import COMMANDS as TRL_COMMANDS
from .launch_types import LaunchFile, Table
from .refused_programs import REFUSED_LAUNCH_FILES

FRAMEWORKS_PACKAGE = __package__.rpartition(".")[0]
"""Name of the package that contains the folders of frameworks and programs."""

ACCELERATE_FILE = LaunchFile(
    "accelerate",
    "a config of accelerate",
    LazyFunction(__package__, "accelerate:is_accelerate"),
    LazyFunction(__package__, "accelerate:read_accelerate"),
    program="accelerate",
    version="1.x",
)

TRAINER_FILE = LaunchFile(
    "trainer",
    "arguments of the Trainer",
    LazyFunction(__package__, "trainer:is_trainer"),
    LazyFunction(__package__, "trainer:read_trainer"),
    program_of_arguments="the Trainer",
    has_program_arguments=LazyFunction(__package__, "trainer:has_program_arguments"),
    read_arguments=LazyFunction(__package__, "trainer:read_arguments"),
    program="transformers",
    version="5.23",
)


class CommandFunctionNames(TypedDict):
    """The names of the functions in a program's `command.py` that recognize and read commands."""

    starts_program: str
    read_command: str


COMMAND_FUNCTIONS: CommandFunctionNames = {
    "starts_program": "command:starts_program",
    "read_command": "command:read_command",
}
"""The functions that read a program's commands: field of `LaunchFile` → `file:function` in the program's folder."""


NO_COMMAND_FUNCTIONS: Mapping[str, Table] = {}
"""No command functions: the arguments of such a program's commands are keys of its config files."""


ENCODERS_BY_PROGRAM: Mapping[str, LoadedEncoders] = {
    **dict.fromkeys(("automodel", "axolotl", "megatron_bridge", "oumi", "trl", "verl"), LoadedEncoders()),
    **dict.fromkeys(("llama_factory", "ms_swift"), LoadedEncoders(is_trained=False)),
    "unsloth": LoadedEncoders(is_quantized=False),
}
"""Program that loads all of a model with encoders, whatever is trained → how the encoders are used.

Source: nemo_automodel/_transformers/auto_model.py and infrastructure.py, `apply_parameter_freezing`;
axolotl/loaders/model.py, `_set_auto_model_loader`; llamafactory/model/loader.py and hparams/finetuning_args.py,
`freeze_vision_tower`; megatron/bridge/models, `freeze_vision_model`; swift/model/register.py and
arguments/tuner_args.py, `freeze_vit`; oumi/builders/models.py; trl/trainer/utils.py, `create_model_from_path`;
unsloth/models/loader.py and unsloth_zoo/peft_utils.py, `SKIP_QUANTIZATION_MODULES`; verl/utils/model.py,
`get_hf_auto_model_class`, and workers/config/actor.py, `freeze_vision_tower`.
"""


def _launch_file_of_program(
    folder_name: str,
    program: str,
    version: str,
    title: str = "",
    kind_name: str = "",
    *,
    commands: Mapping[str, Table] = NO_COMMAND_FUNCTIONS,
    launcher: str = "",
    **reader_functions: str,
) -> tuple[str, LaunchFile]:
    """Returns a program's folder, and the kind of its launch files with the functions that read them.

    version: the version whose defaults are filled in.
    title, kind_name: as in `LaunchFile`; by default a config of the program, and its folder.
    commands, launcher: as in `LaunchFile`.
    reader_functions: field of `LaunchFile` → `file:function` in the folder; by default of its config files.
    """
    reader_functions = reader_functions or {
        "matches_tables": f"config_file:is_{folder_name}",
        "read_tables": f"config_file:read_{folder_name}",
    }
    reader_package = f"{FRAMEWORKS_PACKAGE}.{folder_name}"
    functions: dict[str, Any] = {
        name: LazyFunction(reader_package, function_path) for name, function_path in reader_functions.items()
    }
    program_kind = kind_name or folder_name.replace("_", "-")
    return folder_name, LaunchFile(
        program_kind,
        title or f"a config of {program}",
        program=program,
        version=version,
        commands=commands,
        launcher=launcher,
        encoders=ENCODERS_BY_PROGRAM.get(folder_name),
        **functions,
    )


LAUNCH_FILE_BY_PROGRAM = dict(
    (
        _launch_file_of_program(
            "automodel",
            "NeMo-Automodel",
            "36044ad (2026-08-22)",
            "a recipe of NeMo-Automodel",
            launcher="automodel",  # torchrun
            matches_tables="config_file:is_automodel",
            read_tables="config_file:read_automodel",
            with_launcher="config_file:with_launcher",
        ),
        _launch_file_of_program("axolotl", "axolotl", "0.18.0", launcher="axolotl"),  # accelerate
        _launch_file_of_program(
            "llama_factory",
            "LLaMA-Factory",
            "0.9.6",
            commands={"llamafactory-cli train": {}, "train_bash.py": {}},
            launcher="llamafactory-cli",  # torchrun (llamafactory/launcher.py)
        ),
        _launch_file_of_program("torchtune", "torchtune", "0.7.0", "a recipe of torchtune"),
        _launch_file_of_program("litgpt", "LitGPT", "0.5.13"),
        _launch_file_of_program("open_instruct", "open-instruct", "2026-08-20"),
        _launch_file_of_program(
            "unsloth",
            "Unsloth",
            "2026",
            "model defaults of Unsloth, or Python that trains with it",
            matches_tables="config_file:is_unsloth",
            read_tables="config_file:read_unsloth",
            is_python="python_file:is_python",
            read_python="python_file:read_python",
        ),
        _launch_file_of_program("olmo", "OLMo", "0.6.0"),
        _launch_file_of_program(
            "olmo_core",
            "OLMo-core",
            "2.5.0",
            "a training script of OLMo-core",
            is_python="script:is_python",
            read_python="script:read_python",
        ),
        _launch_file_of_program("llm_foundry", "LLM Foundry", "0.22"),
        _launch_file_of_program(
            "trl",
            "TRL",
            "1.10",
            "a recipe of TRL, or Python that trains with TRL or the Trainer",
            commands=TRL_COMMANDS,
            launcher="trl",
            with_launcher="commands:with_launcher",
            matches_tables="config_file:is_trl",
            read_tables="config_file:read_trl",
            is_python="python_file:is_python",
            read_python="python_file:read_python",
        ),
        _launch_file_of_program(
            "deepspeed_chat",
            "DeepSpeed-Chat",
            "83757d9 (2025-02-11)",
            "a command of DeepSpeed-Chat",
            **COMMAND_FUNCTIONS,
        ),
        _launch_file_of_program("gpt_neox", "GPT-NeoX", "2.0 (2026-05-19)"),
        _launch_file_of_program(
            "fastchat",
            "FastChat",
            "0.2.36",
            "a command of FastChat's, Stanford Alpaca's or Qwen's training script",
            **COMMAND_FUNCTIONS,
        ),
        _launch_file_of_program(
            "flag_embedding",
            "FlagEmbedding",
            "1.4.0",
            "a command of FlagEmbedding",
            **COMMAND_FUNCTIONS,
        ),
        _launch_file_of_program(
            "llama_cookbook",
            "llama-cookbook",
            "0.0.5",
            "a command of llama-cookbook's finetuning.py",
            **COMMAND_FUNCTIONS,
        ),
        _launch_file_of_program(
            "megatron_bridge",
            "Megatron-Bridge",
            "main (2026-08)",
            "a recipe of Megatron-Bridge in Python",
            starts_program="recipe:starts_program",
            read_command="recipe:read_command",
            is_python="recipe:is_python",
            read_python="recipe:read_python",
        ),
        _launch_file_of_program(
            "megatron_deepspeed",
            "Megatron-DeepSpeed",
            "f4157be (2024-12-24)",
            "a command of Megatron-DeepSpeed",
            **COMMAND_FUNCTIONS,
        ),
        _launch_file_of_program(
            "ms_swift",
            "ms-swift",
            "4.6.0.dev0",
            "arguments of ms-swift",
            is_training_command="command:trains",
            starts_program="command:starts_program",
            read_command="config_file:read_command",
            matches_tables="config_file:is_ms_swift",
            read_tables="config_file:read_ms_swift",
        ),
        _launch_file_of_program(
            "nanogpt",
            "nanoGPT",
            "3adf61e (2025-11-12)",
            "a configuration of nanoGPT in Python",
            starts_program="config_file:starts_program",
            read_command="config_file:read_command",
            is_python="config_file:is_python",
            read_python="config_file:read_python",
        ),
        _launch_file_of_program("nanotron", "nanotron", "2026-04-07"),
        _launch_file_of_program("nemo", "NeMo", "2.x (2025)"),
        _launch_file_of_program("nemo_rl", "NeMo-RL", "7ea279a (2026-08-22)"),
        _launch_file_of_program("oumi", "Oumi", "2026-08-21"),
        _launch_file_of_program(
            "openrlhf",
            "OpenRLHF",
            "0.11.0",
            "a command of OpenRLHF",
            is_training_command="command:trains",
            **COMMAND_FUNCTIONS,
        ),
        _launch_file_of_program(
            "pai_megatron",
            "Pai-Megatron-Patch",
            "a098ca5 (2025-12-15)",
            "a command of Pai-Megatron-Patch",
            "pai-megatron-patch",
            **COMMAND_FUNCTIONS,
        ),
        _launch_file_of_program(
            "skyrl",
            "SkyRL",
            "a956457 (2026-08-21)",
            "a command of SkyRL",
            is_training_command="command:trains",
            **COMMAND_FUNCTIONS,
        ),
        _launch_file_of_program("slime", "slime", "2026-08-21", "a command of slime", **COMMAND_FUNCTIONS),
        _launch_file_of_program(
            "verl",
            "verl",
            "0.8.0.dev",
            "a config or command of verl",
            matches_tables="config_file:is_verl",
            read_tables="config_file:read_verl",
            **COMMAND_FUNCTIONS,
        ),
    )
)
"""Folder of a program that trains with a framework → the kind of its launch files."""


def program_launch_files() -> tuple[LaunchFile, ...]:
    """Returns the kinds of launch files of programs that train with a framework, and of programs that are refused."""
    return (*LAUNCH_FILE_BY_PROGRAM.values(), *REFUSED_LAUNCH_FILES)


@cache
def _framework_launch_files() -> tuple[LaunchFile, ...]:
    """Returns the kinds of launch files of frameworks, and of files that select a framework."""
    framework_launch_files = (framework(framework_name).launch_file for framework_name in FRAMEWORK_NAMES)
    return (
        *(launch_file for launch_file in framework_launch_files if launch_file is not None),
        ACCELERATE_FILE,
        TRAINER_FILE,
    )


def launch_file_kinds() -> tuple[LaunchFile, ...]:
    """Returns all kinds of launch files, in the order of recognition."""
    return (*program_launch_files(), *_framework_launch_files())


def launch_file_titles() -> str:
    """Returns the titles of the kinds of launch files in YAML, JSON or TOML, as one text for messages."""
    kind_titles = (
        file_kind.title
        for file_kind in (*_framework_launch_files(), *program_launch_files())
        if file_kind.read_tables is not None
    )
    return f"{', '.join(kind_titles)} or a SkyPilot task with the script of one of them"
