"""Reads a config of LLaMA-Factory, which mixes LLaMA-Factory's arguments with transformers' Trainer arguments.

Source: LLaMA-Factory 0.9.6.dev0 (ff6d4d12e): hparams/*.py for arguments and defaults, model/adapter.py
(`init_adapter`) for number formats, model/model_utils/{checkpointing,quantization,attention}.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...device_memory.optimizers.registry import LARGEST_RANK
from ...errors import short_repr
from ...sources.huggingface.family import field_names
from ..frozen_model import FrozenModel, SecondLoss
from ..launch.accelerate_command import with_launcher_arguments
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader
from ..launch.trainer import (
    IGNORED_TRAINER_ARGUMENTS,
    LOSSES_WITHOUT_REFERENCE,
    TRAINER_DEFAULTS,
    attention_settings,
    known_argument_names,
    kto_settings,
    launch_under_selected_framework,
    lora_settings,
    preference_pair_settings,
    trainer_settings,
)
from .deepspeed_configs import DEEPSPEED_CONFIGS
from .megatron import read_megatron, trains_with_megatron
from .version_1 import is_version_1, layer_freezing_settings, read_version_1

ARGUMENTS_READ = field_names("""
    stage finetuning_type cutoff_len lora_rank lora_target lora_dropout additional_target quantization_bit
    quantization_method quantization_type double_quantization flash_attn enable_liger_kernel pure_bf16
    disable_gradient_checkpointing use_reentrant_gc use_unsloth_gc upcast_lmhead_output
    freeze_vision_tower
    freeze_trainable_layers freeze_trainable_modules freeze_extra_modules use_adam_mini use_muon pissa_init use_galore
    galore_rank galore_target galore_layerwise galore_proj_type
    use_apollo apollo_rank apollo_target apollo_layerwise apollo_proj apollo_proj_type
    """)

ARGUMENTS_IGNORED = field_names("""
    dataset eval_dataset dataset_dir media_dir template train_on_prompt mask_history streaming buffer_size
    mix_strategy interleave_probs overwrite_cache preprocessing_batch_size max_samples val_size packing neat_packing
    tool_format default_system enable_thinking preserve_thinking tokenized_path ignore_pad_token_for_loss plot_loss
    compute_accuracy disable_shuffling image_max_pixels image_min_pixels video_max_pixels video_min_pixels video_fps
    video_maxlen lora_alpha use_rslora loraplus_lr_ratio loraplus_lr_embedding create_new_adapter
    adapter_name_or_path cache_dir low_cpu_mem_usage split_special_tokens resize_vocab ray_num_workers ray_run_name
    ray_storage_path placement_strategy resources_per_worker use_swanlab swanlab_project swanlab_run_name
    include_effective_tokens_per_second use_eaft_loss freeze_multi_modal_projector
    save_only_model hf_hub_token ms_hub_token use_fast_tokenizer print_param_status pref_beta pref_loss pref_ftx
    early_stopping_steps use_dft_loss include_tokens_per_second badam_mode badam_switch_mode badam_switch_interval
    badam_verbose badam_update_ratio galore_scale apollo_scale oft_block_size oft_target pissa_iter
    pissa_convert eaft_alpha nproc
    predict_with_generate infer_backend infer_dtype eval_on_each_dataset data_shared_file_system max_new_tokens
    add_special_tokens add_tokens adapter_folder apollo_scale_front apollo_scale_type
    apollo_update_interval audio_sampling_rate badam_mask_mode badam_start_block block_diag_attn crop_to_patches
    dpo_label_smoothing enable_torch_profiler eval_num_beams fp8_backend fp8_enable_fsdp_float8_all_gather
    galore_update_interval image_do_pan_and_scan init_special_tokens kto_chosen_weight
    kto_rejected_weight ld_alpha length_penalty master_addr master_port module_dropout moe_aux_loss_coef
    new_special_tokens_config num_beams offload_folder oft_rank om_hub_token ppo_buffer_size ppo_epochs
    ppo_score_norm ppo_target ppo_whiten_rewards pref_bco_weight ray_init_kwargs repetition_penalty rope_scaling
    simpo_gamma skip_special_tokens swanlab_api_key swanlab_lark_secret swanlab_lark_webhook_url swanlab_logdir
    swanlab_mode swanlab_workspace temperature top_k top_p use_audio_in_video use_kv_cache use_v1_kernels
    vllm_config vllm_enforce_eager vllm_gpu_util vllm_max_lora_rank vllm_maxlen
    asft_alpha profiler_output_dir
    """)
"""Arguments that do not change the memory of a training step, or whose method is refused by another one."""

REFUSED_ARGUMENTS = {
    "use_badam": "one block trained at a time (--allow-unknown counts all, which need more)",
    "use_llama_pro": "added layers trained alone (--allow-unknown counts all, which need more)",
    "freeze_language_model": "encoders trained beside a frozen language model (--allow-unknown counts it as trained)",
    "mixture_of_depths": "a mixture of depths",
    "shift_attn": "shifted sparse attention",
    "use_unsloth": "Unsloth's kernels",
    "use_mca": "Megatron-Core's adapter",
    "use_megatron_bridge": "Megatron-Bridge",
    "use_hyper_parallel": "HyperParallel",
    "use_kt": "KTransformers",
    "upcast_layernorm": "norms in fp32 under 16-bit layers",
    "use_asft_loss": "the reference model of ASFT",
    "fp8": "products in 8 bits",
    "train_from_scratch": "",
    "reward_model": "PPO's reward model",
    "ref_model": "a reference model beside the trained one",
}
"""Argument → the unmodelled feature that it turns on; empty if the argument changes nothing."""

MODELLED_STAGES = ("sft", "pt", "rm", "dpo", "kto")
"""Training stages that are modelled."""

ATTENTION_IMPLEMENTATIONS = {
    "auto": "sdpa",
    "disabled": "eager",
    "sdpa": "sdpa",
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
}
"""Value of `flash_attn` → transformers' name of the attention implementation."""

EARLIER_ATTENTION = {"True": "fa2", "False": "auto", "off": "disabled"}
"""Old value of `flash_attn` → new value: booleans before 0.7 (model/patcher.py, `patch_config`), `off` before 0.9."""

ARGUMENT_DEFAULTS = {**TRAINER_DEFAULTS, "cutoff_len": 2048}


def is_llama_factory(config: Table) -> bool:
    """Whether a table is a config of LLaMA-Factory."""
    known_keys = ("finetuning_type", "cutoff_len", "dataset_dir", "overwrite_cache", "lora_target", "quantization_bit")
    return (
        is_version_1(config)
        or "finetuning_type" in config
        or ("template" in config and any(argument_name in config for argument_name in known_keys))
    )


def read_llama_factory(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a LLaMA-Factory config. Raises `InputError`, which names file and argument."""
    if is_version_1(config):
        return read_version_1(config, source_file)
    with launch_reader(source_file) as reader:
        reader.read_frozen_encoders(config, "freeze_vision_tower")
        if trains_with_megatron(config):
            return read_megatron(reader, config, IGNORED_TRAINER_ARGUMENTS | ARGUMENTS_IGNORED)
        config = with_launcher_arguments(config, source_file)
        reader.requests_expandable_segments = (
            source_file.world_size or 1
        ) > 1  # launcher.py, `OPTIM_TORCH`, of several processes
        reader.record_argument_names(
            config,
            (*known_argument_names(), *ARGUMENTS_READ, *REFUSED_ARGUMENTS),
            IGNORED_TRAINER_ARGUMENTS | ARGUMENTS_IGNORED,
        )
        reader.refuse_if_set(
            config,
            {
                argument_name: f"{method_name}: not modelled"
                for argument_name, method_name in REFUSED_ARGUMENTS.items()
                if method_name
            },
        )
        if config.get("do_train") is not True and any(
            config.get(argument_name) is True for argument_name in ("do_predict", "do_eval")
        ):
            raise reader.argument_error(
                "do_train", "not true: the file predicts or evaluates; expected a file that trains"
            )
        training_stage = str(reader.value(config, "stage", "sft"))[:20]
        if training_stage not in MODELLED_STAGES:
            reader.refuse("stage", f"'{training_stage}' is not modelled; {', '.join(MODELLED_STAGES)} are")
        finetuning_type = str(reader.value(config, "finetuning_type", "lora"))[:20]
        if finetuning_type not in ("full", "lora", "freeze"):
            near_type = (
                "lora, which needs about as much, is" if finetuning_type == "oft" else "full, lora and freeze are"
            )
            reader.refuse(
                "finetuning_type",
                f"'{finetuning_type}' is not modelled; {near_type}; --allow-unknown counts full, which needs more",
            )
        run_settings = trainer_settings(
            reader, _with_kernel_arguments(reader, config), ARGUMENT_DEFAULTS, length_option="cutoff_len"
        )
        attention = _attention_implementation(reader, config)
        if config.get("flash_attn") in (None, "auto"):  # sdpa, or eager for a model without it
            run_settings.pop("attn_implementation", None)
        else:
            run_settings |= attention_settings(reader, "flash_attn", attention)
        if run_settings.get("recompute") and reader.flag(config, "use_unsloth_gc"):  # model_utils/checkpointing.py
            run_settings |= {"recompute": "full", "offload_activations": True}
        if reader.flag(config, "upcast_lmhead_output"):
            reader.notes.append("upcast_lmhead_output: logits are counted in the head's own format too, an upper bound")
        if finetuning_type == "lora":
            run_settings |= _adapter_settings(reader, config)
        elif finetuning_type == "freeze":
            run_settings |= layer_freezing_settings(reader, config)
        if finetuning_type != "lora" and config.get("quantization_bit") is not None:
            reader.refuse(
                "quantization_bit", f"with finetuning_type {finetuning_type}, quantized weights take no gradient"
            )
        run_settings |= _preference_settings(reader, config, training_stage, run_settings)
        if config.get("use_eaft_loss"):
            reader.notes.append("use_eaft_loss: the entropies of EAFT's loss are not counted")
        run_settings |= _number_formats(reader, config, finetuning_type)
        run_settings |= _optimizer_settings(reader, config, run_settings, source_file.world_size)
        return launch_under_selected_framework(reader, config, run_settings, shipped_tables=DEEPSPEED_CONFIGS)


def _preference_settings(
    reader: LaunchReader, config: Table, training_stage: str, run_settings: dict[str, Any]
) -> dict[str, Any]:
    """Returns the batch settings of a preference stage (rm, kto, dpo), and adds its reference model to the run."""
    if training_stage == "rm":
        preference_settings = preference_pair_settings(reader, "reward", run_settings, computes_logits=True)
        reader.notes.append("the head of rewards is left out, one row of the output head's width")
        return preference_settings
    if training_stage == "kto":
        return kto_settings(reader, run_settings, _reference_model(config))
    if training_stage != "dpo":
        return {}
    loss_name = str(reader.value(config, "pref_loss", "sigmoid"))
    preference_settings = preference_pair_settings(reader, loss_name, run_settings, _reference_model(config))
    if loss_name not in LOSSES_WITHOUT_REFERENCE:
        has_reference_model = isinstance(reader.frozen_model, FrozenModel)
        reader.frozen_model = (
            replace(_reference_model(config), loss=POLICY_LOGITS_LOSS) if has_reference_model else POLICY_LOGITS_LOSS
        )
    return preference_settings


POLICY_LOGITS_LOSS = SecondLoss("llamafactory/train/dpo/trainer.py, get_batch_loss_metrics", 4, "logits of the policy")
"""The trained model's logits, copied to fp32 for metrics after the reference model's logits have been computed."""


def _reference_model(config: Table) -> FrozenModel:
    """Returns the reference model of preference losses, in the number format of matrix products."""
    return FrozenModel(
        "llamafactory/train/trainer_utils.py, create_ref_model", "float16" if config.get("fp16") else "bfloat16"
    )


def _with_kernel_arguments(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the arguments with the Trainer's names for activation checkpointing and Liger-Kernel.

    Layers are checkpointed by default, in the reentrant way.
    """
    arguments = dict(config)
    uses_checkpointing = not reader.flag(config, "disable_gradient_checkpointing")
    if "disable_gradient_checkpointing" not in config:
        reader.assumed_defaults["disable_gradient_checkpointing"] = False
    is_reentrant = reader.flag(config, "use_reentrant_gc", True) if uses_checkpointing else False
    arguments |= {
        "gradient_checkpointing": uses_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": is_reentrant},
        "attn_implementation": "sdpa",
        "use_liger_kernel": config.get("enable_liger_kernel"),
    }
    return arguments


def _attention_implementation(reader: LaunchReader, config: Table) -> str:
    written_name = str(reader.value(config, "flash_attn", "auto"))[:20]
    written_name = EARLIER_ATTENTION.get(written_name, written_name)
    if written_name not in ATTENTION_IMPLEMENTATIONS:
        raise reader.value_error("flash_attn", written_name, f"one of {', '.join(ATTENTION_IMPLEMENTATIONS)}")
    return ATTENTION_IMPLEMENTATIONS[written_name]


def _adapter_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of LoRA adapters and of the frozen weights."""
    target_modules = reader.value(config, "lora_target", "all")
    adapter_settings = lora_settings(
        reader,
        rank=("lora_rank", reader.value(config, "lora_rank", 8)),
        targets_argument=("lora_target", "all-linear" if target_modules == "all" else target_modules),
        saved_modules=("additional_target", config.get("additional_target")),
        dropout_value=config.get("lora_dropout"),
        magnitude_value=reader.flag(config, "use_dora"),
    )
    bit_count = config.get("quantization_bit")
    if reader.flag(config, "pissa_init"):
        if bit_count is not None:
            raise reader.argument_error(
                "pissa_init", "LLaMA-Factory refuses it with quantization_bit; expected one of the two"
            )
        reader.notes.append("pissa_init: the singular values that start the adapters are computed before the training")
    if bit_count is None:
        return adapter_settings
    quantizer = str(reader.value(config, "quantization_method", "bnb"))
    if bit_count not in (4, 8) or quantizer not in ("bnb", "bitsandbytes") or config.get("quantization_type") == "fp4":
        reader.refuse(
            "quantization_bit",
            f"{short_repr(bit_count)} by {quantizer[:20]} is not modelled; 8 bits and 4 bits in nf4 by bnb are",
        )
        return adapter_settings
    if bit_count == 8:
        return adapter_settings | {"base": "int8"}
    adapter_settings["base"] = "nf4-dq" if reader.flag(config, "double_quantization", True) else "nf4"
    return adapter_settings


def _optimizer_settings(
    reader: LaunchReader, config: Table, run_settings: Table, world_size: int | None
) -> dict[str, Any]:
    """Returns the settings of an optimizer that LLaMA-Factory adds to the Trainer's (train/trainer_utils.py)."""
    if reader.flag(config, "use_galore"):
        return _low_rank_optimizer_settings(reader, config, "galore", run_settings, world_size)
    if reader.flag(config, "use_apollo"):
        return _low_rank_optimizer_settings(reader, config, "apollo", run_settings, world_size)
    if reader.flag(config, "use_muon"):
        reader.assumed_defaults.pop("optim", None)
        if config.get("deepspeed") or config.get("fsdp"):
            reader.refuse("use_muon", "on shards it is not modelled")
        return {"optimizer": "muon", "optimizer_impl": "loop"}
    if not reader.flag(config, "use_adam_mini"):
        return {}
    reader.assumed_defaults.pop("optim", None)
    if config.get("deepspeed") or config.get("fsdp"):
        reader.refuse("use_adam_mini", "on shards it is not modelled")
    return {"optimizer": "adam-mini", "optimizer_impl": "loop"}


def _listed_names(written_names: Any) -> set[str]:
    """Returns the names in a list, or in a text separated by commas (hparams, `split_arg`)."""
    listed_names = written_names.split(",") if isinstance(written_names, str) else written_names
    return {str(written_name).strip() for written_name in listed_names} if isinstance(listed_names, list) else set()


def _low_rank_optimizer_settings(
    reader: LaunchReader, config: Table, argument_prefix: str, run_settings: Table, world_size: int | None
) -> dict[str, Any]:
    """Returns the settings of GaLore or APOLLO. argument_prefix: the common prefix of the arguments."""
    if "lora_rank" in run_settings:
        raise reader.argument_error(
            f"use_{argument_prefix}", "LLaMA-Factory refuses it with adapters; expected finetuning_type: full"
        )
    if config.get("deepspeed"):
        raise reader.argument_error(
            f"use_{argument_prefix}", "LLaMA-Factory refuses it with DeepSpeed; expected a file without deepspeed"
        )
    if str(config.get("optim", "adamw_torch")) not in ("adamw_torch", "adamw_torch_fused"):
        reader.refuse("optim", f"with use_{argument_prefix} adamw_torch alone is modelled")
    target_names = _listed_names(config.get(f"{argument_prefix}_target"))
    # train/trainer_utils.py, `_create_galore_optimizer`: parts of names, here of all linear layers but the output head
    if target_names in ({"mlp", "self_attn"}, {"mlp", "attn"}):
        config = {**config, f"{argument_prefix}_target": "all"}
    modelled_values = {"target": "all", "proj_type": "std"} | (
        {"proj": "random"} if argument_prefix == "apollo" else {}
    )
    for argument_name, modelled_value in modelled_values.items():
        if reader.value(config, f"{argument_prefix}_{argument_name}", modelled_value) not in (
            modelled_value,
            [modelled_value],
        ):
            reader.refuse(f"{argument_prefix}_{argument_name}", f"{modelled_value} alone is modelled")
    reader.assumed_defaults.pop("optim", None)
    low_rank = reader.integer(config, f"{argument_prefix}_rank", 16)
    if low_rank > LARGEST_RANK:
        raise reader.argument_error(f"{argument_prefix}_rank", f"{low_rank:,}; expected at most {LARGEST_RANK:,}")
    settings: dict[str, Any] = {"optimizer": f"{argument_prefix}-r{low_rank}", "optimizer_impl": "loop"}
    if reader.flag(config, f"{argument_prefix}_layerwise"):
        for argument_name, written_count in (
            ("gradient_accumulation_steps", run_settings["num_microbatches"]),
            ("devices", world_size),
        ):
            if (written_count or 1) > 1:
                raise reader.argument_error(
                    f"{argument_prefix}_layerwise",
                    f"LLaMA-Factory refuses it with {written_count} {argument_name.replace('_', ' ')}; expected 1",
                )
        settings["optimizer_in_backward"] = True
    return settings


def _number_formats(reader: LaunchReader, config: Table, finetuning_type: str) -> dict[str, Any]:
    """Returns the number formats. Trainable weights are cast to fp32 unless `pure_bf16` is set (`init_adapter`).

    Frozen weights have the format of products, or the checkpoint's.
    """
    sixteen_bit_format = "bf16" if reader.flag(config, "bf16") or reader.flag(config, "pure_bf16") else None
    sixteen_bit_format = sixteen_bit_format or ("fp16" if reader.flag(config, "fp16") else None)
    if finetuning_type == "lora":
        return {"dtype": sixteen_bit_format or "bf16", "master_weights": "none"}
    if reader.flag(config, "pure_bf16"):
        return {"dtype": "bf16", "master_weights": "none"}
    if finetuning_type == "freeze" and sixteen_bit_format is not None:  # layers in fp32 beside frozen ones in bf16
        return {"dtype": sixteen_bit_format, "precision": "autocast", "master_weights": "none"}
    return {"precision": "fp32" if sixteen_bit_format is None else "autocast"}
