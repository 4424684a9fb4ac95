"""Configs that state a field under several of its names: the class of transformers decides which of them counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.families import shapes_of
from tests.witnesses.differential import judged


def first_shape(model_type: str) -> dict[str, Any]:
    return shapes_of(model_type)[0]


@pytest.mark.parametrize("names", [("num_hidden_layers", "encoder_layers"), ("encoder_layers", "num_hidden_layers")])
def test_the_last_of_several_other_names_counts(names: tuple[str, str]) -> None:
    depths = dict(zip(names, (6, 4), strict=True))
    assert judged({**first_shape("pix2struct_text_model"), **depths}) == ("same", "")


@pytest.mark.parametrize("model_type", ["t5", "switch_transformers"])
@pytest.mark.parametrize("keeps_usual_name", [True, False])
def test_decoders_and_expert_layers_go_by_the_classes_own_name(model_type: str, keeps_usual_name: bool) -> None:
    """`num_layers` sets the decoder's depth and the layers with experts before num_hidden_layers replaces it."""
    shape = first_shape(model_type)
    unread = () if keeps_usual_name else ("num_layers",)
    config = {name: value for name, value in shape.items() if name not in (*unread, "num_decoder_layers")}
    assert judged({**config, "num_hidden_layers": 2}) == ("same", "")
