"""RoPE for PyTorch references (Su 2021, arXiv:2104.09864, §3.4): rotates pairs of dimensions by an angle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor


def rotary_angles(positions: Tensor, rotary_dim: int, rope_theta: float) -> Tensor:
    """Computes the angles position · θ^(−2i / dim), [positions, dim / 2]."""
    import torch

    exponents = torch.arange(0, rotary_dim, 2, device=positions.device, dtype=torch.float32) / rotary_dim
    return positions[:, None].float() * rope_theta**-exponents


def rotate(
    x: Tensor,
    pass_state: PassState,
    first_position: int,
    rotary_dim: int,
    rope_theta: float,
    is_inverse: bool = False,
    is_concatenated: bool = False,
) -> Tensor:
    """Applies RoPE to the first `rotary_dim` elements of each head. x: [..., tokens, head_dim].

    is_inverse: whether it is undone, false by default. is_concatenated: as in `Rope`.
    """
    end_position = first_position + x.shape[-2]

    def cos_and_sin() -> tuple[Tensor, Tensor]:
        return _cosine_and_sine(pass_state.positions(first_position, end_position, x.device), rotary_dim, rope_theta, x)

    cos, sin = pass_state.compute_once(
        ("rope", first_position, end_position, rotary_dim, rope_theta, x.dtype), cos_and_sin
    )
    return _rotate_pairs(x, rotary_dim, cos, -sin if is_inverse else sin, is_concatenated)


def rotate_at(x: Tensor, positions: Tensor, rotary_dim: int, rope_theta: float) -> Tensor:
    """Applies RoPE to the first `rotary_dim` elements of each head of x. positions: the position of each token."""
    return _rotate_pairs(x, rotary_dim, *_cosine_and_sine(positions, rotary_dim, rope_theta, x))


def _cosine_and_sine(
    positions: Tensor, rotary_dim: int, rope_theta: float, reference_tensor: Tensor
) -> tuple[Tensor, Tensor]:
    import torch

    angles = rotary_angles(positions, rotary_dim, rope_theta)
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(reference_tensor.dtype), angles.sin().to(reference_tensor.dtype)


def _rotate_pairs(x: Tensor, rotary_dim: int, cos: Tensor, sin: Tensor, is_concatenated: bool = False) -> Tensor:
    """Rotates pairs of dimensions as the library transformers does; x keeps its axis order."""
    import torch

    rotates_every_dimension = rotary_dim == x.shape[-1] and not is_concatenated
    rotary_part = x if rotates_every_dimension else x[..., :rotary_dim]
    rotary_part = rotary_part * cos + _rotate_half(rotary_part) * sin
    return rotary_part if rotates_every_dimension else torch.cat([rotary_part, x[..., rotary_dim:]], -1)


def _rotate_half(x: Tensor) -> Tensor:
    """Maps each pair (a, b) to (−b, a), where a is in the first half of the last axis and b in the second half."""
    import torch

    half_length = x.shape[-1] // 2
    return torch.cat([-x[..., half_length:], x[..., :half_length]], -1)
