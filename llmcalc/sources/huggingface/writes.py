"""What several families write alike, and how a family says what a field of its configs means: the way back from a spec.

None of these needs to say when it holds: a config that does not read back as the spec is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ..to_hf.facts import Facts

Value: TypeAlias = "Callable[[Facts], Any] | str"
"""What a field says of a spec; a text: the same as the usual field of that name."""

Writes: TypeAlias = Mapping[str, Value]
"""Field → what it says of a spec."""


class Absent(LookupError):
    """The spec has nothing that a field could say: the field is left to its class."""


def present(value: Any) -> Any:
    """The value; raises `Absent` where there is none."""
    if value is None:
        raise Absent
    return value


WRITTEN_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh", "identity": "linear"}
"""Our activations → names in configs, where they differ."""

UNPADDED: Writes = {"pad_token_id": lambda s: None}
"""Of classes whose padding token is one of the published vocabulary, which is not that of every spec."""

PARTLY_TURNED: Writes = {"partial_rotary_factor": "partial_rotary_factor"}
"""Of classes that turn as much of each head as it says; others turn all of it, whatever their config says."""

WINDOW: Writes = {"sliding_window": lambda s: s.window}
"""Of classes that have a window where their config says nothing."""
