"""Reads Megatron-LM's launch files: its functional tests' YAML, a JSON object of flags, or a shell command.

A YAML file has `MODEL_ARGS` and `ENV_VARS`, and passes an argument without a value where it says `true`. An argument is
read by the type of its field in `MegatronSettings`; one that has no field is ignored if it is known to change no memory
(`ignored_flags.py`), else it is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ...errors import InputError, short_repr, suggest
from ...parallel.layout import Layout
from ...sources.huggingface.family import field_names
from ...sources.presets import known_model
from ..argument_names import keyword_of
from ..launch import trainer
from ..launch.launch_types import (
    LARGEST_SIZE,
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    Table,
    allocator_segment_type,
    launch_reader,
    record_allocator_options,
)
from ..launch.shell_arithmetic import evaluate_expression
from ..launch.unresolved import is_unresolved, is_unset_variable, unresolved_reason
from .arguments import FIELD_BY_OLD_NAME, ModelKind, flag_of_field
from .cuda_graphs import layer_graphs_note
from .ignored_flags import IGNORED_ARGUMENTS, OLD_IGNORED_ARGUMENTS
from .kernel_choices import CROSS_ENTROPY_BY_IMPLEMENTATION, choose_loss_implementation
from .model_from_flags import model_of_arguments
from .settings import MegatronSettings
from .time_stack import captures_cuda_graphs
from .unsupported import unmodelled_arguments

REMOVED_ARGUMENTS = {
    "batch_size": "no longer valid; expected --micro-batch-size",
    "model_parallel_size": "no longer valid; expected --tensor-model-parallel-size",
    "warmup": "no longer valid; expected --lr-warmup-fraction",
    "checkpoint_activations": "no longer valid; expected --recompute-activations or --recompute-granularity",
}
"""Argument that Megatron-LM itself refuses → the message."""

CHECKPOINT_ARGUMENTS = ("use_checkpoint_args", "use_mp_args_from_checkpoint_args")
"""Arguments that make a checkpoint's arguments replace those of the launch file."""

REASON_BY_PREFIX = {
    "rl_": "reinforcement learning",
    "grpo_": "reinforcement learning",
    "inference_": "inference, not training",
    "dino_": "a vision model",
    "img_": "a vision model",
    "vision_": "a vision model",
    "retro_": "a retrieval model",
    "language_model_type": "a multimodal model",
    "freeze_": "a multimodal model",
    "dataset_provider": "a multimodal model",
    "model_provider": "a multimodal model",
    "num_tokens_to_generate": "inference, not training",
    "export_kd": "distillation",
    "use_legacy_models": "models of an older form",
    "yaml_cfg": "arguments in another file",
    "eval_micro_batch_size": "evaluation with a batch of its own",
}
"""Prefix of an argument that `MegatronSettings` lacks → the purpose of the argument."""

KNOWN_SPEC_WORDS = ("hybrid", "mamba", "local")
"""Words in the value of `--spec` that name layers which other arguments also describe."""

READ_TEST_KEYS = ("MODEL_ARGS", "ENV_VARS")
"""Keys of a functional test's YAML that are read."""

IGNORED_TEST_KEYS = (
    "TEST_TYPE",
    "LAUNCHER",
    "METRICS",
    "BEFORE_SCRIPT",
    "AFTER_SCRIPT",
    "MODE",
    "THROUGHPUT_TEST_PARAMS",
    "METRICS_TOLERANCE",
    "WORLD_SIZE",
    "GOLDEN_VALUES",
    "MODEL_ENV_VARS",
    "BASE_MODEL_ARGS",
    "SKIP_PYTEST",
    "N_REPEAT",
)
"""Keys of a functional test's YAML that are ignored."""

MEASUREMENT_ARGUMENTS_KEY = "megatron_args"
"""Key of the arguments in a row of measurements, beside the key `env_vars`."""


def is_megatron(arguments: Mapping[str, Any]) -> bool:
    """Whether a table of a launch file has arguments of Megatron-LM."""
    if isinstance(arguments.get("MODEL_ARGS"), Mapping | list):
        return True
    if isinstance(arguments.get(MEASUREMENT_ARGUMENTS_KEY), Mapping):
        return True
    flags = MegatronSettings.flags()
    return any(argument.startswith("--") for argument in arguments) and any(argument in flags for argument in arguments)


MEGATRON_SIGNS = field_names("""
    --num-layers --hidden-size --num-attention-heads --micro-batch-size --global-batch-size --seq-length
    --max-position-embeddings --tensor-model-parallel-size --pipeline-model-parallel-size --context-parallel-size
    --train-iters --train-samples --use-mcore-models --use-checkpoint-args
    """)
"""Arguments about sizes by which a command of Megatron-LM is recognized."""


def has_program_arguments(command_words: Sequence[str]) -> bool:
    """Whether a command line runs a Megatron-LM script, recognized by Megatron-LM's spelling of arguments."""
    if trainer.has_program_arguments(command_words):
        return False
    arguments = {command_word.partition("=")[0] for command_word in command_words}
    if arguments & MEGATRON_SIGNS:
        return True
    return bool(arguments & set(MegatronSettings.flags())) and any(map(is_unset_variable, command_words))


def read_megatron(arguments_table: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a functional test's table, or of a table of argument → value.

    Raises `InputError`, which names file and argument.
    """
    if isinstance(arguments_table.get(MEASUREMENT_ARGUMENTS_KEY), Mapping) and "MODEL_ARGS" not in arguments_table:
        env_variables = arguments_table.get("env_vars")
        arguments_table = arguments_table[MEASUREMENT_ARGUMENTS_KEY]
        source_file = replace(source_file, env=env_variables if isinstance(env_variables, Mapping) else {})
    with launch_reader(source_file) as reader:
        environment = {
            str(env_name): _environment_value_text(env_value) for env_name, env_value in source_file.env.items()
        }
        return _read_arguments(reader, _argument_table(reader, arguments_table, environment), environment)


def _argument_table(
    reader: LaunchReader, arguments_table: Mapping[str, Any], environment: dict[str, str]
) -> Mapping[str, Any]:
    """Returns the table of Megatron-LM's arguments, which is a section in the file of a functional test.

    environment: to which the table's environment variables are added.
    """
    arguments: Any = arguments_table
    if "MODEL_ARGS" in arguments_table:
        arguments = arguments_table["MODEL_ARGS"]
        if isinstance(arguments, list):
            raise reader.argument_error("MODEL_ARGS", "a list; expected a table of argument: value")
        variables_table = arguments_table.get("ENV_VARS") or {}
        if not isinstance(variables_table, Mapping):
            raise reader.value_error("ENV_VARS", variables_table, "a table of name: value")
        environment.update(
            (str(variable_name), _environment_value_text(variable_value))
            for variable_name, variable_value in variables_table.items()
        )
        for table_key in arguments_table:
            if table_key not in READ_TEST_KEYS:
                _record_table_key(reader, table_key)
    if not isinstance(arguments, Mapping):
        raise reader.value_error("MODEL_ARGS", arguments, "a table of argument: value")
    return arguments


def _record_table_key(reader: LaunchReader, table_key: str) -> None:
    """Adds a key of a functional test's table to the ignored or to the unknown arguments."""
    if table_key in IGNORED_TEST_KEYS or table_key.startswith(("METRICS", "TEST_", "BEFORE", "AFTER", "MODEL_ARGS_")):
        reader.ignored_arguments.append(table_key)
    else:
        reader.refuse(table_key[:80], f"expected {' or '.join(READ_TEST_KEYS)}")


def _read_arguments(reader: LaunchReader, arguments: Table, env: dict[str, str]) -> Launch:
    """Returns the training run that Megatron-LM's arguments describe: the settings, and the model built from them."""
    source_file = reader.source
    field_values = _field_values(reader, arguments)
    argument_values = {flag.replace("-", "_").lstrip("_"): argument_value for flag, argument_value in arguments.items()}
    model_kind = _script_kind(field_values, argument_values, source_file.script_name)
    if field_values.get("recompute_activations"):
        field_values.setdefault("recompute_granularity", "selective")
    settings = MegatronSettings(
        kind=model_kind, env=env, date=source_file.release_date, gpu=source_file.gpu or "H100", **field_values
    )
    world_size = source_file.world_size
    if world_size is None:
        world_size = smallest_world_size(settings)
        if world_size > 1:
            device_count_advice = f"; {source_file.device_count_advice()}" if source_file.unset_count_variables else ""
            reader.notes.append(f"{world_size} devices are assumed, as few as the layout can have{device_count_advice}")
    smallest_device_count = smallest_world_size(settings)
    if world_size % smallest_device_count:
        raise reader.argument_error(
            "--devices",
            f"{world_size} cannot hold the groups of tensor, pipeline, context and expert parallelism; expected "
            f"--devices {smallest_device_count}, or a multiple of it",
        )
    settings = replace(settings, world_size=world_size)
    settings.check()
    if "a2a+p2p" in settings.cp_comm_type and settings.cp > 1:
        reader.notes.append("--cp-comm-type a2a+p2p: what ranks of a sequence send is counted as one ring")
    if settings.tp_comm_overlap and settings.tp_comm_overlap_cfg is not None:
        reader.notes.append("--tp-comm-overlap-cfg: is not read; the methods are taken to be Transformer Engine's own")
    if settings.overlap_moe_expert_parallel_comm:
        reader.notes.append(
            "--overlap-moe-expert-parallel-comm: an estimate; the passes of two micro-batches are taken one after the "
            "other"
        )
    if captures_cuda_graphs(settings):
        reader.notes.append(layer_graphs_note(settings.pp))
    if settings.step_batch_size_schedule is not None:
        reader.notes.append(
            f"--step-batch-size-schedule: the batch of the first steps, {settings.batch_size} sequences"
        )
    for flag, refusal_reason in unmodelled_arguments(settings).items():
        reader.refuse(flag, refusal_reason)
    if settings.spec is not None and not any(layer_word in " ".join(settings.spec) for layer_word in KNOWN_SPEC_WORDS):
        reader.refuse("--spec", "layers of its own")
    if settings.fp8_format is not None:
        reader.notes.append(
            f"linear layers multiply in 8 bits by the recipe {settings.fp8_recipe}; what ranks send is counted in 16"
        )
    record_allocator_options(reader, env)
    reader.check_unknown_arguments()
    settings = _with_vocabulary_of_tokenizer(settings, reader)
    spec = model_of_arguments(settings, reader.name_in_errors)
    layout = settings.layout()
    _check_stage_division(settings, layout)
    command_settings = options_of_arguments(settings)
    if source_file.unset_variables:
        reader.notes.append(f"{', '.join(sorted(source_file.unset_variables)[:10])}: taken as not set")
    launch_settings = LaunchSettings(layout, command_settings, settings)
    return reader.create_launch("megatron", launch_settings, spec=spec, env=env)


def _with_vocabulary_of_tokenizer(settings: MegatronSettings, reader: LaunchReader) -> MegatronSettings:
    """Returns the settings with the vocabulary size of the known model that `--tokenizer-model` names, with a note.

    The tokenizer's files may have fewer tokens than the model's embedding has rows: 151,669 of 151,936 in Qwen3.
    """
    if settings.padded_vocabulary_size is not None or settings.tokenizer_kind != "HuggingFaceTokenizer":
        return settings
    preset = known_model(settings.tokenizer_model or "")
    if preset is None:
        return settings
    reader.notes.append(
        f"--tokenizer-model {short_repr(settings.tokenizer_model)}: the vocabulary of {preset.name}, "
        f"{preset.model.vocab_size:,}; the tokenizer may have some hundred tokens fewer (--vocab-size)"
    )
    return replace(settings, vocab_size=preset.model.vocab_size)


def smallest_world_size(settings: MegatronSettings) -> int:
    """Returns the smallest number of devices on which the parallel sizes are possible.

    The ranks of a stage, tp · cp · dp, are a multiple of the ranks that divide the experts, so dp is a multiple of
    experts / gcd(tp · cp, experts), and of the instances of the distributed optimizer; the smallest dp is the smallest
    multiple of both.
    """
    tp_cp_size, instance_count = settings.tp * settings.cp, max(1, settings.num_distributed_optimizer_instances)
    expert_rank_count = max(1, settings.expert_model_parallel_size) * (
        settings.expert_tensor_parallel_size or settings.tp
    )
    if tp_cp_size <= 0 or expert_rank_count <= 0:
        return max(1, tp_cp_size * settings.pp)
    return (
        tp_cp_size
        * math.lcm(expert_rank_count // math.gcd(tp_cp_size, expert_rank_count), instance_count)
        * max(1, settings.pp)
    )


def _check_stage_division(settings: MegatronSettings, layout: Layout) -> None:
    """Raises `InputError` if the layers cannot be divided among the pipeline stages."""
    layers_per_stage, stage_count = settings.layers_per_stage, layout.pp * layout.vpp
    layer_count = settings.layer_count + (settings.decoder_layer_count if settings.kind == "t5" else 0)
    if layers_per_stage is not None and sum(layers_per_stage) != settings.layer_count:
        raise InputError(
            f"--pipeline-model-parallel-layout: {sum(layers_per_stage)} layers in all; expected {settings.layer_count}"
        )
    if layers_per_stage is None and layer_count % stage_count:
        raise InputError(
            f"--pipeline-model-parallel-size: {stage_count} stages do not divide {layer_count} layers; expected a "
            "divisor"
        )


# ---- values


@cache
def _field_types() -> dict[str, Any]:
    """Returns the types of all fields of `MegatronSettings`."""
    return get_type_hints(MegatronSettings)


def _field_values(reader: LaunchReader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns field → value of all known arguments, and records the other arguments as ignored or unknown."""
    known_flags, field_values = MegatronSettings.flags(), dict[str, Any]()
    for flag, written_value in arguments.items():
        argument_name = keyword_of(flag)
        if not flag.startswith("--") or not re.fullmatch(r"[\w.-]{1,100}", flag):
            if re.fullmatch(r"(trainer|data|model|optim|log|resume)\.[\w.]{1,90}", flag):
                raise reader.argument_error(
                    flag[:60], "NeMo's, whose recipes are not read; expected Megatron-LM's arguments"
                )
            flag_suggestion = suggest(f"--{flag}", list(known_flags)) if len(flag) < 100 else ""
            raise reader.argument_error(
                flag[:60], f"is no argument; expected --name{'.' * bool(flag_suggestion)}{flag_suggestion}"
            )
        argument_name = FIELD_BY_OLD_NAME.get(argument_name, argument_name)
        if argument_name in _field_types() and flag_of_field(argument_name) in known_flags:
            field_value = typed_flag_value(reader, flag, _field_types()[argument_name], written_value)
            if field_value is not None:
                if argument_name in field_values and field_values[argument_name] != field_value:
                    raise reader.argument_error(
                        flag,
                        f"{short_repr(written_value)}; another argument says {short_repr(field_values[argument_name])}",
                    )
                field_values[argument_name] = field_value
        elif argument_name in CHECKPOINT_ARGUMENTS:
            if written_value is not False:
                reader.notes.append(f"{flag}: the arguments of a checkpoint, which may be others, are not read")
        elif argument_name in REMOVED_ARGUMENTS:
            raise reader.argument_error(flag, REMOVED_ARGUMENTS[argument_name])
        elif {flag[2:], flag_of_field(argument_name)[2:]} & (IGNORED_ARGUMENTS | OLD_IGNORED_ARGUMENTS):
            reader.ignored_arguments.append(flag)
        elif written_value is not False:
            ignored_reason = next(
                (reason for prefix, reason in REASON_BY_PREFIX.items() if argument_name.startswith(prefix)),
                "",
            )
            reader.refuse(
                flag, ignored_reason or f"no argument that is known.{suggest(flag, list(known_flags))}".rstrip(".")
            )
    if field_values.get("tp_comm_overlap"):  # which products overlap
        for flag in reader.ignored_arguments:
            if "tp-comm-" in flag and flag not in ("--tp-comm-bootstrap-backend", "--tp-comm-overlap-cfg"):
                reader.refuse(flag, "overlap of some products")
    return field_values


def typed_flag_value(reader: LaunchReader, flag_name: str, value_type: Any, written_value: Any) -> Any:
    """Returns an argument's value in the type of the matching field; None if the argument is not set.

    Raises `InputError`, naming the argument, for a value of another type.
    """
    if flag_name == "--tokenizer-model" and isinstance(written_value, str) and is_unresolved(written_value):
        return None
    if isinstance(written_value, str) and is_unresolved(written_value):
        raise reader.argument_error(flag_name, unresolved_reason(written_value))
    if value_type is bool:
        return _boolean_flag_value(reader, flag_name, written_value)
    if written_value is None or written_value is False:
        return None
    possible_types = [
        possible_type for possible_type in (get_args(value_type) or (value_type,)) if possible_type is not NoneType
    ]
    if get_origin(value_type) in (Literal, tuple):
        possible_types = [value_type]
    if written_value is True or written_value == "":
        raise reader.argument_error(flag_name, "has no value; expected one")
    for possible_type in possible_types:
        parsed_value = _converted_value(possible_type, written_value)
        if parsed_value is not None:
            return parsed_value
    raise reader.value_error(flag_name, written_value, _type_description(possible_types))


def _boolean_flag_value(reader: LaunchReader, flag_name: str, written_value: Any) -> bool | None:
    """Returns the value of an argument without parameters, such as `--swiglu`, as a boolean, or None."""
    if written_value in (True, None, "") or written_value == []:
        return True
    if written_value is False:
        return None
    boolean_values = {"true": True, "1": True, "false": None, "0": None}
    value_text = str(written_value).strip().lower()[:10]
    if value_text not in boolean_values:
        raise reader.argument_error(flag_name, f"{short_repr(written_value)}; it takes no value")
    return boolean_values[value_text]


def _converted_value(value_type: Any, written_value: Any) -> Any:
    """Returns a value converted to a type; None if the conversion fails."""
    if get_origin(value_type) is Literal:
        value_text = str(written_value)[:100]
        return value_text if value_text in get_args(value_type) else None
    if get_origin(value_type) is tuple:
        return _parse_list(get_args(value_type)[0], written_value)
    if isinstance(written_value, list | tuple | Mapping):
        list_elements = list(written_value) if isinstance(written_value, list | tuple) else []
        if value_type is str and list_elements and all(isinstance(list_element, str) for list_element in list_elements):
            return " ".join(list_elements)[:2000]
        return _converted_value(value_type, list_elements[0]) if len(list_elements) == 1 else None
    value_text = (
        str(written_value).strip() if not isinstance(written_value, int) or abs(written_value) < LARGEST_SIZE else ""
    )
    if value_type is int:
        if isinstance(written_value, float) and written_value.is_integer() and abs(written_value) < LARGEST_SIZE:
            return int(written_value)
        if re.fullmatch(r"[+-]?[0-9]{1,13}", value_text) and abs(int(value_text)) < LARGEST_SIZE:
            return int(value_text)
        return None
    if value_type is float:
        if not re.fullmatch(r"[+-]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?", value_text):
            return None
        parsed_number = float(value_text)
        return parsed_number if abs(parsed_number) < 1e300 else None
    return value_text[:2000] or None if value_type is str else None


def _parse_list(value_type: Any, written_value: Any) -> Any:
    """Returns a list of values, from a list, separate words, or a Python expression such as `([0]*3+[1]*45)`."""
    if isinstance(written_value, Mapping):
        return None
    if isinstance(written_value, str) and value_type is int and "[" in written_value:
        evaluated_numbers = evaluate_expression(written_value, {})
        if isinstance(evaluated_numbers, list):
            return tuple(evaluated_numbers)
    list_elements: Sequence[Any] = written_value if isinstance(written_value, list | tuple) else [written_value]
    if len(list_elements) == 1 and isinstance(list_elements[0], str):
        list_elements = (
            list_elements[0]
            .replace("[", " ")
            .replace("]", " ")
            .replace(",", " ")
            .replace("(", " ")
            .replace(")", " ")
            .split()
        )
    parsed_values = [_converted_value(value_type, list_element) for list_element in list_elements]
    if not parsed_values or any(parsed_value is None for parsed_value in parsed_values) or len(parsed_values) > 20_000:
        return None
    return tuple(parsed_values)


def _type_description(value_types: Sequence[Any]) -> str:
    """Returns a description of the types that an argument may have, for an error message."""
    type_names = {int: "a whole number", float: "a number", str: "text"}
    type_descriptions = []
    for value_type in value_types:
        if get_origin(value_type) is Literal:
            type_descriptions.append(f"one of {', '.join(map(str, get_args(value_type)))}")
        elif get_origin(value_type) is tuple:
            type_descriptions.append("a list")
        else:
            type_descriptions.append(type_names.get(value_type, "a value"))
    return " or ".join(type_descriptions)


def _environment_value_text(variable_value: Any) -> str:
    """Returns the value of an environment variable as text."""
    if isinstance(variable_value, bool):
        return str(variable_value)
    return "" if variable_value is None else str(variable_value)[:1000]


# ---- what the arguments mean


def _script_kind(field_values: Mapping[str, Any], argument_values: Mapping[str, Any], script_file: str) -> ModelKind:
    """Returns the kind of pretraining script, such as `gpt` or `bert`, from its file name or arguments."""
    script_name = script_file.lower()
    for name_part, model_kind in MODEL_KIND_BY_SCRIPT.items():
        if name_part in script_name:
            return model_kind
    if field_values.get("hybrid_layer_pattern") or field_values.get("is_hybrid_model"):
        return "hybrid"
    if script_name:
        return "gpt"
    if field_values.get("decoder_seq_length") is not None:
        return "t5"
    tokenizer_type = str(field_values.get("tokenizer_type", ""))
    data_paths = f"{argument_values.get('data_path', '')} {argument_values.get('vocab_file', '')}".lower()
    if tokenizer_type.startswith("BertWordPiece") or re.search(r"\bbert\b|my-bert", data_paths):
        return "bert"
    return "gpt"


MODEL_KIND_BY_SCRIPT: dict[str, ModelKind] = {"bert": "bert", "t5": "t5", "mamba": "hybrid", "hybrid": "hybrid"}
"""Part of a script's name → kind of model that the script trains."""

DTYPE_BY_MEGATRON_NAME = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "uint8"}
"""Megatron-LM's name of a number format → llmcalc's name."""


def options_of_arguments(settings: MegatronSettings) -> dict[str, Any]:
    """Returns the options of `llmcalc memory`, with values, that are equivalent to Megatron-LM's arguments."""
    is_half_precision = settings.bf16 or settings.fp16
    command_settings: dict[str, Any] = {
        "phase": "training",
        "batch": settings.micro_batch_size,
        "seq": settings.decoder_seq_length if settings.kind == "t5" else settings.sequence_length,
        "num_microbatches": settings.microbatches,
        "dtype": "bf16" if settings.bf16 else "fp16" if settings.fp16 else "fp32",
        "master_weights": "fp32" if is_half_precision else "none",
        "grad_dtype": "fp32" if settings.reduces_in_fp32 else "bf16" if settings.bf16 else "fp16",
        "optimizer": {"adam": "adamw", "dist_muon": "muon"}.get(settings.optimizer, settings.optimizer),
        "attn_implementation": "eager" if settings.attention_backend in ("unfused", "local") else "flash",
        "norm": "fused",
        "cross_entropy": CROSS_ENTROPY_BY_IMPLEMENTATION[choose_loss_implementation(settings)],
        "allocator": allocator_segment_type(settings.env),
    }
    if settings.kind == "t5":
        command_settings["source"] = settings.sequence_length
    if settings.optimizer == "sgd":
        command_settings["momentum"] = settings.sgd_momentum != 0
    if settings.use_precision_aware_optimizer and settings.exp_avg_dtype == settings.exp_avg_sq_dtype:
        command_settings["optimizer_dtype"] = DTYPE_BY_MEGATRON_NAME[settings.exp_avg_dtype]
    recomputes_all_layers = settings.recompute_method in (None, "uniform") and (settings.recompute_num_layers or 1) == 1
    if settings.recompute_mode == "full" and recomputes_all_layers:
        command_settings["recompute"] = "full"
    elif settings.recompute_mode == "selective" and settings.recomputed_modules == ("core_attn",):
        command_settings["recompute"] = "attention"
    if settings.num_experts is not None and settings.moe_expert_capacity_factor is not None:
        command_settings["moe"] = f"capacity:{settings.moe_expert_capacity_factor}"
    return command_settings
