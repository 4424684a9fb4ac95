"""Reads commands of finetuning.py of Meta's llama-cookbook, earlier llama-recipes.

Source: meta-llama/llama-cookbook at 1a97f6f (2025): src/llama_cookbook/{finetuning,configs/training,configs/fsdp,
configs/peft,utils/fsdp_utils}.py. Weights have the checkpoint's 16 bits, under FSDP too, and so have gradients and
states; samples fill `context_length` tokens. llama_finetuning.py is the script of 2023 (facebookresearch/llama-recipes,
pull request 41), and `--quantization` without a value is an argument of the time before July 2024.
"""

from __future__ import annotations

from typing import Any

from ...sources.huggingface.family import field_names
from ..launch.command_line import marked_model_name, parse_arguments, parsed_arguments
from ..launch.launch_types import CommandLine, Launch, LaunchReader, LaunchSource, launch_reader
from ..launch.trainer import launch_as_trainer

SCRIPT_OF_2023 = "llama_finetuning.py"
"""Name of the script of 2023, used with transformers 4.31: its weights are float32 and its attention saves scores."""

PROGRAMS = ("finetuning.py", SCRIPT_OF_2023, "llama_recipes.finetuning", "llama_cookbook.finetuning")

SECTIONS = ("fsdp_config", "train_config", "lora_config", "quantization_config")
"""Names of argument classes, which may precede an argument's name (utils/config_utils.py, `update_config`)."""

ARGUMENTS_READ = field_names("""
    model_name enable_fsdp batch_size_training batching_strategy context_length gradient_accumulation_steps use_fp16
    peft_method use_peft quantization enable_activation_checkpointing fsdp_activation_checkpointing fsdp_cpu_offload
    pure_bf16 mixed_precision use_fast_kernels optimizer sharding_strategy hsdp r target_modules lora_dropout
    freeze_layers freeze_LLM_only
    """)

ARGUMENTS_IGNORED = field_names("""
    tokenizer_name low_cpu_fsdp run_validation gradient_clipping gradient_clipping_threshold num_epochs max_train_step
    max_eval_step num_workers_dataloader lr weight_decay gamma seed val_batch_size dataset
    from_peft_checkpoint output_dir num_freeze_layers one_gpu save_model dist_checkpoint_root_folder
    dist_checkpoint_folder save_optimizer use_wandb save_metrics flop_counter flop_counter_start
    use_profiler profiler_dir activation_checkpointing_use_reentrant enable_memory_monitoring
    memory_monitoring_interval checkpoint_type lora_alpha bias quant_type compute_dtype max_words data_path
    micro_batch_size sharding_group_size replica_group_size
    """)

QUANTIZED_WEIGHTS = {
    **dict.fromkeys(("4bit", "int4", "4"), "load_in_4bit"),
    **dict.fromkeys(("8bit", "int8", "8", "True", "true"), "load_in_8bit"),
}
"""Value of `--quantization` → the equivalent Trainer argument (configs/quantization.py)."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts the script: by its name and the argument of its model, `--model_name`."""
    option_names = {command_word.partition("=")[0] for command_word in command_line.words}
    script_name = command_line.program.rpartition("/")[2]
    return script_name in PROGRAMS and "--model_name" in option_names


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a command. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        arguments = parse_arguments(command_line.words, source_file.name_in_errors)
        config = {
            _name_without_section(argument_name): argument_value
            for argument_name, argument_value in parsed_arguments(
                arguments, reader, ARGUMENTS_READ - {"model_name"}
            ).items()
        }
        reader.record_argument_names(
            config, ARGUMENTS_READ, ARGUMENTS_IGNORED, "no argument that is known; a data set's own?"
        )
        reader.refuse_if_set(
            config,
            {
                "freeze_layers": "training of some layers is not modelled",
                "freeze_LLM_only": "training of some layers is not modelled",
                "hsdp": "groups of fewer devices than all are not modelled",
            },
        )
        is_of_2023 = command_line.program.rpartition("/")[2] == SCRIPT_OF_2023
        trainer_table = {
            "per_device_train_batch_size": reader.integer(config, "batch_size_training", 4),
            "gradient_accumulation_steps": reader.integer(config, "gradient_accumulation_steps", 1),
            "max_length": reader.integer(config, "context_length", 2048 if is_of_2023 else 4096),
            "packing": str(reader.value(config, "batching_strategy", "packing")) == "packing",
            "torch_dtype": "float16" if reader.flag(config, "use_fp16") else "bfloat16",
            "optim": "adamw_torch",
        }
        if is_of_2023:
            trainer_table |= _arguments_of_2023(reader, config)
        return launch_as_trainer(
            reader,
            trainer_table | _fsdp_arguments(reader, config) | _adapter_arguments(reader, config),
            marked_model_name(arguments.get("--model_name")),
        )


def _name_without_section(dotted_name: str) -> str:
    section_name, _, argument_name = dotted_name.partition(".")
    return argument_name if section_name in SECTIONS else dotted_name


def _arguments_of_2023(reader: LaunchReader, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the Trainer's arguments for attention and number formats that the script of 2023 implies."""
    reader.notes.append(f"{SCRIPT_OF_2023}: attention and weights of transformers 4.31 are counted")
    number_formats: dict[str, Any] = {} if reader.flag(config, "pure_bf16") else {"torch_dtype": "float32"}
    if number_formats and reader.flag(config, "mixed_precision", True) and reader.flag(config, "enable_fsdp"):
        number_formats["bf16"] = True
    return {"attn_implementation": "sdpa" if reader.flag(config, "use_fast_kernels") else "eager", **number_formats}


def _adapter_arguments(reader: LaunchReader, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the Trainer's arguments for adapters and quantized weights."""
    trainer_table: dict[str, Any] = {}
    quantization = config.get("quantization")
    if quantization not in (None, False, "None"):
        if str(quantization) not in QUANTIZED_WEIGHTS:
            raise reader.value_error("quantization", quantization, "4bit or 8bit")
        trainer_table[QUANTIZED_WEIGHTS[str(quantization)]] = True
    if quantization is True:  # `prepare_model_for_int8_training`
        trainer_table |= {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": True},
            "torch_dtype": "float32",
        }
    if not reader.flag(config, "use_peft"):
        return trainer_table
    if str(reader.value(config, "peft_method", "lora")) != "lora":
        raise reader.value_error("peft_method", config["peft_method"], "lora")
    return trainer_table | {
        "use_peft": True,
        "lora_r": reader.integer(config, "r", 8),
        "lora_target_modules": reader.value(config, "target_modules", ["q_proj", "v_proj"]),
        "lora_dropout": reader.value(config, "lora_dropout", "0.05"),
    }


def _fsdp_arguments(reader: LaunchReader, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the Trainer's arguments for FSDP and checkpointing; with FSDP alone, checkpointing is the default."""
    if not reader.flag(config, "enable_fsdp"):
        return {"gradient_checkpointing": reader.flag(config, "enable_activation_checkpointing")}
    if str(config.get("optimizer", "AdamW")).lower() != "adamw":
        reader.notes.append("optimizer: anyprecision has as many states as AdamW in bfloat16, which is counted")
    return {
        "gradient_checkpointing": reader.flag(config, "fsdp_activation_checkpointing", True),
        "fsdp": str(reader.value(config, "sharding_strategy", "full_shard")).rpartition(".")[2].lower(),
        "fsdp_config": {"version": 1, "offload_params": reader.flag(config, "fsdp_cpu_offload")},
    }
