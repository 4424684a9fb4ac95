"""Reads the arguments of `swift rlhf`: preference training, and GRPO with a rollout engine.

Source: as of `command.py`, with swift/arguments/rlhf_args.py and swift/rlhf_trainers/{args_mixin,rollout_mixin,
grpo_trainer}.py.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import short_repr
from ...sources.huggingface.family import field_names
from ..argument_names import argument_names
from ..frozen_model import SecondLoss
from ..launch.grpo import READ_GRPO_ARGUMENTS, colocated_rollout
from ..launch.launch_types import Launch, LaunchReader, Table
from ..launch.rollout import ModelState, Rollout
from ..launch.teacher import GENERATION_NOTE, logit_format, with_teacher_model
from ..launch.trainer import kto_settings, preference_pair_settings

LOSS_BY_RLHF_TYPE = {"dpo": "sigmoid", "simpo": "simpo", "orpo": "orpo", "cpo": "cpo", "rm": "reward", "kto": "kto"}
"""Value of `rlhf_type` for preference training → the loss."""

PAIRS_IGNORED = field_names("""
    beta rpo_alpha simpo_gamma cpo_alpha loss_type loss_weights label_smoothing center_rewards_coefficient
    f_divergence_type reference_free desirable_weight undesirable_weight
    """)
"""Arguments of training on pairs that do not change the memory of a step."""

GRPO_BETA = 0.04
"""Default value of `--beta` with GRPO (arguments/rlhf_args.py)."""

ADDED_GRPO_ARGUMENTS = ("sleep_level", "offload_model", "offload_optimizer", "vllm_max_num_seqs")
"""Arguments that ms-swift adds to TRL's GRPO arguments, and that are read."""

GRPO_IGNORED = argument_names(__file__, "ignored_by_grpo")
"""Arguments of GRPO that do not change the memory of a step, and that of the engine only a little."""

GKD_READ = field_names("""
    teacher_model teacher_deepspeed teacher_model_server offload_teacher_model gkd_logits_topk beta sft_alpha use_vllm
    vllm_mode
    """)
"""Arguments of distillation (GKD) that are read."""

GKD_IGNORED = frozenset(
    (*GRPO_IGNORED, *field_names("lmbda seq_kd max_completion_length generation_batch_size steps_per_generation"))
)
"""Arguments of distillation (GKD) about samples, which do not change the memory of a step."""

GKD_BYTES_PER_LOGIT = {"bfloat16": ((8, 6), (2, 2)), "float32": ((28, 12), (15, 5)), "autocast": ((30, 12), (17, 5))}
"""Format of the logits → (β strictly between 0 and 1, β of 0 or 1): bytes per logit of `jsd_loss` beyond those of the
eager cross-entropy, and further ones of a chunk of tokens. Upper bounds, measured with torch on meta
(tests/frameworks/launch/test_distillation.py).
"""

GKD_CHUNK_TOKENS = 512
"""Number of tokens that `jsd_loss` compares at once."""

SFT_BYTES_PER_LOGIT = 12
"""Bytes per logit of the cross-entropy beside the divergence: float32 logits, their log-softmax and its gradient."""

UNMODELLED_GRPO_ARGUMENTS = ("teacher_model", "ref_model", "reward_model", "async_generate")
"""Arguments of GRPO that turn on features which are not modelled."""


def known_argument_names(reader: LaunchReader, config: Table, rlhf_type: str) -> tuple[str, ...]:
    """Returns the names of arguments that `swift rlhf` adds to `swift sft`'s. rlhf_type: the method; empty for none."""
    if not rlhf_type:
        return ()
    if rlhf_type == "gkd":
        if reader.flag(config, "use_vllm") and config.get("vllm_mode", "colocate") == "colocate":
            raise reader.argument_error(
                "--use_vllm",
                "an engine on the same devices is not modelled beside a teacher; expected --vllm_mode server",
            )
        reader.ignored_arguments += [argument_name for argument_name in config if argument_name in GKD_IGNORED]
        return (*GKD_READ, *GKD_IGNORED, "rlhf_type")
    if rlhf_type != "grpo":
        if config.get("ref_model") is not None:
            reader.refuse("--ref_model", "a reference model of other weights is not modelled")
        return (*PAIRS_IGNORED, "rlhf_type", "ref_model")
    reader.ignored_arguments += [argument_name for argument_name in config if argument_name in GRPO_IGNORED]
    reader.refuse_if_set(config, dict.fromkeys(UNMODELLED_GRPO_ARGUMENTS, "it is modelled without"), "--")
    return (*READ_GRPO_ARGUMENTS, *ADDED_GRPO_ARGUMENTS, *GRPO_IGNORED, *UNMODELLED_GRPO_ARGUMENTS, "rlhf_type")


def packed_sequence_count(reader: LaunchReader, config: Table, sequence_count: int) -> int:
    """Returns the number of `max_length`-token sequences in a micro-batch; with packing, half the number of answers.

    sequence_count: two for each pair. Source: swift/dataset/packing.py, `create_packed_idx`, sums the lengths of both.
    """
    if not reader.flag(config, "packing"):
        return sequence_count
    reader.notes.append("--packing: both answers of the pairs of a row have max_length tokens together")
    return -(-sequence_count // 2)


def preference_sequence_count(
    reader: LaunchReader, rlhf_type: str, config: Table, micro_batch_size: int, has_adapters: bool
) -> int:
    """Returns a micro-batch's number of sequences in preference training, and adds the reference model to the run.

    micro_batch_size: pairs of a micro-batch, or answers of KTO.
    """
    run_settings = {"batch": micro_batch_size, **({"lora_rank": 1} if has_adapters else {})}
    if rlhf_type == "kto":
        return int(kto_settings(reader, run_settings)["batch"])
    return packed_sequence_count(
        reader, config, int(preference_pair_settings(reader, LOSS_BY_RLHF_TYPE[rlhf_type], run_settings)["batch"])
    )


def with_teacher(reader: LaunchReader, config: Table, launched_run: Launch) -> Launch:
    """Returns the training run of `--rlhf_type gkd` with the weights of the teacher model, and the distillation loss.

    Without a teacher the trained model, or its frozen weights, are the teacher. A server's teacher sends the logarithms
    of some words alone. Source: swift/rlhf_trainers/gkd_trainer.py and gkd_loss.py, swift/arguments/rlhf_args.py.
    Raises `InputError` for a teacher that cannot be read or whose memory is not modelled.
    """
    for option_name in ("use_liger_kernel", "quant_bits", "gkd_logits_topk"):
        if config.get(option_name) not in (None, False, "false"):
            raise reader.argument_error(f"--{option_name}", "with --rlhf_type gkd it is not modelled; expected none")
    if config.get("teacher_model_server") is not None:
        reader.notes.append("--teacher_model_server: the loss reads some words of each token, and is counted as SFT's")
        return replace(launched_run, notes=tuple(reader.notes))
    loaded_format = "float32" if config.get("torch_dtype") == "float32" else "bfloat16"
    bytes_per_logit = GKD_BYTES_PER_LOGIT[logit_format(launched_run, loaded_format)]
    logit_bytes, chunk_width = bytes_per_logit[reader.value(config, "beta", 0.5) in (0, 1)]
    if config.get("sft_alpha") not in (None, 0):
        logit_bytes += SFT_BYTES_PER_LOGIT
    second_loss = SecondLoss(
        "swift/rlhf_trainers/gkd_loss.py", logit_bytes, "divergence of logits", GKD_CHUNK_TOKENS, chunk_width
    )
    teacher_id = config.get("teacher_model")
    if teacher_id is None or (teacher_id == config.get("model") and launched_run.settings.get("lora_rank") is not None):
        reader.notes.append("the model is its own teacher (self-distillation), without further weights")
        return replace(launched_run, notes=tuple(reader.notes), frozen_model=second_loss)
    zero_config = str(config.get("teacher_deepspeed", config.get("deepspeed", "")))
    if zero_config not in ("", "zero0", "zero1", "zero2", "zero3"):
        raise reader.argument_error(
            "--teacher_deepspeed", f"{short_repr(zero_config)[:60]} is not modelled; expected zero0 to zero3"
        )
    reader.notes.append(GENERATION_NOTE)
    return with_teacher_model(
        reader,
        launched_run,
        "--teacher_model",
        str(teacher_id)[:200],
        loaded_format,
        second_loss,
        zero_config == "zero3",
    )


def read_rollout(reader: LaunchReader, config: Table, launched_run: Launch) -> Rollout:
    """Returns the rollout engine and the reference model of GRPO (rlhf_trainers/{rollout_mixin,grpo_trainer}.py)."""
    offloaded_states: set[ModelState] = set()
    if reader.flag(config, "offload_model"):
        offloaded_states.add("weights")
    if reader.flag(config, "offload_optimizer"):
        offloaded_states.add("optimizer")
    return colocated_rollout(
        reader,
        config,
        launched_run,
        memory_share=0.9,
        beta=GRPO_BETA,
        offloaded_states=frozenset(offloaded_states),
        citation="swift/rlhf_trainers/rollout_mixin.py, grpo_trainer.py",
        reference_bytes=4 if config.get("torch_dtype") == "float32" else 2,
    )


def read_megatron_rollout(reader: LaunchReader, config: Table, launched_run: Launch) -> Rollout:
    """Returns the rollout engine and the reference model of `megatron rlhf --rlhf_type grpo`.

    `--offload_model` puts main gradients and the reference model on the host too (swift/megatron/trainers/utils.py,
    `offload_megatron_model_to_cpu`; rollout_mixin.py), and rollouts are as many as `--generation_batch_size`.
    """
    generation_steps = reader.integer(config, "steps_per_generation", 1)
    generation_batch_size = reader.integer(config, "global_batch_size", 16) * generation_steps
    rollout = read_rollout(
        reader, {"use_vllm": True, "generation_batch_size": generation_batch_size, **config}, launched_run
    )
    layout = launched_run.layout
    offloaded_states: frozenset[ModelState] = frozenset(
        ("gradients", "reference") if "weights" in rollout.offloaded_states else ()
    )
    return replace(
        rollout,
        source="swift/megatron/trainers/rollout_mixin.py, grpo_trainer.py",
        offloaded_states=rollout.offloaded_states | offloaded_states,
        reference_model=replace(rollout.reference_model, rank_count=layout.tp * layout.pp),
    )
