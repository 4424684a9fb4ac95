"""The context length of a model: the rows of its learned position embedding, or `max_position_embeddings`."""

from __future__ import annotations

from ..errors import InputError
from ..model import ModelSpec
from ..workload.lengths import DEFAULT_TOKENS, LARGEST_DEFAULT_CONTEXT


def learned_positions(spec: ModelSpec) -> int | None:
    """Returns the rows of the smallest learned position embedding; None if no stack has one."""
    stacks = [
        stack for _, stack in spec.stacks() if stack.stem is None
    ]  # a stem always outputs as many positions as its table has
    position_embeddings = [
        stack.position.max_position_embeddings
        for stack in stacks
        if stack.position is not None and stack.position.type == "learned"
    ]
    return min(position_embeddings, default=None)


def longest_sequence(spec: ModelSpec) -> int | None:
    """Returns the context length in tokens; None if the spec states no limit."""
    learned_rows = learned_positions(spec)
    return spec.max_position_embeddings if learned_rows is None else learned_rows


def default_sequence_tokens(spec: ModelSpec, added_tokens: int = 0) -> int:
    """Returns the default number of text tokens per sequence: `DEFAULT_TOKENS`, or fewer if positions are learned.

    added_tokens: tokens of images and audio beside them, for which learned positions leave room; default none.
    """
    return min(DEFAULT_TOKENS, _text_position_count(spec, added_tokens) or DEFAULT_TOKENS)


def default_context_tokens(spec: ModelSpec, is_decoding: bool = False, added_tokens: int = 0) -> int:
    """Returns the default number of cached text tokens: the context length, but at most `LARGEST_DEFAULT_CONTEXT`.

    is_decoding: whether another token follows, which the context has to hold too.
    added_tokens: tokens of images and audio beside them, for which learned positions leave room; default none.
    """
    longest_text = _text_position_count(spec, added_tokens + is_decoding)
    return min(
        (longest_sequence(spec) or DEFAULT_TOKENS) - is_decoding if longest_text is None else longest_text,
        LARGEST_DEFAULT_CONTEXT,
    )


def _text_position_count(spec: ModelSpec, other_tokens: int) -> int | None:
    """Returns how many learned positions remain for text, at least 1; None if no stack has learned positions."""
    learned_rows = learned_positions(spec)
    return None if learned_rows is None else max(1, learned_rows - other_tokens)


def check_source_tokens(spec: ModelSpec, source_tokens: int | None) -> None:
    """Raises `InputError` if `source_tokens` is given for a model that is not an encoder-decoder."""
    if source_tokens is not None and spec.kind != "encoder-decoder":
        raise InputError(
            f"--source: only applies to encoder-decoder models, and this model is a {spec.kind}; expected --seq alone"
        )


def too_long_note(spec: ModelSpec, tokens: int) -> str:
    """Returns a note if `tokens` exceeds the model's context length, else an empty string."""
    learned_rows, context_limit = learned_positions(spec), longest_sequence(spec)
    if context_limit is None or tokens <= context_limit:
        return ""
    if learned_rows is not None:
        return (
            f"{tokens:,} tokens do not fit the model's table of {context_limit:,} learned positions: it could not run "
            "this; counted anyway"
        )
    return f"{tokens:,} tokens are more than the model's max_position_embeddings of {context_limit:,}; counted anyway"
