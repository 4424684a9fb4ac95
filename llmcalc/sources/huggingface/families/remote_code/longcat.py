"""LongCat-Flash-Lite: LongCat-Flash with additional n-gram embeddings.

Source: the file in `Family.source`; its hashes of n-grams have no parameters.
"""

from __future__ import annotations

from dataclasses import replace

from .....components.base import LARGEST_SIZE
from ...class_defaults import class_defaults
from ...code_addresses import MLX
from ...config import Config
from ...family import Quirks
from ...parts import Table
from ..deepseek import longcat_flash

MAX_TABLES = 64


def _read_longcat_flash_ngram(config: Config) -> Table:
    """Reads LongCat-Flash-Lite, with `emb_split_num` embedding tables for each n-gram length up to `emb_neighbor_num`.

    Table i has ngram_vocab_size_ratio · vocab_size + 2·i + 1 rows.
    """
    model_fields = longcat_flash.read_longcat_flash(config)
    hidden_size, longest_ngram = config.integer("hidden_size"), config.integer("emb_neighbor_num")
    table_count = config.integer("emb_split_num") * (longest_ngram - 1)
    if not 1 <= table_count <= MAX_TABLES:
        raise config.error("emb_neighbor_num", longest_ngram, f"2 or more, and 1 to {MAX_TABLES} tables of n-grams")
    ngram_rows = config.integer("ngram_vocab_size_ratio") * config.integer("vocab_size")
    if ngram_rows + 2 * table_count > LARGEST_SIZE:
        raise config.field_error("ngram_vocab_size_ratio", f"tables of at most {LARGEST_SIZE} rows")
    model_fields["decoder"]["ngram_embedding"] = {
        "vocab_sizes": [ngram_rows + 2 * table_index + 1 for table_index in range(table_count)],
        "embedding_size": config.quotient("emb_split_num", hidden_size, table_count),
    }
    return model_fields


LONGCAT = longcat_flash.FAMILIES["longcat_flash"]

FAMILIES = {
    "longcat_flash_ngram": replace(
        LONGCAT,
        read_model=_read_longcat_flash_ngram,
        defaults={
            **class_defaults("longcat_flash"),
            **LONGCAT.defaults,
            "ngram_vocab_size_ratio": 78,
            "emb_neighbor_num": 4,
            "emb_split_num": 4,
        },
        source=f"{MLX}longcat_flash_ngram.py",
        field_writers={},
        modules={},
        quirks=Quirks(),
        deviations=(),
    )
}
