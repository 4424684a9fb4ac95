"""Reads commands of SkyRL with config overrides: the policy's training, and the rollouts on the same devices.

Source: NovaSky-AI/SkyRL at a9564572 (2026-08-21): skyrl/train/config/config.py for keys and defaults, and below
skyrl/backends/skyrl_train: distributed/fsdp_strategy.py for formats, workers/model_wrapper.py for the loss,
workers/megatron/megatron_worker.py for Megatron-Core, workers/worker_dispatch.py for what is on the host.
"""

from __future__ import annotations

import re
from typing import Any

from ...errors import short_repr
from ...parallel.layout import Layout
from ..argument_names import argument_names
from ..fsdp2.settings import TitanSettings
from ..launch.command_line import hydra_overrides_of, marked_model_name, parsed_argument_value
from ..launch.launch_types import (
    CommandLine,
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    Table,
    launch_reader,
    read_fraction,
    read_integer,
)
from ..launch.rollout import AdditionalModel, ModelState, Rollout
from ..launch.trainer import lora_settings
from ..launch.unresolved import is_unresolved, unresolved_reason
from ..megatron.named_model import (
    BRIDGE_FUSED_MODEL_TYPES,
    END_STAGE_ARGUMENTS,
    HOST_OPTIMIZER_ARGUMENTS,
    MegatronRunSettings,
    bridge_adapter_settings,
    end_stage_layers,
    host_optimizer_settings,
    megatron_launch_settings,
)

POLICY_PREFIX, PLACEMENT_PREFIX, ENGINE_PREFIX = "trainer.policy", "trainer.placement", "generator.inference_engine"
MEGATRON_PREFIX, FSDP_PREFIX, LORA_PREFIX = (
    f"{POLICY_PREFIX}.megatron_config",
    f"{POLICY_PREFIX}.fsdp_config",
    f"{POLICY_PREFIX}.model.lora",
)
TRANSFORMER_PREFIX, OPTIMIZER_PREFIX = (
    f"{MEGATRON_PREFIX}.transformer_config_kwargs.",
    f"{MEGATRON_PREFIX}.optimizer_config_kwargs.",
)

RL_TRAINER, SFT_TRAINER = "skyrl.train.entrypoints.main_base", "skyrl.train.main_sft"

SERVING_PROGRAM = re.compile(r"(?:[\w.]+\.)?(?:serve|main_\w*generate|main_\w*eval)(?:\.py)?|skyrl\.tinker\.\w+")
"""Pattern of SkyRL's programs that do not train: generation, evaluation, and Tinker's servers."""

DEVICE_COUNT_KEYS = f"{PLACEMENT_PREFIX}.policy_num_gpus_per_node", f"{PLACEMENT_PREFIX}.policy_num_nodes"
MODEL_KEY = f"{POLICY_PREFIX}.model.path"
DEFAULT_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"

SFT_TOKENS_KEY = "trainer.max_length"
"""Key of the longest sequence in supervised fine-tuning, in tokens."""

MAX_TOKENS_KEY = "trainer.max_tokens_per_microbatch"

RL_TOKENS_KEYS = (
    "trainer.max_prompt_length",
    "generator.max_input_length",
    "generator.sampling_params.max_generate_length",
)
"""Keys of the tokens of a prompt, of a turn's input, and of an answer."""

LONGEST_RL_TOKENS_KEYS = (f"{ENGINE_PREFIX}.engine_init_kwargs.max_model_len", "trainer.algorithm.max_seq_len")
"""Keys of the tokens of a whole sequence, which agent recipes state instead of `RL_TOKENS_KEYS`."""

OFFLOAD_OPTIMIZER_KEY = f"{POLICY_PREFIX}.optimizer_config.offload_after_step"
REDUCE_IN_FP32_KEY = f"{MEGATRON_PREFIX}.ddp_config.grad_reduce_in_fp32"

KEYS_READ = argument_names(__file__, "read")
KNOWN_KEYS = KEYS_READ.union(
    (f"{TRANSFORMER_PREFIX}{name}" for name in END_STAGE_ARGUMENTS),
    (f"{OPTIMIZER_PREFIX}{name}" for name in HOST_OPTIMIZER_ARGUMENTS),
)
"""Keys that are read, including those that readers of Megatron-Core's named models read."""

KEYS_WITHOUT_MEMORY = re.compile(
    r"trainer\.policy\.(optimizer_config\.\w+|torch_profiler_config\.\w+|record_memory|fsdp_config\.wrap_policy\..*|language_model_only"
    r"|use_torch_compile|model\.lora\.(alpha|init_method|lora_sync_path|max_\w+)"
    r"|megatron_config\.(moe_router_\w+|moe_aux_loss_coeff|moe_grouped_gemm|moe_per_layer_logging|moe_enable_routing_replay"
    r"|ddp_config\.\w+|hf_export_config\.\w+|lora_config\.\w+|empty_cuda_cache|freeze_moe_router|dist_ckpt\w*|async_\w+"
    r"|optimizer_config_kwargs\.overlap_cpu_optimizer_d2h_h2d"
    r"|transformer_config_kwargs\.(gradient_accumulation_fusion|moe_router_\w+|moe_aux_loss_coeff)))"
)
"""Pattern of keys of the policy that do not change the memory of a step, or only that of one layer."""

MODELLED_VALUES: dict[str, tuple[Any, ...]] = {
    "trainer.mtp.enabled": (False,),
    "trainer.fused_lm_head_logprob": (False,),
    "trainer.algorithm.use_entropy_loss": (False,),
    f"{MEGATRON_PREFIX}.lora_config.lora_type": ("lora",),
    f"{ENGINE_PREFIX}.pipeline_parallel_size": (1,),
    f"{ENGINE_PREFIX}.data_parallel_size": (1,),
    f"{ENGINE_PREFIX}.expert_parallel_size": (1,),
}
"""Key → the only values that are modelled."""


SFT_DEFAULTS = {
    "trainer.strategy": "megatron",
    MODEL_KEY: "Qwen/Qwen3-0.6B",
    f"{PLACEMENT_PREFIX}.policy_num_gpus_per_node": "4",
    f"{MEGATRON_PREFIX}.tensor_model_parallel_size": "2",
    f"{MEGATRON_PREFIX}.pipeline_model_parallel_size": "2",
    f"{PLACEMENT_PREFIX}.colocate_all": "false",
    "trainer.algorithm.use_kl_loss": "false",
    "trainer.micro_train_batch_size_per_gpu": "2",
    "trainer.policy_mini_batch_size": "4",
    "generator.n_samples_per_prompt": "1",
}
"""Defaults of supervised fine-tuning (skyrl/train/config/sft_config.py) under reinforcement learning's keys."""

SFT_KEYS = {
    "strategy": "trainer.strategy",
    "batch_size": "trainer.policy_mini_batch_size",
    "placement.num_nodes": f"{PLACEMENT_PREFIX}.policy_num_nodes",
    "placement.num_gpus_per_node": f"{PLACEMENT_PREFIX}.policy_num_gpus_per_node",
    "max_length": SFT_TOKENS_KEY,
    "sequence_parallel_size": f"{POLICY_PREFIX}.sequence_parallel_size",
    "micro_train_batch_size_per_gpu": "trainer.micro_train_batch_size_per_gpu",
    "use_sequence_packing": "trainer.use_sequence_packing",
    "max_tokens_per_microbatch": MAX_TOKENS_KEY,
    "use_torch_compile": f"{POLICY_PREFIX}.use_torch_compile",
    "record_memory": f"{POLICY_PREFIX}.record_memory",
}
"""Key of supervised fine-tuning → the equivalent key of reinforcement learning (`build_skyrl_config_for_sft`)."""

SFT_TABLES = (
    "model.", "model_config_kwargs.", "optimizer_config.", "megatron_config.", "fsdp_config.", "torch_profiler_config."
)  # fmt: skip
"""Tables of supervised fine-tuning that are equal to tables of the policy."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts a program of SkyRL, or any program with overrides of SkyRL's trainer configs."""
    return (
        command_line.program in (RL_TRAINER, SFT_TRAINER)
        or (command_line.program.startswith("skyrl.") and not trains(command_line))
        or any(
            command_word.lstrip("+").startswith((f"{POLICY_PREFIX}.", f"{PLACEMENT_PREFIX}."))
            for command_word in command_line.words
        )
        or _is_fine_tuning(command_line)
    )


def trains(command_line: CommandLine) -> bool:
    """Whether a command of SkyRL trains, instead of generating, evaluating or serving."""
    return SERVING_PROGRAM.fullmatch(command_line.program) is None


def _is_fine_tuning(command_line: CommandLine) -> bool:
    """Whether a command starts SkyRL's supervised fine-tuning, or another program with its overrides."""
    override_keys = {command_word.partition("=")[0] for command_word in command_line.words}
    return command_line.program == SFT_TRAINER or (
        command_line.program != RL_TRAINER
        and {"strategy", "model.path", "micro_train_batch_size_per_gpu"} <= override_keys
    )


def _overrides_of_fine_tuning(overrides: Table) -> dict[str, Any]:
    """Returns the overrides of supervised fine-tuning under the keys of reinforcement learning."""
    return SFT_DEFAULTS | {
        f"{POLICY_PREFIX}.{override_key}"
        if override_key.startswith(SFT_TABLES)
        else SFT_KEYS.get(override_key, override_key): override_value
        for override_key, override_value in overrides.items()
    }


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a command of SkyRL. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        program_name, is_sft = command_line.program, _is_fine_tuning(command_line)
        if not trains(command_line):
            raise reader.argument_error(
                f"line {command_line.line}: {program_name}",
                f"generates, evaluates or serves; expected a training by {RL_TRAINER} or {SFT_TRAINER}",
            )
        if program_name not in (RL_TRAINER, SFT_TRAINER):
            reader.notes.append(
                f"{program_name}: its update is counted as that of {SFT_TRAINER if is_sft else RL_TRAINER}"
            )
        overrides = hydra_overrides_of(command_line.words)
        if is_sft:
            overrides = _overrides_of_fine_tuning(overrides)
        for override_key, override_value in overrides.items():
            is_replaced = override_key in DEVICE_COUNT_KEYS and reader.source.typed_device_count is not None
            if (
                is_unresolved(override_value)
                and override_key != MODEL_KEY
                and override_key in KNOWN_KEYS
                and not is_replaced
            ):
                raise reader.argument_error(override_key, unresolved_reason(override_value))
        config = {
            override_key: parsed_argument_value(override_value) for override_key, override_value in overrides.items()
        }
        reader.refuse_other_values(config, MODELLED_VALUES)
        for override_key, override_value in config.items():
            if override_key in KNOWN_KEYS or override_key in MODELLED_VALUES:
                continue
            is_policy_key = override_key.startswith(f"{POLICY_PREFIX}.")
            if not is_policy_key or KEYS_WITHOUT_MEMORY.fullmatch(override_key) is not None:
                reader.ignored_arguments.append(override_key)
            elif override_value not in (None, False):
                reader.refuse(override_key[:100], f"{short_repr(override_value)[:40]} is not modelled")
        is_megatron = reader.choice(config, "trainer.strategy", ("fsdp", "fsdp2", "megatron"), "fsdp") == "megatron"
        world_size = reader.device_count_of_nodes(
            config,
            f"{PLACEMENT_PREFIX}.policy_num_nodes",
            f"{PLACEMENT_PREFIX}.policy_num_gpus_per_node",
            devices_per_node=1,
        )
        reader.requests_expandable_segments = True  # `use_expandable_segments`, while the policy trains
        read_run = _megatron_launch_settings if is_megatron else _fsdp_launch_settings
        launch_settings = read_run(reader, config, world_size, is_sft=is_sft)
        rollout = None if is_sft else _read_rollout(reader, config, launch_settings, is_megatron)
        model_id = marked_model_name(overrides.get(MODEL_KEY, DEFAULT_MODEL))
        return reader.create_launch(
            "megatron" if is_megatron else "fsdp2", launch_settings, model_name=model_id, rollout=rollout
        )


def _fine_tuning_tokens(reader: LaunchReader, config: Table) -> int:
    """Returns the tokens of the longest fine-tuning sequence, which SkyRL does not limit by default."""
    if config.get(SFT_TOKENS_KEY) is None:
        raise reader.argument_error(
            "max_length", "missing, so that SkyRL shortens no sequence; expected the longest one, as in max_length=8192"
        )
    return reader.integer(config, SFT_TOKENS_KEY, 1)


def _sequence_tokens(reader: LaunchReader, config: Table) -> int:
    """Returns the tokens of the longest RL sequence, with a note if the file states no prompt or answer length.

    That is the longest input of a turn and the answer to it, or the length of a whole sequence where neither is stated.
    """
    if not any(config.get(length_key) is not None for length_key in RL_TOKENS_KEYS):
        longest_key = next(
            (length_key for length_key in LONGEST_RL_TOKENS_KEYS if config.get(length_key) is not None), None
        )
        if longest_key is not None:
            length_note = f"{longest_key}: the longest sequence, without lengths of a prompt and of an answer"
            if length_note not in reader.notes:
                reader.notes.append(length_note)
            return read_integer(reader, longest_key, config[longest_key])
    prompt_tokens = reader.integer(config, "trainer.max_prompt_length", 512)
    input_tokens = reader.optional_integer(config, "generator.max_input_length") or prompt_tokens
    return input_tokens + reader.integer(config, "generator.sampling_params.max_generate_length", 1024)


def _batch_settings(reader: LaunchReader, config: Table, replica_count: int, *, is_sft: bool) -> dict[str, Any]:
    """Returns sequences, tokens and micro-batches of an update.

    replica_count: ranks with sequences of their own. is_sft: whether the run is supervised fine-tuning, whose
    micro-batches have a number of tokens with sequence packing alone (sft_config.py, `resolved_bin_capacity`).
    """
    micro_batch_size = reader.integer(config, "trainer.micro_train_batch_size_per_gpu", 1)
    sample_count = reader.integer(config, "trainer.policy_mini_batch_size", 256)
    sample_count *= reader.integer(config, "generator.n_samples_per_prompt", 5)
    sequence_tokens = (_fine_tuning_tokens if is_sft else _sequence_tokens)(reader, config)
    micro_batch_count = max(1, sample_count // (micro_batch_size * replica_count))
    packs_sequences = is_sft and reader.flag(config, "trainer.use_sequence_packing")
    if config.get(MAX_TOKENS_KEY) in (None, -1) or (is_sft and not packs_sequences):
        reader.counts_longest_samples = not packs_sequences
        return {
            "batch": 1 if packs_sequences else micro_batch_size,
            "seq": sequence_tokens,
            "num_microbatches": micro_batch_count,
        }
    token_limit = reader.integer(config, MAX_TOKENS_KEY, 1)
    reader.notes.append(f"{MAX_TOKENS_KEY}: micro-batches of that many tokens, counted as one sequence")
    return {"batch": 1, "seq": max(token_limit, sequence_tokens), "num_microbatches": min(micro_batch_count, 2)}


def _fsdp_launch_settings(reader: LaunchReader, config: Table, world_size: int, *, is_sft: bool) -> LaunchSettings:
    """Returns the policy's FSDP2 run: fp32 shards and reductions, bf16 products, and a loss that overwrites the logits.

    The gradients of flash-attn's log-probabilities are written over the logits (workers/model_wrapper.py).
    """
    cp = reader.sequence_ranks(config, f"{POLICY_PREFIX}.sequence_parallel_size", world_size)
    shard_count = reader.integer(config, f"{FSDP_PREFIX}.fsdp_size", -1, minimum=-1)
    shard_degree = world_size if not 1 <= shard_count <= world_size else shard_count
    if world_size % shard_degree:
        raise reader.argument_error(
            f"{FSDP_PREFIX}.fsdp_size", f"{shard_count}; expected a divisor of {world_size} devices"
        )
    batch_settings = _batch_settings(reader, config, world_size // cp, is_sft=is_sft)
    settings: dict[str, Any] = {
        "phase": "training",
        "optimizer": "adamw",
        "optimizer_impl": "foreach",
        "attn_implementation": "flash" if reader.flag(config, "trainer.flash_attn", True) else "sdpa",
        "cross_entropy": "flash-in-place",
        "divide_logits": True,
        "dtype": "bf16",
        "master_weights": "fp32",
        **batch_settings,
        "seq": -(-batch_settings["seq"] // cp),
    }
    if reader.flag(config, "trainer.gradient_checkpointing", True):
        settings["recompute"] = "full"
    lora_rank = config.get(f"{LORA_PREFIX}.rank")
    if lora_rank not in (None, 0):
        targets_argument = (
            f"{LORA_PREFIX}.target_modules",
            reader.value(config, f"{LORA_PREFIX}.target_modules", "all-linear"),
        )
        settings |= lora_settings(
            reader,
            rank=(f"{LORA_PREFIX}.rank", lora_rank),
            targets_argument=targets_argument,
            dropout_value=config.get(f"{LORA_PREFIX}.dropout"),
        )
    layout = Layout(
        dp=world_size,
        zero=3 if world_size > 1 else 0,
        hsdp_replicas=world_size // shard_degree,
        reshard=reader.flag(config, f"{FSDP_PREFIX}.reshard_after_forward", True),
    )
    fsdp_settings = TitanSettings(
        reduction_format="float32",
        reduces_each_microbatch=True,
        offloads_to_host=reader.flag(config, f"{FSDP_PREFIX}.cpu_offload"),
        outer_groups="embedding",
    )
    return LaunchSettings(layout, settings, fsdp_settings)


def _megatron_launch_settings(reader: LaunchReader, config: Table, world_size: int, *, is_sft: bool) -> LaunchSettings:
    """Returns the policy's run under Megatron-Core by Megatron-Bridge, which recomputes every layer by default."""
    tp, pp, cp, ep = (
        reader.integer(config, f"{MEGATRON_PREFIX}.{size_name}_parallel_size", 1)
        for size_name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    batch_settings = _batch_settings(reader, config, max(1, world_size // (tp * pp * cp)), is_sft=is_sft)
    recompute_granularity = reader.value(config, f"{TRANSFORMER_PREFIX}recompute_granularity", "full")
    recomputes_whole_layers = recompute_granularity == "full"
    recomputes = reader.flag(config, "trainer.gradient_checkpointing", True)
    megatron_run = MegatronRunSettings(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=reader.optional_integer(config, f"{MEGATRON_PREFIX}.expert_tensor_parallel_size"),
        end_stage_layers=end_stage_layers(reader, config, TRANSFORMER_PREFIX),
        sequence_parallel=tp > 1,
        batch=batch_settings["batch"],
        seq=batch_settings["seq"],
        num_microbatches=batch_settings["num_microbatches"],
        recompute_granularity=recompute_granularity if recomputes else None,
        recompute_method=config.get(f"{TRANSFORMER_PREFIX}recompute_method", "uniform")
        if recomputes_whole_layers
        else None,
        recompute_num_layers=config.get(f"{TRANSFORMER_PREFIX}recompute_num_layers", 1)
        if recomputes_whole_layers
        else None,
        recompute_modules=config.get(f"{TRANSFORMER_PREFIX}recompute_modules", ["core_attn"]),
        dispatcher=config.get(f"{MEGATRON_PREFIX}.moe_token_dispatcher_type"),
        fuses_activation=BRIDGE_FUSED_MODEL_TYPES,
        grad_dtype="fp32" if reader.flag(config, REDUCE_IN_FP32_KEY, True) else "bf16",
    )
    settings = host_optimizer_settings(reader, config, OPTIMIZER_PREFIX)
    if reader.flag(config, f"{OPTIMIZER_PREFIX}use_precision_aware_optimizer"):
        settings["precision_aware_optimizer"] = True
    lora_rank = config.get(f"{LORA_PREFIX}.rank")
    if lora_rank not in (None, 0):
        target_modules = config.get(f"{LORA_PREFIX}.target_modules")
        settings |= bridge_adapter_settings(
            reader,
            LORA_PREFIX,
            lora_rank,
            None if target_modules == "all-linear" else target_modules,
            config.get(f"{LORA_PREFIX}.dropout"),
        )
    return megatron_launch_settings(reader, megatron_run, world_size, settings)


def _read_rollout(
    reader: LaunchReader, config: Table, launch_settings: LaunchSettings, is_megatron: bool
) -> Rollout | None:
    """Returns the rollout engine and the other models on the same devices; none if rollouts have separate devices."""
    if not reader.flag(config, f"{PLACEMENT_PREFIX}.colocate_all", True):
        reader.notes.append(f"{PLACEMENT_PREFIX}.colocate_all false: the devices of the rollouts are not counted")
        return None
    layout, settings = launch_settings.layout, launch_settings.settings
    engine_name = str(reader.value(config, f"{ENGINE_PREFIX}.backend", "vllm"))
    flags: dict[str, Any] = {}
    if engine_name == "vllm":
        flags = {
            "tensor_parallel_size": reader.integer(config, f"{ENGINE_PREFIX}.tensor_parallel_size", 1),
            "gpu_memory_utilization": read_fraction(reader, f"{ENGINE_PREFIX}.gpu_memory_utilization", config, 0.8),
            "max_num_seqs": reader.integer(config, f"{ENGINE_PREFIX}.max_num_seqs", 1024),
            "max_num_batched_tokens": reader.integer(config, f"{ENGINE_PREFIX}.max_num_batched_tokens", 8192),
            "enforce_eager": reader.flag(config, f"{ENGINE_PREFIX}.enforce_eager"),
            "max_model_len": reader.optional_integer(config, f"{ENGINE_PREFIX}.engine_init_kwargs.max_model_len")
            or _sequence_tokens(reader, config),
        }
    else:
        reader.notes.append(
            f"{ENGINE_PREFIX}.backend {short_repr(engine_name)}: not modelled; its memory is not counted"
        )
    reader.notes.append("rollouts at their longest")
    has_reference = reader.flag(config, "trainer.algorithm.use_kl_loss", True) or reader.flag(
        config, "trainer.algorithm.use_kl_in_reward"
    )
    shard_count = layout.tp * layout.pp if is_megatron else layout.dp // layout.hsdp_replicas
    reference_model = (
        AdditionalModel("host", 2 if is_megatron else 4, shard_count) if has_reference else AdditionalModel()
    )
    offloaded_states: frozenset[ModelState] = frozenset(("weights", "optimizer", "gradients"))
    if not is_megatron and not reader.flag(config, OFFLOAD_OPTIMIZER_KEY, True):
        offloaded_states -= {"optimizer"}  # distributed/fsdp_strategy.py; Megatron's strategy does not read the key
    has_critic = reader.value(config, "trainer.algorithm.advantage_estimator", "grpo") == "gae"
    if has_critic:
        reader.notes.append("the critic is counted as large as the policy")
    return Rollout(
        source="skyrl/backends/skyrl_train/workers/worker_dispatch.py",
        engine=engine_name if engine_name == "vllm" else "",
        flags=flags,
        engine_sleeps_while_idle=True,
        has_separate_process=True,
        offloaded_states=offloaded_states,
        reference_model=reference_model,
        critic_location="host" if has_critic else "none",
        sequence_count=reader.integer(config, "trainer.micro_forward_batch_size_per_gpu", 1),
        tokens_per_sequence=settings["seq"] // layout.cp,
        logit_tokens_per_sequence=settings["seq"] // layout.cp,
        bytes_per_logit=2 if not is_megatron else 6,
        weight_transfer_bytes=1 << 30,  # `weight_transfer_threshold_cuda_ipc_GB`
    )
