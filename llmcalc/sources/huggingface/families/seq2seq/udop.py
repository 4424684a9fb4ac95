"""UDOP: T5 for document pages, whose encoder has embeddings of coordinates and biases by distances on the page.

Tang et al. 2022 (arXiv:2212.02623). What is counted is a text whose words have boxes on a page: its class shows the
patches of the page's image to the encoder too, which is not counted. Its decoder has the tables of distances on the
page and does not use them. transformers: models/udop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .....components.base import LARGEST_SIZE
from ...absent_value import require_present
from ...config import Config, is_json_integer
from ...dropout import T5_DROPOUT
from ...family import EVERY_CLASS, Family, Quirks
from ...parts import Table, class_name_of_config
from .t5 import (
    ALIASES,
    IGNORED_FIELDS,
    SHARED_BIAS_MODULE,
    T5_MODULES,
    T5_WRITERS,
    UNREAD_ALIASES,
    shared_position_bias,
    t5_block,
    t5_model,
)

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

BIAS_DISTANCES = ("1d", "horizontal", "vertical")
"""The kinds of distances that can have a table of relative position biases."""

DEFAULT_BUCKETS = 32
"""The default number of buckets of a bias table."""


def _read_udop(config: Config) -> Table:
    first_bucket, *other_buckets = _bias_buckets(config)
    relative_bias = shared_position_bias(config)["relative_bias"]
    is_bare_class = config.head_kind == "none" and class_name_of_config(config).endswith("UdopModel")
    if not is_bare_class and first_bucket != relative_bias["relative_attention_num_buckets"]:
        raise config.field_error(
            "relative_bias_args",
            "a first table with relative_attention_num_buckets buckets, whose weights the first layer's bias has",
        )
    page_buckets = (
        [first_bucket, *other_buckets] if is_bare_class else other_buckets
    )  # the bare class keeps the first layer's bias beside its table
    config.notes.append("patch_size: the projection of the page's image to patches is not counted, nor its products")
    stack_fields = {"relative_bias": {**relative_bias, "other_buckets": page_buckets}}
    model_fields = t5_model(config, t5_block(config), stack_fields)
    model_fields["encoder"]["token_types"] = {"other_vocab_sizes": [config.integer("max_2d_position_embeddings")] * 2}
    return {**model_fields, "tie_word_embeddings": True}  # whatever the config says


def _bias_buckets(config: Config) -> list[int]:
    """Returns the bucket counts of the tables in `relative_bias_args`; text distances come first.

    By default there are three, of DEFAULT_BUCKETS buckets each.
    """
    field_name, bias_tables = "relative_bias_args", config.get("relative_bias_args")
    if bias_tables is None:
        return [DEFAULT_BUCKETS] * len(BIAS_DISTANCES)
    expected_text = "a list of 1 to 16 tables with a type (1d, horizontal or vertical), a 1d table first"
    if not isinstance(bias_tables, list) or not 1 <= len(bias_tables) <= 16:
        raise config.error(field_name, bias_tables, expected_text)
    bucket_counts = []
    for table_index, bias_table in enumerate(bias_tables):
        is_known_type = isinstance(bias_table, dict) and bias_table.get("type") in (
            BIAS_DISTANCES if table_index else BIAS_DISTANCES[:1]
        )
        bucket_count = bias_table.get("relative_attention_num_buckets", DEFAULT_BUCKETS) if is_known_type else None
        if not is_json_integer(bucket_count) or not 4 <= bucket_count <= LARGEST_SIZE:
            raise config.error(field_name, bias_tables, expected_text)
        if bias_table.get("prefix_bucket", False) is not False:
            raise config.error(field_name, bias_tables, "tables without prefix_bucket")
        bucket_counts.append(bucket_count)
    return bucket_counts


def _relative_bias_fields(model_values: ConfigValues) -> list[dict[str, Any]]:
    relative_bias = require_present(model_values.first_stack.relative_bias)
    bucket_counts = (relative_bias.relative_attention_num_buckets, *relative_bias.other_buckets)
    bias_kinds = (*BIAS_DISTANCES, *["vertical"] * len(bucket_counts))
    return [
        {"type": bias_kind, "relative_attention_num_buckets": bucket_count}
        for bias_kind, bucket_count in zip(bias_kinds, bucket_counts, strict=False)
    ]


FAMILIES = {
    "udop": Family(
        _read_udop,
        {"n_positions": None},
        IGNORED_FIELDS,
        aliases=ALIASES,
        unread_aliases=UNREAD_ALIASES | {"head_dim"},
        uncounted_modules="patch_embed + encoder.embed_patches + decoder.embed_patches",
        field_writers={
            **T5_WRITERS,
            "relative_bias_args": _relative_bias_fields,
            "max_2d_position_embeddings": lambda s: require_present(s.first_stack.token_types).other_vocab_sizes[0],
        },
        quirks=Quirks(value_reading_classes=EVERY_CLASS, further_inputs=lambda config: {"bbox": ("batch", "seq", 4)}),
        modules={
            **T5_MODULES,
            "embed_other_0": "cell_2d_embedding.x_position_embeddings",
            "embed_other_1": "cell_2d_embedding.y_position_embeddings",
            "relative_bias": f"{SHARED_BIAS_MODULE} + relative_bias",
        },
        dropout_fields=T5_DROPOUT,
    )
}
