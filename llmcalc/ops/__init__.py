"""The primitives every model is made of. The only place where `2·m·n·k` is written.

Each knows its own parameters, how many of them one token uses, its matrix-multiply FLOPs forward and backward, and what
it keeps between tokens. FLOPs are those that `torch.utils.flop_counter` counts: products alone, 2 a multiply-add;
look-ups, norms, softmax and activations count none. A new quantity is one method here, with its default on `Op`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .attention import AttentionCore, KVCache
from .base import Buffer, Idle, Kept, Op, ParamTensor, Shared, Undifferentiated, Weight
from .linear import (
    BlockLinear,
    Conv1d,
    Embedding,
    ExpertLinear,
    IdentityExperts,
    Linear,
    Norm,
    Product,
    TableLinear,
    TableScores,
)

if TYPE_CHECKING:
    from .recurrent import ChunkedScan, DeltaRule, LightningCore, MatrixMemory, SelectiveScan, State

RECURRENT = ("ChunkedScan", "DeltaRule", "LightningCore", "MatrixMemory", "SelectiveScan", "State")
"""Loaded when they are first used: a model of attention alone has none."""

__all__ = [
    "AttentionCore",
    "BlockLinear",
    "Buffer",
    "ChunkedScan",
    "Conv1d",
    "DeltaRule",
    "Embedding",
    "ExpertLinear",
    "IdentityExperts",
    "Idle",
    "KVCache",
    "Kept",
    "LightningCore",
    "Linear",
    "MatrixMemory",
    "Norm",
    "Op",
    "ParamTensor",
    "Product",
    "SelectiveScan",
    "Shared",
    "State",
    "TableLinear",
    "TableScores",
    "Undifferentiated",
    "Weight",
]


def __getattr__(name: str) -> Any:
    if name not in RECURRENT:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from . import recurrent

    return getattr(recurrent, name)
