"""Programs whose commands, Python files or configs are refused by name, each with the reason and an alternative."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...errors import InputError
from ...frozen import frozen
from .launch_types import CommandLine, Launch, LaunchFile, LaunchSource, Table

SERVER_COMMAND = "the server that it starts, as in --launch 'vllm serve MODEL --max-model-len 8192'"
"""Advice to pass a server's start command, for a config that names a model and the limits of its server."""


@frozen
class RefusedProgram:
    """A training program whose launch files are refused.

    name: name of the program.
    program_pattern: pattern of the programs of its commands.
    python_pattern: pattern of a line of its Python files; empty (default) if it has none.
    reason_and_advice: the part that is not modelled, and what to do instead.
    reads_configs: whether its configs are read, so that a command with one is not refused.
    """

    name: str
    program_pattern: str
    reason_and_advice: str
    python_pattern: str = ""
    reads_configs: bool = False

    def runs(self, command_line: CommandLine) -> bool:
        """Whether a command starts this program."""
        from .command_config import config_file_and_words  # reads YAML; help lists programs without it

        if self.reads_configs and config_file_and_words(command_line) is not None:
            return False
        return re.fullmatch(self.program_pattern, command_line.program) is not None

    def read_command(self, command_line: CommandLine, source_file: LaunchSource) -> Launch:
        """Raises `InputError` for a command of the program."""
        raise InputError(
            f"{source_file.name_in_errors}: line {command_line.line}: {command_line.program} is {self.name}'s: "
            f"{self.reason_and_advice}"
        )

    def is_python(self, file_text: str) -> bool:
        """Whether a Python file is written for the program."""
        return bool(self.python_pattern) and re.search(self.python_pattern, file_text, re.MULTILINE) is not None

    def read_python(self, _: str, source_file: LaunchSource) -> Launch:
        """Raises `InputError` for a Python file of the program."""
        raise InputError(f"{source_file.name_in_errors}: a Python file of {self.name}: {self.reason_and_advice}")


REFUSED_PROGRAMS = (
    RefusedProgram(
        "nanochat",
        r"scripts\.(base_train|chat_sft|mid_train|chat_rl|base_eval)",
        "its models of 2026 have value embeddings, smeared tokens and a residual of the middle layer, which have no "
        "parts here; expected another model of that depth and width as TARGET, with --phase training --optimizer muon",
        python_pattern=r"^from nanochat\.",
    ),
    RefusedProgram(
        "NeMo",
        r"nemo llm|megatron_gpt_pretraining\.py|megatron_gpt_finetuning\.py",
        "its recipes are not read; expected the Megatron-LM arguments of the run, or TARGET with --framework megatron "
        "and the layout",
        python_pattern=r"^[ \t]*(from nemo\.collections|import nemo_run|from nemo )",
    ),
    RefusedProgram(
        "litgpt",
        r"litgpt \w+",
        "it is read from its YAML configs alone; expected one, or TARGET with --phase training and its precision, such "
        "as --dtype bf16 --lora-rank 32",
        python_pattern=r"^[ \t]*(from|import) litgpt\b",
        reads_configs=True,
    ),
    RefusedProgram(
        "unsloth",
        r"unsloth(-cli\.py| \w+)?",
        "it replaces kernels, which are not modelled; expected TARGET with --phase training, such as "
        "--lora-rank 16 --base nf4-dq --recompute full",
    ),
    RefusedProgram(
        "DeepSpeedExamples' BERT",
        r"deepspeed_train\.py|(nvidia_)?run_squad\w*\.py|run_glue_classifier_bert_\w+\.py",
        "its model is in another file, and its layers are DeepSpeed's own kernels; expected TARGET "
        "(bert-large-uncased) with --launch and the file's DeepSpeed JSON",
    ),
    RefusedProgram(
        "TRL",
        r"trl (rloo|distillation)",
        "trainings by RLOO and by distillation are not modelled; expected trl sft, dpo, kto, grpo or reward",
    ),
    RefusedProgram(
        "BentoML",
        r"bentoml \w+",
        f"its services are not read; expected {SERVER_COMMAND}",
        python_pattern=r"^[ \t]*(from|import) bentoml\b",
    ),
)

REFUSED_LAUNCH_FILES = tuple(
    LaunchFile(
        f"{program.name.lower()}-refused",
        f"a file of {program.name}",
        starts_program=program.runs,
        read_command=program.read_command,
        reads_first_command=True,
        is_python=program.is_python,
        read_python=program.read_python,
        program=program.name,
    )
    for program in REFUSED_PROGRAMS
)
"""Launch file records of refused programs, which are tried after all programs whose files are read."""


class RefusedConfig(NamedTuple):
    """A kind of config file that is recognized by its keys, and refused.

    program: the program's name.
    matches: whether tables are such a file.
    advice: what to do instead.
    """

    program: str
    matches: Callable[[Table], bool]
    advice: str


def _has_tables(config: Table, *table_names: str) -> bool:
    """Whether a config has a table under each of `table_names`."""
    return all(isinstance(config.get(table_name), Mapping) for table_name in table_names)


REFUSED_CONFIGS = (
    RefusedConfig(
        "AReaL",
        lambda data: _has_tables(data, "actor", "rollout"),
        "TARGET with --phase training --fsdp N for the actor, and --phase inference for the rollout",
    ),
    RefusedConfig(
        "ArcticTraining",
        lambda data: isinstance(data.get("model"), Mapping) and "name_or_path" in data["model"],
        "its table deepspeed as a DeepSpeed config, with TARGET, --batch, --seq and --devices",
    ),
    RefusedConfig(
        "ROLL",
        lambda data: _has_tables(data, "actor_train", "actor_infer"),
        "TARGET with --phase training and the strategy of actor_train, such as --framework deepspeed --zero 3, and "
        "--phase inference for actor_infer",
    ),
    RefusedConfig(
        "Primus",
        lambda data: _has_tables(data, "modules") and any("trainer" in str(module) for module in data["modules"]),
        "the arguments under overrides as a file of Megatron-LM or torchtitan, or TARGET with --framework megatron and "
        "the layout",
    ),
    RefusedConfig(
        "prime-rl",
        lambda data: _has_tables(data, "orchestrator", "trainer") or _has_tables(data, "deployment", "data", "optim"),
        "TARGET with --phase training --framework fsdp2 --fsdp N for the trainer, and --phase inference for the engine",
    ),
    RefusedConfig(
        "VeOmni",
        lambda data: _has_tables(data, "model", "train") and "model_path" in data["model"],
        "TARGET with --phase training --framework fsdp2 --fsdp N, and --batch, --seq and --recompute of its tables",
    ),
    RefusedConfig(
        "Hugging Face's Inference Endpoints",
        lambda data: _has_tables(data, "compute", "model") and "repository" in data["model"],
        SERVER_COMMAND,
    ),
)
"""Kinds of config files that are recognized and refused with an explanation."""

REFUSED_CONFIG_LINES = {
    "Kaito": re.compile(r"^apiVersion: *kaito\.sh/", re.MULTILINE),
    "DJL Serving": re.compile(r"^option\.\w+ *=", re.MULTILINE),
    "Triton Inference Server": re.compile(r'^(backend|platform): *"\w+"', re.MULTILINE),
}
"""Refused program → pattern of a line in its configs, which may be no YAML, TOML or JSON, or several documents."""


def refuse_text(file_text: str, name_in_errors: str) -> None:
    """Raises `InputError` for a text in the config format of a program that llmcalc refuses."""
    for program, text_pattern in REFUSED_CONFIG_LINES.items():
        if text_pattern.search(file_text) is not None:
            raise InputError(
                f"{name_in_errors}: is a config of {program}, which is not read; expected {SERVER_COMMAND}"
            )


def refuse_config(config: Table, name_in_errors: str) -> None:
    """Raises `InputError` for the tables of a config file of a refused program."""
    for refused_config in REFUSED_CONFIGS:
        if refused_config.matches(config):
            raise InputError(
                f"{name_in_errors}: is a config of {refused_config.program}, which is not read; expected "
                f"{refused_config.advice}"
            )
