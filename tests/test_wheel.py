"""An installed wheel works without the checkout, because it contains the presets."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


def test_it_runs_in_a_clean_environment_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    bin_ = tmp_path / "venv/bin"
    subprocess.run([bin_ / "pip", "install", "-q", str(wheel)], check=True, cwd=tmp_path)
    result = subprocess.run(
        [bin_ / "llmcalc", "params", "llama3-8b"], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert "8,030,261,248" in result.stdout
    without_sympy = subprocess.run(
        [bin_ / "llmcalc", "explain", "llama3-8b", "mlp"], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert "176,160,768" in without_sympy.stdout
    assert "needs sympy: pip install" in " ".join(without_sympy.stdout.split())
    without_torch = subprocess.run(
        [bin_ / "llmcalc", "verify", "llama3-8b"], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert (without_torch.returncode, without_torch.stdout) == (2, "")
    asked = f"'llmcalc-arch[verify] @ {wheel.as_uri()}'"
    assert without_torch.stderr == f"error: verify needs torch: pip install {asked}\n"
