"""Reads the settings of Hugging Face's Trainer and of accelerate, in YAML or JSON. They name no architecture.

Sources: transformers/training_args.py (5.23), with arguments that recipes of TRL and the alignment handbook add; the
files that `accelerate config` writes (accelerate 1.x, commands/config, utils/dataclasses.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import InputError, shown
from ...run.layout import Layout, Zero
from .deepspeed import read_into
from .launch import Framework, Launch, Reading, flag_value, size_of, unknown_keys, with_file

Table = Mapping[str, Any]

Fetch = Callable[[str], Table]
"""Reads the tables of a file that another names."""

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw_torch": {"optimizer": "adamw", "optimizer_impl": "foreach"},
    "adamw_torch_fused": {"optimizer": "adamw", "optimizer_impl": "fused"},
    "adamw_hf": {"optimizer": "adamw", "optimizer_impl": "loop"},
    "adamw_bnb_8bit": {"optimizer": "adamw-8bit"},
    "adamw_8bit": {"optimizer": "adamw-8bit"},
    "adafactor": {"optimizer": "adafactor"},
    "sgd": {"optimizer": "sgd"},
}
"""`optim` → the words of `llmcalc memory`."""

TRAINER_READ = frozenset(
    """
    per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs
    activation_checkpointing activation_checkpointing_kwargs optim bf16 fp16 torch_compile fsdp fsdp_config deepspeed
    max_seq_length max_length block_size cutoff_len torch_dtype dtype attn_implementation use_liger_kernel
    model_name_or_path use_peft lora_r lora_target_modules lora_dropout load_in_4bit load_in_8bit train_batch_size
    per_gpu_train_batch_size packing lora_modules_to_save parallelism_config optim_args optim_target_modules
    auto_find_batch_size neftune_noise_alpha torch_empty_cache_steps
    """.split()  # noqa: SIM905
)

TRAINER_IGNORED = frozenset(
    """
    output_dir overwrite_output_dir num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
    warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices
    max_grad_norm label_smoothing_factor bf16_full_eval fp16_full_eval tf32 torch_compile_backend torch_compile_mode
    liger_kernel_config use_cache logging_strategy logging_steps logging_first_step log_on_each_node
    logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name
    project trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy evaluation_strategy eval_steps
    eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches
    eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model save_strategy
    save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token hub_private_repo
    hub_model_id hub_strategy hub_always_push hub_revision load_best_model_at_end metric_for_best_model
    greater_is_better ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed
    accelerator_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
    dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names
    train_sampling_strategy group_by_length length_column_name ddp_find_unused_parameters ddp_broadcast_buffers
    ddp_static_graph ddp_backend ddp_timeout debug skip_memory_metrics do_train do_eval do_predict
    resume_from_checkpoint local_rank save_safetensors logging_dir model_revision trust_remote_code dataset_name
    dataset_config dataset_mixer dataset_splits dataset_text_field dataset_num_proc preprocessing_num_workers
    chat_template tokenizer_name_or_path lora_alpha bnb_4bit_quant_type use_bnb_nested_quant
    dataset_kwargs eos_token pad_token tags half_precision_backend push_to_hub_model_id hub_private save_safetensor
    do_sample special_tokens dataset_train_split dataset_test_split dataset_mixture dataset_prepared_path
    log_completions fp16_opt_level past_index no_cuda use_cpu use_mps_device mp_parameters include_inputs_for_metrics
    ddp_bucket_cap_mb
    """.split()  # noqa: SIM905
)
"""Arguments that change no memory of a training step, or less than a block of it."""

TRAINER_SIGNS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "optim",
    "fsdp",
)

ACCELERATE_SIGNS = ("distributed_type", "compute_environment", "fsdp_config", "megatron_lm_config", "num_processes")

ACCELERATE_READ = frozenset(
    """
    distributed_type mixed_precision num_processes num_machines fsdp_config deepspeed_config megatron_lm_config
    parallelism_config dynamo_config gradient_accumulation_steps use_cpu fp8_config downcast_bf16
    """.split()  # noqa: SIM905
)

ACCELERATE_IGNORED = frozenset(
    """
    compute_environment debug enable_cpu_affinity gpu_ids machine_rank main_process_ip main_process_port
    main_training_function rdzv_backend same_network tpu_env tpu_use_cluster tpu_use_sudo tpu_name tpu_zone commands
    command_file ipex_config mpirun_config main_process_port_ rdzv_conf max_restarts monitor_interval
    """.split()  # noqa: SIM905
)

FSDP_READ = frozenset(
    """
    version sharding_strategy reshard_after_forward offload_params activation_checkpointing xla
    """.split()  # noqa: SIM905
)

FSDP_IGNORED = frozenset(
    """
    auto_wrap_policy transformer_layer_cls_to_wrap transformer_cls_names_to_wrap min_num_params state_dict_type
    sync_module_states cpu_ram_efficient_loading use_orig_params backward_prefetch backward_prefetch_policy
    forward_prefetch limit_all_gathers activation_cpu_offload xla_fsdp_settings xla_fsdp_v2 xla_fsdp_grad_ckpt
    """.split()  # noqa: SIM905
)

STRATEGIES: dict[str, tuple[Zero, bool]] = {
    "FULL_SHARD": (3, True),
    "SHARD_GRAD_OP": (3, False),
    "NO_SHARD": (0, True),
    "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (3, False),
    "1": (3, True),
    "2": (3, False),
    "3": (0, True),
    "4": (3, True),
    "5": (3, False),
}
"""FSDP's word → what is divided, and whether a layer's weights are given back after its forward pass."""

PER_MACHINE = 8
"""Devices of a machine over which a hybrid strategy divides weights, where the file does not say."""


def is_trainer(data: Table) -> bool:
    """Whether a table has arguments of the Trainer."""
    return any(name in data for name in TRAINER_SIGNS) and "distributed_type" not in data


def is_accelerate(data: Table) -> bool:
    """Whether a table is one of accelerate's configs."""
    return "distributed_type" in data or sum(name in data for name in ACCELERATE_SIGNS) > 1


# ---- the Trainer


def read_trainer(
    data: Table, where: str, world_size: int | None = None, allow_unknown: bool = False, fetch: Fetch | None = None
) -> Launch:
    """Reads arguments of the Trainer. fetch: reads a file that they name, such as that of `deepspeed`.

    Raises `InputError`, which names file and argument.
    """
    reading = Reading(where, allow_unknown)
    try:
        return _trainer(reading, data, world_size, fetch)
    except InputError as error:
        raise with_file(where, error) from None


def _trainer(reading: Reading, data: Table, world_size: int | None, fetch: Fetch | None) -> Launch:
    reading.ignored += [name for name in data if name in TRAINER_IGNORED]
    unknown_keys(reading, data, (*TRAINER_READ, *TRAINER_IGNORED), "", "no argument that is known")
    words = _trainer_words(reading, data)
    world = world_size or 1
    if world_size is None:
        reading.notes.append("1 device is assumed; --world-size says another number")
    target = data.get("model_name_or_path")
    framework: Framework = "torch"
    layout, own = Layout(dp=world), {}
    given = data.get("deepspeed")
    if given:
        table = given if isinstance(given, Mapping) else _fetched(reading, "deepspeed", given, fetch)
        half = {name: bool(data.get(name)) for name in ("bf16", "fp16")}
        inner = read_into(reading, table, world, {**words, **half})
        kept = {key: value for key, value in words.items() if key not in ("precision", "dtype", "optimizer_impl")}
        words = {**kept, **inner.settings}
        framework, layout, own = inner.framework, inner.layout, inner.own
    elif data.get("fsdp") or data.get("fsdp_config"):
        layout, more = _fsdp(reading, _trainer_fsdp(reading, data), world, 1)
        framework = "fsdp2"
        words |= more
    reading.check_unknown()
    return Launch(
        where=reading.where,
        kind="trainer",
        framework=framework,
        target="" if target is None else str(target)[:200],
        layout=layout,
        settings=words,
        own=own,
        unknown=reading.unknown,
        ignored=tuple(reading.ignored),
        notes=tuple(reading.notes),
    )


def _fetched(reading: Reading, name: str, path: Any, fetch: Fetch | None) -> Table:
    if not isinstance(path, str) or fetch is None:
        raise reading.wrong(name, f"{shown(path)}; expected the path of a DeepSpeed JSON that can be read")
    return fetch(path)


def _trainer_words(reading: Reading, data: Table) -> dict[str, Any]:
    def size(name: str, default: int) -> int:
        return default if data.get(name) is None else size_of(reading, name, data[name])

    def flag(name: str) -> bool:
        return data.get(name) is not None and flag_value(reading, name, data[name])

    words: dict[str, Any] = {
        "phase": "training",
        "batch": size("per_device_train_batch_size", 8),
        "num_microbatches": size("gradient_accumulation_steps", 1),
    }
    for name in ("max_seq_length", "max_length", "block_size", "cutoff_len"):
        if data.get(name) is not None:
            words["seq"] = size_of(reading, name, data[name])
            break
    optim = str(data.get("optim", "adamw_torch_fused"))[:60]
    if optim.startswith("OptimizerNames."):
        optim = optim.partition(".")[2].lower()
    if optim in OPTIMIZERS:
        words |= OPTIMIZERS[optim]
    else:
        reading.unknown["optim"] = f"'{optim}' is not modelled"
    words |= _trainer_precision(reading, data, flag)
    words |= _trainer_kernels(reading, data, flag)
    words |= _trainer_adapters(reading, data, flag)
    for name in ("auto_find_batch_size", "neftune_noise_alpha", "optim_args", "optim_target_modules", "load_in_8bit"):
        if data.get(name) not in (None, False, ""):
            reading.unknown[name] = "it is modelled without"
    return words


WEIGHTS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


def _trainer_precision(reading: Reading, data: Table, flag: Callable[[str], bool]) -> dict[str, Any]:
    """Weights in their own format; with bf16 or fp16, autocast over weights in fp32."""
    kind = data.get("torch_dtype", data.get("dtype"))
    half = "bf16" if flag("bf16") else "fp16" if flag("fp16") else None
    if kind in (None, "auto"):
        if half is None:
            return {"precision": "fp32"}
        reading.notes.append("weights in fp32 are assumed, with autocast")
        return {"precision": "autocast"}
    dtype = WEIGHTS.get(str(kind).removeprefix("torch.")[:20])
    if dtype is None:
        raise reading.wrong("torch_dtype", f"{shown(kind)}; expected bfloat16, float16 or float32")
    if dtype == "fp32":
        return {"precision": "fp32" if half is None else "autocast"}
    return {"dtype": dtype, "master_weights": "none"}


def _trainer_kernels(reading: Reading, data: Table, flag: Callable[[str], bool]) -> dict[str, Any]:
    words: dict[str, Any] = {}
    if flag("gradient_checkpointing") or flag("activation_checkpointing"):
        how = data.get("gradient_checkpointing_kwargs") or data.get("activation_checkpointing_kwargs") or {}
        if not isinstance(how, Mapping):
            raise reading.wrong("gradient_checkpointing_kwargs", f"{shown(how)}; expected a table")
        entrant = how.get("use_reentrant", False)
        words["recompute"] = "full-reentrant" if entrant in (True, "true", "True") else "full"
    attention = data.get("attn_implementation")
    if attention is not None:
        known = {"eager": "eager", "sdpa": "flash", "kernels-community/flash-attn2": "flash"}
        word = known.get(str(attention)[:60], "flash" if str(attention).startswith("flash_attention") else None)
        if word is None:
            raise reading.wrong("attn_implementation", f"{shown(attention)}; expected eager, sdpa or flash_attention_2")
        words["attn_implementation"] = word
    if flag("torch_compile"):
        words["compile"] = True
    if flag("use_liger_kernel"):
        words |= {"norm": "fused", "cross_entropy": "chunked"}
    return words


def _trainer_adapters(reading: Reading, data: Table, flag: Callable[[str], bool]) -> dict[str, Any]:
    words: dict[str, Any] = {}
    if flag("load_in_4bit"):
        words["base"] = "nf4"
    if data.get("lora_r") is None and not flag("use_peft"):
        return words
    words["lora_rank"] = size_of(reading, "lora_r", data.get("lora_r", 16))
    targets = data.get("lora_target_modules")
    if targets is not None:
        names = [targets] if isinstance(targets, str) else targets
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise reading.wrong("lora_target_modules", f"{shown(targets)}; expected a list of names")
        words["lora_targets"] = tuple(names)
    saved = data.get("lora_modules_to_save")
    if isinstance(saved, list) and all(isinstance(one, str) for one in saved):
        words["modules_to_save"] = tuple(saved)
    if data.get("lora_dropout") not in (None, 0, 0.0):
        words["lora_dropout"] = True
    return words


def _trainer_fsdp(reading: Reading, data: Table) -> dict[str, Any]:
    """The Trainer's words for FSDP in those of accelerate."""
    config = data.get("fsdp_config") or {}
    if not isinstance(config, Mapping):
        raise reading.wrong("fsdp_config", f"{shown(config)}; expected a table, or a file's contents")
    out = {str(key).removeprefix("fsdp_"): value for key, value in config.items()}
    said = data.get("fsdp") or ""
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    for word in words if said is not True else []:
        name = str(word).upper()
        if name in STRATEGIES:
            out.setdefault("sharding_strategy", name)
        elif name == "OFFLOAD":
            out["offload_params"] = True
        elif name not in ("AUTO_WRAP", "TRUE"):
            raise reading.wrong("fsdp", f"{shown(word)}; expected full_shard, shard_grad_op, hybrid_shard or no_shard")
    return out


# ---- accelerate


def read_accelerate(
    data: Table, where: str, world_size: int | None = None, allow_unknown: bool = False, fetch: Fetch | None = None
) -> Launch:
    """Reads accelerate's config. fetch: reads a file that it names, such as `deepspeed_config_file`.

    Raises `InputError`, which names file and key.
    """
    reading = Reading(where, allow_unknown)
    try:
        return _accelerate(reading, data, world_size, fetch)
    except InputError as error:
        raise with_file(where, error) from None


def _accelerate(reading: Reading, data: Table, world_size: int | None, fetch: Fetch | None) -> Launch:
    reading.ignored += [name for name in data if name in ACCELERATE_IGNORED]
    unknown_keys(reading, data, (*ACCELERATE_READ, *ACCELERATE_IGNORED), "", "no key that is known")
    world = world_size
    if world is None:
        world = size_of(reading, "num_processes", data["num_processes"]) if data.get("num_processes") else 1
        if not data.get("num_processes"):
            reading.notes.append("1 device is assumed; --world-size says another number")
    machines = size_of(reading, "num_machines", data["num_machines"]) if data.get("num_machines") else 1
    kind = str(data.get("distributed_type", "NO")).upper()[:40]
    words: dict[str, Any] = {"phase": "training", **_mixed(reading, data)}
    framework: Framework = "torch"
    layout, own = Layout(dp=world), {}
    if data.get("gradient_accumulation_steps") is not None:
        steps = size_of(reading, "gradient_accumulation_steps", data["gradient_accumulation_steps"])
        words["num_microbatches"] = steps
    dynamo = _table(reading, data, "dynamo_config").get("dynamo_backend", "NO")
    if str(dynamo).upper() != "NO":
        words["compile"] = True
    if kind == "FSDP":
        table = {str(key).removeprefix("fsdp_"): value for key, value in _table(reading, data, "fsdp_config").items()}
        layout, more = _fsdp(reading, table, world, machines, _table(reading, data, "parallelism_config"))
        framework = "fsdp2"
        words |= more
    elif kind == "DEEPSPEED":
        inner = _accelerate_deepspeed(reading, data, world, words, fetch)
        words = {**{key: value for key, value in words.items() if key != "precision"}, **inner.settings}
        framework, layout, own = inner.framework, inner.layout, inner.own
    elif kind == "MEGATRON_LM":
        layout = _megatron_layout(reading, _table(reading, data, "megatron_lm_config"), world, words)
        framework = "megatron"
    elif kind not in ("NO", "MULTI_GPU"):
        raise reading.wrong(
            "distributed_type", f"{shown(kind)}; expected NO, MULTI_GPU, FSDP, DEEPSPEED or MEGATRON_LM"
        )
    reading.check_unknown()
    return Launch(
        where=reading.where,
        kind="accelerate",
        framework=framework,
        layout=layout,
        settings=words,
        own=own,
        unknown=reading.unknown,
        ignored=tuple(reading.ignored),
        notes=tuple(reading.notes),
    )


def _table(reading: Reading, data: Table, name: str) -> Table:
    found = data.get(name)
    if found in (None, []):
        return {}
    if not isinstance(found, Mapping):
        raise reading.wrong(name, f"{shown(found)}; expected a table")
    return found


def _mixed(reading: Reading, data: Table) -> dict[str, Any]:
    name = str(data.get("mixed_precision") or "no").lower()[:20]
    if name in ("no", "false"):
        return {"precision": "fp32"}
    if name in ("bf16", "fp16"):
        return {"precision": "autocast"}
    if name == "fp8":
        reading.unknown["mixed_precision"] = "products in 8 bits are not modelled"
        return {}
    raise reading.wrong("mixed_precision", f"{shown(data['mixed_precision'])}; expected no, bf16 or fp16")


def _fsdp(
    reading: Reading, table: Table, world: int, machines: int, parallel: Table | None = None
) -> tuple[Layout, dict[str, Any]]:
    """The layout of FSDP and the settings that follow. table: keys without `fsdp_`."""
    at = "fsdp_config"
    reading.ignored += [f"{at}.{key}"[:80] for key in table if key in FSDP_IGNORED]
    unknown_keys(reading, table, (*FSDP_READ, *FSDP_IGNORED), at, "no key that is known")
    version = size_of(reading, f"{at}.fsdp_version", table.get("version", 1))
    if version == 1:
        reading.notes.append("FSDP version 1 is counted as version 2, which divides each tensor by itself")
    zero, reshard, hybrid = _strategy(reading, table)
    if table.get("offload_params") not in (None, False, "false"):
        reading.unknown[f"{at}.fsdp_offload_params"] = "offloading to the host is not modelled"
    if table.get("xla") not in (None, False):
        reading.unknown[f"{at}.xla"] = "XLA is not modelled"
    words: dict[str, Any] = {}
    if table.get("activation_checkpointing") in (True, "true"):
        words["recompute"] = "full"
    sizes = {str(key).removeprefix("parallelism_config_"): value for key, value in (parallel or {}).items()}
    known = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
    harmless = ("cp_comm_strategy", "sp_size", "sp_backend", "sp_seq_length_is_variable", "sp_attn_implementation")
    unknown_keys(reading, sizes, (*known, *harmless), "parallelism_config", "no key that is known")
    tp, cp = (size_of(reading, f"parallelism_config.{name}", sizes.get(name, 1)) for name in ("tp_size", "cp_size"))
    replicas = size_of(reading, "parallelism_config.dp_replicate_size", sizes.get("dp_replicate_size", 1))
    if sizes.get("sp_size") not in (None, 1):
        reading.unknown["parallelism_config.sp_size"] = "Ulysses is not modelled"
    if hybrid:
        replicas = machines if machines > 1 else max(1, world // PER_MACHINE)
    if world % (tp * cp * replicas):
        raise InputError(f"--world-size: {world}; expected a multiple of {tp * cp * replicas}")
    exchange = "allgather" if sizes.get("cp_comm_strategy", "allgather") == "allgather" else "p2p"
    dp = world // (tp * cp)
    layout = Layout(
        tp=tp,
        cp=cp,
        dp=dp,
        zero=zero if dp * cp > 1 else 0,
        hsdp_replicas=replicas,
        reshard=reshard,
        sequence_parallel=tp > 1,
        cp_comm="allgather" if exchange == "allgather" else "p2p",
    )
    return layout, words


def _strategy(reading: Reading, table: Table) -> tuple[Zero, bool, bool]:
    """What is divided, whether weights are given back after the forward pass, and whether groups have copies."""
    again = table.get("reshard_after_forward")
    name = str(table.get("sharding_strategy", "FULL_SHARD")).upper()[:40]
    if isinstance(again, str) and again.upper() in STRATEGIES:  # version 1 wrote a strategy under this name
        name, again = again.upper(), None
    if name not in STRATEGIES:
        known = ", ".join(word for word in STRATEGIES if not word.isdigit())
        raise reading.wrong("fsdp_config.fsdp_sharding_strategy", f"{shown(name)}; expected one of {known}")
    zero, reshard = STRATEGIES[name]
    if again is not None:
        reshard = flag_value(reading, "fsdp_config.fsdp_reshard_after_forward", again)
    return zero, reshard, name in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")


PLUGIN = frozenset(
    """
    zero_stage gradient_accumulation_steps offload_optimizer_device offload_param_device deepspeed_config_file
    """.split()  # noqa: SIM905
)

PLUGIN_IGNORED = frozenset(
    """
    zero3_init_flag zero3_save_16bit_model gradient_clipping deepspeed_multinode_launcher deepspeed_hostfile
    deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_moe_layer_cls_names offload_optimizer_nvme_path
    offload_param_nvme_path
    """.split()  # noqa: SIM905
)


def _accelerate_deepspeed(reading: Reading, data: Table, world: int, words: Table, fetch: Fetch | None) -> Launch:
    table = _table(reading, data, "deepspeed_config")
    at = "deepspeed_config"
    reading.ignored += [f"{at}.{key}"[:80] for key in table if key in PLUGIN_IGNORED]
    unknown_keys(reading, table, (*PLUGIN, *PLUGIN_IGNORED), at, "no key that is known")
    name = str(data.get("mixed_precision") or "no").lower()
    half = {"bf16": name == "bf16", "fp16": name == "fp16", "batch": 1}
    if table.get("deepspeed_config_file") is not None:
        config = _fetched(reading, f"{at}.deepspeed_config_file", table["deepspeed_config_file"], fetch)
        return _without_batch(read_into(reading, config, world, half), config)
    stage = size_of(reading, f"{at}.zero_stage", table.get("zero_stage", 2), least=0)
    made: dict[str, Any] = {"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": "auto"}
    made |= {key: {"enabled": half[key]} for key in ("bf16", "fp16")}
    if table.get("gradient_accumulation_steps") is not None:
        made["gradient_accumulation_steps"] = table["gradient_accumulation_steps"]
    for key in ("offload_optimizer_device", "offload_param_device"):
        if table.get(key) not in (None, "none", False):
            reading.unknown[f"{at}.{key}"] = "offloading to the host is not modelled"
    return _without_batch(read_into(reading, made, world, half), made)


def _without_batch(launch: Launch, config: Table) -> Launch:
    """A launch without the size of a micro-batch where the config leaves it to the script."""
    from dataclasses import replace

    if config.get("train_micro_batch_size_per_gpu", "auto") != "auto":
        return launch
    return replace(launch, settings={key: value for key, value in launch.settings.items() if key != "batch"})


MEGATRON_READ = frozenset(
    """
    tp_degree pp_degree num_micro_batches sequence_parallelism recompute_activations use_distributed_optimizer
    """.split()  # noqa: SIM905
)


def _megatron_layout(reading: Reading, table: Table, world: int, words: dict[str, Any]) -> Layout:
    """The layout of accelerate's Megatron-LM plugin."""
    short = {str(key).removeprefix("megatron_lm_"): value for key, value in table.items()}
    at = "megatron_lm_config"
    unknown_keys(reading, short, (*MEGATRON_READ, "gradient_clipping"), at, "no key that is known")

    def size(name: str) -> int:
        return size_of(reading, f"{at}.megatron_lm_{name}", 1 if short.get(name) is None else short[name])

    def flag(name: str) -> bool:
        return short.get(name) is not None and flag_value(reading, f"{at}.megatron_lm_{name}", short[name])

    tp, pp = size("tp_degree"), size("pp_degree")
    if world % (tp * pp):
        raise InputError(f"--world-size: {world}; expected a multiple of {tp * pp}")
    words["num_microbatches"] = size("num_micro_batches")
    if flag("recompute_activations"):
        words["recompute"] = "attention"
    name = str(reading_precision(words))
    words |= {"dtype": "bf16", "master_weights": "fp32", "grad_dtype": "fp32"} if name == "autocast" else {}
    if name == "autocast":
        del words["precision"]
    zero: Zero = 1 if flag("use_distributed_optimizer") else 0
    return Layout(
        tp=tp, pp=pp, dp=world // (tp * pp), sequence_parallel=tp > 1 and flag("sequence_parallelism"), zero=zero
    )


def reading_precision(words: Table) -> Any:
    """The precision that `mixed_precision` asks for."""
    return words.get("precision")
