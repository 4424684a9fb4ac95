"""What runs on other people's machines: the GitHub Action, the workflows, the hooks, the pytest plugin.

The Action's scripts are run here as they stand there, without GitHub.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

from llmcalc import __version__

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent


def checked(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / words[0]), *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)


def test_workflows_and_the_action_are_valid() -> None:
    files = [str(file) for file in WORKFLOWS]
    found = checked("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    assert found.returncode == 0, found.stdout
    found = checked("check-jsonschema", "--builtin-schema", "vendor.github-actions", "action.yml")
    assert found.returncode == 0, found.stdout


def test_they_have_no_known_weakness() -> None:
    """Unpinned actions, inputs inside scripts, more permissions than needed."""
    found = checked("zizmor", "--offline", "--no-progress", "action.yml", *(str(file) for file in WORKFLOWS))
    assert found.returncode == 0, found.stdout


def test_github_runs_every_part_of_ci_on_every_python_that_is_supported() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    scripts = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    (parts,) = re.findall(r'^parts=" \$\{\*:-(.*)\} "$', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert sorted(one for one in scripts if ".ci/" in one) == sorted(f"bash .ci/run {part}" for part in parts.split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = "Programming Language :: Python :: "
    pythons = [one.removeprefix(named) for one in project["classifiers"] if one.startswith(named)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == pythons
    assert project["requires-python"] == f">={pythons[0]}"
    assert jobs["counts"]["strategy"]["matrix"]["system"] == ["windows-latest", "macos-latest"]


def test_no_input_stands_inside_a_script() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    scripts = [step["run"] for step in action["runs"]["steps"]]
    assert len(scripts) == 4
    assert not any("${{" in script for script in scripts)


def test_the_hook_is_a_command() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {"id", "name", "entry", "language", "files"} <= set(hook)
    found = checked(*hook["entry"].split(), "--help")
    assert found.returncode == 0


# --- the action -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pull_request(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A repository with a changed config, and the environment of the Action's steps."""
    work, runner = tmp_path / "work", tmp_path / "runner"
    (runner / "llmcalc" / "bin").mkdir(parents=True)
    (runner / "llmcalc" / "bin" / "llmcalc").symlink_to(BIN / "llmcalc")
    config = work / "models" / "a model" / "config.json"
    config.parent.mkdir(parents=True)
    whole = subprocess.run(
        [BIN / "llmcalc", "convert", "qwen3-0.6b", "--to", "hf"], capture_output=True, text=True, check=True
    ).stdout
    config.write_text(whole)
    (work / "README.md").write_text("A repository.\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "A model"]):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *words], cwd=work, check=True)
    config.write_text(whole.replace('"num_hidden_layers": 28', '"num_hidden_layers": 30'))
    files = {name: str(runner / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    env = {**os.environ, **files, "RUNNER_TEMP": str(runner), "BASE": "HEAD", "SEQ": "1024"}
    return work, {**env, "MODELS": ":(glob)**/config.json\n\n", "BUDGET": "llmcalc.toml"}


def step(name: str, work: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a step of the Action as GitHub runs it."""
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    script = next(one["run"] for one in steps if one["name"] == name)
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def outputs(env: dict[str, str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in Path(env["GITHUB_OUTPUT"]).read_text().splitlines())


def test_the_action_says_what_changed(pull_request: tuple[Path, dict[str, str]]) -> None:
    work, env = pull_request
    ran = step("Compare", work, env)
    assert ran.returncode == 0, ran.stderr
    found = outputs(env)
    assert found["changed"] == "true"
    report = Path(found["report"]).read_text()
    assert report.startswith("<!-- llmcalc-diff -->\n### What this change costs\n")
    assert "| decoder.num_hidden_layers | 28 | 30 |" in report
    assert Path(env["GITHUB_STEP_SUMMARY"]).read_text() == report


@pytest.mark.parametrize("changes", [{"MODELS": "none/*.json"}, {"BASE": ""}])
def test_the_action_where_nothing_is_compared(
    changes: dict[str, str], pull_request: tuple[Path, dict[str, str]]
) -> None:
    work, env = pull_request
    assert step("Compare", work, env | changes).returncode == 0
    assert outputs(env) == {"changed": "false"}


def test_the_action_checks_the_budget(pull_request: tuple[Path, dict[str, str]]) -> None:
    work, env = pull_request
    assert "no budget is checked" in step("Check the budget", work, env).stdout
    budget = '[[model]]\ntarget = "models/a model/config.json"\nparams = "<= {}"\n'
    (work / "llmcalc.toml").write_text(budget.format("0.7B"))
    assert step("Check the budget", work, env).returncode == 0
    (work / "llmcalc.toml").write_text(budget.format("0.5B"))
    assert step("Check the budget", work, env).returncode == 1
    assert "1 bound of 1 broken" in Path(env["GITHUB_STEP_SUMMARY"]).read_text()
    (work / "llmcalc.toml").write_text(budget.format("0.5 KiB"))
    assert step("Check the budget", work, env).returncode == 2


# --- the pytest plugin ------------------------------------------------------------------------------------------------


def test_the_plugin_compares_a_module_with_a_target(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import llmcalc\n"
        "import pytest\n"
        "import torch\n"
        "from llmcalc.sources.to_toml import dump_toml\n"
        "def made(layers):\n"
        "    spec = llmcalc.load(f'qwen3-0.6b?num_hidden_layers={layers}').model\n"
        "    with torch.device('meta'):\n"
        "        return spec.reference()\n"
        "def test_equal(assert_counts):\n"
        "    assert_counts(made(2), 'qwen3-0.6b?num_hidden_layers=2')\n"
        "def test_path(assert_counts, tmp_path):\n"
        "    file = tmp_path / 'm.toml'\n"
        "    file.write_text(dump_toml(llmcalc.load('qwen3-0.6b?num_hidden_layers=2')))\n"
        "    assert_counts(made(2), file)\n"
        "def test_no_module(assert_counts):\n"
        "    with pytest.raises(llmcalc.InputError, match='module: 3 is not an nn.Module'):\n"
        "        assert_counts(3, 'gpt2')\n"
        "def test_other(assert_counts):\n"
        "    with pytest.raises(AssertionError, match='parameters'):\n"
        "        assert_counts(made(2), 'qwen3-0.6b?num_hidden_layers=3')\n"
    )
    named = any(one.name == "llmcalc" for one in entry_points(group="pytest11"))  # not in an install from before it
    plugin = [] if named else ["-p", "llmcalc.pytest_plugin"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


def test_the_plugin_and_both_scripts_are_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"llmcalc": "llmcalc.pytest_plugin"}
    assert project["scripts"]["llmcalc-arch"] == project["scripts"]["llmcalc"]
    assert f'__version__ = "{__version__}"' in (ROOT / "llmcalc" / "__init__.py").read_text()
    assert project["dynamic"] == ["version", "readme"]
