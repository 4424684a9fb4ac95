"""PyTorch without a compiler, where each step of a program runs the PyTorch reference's operations.

A kernel may be changed without reading the part whose step it runs: it follows the reference's lines, with which a test
compares its bytes.
"""

from __future__ import annotations

from .attention import AttentionKernels
from .attention_variants import AttentionVariantKernels
from .basic import BasicKernels
from .compressed_kv import CompressedKVKernels
from .convolution import ConvolutionKernels
from .decode_steps import DecodeStepKernels
from .elementwise import ElementwiseKernels
from .expert_capacity import ExpertCapacityKernels
from .fused import FusedKernels
from .fused_adapters import FusedAdapterKernels
from .local_attention import LocalAttentionKernels
from .positions import PositionKernels
from .residual_streams import ResidualStreamKernels
from .row_shifts import RowShiftKernels
from .serving import ServingKernels


class EagerKernels(
    ServingKernels,
    DecodeStepKernels,
    ExpertCapacityKernels,
    CompressedKVKernels,
    LocalAttentionKernels,
    PositionKernels,
    AttentionVariantKernels,
    FusedKernels,
    FusedAdapterKernels,
    AttentionKernels,
    RowShiftKernels,
    ResidualStreamKernels,
    ConvolutionKernels,
    ElementwiseKernels,
    BasicKernels,
):
    """Runs a program like the PyTorch reference, except that recurrent parts run published training kernels."""
