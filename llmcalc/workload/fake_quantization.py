"""The schemes of quantization-aware training: which values linear layers round before their product."""

from __future__ import annotations

import re

from ..errors import InputError, short_repr
from ..frozen import frozen

SCHEME_NAME = "int8-int4"
"""Name of the scheme that rounds inputs to 8 bits (a scale per token) and weights to 4 bits (a scale per group)."""


@frozen
class FakeQuantizationOptions:
    """Which values linear layers round in training, as in torchao's `Int8DynActInt4WeightQATQuantizer`.

    group_size: elements of a weight's row that share a scale; a layer whose rows it does not divide rounds nothing.
    skips_tied: whether an output head that is the table of embeddings rounds nothing (torchtune, `TiedLinear`).
    """

    group_size: int
    skips_tied: bool = False


def parse_fake_quantization(option_text: str) -> FakeQuantizationOptions:
    """Parses a scheme of quantization-aware training: `int8-int4:GROUP` or `int8-int4:GROUP:untied`."""
    scheme_match = re.fullmatch(rf"{SCHEME_NAME}:(\d{{1,5}})(:untied)?", option_text.strip())
    if scheme_match is None or int(scheme_match[1]) < 2:
        raise InputError(
            f"--fake-quantize: {short_repr(option_text)} is not a scheme; expected {SCHEME_NAME}:GROUP, such as "
            f"{SCHEME_NAME}:32, or {SCHEME_NAME}:GROUP:untied"
        )
    return FakeQuantizationOptions(int(scheme_match[1]), bool(scheme_match[2]))
