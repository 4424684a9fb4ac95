"""The number of sequences per micro-batch with sentence-transformers, where an example has several texts.

Source: sentence-transformers 5.1 (04bd28754), trainer.py, `collect_features`, and losses/*.py: each text of an example
is encoded by itself, and all encodings have their gradients together. Cached losses (GradCache, arXiv:2101.06983)
encode `mini_batch_size` texts at a time with a gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from .launch_types import Launch

ARGUMENTS_CLASS = "SentenceTransformerTrainingArguments"
"""Name of the class of the trainer's arguments."""

LOSS_CLASS = re.compile(r"[A-Z]\w*Loss")
"""Pattern of the names of loss classes."""

TEXT_COUNT_BY_LOSS = {
    "TripletLoss": 3,
    **dict.fromkeys(
        ("BatchAllTripletLoss", "BatchHardTripletLoss", "BatchSemiHardTripletLoss", "BatchHardSoftMarginTripletLoss"), 1
    ),
}
"""Name of a loss class → number of texts per example, if not two."""

DEFAULT_MINI_BATCH_SIZE = 32
"""Default `mini_batch_size` of a cached loss."""


def with_embedding_loss(launch: Launch, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> Launch:
    """Returns the run without a language-model head, with the sequences whose activations are alive at once.

    launch: the run, whose batch is the examples of a micro-batch. calls: name and arguments of each call in the file.
    """
    loss_calls = [(name, arguments) for name, arguments in calls if LOSS_CLASS.fullmatch(name) is not None]
    texts_per_example = next((TEXT_COUNT_BY_LOSS[name] for name, _ in loss_calls if name in TEXT_COUNT_BY_LOSS), 2)
    sequence_count = launch.settings["batch"] * texts_per_example
    batch_note = (
        f"an example is counted as {'1 text' if texts_per_example == 1 else f'{texts_per_example} texts'} of the "
        "longest length; "
        "--batch says the texts of a micro-batch together, --seq the tokens of the longest one"
    )
    for name, arguments in loss_calls:
        mini_batch_size = arguments.get("mini_batch_size", DEFAULT_MINI_BATCH_SIZE)
        if name.startswith("Cached") and type(mini_batch_size) is int and mini_batch_size > 0:
            sequence_count = min(mini_batch_size, launch.settings["batch"])
            batch_note = f"{name}: {sequence_count:,} texts at a time have activations"
    return replace(
        launch,
        settings={**launch.settings, "batch": sequence_count},
        score_head_num_labels=0,
        counts_longest_samples=True,
        notes=(*launch.notes, batch_note),
    )
