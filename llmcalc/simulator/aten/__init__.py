"""torch's operations on tensors without values: shape and strides of results, and the tensors saved for backward.

Formulas of gradients: tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp of torch 2.13. The
temporaries of a C++ expression live until its end, so a backward function here names each of them.

An operation may be changed without reading the kernels that call it; a test compares its results, saved tensors and
temporaries with torch's.
"""

from __future__ import annotations

from .look_ups import LookUpOperations


class Aten(LookUpOperations):
    """torch's operations, recorded in one autograd graph."""
