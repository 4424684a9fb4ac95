"""Reads torchtitan's Python configurations (`config_registry.py`, since 2026-02) from their syntax tree.

A function builds a `Trainer.Config` of dataclass calls. It is read as the job that the TOML files had; nothing is
imported or run. Source: torchtitan/models/*/config_registry.py, torchtitan/config/configs.py, torchtitan/trainer.py
and distributed/activation_checkpoint.py at b5bcd76 (2026-08-21).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import short_repr, suggest
from ...sources.huggingface.family import field_names
from ..launch.command_line import parse_arguments, parsed_argument_value
from ..launch.launch_types import CommandLine, Launch, LaunchReader, LaunchSource, launch_reader, read_integer
from ..launch.python_source import CALLED_NAME_KEY, Config, ConfigurationBuilder, UnknownValue, parse_python
from ..launch.unresolved import is_unresolved, unresolved_reason
from .torchtitan_file import read_job
from .torchtitan_models import spec_of_flavor

FAMILIES = ("deepseek_v3", "gpt_oss", "llama3", "qwen3")
"""Folders of torchtitan/models; a configuration's name begins with its folder."""

MODEL_KEYS = ("model_spec.0", "model_spec.flavor", "model_spec.attn_backend")
"""Arguments of a model that are read, or that do not change memory."""

CHECKPOINTING_MODES = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
"""Class of activation checkpointing → the equivalent mode in TOML files."""

TOKENS_PER_MICROBATCH_KEY = "training.num_tokens_per_microbatch_per_dp_rank"

IGNORED_KEYS = field_names("""
    training.disable_cuda_graphs training.num_tokens_per_microbatch_per_dp_rank training.max_context_length
    training.num_tokens_per_train_step parallelism.spmd_backend parallelism.enable_sequence_parallel
    parallelism.num_pp_microbatches parallelism.enable_fsdp_symm_mem activation_checkpoint.preserve_rng_state
    """)
"""Keys that TOML files lacked: those that are read here, or that do not change memory."""

READ_SECTIONS = ("training", "parallelism", "compile", "activation_checkpoint", "optimizer")
"""Sections of a configuration that are converted to sections of the equivalent TOML job."""

ASSUMED_CONTEXT, ASSUMED_TOKENS = 2048, 16384
"""Default values of `TrainingConfig`."""


def is_python(file_text: str) -> bool:
    """Whether a Python file contains torchtitan configurations."""
    return (
        "Trainer.Config" in file_text
        and re.search(r"^from torchtitan[\w.]* import", file_text, re.MULTILINE) is not None
    )


CONFIG_OPTIONS = ("--module", "--config")
"""Options of `torchtitan.train` since 2026-02: for a model's folder, and for a function of its config_registry.py."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command runs torchtitan with a configuration that is a Python function."""
    option_names = {command_word.partition("=")[0] for command_word in command_line.words}
    return command_line.program == "torchtitan.train" and option_names.issuperset(CONFIG_OPTIONS)


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of the named configuration in a command, read from the model's file in the repository.

    Source: torchtitan/config/manager.py, `--module` and `--config`. Raises `InputError`, which names file and option.
    """
    with launch_reader(source_file) as reader:
        arguments = parse_arguments(command_line.words, source_file.name_in_errors)
        module_name, config_name = (str(arguments.pop(option)) for option in CONFIG_OPTIONS)
        for option, option_value in zip(CONFIG_OPTIONS, (module_name, config_name), strict=True):
            if re.fullmatch(r"\w[\w.]{0,99}", option_value) is None:
                problem_text = (
                    unresolved_reason(option_value)
                    if is_unresolved(option_value)
                    else f"{short_repr(option_value)}; expected a name"
                )
                raise reader.argument_error(option, problem_text)
        module_path = module_name if module_name.startswith("torchtitan.") else f"torchtitan.models.{module_name}"
        file_path = f"{module_path.removesuffix('.config_registry').replace('.', '/')}/config_registry.py"
        if source_file.read_text is None:
            raise reader.argument_error("--module", f"{file_path} cannot be read; expected that file")
        name_in_errors, file_text = source_file.read_text(file_path)
        overrides = [f"{option_name}={option_value}" for option_name, option_value in arguments.items()]
    return read_python(
        file_text, replace(source_file, name_in_errors=name_in_errors, arguments=(config_name, *overrides))
    )


def read_python(file_text: str, source_file: LaunchSource) -> Launch:
    """Returns the training run of a configuration function; `source_file` has its name and overrides as arguments.

    Raises `InputError`, which names file, function and field.
    """
    with launch_reader(source_file) as reader:
        configurations = ConfigurationBuilder(parse_python(file_text, source_file.name_in_errors))
        function_names = [
            function_name for function_name in configurations.functions if _model_family_of(function_name)
        ] or [function_name for function_name in configurations.functions if not function_name.startswith("_")]
        configuration_names = [argument for argument in source_file.arguments if "=" not in argument]
        function_name = configuration_names[0] if configuration_names else ""
        if function_name not in function_names:
            problem_text = (
                f"no configuration '{function_name[:60]}'" if function_name else f"{len(function_names)} configurations"
            )
            example_name = function_names[0] if function_names else "NAME"
            suggestion = suggest(function_name, function_names) if function_name else ""
            raise reader.argument_error(
                "config",
                f"the file has {problem_text}: {', '.join(function_names[:8])[:300]}; expected one of them, as in "
                f"--launch '{source_file.name_in_errors} {example_name}'.{suggestion}".rstrip("."),
            )
        try:
            config = configurations.configuration_of(function_name)
        except RecursionError:
            raise reader.argument_error(function_name, "nested too deeply; expected a configuration") from None
        for argument in source_file.arguments:
            overridden_key, equals_sign, override_value = argument.lstrip("-").partition("=")
            if equals_sign:
                config[overridden_key] = parsed_argument_value(override_value)
        return _read_configuration(reader, config, function_name)


def _read_configuration(reader: LaunchReader, config: Config, configuration_name: str) -> Launch:
    """Returns the training run of a configuration. Raises `InputError` for a model that llmcalc does not read."""
    model_family = _model_family_of(configuration_name)
    model_size = config.get("model_spec.0", config.get("model_spec.flavor"))
    if not model_family or not isinstance(model_size, str):
        raise reader.argument_error(
            "model_spec",
            f"the model of {configuration_name[:60]} is not read; expected a configuration of {', '.join(FAMILIES)}",
        )
    converter_keys = [config_key for config_key in config if config_key.startswith("model_spec.converters")]
    if converter_keys:
        reader.refuse("model_spec.converters", "converters in Python (float8, MXFP8, LoRA) are not read")
    for config_key, config_value in config.items():
        is_argument = (
            config_key.startswith("model_spec.")
            and config_key not in (*MODEL_KEYS, *converter_keys)
            and CALLED_NAME_KEY not in config_key
        )
        if is_argument and config_value not in (None, "standard"):
            reader.refuse(config_key[:80], "no argument of a model that is read")
    launched_run = read_job(
        _job_sections(reader, config), reader, spec_of_flavor(model_family, model_size, reader.name_in_errors)
    )
    settings = dict(launched_run.settings)
    if config.get(f"loss.{CALLED_NAME_KEY}", "").startswith("ChunkedLossWrapper"):
        reader.notes.append("the loss is computed in chunks of the sequence, which are counted as fused chunks")
        settings["cross_entropy"] = "chunked"
    if config.get("training.disable_cuda_graphs") is not True:
        reader.notes.append("CUDA graphs are not counted")
    return replace(launched_run, settings=settings, notes=tuple(reader.notes), version="2026-08-21")


def _model_family_of(configuration_name: str) -> str:
    """Returns the model family with which a configuration's name starts; empty for unknown ones (`qwen35_4b`)."""
    return next((model_family for model_family in FAMILIES if configuration_name.startswith(f"{model_family}_")), "")


def _job_sections(reader: LaunchReader, config: Config) -> dict[str, dict[str, Any]]:
    """Returns the configuration's fields as the sections of an equivalent TOML job."""
    job_sections: dict[str, dict[str, Any]] = {
        section_key: {} for section_key in READ_SECTIONS if section_key != "optimizer"
    }
    for config_key, config_value in config.items():
        section_name, _, field_name = config_key.partition(".")
        if (
            section_name not in READ_SECTIONS
            or not field_name
            or CALLED_NAME_KEY in field_name
            or config_key in IGNORED_KEYS
        ):
            continue
        if isinstance(config_value, UnknownValue):
            raise reader.argument_error(
                config_key, f"{config_value.text} is not read; expected {config_key}=… behind the configuration's name"
            )
        if section_name != "optimizer":
            job_sections[section_name][field_name] = config_value
    training_section = job_sections["training"]
    if "seq_len" not in training_section:
        training_section |= _batch_settings(reader, config, job_sections["parallelism"])
    job_sections["activation_checkpoint"] |= _checkpointing_mode(reader, config)
    optimizer_class = str(config.get(f"optimizer.{CALLED_NAME_KEY}", "default_adamw"))
    if optimizer_class not in ("default_adamw", "OptimizersContainer.Config"):
        reader.refuse("optimizer", f"{optimizer_class[:60]} is not read; default_adamw is")
    return job_sections


def _batch_settings(reader: LaunchReader, config: Mapping[str, Any], layout_section: dict[str, Any]) -> dict[str, Any]:
    """Returns the batch settings of jobs that state tokens per micro-batch and the longest context."""
    context_length = read_integer(
        reader, "training.max_context_length", config.get("training.max_context_length", ASSUMED_CONTEXT)
    )
    tokens_per_microbatch = read_integer(
        reader, TOKENS_PER_MICROBATCH_KEY, config.get(TOKENS_PER_MICROBATCH_KEY, ASSUMED_TOKENS)
    )
    if tokens_per_microbatch % context_length:
        raise reader.argument_error(
            TOKENS_PER_MICROBATCH_KEY,
            f"{tokens_per_microbatch}; expected a multiple of training.max_context_length {context_length}",
        )
    micro_batch_size = tokens_per_microbatch // context_length
    pipeline_microbatches = read_integer(
        reader, "parallelism.num_pp_microbatches", config.get("parallelism.num_pp_microbatches", 1)
    )
    if config.get("parallelism.pipeline_parallel_degree", 1) in (None, 1):
        pipeline_microbatches = 1
    else:
        layout_section["pipeline_parallel_microbatch_size"] = micro_batch_size
    return {"local_batch_size": micro_batch_size * pipeline_microbatches, "seq_len": context_length}


def _checkpointing_mode(reader: LaunchReader, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the activation checkpointing mode, from a class or, in early configurations, from a field."""
    called_class = str(config.get(f"activation_checkpoint.{CALLED_NAME_KEY}", ""))
    if called_class.startswith("ActivationCheckpointConfig"):
        return {}
    if "activation_checkpoint" in config and config["activation_checkpoint"] is None:
        return {"mode": "none"}
    checkpointing_mode = CHECKPOINTING_MODES.get(called_class.partition(".")[0])
    if checkpointing_mode is None:
        if called_class:
            raise reader.argument_error(
                "activation_checkpoint", f"{called_class[:60]} is not read; expected FullAC or SelectiveAC"
            )
        reader.assumed_defaults["activation_checkpoint"] = checkpointing_mode = "selective"
    return {"mode": checkpointing_mode, **({"selective_ac_option": "op"} if checkpointing_mode == "selective" else {})}
