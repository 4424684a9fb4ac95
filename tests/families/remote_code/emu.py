from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

EMU: dict[str, Any] = {"model_type": "emu3_5", **COMMON_GROUPED, "max_position_embeddings": 64}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "Emu3ForCausalLM": [
        {**EMU, "head_dim": 16, "sliding_window": 8, "max_window_layers": 2, "use_sliding_window": False},
        {**EMU, "tie_word_embeddings": True},
    ],
}
