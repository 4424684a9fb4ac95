"""Reads Python scripts that train with TRL or the Trainer of transformers from the syntax tree, without running them.

The arguments of the calls of `from_pretrained`, `BitsAndBytesConfig`, `LoraConfig`, of the trainer and of its
configuration become those of a TRL recipe, or of the Trainer (TRL 1.10, trainer/{sft,dpo,kto,grpo}_trainer.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ...sources.huggingface.family import field_names
from ..launch.python_source import (
    UnknownValue,
    calls_in_order,
    constants,
    dotted_name_of,
    parse_python,
    statements_of_module,
    value_of,
)
from ..launch.record import Launch, LaunchReader, LaunchSource, reading_of
from ..launch.script_arguments import ScriptArguments, arguments_of_file
from ..launch.trainer import read_trainer
from ..registry import WITHOUT_A_NAME
from .commands import COMMANDS
from .config_file import read_trl

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    **{f"{command.removeprefix('trl ').upper()}Config": arguments for command, arguments in COMMANDS.items()},
    "TrainingArguments": {},
    "Seq2SeqTrainingArguments": {},
}
"""Configuration of a trainer → an argument by which the reader of recipes knows the trainer, with its default."""

TRAINERS: Mapping[str, str] = {
    "SFTTrainer": "SFTConfig",
    "DPOTrainer": "DPOConfig",
    "KTOTrainer": "KTOConfig",
    "GRPOTrainer": "GRPOConfig",
}
"""Trainer of TRL → its configuration, whose defaults it fills in (trainer/sft_trainer.py)."""

PLAIN_DEFAULTS: Mapping[str, Any] = {"gradient_checkpointing": False, "bf16": False}
"""Defaults of `TrainingArguments` that a configuration of TRL has otherwise."""

ADAPTER_ARGUMENTS: Mapping[str, str] = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "lora_dropout": "lora_dropout",
    "use_dora": "use_dora",
}
"""Argument of PEFT's `LoraConfig` → TRL's."""

QUANTIZATION_ARGUMENTS: Mapping[str, str] = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
"""Argument of `BitsAndBytesConfig` → TRL's."""

AUTO = "auto"
"""The number format of the checkpoint."""

TRAINER_LENGTHS = ("max_seq_length", "max_length", "max_prompt_length")
"""Arguments of a trainer itself, before TRL 0.13."""

MODEL_ARGUMENTS = ("torch_dtype", "dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")

DECIDING = field_names("""
    per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing optim max_length max_seq_length
    max_prompt_length max_completion_length num_generations lora_r lora_target_modules lora_modules_to_save load_in_4bit
    load_in_8bit use_liger_kernel loss_type bf16 fp16 deepspeed fsdp torch_dtype dtype use_vllm
    """)
"""Arguments that decide the memory, and so have no default where the file computes them."""


class NamedCall(NamedTuple):
    """A call in the file. name: the last component of the function's name. arguments: keyword → value.

    first: the first positional argument; None without one.
    """

    name: str
    arguments: Mapping[str, Any]
    first: Any


def is_python(file_text: str) -> bool:
    """Whether a Python file creates the training configuration of TRL or transformers."""
    has_import = re.search(r"^\s*(from|import) (trl|transformers)\b", file_text, re.MULTILINE) is not None
    return has_import and re.search(rf"\b({'|'.join(CONFIGS)})\(", file_text) is not None


def read_python(file_text: str, source_file: LaunchSource) -> Launch:
    """Returns the training run of a script. Raises `InputError`, which names file and argument."""
    with reading_of(source_file) as reader:
        syntax_tree = parse_python(file_text, source_file.where)
        script_arguments = arguments_of_file(syntax_tree, source_file.arguments)
        _refuse_undeclared(reader, script_arguments)
        named_calls = list(_named_calls(syntax_tree, script_arguments.variables))
        config_classes = dict.fromkeys(call.name for call in named_calls if call.name in CONFIGS)
        if not config_classes:
            raise reader.wrong(
                "SFTConfig", f"no call of a trainer's configuration; expected one of {', '.join(CONFIGS)}"
            )
        config_class = next(iter(config_classes))
        if len(config_classes) > 1:
            reader.notes.append(
                f"the file trains with {', '.join(config_classes)}; the run of {config_class} is counted"
            )
        trl_config = next((TRAINERS[call.name] for call in named_calls if call.name in TRAINERS), "")
        is_trl_run = bool(trl_config) or not config_class.endswith("TrainingArguments")
        base_config = (
            {**PLAIN_DEFAULTS, **CONFIGS[trl_config]}
            if trl_config and config_class != trl_config
            else CONFIGS[config_class]
        )
        config = {**base_config, **_arguments_of(named_calls, config_class), **_model_arguments(named_calls)}
        config |= _arguments_of_model_calls(named_calls)
        if not is_trl_run:
            config |= _length_of_samples(reader, named_calls)
        unknown_arguments = {
            argument_name: value for argument_name, value in config.items() if isinstance(value, UnknownValue)
        }
        config = {
            argument_name: value for argument_name, value in config.items() if argument_name not in unknown_arguments
        }
        reader.unknown |= {
            argument_name: _unknown_reason(argument, script_arguments, source_file.where)
            for argument_name, argument in unknown_arguments.items()
            if argument_name in DECIDING
        }
        reader.check_unknown()
        if script_arguments.values_used:
            reader.notes.append(f"arguments of the file: {script_arguments.values_used}")
        reader.notes.append("what the file computes otherwise is taken as its program's default")
        notes = tuple(reader.notes)
    launch = (read_trl if is_trl_run else read_trainer)(config, source_file)
    is_published = config.get("dtype") == AUTO and launch.framework == WITHOUT_A_NAME
    return replace(launch, notes=(*launch.notes, *notes), published_weights=is_published or launch.published_weights)


def _length_of_samples(reader: LaunchReader, named_calls: list[NamedCall]) -> dict[str, Any]:
    """Returns the length at which the file's tokenizer cuts samples; empty where no call cuts them."""
    sample_lengths = [
        call.arguments.get("max_length") for call in named_calls if call.arguments.get("truncation") is True
    ]
    known_lengths = [sample_length for sample_length in sample_lengths if type(sample_length) is int]
    if not known_lengths:
        return {}
    reader.notes.append(f"samples are counted at the {max(known_lengths):,} tokens at which the tokenizer cuts them")
    return {"max_length": max(known_lengths)}


def _refuse_undeclared(reader: LaunchReader, script_arguments: ScriptArguments) -> None:
    """Raises `InputError` for a typed argument that the Python file does not declare."""
    if script_arguments.undeclared:
        declared_options = ", ".join(f"--{option_name}" for option_name in [*script_arguments.defaults][:6]) or "none"
        raise reader.wrong(
            script_arguments.undeclared, f"no argument that the file declares; it declares {declared_options}"
        )


def _unknown_reason(argument: UnknownValue, script_arguments: ScriptArguments, typed_path: str) -> str:
    """Returns why an argument of a call is unknown: the file computes it, or takes it from the command line."""
    holder_name, _, name = argument.text.partition(".")
    if holder_name and script_arguments.defaults.get(name, "") is None:
        return f"is the file's argument {name}, without a default; expected --launch '{typed_path} --{name} …'"
    return "is known only when the file runs"


def _model_arguments(named_calls: list[NamedCall]) -> dict[str, Any]:
    """Returns the arguments of the model, adapters and quantized weights, with the names in TRL's `ModelConfig`."""
    loading_call = next((call for call in named_calls if call.name == "from_pretrained"), None)
    trainer_arguments = next((call.arguments for call in named_calls if call.name.endswith("Trainer")), {})
    model = trainer_arguments.get("model") if loading_call is None else loading_call.first
    arguments: dict[str, Any] = {"model_name_or_path": model if isinstance(model, str) else ""}
    arguments |= {
        argument: trainer_arguments[argument] for argument in TRAINER_LENGTHS if argument in trainer_arguments
    }
    if loading_call is not None:
        arguments |= {
            argument: _format_name(loading_call.arguments[argument])
            for argument in MODEL_ARGUMENTS
            if argument in loading_call.arguments
        }
        if not {"dtype", "torch_dtype"} & {*arguments}:
            arguments["dtype"] = AUTO  # transformers 5, modeling_utils.py, `from_pretrained`
    for call_name, argument_names in (
        ("BitsAndBytesConfig", QUANTIZATION_ARGUMENTS),
        ("LoraConfig", ADAPTER_ARGUMENTS),
    ):
        call_arguments = _arguments_of(named_calls, call_name)
        arguments |= {
            argument_names[argument]: call_arguments[argument]
            for argument in argument_names
            if argument in call_arguments
        }
    if any(call.name == "LoraConfig" for call in named_calls):
        arguments = {"lora_r": 8, **arguments}  # peft/tuners/lora/config.py
    return arguments


def _arguments_of_model_calls(named_calls: list[NamedCall]) -> dict[str, Any]:
    """Returns the arguments equivalent to calls on the loaded model: activation checkpointing, and fp32 weights.

    `prepare_model_for_kbit_training` copies to fp32 what is not quantized, and turns checkpoints on unless its argument
    says otherwise (peft/utils/other.py). The Trainer turns checkpoints on, and never off.
    """
    arguments: dict[str, Any] = {}
    has_checkpointing = any(call.name == "gradient_checkpointing_enable" for call in named_calls)
    preparation_arguments = next(
        (call.arguments for call in named_calls if call.name == "prepare_model_for_kbit_training"), None
    )
    if preparation_arguments is not None:
        arguments |= {"dtype": "float32", "torch_dtype": None}
        has_checkpointing = has_checkpointing or preparation_arguments.get("use_gradient_checkpointing", True) is True
    return {**arguments, "gradient_checkpointing": True} if has_checkpointing else arguments


def _format_name(argument: Any) -> Any:
    """Returns the name of a torch number format (`torch.bfloat16`); other arguments unchanged."""
    if isinstance(argument, UnknownValue) and argument.text.startswith("torch."):
        return argument.text.removeprefix("torch.")
    return argument


def _arguments_of(named_calls: list[NamedCall], call_name: str) -> Mapping[str, Any]:
    return next((call.arguments for call in named_calls if call.name == call_name), {})


def _named_calls(syntax_tree: ast.Module, file_variables: Mapping[str, Any]) -> Iterator[NamedCall]:
    """Yields every call of the file with its evaluated arguments, in line order.

    file_variables: dotted name → value of the arguments that the file takes.
    """
    statements = statements_of_module(syntax_tree)
    assignments = [statement for statement in statements if isinstance(statement, ast.Assign | ast.AnnAssign)]
    variables = {**file_variables, **constants(statements)}  # of a name that is assigned below its use, the last value
    later_assignments = sorted(assignments, key=lambda assignment: -assignment.lineno)
    for node in calls_in_order(syntax_tree):
        call_name = dotted_name_of(node.func)
        if call_name.endswith("okenizer.from_pretrained") or "Processor" in call_name:
            continue
        while later_assignments and later_assignments[-1].lineno < node.lineno:
            variables |= _assigned_value(later_assignments.pop(), variables)
        arguments = {keyword.arg: value_of(keyword.value, variables) for keyword in node.keywords if keyword.arg}
        yield NamedCall(
            call_name.rpartition(".")[2], arguments, value_of(node.args[0], variables) if node.args else None
        )


def _assigned_value(assignment: ast.Assign | ast.AnnAssign, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variable that a plain assignment sets, with its value; empty for any other assignment."""
    target_node = assignment.targets[0] if isinstance(assignment, ast.Assign) else assignment.target
    if not isinstance(target_node, ast.Name) or assignment.value is None:
        return {}
    return {target_node.id: value_of(assignment.value, variables)}
