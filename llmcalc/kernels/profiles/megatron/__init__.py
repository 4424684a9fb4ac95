"""A rank of a run with tensor, sequence, context and expert parallelism, by the kernels of Transformer Engine or
Megatron-Core: products that are divided over ranks, norms in the product after them, fused attention.
"""

from __future__ import annotations

from .choices import RankChoices
from .narrow import weight_sizes
from .rank import Held, Parameter
from .sparse import SparseKernels

__all__ = ["Held", "Parameter", "RankChoices", "RankLowering", "weight_sizes"]


class RankLowering(SparseKernels):
    """Runs the program of one rank."""
