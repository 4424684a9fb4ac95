"""Translates the arguments of known training scripts (QLoRA, LLaVA, Firefly, …) to arguments of the Trainer.

Sources: examples/sft/{train,utils}.py of PEFT (2026-08), examples/huggingface/training.py of Liger-Kernel
(2026-08), qlora.py of artidoro/qlora, lmflow/args.py of LMFlow (2026-08), llava/train/train.py of LLaVA 1.5,
qwenvl/train/{train_qwen,argument}.py of Qwen's VL models, train.py and component/argument.py of Firefly, and
finetune.py of alpaca-lora (8bb8579).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import short_repr
from ...sources.huggingface.family import field_names
from .launch_types import LaunchReader, Table

ALL_LINEAR = "all-linear"

TRUE_VALUES = (True, 1, "1")


@dataclass(frozen=True)
class TrainerScript:
    """A known training script with arguments besides the Trainer's.

    title: the script's name in notes.
    distinctive_arguments: arguments of which the others have none; one of them is enough to recognize the script.
    absent_arguments: arguments that the script has not, where the signs are another program's too; empty by default.
    translated_arguments: the arguments that `translate` reads.
    ignored_arguments: arguments that change no memory of a step.
    refusal_reasons: argument → what is not modelled where it is true.
    translate: returns the Trainer's arguments that stand for the script's own and for its defaults.
    note: a remark on what is not counted; empty for none.
    """

    title: str
    distinctive_arguments: frozenset[str]
    translated_arguments: frozenset[str]
    ignored_arguments: frozenset[str]
    translate: Callable[[LaunchReader, Table], dict[str, Any]]
    refusal_reasons: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    absent_arguments: frozenset[str] = frozenset()

    def runs(self, config: Table) -> bool:
        """Whether a command's arguments are those of this script."""
        return bool(self.distinctive_arguments & config.keys()) and not self.absent_arguments & config.keys()


def without_script_arguments(reader: LaunchReader, config: Table) -> Table:
    """Returns the equivalent Trainer arguments of a known script's arguments; other arguments unchanged."""
    training_script = next((script for script in TRAINER_SCRIPTS if script.runs(config)), None)
    if training_script is None:
        return config
    for argument_name, refusal_reason in training_script.refusal_reasons.items():
        if config.get(argument_name) in TRUE_VALUES:
            reader.refuse(argument_name, f"{refusal_reason} not modelled")
    trainer_arguments = training_script.translate(reader, config)
    listed_names = config.keys() | reader.assumed_defaults.keys()
    reader.assumed_defaults |= {
        trainer_argument: argument_value
        for trainer_argument, argument_value in trainer_arguments.items()
        if trainer_argument in LISTED_DEFAULTS
        and not {trainer_argument, OTHER_ARGUMENT_NAMES.get(trainer_argument, trainer_argument)} & listed_names
    }
    script_argument_names = (
        training_script.translated_arguments
        | training_script.ignored_arguments
        | training_script.refusal_reasons.keys()
    )
    reader.ignored_arguments += sorted(training_script.ignored_arguments & config.keys())
    reader.notes += [f"{training_script.title}: its own arguments are read as those of the Trainer"]
    reader.notes += [training_script.note] * bool(training_script.note)
    other_arguments = {
        key: argument_value for key, argument_value in config.items() if key not in script_argument_names
    }
    return {**other_arguments, **trainer_arguments}


LISTED_DEFAULTS = (
    "optim",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
    "lora_r",
    "dtype",
)
"""Trainer arguments that are listed as assumed if their value is a script's default."""

OTHER_ARGUMENT_NAMES = {"lora_r": "lora_rank", "max_length": "max_seq_length", "dtype": "torch_dtype"}
"""Trainer argument → its alternative name in some scripts."""


def _adapter_arguments(reader: LaunchReader, config: Table, rank: int, targets: Any, dropout: str) -> dict[str, Any]:
    """Returns the arguments of LoRA adapters. rank, targets, dropout: the script's defaults."""
    return {
        "use_peft": True,
        "lora_r": reader.integer(config, "lora_r", rank),
        "lora_target_modules": reader.value(config, "lora_target_modules", targets),
        "lora_dropout": reader.value(config, "lora_dropout", dropout),
    }


def _quantization_arguments(
    reader: LaunchReader, bit_count: Any, is_nested: bool, argument_name: str = "bits"
) -> dict[str, Any]:
    """Returns the Trainer arguments of weights that bitsandbytes quantizes. is_nested: whether scales are quantized."""
    if bit_count not in (4, 8, 16, 32):
        raise reader.value_error(argument_name, bit_count, "4, 8 or 16")
    return {4: {"load_in_4bit": True, "use_bnb_nested_quant": is_nested}, 8: {"load_in_8bit": True}}.get(bit_count, {})


def _loaded_weight_format(config: Table) -> str:
    """Returns the format in which weights are loaded: bf16 for products in bf16, otherwise float32."""
    return "bfloat16" if config.get("bf16") in TRUE_VALUES else "float32"


def _flash_attention_argument(is_flash: bool) -> dict[str, Any]:
    return {"attn_implementation": "flash_attention_2"} if is_flash else {}


def _arguments_of_peft(reader: LaunchReader, config: Table) -> dict[str, Any]:
    storage_format = str(config.get("bnb_4bit_quant_storage_dtype", "uint8"))
    is_4_bit = reader.flag(config, "use_4bit_quantization")
    arguments: dict[str, Any] = {
        "dtype": storage_format if is_4_bit and storage_format in ("bfloat16", "float16") else "float32",
        **_flash_attention_argument(reader.flag(config, "use_flash_attn")),
    }
    if reader.flag(config, "gradient_checkpointing", True):
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": reader.flag(config, "use_reentrant")}
    if reader.flag(config, "use_peft_lora"):
        target_modules_text = "q_proj,k_proj,v_proj,o_proj,down_proj,up_proj,gate_proj"
        arguments |= _adapter_arguments(reader, config, 64, target_modules_text, "0.1")
    bit_count = 4 if is_4_bit else 8 if reader.flag(config, "use_8bit_quantization") else 16
    return arguments | _quantization_arguments(reader, bit_count, reader.flag(config, "use_nested_quant"))


def _arguments_of_liger(reader: LaunchReader, config: Table) -> dict[str, Any]:
    return {
        "model_name_or_path": reader.value(config, "model_name", "meta-llama/Meta-Llama-3-8B"),
        "dtype": "bfloat16",
        "max_length": reader.integer(config, "max_seq_length", 512),
        "use_liger_kernel": reader.flag(config, "use_liger"),
    }


def _arguments_of_qlora(reader: LaunchReader, config: Table) -> dict[str, Any]:
    sequence_length = reader.integer(config, "source_max_len", 1024) + reader.integer(config, "target_max_len", 256)
    arguments: dict[str, Any] = {
        "max_length": sequence_length,
        "optim": config.get("optim", "paged_adamw_32bit"),
        "per_device_train_batch_size": reader.integer(config, "per_device_train_batch_size", 1),
        "gradient_accumulation_steps": reader.integer(config, "gradient_accumulation_steps", 16),
        "gradient_checkpointing": reader.flag(config, "gradient_checkpointing", True),
        "dtype": _loaded_weight_format(config),
        **_quantization_arguments(reader, config.get("bits", 4), reader.flag(config, "double_quant", True)),
    }
    if not reader.flag(config, "full_finetune"):
        arguments |= _adapter_arguments(reader, config, 64, ALL_LINEAR, "0")
    return arguments


def _arguments_of_chinese_alpaca(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the equivalent Trainer arguments. Source: ymcui/Chinese-LLaMA-Alpaca-3 at 58a4b6c, scripts/training.

    Beside 4 and 8 bits `prepare_model_for_kbit_training` copies the other weights to float32; without `torch_dtype` the
    script's transformers 4 loads them so. Both scripts cut samples to 1,024 tokens by default.
    """
    bit_count = reader.integer(config, "load_in_kbits", 16)
    is_nested = bit_count == 4 and reader.flag(config, "double_quant", True)
    arguments = {
        **_flash_attention_argument(reader.flag(config, "use_flash_attention_2")),
        **_quantization_arguments(reader, bit_count, is_nested, "load_in_kbits"),
        "dtype": "float32" if bit_count < 16 else config.get("torch_dtype") or "float32",
        "max_length": reader.integer(config, "block_size" if "block_size" in config else "max_seq_length", 1024),
    }
    if reader.flag(config, "full_finetuning"):
        return arguments
    adapter_config = {**config, "lora_r": config.get("lora_rank"), "lora_target_modules": config.get("trainable")}
    arguments |= _adapter_arguments(reader, adapter_config, 8, "q_proj,v_proj", "0.1")
    if config.get("modules_to_save") is not None:
        arguments["lora_modules_to_save"] = str(config["modules_to_save"]).split(",")
    return arguments


def _arguments_of_lmflow(reader: LaunchReader, config: Table) -> dict[str, Any]:
    arguments = _flash_attention_argument(reader.flag(config, "use_flash_attention"))
    is_quantized = reader.flag(config, "use_qlora")
    if is_quantized or reader.flag(config, "use_lora"):
        arguments |= _adapter_arguments(reader, config, 8, None, "0.1")
    if is_quantized:
        arguments |= _quantization_arguments(
            reader, config.get("quant_bit", 4), reader.flag(config, "double_quant", True), "quant_bit"
        )
    return arguments


def _multimodal_defaults(reader: LaunchReader, config: Table, is_flash: bool) -> dict[str, Any]:
    """Returns the Trainer arguments that are implied by the multimodal scripts of LLaVA and its forks."""
    return {
        "max_length": reader.integer(config, "model_max_length", 512),
        "optim": config.get("optim", "adamw_torch"),
        "dtype": _loaded_weight_format(config),
        **_flash_attention_argument(is_flash),
    }


def _arguments_of_llava(reader: LaunchReader, config: Table) -> dict[str, Any]:
    if config.get("mm_tunable_parts") is not None and "mm_vision_tower" in str(config["mm_tunable_parts"]):
        reader.refuse("mm_tunable_parts", "training of the encoder is not modelled")
    arguments = _multimodal_defaults(reader, config, reader.source.script_name.endswith(("train_mem.py", "train_mem")))
    if reader.flag(config, "lora_enable"):
        arguments |= _adapter_arguments(reader, config, 64, ALL_LINEAR, "0.05")
    return arguments | _quantization_arguments(
        reader, config.get("bits", 16), reader.flag(config, "double_quant", True)
    )


def _arguments_of_qwen_vl(reader: LaunchReader, config: Table) -> dict[str, Any]:
    arguments = _multimodal_defaults(reader, config, is_flash=True)
    if reader.flag(config, "lora_enable"):
        return arguments | _adapter_arguments(reader, config, 64, ["q_proj", "k_proj", "v_proj", "o_proj"], "0.05")
    if not reader.flag(config, "tune_mm_llm"):
        reader.refuse("tune_mm_llm", "a frozen language model, its default, is not modelled")
    return arguments


def _arguments_of_firefly(reader: LaunchReader, config: Table) -> dict[str, Any]:
    train_mode, task_type = str(config.get("train_mode", "qlora")), str(config.get("task_type", "sft"))
    if train_mode not in ("full", "lora", "qlora"):
        raise reader.value_error("train_mode", train_mode, "full, lora or qlora")
    if task_type not in ("sft", "pretrain"):
        reader.refuse("task_type", f"{short_repr(task_type)} is not modelled; sft and pretrain are")
    arguments: dict[str, Any] = {"dtype": "float16" if config.get("fp16") in TRUE_VALUES else "bfloat16"}
    if train_mode == "full":
        return arguments
    arguments |= _adapter_arguments(reader, {**config, "lora_r": config.get("lora_rank")}, 64, ALL_LINEAR, "0.05")
    return arguments | _quantization_arguments(reader, 4 if train_mode == "qlora" else 16, is_nested=True)


ALPACA_LORA_SIGNS = frozenset({"base_model", "data_path"})
"""Arguments by which alpaca-lora's commands are recognized."""


def _arguments_of_alpaca_lora(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the equivalent Trainer arguments of alpaca-lora: 8-bit weights, fp16 autocast and LoRA adapters."""
    micro_batch_size = reader.integer(config, "micro_batch_size", 4)
    micro_batch_count = reader.integer(config, "batch_size", 128) // micro_batch_size // (reader.source.world_size or 1)
    return {
        "model_name_or_path": config.get("base_model"),
        "per_device_train_batch_size": micro_batch_size,
        "gradient_accumulation_steps": max(1, micro_batch_count),
        "max_length": reader.integer(config, "cutoff_len", 256),
        "optim": "adamw_torch",
        "fp16": True,
        "dtype": "float32",
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
        **_adapter_arguments(reader, config, 8, ["q_proj", "v_proj"], "0.05"),
        **_quantization_arguments(reader, 8, is_nested=False),
    }


ENCODER_NOTE = "the encoder of images and its projector are not counted; images take tokens of the length"

TRAINER_SCRIPTS = (
    TrainerScript(
        "Liger-Kernel's training.py",
        frozenset({"use_liger"}),
        field_names("use_liger model_name max_seq_length"),
        field_names("dataset"),
        _arguments_of_liger,
        absent_arguments=frozenset({"model_name_or_path", "model_id", "data_path"}),  # of TRL's and other scripts
    ),
    TrainerScript(
        "PEFT's examples/sft/train.py",
        frozenset({"use_peft_lora", "use_4bit_quantization", "use_8bit_quantization", "use_nested_quant"}),
        field_names("""
            use_peft_lora use_4bit_quantization use_8bit_quantization use_nested_quant use_flash_attn use_reentrant
            bnb_4bit_quant_storage_dtype
            """),
        field_names("""
            chat_template_format add_special_tokens append_concat_token splits bnb_4bit_compute_dtype
            bnb_4bit_quant_type
            """),
        _arguments_of_peft,
        {"use_unsloth": "Unsloth's kernels are"},
    ),
    TrainerScript(
        "qlora.py",
        frozenset({"source_max_len", "target_max_len", "full_finetune", "max_memory_MB"}),
        field_names("source_max_len target_max_len bits double_quant full_finetune"),
        field_names("""
            use_auth eval_dataset_size max_new_tokens min_new_tokens do_mmlu_eval lora_modules quant_type dataset
            dataset_format train_on_source mmlu_split mmlu_dataset max_mmlu_samples mmlu_source_max_len adam8bit
            max_memory_MB num_beams temperature top_k top_p repetition_penalty
            """),
        _arguments_of_qlora,
    ),
    TrainerScript(
        "Chinese-LLaMA-Alpaca's run_clm_sft_with_peft.py or run_clm_pt_with_peft.py",
        frozenset({"load_in_kbits"}),
        field_names("""
            load_in_kbits double_quant lora_rank trainable modules_to_save full_finetuning use_flash_attention_2
            torch_dtype max_seq_length block_size
            """),
        field_names("dataset_dir data_cache_dir peft_path quant_type"),
        _arguments_of_chinese_alpaca,
    ),
    TrainerScript(
        "LMFlow's finetune.py",
        frozenset({"disable_group_texts", "conversation_template", "use_lisa"}),
        field_names("use_flash_attention use_lora use_qlora quant_bit double_quant"),
        field_names("""
            dataset_path conversation_template disable_group_texts arch_type quant_type lora_model_path
            save_aggregated_lora use_ram_optimized_load train_on_prompt customized_cache_dir lisa_activated_layers
            lisa_interval_steps lisa_layers_attribute
            """),
        _arguments_of_lmflow,
        {
            "use_lisa": "LISA, which trains some layers at a time, is",
            "use_customized_optim": "an optimizer of LMFlow is",
            "do_rope_scaling": "attention over a longer context is",
        },
    ),
    TrainerScript(
        "LLaVA's train.py",
        frozenset({"mm_projector_type", "mm_vision_select_layer", "pretrain_mm_mlp_adapter", "tune_mm_mlp_adapter"}),
        field_names("model_max_length lora_enable bits double_quant mm_tunable_parts"),
        field_names("""
            version data_path image_folder video_folder vision_tower pretrain_mm_mlp_adapter mm_projector_type
            mm_vision_select_layer mm_vision_select_feature mm_use_im_start_end mm_use_im_patch_token mm_projector_lr
            image_aspect_ratio image_grid_pinpoints group_by_modality_length is_multimodal freeze_mm_mlp_adapter
            lora_alpha lora_bias lora_weight_path quant_type mpt_attn_impl mm_patch_merge_type prompt_version
            mm_vision_tower_lr
            """),
        _arguments_of_llava,
        {
            "tune_mm_mlp_adapter": "training of the projector alone is",
            "freeze_backbone": "a frozen language model is",
            "unfreeze_mm_vision_tower": "training of the encoder is",
        },
        ENCODER_NOTE,
    ),
    TrainerScript(
        "Qwen's train_qwen.py",
        frozenset({"tune_mm_llm", "tune_mm_vision", "tune_mm_mlp", "data_flatten"}),
        field_names("model_max_length lora_enable tune_mm_llm"),
        field_names("""
            dataset_use data_flatten data_packing tune_mm_mlp max_pixels min_pixels base_interval video_max_frames
            video_min_frames video_max_frame_pixels video_min_frame_pixels video_max_pixels video_min_pixels video_fps
            mm_projector_lr vision_tower_lr lora_alpha
            """),
        _arguments_of_qwen_vl,
        {"tune_mm_vision": "training of the encoder is"},
        ENCODER_NOTE,
    ),
    TrainerScript(
        "Firefly's train.py",
        frozenset({"template_name", "train_mode", "tokenize_num_workers"}),
        field_names("train_mode task_type lora_rank"),
        field_names("template_name eval_file max_prompt_length beta tokenize_num_workers"),
        _arguments_of_firefly,
        {"use_unsloth": "Unsloth's kernels are"},
    ),
    TrainerScript(
        "alpaca-lora's finetune.py",
        frozenset({"base_model"}),  # `data_path` is an argument of many scripts
        field_names("base_model batch_size micro_batch_size cutoff_len"),
        field_names("""
            data_path num_epochs val_set_size train_on_inputs add_eos_token prompt_template_name wandb_project
            wandb_run_name wandb_watch wandb_log_model
            """),
        _arguments_of_alpaca_lora,
        absent_arguments=frozenset({"model_name_or_path", "per_device_train_batch_size"}),
    ),
)
"""The known training scripts whose own arguments are read, in the order of recognition."""

SCRIPT_SIGNS = frozenset(
    sign for script in TRAINER_SCRIPTS for sign in script.distinctive_arguments if not script.absent_arguments
)
"""Arguments of known training scripts that neither the Trainer nor other programs have."""
