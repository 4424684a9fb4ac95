"""Reads commands of slime: Megatron-LM's arguments for its actor, of a model of the hub, and those of its rollouts.

Source: THUDM/slime at its main branch of 2026-08-21: slime/utils/arguments.py for arguments and defaults,
slime/backends/megatron_utils/{arguments,loss,model,actor}.py for what it sets of Megatron-LM's, for the loss and for
what is on the host. It takes the shape of the model from `--hf-checkpoint`, or ends where the arguments differ.
"""

from __future__ import annotations

from typing import Any

from ..argument_names import argument_names
from ..launch.command_line import arguments_of, model_name, plain_arguments
from ..launch.grpo import SFT_NOTE
from ..launch.record import CommandLine, Launch, LaunchReader, LaunchSettings, LaunchSource, Table, reader_of, share_of
from ..launch.rollout import Rollout
from ..launch.unresolved import is_unresolved
from ..megatron.named_model import MegatronRun, end_stage_layers, host_optimizer_settings, megatron_run

READ = argument_names(__file__, "read")
IGNORED_BEGINNINGS = tuple(argument_names(__file__, "ignored_beginnings"))

MODELLED: dict[str, tuple[Any, ...]] = {
    "optimizer": ("adam",),
    "mtp_num_layers": (0, None),
    "enable_mtp_training": (False,),
    "moe_enable_deepep": (False, True),
    "fp8_format": (None, "none"),
    "keep_old_actor": (False,),
    "freeze_params_name_list": (None,),
    "only_train_params_name_list": (None,),
    "num_layers_per_virtual_pipeline_stage": (None,),
}
"""Arguments of which only these values are modelled."""

PROGRAMS = ("train.py", "train_async.py")

ACTOR_ARGUMENTS = ("--actor-num-gpus-per-node", "--rollout-num-gpus-per-engine", "--rollout-num-gpus")
"""Arguments of slime's commands alone."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts slime."""
    has_actor = any(word.partition("=")[0] in ACTOR_ARGUMENTS for word in command_line.words)
    return command_line.program in PROGRAMS and has_actor


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a command of slime. Raises `InputError`, which names file and argument."""
    with reader_of(source_file) as reader:
        words = [word for word in command_line.words if word.startswith("--") or not _is_model(word)]
        arguments = arguments_of(words, source_file.name_in_errors)
        config = plain_arguments(arguments, reader, READ - {"hf_checkpoint"})
        ignored_arguments = [name for name in config if name not in READ and name.startswith(IGNORED_BEGINNINGS)]
        reader.check_names(config, READ, ignored_arguments)
        reader.refuse_other_values(config, MODELLED, "--")
        if config.get("advantage_estimator") == "ppo":
            raise reader.argument_error(
                "--advantage-estimator", "'ppo': its critic is not modelled; expected grpo, or another"
            )
        launch_settings, tokens = _actor_run(reader, config)
        is_supervised = config.get("loss_type") == "sft_loss"
        if not is_supervised:
            reader.notes.append(SFT_NOTE)
        rollout = None if is_supervised or config.get("debug_train_only") else _rollout(reader, config, tokens)
        model_id = model_name(arguments.get("--hf-checkpoint"))
        return reader.launch("megatron", launch_settings, target=model_id, rollout=rollout)


def _is_model(word: str) -> bool:
    """Whether a word stands for the arguments of the model, of a file that the script sources."""
    return is_unresolved(word) and "MODEL" in word and "ARGS" in word


def _tokens(reader: LaunchReader, config: Table) -> int:
    """Returns the tokens of a rank's micro-batch at their most (slime/utils/data.py, `get_data_iterator`)."""
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


def _actor_run(reader: LaunchReader, config: Table) -> tuple[LaunchSettings, int]:
    """Returns the run of the actor under Megatron-Core, and the tokens of a rank's micro-batch."""
    sizes = {
        name: reader.integer(config, f"{name}_parallel_size", 1)
        for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    }
    cp = sizes["context"]
    world_size = _device_count(reader, config)
    is_dynamic = reader.flag(config, "use_dynamic_batch_size")
    rank_tokens = _tokens(reader, config)
    ranks_of_replica = sizes["tensor_model"] * sizes["pipeline_model"] * cp
    if world_size % ranks_of_replica:
        raise reader.argument_error(
            "--actor-num-gpus-per-node",
            f"{world_size} devices; expected a multiple of tp · pp · cp = {ranks_of_replica}",
        )
    batch = 1 if is_dynamic else reader.integer(config, "micro_batch_size", 1)
    samples = max(1, _samples(reader, config) // (world_size // ranks_of_replica) // batch)
    if is_dynamic:
        reader.notes.append(f"micro-batches of {rank_tokens * cp} tokens at most, counted as one sequence")
    parallel_run = MegatronRun(
        tp=sizes["tensor_model"],
        pp=sizes["pipeline_model"],
        cp=cp,
        ep=sizes["expert_model"],
        etp=reader.integer(config, "expert_tensor_parallel_size", sizes["tensor_model"]),
        end_stage_layers=end_stage_layers(
            reader, config, "", ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
        ),
        sequence_parallel=reader.flag(config, "sequence_parallel"),
        batch=batch,
        seq=rank_tokens * cp if is_dynamic else rank_tokens,
        num_microbatches=min(samples, 2 * sizes["pipeline_model"]) if is_dynamic else samples,
        recompute_granularity=config.get("recompute_granularity"),
        recompute_method=config.get("recompute_method"),
        recompute_num_layers=config.get("recompute_num_layers"),
        recompute_modules=config.get("recompute_modules"),
        dispatcher=config.get("moe_token_dispatcher_type"),
        dispatcher_backend="deepep" if config.get("moe_enable_deepep") else config.get("moe_flex_dispatcher_backend"),
        grad_dtype="fp32" if reader.flag(config, "accumulate_allreduce_grads_in_fp32") else "bf16",
        fuses_activation=not reader.flag(config, "no_bias_swiglu_fusion"),
    )
    settings: dict[str, Any] = host_optimizer_settings(reader, config, "", 1.0)
    if reader.flag(config, "use_precision_aware_optimizer"):
        settings |= {
            "precision_aware_optimizer": True,
            "optimizer_dtype": str(config.get("exp_avg_dtype") or "fp32"),
            "grad_dtype": str(config.get("main_grads_dtype") or "fp32"),
        }
    return megatron_run(reader, parallel_run, world_size, settings), rank_tokens


def _device_count(reader: LaunchReader, config: Table) -> int:
    """Returns the devices of the actor: `--devices`, or nodes · devices of a node."""
    if reader.source.world_size is not None:
        return reader.source.world_size
    nodes = reader.integer(config, "actor_num_nodes", 1)
    return nodes * reader.integer(config, "actor_num_gpus_per_node", 8)


def _samples(reader: LaunchReader, config: Table) -> int:
    """Returns the samples of a step of the optimizer."""
    if config.get("global_batch_size") is not None:
        return reader.integer(config, "global_batch_size", 1)
    samples = reader.integer(config, "rollout_batch_size", 1) * reader.integer(config, "n_samples_per_prompt", 1)
    return max(1, samples // reader.integer(config, "num_steps_per_rollout", 1))


def _rollout(reader: LaunchReader, config: Table, tokens: int) -> Rollout:
    """Returns the rollouts of SGLang. With `--colocate` the actor's states are on the host during them.

    The weights of the reference model and of the last update are on the host (actor.py, `TensorBackuper`).
    tokens: those of a rank's micro-batch.
    """
    is_colocated = reader.flag(config, "colocate")
    flags: dict[str, Any] = {}
    if is_colocated:
        flags = {"tp_size": reader.integer(config, "rollout_num_gpus_per_engine", 1)}
        if config.get("sglang_mem_fraction_static") is not None:
            flags["mem_fraction_static"] = share_of(reader, "sglang_mem_fraction_static", config, 0.9)
        if config.get("sglang_context_length") is not None:
            flags["context_length"] = reader.integer(config, "sglang_context_length", 1)
        ignored_arguments = [name for name in ("sglang_ep_size", "sglang_dp_size", "sglang_config") if config.get(name)]
        if ignored_arguments:
            text = ", ".join(f"--{name.replace('_', '-')}" for name in ignored_arguments)
            reader.notes.append(f"{text}: rollouts are counted with tensor parallelism alone")
    else:
        reader.notes.append("without --colocate rollouts are on other devices, which are not counted")
    is_offloaded = is_colocated and not reader.flag(config, "no_offload_train")
    return Rollout(
        source="slime/backends/megatron_utils/actor.py, slime/ray/placement_group.py",
        engine="sglang" if is_colocated else "",
        flags=flags,
        sleeps_while_idle=not reader.flag(config, "no_offload_rollout"),
        is_own_process=True,
        offloaded_states=frozenset({"weights", "optimizer", "gradients"} if is_offloaded else ()),
        tokens=tokens,
        logit_tokens=tokens,
        logit_bytes=8,  # fp32, and the copy of which the exponentials are taken
    )
