"""Reads a GPT-NeoX config, in which model arguments and DeepSpeed's keys are in one table.

Sources: EleutherAI/gpt-neox at ea7aefd8, megatron/neox_arguments/{neox_args,deepspeed_args}.py for defaults,
megatron/model/transformer.py (`ParallelMLP`, `ParallelTransformerLayer`) for sizes and norms, megatron/training.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...algebra import ceil_div
from ...model import ModelSpec
from ...sources.files import validate
from ...sources.huggingface.family import field_names
from ..deepspeed.config_file import settings_of_generated_config
from ..launch.launch_types import Launch, LaunchReader, LaunchSettings, LaunchSource, Table, launch_reader, read_integer
from ..megatron.named_model import MegatronRunSettings, megatron_launch_settings

IDENTIFYING_KEYS = frozenset({"pipe_parallel_size", "model_parallel_size"})
"""Arguments by which a GPT-NeoX config is recognized, with underscores or hyphens; each config has one of them."""

DEEPSPEED_KEYS = field_names("""
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps zero_optimization fp16 bf16 optimizer
    gradient_clipping communication_data_type data_types
    """)
"""Keys of a GPT-NeoX config that DeepSpeed reads."""

MODELLED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "hidden_dropout": (0,),
    "attention_dropout": (0,),
    "sequence_parallel": (False,),
    "num_unique_layers": (None,),
    "soft_prompt_tuning": (None,),
    "sliding_window_width": (None,),
    "moe_num_experts": (1,),
    "use_bnb_optimizer": (False,),
    "te_columnparallel": (False,),
    "te_rowparallel": (False,),
    "te_layernorm_mlp": (False,),
    "te_mha": (False,),
    "use_qk_layernorm": (False,),
    "precision": (None, "fp16", "fp32", "bfloat16"),
    "train_impl": (None, "normal"),
}
"""Argument → its modelled values."""

ATTENTION_BY_MIXER = {"flash": "flash", "global": "eager", "mamba": "eager"}
"""Kind of layer in `attention_config` → attention implementation."""

POSITION_EMBEDDINGS = ("learned", "rotary", "none", "alibi")

GATED_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}
"""Name of a gated activation → the activation function of its gate."""

VOCABULARY_SIZE = 50_257
"""Vocabulary size of the default tokenizer, GPT-2's; GPT-NeoX-20B's 50,254 tokens are padded to the same number."""


def is_gpt_neox(config: Table) -> bool:
    """Whether a parsed file is a GPT-NeoX config that describes a model."""
    return bool(IDENTIFYING_KEYS & set(_with_underscores(config)))


def _with_underscores(config: Table) -> dict[str, Any]:
    """Returns the arguments with hyphens in their names replaced by underscores."""
    return {str(argument_name).replace("-", "_"): argument_value for argument_name, argument_value in config.items()}


def read_gpt_neox(written_config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run that a GPT-NeoX config describes. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        arguments = _with_underscores(written_config)
        reader.refuse_other_values(arguments, MODELLED_VALUES)
        mixer_kind = _mixer_kind(reader, arguments)
        reader.check_unknown_arguments()
        tp, pp = (
            max(1, read_integer(reader, size_name, arguments.get(size_name, 1), minimum=0))
            for size_name in PARALLEL_SIZES
        )
        spec = _model_spec(reader, arguments, mixer_kind, tp)
        run_settings = {
            "seq": read_integer(reader, "seq_length", arguments.get("seq_length")),
            "attn_implementation": ATTENTION_BY_MIXER[mixer_kind],
            **_kernel_settings(reader, arguments),
        }
        config = _deepspeed_config(reader, arguments)
        if tp * pp > 1:
            neox_run = MegatronRunSettings(tp=tp, pp=pp, seq=run_settings["seq"])
            return reader.create_launch(
                "megatron", _parallel_launch_settings(reader, config, neox_run, run_settings), spec=spec
            )
        launch_settings = settings_of_generated_config(reader, config, source_file.world_size, run_settings)
        reader.notes.append("a pipeline of one stage is counted without the buffers of DeepSpeed's pipeline engine")
        return reader.create_launch("deepspeed", launch_settings, spec=spec)


PARALLEL_SIZES = ("model_parallel_size", "pipe_parallel_size")
"""Arguments with the sizes of tensor and pipeline parallelism."""

ESTIMATE_NOTE = (
    "model_parallel_size and pipe_parallel_size are counted with Megatron-LM's kernels and buffers, and ZeRO-1 as its "
    "distributed optimizer: an estimate"
)


def _parallel_launch_settings(
    reader: LaunchReader, config: Table, megatron_run: MegatronRunSettings, settings: Table
) -> LaunchSettings:
    """Returns a run with tensor or pipeline parallelism, whose memory is that of Megatron-Core's ranks.

    config: DeepSpeed's config. megatron_run: the sizes of groups and the length. settings: settings of kernels and
        recomputation.
    """
    sixteen_bit_formats = [
        format_name for format_name in ("fp16", "bf16") if reader.table(config, format_name).get("enabled") is True
    ]
    if not sixteen_bit_formats:
        reader.refuse(
            "precision", "missing, or fp32, which is not modelled with layers that ranks divide; fp16 and bfloat16 are"
        )
    zero_table = reader.table(config, "zero_optimization")
    zero_stage = read_integer(reader, "zero_optimization.stage", zero_table.get("stage", 0), minimum=0)
    if zero_stage > 1:
        reader.refuse("zero_optimization.stage", f"{zero_stage} beside layers that ranks divide is not modelled")
    for argument_name in ("cpu_offload", "offload_optimizer"):
        if zero_table.get(argument_name):
            reader.refuse(f"zero_optimization.{argument_name}", "with layers that ranks divide it is not modelled")
    reader.check_unknown_arguments()
    reader.notes.append(ESTIMATE_NOTE)
    megatron_run_settings = replace(megatron_run, distributed_optimizer=zero_stage == 1, grad_dtype="bf16")
    launch_settings = megatron_launch_settings(reader, megatron_run_settings, reader.source.world_size, dict(settings))
    replica_count = launch_settings.layout.dp
    global_batch = config.get("train_batch_size")
    accumulation_steps = reader.integer(config, "gradient_accumulation_steps", 1)
    if "train_micro_batch_size_per_gpu" in config:
        micro_batch_size = read_integer(
            reader, "train_micro_batch_size_per_gpu", config["train_micro_batch_size_per_gpu"]
        )
        if global_batch is not None:
            accumulation_steps = max(
                1, read_integer(reader, "train_batch_size", global_batch) // (micro_batch_size * replica_count)
            )
    else:
        micro_batch_size = max(
            1, read_integer(reader, "train_batch_size", global_batch) // (accumulation_steps * replica_count)
        )
    return launch_settings._replace(
        settings={**launch_settings.settings, "batch": micro_batch_size, "num_microbatches": accumulation_steps}
    )


def _deepspeed_config(reader: LaunchReader, arguments: Table) -> dict[str, Any]:
    """Returns the DeepSpeed config that GPT-NeoX builds (`_set_config`, `calculate_derived`)."""
    deepspeed_config = {
        argument_name: argument_value
        for argument_name, argument_value in arguments.items()
        if argument_name in DEEPSPEED_KEYS
    }
    fp16_table = reader.table(arguments, "fp16")
    precision = arguments.get("precision") or ("bfloat16" if fp16_table.get("type") == "bfloat16" else None)
    if precision is not None:
        deepspeed_config |= {"fp16": {"enabled": precision == "fp16"}, "bf16": {"enabled": precision == "bfloat16"}}
    elif fp16_table:
        deepspeed_config["fp16"] = {"enabled": fp16_table.get("enabled", fp16_table.get("fp16", False))}
    elif not reader.table(arguments, "bf16"):
        reader.notes.append("the file has no number format, which another one may have: fp32, the default, is counted")
    if not {"train_batch_size", "train_micro_batch_size_per_gpu"} & set(deepspeed_config):
        deepspeed_config["train_micro_batch_size_per_gpu"] = reader.integer({}, "train_micro_batch_size_per_gpu", 1)
        reader.notes.append("the batch is in another file of the run: --batch says it (1 here)")
    deepspeed_config["zero_optimization"] = reader.table(arguments, "zero_optimization") or {"stage": 0}
    return deepspeed_config


def _kernel_settings(reader: LaunchReader, arguments: Table) -> dict[str, Any]:
    """Returns the settings of kernels and recomputation."""
    kernel_settings: dict[str, Any] = {}
    if reader.flag(arguments, "checkpoint_activations"):
        layer_count = reader.integer(arguments, "checkpoint_num_layers", 1)
        kernel_settings["recompute"] = "full" if layer_count == 1 else f"every:{layer_count}"
    if reader.flag(arguments, "layernorm_fusion") or reader.flag(arguments, "rmsnorm_fusion"):
        kernel_settings["norm"] = "fused"
    return kernel_settings


def _mixer_kind(reader: LaunchReader, arguments: Table) -> str:
    """Returns the type of attention or recurrence if all layers have the same; other configs are refused."""
    attention_config = reader.value(arguments, "attention_config", [[["global"], "all"]])
    mixer_kinds: set[str] = set()
    for layer_entry in attention_config if isinstance(attention_config, list) else [attention_config]:
        mixer_names = layer_entry[0] if isinstance(layer_entry, list) and layer_entry else layer_entry
        mixer_kinds |= set(map(str, mixer_names)) if isinstance(mixer_names, list) else {str(mixer_names)}
    if len(mixer_kinds) != 1 or not mixer_kinds <= set(ATTENTION_BY_MIXER):
        kinds_text = ", ".join(sorted(mixer_kinds))[:60]
        reader.refuse(
            "attention_config", f"'{kinds_text}' is not modelled; {', '.join(ATTENTION_BY_MIXER)} in all layers are"
        )
        return "global"
    return mixer_kinds.pop()


def _model_spec(reader: LaunchReader, arguments: Table, mixer_kind: str, tp: int) -> ModelSpec:
    """Returns the model that GPT-NeoX's arguments describe.

    mixer_kind: attention or recurrence type of all layers. tp: parts of the padded vocabulary.
    """
    layer_count, hidden_size, head_count, position_count = (
        read_integer(reader, argument_name, arguments.get(argument_name))
        for argument_name in ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings")
    )
    norm = _norm_table(reader, arguments)
    has_bias = reader.flag(arguments, "use_bias_in_attn_linear", True)
    attention_table: dict[str, Any] = {
        "num_attention_heads": head_count,
        "num_key_value_heads": reader.integer(arguments, "num_kv_heads", head_count),
        **dict.fromkeys(("q_bias", "k_bias", "v_bias", "o_bias"), has_bias),
    }
    decoder_table: dict[str, Any] = {"num_hidden_layers": layer_count, "final_norm": norm}
    position_type = str(reader.value(arguments, "pos_emb", "learned"))
    if position_type not in POSITION_EMBEDDINGS:
        raise reader.value_error("pos_emb", position_type, ", ".join(POSITION_EMBEDDINGS))
    if position_type == "rotary":
        attention_table["position"] = _rotary_table(reader, arguments)
    elif position_type == "alibi":
        attention_table["position"] = {"type": "alibi"}
    elif position_type == "learned":
        decoder_table["position"] = {"type": "learned", "max_position_embeddings": position_count}
    network_table = _network_table(reader, arguments, hidden_size)
    layer_table: dict[str, Any] = {"attention": attention_table, "feed_forward": network_table, "norm": norm}
    if reader.flag(arguments, "gpt_j_residual"):
        layer_table["parallel"] = "shared" if reader.flag(arguments, "gpt_j_tied") else "separate"
    if mixer_kind == "mamba":
        layer_table = {
            "attention": _mamba_table(reader, arguments, hidden_size),
            "feed_forward": {"type": "none"},
            "norm": norm,
        }
    row_multiple = tp * reader.integer(arguments, "make_vocab_size_divisible_by", 128)
    reader.assumed_defaults["vocabulary"] = VOCABULARY_SIZE
    reader.notes.append(
        f"the tokens are in the tokenizer's files: {VOCABULARY_SIZE:,} of GPT-2 are counted, in a multiple of "
        f"{row_multiple}"
    )
    spec_table = {
        "vocab_size": ceil_div(VOCABULARY_SIZE, row_multiple) * row_multiple,
        "hidden_size": hidden_size,
        "tie_word_embeddings": not reader.flag(arguments, "no_weight_tying"),
        "max_position_embeddings": position_count,
        "decoder": {**decoder_table, "block": {**layer_table, "norm_placement": "pre"}},
    }
    return validate(ModelSpec, spec_table, reader.name_in_errors)


def _mamba_table(reader: LaunchReader, arguments: Table, hidden_size: int) -> dict[str, Any]:
    """Returns the model-spec table of a Mamba mixer (megatron/model/mamba/mamba.py, `ParallelMambaBlock`)."""
    if reader.flag(arguments, "mamba_use_bias_in_linears"):
        reader.refuse("mamba_use_bias_in_linears", "biases of Mamba's linear layers are not modelled")
    return {
        "type": "mamba",
        "intermediate_size": reader.integer(arguments, "intermediate_size", 2 * hidden_size),
        "state_size": 16,
        "conv_kernel": 4,
        "time_step_rank": ceil_div(hidden_size, 16),
        "use_conv_bias": reader.flag(arguments, "mamba_use_bias_in_conv", True),
    }


def _norm_table(reader: LaunchReader, arguments: Table) -> dict[str, Any]:
    """Returns the model-spec table of the norms."""
    norm_name = reader.choice(arguments, "norm", ("layernorm", "rmsnorm"), "layernorm")
    if norm_name == "layernorm" and not reader.flag(arguments, "use_bias_in_norms", True):
        return {"type": norm_name, "bias": False}
    return {"type": norm_name}


def _rotary_table(reader: LaunchReader, arguments: Table) -> dict[str, Any]:
    """Returns the model-spec table of the rotary position embedding."""
    rotary_fraction, rope_base = (
        reader.value(arguments, argument_name, default_value)
        for argument_name, default_value in ROTARY_DEFAULTS.items()
    )
    if not isinstance(rotary_fraction, int | float) or not 0 < rotary_fraction <= 1:
        raise reader.value_error("rotary_pct", rotary_fraction, "a share from 0 to 1")
    rotary_table = {"type": "rope", "rope_theta": float(read_integer(reader, "rotary_emb_base", rope_base))}
    return rotary_table if rotary_fraction == 1 else {**rotary_table, "partial_rotary_factor": float(rotary_fraction)}


ROTARY_DEFAULTS = {"rotary_pct": 1.0, "rotary_emb_base": 10_000}
"""Argument about rotary positions → default value."""


def _network_table(reader: LaunchReader, arguments: Table, hidden_size: int) -> dict[str, Any]:
    """Returns the model-spec table of the feed-forward network (`ParallelMLP`), two thirds as wide if gated."""
    activation_name = str(reader.value(arguments, "activation", "gelu"))
    is_gated = activation_name in GATED_ACTIVATIONS
    if not is_gated and activation_name not in ("gelu", "relu", "silu"):
        raise reader.value_error("activation", activation_name, f"gelu, relu, silu or {', '.join(GATED_ACTIVATIONS)}")
    if arguments.get("expansion_factor") is not None:
        reader.refuse("expansion_factor", "expected intermediate_size")
    width_multiple = reader.integer(arguments, "mlp_multiple_of", 1)
    inner_width = reader.integer(arguments, "intermediate_size", 4 * hidden_size)
    inner_width = inner_width * 2 // 3 // 2 if is_gated else inner_width
    has_bias = reader.flag(arguments, "use_bias_in_mlp", True)
    return {
        "type": "mlp",
        "intermediate_size": ceil_div(inner_width, width_multiple) * width_multiple,
        "hidden_act": GATED_ACTIVATIONS.get(activation_name, activation_name),
        "gated": is_gated,
        "up_bias": has_bias,
        "down_bias": has_bias,
        **({"gate_bias": has_bias} if is_gated else {}),
    }
