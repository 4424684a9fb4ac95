"""Reads commands of Megatron-DeepSpeed (Microsoft's and BigScience's) as arguments of Megatron-LM.

Its models run on Megatron-LM's kernels of 2023 (`--transformer-impl local`), its optimizer is DeepSpeed's. ZeRO-1 is
counted as Megatron's distributed optimizer, whose shards are the same and whose buffers differ: an estimate.

Sources: microsoft/Megatron-DeepSpeed at f4157be: megatron/arguments.py; bigscience-workshop/Megatron-DeepSpeed:
megatron/arguments.py, for arguments that only it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...components.norm import Norm
from ...model import ModelSpec
from ..argument_names import argument_names
from ..deepspeed.config_file import is_deepspeed
from ..launch.command_line import parse_arguments
from ..launch.launch_types import CommandLine, Launch, LaunchReader, LaunchSource, launch_reader, read_integer
from ..launch.unresolved import is_unresolved, is_unset_variable
from ..megatron.launch_file import MEGATRON_SIGNS, read_megatron

IDENTIFYING_FLAGS = (
    "--deepspeed",
    "--deepspeed_config",
    "--deepspeed-activation-checkpointing",
    "--no-pipeline-parallel",
)
"""Arguments of Megatron-DeepSpeed that Megatron-LM lacks."""

FLAG_BY_OTHER_NAME = {
    "--num-key-value-heads": "--num-query-groups",
    "--layernorm-epsilon": "--norm-epsilon",
    "--rotary-position-embeddings-theta": "--rotary-base",
    "--topk": "--moe-router-topk",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--use-flash-attn-v2": "--use-flash-attn",
    "--use-flash-attn-v1": "--use-flash-attn",
    "--use-flash-attn-triton": "--use-flash-attn",
    "--use-flash-attn-builder": "--use-flash-attn",
}
"""Megatron-DeepSpeed's name of an argument → Megatron-LM's name."""

ARGUMENTS_IGNORED = argument_names(__file__, "ignored")

REFUSED_ARGUMENTS = {
    "ds-sequence-parallel-fpdt": "attention over chunks of a sequence on the host (FPDT) is not modelled",
    "ds-sequence-parallel-fpdt-offloading": "attention over chunks of a sequence on the host (FPDT) is not modelled",
    "ds-sequence-parallel-fpdt-chunk-size": "attention over chunks of a sequence on the host (FPDT) is not modelled",
    "checkpoint-in-cpu": "checkpoints on the host are not modelled",
    "cpu-optimizer": "an optimizer on the host is not modelled",
    "num-experts": "DeepSpeed's experts are not modelled",
    "random-ltd": "layers that drop tokens are not modelled",
    "kd": "distillation is not modelled",
    "mos": "distillation is not modelled",
    "use-tutel": "Tutel's experts are not modelled",
}
"""Argument → reason why runs with the argument are not modelled."""

EMBEDDING_NORM = "--embed-layernorm"
"""BigScience's argument for a LayerNorm after the embedding, as in BLOOM."""

ESTIMATE_NOTE = (
    "Megatron-DeepSpeed is counted with Megatron-LM's kernels and buffers, and ZeRO-1 as its distributed optimizer: an "
    "estimate"
)


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts a pretraining script with arguments of DeepSpeed, or of old Megatron versions."""
    flags = {command_word.partition("=")[0] for command_word in command_line.words}
    is_pretraining = command_line.program.startswith(("pretrain_", "finetune_")) and command_line.program.endswith(
        ".py"
    )
    has_model_sizes = bool(flags & MEGATRON_SIGNS) or any(map(is_unset_variable, command_line.words))
    return (
        is_pretraining
        and has_model_sizes
        and bool(flags & {*IDENTIFYING_FLAGS, "--activations-checkpoint-method", "--tokenizer-name-or-path"})
    )


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a Megatron-DeepSpeed command. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        arguments = parse_arguments(command_line.words, source_file.name_in_errors)
        megatron_table = megatron_arguments(reader, arguments)
        reader.check_unknown_arguments()
        launched_run = read_megatron(megatron_table, source_file)
        if EMBEDDING_NORM in arguments:
            launched_run = replace(launched_run, spec=_with_embedding_norm(launched_run.spec))
        return reader.with_recorded_arguments(launched_run)


def _with_embedding_norm(spec: ModelSpec | None) -> ModelSpec | None:
    """Returns the decoder with a LayerNorm after the embedding."""
    if spec is None or spec.decoder is None:
        return spec
    decoder = spec.decoder.model_copy(update={"embedding_norm": Norm(type="layernorm")})
    return spec.model_copy(update={"decoder": decoder})


def megatron_arguments(reader: LaunchReader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the equivalent arguments of Megatron-LM, and records arguments that have no equivalent."""
    megatron_table: dict[str, Any] = {}
    for flag_name, argument_value in arguments.items():
        argument_name = flag_name.lstrip("-")
        if argument_name in REFUSED_ARGUMENTS and argument_value not in ("1", ["1"], False):
            reader.refuse(flag_name, REFUSED_ARGUMENTS[argument_name])
        elif argument_name in ARGUMENTS_IGNORED:
            reader.ignored_arguments.append(flag_name)
        elif argument_name not in REFUSED_ARGUMENTS and flag_name != EMBEDDING_NORM:
            megatron_table[FLAG_BY_OTHER_NAME.get(flag_name, flag_name)] = argument_value
    uses_deepspeed = bool(set(arguments) & set(IDENTIFYING_FLAGS))
    if "--checkpoint-activations" in arguments or "--activations-checkpoint-method" in arguments:
        checkpoint_method = arguments.get("--activations-checkpoint-method", "uniform")
        layer_count = arguments.get(
            "--activations-checkpoint-num-layers", arguments.get("--checkpoint-num-layers", "1")
        )
        megatron_table |= {
            "--recompute-granularity": "full",
            "--recompute-method": checkpoint_method,
            "--recompute-num-layers": layer_count,
        }
    _set_position_embedding(reader, megatron_table)
    _set_layer_partition(reader, megatron_table)
    if megatron_table.get("--glu-activation") == "swiglu":
        del megatron_table["--glu-activation"]
        megatron_table |= {"--swiglu": True, "--no-bias-swiglu-fusion": True}
    megatron_table["--transformer-impl"] = "local"
    if "--use-flash-attn" not in megatron_table:
        megatron_table["--attention-backend"] = "local"
    if "--use-rotary-position-embeddings" in megatron_table:
        megatron_table.setdefault("--position-embedding-type", "rope")
    if megatron_table.get("--normalization") == "rmsnorm":  # its own spelling
        megatron_table["--normalization"] = "RMSNorm"
    if "--num-query-groups" in megatron_table:
        megatron_table["--group-query-attention"] = True
    if "--rampup-batch-size" in arguments:
        reader.notes.append("--rampup-batch-size: the batch after it, --global-batch-size, is counted")
    if "--ds-sequence-parallel-size" in arguments:
        sequence_ranks = read_integer(reader, "--ds-sequence-parallel-size", arguments["--ds-sequence-parallel-size"])
        if sequence_ranks > 1:
            megatron_table |= {"--context-parallel-size": str(sequence_ranks), "--cp-comm-type": "a2a"}
    if uses_deepspeed:
        _set_zero_stage(reader, arguments, megatron_table)
        reader.notes.append(ESTIMATE_NOTE)
    if "--tokenizer-type" in megatron_table and str(megatron_table["--tokenizer-type"]) == "PretrainedFromHF":
        _set_vocabulary(reader, arguments, megatron_table)
    return megatron_table


POSITION_EMBEDDINGS = {"absolute": "learned_absolute", "rotary": "rope", "alibi": "none"}
"""BigScience's name of a position embedding → Megatron-LM's name. ALiBi has no weights."""


def _set_position_embedding(reader: LaunchReader, megatron_table: dict[str, Any]) -> None:
    """Sets Megatron-LM's argument of the position embedding. ALiBi's biases are added to the scores by `baddbmm`."""
    embedding_type = str(megatron_table.get("--position-embedding-type"))
    if embedding_type not in POSITION_EMBEDDINGS:
        return
    megatron_table["--position-embedding-type"] = POSITION_EMBEDDINGS[embedding_type]
    if embedding_type == "alibi":
        reader.notes.append(
            "--position-embedding-type alibi: each layer's biases, one row of keys per head and sequence, are left out"
        )


def _set_layer_partition(reader: LaunchReader, arguments: dict[str, Any]) -> None:
    """Sets the division of layers into stages, where embedding and head may count as layers (BigScience)."""
    partition_method = arguments.pop("--pp-partition-method", None)
    if partition_method is None or str(arguments.get("--pipeline-model-parallel-size", 1)) == "1":
        return
    method_name = "|".join(partition_method) if isinstance(partition_method, list) else str(partition_method)
    if method_name in ("type:transformer|embedding", "type:embedding|transformer"):
        arguments |= {"--account-for-embedding-in-pipeline-split": True, "--account-for-loss-in-pipeline-split": True}
    elif method_name not in ("uniform", "type:transformer"):
        reader.refuse("--pp-partition-method", f"'{method_name[:40]}' is not modelled; type:transformer|embedding is")


def _set_zero_stage(reader: LaunchReader, arguments: Mapping[str, Any], megatron_table: dict[str, Any]) -> None:
    """Sets the ZeRO stage, from the arguments or the DeepSpeed config."""
    zero_stage = arguments.get("--zero-stage", "1.0" if "--deepspeed" not in arguments else None)
    config = arguments.get("--deepspeed_config")
    deepspeed_config: Mapping[str, Any] = {}
    if isinstance(config, str) and reader.source.read_named_tables is not None:
        try:
            deepspeed_config = reader.source.read_named_tables(config)
        except ValueError:
            if zero_stage is None:
                raise
            config_name = "a file that the script makes" if is_unresolved(config) else config[:60]
            reader.notes.append(f"--deepspeed_config: {config_name} is not read; --zero-stage says the stage")
    if deepspeed_config and is_deepspeed(deepspeed_config):
        zero_table = deepspeed_config.get("zero_optimization")
        if isinstance(zero_table, Mapping):
            zero_stage = zero_table.get("stage", 0)
            if zero_table.get("offload_optimizer") or zero_table.get("cpu_offload"):
                reader.refuse("zero_optimization.offload_optimizer", REFUSED_ARGUMENTS["cpu-optimizer"])
    stage_text = str(0 if zero_stage is None else zero_stage).removesuffix(".0")  # `type=float` in its parser
    stage_number = read_integer(reader, "--zero-stage", stage_text, minimum=0)
    if stage_number > 1:
        reader.refuse("--zero-stage", f"stage {stage_number} under Megatron-DeepSpeed is not modelled; 0 and 1 are")
    if stage_number == 0 and "--bf16" in arguments and "--deepspeed" in arguments:
        reader.notes.append("bf16 with ZeRO stage 0: DeepSpeed's BF16_Optimizer divides the states as stage 1 does")
        stage_number = 1
    if stage_number == 1:
        megatron_table["--use-distributed-optimizer"] = True


SIZE_BY_TOKENIZER = {
    "bigscience/tokenizer": 250680,
    "teven/test_150k_vocab_tokenizer": 150000,
    "gpt2": 50257,
    "t5-small": 32100,
    "google/mt5-base": 250100,
}
"""Name of a tokenizer → vocabulary size, from the scripts and model cards that use the tokenizer."""


def _set_vocabulary(reader: LaunchReader, arguments: Mapping[str, Any], megatron_table: dict[str, Any]) -> None:
    """Adds the size and the padding of a Hugging Face tokenizer's vocabulary to the arguments."""
    tokenizer_name = str(arguments.get("--tokenizer-name-or-path", ""))
    megatron_table["--tokenizer-type"] = "NullTokenizer"
    if "--vocab-size" in arguments or "--padded-vocab-size" in arguments:
        return
    tokenizer_size = SIZE_BY_TOKENIZER.get(tokenizer_name)
    if tokenizer_size is None and "--pad-vocab-size-to" in arguments:
        tokenizer_size = 1  # the program refuses a tokenizer with more words than that
    if tokenizer_size is None:
        raise reader.argument_error(
            "--tokenizer-name-or-path",
            f"the size of {tokenizer_name[:60] or 'the tokenizer'} is in its files alone; expected --vocab-size too",
        )
    size_multiple = read_integer(reader, "--pad-vocab-size-to", arguments.get("--pad-vocab-size-to", tokenizer_size))
    megatron_table["--vocab-size"] = str(max(tokenizer_size, size_multiple))
    reader.notes.append(f"{tokenizer_name[:80]}: {max(tokenizer_size, size_multiple):,} tokens")
