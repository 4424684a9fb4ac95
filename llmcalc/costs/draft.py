"""Checks of a speculative-decoding draft model against the target model: vocabulary and hidden-state width."""

from __future__ import annotations

from ..components.head import LMHead
from ..components.target_states import TargetStates
from ..errors import InputError
from ..model import ModelSpec


def target_state_reader(spec: ModelSpec) -> TargetStates | None:
    """Returns the draft component that reads the target model's hidden states; None if the draft reads none."""
    stream_spec = None if spec.decoder is None else spec.decoder.streams
    return stream_spec if isinstance(stream_spec, TargetStates) else None


def check_draft(
    target_model: ModelSpec,
    draft_model: ModelSpec,
    target_name: str,
    draft_option: str,
    requires_same_vocabulary: bool = False,
) -> None:
    """Raises `InputError` if the draft model cannot draft tokens for the target model.

    target_name: the target's name. draft_option: the option or flag that names the draft, with the draft's name.
    requires_same_vocabulary: whether a draft with its own embedding needs a vocabulary of the target's size; default
        false.
    """
    for spec, argument_name in ((target_model, f"TARGET {target_name}"), (draft_model, draft_option)):
        if spec.kind != "decoder" or not isinstance(spec.head, LMHead):
            raise InputError(
                f"{argument_name}: tokens are drafted by a decoder, for a decoder; expected language models"
            )
    if target_state_reader(target_model) is not None:
        raise InputError(f"TARGET {target_name}: is a draft itself; expected the model for which it drafts")
    shares_vocabulary = requires_same_vocabulary or draft_model.from_target or draft_model.main.is_without_embedding
    if draft_model.vocab_size != target_model.vocab_size and shares_vocabulary:
        expected_text = "a draft with that vocabulary" if requires_same_vocabulary else "the draft of this target"
        shared_embedding_text = ", whose embedding it takes" if draft_model.from_target else ""
        raise InputError(
            f"{draft_option}: its vocabulary of {draft_model.vocab_size:,} tokens is not the target's, "
            f"{target_model.vocab_size:,}{shared_embedding_text}; expected {expected_text}"
        )
    states_reader = target_state_reader(draft_model)
    hidden_width = None if states_reader is None else states_reader.size or draft_model.hidden_size
    if hidden_width is not None and hidden_width != target_model.hidden_size:
        raise InputError(
            f"{draft_option}: reads hidden states of width {hidden_width:,}, and the target's have "
            f"{target_model.hidden_size:,}; expected the draft of this target"
        )
