"""Reads files at a commit of a git repository.

A repository's own settings can name programs that git runs: hooks, transports, pagers, file-system monitors. No file
that this module reads may choose one, so `git` runs in the folder that holds the repository's `.git`, runs only
commands that read objects, and has `GIT_SETTINGS` and `GIT_ENVIRONMENT`. A folder of the work tree that looks
like a bare repository is never used as one, and git's check of who owns the repository stays on. An unpacked archive
may hold a `.git` that its author wrote and the user owns, which that check accepts; the settings here hold against it
as well.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import InputError, one_line
from .files import largest_description_bytes

TIMEOUT_SECONDS = 30
"""Timeout of a call of git, in seconds."""

LARGEST_MESSAGE_BYTES = 64_000
"""Largest size in bytes of git's error messages, and of git's output other than file contents."""

GIT_SETTINGS = (
    "safe.bareRepository=explicit",  # a bare repository is one only where GIT_DIR names it
    "protocol.allow=never",
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "fetch.bundleURI=",
)
"""Git settings of each call, which override the repository's settings."""

GIT_ENVIRONMENT = {
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone fetches nothing
    "GIT_ALLOW_PROTOCOL": "",  # no transport; unlike protocol.allow, no setting of a repository overrides it
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
}
"""Environment variables of each call of git."""

REPOSITORY_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_CONFIG",
    "GIT_GRAFT_FILE",
    "GIT_SHALLOW_FILE",
    "GIT_REPLACE_REF_BASE",
    "GIT_CEILING_DIRECTORIES",
)
"""Variables that name another repository or a part of it, as git hooks set them. They are not passed on, because the
repository is that of the file. Settings of the user (GIT_CONFIG_GLOBAL, GIT_CONFIG_COUNT, …) are passed on.
"""


class NotAModelText(InputError):
    """Raised if a file at a commit is too large or not text, so that it cannot describe a model."""


@dataclass(frozen=True)
class GitAnswer:
    """The exit status, standard output and one line of standard error of a git command."""

    exit_status: int
    output: bytes
    message: str


def text_at_commit(git_ref: str, path: Path) -> str | None:
    """Returns the text of a file at a commit, a branch or a tag; None if it did not exist.

    `git` runs in the innermost folder above the file that holds a repository.
    Raises `InputError` if git is not installed, if the file is in no repository or in that of another user, for an
    unknown ref, and for a file that the repository has not fetched; `NotAModelText` for a folder, a file above
    `largest_description_bytes` and one that is not UTF-8.
    """
    if git_ref.startswith("-"):  # git would take it for an option
        raise InputError(f"--git {git_ref}: expected a commit, a branch or a tag, such as HEAD or origin/main")
    absolute_path = Path(os.path.realpath(path.parent)) / path.name
    repo_root = repository_root(absolute_path)
    if repo_root is None:
        raise InputError(
            f"--git {git_ref}: {path.parent} is in no git repository; expected a file below a folder that holds a .git"
        )
    _require_root_repository(git_ref, repo_root)
    commit_answer = _run_git(repo_root, "rev-parse", "--verify", "--quiet", f"{git_ref}^{{commit}}")
    if commit_answer.exit_status:
        raise InputError(
            f"--git {git_ref}: there is no such commit, branch or tag here (git fetch gets those of a remote)"
        )
    path_in_repository = absolute_path.relative_to(repo_root).as_posix()
    arguments = ("ls-tree", "--full-tree", "-l", "-z", commit_answer.output.decode().strip(), "--", path_in_repository)
    object_answer = _run_git(repo_root, *arguments)
    if object_answer.exit_status:
        raise InputError(
            f"{git_ref}:{path}: {object_answer.message}; expected a commit whose files are here (git fetch gets them)"
        )
    if not object_answer.output:
        return None
    _mode, object_type, object_id, byte_count_text = object_answer.output.partition(b"\t")[0].decode().split()
    if object_type != "blob":
        raise NotAModelText(f"{git_ref}:{path}: is a folder at that commit; expected a file")
    if not byte_count_text.isdigit():  # BAD: of a partial clone
        raise InputError(
            f"{git_ref}:{path}: the repository has not fetched it; expected one with its files (git fetch)"
        )
    byte_limit = largest_description_bytes(path)
    if int(byte_count_text) > byte_limit:
        raise NotAModelText(f"{git_ref}:{path}: {int(byte_count_text):,} bytes; expected at most {byte_limit:,}")
    blob_answer = _run_git(repo_root, "cat-file", "blob", object_id, byte_limit=byte_limit)
    if blob_answer.exit_status:
        raise InputError(f"{git_ref}:{path}: {blob_answer.message}; expected a file")
    try:
        return blob_answer.output.decode()
    except UnicodeDecodeError:
        raise NotAModelText(
            f"{git_ref}:{path}: is not UTF-8 text; expected a config.json or a .toml description"
        ) from None


def repository_root(file: Path) -> Path | None:
    """Returns the innermost folder above a file with a repository's `.git`; None without one.

    `.git` is a folder with a HEAD, or the file of a linked worktree or a submodule. file: an absolute path.
    """
    for folder in file.parents:
        if os.path.isfile(folder / ".git") or os.path.lexists(folder / ".git" / "HEAD"):
            return folder
    return None


def _require_root_repository(git_ref: str, repo_root: Path) -> None:
    """Raises `InputError` unless git takes `repo_root` as the repository's root, and not another folder.

    With a damaged `.git`, git would use the folder as a bare repository, or search the folders above.
    """
    git_answer = _run_git(repo_root, "rev-parse", "--absolute-git-dir")
    if git_answer.exit_status:
        raise InputError(
            f"--git {git_ref}: {repo_root}: {git_answer.message}; expected a repository that git opens (its setting "
            "safe.directory lists those of other users)"
        )
    git_folder = os.fsdecode(git_answer.output.removesuffix(b"\n"))
    expected_folder = repo_root / ".git"
    try:
        if expected_folder.is_file():
            with expected_folder.open("rb") as file:
                expected_folder = repo_root / os.fsdecode(
                    file.read(LARGEST_MESSAGE_BYTES).removeprefix(b"gitdir:").strip()
                )
        is_same_folder = os.path.samefile(git_folder, expected_folder)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        is_same_folder = False
    if not is_same_folder:
        raise InputError(
            f"--git {git_ref}: {repo_root / '.git'}: git does not read it; expected the .git of a repository"
        )


def _run_git(repo_root: Path, *git_arguments: str, byte_limit: int = LARGEST_MESSAGE_BYTES) -> GitAnswer:
    """Runs git in a folder, for at most `TIMEOUT_SECONDS`. byte_limit: bytes of an answer.

    Raises `InputError` if git is not installed, takes longer, or writes more.
    """
    setting_arguments = [git_argument for git_setting in GIT_SETTINGS for git_argument in ("-c", git_setting)]
    git_environment = {
        variable_name: variable_value
        for variable_name, variable_value in os.environ.items()
        if variable_name not in REPOSITORY_VARIABLES
    }
    # a new process group, so that processes that git starts end with it
    git_process = subprocess.Popen(
        [path_of_git(), "--no-pager", *setting_arguments, *git_arguments],
        cwd=repo_root,
        env=git_environment | GIT_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert git_process.stdout is not None
    assert git_process.stderr is not None

    def read(pipe: IO[bytes], read_limit: int) -> bytes:
        output_bytes = pipe.read(read_limit + 1)
        if len(output_bytes) > read_limit:
            _kill_process(git_process)
        return output_bytes

    with git_process, ThreadPoolExecutor(2) as thread_pool:
        output_future = thread_pool.submit(read, git_process.stdout, byte_limit)
        message_future = thread_pool.submit(read, git_process.stderr, LARGEST_MESSAGE_BYTES)
        try:
            output, error_output = output_future.result(TIMEOUT_SECONDS), message_future.result(TIMEOUT_SECONDS)
            git_process.wait(TIMEOUT_SECONDS)
        except (TimeoutError, subprocess.TimeoutExpired):
            raise InputError(
                f"--git: git {git_arguments[0]} in {repo_root} took more than {TIMEOUT_SECONDS} s; expected a "
                "repository that git reads faster"
            ) from None
        finally:
            if git_process.returncode is None:
                _kill_process(git_process)
    if len(output) > byte_limit or len(error_output) > LARGEST_MESSAGE_BYTES:
        raise InputError(
            f"--git: git {git_arguments[0]} in {repo_root} wrote more than {byte_limit:,} bytes; expected fewer"
        )
    message_lines = error_output.decode(errors="replace").strip().splitlines() or [f"git {git_arguments[0]} failed"]
    fatal_line = next((line for line in message_lines if line.startswith("fatal: ")), message_lines[-1])
    return GitAnswer(git_process.returncode, output, one_line(fatal_line.removeprefix("fatal: ")))


def _kill_process(git_process: subprocess.Popen[bytes]) -> None:
    """Ends git and all processes started by git."""
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(git_process.pid, signal.SIGKILL)
    else:
        git_process.kill()


def path_of_git() -> str:
    """Returns the path of git from the absolute folders of PATH, because a relative folder is unsafe.

    Raises `InputError` if there is none.
    """
    for folder in os.get_exec_path():
        git_path = shutil.which(os.path.join(folder, "git")) if os.path.isabs(folder) else None
        if git_path is not None:
            return git_path
    raise InputError("--git: the program git is not installed; expected it on the PATH")
