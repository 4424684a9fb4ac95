"""Inference settings shared by counts and memory estimates: users, and cache formats."""

from __future__ import annotations

from ..errors import InputError
from .setting import DeclaredSetting, Setting

CACHE_FORMAT_EXAMPLES = "bf16, fp8, int8; q8_0, q4_0 (llama.cpp); nvfp4, int8_per_token_head, turboquant_k8v4 (vLLM); …"

USERS_SETTING = DeclaredSetting(
    "users",
    int,
    Setting(
        "Inference: users of a replica, as --batch. Each has a sequence of --seq tokens.",
        "What runs",
        spellings=("--concurrency",),
        is_common=True,
    ),
)


def batch_of_users(batch: int | None, users: int | None, phase: str) -> int | None:
    """Returns the number of sequences from the option `batch` or `users`; None if neither is given.

    Raises `InputError` if both are set, and for users in training.

    users: the users who are served at once, each with one sequence.
    """
    if users is None:
        return batch
    if phase == "training":
        raise InputError("--users: training has no users; expected --batch")
    if batch is not None:
        raise InputError("--users: it is another name of --batch; expected one of the two")
    return users
