"""LongCat-Flash: layers of two latent attentions, two dense FFNs and shortcut-connected experts.

Some experts are identity experts.

transformers: models/longcat_flash. vLLM: longcat_flash_mtp.py, for the module that predicts a further token.
"""

from __future__ import annotations

from .....ops import IdentityExperts, Op, Weight
from ...config import Config
from ...family import EVERY_CLASS, Deviation, Family, Quirks
from ...parts import Table, add_mtp_modules, decoder, gated_experts, glu, layer_table, rmsnorm
from .deepseek import LATENT_WRITERS, ROUTING_FIELDS, latent_attention


def read_longcat_flash(config: Config) -> Table:
    """Reads LongCat-Flash. Its scaling factors of latents and of the experts' sum are not counted as FLOPs."""
    head_size = config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")
    config.require("qk_head_dim", None, head_size)
    attention = latent_attention(
        config, q_lora_rank=config.integer("q_lora_rank")
    )  # the class always has a low-rank query
    router_fields: Table = {"router": {"score_correction": "buffer", "bias": config.flag("router_bias")}}
    if config.count("zero_expert_num"):
        config.require("zero_expert_type", "identity")
        router_fields["identity_experts"] = {"zero_expert_num": config.count("zero_expert_num")}
    loop_fields = {"expert_loop": True, "sliced_experts": True}
    experts = gated_experts(config, count_fields=("num_local_experts",), **loop_fields, **router_fields)
    norm = rmsnorm(config.number("rms_norm_eps"))
    layer: Table = {
        "type": "shortcut",
        "attention": attention,
        "feed_forward": experts,
        "dense": glu(config),
        "norm": norm,
        "norm_placement": "pre",
    }
    stack_fields: Table = {"num_hidden_layers": _layer_count(config)}
    mtp_layer = {"type": "block", **layer_table(attention, {"type": "mlp", **glu(config)}, norm)}
    mtp_fields = add_mtp_modules(config, stack_fields, "mtp", mtp_layer, own_embedding=True)
    return decoder(config, layer, norm, stack=stack_fields, **mtp_fields)


def _layer_count(config: Config) -> int:
    """Returns the class's number of layers, which is half of `num_hidden_layers`.

    If a config has both fields, `num_hidden_layers` is used.
    """
    depth = config.integer("num_layers")
    if "num_hidden_layers" not in config.config_fields:
        return depth
    half_depth = config.integer("num_hidden_layers")
    if half_depth < 2:
        raise config.error("num_hidden_layers", half_depth, "twice the number of layers")
    if config.has("num_layers") and half_depth != 2 * depth:
        config.notes.append(
            f"num_hidden_layers: {half_depth} is not twice num_layers, {depth}; {half_depth // 2} layers are counted, "
            "as transformers builds them"
        )
    return half_depth // 2


def _with_real_experts(op: Op) -> Op:
    """Returns an operation with the weights that the class has for identity experts but never uses."""
    if isinstance(op, IdentityExperts):
        return Weight(op.identity_count * sum(linear_layer.expert_params() for linear_layer in op.expert_layers[:-1]))
    return op


HOLDS_IDENTITIES = Deviation(
    "LongCat-Flash's identity experts",
    "identity experts have unused gate and up projections; checkpoints do not have them",
    "parameters",
    class_op=_with_real_experts,
)


FAMILIES = {
    "longcat_flash": Family(
        read_longcat_flash,
        {"num_hidden_layers": 56, "zero_expert_type": "identity", "router_bias": False},
        (ROUTING_FIELDS - {"qk_head_dim", "intermediate_size"})
        | {"attention_method", "mla_scale_q_lora", "mla_scale_kv_lora"},
        aliases={
            "num_local_experts": "n_routed_experts",
            "num_experts_per_tok": "moe_topk",
            "intermediate_size": "ffn_hidden_size",
            "moe_intermediate_size": "expert_ffn_hidden_size",
        },
        field_writers={
            **LATENT_WRITERS,
            "head_dim": lambda s: s.mla.qk_rope_head_dim,
            "num_hidden_layers": lambda s: 2 * len(s.layers),
            "num_layers": lambda s: len(s.layers),
        },
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        deviations=(HOLDS_IDENTITIES,),
    )
}
