"""Configs of draft models for speculative decoding, which are parts of another model and are not counted.

An EAGLE-3 draft (Li 2025, arXiv:2503.01840, §3) has one layer that reads the target model's hidden states beside the
embeddings, a projection of them, and a smaller output vocabulary. Its config states the model type of a whole model,
such as `llama`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import InputError, shown
from .heads import architecture_of

DRAFT_CLASS = re.compile(r"P?Eagle3?(?=[A-Z]|$)|Medusa|Speculator|D(Flash|Spark)|(Domino|MTP)Draft|NextN(?=[A-Z]|$)")
"""Part of the class names of drafts: EAGLE, EAGLE-3 and P-EAGLE, Medusa, vLLM's speculators, DFlash, DSpark, Domino,
and SGLang's prediction modules.
"""

DRAFT_FIELDS = (
    "draft_vocab_size", "eagle_config", "dflash_config", "medusa_num_heads", "speculators_config",
    "speculators_model_type",
)  # fmt: skip
"""Fields that only configs of drafts have."""


def require_whole(config: Mapping[str, Any]) -> None:
    """Raises `InputError` for the config of a draft model, recognised by its class or by a field."""
    name = architecture_of(config)
    fields = [field for field in DRAFT_FIELDS if config.get(field) is not None]
    if DRAFT_CLASS.search(name):
        sign = f"architectures: {name} is"
    elif fields:
        sign = f"{fields[0]}: {shown(config[fields[0]])} is a field of"
    else:
        return
    raise InputError(
        f"{sign} a draft model for speculative decoding, which reads the hidden states of its target model and is not "
        "supported; expected the config of a whole model, such as the target model"
    )
