"""Reads a config of axolotl: a model, adapters, and the arguments of transformers' Trainer.

Source: axolotl 0.18.0 (067b021c8): utils/schemas/{config,training,peft,model}.py for keys and defaults,
utils/config/__init__.py (`resolve_dtype`, `normalize_config`) for number formats and checkpointing, loaders/model.py
for QLoRA, integrations/{liger,cut_cross_entropy}/args.py for kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...sources.huggingface.family import field_names
from ..launch.accelerate_command import with_launcher_arguments
from ..launch.launch_types import (
    Launch,
    LaunchReader,
    LaunchSource,
    Table,
    assume_default_attention,
    launch_reader,
    read_integer,
)
from ..launch.trainer import (
    QUANTIZATION_AWARE_REASON,
    add_noise_note,
    attention_settings,
    kto_settings,
    launch_under_selected_framework,
    lora_settings,
    optimizer_and_target_settings,
    preference_pair_settings,
)
from .deepspeed_configs import DEEPSPEED_CONFIGS

KEYS_READ = field_names("""
    base_model micro_batch_size gradient_accumulation_steps sequence_len optimizer bf16 fp16 bfloat16 float16 float32
    load_in_4bit load_in_8bit adapter lora_r lora_target_modules lora_target_linear lora_target_parameters
    lora_modules_to_save lora_dropout gradient_checkpointing gradient_checkpointing_kwargs attn_implementation
    freeze_mm_modules
    flash_attention sdp_attention flex_attention xformers_attention eager_attention torch_compile deepspeed fsdp
    fsdp_config fsdp_version plugins liger_rms_norm liger_layer_norm liger_glu_activation liger_rope
    liger_cross_entropy liger_fused_linear_cross_entropy cut_cross_entropy chunked_cross_entropy
    chunked_cross_entropy_num_chunks activation_offloading batch_size
    reward_model process_reward_model peft_use_dora lora_mlp_kernel
    unfrozen_parameters dp_shard_size dp_replicate_size context_parallel_size tensor_parallel_size
    sequence_parallel_degree rl fp8 qat gptq relora layer_offloading tiled_mlp selective_checkpointing
    auto_find_batch_size neftune_noise_alpha trust_remote_code model_quantization_config quantize_moe_experts
    bnb_config_kwargs model_quantization_config_kwargs model_config overrides_of_model_config expert_parallel_size ebft
    precompute_ref_log_probs
    diffusion llmcompressor
    lisa_n_layers use_scattermoe use_sonicmoe use_onebitllms llama4_linearized_experts fused_attn_kernel
    nvfp4_merge_aware liger_rms_norm_gated optim_target_modules
    """)

KEYS_IGNORED = field_names("""
    base_model_config base_model_ignore_patterns cls_model_config tokenizer_config model_type tokenizer_type
    tokenizer_use_fast tokenizer_legacy processor_type processor_kwargs tokenizer_use_mistral_common strict
    is_llama_derived_model is_falcon_derived_model is_mistral_derived_model is_qwen_derived_model datasets
    test_datasets pretraining_dataset dataset_prepared_path val_set_size output_dir lora_model_dir lora_alpha
    sample_packing eval_sample_packing pad_to_sequence_len sample_packing_group_size sample_packing_bin_size
    sample_packing_sequentially wandb_project wandb_entity wandb_watch wandb_name wandb_log_model wandb_run_id
    wandb_mode num_epochs lr_scheduler lr_scheduler_kwargs learning_rate embedding_lr embedding_lr_scale
    train_on_inputs group_by_length tf32 resume_from_checkpoint auto_resume_from_checkpoints local_rank
    logging_steps warmup_steps warmup_ratio evals_per_epoch eval_steps eval_strategy saves_per_epoch save_steps
    save_strategy save_total_limit save_first_step max_steps weight_decay special_tokens tokens
    added_tokens_overrides debug chat_template chat_template_jinja chat_template_kwargs default_system_message
    roles_to_train eot_tokens train_on_eos seed streaming streaming_multipack_buffer_size shuffle_merged_datasets
    shuffle_before_merging_datasets fp8_enable_fsdp_float8_all_gather flex_attn_compile_kwargs save_only_model
    save_safetensors cosine_min_lr_ratio cosine_constant_lr_ratio use_tensorboard trackio_project_name
    trackio_run_name trackio_space_id experimental_skip_move_to_device apply_kernel_choices
    remove_unused_columns center_rewards_coefficient eval_batch_size max_grad_norm adam_beta1 adam_beta2 adam_beta3
    adam_epsilon adam_epsilon2 hub_model_id hub_strategy hub_revision push_dataset_to_hub hf_use_auth_token
    early_stopping_patience loss_watchdog_threshold loss_watchdog_patience eval_max_new_tokens eval_table_size
    eval_causal_lm_metrics do_causal_lm_eval dataset_processes dataset_num_proc dataset_keep_in_memory
    dataset_shard_num dataset_shard_idx dataset_exact_deduplication skip_prepare_dataset dataloader_num_workers
    dataloader_pin_memory dataloader_prefetch_factor dataloader_drop_last ddp ddp_timeout ddp_bucket_cap_mb
    ddp_broadcast_buffers ddp_find_unused_parameters accelerator_config mlflow_tracking_uri mlflow_experiment_name
    hf_mlflow_log_artifacts comet_project_name use_comet torch_compile_backend torch_compile_mode low_cpu_mem_usage
    lora_fan_in_fan_out peft_use_rslora loraplus_lr_ratio loraplus_lr_embedding gc_steps gc_collect_steps
    profiler_steps load_best_model_at_end metric_for_best_model greater_is_better revision_of_model
    excess_length_strategy min_sample_len include_tokens_per_second flash_attn_cross_entropy flash_attn_rms_norm
    flash_attn_fuse_qkv flash_attn_fuse_mlp field_messages message_property_mappings logging_first_step s2_attention
    use_otel_metrics qlora_sharded_model_loading torch_dtype fix_untrained_tokens resize_token_embeddings_to_32x
    batch_flattening split_thinking bench_dataset pretrain_multipack_attn curriculum_sampling hub_private_repo
    world_size num_labels quantization image_size image_resize_algorithm unused_keys report_to
    additional_special_tokens async_prefetch
    axolotl_config_path bench_split bos_token comet_api_key comet_experiment_config comet_experiment_key comet_mode
    comet_online comet_workspace context_length data_files device do_bench_eval dpo_label_smoothing
    dpo_use_weighting eos_token eval_sequence_len evaluation_strategy experts_implementation
    fsdp_final_state_dict_type generate_samples generation_do_sample generation_max_new_tokens
    generation_prompt_ratio generation_temperature generation_top_k generation_top_p gradio_max_new_tokens
    gradio_server_name gradio_server_port gradio_share gradio_temperature gradio_title heads_k_stride include_tkps
    is_preprocess jagged_restart_anneal_steps jagged_restart_steps jagged_restart_warmup_steps lora_on_cpu
    lr_div_factor lr_groups lr_quadratic_warmup lora_alpha_pattern max_packed_sequence_len mean_resizing_embeddings
    merge_lora merge_method mlflow_run_name multipack_real_batches num_dataset_shards_to_save num_generation_samples
    optim_args pad_to_multiple_of pad_token peft_init_lora_weights peft_autocast_adapter_dtype
    pretrain_multipack_buffer_size pretraining_sample_concatenation profiler_steps_start ray_num_workers
    ray_run_name resources_per_worker revision rl_beta orpo_alpha simpo_gamma cpo_alpha dpo_beta
    sample_packing_eff_est sample_packing_mp_start_method tokenizer_save_jinja_files torch_compile_options
    torch_empty_cache_steps total_num_tokens total_supervised_tokens train_on_eot type_of_model unk_token use_eaft
    eaft_alpha eaft_k use_mlflow use_ray use_trackio use_wandb rope_scaling max_prompt_len
    preprocess_iterable preprocess_shards dion_lr dion_momentum dpo_generate_during_eval remove_padding
    peft_layers_pattern embeddings_skip_upcast loftq_config peft torchdistx_path
    swanlab_project swanlab_run_name use_swanlab swanlab_experiment_name swanlab_description swanlab_mode
    swanlab_workspace swanlab_api_key swanlab_web_host swanlab_api_host swanlab_log_model swanlab_log_completions
    swanlab_completion_log_interval swanlab_completion_max_buffer swanlab_lark_webhook_url swanlab_lark_secret
    swanlab_model_tags reinit_weights eta_min adam_eps kto_desirable_weight kto_undesirable_weight
    lora_qkv_kernel lora_o_kernel lora_embedding_kernel relora_prune_ratio relora_prune_method relora_cpu_offload
    otel_metrics_host otel_metrics_port role_boundaries gemma4_hybrid_attn_impl
    """)
"""Keys that do not change the memory of a training step, or change it by less than one allocator block."""

REFUSED_KEYS = {
    "fp8": "products in 8 bits are not modelled",
    "qat": QUANTIZATION_AWARE_REASON,
    "gptq": "weights in GPTQ's format take no adapters here",
    "layer_offloading": "layers on the host are not modelled",
    "tiled_mlp": "tiled networks are not modelled",
    "selective_checkpointing": "selective checkpointing is not modelled",
    "auto_find_batch_size": "it is modelled without",
    "use_scattermoe": "ScatterMoE's kernels are not modelled",
    "use_sonicmoe": "SonicMoE's kernels are not modelled",
    "use_onebitllms": "weights of one bit are not modelled",
    "fused_attn_kernel": "the fused kernel of attention with adapters is not modelled",
    "nvfp4_merge_aware": "adapters over weights in nvfp4 are not modelled",
    "ebft": "its samples and losses are not modelled",
    "diffusion": "masked diffusion is not modelled",
    "llmcompressor": "training of sparse weights is not modelled",
    "lisa_n_layers": "LISA, which trains some layers at a time, is not modelled",
}
"""Key → why a value other than false or null is not modelled."""

ATTENTION_FLAGS = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "flex_attention": "flex_attention",
    "xformers_attention": "xformers",
    "eager_attention": "eager",
}
"""Flag that selects an attention implementation → transformers' name of the implementation."""

CUT_CROSS_ENTROPY = "CutCrossEntropyPlugin"
"""The plugin for Cut Cross-Entropy, which computes the loss without storing logits."""

PLUGINS = (
    "LigerPlugin", CUT_CROSS_ENTROPY, "SwanLabPlugin", "LMEvalPlugin", "KernelsPlugin", "ExpertParallelPlugin",
    "DiffusionPlugin",
)  # fmt: skip
"""Plugins that are modelled, or whose own keys are read or refused."""


def is_axolotl(config: Table) -> bool:
    """Whether a parsed file is a config of axolotl."""
    known_keys = ("micro_batch_size", "sequence_len", "datasets", "pretraining_dataset", "adapter", "num_epochs")
    return "base_model" in config and any(axolotl_key in config for axolotl_key in known_keys)


def read_axolotl(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run that an axolotl config describes. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        reader.record_argument_names(config, KEYS_READ, KEYS_IGNORED, "no key that is known")
        config = with_launcher_arguments(config, source_file, sets_precision=False)
        reader.refuse_if_set(config, REFUSED_KEYS)
        _refuse_trained_parameter_patterns(reader, config)
        add_noise_note(reader, config)
        reader.read_frozen_encoders(config, "freeze_mm_modules")
        reader.requests_expandable_segments = True  # utils/__init__.py, `set_pytorch_cuda_alloc_conf`
        if config.get("expert_parallel_size") not in (None, 1, 0):
            reader.refuse("expert_parallel_size", "it is modelled as 1")
        _refuse_published_quantization(reader, config)
        run_settings: dict[str, Any] = {
            "phase": "training",
            "batch": reader.integer(config, "micro_batch_size", 1),
            "num_microbatches": _accumulation_steps(reader, config),
            "seq": reader.integer(config, "sequence_len", 512),
        }
        run_settings |= optimizer_and_target_settings(reader, config, "optimizer", "adamw_torch_fused", run_settings)
        sixteen_bit_dtype = _sixteen_bit_format(reader, config)
        run_settings |= (
            {"precision": "fp32"}
            if sixteen_bit_dtype is None
            else {"dtype": sixteen_bit_dtype, "master_weights": "none"}
        )
        run_settings |= _kernel_settings(reader, config)
        run_settings |= _adapter_settings(reader, config)
        _refuse_config_overrides(reader, config)
        if config.get("rl"):
            run_settings |= _preference_settings(reader, config, run_settings)
        if config.get("reward_model") or config.get("process_reward_model"):
            reader.notes.append("the reward head is counted as the model's own output head, an upper bound")
        if config.get("reward_model"):
            run_settings |= preference_pair_settings(reader, "reward", run_settings)
        world_size, parallelism_config = _device_count_and_group_sizes(reader, config)
        arguments = {**_trainer_arguments(config, sixteen_bit_dtype), "parallelism_config": parallelism_config}
        model_id = str(config["base_model"] or "")
        reader.counts_longest_samples = not (config.get("sample_packing") or config.get("pad_to_sequence_len"))
        fuses_adapters = _fuses_adapters(reader, config)
        launched_run = launch_under_selected_framework(
            reader, arguments, run_settings, world_size, model_id, shipped_tables=DEEPSPEED_CONFIGS
        )
        return _with_fused_adapters(launched_run, config) if fuses_adapters else launched_run


ADAPTER_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
"""Keys of axolotl's fused adapter kernels. If a file sets any of these keys, axolotl turns no kernel on by itself."""

ATTENTION_KERNELS = ("lora_qkv_kernel", "lora_o_kernel")
"""The keys among them of attention's kernels."""


def _fuses_adapters(reader: LaunchReader, config: Table) -> bool:
    """Whether axolotl runs the LoRA adapters of the MLP by its fused kernels, as stated or by its default.

    Source: axolotl, utils/schemas/validation.py, `check_auto_enable_lora_kernels`.
    """
    if config.get("adapter") not in ("lora", "qlora"):
        return False
    if any(config.get(kernel) is not None for kernel in ADAPTER_KERNELS):
        enabled_kernels = [kernel for kernel in ADAPTER_KERNELS if reader.flag(config, kernel)]
        if ADAPTER_KERNELS[0] not in enabled_kernels:
            if enabled_kernels:
                reader.notes.append(
                    f"{', '.join(enabled_kernels)} without lora_mlp_kernel: counted and timed as PEFT's, an upper bound"
                )
            return False
        disabled_kernels = [kernel for kernel in ATTENTION_KERNELS if kernel not in enabled_kernels]
        if disabled_kernels:
            reader.notes.append(
                f"lora_mlp_kernel without {' and '.join(disabled_kernels)}: "
                "attention is counted as with both, a lower bound"
            )
        return True
    is_eight_bit_lora = config["adapter"] == "lora" and config.get("load_in_8bit")
    if is_eight_bit_lora or any(map(config.get, ("rl", "trust_remote_code", "nvfp4_merge_aware"))):
        return False
    fsdp_config = config.get("fsdp_config")
    nested_version = fsdp_config.get("fsdp_version") if isinstance(fsdp_config, Mapping) else None
    fsdp_version = config.get("fsdp_version") or nested_version
    return fsdp_config is None or str(fsdp_version) == "2" or reader.source.world_size == 1


def _with_fused_adapters(launched_run: Launch, config: Table) -> Launch:
    """Returns the run with adapters in axolotl's fused kernels, or in PEFT's layers if those are not modelled.

    Before commit b3289fd190 of 2026-03-22 (0.16) axolotl turned them on by itself with `lora_dropout: 0` alone.
    """
    settings, note = launched_run.settings, ""
    if settings.get("use_dora") or getattr(launched_run.framework_settings, "stage", None) == 3:
        feature = "DoRA" if settings.get("use_dora") else "ZeRO-3"
        note = f"axolotl's fused kernels of adapters with {feature} are not modelled: PEFT's layers are counted"
    elif settings.get("base") != "int8" and settings.get("lora_targets"):
        settings = {**settings, "fused_adapters": True}
        if config.get("lora_dropout") != 0 and all(config.get(kernel) is None for kernel in ADAPTER_KERNELS):
            note = (
                "axolotl's fused kernels of adapters are counted, which versions before 0.16 turn on only with "
                "lora_dropout: 0; lora_mlp_kernel: false counts PEFT's layers, which those run"
            )
    return replace(
        launched_run,
        settings=settings,
        notes=(*launched_run.notes, note) if note else launched_run.notes,
        software_stack="axolotl" if launched_run.framework == "torch" else launched_run.software_stack,
    )


def _device_count_and_group_sizes(reader: LaunchReader, config: Table) -> tuple[int | None, dict[str, Any]]:
    """Returns the number of devices (None if unknown) and the group sizes as accelerate's `parallelism_config`.

    Source: utils/distributed.py, `_get_parallel_config_kwargs`: devices that no size names replicate the model.
    """
    size_names = ("tensor_parallel_size", "context_parallel_size", "dp_replicate_size", "dp_shard_size")
    settings = {"context_parallel_size": config.get("sequence_parallel_degree"), **config}
    tp, cp, replica_count, shard_count = (
        reader.integer(settings, size_name, 1) if settings.get(size_name) else 1 for size_name in size_names
    )
    world_size = reader.source.world_size
    packs_samples = bool(config.get("sample_packing"))  # validation.py, `validate_ring_attn_func`
    if cp > 1 and packs_samples:
        reader.notes.append("context_parallel_size: keys of all heads are gathered at once, an upper bound")
    group_sizes = {
        "tp_size": tp,
        "cp_size": cp,
        "cp_comm_strategy": "allgather" if packs_samples or cp == 1 else "alltoall",
    }
    if shard_count == 1:
        fewest_devices = tp * cp * replica_count
        if world_size is None and fewest_devices > 1:
            reader.notes.append(f"{fewest_devices} devices are assumed, as few as the groups can have")
        return world_size or (fewest_devices if fewest_devices > 1 else None), {
            **group_sizes,
            "dp_replicate_size": replica_count,
        }
    world_size = world_size or tp * cp * replica_count * shard_count
    if replica_count == 1:
        replica_count = max(1, world_size // (tp * cp * shard_count))
    if not config.get("fsdp") and not config.get("fsdp_config"):
        raise reader.argument_error("dp_shard_size", f"{shard_count} without FSDP; expected fsdp_config")
    return world_size, {**group_sizes, "dp_replicate_size": replica_count, "dp_shard_size": shard_count}


def _refuse_published_quantization(reader: LaunchReader, config: Table) -> None:
    """Reports a model that is published in 4 or 8 bits as not modelled (loaders/model.py)."""
    if config.get("model_quantization_config") and not reader.table(config, "model_quantization_config_kwargs").get(
        "dequantize"
    ):
        reader.refuse(
            "model_quantization_config",
            "weights that stay in the published format are not modelled; model_quantization_config_kwargs with "
            "dequantize: true is",
        )


def _refuse_trained_parameter_patterns(reader: LaunchReader, config: Table) -> None:
    """Reports patterns that select which parameters are trained as not modelled (utils/freeze.py)."""
    module_patterns = config.get("unfrozen_parameters") or []
    if not isinstance(module_patterns, list):
        raise reader.value_error("unfrozen_parameters", module_patterns, "a list of patterns")
    if not module_patterns:
        return
    trained_modules = {
        re.sub(r"[\^$*\\]|\.$", "", str(module_pattern)).strip(".") for module_pattern in module_patterns
    }
    if (
        "model.language_model" not in trained_modules
        or not trained_modules <= LANGUAGE_MODEL_MODULES
        or config.get("adapter")
    ):
        reader.refuse("unfrozen_parameters", "training of some parameters alone is not modelled")


LANGUAGE_MODEL_MODULES = {"model.language_model", "lm_head", "embed_tokens"}
"""Names of modules that make up the language model beside encoders of images."""


def _accumulation_steps(reader: LaunchReader, config: Table) -> int:
    """Returns the number of micro-batches per step, as stated in the file or derived from the global batch size."""
    if config.get("gradient_accumulation_steps") is None and config.get("batch_size") is not None:
        global_batch = read_integer(reader, "batch_size", config["batch_size"])
        return max(1, global_batch // reader.integer(config, "micro_batch_size", 1))
    return reader.integer(config, "gradient_accumulation_steps", 1)


def _sixteen_bit_format(reader: LaunchReader, config: Table) -> str | None:
    """Returns the 16-bit number format in which the model is loaded and trained; None for fp32.

    `bf16_value: auto`, the default, is bf16 where the accelerator has it (`resolve_dtype`).
    """
    has_stated_format = any(config.get(argument_name) for argument_name in ("fp16", "float16", "float32", "bfloat16"))
    bf16_value = "auto" if config.get("bf16") is None and not has_stated_format else config.get("bf16")
    if bf16_value == "auto":
        if not config.get("fp16"):
            reader.assumed_defaults["bf16"] = True
            return "bf16"
        bf16_value = False
    format_flags = {
        format_name: reader.flag({**config, "bf16": bf16_value}, format_name)
        for format_name in ("bf16", "bfloat16", "fp16", "float16")
    }
    if format_flags["bf16"] or format_flags["bfloat16"]:
        return "bf16"
    return "fp16" if format_flags["fp16"] or format_flags["float16"] else None


def _kernel_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of recomputation, attention, compilation and the loss."""
    kernel_settings: dict[str, Any] = {}
    uses_checkpointing = config.get("gradient_checkpointing")
    if uses_checkpointing in ("offload", "offload_disk", "unsloth"):
        kernel_settings |= {"recompute": "full", "offload_activations": True}
    elif reader.flag(config, "gradient_checkpointing"):
        checkpoint_arguments = config.get("gradient_checkpointing_kwargs")
        if checkpoint_arguments is None:
            reader.assumed_defaults["gradient_checkpointing_kwargs.use_reentrant"] = True
            checkpoint_arguments = {"use_reentrant": True}
        if not isinstance(checkpoint_arguments, Mapping):
            raise reader.value_error("gradient_checkpointing_kwargs", checkpoint_arguments, "a table")
        kernel_settings["recompute"] = "full-reentrant" if checkpoint_arguments.get("use_reentrant") is True else "full"
    if config.get("activation_offloading"):
        kernel_settings["offload_activations"] = True
        kernel_settings["recompute"] = "full"  # the hidden states of checkpointed layers go to the host
    attention_flag = next((flag_name for flag_name in ATTENTION_FLAGS if config.get(flag_name) is True), "")
    if config.get("attn_implementation") is not None:
        kernel_settings |= attention_settings(reader, "attn_implementation", config["attn_implementation"])
    elif attention_flag:
        kernel_settings |= attention_settings(reader, attention_flag, ATTENTION_FLAGS[attention_flag])
    else:
        kernel_settings |= assume_default_attention(reader)
    if config.get("torch_compile") not in (None, False, "auto"):
        kernel_settings["compile"] = True
    return kernel_settings | _loss_settings(reader, config)


def _loss_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of norms and loss, with the fused kernels of Liger-Kernel and Cut Cross-Entropy."""
    loss_settings: dict[str, Any] = {}
    plugins = config.get("plugins") or []
    if not isinstance(plugins, list):
        raise reader.value_error("plugins", plugins, "a list of names")
    for plugin in plugins:
        if str(plugin).rpartition(".")[2] not in PLUGINS:
            reader.refuse(f"plugins.{plugin}"[:100], "what it changes is not modelled")
    if config.get("liger_rms_norm") or config.get("liger_layer_norm"):
        loss_settings["norm"] = "liger" if config.get("liger_glu_activation") else "fused"
    elif config.get("liger_glu_activation"):
        reader.notes.append("liger_glu_activation: saves a product of each gated network less than is counted")
    if config.get("liger_rms_norm_gated"):
        reader.notes.append("liger_rms_norm_gated: the gated norm of linear attention is counted step by step")
    if config.get("liger_rope"):
        reader.notes.append("liger_rope: turns queries and keys in place, of which copies are counted")
    if config.get("liger_fused_linear_cross_entropy"):
        loss_settings["cross_entropy"] = "chunked"
    elif config.get("liger_cross_entropy"):
        loss_settings |= {"cross_entropy": "fused", "logits_dtype": "fp32"}  # transformers copies logits to fp32 first
    elif config.get("chunked_cross_entropy"):
        chunk_count = reader.integer(config, "chunked_cross_entropy_num_chunks", 8)  # monkeypatch/loss/chunked.py
        loss_settings |= {
            "cross_entropy": "split",
            "loss_chunk": -(-reader.integer(config, "sequence_len", 512) // chunk_count),
        }
    elif config.get("cut_cross_entropy") or any(str(plugin).endswith(CUT_CROSS_ENTROPY) for plugin in plugins):
        loss_settings["cross_entropy"] = "chunked"
        reader.notes.append("Cut Cross-Entropy is counted as Liger-Kernel's chunked loss, an upper bound")
    return loss_settings


LINEAR_EXPERTS = "llama4_linearized_experts"
"""Key that makes Llama 4's experts linear layers, which bitsandbytes quantizes."""


def _adapter_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of adapters. QLoRA uses double quantization (loaders/model.py)."""
    adapter_kind = config.get("adapter")
    if adapter_kind in (None, "", False):
        reader.refuse_if_set(config, {LINEAR_EXPERTS: "experts as linear layers are not modelled without adapters"})
        for argument_name in ("load_in_4bit", "load_in_8bit"):
            if config.get(argument_name):
                reader.refuse(argument_name, "quantized weights take no gradient without an adapter")
        return {}
    if adapter_kind not in ("lora", "qlora"):
        raise reader.value_error("adapter", adapter_kind, "lora or qlora")
    if config.get("lora_r") is None:
        raise reader.argument_error("lora_r", "missing; expected the rank of the adapters, or --lora-rank")
    target_modules = "all-linear" if config.get("lora_target_linear") else config.get("lora_target_modules")
    has_linear_experts = (
        reader.flag(config, LINEAR_EXPERTS)
        and adapter_kind == "qlora"
        and not (target_modules == "all-linear" or "experts." in str(target_modules))
    )
    if reader.flag(config, LINEAR_EXPERTS) and not has_linear_experts:
        reader.refuse(LINEAR_EXPERTS, "experts as linear layers are modelled in 4 bits and without adapters alone")
    adapter_settings = lora_settings(
        reader,
        rank=("lora_r", config["lora_r"]),
        targets_argument=("lora_target_modules", target_modules),
        saved_modules=("lora_modules_to_save", config.get("lora_modules_to_save")),
        dropout_value=config.get("lora_dropout"),
        magnitude_value=reader.flag(config, "peft_use_dora"),
        expert_argument=("lora_target_parameters", config.get("lora_target_parameters")),
    )
    if adapter_kind == "qlora" and config.get("load_in_4bit") is not False:
        adapter_settings["base"] = _four_bit_weight_format(reader, config)
        if reader.flag(config, "quantize_moe_experts") or has_linear_experts:
            if "lora_experts" in adapter_settings:
                refusal_reason = (
                    "adapters of experts in 4 bits are not modelled; expected it without quantize_moe_experts"
                )
                reader.refuse("lora_target_parameters", refusal_reason)
            adapter_settings["quantized_experts"] = True
            if has_linear_experts:  # monkeypatch/models/llama4/modeling.py: three linear layers of each expert
                reader.notes.append("llama4_linearized_experts: a layer's experts are decoded at once, an upper bound")
            if config.get("fsdp_config") or config.get("fsdp"):
                # docs/expert_quantization.qmd, "Limitations"; examples/glm47-flash: 24 GiB alone, 29 on each of two
                reader.notes.append(
                    "experts in 4 bits are assumed to be divided over the devices; axolotl documents that FSDP2 leaves "
                    "some layers whole and may need more than one device alone"
                )
    elif config.get("load_in_8bit"):
        adapter_settings["base"] = "int8"
    if reader.flag(config, "relora"):  # monkeypatch/relora.py: adapters join the weights and start anew at each restart
        reader.notes.append(
            "relora: the sum of one layer's weight and its adapter, made at each restart, is not counted"
        )
    if config.get("quantize_moe_experts") and "quantized_experts" not in adapter_settings:
        reader.refuse("quantize_moe_experts", "experts in 4 bits alone are modelled, with adapter: qlora")
    return adapter_settings


def _four_bit_weight_format(reader: LaunchReader, config: Table) -> str:
    """Returns the number format of 4-bit weights, by default nf4 with double quantization."""
    bnb_options = config.get("bnb_config_kwargs") or {}
    if not isinstance(bnb_options, Mapping):
        raise reader.value_error("bnb_config_kwargs", bnb_options, "a table")
    for bnb_key, bnb_value in bnb_options.items():
        if bnb_key not in ("bnb_4bit_use_double_quant", "bnb_4bit_quant_type") or bnb_value not in (True, False, "nf4"):
            reader.refuse(f"bnb_config_kwargs.{bnb_key}"[:100], "it is not modelled; bnb_4bit_use_double_quant is")
    return "nf4" if bnb_options.get("bnb_4bit_use_double_quant") is False else "nf4-dq"


OVERRIDES_WITHOUT_MEMORY = ("output_router_logits", "use_cache", "rope_scaling", "rope_theta", "rope_parameters")
"""Fields of the model's config that change no memory, or only the memory of the routers' loss."""


def _refuse_config_overrides(reader: LaunchReader, config: Table) -> None:
    """Reports overrides of the model's config that llmcalc does not model."""
    for table_key in ("model_config", "overrides_of_model_config"):
        override_table = config.get(table_key) or {}
        if not isinstance(override_table, Mapping):
            raise reader.value_error(table_key, override_table, "a table")
        for field_name in override_table:
            if field_name not in OVERRIDES_WITHOUT_MEMORY:
                reader.refuse(f"{table_key}.{field_name}"[:100], "this field of the config is not replaced")
        if override_table.get("output_router_logits"):
            reader.notes.append(f"{table_key}.output_router_logits: the loss of the routers is not counted")


LOSS_BY_PREFERENCE_METHOD = {"dpo": "sigmoid", "ipo": "ipo", "simpo": "simpo", "orpo": "orpo"}
"""Value of `rl` → the loss on preference pairs."""


def _preference_settings(reader: LaunchReader, config: Table, run_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the batch settings for training on preference pairs, such as DPO."""
    loss_type = str(config["rl"])
    if loss_type == "kto":
        return kto_settings(reader, run_settings)
    if loss_type not in LOSS_BY_PREFERENCE_METHOD:
        reader.refuse("rl", f"'{loss_type[:30]}' is not modelled; {', '.join(LOSS_BY_PREFERENCE_METHOD)}, kto are")
        return {}
    has_cached_reference = reader.flag(config, "precompute_ref_log_probs")
    return preference_pair_settings(
        reader, LOSS_BY_PREFERENCE_METHOD[loss_type], run_settings, has_cached_reference=has_cached_reference
    )


def _trainer_arguments(config: Table, sixteen_bit_dtype: str | None) -> dict[str, Any]:
    """Returns the Trainer's arguments that select the framework, DeepSpeed or FSDP.

    Version 2 of FSDP keeps shards in the format of the weights (monkeypatch/accelerate/fsdp2.py).
    """
    arguments = {
        framework_argument: config[framework_argument]
        for framework_argument in ("deepspeed", "fsdp", "fsdp_config")
        if config.get(framework_argument)
    }
    fsdp_version = config.get("fsdp_version")
    if isinstance(arguments.get("fsdp_config"), Mapping) and fsdp_version is not None:
        arguments["fsdp_config"] = {**arguments["fsdp_config"], "version": fsdp_version}
    if fsdp_version != 2:
        arguments |= {"bf16": sixteen_bit_dtype == "bf16", "fp16": sixteen_bit_dtype == "fp16"}
    return arguments
