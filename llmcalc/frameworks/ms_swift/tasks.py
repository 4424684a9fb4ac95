"""Reads `--task_type` of ms-swift: sequence classification, embeddings and rerankers.

Source: as of `command.py`; swift/model/register.py, and mcore-bridge, model/gpt_model.py, for the heads.
"""

from __future__ import annotations

from ..launch.launch_types import LaunchReader, Table, read_integer

TEXT_TASKS = ("embedding", "reranker", "generative_reranker")
"""Values of `--task_type` for tasks that compare the texts of a sample."""


def task_arguments(reader: LaunchReader, config: Table, rlhf_type: str) -> tuple[str, ...]:
    """Returns the arguments of tasks other than language modelling, and replaces the head by a classification head.

    An embedding has no head; one score per token is counted. A generative reranker keeps the language model's head.
    """
    task_type = str(config.get("task_type", "causal_lm"))[:30]
    if rlhf_type or task_type in ("causal_lm", "prm"):
        return ()
    if task_type in ("seq_cls", "embedding", "reranker"):
        reader.score_head_num_labels = 1 if task_type != "seq_cls" else reader.integer(config, "num_labels", 1)
        scores_text = "1 score" if reader.score_head_num_labels == 1 else f"{reader.score_head_num_labels} scores"
        reader.notes.append(f"--task_type {task_type}: {scores_text} a token in place of the logits of all words")
    elif task_type not in TEXT_TASKS:
        reader.refuse("--task_type", f"'{task_type}' is not modelled")
    return ("loss_type", "num_labels", "problem_type")


def sequences_per_sample(reader: LaunchReader, config: Table, rlhf_type: str) -> int:
    """Returns the number of sequences per sample: several for tasks that compare texts, otherwise 1.

    An embedding's sample has an anchor and a positive text, a reranker's as many negatives for each positive as the
    variables say. Source: swift/template/base.py, `_embedding_data_collator`
    and `_reranker_data_collator`; swift/model/register.py.
    """
    task_type = config.get("task_type")
    if rlhf_type or task_type not in TEXT_TASKS:
        return 1
    if task_type == "embedding":
        reader.notes.append("--task_type embedding: two texts a sample; negatives in the data are not counted")
        return 2
    positive_count, negative_count = (
        read_integer(reader, env_name, reader.source.env.get(env_name, default_count), minimum=least_count)
        for env_name, default_count, least_count in (("MAX_POSITIVE_SAMPLES", 1, 1), ("MAX_NEGATIVE_SAMPLES", 7, 0))
    )
    text_count = positive_count * (1 + negative_count)
    reader.notes.append(f"--task_type {task_type}: {text_count} texts a sample (MAX_NEGATIVE_SAMPLES {negative_count})")
    return text_count
