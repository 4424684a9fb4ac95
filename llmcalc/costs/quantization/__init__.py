"""Bytes of quantised weights: what a scheme stores of each tensor, by part (weights, scales, zeros, …) and by
component.

`base` walks the model, `linear` and `formats` hold the schemes that convert linear maps, `gguf` llama.cpp's mixes,
`mlx` mlx-lm's, `config` reads a Hugging Face `quantization_config`, `named` what `--quantize` takes.
"""

from .base import PARTS, Parts, QuantizedSize, Scheme, quantized
from .config import scheme_of_config
from .named import COMMON, NAMES, scheme_named

__all__ = [
    "COMMON",
    "NAMES",
    "PARTS",
    "Parts",
    "QuantizedSize",
    "Scheme",
    "quantized",
    "scheme_named",
    "scheme_of_config",
]
