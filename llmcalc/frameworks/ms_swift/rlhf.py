"""Reads the arguments of `swift rlhf`: preference training, and GRPO with a rollout engine.

Source: as of `command.py`, with swift/arguments/rlhf_args.py and swift/rlhf_trainers/{args_mixin,rollout_mixin,
grpo_trainer}.py.
"""

from __future__ import annotations

from dataclasses import replace

from ...sources.huggingface.family import field_names
from ..launch.grpo import GRPO_READ, colocated_rollout
from ..launch.record import Launch, LaunchReader, Table
from ..launch.rollout import Rollout, States
from ..launch.trainer import kto_settings, pair_settings

PAIRS = {"dpo": "sigmoid", "simpo": "simpo", "orpo": "orpo", "cpo": "cpo", "rm": "reward", "kto": "kto"}
"""`rlhf_type` on preferences → its loss."""

PAIRS_IGNORED = field_names("""
    beta rpo_alpha simpo_gamma cpo_alpha loss_type loss_weights label_smoothing center_rewards_coefficient
    f_divergence_type reference_free desirable_weight undesirable_weight
    """)
"""Arguments of trainings on pairs that do not change the memory of a step."""

GRPO_BETA = 0.04
"""The default of `--beta` with GRPO (arguments/rlhf_args.py)."""

GRPO_MORE = ("sleep_level", "offload_model", "offload_optimizer", "vllm_max_num_seqs")
"""Arguments of GRPO that ms-swift adds to TRL's, and that are read."""

GRPO_IGNORED = field_names("""
    reward_funcs reward_weights num_generations num_generations_eval log_completions temperature top_k top_p min_p
    repetition_penalty num_iterations epsilon epsilon_high delta overlong_filter dynamic_sample max_resample_times
    importance_sampling_level loss_type scale_rewards advantage_estimator kl_in_reward vllm_server_host
    vllm_server_port vllm_server_base_url vllm_server_timeout vllm_server_group_port vllm_enforce_eager
    vllm_limit_mm_per_prompt vllm_enable_prefix_caching vllm_disable_custom_all_reduce vllm_enable_lora
    move_model_batches multi_turn_scheduler max_turns multi_turn_func completion_length_limit_scope soft_cache_length
    soft_max_length stop_words reward_model_plugin use_gym_env gym_env context_manager top_entropy_quantile
    log_entropy tau_pos tau_neg rollout_importance_sampling_mode rollout_importance_sampling_threshold
    off_policy_sequence_mask_delta cosine_min_len_value_wrong cosine_max_len_value_wrong
    cosine_min_len_value_correct cosine_max_len_value_correct cosine_max_len repetition_n_grams
    repetition_max_penalty vllm_engine_kwargs vllm_max_lora_rank vllm_use_async_engine
    vllm_mm_processor_cache_gb vllm_disable_cascade_attn structured_outputs_regex gc_collect_after_offload
    vllm_server_pass_dataset log_rollout_offpolicy_metrics
    replay_buffer_size fipo_decay_rate fipo_clip_range fipo_clip_high_only fipo_safety_threshold real_tau
    """)
"""Arguments of GRPO that do not change the memory of a step, or that of the engine by little."""

OTHER_MODELS = ("teacher_model", "ref_model", "reward_model", "async_generate")
"""Arguments of GRPO that add what is not modelled."""


def known_names(reader: LaunchReader, config: Table, rlhf_type: str) -> tuple[str, ...]:
    """Returns the argument names that `swift sft` does not have. rlhf_type: the `rlhf_type`; empty for none."""
    if not rlhf_type:
        return ()
    if rlhf_type != "grpo":
        if config.get("ref_model") is not None:
            reader.unknown["--ref_model"] = "a reference model of other weights is not modelled"
        return (*PAIRS_IGNORED, "rlhf_type", "ref_model")
    reader.ignored += [argument_name for argument_name in config if argument_name in GRPO_IGNORED]
    reader.refuse_set(config, dict.fromkeys(OTHER_MODELS, "it is modelled without"), "--")
    return (*GRPO_READ, *GRPO_MORE, *GRPO_IGNORED, *OTHER_MODELS, "rlhf_type")


def sequences_of(reader: LaunchReader, rlhf_type: str, batch: int, has_adapters: bool) -> int:
    """Returns a micro-batch's sequences in preference training, and adds the reference model to the run.

    batch: pairs of a micro-batch, or answers of KTO.
    """
    run_settings = {"batch": batch, **({"lora_rank": 1} if has_adapters else {})}
    run_settings = (
        kto_settings(reader, run_settings)
        if rlhf_type == "kto"
        else pair_settings(reader, PAIRS[rlhf_type], run_settings)
    )
    return int(run_settings["batch"])


def rollout_of(reader: LaunchReader, config: Table, launched_run: Launch) -> Rollout:
    """Returns the rollout engine and the reference model of GRPO (rlhf_trainers/{rollout_mixin,grpo_trainer}.py)."""
    offloaded_states: set[States] = set()
    if reader.flag(config, "offload_model"):
        offloaded_states.add("weights")
    if reader.flag(config, "offload_optimizer"):
        offloaded_states.add("optimizer")
    return colocated_rollout(
        reader,
        config,
        launched_run,
        utilization=0.9,
        beta=GRPO_BETA,
        offloaded=frozenset(offloaded_states),
        source="swift/rlhf_trainers/rollout_mixin.py, grpo_trainer.py",
        reference_bytes=4 if config.get("torch_dtype") == "float32" else 2,
    )


def megatron_rollout_of(reader: LaunchReader, config: Table, launched_run: Launch) -> Rollout:
    """Returns the rollout engine and the reference model of `megatron rlhf --rlhf_type grpo`.

    `--offload_model` puts main gradients and the reference model on the host too (swift/megatron/trainers/utils.py,
    `offload_megatron_model_to_cpu`; rollout_mixin.py), and rollouts are as many as `--generation_batch_size`.
    """
    steps = reader.size(config, "steps_per_generation", 1)
    batch = reader.size(config, "global_batch_size", 16) * steps
    rollout = rollout_of(reader, {"use_vllm": True, "generation_batch_size": batch, **config}, launched_run)
    layout = launched_run.layout
    offloaded_with_weights: frozenset[States] = frozenset(
        ("gradients", "reference") if "weights" in rollout.offloaded else ()
    )
    return replace(
        rollout,
        source="swift/megatron/trainers/rollout_mixin.py, grpo_trainer.py",
        offloaded=rollout.offloaded | offloaded_with_weights,
        reference=replace(rollout.reference, ranks=layout.tp * layout.pp),
    )
