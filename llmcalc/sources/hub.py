"""Fetches hub models, `org/name` or `org/name@revision`: the config or the headers of the weights, by
`huggingface_hub`.

This is the only module that uses the network, and only if no preset and no file matches. Fetched files are in the cache
of `huggingface_hub`, and HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN work as usual. No code is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import InputError, MissingExtra
from .checkpoints.header import Checkpoint, StoredTensor
from .checkpoints.safetensors import parse_header


def fetch_config(target: str) -> Path:
    """Returns the path of a repository's `config.json` in the cache, and downloads it if needed.

    Raises `InputError`, with a fix, if the repository does not exist, is gated, or the network is not available.
    """
    repo, revision = _split(target)
    with _explained(target, "config.json"):
        import huggingface_hub

        name = "config.json"
        if not isinstance(huggingface_hub.try_to_load_from_cache(repo, name, revision=revision), str):
            # One attempt: without this a download retries an unreachable hub for half a minute.
            huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(repo, name, revision=revision))
        return Path(huggingface_hub.hf_hub_download(repo, name, revision=revision))


def fetch_headers(target: str) -> Checkpoint:
    """Returns the tensors of a repository's safetensors weights; only the bytes of the headers are downloaded."""
    repo, revision = _split(target)
    with _explained(target, "safetensors weights"):
        import json

        import huggingface_hub

        found = huggingface_hub.get_safetensors_metadata(repo, revision=revision)
        tensors: list[StoredTensor] = []
        for name, file in found.files_metadata.items():
            header = {
                tensor: {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": list(info.data_offsets)}
                for tensor, info in file.tensors.items()
            }
            tensors += parse_header(json.dumps(header).encode(), f"{repo}/{name}").tensors
    return Checkpoint("safetensors", tuple(tensors), dict(found.metadata or {}))


def _split(target: str) -> tuple[str, str | None]:
    repo, _, revision = target.partition("@")
    return repo, revision or None


@contextmanager
def _explained(target: str, what: str) -> Iterator[None]:
    """Converts every error of the hub into an `InputError` of one line, with a fix."""
    try:
        from huggingface_hub import errors
    except ImportError:
        raise MissingExtra(f"{target}: a hub id", "huggingface_hub", "hub") from None
    absent = f"its {what} is not in the cache, and the hub is offline or unreachable"
    kinds: list[tuple[tuple[Any, ...], str]] = [
        (
            (errors.GatedRepoError,),
            "is gated: accept its terms on the hub, then log in with `hf auth login` or set HF_TOKEN",
        ),
        (
            (errors.RepositoryNotFoundError,),
            "no such repository, or a private one: check the name, or log in with `hf auth login` or set HF_TOKEN",
        ),
        ((errors.RevisionNotFoundError,), "has no such revision"),
        ((errors.NotASafetensorsRepoError,), "has no safetensors weights"),
        (
            (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled),
            absent,
        ),
        ((errors.EntryNotFoundError,), f"has no {what}"),
        ((errors.HFValidationError,), "is not a valid hub id"),
        ((errors.HfHubHTTPError, OSError), f"could not be fetched: its {what}"),
    ]
    from logging import ERROR

    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.set_verbosity(ERROR)  # the error below repeats its warnings in one line
    disable_progress_bars()
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        for types, why in kinds:
            if isinstance(error, types):
                raise InputError(f"{target}: {why}") from None
        if type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise InputError(f"{target}: {absent}") from None
        if type(error).__module__.startswith("huggingface_hub"):
            raise InputError(f"{target}: could not be fetched: {error}") from None
        raise
