"""The flags of `llama-server` (common/arg.cpp)."""

from __future__ import annotations

from ..engines.flags import Flag
from ..ggml.flags import IDLE, NOT_MODELLED, SHARED, cache_types

FLAGS = (
    *SHARED,
    *cache_types(),
    Flag(("--kv-unified", "-kvu"), "switch"),
    Flag(("--swa-full",), "switch"),
    Flag(("--fit-ctx", "-fitc"), "tokens", most=10**9),
    Flag(("--fit-target", "-fitt"), "text"),
    Flag(("--spec-type",), refused=f"speculative decoding {NOT_MODELLED}"),
    *IDLE,
)


def flags() -> tuple[Flag, ...]:
    """Returns the flags of llama.cpp."""
    return FLAGS
