"""Reads Python scripts that train with TRL or the Trainer of transformers from the syntax tree, without running them.

The arguments of the calls of `from_pretrained`, `BitsAndBytesConfig`, `LoraConfig`, of the trainer and of its
configuration become those of a TRL recipe, or of the Trainer (TRL 1.10, trainer/{sft,dpo,kto,grpo}_trainer.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from ...errors import InputError
from ...sources.huggingface.family import field_names
from ..launch.embedding_losses import ARGUMENTS_CLASS, with_embedding_loss
from ..launch.launch_types import Launch, LaunchReader, LaunchSource, launch_reader
from ..launch.model_changes import changes_of_model
from ..launch.python_source import (
    DEEPEST_EXPRESSION,
    UnknownValue,
    assigned_values,
    calls_in_order,
    contains_unknown_value,
    dotted_name_of,
    expression_value,
    keyword_arguments,
    module_constants,
    nested_item_value,
    number_format_name,
    parse_python,
    statements_of_module,
)
from ..launch.script_arguments import ScriptArguments, arguments_of_file
from ..launch.sft_loss import TRANSFORMERS_DEFAULTS, earlier_argument
from ..launch.trainer import (
    AUTO_DTYPE,
    EARLIER_DTYPE,
    dtype_before_version_5,
    keeps_published_weight_format,
    read_trainer,
)
from .commands import COMMANDS
from .config_file import read_trl

SETTINGS_BY_CONFIG_CLASS: Mapping[str, Mapping[str, Any]] = {
    **{f"{name.upper()}Config": COMMANDS[f"trl {name}"] for name in ("sft", "dpo", "kto", "grpo")},
    "RewardConfig": COMMANDS["trl reward"],
    "TrainingArguments": {},
    "Seq2SeqTrainingArguments": {},
    ARGUMENTS_CLASS: {},
}
"""Configuration class of a trainer → an argument by which the trainer is recognized, with its default."""

CONFIG_CLASS_BY_TRAINER: Mapping[str, str] = {
    "SFTTrainer": "SFTConfig",
    "DPOTrainer": "DPOConfig",
    "KTOTrainer": "KTOConfig",
    "GRPOTrainer": "GRPOConfig",
    "RewardTrainer": "RewardConfig",
}
"""Trainer class of TRL → its configuration class, whose defaults the trainer uses (trainer/sft_trainer.py)."""

ADAPTER_ARGUMENTS: Mapping[str, str] = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "lora_dropout": "lora_dropout",
    "use_dora": "use_dora",
}
"""Argument of PEFT's `LoraConfig` → TRL's name of the argument."""

QUANTIZATION_ARGUMENTS: Mapping[str, str] = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
"""Argument of `BitsAndBytesConfig` → TRL's name of the argument."""

TRAINER_LENGTHS = ("max_seq_length", "max_length", "max_prompt_length")
"""Arguments for lengths that trainers themselves took before TRL 0.13."""

EARLIER_TRAINER_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "SFTTrainer": ("max_seq_length", "tokenizer", "dataset_text_field", "packing", "num_of_sequences"),
    **dict.fromkeys(("DPOTrainer", "KTOTrainer"), ("tokenizer", "max_length", "max_prompt_length", "beta")),
    **dict.fromkeys(("RewardTrainer", "Trainer", "Seq2SeqTrainer"), ("tokenizer",)),
}
"""Trainer class → arguments that the trainer itself took until TRL 0.16 (which supports transformers 4 only), or until
transformers 5.
"""

LOADING_CALLS = ("from_pretrained", "SentenceTransformer")
"""Names of calls that load a model."""

MODEL_ARGUMENTS = ("torch_dtype", "dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")

REQUIRED_ARGUMENTS = field_names("""
    per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing optim max_length max_seq_length
    max_prompt_length max_completion_length num_generations lora_r lora_target_modules lora_modules_to_save load_in_4bit
    load_in_8bit use_liger_kernel loss_type bf16 fp16 deepspeed fsdp torch_dtype dtype use_vllm
    """)
"""Arguments that affect memory, so that defaults do not replace values which the file computes."""


class NamedCall(NamedTuple):
    """A call in the file. name: the last component of the function's name. arguments: keyword → value.

    first_argument: the first positional argument; None without one.
    node: the call in the syntax tree; None (default) for no call.
    """

    name: str
    arguments: Mapping[str, Any]
    first_argument: Any
    node: ast.Call | None = None


OTHER_TRAINERS = re.compile(
    r"\b(PPO|PPOv2|ORPO|CPO|RLOO|OnlineDPO|NashMD|XPO|GKD|PRM|BCO|AlignProp|DDPO|MiniLLM)(Trainer|Config)\("
)
"""Pattern of calls that create one of TRL's unmodelled trainers, or its configuration."""


def is_python(file_text: str) -> bool:
    """Whether a Python file creates a training configuration of TRL or transformers, or only a trainer of TRL.

    A trainer whose configuration comes from a parser has the settings of its command.
    """
    if re.search(r"^[ \t]*(from|import) (trl|transformers|sentence_transformers)\b", file_text, re.MULTILINE) is None:
        return False
    if re.search(rf"\b({'|'.join(SETTINGS_BY_CONFIG_CLASS)})\(", file_text) or OTHER_TRAINERS.search(file_text):
        return True
    if re.search(rf"\b({'|'.join(CONFIG_CLASS_BY_TRAINER)})\(", file_text) is None:
        return False
    try:
        syntax_tree = parse_python(file_text, "")
    except InputError:  # `read_python` raises it with the file's name
        return True
    return any(
        dotted_name_of(call_node.func).rpartition(".")[2] in CONFIG_CLASS_BY_TRAINER
        and not _has_configuration(call_node)
        for call_node in calls_in_order(syntax_tree)
    )


def _has_configuration(call_node: ast.Call) -> bool:
    """Whether a trainer's call has a configuration: `args`, a second argument, or arguments that are unpacked."""
    positional_nodes = call_node.args
    configurations = [keyword.value for keyword in call_node.keywords if keyword.arg in ("args", None)]
    configurations += positional_nodes[1:2] + [node for node in positional_nodes if isinstance(node, ast.Starred)]
    return any(not isinstance(node, ast.Constant) or node.value is not None for node in configurations)


def read_python(file_text: str, source_file: LaunchSource) -> Launch:
    """Returns the training run of a script. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        syntax_tree = parse_python(file_text, source_file.name_in_errors)
        script_arguments = arguments_of_file(syntax_tree, source_file.arguments)
        _refuse_undeclared(reader, script_arguments)
        named_calls = list(_named_calls(syntax_tree, script_arguments.variables))
        config_classes = dict.fromkeys(
            named_call.name for named_call in named_calls if named_call.name in SETTINGS_BY_CONFIG_CLASS
        )
        trainer_match = OTHER_TRAINERS.search(file_text)
        if trainer_match is not None and not any(
            named_call.name in CONFIG_CLASS_BY_TRAINER for named_call in named_calls
        ):
            raise reader.argument_error(
                f"{trainer_match[1]}Trainer",
                "training by it is not modelled; expected one of " + ", ".join(CONFIG_CLASS_BY_TRAINER),
            )
        trl_config = next(
            (
                CONFIG_CLASS_BY_TRAINER[named_call.name]
                for named_call in named_calls
                if named_call.name in CONFIG_CLASS_BY_TRAINER
            ),
            "",
        )
        trainer_nodes = [
            named_call.node
            for named_call in named_calls
            if named_call.name in CONFIG_CLASS_BY_TRAINER and named_call.node is not None
        ]
        has_default_config = not any(map(_has_configuration, trainer_nodes))
        config_class = next(iter(config_classes), trl_config if has_default_config else "")
        if not config_class:
            raise reader.argument_error(
                "SFTConfig",
                f"no call of a trainer's configuration; expected one of {', '.join(SETTINGS_BY_CONFIG_CLASS)}",
            )
        if len(config_classes) > 1:
            reader.notes.append(
                f"the file trains with {', '.join(config_classes)}; the run of {config_class} is counted"
            )
        is_trl_run = bool(trl_config) or not config_class.endswith("TrainingArguments")
        base_config = SETTINGS_BY_CONFIG_CLASS[config_class]
        if trl_config and config_class != trl_config:
            base_config = {**TRANSFORMERS_DEFAULTS, **SETTINGS_BY_CONFIG_CLASS[trl_config]}
        config = {**base_config, **_arguments_of_call(named_calls, config_class)}
        trainer_argument = _trainer_argument_of_earlier_trl(named_calls)
        is_earlier_trl = bool(trainer_argument or earlier_argument(config))
        config |= _model_arguments(reader, named_calls, is_earlier_trl)
        call_nodes = [named_call.node for named_call in named_calls if named_call.node is not None]
        model_changes = changes_of_model(syntax_tree, call_nodes, ADAPTER_ARGUMENTS)
        if "dtype" in model_changes.arguments:
            config.pop("torch_dtype", None)
        config.pop("model_init_kwargs", None)
        config |= model_changes.arguments | _arguments_of_model_calls(named_calls)
        config |= _dtype_for_adapters_of_trainer(named_calls, config) if is_earlier_trl else {}
        if not is_trl_run:
            config |= _sample_length_arguments(reader, named_calls)
        if config_class == ARGUMENTS_CLASS:
            config |= _text_length_arguments(syntax_tree)
        unknown_arguments = {
            argument_name: argument_value if isinstance(argument_value, UnknownValue) else UnknownValue("a table")
            for argument_name, argument_value in config.items()
            if contains_unknown_value(argument_value)
        }
        config = {
            argument_name: config_value
            for argument_name, config_value in config.items()
            if argument_name not in unknown_arguments
        }
        reader.unknown_arguments |= {
            argument_name: _unknown_reason(argument, script_arguments, source_file.name_in_errors)
            for argument_name, argument in unknown_arguments.items()
            if argument_name in REQUIRED_ARGUMENTS
        }
        reader.unknown_arguments |= {
            changed_name: reason
            for changed_name, reason in model_changes.unknown_arguments.items()
            if "RewardConfig" not in (config_class, trl_config)
            or not changed_name.endswith("ForSequenceClassification")
        }
        reader.notes += model_changes.notes
        reader.check_unknown_arguments()
        if script_arguments.used_values_text:
            reader.notes.append(f"arguments of the file: {script_arguments.used_values_text}")
        reader.notes.append("what the file computes otherwise is taken as its program's default")
        notes = tuple(reader.notes)
    launched_run = (read_trl if is_trl_run else read_trainer)(config, source_file, trainer_argument)
    if config_class == ARGUMENTS_CLASS:
        launched_run = with_embedding_loss(
            launched_run, [(named_call.name, named_call.arguments) for named_call in named_calls]
        )
    return replace(
        launched_run,
        unknown_arguments={**reader.unknown_arguments, **launched_run.unknown_arguments},
        notes=(*launched_run.notes, *notes),
        keeps_checkpoint_dtype=keeps_published_weight_format(launched_run, config),
        loads_causal_class=_loads_causal_class(named_calls),
    )


def _loads_causal_class(named_calls: list[NamedCall]) -> bool:
    """Whether the file loads its model by `AutoModelForCausalLM`."""
    loading_nodes = [
        named_call.node
        for named_call in named_calls
        if named_call.name in LOADING_CALLS and named_call.node is not None
    ]
    return bool(loading_nodes) and "AutoModelForCausalLM" in dotted_name_of(loading_nodes[0].func).split(".")


QUANTIZED_MODEL_TRAINERS = {"SFTTrainer": True, "DPOTrainer": True, "KTOTrainer": True, "RewardTrainer": False}
"""Trainer before TRL 0.20 that casts a quantized model's other weights to float32 → whether to bf16 then."""


def _dtype_for_adapters_of_trainer(named_calls: list[NamedCall], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the number format of unquantized weights after a trainer of TRL before 0.20 has added adapters.

    Such a trainer copies it to float32, and the embedding and the head beside 4 bits back to bfloat16 under bf16
    (trainer/sft_trainer.py, dpo_trainer.py and kto_trainer.py, `prepare_model_for_kbit_training` and
    `peft_module_casting_to_bf16`). reward_trainer.py does not copy back, and grpo_trainer.py copies nothing.
    """
    trainer_name = next(
        (
            named_call.name
            for named_call in named_calls
            if named_call.name in QUANTIZED_MODEL_TRAINERS and "peft_config" in named_call.arguments
        ),
        "",
    )
    if not trainer_name or dtype_before_version_5(config) == EARLIER_DTYPE:
        return {}
    is_4_bit_under_bf16 = config.get("bf16") is True and config.get("load_in_4bit") is True
    is_copied_back = QUANTIZED_MODEL_TRAINERS[trainer_name] and is_4_bit_under_bf16
    return {"dtype": "bfloat16" if is_copied_back else EARLIER_DTYPE, "torch_dtype": None}


def _trainer_argument_of_earlier_trl(named_calls: list[NamedCall]) -> str:
    """Returns the first `argument of trainer` in the file that only earlier releases of TRL have; empty if none."""
    return next(
        (
            f"{argument_name} of {named_call.name}"
            for named_call in named_calls
            for argument_name in EARLIER_TRAINER_ARGUMENTS.get(named_call.name, ())
            if argument_name in named_call.arguments
        ),
        "",
    )


def _sample_length_arguments(reader: LaunchReader, named_calls: list[NamedCall]) -> dict[str, Any]:
    """Returns the length to which the file's tokenizer truncates samples; empty if no call truncates samples."""
    sample_lengths = [
        named_call.arguments.get("max_length")
        for named_call in named_calls
        if named_call.arguments.get("truncation") is True
    ]
    known_lengths = [sample_length for sample_length in sample_lengths if type(sample_length) is int]
    if not known_lengths:
        return {}
    reader.notes.append(f"samples are counted at the {max(known_lengths):,} tokens at which the tokenizer cuts them")
    return {"max_length": max(known_lengths)}


def _text_length_arguments(syntax_tree: ast.Module) -> dict[str, Any]:
    """Returns the text length limit (`max_seq_length`) that a sentence-transformers script assigns; else nothing."""
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            max_length = expression_value(node.value, {})
            if node.targets[0].attr == "max_seq_length" and type(max_length) is int:
                return {"max_length": max_length}
    return {}


def _refuse_undeclared(reader: LaunchReader, script_arguments: ScriptArguments) -> None:
    """Raises `InputError` for a typed argument that the Python file does not declare."""
    if script_arguments.undeclared_flag:
        declared_options = ", ".join(f"--{option_name}" for option_name in [*script_arguments.defaults][:6]) or "none"
        raise reader.argument_error(
            script_arguments.undeclared_flag, f"no argument that the file declares; it declares {declared_options}"
        )


def _unknown_reason(unknown_value: UnknownValue, script_arguments: ScriptArguments, typed_path: str) -> str:
    """Returns the reason why a call's argument is unknown, such as a value that the file computes."""
    object_name, _, attribute_name = unknown_value.text.partition(".")
    if object_name and script_arguments.defaults.get(attribute_name, "") is None:
        return (
            f"is the file's argument {attribute_name}, without a default; "
            f"expected --launch '{typed_path} --{attribute_name} …'"
        )
    return "is known only when the file runs"


def _model_arguments(reader: LaunchReader, named_calls: list[NamedCall], is_earlier_trl: bool) -> dict[str, Any]:
    """Returns the arguments of model, adapters and quantized weights under the names of TRL's `ModelConfig`.

    A trainer loads a model that it is named; the file may load it once more afterwards.
    is_earlier_trl: whether the file is of transformers before 5.
    """
    trainer_call = next(
        (named_call for named_call in named_calls if named_call.name.endswith("Trainer")), NamedCall("", {}, None)
    )
    trainer_arguments = trainer_call.arguments
    model = trainer_arguments.get("model", trainer_call.first_argument)
    loading_call = next((named_call for named_call in named_calls if named_call.name in LOADING_CALLS), None)
    if isinstance(model, str):
        loading_call = None
    elif loading_call is not None:
        model = loading_call.first_argument
    arguments: dict[str, Any] = {"model_name_or_path": model if isinstance(model, str) else ""}
    arguments |= {
        argument_name: trainer_arguments[argument_name]
        for argument_name in TRAINER_LENGTHS
        if argument_name in trainer_arguments
    }
    if loading_call is not None:
        model_arguments = loading_call.arguments.get("model_kwargs")
        model_arguments = {**(model_arguments if isinstance(model_arguments, dict) else {}), **loading_call.arguments}
        arguments |= {
            argument_name: number_format_name(model_arguments[argument_name])
            for argument_name in MODEL_ARGUMENTS
            if argument_name in model_arguments
        }
    else:
        loading_arguments = _loading_arguments(named_calls)
        arguments |= {
            argument_name: number_format_name(argument_value)
            for argument_name, argument_value in loading_arguments.items()
        }
    for call_name, argument_names in (
        ("BitsAndBytesConfig", QUANTIZATION_ARGUMENTS),
        ("LoraConfig", ADAPTER_ARGUMENTS),
    ):
        call_arguments = _arguments_of_call(named_calls, call_name)
        arguments |= {
            argument_names[argument_name]: call_arguments[argument_name]
            for argument_name in argument_names
            if argument_name in call_arguments
        }
    if loading_call is not None and not {"dtype", "torch_dtype"} & {*arguments}:
        arguments["dtype"] = dtype_before_version_5(arguments) if is_earlier_trl else AUTO_DTYPE
        if is_earlier_trl:
            loaded_dtype = arguments["dtype"]
            reader.notes.append(f"transformers before 5 loads weights in {loaded_dtype} where no dtype is written")
    if any(named_call.name == "LoraConfig" for named_call in named_calls):
        arguments = {"lora_r": 8, **arguments}  # peft/tuners/lora/config.py
    return arguments


def _loading_arguments(named_calls: list[NamedCall]) -> dict[str, Any]:
    """Returns the arguments in `model_init_kwargs`, with which a trainer loads a model given by name."""
    loading_tables = (
        named_call.arguments.get("model_init_kwargs")
        for named_call in named_calls
        if named_call.name in SETTINGS_BY_CONFIG_CLASS
    )
    loading_table = next((table for table in loading_tables if isinstance(table, dict)), {})
    return {
        argument_name: loading_table[argument_name]
        for argument_name in MODEL_ARGUMENTS
        if argument_name in loading_table
    }


def _arguments_of_model_calls(named_calls: list[NamedCall]) -> dict[str, Any]:
    """Returns the arguments equivalent to calls on the loaded model: activation checkpointing, and fp32 weights.

    `prepare_model_for_kbit_training` copies to fp32 what is not quantized, and turns checkpoints on unless its argument
    says otherwise (peft/utils/other.py). The Trainer turns checkpoints on, and never off.
    """
    arguments: dict[str, Any] = {}
    has_checkpointing = any(named_call.name == "gradient_checkpointing_enable" for named_call in named_calls)
    preparation_arguments = next(
        (named_call.arguments for named_call in named_calls if named_call.name == "prepare_model_for_kbit_training"),
        None,
    )
    if preparation_arguments is not None:
        arguments |= {"dtype": "float32", "torch_dtype": None}
        has_checkpointing = has_checkpointing or preparation_arguments.get("use_gradient_checkpointing", True) is True
    return {**arguments, "gradient_checkpointing": True} if has_checkpointing else arguments


def _arguments_of_call(named_calls: list[NamedCall], call_name: str) -> Mapping[str, Any]:
    return next((named_call.arguments for named_call in named_calls if named_call.name == call_name), {})


def _named_calls(syntax_tree: ast.Module, file_variables: Mapping[str, Any]) -> Iterator[NamedCall]:
    """Yields every call of the file in line order with its evaluated arguments, except in branches that do not run.

    file_variables: dotted name → value of the arguments that the file takes.
    """
    statements = statements_of_module(syntax_tree)
    assignments = [
        syntax_statement for syntax_statement in statements if isinstance(syntax_statement, ast.Assign | ast.AnnAssign)
    ]
    variables = {
        **file_variables,
        **module_constants(statements),
    }  # of a name that is assigned below its use, the last value
    later_assignments = sorted(assignments, key=lambda assignment: -assignment.lineno)
    conditions = _branch_conditions_by_call(syntax_tree)
    for call_node in calls_in_order(syntax_tree):
        call_name = dotted_name_of(call_node.func)
        if call_name.endswith("okenizer.from_pretrained") or "Processor" in call_name:
            continue
        while later_assignments and later_assignments[-1].lineno < call_node.lineno:
            variables |= _assigned_values(later_assignments.pop(), variables)
        if any(
            _is_in_skipped_branch(condition, branch_value, variables)
            for condition, branch_value in conditions.get(id(call_node), ())
        ):
            continue
        arguments = keyword_arguments(call_node, variables)
        first_argument = expression_value(call_node.args[0], variables) if call_node.args else None
        yield NamedCall(call_name.rpartition(".")[2], arguments, first_argument, call_node)


BranchCondition: TypeAlias = tuple[ast.expr, bool]
"""A condition of a branch, and whether a call in the branch runs if the condition is true."""


def _branch_conditions_by_call(syntax_tree: ast.Module) -> dict[int, tuple[BranchCondition, ...]]:
    """Returns, by id of a call's node, the conditions of the branches that contain the call."""
    conditions: dict[int, tuple[BranchCondition, ...]] = {}
    pending_nodes: list[tuple[ast.AST, tuple[BranchCondition, ...]]] = [(syntax_tree, ())]
    while pending_nodes:
        node, node_conditions = pending_nodes.pop()
        if isinstance(node, ast.Call):
            conditions[id(node)] = node_conditions
        if not isinstance(node, ast.If | ast.IfExp):
            pending_nodes += [(child_node, node_conditions) for child_node in ast.iter_child_nodes(node)]
            continue
        pending_nodes.append((node.test, node_conditions))
        for branch_value, branch_body in ((True, node.body), (False, node.orelse)):
            branch_conditions = (*node_conditions, (node.test, branch_value))[-DEEPEST_EXPRESSION:]
            body_nodes = branch_body if isinstance(branch_body, list) else [branch_body]
            pending_nodes += [(body_node, branch_conditions) for body_node in body_nodes]
    return conditions


def _is_in_skipped_branch(condition_node: ast.expr, is_true_branch: bool, variables: Mapping[str, Any]) -> bool:
    """Whether a branch never runs, because the value of its condition is known."""
    name_node = (
        condition_node.operand
        if isinstance(condition_node, ast.UnaryOp) and isinstance(condition_node.op, ast.Not)
        else condition_node
    )
    if not isinstance(name_node, ast.Name | ast.Attribute):
        return False
    known_value = expression_value(name_node, variables)
    return isinstance(known_value, bool) and (known_value == (name_node is condition_node)) != is_true_branch


def _assigned_values(assignment: ast.Assign | ast.AnnAssign, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables that a plain assignment sets, with their values; empty for any other assignment.

    An assignment to an item of a table (`arguments["dtype"] = …`) sets the table with that item.
    """
    target_node = assignment.targets[0] if isinstance(assignment, ast.Assign) else assignment.target
    if isinstance(target_node, ast.Subscript) and assignment.value is not None:
        table_name = dotted_name_of(target_node.value)
        table, item_key = variables.get(table_name), expression_value(target_node.slice, variables)
        if isinstance(table, dict) and isinstance(item_key, str):
            return {table_name: {**table, item_key: nested_item_value(assignment.value, variables)}}
    return {} if assignment.value is None else assigned_values(target_node, assignment.value, variables)
