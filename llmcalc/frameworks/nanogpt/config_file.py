"""Reads nanoGPT's configurations, which are Python files of plain assignments, and commands that start train.py.

Source: karpathy/nanoGPT at 3adf61e: train.py for defaults and the order configuration file, then `--key=value`;
model.py for the model.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...model import ModelSpec
from ...parallel.layout import Layout
from ...sources.files import validate
from ...sources.huggingface.description import read_description
from ..launch.launch_types import (
    CommandLine,
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    launch_reader,
    read_integer,
)
from ..launch.python_source import UnknownValue, module_constants, parse_python
from ..launch.unresolved import is_unresolved, unresolved_reason

ARGUMENT_DEFAULTS: dict[str, Any] = {
    "init_from": "scratch",
    "gradient_accumulation_steps": 40,
    "batch_size": 12,
    "block_size": 1024,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "dropout": 0.0,
    "bias": False,
    "dtype": "bfloat16",
    "compile": True,
    "dataset": "openwebtext",
}
"""Configuration key that affects memory → default value in train.py."""

GPT2_SIZES: dict[str, tuple[int, int, int]] = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}
"""Value of `init_from` → number of layers, number of heads and hidden size of OpenAI's checkpoint."""

VOCABULARY_BY_DATASET = {"shakespeare_char": 65}
"""Data set with a vocabulary of its own → vocabulary size. All other data sets have GPT-2's, padded to 50,304."""

PADDED_VOCABULARY, EXACT_VOCABULARY = 50_304, 50_257
"""Vocabulary sizes of a model trained from scratch, and of OpenAI's checkpoints."""

IDENTIFYING_ASSIGNMENTS = (
    r"^(wandb_log|wandb_run_name|init_from|block_size|out_dir|always_save_checkpoint|eval_interval|n_layer)\s*="
)


def is_python(file_text: str) -> bool:
    """Whether a Python file is train.py or one of its configurations."""
    if "from model import GPTConfig" in file_text and "configurator.py" in file_text:
        return True
    variable_names = set(re.findall(IDENTIFYING_ASSIGNMENTS, file_text, re.MULTILINE))
    return len(variable_names) > 1 and re.search(r"^[ \t]*(def|class|from) ", file_text, re.MULTILINE) is None


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts train.py with a Python configuration or with configuration keys."""
    typed_keys = [
        key_match[1] for argument_word in command_line.words if (key_match := re.match(r"--(\w+)=", argument_word))
    ]
    has_config = any(command_word.endswith(".py") for command_word in command_line.words[:1])
    has_known_keys = any(
        key_name in ("block_size", "n_layer", "n_embd", "init_from", "max_iters") for key_name in typed_keys
    )
    return (
        command_line.program == "train.py"
        and (has_config or has_known_keys)
        and all("=" in command_word for command_word in command_line.words[1:])
    )


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a nanoGPT command. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        return _launch_of_values(reader, _value_by_key(reader, {}, command_line.words))


def read_python(file_text: str, source_file: LaunchSource) -> Launch:
    """Returns the training run of a nanoGPT configuration.

    The arguments of `source_file` are further configurations and `--key=value`.
    """
    with launch_reader(source_file) as reader:
        variables = module_constants(parse_python(file_text, source_file.name_in_errors).body)
        if source_file.name_in_errors.endswith("train.py"):
            variables.pop("dtype", None)  # chosen by the device
        return _launch_of_values(reader, _value_by_key(reader, variables, source_file.arguments))


def _value_by_key(
    reader: LaunchReader, values_of_file: Mapping[str, Any], command_words: Sequence[str]
) -> dict[str, Any]:
    """Returns key → value of a training run, from the file, the command's configuration files, and `--key=value`."""
    values_by_key = dict(values_of_file)
    for command_word in command_words:
        key_match = re.fullmatch(r"--(\w{1,60})=(.*)", command_word, re.DOTALL)
        if is_unresolved(command_word) and (key_match is None or key_match[1] in ARGUMENT_DEFAULTS):
            raise reader.argument_error("train.py", unresolved_reason(command_word))
        if key_match is not None:
            try:
                values_by_key[key_match[1]] = ast.literal_eval(key_match[2][:200])
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                values_by_key[key_match[1]] = key_match[2]
        elif command_word.endswith(".py") and reader.source.read_text is not None:
            file_path, file_text = reader.source.read_text(command_word)
            values_by_key |= module_constants(parse_python(file_text, file_path).body)
        else:
            raise reader.value_error("train.py", command_word, "a configuration, or --key=value")
    return values_by_key


def _launch_of_values(reader: LaunchReader, file_values: Mapping[str, Any]) -> Launch:
    """Returns the training run of a configuration's values, completed by train.py's defaults."""
    known_values = {
        key_name: known_value for key_name, known_value in file_values.items() if key_name in ARGUMENT_DEFAULTS
    }
    for argument_name, known_value in known_values.items():
        if isinstance(known_value, UnknownValue):
            raise reader.argument_error(
                argument_name, "an expression is not computed; expected a number, a text or True or False"
            )
    reader.ignored_arguments += [ignored_name for ignored_name in file_values if ignored_name not in ARGUMENT_DEFAULTS]
    run_values = {
        argument_key: reader.value(known_values, argument_key, default_value)
        for argument_key, default_value in ARGUMENT_DEFAULTS.items()
    }
    world_size = reader.device_count(reader.source.world_size)
    accumulation_steps = read_integer(reader, "gradient_accumulation_steps", run_values["gradient_accumulation_steps"])
    if accumulation_steps % world_size:
        raise reader.argument_error(
            "gradient_accumulation_steps",
            f"{accumulation_steps}; train.py divides it by {world_size} devices; expected a multiple",
        )
    format_settings: dict[str, dict[str, Any]] = {
        "bfloat16": {"precision": "autocast"},
        "float16": {"precision": "autocast"},
        "float32": {"precision": "fp32"},
    }
    if run_values["dtype"] not in format_settings:
        raise reader.value_error("dtype", run_values["dtype"], "bfloat16, float16 or float32")
    reader.calls_torch_attention = True
    settings: dict[str, Any] = {
        "phase": "training",
        "batch": read_integer(reader, "batch_size", run_values["batch_size"]),
        "seq": read_integer(reader, "block_size", run_values["block_size"]),
        "num_microbatches": accumulation_steps // world_size,
        "optimizer": "adamw",
        "optimizer_impl": "fused",
        "attn_implementation": "flash",
        **format_settings[run_values["dtype"]],
    }
    if run_values["compile"] is True:
        settings["compile"] = True
    spec = _model_spec(reader, run_values)
    return reader.create_launch("torch", LaunchSettings(Layout(dp=world_size), settings), spec=spec)


def _model_spec(reader: LaunchReader, run_values: Mapping[str, Any]) -> ModelSpec:
    """Returns nanoGPT's model: GPT-2 with or without biases, with a head tied to the embedding."""
    initial_weights = str(run_values["init_from"])
    if initial_weights == "resume":
        raise reader.argument_error("init_from", "'resume' takes the model of a checkpoint; expected scratch or gpt2")
    if initial_weights != "scratch" and initial_weights not in GPT2_SIZES:
        raise reader.value_error("init_from", initial_weights, f"scratch or one of {', '.join(GPT2_SIZES)}")
    if initial_weights in GPT2_SIZES:
        layer_count, head_count, hidden_size = GPT2_SIZES[initial_weights]
        has_bias, vocabulary_size = True, EXACT_VOCABULARY
    else:
        layer_count, head_count, hidden_size = (
            read_integer(reader, key_name, run_values[key_name]) for key_name in ("n_layer", "n_head", "n_embd")
        )
        has_bias, vocabulary_size = (
            run_values["bias"] is True,
            VOCABULARY_BY_DATASET.get(str(run_values["dataset"]), PADDED_VOCABULARY),
        )
    config = {
        "model_type": "nanogpt",
        "n_layer": layer_count,
        "n_head": head_count,
        "n_embd": hidden_size,
        "bias": has_bias,
    }
    config |= {"vocab_size": vocabulary_size, "block_size": run_values["block_size"], "dropout": run_values["dropout"]}
    return validate(ModelSpec, read_description(config).model, reader.name_in_errors)
