"""PyTorch without a compiler: each step runs the operations of the reference's own line of code."""

from __future__ import annotations

from .attention import AttentionKernels
from .basic import BasicKernels
from .convolution import ConvolutionKernels
from .elementwise import ElementwiseKernels
from .experts import ExpertKernels
from .fused import FusedKernels
from .local import LocalKernels
from .positions import PositionKernels
from .scans import ScanKernels
from .streams import StreamKernels


class Eager(
    ScanKernels,
    ExpertKernels,
    LocalKernels,
    PositionKernels,
    FusedKernels,
    AttentionKernels,
    StreamKernels,
    ConvolutionKernels,
    ElementwiseKernels,
    BasicKernels,
):
    """Runs a program as the reference does."""
