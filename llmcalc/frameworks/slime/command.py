"""Reads commands of slime: the actor's training by Megatron-LM, with a named model, and SGLang's rollouts.

Source: THUDM/slime at its main branch of 2026-08-21: slime/utils/arguments.py for arguments and defaults,
slime/backends/megatron_utils/{arguments,loss,model,actor}.py for what it sets of Megatron-LM's, for the loss and for
what is on the host. It takes the shape of the model from `--hf-checkpoint`, or ends where the arguments differ.
"""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ..argument_names import argument_names, keyword_of
from ..engines.flags import read_flag_values
from ..engines.registry import engine_and_version
from ..launch.command_line import marked_model_name, parse_arguments, parsed_arguments
from ..launch.grpo import SFT_NOTE
from ..launch.launch_types import CommandLine, Launch, LaunchReader, LaunchSettings, LaunchSource, Table, launch_reader
from ..launch.rollout import Rollout, with_arguments_for_flags
from ..launch.unresolved import is_unresolved
from ..megatron.arguments import flag_of_field
from ..megatron.ignored_flags import IGNORED_ARGUMENTS
from ..megatron.named_model import (
    HOST_OPTIMIZER_ARGUMENTS,
    PRECISION_AWARE_ARGUMENTS,
    STAGE_LAYOUT,
    MegatronRunSettings,
    attention_setting,
    end_stage_layers,
    host_optimizer_settings,
    megatron_launch_settings,
    precision_aware_settings,
    stage_sizes_of_layout,
)

ARGUMENTS_READ = argument_names(__file__, "read")
KNOWN_ARGUMENTS = ARGUMENTS_READ.union(HOST_OPTIMIZER_ARGUMENTS, PRECISION_AWARE_ARGUMENTS)
"""Arguments that are read, including those that Megatron-Core's reader of optimizers reads."""
ARGUMENTS_IGNORED = argument_names(__file__, "ignored") | {name.replace("-", "_") for name in IGNORED_ARGUMENTS}
IGNORED_PREFIXES = tuple(argument_names(__file__, "ignored_beginnings"))

MODELLED_VALUES: dict[str, tuple[Any, ...]] = {
    "optimizer": ("adam",),
    "fp16": (False,),
    "use_critic": (False,),
    "use_stateless_adam": (False,),
    "train_backend": ("megatron",),
    "transformer_impl": ("transformer_engine",),
    "main_params_dtype": ("fp32",),
    "moe_layer_recompute": (False,),
    "attention_dropout": (0, "0.0"),
    "hidden_dropout": (0, "0.0"),
    "mtp_num_layers": (0, None),
    "enable_mtp_training": (False,),
    "fp8_format": (None, "none"),
    "keep_old_actor": (False,),
    "freeze_params_name_list": (None,),
    "only_train_params_name_list": (None,),
    "num_layers_per_virtual_pipeline_stage": (None,),
}
"""Argument → the only values that are modelled."""

UPPER_BOUND_NOTES = {
    "log_probs_chunk_size": "logarithms of probabilities in chunks",
    "recompute_loss_function": "a loss that is recomputed",
}
"""Argument that reduces memory → the feature that it turns on and whose saving is not counted."""

SGLANG_PREFIX = "sglang_"
"""Prefix of slime's arguments for SGLang's server (slime/backends/sglang_utils/arguments.py)."""

GRAPH_BATCHES = "--sglang-cuda-graph-bs"
"""Argument for the batch sizes that SGLang's server captures as CUDA graphs."""

TRAINING_SCRIPTS = ("train.py", "train_async.py")

ACTOR_ARGUMENTS = ("--actor-num-gpus-per-node", "--rollout-num-gpus-per-engine", "--rollout-num-gpus")
"""Arguments that only slime's commands have."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts slime."""
    has_actor_argument = any(command_word.partition("=")[0] in ACTOR_ARGUMENTS for command_word in command_line.words)
    return command_line.program in TRAINING_SCRIPTS and has_actor_argument


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a command of slime. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        argument_words = [
            argument_word
            for argument_word in command_line.words
            if argument_word.startswith("--") or not _is_model_variable(argument_word)
        ]
        arguments = _without_unresolved_graphs(reader, parse_arguments(argument_words, source_file.name_in_errors))
        read_names = KNOWN_ARGUMENTS.union(
            argument_name for argument_name in map(keyword_of, arguments) if _is_server_argument(argument_name)
        )
        config = parsed_arguments(arguments, reader, read_names - {"hf_checkpoint"})
        reader.record_argument_names(
            config,
            (*read_names, *MODELLED_VALUES),
            [argument_name for argument_name in config if _is_ignored_argument(argument_name)],
        )
        reader.refuse_other_values(config, MODELLED_VALUES, "--")
        if config.get("advantage_estimator") == "ppo":
            raise reader.argument_error(
                "--advantage-estimator", "'ppo': its critic is not modelled; expected grpo, or another"
            )
        launch_settings, micro_batch_tokens = _actor_launch_settings(reader, config)
        is_supervised = config.get("loss_type") == "sft_loss"
        if not is_supervised:
            reader.notes.append(SFT_NOTE)
        rollout = (
            None
            if is_supervised or config.get("debug_train_only")
            else _read_rollout(reader, config, micro_batch_tokens)
        )
        model_id = marked_model_name(arguments.get("--hf-checkpoint"))
        return reader.create_launch("megatron", launch_settings, model_name=model_id, rollout=rollout)


def _is_ignored_argument(argument_name: str) -> bool:
    """Whether an argument changes no memory."""
    return argument_name not in KNOWN_ARGUMENTS and (
        argument_name in ARGUMENTS_IGNORED or argument_name.startswith(IGNORED_PREFIXES)
    )


def _is_server_argument(argument_name: str) -> bool:
    """Whether an argument is a flag of SGLang's server, which may be unknown."""
    return argument_name.startswith(SGLANG_PREFIX) and not _is_ignored_argument(argument_name)


def _is_model_variable(command_word: str) -> bool:
    """Whether a word is an unresolved variable with the model's arguments, which another script sets."""
    return is_unresolved(command_word) and "MODEL" in command_word and "ARGS" in command_word


def _without_unresolved_graphs(reader: LaunchReader, arguments: Table) -> Table:
    """Returns the arguments without SGLang's CUDA-graph batch sizes if these are unresolved, with a note."""
    batch_sizes = arguments.get(GRAPH_BATCHES, [])
    if not any(
        is_unresolved(str(graph_batch_size))
        for graph_batch_size in (batch_sizes if isinstance(batch_sizes, list) else [batch_sizes])
    ):
        return arguments
    reader.notes.append(f"{GRAPH_BATCHES}: known when the script runs; the batches of SGLang's default are counted")
    return {
        argument_name: argument_value
        for argument_name, argument_value in arguments.items()
        if argument_name != GRAPH_BATCHES
    }


def _micro_batch_tokens(reader: LaunchReader, config: Table) -> int:
    """Returns the largest number of tokens of a rank's micro-batch (slime/utils/data.py, `get_data_iterator`)."""
    if reader.flag(config, "use_dynamic_batch_size"):
        if config.get("max_tokens_per_gpu") is None:
            raise reader.argument_error(
                "--max-tokens-per-gpu", "missing; --use-dynamic-batch-size needs it; expected a number"
            )
        return reader.integer(config, "max_tokens_per_gpu", 1)
    if config.get("rollout_max_response_len") is None:
        raise reader.argument_error("--rollout-max-response-len", "missing; expected the longest answer, or --seq")
    prompt_tokens = reader.optional_integer(config, "rollout_max_prompt_len") or 0
    reader.counts_longest_samples = True
    return prompt_tokens + reader.integer(config, "rollout_max_response_len", 1)


def _actor_launch_settings(reader: LaunchReader, config: Table) -> tuple[LaunchSettings, int]:
    """Returns the run of the actor under Megatron-Core, and the tokens of a rank's micro-batch."""
    parallel_sizes = {
        size_name: reader.integer(config, f"{size_name}_parallel_size", 1)
        for size_name in ("tensor_model", "pipeline_model", "context", "expert_model")
    }
    cp = parallel_sizes["context"]
    world_size = reader.device_count_of_nodes(config, "actor_num_nodes", "actor_num_gpus_per_node", "--")
    has_dynamic_batches = reader.flag(config, "use_dynamic_batch_size")
    rank_tokens = _micro_batch_tokens(reader, config)
    ranks_of_replica = parallel_sizes["tensor_model"] * parallel_sizes["pipeline_model"] * cp
    if world_size % ranks_of_replica:
        raise reader.argument_error(
            "--actor-num-gpus-per-node",
            f"{world_size} devices; expected a multiple of tp · pp · cp = {ranks_of_replica}",
        )
    micro_batch_size = 1 if has_dynamic_batches else reader.integer(config, "micro_batch_size", 1)
    samples_of_rank = max(1, _samples_per_step(reader, config) // (world_size // ranks_of_replica) // micro_batch_size)
    if has_dynamic_batches:
        reader.notes.append(f"micro-batches of {rank_tokens * cp} tokens at most, counted as one sequence")
    megatron_run = MegatronRunSettings(
        tp=parallel_sizes["tensor_model"],
        pp=parallel_sizes["pipeline_model"],
        cp=cp,
        ep=parallel_sizes["expert_model"],
        etp=reader.integer(config, "expert_tensor_parallel_size", parallel_sizes["tensor_model"]),
        stage_sizes=stage_sizes_of_layout(
            reader, flag_of_field(STAGE_LAYOUT), config.get("pipeline_model_parallel_layout")
        ),
        end_stage_layers=end_stage_layers(
            reader, config, "", ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
        ),
        sequence_parallel=reader.flag(config, "sequence_parallel"),
        batch=micro_batch_size,
        seq=rank_tokens * cp if has_dynamic_batches else rank_tokens,
        num_microbatches=min(samples_of_rank, 2 * parallel_sizes["pipeline_model"])
        if has_dynamic_batches
        else samples_of_rank,
        recompute_granularity=config.get("recompute_granularity"),
        recompute_method=config.get("recompute_method"),
        recompute_num_layers=config.get("recompute_num_layers"),
        recompute_modules=config.get("recompute_modules"),
        dispatcher=config.get("moe_token_dispatcher_type"),
        dispatcher_backend="deepep" if config.get("moe_enable_deepep") else config.get("moe_flex_dispatcher_backend"),
        grad_dtype="bf16" if reader.flag(config, "grad_reduce_in_bf16") else "fp32",
        fuses_activation=not reader.flag(config, "no_bias_swiglu_fusion"),
    )
    settings = {
        **host_optimizer_settings(reader, config, "", 1.0),
        **precision_aware_settings(reader, config),
        **attention_setting(reader, "--attention-backend", config.get("attention_backend") or "auto"),
    }
    if reader.flag(config, "grad_reduce_in_bf16"):
        settings["grad_dtype"] = "bf16"
    for option_name, option_note in UPPER_BOUND_NOTES.items():
        if config.get(option_name) not in (None, False, -1):
            reader.notes.append(f"{flag_of_field(option_name)}: {option_note} is counted without, an upper bound")
    return megatron_launch_settings(reader, megatron_run, world_size, settings), rank_tokens


def _samples_per_step(reader: LaunchReader, config: Table) -> int:
    """Returns the number of samples per optimizer step."""
    if config.get("global_batch_size") is not None:
        return reader.integer(config, "global_batch_size", 1)
    sample_count = reader.integer(config, "rollout_batch_size", 1) * reader.integer(config, "n_samples_per_prompt", 1)
    return max(1, sample_count // reader.integer(config, "num_steps_per_rollout", 1))


def _read_rollout(reader: LaunchReader, config: Table, micro_batch_tokens: int) -> Rollout:
    """Returns SGLang's rollouts, during which `--colocate` moves the actor's states to the host.

    The weights of the reference model and of the last update are on the host (actor.py, `TensorBackuper`).
    micro_batch_tokens: tokens of a rank's micro-batch.
    """
    is_colocated = reader.flag(config, "colocate")
    flags: dict[str, Any] = {}
    if is_colocated:
        flags = _server_flags(reader, config)
        if config.get("sglang_config"):
            reader.notes.append("--sglang-config: rollouts are counted without its groups of servers")
    else:
        reader.notes.append("without --colocate rollouts are on other devices, which are not counted")
    is_offloaded = is_colocated and not reader.flag(config, "no_offload_train")
    return Rollout(
        source="slime/backends/megatron_utils/actor.py, slime/ray/placement_group.py",
        engine="sglang" if is_colocated else "",
        flags=flags,
        argument_by_engine_flag=_slime_arguments_by_flag() if is_colocated else {},
        engine_sleeps_while_idle=not reader.flag(config, "no_offload_rollout"),
        has_separate_process=True,
        offloaded_states=frozenset({"weights", "optimizer", "gradients"} if is_offloaded else ()),
        tokens_per_sequence=micro_batch_tokens,
        logit_tokens_per_sequence=micro_batch_tokens,
        bytes_per_logit=8,  # fp32, and the copy of which the exponentials are taken
    )


def _slime_arguments_by_flag() -> dict[str, str]:
    """Returns SGLang server flag → slime argument; the tensor-parallel size is slime's number of GPUs per engine."""
    known_flags = engine_and_version("sglang")[0].known_flags()
    argument_by_engine_flag = {
        flag_name: f"--sglang-{flag_name[2:]}" for flag in known_flags for flag_name in flag.names
    }
    tp_names = next(flag.names for flag in known_flags if flag.field_name == "tp_size")
    return {**argument_by_engine_flag, **dict.fromkeys(tp_names, "--rollout-num-gpus-per-engine")}


def _server_flags(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the flags with which slime starts an SGLang server, and records unknown flags.

    Source: slime/backends/sglang_utils/arguments.py, `validate_args`. Raises `InputError` for wrong values.
    """
    engine = engine_and_version("sglang")[0]
    known_keywords = {keyword_of(flag_name) for flag in engine.known_flags() for flag_name in flag.names}
    flags: dict[str, Any] = {}
    for argument_name, argument_value in config.items():
        flag_name = argument_name.removeprefix(SGLANG_PREFIX)
        if not _is_server_argument(argument_name):
            continue
        if flag_name not in known_keywords:
            reader.refuse(flag_of_field(argument_name), "no flag of SGLang that is known")
        else:
            flags[flag_name] = argument_value
    try:
        flags = read_flag_values(engine.title, engine.known_flags(), flags)
    except InputError as error:
        raise InputError(with_arguments_for_flags(str(error), _slime_arguments_by_flag())) from None
    rank_count = reader.integer(config, "rollout_num_gpus_per_engine", 1)
    pp = flags.get("pp_size", 1)
    if rank_count % pp:
        raise reader.argument_error(
            "--rollout-num-gpus-per-engine", f"{rank_count}; expected a multiple of --sglang-pp-size {pp}"
        )
    return {"tp_size": rank_count // pp, **flags}
