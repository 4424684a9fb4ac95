"""What torch holds, for the tests of kernels: one implementation, which `llmcalc verify --memory` runs too."""

from __future__ import annotations

from llmcalc.witnesses.storages import PassMeasurement as Held
from llmcalc.witnesses.storages import StorageTracker as Alive
from llmcalc.witnesses.storages import measure_passes as measured
from llmcalc.witnesses.storages import saved_bytes, saved_tensors

__all__ = ["Alive", "Held", "measured", "saved_bytes", "saved_tensors"]
