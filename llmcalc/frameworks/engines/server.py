"""A server of an engine: a model on an accelerator, with the flags that engines have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...accelerator import Hardware
from ...costs.context_length import longest_sequence
from ...errors import InputError
from ...sources.preset import Preset
from ...units import DTYPE_BITS
from ...workload.setting import option
from .engine import EngineVersion
from .flags import AUTO
from .versions import Numbers, numbers_of

DTYPES = {"half": "float16", "float": "float32"}
"""Other words of `--dtype` → the number format."""


@dataclass(frozen=True, eq=False)
class EngineServer:
    """A server. flags: values of the flags by their names; `quantize` is a scheme of llmcalc.

    name: the word of `--engine`. length_field: the name of the flag of the longest request.
    """

    name: ClassVar[str]
    length_field: ClassVar[str]

    preset: Preset
    hardware: Hardware
    version: EngineVersion
    flags: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Raises `InputError` for a model that is no decoder."""
        if self.preset.model.kind != "decoder":
            raise InputError(
                f"--engine {self.name}: the model has an encoder, which is not modelled; expected a decoder"
            )

    @property
    def numbers(self) -> Numbers:
        """The numbers of the version."""
        return numbers_of(self.version.version)

    @property
    def published_dtype(self) -> str:
        """The number format of activations that the model was published for."""
        return self.preset.dtype if DTYPE_BITS[self.preset.dtype] >= 16 else "bfloat16"

    @property
    def dtype(self) -> str | None:
        """The number format of weights and activations; None for the published one."""
        name = self.flags.get("dtype", "auto")
        dtype = DTYPES.get(name, name)
        return None if dtype in ("auto", self.published_dtype) else dtype

    def scheme_of(self, word: str, schemes: Mapping[str, str]) -> str | None:
        """The scheme of the weights of `--quantization`; None for that of the checkpoint.

        word: the flag's value. schemes: value → scheme of a checkpoint that states none.
        Raises `InputError` for a scheme that only the checkpoint knows.
        """
        if self.flags.get("quantize"):
            return str(self.flags["quantize"])
        has_scheme = self.preset.checkpoint is not None and (self.preset.config or {}).get("quantization_config")
        if word == "none" or has_scheme:
            return None
        if word not in schemes:
            raise InputError(
                f"--quantization {word}: the checkpoint does not say its scheme; expected --quantize SCHEME too"
            )
        return schemes[word]

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request. Raises `InputError` where neither the flag nor the model says it."""
        chosen = self.flags.get(self.length_field, AUTO[0])
        length = longest_sequence(self.preset.model) if chosen in AUTO else chosen
        if not length:
            raise InputError(f"{option(self.length_field)}: missing; the model does not state its context length")
        return int(length)

    def assumed(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Returns flag → default of those that are not given. defaults: the flag's name → its default."""
        return {option(name): value for name, value in defaults.items() if name not in self.flags}
