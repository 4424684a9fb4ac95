"""Reads the config of a torchtune recipe: the model, the optimizer and the settings of training.

Source: torchtune 0.7.0 (bd2a0fc7c), recipes/{full,lora}_finetune_{single_device,distributed}.py, and
torchtune/modules/loss/cross_entropy_loss.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr, suggest
from ...sources.huggingface.family import field_names
from ..frozen_model import FrozenModel, SecondLoss
from ..fsdp2.plugin import fsdp_or_torch_launch
from ..fsdp2.settings import OuterGroups, TitanSettings
from ..launch.command_config import COMPONENT_KEY
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader, read_integer
from ..launch.teacher import with_teacher_model
from ..launch.trainer import HEAD_ADAPTER_NOTE, lora_settings, preference_pair_settings
from .models import PRESET_BY_BUILDER

KEYS_READ = field_names("""
    model dataset tokenizer optimizer loss batch_size gradient_accumulation_steps optimizer_in_bwd compile dtype
    enable_activation_checkpointing enable_activation_offloading fsdp_cpu_offload fsdp_reshard_after_forward
    tensor_parallel_dim context_parallel_dim data_parallel_shard_dim data_parallel_replicate_dim quantizer
    use_fp8 enable_fp8_training ac_mode fsdp fake_quant_after_n_steps teacher_model kd_loss
    custom_sharded_layers
    """)

KEYS_IGNORED = field_names("""
    output_dir checkpointer resume_from_checkpoint save_adapter_weights_only seed shuffle run_val_every_n_steps
    dataset_val batch_size_val lr_scheduler epochs max_steps_per_epoch clip_grad_norm metric_logger log_every_n_steps
    log_peak_memory_stats log_level device profiler enable_async_checkpointing
    cudnn_deterministic_mode keep_last_n_checkpoints epochs_to_run compile_components packed
    low_cpu_ram tensor_parallel_plan name ref_checkpointer save_every_n_epochs fp8_recipe_name ac_option
    teacher_checkpointer kd_ratio
    """)
"""Keys that do not change the memory of a training step."""

REFUSED_KEYS = {
    "use_fp8": "products in 8 bits are not modelled",
    "enable_fp8_training": "products in 8 bits are not modelled",
    "ac_mode": "selective checkpointing is not modelled",
}
"""Key → why a value other than false or null is not modelled."""

QAT_QUANTIZERS = ("Int8DynActInt4WeightQATQuantizer", "Int8DynActInt4WeightQATQuantizerModuleSwap")
"""Quantizers for quantization-aware training that are modelled: they round inputs to 8 bits and weights to 4 bits."""

PARALLEL_SIZES = ("tensor_parallel_dim", "context_parallel_dim", "data_parallel_replicate_dim")
"""Keys for sizes of parallel groups, of which only the value 1 is modelled."""

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "torch.optim.AdamW": {"optimizer": "adamw", "optimizer_impl": "foreach"},
    "torch.optim.Adam": {"optimizer": "adamw", "optimizer_impl": "foreach"},
    "torch.optim.SGD": {"optimizer": "sgd"},
    "torch.optim.Adafactor": {"optimizer": "adafactor"},
    "bitsandbytes.optim.PagedAdamW": {"optimizer": "paged-adamw"},
    "bitsandbytes.optim.AdamW": {"optimizer": "adamw", "optimizer_impl": "fused", "optimizer_dtype": "fp32"},
    "bitsandbytes.optim.PagedAdamW8bit": {"optimizer": "paged-adamw-8bit"},
    "bitsandbytes.optim.AdamW8bit": {"optimizer": "adamw-8bit"},
    "torchao.optim.AdamW8bit": {"optimizer": "adamw-8bit-torchao"},
    "torchao.prototype.low_bit_optim.AdamW8bit": {"optimizer": "adamw-8bit-torchao"},
}
"""Class of an optimizer → options of `llmcalc memory`."""

WHOLE_LOGITS = {"logits_dtype": "fp32"}
"""Settings of a loss of all logits, copied to fp32 (modules/transformer.py, `TransformerDecoder.unembed`)."""

SETTINGS_BY_LOSS: Mapping[str, Mapping[str, Any]] = {
    "LinearCrossEntropyLoss": {"cross_entropy": "split"},
    "CEWithChunkedOutputLoss": {"cross_entropy": "split"},
    "CrossEntropyLoss": WHOLE_LOGITS,
    "DPOLoss": WHOLE_LOGITS,
}
"""Class of a loss → options of `llmcalc memory`."""

PROJECTION_BY_TORCHTUNE_NAME = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
"""torchtune's name of an attention projection → llmcalc's name."""

NETWORK_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


PPO_MODEL = "policy_model"
"""Key of the trained model in PPO recipes."""


def is_torchtune(config: Table) -> bool:
    """Whether a table is the config of a torchtune recipe."""
    return bool(_component_name(config.get("model")) or _component_name(config.get(PPO_MODEL))) and (
        "checkpointer" in config or "tokenizer" in config or "loss" in config
    )


def _component_name(component_table: Any) -> str:
    """Returns the dotted Python name of the component that a config table creates; empty without a name."""
    component_path = component_table.get(COMPONENT_KEY) if isinstance(component_table, Mapping) else None
    return component_path[:120] if isinstance(component_path, str) else ""


def read_torchtune(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a torchtune config. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        reader.requests_expandable_segments = True  # torchtune/__init__.py
        if PPO_MODEL in config:
            raise reader.argument_error(PPO_MODEL, "PPO is not modelled; expected a recipe of fine-tuning or DPO")
        if not _component_name(config.get("optimizer")):
            raise reader.argument_error(
                "optimizer", "missing, so the recipe trains nothing; expected a recipe of fine-tuning or DPO"
            )
        reader.record_argument_names(config, KEYS_READ, KEYS_IGNORED, "no key that is known")
        reader.refuse_if_set(config, REFUSED_KEYS)
        for argument_name in PARALLEL_SIZES:
            if config.get(argument_name) not in (None, 1):
                reader.refuse(argument_name, "it is modelled as 1")
        builder_name = _component_name(config["model"]).rpartition(".")[2]
        plain_name = (
            builder_name.removeprefix("q").removeprefix("lora_") if "lora_" in builder_name[:6] else builder_name
        )
        if plain_name not in PRESET_BY_BUILDER:
            spelling_hint = suggest(plain_name, list(PRESET_BY_BUILDER))
            raise reader.argument_error(
                f"model.{COMPONENT_KEY}",
                f"{short_repr(builder_name)} is not known.{spelling_hint} Expected a text model",
            )
        dtype = reader.choice(config, "dtype", ("bf16", "fp32"), "fp32")
        reader.calls_torch_attention = True
        run_settings: dict[str, Any] = {
            "phase": "training",
            "batch": reader.integer(config, "batch_size", 1),
            "num_microbatches": reader.integer(config, "gradient_accumulation_steps", 1),
            "dtype": dtype,
            "master_weights": "none",
            "attn_implementation": "flash",
            **_sequence_length_settings(reader, config),
            **_optimizer_settings(reader, config),
            **_loss_settings(reader, config),
        }
        if reader.flag(config, "enable_activation_checkpointing"):
            run_settings["recompute"] = "full"
        for config_key, config_value in (
            ("enable_activation_offloading", "offload_activations"),
            ("optimizer_in_bwd", "optimizer_in_backward"),
            ("compile", "compile"),
        ):
            if reader.flag(config, config_key):
                run_settings[config_value] = True
        if plain_name != builder_name:
            run_settings |= _adapter_settings(reader, config["model"], dtype, builder_name.startswith("qlora"))
        if _component_name(config.get("loss")).endswith("DPOLoss"):
            run_settings |= preference_pair_settings(
                reader, "sigmoid", run_settings, FrozenModel("torchtune/recipes/full_dpo_distributed.py")
            )
        run_settings |= _fake_quantization_settings(reader, config)
        world_size = reader.device_count(source_file.world_size)
        if config.get("data_parallel_shard_dim") not in (None, -1, world_size):
            reader.refuse("data_parallel_shard_dim", "it is modelled as the number of devices")
        reshards_weights = reader.flag({"fsdp_reshard_after_forward": True, **config}, "fsdp_reshard_after_forward")
        offloads_to_host = reader.flag(config, "fsdp_cpu_offload") or reader.flag(
            reader.table(config, "fsdp"), "cpu_offload"
        )
        fsdp_settings = TitanSettings(
            reduction_format="bfloat16" if dtype == "bf16" else "",
            offloads_to_host=offloads_to_host,
            outer_groups=_outer_groups(reader, config),
        )
        launched_run = fsdp_or_torch_launch(
            reader, world_size, run_settings, fsdp_settings, reshards_weights, model_name=PRESET_BY_BUILDER[plain_name]
        )
        return _with_teacher(reader, config, launched_run, dtype) if config.get("teacher_model") else launched_run


def _outer_groups(reader: LaunchReader, config: Table) -> OuterGroups:
    """Returns which of embedding and head are separate FSDP groups, by `custom_sharded_layers` (`shard_model`)."""
    module_names = config.get("custom_sharded_layers") or []
    if not isinstance(module_names, list):
        raise reader.value_error("custom_sharded_layers", module_names, "a list of modules")
    if "tok_embeddings" not in module_names:
        return "together"
    return "separate" if "output" in module_names else "embedding"


CHUNKS_BY_DISTILLATION_LOSS = {"ForwardKLLoss": 1, "ForwardKLWithChunkedOutputLoss": 8}
"""Class of a loss that compares the logits of teacher and trained model → default number of its chunks."""


def _with_teacher(reader: LaunchReader, config: Table, launched_run: Launch, dtype: str) -> Launch:
    """Returns the training run with the weights of a teacher model, and the loss between both models' logits.

    Per logit there are the teacher's own, its probability and the logarithm of the student's in float32, and a mask,
    which the loss saves (recipes/knowledge_distillation_single_device.py; modules/loss/kd_losses.py, `ForwardKLLoss`).
    """
    model_builder = _component_name(config["teacher_model"]).rpartition(".")[2]
    if model_builder not in PRESET_BY_BUILDER:
        raise reader.argument_error(
            "teacher_model",
            f"{short_repr(model_builder)} is not known.{suggest(model_builder, list(PRESET_BY_BUILDER))}",
        )
    loss_table = reader.table(config, "kd_loss")
    loss_class = _component_name(loss_table).rpartition(".")[2]
    if loss_class not in CHUNKS_BY_DISTILLATION_LOSS:
        reader.refuse("kd_loss", f"'{loss_class}' is not modelled; {', '.join(CHUNKS_BY_DISTILLATION_LOSS)} are")
        reader.check_unknown_arguments()
    chunk_count = reader.integer(loss_table, "num_output_chunks", CHUNKS_BY_DISTILLATION_LOSS.get(loss_class, 1))
    token_count = launched_run.settings["batch"] * launched_run.settings.get("seq", DEFAULT_LENGTH)
    bytes_per_logit = (2 if dtype == "bf16" else 4) + 4 + 4 + 1
    second_loss = SecondLoss(
        "torchtune/modules/loss/kd_losses.py",
        bytes_per_logit,
        "distillation loss",
        chunk_tokens=-(-token_count // chunk_count),
        chunk_bytes_per_logit=8,
    )
    shards_weights = launched_run.layout.zero == 3
    return with_teacher_model(
        reader,
        launched_run,
        "teacher_model",
        PRESET_BY_BUILDER[model_builder],
        TORCH_DTYPE_BY_NAME[dtype],
        second_loss,
        shards_weights,
    )


DEFAULT_LENGTH = 2048
"""Default number of tokens per sequence, for a config that states none."""

TORCH_DTYPE_BY_NAME = {"bf16": "bfloat16", "fp32": "float32"}
"""Value of `dtype` → torch's name of the number format."""


def _sequence_length_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the setting of tokens per sequence: the tokenizer's `max_seq_len`, which a packed dataset fills."""
    for section_name in ("tokenizer", "dataset"):
        max_length = reader.table(config, section_name).get("max_seq_len")
        if max_length is not None:
            reader.counts_longest_samples = not reader.table(config, "dataset").get("packed")
            return {"seq": read_integer(reader, f"{section_name}.max_seq_len", max_length)}
    reader.notes.append("tokenizer.max_seq_len is null: samples have any length; --seq says the longest (2,048 here)")
    return {}


def _optimizer_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    optimizer_table = reader.table(config, "optimizer")
    optimizer_name = _component_name(optimizer_table)
    if optimizer_name not in OPTIMIZERS:
        reader.refuse("optimizer", f"'{optimizer_name}' is not modelled")
        return {}
    optimizer_settings = dict(OPTIMIZERS[optimizer_name])
    if optimizer_table.get("fused") is True:
        optimizer_settings["optimizer_impl"] = "fused"
    return optimizer_settings


def _loss_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    loss_class = _component_name(config.get("loss")).rpartition(".")[2]
    if loss_class not in SETTINGS_BY_LOSS:
        reader.refuse("loss", f"'{loss_class}' is not modelled; {', '.join(SETTINGS_BY_LOSS)} are")
        return {}
    return dict(SETTINGS_BY_LOSS[loss_class])


def _fake_quantization_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the setting of quantization-aware training, for recipes whose name has `qat`.

    A tied output head rounds nothing: it is no `nn.Linear` (torchtune/modules/tied_linear.py).
    """
    quantizer_table = reader.table(config, "quantizer")
    if not quantizer_table:
        return {}
    quantizer_class = _component_name(quantizer_table).rpartition(".")[2]
    if quantizer_class not in QAT_QUANTIZERS:
        reader.refuse(
            "quantizer",
            f"'{quantizer_class}' is not modelled; {QAT_QUANTIZERS[0]} is; "
            "--allow-unknown counts plain weights, which need less",
        )
        return {}
    if reader.flag(config, "compile"):
        reader.refuse(
            "quantizer",
            "what torch.compile keeps of rounded weights is not modelled; compile: false is; --allow-unknown counts "
            "plain weights",
        )
        return {}
    if config.get("fake_quant_after_n_steps"):
        reader.notes.append("fake_quant_after_n_steps: the steps after it are counted, which need more")
    group_size = reader.integer(quantizer_table, "groupsize", 256)
    return {"fake_quantize": f"int8-int4:{group_size}:untied"}


def _adapter_settings(reader: LaunchReader, model_table: Table, dtype: str, is_quantized: bool) -> dict[str, Any]:
    """Returns the settings of LoRA adapters, which have the model's number format."""
    module_names = model_table.get("lora_attn_modules")
    if not isinstance(module_names, list) or not all(
        str(module) in PROJECTION_BY_TORCHTUNE_NAME for module in module_names
    ):
        raise reader.value_error(
            "model.lora_attn_modules", module_names, f"a list of {', '.join(PROJECTION_BY_TORCHTUNE_NAME)}"
        )
    target_modules = [
        *(PROJECTION_BY_TORCHTUNE_NAME[str(module)] for module in module_names),
        *(NETWORK_PROJECTIONS if model_table.get("apply_lora_to_mlp") else ()),
    ]
    if model_table.get("apply_lora_to_output"):
        reader.notes.append(HEAD_ADAPTER_NOTE)
    adapter_settings = lora_settings(
        reader,
        rank=("model.lora_rank", reader.value(model_table, "lora_rank", 8)),
        targets_argument=("model.lora_attn_modules", target_modules),
        dropout_value=model_table.get("lora_dropout"),
        magnitude_value=reader.flag(model_table, "use_dora"),
    )
    adapter_settings |= {"lora_library": "torchtune", "lora_dtype": dtype}
    return adapter_settings | ({"base": "nf4-dq"} if is_quantized or model_table.get("quantize_base") else {})
