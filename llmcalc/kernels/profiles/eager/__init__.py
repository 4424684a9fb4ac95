"""PyTorch without a compiler: each step runs the operations of the reference's own line of code."""

from __future__ import annotations

from .attention import AttentionKernels
from .basic import BasicKernels


class Eager(AttentionKernels, BasicKernels):
    """Runs a program as the reference does."""
