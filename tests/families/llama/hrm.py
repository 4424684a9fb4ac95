"""Shapes of the families in `sources/huggingface/families/llama/hrm.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {**COMMON_SMALL, "num_hidden_layers": 2, "head_dim": 12}

SHAPES = {
    "HrmTextForCausalLM": [
        {"model_type": "hrm_text", **SMALL},
        {
            "model_type": "hrm_text",
            **SMALL,
            "H_cycles": 3,
            "L_cycles": 1,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
}
