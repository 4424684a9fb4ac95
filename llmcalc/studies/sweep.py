"""Parameter counts of a million shapes at once: one closed form, evaluated on NumPy arrays.

This is the only part of llmcalc that needs NumPy (the extra `sweep`). Totals are exact 64-bit integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..costs.params import params
from ..errors import InputError, MissingExtra
from .shape import ShapeFamily

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

LARGEST_TOTAL = 2**63 - 1


def sweep(model_family: ShapeFamily, hidden_sizes: Any, depths: Any) -> NDArray[int64]:
    """Counts the total parameters of every shape, element by element of (hidden size, depth).

    hidden_sizes: whole numbers that are multiples of the family's step, in any form that NumPy converts to an array.
    depths: whole numbers of layers, in a shape that NumPy can broadcast with hidden_sizes.
    Raises `InputError` for other numbers, and for totals past 64 bits; `MissingExtra` without NumPy.
    """
    try:
        import numpy as np
    except ImportError:
        raise MissingExtra("a sweep", "numpy", "sweep") from None

    h, depth_array = np.asarray(hidden_sizes), np.asarray(depths)
    for array_name, size_array, smallest_size in (
        ("hidden_sizes", h, model_family.width_step),
        ("depths", depth_array, model_family.least_depth),
    ):
        if size_array.dtype.kind not in "iu" or not size_array.size or size_array.min() < smallest_size:
            raise InputError(f"sweep: {array_name}: expected whole numbers of at least {smallest_size}")
    if (h % model_family.width_step).any():
        raise InputError(
            f"sweep: hidden_sizes: expected multiples of {model_family.width_step}, so that head counts are integers"
        )
    if params(model_family.scaled_to(int(h.max()), int(depth_array.max()))).total > LARGEST_TOTAL:
        raise InputError("sweep: the largest shape has more than 2^63 parameters; expected smaller sizes")
    parameter_totals = params(
        model_family.scaled_to(h.astype(np.int64, copy=False), depth_array.astype(np.int64, copy=False))
    ).total
    return np.asarray(parameter_totals, dtype=np.int64)
