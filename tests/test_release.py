"""What runs on other people's machines: the GitHub Action, the workflows, the hooks, the pytest plugin.

The Action's scripts are run here as they stand there, without GitHub.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmcalc import __version__
from tests.sources.test_git import write_repository

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
    assert jobs["test"]["strategy"]["matrix"]["python"] == jobs["types"]["strategy"]["matrix"]["python"] == pythons
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


@cache
def published_config() -> str:
    words = [BIN / "llmcalc", "convert", "qwen3-0.6b", "--to", "hf"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def pull_request(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A repository with a changed config, and the environment of the Action's steps."""
    work, runner = tmp_path / "work", tmp_path / "runner"
    (runner / "llmcalc" / "bin").mkdir(parents=True)
    (runner / "llmcalc" / "bin" / "llmcalc").symlink_to(BIN / "llmcalc")
    config = work / "models" / "a model" / "config.json"
    config.parent.mkdir(parents=True)
    whole = published_config()
    config.write_text(whole)
    (work / "README.md").write_text("A repository.\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "A model"]):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *words], cwd=work, check=True)
    fields = json.loads(whole)
    more = {"num_hidden_layers": 30, "layer_types": [fields["layer_types"][0]] * 30}
    config.write_text(json.dumps({**fields, **more}))
    files = {name: str(runner / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    Path(files["GITHUB_STEP_SUMMARY"]).touch()
    env = {**os.environ, **files, "RUNNER_TEMP": str(runner), "BASE": "HEAD", "SEQ": "1024"}
    env |= {"GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "lab/models", "GITHUB_RUN_ID": "7"}
    env |= {"SOURCE": "lab/models", "SENDER": "someone", "PULL": "3", "GH_TOKEN": "none"}
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
    assert ran.returncode == 0, ran.stdout
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


def commit(work: Path, *words: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, *words], cwd=work, check=True, capture_output=True)


def step_named(name: str) -> dict[str, Any]:
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    return next(one for one in steps if one["name"] == name)


def test_the_action_installs_its_own_checkout(tmp_path: Path) -> None:
    """Whoever pins the action pins the program and what it imports; no module of the repository runs."""
    programs, runner, work, packages = (tmp_path / name for name in ("bin", "runner", "work", "site-packages"))
    for folder in (programs, runner, work, packages):
        folder.mkdir()
    stub = programs / "python3"
    stub.write_text(
        f'#!/bin/sh\necho "$PWD $*" >> {tmp_path}/calls\n'
        'if [ "$3" = venv ]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; fi\n'
        f'if [ "$2" = -c ]; then echo {packages}; fi\n'
    )
    stub.chmod(0o755)
    action = tmp_path / "actions" / "COMMIT"
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "RUNNER_TEMP": str(runner), "GITHUB_ACTION_PATH": str(action)}
    ran = step("Install", work, env)
    assert ran.returncode == 0, ran.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    versions = f"--require-hashes --only-binary :all: -r {action}/.github/action-requirements.txt"
    assert calls[:2] == [f"{runner} -I -m venv {runner}/llmcalc", f"{runner} -I -m pip install --quiet {versions}"]
    assert (packages / "llmcalc.pth").read_text() == f"{action}\n"
    subprocess.run([runner / "llmcalc" / "bin" / "llmcalc", "params", "a b"], cwd=work, check=True)
    assert (tmp_path / "calls").read_text().splitlines()[-1] == f"{work} -I -m llmcalc params a b"
    action_yml = (ROOT / "action.yml").read_text()
    assert "llmcalc-arch" not in action_yml
    assert "package" not in yaml.safe_load(action_yml)["inputs"]


def test_the_action_installs_the_versions_of_the_lock() -> None:
    """The command of CONTRIBUTING.md writes the file anew."""
    command = next(line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("uv export"))
    words, _, file = command.partition("  #")[0].partition(" > ")
    uv = Path(sys.executable).parent / "uv"
    written = subprocess.run(
        [uv, *words.split()[1:], "--offline"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (ROOT / file.strip()).read_text() == written.stdout
    assert all("==" in line for line in written.stdout.splitlines() if not line.startswith("    --hash=sha256:"))


def test_a_module_of_the_repository_is_not_run(tmp_path: Path) -> None:
    """`python3 -m venv` alone would run a `venv.py` of the folder it is started in."""
    work = tmp_path / "work"
    work.mkdir()
    for name in ("venv", "pip", "ensurepip"):
        (work / f"{name}.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')")
    found = find_spec("pip")
    assert found is not None
    pip = Path(found.origin or "")
    stub = tmp_path / "bin" / "python3"  # pip from this environment, for installing one into the new one takes seconds
    stub.parent.mkdir()
    stub.write_text(
        f'#!/bin/sh\n[ "$*" = "-I -m venv {tmp_path}/llmcalc" ] || exit 3\n{sys.executable} "$@" --without-pip\n'
        f'for packages in "$4"/lib/python3*/site-packages; do echo {pip.parents[1]} > "$packages/pip.pth"; done\n'
    )
    stub.chmod(0o755)
    none = tmp_path / "none"
    env = {**os.environ, "RUNNER_TEMP": str(tmp_path), "GITHUB_ACTION_PATH": str(none), "PYTHONPATH": str(work)}
    ran = step("Install", work, env | {"PATH": f"{stub.parent}:{os.environ['PATH']}"})
    assert ran.returncode not in (0, 3), ran.stderr
    assert str(none) in ran.stderr
    assert not (tmp_path / "PWNED").exists()


def test_other_programs_configs_are_skipped_by_default(pull_request: tuple[Path, dict[str, str]]) -> None:
    work, env = pull_request
    for name, text in {"web": '{"theme": "dark"}', "tool": "// no JSON"}.items():
        (work / name).mkdir()
        (work / name / "config.json").write_text(text)
    commit(work, "add", "web", "tool")
    ran = step("Compare", work, env | {"MODELS": " \n"})
    assert ran.returncode == 0, ran.stdout
    found = outputs(env)
    assert found["changed"] == "true"
    report = Path(found["report"]).read_text()
    assert "| decoder.num_hidden_layers | 28 | 30 |" in report
    assert "Skipped: no config of a model that llmcalc counts" in report
    assert "| web/config.json | has no model_type |" in report
    assert "tool/config.json" in report
    ran = step("Compare", work, env)  # the same pathspec, asked for
    assert ran.returncode == 2
    assert "tool/config.json: not valid JSON" in ran.stdout


def test_a_run_that_skips_all_files_has_nothing_to_comment(pull_request: tuple[Path, dict[str, str]]) -> None:
    work, env = pull_request
    subprocess.run(["git", "checkout", "-q", "."], cwd=work, check=True)
    (work / "web").mkdir()
    (work / "web" / "config.json").write_text("{}")
    commit(work, "add", ".")
    ran = step("Compare", work, env | {"MODELS": ""})
    assert ran.returncode == 0, ran.stdout
    assert outputs(env) == {"changed": "false"}
    assert "web/config.json" in Path(env["GITHUB_STEP_SUMMARY"]).read_text()


def test_a_models_config_that_is_damaged_fails_the_run(pull_request: tuple[Path, dict[str, str]]) -> None:
    work, env = pull_request
    (work / "models" / "a model" / "config.json").write_text("{}")
    ran = step("Compare", work, env | {"MODELS": ""})
    assert ran.returncode == 2
    assert "models/a model/config.json: model_type: missing" in ran.stdout


@pytest.mark.parametrize("models", [pytest.param("", marks=pytest.mark.exhaustive), ":(glob)**/config.json"])
def test_links_are_not_followed(models: str, pull_request: tuple[Path, dict[str, str]]) -> None:
    work, env = pull_request
    (work / "secret").mkdir()
    (work / "secret" / "config.json").symlink_to("/proc/self/environ")
    commit(work, "add", "secret")
    ran = step("Compare", work, env | {"MODELS": models})
    assert ran.returncode == 0, ran.stdout
    assert "::notice::a link is not compared" in ran.stdout
    assert "secret" not in Path(outputs(env)["report"]).read_text()


@pytest.mark.parametrize(
    "base",
    [
        "HEAD",
        pytest.param("main", marks=pytest.mark.exhaustive),
        pytest.param("1" * 40, marks=pytest.mark.exhaustive),
    ],
)
def test_the_action_runs_nothing_of_a_folder_that_looks_like_a_repository(
    base: str, pull_request: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """The files are those of a pull request, and git gets them as the Action lists them."""
    work, env = pull_request
    mark = tmp_path / "PWNED"
    commit(work, "branch", "-M", "main")
    whole = (work / "models" / "a model" / "config.json").read_text()
    write_repository(work / "evil", mark, bare=True)
    (work / "evil" / "config.json").write_text(whole)
    (work / "evil" / ".gitattributes").write_text("* diff=all filter=all\n")
    commit(work, "add", "-f", "evil")
    ran = step("Compare", work, env | {"BASE": base, "MODELS": ""})
    assert not mark.exists()
    if base != "1" * 40:
        assert ran.returncode == 0, ran.stdout
        assert "evil/config.json since" in Path(outputs(env)["report"]).read_text()


def test_the_actions_own_git_runs_no_program_of_settings(
    pull_request: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """Neither in a folder without a checkout, which may look like a repository itself, nor by a repository's settings
    and attributes.
    """
    work, env = pull_request
    mark, bare = tmp_path / "PWNED", tmp_path / "bare"
    write_repository(bare, mark, bare=True)
    (bare / "config.json").write_text("{}")
    ran = step("Compare", bare, env | {"BASE": "main"})
    assert ran.returncode == 2
    assert "expected actions/checkout before this action" in ran.stdout
    assert not mark.exists()
    program = f"touch {mark}; false"
    hook = work / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "diff.external", "diff.all.textconv", "diff.all.command"):
        subprocess.run(["git", "config", name, program], cwd=work, check=True)
    (work / ".gitattributes").write_text("* diff=all\n")
    ran = step("Compare", work, env)
    assert ran.returncode == 0, ran.stdout
    assert outputs(env)["changed"] == "true"
    assert not mark.exists()


def test_the_base_is_fetched_where_it_is_not_here(pull_request: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    work, env = pull_request
    base = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=work, text=True).strip()
    commit(work, "commit", "-qam", "Two layers more")
    subprocess.run(["git", "config", "uploadpack.allowAnySHA1InWant", "true"], cwd=work, check=True)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", work.as_uri(), clone], check=True)
    assert subprocess.run(["git", "cat-file", "-e", base], cwd=clone, check=False, capture_output=True).returncode
    ran = step("Compare", clone, env | {"BASE": base})
    assert ran.returncode == 0, ran.stdout
    assert "| decoder.num_hidden_layers | 28 | 30 |" in Path(outputs(env)["report"]).read_text()


def obeyed_by_the_runner(log: str) -> list[str]:
    """The commands that GitHub's runner obeys in a log: `::name …::` at a line's start, `##[name …]` anywhere in it.

    Source: github.com/actions/runner, src/Runner.Common/ActionCommand.cs; src/Runner.Worker/ActionCommandManager.cs.
    """
    commands, paused_until = [], ""
    for line in log.splitlines():
        command = re.match(r"\s*::([\w-]+)(?: [^:]*)?::(.*)", line) or re.search(r"##\[([\w-]+)[^]]*\](.*)", line)
        if command is None or (paused_until and command[1] != paused_until):
            continue
        commands += [] if command[1] in ("stop-commands", paused_until) else [command[1]]
        paused_until = command[2] if command[1] == "stop-commands" else ""
    return commands


COMMANDS_IN_NAMES = ("##[set-output name=report]x", "##[add-mask]a", "::add-mask::e")


def test_names_of_files_are_no_commands_to_the_runner(pull_request: tuple[Path, dict[str, str]]) -> None:
    """`##[set-output name=report]/a/file` would name the file that the next step writes as a comment."""
    work, env = pull_request
    assert obeyed_by_the_runner("note: skipped ##[set-output name=report]x/config.json: has no model_type")
    for name in COMMANDS_IN_NAMES:
        (work / name).mkdir()
        (work / name / "config.json").write_text("{}")
    (work / "link").mkdir()
    (work / "link" / "config.json").symlink_to("/nowhere")
    commit(work, "add", ".")
    ran = step("Compare", work, env | {"MODELS": ""})
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert all(name in ran.stdout for name in COMMANDS_IN_NAMES)
    assert obeyed_by_the_runner(ran.stdout + "::warning::of a later step") == ["notice", "warning"]
    (work / COMMANDS_IN_NAMES[0] / "config.json").write_text(
        '{"model_type": "llama", "hidden_act": "##[set-output name=report]y"}'
    )
    ran = step("Compare", work, env | {"MODELS": ""})
    assert (ran.returncode, ran.stderr) == (2, "")
    assert "##[set-output name=report]y" in ran.stdout
    assert obeyed_by_the_runner(ran.stdout + "::warning::of a later step") == ["notice", "warning"]
    (work / "llmcalc.toml").write_text(f'[[model]]\ntarget = "{COMMANDS_IN_NAMES[0]}"\nparams = "1B"\n')
    ran = step("Check the budget", work, env)
    assert (ran.returncode, ran.stderr) == (2, "")
    assert COMMANDS_IN_NAMES[0] in ran.stdout
    assert obeyed_by_the_runner(ran.stdout + "::warning::of a later step") == ["warning"]


# --- the comment ------------------------------------------------------------------------------------------------------

MARKER = "<!-- llmcalc-diff -->"

GH = """#!/usr/bin/env python3
# Stands for `gh api`: the comments are in a file, --jq is run by jq's own rules for the one filter that is used.
import json, os, re, sys
words = sys.argv[1:]
folder = os.environ["GH_FOLDER"]
with open(f"{folder}/calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
if "fail" in os.listdir(folder):
    sys.exit("gh: Resource not accessible by integration (HTTP 403)")
if "--jq" in words:
    jq = words[words.index("--jq") + 1]
    author = re.search(r'\\.user\\.login == "([^"]+)"', jq)
    start = re.search(r'\\.body \\| startswith\\("([^"]+)"\\)', jq)
    for page in json.load(open(f"{folder}/comments.json")):
        for one in page:
            if (author is None or one["user"]["login"] == author[1]) and one["body"].startswith(start[1]):
                print(one["id"])
else:
    body = next(word for word in words if word.startswith("body=@"))
    with open(f"{folder}/body", "w") as out:
        out.write(open(body.removeprefix("body=@")).read())
"""


@pytest.fixture
def comment(pull_request: tuple[Path, dict[str, str]], tmp_path: Path) -> Any:
    """Returns a function that runs the step with a report and the comments that are there, by page. It returns the
    process, the calls of `gh`, and the comment that was written.
    """
    work, env = pull_request
    folder = tmp_path / "gh"
    folder.mkdir()
    (folder / "gh").write_text(GH)
    (folder / "gh").chmod(0o755)

    def ran(text: str, *pages: list[dict[str, Any]], **changes: str) -> tuple[Any, list[list[str]], str | None]:
        report = tmp_path / "report.md"
        report.write_text(text)
        (folder / "comments.json").write_text(json.dumps(pages))
        for name in ("calls", "body"):
            (folder / name).unlink(missing_ok=True)
        path = {"PATH": f"{folder}:{os.environ['PATH']}", "GH_FOLDER": str(folder), "REPORT": str(report)}
        process = step("Comment", work, env | path | changes)
        calls, body = folder / "calls", folder / "body"
        made = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
        return process, made, body.read_text() if body.exists() else None

    return ran


def written_by(author: str, number: int, body: str = f"{MARKER}\nOld") -> dict[str, Any]:
    return {"id": number, "user": {"login": author}, "body": body}


def test_a_comment_is_written_once(comment: Any) -> None:
    process, calls, body = comment(f"{MARKER}\nNew", [])
    assert process.returncode == 0, process.stderr
    assert calls[-1][:2] == ["api", "repos/lab/models/issues/3/comments"]
    assert body == f"{MARKER}\nNew"
    mine = written_by("github-actions[bot]", 12)
    many = [written_by("github-actions[bot]", 100 + i) for i in range(3)]
    process, calls, body = comment(f"{MARKER}\nNewer", [written_by("github-actions[bot]", 9, "Else")], [mine, *many])
    assert process.returncode == 0, process.stderr
    assert calls[-1][:4] == ["api", "--method", "PATCH", "repos/lab/models/issues/comments/12"]
    assert body == f"{MARKER}\nNewer"


def test_a_comment_of_someone_else_is_not_taken_for_it(comment: Any) -> None:
    """Anybody can write the marker; the token may change comments of anybody."""
    process, calls, _ = comment(f"{MARKER}\nNew", [written_by("someone", 11), written_by("github-actions", 12)])
    assert process.returncode == 0, process.stderr
    assert "PATCH" not in calls[-1]


def test_a_long_report_is_cut_and_leads_to_the_summary(comment: Any) -> None:
    row = "| layers.mlp.gate_proj · µ | 1,442.84 | 1,879.05 | +436.21 |\n"
    process, _, body = comment(f"{MARKER}\n" + row * 3000, [])
    assert process.returncode == 0, process.stderr
    assert 60_000 < len(body.encode()) < 65_536
    assert body.startswith(f"{MARKER}\n{row}")
    rest = "The report is longer than a comment: "
    link = "[the rest is in the summary](https://github.example/lab/models/actions/runs/7).\n"
    assert body.endswith(f"|\n\n{rest}{link}")


def test_the_summary_takes_what_github_takes(pull_request: tuple[Path, dict[str, str]]) -> None:
    work, env = pull_request
    program = Path(env["RUNNER_TEMP"]) / "llmcalc" / "bin" / "llmcalc"
    program.unlink()
    program.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nyes "| a row |" | head -c 3000000 > "$2"\n')
    program.chmod(0o755)
    ran = step("Compare", work, env)
    assert ran.returncode == 0, ran.stdout
    assert 900_000 < Path(env["GITHUB_STEP_SUMMARY"]).stat().st_size < 1_000_001


@pytest.mark.parametrize(
    "changes",
    [
        {"SOURCE": "fork/models"},
        pytest.param({"SOURCE": ""}, marks=pytest.mark.exhaustive),
        {"SENDER": "dependabot[bot]"},
    ],
)
def test_a_pull_request_from_a_fork_has_its_report_in_the_summary(
    changes: dict[str, str], comment: Any, pull_request: tuple[Path, dict[str, str]]
) -> None:
    process, calls, _ = comment(f"{MARKER}\nNew", [], **changes)
    assert process.returncode == 0, process.stderr
    assert calls == []
    assert "::notice::No comment: GitHub gives a pull request from a fork" in process.stdout
    assert "No comment: " in Path(pull_request[1]["GITHUB_STEP_SUMMARY"]).read_text()


def test_a_comment_that_is_refused_fails_its_step_and_the_budget_is_checked(comment: Any, tmp_path: Path) -> None:
    (tmp_path / "gh" / "fail").touch()
    process, _, _ = comment(f"{MARKER}\nNew", [])
    assert process.returncode != 0
    assert "HTTP 403" in process.stderr
    assert step_named("Check the budget")["if"] == "${{ !cancelled() && steps.install.outcome == 'success' }}"
    assert step_named("Install")["id"] == "install"


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
    words = ["-c", os.devnull, f"--rootdir={tmp_path}", "--import-mode=importlib", "-m", "", *plugin]
    without = [word for name in ("cacheprovider", "faulthandler", "xdist", "terminal") for word in ("-p", f"no:{name}")]
    outcomes = Outcomes()
    assert pytest.main([*words, *without, str(tmp_path)], plugins=[outcomes]) == 0, outcomes.reports
    assert [report.outcome for report in outcomes.reports if report.when == "call"] == ["passed"] * 4


class Outcomes:
    """A plugin of pytest that keeps the reports of a run in this process, which has imported torch."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)


def test_the_plugin_and_both_scripts_are_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"llmcalc": "llmcalc.pytest_plugin"}
    assert project["scripts"]["llmcalc-arch"] == project["scripts"]["llmcalc"]
    assert f'__version__ = "{__version__}"' in (ROOT / "llmcalc" / "__init__.py").read_text()
    assert project["dynamic"] == ["version", "readme"]
