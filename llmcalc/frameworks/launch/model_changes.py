"""Finds changes that a Python file makes to its loaded model, from the syntax tree: formats, freezing, adapters.

A change that readers of Python files model is an argument of the Trainer; any other is an unknown argument, so that a
run is never counted as if the file had left its model alone. Sources: PEFT 0.18 (peft/tuners/*/config.py), transformers
5.23 (trainer.py, `optimizers`), bitsandbytes 0.48 (bitsandbytes/optim).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...sources.huggingface.family import field_names
from .python_source import dotted_name_of

DTYPE_BY_METHOD = {"float": "float32", "half": "float16", "bfloat16": "bfloat16"}
"""Method that converts a model → number format of its result."""

OPTIMIZER_CLASSES: Mapping[str, str] = {
    "AdamW": "adamw_torch",
    "Adam8bit": "adamw_bnb_8bit",
    "AdamW8bit": "adamw_bnb_8bit",
    "PagedAdamW": "paged_adamw_32bit",
    "PagedAdamW32bit": "paged_adamw_32bit",
    "PagedAdamW8bit": "paged_adamw_8bit",
    "Lion8bit": "lion_8bit",
    "PagedLion8bit": "paged_lion_8bit",
    "Adafactor": "adafactor",
    "SGD": "sgd",
}
"""Class of an optimizer created in the file → value of the Trainer's `optim`."""

LORA_CONFIG_CLASSES = ("LoraConfig", "LoftQConfig", "PeftConfig", "LoraRuntimeConfig", "EvaConfig", "CordaConfig")
"""Names of PEFT's config classes for LoRA adapters."""

IGNORED_LORA_ARGUMENTS = field_names("""
    lora_alpha task_type inference_mode fan_in_fan_out use_rslora init_lora_weights alpha_pattern runtime_config
    revision peft_type base_model_name_or_path auto_mapping corda_config eva_config loftq_config layers_pattern
    """)
"""Arguments of `LoraConfig` that do not change sizes."""

OTHER_HEAD_CLASS = re.compile(
    r"(AutoModel|\w+)For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)"
)
"""Pattern of transformers classes with a head other than a language model's."""

OTHER_HEAD_REASON = (
    "its head is no language model's; expected TARGET with --phase training --set head.type=classification --set "
    "head.num_labels=N"
)
"""Message for a refused model whose head is not a language model's."""

OTHER_MODEL_NAME = re.compile(r"ref|reward|teacher|critic|value|vis|image|audio|embed_model", re.IGNORECASE)
"""Pattern of the names of models that are not counted: models beside the trained one, and encoders."""

SIZE_FIELD = re.compile(
    r"num_(hidden_layers|attention_heads|key_value_heads|layers|heads|local_experts)|n_(layers?|embd|heads?|inner)|"
    r"hidden_size|intermediate_size|head_dim|d_model|d_ff|ffn_dim|vocab_size"
)
"""Pattern of the fields of a model's configuration that are sizes."""

LAYER_LISTS = ("layers", "h", "blocks", "layer")
"""Names of attributes that hold a model's layers."""

FROZEN_NOTE = "parameters that the file freezes are counted as trained"


@dataclass
class ModelChanges:
    """The changes that a Python file makes to its model.

    arguments: equivalent arguments of the Trainer.
    unknown_arguments: change → why it is not modelled.
    notes: changes that are not counted, and are small.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    unknown_arguments: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def changes_of_model(
    syntax_tree: ast.Module, call_nodes: Sequence[ast.Call], lora_arguments: Collection[str]
) -> ModelChanges:
    """Returns the changes that a Python file makes to its model, such as freezing or adapters.

    call_nodes: the calls of the file, by line.
    lora_arguments: the arguments of `LoraConfig`, or of a function that adds adapters, that the reader knows.
    """
    changes = ModelChanges()
    model_names = _model_names(syntax_tree)
    _record_adapters(changes, syntax_tree, call_nodes, lora_arguments)
    _record_optimizer(changes, syntax_tree, call_nodes)
    has_adapters = any(_called_name(call_node) in ("LoraConfig", "get_peft_model") for call_node in call_nodes)
    if not has_adapters and any(_freezing_nodes(syntax_tree)):
        changes.unknown_arguments["requires_grad"] = FROZEN_NOTE
    for call_node in call_nodes:
        _record_weight_conversion(changes, call_node, model_names)
        _record_other_head(changes, call_node)
    _record_size_overrides(changes, syntax_tree, call_nodes)
    if any(_replaces_layers(statement, model_names) for statement in ast.walk(syntax_tree)):
        changes.unknown_arguments["layers"] = "the file replaces layers of the model; expected TARGET with --set"
    if any(_called_name(call_node) == "resize_token_embeddings" for call_node in call_nodes):
        changes.notes.append("resize_token_embeddings: the embedding is counted with the rows of the model's config")
    return changes


def _called_name(call_node: ast.Call) -> str:
    """Returns the last component of a called function's name: `to` for both `model.to(…)` and `load(…).to(…)`."""
    return call_node.func.attr if isinstance(call_node.func, ast.Attribute) else dotted_name_of(call_node.func)


def _is_model_call(expression: ast.expr) -> bool:
    """Whether an expression returns the trained model: a call that loads or converts the model, or adds adapters."""
    while isinstance(expression, ast.Call):
        called_name = dotted_name_of(expression.func)
        method_name = called_name.rpartition(".")[2]
        if method_name in ("from_pretrained", "from_config", "get_peft_model", "prepare_model_for_kbit_training"):
            return re.search(r"okenizer|Processor|Config\.", called_name) is None
        expression = expression.func.value if isinstance(expression.func, ast.Attribute) else expression.func
    return False


def _model_names(syntax_tree: ast.Module) -> set[str]:
    """Returns the names of the variables to which the trained model is assigned."""
    assignments = [
        assignment
        for assignment in ast.walk(syntax_tree)
        if isinstance(assignment, ast.Assign) and _is_model_call(assignment.value)
    ]
    target_nodes = [target_node for assignment in assignments for target_node in assignment.targets]
    name_nodes = [
        target_node.elts[0] if isinstance(target_node, ast.Tuple) and target_node.elts else target_node
        for target_node in target_nodes
    ]
    return {
        assignment.id
        for assignment in name_nodes
        if isinstance(assignment, ast.Name) and OTHER_MODEL_NAME.search(assignment.id) is None
    }


def _record_adapters(
    model_changes: ModelChanges, syntax_tree: ast.Module, calls: Sequence[ast.Call], lora_arguments: Collection[str]
) -> None:
    """Adds LoRA arguments that change sizes, and adapters of other kinds than LoRA, to the unknown arguments."""
    import_nodes = [import_node for import_node in ast.walk(syntax_tree) if isinstance(import_node, ast.ImportFrom)]
    peft_names = {
        alias.name
        for import_node in import_nodes
        if (import_node.module or "").startswith("peft")
        for alias in import_node.names
    }
    for call_node in calls:
        called_name, class_name = dotted_name_of(call_node.func), _called_name(call_node)
        if class_name == "LoraConfig" or called_name.endswith("Model.get_peft_model"):
            for keyword in call_node.keywords:
                if (
                    keyword.arg
                    and keyword.arg not in {*lora_arguments, *IGNORED_LORA_ARGUMENTS}
                    and not _turns_feature_off(keyword.value)
                ):
                    model_changes.unknown_arguments[keyword.arg] = f"{class_name} is modelled without"
        is_peft_class = class_name in peft_names or called_name == f"peft.{class_name}"
        if is_peft_class and class_name.endswith("Config") and class_name not in LORA_CONFIG_CLASSES:
            model_changes.unknown_arguments[class_name] = "PEFT's adapters other than LoRA are not modelled"


def _turns_feature_off(value_node: ast.expr) -> bool:
    """Whether the value of an argument turns the argument's feature off."""
    if isinstance(value_node, ast.List | ast.Tuple):
        return not value_node.elts
    if isinstance(value_node, ast.Dict):
        return not value_node.keys
    return isinstance(value_node, ast.Constant) and value_node.value in (None, False, "none", "", 0)


def _record_optimizer(model_changes: ModelChanges, syntax_tree: ast.Module, calls: Sequence[ast.Call]) -> None:
    """Records an optimizer that the file creates and passes to the trainer, in place of the argument `optim`."""
    created_optimizers = {
        target_node.id: _called_name(syntax_node.value)
        for syntax_node in ast.walk(syntax_tree)
        if isinstance(syntax_node, ast.Assign) and isinstance(syntax_node.value, ast.Call)
        for target_node in syntax_node.targets
        if isinstance(target_node, ast.Name)
    }
    for call_node in calls:
        optimizers_node = next((keyword.value for keyword in call_node.keywords if keyword.arg == "optimizers"), None)
        if (
            not _called_name(call_node).endswith("Trainer")
            or not isinstance(optimizers_node, ast.Tuple | ast.List)
            or not optimizers_node.elts
        ):
            continue
        optimizer_node = optimizers_node.elts[0]
        if isinstance(optimizer_node, ast.Constant) and optimizer_node.value is None:
            continue
        class_name = _called_name(optimizer_node) if isinstance(optimizer_node, ast.Call) else ""
        class_name = class_name or created_optimizers.get(dotted_name_of(optimizer_node), "")
        if class_name in OPTIMIZER_CLASSES:
            model_changes.arguments["optim"] = OPTIMIZER_CLASSES[class_name]
        else:
            model_changes.unknown_arguments["optimizers"] = (
                f"{class_name or 'an optimizer of the file'} is not modelled"
            )


def _freezing_nodes(syntax_tree: ast.Module) -> Iterator[ast.AST]:
    """Yields the places where the file freezes parameters of the trained model."""
    other_model_nodes: set[int] = set()
    for loop_node in ast.walk(syntax_tree):
        if isinstance(loop_node, ast.For) and not _names_trained_model(loop_node.iter):
            other_model_nodes |= {id(loop_part) for loop_part in ast.walk(loop_node)}
    for loop_part in ast.walk(syntax_tree):
        if id(loop_part) in other_model_nodes:
            continue
        if (
            isinstance(loop_part, ast.Assign)
            and isinstance(loop_part.value, ast.Constant)
            and loop_part.value.value is False
        ):
            target_node = loop_part.targets[0]
            if (
                isinstance(target_node, ast.Attribute)
                and target_node.attr == "requires_grad"
                and _names_trained_model(target_node.value)
            ):
                yield loop_part
        if (
            isinstance(loop_part, ast.Call)
            and isinstance(loop_part.func, ast.Attribute)
            and loop_part.func.attr == "requires_grad_"
        ):
            is_disabled = (
                bool(loop_part.args)
                and isinstance(loop_part.args[0], ast.Constant)
                and loop_part.args[0].value is False
            )
            if is_disabled and _names_trained_model(loop_part.func.value):
                yield loop_part


def _names_trained_model(owner_node: ast.expr) -> bool:
    """Whether an expression refers to the trained model alone, not to a reference model."""
    node_names = (getattr(name_node, "id", "") or getattr(name_node, "attr", "") for name_node in ast.walk(owner_node))
    return not any(map(OTHER_MODEL_NAME.search, node_names))


def _record_weight_conversion(model_changes: ModelChanges, call_node: ast.Call, model_names: Collection[str]) -> None:
    """Records a call that converts the weights of the model, or compiles the model."""
    if (
        dotted_name_of(call_node.func) == "torch.compile"
        and call_node.args
        and dotted_name_of(call_node.args[0]) in model_names
    ):
        model_changes.arguments["torch_compile"] = True
    if not isinstance(call_node.func, ast.Attribute):
        return
    owner_node = call_node.func.value
    if not (_is_model_call(owner_node) or (isinstance(owner_node, ast.Name) and owner_node.id in model_names)):
        return
    if call_node.func.attr in DTYPE_BY_METHOD and not call_node.args:
        model_changes.arguments["dtype"] = DTYPE_BY_METHOD[call_node.func.attr]
    if call_node.func.attr == "to":
        value_nodes = [*call_node.args, *(keyword.value for keyword in call_node.keywords if keyword.arg == "dtype")]
        for format_name in (dotted_name_of(value_node).removeprefix("torch.") for value_node in value_nodes):
            if format_name in DTYPE_BY_METHOD.values():
                model_changes.arguments["dtype"] = format_name


def _record_other_head(model_changes: ModelChanges, call_node: ast.Call) -> None:
    """Records as not modelled that a call loads the model with another head than a language model's."""
    class_name = dotted_name_of(call_node.func).removesuffix(".from_pretrained").rpartition(".")[2]
    if OTHER_HEAD_CLASS.fullmatch(class_name) is not None:
        model_changes.unknown_arguments[class_name] = OTHER_HEAD_REASON


def _record_size_overrides(model_changes: ModelChanges, syntax_tree: ast.Module, calls: Sequence[ast.Call]) -> None:
    """Records sizes with which the file overrides a published model's config, as arguments or as attributes."""
    config_sizes: dict[str, Any] = {}
    for call_node in calls:
        if _called_name(call_node) in ("from_pretrained", "from_config"):
            config_sizes |= {keyword.arg: keyword.value for keyword in call_node.keywords if keyword.arg}
    for statement in ast.walk(syntax_tree):
        target_node = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if (
            isinstance(target_node, ast.Attribute)
            and re.search(r"config$", dotted_name_of(target_node.value)) is not None
        ):
            config_sizes[target_node.attr] = statement.value if isinstance(statement, ast.Assign) else None
    new_sizes = {
        field_name: field_value.value
        for field_name, field_value in config_sizes.items()
        if SIZE_FIELD.fullmatch(field_name) and isinstance(field_value, ast.Constant) and type(field_value.value) is int
    }
    if new_sizes:
        settings_text = " ".join(f"--set {field_name}={size_value}" for field_name, size_value in new_sizes.items())
        model_changes.unknown_arguments[next(iter(new_sizes))] = (
            f"the file changes the model's sizes; expected TARGET with {settings_text}"
        )


def _replaces_layers(statement: ast.AST, model_names: Collection[str]) -> bool:
    """Whether a statement assigns or deletes layers of the model."""
    target_nodes: list[ast.expr] = []
    if isinstance(statement, ast.Assign | ast.Delete):
        target_nodes = statement.targets
    for target_node in target_nodes:
        owner_node = target_node.value if isinstance(target_node, ast.Subscript) else target_node
        owner_name, _, attribute_path = dotted_name_of(owner_node).partition(".")
        if owner_name in model_names and attribute_path.rpartition(".")[2] in LAYER_LISTS:
            return True
    return False
