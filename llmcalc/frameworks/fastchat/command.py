"""Reads commands of the training scripts of FastChat, of Qwen (finetune.py) and of Stanford Alpaca (train.py).

FastChat's are train.py, train_mem.py and train_lora.py; they and Qwen's are derived from Stanford Alpaca's.

Sources: fastchat/train/*.py of FastChat 0.2.36; finetune.py of QwenLM/Qwen; train.py of tatsu-lab/stanford_alpaca, with
FastChat's defaults. They are arguments of the Trainer with a length, `--model_max_length`, and adapters of their own
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...sources.huggingface.family import field_names
from ..launch.command_line import marked_model_name, parse_arguments, parsed_arguments
from ..launch.deepspeed_auto_values import AUTO_BUCKETS, AUTO_FORMATS
from ..launch.launch_types import CommandLine, Launch, LaunchReader, LaunchSource, Table, launch_reader
from ..launch.trainer import known_argument_names, launch_as_trainer
from ..launch.trainer_scripts import SCRIPT_SIGNS


class TrainingScript(NamedTuple):
    """A training script of FastChat or Qwen: the arguments that identify its command, and its defaults.

    rank: default rank of adapters.
    targets: default layers with adapters.
    trains_adapters_by_default: whether it trains adapters by default.
    uses_flash_attention: whether it puts flash attention into the model.
    weights: the number format in which it loads weights; empty for fp32.
    """

    rank: int
    targets: tuple[str, ...]
    trains_adapters_by_default: bool = False
    uses_flash_attention: bool = False
    weights: str = ""


LLAMA_LORA_TARGETS = ("q_proj", "v_proj")

TRAINING_SCRIPTS = {
    "train": TrainingScript(8, LLAMA_LORA_TARGETS),
    "train_mem": TrainingScript(8, LLAMA_LORA_TARGETS, uses_flash_attention=True),
    "train_lora": TrainingScript(8, LLAMA_LORA_TARGETS, trains_adapters_by_default=True),
    "finetune": TrainingScript(64, ("all-linear",), weights="bfloat16"),
}
"""Name of a script → its defaults. Qwen's default targets c_attn, c_proj, w1 and w2 are all linear layers of a layer;
its model converts itself to bf16.
"""

ARGUMENTS_READ = frozenset({"model_max_length", "use_lora", "q_lora", "lora_r", "lora_target_modules", "lora_dropout"})

ARGUMENTS_IGNORED = field_names("""
    data_path eval_data_path lazy_preprocess cache_dir lora_alpha lora_bias lora_weight_path padding_side
    conv_template deepspeed_port model_type fsdp_transformer_layer_cls_to_wrap
    """)

QWEN_CONFIGS: Mapping[str, Table] = {
    f"finetune/ds_config_zero{zero_stage}.json": {
        **AUTO_FORMATS,
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": zero_stage, "overlap_comm": True, "contiguous_gradients": True, **buckets},
        "gradient_accumulation_steps": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }
    for zero_stage, buckets in (
        (2, {"allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000}),
        (3, AUTO_BUCKETS),
    )
}
"""Path of a DeepSpeed config that comes with Qwen's finetune.py → its keys that affect memory."""

DEFAULT_LENGTHS = {"finetune": 8192}
"""Name of a script → default sequence length in tokens, for scripts whose default is not 512."""


def _script_name(command_line: CommandLine) -> str:
    return command_line.program.removesuffix(".py").rpartition(".")[2]


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts a training script of FastChat, Qwen or Stanford Alpaca."""
    known_arguments = {"--model_max_length", "--lazy_preprocess", "--use_lora", "--q_lora"}
    option_names = {command_word.partition("=")[0] for command_word in command_line.words}
    script_name = _script_name(command_line)
    if not SCRIPT_SIGNS.isdisjoint(option_name.removeprefix("--") for option_name in option_names):
        return False  # a script of another program, derived from these
    if not command_line.words or not command_line.words[0].startswith("--"):
        return False  # a script with a config file before its arguments
    is_alpaca_script = script_name == "train" and {"--data_path", "--model_name_or_path"} <= option_names
    return script_name in TRAINING_SCRIPTS and (is_alpaca_script or not known_arguments.isdisjoint(option_names))


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run that a script's command starts. Raises `InputError`, which names file and argument."""
    script_name = _script_name(command_line)
    with launch_reader(source_file) as reader:
        arguments = parse_arguments(command_line.words, source_file.name_in_errors)
        config = parsed_arguments(arguments, reader, ARGUMENTS_READ | (known_argument_names() - {"model_name_or_path"}))
        model_id = marked_model_name(arguments.get("--model_name_or_path"))
        return launch_as_trainer(reader, _trainer_arguments(reader, config, script_name, model_id), model_id)


def _trainer_arguments(reader: LaunchReader, config: dict[str, Any], script_name: str, model_id: str) -> dict[str, Any]:
    """Returns the Trainer's arguments for a script's arguments, with the script's own defaults filled in."""
    training_script = TRAINING_SCRIPTS[script_name]
    reader.ignored_arguments += [argument_name for argument_name in config if argument_name in ARGUMENTS_IGNORED]
    trainer_table = {
        script_argument: argument_value
        for script_argument, argument_value in config.items()
        if script_argument not in ARGUMENTS_IGNORED and script_argument not in ARGUMENTS_READ
    }
    trainer_table.pop("model_name_or_path", None)
    trainer_table["max_length"] = reader.integer(config, "model_max_length", DEFAULT_LENGTHS.get(script_name, 512))
    if (
        isinstance(trainer_table.get("deepspeed"), str)
        and trainer_table["deepspeed"].removeprefix("./") in QWEN_CONFIGS
    ):
        trainer_table["deepspeed"] = reader.tables_of_named_file(
            "deepspeed", trainer_table["deepspeed"], "a config of DeepSpeed", QWEN_CONFIGS
        )
    trainer_table["optim"] = reader.value(config, "optim", "adamw_torch")
    if training_script.uses_flash_attention:
        trainer_table["attn_implementation"] = "flash_attention_2"
    if training_script.weights:
        trainer_table["torch_dtype"] = training_script.weights
        reader.assumed_defaults["torch_dtype"] = training_script.weights
    is_quantized = reader.flag(config, "q_lora")
    if training_script.trains_adapters_by_default or reader.flag(config, "use_lora"):
        trainer_table |= {
            "use_peft": True,
            "lora_r": reader.integer(config, "lora_r", training_script.rank),
            "lora_target_modules": reader.value(config, "lora_target_modules", list(training_script.targets)),
            "lora_dropout": reader.value(config, "lora_dropout", "0.05"),
        }
        if script_name == "finetune" and not is_quantized and "chat" not in model_id.lower():
            trainer_table["lora_modules_to_save"] = ["embed_tokens", "lm_head"]
            reader.notes.append("a base model: the embedding and the head are trained beside the adapters")
        if is_quantized:
            trainer_table["load_in_4bit"] = True
            trainer_table["torch_dtype"] = "float16" if config.get("fp16") is True else "bfloat16"
            if script_name == "finetune":
                reader.notes.append("--q_lora: weights in GPTQ's 4 bits are counted as NF4, which differs in scales")
    return trainer_table
