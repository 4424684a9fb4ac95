"""Determines the kind of a TARGET from the name, without slow imports."""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINT_ENDINGS = (".safetensors", ".safetensors.index.json", ".gguf")


def is_checkpoint(path: Path) -> bool:
    """Whether a path has the name of a checkpoint file, whose header can be read."""
    return path.name.endswith(CHECKPOINT_ENDINGS)


STDIN = "-"
"""The TARGET that stands for standard input."""

HUB_URL_PATTERN = (
    r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<id>[\w.-]+/[\w.-]+|[\w.-]+)"
    r"(?:/(?:tree|blob|resolve|raw|commit)/(?P<revision>[\w.-]+)[^?#]*)?/?(?:[?#].*)?$"
)
"""The URL of a model's page on the Hugging Face hub, or of a file there."""


def hub_id_of(name_or_url: str) -> str:
    """Returns the hub id in a hub URL, with a revision other than `main`; empty for any other TARGET."""
    url_match = re.match(HUB_URL_PATTERN, name_or_url) if "/" in name_or_url else None
    if url_match is None:
        return ""
    revision = url_match["revision"]
    return url_match["id"] if revision in (None, "main") else f"{url_match['id']}@{revision}"


LIBRARY_TAG_PREFIX = (
    r"^(?:(?:https?://)?(?:www\.)?ollama\.com/library/(?=[^/]+$)|ollama +(?:run|pull) +|ollama(?:_chat)?/(?=[^/:]+:))"
)
"""Matches the text before a tag of Ollama's library: its page's URL, Ollama's command, or the provider in LiteLLM."""

HUB_ID_PATTERN = r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,200})?$"


def is_hub_id(name_or_path: str) -> bool:
    """Whether a TARGET has the form `org/name` or `org/name@revision`."""
    return re.match(HUB_ID_PATTERN, name_or_path) is not None and not name_or_path.endswith(
        (".toml", ".json", *CHECKPOINT_ENDINGS)
    )


def normalized_with_points(model_name: str) -> str:
    """Removes case and punctuation from a name, except decimal points: `OPT-1.3B` does not match `opt-13b`."""
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9/+.]", "", model_name.lower())


def normalized(model_name: str) -> str:
    """Removes case and punctuation from a name: `Llama-3_8B` matches `llama3-8b`. A hub id keeps the organisation."""
    return "".join(character for character in model_name.lower() if character.isalnum() or character in "/+")
