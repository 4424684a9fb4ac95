"""The block formats of ggml (ggml-common.h): elements per block, and the bytes of codes, scales and minima."""

from __future__ import annotations

BLOCKS: dict[str, tuple[int, int, int, int]] = {
    "Q4_0": (32, 16, 2, 0),
    "Q4_1": (32, 16, 2, 2),
    "Q5_0": (32, 20, 2, 0),
    "Q5_1": (32, 20, 2, 2),
    "Q8_0": (32, 32, 2, 0),
    "Q2_K": (256, 64, 10, 10),
    "Q3_K": (256, 96, 14, 0),
    "Q4_K": (256, 128, 8, 8),
    "Q5_K": (256, 160, 8, 8),
    "Q6_K": (256, 192, 18, 0),
    "IQ1_S": (256, 44, 5, 1),
    "IQ1_M": (256, 44, 8, 4),
    "IQ2_XXS": (256, 60, 6, 0),
    "IQ2_XS": (256, 64, 10, 0),
    "IQ2_S": (256, 72, 10, 0),
    "IQ3_XXS": (256, 92, 6, 0),
    "IQ3_S": (256, 104, 6, 0),
    "IQ4_NL": (32, 16, 2, 0),
    "IQ4_XS": (256, 128, 8, 0),
    "TQ1_0": (256, 52, 2, 0),
    "TQ2_0": (256, 64, 2, 0),
    "MXFP4": (32, 16, 1, 0),
}
"""ggml type → elements per block, and bytes of a block's codes, scales and minima."""
