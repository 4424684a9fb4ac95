"""Files as they were at a commit of a git repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..errors import InputError, one_line
from .files import LARGEST_TOML


def text_at(ref: str, path: Path, limit: int = LARGEST_TOML) -> str | None:
    """The text of a file at a commit, a branch or a tag; None if it was not there yet. `git` is run for it.

    limit: largest size in bytes.
    Raises `InputError` if git is not installed, if the file's folder is in no repository, or for an unknown ref.
    """
    if ref.startswith("-"):  # git would take it for an option
        raise InputError(f"--git {ref}: expected a commit, a branch or a tag, such as HEAD or origin/main")
    folder = path.parent if path.parent.is_dir() else Path()
    known = _git(folder, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if known.returncode:
        inside = _git(folder, "rev-parse", "--is-inside-work-tree")
        if inside.returncode:
            raise InputError(f"--git {ref}: {folder} is in no git repository; expected a file of a repository")
        raise InputError(f"--git {ref}: there is no such commit, branch or tag here (git fetch gets those of a remote)")
    commit = known.stdout.decode().strip()
    name = path.name if path.parent.is_dir() else path.as_posix()
    size = _git(folder, "cat-file", "-s", f"{commit}:./{name}")
    if size.returncode:
        return None
    if int(size.stdout) > limit:
        raise InputError(f"{ref}:{path}: {int(size.stdout):,} bytes; expected at most {limit:,}")
    found = _git(folder, "cat-file", "blob", f"{commit}:./{name}")
    if found.returncode:
        raise InputError(f"{ref}:{path}: {one_line(found.stderr.decode(errors='replace'))}; expected a file")
    try:
        return found.stdout.decode()
    except UnicodeDecodeError:
        raise InputError(f"{ref}:{path}: is not UTF-8 text; expected a config.json or a .toml description") from None


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        raise InputError("--git: the program git is not installed; expected it on the PATH") from None
