"""Reads verl's supervised fine-tuning by FSDP, `fsdp_sft_trainer` and `sft_trainer`, with Hydra's overrides.

Source: verl at b178a3cd (2026-01-29): verl/trainer/config/{sft_trainer,sft_trainer_engine,engine/fsdp}.yaml for
defaults and verl/trainer/fsdp_sft_trainer.py for formats: shards in `model_dtype`, products in bf16, gradients reduced
in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr
from ...parallel.layout import Layout
from ..argument_names import argument_names
from ..frozen_model import FrozenModel
from ..fsdp2.settings import OuterGroups, TitanSettings
from ..launch.launch_types import LaunchReader, LaunchSettings, Table, read_integer
from ..launch.trainer import lora_settings

SFT_TRAINER = "verl.trainer.fsdp_sft_trainer"

ENGINE_SFT_TRAINER = "verl.trainer.sft_trainer"
"""Name of the trainer whose engine is configured separately from the model."""

MODEL_KEY_BY_TRAINER = {SFT_TRAINER: "model.partial_pretrain", ENGINE_SFT_TRAINER: "model.path"}
"""Trainer of supervised fine-tuning → the key of the model's name."""

ENGINE_KEYS = {
    "model.path": "model.partial_pretrain",
    "engine.model_dtype": "model.fsdp_config.model_dtype",
    "engine.offload_policy": "model.fsdp_config.cpu_offload",
    "engine.strategy": "model.strategy",
    "engine.ulysses_sequence_parallel_size": "ulysses_sequence_parallel_size",
}
"""Key of `sft_trainer` → the equivalent key of `fsdp_sft_trainer`."""

ENGINE_IGNORED = (
    "checkpoint.", "engine.wrap_policy", "engine.reshard_after_forward", "engine.forward_prefetch",
    "engine.use_orig_params", "engine.seed", "engine.full_determinism", "engine.use_torch_compile",
    "engine.param_offload", "engine.optimizer_offload", "engine.entropy_",
)  # fmt: skip
"""Prefixes of `sft_trainer`'s keys that do not change the memory of a step: offloaded states come back for the step."""

OUTER_GROUPS: Mapping[str, OuterGroups] = {"fsdp": "together", "fsdp2": "embedding"}
"""FSDP strategy → groups of the parameters outside the layers (verl/utils/fsdp_utils.py, `apply_fsdp2`)."""

FP32_SHARDS = FrozenModel(
    "verl/trainer/fsdp_sft_trainer.py, verl/workers/fsdp_workers.py", "bfloat16", name="fp32 shards beyond 16 bits"
)
"""Memory of frozen weights beyond 16 bits: their shards are in fp32, which takes two more bytes per weight."""

IGNORED_PREFIXES = ("trainer.", "optim.", "data.", "model.", "use_remove_padding")
"""Prefixes of keys that do not change the memory of a step."""

KEYS_READ = argument_names(__file__, "read_by_fine_tuning")


def with_fsdp_sft_trainer_keys(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the overrides of `sft_trainer` under the keys of `fsdp_sft_trainer`.

    By default its micro-batches have a number of tokens (`use_dynamic_bsz`), which are counted as one sequence.
    """
    engine_name = str(config.get("engine", "fsdp"))
    if engine_name not in ("fsdp", "fsdp2"):
        raise reader.argument_error("engine", f"{short_repr(engine_name)} is not read; expected fsdp")
    if str(config.get("engine.fsdp_size", -1)) != "-1":
        reader.refuse("engine.fsdp_size", "groups of fewer devices than all are not modelled")
    replaced_keys = ("engine", "optim", "engine.fsdp_size", "data.use_dynamic_bsz", "data.max_token_len_per_gpu")
    reader.ignored_arguments += [override_key for override_key in config if override_key.startswith(ENGINE_IGNORED)]
    renamed_overrides = {
        ENGINE_KEYS.get(override_key, override_key): override_value
        for override_key, override_value in config.items()
        if override_key not in replaced_keys and not override_key.startswith(ENGINE_IGNORED)
    }
    if reader.flag(config, "data.use_dynamic_bsz", True):
        rank_count = reader.integer(config, "engine.ulysses_sequence_parallel_size", 1)
        micro_batch_tokens = reader.integer(config, "data.max_token_len_per_gpu", 8192) * rank_count
        reader.notes.append(
            f"data.use_dynamic_bsz: micro-batches of {micro_batch_tokens} tokens, counted as one sequence"
        )
        renamed_overrides |= {"data.micro_batch_size_per_gpu": 1, "data.max_length": micro_batch_tokens}
    return {"model.strategy": "fsdp", **renamed_overrides}


OPTIMIZERS: Mapping[tuple[str, str], dict[str, str]] = {
    ("torch.optim", "AdamW"): {"optimizer": "adamw", "optimizer_impl": "foreach"},
    ("torch.optim", "Adam"): {"optimizer": "adamw", "optimizer_impl": "foreach"},
    ("bitsandbytes.optim", "AdamW8bit"): {"optimizer": "adamw-8bit"},
    ("torchao.optim", "AdamW8bit"): {"optimizer": "adamw-8bit-torchao"},
    ("torchao.optim", "AdamW4bit"): {"optimizer": "adamw-4bit-torchao"},
}
"""Module and class of an optimizer → its settings (verl/workers/config/optimizer.py, `build_optimizer`)."""


def optimizer_settings(reader: LaunchReader, config: Table, section_name: str) -> dict[str, str]:
    """Returns the optimizer settings of FSDP: by default torch's AdamW with the foreach implementation.

    section_name: the key of the optimizer's table.
    """
    module_name = str(reader.value(config, f"{section_name}.optimizer_impl", "torch.optim"))
    class_name = str(reader.value(config, f"{section_name}.optimizer", "AdamW"))
    settings = OPTIMIZERS.get((module_name, class_name))
    if settings is None:
        reader.refuse(f"{section_name}.optimizer", f"{short_repr(f'{module_name}.{class_name}')} is not modelled")
        return {"optimizer": "adamw"}
    is_fused = reader.flag(config, f"{section_name}.override_optimizer_config.fused")
    return settings | ({"optimizer_impl": "fused"} if is_fused else {})


def sft_launch_settings(reader: LaunchReader, config: Table) -> LaunchSettings:
    """Returns the training run of a command's overrides. Raises `InputError`, which names file and key."""
    for argument_name in config:
        if argument_name not in KEYS_READ and argument_name.startswith(IGNORED_PREFIXES):
            reader.ignored_arguments.append(argument_name)
        elif argument_name not in KEYS_READ:
            reader.refuse(argument_name[:100], "no key that is known")
    world_size = reader.device_count(reader.source.world_size)
    cp = reader.sequence_ranks(config, "ulysses_sequence_parallel_size", world_size)
    max_length = reader.integer(config, "data.max_length", 1024)
    if max_length % cp:
        raise reader.argument_error(
            "ulysses_sequence_parallel_size", f"{cp}; expected a divisor of data.max_length {max_length}"
        )
    replica_count = world_size // cp
    if config.get("data.micro_batch_size") is not None:
        micro_batch_size = max(
            1, read_integer(reader, "data.micro_batch_size", config["data.micro_batch_size"]) // replica_count
        )
    else:
        micro_batch_size = reader.integer(config, "data.micro_batch_size_per_gpu", 4)
    weight_format = str(reader.value(config, "model.fsdp_config.model_dtype", "fp32"))
    if weight_format not in ("fp32", "bf16", "bfloat16", "float32"):
        raise reader.value_error("model.fsdp_config.model_dtype", weight_format, "fp32 or bf16")
    is_fp32 = weight_format in ("fp32", "float32")
    settings: dict[str, Any] = {
        "phase": "training",
        **optimizer_settings(reader, config, "optim"),
        "attn_implementation": "flash",
        "batch": micro_batch_size,
        "seq": max_length // cp,
        "num_microbatches": max(
            1, reader.integer(config, "data.train_batch_size", 256) // (micro_batch_size * replica_count)
        ),
        "dtype": "bf16",
        "master_weights": "fp32" if is_fp32 else "none",
    }
    if reader.flag(config, "model.enable_gradient_checkpointing", True):
        settings["recompute"] = "full"
    if reader.flag(config, "model.use_liger"):
        settings["norm"] = "fused"
    lora_rank = config.get("model.lora_rank")
    if lora_rank not in (None, 0):
        target_pair = ("model.target_modules", reader.value(config, "model.target_modules", "all-linear"))
        settings |= lora_settings(reader, rank=("model.lora_rank", lora_rank), targets_argument=target_pair)
        if is_fp32:
            reader.frozen_model = FP32_SHARDS
            reader.notes.append("model.fsdp_config.model_dtype fp32: shards of frozen weights have 4 bytes")
    fsdp_strategy = reader.choice(config, "model.strategy", ("fsdp", "fsdp2"), "fsdp2")
    offloads_to_host = any(
        reader.flag(config, f"model.fsdp_config.{argument_name}") for argument_name in ("cpu_offload", "offload_params")
    )
    layout = Layout(dp=world_size, zero=3 if world_size > 1 else 0)
    # its policy wraps each adapter on its own
    has_flat_params = fsdp_strategy == "fsdp" and "lora_rank" not in settings
    fsdp_settings = TitanSettings(
        reduction_format="float32",
        reduces_each_microbatch=True,
        has_flat_parameters=has_flat_params,
        fsdp_version=1 if fsdp_strategy == "fsdp" else 2,
        offloads_to_host=offloads_to_host,
        outer_groups=OUTER_GROUPS[fsdp_strategy],
    )
    return LaunchSettings(layout, settings, fsdp_settings)
