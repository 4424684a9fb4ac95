"""LED: BART with Longformer's attention in its encoder.

Beltagy et al. 2020 (arXiv:2004.05150), §7.
transformers: models/led.
"""

from __future__ import annotations

from ...config import Config
from ...dropout import BART_DROPOUT
from ...family import EVERY_CLASS, Family, Quirks
from ...parts import Table
from ..bert.longformer import CHUNKED_SCORES, GLOBAL_NOTE, GLOBAL_PROJECTIONS, window_stack
from .bart import ALIASES, IGNORED_FIELDS, STACK_WRITERS, bart_model


def _read_led(config: Config) -> Table:
    encoder_position, decoder_position = (
        {"type": "learned", "max_position_embeddings": config.integer(f"max_{stack_name}_position_embeddings")}
        for stack_name in ("encoder", "decoder")
    )
    encoder = {"position": encoder_position, **window_stack(config, config.integer("num_hidden_layers"))}
    decoder = {"position": decoder_position}
    model_fields = bart_model(config, "post", encoder_position, True, encoder=encoder, decoder=decoder)
    if "encoder" in model_fields:
        model_fields["encoder"]["block"]["attention"] |= {"idle_projections": GLOBAL_PROJECTIONS}
        config.notes.append(GLOBAL_NOTE)
    return model_fields


FAMILIES = {
    "led": Family(
        _read_led,
        ignored_fields=IGNORED_FIELDS,
        aliases=ALIASES,
        field_writers={
            **STACK_WRITERS,
            "max_encoder_position_embeddings": lambda s: getattr(
                s.first_stack.position, "max_position_embeddings", None
            ),
            "max_decoder_position_embeddings": lambda s: getattr(
                s.main_stack.position, "max_position_embeddings", None
            ),
            "attention_window": lambda s: [
                layer.attention.sliding_window - 1 for layer in map(s.first_stack.layer, s.first_stack.layer_names())
            ],
        },
        deviations=(CHUNKED_SCORES,),
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
        dropout_fields=BART_DROPOUT,
    )
}
