"""Gemma 4's draft models: layers that read a target's cached keys and values, with an input and an output projection.

transformers: models/gemma4_assistant, models/gemma4_unified_assistant. Their layers are those of Gemma 4 in which all
share keys and values; the input is the target's embedding of the token beside its last hidden state.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...dropout import dropout_of
from ...family import Family, module_names
from ...parts import Table
from ...registry import family_of, typed_config


def _read_assistant(config: Config) -> Table:
    """Reads the draft of a Gemma 4, which has no experts, no per-layer embeddings and no double-width FFNs."""
    return _draft_model(config, "gemma4_text", {"enable_moe_block": False, "use_double_wide_mlp": False})


def _draft_model(config: Config, draft_model_type: str, usual_values: dict[str, Any]) -> Table:
    """Reads a draft model. draft_model_type: the model type of the layers.

    usual_values: fields of theirs with the value that the class takes.
    """
    text_fields, family = config.table("text_config"), family_of(draft_model_type)
    if text_fields.get("model_type", draft_model_type) != draft_model_type:
        raise config.error(
            "text_config", text_fields["model_type"], f"a table of fields with the model_type {draft_model_type}"
        )
    stated_config = typed_config(text_fields, draft_model_type, family, "lm", "text_config.")
    for field_name, field_value in usual_values.items():
        stated_config.require(field_name, field_value)
    if "hidden_size_per_layer_input" in family.defaults:
        stated_config.require("hidden_size_per_layer_input", 0)
    stated_config.require("num_kv_shared_layers", 0, stated_config.integer("num_hidden_layers"))
    stated_config.require("use_bidirectional_attention", None, "vision")
    has_double_wide_mlp = stated_config.flag("use_double_wide_mlp")
    config_data = {**text_fields, "num_kv_shared_layers": 0, "tie_word_embeddings": config.flag("tie_word_embeddings")}
    text_config = typed_config(config_data, draft_model_type, family, "lm", "text_config.")
    assert family.read_model is not None
    model_fields = {**family.read_model(text_config), **dropout_of(text_config, family)}
    text_config.finish(family.ignored_fields, config)
    config.notes += text_config.notes
    _share_target_keys(model_fields["decoder"], has_double_wide_mlp)
    target_width = config.integer("backbone_hidden_size")
    model_fields["decoder"]["streams"] = {"type": "target_states", "start": "target", "states": 2, "size": target_width}
    model_fields["proposal"] = {"state_size": target_width}
    cluster_field_names = ("num_centroids", "centroid_intermediate_top_k")
    if config.flag("use_ordered_embeddings"):
        cluster_sizes = {field_name: config.integer(field_name) for field_name in cluster_field_names}
        if model_fields["vocab_size"] % cluster_sizes["num_centroids"]:
            raise config.error(
                "num_centroids", cluster_sizes["num_centroids"], f"a divisor of {model_fields['vocab_size']} tokens"
            )
        if cluster_sizes["centroid_intermediate_top_k"] > cluster_sizes["num_centroids"]:
            raise config.error(
                "centroid_intermediate_top_k", cluster_sizes["centroid_intermediate_top_k"], "at most num_centroids"
            )
        model_fields["head"]["clusters"] = cluster_sizes
    config.fields_read.update(cluster_field_names)
    return model_fields


def _share_target_keys(stack_fields: Table, has_double_wide_mlp: bool) -> None:
    """Makes all layers read the target's keys and values. has_double_wide_mlp: whether FFNs have twice the width."""
    block = dict(stack_fields["block"])
    block["attention"] = {**block["attention"], "kv_shared": True}
    if has_double_wide_mlp:
        ffn = block["feed_forward"]
        block["feed_forward"] = {**ffn, "intermediate_size": 2 * ffn["intermediate_size"]}
    stack_fields["block"] = block


DEFAULTS: dict[str, Any] = {
    "backbone_hidden_size": 1536,
    "use_ordered_embeddings": False,
    "num_centroids": 2048,
    "centroid_intermediate_top_k": 32,
    "tie_word_embeddings": True,
}
IGNORED_FIELDS = frozenset({"block_size"})
MODELS_FOLDER = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/"

FAMILIES = {
    "gemma4_assistant": Family(
        _read_assistant,
        DEFAULTS,
        IGNORED_FIELDS,
        source=f"{MODELS_FOLDER}gemma4_assistant/modeling_gemma4_assistant.py",
    ),
    "gemma4_unified_assistant": Family(
        lambda config: _draft_model(config, "gemma4_unified_text", {}),
        {**DEFAULTS, "backbone_hidden_size": 3840},
        IGNORED_FIELDS,
        modules=module_names("gemma4_assistant"),
        source=f"{MODELS_FOLDER}gemma4_unified_assistant/modeling_gemma4_unified_assistant.py",
    ),
}
"""Families of Gemma 4's drafts. transformers 5.23 cannot build their classes: its check of layers with shared keys and
values expects a layer that computes them, which only the target model has.
"""
