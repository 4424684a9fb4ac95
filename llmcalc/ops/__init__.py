"""The primitive operations that models consist of, and the only place where `2·m·n·k` is written.

Each primitive declares its effects (parameters, buffers, FLOPs, cache) and has a method for each of them; an effect
that it does not declare is 0. FLOPs are those of `torch.utils.flop_counter`: matrix multiplications only, 2 per
multiply-add; embedding look-ups, norms, softmax and activations are not counted. A new quantity is an effect in `base`
and its methods.

The arithmetic of an op may be changed without reading the parts that use it; its fields are filled by `flow/verbs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .attention import AttentionCore, KVCache, ReceivedCore
from .base import Buffer, Elementwise, Op, ParamTensor, Weight
from .linear import Embedding, ExpertLinear, Linear, Norm

if TYPE_CHECKING:
    from .products import (
        BlockLinear,
        BlockSums,
        Conv1d,
        DynamicConvolution,
        EntryLinear,
        ExpertRows,
        IdentityExperts,
        Product,
        StreamMix,
        StreamOffsets,
        TableScores,
    )
    from .recurrent import (
        ChunkedScan,
        DecayScan,
        DeltaRule,
        HeadScan,
        LightningCore,
        MatrixMemory,
        ProjectedChunkedScan,
        ProjectedHeadScan,
        SelectiveScan,
        State,
        TransitionScan,
    )
    from .sparse import (
        BlockCore,
        DistanceScores,
        EntryCache,
        EntryScores,
        GlobalLocalCore,
        LastWindow,
        LocalCore,
        MaskedCore,
        PairScores,
        PooledCore,
        PredictCore,
        SampledBlocks,
        SharedTableScores,
    )

__all__ = [
    "AttentionCore",
    "BlockCore",
    "BlockLinear",
    "BlockSums",
    "Buffer",
    "ChunkedScan",
    "Conv1d",
    "DecayScan",
    "DeltaRule",
    "DistanceScores",
    "DynamicConvolution",
    "Elementwise",
    "Embedding",
    "EntryCache",
    "EntryLinear",
    "EntryScores",
    "ExpertLinear",
    "ExpertRows",
    "GlobalLocalCore",
    "HeadScan",
    "IdentityExperts",
    "KVCache",
    "LastWindow",
    "LightningCore",
    "Linear",
    "LocalCore",
    "MaskedCore",
    "MatrixMemory",
    "Norm",
    "Op",
    "PairScores",
    "ParamTensor",
    "PooledCore",
    "PredictCore",
    "Product",
    "ProjectedChunkedScan",
    "ProjectedHeadScan",
    "ReceivedCore",
    "SampledBlocks",
    "SelectiveScan",
    "SharedTableScores",
    "State",
    "StreamMix",
    "StreamOffsets",
    "TableScores",
    "TransitionScan",
    "Weight",
]


def __getattr__(name: str) -> Any:
    """Imports the file of a less common primitive when it is first used."""
    from importlib import import_module

    for file in ("products", "sparse", "recurrent"):
        if name in __all__ and hasattr(module := import_module(f".{file}", __name__), name):
            return getattr(module, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
