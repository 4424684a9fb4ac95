"""Reads `swift sft` and `swift pt`, which run Hugging Face's Trainer with other argument names.

Source: ms-swift at 3602360a (2026-08-22): swift/arguments/{sft_args,tuner_args}.py, base_args/*.py,
swift/trainers/arguments.py for defaults, swift/config/*.json for the DeepSpeed configs that come with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import short_repr
from ...sources.huggingface.family import field_names
from ..frozen_model import SecondLoss
from ..launch.command_line import marked_model_name, parse_arguments, parsed_arguments
from ..launch.deepspeed_auto_values import AUTO_BATCH, AUTO_BUCKETS, AUTO_FORMATS
from ..launch.grpo import grpo_length_settings, with_log_probabilities
from ..launch.launch_types import (
    CommandLine,
    Launch,
    LaunchReader,
    LaunchSource,
    Table,
    launch_reader,
    read_integer,
    record_unknown_keys,
)
from ..launch.trainer import IGNORED_TRAINER_ARGUMENTS, launch_as_trainer
from .megatron_command import ARGUMENTS_READ as MEGATRON_READ
from .megatron_command import megatron_command_settings, plain_tuner_type
from .rlhf import (
    GRPO_BETA,
    LOSS_BY_RLHF_TYPE,
    known_argument_names,
    preference_sequence_count,
    read_megatron_rollout,
    read_rollout,
    with_teacher,
)
from .tasks import sequences_per_sample, task_arguments

ARGUMENTS_READ = field_names("""
    model model_id_or_path tuner_type train_type sft_type torch_dtype per_device_train_batch_size
    gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs max_length packing packing_length
    deepspeed attn_impl lora_rank target_modules modules_to_save lora_dropout quant_method quant_bits
    bnb_4bit_use_double_quant use_liger_kernel liger_kernel_config optim bf16 fp16 torch_compile
    use_dora sequence_parallel_size deepspeed_autotp_size neftune_noise_alpha freeze_llm freeze_vit
    enable_dft_loss optimizer
    """)

FORWARDED_ARGUMENTS = (
    "neftune_noise_alpha",
    "gradient_checkpointing_kwargs",
    "liger_kernel_config",
    "torch_compile",
    "eval_strategy",
    "per_device_eval_batch_size",
)
"""Arguments that ms-swift passes unchanged to transformers' Trainer."""

ARGUMENTS_IGNORED = field_names("""
    dataset val_dataset cached_dataset split_dataset_ratio dataset_shuffle streaming interleave_prob
    stopping_strategy shuffle_buffer_size columns strict model_name model_author custom_dataset_info
    dataset_num_proc download_mode load_from_cache_file disable_auto_column_mapping system template
    truncation_strategy agent_template padding_side loss_scale use_chat_template template_backend response_prefix
    lora_alpha lora_bias use_rslora init_weights model_type model_revision task_type add_version
    create_checkpoint_symlink max_new_tokens temperature use_hf external_plugins custom_register_path model_kwargs
    lazy_tokenize packing_num_proc packing_strategy check_model acc_strategy train_dataloader_shuffle max_epochs
    safe_serialization max_shard_size save_safetensors freeze_aligner vit_gradient_checkpointing
    bnb_4bit_compute_dtype bnb_4bit_quant_type swanlab_project swanlab_token swanlab_exp_name metric
    metric_for_best_model eval_limit eval_dataset eval_use_evalscope resume_only_model enable_thinking
    add_non_thinking_prefix bnb_4bit_quant_storage data_seed use_logits_to_keep experts_impl norm_bbox max_pixels
    ds3_gather_for_generation tuner_backend padding_free router_aux_loss_coef callbacks num_workers lr_scheduler
    warmup_steps cached_val_dataset rope_scaling early_stop_interval new_special_tokens predict_with_generate
    max_model_len vit_lr aligner_lr
    """)
"""Arguments that do not change the memory of a training step of a language model."""

STAGE_BY_OFFLOAD_CONFIG = {"zero2_offload": 2, "zero3_offload": 3}


def deepspeed_config(config_name: str) -> dict[str, Any] | None:
    """Returns the DeepSpeed config shipped with ms-swift under a name such as `zero3`; None for another name."""
    zero_stage = STAGE_BY_OFFLOAD_CONFIG.get(config_name)
    offload_device = "none" if zero_stage is None else "cpu"
    if zero_stage is None:
        if config_name not in ("zero0", "zero1", "zero2", "zero3"):
            return None
        zero_stage = int(config_name[-1])
    zero_table: dict[str, Any] = {
        "stage": zero_stage,
        "offload_optimizer": {"device": offload_device},
        "overlap_comm": False,
    }
    zero_table["contiguous_gradients"] = True
    if zero_stage == 3:
        zero_table |= {
            **AUTO_BUCKETS,
            "offload_param": {"device": offload_device},
            "sub_group_size": 1_000_000_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
        }
    else:
        zero_table |= {"allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000, "reduce_scatter": True}
    return {"zero_optimization": zero_table, **AUTO_FORMATS, **AUTO_BATCH}


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts ms-swift."""
    return command_line.program.split()[0] in ("swift", "megatron") or command_line.program.startswith("swift.cli")


MEGATRON_RLHF_TYPES = ("dpo", "kto", "rm", "grpo")
"""Values of `megatron rlhf --rlhf_type` that are read."""

TRAINING_SUBCOMMANDS = ("sft", "pt", "main", "rlhf")
"""Subcommands of ms-swift that train a model."""


def trains(command_line: CommandLine) -> bool:
    """Whether a command of ms-swift trains, instead of preparing data, serving or converting weights."""
    return command_line.program.split()[-1].rpartition(".")[2] in TRAINING_SUBCOMMANDS


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of an ms-swift command. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        model_flag, _, swift_verb = command_line.program.partition(" ")
        if model_flag == "megatron" or "megatron" in command_line.program:
            return _read_megatron_command(reader, command_line, swift_verb)
        swift_verb = swift_verb or command_line.program.rpartition(".")[2]
        if swift_verb not in TRAINING_SUBCOMMANDS:
            raise reader.argument_error(
                f"line {command_line.line}: swift {swift_verb}", "is no training; expected swift sft or swift pt"
            )
        config = parsed_arguments(
            parse_arguments(command_line.words, source_file.name_in_errors), reader, ARGUMENTS_READ - {"model"}
        )
        rlhf_type = str(config.get("rlhf_type", "dpo")) if swift_verb == "rlhf" else ""
        if rlhf_type not in ("", "grpo", "gkd", *LOSS_BY_RLHF_TYPE):
            raise reader.argument_error(
                f"line {command_line.line}: swift rlhf --rlhf_type",
                f"{short_repr(rlhf_type)}: its critic is not modelled; expected grpo, gkd, "
                f"{', '.join(LOSS_BY_RLHF_TYPE)}, or "
                "swift sft or pt",
            )
        arguments = parse_arguments(command_line.words, source_file.name_in_errors)
        model_flag = "--model" if "--model" in arguments else "--model_id_or_path"
        model_id = marked_model_name(arguments.get(model_flag))
        launched_run = launch_as_trainer(reader, _trainer_table(reader, config, rlhf_type, swift_verb), model_id)
        if config.get("task_type") == "generative_reranker":
            return _with_two_token_head(launched_run)
        if not rlhf_type:
            return _with_chunked_loss(reader, config, launched_run)
        if rlhf_type == "gkd":
            return with_teacher(reader, {**config, "model": model_id}, launched_run)
        if rlhf_type in LOSS_BY_RLHF_TYPE and launched_run.settings.get("cross_entropy") == "chunked":
            # `concatenated_forward` takes the labels away
            loss_note = "the chunked cross-entropy is of labels alone: this loss is counted with all logits"
            settings = {**launched_run.settings, "cross_entropy": "eager"}
            return replace(launched_run, settings=settings, notes=(*launched_run.notes, loss_note))
        if rlhf_type != "grpo":
            return launched_run
        completion_length = reader.integer(config, "max_completion_length", 512)
        launched_run = with_log_probabilities(launched_run, completion_length, launched_run.framework != "deepspeed")
        return replace(launched_run, rollout=read_rollout(reader, config, launched_run))


CHUNKED_LOSS_SETTINGS = {"cross_entropy": "flash-in-place", "logits_dtype": "fp32"}
"""Settings of a loss in chunks: accelerate copies logits to fp32, and the gradient overwrites this copy."""


def _with_chunked_loss(reader: LaunchReader, config: Table, launched_run: Launch) -> Launch:
    """Returns the training run with sequence parallelism's loss, in chunks of `CELOSS_PARALLEL_SIZE` tokens if set.

    Of a chunk there are the logarithms of its probabilities and its gradient in fp32 (swift/trainers/utils.py,
    `per_token_loss_func_sp`; swift/sequence_parallel/utils.py, `ChunkedCrossEntropyLoss`).
    """
    chunk_tokens_text = str(reader.source.env.get("CELOSS_PARALLEL_SIZE", "0"))
    chunk_tokens = int(chunk_tokens_text[:9]) if chunk_tokens_text.isdecimal() else 0
    is_sequence_divided = config.get("sequence_parallel_size") not in (None, 1)
    has_logits = (
        launched_run.settings.get("cross_entropy", "eager") == "eager" and launched_run.score_head_num_labels is None
    )
    if not (chunk_tokens and is_sequence_divided and has_logits):
        return launched_run
    second_loss = SecondLoss("swift/sequence_parallel/utils.py", 0, "chunk of the loss", chunk_tokens, 8)
    return replace(launched_run, settings={**launched_run.settings, **CHUNKED_LOSS_SETTINGS}, frozen_model=second_loss)


def _with_two_token_head(launched_run: Launch) -> Launch:
    """Returns the training run of a generative reranker, whose head computes logits of only two tokens.

    Source: swift/model/register.py, `_patch_generative_reranker`. Megatron-SWIFT has the logits of all words
    (mcore-bridge, model/gpt_model.py, `_postprocess`).
    """
    logits_text = "--task_type generative_reranker: logits of two words alone"
    if launched_run.layout.zero == 3:
        note = f"{logits_text}; under ZeRO-3 those of all words are counted"
        return replace(launched_run, notes=(*launched_run.notes, note))
    settings = {**launched_run.settings, "cross_entropy": "chunked"}
    notes = (*launched_run.notes, f"{logits_text}, counted as a loss in chunks")
    return replace(launched_run, settings=settings, notes=notes)


def _read_megatron_command(reader: LaunchReader, command_line: CommandLine, swift_verb: str) -> Launch:
    """Returns the training run of a command of Megatron-SWIFT."""
    if swift_verb == "export":
        raise reader.argument_error(
            f"line {command_line.line}: megatron export", "is no training; expected megatron sft or pt"
        )
    arguments = parse_arguments(command_line.words, reader.name_in_errors)
    config = parsed_arguments(arguments, reader, MEGATRON_READ - {"model"})
    rlhf_type = str(config.get("rlhf_type")) if swift_verb == "rlhf" else ""
    if rlhf_type not in ("", *MEGATRON_RLHF_TYPES):
        raise reader.argument_error(
            f"line {command_line.line}: megatron rlhf --rlhf_type",
            f"{short_repr(rlhf_type)}: its teacher is not modelled; expected {', '.join(MEGATRON_RLHF_TYPES)}, or "
            "megatron "
            "sft",
        )
    handled_arguments = task_arguments(reader, config, rlhf_type)
    megatron_run = megatron_command_settings(
        reader, config, ARGUMENTS_IGNORED | IGNORED_TRAINER_ARGUMENTS | set(handled_arguments), rlhf_type
    )
    model_id = marked_model_name(arguments.get("--model"))
    if config.get("task_type") == "generative_reranker":
        reader.notes.append("--task_type generative_reranker: Megatron-SWIFT has logits of all words, ms-swift of two")
    launched_run = reader.create_launch("megatron", megatron_run, model_name=model_id)
    if rlhf_type == "grpo":
        return replace(launched_run, rollout=read_megatron_rollout(reader, config, launched_run))
    return launched_run


def _check_visible_devices(reader: LaunchReader, config: Table) -> None:
    """Raises `InputError` for a process with several visible devices, over which transformers divides the layers.

    Source: swift/model/register.py, `get_default_device_map`.
    """
    source_file = reader.source
    visible_devices = [
        device
        for device in str(source_file.env.get("CUDA_VISIBLE_DEVICES", "")).split(",")
        if device.strip().isdecimal()
    ]
    process_count = (
        1 if source_file.has_typed_device_count or source_file.world_size is None else source_file.world_size
    )
    if config.get("device_map") is None and (
        source_file.has_typed_device_count or len(visible_devices) <= process_count
    ):
        return
    raise reader.argument_error(
        "device_map" if config.get("device_map") is not None else "CUDA_VISIBLE_DEVICES",
        f"{len(visible_devices)} devices of {process_count} process{'es' * (process_count > 1)}: layers that "
        f"transformers divides over devices are not modelled; "
        f"expected NPROC_PER_NODE={len(visible_devices) or 2} in the script",
    )


def _adapter_arguments(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the Trainer's arguments of LoRA adapters."""
    trainer_table = {
        "use_peft": True,
        "lora_r": reader.integer(config, "lora_rank", 8),
        "lora_target_modules": reader.value(config, "target_modules", "all-linear"),
        "lora_dropout": reader.value(config, "lora_dropout", "0.05"),
        "use_dora": config.get("use_dora"),
    }
    saved_names = config.get("modules_to_save")
    if saved_names is None:
        return trainer_table
    return {**trainer_table, "lora_modules_to_save": saved_names if isinstance(saved_names, list) else [saved_names]}


def _refuse_unmodelled(reader: LaunchReader, config: Table) -> None:
    """Records arguments as unknown whose memory is not modelled, and refuses layers divided over devices."""
    _check_visible_devices(reader, config)
    if config.get("deepspeed_autotp_size") not in (None, 1):
        reader.refuse("--deepspeed_autotp_size", "layers divided by AutoTP: --allow-unknown counts whole ones")
    if reader.flag(config, "enable_dft_loss") and reader.flag(config, "use_liger_kernel"):
        reader.refuse("--enable_dft_loss", "a loss of all logits beside Liger-Kernel's in chunks is not modelled")
    if config.get("optimizer") not in (None, "default", "multimodal"):  # multimodal: other rates for encoders
        reader.refuse("--optimizer", f"ms-swift's own optimizer {short_repr(config['optimizer'])[:40]} is not modelled")
    reader.read_frozen_encoders(config, "freeze_vit")
    if reader.flag(config, "freeze_llm"):
        reader.refuse("--freeze_llm", "training of an encoder beside frozen layers is not modelled")


def _trainer_table(reader: LaunchReader, swift_config: Table, rlhf_type: str, swift_verb: str) -> dict[str, Any]:
    """Returns the Trainer's arguments that are equivalent to ms-swift's. rlhf_type: empty for supervised training."""
    handled_names = (*ARGUMENTS_READ, *ARGUMENTS_IGNORED, *IGNORED_TRAINER_ARGUMENTS)
    handled_names = (
        *handled_names,
        *known_argument_names(reader, swift_config, rlhf_type),
        *task_arguments(reader, swift_config, rlhf_type),
    )
    reader.ignored_arguments += [
        argument
        for argument in swift_config
        if argument in ARGUMENTS_IGNORED or (argument in IGNORED_TRAINER_ARGUMENTS and argument not in ARGUMENTS_READ)
    ]
    record_unknown_keys(reader, swift_config, handled_names, "", "no argument that is known")
    tuner_type = swift_config.get("tuner_type", swift_config.get("train_type", swift_config.get("sft_type")))
    if tuner_type is None:
        tuner_type = reader.value(swift_config, "tuner_type", "full" if swift_verb == "pt" else "lora")
    tuner_type = plain_tuner_type(reader, tuner_type)
    _refuse_unmodelled(reader, swift_config)
    micro_batch_size = reader.integer(swift_config, "per_device_train_batch_size", 1)
    world_size = reader.source.world_size or 1
    trainer_table: dict[str, Any] = {
        "per_device_train_batch_size": micro_batch_size,
        "gradient_accumulation_steps": reader.integer(
            swift_config, "gradient_accumulation_steps", max(1, -(-16 // (micro_batch_size * world_size)))
        ),
        "gradient_checkpointing": reader.flag(swift_config, "gradient_checkpointing", True),
        "use_liger_kernel": reader.flag(swift_config, "use_liger_kernel"),
        "torch_dtype": reader.value(swift_config, "torch_dtype", "bfloat16"),
        "optim": reader.value(swift_config, "optim", "adamw_torch_fused"),
        "attn_implementation": swift_config.get("attn_impl"),  # open: sdpa, or eager for a model without it
    }
    trainer_table["per_device_train_batch_size"] *= sequences_per_sample(reader, swift_config, rlhf_type)
    trainer_table |= {argument_name: swift_config.get(argument_name) for argument_name in FORWARDED_ARGUMENTS}
    trainer_table["bf16"] = trainer_table["torch_dtype"] == "bfloat16"
    trainer_table["fp16"] = not trainer_table["bf16"]
    if trainer_table["attn_implementation"] in ("flash_attn", "flash_attention_2", "flash_attention_3"):
        trainer_table["attn_implementation"] = "flash_attention_2"
    sequence_length = swift_config.get("packing_length", swift_config.get("max_length"))
    if rlhf_type == "grpo":
        sequence_length = grpo_length_settings(reader, swift_config, "max_length", tuner_type == "lora", GRPO_BETA)[
            "seq"
        ]
    # swift/sequence_parallel/*.py, Ulysses: each rank has a part of the tokens, and of their logits
    sequence_ranks = reader.sequence_ranks(swift_config, "sequence_parallel_size", world_size, "--")
    if sequence_length is not None:
        trainer_table["max_length"] = -(-read_integer(reader, "max_length", sequence_length) // sequence_ranks)
    elif sequence_ranks > 1:
        raise reader.argument_error(
            "--max_length", "missing; --sequence_parallel_size divides its tokens; expected a number"
        )
    if reader.flag(swift_config, "packing"):
        reader.notes.append("--packing: sequences of max_length tokens, all of them used")
        trainer_table["packing"] = True
    if tuner_type == "lora":
        trainer_table |= _adapter_arguments(reader, swift_config)
    if swift_config.get("quant_bits") is not None or swift_config.get("quant_method") is not None:
        quantization_bits = swift_config.get("quant_bits")
        if swift_config.get("quant_method", "bnb") != "bnb" or quantization_bits not in (4, 8):
            reader.refuse("--quant_bits", "weights in another format than bitsandbytes' 4 or 8 bits are not modelled")
        trainer_table["load_in_8bit" if quantization_bits == 8 else "load_in_4bit"] = True
        if quantization_bits == 4:
            trainer_table["use_bnb_nested_quant"] = reader.flag(swift_config, "bnb_4bit_use_double_quant", True)
    if rlhf_type in LOSS_BY_RLHF_TYPE:
        reader.value(swift_config, "rlhf_type", rlhf_type)
        trainer_table["per_device_train_batch_size"] = preference_sequence_count(
            reader, rlhf_type, swift_config, micro_batch_size, tuner_type == "lora"
        )
    config = swift_config.get("deepspeed")
    if config is not None:
        trainer_table["deepspeed"] = deepspeed_config(str(config)) or config
    return {
        argument: argument_value for argument, argument_value in trainer_table.items() if argument_value is not False
    }
