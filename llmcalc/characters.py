"""Makes text printable: escapes control characters, and replaces characters that an encoding does not have."""

from __future__ import annotations

import codecs
import sys

ASCII_REPLACEMENTS = {
    "−": "-", "–": "-", "—": "-", "‑": "-", "×": "x", "·": "*", "…": "...", "→": "->", "←": "<-", "↦": "->", "≤": "<=",
    "≥": ">=", "≠": "!=", "≈": "~", "±": "+-", "√": "sqrt ", "Σ": "sum", "∑": "sum", "∞": "inf", "⌈": "ceil(", "⌉": ")",
    "⌊": "floor(", "⌋": ")", "⊗": "(x)", "⊙": "(.)", "†": "+", "─": "-", "│": "|", "━": "-", "ℓ": "l", "§": "section ",
    "ᵀ": "^T", "⁻": "^-", "₊": "+", "₋": "-", "’": "'", "‘": "'", "“": '"', "”": '"',
    **dict(zip("▏▁▂▃▄▅▆▇█", "|.:-=+*%#", strict=True)),
    **{character: f"^{number}" for number, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{character: str(number) for number, character in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}  # fmt: skip

ERROR_HANDLER_NAME = "llmcalc-stand-ins"


def printable(printed_text: str) -> str:
    r"""Returns a text with escapes in place of characters that a terminal could obey, or that nobody could see.

    Control characters (C0, DEL, C1), line and paragraph separators, marks that turn the direction of writing (U+202E,
    U+2066), invisible characters and lone surrogates are written as in Python: `\x1b`, `\n`, `\u202e`. All text that is
    not llmcalc's passes here before a person or a terminal gets it: names of files, tensors and fields come from files
    that others wrote.
    """
    if printed_text.isprintable():
        return printed_text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in printed_text
    )


def ascii_replacement(character: str) -> str:
    """Returns the ASCII replacement for a character.

    It is the entry of `ASCII_REPLACEMENTS`, the name of a Greek letter, the letter without its accents, or else `?`.
    """
    if character in ASCII_REPLACEMENTS:
        return ASCII_REPLACEMENTS[character]
    import unicodedata

    character_name = unicodedata.name(character, "")
    if character_name.startswith("GREEK"):
        return character_name.split(" WITH ")[0].rpartition(" ")[2].lower()
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"


def text_in_encoding(printed_text: str, encoding: str) -> str:
    """Returns the text with replacements for characters that an encoding cannot represent."""
    try:
        return printed_text.encode(encoding, ERROR_HANDLER_NAME).decode(encoding)
    except LookupError:  # an encoding that this Python does not know
        return printed_text.encode("ascii", ERROR_HANDLER_NAME).decode()


def _replace_unencodable_characters(encode_error: UnicodeError) -> tuple[str, int]:
    if not isinstance(encode_error, UnicodeEncodeError):
        raise encode_error
    return "".join(map(ascii_replacement, encode_error.object[encode_error.start : encode_error.end])), encode_error.end


codecs.register_error(ERROR_HANDLER_NAME, _replace_unencodable_characters)


def let_standard_streams_replace_characters() -> None:
    """Makes stdout and stderr replace characters that their encoding cannot represent, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure_stream = getattr(stream, "reconfigure", None)
        if reconfigure_stream is not None and not (stream.encoding or "").lower().startswith("utf"):
            reconfigure_stream(errors=ERROR_HANDLER_NAME)
