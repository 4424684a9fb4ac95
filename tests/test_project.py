"""What the project says of itself stands in one place: addresses and authors in pyproject.toml, the version in the
package. The versions that CI installs agree with pyproject.toml, and an sdist has the files of the repository.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from llmcalc import __version__

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY, SITE = PROJECT["urls"]["Repository"], PROJECT["urls"]["Documentation"]

OURS = re.compile(r"https://(?:github\.com/[\w.-]*|[\w.-]*\.github\.io)/llmcalc\b[\w./#-]*")
"""An address of a repository called llmcalc, or of its pages."""

ENDINGS = {".md", ".py", ".toml", ".yml", ".yaml", ".js", ".html", ".ipynb", ".json", ""}


FOLDERS = ("llmcalc", "presets", "tests", "docs")
"""The folders in an sdist."""


def files(root: Path = ROOT) -> list[str]:
    """The files of the repository: those that git tracks, and new ones in folders with such files.

    A virtual environment in the checkout, whatever its name, has none that git tracks. In an sdist, without git, they
    are the files of its folders.
    """
    if not tracks(root):
        inside = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
        found = [path for path in (*root.iterdir(), *inside) if path.is_file() and "__pycache__" not in path.parts]
        return sorted(path.relative_to(root).as_posix() for path in found if path.name != "PKG-INFO")
    tracked = listed(root, "--cached")
    folders = {name.partition("/")[0] for name in tracked if "/" in name}
    new = [name for name in listed(root, "--others", "--exclude-standard") if name.partition("/")[0] in folders]
    return [name for name in (*tracked, *new) if (root / name).is_file()]


def read(name: str) -> str:
    """The text of a file that an sdist may lack; the test is skipped there."""
    if not (ROOT / name).exists() and not tracks(ROOT):
        pytest.skip(f"{name} is not in an sdist")
    return (ROOT / name).read_text(encoding="utf-8")


def tracks(root: Path) -> bool:
    """Whether `root` is the top of a git checkout; a folder inside another one is not."""
    return (root / ".git").exists() and shutil.which("git") is not None


def listed(root: Path, *options: str) -> list[str]:
    words = ["git", "ls-files", "-z", *options]
    found = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    return [name for name in found.stdout.split("\0") if name]


def texts() -> dict[str, str]:
    """Files that people write, without the tests and the data of models."""
    named = [name for name in files() if Path(name).suffix in ENDINGS and not name.startswith(("presets/", "tests/"))]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in named if name != "uv.lock"}


@pytest.mark.parametrize("name", ["env", "venv", ".virtualenv"])
def test_a_virtual_environment_in_the_checkout_is_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for file in ("README.md", "docs/guide.md"):
        (tmp_path / file).write_text("text")
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    site = tmp_path / name / "lib" / "python3.11" / "site-packages" / "package"
    site.mkdir(parents=True)
    (site / "module.py").write_bytes(b"\xff\xfe")
    (site / "README.md").write_text("https://github.com/other/llmcalc")
    (tmp_path / "docs" / "new.md").write_text("text")
    assert sorted(files(tmp_path)) == ["README.md", "docs/guide.md", "docs/new.md"]


def test_an_unpacked_sdist_is_read_without_git(tmp_path: Path) -> None:
    """Also inside another checkout, whose files are not the project's."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    root = tmp_path / "llmcalc-0"
    for file in ("README.md", "PKG-INFO", "docs/guide.md", "env/lib/module.py", "llmcalc/__pycache__/api.pyc"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("text")
    assert files(root) == ["README.md", "docs/guide.md"]


def test_addresses_are_those_of_the_project() -> None:
    found = {(name, address) for name, text in texts().items() for address in OURS.findall(text)}
    assert {"README.md", "pyproject.toml", *(("SECURITY.md",) if tracks(ROOT) else ())} <= {name for name, _ in found}
    assert {one for one in found if not f"{one[1]}/".startswith((f"{REPOSITORY}/", SITE))} == set()
    assert all(f"{url}/".startswith((f"{REPOSITORY}/", SITE)) for url in PROJECT["urls"].values())
    assert set(PROJECT["urls"]) == {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}


def test_the_page_is_where_it_is_published() -> None:
    """README's link leads to the folder that `.ci/pages` puts the page in."""
    (place,) = re.findall(r'--export "\$folder/(.*)"', read(".ci/pages"))
    assert PROJECT["urls"]["Homepage"] == f"{SITE}{place}/"
    for name in ("README.md", "README.zh-CN.md"):
        above, _, _ = (ROOT / name).read_text().partition("```sh")  # before the first command
        assert f"]({PROJECT['urls']['Homepage']})" in above
        assert "](docs/images/page.png)" in above


def test_the_action_is_used_by_its_repository() -> None:
    owner = REPOSITORY.removeprefix("https://github.com/")
    used = {name: re.findall(r"uses: (\S*/llmcalc)@", text) for name, text in texts().items()}
    assert {name for name, found in used.items() if found} >= {"docs/guide.md"}
    assert {one for found in used.values() for one in found} == {owner}


def test_authors_are_those_of_the_project() -> None:
    (author,) = PROJECT["authors"]
    assert yaml.safe_load(read("action.yml"))["author"] == author["name"]


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == __version__
    told = re.compile(rf"llmcalc(?:-arch)?(?:==|@v|-| )v?{re.escape(__version__)}\b")
    assert [name for name, text in texts().items() if told.search(text)] == []


def test_the_locked_versions_are_current() -> None:
    """Without a network: the lock states what it was made from. `uv lock` makes it anew."""
    words = [str(BIN / "uv"), "lock", "--check", "--offline"]
    if not Path(words[0]).exists():
        pytest.skip("uv is missing: pip install uv")
    read("uv.lock")
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_the_lock_names_one_registry_and_no_path() -> None:
    """So that it is the same wherever `uv lock` ran: no mirror, no folder of one machine."""
    packages = tomllib.loads(read("uv.lock"))["package"]
    own = [one for one in packages if one["name"] == PROJECT["name"]]
    assert [one["source"] for one in own] == [{"editable": "."}]
    others = [one for one in packages if one["name"] != PROJECT["name"]]
    assert {str(one["source"]) for one in others} == {str({"registry": "https://pypi.org/simple"})}
    made = [file for one in others for file in [*one.get("wheels", ()), *([one["sdist"]] if "sdist" in one else ())]]
    assert made
    assert all(file["url"].startswith("https://files.pythonhosted.org/") and file["hash"] for file in made)


def test_an_sdist_has_files_of_the_repository_alone(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(words, check=True, capture_output=True)
    (archive,) = tmp_path.iterdir()
    with tarfile.open(archive) as made:
        names = {name.partition("/")[2] for name in made.getnames()}
        told = made.extractfile(f"{made.getnames()[0].partition('/')[0]}/PKG-INFO")
        assert told is not None
        links = re.findall(r"\]\(([^)]*)\)", told.read().decode())
    assert names - set(files()) == {"PKG-INFO"}
    assert all(link.startswith((REPOSITORY, SITE)) for link in links), links  # README's, which PyPI shows
    assert f"{REPOSITORY}/raw/main/docs/images/page.png" in links
    assert f"{REPOSITORY}/blob/main/docs/guide.md" in links
    assert {"LICENSE", "README.md", "pyproject.toml", "llmcalc/py.typed", "presets/hardware/h200.toml"} <= names
    allowed = ("llmcalc/", "presets/", "tests/", "docs/")
    assert sorted(name for name in names if "/" in name and not name.startswith(allowed)) == []
