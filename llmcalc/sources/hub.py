"""Fetches hub models, `org/name` or `org/name@revision`: the config, or the headers of the weights.

It uses `huggingface_hub`.

This is the only module that uses the network, and only if no preset and no file matches. Fetched files are in the cache
of `huggingface_hub`, and HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN work as usual. No code is ever fetched.

The size of a file is requested first. Downloads are limited in bytes and in time, whatever the server says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError, MissingExtra
from .bounded import read_bytes
from .checkpoints.header import LARGEST_HEADER, Checkpoint
from .checkpoints.safetensors import LARGEST_INDEX, join_shards, parse_header, parse_index
from .files import LARGEST_CONFIG

CONFIG_SECONDS = 60.0
"""Most seconds for a config, from the first request to the last byte."""

HEADERS_SECONDS = 300.0
"""Most seconds for the headers of a checkpoint."""

REQUEST_SECONDS = 10
"""Most seconds without an answer to one request."""

RETRY_SECONDS = 300.0
"""Seconds after a failed request in which the hub is not asked again for files beside cached configs."""

FIRST_REQUEST_BYTES = 100_000
"""Number of bytes at the start of a weights file that are fetched first; most headers are shorter."""

MAX_CONNECTIONS = 8
"""Number of headers that are fetched in parallel."""

Result = TypeVar("Result")


_unreachable_until: dict[str, float] = {}
"""Address of a hub that did not answer → the time (monotonic clock, in seconds) of the next allowed request."""


class UnreachableHub(InputError):
    """Raised if a file of the hub cannot be downloaded, even though its repository may exist."""


def fetch_config(hub_id: str) -> Path:
    """Returns the path of a repository's cached `config.json`, downloaded if needed.

    With the config come ModelOpt's `hf_quant_config.json` and ColBERT's `artifact.metadata`, if the repository has
    them.
    Raises `InputError`, with a fix, if the repository does not exist or is gated, and for a file or a download that is
    too large or too slow; `UnreachableHub` if the network is not available.
    """
    repository, revision = _split_hub_id(hub_id)
    with _hub_errors_as_input_errors(hub_id, "config.json"):
        return _with_deadline(lambda deadline: _config_path(repository, revision), CONFIG_SECONDS)


def commit_of_repository(hub_id: str) -> str:
    """Returns the commit of the repository from which `fetch_config` reads.

    Raises `InputError` as `fetch_config` does.
    """
    return fetch_config(hub_id).parent.name


def _config_path(repository: str, revision: str | None) -> Path:
    """Returns the path of a repository's config; downloads the files beside it that the cache lacks.

    A config that another program has cached is complete without the hub, whether that is unreachable or refuses access;
    a new one is not.
    """
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    from .huggingface.config_file import files_beside

    def cached_path(file_name: str) -> Any:
        return huggingface_hub.try_to_load_from_cache(repository, file_name, revision=revision)

    hub_endpoint = huggingface_hub.constants.ENDPOINT
    is_cached = isinstance(cached_path("config.json"), str)
    path = _download_file(repository, "config.json", revision, LARGEST_CONFIG)
    for file_name in files_beside(path):
        if cached_path(file_name) is not None:  # it is there, or known not to exist
            continue
        if is_cached and time.monotonic() < _unreachable_until.get(hub_endpoint, 0.0):
            break
        try:
            with _hub_errors_as_input_errors(repository, file_name), suppress(EntryNotFoundError):
                _download_file(repository, file_name, revision, LARGEST_CONFIG)
        except InputError as error:
            if not is_cached:
                raise
            if isinstance(error, UnreachableHub):
                _unreachable_until[hub_endpoint] = time.monotonic() + RETRY_SECONDS
    return path


def fetch_headers(hub_id: str) -> Checkpoint:
    """Returns the tensors of a repository's safetensors weights; downloads only the headers.

    Raises `InputError` as `fetch_config` does.
    """
    repository, revision = _split_hub_id(hub_id)
    with _hub_errors_as_input_errors(hub_id, "safetensors weights"):
        return _with_deadline(lambda deadline: _fetch_tensors(repository, revision, deadline), HEADERS_SECONDS)


def _with_deadline(function_with_deadline: Callable[[float], Result], seconds: float) -> Result:
    """Calls a function with a deadline and returns its result. Raises `InputError` after `seconds`.

    It runs in a thread that does not keep the program alive, because a server can be slow in the middle of any call.
    """
    function_results: list[Result] = []
    errors: list[BaseException] = []
    deadline = time.monotonic() + seconds

    def run_function() -> None:
        try:
            function_results.append(function_with_deadline(deadline))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run_function, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not function_results:
        raise _LimitExceeded(f"the hub did not send all of it within {seconds:.0f} s")
    return function_results[0]


class _LimitExceeded(Exception):
    """Raised for a download that exceeds a bound of bytes or seconds."""


def _download_file(repository: str, file_name: str, revision: str | None, byte_limit: int) -> Path:
    """Returns the path of a repository's file in the cache; downloads it if needed."""
    import inspect

    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    cached_path = huggingface_hub.try_to_load_from_cache(repository, file_name, revision=revision)
    download_options: dict[str, Any] = {}
    if not isinstance(cached_path, str):
        # One attempt: without this a download retries an unreachable hub for half a minute.
        file_bytes = None
        with suppress(EntryNotFoundError):  # raised again by the download, which remembers that the file is missing
            file_bytes = huggingface_hub.get_hf_file_metadata(
                huggingface_hub.hf_hub_url(repository, file_name, revision=revision), timeout=REQUEST_SECONDS
            ).size
        if file_bytes is not None and file_bytes > byte_limit:
            raise _LimitExceeded(f"{file_name} has {file_bytes:,} bytes; expected at most {byte_limit:,}")
        if "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:
            download_options = {"tqdm_class": _limited_progress_bar(file_name, byte_limit)}
    return Path(huggingface_hub.hf_hub_download(repository, file_name, revision=revision, **download_options))


def _limited_progress_bar(file_name: str, byte_limit: int) -> type[Any]:
    """Returns a hidden progress bar that stops a download of more than `byte_limit` bytes."""
    from huggingface_hub.utils.tqdm import tqdm

    class LimitedProgressBar(tqdm):
        received_bytes = 0.0

        def update(self, byte_count: float | None = 1) -> bool | None:
            self.received_bytes += byte_count or 0
            if self.received_bytes > byte_limit:
                raise _LimitExceeded(f"{file_name} has more bytes than the hub said; expected at most {byte_limit:,}")
            return bool(super().update(byte_count))

    return LimitedProgressBar


def _fetch_tensors(repository: str, revision: str | None, deadline: float) -> Checkpoint:
    """Fetches the tensor headers of a repository's single weights file, or of the files in its index."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    def url_of(file_name: str) -> str:
        return str(huggingface_hub.hf_hub_url(repository, file_name, revision=revision))

    single_file_name = "model.safetensors"
    try:
        huggingface_hub.get_hf_file_metadata(url_of(single_file_name), timeout=REQUEST_SECONDS)
    except EntryNotFoundError:
        index_name = f"{single_file_name}.index.json"
        index_bytes = read_bytes(
            _download_file(repository, index_name, revision, LARGEST_INDEX), LARGEST_INDEX, "the index of a checkpoint"
        )
        weight_map = parse_index(index_bytes, f"{repository}/{index_name}")
        headers_by_file = _fetch_all({name: url_of(name) for name in dict.fromkeys(weight_map.values())}, deadline)
        error_location = f"{repository}/{index_name}"
        return join_shards(
            weight_map, lambda file_name, limit: (headers_by_file[file_name], None), error_location, f"{repository}/"
        )
    header_json = _fetch_all({single_file_name: url_of(single_file_name)}, deadline)[single_file_name]
    return parse_header(header_json, f"{repository}/{single_file_name}")


def _fetch_all(url_by_file: dict[str, str], deadline: float) -> dict[str, bytes]:
    """Fetches the headers of files in parallel, and returns each file's header as JSON."""
    headers_by_file: dict[str, bytes] = {}
    errors: list[BaseException] = []
    waiting_files, files_lock = list(reversed(url_by_file.items())), threading.Lock()

    def fetch_waiting_files() -> None:
        while not errors:
            with files_lock:
                if not waiting_files:
                    return
                file_name, url = waiting_files.pop()
                remaining_bytes = LARGEST_HEADER - sum(map(len, headers_by_file.values()))
            try:
                header_json = _fetch_header(url, file_name, remaining_bytes, deadline)
            except BaseException as error:
                errors.append(error)
                return
            with files_lock:
                headers_by_file[file_name] = header_json

    threads = [
        threading.Thread(target=fetch_waiting_files, daemon=True) for _ in range(min(MAX_CONNECTIONS, len(url_by_file)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return headers_by_file


def _fetch_header(url: str, file_name: str, byte_limit: int, deadline: float) -> bytes:
    first_bytes = _fetch_first_bytes(url, FIRST_REQUEST_BYTES, deadline)
    header_length = int.from_bytes(first_bytes[:8], "little")
    if len(first_bytes) < 10 or header_length < 2:
        raise InputError(f"{file_name}: header length {header_length:,}; not a safetensors checkpoint")
    if header_length > byte_limit:
        raise _LimitExceeded(
            f"{file_name}: header length {header_length:,}; expected at most {LARGEST_HEADER:,} bytes in all headers"
        )
    if header_length + 8 > len(first_bytes):
        first_bytes = _fetch_first_bytes(url, header_length + 8, deadline)
    if header_length + 8 > len(first_bytes):
        raise InputError(f"{file_name}: the file ended in its header; it is truncated or not a safetensors checkpoint")
    return first_bytes[8 : header_length + 8]


def _fetch_first_bytes(url: str, byte_count: int, deadline: float) -> bytes:
    """Fetches the first `byte_count` bytes of a file, or a shorter file completely."""
    from huggingface_hub import utils

    hub_library: Any = utils
    headers = {**hub_library.build_hf_headers(), "Range": f"bytes=0-{byte_count - 1}", "Accept-Encoding": "identity"}
    http_session: Any = hub_library.get_session()
    if callable(getattr(http_session, "stream", None)):  # httpx, of huggingface_hub 1 and later
        with http_session.stream("GET", url, headers=headers, timeout=REQUEST_SECONDS) as response:
            return _read_first_bytes(response.status_code, response.iter_raw(), byte_count, deadline)
    with http_session.get(url, headers=headers, stream=True, timeout=REQUEST_SECONDS) as response:
        return _read_first_bytes(response.status_code, response.iter_content(2**16), byte_count, deadline)


def _read_first_bytes(http_status: int, received_chunks: Iterable[bytes], byte_count: int, deadline: float) -> bytes:
    """Reads the first `byte_count` bytes of a response."""
    if http_status not in (200, 206):
        raise OSError(f"HTTP status {http_status}")
    first_bytes = bytearray()
    for received_chunk in received_chunks:
        first_bytes += received_chunk
        if len(first_bytes) >= byte_count:
            break
        if time.monotonic() > deadline:
            raise _LimitExceeded("the hub is too slow")
    return bytes(first_bytes[:byte_count])


def _split_hub_id(hub_id: str) -> tuple[str, str | None]:
    repository, _, revision = hub_id.partition("@")
    return repository, revision or None


@contextmanager
def _hub_errors_as_input_errors(hub_id: str, requested_content: str) -> Iterator[None]:
    """Converts every error of the hub into an `InputError` with one line and a fix."""
    try:
        from huggingface_hub import errors
    except ImportError:
        raise MissingExtra(f"{hub_id}: a hub id", "huggingface_hub", "hub") from None
    offline_message = f"no {requested_content} in the cache, and the hub is offline or unreachable"
    no_answer_message = f"the hub did not give its {requested_content}"
    reasons_by_error: list[tuple[tuple[Any, ...], str]] = [
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
        ((errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled), offline_message),
        ((errors.EntryNotFoundError,), f"has no {requested_content}"),
        ((errors.HFValidationError,), "is not a valid hub id"),
        ((errors.HfHubHTTPError, OSError), no_answer_message),
    ]
    from logging import ERROR

    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.set_verbosity(ERROR)  # the error below repeats its warnings in one line
    disable_progress_bars()
    try:
        yield
    except InputError as error:
        raise InputError(f"{hub_id}: {str(error).removeprefix(f'{hub_id}: ')}") from None
    except _LimitExceeded as error:
        raise InputError(f"{hub_id}: {error}") from None
    except Exception as error:
        for error_types, reason_text in reasons_by_error:
            if isinstance(error, error_types):
                is_unreachable = reason_text in (offline_message, no_answer_message)
                raise (UnreachableHub if is_unreachable else InputError)(f"{hub_id}: {reason_text}") from None
        if type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise UnreachableHub(f"{hub_id}: {offline_message}") from None
        if type(error).__module__.startswith("huggingface_hub"):
            raise InputError(f"{hub_id}: could not be fetched: {error}") from None
        raise
