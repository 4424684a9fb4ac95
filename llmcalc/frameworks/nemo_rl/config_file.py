"""Reads a config of NeMo-RL: the training of the policy by FSDP2 or Megatron-Core, and the rollouts beside it.

Source: NVIDIA-NeMo/RL at 7ea279ab (2026-08-22): examples/configs/*.yaml for keys and defaults,
nemo_rl/models/automodel/setup.py and nemo_rl/models/megatron/setup.py for formats and recomputation,
nemo_rl/algorithms/{grpo,dpo,sft}.py for batches, models/generation/vllm/vllm_worker.py for the engine.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ...errors import short_repr
from ...parallel.layout import Layout
from ..argument_names import argument_names
from ..frozen_model import FrozenModel
from ..fsdp2.settings import TitanSettings
from ..launch.interpolation import flat_config
from ..launch.launch_types import (
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    Table,
    launch_reader,
    read_fraction,
)
from ..launch.rollout import Rollout
from ..launch.trainer import lora_settings
from ..megatron.named_model import (
    END_STAGE_ARGUMENTS,
    HOST_OPTIMIZER_ARGUMENTS,
    MegatronRunSettings,
    bridge_adapter_settings,
    end_stage_layers,
    host_optimizer_settings,
    megatron_launch_settings,
)
from .base_configs import BASE_CONFIGS

ALGORITHMS = ("grpo", "dpo", "sft", "distillation")
"""Names of the tables of modelled training algorithms."""

CONFIG_TABLES = {*ALGORITHMS, "policy", "loss_fn", "checkpointing", "cluster", "data", "data_plane", "env", "logger"}
"""Tables by which a config that builds on a base config is recognized; such a config has at least one of them."""

REFUSED_ALGORITHMS = {
    "ppo": "the value model of PPO",
    "rm": "the head of rewards",
    "reward_model_cfg": "the head of rewards",
}
"""Name of an algorithm's table → the part of this algorithm that is not modelled."""

KEYS_READ = argument_names(__file__, "read")
"""Keys of `policy` that are read, besides the keys of the rollout engine."""

MEGATRON_CORE_KEYS = {
    *(f"megatron_cfg.{name}" for name in END_STAGE_ARGUMENTS),
    *(f"megatron_cfg.optimizer.{name}" for name in HOST_OPTIMIZER_ARGUMENTS),
    *(f"megatron_cfg.cuda_graph_{name}" for name in ("impl", "modules", "scope")),
}
"""Keys of `policy` that readers of Megatron-Core's named models read."""

MODELLED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "megatron_cfg.optimizer.optimizer": ("adam",),
    "megatron_cfg.fine_grained_activation_offloading": (False,),
    "megatron_cfg.fp8_cfg.enabled": (False,),
    "megatron_cfg.mtp_num_layers": (0,),
    "megatron_cfg.use_fused_linear_logprobs": (False,),
    "megatron_cfg.moe_enable_deepep": (False,),
    "megatron_cfg.moe_grouped_gemm": (True,),
    "megatron_cfg.attention_backend": ("auto", "flash", "fused"),
    "draft.enabled": (False,),
    "reward_model_cfg.enabled": (False,),
    "precision": ("bfloat16",),
    "generation.vllm_cfg.precision": ("bfloat16", "auto", "fp8"),
    "generation.vllm_cfg.kv_cache_dtype": ("auto", "fp8", "fp8_e4m3"),
    "generation.vllm_cfg.num_first_layers_in_bf16": (0,),
    "generation.vllm_cfg.num_last_layers_in_bf16": (0,),
    "generation.vllm_cfg.pipeline_parallel_size": (1,),
    "generation.sglang_cfg.dp_size": (1,),
}
"""Key of `policy` → the values that are modelled; an absent key is modelled too."""

KEYS_IGNORED = argument_names(__file__, "ignored")
"""Keys of `policy` that change the memory of the policy's update not at all, or only a little (formats of a router)."""

IGNORED_TABLES = (
    "tokenizer.", "generation.", "scheduler.", "optimizer.kwargs.", "draft.", "reward_model_cfg.", "dynamic_batching.",
    "sequence_packing.", "dtensor_cfg.lora_cfg.", "dtensor_cfg.automodel_kwargs.", "dtensor_cfg.env_vars.",
    "dtensor_cfg.moe_parallelizer.", "megatron_cfg.optimizer.", "megatron_cfg.scheduler.", "megatron_cfg.checkpoint.",
    "megatron_cfg.distributed_data_parallel_config.", "megatron_cfg.peft.", "megatron_cfg.fp8_cfg.",
    "megatron_cfg.env_vars.", "megatron_cfg.model_overrides.", "hf_config_overrides.rope_scaling.",
)  # fmt: skip
"""Tables of `policy` whose keys do not change the memory of the policy's update, except the keys that are read."""

OPTIMIZERS = {"torch.optim.AdamW": "adamw", "torch.optim.adamw.AdamW": "adamw", "torch.optim.Adam": "adamw"}

ENGINE_FLAGS_BY_BACKEND: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "vllm": (
        "vllm_cfg",
        {
            "tensor_parallel_size": "tensor_parallel_size",
            "gpu_memory_utilization": "gpu_memory_utilization",
            "max_model_len": "max_model_len",
            "enforce_eager": "enforce_eager",
        },
    ),
    "sglang": (
        "sglang_cfg",
        {"tp_size": "tp_size", "mem_fraction_static": "mem_fraction_static", "context_length": "context_length"},
    ),
}
"""Engine of the rollouts → the engine's table in the config, and key of this table → flag of the engine."""

FP32_SHARDS = FrozenModel("nemo_rl/models/automodel/setup.py", "bfloat16", name="fp32 shards beyond 16 bits")
"""Memory of frozen weights beyond 16 bits: their shards are in fp32, which takes two more bytes per weight."""

TEACHER_NOTE = (
    "distillation: the update's loss is counted as that of SFT; the teacher, whose weights are on the host during the "
    "update, and its own pass are not counted"
)
"""Note on distillation (nemo_rl/algorithms/distillation.py, `teacher_policy.offload_after_refit`)."""

MAX_BASES = 8
"""Largest number of base configs that build on one another."""


def is_nemo_rl(config: Table) -> bool:
    """Whether a table is a config of NeMo-RL, or names a base config in `defaults`."""
    base_path = config.get("defaults")
    if isinstance(base_path, str) and base_path.endswith((".yaml", ".yml")):
        return bool(CONFIG_TABLES & set(config))
    return all(isinstance(config.get(section_name), Mapping) for section_name in ("policy", "cluster"))


def read_nemo_rl(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a config. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        merged_config = _with_base_configs(reader, config)
        for section_name, refusal_reason in REFUSED_ALGORITHMS.items():
            if isinstance(merged_config.get(section_name), Mapping):
                raise reader.argument_error(
                    section_name, f"{refusal_reason} is not modelled; expected a config of {', '.join(ALGORITHMS)}"
                )
        algorithm = next(
            (section_name for section_name in ALGORITHMS if isinstance(merged_config.get(section_name), Mapping)), ""
        )
        if not algorithm:
            raise reader.argument_error(
                "grpo", f"the file has no table of a training; expected one of {', '.join(ALGORITHMS)}"
            )
        flat_values = flat_config(
            {
                table_name: reader.table(merged_config, table_name)
                for table_name in ("policy", "cluster", "loss_fn", *ALGORITHMS)
            }
        )
        policy_table = {
            config_key.removeprefix("policy."): config_value
            for config_key, config_value in flat_values.items()
            if config_key.startswith("policy.")
        }
        _record_policy_keys(reader, policy_table)
        model_id = str(policy_table.get("model_name") or "")
        is_megatron = reader.flag(policy_table, "megatron_cfg.enabled")
        world_size = _training_device_count(reader, flat_values, policy_table)
        read_framework_run = _megatron_launch_settings if is_megatron else _fsdp_launch_settings
        launch_settings = read_framework_run(reader, policy_table, world_size)
        if algorithm == "dpo":
            launch_settings.settings["batch"] *= 2
            reader.notes.append("DPO: two sequences a pair, the loss of SFT; the reference model is on the host")
        elif algorithm == "grpo":
            reader.notes.append("GRPO: the loss of the update is counted as that of SFT; rollouts at their longest")
        elif algorithm == "distillation":
            reader.notes.append(TEACHER_NOTE)
        rollout = _read_rollout(reader, flat_values, policy_table) if algorithm in ("grpo", "distillation") else None
        framework_name = (
            "megatron" if is_megatron else "torch" if launch_settings.framework_settings is None else "fsdp2"
        )
        return reader.create_launch(framework_name, launch_settings, model_name=model_id, rollout=rollout)


def _with_base_configs(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns a config merged with the base configs in its `defaults`. Values of the config take precedence."""
    merged_config, config_folder = dict(config), ""
    for _ in range(MAX_BASES):
        base_path = merged_config.pop("defaults", None)
        if base_path is None:
            return merged_config
        if not isinstance(base_path, str):
            raise reader.value_error("defaults", base_path, "the path of one config of NeMo-RL")
        base_config_path = posixpath.join(config_folder, base_path)
        config_folder = posixpath.dirname(base_config_path)
        merged_config = _merge_configs(
            reader.tables_of_named_file("defaults", base_config_path, "a config of NeMo-RL", BASE_CONFIGS),
            merged_config,
        )
    raise reader.argument_error("defaults", f"more than {MAX_BASES} configs build on one another; expected fewer")


def _merge_configs(base_config: Table, config: Table) -> dict[str, Any]:
    """Returns a base config in which the values of another config replace the base's."""
    merged_config = dict(base_config)
    for config_key, config_value in config.items():
        inner_table = merged_config.get(config_key)
        are_tables = isinstance(config_value, Mapping) and isinstance(inner_table, Mapping)
        merged_config[config_key] = (
            _merge_configs(merged_config[config_key], config_value) if are_tables else config_value
        )
    return merged_config


def _record_policy_keys(reader: LaunchReader, policy_table: Table) -> None:
    """Records keys of `policy_table` that are ignored, and keys whose values are not modelled."""
    for policy_key, policy_value in policy_table.items():
        modelled_values = MODELLED_VALUES.get(policy_key)
        if modelled_values is not None and policy_value is not None and policy_value not in modelled_values:
            reader.refuse(f"policy.{policy_key}", f"{short_repr(policy_value)[:60]} is not modelled")
        elif modelled_values is not None or policy_key in KEYS_READ or policy_key in MEGATRON_CORE_KEYS:
            continue
        elif policy_key in KEYS_IGNORED or policy_key.startswith(IGNORED_TABLES):
            reader.ignored_arguments.append(f"policy.{policy_key}")
        elif policy_value not in (None, False):
            reader.refuse(f"policy.{policy_key}", "no key that is known")


def _training_device_count(reader: LaunchReader, flat_config: Table, policy_table: Table) -> int:
    """Returns the number of devices that train, without devices that only run rollouts."""
    nodes_key, devices_key = "cluster.num_nodes", "cluster.gpus_per_node"
    world_size = reader.device_count_of_nodes(flat_config, nodes_key, devices_key)
    if policy_table.get("generation.colocated.enabled") is not False:
        return world_size
    engine_node_count = reader.optional_integer(policy_table, "generation.colocated.resources.num_nodes") or 0
    engine_devices = reader.optional_integer(policy_table, "generation.colocated.resources.gpus_per_node")
    gpus_per_node = reader.integer(flat_config, devices_key, 8)
    if reader.integer(flat_config, nodes_key, 1) > 1:
        engine_devices = engine_node_count * (engine_devices or gpus_per_node)
    if not engine_devices or engine_devices >= world_size:
        raise reader.argument_error(
            "policy.generation.colocated.resources",
            f"{engine_devices or 0} of {world_size} devices for the rollouts; expected some, and others that train",
        )
    reader.notes.append(f"{engine_devices} of {world_size} devices are those of the rollouts, which are not counted")
    return world_size - engine_devices


def _batch_settings(reader: LaunchReader, policy_table: Table, replica_count: int) -> dict[str, Any]:
    """Returns a step's sequences, tokens and micro-batches, where packed sequences count as one long sequence."""
    sequence_length = reader.integer(policy_table, "max_total_sequence_length", 512)
    micro_batch_size = reader.integer(policy_table, "train_micro_batch_size", 1)
    micro_batch_count = max(
        1, reader.integer(policy_table, "train_global_batch_size", 512) // (micro_batch_size * replica_count)
    )
    for packing_key in ("sequence_packing", "dynamic_batching"):
        if reader.flag(policy_table, f"{packing_key}.enabled"):
            packed_tokens = reader.integer(
                policy_table, f"{packing_key}.train_mb_tokens", micro_batch_size * sequence_length
            )
            reader.notes.append(f"{packing_key}: micro-batches of {packed_tokens} tokens, counted as one sequence")
            return {"batch": 1, "seq": packed_tokens, "num_microbatches": min(micro_batch_count, 2)}
    return {"batch": micro_batch_size, "seq": sequence_length, "num_microbatches": micro_batch_count}


def _fsdp_launch_settings(reader: LaunchReader, policy_table: Table, world_size: int) -> LaunchSettings:
    """Returns the run under FSDP2 with shards and reduction in fp32, or on one device under autocast."""
    tp = reader.integer(policy_table, "dtensor_cfg.tensor_parallel_size", 1)
    cp = reader.integer(policy_table, "dtensor_cfg.context_parallel_size", 1)
    replica_count = reader.integer(policy_table, "dtensor_cfg.dp_replicate_size", 1)
    dp, remaining_devices = divmod(world_size, tp * cp)
    if remaining_devices or dp % replica_count:
        raise reader.argument_error(
            "policy.dtensor_cfg", f"{world_size} devices; expected a multiple of tp · cp · dp_replicate_size"
        )
    settings: dict[str, Any] = {
        "phase": "training",
        "attn_implementation": "flash",
        **({"dtype": "bf16", "master_weights": "fp32"} if world_size > 1 else {"precision": "autocast"}),
        **_batch_settings(reader, policy_table, dp),
        **_optimizer_settings(reader, policy_table),
    }
    if reader.flag(policy_table, "dtensor_cfg.activation_checkpointing"):
        settings["recompute"] = "full"
        reader.notes.append("activation_checkpointing: whole layers are recomputed, which run again module by module")
    if reader.flag(policy_table, "dtensor_cfg.lora_cfg.enabled"):
        target_modules = policy_table.get("dtensor_cfg.lora_cfg.target_modules")
        adapts_all_layers = reader.flag(policy_table, "dtensor_cfg.lora_cfg.match_all_linear", True)
        settings |= lora_settings(
            reader,
            rank=("policy.dtensor_cfg.lora_cfg.dim", reader.value(policy_table, "dtensor_cfg.lora_cfg.dim", 8)),
            targets_argument=(
                "policy.dtensor_cfg.lora_cfg.target_modules",
                "all-linear" if adapts_all_layers else target_modules,
            ),
            dropout_value=policy_table.get("dtensor_cfg.lora_cfg.dropout"),
        )
        if world_size > 1:
            reader.frozen_model = FP32_SHARDS
        reader.notes.append("frozen weights are in fp32")
    reader.requests_expandable_segments = any(
        "expandable_segments:true" in str(policy_table.get(f"dtensor_cfg.env_vars.{variable_name}", "")).lower()
        for variable_name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    )
    ep = reader.integer(policy_table, "dtensor_cfg.expert_parallel_size", 1)
    if ep > 1 and (tp > 1 or (dp * cp) % ep):
        raise reader.argument_error(
            "policy.dtensor_cfg.expert_parallel_size",
            f"{ep}; expected a divisor of the {dp * cp} ranks of data and context, without tensor_parallel_size",
        )
    if ep > 1:
        reader.notes.append("ranks of experts are counted as torchtitan's: an all-to-all of rows, with even routing")
    layout = Layout(
        tp=tp,
        cp=cp,
        dp=dp,
        ep=ep,
        zero=3 if world_size > 1 else 0,
        hsdp_replicas=replica_count,
        sequence_parallel=tp > 1 and reader.flag(policy_table, "dtensor_cfg.sequence_parallel"),
    )
    if world_size == 1:  # nemo_automodel/components/distributed/fsdp2.py leaves a model on one rank as it is
        return LaunchSettings(layout, settings)
    offloads_to_host = reader.flag(policy_table, "dtensor_cfg.cpu_offload")
    return LaunchSettings(
        layout,
        settings,
        TitanSettings(
            reduction_format="float32",
            reduces_each_microbatch=True,
            offloads_to_host=offloads_to_host,
            outer_groups="together",
        ),
    )


def _optimizer_settings(reader: LaunchReader, policy_table: Table) -> dict[str, Any]:
    """Returns the settings of torch's optimizer, by default with the foreach implementation."""
    optimizer_name = str(reader.value(policy_table, "optimizer.name", "torch.optim.AdamW"))
    if optimizer_name not in OPTIMIZERS:
        reader.refuse(
            "policy.optimizer.name", f"{short_repr(optimizer_name)[:80]} is not modelled; torch.optim.AdamW is"
        )
    if reader.flag(policy_table, "optimizer.kwargs.fused"):
        return {"optimizer": "adamw", "optimizer_impl": "fused"}
    runs_in_loop = policy_table.get("optimizer.kwargs.foreach") is False
    return {"optimizer": "adamw", "optimizer_impl": "loop" if runs_in_loop else "foreach"}


def _megatron_launch_settings(reader: LaunchReader, policy_table: Table, world_size: int) -> LaunchSettings:
    """Returns the run under Megatron-Core (models/megatron/setup.py)."""

    def megatron_size(size_name: str) -> int:
        return reader.integer(policy_table, f"megatron_cfg.{size_name}_parallel_size", 1)

    tp, pp, cp = megatron_size("tensor_model"), megatron_size("pipeline_model"), megatron_size("context")
    recompute_value = None
    if reader.flag(policy_table, "megatron_cfg.activation_checkpointing"):
        recompute_value = str(reader.value(policy_table, "megatron_cfg.recompute_granularity", "full"))
    reduces_in_fp32 = reader.flag(policy_table, "megatron_cfg.distributed_data_parallel_config.grad_reduce_in_fp32")
    megatron_run = MegatronRunSettings(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=megatron_size("expert_model"),
        etp=megatron_size("expert_tensor"),
        end_stage_layers=end_stage_layers(reader, policy_table, "megatron_cfg."),
        sequence_parallel=reader.flag(policy_table, "megatron_cfg.sequence_parallel"),
        distributed_optimizer=reader.flag(policy_table, "megatron_cfg.optimizer.use_distributed_optimizer", True),
        **_batch_settings(reader, policy_table, max(1, world_size // (tp * pp * cp))),
        recompute_granularity=recompute_value,
        recompute_modules=policy_table.get("megatron_cfg.recompute_modules"),
        cuda_graph_impl=policy_table.get("megatron_cfg.cuda_graph_impl"),
        cuda_graph_modules=policy_table.get("megatron_cfg.cuda_graph_modules")
        or policy_table.get("megatron_cfg.cuda_graph_scope"),
        grad_dtype="fp32" if reduces_in_fp32 else "bf16",
        fuses_activation=reader.flag(policy_table, "megatron_cfg.bias_activation_fusion", True),
    )
    settings: dict[str, Any] = {}
    if reader.flag(policy_table, "megatron_cfg.peft.enabled"):
        section_name = "policy.megatron_cfg.peft"
        lora_rank = reader.value(policy_table, "megatron_cfg.peft.dim", 8)
        target_modules = policy_table.get("megatron_cfg.peft.target_modules")
        dropout_value = policy_table.get("megatron_cfg.peft.dropout")
        settings = bridge_adapter_settings(reader, section_name, lora_rank, target_modules or None, dropout_value)
    if reader.flag(policy_table, "megatron_cfg.optimizer.use_precision_aware_optimizer"):
        settings["precision_aware_optimizer"] = True
    settings |= host_optimizer_settings(reader, policy_table, "megatron_cfg.optimizer.")
    return megatron_launch_settings(reader, megatron_run, world_size, settings)


def _read_rollout(reader: LaunchReader, flat_config: Table, policy_table: Table) -> Rollout:
    """Returns the rollout engine on the training devices, where rollouts and training take turns.

    Log-probabilities are those of logits in fp32 (algorithms/loss; models/automodel/train.py).
    """
    is_colocated = reader.flag(policy_table, "generation.colocated.enabled", True)
    backend = str(reader.value(policy_table, "generation.backend", "vllm"))
    flags: dict[str, Any] = {}
    if backend not in ENGINE_FLAGS_BY_BACKEND and is_colocated:
        reader.notes.append(
            f"policy.generation.backend {short_repr(backend)[:40]}: not modelled; its memory is not counted"
        )
    elif is_colocated:
        engine_table, flags_by_key = ENGINE_FLAGS_BY_BACKEND[backend]
        for engine_key, flag in flags_by_key.items():
            dotted_key = f"generation.{engine_table}.{engine_key}"
            if flag in ("gpu_memory_utilization", "mem_fraction_static"):
                flags[flag] = read_fraction(reader, dotted_key, policy_table, 0.6)
            elif flag == "enforce_eager":
                flags[flag] = reader.flag(policy_table, dotted_key)
            elif policy_table.get(dotted_key) is not None:
                flags[flag] = reader.integer(policy_table, dotted_key, 1)
        if backend == "vllm":
            flags |= _eight_bit_flags(reader, policy_table)
    _add_expert_parallel_flag(reader, policy_table, flags)
    if flat_config.get("loss_fn.reference_policy_kl_penalty") not in (None, 0, 0.0):
        reader.notes.append("the reference model is on the host; its weights take the place of the policy's")
    sequence_length = reader.integer(policy_table, "max_total_sequence_length", 512)
    return Rollout(
        source="nemo_rl/models/policy/workers/*_policy_worker*.py, nemo_rl/models/generation/vllm/vllm_worker.py",
        engine=backend if is_colocated and backend in ENGINE_FLAGS_BY_BACKEND else "",
        flags=flags,
        engine_sleeps_while_idle=True,
        has_separate_process=True,
        offloaded_states=frozenset({"weights", "optimizer", "gradients"}) if is_colocated else frozenset(),
        sequence_count=reader.integer(policy_table, "logprob_batch_size", 1),
        tokens_per_sequence=sequence_length,
        logit_tokens_per_sequence=sequence_length,
        bytes_per_logit=8,  # fp32, and their log-softmax
    )


def _eight_bit_flags(reader: LaunchReader, policy_table: Table) -> dict[str, Any]:
    """Returns vLLM's flags for 8-bit weights and caches (models/generation/vllm/quantization/fp8.py)."""
    format_flags: dict[str, Any] = {}
    if policy_table.get("generation.vllm_cfg.precision") == "fp8":
        reader.notes.append("policy.generation.vllm_cfg.precision fp8: scales of blocks of 128 × 128 are not counted")
        format_flags["quantization"] = "fp8"
    if str(policy_table.get("generation.vllm_cfg.kv_cache_dtype", "auto")).startswith("fp8"):
        format_flags["kv_cache_dtype"] = "fp8"
    return format_flags


def _add_expert_parallel_flag(reader: LaunchReader, policy_table: Table, flags: dict[str, Any]) -> None:
    """Adds vLLM's flag for expert parallelism, which is modelled over the tensor-parallel ranks."""
    size_key = "generation.vllm_cfg.expert_parallel_size"
    rank_count = reader.integer(policy_table, size_key, 1)
    if "tensor_parallel_size" not in flags or rank_count == 1:
        return
    flags["enable_expert_parallel"] = True
    if rank_count != flags["tensor_parallel_size"]:
        reader.refuse(f"policy.{size_key}", "it is modelled equal to tensor_parallel_size")
