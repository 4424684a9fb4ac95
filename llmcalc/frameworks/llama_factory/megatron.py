"""Reads configs of LLaMA-Factory that train with Megatron-Core, by MCoreAdapter or by Megatron-Bridge.

Source: LLaMA-Factory 0.9.6.dev0, src/llamafactory/train/mca/workflow.py, train/megatron_bridge/config_builder.py and
hparams/megatron_bridge_args.py; alibaba/ROLL 1bc12057, mcore_adapter/src/mcore_adapter/training_args.py. With one
tensor-parallel rank MCoreAdapter fuses the loss by a kernel of its own (models/model_factory.py at 8eb27cc2), which is
counted as Transformer Engine's: it has one bf16 gradient of the logits more, for a moment.
"""

from __future__ import annotations

from ...errors import short_repr
from ...sources.huggingface.family import field_names
from ..launch.launch_types import Launch, LaunchReader, Table
from ..megatron.named_model import (
    BRIDGE_FUSED_MODEL_TYPES,
    MegatronRunSettings,
    bridge_adapter_settings,
    cross_entropy_setting,
    megatron_launch_settings,
)

PARALLEL_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
"""Arguments for parallel sizes, 1 by default; any of them marks a config that trains with Megatron-Core."""

ARGUMENTS_READ = field_names("""
    model_name_or_path stage finetuning_type cutoff_len lora_rank lora_target lora_dropout bf16 mixed_precision
    per_device_train_batch_size gradient_accumulation_steps sequence_parallel use_distributed_optimizer
    virtual_pipeline_model_parallel_size expert_tensor_parallel_size recompute_granularity recompute_method
    recompute_num_layers cross_entropy_loss_fusion bias_activation_fusion do_train freeze_vision_tower
    """)

ARGUMENTS_IGNORED = field_names("""
    apply_rope_fusion masked_softmax_fusion overlap_param_gather overlap_grad_reduce
    moe_grouped_gemm moe_token_dispatcher_type moe_aux_loss_coeff moe_router_dtype calculate_per_token_loss
    use_packed_sequences export_hf_on_finish freeze_multi_modal_projector overlap_p2p_comm
    """)
"""Arguments about kernels and communication; both are counted as Megatron-Core's newest scripts choose them."""


MODELLED_VALUES = {"stage": ("sft", "pt"), "mixed_precision": ("bf16_mixed",)}
"""Argument → the modelled values, the default first."""


BRIDGE_VARIABLE = "USE_MEGATRON_BRIDGE"
"""Environment variable that makes LLaMA-Factory train with Megatron-Bridge (hparams/parser.py)."""


def trains_with_megatron(config: Table) -> bool:
    """Whether a config has one of Megatron-Core's parallel sizes."""
    return any(argument_name in config for argument_name in PARALLEL_SIZES)


def read_megatron(reader: LaunchReader, config: Table, ignored_names: frozenset[str]) -> Launch:
    """Returns the training run of a Megatron-Core config. ignored_names: arguments that change no memory."""
    reader.record_argument_names(config, (*PARALLEL_SIZES, *ARGUMENTS_READ), ignored_names | ARGUMENTS_IGNORED)
    reader.ignored_arguments = [
        ignored_name
        for ignored_name in reader.ignored_arguments
        if not ignored_name.startswith("overlap_") or config.get(ignored_name) is True
    ]
    uses_bridge = (
        BRIDGE_VARIABLE in reader.source.env or "mixed_precision" in config
    )  # which MCoreAdapter does not have
    if not uses_bridge:
        reader.notes.append(
            f"MCoreAdapter is assumed (USE_MCA=1); mixed_precision, or {BRIDGE_VARIABLE}=1 in a script, says the other"
        )
    for argument_name, modelled_values in MODELLED_VALUES.items():
        if config.get(argument_name, modelled_values[0]) not in modelled_values:
            reader.refuse(
                argument_name,
                f"{short_repr(config[argument_name])[:40]} is not modelled; {' and '.join(modelled_values)} with "
                "Megatron",
            )
    finetuning_type = reader.value(config, "finetuning_type", "lora")
    adapter_settings = {}
    if finetuning_type == "lora" and uses_bridge:
        target_modules = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]  # others are not supported there
        adapter_settings = bridge_adapter_settings(
            reader, "", reader.integer(config, "lora_rank", 8), target_modules, None
        )
    elif finetuning_type != "full":
        reader.refuse(
            "finetuning_type", f"{short_repr(finetuning_type)[:40]} is not modelled with MCoreAdapter; full is"
        )
    tp, pp, cp, ep = (reader.integer(config, argument_name, 1) for argument_name in PARALLEL_SIZES)
    fuses_loss = reader.flag(config, "cross_entropy_loss_fusion", uses_bridge)
    has_class_default = uses_bridge and config.get("bias_activation_fusion") is None
    megatron_run = MegatronRunSettings(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=reader.optional_integer(config, "expert_tensor_parallel_size") or 1,
        vpp=reader.optional_integer(config, "virtual_pipeline_model_parallel_size") or 1,
        sequence_parallel=reader.flag(config, "sequence_parallel"),
        distributed_optimizer=reader.flag(config, "use_distributed_optimizer", uses_bridge),
        batch=reader.integer(config, "per_device_train_batch_size", 8),
        seq=reader.integer(config, "cutoff_len", 2048),
        num_microbatches=reader.integer(config, "gradient_accumulation_steps", 1),
        recompute_granularity=config.get("recompute_granularity"),
        recompute_method=config.get("recompute_method", "uniform"),
        recompute_num_layers=config.get("recompute_num_layers", 1),
        cross_entropy="fused"
        if fuses_loss and not uses_bridge and tp == 1
        else cross_entropy_setting(reader, fuses_loss, "native"),
        fuses_activation=BRIDGE_FUSED_MODEL_TYPES
        if has_class_default
        else reader.flag(config, "bias_activation_fusion"),
    )
    reader.notes.append("kernels are those that Megatron-Core's scripts choose, with fused rotary embeddings")
    launch_settings = megatron_launch_settings(reader, megatron_run, reader.source.world_size, adapter_settings)
    return reader.create_launch("megatron", launch_settings, model_name=str(config.get("model_name_or_path") or ""))
