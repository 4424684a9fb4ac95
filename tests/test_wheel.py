"""An installed wheel works without the checkout, because it contains the presets."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_it_holds_presets_and_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    models = {Path(n).name for n in names if n.startswith("llmcalc/presets/models/")}
    assert models == {p.name for p in (ROOT / "presets/models").glob("*.toml")}
    assert {"llmcalc/py.typed", "llmcalc/presets/hardware/h200.toml"} <= set(names)
    assert not [n for n in names if n.startswith("tests")]


def required(requirements: Iterable[str]) -> set[str]:
    """Names of the distributions that these requirements need without extras, and of those that they need in turn."""
    names: set[str] = set()
    left = list(requirements)
    while left:
        requirement = Requirement(left.pop())
        if requirement.name not in names and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            names.add(requirement.name)
            left += metadata.requires(requirement.name) or []
    return names


def install(wheel: Path, environment: Path) -> None:
    """Installs a wheel with pip in a new environment, which has links to this one's copies of what the wheel requires.

    Nothing is downloaded; `.ci/release` installs the wheel with its requirements from the index.
    """
    venv.create(environment, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin/python", "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--no-compile", wheel], check=True, cwd=environment)
    (packages,) = environment.glob("lib/*/site-packages")
    (installed,) = metadata.distributions(path=[str(packages)])
    for name in required(installed.requires or []):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (packages / top).symlink_to(str(distribution.locate_file(top)))


def test_it_runs_in_a_clean_environment_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    install(wheel, tmp_path / "venv")
    program = tmp_path / "venv/bin/llmcalc"
    result = subprocess.run([program, "params", "llama3-8b"], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "8,030,261,248" in result.stdout
    without_sympy = subprocess.run(
        [program, "explain", "llama3-8b", "mlp"], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert "176,160,768" in without_sympy.stdout
    assert "needs sympy: pip install" in " ".join(without_sympy.stdout.split())
    without_torch = subprocess.run(
        [program, "verify", "llama3-8b"], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert (without_torch.returncode, without_torch.stdout) == (2, "")
    asked = f"'llmcalc-arch[verify] @ {wheel.as_uri()}'"
    assert without_torch.stderr == f"error: verify needs torch: pip install {asked}\n"
