"""Versions of torch."""

from __future__ import annotations


def is_older(version: str, other: tuple[int, ...]) -> bool:
    """Whether a version, such as `2.0.1`, is older than another; an empty one is the newest."""
    return bool(version) and tuple(map(int, version.split("."))) < other
