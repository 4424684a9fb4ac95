"""Reads `megatron sft`, `pt` and `rlhf` of ms-swift, which train a named model with Megatron-Core.

Source: ms-swift at 3602360a (2026-08-22): swift/megatron/arguments/megatron_args.py for arguments and defaults,
swift/megatron/trainers/{dpo,kto,reward,rlhf_mixin,grpo}_trainer.py for the models beside the trained one.
"""

from __future__ import annotations

from typing import Any

from ...errors import short_repr
from ...sources.huggingface.family import field_names
from ...workload.lora import ALL_LINEAR
from ..argument_names import argument_names
from ..frozen_model import FrozenModel
from ..launch.grpo import SFT_NOTE, grpo_length_settings
from ..launch.launch_types import LaunchReader, LaunchSettings, Table, read_integer
from ..launch.trainer import kto_settings, lora_settings, preference_pair_settings
from ..megatron.named_model import (
    HOST_OPTIMIZER_ARGUMENTS,
    PRECISION_AWARE_ARGUMENTS,
    STAGE_LAYOUT,
    MegatronRunSettings,
    attention_setting,
    cross_entropy_setting,
    end_stage_layers,
    host_optimizer_settings,
    megatron_launch_settings,
    precision_aware_settings,
    stage_sizes_of_layout,
)
from .rlhf import GRPO_BETA, LOSS_BY_RLHF_TYPE, known_argument_names, packed_sequence_count
from .tasks import sequences_per_sample

PARALLEL_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "micro_batch_size",
)
"""Arguments for parallel sizes, whose default is 1."""

ARGUMENTS_READ = field_names("""
    model tuner_type train_type lora_rank target_modules lora_dropout max_length packing packing_length
    global_batch_size sequence_parallel virtual_pipeline_model_parallel_size recompute_granularity recompute_method
    recompute_num_layers recompute_modules cross_entropy_loss_fusion use_distributed_optimizer torch_dtype
    cross_entropy_fusion_impl bias_activation_fusion attention_backend
    decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers pipeline_model_parallel_layout
    moe_token_dispatcher_type moe_flex_dispatcher_backend
    """) | set(PARALLEL_SIZES)

MODELLED_VALUES: dict[str, tuple[Any, ...]] = {
    "mtp_num_layers": (None, 0),
    "optimizer": ("adam",),
    "main_params_dtype": ("fp32", None),
    "moe_enable_deepep": (False, None),
    "freeze_parameters": (None,),
    "freeze_llm": (False, None),
    "lora_dtype": ("bfloat16", None),
    "lora_bias": ("none",),
    "modules_to_save": (None,),
    "ref_adapters": (None,),
}
"""Argument that is modelled for some values only → these values."""

ARGUMENTS_IGNORED = argument_names(__file__, "ignored_by_megatron")


def megatron_command_settings(
    reader: LaunchReader, config: Table, other_ignored_names: frozenset[str], rlhf_type: str = ""
) -> LaunchSettings:
    """Returns the training run of a `megatron` command of ms-swift.

    other_ignored_names: ms-swift's arguments that do not change memory.
    rlhf_type: the `--rlhf_type` of `megatron rlhf`; empty (default) for supervised training.
    Raises `InputError`, which names file and argument.
    """
    ignored_names = (ARGUMENTS_IGNORED | other_ignored_names) - set(MODELLED_VALUES)
    rlhf_names = (
        (*known_argument_names(reader, config, rlhf_type), "mcore_ref_model", "offload_bridge") if rlhf_type else ()
    )
    reader.record_argument_names(
        config,
        (
            *ARGUMENTS_READ,
            *MODELLED_VALUES,
            *FP8_READ,
            *HOST_OPTIMIZER_ARGUMENTS,
            *PRECISION_AWARE_ARGUMENTS,
            *rlhf_names,
        ),
        ignored_names,
    )
    adapter_settings = _adapter_settings(reader, config)
    reader.refuse_other_values(config, MODELLED_VALUES, "--", " for a model that is named")
    if reader.flag(config, "moe_shared_expert_overlap"):
        reader.notes.append("--moe_shared_expert_overlap: shared experts are counted without overlap")
    parallel_sizes = {size_name: reader.integer(config, size_name, 1) for size_name in PARALLEL_SIZES}
    recompute_granularity = reader.value(config, "recompute_granularity", "selective")
    recomputed_modules = config.get("recompute_modules")
    sequence_length = config.get("packing_length", config.get("max_length"))
    if rlhf_type == "grpo":
        sequence_length = grpo_length_settings(reader, config, "max_length", bool(adapter_settings), GRPO_BETA)["seq"]
        reader.notes.append(SFT_NOTE)
    if sequence_length is None:
        raise reader.argument_error("--max_length", "missing; the length is that of the model; expected --max_length N")
    megatron_run = MegatronRunSettings(
        tp=parallel_sizes["tensor_model_parallel_size"],
        pp=parallel_sizes["pipeline_model_parallel_size"],
        cp=parallel_sizes["context_parallel_size"],
        ep=parallel_sizes["expert_model_parallel_size"],
        etp=parallel_sizes["expert_tensor_parallel_size"],
        vpp=reader.optional_integer(config, "virtual_pipeline_model_parallel_size") or 1,
        stage_sizes=stage_sizes_of_layout(reader, f"--{STAGE_LAYOUT}", config.get("pipeline_model_parallel_layout")),
        end_stage_layers=end_stage_layers(
            reader, config, "", ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
        ),
        sequence_parallel=reader.flag(config, "sequence_parallel"),
        distributed_optimizer=reader.flag(config, "use_distributed_optimizer", True),
        batch=_preference_sequences(reader, rlhf_type, config, parallel_sizes["micro_batch_size"], adapter_settings),
        seq=read_integer(reader, "--max_length", sequence_length),
        recompute_granularity=None if recompute_granularity in ("none", None) else recompute_granularity,
        recompute_method=config.get("recompute_method"),
        recompute_num_layers=config.get("recompute_num_layers"),
        recompute_modules=[recomputed_modules] if isinstance(recomputed_modules, str) else recomputed_modules,
        dispatcher=config.get("moe_token_dispatcher_type"),
        dispatcher_backend=config.get("moe_flex_dispatcher_backend"),
        cross_entropy=cross_entropy_setting(
            reader,
            reader.flag(config, "cross_entropy_loss_fusion", True),
            reader.value(config, "cross_entropy_fusion_impl", "native"),
        ),
        fuses_activation=reader.flag(config, "bias_activation_fusion", True),
        fp8_arguments=_fp8_arguments(reader, config),
    )
    settings = {
        **adapter_settings,
        **precision_aware_settings(reader, config),
        **host_optimizer_settings(reader, config, "", 1.0),
        **attention_setting(reader, "--attention_backend", reader.value(config, "attention_backend", "flash")),
    }
    launched_run = megatron_launch_settings(reader, megatron_run, reader.source.world_size, settings)
    global_batch = reader.integer(config, "global_batch_size", 16)
    rank_batch = parallel_sizes["micro_batch_size"] * launched_run.layout.dp
    if global_batch % rank_batch:
        raise reader.argument_error(
            "--global_batch_size", f"{global_batch}; expected a multiple of {rank_batch}, micro-batch · dp"
        )
    launched_run.settings["num_microbatches"] = global_batch // rank_batch
    return launched_run


REFERENCE_MODEL = FrozenModel("swift/megatron/trainers/rlhf_mixin.py", is_divided_as_trained=True)
"""The reference model of preference training, which ranks shard like the trained weights."""


def _adapter_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of low-rank adapters (mcore-bridge, tuners/lora.py); none for full training."""
    tuner_type = config.get("tuner_type", config.get("train_type"))
    tuner_type = reader.value(config, "tuner_type", "full") if tuner_type is None else tuner_type
    if plain_tuner_type(reader, tuner_type) == "full":
        return {}
    target_modules = reader.value(config, "target_modules", ALL_LINEAR)
    if isinstance(target_modules, list) and ALL_LINEAR in target_modules:
        modules_text = ", ".join(str(module)[:40] for module in target_modules if module != ALL_LINEAR)
        reader.refuse("--target_modules", f"{modules_text} beside {ALL_LINEAR} is not modelled; {ALL_LINEAR} alone is")
        target_modules = ALL_LINEAR
    settings = lora_settings(
        reader,
        rank=("--lora_rank", reader.integer(config, "lora_rank", 8)),
        targets_argument=("--target_modules", target_modules),
        dropout_value=float(reader.value(config, "lora_dropout", "0.05")),
    )
    return {**settings, "lora_library": "mcore-bridge", "lora_dtype": "bf16"}


TYPES_NEAR_LORA = ("adalora", "boft", "bone", "fourierft", "oft", "vera")
"""Types of adapters for whose training PEFT measured −9 to +13 % of LoRA's memory (method_comparison, MetaMathQA)."""


def plain_tuner_type(reader: LaunchReader, written_type: Any) -> str:
    """Returns `full` or `lora`. With `lora_llm` the language model has adapters and its encoder is trained in full.

    Source: swift/arguments/tuner_args.py. Raises `InputError` for another type.
    """
    if written_type == "lora_llm":
        reader.notes.append("--tuner_type lora_llm: the encoder, which is trained in full, is not counted")
        return "lora"
    if written_type not in ("full", "lora"):
        advice = "lora, which needs about as much" if written_type in TYPES_NEAR_LORA else "full, lora or lora_llm"
        raise reader.argument_error("--tuner_type", f"{short_repr(written_type)} is not modelled; expected {advice}")
    return str(written_type)


def _preference_sequences(
    reader: LaunchReader, rlhf_type: str, config: Table, micro_batch: int, adapter_settings: dict[str, Any]
) -> int:
    """Adds the reference model of preference training to the run, and returns the number of sequences of a micro-batch.

    adapter_settings: the settings of adapters, without which the trained model is the reference.
    """
    if rlhf_type in ("", "grpo"):
        return micro_batch * sequences_per_sample(reader, config, rlhf_type)
    run_settings = {"batch": micro_batch, **adapter_settings}
    if rlhf_type == "kto":
        return int(kto_settings(reader, run_settings, REFERENCE_MODEL)["batch"])
    sequence_count = int(
        preference_pair_settings(reader, LOSS_BY_RLHF_TYPE[rlhf_type], run_settings, REFERENCE_MODEL)["batch"]
    )
    return packed_sequence_count(reader, config, sequence_count)


FP8_READ = ("fp8_format", "fp8_recipe", "fp8_param_gather", "fp8_amax_history_len")
"""Arguments of 8-bit matrix products that are read (swift/megatron/arguments/megatron_args.py)."""

MODELLED_FP8_VALUES = {"fp8_format": ("e4m3", "hybrid"), "fp8_recipe": ("delayed", "tensorwise", "mxfp8", "blockwise")}
"""Argument of 8-bit matrix products → the modelled values."""


def _fp8_arguments(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns Megatron-LM's arguments of products in 8 bits; none without `--fp8_format`."""
    if config.get("fp8_format") in (None, "none"):
        return {}
    arguments: dict[str, Any] = {
        "fp8_format": config["fp8_format"],
        "fp8_recipe": reader.value(config, "fp8_recipe", "delayed"),
        "fp8_param_gather": reader.flag(config, "fp8_param_gather"),
        "fp8_amax_history_len": reader.integer(config, "fp8_amax_history_len", 1024),
    }
    for argument_name, known_words in MODELLED_FP8_VALUES.items():
        if arguments[argument_name] not in known_words:
            raise reader.value_error(f"--{argument_name}", arguments[argument_name], f"one of {', '.join(known_words)}")
    return arguments
