"""MobileNet V5, Gemma 3n's vision encoder, which the config states by a model name of the timm library.

Source: timm/models/mobilenetv5.py of huggingface/pytorch-image-models, whose list of blocks belongs to the name.
"""

from __future__ import annotations

from typing import Any

from ..parts import Table, rmsnorm

GEMMA3N_IMAGE: Table = {"type": "fixed", "size": 768, "tokens": 256, "marks": 4, "pools": True}
"""The image rule of Gemma 3n's published processor: one square, which becomes 16 × 16 embeddings."""

OUTPUT_WIDTH = 2048


def mobilenet_v5() -> Table:
    """Returns the encoder that timm calls `mobilenetv5_300m_enc`."""
    edge_block = {"type": "edge", "channels": 128, "intermediate_size": 512}
    stages = [
        [_block_group({**edge_block, "intermediate_size": 256, "stride": 2}), _block_group(edge_block, repeat_count=2)],
        [
            _block_group(_inverted_bottleneck(256, 768, start_kernel=3, mid_kernel=5, stride=2)),
            _block_group(
                _inverted_bottleneck(256, 1024, start_kernel=5),
                _inverted_bottleneck(256, 1024, start_kernel=3),
                repeat_count=2,
            ),
        ],
        [
            _block_group(_inverted_bottleneck(640, 1536, start_kernel=5, mid_kernel=5, stride=2)),
            _block_group(_inverted_bottleneck(640, 2560, start_kernel=5), repeat_count=7),
            _block_group(_inverted_bottleneck(640, 640)),
            _block_group(_attention(12, 64, kv_stride=2), _inverted_bottleneck(640, 1280), repeat_count=14),
        ],
        [
            _block_group(_inverted_bottleneck(1280, 3840, start_kernel=5, mid_kernel=5, stride=2)),
            _block_group(_attention(16, 96), _inverted_bottleneck(1280, 2560), repeat_count=19),
        ],
    ]
    return {
        "type": "mobilenet",
        "hidden_size": OUTPUT_WIDTH,
        "stem_channels": 64,
        "stages": [{"groups": block_groups} for block_groups in stages],
        "intermediate_size": 3840,
        "output_side": 16,
        "norm": rmsnorm(1e-6),
        "image": GEMMA3N_IMAGE,
    }


def _block_group(*blocks: Table, repeat_count: int = 1) -> Table:
    return {"blocks": list(blocks), "repeat": repeat_count}


def _inverted_bottleneck(channel_count: int, inner_channels: int, **layer_fields: Any) -> Table:
    return {"type": "inverted", "channels": channel_count, "intermediate_size": inner_channels, **layer_fields}


def _attention(head_count: int, head_dim: int, **layer_fields: Any) -> Table:
    return {"type": "attention", "num_attention_heads": head_count, "head_dim": head_dim, **layer_fields}
