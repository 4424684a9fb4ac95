"""DeepSeek-V4: the kind of each layer from the compression ratios of an older config."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.errors import InputError
from tests.builders import spec_of
from tests.families.deepseek.deepseek_v4 import SMALL

OLDER: dict[str, Any] = {**SMALL, "compress_rates": None, "num_hash_layers": 1}


def attention_of(config: dict[str, Any]) -> list[str]:
    """The kind of attention of each layer, with the tokens per compressed entry; 0 for none."""
    stack = spec_of(config).main
    layers: list[Any] = [stack.layer(name) for name in stack.layer_names()]
    return [
        f"{name.split('-')[0]} {getattr(layer.attention, 'compress_rate', None) or 0}"
        for name, layer in zip(stack.layer_names(), layers, strict=True)
    ]


def test_ratios_say_what_a_layer_attends_to() -> None:
    """A ratio of the module that predicts further tokens may follow."""
    kinds = ["sliding 0", "sparse 4", "heavy 128", "sparse 4"]
    assert attention_of({**OLDER, "compress_ratios": [0, 4, 128, 4]}) == kinds
    assert attention_of({**OLDER, "compress_ratios": [0, 4, 128, 4, 0]}) == kinds
    assert attention_of({**OLDER, "compress_ratios": [4, 4, 4, 4]}) == ["sparse 4"] * 4


def test_without_ratios_and_types_layers_alternate_from_the_second() -> None:
    kinds = ["heavy 8", "heavy 8", "heavy 8", "sparse 4", "heavy 8", "sparse 4"]
    assert attention_of({**SMALL, "num_hidden_layers": 6}) == kinds


@pytest.mark.parametrize("ratios", [[0, 4, 128], [0, 4, 8, 4], [0, 4, 127, 4], [4, 4, 4, 4, 5]])
def test_ratios_of_no_kind_and_too_few_are_refused(ratios: list[int]) -> None:
    with pytest.raises(InputError, match=r"compress_ratios: .*; expected 4 times 0, 4 or 128"):
        spec_of({**OLDER, "compress_ratios": ratios})
