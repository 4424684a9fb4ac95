"""Fields that mean something of their own in a family, or that only it has: model type → field → its value.

They are grouped as the families are. None of them needs to say when it holds: what does not fit a spec does not read
back as that spec.
"""

from __future__ import annotations

from ..fields import FIELDS, PARTLY_TURNED, Value
from . import decoders, encoders, experts, recurrent

PADDED = frozenset(
    """
    bailing_hybrid eurobert flex_olmo glm glm4 hy_v4 kimi_linear lfm3 marian modernbert modernbert-decoder olmo_hybrid
    phi3 smollm3 whisper
    """.split()  # noqa: SIM905
)
"""Families whose padding token is one of the published vocabulary, which is not that of every spec."""

UNPADDED: dict[str, Value] = {"pad_token_id": lambda s: None}
FIRST_PADDED: dict[str, Value] = {"pad_token_id": lambda s: 0}
"""The class of ModernBERT's decoder takes no null."""


def _merged() -> dict[str, dict[str, Value]]:
    merged: dict[str, dict[str, Value]] = {}
    for group in (decoders.OWN, encoders.OWN, experts.OWN, recurrent.OWN):
        for kind, fields in group.items():
            merged[kind] = {**merged.get(kind, {}), **fields}
    for kind in PADDED:
        merged[kind] = {**merged.get(kind, {}), **(FIRST_PADDED if kind == "modernbert-decoder" else UNPADDED)}
    for kind in PARTLY_TURNED:
        share = "rotary_pct" if kind == "gpt_neox" else "partial_rotary_factor"
        merged[kind] = {**merged.get(kind, {}), share: FIELDS["partial_rotary_factor"]}
    return merged


OWN = _merged()

SPELLED_AS_READ = frozenset(
    {
        "bloom",
        "falcon",
        "granitemoehybrid",
        "hunyuan_vl_text",
        "jamba",
        "jetmoe",
        "mellum",
        "minimax",
        "nemotron_h",
        "nomic_bert",
        "zamba",
        "zamba2",
    }
)
"""Families whose other names for a field are those of older files, and not their class's own."""

__all__ = ["OWN", "SPELLED_AS_READ"]
