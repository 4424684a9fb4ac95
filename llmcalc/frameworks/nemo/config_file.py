"""Reads a YAML config of NeMo's language models as arguments of Megatron-LM, with overrides as `key=value`.

Sources: NVIDIA/NeMo, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml for the keys and their defaults;
nemo/collections/nlp/models/language_modeling/megatron_base_model.py (`build_transformer_config`) and
megatron_gpt_model.py for what they become in Megatron-Core.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import short_repr
from ...sources.presets import find_preset, load_preset
from ..launch.command_line import hydra_overrides_of, parsed_argument_value
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader, read_integer
from ..megatron.launch_file import read_megatron

FLAG_BY_SIZE_KEY = {
    "num_layers": "num-layers",
    "hidden_size": "hidden-size",
    "ffn_hidden_size": "ffn-hidden-size",
    "num_attention_heads": "num-attention-heads",
    "kv_channels": "kv-channels",
    "encoder_seq_length": "seq-length",
    "max_position_embeddings": "max-position-embeddings",
    "make_vocab_size_divisible_by": "make-vocab-size-divisible-by",
    "micro_batch_size": "micro-batch-size",
    "global_batch_size": "global-batch-size",
    "tensor_model_parallel_size": "tensor-model-parallel-size",
    "pipeline_model_parallel_size": "pipeline-model-parallel-size",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "context_parallel_size": "context-parallel-size",
    "expert_model_parallel_size": "expert-model-parallel-size",
    "num_moe_experts": "num-experts",
    "moe_router_topk": "moe-router-topk",
    "hidden_dropout": "hidden-dropout",
    "attention_dropout": "attention-dropout",
    "rotary_percentage": "rotary-percent",
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "hybrid_override_pattern": "hybrid-override-pattern",
    "mamba_ssm_ngroups": "mamba-num-groups",
}
"""Key of `model` that states a size → Megatron-LM's argument for this size."""

FLAG_BY_SWITCH_KEY = {
    "sequence_parallel": ("sequence-parallel", True),
    "bias": ("disable-bias-linear", False),
    "add_bias_linear": ("disable-bias-linear", False),
    "qkv_bias": ("add-qkv-bias", True),
    "share_embeddings_and_output_weights": ("untie-embeddings-and-output-weights", False),
    "gradient_accumulation_fusion": ("no-gradient-accumulation-fusion", False),
    "masked_softmax_fusion": ("no-masked-softmax-fusion", False),
    "apply_rope_fusion": ("no-rope-fusion", False),
    "gated_linear_unit": ("swiglu", True),
}
"""Switch in `model` → Megatron-LM's argument without a value, and the switch's value that sets the argument."""

ACTIVATIONS: Mapping[str, str] = {
    "gelu": "",
    "swiglu": "swiglu",
    "fast-swiglu": "swiglu",
    "squared-relu": "squared-relu",
}
"""Name of an activation → Megatron-LM's argument; empty for Megatron-LM's default."""

NORMS: Mapping[str, tuple[Any, ...]] = {
    "layernorm": (),
    "rmsnorm": ("--normalization", "RMSNorm"),
    "layernorm1p": ("--apply-layernorm-1p", True),
}
"""Name of a normalization → Megatron-LM's argument and its value."""

WORDS_BY_TOKENIZER = {"GPT2BPETokenizer": 50_257, "BertWordPieceCase": 28_996, "BertWordPieceLowerCase": 30_522}
"""Tokenizer of the library `megatron` → vocabulary size."""

ASSUMED_WORDS = 32_000
"""Assumed vocabulary size of a sentencepiece model whose file is not read: Llama's."""

MODEL_TYPES = ("t5", "ul2", "bart", "retro", "griffin", "hyena")
"""Words in a config's name that mark models whose layers are not read."""

MODELLED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "use_flash_attention": (True, False, None),
    "headscale": (False, None),
    "transformer_block_type": ("pre_ln", None),
    "fp32_residual_connection": (False, None),
    "num_micro_batches_with_partial_activation_checkpoints": (None,),
    "activations_checkpoint_layers_per_pipeline": (None,),
    "attention_type": ("multihead", None),
    "cpu_offloading": (False, None),
    "ub_tp_comm_overlap": (False, None),
    "fsdp": (False, None),
    "fp8": (False, None),
    "hyena": (None,),
    "parallel_attention": (False, None),
    "window_size": (None,),
    "kd_loss": (None,),
}
"""Key of `model` → its modelled values."""

KEYS_READ = frozenset(
    {
        *FLAG_BY_SIZE_KEY,
        *FLAG_BY_SWITCH_KEY,
        *MODELLED_VALUES,
        "normalization",
        "activation",
        "position_embedding_type",
        "num_query_groups",
    }
    | {"bias_dropout_add_fusion", "transformer_engine", "megatron_amp_O2", "override_vocab_size", "vocab_size"}
    | {"optim.name", "tokenizer.type", "tokenizer.library", "peft.peft_scheme"}
)
"""Keys of `model` that are read; the others are listed as ignored."""

KEY_REFERENCE = re.compile(r"\$\{(\.?[\w.]+)\}")


def is_nemo(config: Table) -> bool:
    """Whether a table is a config of NeMo's language models."""
    model_table, trainer_section = config.get("model"), config.get("trainer")
    return (
        isinstance(model_table, Mapping)
        and isinstance(trainer_section, Mapping)
        and ("exp_manager" in config or "mcore_gpt" in model_table or "tensor_model_parallel_size" in model_table)
    )


def read_nemo(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a NeMo config. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        overrides = {
            override_key: parsed_argument_value(override)
            for override_key, override in hydra_overrides_of(source_file.arguments).items()
        }
        model_values = _model_values(reader, config, overrides)
        model_name = str(config.get("name", ""))[:80]
        if (
            "encoder" in model_values
            or "decoder" in model_values
            or any(model_type in model_name for model_type in MODEL_TYPES)
        ):
            raise reader.argument_error(
                "name", f"{short_repr(model_name)}: its layers are not read; expected a GPT, BERT or Mamba config"
            )
        if model_values.get("peft.peft_scheme") not in (None, "none", "null"):
            raise reader.argument_error(
                "model.peft.peft_scheme", "adapters under Megatron-Core are not modelled; expected null"
            )
        if model_values.get("num_layers") is None:
            raise reader.argument_error(
                "model.num_layers", "missing: the model is in a .nemo file; expected TARGET with --framework megatron"
            )
        arguments = _megatron_arguments(reader, model_values, config)
        reader.check_unknown_arguments()
        model_type = next((model_type for model_type in ("bert", "mamba") if model_type in model_name), "gpt")
        device_count = (
            _device_count(reader, config, overrides) if source_file.world_size is None else source_file.world_size
        )
        launched_run = read_megatron(
            arguments,
            replace(source_file, world_size=device_count, script_name=f"pretrain_{model_type}.py", arguments=()),
        )
        return replace(reader.with_recorded_arguments(launched_run), ignored_arguments=tuple(reader.ignored_arguments))


def _model_values(reader: LaunchReader, config: Table, overrides_by_key: Mapping[str, Any]) -> dict[str, Any]:
    """Returns dotted key → value of the section `model`, with references resolved."""
    model_table = config["model"]
    settings = {
        str(model_key): model_value
        for model_key, model_value in model_table.items()
        if not isinstance(model_value, Mapping) or model_key in ENCODER_DECODER_SECTIONS
    }
    for section_name in ("optim", "tokenizer", "peft", "data"):
        section_table = model_table.get(section_name)
        if isinstance(section_table, Mapping):
            settings |= {f"{section_name}.{model_key}": model_value for model_key, model_value in section_table.items()}
    settings |= {
        model_key.partition(".")[2]: model_value
        for model_key, model_value in overrides_by_key.items()
        if model_key.startswith("model.")
    }
    return {
        model_key: _resolved_value(reader, model_key, model_value, settings)
        for model_key, model_value in settings.items()
    }


ENCODER_DECODER_SECTIONS = ("encoder", "decoder")
"""Tables in `model` that mark an encoder-decoder."""


def _resolved_value(
    reader: LaunchReader, model_key: str, written_value: Any, model_table: Mapping[str, Any], link_depth: int = 0
) -> Any:
    """Returns a value, with a reference such as `${.encoder_seq_length}` replaced by the referenced value."""
    reference_match = KEY_REFERENCE.fullmatch(written_value) if isinstance(written_value, str) else None
    if reference_match is None:
        return written_value
    referenced_key = reference_match[1].removeprefix(".").removeprefix("model.")
    if link_depth > 8 or referenced_key not in model_table:
        return None
    return _resolved_value(reader, model_key, model_table[referenced_key], model_table, link_depth + 1)


def _device_count(reader: LaunchReader, config: Table, overrides_by_key: Mapping[str, Any]) -> int:
    """Returns the number of devices of all machines."""
    trainer_values = {
        **config["trainer"],
        **{
            override_key[8:]: override_value
            for override_key, override_value in overrides_by_key.items()
            if override_key.startswith("trainer.")
        },
    }
    return read_integer(reader, "trainer.devices", trainer_values.get("devices", 1)) * read_integer(
        reader, "trainer.num_nodes", trainer_values.get("num_nodes", 1)
    )


def _megatron_arguments(reader: LaunchReader, model_table: Mapping[str, Any], config: Table) -> dict[str, Any]:
    """Returns the equivalent arguments of Megatron-LM."""
    arguments: dict[str, Any] = {}
    for size_key, flag in FLAG_BY_SIZE_KEY.items():
        if model_table.get(size_key) is not None:
            arguments[f"--{flag}"] = model_table[size_key]
    if "mamba" in str(config.get("name", "")) and model_table.get("hybrid_override_pattern") is None:
        arguments["--hybrid-override-pattern"] = "M" * read_integer(
            reader, "model.num_layers", model_table["num_layers"]
        )
    for size_key, (flag, flag_values) in FLAG_BY_SWITCH_KEY.items():
        if model_table.get(size_key) is flag_values:
            arguments[f"--{flag}"] = True
    reader.refuse_other_values(model_table, MODELLED_VALUES, "model.")
    arguments |= _layer_arguments(reader, model_table)
    arguments |= _precision_arguments(reader, model_table, config)
    if model_table.get("bias_dropout_add_fusion") is False and (
        model_table.get("bias", True) or model_table.get("hidden_dropout")
    ):
        reader.notes.append("model.bias_dropout_add_fusion: bias, dropout and residual are counted as one kernel")
    if model_table.get("transformer_engine") is False:
        arguments["--transformer-impl"] = "local"
    if model_table.get("optim.name") == "distributed_fused_adam":
        arguments["--use-distributed-optimizer"] = True
        reader.notes.append("distributed_fused_adam is counted as Megatron-Core's distributed optimizer")
    elif model_table.get("optim.name") not in ("fused_adam", "adam", "adamw", "mcore_distributed_optim", None):
        reader.refuse("model.optim.name", f"{short_repr(model_table['optim.name'])[:60]} is not modelled")
    if model_table.get("optim.name") == "mcore_distributed_optim":
        arguments["--use-distributed-optimizer"] = True
    reader.ignored_arguments += [size_key for size_key in config if size_key not in ("model", "trainer", "name")]
    reader.ignored_arguments += [f"model.{size_key}" for size_key in model_table if not {size_key} & KEYS_READ]
    arguments["--vocab-size"] = _vocabulary_size(reader, model_table)
    return arguments


def _layer_arguments(reader: LaunchReader, model_table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Megatron-LM's arguments of the layers: norms, activation, positions and key heads."""
    arguments: dict[str, Any] = {}
    norm_name = str(model_table.get("normalization", "layernorm")).lower()
    if norm_name not in NORMS:
        raise reader.value_error("model.normalization", norm_name, ", ".join(NORMS))
    if NORMS[norm_name]:
        flag_name, flag_value = NORMS[norm_name]
        arguments[flag_name] = flag_value
    activation_name = str(model_table.get("activation", "gelu"))
    if activation_name not in ACTIVATIONS:
        reader.refuse("model.activation", f"{short_repr(activation_name)[:60]} is not modelled")
    elif ACTIVATIONS[activation_name]:
        arguments[f"--{ACTIVATIONS[activation_name]}"] = True
    position_type = str(model_table.get("position_embedding_type", "learned_absolute"))
    if position_type not in ("learned_absolute", "rope", "none"):
        reader.refuse("model.position_embedding_type", f"{short_repr(position_type)[:60]} is not modelled")
    else:
        arguments["--position-embedding-type"] = position_type
    query_groups = model_table.get("num_query_groups")
    if query_groups is not None and query_groups != model_table.get("num_attention_heads"):
        arguments |= {"--group-query-attention": True, "--num-query-groups": query_groups}
    return arguments


def _precision_arguments(reader: LaunchReader, model_table: Mapping[str, Any], config: Table) -> dict[str, Any]:
    """Returns Megatron-LM's arguments of the number formats."""
    precision = str(config["trainer"].get("precision", 32)).partition("-")[0]
    if precision not in ("32", "16", "bf16"):
        raise reader.value_error("trainer.precision", precision, "32, 16 or bf16")
    if precision == "32":
        return {}
    if model_table.get("megatron_amp_O2") is not True:
        reader.notes.append(
            "without model.megatron_amp_O2 weights are in fp32 under autocast, whose copies in 16 bits are counted as "
            "the weights, and the weights as the optimizer's copies: an estimate"
        )
    return {"--fp16" if precision == "16" else "--bf16": True}


def _vocabulary_size(reader: LaunchReader, model_table: Mapping[str, Any]) -> int:
    """Returns the vocabulary size before padding."""
    for size_key in ("override_vocab_size", "vocab_size"):
        if model_table.get(size_key) is not None:
            return read_integer(reader, f"model.{size_key}", model_table[size_key])
    tokenizer_type = model_table.get("tokenizer.type")
    if tokenizer_type in WORDS_BY_TOKENIZER:
        return WORDS_BY_TOKENIZER[tokenizer_type]
    if model_table.get("tokenizer.library") == "huggingface" and isinstance(tokenizer_type, str):
        preset_name = find_preset(tokenizer_type)
        if preset_name is not None:
            return load_preset(preset_name).model.vocab_size
    reader.assumed_defaults["model.override_vocab_size"] = ASSUMED_WORDS
    reader.notes.append(
        f"the tokenizer is not read: {ASSUMED_WORDS:,} words are assumed; expected model.override_vocab_size=… behind "
        "the file's name"
    )
    return ASSUMED_WORDS
