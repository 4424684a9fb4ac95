"""Which of several kernels runs for a step, where people choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AttentionImplementation: TypeAlias = Literal["eager", "sdpa-math", "flash"]
NormImplementation: TypeAlias = Literal["eager", "fused"]
CrossEntropy: TypeAlias = Literal["eager", "fused", "chunked"]
Mamba2Implementation: TypeAlias = Literal["combined", "steps"]


@dataclass(frozen=True)
class Choices:
    """The kernels that run.

    attention: `eager` computes all scores, step by step; `sdpa-math` is the fallback of torch's
        scaled_dot_product_attention, in float32; `flash` keeps no scores.
    norm: `eager` normalizes step by step in float32; `fused` is one kernel.
    cross_entropy: `eager` copies the logits to float32; `fused` writes their gradient over them; `chunked` computes
        them, and their gradients, for a few tokens at a time.
    mamba2: `combined` runs all of Mamba-2 after its input projection as one function, which keeps little; `steps` runs
        its convolution, scan and norm one after another (mamba_ssm's `use_mem_eff_path=False`).
    workspace: whether fused kernels take the temporary memory that they take on a GPU; on meta they take none.
    """

    attention: AttentionImplementation = "eager"
    norm: NormImplementation = "eager"
    cross_entropy: CrossEntropy = "eager"
    mamba2: Mamba2Implementation = "combined"
    workspace: bool = True


EAGER = Choices()
"""Every step by itself, as the reference runs it."""
