"""Reads Python files that train with Unsloth from the syntax tree, without running them.

The arguments are those of the calls of `from_pretrained`, of `get_peft_model` and of the trainer's configuration.
In memory, the loss alone of Unsloth's kernels is modelled: the layers are counted as PEFT and the Trainer run them,
which needs at least as much.
Source: unsloth, models/loader.py and models/llama.py for defaults, as of the notebooks of 2026.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...algebra import ceil_div
from ...sources.huggingface.family import field_names
from ..launch.embedding_losses import ARGUMENTS_CLASS, with_embedding_loss
from ..launch.grpo import colocated_rollout, grpo_length_settings
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, launch_reader, read_fraction, read_integer
from ..launch.model_changes import changes_of_model
from ..launch.python_source import (
    calls_in_order,
    contains_unknown_value,
    dotted_name_of,
    expression_value,
    keyword_arguments,
    module_constants,
    parse_python,
    statements_of_module,
)
from ..launch.trainer import (
    QUANTIZATION_AWARE_REASON,
    attention_settings,
    launch_under_selected_framework,
    lora_settings,
    optimizer_settings,
    preference_pair_settings,
)
from .config_file import (
    BASE_IN_4_BITS,
    OFFLOADED_CHECKPOINTS,
    SOFTWARE_STACK,
    UPPER_BOUND_NOTE,
    fused_loss,
    recompute_settings,
)

MODEL_CLASSES = ("FastLanguageModel", "FastVisionModel", "FastModel", "FastSentenceTransformer")
"""Names of classes that load a model."""

TRAINING_BY_CONFIG_CLASS = {
    "SFTConfig": "sft",
    "UnslothTrainingArguments": "sft",
    "TrainingArguments": "sft",
    "DPOConfig": "sigmoid",
    "ORPOConfig": "orpo",
    "GRPOConfig": "grpo",
    ARGUMENTS_CLASS: "embedding",
}
"""Configuration class of a trainer → the trainer's loss."""

EMBEDDING_MODEL = {"load_in_4bit": False, "use_gradient_checkpointing": False}
"""Default arguments of `FastSentenceTransformer.from_pretrained` (models/sentence_transformer.py)."""

EMBEDDING_ADAPTERS = {"target_modules": ["query", "key", "value", "dense"], "use_gradient_checkpointing": False}
"""Default arguments of `FastSentenceTransformer.get_peft_model`."""

DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Default value of `target_modules` (models/llama.py, `get_peft_model`)."""

ADAPTER_ARGUMENTS = field_names("""
    model r target_modules modules_to_save lora_dropout use_dora use_gradient_checkpointing random_state max_seq_length
    finetune_vision_layers finetune_language_layers finetune_attention_modules finetune_mlp_modules qat_scheme
    temporary_location ensure_weight_tying
    """)
"""Arguments of `get_peft_model` that are read or that change no size."""

ADAPTER_SWITCHES = ("finetune_language_layers", "finetune_attention_modules", "finetune_mlp_modules")
"""Arguments of `get_peft_model` that remove adapters if they are false."""

TRAINED_IN_FULL = ("embed_tokens", "lm_head")
"""Values of `target_modules` for modules trained without adapters (models/llama.py, `get_peft_model`)."""

FOUR_BIT_SUFFIX = re.compile(r"-(unsloth-)?bnb-4bit$", re.IGNORECASE)
"""Pattern of the suffix of a hub id with 4-bit weights; the hub id without the suffix names the original model."""


def is_python(file_text: str) -> bool:
    """Whether a Python file imports Unsloth."""
    return re.search(r"^[ \t]*(from|import) unsloth\b", file_text, re.MULTILINE) is not None


def read_python(file_text: str, source_file: LaunchSource) -> Launch:
    """Returns the training run of a file that uses Unsloth. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        syntax_tree = parse_python(file_text, source_file.name_in_errors)
        if re.search(r"\bvllm serve\b|vllm\.entrypoints", file_text) is not None:
            reader.notes.append("the file starts a server of vLLM, too, which is not counted beside the training")
        values_by_name = module_constants(statements_of_module(syntax_tree))
        named_calls = [
            (dotted_name_of(call_node.func).rpartition("trl.")[2], call_node)
            for call_node in calls_in_order(syntax_tree)
        ]
        model_arguments = _call_arguments(
            reader, named_calls, values_by_name, lambda called_name: _is_method_call(called_name, "from_pretrained")
        )
        if model_arguments is None:
            raise reader.argument_error(
                "from_pretrained",
                f"no call of {', '.join(MODEL_CLASSES)}; expected one, or TARGET with --phase training",
            )
        peft_arguments = _call_arguments(
            reader, named_calls, values_by_name, lambda called_name: _is_method_call(called_name, "get_peft_model")
        )
        config_classes = dict.fromkeys(
            class_or_call_name
            for class_or_call_name, _ in named_calls
            if class_or_call_name in TRAINING_BY_CONFIG_CLASS
        )
        class_name = "GRPOConfig" if "GRPOConfig" in config_classes else next(iter(config_classes), "")
        if len(config_classes) > 1:
            reader.notes.append(f"the file trains with {', '.join(config_classes)}; the run of {class_name} is counted")
        if not class_name:
            raise reader.argument_error(
                "SFTConfig",
                f"no call of a trainer's configuration; expected one of {', '.join(TRAINING_BY_CONFIG_CLASS)}",
            )
        config = (
            _call_arguments(
                reader, named_calls, values_by_name, lambda class_or_call_name: class_or_call_name == class_name
            )
            or {}
        )
        trainer_arguments = (
            _call_arguments(
                reader, named_calls, values_by_name, lambda class_or_call_name: class_or_call_name.endswith("Trainer")
            )
            or {}
        )
        model_changes = changes_of_model(syntax_tree, calls_in_order(syntax_tree), ADAPTER_ARGUMENTS)
        reader.unknown_arguments |= model_changes.unknown_arguments
        reader.notes += model_changes.notes
        config |= {
            class_or_call_name: change_value
            for class_or_call_name, change_value in model_changes.arguments.items()
            if class_or_call_name == "optim"
        }
        has_standby = STANDBY_LINE.search(file_text) is not None
        loss_name = TRAINING_BY_CONFIG_CLASS[class_name]
        if loss_name == "embedding":
            model_arguments, config = {**EMBEDDING_MODEL, **model_arguments}, {"optim": "adamw_torch", **config}
            peft_arguments = None if peft_arguments is None else {**EMBEDDING_ADAPTERS, **peft_arguments}
        launched_run = _launch_of_calls(
            reader, model_arguments, peft_arguments, {**trainer_arguments, **config}, loss_name, has_standby
        )
        if loss_name != "embedding":
            return launched_run
        loss_calls = [
            (class_or_call_name.rpartition(".")[2], keyword_arguments(call_node, values_by_name))
            for class_or_call_name, call_node in named_calls
        ]
        return with_embedding_loss(launched_run, loss_calls)


def _launch_of_calls(
    reader: LaunchReader,
    model_arguments: Mapping[str, Any],
    adapter_arguments: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    loss_name: str,
    uses_standby_mode: bool,
) -> Launch:
    """Returns the training run of the calls that load, adapt and train a model.

    adapter_arguments: None without adapters. uses_standby_mode: whether vLLM frees its cache during training.
    """
    max_length = next(
        (
            config[length_name]
            for length_name in ("max_length", "max_seq_length")
            if config.get(length_name) is not None
        ),
        None,
    )
    run_settings: dict[str, Any] = {
        "phase": "training",
        "batch": reader.integer(config, "per_device_train_batch_size", 8),
        "num_microbatches": reader.integer(config, "gradient_accumulation_steps", 1),
        "seq": read_integer(
            reader,
            "max_seq_length",
            reader.value(model_arguments, "max_seq_length", 2048) if max_length is None else max_length,
        ),
        "dtype": "fp16" if "float16" in str(model_arguments.get("dtype")).replace("bfloat16", "") else "bf16",
        "master_weights": "none",
        "attn_implementation": "flash",
        **optimizer_settings(reader, "optim", reader.value(config, "optim", "adamw_8bit")),
    }
    if model_arguments.get("attn_implementation") is not None:
        run_settings |= attention_settings(reader, "attn_implementation", model_arguments["attn_implementation"])
    if reader.flag(model_arguments, "unsloth_tiled_mlp"):
        reader.notes.append("unsloth_tiled_mlp: networks are counted over all tokens at once, an upper bound")
    if loss_name == "grpo":
        run_settings |= _whole_group_batch_settings(reader, config, run_settings)
    if adapter_arguments is None:
        if not reader.flag(model_arguments, "full_finetuning"):
            raise reader.argument_error(
                "get_peft_model", "no call of it, and full_finetuning is not set; expected one of the two"
            )
        run_settings |= recompute_settings(model_arguments.get("use_gradient_checkpointing", OFFLOADED_CHECKPOINTS))
    else:
        run_settings |= _adapter_settings(reader, model_arguments, adapter_arguments)
    if loss_name == "grpo":
        if config.get("max_prompt_length") is not None:
            run_settings |= grpo_length_settings(reader, config, "max_prompt_length", adapter_arguments is not None)
        run_settings |= _log_probability_settings(reader, config, run_settings)
    elif loss_name == "sft":
        run_settings |= fused_loss(reader)
    elif loss_name != "embedding":
        run_settings |= preference_pair_settings(reader, loss_name, run_settings)
    if model_arguments.get("num_labels") is not None:  # auto_model=AutoModelForSequenceClassification
        reader.score_head_num_labels = reader.integer(model_arguments, "num_labels", 2)
    reader.counts_longest_samples = loss_name == "grpo" or not config.get("packing")
    reader.notes.append(UPPER_BOUND_NOTE)
    if reader.flag(model_arguments, "load_in_fp8"):
        reader.notes.append("load_in_fp8: frozen weights are counted in 16 bits, an upper bound")
    if any(arguments.get("qat_scheme") is not None for arguments in (model_arguments, adapter_arguments or {})):
        reader.refuse("qat_scheme", QUANTIZATION_AWARE_REASON)
    loaded_name = str(model_arguments.get("model_name", ""))
    model_name = FOUR_BIT_SUFFIX.sub("", loaded_name)
    if model_name != loaded_name:
        reader.notes.append(f"{loaded_name[:100]}: the model is {model_name[:100]}, whose weights are in nf4")
    launched_run = replace(
        launch_under_selected_framework(reader, {}, run_settings, model_id=model_name), software_stack=SOFTWARE_STACK
    )
    if loss_name != "grpo":
        return launched_run
    rollout = colocated_rollout(reader, {**config, "use_vllm": False}, launched_run, memory_share=0.9)
    if reader.flag(model_arguments, "fast_inference"):
        rollout = replace(rollout, **_shared_engine_settings(reader, model_arguments, uses_standby_mode))
    return replace(launched_run, rollout=rollout, assumed_defaults=dict(reader.assumed_defaults))


def _shared_engine_settings(
    reader: LaunchReader, model_arguments: Mapping[str, Any], uses_standby_mode: bool
) -> dict[str, Any]:
    """Returns the rollout's fields for a vLLM engine that shares the trained weights (vllm_utils.py, `load_vllm`)."""
    memory_utilization = read_fraction(reader, "gpu_memory_utilization", model_arguments, 0.5)
    flags = {
        "gpu_memory_utilization": memory_utilization,
        "max_model_len": reader.integer(model_arguments, "max_seq_length", 2048),
    }
    return {
        "source": "unsloth_zoo/vllm_utils.py",
        "engine": "vllm",
        "flags": flags,
        "engine_sleeps_while_idle": uses_standby_mode,
        "shares_weights": True,
        "memory_fractions_by_capacity": STANDBY_SHARES if uses_standby_mode else (),
    }


STANDBY_SHARES = ((40, 0.925 * 0.95), (25, 0.9 * 0.95), (20, 0.825 * 0.95), (14, 0.8 * 0.95), (10, 0.775 * 0.95))
"""GiB of a device, at least → fraction that vLLM 0.11 and later uses in standby in any case (`load_vllm`)."""

STANDBY_LINE = re.compile(
    r"""^(?![ \t]*#(?! get_ipython)).*UNSLOTH_VLLM_STANDBY["'\\]{1,3}\]\s*=\s*\\?["']1""", re.MULTILINE
)
"""Pattern of a line that turns standby on; exported notebooks contain this line in the text of a cell."""


def _whole_group_batch_settings(
    reader: LaunchReader, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns GRPO's batch size, rounded up to a whole group of completions (models/rl.py)."""
    if config.get("steps_per_generation") is not None or config.get("generation_batch_size") is not None:
        return {}
    group_size = reader.integer(config, "num_generations", 8)
    if settings["batch"] * settings["num_microbatches"] * (reader.source.world_size or 1) % group_size == 0:
        return {}
    reader.notes.append(
        f"per_device_train_batch_size {settings['batch']}: Unsloth makes it num_generations, {group_size}"
    )
    return {"batch": group_size}


def _log_probability_settings(
    reader: LaunchReader, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings of GRPO's log-probabilities: logits of the completions alone, chunk by chunk.

    torch.compile saves a chunk's logits in the format of the output head. All sequences are one packed forward pass.
    Sources: unsloth_zoo ce232d6c, rl_replacements.py, `grpo_accumulated_loss`, `autotune_batch_and_chunks` and
    `chunked_hidden_states_selective_log_softmax`.
    """
    chunk_multiplier = reader.optional_integer(config, "unsloth_logit_chunk_multiplier")
    completion_length = reader.integer(config, "max_completion_length", settings["seq"])
    sequence_chunks = (chunk_multiplier or max(4, settings["seq"] // 4096)) * settings["batch"]
    reader.notes.append(
        "GRPO: Unsloth's log-probabilities of completions chunk by chunk, whose logits are kept in 16 bits; sequences "
        "are counted in one pass, which Unsloth divides to fit the free memory (unsloth_grpo_mini_batch) where it "
        "cannot pack them"
    )
    return {
        "cross_entropy": "split",
        "logits_dtype": settings["dtype"],
        "logits_to_keep": min(completion_length, settings["seq"]),
        "loss_chunk": max(1, ceil_div(completion_length, sequence_chunks)),
    }


def _adapter_settings(
    reader: LaunchReader, model_arguments: Mapping[str, Any], peft_values: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings of LoRA adapters and of the frozen weights."""
    if any(argument_name.startswith("finetune_") for argument_name in peft_values):
        reader.notes.append("adapters of the language model are counted; encoders, and the tokens of images, are not")
    for argument_name in ADAPTER_SWITCHES:
        if peft_values.get(argument_name) is False:
            reader.refuse(argument_name, "adapters of all linear layers of the language model are counted")
    target_names = reader.value(peft_values, "target_modules", list(DEFAULT_TARGETS))
    saved_names = peft_values.get("modules_to_save")
    if isinstance(target_names, list) and isinstance(saved_names or [], list):
        saved_names = [
            *(saved_names or []),
            *(target_name for target_name in target_names if target_name in TRAINED_IN_FULL),
        ]
        target_names = [target_name for target_name in target_names if target_name not in TRAINED_IN_FULL]
    adapter_settings = lora_settings(
        reader,
        rank=("r", reader.value(peft_values, "r", 16)),
        targets_argument=("target_modules", target_names),
        saved_modules=("modules_to_save", saved_names),
        dropout_value=peft_values.get("lora_dropout"),
        magnitude_value=peft_values.get("use_dora"),
    )
    adapter_settings |= recompute_settings(peft_values.get("use_gradient_checkpointing", OFFLOADED_CHECKPOINTS))
    is_eight_bit = reader.flag(model_arguments, "load_in_8bit")
    is_unquantized = any(
        reader.flag(model_arguments, format_flag) for format_flag in ("load_in_16bit", "load_in_fp8", "full_finetuning")
    )
    if reader.flag(model_arguments, "load_in_4bit", not (is_eight_bit or is_unquantized)):
        return {**adapter_settings, **BASE_IN_4_BITS}
    return adapter_settings | ({"base": "int8"} if is_eight_bit else {})


def _is_method_call(called_name: str, method_name: str) -> bool:
    return called_name in (f"{loader_class}.{method_name}" for loader_class in MODEL_CLASSES)


REQUIRED_ARGUMENTS = field_names("""
    max_seq_length max_length per_device_train_batch_size gradient_accumulation_steps optim num_generations r
    target_modules modules_to_save lora_dropout load_in_4bit load_in_8bit load_in_16bit load_in_fp8 full_finetuning
    use_gradient_checkpointing fast_inference gpu_memory_utilization
    """)
"""Arguments that affect memory, so that defaults do not replace values which the file computes."""

GRPO_LENGTHS = ("max_prompt_length", "max_completion_length")


def _call_arguments(
    reader: LaunchReader, named_calls: list[tuple[str, ast.Call]], values_by_name: Mapping[str, Any], matches_name: Any
) -> dict[str, Any] | None:
    """Returns the evaluated arguments of the first call with a matching name; None without such a call.

    Prompts and completions whose lengths the file computes have all tokens of `max_seq_length` together.
    """
    call_node = next((call_node for called_name, call_node in named_calls if matches_name(called_name)), None)
    if call_node is None:
        return None
    arguments = keyword_arguments(call_node, values_by_name)
    if call_node.args and "model_name" not in arguments:
        arguments["model_name"] = expression_value(call_node.args[0], values_by_name)
    unresolved_arguments = {
        argument_name for argument_name, argument_value in arguments.items() if contains_unknown_value(argument_value)
    }
    for argument in sorted(REQUIRED_ARGUMENTS & unresolved_arguments):
        reader.refuse(argument, "is known only when the file runs")
    if unresolved_arguments.intersection(GRPO_LENGTHS):
        reader.notes.append("the lengths of prompts and completions are computed: together max_seq_length tokens")
        unresolved_arguments.update(GRPO_LENGTHS)
    return {
        argument_name: argument_value
        for argument_name, argument_value in arguments.items()
        if argument_name not in unresolved_arguments
    }
