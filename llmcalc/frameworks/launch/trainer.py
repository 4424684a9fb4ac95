"""Reads arguments of Hugging Face's Trainer, in YAML or JSON, which state no architecture.

Source: transformers/training_args.py (5.23), with arguments that recipes of TRL and the alignment handbook add.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import short_repr
from ...parallel.layout import Layout
from ...sources.files import parse_json
from ...sources.huggingface.family import field_names
from ...workload.execution import CHUNKED_LOSSES
from ..argument_names import keyword_of
from ..frozen_model import FrozenModel
from ..registry import DEFAULT_FRAMEWORK, framework, plugin_by_framework
from .accelerate_command import with_launcher_arguments
from .command_line import parsed_arguments
from .launch_types import (
    FP16_NOTE,
    NO_SHIPPED_FILES,
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    Table,
    assume_default_attention,
    launch_reader,
    read_integer,
)
from .model_changes import OTHER_HEAD_REASON
from .trainer_scripts import ALPACA_LORA_SIGNS, TRUE_VALUES, without_script_arguments

SETTINGS_BY_OPTIM: dict[str, dict[str, Any]] = {
    "adamw_torch": {"optimizer": "adamw", "optimizer_impl": "foreach"},
    "adamw_torch_fused": {"optimizer": "adamw", "optimizer_impl": "fused"},
    "adamw_hf": {"optimizer": "adamw", "optimizer_impl": "loop"},
    "adamw_bnb_8bit": {"optimizer": "adamw-8bit-trainer"},
    "adamw_8bit": {"optimizer": "adamw-8bit-trainer"},
    "adamw_torch_8bit": {"optimizer": "adamw-8bit-torchao"},
    "ao_adamw_8bit": {"optimizer": "adamw-8bit-torchao"},
    "adamw_torch_4bit": {"optimizer": "adamw-4bit-torchao"},
    "ao_adamw_4bit": {"optimizer": "adamw-4bit-torchao"},
    "paged_adamw_8bit": {"optimizer": "paged-adamw-8bit-trainer"},
    "paged_adamw": {"optimizer": "paged-adamw"},
    "paged_adamw_32bit": {"optimizer": "paged-adamw"},
    "lion_32bit": {"optimizer": "lion"},
    "lion_8bit": {"optimizer": "lion-8bit-trainer"},
    "paged_lion_32bit": {"optimizer": "paged-lion"},
    "paged_lion_8bit": {"optimizer": "paged-lion-8bit-trainer"},
    "schedule_free_adamw": {"optimizer": "schedule-free-adamw"},
    "schedule_free_sgd": {"optimizer": "schedule-free-sgd"},
    "adafactor": {"optimizer": "adafactor-transformers"},
    "sgd": {"optimizer": "sgd"},
}
"""Value of the Trainer's `optim` → options of `llmcalc memory`."""

TRAINER_DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "use_reentrant": False,
}
"""Default values of the Trainer's arguments that change memory (transformers 5.23, training_args.py)."""

EARLIER_TRAINER_DEFAULTS = {"optim": "adamw_torch", "use_reentrant": True}
"""Defaults with transformers before 5 and torch before 2.8, which made AdamW fused (training_args.py)."""

AUTO_DTYPE = "auto"
"""The checkpoint's format, in which transformers 5 loads weights (modeling_utils.py, `from_pretrained`)."""

EARLIER_DTYPE = "float32"
"""Number format in which transformers before 5 loads weights by default, regardless of the checkpoint's format."""

QUANTIZING_ARGUMENTS = ("load_in_4bit", "load_in_8bit")
"""Arguments that make bitsandbytes quantize a model while it is loaded."""


def dtype_before_version_5(arguments: Table) -> str:
    """Returns the number format in which transformers before 5 loads weights if the arguments state no dtype.

    Beside weights that bitsandbytes quantizes it is float16. Source: transformers 4, quantizers/quantizer_bnb_4bit.py
    and quantizer_bnb_8bit.py, `update_torch_dtype`.

    arguments: `load_in_4bit` and `load_in_8bit`, among others.
    """
    is_quantized = any(arguments.get(argument_name) in TRUE_VALUES for argument_name in QUANTIZING_ARGUMENTS)
    return "float16" if is_quantized else EARLIER_DTYPE


EARLIER_ARGUMENT = "evaluation_strategy"
"""An argument that transformers 4.46 (October 2024) removed."""

LENGTH_ARGUMENTS = ("max_seq_length", "max_length", "block_size", "cutoff_len", "model_max_length")
"""Arguments for sequence lengths in training scripts; the last one is of scripts derived from Alpaca's."""

PACKING_ARGUMENTS = ("packing", "neat_packing", "data_packing")
"""Arguments that pack several samples into sequences of full length."""

READ_TRAINER_ARGUMENTS = field_names("""
    per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs
    activation_checkpointing activation_checkpointing_kwargs optim bf16 fp16 torch_compile
    max_seq_length max_length block_size cutoff_len model_max_length torch_dtype dtype attn_implementation
    use_liger_kernel liger_kernel_config label_smoothing_factor
    model_name_or_path use_peft lora_r lora_target_modules lora_dropout load_in_4bit load_in_8bit
    use_cpu no_cuda lora_modules_to_save parallelism_config optim_args optim_target_modules
    auto_find_batch_size neftune_noise_alpha use_bnb_nested_quant use_dora
    """)

IGNORED_TRAINER_ARGUMENTS = field_names("""
    output_dir overwrite_output_dir num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
    warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices
    max_grad_norm bf16_full_eval fp16_full_eval tf32 torch_compile_backend torch_compile_mode
    use_cache logging_strategy logging_steps logging_first_step log_on_each_node
    logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name
    project trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy evaluation_strategy eval_steps
    eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches
    eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model save_strategy
    save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token hub_private_repo
    hub_model_id hub_strategy hub_always_push hub_revision load_best_model_at_end metric_for_best_model
    greater_is_better ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed
    accelerator_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
    dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names
    train_sampling_strategy group_by_length length_column_name ddp_find_unused_parameters ddp_broadcast_buffers
    ddp_static_graph ddp_backend ddp_timeout debug skip_memory_metrics do_train do_eval do_predict
    resume_from_checkpoint local_rank save_safetensors logging_dir model_revision trust_remote_code dataset_name
    dataset_config dataset_mixer dataset_splits dataset_text_field dataset_num_proc preprocessing_num_workers
    chat_template tokenizer_name_or_path lora_alpha bnb_4bit_quant_type
    dataset_kwargs eos_token pad_token tags half_precision_backend push_to_hub_model_id hub_private save_safetensor
    do_sample special_tokens dataset_train_split dataset_test_split dataset_mixture dataset_prepared_path
    log_completions fp16_opt_level past_index use_mps_device mp_parameters include_inputs_for_metrics
    ddp_bucket_cap_mb fsdp_transformer_layer_cls_to_wrap fsdp_min_num_params packing torch_empty_cache_steps
    train_file validation_file test_file dataset_config_name validation_split_percentage keep_linebreaks streaming
    max_train_samples max_eval_samples max_predict_samples overwrite_cache cache_dir tokenizer_name use_fast_tokenizer
    use_auth_token token low_cpu_mem_usage predict_with_generate
    fp16_backend include_tokens_per_second tpu_num_cores tpu_metrics_debug ray_scope split_batches dispatch_batches
    jit_mode_eval xpu_backend use_legacy_prediction_loop evaluate_during_training lazy_preprocess
    train_file_path dataset_path
    """)
"""Arguments that do not change the memory of a training step, or by less than one block.

The last lines are those of transformers' examples (language-modeling/run_clm.py, summarization/run_summarization.py),
and arguments of the Trainer of earlier versions.
"""

QUANTIZATION_AWARE_REASON = (
    "the rounding of this program is not modelled; --allow-unknown counts plain weights, which need less, and with "
    "--fake-quantize int8-int4:GROUP too those that torchao's Int8DynActInt4WeightQATQuantizer rounds"
)
"""Reason for refusing quantization-aware training."""

TRAINER_SIGNS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "optim",
    "fsdp",
)


SCRIPTS_OF_OTHER_HEADS = re.compile(r"run_(glue|classification|ner|qa|qa_beam_search|swag|xnli)(_no_trainer)?\.py")
"""Pattern of transformers' examples (examples/pytorch) for models with another head than a language model's."""


SCRIPTS_OF_PAIRS = re.compile(r"run_(summarization|translation)\.py")
"""Pattern of transformers' example scripts that train an encoder-decoder on pairs of texts."""

PAIR_LENGTHS = {"max_source_length": 1024, "max_target_length": 128}
"""Argument of the scripts in `SCRIPTS_OF_PAIRS` → default number of tokens, of the encoder and of the decoder."""

PAIR_ARGUMENTS = field_names("""
    max_source_length max_target_length val_max_target_length source_prefix source_lang target_lang text_column
    summary_column lang num_beams forced_bos_token resize_position_embeddings
    """)
"""Arguments about texts, of the scripts in `SCRIPTS_OF_PAIRS`."""


def is_trainer(config: Table) -> bool:
    """Whether a table has arguments of Hugging Face's Trainer."""
    return "distributed_type" not in config and any(
        argument_name in config and not isinstance(config[argument_name], Mapping) for argument_name in TRAINER_SIGNS
    )


def has_program_arguments(command_words: Sequence[str]) -> bool:
    """Whether a command's words are arguments of the Trainer, which has a default for the batch size."""
    argument_names = {  # HfArgumentParser takes hyphens in place of underscores
        keyword_of(command_word.partition("=")[0]) for command_word in command_words if command_word.startswith("--")
    }
    return (
        argument_names >= {"do_train", "model_name_or_path"}
        or argument_names >= ALPACA_LORA_SIGNS
        or any(argument_name.startswith("per_device_train_batch") for argument_name in argument_names)
    )


def read_trainer(config: Table, source_file: LaunchSource, earlier_argument: str = "") -> Launch:
    """Returns the training run that Trainer arguments describe. Raises `InputError`, which names file and argument.

    earlier_argument: an argument of the file beside `config` that transformers before 5 alone has; empty for none.
    """
    with launch_reader(source_file) as reader:
        return _read_arguments(reader, with_launcher_arguments(config, source_file), earlier_argument)


def read_arguments(arguments: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a command with Trainer arguments."""
    with launch_reader(source_file) as reader:  # a TARGET may replace the model
        script_name = source_file.script_name.rpartition("/")[2]
        if SCRIPTS_OF_OTHER_HEADS.fullmatch(script_name) is not None:
            reader.refuse(script_name, OTHER_HEAD_REASON)
        config = parsed_arguments(arguments, reader, known_argument_names() - {"model_name_or_path"})
        if config.get("deepspeed") is True and "deepspeed_config" in config:  # deepspeed.add_config_arguments
            config["deepspeed"] = config.pop("deepspeed_config")
        config = with_launcher_arguments(config, source_file)
        if SCRIPTS_OF_PAIRS.fullmatch(script_name) is None:
            return _read_arguments(reader, config)
        source_tokens, target_tokens = (
            reader.integer(config, length_argument, default) for length_argument, default in PAIR_LENGTHS.items()
        )
        reader.notes.append(f"the encoder reads {source_tokens:,} tokens (max_source_length)")
        other_arguments = {
            length_argument: argument_value
            for length_argument, argument_value in config.items()
            if length_argument not in PAIR_ARGUMENTS
        }
        launched_run = _read_arguments(reader, {**other_arguments, "max_length": target_tokens})
        return replace(launched_run, settings={**launched_run.settings, "source": source_tokens})


def launch_as_trainer(reader: LaunchReader, config: Table, model_id: str) -> Launch:
    """Returns the training run of a program that passes its arguments to Hugging Face's Trainer.

    config: the Trainer's arguments, with the program's defaults.
    model_id: the model's name.
    """
    reader.check_unknown_arguments()
    launched_run = read_trainer(config, reader.source)
    frozen_model = reader.frozen_model_in_layout(launched_run.layout)
    return replace(reader.with_recorded_arguments(launched_run), model_name=model_id, frozen_model=frozen_model)


def known_argument_names() -> frozenset[str]:
    """Returns the names of all arguments that llmcalc reads, including arguments that select a framework."""
    return READ_TRAINER_ARGUMENTS.union(
        *(trainer_plugin.trainer_keys for trainer_plugin in plugin_by_framework().values())
    )


def _read_arguments(reader: LaunchReader, config: Table, earlier_argument: str = "") -> Launch:
    config = _with_model_argument(without_script_arguments(reader, config))
    reader.record_argument_names(config, known_argument_names(), IGNORED_TRAINER_ARGUMENTS)
    default_values = TRAINER_DEFAULTS
    if earlier_argument:
        default_values = {**default_values, **EARLIER_TRAINER_DEFAULTS}
        add_earlier_version_note(reader, earlier_argument, "transformers before 5")
    run_settings = trainer_settings(reader, config, default_values)
    is_earlier = bool(earlier_argument) or config.get(EARLIER_ARGUMENT) is not None
    format_settings, is_published = weight_format_settings(
        reader, config, dtype_before_version_5(config) if is_earlier else AUTO_DTYPE
    )
    _add_data_parallel_note(reader)
    return launch_under_selected_framework(
        reader, config, run_settings | format_settings, has_published_weight_format=is_published
    )


OTHER_MODEL_ARGUMENTS = ("model_name", "model_id", "base_model")
"""Alternative names of `model_name_or_path` in users' own training scripts."""


def _with_model_argument(config: Table) -> Table:
    """Returns the arguments with the model as `model_name_or_path`."""
    model_argument = next(
        (argument_name for argument_name in OTHER_MODEL_ARGUMENTS if isinstance(config.get(argument_name), str)), ""
    )
    if not model_argument or config.get("model_name_or_path") is not None:
        return config
    other_arguments = {
        argument_name: argument_value
        for argument_name, argument_value in config.items()
        if argument_name != model_argument
    }
    return {**other_arguments, "model_name_or_path": config[model_argument]}


SINGLE_PROCESS_LAUNCHERS = ((), ("python",), ("python3",))
"""Launchers that start a single process."""


def _add_data_parallel_note(reader: LaunchReader) -> None:
    """Adds a note that the Trainer runs `nn.DataParallel` in a single process over several visible devices."""
    visible_device_count = len(
        [
            device_name
            for device_name in str(reader.source.env.get("CUDA_VISIBLE_DEVICES", "")).split(",")
            if device_name
        ]
    )
    if (
        reader.source.world_size is None
        and visible_device_count > 1
        and tuple(reader.source.launcher) in SINGLE_PROCESS_LAUNCHERS
    ):
        reader.notes.append(
            f"{visible_device_count} visible devices and one process: the Trainer runs torch.nn.DataParallel, "
            "whose first device gathers the logits of all, which is not counted; torchrun --nproc_per_node "
            f"{visible_device_count} has no such device"
        )


def keeps_published_weight_format(launched_run: Launch, config: Table) -> bool:
    """Whether weights stay in the checkpoint's number format, for example with dtype `auto` and no framework."""
    has_automatic_dtype = config.get("dtype") == AUTO_DTYPE and launched_run.framework == DEFAULT_FRAMEWORK
    return has_automatic_dtype or launched_run.keeps_checkpoint_dtype


def launch_under_selected_framework(
    reader: LaunchReader,
    config: Table,
    run_settings: dict[str, Any],
    world_size: int | None = None,
    model_id: Any = None,
    has_published_weight_format: bool = False,
    shipped_tables: Mapping[str, Table] = NO_SHIPPED_FILES,
) -> Launch:
    """Returns the training run that Trainer arguments describe, under the framework that the arguments select.

    config: the arguments, of which those that select a framework are read here.
    run_settings: the settings of the run without a framework.
    world_size: number of devices; None (default) for that of the file.
    model_id: the model's name; None (default) for that of `model_name_or_path`.
    has_published_weight_format: whether weights keep the checkpoint's number format.
    shipped_tables: configs of frameworks that come with the program.
    """
    device_count = reader.device_count(world_size or reader.source.world_size)
    model_name = config.get("model_name_or_path") if model_id is None else model_id
    framework_name, launch_settings = DEFAULT_FRAMEWORK, LaunchSettings(Layout(dp=device_count), run_settings)
    for plugin_name, plugin in plugin_by_framework().items():
        if plugin.read_trainer is not None and any(config.get(framework_key) for framework_key in plugin.trainer_keys):
            arguments = _with_tables_of_named_files(reader, config, plugin_name, plugin.trainer_keys, shipped_tables)
            framework_name = plugin_name
            launch_settings = plugin.read_trainer(reader, arguments, device_count, run_settings)
            break
    else:
        reader.refuse_parallel_groups(config)
        launch_settings = LaunchSettings(
            Layout(dp=device_count), run_settings | _adapter_autocast_settings(reader, config, run_settings)
        )
    return reader.create_launch(
        framework_name,
        launch_settings,
        model_name="" if model_name is None else str(model_name)[:200],
        keeps_checkpoint_dtype=has_published_weight_format and framework_name == DEFAULT_FRAMEWORK,
    )


def _adapter_autocast_settings(reader: LaunchReader, config: Table, run_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the precision of a run that trains fp32 adapters of bf16 weights.

    The argument bf16 is autocast: an adapter's input is copied to bf16, not to the adapter's fp32. Elsewhere autocast
    changes no product of bf16 weights.
    """
    is_autocast = reader.flag(config, "bf16") and run_settings.get("dtype") == "bf16" and "lora_rank" in run_settings
    return {"precision": "autocast"} if is_autocast and "lora_dtype" not in run_settings else {}


def _with_tables_of_named_files(
    reader: LaunchReader,
    config: Table,
    framework_name: str,
    file_keys: Sequence[str],
    shipped_tables: Mapping[str, Table],
) -> dict[str, Any]:
    """Returns the arguments with the framework's config files replaced by the files' tables."""
    expected_text = f"a config of {framework(framework_name).title}"
    tables_by_key = {
        file_key: reader.tables_of_named_file(file_key, config[file_key], expected_text, shipped_tables)
        for file_key in file_keys
        if isinstance(config.get(file_key), str) and re.search(r"\.(json|ya?ml)$", config[file_key])
    }
    return {**config, **tables_by_key}


def trainer_settings(
    reader: LaunchReader, config: Table, default_values: Mapping[str, Any] = TRAINER_DEFAULTS, length_option: str = ""
) -> dict[str, Any]:
    """Returns the settings of a Trainer run, without the number formats of weights.

    default_values: argument that the program fills in → its default.
    length_option: the argument with the length of sequences; empty (default) for any.
    """
    if config.get(EARLIER_ARGUMENT) is not None and default_values["optim"] == TRAINER_DEFAULTS["optim"]:
        default_values = {**default_values, **EARLIER_TRAINER_DEFAULTS}
        add_earlier_version_note(reader, EARLIER_ARGUMENT, "transformers before 4.46")
    run_settings: dict[str, Any] = {
        "phase": "training",
        "batch": reader.integer(config, "per_device_train_batch_size", default_values["per_device_train_batch_size"]),
        "num_microbatches": reader.integer(config, "gradient_accumulation_steps", 1),
    }
    length_names = (length_option,) if length_option else LENGTH_ARGUMENTS
    length_key = next((length_name for length_name in length_names if config.get(length_name) is not None), "")
    if length_key or length_option:
        run_settings["seq"] = read_integer(
            reader,
            length_key or length_option,
            reader.value(config, length_key or length_option, default_values.get(length_option)),
        )
    is_filled = length_key == "block_size" or config.get("stage") == "pt" or any(map(config.get, PACKING_ARGUMENTS))
    reader.counts_longest_samples = "seq" in run_settings and not is_filled
    run_settings |= optimizer_and_target_settings(reader, config, "optim", default_values["optim"], run_settings)
    run_settings |= trainer_kernel_settings(reader, config, default_values)
    run_settings |= trainer_adapter_settings(reader, config)
    is_earlier = EARLIER_TRAINER_DEFAULTS.items() <= default_values.items()
    if is_earlier and run_settings.get("base") in ("nf4", "nf4-dq"):
        run_settings["quantized_experts"] = True  # before transformers 5 each expert is a module of linear layers
    add_noise_note(reader, config)
    _add_evaluation_note(reader, config, run_settings["batch"])
    is_low_rank = _is_low_rank_optimizer(str(config.get("optim")))
    for argument_name in ("auto_find_batch_size", "use_cpu", "no_cuda", *(("optim_args",) * (not is_low_rank))):
        if config.get(argument_name) not in (None, False, ""):
            reader.refuse(argument_name, "it is modelled without")
    if str(config.get("label_smoothing_factor") or 0) not in ("0", "0.0"):  # Trainer.compute_loss: of all logits
        reader.refuse("label_smoothing_factor", "the loss is modelled without")
    return run_settings


def _add_evaluation_note(reader: LaunchReader, config: Table, training_batch: int) -> None:
    """Adds a note that evaluation may need more memory than training, since its batches are larger."""
    eval_schedules = {str(config.get(argument, "no")).lower() for argument in ("eval_strategy", "evaluation_strategy")}
    evaluation_batch = read_integer(reader, "per_device_eval_batch_size", config.get("per_device_eval_batch_size") or 8)
    if eval_schedules - {"no", "false", "none"} and evaluation_batch > training_batch:
        reader.notes.append(
            f"evaluation: batches of {evaluation_batch} (per_device_eval_batch_size) are not counted, and may need more"
        )


def add_earlier_version_note(reader: LaunchReader, argument_name: str, release_text: str) -> None:
    """Adds a note that defaults of an earlier release are counted, because the file has an argument of that release."""
    reader.notes.append(
        f"{argument_name} is of {release_text}, whose defaults are counted: optim {EARLIER_TRAINER_DEFAULTS['optim']}, "
        "reentrant checkpoints"
    )


def add_noise_note(reader: LaunchReader, config: Table) -> None:
    """Adds a note that NEFTune's noise, a tensor as large as the embeddings, is not counted."""
    if config.get("neftune_noise_alpha") not in (None, False, ""):
        reader.notes.append(
            "neftune_noise_alpha: the noise, as large as the embeddings of a micro-batch, is not counted"
        )


def optimizer_settings(reader: LaunchReader, argument_name: str, written_name: Any) -> dict[str, Any]:
    """Returns the settings of an optimizer with the Trainer's name for it. argument_name: the argument for errors."""
    optimizer_name = str(written_name)[:60]
    if optimizer_name.startswith("OptimizerNames."):
        optimizer_name = optimizer_name.partition(".")[2].lower()
    if optimizer_name not in SETTINGS_BY_OPTIM:
        reader.refuse(argument_name, f"'{optimizer_name}' is not modelled")
        return {}
    reader.written_options["optimizer"] = f"{argument_name} {optimizer_name}"
    return dict(SETTINGS_BY_OPTIM[optimizer_name])


LOW_RANK_OPTIMIZERS = {"galore_adamw": "galore", "apollo_adamw": "apollo"}
"""`optim` without `_layerwise` → the optimizer (transformers/trainer_optimizer.py, `_setup_low_rank_optimizer`)."""


def _is_low_rank_optimizer(optimizer_name: str) -> bool:
    return optimizer_name.removesuffix("_layerwise") in LOW_RANK_OPTIMIZERS


def optimizer_and_target_settings(
    reader: LaunchReader, config: Table, argument_name: str, default_name: str, run_settings: Table
) -> dict[str, Any]:
    """Returns the settings of the optimizer that an argument names; for GaLore and APOLLO with the target modules."""
    optimizer_name = str(reader.value(config, argument_name, default_name))
    if _is_low_rank_optimizer(optimizer_name):
        return _low_rank_optimizer_settings(reader, config, (argument_name, optimizer_name), run_settings)
    if config.get("optim_target_modules"):
        reader.refuse("optim_target_modules", "it is modelled without")
    return optimizer_settings(reader, argument_name, optimizer_name)


def _low_rank_optimizer_settings(
    reader: LaunchReader, config: Table, named_optimizer: tuple[str, str], run_settings: Table
) -> dict[str, Any]:
    """Returns the settings of GaLore or APOLLO on the linear layers of attention and of feed-forward networks.

    named_optimizer: the argument that names the optimizer, and the name.
    """
    optimizer_argument, optimizer_name = named_optimizer
    optimizer_family = LOW_RANK_OPTIMIZERS[optimizer_name.removesuffix("_layerwise")]
    written_targets = config.get("optim_target_modules") or ()
    target_list = [written_targets] if isinstance(written_targets, str) else list(written_targets)
    target_names = {re.sub(r"[^a-z_]", "", str(module_target)).removeprefix("self_") for module_target in target_list}
    if target_names != {"attn", "mlp"}:  # "all-linear" has the output head too
        reader.refuse("optim_target_modules", "[attn, mlp] alone is modelled")
    written_arguments = config.get("optim_args") or {}
    named_arguments = (
        re.findall(r"\b(\w++) *+= *+([\w.]+)", written_arguments) if isinstance(written_arguments, str) else ()
    )
    arguments = written_arguments if isinstance(written_arguments, Mapping) else dict(named_arguments)
    for argument_name, modelled_value in (("proj_type", "std"), ("proj", "random")):
        if arguments.get(argument_name, modelled_value) != modelled_value:
            reader.refuse(f"optim_args.{argument_name}", f"{modelled_value} alone is modelled")
    rank_text = str(reader.value(arguments, "rank", 128))
    if re.fullmatch(r"[1-9][0-9]{0,4}", rank_text) is None:
        raise reader.argument_error(
            "optim_args", f"rank {short_repr(rank_text)[:60]}; expected a whole number of 1 to 99,999"
        )
    settings: dict[str, Any] = {"optimizer": f"{optimizer_family}-r{rank_text}", "optimizer_impl": "loop"}
    if not optimizer_name.endswith("_layerwise"):
        return settings
    if run_settings["num_microbatches"] > 1:
        raise reader.argument_error(
            "gradient_accumulation_steps", f"{optimizer_name} refuses {run_settings['num_microbatches']}; expected 1"
        )
    if (reader.source.world_size or 1) > 1:  # trainer_optimizer.py: no layer-wise optimizer under DDP
        raise reader.argument_error(
            optimizer_argument,
            f"{optimizer_name} refuses several devices; expected one, or {optimizer_name.removesuffix('_layerwise')}",
        )
    return {**settings, "optimizer_in_backward": True}


DTYPE_SHORT_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
}


def preference_pair_settings(
    reader: LaunchReader,
    loss: str,
    run_settings: Mapping[str, Any],
    reference_model: FrozenModel | None = None,
    has_cached_reference: bool = False,
    computes_logits: bool = False,
) -> dict[str, Any]:
    """Returns the batch settings of training on preference pairs, with two sequences per pair.

    loss: its name; those of `LOSSES_WITHOUT_REFERENCE` need no reference model.
    run_settings: the settings of the run.
    reference_model: the copy of the model that a loss compares with; None (default): in the weights' format.
    has_cached_reference: whether the program computes the reference's log-probabilities with the trained model, before
        it is trained; false by default.
    computes_logits: whether a reward model computes the logits of the language model too; false by default.
    """
    if loss not in LOSSES_WITHOUT_REFERENCE and not has_cached_reference:
        add_reference_model(reader, run_settings, reference_model)
    if loss == "reward" and not computes_logits:
        reader.score_head_num_labels = 1
        reader.notes.append("a pair is two sequences; the head has one score per token, and no logits")
        return {"batch": 2 * run_settings["batch"]}
    reader.notes.append("a pair is two sequences, whose loss is counted as that of SFT, an estimate")
    return {"batch": 2 * run_settings["batch"], **_unchunked_loss_settings(reader, run_settings)}


def kto_settings(
    reader: LaunchReader, run_settings: Mapping[str, Any], reference_model: FrozenModel | None = None
) -> dict[str, Any]:
    """Returns the batch settings of KTO, which trains on single answers instead of pairs.

    Its mismatched answers run without gradients.
    run_settings: the settings of the run. reference_model: as of `preference_pair_settings`.
    """
    add_reference_model(reader, run_settings, reference_model)
    reader.notes.append("the loss of KTO is counted as that of SFT, an estimate")
    return {"batch": run_settings["batch"], **_unchunked_loss_settings(reader, run_settings)}


def _unchunked_loss_settings(reader: LaunchReader, run_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the setting of eager cross-entropy if the run has a chunked loss; otherwise no setting.

    TRL's own use of Liger-Kernel has those of one pair at a time (trainer/dpo_trainer.py, `_compute_loss_liger`).
    """
    if run_settings.get("cross_entropy") not in CHUNKED_LOSSES:
        return {}
    reader.notes.append("the chunked cross-entropy is of labels alone: this loss is counted with all logits")
    return {"cross_entropy": "eager"}


def add_reference_model(
    reader: LaunchReader, run_settings: Mapping[str, Any], reference_model: FrozenModel | None = None
) -> None:
    """Adds the reference model of a loss: shared frozen weights with adapters, else a copy of all weights.

    run_settings: the settings of the run.
    reference_model: the copy; None (default) for one in the number format of the trained weights.
    """
    if "lora_rank" in run_settings:
        reader.notes.append("the reference model is the frozen weights beside the adapters")
        return
    reader.frozen_model = reference_model or FrozenModel(REFERENCE_MODEL_SOURCE)
    reader.notes.append(
        "the weights of a reference model are counted among the weights; its pass is no part of llmcalc time"
    )


REFERENCE_MODEL_SOURCE = "trl/trainer/dpo_trainer.py"
"""TRL's source file that loads the reference model."""

HEAD_ADAPTER_NOTE = (
    "the adapter of the output head is left out: its two small matrices, and its product for one chunk of tokens"
)
"""Note on programs whose adapters may include the output head."""

LOSSES_WITHOUT_REFERENCE = ("simpo", "orpo", "cpo", "reward")
"""Losses on preference pairs that need no reference model."""


def weight_format_settings(reader: LaunchReader, config: Table, default_format: str) -> tuple[dict[str, Any], bool]:
    """Returns the number formats of weights and of matrix products, and whether the formats depend on the checkpoint.

    Weights have the format of `dtype`; `AUTO_DTYPE` is that of the checkpoint. bf16 or fp16 is autocast, which changes
    products of weights in fp32 alone. default_format: the program's default of `dtype`.
    """
    format_key = "torch_dtype" if config.get("torch_dtype") is not None else "dtype"
    written_format = config.get(format_key)
    if written_format is None:
        written_format = reader.value(config, format_key, default_format)
    sixteen_bit_format = "bf16" if reader.flag(config, "bf16") else "fp16" if reader.flag(config, "fp16") else None
    if sixteen_bit_format == "fp16":
        reader.notes.append(FP16_NOTE)
    if written_format == AUTO_DTYPE:
        return {"precision": "fp32" if sixteen_bit_format is None else "autocast"}, True
    dtype = DTYPE_SHORT_NAMES.get(str(written_format).removeprefix("torch.")[:20])
    if dtype is None:
        raise reader.value_error(format_key, written_format, "bfloat16, float16 or float32")
    if dtype == "fp32":
        return {"precision": "fp32" if sixteen_bit_format is None else "autocast"}, False
    return {"dtype": dtype, "master_weights": "none"}, False


FLASH_KERNELS = ("flash_attention", "flash_attn", "flash-attn", "sdpa", "flex_attention", "xformers")
"""Parts of the names of attention implementations that do not save scores."""


def attention_settings(reader: LaunchReader, argument_name: str, written_name: Any) -> dict[str, Any]:
    """Returns the attention setting for an implementation of transformers. argument_name: the argument for errors."""
    implementation_name = str(written_name)[:80]
    if implementation_name in ("eager", "sdpa"):
        return {"attn_implementation": implementation_name}
    if not any(kernel_name in implementation_name for kernel_name in FLASH_KERNELS):
        raise reader.value_error(argument_name, written_name, "eager, sdpa or flash_attention_2")
    if implementation_name == "flex_attention":
        reader.notes.append(f"{argument_name}: flex_attention is counted as flash attention, an estimate")
    return {"attn_implementation": "flash"}


def trainer_kernel_settings(
    reader: LaunchReader, config: Table, default_values: Mapping[str, Any] = TRAINER_DEFAULTS
) -> dict[str, Any]:
    """Returns the settings of recomputation, attention, compilation and fused kernels."""
    kernel_settings: dict[str, Any] = {}
    uses_checkpointing = reader.flag(config, "gradient_checkpointing", default_values["gradient_checkpointing"])
    if uses_checkpointing or reader.flag(config, "activation_checkpointing"):
        argument_names = ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")
        checkpointing_arguments = next(
            (
                checkpointing_kwargs
                for argument_name in argument_names
                if (checkpointing_kwargs := _table_of_argument(reader, config, argument_name))
            ),
            {},
        )
        is_reentrant = checkpointing_arguments.get("use_reentrant", default_values["use_reentrant"])
        kernel_settings["recompute"] = "full-reentrant" if is_reentrant in (True, "true", "True") else "full"
    if config.get("attn_implementation") is not None:
        kernel_settings |= attention_settings(reader, "attn_implementation", config["attn_implementation"])
    else:
        kernel_settings |= assume_default_attention(reader)
    if reader.flag(config, "torch_compile"):
        kernel_settings["compile"] = True
    if reader.flag(config, "use_liger_kernel"):
        kernel_settings |= _liger_settings(reader, _table_of_argument(reader, config, "liger_kernel_config"))
    return kernel_settings


def _table_of_argument(reader: LaunchReader, config: Table, argument_name: str) -> Table:
    """Returns an argument's value as a table, also if a command states it as JSON text; empty without the argument."""
    written_table = config.get(argument_name)
    if not isinstance(written_table, str) or not written_table:
        return reader.table(config, argument_name)
    parsed_table = parse_json(written_table, f"{reader.name_in_errors}: {argument_name}")
    if not isinstance(parsed_table, Mapping):
        raise reader.value_error(argument_name, written_table, "a table")
    return parsed_table


def _liger_settings(reader: LaunchReader, liger_kernels: Table) -> dict[str, Any]:
    """Returns the settings of Liger-Kernel, which replaces norms, gated activations, and the head with the loss.

    A table may name fewer of them. A loss of logits is that of the fp32 copy which transformers makes.

    liger_kernels: the arguments of `_apply_liger_kernel_to_instance`; empty for the defaults.
    """
    has_norms = any(reader.flag(liger_kernels, kernel_name, True) for kernel_name in ("rms_norm", "layer_norm"))
    has_gates = all(reader.flag(liger_kernels, kernel_name, True) for kernel_name in ("swiglu", "geglu"))
    settings: dict[str, Any] = {"norm": "liger" if has_gates else "fused"} if has_norms else {}
    if reader.flag(liger_kernels, "cross_entropy"):
        return {**settings, "cross_entropy": "fused", "logits_dtype": "fp32"}
    has_chunked_loss = reader.flag(liger_kernels, "fused_linear_cross_entropy", True)
    return {**settings, "cross_entropy": "chunked"} if has_chunked_loss else settings


def trainer_adapter_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of LoRA adapters, from PEFT's names in TRL's `ModelConfig`."""
    if config.get("lora_r") is None and not reader.flag(config, "use_peft"):
        for argument_name in ("load_in_4bit", "load_in_8bit"):
            if reader.flag(config, argument_name):
                reader.refuse(argument_name, "quantized weights take no gradient without lora_r")
        return {}
    base_settings: dict[str, Any] = {"base": "int8"} if reader.flag(config, "load_in_8bit") else {}
    if reader.flag(config, "load_in_4bit"):
        base_settings = {"base": "nf4-dq" if reader.flag(config, "use_bnb_nested_quant") else "nf4"}
    return base_settings | lora_settings(
        reader,
        rank=("lora_r", reader.value(config, "lora_r", 16)),
        targets_argument=("lora_target_modules", config.get("lora_target_modules")),
        expert_argument=("lora_target_parameters", config.get("lora_target_parameters")),
        saved_modules=("lora_modules_to_save", config.get("lora_modules_to_save")),
        dropout_value=config.get("lora_dropout"),
        magnitude_value=reader.flag(config, "use_dora"),
    )


def lora_settings(
    reader: LaunchReader,
    *,
    rank: tuple[str, Any],
    targets_argument: tuple[str, Any],
    saved_modules: tuple[str, Any] = ("", None),
    dropout_value: Any = None,
    magnitude_value: Any = False,
    expert_argument: tuple[str, Any] = ("", None),
) -> dict[str, Any]:
    """Returns the settings of LoRA adapters.

    rank, targets_argument, saved_modules: the argument's name and its value; None for the default.
    dropout_value: the dropout of the adapters' input; None or 0 for none.
    magnitude_value: whether adapters train magnitudes, too (DoRA); false by default.
    expert_argument: the argument's name and the fused weights with adapters (PEFT's `target_parameters`); None for
        none. Both weights of the experts are modelled together.
    """
    adapter_settings: dict[str, Any] = {"lora_rank": read_integer(reader, *rank)}
    argument_name, parameter_names = expert_argument
    if parameter_names:
        listed_names = parameter_names.split(",") if isinstance(parameter_names, str) else parameter_names
        if not isinstance(listed_names, list) or {
            str(listed_name).strip().rpartition(".")[2] for listed_name in listed_names
        } != {
            "gate_up_proj",
            "down_proj",
        }:
            reader.refuse(argument_name, "adapters of mlp.experts.gate_up_proj and mlp.experts.down_proj are modelled")
        adapter_settings["lora_experts"] = True
    for setting_name, (argument_name, written_names) in (
        ("lora_targets", targets_argument),
        ("modules_to_save", saved_modules),
    ):
        if written_names in (None, [], ""):
            continue
        module_names = written_names
        if isinstance(written_names, str):
            module_names = [module_name.strip(" '\"") for module_name in written_names.strip("[]").split(",")]
        if not isinstance(module_names, list) or not all(isinstance(module_name, str) for module_name in module_names):
            raise reader.value_error(argument_name, written_names, "a list of names")
        adapter_settings[setting_name] = tuple(module_names)
    if dropout_value not in (None, 0, 0.0):
        adapter_settings["lora_dropout"] = True
    if magnitude_value:
        adapter_settings["use_dora"] = True
    return adapter_settings
