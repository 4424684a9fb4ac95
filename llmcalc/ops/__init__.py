"""The primitive operations that models consist of, and the only place where `2·m·n·k` is written.

Each primitive declares its effects (parameters, buffers, FLOPs, cache) and has a method for each of them; an effect
that it does not declare is 0. FLOPs are those of `torch.utils.flop_counter`: matrix multiplications only, 2 per
multiply-add; embedding look-ups, norms, softmax and activations are not counted. A new quantity is an effect in `base`
and its methods.

The arithmetic of an op may be changed without reading the parts that use it; its fields are filled by `flow/verbs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .attention import AttentionCore as AttentionCore
from .attention import ChannelAttentionCore as ChannelAttentionCore
from .attention import ConformerAttentionCore as ConformerAttentionCore
from .attention import KVCache as KVCache
from .attention import ReceivedKeysAttentionCore as ReceivedKeysAttentionCore
from .base import Buffer as Buffer
from .base import Elementwise as Elementwise
from .base import Op as Op
from .base import ParamTensor as ParamTensor
from .base import Weight as Weight
from .linear import Embedding as Embedding
from .linear import ExpertLinear as ExpertLinear
from .linear import Linear as Linear
from .linear import Norm as Norm

if TYPE_CHECKING:
    from .hash_attention import HashRotations as HashRotations
    from .hash_attention import NeighbourChunkAttentionCore as NeighbourChunkAttentionCore
    from .products import BlockLinear as BlockLinear
    from .products import BlockSumMatmul as BlockSumMatmul
    from .products import CompressionLinear as CompressionLinear
    from .products import Conv1d as Conv1d
    from .products import DynamicConvolution as DynamicConvolution
    from .products import ExpertRows as ExpertRows
    from .products import IdentityExperts as IdentityExperts
    from .products import Product as Product
    from .products import ResidualStreamMix as ResidualStreamMix
    from .products import ResidualStreamOffsets as ResidualStreamOffsets
    from .products import TableScores as TableScores
    from .recurrent import ChunkedScan as ChunkedScan
    from .recurrent import DecayScan as DecayScan
    from .recurrent import DeltaRule as DeltaRule
    from .recurrent import HeadScan as HeadScan
    from .recurrent import LightningAttentionCore as LightningAttentionCore
    from .recurrent import LinearAttentionCore as LinearAttentionCore
    from .recurrent import MatrixMemory as MatrixMemory
    from .recurrent import ProjectedChunkedScan as ProjectedChunkedScan
    from .recurrent import ProjectedHeadScan as ProjectedHeadScan
    from .recurrent import SelectiveScan as SelectiveScan
    from .recurrent import State as State
    from .recurrent import TransitionScan as TransitionScan
    from .sparse import BlockAttentionCore as BlockAttentionCore
    from .sparse import CompressedKVAttentionCore as CompressedKVAttentionCore
    from .sparse import CompressedKVCache as CompressedKVCache
    from .sparse import DistanceScores as DistanceScores
    from .sparse import GlobalLocalAttentionCore as GlobalLocalAttentionCore
    from .sparse import LocalAttentionCore as LocalAttentionCore
    from .sparse import MaskedAttentionCore as MaskedAttentionCore
    from .sparse import PairScores as PairScores
    from .sparse import PendingTokenCache as PendingTokenCache
    from .sparse import PooledAttentionCore as PooledAttentionCore
    from .sparse import PredictStreamAttentionCore as PredictStreamAttentionCore
    from .sparse import SampledBlockAttentionCore as SampledBlockAttentionCore
    from .sparse import SharedTableScores as SharedTableScores


def __getattr__(op_name: str) -> Any:
    """Returns a rarely used primitive operation, and imports its module on first use."""
    from importlib import import_module

    for module_name in ("products", "sparse", "recurrent", "hash_attention"):
        op_class = vars(import_module(f".{module_name}", __name__)).get(op_name)
        if isinstance(op_class, type) and issubclass(op_class, Op):
            globals()[op_name] = op_class
            return op_class
    raise AttributeError(f"module '{__name__}' has no attribute '{op_name}'")
