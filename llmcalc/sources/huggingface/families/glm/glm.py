"""GLM-4 (glm) and GLM-4-0414 (glm4): RoPE on half of each head; GLM-4-0414 also has norms on sublayer outputs.

transformers: models/glm, models/glm4. Gate and up projection are fused into one matrix there.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, ModuleNames
from ...field_writers import NO_PADDING_WRITER, PARTIAL_ROTARY_WRITER
from ...parts import QKV_BIASES, Table, attention, attention_biases, decoder, fused_glu, layer_table, rmsnorm, rope


def _read_glm(config: Config, norm_placement: str = "pre") -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    position_encoding = rope(config, default_rotary_fraction=0.5)
    attention_table = attention(config, position=position_encoding, **attention_biases(config, QKV_BIASES))
    return decoder(config, layer_table(attention_table, fused_glu(config), norm, norm_placement), norm)


FUSED_GATE_MODULES: ModuleNames = {"gate_proj": "gate_up_proj/2", "up_proj": "gate_up_proj/2"}

GLM4_MODULES: ModuleNames = {"self_attn_post_norm": "post_self_attn_layernorm", "mlp_post_norm": "post_mlp_layernorm"}

FAMILIES = {
    "glm": Family(_read_glm, field_writers={**NO_PADDING_WRITER, **PARTIAL_ROTARY_WRITER}, modules=FUSED_GATE_MODULES),
    "glm4": Family(
        lambda config: _read_glm(config, "sandwich"),
        field_writers={**NO_PADDING_WRITER, **PARTIAL_ROTARY_WRITER},
        modules={**FUSED_GATE_MODULES, **GLM4_MODULES},
    ),
}
