"""Comparison of the versions of libraries."""

from __future__ import annotations


def is_older_version(version: str, compared_version: tuple[int, ...]) -> bool:
    """Whether a version such as `2.0.1` is older than `compared_version`; an empty text is the newest version."""
    return bool(version) and tuple(map(int, version.split("."))) < compared_version
