"""Short causal convolutions of the causal-conv1d library, fused with the activation.

Source: Dao-AILab/causal-conv1d at 0d2252d1, causal_conv1d/causal_conv1d_interface.py (`CausalConv1dFn`),
cpp_functions.py, and csrc/causal_conv1d.cpp for the copy of a gradient in another order. x: [batch, channels, tokens].
"""

from __future__ import annotations

from collections.abc import Sequence

from ..aten import Aten
from ..strides import is_size_one
from ..tensor import FLOAT32, OptionalGradient, Tensor
from .autograd_function import OptionalTensor, record_function


def causal_conv1d_fwd(aten: Aten, x: Tensor) -> Tensor:
    """Runs the forward pass of the causal convolution (cpp_functions.py:88)."""
    return aten.new_like(x)


def causal_conv1d_bwd(
    aten: Aten, x: Tensor, weight: Tensor, bias: OptionalTensor, dout: Tensor, dx: OptionalTensor = None
) -> tuple[Tensor, Tensor, OptionalTensor]:
    """Computes the causal convolution's gradients of x, weight and bias (cpp_functions.py:113).

    dx: the tensor for x's gradient, if allocated.
    """
    if dx is None:
        dx = aten.new_like(x)
    dweight = aten.new_like(weight, dtype=FLOAT32)
    dbias = None if bias is None else aten.new_like(bias, dtype=FLOAT32)
    _copy_to_strides(aten, x, dout)
    dweight = aten.to(dweight, weight.dtype)
    if dbias is not None and bias is not None:
        dbias = aten.to(dbias, bias.dtype)
    return dx, dweight, dbias


def _copy_to_strides(aten: Aten, x: Tensor, dout: Tensor) -> None:
    """Copies a gradient whose strides differ from x's strides (causal_conv1d.cpp, `causal_conv1d_bwd`)."""
    is_channels_last = is_size_one(x.strides[1]) and not is_size_one(x.strides[2])
    if not is_size_one(dout.strides[1] if is_channels_last else dout.strides[2]):
        aten.clone(dout)


def causal_conv1d_fn(aten: Aten, x: Tensor, weight: Tensor, bias: OptionalTensor = None) -> Tensor:
    """Runs a causal convolution of x with weight [channels, width] (causal_conv1d_interface.py:9).

    An activation changes no memory.
    """

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        if not is_size_one(x.strides[2]) and not is_size_one(x.strides[1]):
            x = aten.contiguous(x)
        return x, causal_conv1d_fwd(aten, x)

    def backward(dout: Tensor, x: Tensor, weight: Tensor, bias: OptionalTensor) -> Sequence[OptionalGradient]:
        if not is_size_one(dout.strides[2]) and not is_size_one(dout.strides[1]):
            dout = aten.contiguous(dout)
        return causal_conv1d_bwd(aten, x, weight, bias, dout)

    with aten.graph.no_grad():
        dense_x, output = forward(x)
    return record_function(aten, "CausalConv1dFn", (x, weight, bias), output, backward, (dense_x, weight, bias))
