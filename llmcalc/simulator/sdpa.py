"""Selects the backend of torch's scaled_dot_product_attention.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, `select_sdp_backend`, and sdp_utils_cpp.cpp for the CPU,
of torch 2.13 with CUDA 13 and cuDNN 9.15.1 or later. transformers 5 passes a mask where causality
alone does not say which keys a query may attend to (transformers/integrations/sdpa_attention.py).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from ..algebra import Number
from ..flow.program import Step
from .tensor import BFLOAT16, FLOAT16, FLOAT32, Dtype

SdpaBackend: TypeAlias = Literal["cudnn", "flash", "efficient", "math", "cpu"]

CPU_CAPABILITY = 0
"""Compute capability that represents a CPU."""

CUDNN_FIRST_CAPABILITIES = (90, 100, 103)
"""Compute capabilities for which torch prefers cuDNN (`check_prefer_cudnn_attention`); for all others cuDNN comes after
math.
"""


class SdpaCall(NamedTuple):
    """The properties of a scaled_dot_product_attention call that determine its backend.

    dtype: number format of queries, keys and values.
    qk_head_dim, v_head_dim: dimensions of a head of the queries and keys, and of the values.
    key_count: number of keys.
    has_mask: whether it has a mask.
    needs_gradient: whether an input gets a gradient.
    dropout_probability: the probability of dropout; 0 outside of training.
    mask_needs_gradient: whether the mask gets a gradient.
    """

    dtype: Dtype
    qk_head_dim: Number
    v_head_dim: Number
    key_count: Number
    has_mask: bool
    needs_gradient: bool
    dropout_probability: float = 0.0
    mask_needs_gradient: bool = False


def sdpa_backend(compute_capability: int, sdpa_call: SdpaCall) -> SdpaBackend:
    """Returns the first backend in torch's order that supports the call.

    compute_capability: ten times the compute capability, such as 90 for an H100; 0 for a CPU.
    """
    if compute_capability == CPU_CAPABILITY:
        return (
            "cpu"
            if sdpa_call.qk_head_dim == sdpa_call.v_head_dim
            and not sdpa_call.dropout_probability
            and not sdpa_call.mask_needs_gradient
            else "math"
        )
    if compute_capability in CUDNN_FIRST_CAPABILITIES and supports_cudnn_attention(compute_capability, sdpa_call):
        return "cudnn"
    if supports_flash_attention(compute_capability, sdpa_call):
        return "flash"
    return "efficient" if supports_efficient_attention(compute_capability, sdpa_call) else "math"


def supports_cudnn_attention(compute_capability: int, sdpa_call: SdpaCall) -> bool:
    """Whether cuDNN's attention runs (`can_use_cudnn_attention`), which limits head sizes and dropout.

    Head sizes are multiples of 8 up to 128, up to 256 on 9.0, or 192 with values of 128 on 10.x
    (`check_cudnn_tensor_shapes`). The probability of dropout is a multiple of 1/16, so that 0.1 runs another backend
    (`check_cudnn_dropout`), and the mask gets no gradient (`check_attn_mask_shape`).
    """
    has_wide_keys = sdpa_call.qk_head_dim == 192 and sdpa_call.v_head_dim == 128 and compute_capability // 10 == 10
    largest_size = 256 if compute_capability == 90 else 128
    has_small_heads = has_wide_keys or (sdpa_call.qk_head_dim <= largest_size and sdpa_call.v_head_dim <= largest_size)
    has_exact_dropout = float(sdpa_call.dropout_probability * 16).is_integer()
    has_valid_inputs = sdpa_call.key_count != 1 and has_exact_dropout and not sdpa_call.mask_needs_gradient
    return (
        is_16_bit_format(compute_capability, sdpa_call.dtype)
        and has_small_heads
        and has_heads_divisible_by(8, sdpa_call)
        and has_valid_inputs
    )


def supports_flash_attention(compute_capability: int, sdpa_call: SdpaCall) -> bool:
    """Whether flash attention runs (`can_use_flash_attention`): no mask, and equal head sizes up to 256.

    On 8.6, 8.9 and 12.x a backward pass has no heads of 193 to 224, and with dropout none above 192.
    """
    is_consumer_gpu = 86 <= compute_capability <= 89 or compute_capability >= 120
    has_equal_heads = sdpa_call.qk_head_dim == sdpa_call.v_head_dim and sdpa_call.qk_head_dim <= 256
    lacks_backward = (
        is_consumer_gpu
        and sdpa_call.needs_gradient
        and 192 < sdpa_call.qk_head_dim <= (256 if sdpa_call.dropout_probability else 224)
    )
    return (
        is_16_bit_format(compute_capability, sdpa_call.dtype)
        and compute_capability >= 80
        and has_equal_heads
        and not sdpa_call.has_mask
        and not lacks_backward
    )


def supports_efficient_attention(compute_capability: int, sdpa_call: SdpaCall) -> bool:
    """Whether memory-efficient attention runs (`can_use_mem_efficient_attention`): aligned head sizes."""
    if sdpa_call.dtype is FLOAT32:
        return has_heads_divisible_by(4 if compute_capability >= 80 else 1, sdpa_call)
    return is_16_bit_format(compute_capability, sdpa_call.dtype) and has_heads_divisible_by(8, sdpa_call)


def has_extra_mask_input(attention: Step) -> bool:
    """Whether the attention call gets an additional input (besides queries, keys and values) as its mask.

    That is a bias that the class gives it so, or one selection of keys for all heads.
    """
    if attention.options["narrowed"]:
        return not attention.options["biased"] and not attention.input_values[-1].axes
    return bool(attention.options["bias_in_sdpa"])


def is_16_bit_format(compute_capability: int, dtype: Dtype) -> bool:
    """Whether a number format has 16 bits and kernels for the compute capability exist."""
    return dtype is FLOAT16 or (dtype is BFLOAT16 and compute_capability >= 80)


def has_heads_divisible_by(head_size_divisor: int, sdpa_call: SdpaCall) -> bool:
    """Whether both head sizes are multiples of the number `head_size_divisor`."""
    return bool(sdpa_call.qk_head_dim % head_size_divisor == 0 and sdpa_call.v_head_dim % head_size_divisor == 0)
