"""PyTorch without a compiler, where each step of a program runs the PyTorch reference's operations.

A kernel may be changed without reading the part whose step it runs: it follows the reference's lines, with which a test
compares its bytes.
"""

from __future__ import annotations

from .attention import AttentionKernels
from .attention_variants import AttentionVariantKernels
from .basic import BasicKernels
from .capacity import CapacityKernels
from .convolution import ConvolutionKernels
from .elementwise import ElementwiseKernels
from .entries import EntryKernels
from .fused import FusedKernels
from .local import LocalKernels
from .lora import LoraKernels
from .positions import PositionKernels
from .rows import RowKernels
from .serving import ServingKernels
from .steps import StepKernels
from .streams import StreamKernels


class Eager(
    ServingKernels,
    StepKernels,
    CapacityKernels,
    EntryKernels,
    LocalKernels,
    PositionKernels,
    AttentionVariantKernels,
    FusedKernels,
    LoraKernels,
    AttentionKernels,
    RowKernels,
    StreamKernels,
    ConvolutionKernels,
    ElementwiseKernels,
    BasicKernels,
):
    """Runs a program like the PyTorch reference, except that recurrent parts run published training kernels."""
