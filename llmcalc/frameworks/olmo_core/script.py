"""Reads training scripts of OLMo-core from their syntax tree, without running them.

The arguments are those of the calls that configure the model, the train module, data parallelism and the optimizer.
Source: OLMo-core 2.5.0 (fa6c5014), src/olmo_core/nn/transformer/config.py and model.py (`apply_fsdp`),
train/train_module/transformer/config.py, distributed/parallel/data_parallel.py, optim/adamw.py, data/tokenizer.py.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import short_repr
from ...model import ModelSpec
from ...sources.presets import load_preset
from ..fsdp2.plugin import fsdp_or_torch_launch
from ..fsdp2.settings import TitanSettings
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, launch_reader, read_integer
from ..launch.python_source import UnknownValue, dotted_name_of, expression_value, parse_python

PRESET_BY_MODEL_NAME = {
    "olmo2_1B_v2": "olmo2-1b",
    "olmo2_7B": "olmo2-7b",
    "olmo2_13B": "olmo2-13b",
    "olmo2_32B": "olmo2-32b",
    "olmo3_7B": "olmo3-7b",
    "olmo3_32B": "olmo3-32b",
    "llama3_8B": "llama3-8b",
    "llama3_70B": "llama3-70b",
}
"""Method of `TransformerConfig` that creates a model → llmcalc's preset."""

IGNORED_MODEL_ARGUMENTS = ("vocab_size", "init_seed", "attn_backend", "use_flash", "dtype", "fused_ops")
"""Arguments of `TransformerConfig`'s methods that do not change counted sizes."""

VOCABULARY_SIZE = 100_352
"""Number of rows in the embedding: the 100,278 tokens of `TokenizerConfig.dolma2`, padded to a multiple of 128."""

OTHER_TOKENIZERS = re.compile(r"TokenizerConfig\.(?!dolma2)\w+")

OPTIMIZERS = {"AdamWConfig": "foreach", "SkipStepAdamWConfig": "foreach"}
"""Class that configures an optimizer → implementation of AdamW."""

PARALLEL_CONFIGS = ("pp_config", "tp_config", "ep_config")
"""Arguments for pipeline, tensor and expert parallelism."""

COOKBOOK_FUNCTION = "cookbook.configure_train_module"
"""Name of OLMo-core's function that configures a training step (olmo_core/internal/cookbook.py)."""

COOKBOOK_STEP_DEFAULTS = {
    "optim": "SkipStepAdamWConfig",
    "compile_model": True,
    "dp_config": "TransformerDataParallelConfig",
    "z_loss_multiplier": 1e-5,
}
"""Arguments of `TransformerTrainModuleConfig` that `COOKBOOK_FUNCTION` sets."""

FUSED_LOSS = "lm_head.loss_implementation"
"""Attribute of a model's configuration that selects the implementation of the loss."""

LENGTH_VARIABLES = ("common.max_sequence_length", "opts.sequence_length", "sequence_length")
"""Variables in a script's functions for the tokens per sequence; constants of the script state the number."""

LENGTH_CONSTANTS = ("SEQUENCE_LENGTH", "DEFAULT_SEQUENCE_LENGTH", "CONTEXT_LENGTH")


def is_python(file_text: str) -> bool:
    """Whether a Python file configures training with OLMo-core."""
    is_import = re.search(r"^[ \t]*(from|import) olmo_core\b", file_text, re.MULTILINE) is not None
    return is_import and (TRAIN_MODULE_CLASS in file_text or COOKBOOK_FUNCTION in file_text)


TRAIN_MODULE_CLASS = "TransformerTrainModuleConfig"
"""Name of the class whose arguments configure a training step."""


def read_python(script_text: str, source_file: LaunchSource) -> Launch:
    """Returns the training run of a script. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        syntax_tree = parse_python(script_text, source_file.name_in_errors)
        variables = dict(_number_assignments(syntax_tree.body, {}))
        sequence_length = next(
            (variables[constant_name] for constant_name in LENGTH_CONSTANTS if constant_name in variables), None
        )
        variables |= dict.fromkeys(LENGTH_VARIABLES, sequence_length)
        for function_node in (node for node in syntax_tree.body if isinstance(node, ast.FunctionDef)):
            variables |= {
                variable_name: assigned_value
                for variable_name, assigned_value in _number_assignments(function_node.body, variables)
                if variable_name not in LENGTH_VARIABLES
            }
        call_nodes = [syntax_node for syntax_node in ast.walk(syntax_tree) if isinstance(syntax_node, ast.Call)]
        reader.notes.append("overrides behind the script's name are not read")
        model_changes = _model_changes(syntax_tree)
        return _launch_of_calls(reader, call_nodes, variables, model_changes, OTHER_TOKENIZERS.search(script_text))


def _number_assignments(statements: list[ast.stmt], outer_values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (variable, value) of plain assignments of known whole numbers."""
    known_values = dict(outer_values)
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            assigned_value = expression_value(statement.value, known_values)
            if isinstance(assigned_value, int):
                known_values[statement.targets[0].id] = assigned_value
                yield statement.targets[0].id, assigned_value


def _model_changes(syntax_tree: ast.Module) -> dict[str, str]:
    """Returns attribute → source text, for each attribute that the script assigns on its model config."""
    statements = [
        node for node in ast.walk(syntax_tree) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
    ]
    target_nodes = [
        (statement.targets[0] if isinstance(statement, ast.Assign) else statement.target, statement.value)
        for statement in statements
    ]
    model_variables = {
        target_node.id
        for target_node, value_node in target_nodes
        if isinstance(target_node, ast.Name)
        and isinstance(value_node, ast.Call)
        and dotted_name_of(value_node.func).startswith(MODEL_METHOD_PREFIX)
    }
    model_changes = {}
    for target_node, value_node in target_nodes:
        variable_name, _, attribute_name = dotted_name_of(target_node).partition(".")
        if variable_name in model_variables and attribute_name and value_node is not None:
            model_changes[attribute_name] = dotted_name_of(value_node) or "…"
    return model_changes


def _arguments_of_first_call(
    call_nodes: list[ast.Call], class_name: str, variables: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns the evaluated arguments of the first call of a class; None without such a call."""
    call_node = next((call_node for call_node in call_nodes if dotted_name_of(call_node.func) == class_name), None)
    return None if call_node is None else _values_of_call_arguments(call_node, variables)


def _values_of_call_arguments(call_node: ast.Call, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns argument → value of a call. Names such as `DType.bfloat16` and nested calls stay source text."""
    argument_values = {
        keyword.arg: (keyword.value, expression_value(keyword.value, variables)) for keyword in call_node.keywords
    }
    return {
        str(argument_name): dotted_name_of(value_node.func if isinstance(value_node, ast.Call) else value_node)
        or argument_value.text
        if isinstance(argument_value, UnknownValue)
        else argument_value
        for argument_name, (value_node, argument_value) in argument_values.items()
    }


def _model_spec_and_name(
    reader: LaunchReader,
    call_nodes: list[ast.Call],
    variables: Mapping[str, Any],
    model_changes: Mapping[str, str],
    tokenizer_match: re.Match[str] | None,
) -> tuple[ModelSpec | None, str]:
    """Returns a script's model and name; the model is None if it is no preset or the script changes it."""
    model_name = next(
        (
            dotted_name_of(model_call.func)
            for model_call in call_nodes
            if dotted_name_of(model_call.func).startswith(MODEL_METHOD_PREFIX)
        ),
        "",
    )
    preset = PRESET_BY_MODEL_NAME.get(model_name.rpartition(".")[2])
    other_changes = [
        argument_name
        for argument_name in _arguments_of_first_call(call_nodes, model_name, variables) or {}
        if argument_name not in IGNORED_MODEL_ARGUMENTS
    ]
    other_changes += [attribute_name for attribute_name in model_changes if attribute_name != FUSED_LOSS]
    if preset is None or other_changes:
        return (
            None,
            f"{model_name or MODEL_METHOD_PREFIX}{' with other ' * bool(other_changes)}"
            f"{', '.join(other_changes)[:150]}",
        )
    if tokenizer_match is not None:
        reader.refuse(tokenizer_match[0], f"the embedding is counted with dolma2's {VOCABULARY_SIZE:,} rows")
    return load_preset(preset).model.model_copy(update={"vocab_size": VOCABULARY_SIZE}), ""


MODEL_METHOD_PREFIX = "TransformerConfig."
"""Prefix of the methods that create a model."""


def _train_module_arguments(call_nodes: list[ast.Call], variables: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the arguments of the call that configures a training step; None without such a call."""
    cookbook_arguments = _arguments_of_first_call(call_nodes, COOKBOOK_FUNCTION, variables)
    if cookbook_arguments is None:
        return _arguments_of_first_call(call_nodes, TRAIN_MODULE_CLASS, variables)
    module_args = {**COOKBOOK_STEP_DEFAULTS, **cookbook_arguments}
    if cookbook_arguments.get("activation_memory_budget", 1.0) != 1.0:
        module_args["ac_config"] = {
            "mode": "budget",
            "activation_memory_budget": cookbook_arguments["activation_memory_budget"],
        }
    if cookbook_arguments.get("cp_degree"):
        module_args["cp_config"] = {"degree": cookbook_arguments["cp_degree"]}
    if cookbook_arguments.get("float8_enabled") is True:
        module_args["float8_config"] = True
    return module_args


def _sequence_ranks(
    reader: LaunchReader,
    call_nodes: list[ast.Call],
    module_arguments: Mapping[str, Any],
    variables: Mapping[str, Any],
    world_size: int,
) -> int:
    """Returns the number of context-parallel ranks per sequence (`TransformerContextParallelConfig`)."""
    config = module_arguments.get("cp_config")
    if config is None:
        return 1
    if not isinstance(config, Mapping):
        calls_of_class = [
            config_call
            for config_call in call_nodes
            if dotted_name_of(config_call.func).startswith("TransformerContextParallelConfig")
        ]
        config = _values_of_call_arguments(calls_of_class[0], variables) if calls_of_class else {}
    if config.get("degree") is None:
        raise reader.argument_error("cp_config", "its degree is not in the script; expected a whole number")
    return reader.sequence_ranks(config, "degree", world_size, "cp_config.")


def _launch_of_calls(
    reader: LaunchReader,
    call_nodes: list[ast.Call],
    variables: Mapping[str, Any],
    model_changes: Mapping[str, str],
    tokenizer_match: re.Match[str] | None,
) -> Launch:
    """Returns the training run of a script's calls. model_changes: the result of `_model_changes`."""
    spec, model_id = _model_spec_and_name(reader, call_nodes, variables, model_changes, tokenizer_match)
    module_arguments = _train_module_arguments(call_nodes, variables)
    if module_arguments is None:
        raise reader.argument_error(
            TRAIN_MODULE_CLASS, "no call in the script; expected one, or TARGET with --fsdp and --devices"
        )
    world_size = reader.device_count(reader.source.world_size)
    sequence_ranks = _sequence_ranks(reader, call_nodes, module_arguments, variables, world_size)
    micro_batch_tokens = read_integer(reader, "rank_microbatch_size", module_arguments.get("rank_microbatch_size"))
    sequence_length = read_integer(
        reader, "max_sequence_length", module_arguments.get("max_sequence_length", variables[LENGTH_VARIABLES[0]])
    )
    if micro_batch_tokens % sequence_length:
        raise reader.argument_error(
            "rank_microbatch_size",
            f"{micro_batch_tokens}; expected a multiple of the {sequence_length} tokens of a sequence",
        )
    run_settings = {
        "phase": "training",
        "seq": -(-sequence_length // sequence_ranks),
        "batch": micro_batch_tokens // sequence_length,
        "num_microbatches": _micro_batch_count(
            reader, call_nodes, variables, micro_batch_tokens * world_size // sequence_ranks
        ),
        "attn_implementation": "flash",
        **_step_settings(reader, call_nodes, module_arguments, variables),
    }
    if model_changes.get(FUSED_LOSS, "").endswith("fused_linear"):
        run_settings["cross_entropy"] = "chunked"
    parallel_arguments = _arguments_of_first_call(call_nodes, "TransformerDataParallelConfig", variables) or {}
    if "learning_rate" in module_arguments:  # the function of the cookbook
        shard_sizes = {"shard_degree": module_arguments.get("dp_shard_degree")}
        parallel_arguments = {"name": "DataParallelType.hsdp", "param_dtype": "DType.bfloat16", **shard_sizes}
    is_sharded = parallel_arguments.get("name") != "DataParallelType.ddp" and world_size > 1
    if parallel_arguments.get("param_dtype") == "DType.bfloat16" and is_sharded:
        run_settings |= {"dtype": "bf16", "master_weights": "fp32"}
    else:
        run_settings["precision"] = "fp32" if parallel_arguments.get("param_dtype") is None else "autocast"
    if module_arguments.get("z_loss_multiplier") is not None:
        reader.notes.append("z_loss_multiplier: the number per token that it saves is not counted")
    fsdp_settings = TitanSettings() if is_sharded else None
    replica_count = 1
    if parallel_arguments.get("name") == "DataParallelType.hsdp" and is_sharded:
        replica_count = _replica_count(reader, parallel_arguments, world_size, sequence_ranks)
    return fsdp_or_torch_launch(
        reader, world_size, run_settings, fsdp_settings, replica_count=replica_count, spec=spec, model_name=model_id
    )


DEVICES_PER_NODE = 8
"""Number of devices per node; under `hsdp` without sizes, each node is a replica of the shards."""


def _replica_count(
    reader: LaunchReader, parallel_arguments: Mapping[str, Any], world_size: int, sequence_ranks: int
) -> int:
    """Returns the number of replicas with hybrid sharding (`DataParallelConfig.get_replicate_and_shard_degree`).

    Ranks that have parts of one sequence are among those of the shards (parallel/__init__.py, `get_dp_model_mesh`).
    """
    if parallel_arguments.get("num_replicas") is not None:
        return read_integer(reader, "num_replicas", parallel_arguments["num_replicas"])
    if parallel_arguments.get("shard_degree") is None:
        reader.notes.append(f"hsdp: shards are those of a node with {DEVICES_PER_NODE} devices, each node a replica")
        return max(1, world_size // DEVICES_PER_NODE)
    shard_ranks = read_integer(reader, "shard_degree", parallel_arguments["shard_degree"]) * sequence_ranks
    if world_size % shard_ranks:
        raise reader.argument_error(
            "shard_degree",
            f"{shard_ranks} ranks of shards on {world_size} devices; expected --devices with a multiple of "
            f"{shard_ranks}",
        )
    return world_size // shard_ranks


def _micro_batch_count(
    reader: LaunchReader, call_nodes: list[ast.Call], variables: Mapping[str, Any], tokens_of_ranks: int
) -> int:
    """Returns the number of micro-batches per step: tokens of a step over tokens of all ranks' micro-batches."""
    argument_name = "global_batch_size"
    argument_values = (_values_of_call_arguments(call_node, variables).get(argument_name) for call_node in call_nodes)
    step_tokens = next((argument_value for argument_value in argument_values if isinstance(argument_value, int)), None)
    if step_tokens is None:
        reader.notes.append(f"{argument_name}: no number; one micro-batch per step is assumed")
        return 1
    if step_tokens % tokens_of_ranks:
        raise reader.argument_error(
            argument_name,
            f"{step_tokens} tokens; expected a multiple of {tokens_of_ranks}, those of all devices; or --devices",
        )
    return step_tokens // tokens_of_ranks


def _step_settings(
    reader: LaunchReader, call_nodes: list[ast.Call], module_arguments: Mapping[str, Any], variables: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings of the optimizer, recomputation, loss and compilation."""
    optimizer_class = str(module_arguments.get("optim")).rpartition(".")[2]
    if optimizer_class not in OPTIMIZERS:
        reader.refuse("optim", f"{short_repr(optimizer_class)[:60]} is not modelled; {', '.join(OPTIMIZERS)} are")
    optimizer_arguments = _arguments_of_first_call(call_nodes, optimizer_class, variables) or {}
    is_fused = optimizer_arguments.get("fused") is True
    step_settings: dict[str, Any] = {"optimizer": "adamw", "optimizer_impl": "fused" if is_fused else "foreach"}
    if optimizer_class == "SkipStepAdamWConfig":
        reader.notes.append("SkipStepAdamW: its step is counted as torch's foreach AdamW, which keeps fewer copies")
    for config_name in PARALLEL_CONFIGS:
        if module_arguments.get(config_name) is not None:
            reader.refuse(config_name, "only FSDP and parts of sequences are modelled with OLMo-core")
    float8_config = module_arguments.get("float8_config")
    if (
        float8_config is not None
        and (_arguments_of_first_call(call_nodes, "Float8Config", variables) or {}).get("enabled") is not False
    ):
        reader.refuse("float8_config", "its products are not modelled; bf16 is")
    step_settings |= _recompute_settings(reader, call_nodes, module_arguments, variables)
    if module_arguments.get("compile_model") is True:
        step_settings["compile"] = True
    return step_settings


def _recompute_settings(
    reader: LaunchReader, call_nodes: list[ast.Call], module_arguments: Mapping[str, Any], variables: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the recomputation settings of a script's activation checkpointing; none without any.

    Under a budget torch's partitioner keeps at most this part of what it would keep beyond the inputs of layers
    (torch/_functorch/partitioners.py, `choose_saved_values_set`).
    """
    config = module_arguments.get("ac_config")
    class_name = "TransformerActivationCheckpointingConfig"
    if config is None and not any(dotted_name_of(call_node.func) == class_name for call_node in call_nodes):
        return {}
    checkpointing_arguments = (
        config if isinstance(config, Mapping) else _arguments_of_first_call(call_nodes, class_name, variables) or {}
    )
    recompute_mode = str(checkpointing_arguments.get("mode", "full")).rpartition(".")[2]
    if recompute_mode == "full":
        return {"recompute": "full"}
    if recompute_mode == "selected_modules" and _recomputes_networks(call_nodes, class_name):
        return {"recompute": "nodes:mlp"}
    memory_budget = checkpointing_arguments.get("activation_memory_budget")
    if recompute_mode == "budget" and isinstance(memory_budget, float | int) and 0 <= memory_budget <= 1:
        if memory_budget in (0, 1):
            return {"recompute": "none" if memory_budget else "full"}
        exact_period = 1 / min(memory_budget, 1 - memory_budget)
        layer_period = math.floor(exact_period + 1e-9) if memory_budget < 0.5 else math.ceil(exact_period - 1e-9)
        layers_text = f"one of {layer_period}" if memory_budget < 0.5 else f"{layer_period - 1} of {layer_period}"
        reader.notes.append(
            f"ac_config.activation_memory_budget {memory_budget}: counted as if {layers_text} layers kept all that it "
            "saves, " + ("an estimate" if abs(exact_period - layer_period) < 1e-6 else "an upper bound")
        )
        return {"recompute": f"but-every:{layer_period}" if memory_budget < 0.5 else f"every:{layer_period}"}
    reader.refuse(
        "ac_config.mode",
        f"'{recompute_mode[:60]}' is not modelled; full, budget, and selected_modules of feed_forward are; "
        "--allow-unknown counts no recomputation, which needs more",
    )
    return {}


def _recomputes_networks(call_nodes: list[ast.Call], class_name: str) -> bool:
    """Whether a call selects the feed-forward networks of all layers for recomputation."""
    module_lists = (
        ast.unparse(keyword_node.value)
        for call_node in call_nodes
        if dotted_name_of(call_node.func) == class_name
        for keyword_node in call_node.keywords
        if keyword_node.arg == "modules"
    )
    networks_pattern = r"\[f?'blocks\.(\*|\{\w+\})\.feed_forward'( for \w+ in range\(\w+\))?\]"
    return re.search(networks_pattern, next(module_lists, "")) is not None
