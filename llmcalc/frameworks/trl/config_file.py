"""Reads a TRL recipe: arguments of `SFTConfig` or `GRPOConfig`, `ModelConfig` and `ScriptArguments`.

open-r1 and the alignment handbook have the same arguments. Source: TRL 1.10 (f2cd57710), trainer/{base_config,
sft_config,grpo_config,model_config}.py and scripts/utils.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...sources.huggingface.family import field_names
from ..frozen_model import FrozenModel, SecondLoss
from ..launch.accelerate_command import with_launcher_arguments
from ..launch.grpo import READ_GRPO_ARGUMENTS, colocated_rollout, grpo_length_settings, with_log_probabilities
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, Table, launch_reader, read_integer
from ..launch.sft_loss import SFT_LOSSES, TRANSFORMERS_DEFAULTS, earlier_argument, sft_loss_settings
from ..launch.trainer import (
    EARLIER_TRAINER_DEFAULTS,
    IGNORED_TRAINER_ARGUMENTS,
    LOSSES_WITHOUT_REFERENCE,
    TRAINER_DEFAULTS,
    add_earlier_version_note,
    is_trainer,
    known_argument_names,
    kto_settings,
    launch_under_selected_framework,
    preference_pair_settings,
    trainer_settings,
    weight_format_settings,
)
from ..launch.trainer_scripts import without_script_arguments
from .distillation import ARGUMENTS_IGNORED as IGNORED_WITH_TEACHER
from .distillation import TEACHER_ARGUMENT, with_teacher

IDENTIFYING_ARGUMENTS = field_names("""
    use_peft lora_r lora_target_modules load_in_4bit max_length max_completion_length max_prompt_length
    num_generations dataset_mixture dataset_mixer dataset_train_split packing packing_strategy reward_funcs
    teacher_model_name_or_path completion_only_loss assistant_only_loss use_bnb_nested_quant bnb_4bit_quant_type
    dataset_text_field
    """)
"""Arguments that TRL has and the Trainer lacks."""

GRPO_ARGUMENTS = ("num_generations", "max_completion_length", "reward_funcs", "reward_weights")
"""Arguments that only GRPO has."""

REWARD_ARGUMENT = "center_rewards_coefficient"
"""An argument that only `RewardConfig` has."""

PREFERENCE_ARGUMENTS = (
    "precompute_ref_log_probs",
    "ref_model_mixup_alpha",
    "desirable_weight",
    "max_prompt_length",
    "beta",
    "gamma_beta_ratio",
    "simpo_gamma",
    "cpo_alpha",
)
"""Arguments of training on pairs, outside of GRPO."""

ARGUMENTS_READ = frozenset(
    (
        TEACHER_ARGUMENT,
        "loss_type",
        "activation_offloading",
        "lora_target_parameters",
        "cast_lm_head_to_fp32",
        "model_init_kwargs",
        "num_iterations",
        "vllm_importance_sampling_correction",
    )
)

MODEL_ARGUMENTS = ("attn_implementation", "dtype", "torch_dtype")
"""Keys of `model_init_kwargs`, passed to `from_pretrained`, that are also arguments of TRL's scripts."""

MODEL_ARGUMENTS_IGNORED = ("trust_remote_code", "revision", "use_cache", "device_map", "low_cpu_mem_usage")
"""Keys of `model_init_kwargs` that do not change memory."""

ARGUMENTS_IGNORED = field_names("""
    completion_only_loss assistant_only_loss padding_free packing_strategy eval_packing shuffle_dataset
    truncation_mode pad_to_multiple_of router_aux_loss_coef chat_template_path dataset_streaming
    dataset_test_split dataset_prompt_column system_prompt callbacks benchmarks hub_model_revision wandb_entity
    wandb_project wandb_run_group trust_remote_code use_rslora lora_task_type bnb_4bit_quant_storage num_generations
    num_generations_eval temperature top_p top_k min_p reward_funcs reward_weights scale_rewards epsilon
    epsilon_high delta mask_truncated_completions vllm_device
    vllm_server_host vllm_server_port vllm_server_base_url vllm_server_timeout importance_sampling_level
    log_unique_prompts num_completions_to_print generation_kwargs repetition_penalty cache_implementation
    code_language code_provider code_eval_test_batch_size
    code_eval_scoring_mode parallel_code_exec_per_proc cosine_min_value_wrong cosine_max_value_wrong
    cosine_min_value_correct cosine_max_value_correct cosine_max_len repetition_n_grams repetition_max_penalty
    max_completion_len soft_punish_cache ignore_bias_buffers overwrite_hub_revision push_to_hub_revision
    disable_dropout ds3_gather_for_generation top_entropy_quantile datasets dataset_mixture_seed
    auto_insert_empty_system_msg dataset_seed chat_template_kwargs entropy_coef log_completions_hub_repo
    log_multimodal max_tool_calling_iterations multi_objective_aggregation off_policy_mask_threshold test_split_size
    use_adaptive_entropy use_bias_correction_kl use_transformers_paged vllm_group_port vllm_importance_sampling_cap
    vllm_importance_sampling_mode vllm_model_impl vllm_structured_outputs_regex
    sync_ref_model ref_model_sync_steps label_smoothing dataset_kwargs chat_template
    """)
"""Arguments that do not change the memory of a training step, or change it by less than one allocator block."""

KTO_LOSSES = ("kto", "apo_zero_unpaired")
"""Values of `loss_type` for losses on single answers."""

LIGER_PREFERENCE_SOURCE = "liger_kernel/chunked_loss/fused_linear_preference.py"
"""Source file of Liger-Kernel's loss, which handles one pair at a time under torch.compile (trainer/dpo_trainer.py,
`_compute_loss_liger`).
"""

ARGUMENT_DEFAULTS = {**TRAINER_DEFAULTS, "gradient_checkpointing": True, "max_length": 1024, "bf16": True}


def is_trl(config: Table) -> bool:
    """Whether a table is a recipe of TRL."""
    trainer_arguments = ("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "output_dir")
    has_trl_argument = bool(IDENTIFYING_ARGUMENTS & set(config)) or (
        "dataset_name" in config and not is_trainer(config)
    )
    return (
        "model_name_or_path" in config
        and has_trl_argument
        and any(argument_name in config for argument_name in trainer_arguments)
    )


def read_trl(config: Table, source_file: LaunchSource, earlier_argument_name: str = "") -> Launch:
    """Returns the training run of a TRL recipe. Raises `InputError`, which names file and argument.

    earlier_argument_name: an argument of the file beside `config` that TRL before 0.20 alone has; empty for none.
    """
    with launch_reader(source_file) as reader:
        config = _with_model_arguments(reader, config)
        if config.get("use_liger") is not None:  # SFTConfig before TRL 0.16
            config = {"use_liger_kernel": config["use_liger"], **config}
        config = with_launcher_arguments(without_script_arguments(reader, config), source_file)
        earlier_argument_name = earlier_argument_name or earlier_argument(config)
        earlier_defaults = {**TRANSFORMERS_DEFAULTS, **EARLIER_TRAINER_DEFAULTS} if earlier_argument_name else {}
        if earlier_defaults:
            add_earlier_version_note(reader, earlier_argument_name, "TRL before 0.20")
        argument_defaults = {**ARGUMENT_DEFAULTS, **earlier_defaults}
        is_grpo, is_reward = any(argument_name in config for argument_name in GRPO_ARGUMENTS), REWARD_ARGUMENT in config
        ignored_names = (
            IGNORED_TRAINER_ARGUMENTS
            | ARGUMENTS_IGNORED
            | {"use_liger"}
            | (IGNORED_WITH_TEACHER if config.get(TEACHER_ARGUMENT) else frozenset())
        )
        reader.record_argument_names(
            config,
            (*known_argument_names(), *ARGUMENTS_READ, REWARD_ARGUMENT, *READ_GRPO_ARGUMENTS, *PREFERENCE_ARGUMENTS),
            ignored_names,
        )
        known_loss_keys = (
            loss_argument for loss_argument in PREFERENCE_ARGUMENTS if config.get(loss_argument) is not None
        )
        is_pair_loss = str(config.get("loss_type", SFT_LOSSES[0])) not in SFT_LOSSES
        has_teacher = bool(config.get(TEACHER_ARGUMENT))
        loss_key = "" if is_grpo or has_teacher else next(known_loss_keys, "loss_type" if is_pair_loss else "")
        reader.refuse_if_set(config, {"cast_lm_head_to_fp32": "it is modelled without"})
        arguments = {
            **config,
            "bf16": reader.flag(config, "bf16", argument_defaults["bf16"] and not config.get("fp16")),
        }
        length_name = "" if is_grpo or config.get("max_seq_length") is not None else "max_length"
        run_settings = trainer_settings(reader, arguments, argument_defaults, length_option=length_name)
        if config.get("activation_offloading"):
            run_settings["offload_activations"] = True
        if is_grpo:
            reader.counts_longest_samples = True
            run_settings |= grpo_length_settings(reader, config, "max_prompt_length", "lora_rank" in run_settings)
            if reader.flag(config, "use_liger_loss") or reader.flag(config, "use_liger_kernel"):
                run_settings["cross_entropy"] = "chunked"  # whatever `liger_kernel_config` says of other losses
        elif is_reward:
            run_settings |= preference_pair_settings(reader, "reward", run_settings)
        elif has_teacher:
            run_settings |= {"cross_entropy": "eager"}
        elif loss_key:
            run_settings |= _preference_settings(reader, config, run_settings)
        else:
            run_settings |= sft_loss_settings(reader, config, run_settings, earlier_argument_name)
        format_settings, _ = weight_format_settings(reader, arguments, "float32")
        launched_run = launch_under_selected_framework(reader, arguments, run_settings | format_settings)
        bytes_per_weight = 2 if "dtype" in format_settings else 4
        if (
            isinstance(launched_run.frozen_model, FrozenModel)
            and launched_run.framework == "fsdp2"
            and bytes_per_weight == 4
        ):
            # gathered in 16 bits alone
            launched_run = replace(launched_run, frozen_model=replace(launched_run.frozen_model, dtype="float32"))
        if has_teacher and not is_grpo:
            return with_teacher(reader, config, launched_run, bytes_per_weight)
        if not is_grpo:
            return launched_run
        completion_length = reader.integer(config, "max_completion_length", 512)
        has_mixed_precision = bool(arguments["bf16"]) or reader.flag(config, "fp16")
        has_fp32_logits = has_mixed_precision and launched_run.framework != "deepspeed"
        launched_run = with_log_probabilities(launched_run, completion_length, has_fp32_logits)
        rollout = colocated_rollout(
            reader, config, launched_run, memory_share=0.3, max_tokens=4096, reference_bytes=bytes_per_weight
        )
        has_log_probabilities = _has_log_probabilities(reader, config, launched_run)
        return replace(launched_run, rollout=replace(rollout, has_log_probabilities=has_log_probabilities))


def _has_log_probabilities(reader: LaunchReader, config: Table, launched_run: Launch) -> bool:
    """Whether GRPO computes log-probabilities in a pass without gradients (`_generate_and_score_completions`).

    They are those of a reference model, those that correct rollouts of vLLM, and those from before the first of several
    optimizer steps on the same completions.
    """
    if config.get("beta") not in (None, 0, 0.0, "0", "0.0"):
        return True
    if reader.flag(config, "use_vllm") and reader.flag(config, "vllm_importance_sampling_correction", True):
        return True
    generation_steps = accumulation_steps = reader.integer(config, "gradient_accumulation_steps", 1)
    if config.get("generation_batch_size") is not None:
        global_sequence_count = (
            read_integer(reader, "batch", launched_run.settings["batch"]) * launched_run.layout.world_size
        )
        generation_steps = max(1, reader.integer(config, "generation_batch_size", 1) // global_sequence_count)
    generation_steps = reader.optional_integer(config, "steps_per_generation") or generation_steps
    return accumulation_steps % (generation_steps * reader.integer(config, "num_iterations", 1)) != 0


def _with_model_arguments(reader: LaunchReader, config: Table) -> Table:
    """Returns the arguments, with the entries of `model_init_kwargs` as arguments of the script."""
    arguments = reader.table(config, "model_init_kwargs")
    for argument_name, argument_value in arguments.items():
        if argument_name not in (*MODEL_ARGUMENTS, *MODEL_ARGUMENTS_IGNORED) and argument_value is not None:
            reader.refuse(f"model_init_kwargs.{argument_name}"[:100], "it is modelled without")
    return {
        **{argument_name: arguments[argument_name] for argument_name in MODEL_ARGUMENTS if argument_name in arguments},
        **config,
    }


def _preference_settings(reader: LaunchReader, config: Table, run_settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the batch settings of training on preference pairs, or of KTO on single answers."""
    loss_type = config.get("loss_type", "sigmoid")
    loss_name = str(loss_type[0] if isinstance(loss_type, list) and loss_type else loss_type)
    if config.get("gamma_beta_ratio") is not None:  # princeton-nlp/SimPO, scripts/simpo_config.py
        return preference_pair_settings(reader, "simpo", run_settings)
    if (
        loss_name in KTO_LOSSES
        or config.get("desirable_weight") is not None
        or config.get("undesirable_weight") is not None
    ):
        return kto_settings(reader, run_settings)
    if loss_name == "sigmoid" and "loss_type" not in config:
        loss_name = next(
            (loss_type for loss_type in ("orpo", "cpo", "simpo") if loss_type in reader.name_in_errors.lower()),
            loss_name,
        )
        reader.notes.append(
            "the file does not name its trainer: it is taken for "
            + (f"one of {loss_name.upper()}, as in its path" if loss_name != "sigmoid" else "one of DPO")
        )
    if loss_name in LOSSES_WITHOUT_REFERENCE or not reader.flag(config, "use_liger_kernel"):
        return preference_pair_settings(
            reader, loss_name, run_settings, has_cached_reference=bool(config.get("precompute_ref_log_probs"))
        )
    settings = preference_pair_settings(reader, loss_name, {**run_settings, "cross_entropy": "eager"})
    loss_type = SecondLoss(
        LIGER_PREFERENCE_SOURCE, 0, "loss of a pair", 2 * read_integer(reader, "seq", run_settings["seq"]), 6
    )
    reference_model = reader.frozen_model
    reader.frozen_model = (
        replace(reference_model, loss=loss_type) if isinstance(reference_model, FrozenModel) else loss_type
    )
    reader.notes.append("Liger's loss has the logits of a pair, their gradient and the reference's: 6 bytes per logit")
    return {**settings, "cross_entropy": "chunked"}
