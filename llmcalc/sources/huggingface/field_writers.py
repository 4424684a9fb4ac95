"""Functions that write config fields from a model's description, the inverse of reading.

They do not check whether a field applies: a config that does not read back as the same spec is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ..to_hf.config_values import ConfigValues

FieldWriter: TypeAlias = "Callable[[ConfigValues], Any] | str"
"""The config field's value from a spec: a function, or the usual name of a field with the same value."""

FieldWriters: TypeAlias = Mapping[str, FieldWriter]
"""Config field → its value from a spec."""


WRITTEN_ACTIVATIONS = {
    "gelu_tanh": "gelu_pytorch_tanh",
    "identity": "linear",
    "clamped_silu": "silu",
    "clamped_swish": "silu",
}
"""Activation name here → its name in configs, if they differ."""

NO_PADDING_WRITER: FieldWriters = {"pad_token_id": lambda s: None}
"""Config fields that set the padding token to none, for classes whose default padding token may exceed the vocabulary.
"""

PARTIAL_ROTARY_WRITER: FieldWriters = {"partial_rotary_factor": "partial_rotary_factor"}
"""The writer of classes that use `partial_rotary_factor`; in others the whole head is rotary with any config."""

WINDOW_WRITER: FieldWriters = {"sliding_window": lambda s: s.window}
"""The writer of classes that have a sliding window by default."""
