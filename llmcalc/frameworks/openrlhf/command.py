"""Reads commands of OpenRLHF: fine-tuning, and the actor's training in reinforcement learning (`train_ppo_ray`).

Source: OpenRLHF 0.11.0 (3c3be623): openrlhf/cli/train_ppo_ray.py and train_sft.py for arguments and defaults,
openrlhf/utils/deepspeed/deepspeed_utils.py, `get_train_ds_config`, for the DeepSpeed config. Versions before 0.10 named
the same arguments without sections (`--zero_stage`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..deepspeed.config_file import settings_of_generated_config
from ..frozen_model import FrozenModel
from ..launch.command_line import marked_model_name, parse_arguments, parsed_arguments
from ..launch.deepspeed_auto_values import AUTO_BUCKETS
from ..launch.launch_types import (
    CommandLine,
    Launch,
    LaunchReader,
    LaunchSource,
    Table,
    launch_reader,
    read_fraction,
    read_integer,
)
from ..launch.rollout import AdditionalModel, ModelLocation, Rollout
from ..launch.trainer import kto_settings, lora_settings, preference_pair_settings

ARGUMENT_BY_OLDER_NAME = {
    "zero_stage": "ds.zero_stage",
    "micro_train_batch_size": "train.micro_batch_size",
    "train_batch_size": "train.batch_size",
    "max_len": "data.max_len",
    "prompt_max_len": "data.prompt_max_len",
    "generate_max_len": "data.generate_max_len",
    "param_dtype": "ds.param_dtype",
    "adam_offload": "ds.adam_offload",
    "packing_samples": "ds.packing_samples",
    "attn_implementation": "ds.attn_implementation",
    "gradient_checkpointing": "actor.gradient_checkpointing_enable",
    "gradient_checkpointing_use_reentrant": "actor.gradient_checkpointing_reentrant",
    "actor_num_nodes": "actor.num_nodes",
    "actor_num_gpus_per_node": "actor.num_gpus_per_node",
    "colocate_actor_ref": "train.colocate_actor_ref",
    "colocate_all_models": "train.colocate_all",
    "ref_reward_offload": "ref.offload",
    "deepspeed_enable_sleep": "ds.enable_sleep",
    "vllm_num_engines": "vllm.num_engines",
    "vllm_tensor_parallel_size": "vllm.tensor_parallel_size",
    "vllm_gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "vllm_enable_sleep": "vllm.enable_sleep",
    "enforce_eager": "vllm.enforce_eager",
    "micro_rollout_batch_size": "rollout.micro_batch_size",
    "advantage_estimator": "algo.advantage.estimator",
    "init_kl_coef": "algo.kl.init_coef",
    "async_train": "train.async_enable",
    "lora_rank": "ds.lora.rank",
    "target_modules": "ds.lora.target_modules",
    "load_in_4bit": "ds.load_in_4bit",
    "ring_attn_size": "ds.ring_attn_size",
    "zpg": "ds.zpg",
    "pretrain": "actor.model_name_or_path",
    "grad_accum_dtype": "ds.grad_accum_dtype",
    "overlap_comm": "ds.overlap_comm",
    "use_liger_kernel": "ds.use_liger_kernel",
}
"""Name of an argument before version 0.10 → its current name."""

ARGUMENT_BY_SFT_NAME = {
    "model.model_name_or_path": "actor.model_name_or_path",
    "model.gradient_checkpointing_enable": "actor.gradient_checkpointing_enable",
    "ds.gradient_checkpointing_enable": "actor.gradient_checkpointing_enable",
}
"""Argument of `train_sft` → the equivalent argument of `train_ppo_ray`."""

REFUSED_ARGUMENTS = {
    "ds.tensor_parallel_size": (1, "DeepSpeed's own tensor parallelism is not modelled"),
    "ds.zpg": (1, "a second partition inside of machines is not modelled"),
    "ds.deepcompile": (False, "DeepCompile is not modelled"),
    "train.enable_ema": (False, "a moving average of the weights is not counted"),
    "actor.optim": ("adam", "another optimizer than Adam is not modelled"),
}
"""Argument → its only modelled value, and the reason."""

LOSS_BY_TRAINER = {
    "train_ppo_ray": "",
    "train_sft": "",
    "train_dpo": "sigmoid",
    "train_rm": "reward",
    "train_kto": "kto",
}
"""Module that trains → loss on preferences; empty for none. `train_kto` existed before version 0.9."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts an OpenRLHF module or script."""
    return command_line.program.startswith("openrlhf.cli.")


def trains(command_line: CommandLine) -> bool:
    """Whether a command of OpenRLHF trains, instead of serving a reward model or generating."""
    return command_line.program.rpartition(".cli.")[2].startswith("train_")


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of an OpenRLHF command. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        trainer_name = command_line.program.removesuffix(".py").rpartition(".")[2]
        if trainer_name == "train_kd":
            raise reader.argument_error(
                "--teacher_model", "a teacher beside the trained model is not modelled; expected train_sft"
            )
        if trainer_name not in LOSS_BY_TRAINER:
            raise reader.argument_error(
                f"line {command_line.line}: {trainer_name}", f"is not read; expected {', '.join(LOSS_BY_TRAINER)}"
            )
        arguments = {
            _current_flag_name(argument_name): argument_value
            for argument_name, argument_value in parse_arguments(command_line.words, source_file.name_in_errors).items()
        }
        known_names = frozenset(
            known_name for known_name in arguments if known_name.startswith(READ_SECTIONS) or "max_len" in known_name
        )
        argument_values = parsed_arguments(arguments, reader, known_names)
        argument_values = {
            _current_flag_name(known_name): known_value for known_name, known_value in argument_values.items()
        }
        model_id = marked_model_name(arguments.get("actor.model_name_or_path"))
        _refuse_unmodelled(reader, argument_values)
        world_size = (
            _actor_device_count(reader, argument_values) if trainer_name == "train_ppo_ray" else source_file.world_size
        )
        config = _deepspeed_config(reader, argument_values, world_size)
        settings = _settings_outside_deepspeed_config(reader, argument_values)
        if LOSS_BY_TRAINER[trainer_name]:
            settings |= _preference_pair_settings(
                reader, argument_values, LOSS_BY_TRAINER[trainer_name], config, settings
            )
        launch_settings = settings_of_generated_config(reader, config, world_size, settings)
        rollout = (
            _read_rollout(reader, argument_values, launch_settings.layout.dp)
            if trainer_name == "train_ppo_ray"
            else None
        )
        reader.ignored_arguments += [
            known_name for known_name in argument_values if known_name.partition(".")[0] in IGNORED_SECTIONS
        ]
        return reader.create_launch("deepspeed", launch_settings, model_name=model_id, rollout=rollout)


READ_SECTIONS = ("ds.", "train.", "ref.", "vllm.", "algo.advantage.estimator", "algo.kl.init_coef", "rollout.micro")
"""Prefixes of arguments whose values must be known."""

IGNORED_SECTIONS = ("logger", "ckpt", "eval", "algo", "rollout", "reward", "vllm")
"""Prefixes of arguments that do not change the memory of the actor's training step."""


def _current_flag_name(flag_name: str) -> str:
    """Returns the current name of an argument that was renamed in version 0.10."""
    argument_name = flag_name.lstrip("-")
    argument_name = ARGUMENT_BY_OLDER_NAME.get(argument_name, argument_name)
    return ARGUMENT_BY_SFT_NAME.get(argument_name, argument_name)


def _refuse_unmodelled(reader: LaunchReader, config: Table) -> None:
    for argument_name, (modelled_value, refusal_reason) in REFUSED_ARGUMENTS.items():
        if config.get(argument_name, modelled_value) != modelled_value:
            reader.refuse(f"--{argument_name}", refusal_reason)


def _actor_device_count(reader: LaunchReader, config: Table) -> int:
    """Returns the number of devices of the actor's placement group."""
    return reader.device_count_of_nodes(config, "actor.num_nodes", "actor.num_gpus_per_node", "--")


def _preference_pair_settings(
    reader: LaunchReader, arguments: Table, loss_name: str, config: dict[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Doubles the micro-batch for pairs of answers, except for KTO, and returns the loss settings."""
    run_settings = {**settings, "batch": config["train_micro_batch_size_per_gpu"]}
    if loss_name == "kto":
        batch_settings = kto_settings(reader, run_settings, FrozenModel("openrlhf/cli/train_kto.py"))
    else:
        batch_settings = preference_pair_settings(
            reader, loss_name, run_settings, FrozenModel("openrlhf/cli/train_dpo.py")
        )
    if reader.flag(arguments, "ref.offload"):
        reader.frozen_model = None
        reader.notes.append("--ref.offload: the reference model is on the host")
    config["train_micro_batch_size_per_gpu"] = batch_settings.pop("batch")
    return batch_settings


def _deepspeed_config(reader: LaunchReader, arguments: Table, world_size: int | None) -> dict[str, Any]:
    """Returns the DeepSpeed config of the trained model."""
    dtype = reader.choice(arguments, "ds.param_dtype", ("bf16", "fp16"), "bf16", "--")
    micro_batch = reader.integer(arguments, "train.micro_batch_size", 1)
    global_batch = reader.integer(arguments, "train.batch_size", 128)
    replica_count = max(1, (world_size or 1) // reader.integer(arguments, "ds.ring_attn_size", 1))
    if arguments.get("train.dynamic_batch_enable"):
        micro_batch = 1
    zero_table: dict[str, Any] = {
        "stage": reader.integer(arguments, "ds.zero_stage", 2, minimum=0),
        "offload_optimizer": {"device": "cpu" if reader.flag(arguments, "ds.adam_offload") else "none"},
        **AUTO_BUCKETS,
    }
    if reader.flag(arguments, "ds.overlap_comm"):
        zero_table["overlap_comm"] = True
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": max(1, global_batch // (micro_batch * replica_count)),
        dtype: {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": zero_table,
    }
    if arguments.get("ds.grad_accum_dtype") is not None:
        config["data_types"] = {"grad_accum_dtype": arguments["ds.grad_accum_dtype"]}
    return config


def _settings_outside_deepspeed_config(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the run's settings outside of the DeepSpeed config: length, attention, recomputation, adapters."""
    settings: dict[str, Any] = {"optimizer": "adamw", "seq": _sequence_length(reader, config)}
    attention_name = str(reader.value(config, "ds.attn_implementation", "flash_attention_2"))
    settings["attn_implementation"] = "eager" if attention_name == "eager" else "flash"
    if reader.flag(config, "actor.gradient_checkpointing_enable"):
        is_reentrant = reader.flag(config, "actor.gradient_checkpointing_reentrant")
        settings["recompute"] = "full-reentrant" if is_reentrant else "full"
    if reader.flag(config, "ds.use_liger_kernel"):
        settings |= {"norm": "fused"}
    # models/actor.py copies logits to float32, and models/utils.py runs flash-attn's loss on the copy
    settings |= {"cross_entropy": "flash", "logits_dtype": "float32"}
    lora_rank = config.get("ds.lora.rank")
    if lora_rank not in (None, 0):
        target_pair = ("--ds.lora.target_modules", config.get("ds.lora.target_modules", "all-linear"))
        settings |= lora_settings(reader, rank=("--ds.lora.rank", lora_rank), targets_argument=target_pair)
    if reader.flag(config, "ds.load_in_4bit"):
        settings["base"] = "nf4-dq"
    return settings


def _sequence_length(reader: LaunchReader, config: Table) -> int:
    """Returns the tokens per sequence and rank in a micro-batch of the longest sequences."""
    ring_size = reader.integer(config, "ds.ring_attn_size", 1)
    if reader.flag(config, "train.dynamic_batch_enable"):
        token_limit = reader.integer(config, "train.max_tokens_per_gpu", 16192)
        reader.notes.append("--train.dynamic_batch_enable: micro-batches of train.max_tokens_per_gpu tokens")
        return token_limit
    reader.counts_longest_samples = True
    if config.get("data.max_len") is None and config.get("data.generate_max_len") is not None:
        return read_integer(reader, "--generate_max_len", config["data.generate_max_len"]) + reader.integer(
            config, "data.prompt_max_len", 1024
        )
    token_limit = reader.integer(config, "data.max_len", 2048)
    if ring_size > 1:
        if token_limit % ring_size:
            raise reader.argument_error(
                "--ds.ring_attn_size", f"{ring_size}; expected a divisor of --data.max_len {token_limit}"
            )
        reader.notes.append(
            f"--ds.ring_attn_size {ring_size}: each rank has 1/{ring_size} of a sequence; what it sends is not counted"
        )
    return token_limit // ring_size


SOURCE_FILES = "openrlhf/cli/train_ppo_ray.py, trainer/ray/vllm_engine.py"
"""OpenRLHF's source files that state what is on a device in each phase."""


def _read_rollout(reader: LaunchReader, config: Table, rank_count: int) -> Rollout | None:
    """Returns the models that share the actor's devices: the reference, and also critic and engine if colocated."""
    colocates_all = reader.flag(config, "train.colocate_all")
    colocates_reference = colocates_all or reader.flag(config, "train.colocate_actor_ref")
    if not colocates_reference:
        reader.notes.append("the training of the actor is counted, on devices of its own")
        return None
    has_engine = colocates_all and not reader.flag(config, "train.async_enable") and config.get("vllm.num_engines") != 0
    engine_sleeps = has_engine and reader.flag(config, "vllm.enable_sleep")
    sequence_count, sequence_length = _log_probability_batch(reader, config)
    return Rollout(
        source=SOURCE_FILES,
        engine="vllm" if has_engine else "",
        flags=_engine_flags(reader, config) if has_engine else {},
        engine_sleeps_while_idle=engine_sleeps,
        has_separate_process=True,
        offloaded_states=frozenset(("optimizer", "gradients") if reader.flag(config, "ds.enable_sleep") else ()),
        reference_model=_reference_model(reader, config, rank_count),
        critic_location=_critic_location(reader, config) if colocates_all else "none",
        sequence_count=sequence_count,
        tokens_per_sequence=sequence_length,
        logit_tokens_per_sequence=sequence_length,
        bytes_per_logit=6,  # logits in bf16, and their copy in float32 (models/actor.py)
    )


def _log_probability_batch(reader: LaunchReader, config: Table) -> tuple[int, int]:
    """Returns the sequences of a micro-batch that computes log-probabilities, and the tokens per sequence and rank.

    Dynamic batches have a number of tokens instead of `rollout.micro_batch_size` sequences
    (trainer/ppo_utils/experience_maker.py, `split_rollout_samples`).
    """
    if not reader.flag(config, "train.dynamic_batch_enable"):
        return reader.integer(config, "rollout.micro_batch_size", 1), _sequence_length(reader, config)
    update_tokens = reader.integer(config, "train.max_tokens_per_gpu", 16192)
    return 1, reader.integer(config, "rollout.max_tokens_per_gpu", update_tokens)


def _engine_flags(reader: LaunchReader, config: Table) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "tensor_parallel_size": reader.integer(config, "vllm.tensor_parallel_size", 1),
        "gpu_memory_utilization": read_fraction(reader, "vllm.gpu_memory_utilization", config, 0.95),
        "max_model_len": _longest_sequence_tokens(reader, config),
    }
    return flags | ({"enforce_eager": True} if reader.flag(config, "vllm.enforce_eager") else {})


def _longest_sequence_tokens(reader: LaunchReader, config: Table) -> int:
    """Returns the number of tokens of the longest sequence."""
    if config.get("data.max_len") is None and config.get("data.generate_max_len") is not None:
        return _sequence_length(reader, config)
    return reader.integer(config, "data.max_len", 2048)


def _reference_model(reader: LaunchReader, config: Table, rank_count: int) -> AdditionalModel:
    """Returns the reference model of the KL term; none if the term's weight is 0."""
    if config.get("algo.kl.init_coef", 0.01) in (0, 0.0, "0", "0.0"):
        return AdditionalModel()
    reference_location: ModelLocation = "host" if reader.flag(config, "ref.offload") else "device"
    return AdditionalModel(reference_location, 2, rank_count if config.get("ds.zero_stage", 2) == 3 else 1)


def _critic_location(reader: LaunchReader, config: Table) -> ModelLocation:
    if str(reader.value(config, "algo.advantage.estimator", "gae")) != "gae":
        return "none"
    reader.notes.append("the critic is counted as large as the actor")
    return "host" if reader.flag(config, "ds.enable_sleep") else "device"
