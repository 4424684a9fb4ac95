"""The number of tokens that a prompt's images and audio become, as an entry and a note of a report."""

from __future__ import annotations

from .. import units
from ..costs.encoders import EncodedInputs
from .document import Report


def with_encoder_tokens(report: Report, encoded_inputs: EncodedInputs | None) -> Report:
    """Returns the report with image and audio tokens in the document and in a note on the first table."""
    if encoded_inputs is None or not isinstance(report.data, dict):
        return report
    document_entry = {"image_tokens": encoded_inputs.image_tokens, "audio_tokens": encoded_inputs.audio_tokens}
    return report.with_document_entry("inputs", document_entry, encoder_tokens_note(encoded_inputs))


def encoder_tokens_note(inputs: EncodedInputs) -> str:
    """Returns a note on the tokens of images and audio: `tokens of each sequence: 2,508 of images and 750 of audio`."""
    token_texts = [
        f"{units.exact_text(token_count)} {input_kind}"
        for token_count, input_kind in ((inputs.image_tokens, "of images"), (inputs.audio_tokens, "of audio"))
        if token_count
    ]
    unit_text = (
        "tokens of each sequence" if inputs.extends_sequence else "positions of the encoder, which the decoder reads"
    )
    return f"{unit_text}: {' and '.join(token_texts)}, as the model's published processor cuts them"
