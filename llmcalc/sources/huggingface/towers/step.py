"""The vision encoder of Step 3.7 and Step3-VL: layers with RoPE and scaled outputs; convolutions halve the grid.

transformers: models/step3p7. vllm/model_executor/models/step_vl.py of vllm-project/vllm.
"""

from __future__ import annotations

from ....components.base import LARGEST_SIZE
from ..class_defaults import class_defaults
from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, Table, layernorm, mlp
from .section import ROTARY_POSITION, biased_layer, patches_per_side, projector, vision_section, vision_transformer

COUNTED_FLAGS = {
    "use_cls_token": False, "use_ln_post": False, "use_abs_posemb": True, "use_ln_pre": True, "use_rope2d": True,
}  # fmt: skip
"""Config flag → the only supported value. Only the published code reads the first two flags; transformers' class always
behaves as the others say.
"""


def _read_step(root_config: Config, config: Config, text_hidden_size: int) -> Table:
    """Reads Step's encoder, two convolutions that each halve the sides of the patch grid, and a linear layer."""
    hidden_size, norm = config.integer("hidden_size"), layernorm(config.number("layer_norm_eps"))
    for field_name, required_value in COUNTED_FLAGS.items():
        if bool(config.config_fields.get(field_name, required_value)) != required_value:
            raise config.error(field_name, config.config_fields[field_name], "true" if required_value else "false")
    for field_name in ("layer_scale_init_value", "ls_init_value"):
        if config.config_fields.get(field_name, 0.1) is None:
            raise config.error(field_name, None, "a number (layers without scaled outputs are not counted)")
    mlp_ratio = config.number("mlp_ratio")
    if not 1 <= hidden_size * mlp_ratio <= LARGEST_SIZE:
        raise config.error("mlp_ratio", mlp_ratio, f"a width of at most {LARGEST_SIZE}")
    ffn = mlp(int(hidden_size * mlp_ratio), config.choice(ACTIVATIONS, "hidden_act"))
    tower = vision_transformer(
        config,
        {**biased_layer(config, norm, ffn=ffn, **ROTARY_POSITION), "residual_scale": "output"},
        stack={"embedding_norm": norm},
        patch_fields={"num_channels": config.integer("num_channels")},
        positions={"rows": patches_per_side(config) ** 2},
    )
    halving_convolutions = [
        {"size": channel_count, "bias": True, "halves": True} for channel_count in (2 * hidden_size, 4 * hidden_size)
    ]
    linear_layer = (text_hidden_size, root_config.flag("projector_bias"), "identity")
    return {
        "vision_model": tower,
        "vision_downsampler": {**projector(hidden_size), "maps": halving_convolutions},
        "multi_modal_projector": projector(4 * hidden_size, linear_layer),
    }


VISION_DEFAULTS: Table = class_defaults("step3p5_vision")

VISION_SECTION = vision_section(
    _read_step,
    {"step3p5_vision": VISION_DEFAULTS, "perception_encoder": VISION_DEFAULTS},  # the second in published configs
    {"projector_bias": False},
    aliases={"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"},
    ignored_fields=field_names("""
        intermediate_size layer_scale_init_value ls_init_value output_dim pool_type rope_parameters use_abs_posemb
        use_cls_token use_ln_post use_ln_pre use_rope2d
        """),
)

WRAPPERS = {"step3p7": VISION_SECTION, "step_robotics": VISION_SECTION}
