"""`llmcalc diff --git` runs git in repositories whose files, and whose settings, someone else may have written.

Each repository here names a program in every setting that git might run one from; the program leaves a mark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.sources import git
from llmcalc.sources.git import text_at_commit

MISSING = "1" * 40
"""A commit that no repository here has: git would fetch it in a partial clone."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the programs are shell scripts")


def commands(folder: Path, *calls: list[str]) -> None:
    for words in calls:
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that each program of a repository here would create."""
    return tmp_path / "PWNED"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one file that has changed since its commit."""
    root = tmp_path / "work"
    (root / "model").mkdir(parents=True)
    (root / "model" / "config.json").write_text("before")
    commands(root, ["init", "-q"], ["add", "."], ["commit", "-qm", "A model"])
    (root / "model" / "config.json").write_text("after")
    monkeypatch.chdir(root)
    return root


def settings(mark: Path, url: str, bare: bool) -> str:
    """The `config` of a repository whose every program creates the mark."""
    program = f"touch {mark}; false"
    return f"""[core]
	repositoryformatversion = 1
	bare = {str(bare).lower()}
	fsmonitor = "{program}"
	sshCommand = "{program}"
	pager = "{program}"
	editor = "{program}"
	alternateRefsCommand = "{program}"
	hooksPath = hooks
	gitProxy = "{program}"
	askPass = "{program}"
[extensions]
	partialclone = origin
[remote "origin"]
	url = {url}
	promisor = true
	uploadpack = "{program}"
	receivepack = "{program}"
[protocol]
	allow = always
[protocol "file"]
	allow = always
[protocol "ext"]
	allow = always
[protocol "ssh"]
	allow = always
[fetch]
	bundleURI = {url}
[diff]
	external = "{program}"
[diff "all"]
	textconv = "{program}"
	command = "{program}"
[filter "all"]
	clean = "{program}"
	smudge = "{program}"
	process = "{program}"
	required = true
[credential]
	helper = "!{program}"
[gpg]
	program = "{program}"
[pager]
	rev-parse = "{program}"
	cat-file = "{program}"
	ls-tree = "{program}"
[alias]
	rev-parse = "!{program}"
	cat-file = "!{program}"
	ls-tree = "!{program}"
"""


def write_repository(folder: Path, mark: Path, url: str = ".", bare: bool = False) -> None:
    """Makes a folder one that git accepts as a repository: what can be committed to another one, if it is bare."""
    for name in ("objects/info", "objects/pack", "refs/heads", "hooks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("objects/info/keep", "objects/pack/keep"):  # git commits no empty folder
        (folder / name).write_text("")
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "refs" / "heads" / "main").write_text(MISSING + "\n")
    (folder / "config").write_text(settings(mark, url, bare))
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman", "pre-auto-gc"):
        (folder / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (folder / "hooks" / hook).chmod(0o755)


def older_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a git on PATH that, like one from before 2.38, knows neither safe.bareRepository nor GIT_NO_LAZY_FETCH."""
    folder.mkdir()
    script = folder / "git"
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "words = [word.replace('safe.bareRepository=', 'unknown.bareRepository=') for word in sys.argv[1:]]\n"
        "os.environ.pop('GIT_NO_LAZY_FETCH', None)\n"
        f"os.execv({shutil.which('git')!r}, ['git', *words])\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


URLS = (".", "ssh://localhost/nowhere", "ext::sh -c 'touch {mark}'", "git://localhost/nowhere")


@pytest.mark.parametrize("ref", [MISSING, "HEAD", "main"])
@pytest.mark.parametrize("old", [False, True])
def test_a_folder_that_looks_like_a_repository_runs_nothing(
    ref: str, old: bool, repository: Path, mark: Path, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(repository, ["branch", "-M", "main"])
    write_repository(repository / "evil", mark, bare=True)
    (repository / "evil" / "config.json").write_text("{}")
    commands(repository, ["add", "-f", "evil"], ["commit", "-qm", "A folder"])
    assert "evil/refs/heads/main" in subprocess.check_output(["git", "ls-files"], text=True)
    if old:
        older_git(tmp_path / "bin", monkeypatch)
    run("diff", "--git", ref, "evil/config.json")
    monkeypatch.chdir(repository / "evil")
    run("diff", "--git", ref, "config.json")
    run("diff", "--git", ref, "objects/config.json")
    assert not mark.exists()
    if ref != MISSING:
        assert text_at_commit(ref, Path("config.json")) == "{}"


def test_outside_of_a_repository_such_a_folder_is_none(mark: Path, tmp_path: Path, run: Any) -> None:
    write_repository(tmp_path / "evil", mark, bare=True)
    (tmp_path / "evil" / "config.json").write_text("{}")
    for ref in (MISSING, "HEAD", "main"):
        code, _, err = run("diff", "--git", ref, str(tmp_path / "evil" / "config.json"))
        assert code == 2
        assert "is in no git repository" in err
    assert not mark.exists()


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_repository_from_an_archive_runs_nothing(
    url: str, old: bool, kind: str, mark: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `.git`, a folder or a file that leads to one, belongs to the user who unpacked it."""
    root = tmp_path / "unpacked"
    commands(tmp_path, ["init", "-q", "-b", "main", str(root)])
    (root / "config.json").write_text("{}")
    (root / ".gitattributes").write_text("* filter=all diff=all\n")
    commands(root, ["add", "."], ["commit", "-qm", "A model"])
    blob = subprocess.check_output(["git", "rev-parse", "HEAD:config.json"], cwd=root, text=True).strip()
    commit = (root / ".git" / "refs" / "heads" / "main").read_text()
    write_repository(root / ".git", mark, url.format(mark=mark))
    (root / ".git" / "refs" / "heads" / "main").write_text(commit)
    (root / ".git" / "refs" / "heads" / "gone").write_text(MISSING + "\n")
    if kind == "file":
        (root / ".git").rename(root / "data")
        (root / ".git").write_text("gitdir: data\n")
    if old:
        older_git(tmp_path / "bin", monkeypatch)
    assert text_at_commit("main", root / "config.json") == "{}"
    for ref in (MISSING, "gone"):
        with pytest.raises(InputError, match="no such commit, branch or tag"):
            text_at_commit(ref, root / "config.json")
    (root / ("data" if kind == "file" else ".git") / "objects" / blob[:2] / blob[2:]).unlink()
    # an older git may also end as soon as its fetch is refused
    with pytest.raises(InputError, match=r"has not fetched it|expected a commit whose files are here"):
        text_at_commit("main", root / "config.json")
    assert not mark.exists()


def test_the_programs_of_such_a_repository_would_run(mark: Path, tmp_path: Path) -> None:
    """So that the tests above can fail: plain git runs one of them."""
    write_repository(tmp_path / "evil", mark, bare=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    words = ["git", "rev-parse", "--verify", "main^{commit}"]
    subprocess.run(words, cwd=tmp_path / "evil", capture_output=True, env=environment, check=False)
    assert mark.exists()


def test_every_call_has_the_settings_that_run_and_fetch_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is a second guard: GIT_DIR names the repository, and GIT_ALLOW_PROTOCOL forbids transports."""
    real, calls = shutil.which("git"), tmp_path / "calls"
    (repository / "config.json").write_text("{}")
    commands(repository, ["add", "config.json"], ["commit", "-qm", "A model"])
    folder = fake_git(tmp_path / "bin", f'echo "$@" >> {calls}\nexec {real} "$@"')
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert text_at_commit("HEAD", Path("config.json")) == "{}"
    lines = calls.read_text().splitlines()
    assert lines
    for setting in ("safe.bareRepository=explicit", "protocol.allow=never", "core.fsmonitor=false", "core.hooksPath="):
        assert all(f"-c {setting}" in line for line in lines), (setting, lines)


def test_a_damaged_repository_is_not_replaced_by_the_folder_itself(
    mark: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git would go on with the folder itself as a bare repository."""
    write_repository(tmp_path / "evil", mark, bare=True)
    (tmp_path / "evil" / ".git").mkdir()
    (tmp_path / "evil" / ".git" / "HEAD").write_text("")
    (tmp_path / "evil" / "config.json").write_text("{}")
    older_git(tmp_path / "bin", monkeypatch)
    for ref in (MISSING, "HEAD", "main"):
        code, _, err = run("diff", "--git", ref, str(tmp_path / "evil" / "config.json"))
        assert code == 2
        assert "git does not read it; expected the .git of a repository" in err.replace("\n", " ")
    assert not mark.exists()


def test_the_check_of_the_owner_stays_on(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(InputError, match=r"dubious ownership .* expected a repository that git opens"):
        text_at_commit("HEAD", repository / "model" / "config.json")


def test_worktrees_and_submodules_are_repositories(repository: Path, tmp_path: Path) -> None:
    commands(repository, ["worktree", "add", "-q", str(tmp_path / "linked"), "HEAD"])
    assert text_at_commit("HEAD", tmp_path / "linked" / "model" / "config.json") == "before"
    outer = tmp_path / "outer"
    commands(tmp_path, ["init", "-q", str(outer)])
    commands(outer, ["submodule", "add", "-q", str(repository), "sub"])
    assert (outer / "sub" / ".git").is_file()
    assert text_at_commit("HEAD", outer / "sub" / "model" / "config.json") == "before"


def test_the_repository_is_that_of_the_file(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that a hook's variables name; and links to folders are followed."""
    commands(tmp_path, ["init", "-q", str(tmp_path / "other")])
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert text_at_commit("HEAD", Path("model/config.json")) == "before"
    (repository / "link").symlink_to("model")
    assert text_at_commit("HEAD", Path("link/config.json")) == "before"
    assert text_at_commit("HEAD", Path("model/none.json")) is None
    shutil.rmtree(repository / "model")
    assert text_at_commit("HEAD", Path("model/config.json")) == "before"
    with pytest.raises(InputError, match="is a folder at that commit"):
        text_at_commit("HEAD", Path("model"))


def test_the_users_settings_are_passed_on(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("HOME", str(repository.parent))
    (repository.parent / ".gitconfig").write_text(f"[safe]\n\tdirectory = {repository}\n")
    assert text_at_commit("HEAD", repository / "model" / "config.json") == "before"


def test_a_name_with_marks_of_patterns_is_a_name(repository: Path) -> None:
    for name in ("*", ":(top)model", "a\tb"):
        (repository / name).mkdir()
        (repository / name / "config.json").write_text(name)
    commands(repository, ["--literal-pathspecs", "add", "."], ["commit", "-qm", "Names"])
    for name in ("*", ":(top)model", "a\tb"):
        assert text_at_commit("HEAD", repository / name / "config.json") == name
    assert text_at_commit("HEAD", repository / "?" / "config.json") is None


def fake_git(folder: Path, script: str) -> Path:
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "git").chmod(0o755)
    return folder


def test_git_is_not_taken_from_a_folder_of_the_repository(
    repository: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PATH with relative folders would be looked up in the folder that git is started in."""
    fake_git(repository / "bin", f"touch {mark}")
    (repository / "git").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (repository / "git").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(["", ".", "bin", os.environ["PATH"]]))
    assert text_at_commit("HEAD", Path("model/config.json")) == "before"
    assert not mark.exists()
    monkeypatch.setenv("PATH", "bin")
    with pytest.raises(InputError, match="git is not installed"):
        text_at_commit("HEAD", Path("model/config.json"))


def test_git_ends_after_a_time(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it has started."""
    fake_git(tmp_path / "bin", f"sleep 300 & echo $! > {tmp_path}/child; sleep 300")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(git, "TIMEOUT_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(InputError, match=r"took more than 0\.5 s"):
        text_at_commit("HEAD", repository / "model" / "config.json")
    assert time.monotonic() - began < 60
    child = (tmp_path / "child").read_text().strip()
    for _ in range(100):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("what git started still runs")


@pytest.mark.parametrize("stream", [1, 2])
def test_what_git_writes_is_bounded(
    stream: int, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_git(tmp_path / "bin", f"exec yes >&{stream}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with pytest.raises(InputError, match="wrote more than 64,000 bytes"):
        text_at_commit("HEAD", repository / "model" / "config.json")


@pytest.mark.parametrize(("name", "limit"), [("config.json", 5_000_000), ("model.toml", 1_000_000)])
def test_a_file_at_a_commit_may_be_as_large_as_one_here(name: str, limit: int, repository: Path) -> None:
    file = repository / "model" / name
    for size in (limit, limit + 1):
        file.write_bytes(b" " * size)
        commands(repository, ["add", "."], ["commit", "-qm", "Large"])
        if size == limit:
            assert len(text_at_commit("HEAD", file) or "") == limit
    with pytest.raises(InputError, match=f"{limit + 1:,} bytes; expected at most {limit:,}"):
        text_at_commit("HEAD", file)
