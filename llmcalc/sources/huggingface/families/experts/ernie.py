"""Baidu's ERNIE 4.5: Llama's layers (0.3B, PaddleOCR-VL), or dense layers below layers with experts (21B, 300B).

The experts' score correction is a parameter.

transformers: models/ernie4_5, models/ernie4_5_moe, models/paddleocr_vl; the text model of models/ernie4_5_vl_moe,
    which has a second set of experts for images. `use_bias` adds a bias to every linear layer except those of the
    routed experts. vLLM: ernie_mtp.py, for the modules of multi-token prediction, each with a dense layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .....components.base import MAX_EXPERTS
from ...config import Config
from ...family import Family, field_names, module_names
from ...parts import (
    QKVO_BIASES,
    Table,
    add_mtp_modules,
    attention,
    biases,
    decoder,
    dense_or_moe_kinds,
    glu,
    layer_table,
    moe,
    rmsnorm,
    stack_of_combined_kinds,
)
from ..llama.llama import llama_decoder

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _has_bias(config: Config) -> bool:
    return config.get("use_bias") is not None and config.flag("use_bias")


def _read_ernie4_5(config: Config) -> Table:
    return llama_decoder(config, attention(config, **biases(_has_bias(config), *QKVO_BIASES)), _has_bias(config))


CORRECTED_ROUTER: Table = {"score_correction": "parameter"}


def _read_ernie4_5_moe(config: Config) -> Table:
    """Reads ERNIE 4.5 MoE: experts in every `moe_layer_interval`-th layer of a range.

    The range is `moe_layer_start_index` to `moe_layer_end_index` (-1: the last).
    """
    depth = config.integer("num_hidden_layers")
    first_expert_layer = config.count("moe_layer_start_index")
    expert_interval = config.integer("moe_layer_interval")
    last_expert_layer = depth - 1 if config.get("moe_layer_end_index") == -1 else config.count("moe_layer_end_index")
    layer_kinds = [
        "moe"
        if first_expert_layer <= layer_index <= last_expert_layer and (layer_index + 1) % expert_interval == 0
        else "dense"
        for layer_index in range(depth)
    ]
    return _ffn_kinds(config, layer_kinds, config.integer("moe_intermediate_size"), {"bias": _has_bias(config)})


def _read_ernie4_5_vl_moe_text(config: Config) -> Table:
    moe_intermediate_size = config.get("moe_intermediate_size")
    expert_widths = [1536, 512] if moe_intermediate_size is None else config.integers("moe_intermediate_size")
    if len(expert_widths) != 2 or 0 in expert_widths:
        raise config.error(
            "moe_intermediate_size", expert_widths, "two positive whole numbers: for a text expert, for an image expert"
        )
    depth = config.integer("num_hidden_layers")
    is_stated = config.has("moe_layer_start_index")
    first_expert_layer = _text_expert_number(config, "moe_layer_start_index", depth) if is_stated else 1
    layer_kinds = dense_or_moe_kinds(config, depth, first_expert_layer)
    if is_stated and layer_kinds != ["dense"] * first_expert_layer + ["moe"] * (depth - first_expert_layer):
        raise config.field_error("moe_layer_start_index", "the first sparse layer of mlp_layer_types, or null")
    if (
        is_stated
        and first_expert_layer != 1
        and not config.has("mlp_layer_types")
        and config.config_fields.get("model_type") != BAIDU_MODEL_TYPE
    ):
        config.notes.append(
            "moe_layer_start_index: counted as Baidu's own code reads it; the class of transformers reads "
            "mlp_layer_types alone, and without it has one dense layer"
        )
    if config.has("moe_layer_end_index") and _text_expert_number(config, "moe_layer_end_index", depth - 1) != depth - 1:
        raise config.field_error("moe_layer_end_index", f"{depth - 1} or more")
    config.require_if_present("moe_layer_interval", 1)
    vision_experts = {"expert": glu(config, ffn_width=expert_widths[1]), "router": CORRECTED_ROUTER}
    return _ffn_kinds(config, layer_kinds, expert_widths[0], {}, vision_experts=vision_experts)


BAIDU_MODEL_TYPE = "ernie4_5_moe_vl"
"""The model type of Baidu's own code, whose configuration class has no shared experts by default."""


def _text_expert_number(config: Config, field_name: str, maximum: int) -> int:
    """Returns a size of the text experts; earlier configs list two values, for text and for image experts.

    Raises `InputError` if the two differ.
    """
    stated_counts = config.get(field_name)
    expert_counts = config.integers(field_name) if config.has_list(field_name) else [config.count(field_name)]
    bounded_counts = {min(expert_count, maximum) for expert_count in expert_counts}
    if len(bounded_counts) != 1:
        raise config.error(field_name, stated_counts, "the same number for text and for images")
    return bounded_counts.pop()


def _ffn_kinds(
    config: Config, layer_kinds: list[str], expert_width: int, head_fields: Table, **expert_fields: Table
) -> Table:
    norm, has_bias = rmsnorm(config.number("rms_norm_eps")), _has_bias(config)
    model_type = config.config_fields.get("model_type")
    lacks_shared_experts = model_type == BAIDU_MODEL_TYPE and not config.has("moe_num_shared_experts")
    shared_expert_count = 0 if lacks_shared_experts else config.count("moe_num_shared_experts")
    experts = moe(
        _text_expert_number(config, "num_experts", MAX_EXPERTS)
        if config.has_list("num_experts")
        else config.integer("num_experts"),
        config.integer("num_experts_per_tok"),
        glu(config, ffn_width=expert_width),
        glu(config, has_bias, expert_width * shared_expert_count) if shared_expert_count else None,
        router=CORRECTED_ROUTER,
        **expert_fields,
    )
    block = layer_table(attention(config, **biases(has_bias, *QKVO_BIASES)), glu(config, has_bias), norm)
    stack_fields = stack_of_combined_kinds((layer_kinds, {"dense": {}, "moe": {"feed_forward": experts}}))
    mtp_fields = add_mtp_modules(config, stack_fields, "dense", {}, final_norm=False)
    return decoder(config, block, norm, head=head_fields, stack=stack_fields, **mtp_fields)


IGNORED_FIELDS = field_names("""
    compression_ratio freq_allocation fuse_rope moe_aux_loss_lambda moe_capacity moe_dense_experts_token_type_id
    moe_dropout_prob moe_gate moe_group_experts moe_norm_gate_logits moe_norm_min moe_multimodal_dispatch_use_allgather
    moe_orthogonal_loss_lambda moe_orthogonal_loss_type moe_use_aux_free moe_use_hard_gate moe_z_loss_lambda rope_3d
    rope_reduction tensor_parallel_output use_fused_head_and_loss_fn use_recompute_loss_fn use_rmsnorm
    weight_share_add_bias
    num_acc_steps per_device_train_batch_size multi_token_pred_lambda use_recompute_mtp
    """)
"""Fields that change no count. The last line has settings of a run, which ERNIEKit writes into the config that it saves
(`num_acc_steps` is its `gradient_accumulation_steps`), and which its classes read for the loss alone.
"""

ALIASES = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"}


def _expert_interval(model_values: ConfigValues) -> int:
    moe_layers = model_values.expert_layers()
    return moe_layers[1] - moe_layers[0] if len(moe_layers) > 1 else 1


FAMILIES = {
    "ernie4_5": Family(_read_ernie4_5, ignored_fields=IGNORED_FIELDS, dropout_fields={}),
    "paddleocr_vl": Family(None, text_type="paddleocr_vl_text", tying_source="either", tower_file="siglip"),
    "paddleocr_vl_text": Family(_read_ernie4_5, ignored_fields=IGNORED_FIELDS | {"use_3d_rope"}, dropout_fields={}),
    "ernie4_5_moe": Family(
        _read_ernie4_5_moe,
        {"head_dim": None},
        IGNORED_FIELDS,
        aliases=ALIASES,
        field_writers={
            "moe_layer_start_index": lambda s: s.expert_layers()[0],
            "moe_layer_end_index": lambda s: s.expert_layers()[-1],
            "moe_layer_interval": _expert_interval,
        },
        modules=module_names("ernie_moe"),
        dropout_fields={},
    ),
    "ernie4_5_vl_moe": Family(None, text_type="ernie4_5_vl_moe_text", tower_file="qwen"),
    "ernie4_5_vl_moe_text": Family(
        _read_ernie4_5_vl_moe_text,
        {"head_dim": None},
        IGNORED_FIELDS | {"pixel_hidden_size", "spatial_conv_size", "temporal_conv_size"},
        aliases=ALIASES,
        has_text_class=False,
        dropout_fields={},
    ),
}
