"""Reads a config of nanotron: a model of the form of Llama or Qwen2, its layout, and its optimizer.

Source: huggingface/nanotron at its main branch of 2026-04-07: src/nanotron/config/{config,models_config,
parallelism_config}.py for keys and defaults, src/nanotron/optim/gradient_accumulator.py for sums in fp32,
src/nanotron/models/{llama,qwen}.py for the model.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...algebra import ceil_div
from ...errors import short_repr
from ...model import ModelSpec
from ...sources.files import validate
from ...sources.huggingface.family import field_names
from ..launch.launch_types import (
    LARGEST_SIZE,
    Launch,
    LaunchReader,
    LaunchSource,
    Table,
    launch_reader,
    read_integer,
    record_unknown_keys,
)
from ..megatron.named_model import MegatronRunSettings, megatron_launch_settings

MODEL_TYPES = ("is_llama_config", "is_qwen2_config")
"""Keys that name a model class, for the classes that are read."""

MODEL_KEYS = field_names("""
    is_llama_config is_qwen2_config hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads vocab_size max_position_embeddings tie_word_embeddings rms_norm_eps rope_theta attention_bias
    hidden_act bos_token_id eos_token_id pad_token_id pretraining_tp use_cache initializer_range rope_scaling
    rope_interleaved interleaved_rotary rope_seq_len_interpolation_factor z_loss_enabled z_loss_coefficient
    no_rope_layer flex_attention_mask sliding_window_size _attn_implementation _fused_rms_norm _fused_rotary_emb
    _use_qkv_packed _use_doc_masking ring_attn_heads_k_stride
    """)
"""Keys of `model.model_config` that are read or do not change the memory of a step."""

PARALLELISM_KEYS = field_names("""
    dp pp tp pp_engine tp_mode tp_linear_async_communication recompute_layer tp_recompute_allgather
    expert_parallel_size context_parallel_size moe_layer_recompute
    """)

PARALLEL_SIZE_KEYS = ("tp", "pp", "context_parallel_size")
"""Keys of `parallelism` that state the sizes of parallel groups, except `dp`."""

TABLES_READ = field_names("general model optimizer parallelism tokens data_stages")

TABLES_IGNORED = field_names("tokenizer checkpoints logging metrics_logging profiler lighteval s3_upload")
"""Tables of a config that do not change the memory of a step."""

TABLE_KEYS = {
    "parallelism": PARALLELISM_KEYS,
    "tokens": field_names("""
        sequence_length train_steps micro_batch_size batch_accumulation_per_replica val_check_interval
        limit_val_batches limit_test_batches
        """),
    "optimizer": field_names("""
        optimizer_factory zero_stage weight_decay clip_grad accumulate_grad_in_fp32 learning_rate_scheduler
        weight_decay_exclude_named_params adam_eps adam_beta1 adam_beta2 torch_adam_is_fused
        """),
    "model": field_names("model_config init_method dtype make_vocab_size_divisible_by ddp_bucket_cap_mb"),
}
"""Name of a table → keys that are read or do not change memory."""

FLASH_KERNELS = ("flash_attention_2", "flex_attention", "ring", "ring_flash_triton", "llama3_ring_attention")
"""Values of `_attn_implementation` whose kernels do not save attention scores (src/nanotron/nn/attention.py)."""

BUFFERS_NOTE = "nanotron's buffers are counted as Megatron-Core's, an estimate"


def is_nanotron(config: Table) -> bool:
    """Whether a table is a config of nanotron."""
    return all(isinstance(config.get(table_name), Mapping) for table_name in ("general", "parallelism", "tokens"))


def read_nanotron(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a config. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        parallelism_table, tokens_table = reader.table(config, "parallelism"), reader.table(config, "tokens")
        model_table, optimizer = reader.table(config, "model"), reader.table(config, "optimizer")
        reader.record_argument_names(config, TABLES_READ, TABLES_IGNORED, "no key that is known")
        for table_name, known_keys in TABLE_KEYS.items():
            record_unknown_keys(reader, reader.table(config, table_name), known_keys, table_name)
        _refuse_other_stage_lengths(reader, config, tokens_table)
        if parallelism_table.get("expert_parallel_size") not in (None, 1):
            reader.refuse("parallelism.expert_parallel_size", "ranks of experts are not modelled here")
        if str(model_table.get("dtype", "bfloat16")) not in ("bfloat16", "torch.bfloat16"):
            reader.refuse("model.dtype", f"{short_repr(model_table.get('dtype'))}; bfloat16 is modelled")
        optimizer_factory = reader.table(optimizer, "optimizer_factory")
        if str(optimizer_factory.get("name", "adamW")).lower() != "adamw":
            reader.refuse(
                "optimizer.optimizer_factory", f"{short_repr(optimizer_factory.get('name'))}; adamW is modelled"
            )
        zero_stage = reader.integer(optimizer, "zero_stage", 0, minimum=0)
        if zero_stage > 1:
            raise reader.argument_error("optimizer.zero_stage", f"{zero_stage}; expected 0 or 1")
        tp, pp, cp = (
            read_integer(reader, f"parallelism.{size_key}", parallelism_table.get(size_key) or 1)
            for size_key in PARALLEL_SIZE_KEYS
        )
        file_devices = tp * pp * cp * read_integer(reader, "parallelism.dp", parallelism_table.get("dp") or 1)
        megatron_run = MegatronRunSettings(
            tp=tp,
            pp=pp,
            cp=cp,
            sequence_parallel=str(parallelism_table.get("tp_mode", "ALL_REDUCE")).upper() == "REDUCE_SCATTER",
            distributed_optimizer=zero_stage == 1,
            batch=reader.integer(tokens_table, "micro_batch_size", 1),
            seq=read_integer(reader, "tokens.sequence_length", tokens_table.get("sequence_length")),
            num_microbatches=reader.integer(tokens_table, "batch_accumulation_per_replica", 1),
            recompute_granularity="full" if reader.flag(parallelism_table, "recompute_layer") else None,
            grad_dtype="fp32" if reader.flag(optimizer, "accumulate_grad_in_fp32") else "bf16",
            fuses_activation=False,
        )
        if pp > 1 and str(parallelism_table.get("pp_engine", "1f1b")).lower() != "1f1b":
            reader.refuse(
                "parallelism.pp_engine", f"{short_repr(parallelism_table.get('pp_engine'))}; 1f1b is modelled"
            )
        launch_settings = megatron_launch_settings(reader, megatron_run, source_file.world_size or file_devices, {})
        reader.notes.append(BUFFERS_NOTE)
        return reader.create_launch(
            "megatron", launch_settings, spec=_model_spec(reader, model_table, tp), software_stack="nanotron"
        )


def _refuse_other_stage_lengths(reader: LaunchReader, config: Table, tokens_table: Table) -> None:
    """Records data stages as unknown if their sequence length differs from `tokens.sequence_length`."""
    data_stages = config.get("data_stages")
    sequence_lengths = [
        data_stage.get("sequence_length") for data_stage in data_stages or () if isinstance(data_stage, Mapping)
    ]
    if any(sequence_length not in (None, tokens_table.get("sequence_length")) for sequence_length in sequence_lengths):
        reader.refuse("data_stages.sequence_length", "another length than tokens.sequence_length")


def _rope_theta(reader: LaunchReader, config: Table) -> float:
    """Returns the base θ of RoPE, which YAML reads as a text in the form `1e6`."""
    written_theta = config.get("rope_theta") or 10000.0
    try:
        theta = float(str(written_theta)[:40])
    except ValueError:
        theta = 0.0
    if not 0 < theta < LARGEST_SIZE:
        raise reader.argument_error(
            "model.model_config.rope_theta", f"{short_repr(written_theta)}; expected a number above 0"
        )
    return theta


def _model_spec(reader: LaunchReader, model_table: Table, tp: int) -> ModelSpec:
    """Returns the model that `model.model_config` describes, with its padded vocabulary. tp: tensor-parallel ranks."""
    config = reader.table(model_table, "model_config")
    record_unknown_keys(reader, config, MODEL_KEYS, "model.model_config")
    attention_table = config.get("_attn_implementation")
    if attention_table not in (None, *FLASH_KERNELS):
        reader.refuse(
            "model.model_config._attn_implementation",
            f"{short_repr(attention_table)[:60]} is not modelled; {FLASH_KERNELS[0]} is",
        )
    if not any(config.get(type_key) for type_key in MODEL_TYPES):
        raise reader.argument_error(
            "model.model_config", f"no {' or '.join(MODEL_TYPES)}; expected a model of one of these"
        )

    def size(type_key: str) -> int:
        return read_integer(reader, f"model.model_config.{type_key}", config.get(type_key))

    head_count = size("num_attention_heads")
    kv_head_count = read_integer(
        reader, "model.model_config.num_key_value_heads", config.get("num_key_value_heads") or head_count
    )
    norm_table = {"type": "rmsnorm"}
    row_multiple = tp * reader.integer(model_table, "make_vocab_size_divisible_by", 1)
    spec_table = {
        "vocab_size": ceil_div(size("vocab_size"), row_multiple) * row_multiple,
        "hidden_size": size("hidden_size"),
        "tie_word_embeddings": reader.flag(config, "tie_word_embeddings"),
        "max_position_embeddings": size("max_position_embeddings"),
        "decoder": {
            "num_hidden_layers": size("num_hidden_layers"),
            "final_norm": norm_table,
            "block": {
                "norm": norm_table,
                "norm_placement": "pre",
                "attention": {
                    "num_attention_heads": head_count,
                    "num_key_value_heads": kv_head_count,
                    "position": {"type": "rope", "rope_theta": _rope_theta(reader, config)},
                    **dict.fromkeys(("q_bias", "k_bias", "v_bias"), reader.flag(config, "attention_bias")),
                },
                "feed_forward": {
                    "intermediate_size": size("intermediate_size"),
                    "hidden_act": str(config.get("hidden_act", "silu"))[:40],
                    "gated": True,
                },
            },
        },
    }
    return validate(ModelSpec, spec_table, reader.name_in_errors)
