"""Recurrent parts, replayed with published training kernels instead of the reference's loop over tokens.

A part whose published module computes the same runs as that module does, line by line. Another part (extra norms,
another activation) runs its own steps, and the published kernel of its scan among them. All parameters are in the run's
type, as after `model.to(dtype)`. The local variables of a method stand for those of the published forward: each keeps
its tensor until the module returns; one whose name begins with an underscore is only held.

A module may be changed without reading the others; `tests/simulator/published` compares its bytes with records of the
published module.
"""

from __future__ import annotations

from .decays import DecayScanKernels
from .delta_rules import DeltaRuleKernels
from .mamba import MambaKernels
from .rglru import RGLRUKernels


class ScanKernels(MambaKernels, DeltaRuleKernels, DecayScanKernels, RGLRUKernels):
    """Kernels of recurrent mixers, such as state-space scans and delta rules."""
