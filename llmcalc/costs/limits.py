"""How many tokens a model was made for: the rows of a learned table of positions, or `max_position_embeddings`."""

from __future__ import annotations

from ..errors import InputError
from ..model import ModelSpec


def learned_positions(spec: ModelSpec) -> int | None:
    """Tokens that the smallest learned table of positions has; None where no stack has one."""
    stacks = [
        stack for _, stack in spec.stacks() if stack.stem is None
    ]  # a stem always gives as many positions as its table has
    tables = [
        stack.position.max_position_embeddings
        for stack in stacks
        if stack.position is not None and stack.position.type == "learned"
    ]
    return min(tables, default=None)


def longest_sequence(spec: ModelSpec) -> int | None:
    """Tokens that a sequence can have; None where the spec does not say."""
    learned = learned_positions(spec)
    return spec.max_position_embeddings if learned is None else learned


USUAL = 2048
"""Tokens of a sequence of which nothing is said, and the context of a model that states none."""

MOST_CONTEXT = 2**15
"""Tokens of context that are counted where nothing is said, for a model that was made for more. Half of the published
decoders state 32,768 or less, and a conversation with a document in it fills as much; of a model made for a million
tokens the whole context would answer a question that few ask, and one token would hide the cache.
"""


def usual_sequence(spec: ModelSpec) -> int:
    """Tokens of a pass of which nothing is said: `USUAL`, or as many as a learned table of positions has."""
    return min(USUAL, learned_positions(spec) or USUAL)


def usual_context(spec: ModelSpec) -> int:
    """Tokens in a cache of which nothing is said: what the model was made for, at most `MOST_CONTEXT`."""
    return min(longest_sequence(spec) or USUAL, MOST_CONTEXT)


def check_source(spec: ModelSpec, source: int | None) -> None:
    """Raises `InputError` where tokens for an encoder are given and there is no encoder beside a decoder."""
    if source is not None and spec.kind != "encoder-decoder":
        raise InputError(
            f"--source: only an encoder-decoder reads a source, and this model is a {spec.kind}; expected --seq alone"
        )


def beyond(spec: ModelSpec, tokens: int) -> str:
    """A sentence where a sequence of so many tokens is longer than the model was made for; empty where it is not."""
    learned, limit = learned_positions(spec), longest_sequence(spec)
    if limit is None or tokens <= limit:
        return ""
    if learned is not None:
        return (
            f"{tokens:,} tokens do not fit the model's table of {limit:,} learned positions: it could not run "
            "this; counted as if it could"
        )
    return f"{tokens:,} tokens are more than the model's max_position_embeddings of {limit:,}; counted all the same"
