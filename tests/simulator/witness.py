"""What torch holds, for the tests of kernels: one implementation, which `llmcalc verify --memory` runs too."""

from __future__ import annotations

from llmcalc.witnesses.storages import Alive, Held, measured, saved_bytes, saved_tensors

__all__ = ["Alive", "Held", "measured", "saved_bytes", "saved_tensors"]
