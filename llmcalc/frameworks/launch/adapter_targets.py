"""Translates the names of adapted modules in launch files to the model's linear layers, as PEFT matches them.

PEFT takes a list of names, of which it skips those that the model does not have, or one regular expression for whole
paths (peft/tuners/tuners_utils.py, `check_target_module_exists`). An expression is not run: the alternatives of its
last component are listed (`(q|k|v)_proj`).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from ...costs.adapter_targets import joined_layers, layers_of_projections, split_matched_targets
from ...costs.adapters import linear_layer_names
from ...flow.module_names import Checkpoint
from ...model import ModelSpec
from ...workload.lora import ALL_LINEAR, PARALLEL_LIBRARIES, has_fused_group
from .launch_types import Launch

MODULE_NAMES_OUTSIDE_LAYERS = {
    **dict.fromkeys(("embed_in", "wte", "word_embeddings", "tok_embeddings"), "embed_tokens"),
    **dict.fromkeys(("embed_out", "output"), "lm_head"),
    **dict.fromkeys(("score", "classifier"), "out_proj"),
}
"""A class's own name of a module outside of the layers → llmcalc's name."""

ENCODER_PATH_WORDS = ("vision", "visual", "audio", "projector", "aligner")
"""Words in the paths of modules outside of the language model."""

LONGEST_PATTERN, MAX_MATCHED_NAMES = 400, 200
"""Largest number of characters in a regular expression, and of module names that it matches."""


def translate_adapter_targets(launched_run: Launch, model: ModelSpec, checkpoint: Checkpoint | None = None) -> Launch:
    """Returns the run with adapter targets renamed to the model's layers, with notes on renamed targets.

    The name of a layer that the model's class computes as one stays, because such a layer has one adapter. Names of
    which the model has none stay, and so does an option that was typed: both are errors where they are wrong.

    checkpoint: the checkpoint whose classes have the modules; None if it is not known.
    """
    launched_run = _translate_modules_to_save(launched_run, model)
    target_names = launched_run.settings.get("lora_targets")
    if not target_names or "lora_targets" in launched_run.option_overrides or tuple(target_names) == (ALL_LINEAR,):
        return launched_run if has_fused_group(target_names or ()) else _without_fused_adapters(launched_run)
    is_parallel = launched_run.settings.get("lora_library") in PARALLEL_LIBRARIES
    node_tree = model.tree()
    layer_names = linear_layer_names(node_tree, is_parallel=is_parallel)
    module_names = (
        checkpoint.names(node_tree, model.kind) if checkpoint is not None and checkpoint.module_names else None
    )
    layers_of_class = layers_of_projections(node_tree, frozenset(), module_names)
    joined_projections = {layer.projection for layer in joined_layers((), layers_of_class)}
    known_targets: dict[str, None] = {}
    target_notes = []
    for target_name in target_names:
        component_names = (
            [target_name] if target_name in layer_names else _last_component_names(target_name, layer_names)
        )
        layers, _ = split_matched_targets(component_names, layer_names, layers_of_class)
        is_fused_projection = not is_parallel and len(layers) > 1 and {*layers} <= joined_projections
        if is_fused_projection and not {*component_names} & {*layer_names}:
            known_targets |= dict.fromkeys(component_names)
            continue
        known_targets |= dict.fromkeys(layers)
        if layers and layers != [target_name]:
            target_notes.append(f"adapters of {target_name[:60]} are counted as those of {', '.join(layers)}")
        elif not layers and adapts_output_head([target_name]) and model.head.type == "lm":
            target_notes.append(
                f"adapters of {target_name[:60]}, and their product as wide as the logits, are not counted"
            )
        elif not layers:
            target_notes.append(f"adapters of {target_name[:60]}: the language model has no such linear layer")
    if not known_targets:
        return launched_run
    settings = {**launched_run.settings, "lora_targets": tuple(known_targets)}
    launched_run = replace(launched_run, settings=settings, notes=(*launched_run.notes, *target_notes))
    return launched_run if has_fused_group(known_targets) else _without_fused_adapters(launched_run)


def _without_fused_adapters(launched_run: Launch) -> Launch:
    """Returns the run with adapters in PEFT's layers, for targets that fused kernels cannot run."""
    if "fused_adapters" in launched_run.option_overrides or not launched_run.settings.get("fused_adapters"):
        return launched_run
    settings = {name: value for name, value in launched_run.settings.items() if name != "fused_adapters"}
    return replace(launched_run, settings=settings)


def adapts_output_head(target_names: Iterable[str]) -> bool:
    """Whether adapters target the output head, by llmcalc's or a transformers class's name for it."""
    return any(
        "lm_head" in (component_name, MODULE_NAMES_OUTSIDE_LAYERS.get(component_name))
        for target_name in target_names
        for component_name in (target_name, *_last_component_names(target_name))
    )


def _translate_modules_to_save(launched_run: Launch, model: ModelSpec) -> Launch:
    """Returns the run with fully trained modules renamed to llmcalc's names."""
    saved_modules = launched_run.settings.get("modules_to_save")
    if not saved_modules or "modules_to_save" in launched_run.option_overrides:
        return launched_run
    node_names = {node_position.node.name for node_position in model.tree().walk()}
    known_modules = tuple(
        name if name in node_names else MODULE_NAMES_OUTSIDE_LAYERS.get(name, name) for name in saved_modules
    )
    return replace(launched_run, settings={**launched_run.settings, "modules_to_save": known_modules})


WILDCARD_PATTERN = re.compile(r"[*\w.]*\*[*\w.]*")
"""Pattern of paths with `*` for any text, as in NeMo; in PEFT's regular expressions something precedes a `*`."""


def _last_component_names(target_pattern: str, layer_names: Iterable[str] = ()) -> list[str]:
    """Returns the module names that an adapter target matches: a name, path, pattern or wildcard.

    layer_names: the model's linear layers, of which a wildcard selects some.
    """
    if len(target_pattern) > LONGEST_PATTERN:
        return []
    if target_pattern.startswith("*") and WILDCARD_PATTERN.fullmatch(target_pattern) is not None:
        return fnmatch.filter(layer_names, target_pattern.rpartition(".")[2])
    try:
        return list(dict.fromkeys(_last_components(target_pattern)))[:MAX_MATCHED_NAMES]
    except ValueError:
        return []


PATTERN_TOKENS = re.compile(
    r"(?P<dot>\\?\.)(?![*+?])|(?P<any>\.[*+?]|\\[dw][*+?]?)|(?P<set>\[[^\]]*\])[*+?]?|(?P<word>\w)|[\^$]"
)
"""Pattern of the tokens of a regular expression, except groups."""


def _last_components(pattern_text: str) -> Iterator[str]:
    """Yields the module names that a regular expression of paths can end with. Raises `ValueError` if unclear."""
    for alternative in _split_alternatives(pattern_text):
        piece_alternatives: list[list[str]] = []  # after the last dot: the alternatives of each piece
        text_position, matched_text = 0, ""
        while text_position < len(alternative):
            if alternative[text_position] == "(":
                group_end = _closing_bracket_index(alternative, text_position)
                group_text = alternative[text_position + 1 : group_end].removeprefix("?:")
                text_position = group_end + 1
                has_quantifier = text_position < len(alternative) and alternative[text_position] in "?*+"
                text_position += has_quantifier
                if "." in group_text and not has_quantifier:
                    piece_alternatives = [list(_last_components(group_text))]
                elif not has_quantifier:
                    piece_alternatives.append(_split_alternatives(group_text))
                continue
            token_match = PATTERN_TOKENS.match(alternative, text_position)
            if token_match is None:
                raise ValueError(alternative)
            matched_text, text_position = matched_text + token_match[0], token_match.end()
            if token_match["dot"]:
                piece_alternatives = []
            elif token_match["word"]:
                piece_alternatives.append([token_match["word"]])
            elif token_match["set"] and re.fullmatch(r"\[\w+\]", token_match["set"]):
                piece_alternatives.append(list(token_match["set"][1:-1]))
            elif token_match["any"] or token_match["set"]:
                piece_alternatives.append([])
        if not any(encoder_name in matched_text for encoder_name in ENCODER_PATH_WORDS) and piece_alternatives:
            for combination_number, piece_texts in enumerate(product(*piece_alternatives)):
                if combination_number >= MAX_MATCHED_NAMES:
                    raise ValueError(pattern_text)
                yield "".join(piece_texts)


def _split_alternatives(pattern_text: str) -> list[str]:
    """Splits a regular expression at the `|` outside of groups."""
    alternatives, bracket_depth = [""], 0
    for character in pattern_text:
        bracket_depth += (character == "(") - (character == ")")
        if character == "|" and bracket_depth == 0:
            alternatives.append("")
        else:
            alternatives[-1] += character
    return alternatives


def _closing_bracket_index(pattern_text: str, group_start: int) -> int:
    """Returns the position of the bracket that closes a group. Raises `ValueError` if there is none."""
    bracket_depth = 0
    for text_position in range(group_start, len(pattern_text)):
        bracket_depth += (pattern_text[text_position] == "(") - (pattern_text[text_position] == ")")
        if bracket_depth == 0:
            return text_position
    raise ValueError(pattern_text)
