"""Reads commands of verl with Hydra's overrides: the training of the actor by FSDP or Megatron-Core.

Source: verl at b178a3cd (2026-01-29): verl/trainer/config/actor/{actor,dp_actor,megatron_actor}.yaml,
engine/{fsdp,megatron}.yaml and model/hf_model.yaml for defaults; verl/workers/fsdp_workers.py for the devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...errors import InputError, short_repr
from ...parallel.layout import Layout
from ..argument_names import argument_names
from ..frozen_model import FrozenModel
from ..fsdp2.settings import TitanSettings
from ..launch.command_line import hydra_overrides_of, marked_model_name, parsed_argument_value
from ..launch.interpolation import flat_config
from ..launch.launch_types import (
    CommandLine,
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    Table,
    launch_reader,
    read_integer,
)
from ..launch.rollout import Rollout
from ..launch.trainer import lora_settings
from ..launch.unresolved import UNRESOLVED_MARK, is_unresolved, mark_unresolved, unresolved_reason
from ..megatron.named_model import (
    BRIDGE_FUSED_MODEL_TYPES,
    PIPELINE_SPLIT_ARGUMENTS,
    STAGE_LAYOUT,
    MegatronRunSettings,
    bridge_adapter_settings,
    end_stage_layers,
    host_optimizer_settings,
    megatron_launch_settings,
    stage_sizes_of_layout,
)
from .easy_r1 import PROGRAM as EASY_R1_PROGRAM
from .easy_r1 import VERL_KEYS, with_easy_r1_keys, with_verl_keys
from .known_keys import note_ignored_keys, turns_key_off
from .rollout import ACTOR_PREFIX, MODEL_PREFIX, REFERENCE_PREFIX, ROLLOUT_PREFIX, read_rollout
from .sft import (
    ENGINE_SFT_TRAINER,
    FP32_SHARDS,
    MODEL_KEY_BY_TRAINER,
    OUTER_GROUPS,
    SFT_TRAINER,
    optimizer_settings,
    sft_launch_settings,
    with_fsdp_sft_trainer_keys,
)

TRAINERS = ("verl.trainer.main_ppo", "main_ppo.py", "recipe.dapo.main_dapo", "verl.trainer.main_ppo_sync")

VERL_CONFIGS = ("ppo_trainer", "ppo_megatron_trainer")
"""Names of verl's own configs of reinforcement learning (verl/trainer/config)."""

KEYS_BESIDE_ACTOR = argument_names(__file__, "read_beside_the_actor")
"""Last parts of the keys of rollout, reference model, critic and algorithm that are read."""

DEVICE_COUNT_KEYS = ("trainer.n_gpus_per_node", "trainer.nnodes")
"""Keys whose product is the number of devices."""

READ_SECTIONS = (
    *DEVICE_COUNT_KEYS,
    "model_engine",
    "data.micro_batch",
    "engine.",
    "model.lora",
    "ulysses",
    MODEL_PREFIX,
    ACTOR_PREFIX,
    REFERENCE_PREFIX,
    ROLLOUT_PREFIX,
    "critic.",
    "data.max_",
)


MOVED_KEYS = {
    f"{ACTOR_PREFIX}.fsdp_config.{key}": f"{ACTOR_PREFIX}.{key}"
    for key in ("ulysses_sequence_parallel_size", "entropy_checkpointing", "entropy_from_logits_with_chunking")
}
"""Key of the engine since 2026 (trainer/config/engine/fsdp.yaml) → the equivalent earlier key of the actor."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts a trainer of verl, or another program with overrides of verl's actor."""
    return (
        command_line.program in TRAINERS
        or command_line.program.startswith("verl.trainer.")
        or _overrides_actor_settings(command_line)
    )


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a verl command. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        program_name, is_recipe = command_line.program, _overrides_actor_settings(command_line)
        if program_name not in (*TRAINERS, *MODEL_KEY_BY_TRAINER, EASY_R1_PROGRAM) and not is_recipe:
            raise reader.argument_error(
                f"line {command_line.line}: {program_name}",
                f"is not read; expected {TRAINERS[0]} or {ENGINE_SFT_TRAINER}",
            )
        overrides_by_key = hydra_overrides_of(command_line.words)
        if program_name == EASY_R1_PROGRAM:
            config_path = overrides_by_key.pop("config", None)
            base_config = _config_of_easy_r1(reader, config_path)
            return launch_of_easy_r1(reader, values_of_config(base_config, overrides_by_key, source_file.env))
        if program_name in MODEL_KEY_BY_TRAINER:
            return launch_of_fine_tuning(reader, overrides_by_key, program_name)
        if program_name not in TRAINERS:
            reader.notes.append(f"{program_name}: its update is counted as that of {TRAINERS[0]}")
        config_folder, config_name = (
            _value_of_hydra_flag(command_line.words, flag_name) for flag_name in ("--config-path", "--config-name")
        )
        base_config = _config_in_folder(reader, config_folder, config_name.removesuffix(".yaml"))
        overrides_by_key = values_of_config(base_config, overrides_by_key, source_file.env)
        return launch_of_overrides(reader, overrides_by_key, [config_name, *config_names(base_config)])


def launch_of_fine_tuning(reader: LaunchReader, overrides_by_key: Table, program_name: str = SFT_TRAINER) -> Launch:
    """Returns the training run of verl's supervised fine-tuning. program_name: by default `fsdp_sft_trainer`."""
    config = _resolved_overrides(reader, overrides_by_key)
    if program_name == ENGINE_SFT_TRAINER:
        config = with_fsdp_sft_trainer_keys(reader, config)
    model_id = marked_model_name(overrides_by_key.get(MODEL_KEY_BY_TRAINER[program_name]))
    return reader.create_launch("fsdp2", sft_launch_settings(reader, config), model_name=model_id)


def values_of_config(config: Table, overrides: Table, environment: Table) -> dict[str, Any]:
    """Returns dotted key → value as `flat_config` does, with unresolved interpolations marked as unresolved."""
    return {
        config_key: mark_unresolved(config_value)
        if isinstance(config_value, str) and "${" in config_value and not is_unresolved(config_value)
        else config_value
        for config_key, config_value in flat_config(config, overrides, environment).items()
    }


def _config_of_easy_r1(reader: LaunchReader, config_path: str | None) -> Table:
    """Returns the tables of the file in `config=FILE`; empty without it. Raises `InputError` for a missing file."""
    if config_path is None:
        return {}
    return reader.tables_of_named_file("config", marked_model_name(config_path), "a config of EasyR1", {})


def _value_of_hydra_flag(command_words: Sequence[str], flag_name: str) -> str:
    """Returns the value of one of Hydra's flags, `--flag value` or `--flag=value`; empty if the flag is missing."""
    for command_word, next_word in zip(command_words, [*command_words[1:], ""], strict=True):
        if command_word.startswith(f"{flag_name}="):
            return command_word.removeprefix(f"{flag_name}=")
        if command_word == flag_name:
            return next_word
    return ""


def _config_in_folder(reader: LaunchReader, config_folder: str, config_name: str) -> Table:
    """Returns the tables of a config that a command names; empty, with a note, if the config's file is missing.

    config_folder: the folder that the command names; empty for the file's, and `config` in it. There is no note on
    verl's own configs, whose defaults are known. Raises `InputError` for a config that cannot be parsed.
    """
    read_text, read_named_tables = reader.source.read_text, reader.source.read_named_tables
    if read_text is None or read_named_tables is None or not config_name:
        return {}
    for folder in (config_folder.replace(UNRESOLVED_MARK, ""),) if config_folder else (".", "config"):
        config_path = f"{folder}/{config_name}.yaml"
        try:
            read_text(config_path)
        except InputError:
            continue
        return read_named_tables(config_path)
    if config_name not in VERL_CONFIGS:
        reader.notes.append(
            f"--config-name {config_name[:60]}: {config_name[:60]}.yaml is not beside the file; what the command "
            "leaves out is counted by verl's defaults"
        )
    return {}


def config_names(config: Table) -> list[str]:
    """Returns the names of the configs on which a config builds."""
    defaults = config.get("defaults")
    return [str(config_name) for config_name in defaults] if isinstance(defaults, list) else []


def launch_of_easy_r1(reader: LaunchReader, written_values: Table) -> Launch:
    """Returns the training run of EasyR1's actor. written_values: config key with dots → value."""
    try:
        launched_run = launch_of_overrides(reader, with_verl_keys(reader, written_values), (), is_easy_r1=True)
    except InputError as error:
        raise InputError(with_easy_r1_keys(str(error))) from None
    return replace(
        launched_run,
        notes=tuple(map(with_easy_r1_keys, launched_run.notes)),
        assumed_defaults={
            easy_r1_key: launched_run.assumed_defaults[verl_key]
            for easy_r1_key, verl_key in VERL_KEYS.items()
            if verl_key in launched_run.assumed_defaults
        },
        unknown_arguments={
            with_easy_r1_keys(argument_name): refusal_reason
            for argument_name, refusal_reason in launched_run.unknown_arguments.items()
        },
    )


def launch_of_overrides(
    reader: LaunchReader, overrides_by_key: Table, base_names: Sequence[str], is_easy_r1: bool = False
) -> Launch:
    """Returns the training run of the actor in verl, from the overrides of its configuration.

    overrides_by_key: dotted key → value. base_names: names of the configs of verl below them.
    is_easy_r1: whether EasyR1 runs it, which keeps torch's usual segments, and frozen weights in 16 bits; by default
        verl.
    """
    config = _resolved_overrides(reader, overrides_by_key)
    model_id = marked_model_name(overrides_by_key.get(f"{MODEL_PREFIX}.path"))
    # verl/utils/device.py, `set_expandable_segments`, between rollouts
    reader.requests_expandable_segments = not is_easy_r1
    uses_megatron = _uses_megatron(reader, config, base_names)
    note_ignored_keys(reader, config)
    reader.read_frozen_encoders(config, f"{ACTOR_PREFIX}.freeze_vision_tower")
    world_size = _training_device_count(reader, config)
    if uses_megatron:
        megatron_run = _megatron_launch_settings(reader, config, world_size)
    else:
        megatron_run = _fsdp_launch_settings(
            reader, config, world_size, frozen_shards=None if is_easy_r1 else FP32_SHARDS
        )
    rollout = read_rollout(reader, config, megatron_run, uses_megatron)
    reader.ignored_arguments += [model_key for model_key in config if not _is_read_or_refused_key(model_key, rollout)]
    return reader.create_launch(
        "megatron" if uses_megatron else "fsdp2", megatron_run, model_name=model_id, rollout=rollout
    )


def _overrides_actor_settings(command_line: CommandLine) -> bool:
    """Whether a command overrides settings of verl's actor, as recipes and programs based on verl do."""
    return any(command_word.lstrip("+").startswith(f"{ACTOR_PREFIX}.") for command_word in command_line.words)


def _uses_megatron(reader: LaunchReader, config: Table, base_names: Sequence[str]) -> bool:
    """Whether the actor runs on Megatron-Core: by its strategy, the name of the config, or the config group.

    Source: verl/trainer/config/ppo_trainer.yaml at its head of 2026-08-22, whose actor is `${model_engine}_actor`.
    """
    engine = config.get("model_engine", "dp")
    if engine not in ("dp", "megatron"):
        raise reader.argument_error("model_engine", f"{short_repr(engine)} is not read; expected dp (FSDP) or megatron")
    return (
        engine == "megatron"
        or config.get(f"{ACTOR_PREFIX}.strategy") == "megatron"
        or any("megatron" in base_name for base_name in base_names)
    )


def _resolved_overrides(reader: LaunchReader, overrides_by_key: Table) -> dict[str, Any]:
    """Returns key → value of the overrides. Raises `InputError` for unresolved values other than paths."""
    resolved_values = {}
    for override_key, override in overrides_by_key.items():
        is_open = isinstance(override, str) and is_unresolved(override)
        if is_open and override_key in DEVICE_COUNT_KEYS and reader.source.typed_device_count is not None:
            continue
        if is_open and override_key in DEVICE_COUNT_KEYS:
            raise reader.argument_error(override_key, f"{unresolved_reason(override)}, or expected --devices")
        if is_open and override_key.startswith(READ_SECTIONS) and not override_key.endswith(("path", "dir", "file")):
            raise reader.argument_error(override_key, unresolved_reason(override))
        resolved_values[MOVED_KEYS.get(override_key, override_key)] = parsed_argument_value(override)
    return resolved_values


def _is_read_or_refused_key(config_key: str, rollout: Rollout) -> bool:
    """Whether verl's reader reads a config key, or refuses some of its values."""
    read_prefixes = (MODEL_PREFIX, ACTOR_PREFIX, "model_engine", "data.max_", "trainer.n")
    if config_key.startswith(read_prefixes) or config_key.rpartition(".")[2] in KEYS_BESIDE_ACTOR:
        return True
    return config_key.removeprefix(f"{ROLLOUT_PREFIX}.engine_kwargs.{rollout.engine}.") in rollout.flags


def _training_device_count(reader: LaunchReader, config: Table) -> int:
    """Returns the number of devices, all of which train the actor."""
    typed_device_count = reader.source.typed_device_count
    if typed_device_count is not None and not set(DEVICE_COUNT_KEYS) & set(config):
        return typed_device_count
    return reader.device_count_of_nodes(config, "trainer.nnodes", "trainer.n_gpus_per_node")


def _micro_batch_shape(reader: LaunchReader, config: Table, sequence_ranks: int) -> tuple[int, int]:
    """Returns a micro-batch's number of sequences, and the largest number of tokens per sequence on all ranks."""
    prompt_tokens = reader.integer(config, "data.max_prompt_length", 512)
    response_tokens = reader.integer(config, "data.max_response_length", 512)
    if reader.flag(config, f"{ACTOR_PREFIX}.use_dynamic_bsz"):
        rank_tokens = reader.integer(config, f"{ACTOR_PREFIX}.ppo_max_token_len_per_gpu", 16384)
        reader.notes.append("use_dynamic_bsz: micro-batches of ppo_max_token_len_per_gpu tokens")
        return 1, rank_tokens * sequence_ranks  # workers/actor/dp_actor.py, `max_token_len`
    reader.counts_longest_samples = True
    size_key = f"{ACTOR_PREFIX}.ppo_micro_batch_size_per_gpu"
    total_key = f"{ACTOR_PREFIX}.ppo_micro_batch_size"
    if config.get(size_key) is None and config.get(total_key) is not None:
        replica_count = _training_device_count(reader, config) // sequence_ranks
        return max(
            1, read_integer(reader, total_key, config[total_key]) // max(1, replica_count)
        ), prompt_tokens + response_tokens
    if config.get(size_key) is None:
        raise reader.argument_error(size_key, "missing; expected it, or use_dynamic_bsz=True")
    return read_integer(reader, size_key, config[size_key]), prompt_tokens + response_tokens


def _micro_batch_count(reader: LaunchReader, config: Table, micro_batch_size: int, replica_count: int) -> int:
    """Returns the number of micro-batches per update of a mini-batch with all responses."""
    mini_batch = reader.integer(config, f"{ACTOR_PREFIX}.ppo_mini_batch_size", 256)
    responses_per_prompt = reader.integer(config, f"{ROLLOUT_PREFIX}.n", 1)
    if reader.flag(config, f"{ACTOR_PREFIX}.use_dynamic_bsz"):
        return 2
    return max(1, mini_batch * responses_per_prompt // (micro_batch_size * max(1, replica_count)))


def _fsdp_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns an actor's settings under FSDP: optimizer, activation offloading, norms, loss and adapters."""
    settings: dict[str, Any] = {
        "phase": "training",
        "attn_implementation": "flash",
        **optimizer_settings(reader, config, f"{ACTOR_PREFIX}.optim"),
    }
    if reader.flag(config, f"{MODEL_PREFIX}.enable_activation_offload"):
        settings["offload_activations"] = True
        reader.notes.append(
            "enable_activation_offload: tensors wait on the host as torchtune's do, of which five stay, an estimate"
        )
    if reader.flag(config, f"{MODEL_PREFIX}.use_liger"):
        settings["norm"] = "fused"
    settings |= _loss_settings(reader, config)
    if reader.flag(config, f"{ACTOR_PREFIX}.calculate_sum_pi_squared"):
        reader.refuse(f"{ACTOR_PREFIX}.calculate_sum_pi_squared", "it is modelled without")
    for argument_name in ("entropy_from_logits_with_chunking", "entropy_checkpointing"):
        if reader.flag(config, f"{ACTOR_PREFIX}.{argument_name}"):
            reader.notes.append(f"{argument_name}: entropies that need less are counted without it, an upper bound")
    if config.get(f"{MODEL_PREFIX}.lora.rank") not in (None, 0):
        raise reader.argument_error(
            f"{MODEL_PREFIX}.lora.rank", f"is of Megatron-Core; expected {MODEL_PREFIX}.lora_rank for FSDP"
        )
    lora_rank = config.get(f"{MODEL_PREFIX}.lora_rank")
    if lora_rank not in (None, 0):
        target_pair = (
            f"{MODEL_PREFIX}.target_modules",
            reader.value(config, f"{MODEL_PREFIX}.target_modules", "all-linear"),
        )
        settings |= lora_settings(reader, rank=(f"{MODEL_PREFIX}.lora_rank", lora_rank), targets_argument=target_pair)
    return settings


def _loss_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of the update's log-probabilities (verl/workers/actor/dp_actor.py, `_forward_micro_batch`).

    flash-attn's loss reads logits that are divided in place by the temperature, and without an entropy it writes their
    gradient over them.
    """
    if reader.flag(config, f"{MODEL_PREFIX}.use_fused_kernels"):
        reader.notes.append("use_fused_kernels: log-probabilities without logits are counted as a chunked loss")
        return {"cross_entropy": "chunked"}
    has_entropy = not turns_key_off(config.get(f"{ACTOR_PREFIX}.entropy_coeff", 0))
    if has_entropy or reader.flag(config, f"{ACTOR_PREFIX}.calculate_entropy"):
        reader.notes.append("the update computes the entropy: its loss is counted as that of SFT, an upper bound")
        return {"divide_logits": True}
    if not reader.flag(config, f"{MODEL_PREFIX}.use_remove_padding", True):
        reader.notes.append("use_remove_padding false: the loss is counted as that of SFT, an upper bound")
        return {"divide_logits": True}
    return {"cross_entropy": "flash-in-place", "divide_logits": True}


MEGATRON_OPTIMIZER_PREFIX = f"{ACTOR_PREFIX}.optim.override_optimizer_config."
"""Prefix of the keys of Megatron-Core's optimizer."""

FP32_NAMES, BF16_NAMES = ("fp32", "float32"), ("bf16", "bfloat16")
"""Names of the number formats fp32 and bf16."""


def _fsdp_launch_settings(
    reader: LaunchReader, config: Table, world_size: int, frozen_shards: FrozenModel | None
) -> LaunchSettings:
    """Returns the actor's run under FSDP, with fp32 shards and bf16 computation.

    frozen_shards: frozen weights beside adapters in fp32; None for shards in 16 bits.
    """
    fsdp_strategy = str(reader.value(config, f"{ACTOR_PREFIX}.strategy", "fsdp"))
    if fsdp_strategy not in ("fsdp", "fsdp2"):
        raise reader.value_error(f"{ACTOR_PREFIX}.strategy", fsdp_strategy, "fsdp, fsdp2 or megatron")
    fsdp_section = f"{ACTOR_PREFIX}.fsdp_config"
    for offload_key in ("param_offload", "grad_offload", "optimizer_offload", "offload_policy"):
        if reader.flag(config, f"{fsdp_section}.{offload_key}"):
            reader.notes.append(
                f"{fsdp_section}.{offload_key}: counted as on the device, where it is during the update"
            )
    for offload_key in ("optimizer_cpu_offload", "use_precision_aware_optimizer"):
        if reader.flag(config, f"{MEGATRON_OPTIMIZER_PREFIX}{offload_key}"):
            reader.refuse(f"{MEGATRON_OPTIMIZER_PREFIX}{offload_key}", "it is of Megatron-Core")
    settings = _fsdp_settings(reader, config)
    if reader.flag(config, f"{MODEL_PREFIX}.enable_gradient_checkpointing", True):
        settings["recompute"] = "full"
    cp = reader.sequence_ranks(config, f"{ACTOR_PREFIX}.ulysses_sequence_parallel_size", world_size)
    micro_batch_size, sequence_length = _micro_batch_shape(reader, config, cp)
    if sequence_length % cp:
        raise reader.argument_error(
            f"{ACTOR_PREFIX}.ulysses_sequence_parallel_size",
            f"{cp}; expected a divisor of the {sequence_length} tokens of a sequence",
        )
    weight_format = str(reader.value(config, f"{fsdp_section}.model_dtype", "fp32"))
    if weight_format not in (*FP32_NAMES, *BF16_NAMES):
        raise reader.value_error(f"{fsdp_section}.model_dtype", weight_format, "fp32 or bf16")
    settings |= {
        "batch": micro_batch_size,
        "seq": sequence_length // cp,
        "num_microbatches": _micro_batch_count(reader, config, micro_batch_size, world_size // cp),
        "dtype": "bf16",
        "master_weights": "fp32" if weight_format in FP32_NAMES else "none",
    }
    if "lora_rank" in settings and weight_format in FP32_NAMES and frozen_shards is not None:
        reader.frozen_model = frozen_shards
        reader.notes.append(f"{fsdp_section}.model_dtype fp32: shards of frozen weights have 4 bytes")
    shard_count = reader.integer(config, f"{fsdp_section}.fsdp_size", -1, minimum=-1)
    shard_degree = world_size if shard_count < 1 or shard_count > world_size else shard_count
    if world_size % shard_degree:
        raise reader.argument_error(
            f"{fsdp_section}.fsdp_size", f"{shard_count}; expected a divisor of {world_size} devices"
        )
    layout = Layout(
        dp=world_size,
        zero=3 if world_size > 1 else 0,
        hsdp_replicas=world_size // shard_degree,
        reshard=reader.flag(config, f"{fsdp_section}.reshard_after_forward", True),
    )
    # its policy wraps each adapter on its own
    has_flat_params = fsdp_strategy == "fsdp" and "lora_rank" not in settings
    number_formats = {
        argument_name: str(config.get(f"{fsdp_section}.mixed_precision.{argument_name}", default_format))
        for argument_name, default_format in (("param_dtype", "bf16"), ("reduce_dtype", "fp32"))
    }
    if number_formats["param_dtype"] not in BF16_NAMES or number_formats["reduce_dtype"] not in (
        *BF16_NAMES,
        *FP32_NAMES,
    ):
        reader.refuse(f"{fsdp_section}.mixed_precision", "products in bf16 and sums in fp32 or bf16 alone are modelled")
    reduce_dtype = "bfloat16" if number_formats["reduce_dtype"] in BF16_NAMES else "float32"
    fsdp_settings = TitanSettings(
        reduction_format=reduce_dtype,
        reduces_each_microbatch=True,
        has_flat_parameters=has_flat_params,
        fsdp_version=1 if fsdp_strategy == "fsdp" else 2,
        outer_groups=OUTER_GROUPS[fsdp_strategy],
    )
    return LaunchSettings(layout, settings, fsdp_settings)


MBRIDGE_FUSED = frozenset({"deepseek_v3", "glm4_moe", "qwen2_moe", "qwen3_moe", ""})
"""Model types, and "" for models with encoders, with which mbridge sets `bias_activation_fusion`.

Source: ISEEKYAN/mbridge 10cb17f (2026-06-12), mbridge/models; Megatron-Core's default is false.
"""


def _megatron_launch_settings(reader: LaunchReader, config: Table, world_size: int) -> LaunchSettings:
    """Returns the actor's run under Megatron-Core."""
    section_name = f"{ACTOR_PREFIX}.megatron"
    for argument_name in ("param_offload", "grad_offload", "optimizer_offload"):
        if reader.flag(config, f"{section_name}.{argument_name}"):
            reader.notes.append(
                f"{section_name}.{argument_name}: counted as on the device, where it is during the update"
            )

    def section_size(size_name: str) -> int:
        return reader.integer(config, f"{section_name}.{size_name}", 1)

    override_section = f"{section_name}.override_transformer_config"
    tp, pp, cp = (
        section_size(f"{group_name}_parallel_size") for group_name in ("tensor_model", "pipeline_model", "context")
    )
    micro_batch_size, sequence_length = _micro_batch_shape(reader, config, cp)
    fusion_key, layout_key = (
        f"{override_section}.{group_name}" for group_name in ("bias_activation_fusion", STAGE_LAYOUT)
    )
    fused_model_types = (
        MBRIDGE_FUSED if reader.flag(config, f"{section_name}.vanilla_mbridge", True) else BRIDGE_FUSED_MODEL_TYPES
    )
    megatron_run = MegatronRunSettings(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=section_size("expert_model_parallel_size"),
        etp=reader.optional_integer(config, f"{section_name}.expert_tensor_parallel_size"),
        vpp=reader.optional_integer(config, f"{section_name}.virtual_pipeline_model_parallel_size") or 1,
        end_stage_layers=end_stage_layers(reader, config, f"{override_section}."),
        stage_sizes=stage_sizes_of_layout(reader, layout_key, config.get(layout_key)),
        ends_counted_as_layers=(
            reader.flag(config, f"{override_section}.{PIPELINE_SPLIT_ARGUMENTS[0]}"),
            reader.flag(config, f"{override_section}.{PIPELINE_SPLIT_ARGUMENTS[1]}"),
        ),
        sequence_parallel=reader.flag(config, f"{section_name}.sequence_parallel", True),
        distributed_optimizer=reader.flag(config, f"{section_name}.use_distributed_optimizer", True),
        batch=micro_batch_size,
        seq=sequence_length,
        num_microbatches=_micro_batch_count(reader, config, micro_batch_size, max(1, world_size // (tp * pp * cp))),
        recompute_granularity=config.get(f"{override_section}.recompute_granularity"),
        recompute_method=config.get(f"{override_section}.recompute_method"),
        recompute_num_layers=config.get(f"{override_section}.recompute_num_layers"),
        recompute_modules=config.get(f"{override_section}.recompute_modules"),
        fuses_activation=fused_model_types if config.get(fusion_key) is None else reader.flag(config, fusion_key),
    )
    settings = {
        **_megatron_adapters(reader, config),
        **host_optimizer_settings(reader, config, MEGATRON_OPTIMIZER_PREFIX),
    }
    if reader.flag(config, f"{MEGATRON_OPTIMIZER_PREFIX}use_precision_aware_optimizer"):
        settings["precision_aware_optimizer"] = True
    return megatron_launch_settings(reader, megatron_run, world_size, settings)


def _megatron_adapters(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of adapters of Megatron-Bridge (models/mcore/bridge.py)."""
    section_name = f"{MODEL_PREFIX}.lora"
    if config.get(f"{MODEL_PREFIX}.lora_rank") not in (None, 0):
        raise reader.argument_error(
            f"{MODEL_PREFIX}.lora_rank", f"is of FSDP; expected {section_name}.rank for Megatron-Core"
        )
    lora_rank = config.get(f"{section_name}.rank")
    if lora_rank in (None, 0):
        return {}
    adapter_type = reader.value(config, f"{section_name}.type", "lora")
    if adapter_type != "lora":
        reader.refuse(f"{section_name}.type", f"{short_repr(adapter_type)[:40]} is not modelled; lora is")
    target_modules, dropout_value = (
        config.get(f"{section_name}.{adapter_key}") for adapter_key in ("target_modules", "dropout")
    )
    return bridge_adapter_settings(reader, section_name, lora_rank, target_modules, dropout_value)
