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
from ..launch.python_source import UnknownValue, calls_in_order, constants_of_module, dotted, parse_python, value_of
from ..launch.record import Launch, LaunchSource, reading_of
from ..launch.trainer import read_trainer
from ..registry import WITHOUT_A_NAME
from .config_file import read_trl

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "SFTConfig": {},
    "DPOConfig": {"loss_type": "sigmoid"},
    "KTOConfig": {"loss_type": "kto"},
    "GRPOConfig": {"num_generations": 8},
    "TrainingArguments": {},
    "Seq2SeqTrainingArguments": {},
}
"""Configuration of a trainer → an argument by which the reader of recipes knows the trainer, with its default."""

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
    """Whether a Python file makes a trainer's configuration of TRL or transformers."""
    import_match = re.search(r"^\s*(from|import) (trl|transformers)\b", file_text, re.MULTILINE) is not None
    return import_match and re.search(rf"\b({'|'.join(CONFIGS)})\(", file_text) is not None


def read_python(file_text: str, source_file: LaunchSource) -> Launch:
    """Returns the training run of a script. Raises `InputError`, which names file and argument."""
    with reading_of(source_file) as reader:
        named_calls = list(_named_calls(parse_python(file_text, source_file.where)))
        kinds = dict.fromkeys(named_call.name for named_call in named_calls if named_call.name in CONFIGS)
        if not kinds:
            raise reader.wrong(
                "SFTConfig", f"no call of a trainer's configuration; expected one of {', '.join(CONFIGS)}"
            )
        kind = next(iter(kinds))
        if len(kinds) > 1:
            reader.notes.append(f"the file trains with {', '.join(kinds)}; the run of {kind} is counted")
        arguments = {**CONFIGS[kind], **_arguments_of(named_calls, kind), **_model_arguments(named_calls)}
        config = {name: argument for name, argument in arguments.items() if not isinstance(argument, UnknownValue)}
        computed_names = [name for name in arguments if name in DECIDING and name not in config]
        reader.unknown |= dict.fromkeys(computed_names, "is known only when the file runs")
        reader.check_unknown()
        reader.notes.append("what the file computes otherwise is taken as its program's default")
        reader_notes = tuple(reader.notes)
    launch = (read_trainer if kind.endswith("TrainingArguments") else read_trl)(config, source_file)
    is_published = config.get("dtype") == AUTO and launch.framework == WITHOUT_A_NAME
    return replace(
        launch, notes=(*launch.notes, *reader_notes), published_weights=is_published or launch.published_weights
    )


def _model_arguments(named_calls: list[NamedCall]) -> dict[str, Any]:
    """Returns the arguments of model, adapters and weights in few bits, under the names of TRL's `ModelConfig`."""
    load_call = next((named_call for named_call in named_calls if named_call.name == "from_pretrained"), None)
    trainer_arguments = next(
        (named_call.arguments for named_call in named_calls if named_call.name.endswith("Trainer")), {}
    )
    model = trainer_arguments.get("model") if load_call is None else load_call.first
    arguments: dict[str, Any] = {"model_name_or_path": model if isinstance(model, str) else ""}
    arguments |= {name: trainer_arguments[name] for name in TRAINER_LENGTHS if name in trainer_arguments}
    if load_call is not None:
        arguments |= {
            name: _format_name(load_call.arguments[name]) for name in MODEL_ARGUMENTS if name in load_call.arguments
        }
        if not {"dtype", "torch_dtype"} & {*arguments}:
            arguments["dtype"] = AUTO  # transformers 5, modeling_utils.py, `from_pretrained`
    for call_name, keywords in (("BitsAndBytesConfig", QUANTIZATION_ARGUMENTS), ("LoraConfig", ADAPTER_ARGUMENTS)):
        call_arguments = _arguments_of(named_calls, call_name)
        arguments |= {keywords[name]: call_arguments[name] for name in keywords if name in call_arguments}
    if any(named_call.name == "LoraConfig" for named_call in named_calls):
        arguments = {"lora_r": 8, **arguments}  # peft/tuners/lora/config.py
    return arguments


def _format_name(format_value: Any) -> Any:
    """Returns the name of a torch number format, such as `torch.bfloat16`; other values unchanged."""
    if isinstance(format_value, UnknownValue) and format_value.text.startswith("torch."):
        return format_value.text.removeprefix("torch.")
    return format_value


def _arguments_of(named_calls: list[NamedCall], call_name: str) -> Mapping[str, Any]:
    return next((named_call.arguments for named_call in named_calls if named_call.name == call_name), {})


def _named_calls(syntax_tree: ast.Module) -> Iterator[NamedCall]:
    """Yields every call of the file with its evaluated arguments, in line order."""
    variables = constants_of_module(syntax_tree)
    for node in calls_in_order(syntax_tree):
        call_name = dotted(node.func)
        if call_name.endswith("okenizer.from_pretrained") or "Processor" in call_name:
            continue
        arguments = {keyword.arg: value_of(keyword.value, variables) for keyword in node.keywords if keyword.arg}
        yield NamedCall(
            call_name.rpartition(".")[2], arguments, value_of(node.args[0], variables) if node.args else None
        )
