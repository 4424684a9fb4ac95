"""Reads training scripts of OLMo-core from their syntax tree, without running them.

The arguments are those of the calls that configure the model, the train module, data parallelism and the optimizer.
Source: OLMo-core 2.5.0 (fa6c5014), src/olmo_core/nn/transformer/config.py and model.py (`apply_fsdp`),
train/train_module/transformer/config.py, distributed/parallel/data_parallel.py, optim/adamw.py, data/tokenizer.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import shown
from ...sources.presets import load_preset
from ..fsdp2.plugin import sharded_launch
from ..fsdp2.settings import TitanSettings
from ..launch.python_source import Unknown, dotted, parse_python, value_of
from ..launch.record import Launch, LaunchReader, LaunchSource, reading_of, size_of

MODELS = {
    "olmo2_1B_v2": "olmo2-1b",
    "olmo2_7B": "olmo2-7b",
    "olmo2_13B": "olmo2-13b",
    "olmo2_32B": "olmo2-32b",
    "olmo3_7B": "olmo3-7b",
    "olmo3_32B": "olmo3-32b",
    "llama3_8B": "llama3-8b",
    "llama3_70B": "llama3-70b",
}
"""Method of `TransformerConfig` → preset."""

HARMLESS = ("vocab_size", "init_seed", "attn_backend", "use_flash", "dtype", "fused_ops")
"""Arguments of these methods that change no size that is counted."""

VOCABULARY = 100_352
"""Rows of the embedding: `TokenizerConfig.dolma2`'s 100,278 tokens, padded to a multiple of 128."""

OTHER_TOKENIZERS = re.compile(r"TokenizerConfig\.(?!dolma2)\w+")

OPTIMIZERS = {"AdamWConfig": "foreach", "SkipStepAdamWConfig": "foreach"}
"""Class of an optimizer's configuration → the implementation of AdamW."""

PARALLEL_CONFIGS = ("pp_config", "tp_config", "cp_config", "ep_config")
"""Arguments of parallelism other than FSDP."""

LENGTHS = ("common.max_sequence_length", "opts.sequence_length", "sequence_length")
"""Names of the tokens per sequence in the functions of a script, whose constants state the number."""

LENGTH_CONSTANTS = ("SEQUENCE_LENGTH", "DEFAULT_SEQUENCE_LENGTH", "CONTEXT_LENGTH")


def is_python(text: str) -> bool:
    """Whether a Python file configures training with OLMo-core."""
    return re.search(r"^\s*(from|import) olmo_core\b", text, re.MULTILINE) is not None and MODULE in text


MODULE = "TransformerTrainModuleConfig"
"""The class whose arguments configure a training step."""


def read_python(text: str, source_file: LaunchSource) -> Launch:
    """Returns the training run of a script. Raises `InputError`, which names file and argument."""
    with reading_of(source_file) as reader:
        syntax_tree = parse_python(text, source_file.where)
        variables = dict(_variables(syntax_tree.body, {}))
        length = next((variables[name] for name in LENGTH_CONSTANTS if name in variables), None)
        variables |= dict.fromkeys(LENGTHS, length)
        for function in (node for node in syntax_tree.body if isinstance(node, ast.FunctionDef)):
            variables |= {name: value for name, value in _variables(function.body, variables) if name not in LENGTHS}
        calls = [node for node in ast.walk(syntax_tree) if isinstance(node, ast.Call)]
        reader.notes.append("what a script sets after the calls of its configurations is not read, nor are overrides")
        return _launch_of(reader, calls, variables, OTHER_TOKENIZERS.search(text))


def _variables(statements: list[ast.stmt], variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (variable, value) of plain assignments of known whole numbers."""
    known = dict(variables)
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            value = value_of(statement.value, known)
            if isinstance(value, int):
                known[statement.targets[0].id] = value
                yield statement.targets[0].id, value


def _arguments(calls: list[ast.Call], class_name: str, variables: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the evaluated arguments of the first call of a class; None without such a call."""
    call = next((call for call in calls if dotted(call.func) == class_name), None)
    return None if call is None else _values(call, variables)


def _values(call: ast.Call, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns argument → value of a call; a name such as `DType.bfloat16` and a call stay their source's text."""
    values = {keyword.arg: (keyword.value, value_of(keyword.value, variables)) for keyword in call.keywords}
    return {
        str(name): dotted(node.func if isinstance(node, ast.Call) else node) or value.text
        if isinstance(value, Unknown)
        else value
        for name, (node, value) in values.items()
    }


def _launch_of(
    reader: LaunchReader, calls: list[ast.Call], variables: Mapping[str, Any], other_tokenizer: re.Match[str] | None
) -> Launch:
    """Returns the training run of a script's calls."""
    model_name = next((dotted(call.func) for call in calls if dotted(call.func).startswith("TransformerConfig.")), "")
    preset = MODELS.get(model_name.rpartition(".")[2])
    if preset is None:
        raise reader.wrong(
            model_name or "TransformerConfig",
            f"is not modelled; expected one of {', '.join(MODELS)}, or TARGET with --fsdp and --devices",
        )
    for argument in _arguments(calls, model_name, variables) or {}:
        if argument not in HARMLESS:
            reader.unknown[f"{model_name}.{argument}"] = "the model is read without it"
    if other_tokenizer is not None:
        reader.unknown[other_tokenizer[0]] = f"the embedding is counted with dolma2's {VOCABULARY:,} rows"
    module = _arguments(calls, MODULE, variables)
    if module is None:
        raise reader.wrong(MODULE, "no call in the script; expected one, or TARGET with --fsdp and --devices")
    world_size = reader.device_count(reader.source.world_size)
    tokens = size_of(reader, "rank_microbatch_size", module.get("rank_microbatch_size"))
    length = size_of(reader, "max_sequence_length", module.get("max_sequence_length", variables[LENGTHS[0]]))
    if tokens % length:
        raise reader.wrong(
            "rank_microbatch_size", f"{tokens}; expected a multiple of the {length} tokens of a sequence"
        )
    run_settings = {
        "phase": "training",
        "seq": length,
        "batch": tokens // length,
        "num_microbatches": _micro_batches(reader, calls, variables, tokens * world_size),
        "attn_implementation": "flash",
        **_step_settings(reader, calls, module, variables),
    }
    parallel = _arguments(calls, "TransformerDataParallelConfig", variables) or {}
    is_sharded = parallel.get("name") != "DataParallelType.ddp" and world_size > 1
    if parallel.get("param_dtype") == "DType.bfloat16" and is_sharded:
        run_settings |= {"dtype": "bf16", "master_weights": "fp32"}
    else:
        run_settings["precision"] = "fp32" if parallel.get("param_dtype") is None else "autocast"
    if parallel.get("name") == "DataParallelType.hsdp" and world_size > DEVICES_PER_NODE:
        reader.notes.append(
            f"hsdp: shards are those of a node with {DEVICES_PER_NODE} devices, of which each is a replica"
        )
    if module.get("z_loss_multiplier") is not None:
        reader.notes.append("z_loss_multiplier: the number per token that it saves is not counted")
    spec = load_preset(preset).model.model_copy(update={"vocab_size": VOCABULARY})
    own_settings = TitanSettings() if is_sharded else None
    return sharded_launch(reader, world_size, run_settings, own_settings, spec=spec)


DEVICES_PER_NODE = 8
"""Devices of a node, of which each is a replica of the shards under `hsdp` without sizes."""


def _micro_batches(
    reader: LaunchReader, calls: list[ast.Call], variables: Mapping[str, Any], tokens_at_once: int
) -> int:
    """Returns the micro-batches per step, from the tokens of a step and of all ranks' micro-batches."""
    argument = "global_batch_size"
    values = (_values(call, variables).get(argument) for call in calls)
    tokens = next((value for value in values if isinstance(value, int)), None)
    if tokens is None:
        reader.notes.append(f"{argument}: no number; one micro-batch per step is assumed")
        return 1
    if tokens % tokens_at_once:
        raise reader.wrong(
            argument, f"{tokens} tokens; expected a multiple of {tokens_at_once}, those of all devices; or --devices"
        )
    return tokens // tokens_at_once


def _step_settings(
    reader: LaunchReader, calls: list[ast.Call], module: Mapping[str, Any], variables: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings of the optimizer, of recomputation, of the loss and of compilation."""
    optimizer = str(module.get("optim")).rpartition(".")[2]
    if optimizer not in OPTIMIZERS:
        reader.unknown["optim"] = f"{shown(optimizer)[:60]} is not modelled; {', '.join(OPTIMIZERS)} are"
    arguments = _arguments(calls, optimizer, variables) or {}
    is_fused = arguments.get("fused") is True
    step_settings: dict[str, Any] = {"optimizer": "adamw", "optimizer_impl": "fused" if is_fused else "foreach"}
    if optimizer == "SkipStepAdamWConfig":
        reader.notes.append("SkipStepAdamW: its step is counted as torch's foreach AdamW, which keeps fewer copies")
    for name in PARALLEL_CONFIGS:
        if module.get(name) is not None:
            reader.unknown[name] = "only FSDP is modelled with OLMo-core"
    float8 = module.get("float8_config")
    if float8 is not None and (_arguments(calls, "Float8Config", variables) or {}).get("enabled") is not False:
        reader.unknown["float8_config"] = "its products are not modelled; bf16 is"
    if module.get("ac_config") is not None:
        checkpointing = _arguments(calls, "TransformerActivationCheckpointingConfig", variables) or {}
        if str(checkpointing.get("mode", "full")).endswith("full"):
            step_settings["recompute"] = "full"
        else:
            reader.unknown["ac_config.mode"] = (
                f"{shown(checkpointing['mode'])[:80]} is not modelled; full is; --allow-unknown counts no "
                "recomputation, which needs more"
            )
    if module.get("compile_model") is True:
        step_settings["compile"] = True
    return step_settings
