"""What stands in for a character that a stream's encoding lacks: ASCII, so that every answer comes out whole."""

from __future__ import annotations

import codecs
import sys

STAND_INS = {
    "−": "-", "–": "-", "—": "-", "‑": "-", "×": "x", "·": "*", "…": "...", "→": "->", "←": "<-", "↦": "->", "≤": "<=",
    "≥": ">=", "≠": "!=", "≈": "~", "±": "+-", "√": "sqrt ", "Σ": "sum", "∑": "sum", "∞": "inf", "⌈": "ceil(", "⌉": ")",
    "⌊": "floor(", "⌋": ")", "⊗": "(x)", "⊙": "(.)", "†": "+", "─": "-", "│": "|", "━": "-", "ℓ": "l", "§": "section ",
    "ᵀ": "^T", "⁻": "^-", "₊": "+", "₋": "-", "’": "'", "‘": "'", "“": '"', "”": '"',
    **{character: f"^{number}" for number, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{character: str(number) for number, character in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}  # fmt: skip

HANDLER = "llmcalc-stand-ins"


def stand_in(character: str) -> str:
    """ASCII for one character: ours by the table, a Greek letter by its name, another without its marks, else `?`."""
    if character in STAND_INS:
        return STAND_INS[character]
    import unicodedata

    name = unicodedata.name(character, "")
    if name.startswith("GREEK"):
        return name.split(" WITH ")[0].rpartition(" ")[2].lower()
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"


def fitted(text: str, encoding: str) -> str:
    """The text with stand-ins for what the encoding does not have."""
    try:
        return text.encode(encoding, HANDLER).decode(encoding)
    except LookupError:  # an encoding that this Python does not know
        return text.encode("ascii", HANDLER).decode()


def _handle(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(stand_in, error.object[error.start : error.end])), error.end


codecs.register_error(HANDLER, _handle)


def make_streams_whole() -> None:
    """Lets stdout and stderr write a stand-in where they would fail, whatever their encoding is."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and not (stream.encoding or "").lower().startswith("utf"):
            reconfigure(errors=HANDLER)
