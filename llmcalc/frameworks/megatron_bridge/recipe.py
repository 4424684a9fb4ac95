"""Reads recipes of Megatron-Bridge from their syntax tree, with overrides as `key=value`.

Source: NVIDIA-NeMo/Megatron-Bridge at 067f987 (2026-08-22): src/megatron/bridge/recipes/common.py for the defaults of
`_pretrain_common`, `_sft_common` and `_peft_common`, and those with `_vlm`; training/mixed_precision.py for the format
of gradients; peft/lora.py for adapters; training/flex_dispatcher_backend.py for what sends experts' tokens.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import InputError, short_repr, suggest
from ..launch.command_line import hydra_overrides_of, parsed_argument_value
from ..launch.launch_types import (
    CommandLine,
    Launch,
    LaunchReader,
    LaunchSource,
    launch_reader,
    read_boolean,
    read_integer,
)
from ..launch.python_source import CALLED_NAME_KEY, Config, ConfigurationBuilder, UnknownValue, parse_python
from ..launch.unresolved import is_unresolved, printable_word, unresolved_reason
from ..megatron.named_model import (
    BRIDGE_FUSED_MODEL_TYPES,
    END_STAGE_ARGUMENTS,
    PIPELINE_SPLIT_ARGUMENTS,
    STAGE_LAYOUT,
    MegatronRunSettings,
    bridge_adapter_settings,
    cross_entropy_setting,
    host_optimizer_settings,
    megatron_launch_settings,
    smallest_device_count,
    stage_sizes_of_layout,
)

RECIPES_PACKAGE = "megatron.bridge.recipes"

COMMON_CONFIGS: dict[str, Config] = {
    "_pretrain_common": {
        "train.global_batch_size": 32,
        "train.micro_batch_size": 2,
        "mixed_precision": "bf16_mixed",
        "model.seq_length": 4096,
        "ddp.overlap_grad_reduce": True,
        "ddp.overlap_param_gather": True,
    },
    "_sft_common": {
        "train.global_batch_size": 128,
        "train.micro_batch_size": 1,
        "mixed_precision": "bf16_mixed",
        "dataset.seq_length": 2048,
    },
    "_peft_common": {
        f"peft.{CALLED_NAME_KEY}": "LoRA",
        "train.global_batch_size": 128,
        "train.micro_batch_size": 1,
        "mixed_precision": "bf16_mixed",
        "dataset.seq_length": 2048,
    },
}
VISION_CHANGES: Config = {"train.global_batch_size": 32, "train.micro_batch_size": 2, "dataset.seq_length": 4096}
"""Values that common.py's functions for vision models set differently."""

COMMON_CONFIGS |= {f"{name}_vlm": COMMON_CONFIGS[name] | VISION_CHANGES for name in ("_sft_common", "_peft_common")}
"""Function of common.py → the values that it sets and that affect memory."""

MODELLED_VALUES: dict[str, tuple[Any, ...]] = {
    "ddp.use_megatron_fsdp": (False, None),
    "model.fine_grained_activation_offloading": (False, None),
    "model.cpu_offloading": (False, None),
    "comm_overlap.overlap_moe_expert_parallel_comm": (False, None),
}
"""Key that is modelled for some values only, in runs of a named model → these values."""

STAGE_LAYOUT_KEY = f"model.{STAGE_LAYOUT}"
"""Key of a recipe that states the layers of each pipeline stage."""

NARROW_PRECISION = ("fp8", "fp4", "fp16", "fp32", "autocast_enabled")
"""Fields of a mixed precision that make matrix products or weights other than bf16."""

CURRENT_SCALING = {"fp8_format": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True}
FP8_RECIPES: dict[str, dict[str, Any]] = {
    "bf16_with_fp8_current_scaling_mixed": {**CURRENT_SCALING, "first_last_layers_bf16": True},
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": {
        **CURRENT_SCALING,
        "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": 2,
        "num_layers_at_end_in_bf16": 2,
    },
    "bf16_with_fp8_delayed_scaling_mixed": {
        "fp8_format": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_param_gather": True,
        "fp8_amax_history_len": 1024,
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {"fp8_format": "hybrid", "fp8_recipe": "blockwise"},
}
"""Mixed precision of Megatron-Bridge with 8-bit matrix products → Megatron-LM's arguments; other ones are not modelled.

Source: training/mixed_precision.py.
"""

OVERLAP_KEYS = ("ddp.overlap_grad_reduce", "ddp.overlap_param_gather", "comm_overlap.tp_comm_overlap")
"""Keys that overlap messages with matrix products; none of these keys changes memory."""

MODELLED_PEFT_VALUES: dict[str, tuple[Any, ...]] = {
    "share_expert_adapters": (True,),
    "normalize_moe_lora": (False,),
    "shared_outer": (False,),
    "a2a_experimental": (False,),
    "dropout_position": ("pre",),
    "lora_dtype": (None,),
    "exclude_modules": (None, []),
}
"""Field of a LoRA configuration → the modelled values, which are the defaults."""

PEFT_IGNORED = ("alpha", "lora_A_init_method", "lora_B_init_method", CALLED_NAME_KEY, "0")

FORMAT_BY_DTYPE = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32", "torch.uint8": "uint8"}


def is_python(file_text: str) -> bool:
    """Whether a Python file contains or imports recipes of Megatron-Bridge."""
    return (
        re.search(rf"^[ \t]*from {re.escape(RECIPES_PACKAGE)}|^from megatron\.bridge ", file_text, re.MULTILINE)
        is not None
    )


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts a recipe of Megatron-Bridge."""
    return command_line.program == "run_recipe.py" or command_line.program.startswith("megatron.bridge")


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Raises `InputError` for a command, with the recipe's file and overrides to type instead."""
    words = list(command_line.words)
    flag_index = next((i for i, command_word in enumerate(words) if command_word == "--recipe"), None)
    typed_recipe = words[flag_index + 1] if flag_index is not None and flag_index + 1 < len(words) else "RECIPE"
    if is_unresolved(typed_recipe):
        raise InputError(
            f"{source_file.name_in_errors}: line {command_line.line}: --recipe: {unresolved_reason(typed_recipe)}"
        )
    override_words = [word for word in words if re.match(r"(model|train|dataset)\.\w+(_size|_length|parallel)=", word)]
    typed_text = printable_word(" ".join([typed_recipe, *dict.fromkeys(override_words)]), 600)
    raise InputError(
        f"{source_file.name_in_errors}: line {command_line.line} runs the recipe {typed_recipe[:60]}, whose settings "
        f"are in Megatron-Bridge's own file; expected --launch 'megatron/bridge/recipes/…/FILE.py {typed_text}'"
    )


def read_python(file_text: str, source_file: LaunchSource) -> Launch:
    """Returns the training run of a Megatron-Bridge recipe. `source_file` has the recipe's name and overrides.

    Raises `InputError`, which names file and recipe.
    """
    with launch_reader(source_file) as reader:
        syntax_tree = parse_python(file_text, source_file.name_in_errors)
        recipe_names = [argument_word for argument_word in source_file.arguments if "=" not in argument_word]
        if len(recipe_names) > 1:
            raise reader.argument_error(recipe_names[1][:60], "a second recipe; expected one")
        try:
            config, recipe_name = _recipe_configuration(reader, syntax_tree, recipe_names[0] if recipe_names else None)
        except RecursionError:
            raise reader.argument_error(
                recipe_names[0] if recipe_names else "recipes", "nested too deeply; expected a recipe"
            ) from None
        config |= {
            override_key: parsed_argument_value(override)
            for override_key, override in hydra_overrides_of(source_file.arguments).items()
        }
        return _read_configuration(reader, config, recipe_name)


def _recipe_configuration(reader: LaunchReader, syntax_tree: ast.Module, recipe_name: str | None) -> tuple[Config, str]:
    """Returns a recipe's configuration and name, also if imported from another file."""
    configurations = ConfigurationBuilder(syntax_tree, COMMON_CONFIGS)
    recipe_names = [function_name for function_name in configurations.functions if not function_name.startswith("_")]
    recipes_by_alias = _imported_recipes(syntax_tree)
    known_recipes = [*recipe_names, *recipes_by_alias]
    if recipe_name is None:
        if len(known_recipes) != 1:
            names_text = ", ".join(known_recipes[:6])
            raise reader.argument_error(
                "recipes",
                f"the file has {len(known_recipes)}: {names_text}…; expected one of them, as in --launch "
                f"'{reader.name_in_errors} {known_recipes[0] if known_recipes else 'RECIPE'}'",
            )
        recipe_name = known_recipes[0]
    if recipe_name not in known_recipes:
        raise reader.argument_error(
            recipe_name[:60],
            f"is no recipe of the file; expected one of {', '.join(known_recipes[:6])}."
            f"{suggest(recipe_name, known_recipes)}",
        )
    if recipe_name in recipe_names:
        return _with_flex_dispatcher(configurations, recipe_name), recipe_name
    recipe_file, imported_name = recipes_by_alias[recipe_name]
    try:
        if reader.source.read_text is None:
            raise InputError(recipe_file)
        file_path, file_text = reader.source.read_text(recipe_file)
    except InputError:
        raise reader.argument_error(
            recipe_name[:60],
            f"is {imported_name[:80]} of {recipe_file[:80]}, which is not beside this file; expected --launch "
            f"'{recipe_file[:80]} {imported_name[:80]}'",
        ) from None
    imported_configurations = ConfigurationBuilder(parse_python(file_text, file_path), COMMON_CONFIGS)
    if imported_name not in imported_configurations.functions:
        raise reader.argument_error(imported_name[:80], f"is no recipe of {file_path[:80]}")
    return _with_flex_dispatcher(imported_configurations, imported_name), imported_name


def _with_flex_dispatcher(configurations: ConfigurationBuilder, recipe_name: str) -> Config:
    """Returns a recipe's configuration with the `flex` dispatcher, if the recipe's function applies one.

    Source: training/flex_dispatcher_backend.py, for a GPU that has DeepEP or HybridEP (Ampere, Hopper, B200, B300).
    """
    config = configurations.configuration_of(recipe_name)
    dispatcher_backend = config.get("model.moe_flex_dispatcher_backend")
    for syntax_node in ast.walk(configurations.functions[recipe_name]):
        if (
            isinstance(syntax_node, ast.Call)
            and isinstance(syntax_node.func, ast.Name)
            and syntax_node.func.id == "apply_flex_dispatcher_backend"
            and any(isinstance(argument, ast.Attribute) for argument in syntax_node.args[1:])  # the configuration's own
            and dispatcher_backend in ("deepep", "hybridep")
        ):
            return {**config, "model.moe_token_dispatcher_type": "flex"}
    return config


def _imported_recipes(syntax_tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Returns the recipes that a file imports, by the names that the file gives them.

    The result is name → (path of the recipe's file from this file's folder, the recipe's name there).
    """
    recipes_by_alias: dict[str, tuple[str, str]] = {}
    for statement in syntax_tree.body:
        if (
            isinstance(statement, ast.ImportFrom)
            and statement.module
            and statement.module.startswith(f"{RECIPES_PACKAGE}.")
        ):
            package_names = statement.module.split(".")
            if package_names[-1] in ("common",) or "utils" in package_names:
                continue
            recipe_file = "/".join(package_names[4:]) + ".py" if len(package_names) > 5 else package_names[-1] + ".py"
            for import_alias in statement.names:
                if import_alias.name.endswith("_config"):
                    recipes_by_alias[import_alias.asname or import_alias.name] = (recipe_file, import_alias.name)
    return recipes_by_alias


def _read_configuration(reader: LaunchReader, config: Config, recipe_name: str) -> Launch:
    """Returns the training run of a recipe's configuration, a table of dotted path → value."""

    def config_value(field_path: str, default_value: Any = None) -> Any:
        written_value = config.get(field_path, default_value)
        if isinstance(written_value, UnknownValue):
            raise reader.argument_error(
                field_path, f"{written_value.text} is not read; expected {field_path}=… behind the recipe's name"
            )
        return written_value

    def config_size(config_key: str, default_size: int) -> int:
        if config.get(config_key) is None:
            reader.assumed_defaults[config_key] = default_size
        return read_integer(
            reader, config_key, default_size if config_value(config_key) is None else config_value(config_key)
        )

    def optional_config_size(key: str) -> int | None:
        return None if config_value(key) is None else read_integer(reader, key, config_value(key))

    peft_fields = _adapter_settings(reader, config)
    has_one_stage = config.get("model.pipeline_model_parallel_size") in (None, 1)
    if has_one_stage and isinstance(config.get(STAGE_LAYOUT_KEY), UnknownValue):  # a function of stages: all in one
        config = {**config, STAGE_LAYOUT_KEY: None}
    reader.refuse_other_values(config, MODELLED_VALUES, suffix=" for a model that is named")
    reader.read_frozen_encoders(config, "model.freeze_vision_model")
    if config.get("model.freeze_language_model") not in (False, None):  # gradients of the projector pass all layers
        reader.refuse(
            "model.freeze_language_model",
            "training of an encoder or its projector beside frozen layers is not modelled; --allow-unknown counts "
            "the layers as trained, which need more",
        )
    fp8_arguments = _fp8_arguments(reader, config)
    model_name = next(
        (model_id for key, model_id in config.items() if key.startswith("model") and _is_model_name_key(key, config)),
        None,
    )
    tp, pp, cp = (
        config_size(f"model.{group_kind}_parallel_size", 1)
        for group_kind in ("tensor_model", "pipeline_model", "context")
    )
    ep = config_size("model.expert_model_parallel_size", 1)
    micro_batch_size, global_batch = config_size("train.micro_batch_size", 1), config_size("train.global_batch_size", 1)
    gpu_match = re.search(r"_(\d{1,5})gpu_", recipe_name)
    world_size = reader.source.world_size
    bias_activation_fusion = config_value("model.bias_activation_fusion")
    megatron_run = MegatronRunSettings(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=optional_config_size("model.expert_tensor_parallel_size"),
        vpp=optional_config_size("model.virtual_pipeline_model_parallel_size") or 1,
        end_stage_layers=(
            optional_config_size(f"model.{END_STAGE_ARGUMENTS[0]}"),
            optional_config_size(f"model.{END_STAGE_ARGUMENTS[1]}"),
        ),
        stage_sizes=stage_sizes_of_layout(reader, STAGE_LAYOUT_KEY, config_value(STAGE_LAYOUT_KEY)),
        ends_counted_as_layers=(
            config_value(f"model.{PIPELINE_SPLIT_ARGUMENTS[0]}") is True,
            config_value(f"model.{PIPELINE_SPLIT_ARGUMENTS[1]}") is True,
        ),
        sequence_parallel=config_value("model.sequence_parallel") is True,
        distributed_optimizer=any(
            config_value(f"{section_name}.use_distributed_optimizer", True) is not False
            for section_name in ("ddp", "optimizer")
        ),
        batch=micro_batch_size,
        seq=config_size(_length_key(reader, config), 4096),
        recompute_granularity=config_value("model.recompute_granularity"),
        recompute_method=config_value("model.recompute_method"),
        recompute_num_layers=config_value("model.recompute_num_layers"),
        recompute_modules=config_value("model.recompute_modules"),
        cross_entropy=cross_entropy_setting(
            reader,
            config_value("model.cross_entropy_loss_fusion", True) is True,
            config_value("model.cross_entropy_fusion_impl", "native"),
        ),
        fuses_activation=BRIDGE_FUSED_MODEL_TYPES
        if bias_activation_fusion is None
        else read_boolean(reader, "model.bias_activation_fusion", bias_activation_fusion),
        fp8_arguments=fp8_arguments,
        grad_dtype="bf16" if config.get("mixed_precision.grad_reduce_in_fp32") is False else "fp32",
        dispatcher=config_value("model.moe_token_dispatcher_type"),
        dispatcher_backend=config_value("model.moe_flex_dispatcher_backend"),
        cuda_graph_impl=config_value("model.cuda_graph_impl"),
        cuda_graph_modules=config_value("model.cuda_graph_modules") or config_value("model.cuda_graph_scope"),
    )
    if world_size is None and gpu_match is not None and int(gpu_match[1]) % smallest_device_count(megatron_run) == 0:
        world_size = int(gpu_match[1])
        reader.notes.append(f"{world_size} devices, from the recipe's name")
    settings = {
        **peft_fields,
        **_optimizer_settings(reader, config),
        **host_optimizer_settings(reader, config, "optimizer."),
    }
    launched_run = megatron_launch_settings(reader, megatron_run, world_size, settings)
    replica_count = launched_run.layout.dp
    if global_batch % (micro_batch_size * replica_count):
        reader.notes.append(
            f"train.global_batch_size {global_batch} is no multiple of {micro_batch_size} · {replica_count}"
        )
    launched_run.settings["num_microbatches"] = max(1, global_batch // (micro_batch_size * replica_count))
    if config_value("model.cp_comm_type") == "a2a":
        launched_run = launched_run._replace(layout=replace(launched_run.layout, cp_comm="a2a"))
    reader.ignored_arguments += [
        key for key in config if key.partition(".")[0] in ("logger", "checkpoint", "scheduler", "rng")
    ]
    reader.ignored_arguments += [key for key in OVERLAP_KEYS if config.get(key) is True]
    return reader.create_launch(
        "megatron", launched_run, model_name="" if model_name is None else str(model_name)[:200]
    )


def _fp8_arguments(reader: LaunchReader, config: Config) -> dict[str, Any]:
    """Returns Megatron-LM's arguments for 8-bit matrix products; none for bf16. Records any other precision as unknown.

    Source: training/mixed_precision.py, `MixedPrecisionConfig`, `bf16_mixed` and `get_mixed_precision_config`.
    """
    precision = config.get("mixed_precision", config.get(f"mixed_precision.{CALLED_NAME_KEY}"))
    if precision == "get_mixed_precision_config":
        precision = str(config.get("mixed_precision.0")).replace("-", "_")
    precision_fields = {
        config_key.partition(".")[2]: field_value
        for config_key, field_value in config.items()
        if config_key.startswith("mixed_precision.")
    }
    if isinstance(precision, str) and precision in FP8_RECIPES:
        changed_fields = [
            f"mixed_precision.{field_name}"
            for field_name in precision_fields
            if field_name not in (CALLED_NAME_KEY, "0")
        ]
        for changed_field in changed_fields:
            reader.refuse(changed_field, f"not modelled beside {precision}")
        return FP8_RECIPES[precision]
    low_precision_fields = [
        field_name for field_name in NARROW_PRECISION if precision_fields.get(field_name) not in (None, False)
    ]
    is_bf16 = precision == "bf16_mixed" or (
        precision == "MixedPrecisionConfig"
        and precision_fields.get("bf16") is True
        and _number_format(precision_fields.get("params_dtype")) == "bf16"
    )
    if not is_bf16 or low_precision_fields:
        written_text = ", ".join(low_precision_fields) or str(precision)
        reader.refuse(
            "mixed_precision",
            f"{short_repr(written_text)[:60]} is not modelled; bf16_mixed and {next(iter(FP8_RECIPES))} are",
        )
    return {}


def _length_key(reader: LaunchReader, config: Config) -> str:
    """Returns the config key of the sequence length: the typed one, else the model's, else the dataset's."""
    typed_overrides = hydra_overrides_of(reader.source.arguments)
    present_keys = [
        length_key for length_key in ("model.seq_length", "dataset.seq_length") if config.get(length_key) is not None
    ]
    return next(
        (length_key for length_key in present_keys if length_key in typed_overrides),
        present_keys[0] if present_keys else "model.seq_length",
    )


def _is_model_name_key(config_key: str, config: Mapping[str, Any]) -> bool:
    """Whether a key is the checkpoint name in `AutoBridge.from_hf_pretrained(NAME)`."""
    return re.fullmatch(r"model\.0", config_key) is not None and isinstance(config[config_key], str)


def _adapter_settings(reader: LaunchReader, config: Config) -> dict[str, Any]:
    """Returns the settings of low-rank adapters (`peft`); none for full training."""
    peft_fields = {
        config_key.partition(".")[2]: field_value
        for config_key, field_value in config.items()
        if config_key.startswith("peft.")
    }
    peft_scheme = peft_fields.get("0", config.get("peft", "lora"))
    peft_class = peft_fields.get(CALLED_NAME_KEY)
    if not peft_fields or peft_scheme in (None, "none") or ("peft" in config and config["peft"] is None):
        return {}
    if peft_class not in ("LoRA", "default_peft_config") or (peft_class != "LoRA" and peft_scheme != "lora"):
        raise reader.argument_error(
            "peft",
            f"{short_repr(str(peft_class if peft_scheme == 'lora' else peft_scheme))[:60]} is not modelled; LoRA is",
        )
    for field_name, field_value in peft_fields.items():
        if field_name in MODELLED_PEFT_VALUES and field_value not in MODELLED_PEFT_VALUES[field_name]:
            reader.refuse(f"peft.{field_name}", f"{short_repr(str(field_value))[:60]} is not modelled")
        elif field_name not in (*MODELLED_PEFT_VALUES, *PEFT_IGNORED, "dim", "dropout", "target_modules"):
            reader.refuse(f"peft.{field_name}", "no field of LoRA that is known")
    return bridge_adapter_settings(
        reader, "peft", peft_fields.get("dim", 32), peft_fields.get("target_modules"), peft_fields.get("dropout")
    )


def _optimizer_settings(reader: LaunchReader, config: Config) -> dict[str, Any]:
    """Returns the optimizer settings: number formats of the states."""
    if config.get("optimizer.use_precision_aware_optimizer") is not True:
        return {}
    state_formats = {_number_format(config.get(f"optimizer.exp_avg{suffix}_dtype")) for suffix in ("", "_sq")}
    if len(state_formats) > 1:
        reader.refuse("optimizer.exp_avg_dtype", "moments of two formats are not modelled")
    return {"precision_aware_optimizer": True, "optimizer_dtype": state_formats.pop()}


def _number_format(dtype_value: Any) -> str:
    return FORMAT_BY_DTYPE.get(dtype_value.text, "fp32") if isinstance(dtype_value, UnknownValue) else "fp32"
