"""Bytes of quantized weights under a scheme, by purpose (weights, scales, zeros, …) and by component.

`base` walks the model. `linear` and `formats` have the schemes that convert linear layers, `gguf` has llama.cpp's mixes
and `mlx` has mlx-lm's formats. `config` reads a Hugging Face `quantization_config`, `named` the names of `--quantize`.

A scheme may be changed or added without reading the others: all that the rest asks of it is
`QuantizationScheme` of `base`.
"""

from .base import BYTE_PURPOSES, QuantizationScheme, QuantizedSize, StoredBytes, quantized_size
from .config import scheme_of_config
from .schemes_by_name import COMMON_SCHEMES, SCHEMES_BY_GROUP, scheme_named, with_published_experts

__all__ = [
    "BYTE_PURPOSES",
    "COMMON_SCHEMES",
    "SCHEMES_BY_GROUP",
    "QuantizationScheme",
    "QuantizedSize",
    "StoredBytes",
    "quantized_size",
    "scheme_named",
    "scheme_of_config",
    "with_published_experts",
]
