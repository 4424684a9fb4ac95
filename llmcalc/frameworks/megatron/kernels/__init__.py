"""A rank of a run with tensor, sequence, context and expert parallelism, by the kernels of Transformer Engine or
Megatron-Core: products that are divided over ranks, norms in the product after them, fused attention.
"""

from __future__ import annotations

from .choices import RankChoices
from .fp8 import weight_sizes
from .lowering import Parameter, PersistentTensors
from .recompute import DiscardedKernels

__all__ = ["Parameter", "PersistentTensors", "RankChoices", "RankLowering", "weight_sizes"]


class RankLowering(DiscardedKernels):
    """Runs the program of one rank."""
