"""Checks of a speculative-decoding draft model against the target model: vocabulary and hidden-state width."""

from __future__ import annotations

from ..components.head import LMHead
from ..components.target_states import TargetStates
from ..errors import InputError
from ..model import ModelSpec


def states_of(spec: ModelSpec) -> TargetStates | None:
    """Returns the draft component that reads the target model's hidden states; None without such a component."""
    streams = None if spec.decoder is None else spec.decoder.streams
    return streams if isinstance(streams, TargetStates) else None


def check_draft(
    target: ModelSpec, draft: ModelSpec, target_name: str, option: str, same_vocabulary: bool = False
) -> None:
    """Raises `InputError` if a model cannot draft tokens for the target model.

    target_name: the target's name. option: the option or flag that names the draft, with the draft's name.
    same_vocabulary: whether a draft with its own embedding needs a vocabulary of the target's size; default false.
    """
    for spec, place_in_error in ((target, f"TARGET {target_name}"), (draft, option)):
        if spec.kind != "decoder" or not isinstance(spec.head, LMHead):
            raise InputError(
                f"{place_in_error}: tokens are drafted by a decoder, for a decoder; expected language models"
            )
    if states_of(target) is not None:
        raise InputError(f"TARGET {target_name}: is a draft itself; expected the model for which it drafts")
    is_bound = same_vocabulary or draft.from_target or draft.main.has_no_embedding
    if draft.vocab_size != target.vocab_size and is_bound:
        expected_draft = "a draft with that vocabulary" if same_vocabulary else "the draft of this target"
        shared_embedding_text = ", whose embedding it takes" if draft.from_target else ""
        raise InputError(
            f"{option}: its vocabulary of {draft.vocab_size:,} tokens is not the target's, {target.vocab_size:,}"
            f"{shared_embedding_text}; expected {expected_draft}"
        )
    states_reader = states_of(draft)
    width = None if states_reader is None else states_reader.size or draft.hidden_size
    if width is not None and width != target.hidden_size:
        raise InputError(
            f"{option}: reads hidden states of width {width:,}, and the target's have {target.hidden_size:,}; expected "
            "the draft of this target"
        )
