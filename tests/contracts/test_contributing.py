"""Contract: the lists of files in CONTRIBUTING.md are complete.

Each list is followed in a copy of the package with a toy example, which must then work.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.contracts.copies import PACKAGE, TOYS, command, copy_to, insert, outputs, python

GUIDE = PACKAGE.parent / "CONTRIBUTING.md"
MIXERS = '        "mla": "mixers.mla:MLA",\n'
COMMANDS = '    "presets",\n'

CONFIG = {"model_type": "toyllm", "architectures": ["ToyLlmForCausalLM"], "toy_colour": "green"}
LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64
"""Parameters of a layer of the toys: q and o, k and v for two heads of 16, three matrices of the FFN, two norms."""


AS_JSON = ("--format", "json")


class Change(NamedTuple):
    """A change to the package.

    files: path → the toy file for it, or (the text before which a line is added, the line).
    works: whether the copy then has the addition.
    """

    files: dict[str, str | tuple[str, str]]
    works: Callable[[Path], Any]


def a_part(copy: Path) -> None:
    toy = (TOYS / "toy-model.toml").read_text()
    mixer = 'attention = { type = "tempered", num_attention_heads = 4, num_key_value_heads = 2, head_dim = 16 }'
    (copy / "toy.toml").write_text(re.sub(r"^attention = .*$", mixer, toy, flags=re.MULTILINE))
    total = 2 * 1000 * 64 + 2 * (LAYER + 4) + 64  # a temperature for each head
    assert command(copy, "params", "toy.toml")["params"]["total"] == total


def a_family(copy: Path) -> None:
    (copy / "config.json").write_text(json.dumps(CONFIG))
    assert command(copy, "params", "config.json")["params"]["total"] == 2 * 1000 * 64 + 3 * LAYER + 64


def a_preset(copy: Path) -> None:
    counted, listed = outputs(copy, ("params", "nobody/toy-1", *AS_JSON), ("presets", "toy", *AS_JSON))
    assert json.loads(counted)["params"]["total"] == 2 * 1000 * 64 + 2 * LAYER + 64
    assert '"toy-1"' in listed


def an_accelerator(copy: Path) -> None:
    (verdict,) = command(copy, "memory", "gpt2", "--hardware", "toy-1")["fits"]
    assert (verdict["hardware"], verdict["memory_bytes"]) == ("toy-1", 64 * 2**30)


def a_cost(copy: Path) -> None:
    code = "import llmcalc; from llmcalc.costs.toy import largest; print(largest(llmcalc.load('gpt2').model))"
    assert int(python(copy, "-c", code)) == 50257 * 768


def a_view(copy: Path) -> None:
    document, text = outputs(copy, ("depth", "bart-large", *AS_JSON), ("--help",))
    assert json.loads(document)["layers"] == 24
    assert "depth" in text


def an_optimizer(copy: Path) -> None:
    run = ("gpt2", "--phase", "training", "--seq", "64", "--optimizer", "signum", "--precision", "fp32")
    alone, text, sharded = outputs(
        copy,
        ("memory", *run, *AS_JSON),
        ("memory", "--help-all"),
        ("memory", *run, "--framework", "fsdp2", "--fsdp", "2", *AS_JSON),
    )
    answer = json.loads(alone)
    assert answer["memory"]["by_kind"]["optimizer"] == 4 * 124439808
    assert answer["memory"]["terms"][0]["status"] == "untested"
    assert "schedule-free-sgd, signum" in " ".join(text.split())
    assert json.loads(sharded)["framework"]["name"] == "fsdp2"


def a_framework(copy: Path) -> None:
    run = ("gpt2", "--phase", "training", "--framework", "toyframe", "--dp", "2")
    (copy / "job.json").write_text('{"toyframe": 2}')
    found, launched, plan = map(
        json.loads,
        outputs(
            copy,
            ("memory", *run, *AS_JSON),
            ("memory", "gpt2", "--launch", "job.json", *AS_JSON),
            ("plan", "gpt2", "--devices", "2", "--framework", "toyframe", "--hardware", "h100", *AS_JSON),
        ),
    )
    assert found["framework"]["name"] == "toyframe"
    assert [(each["kind"], each["buffer_bytes"]) for each in found["communication"]] == [("all_reduce", 2 * 124439808)]
    assert found["memory"]["terms"][0]["status"] == "untested"
    assert (launched["launch"]["kind"], launched["communication"]) == ("toyjob", found["communication"])
    assert [one["layout"]["dp"] for one in plan["feasible"]] == [2]


CHANGES = {
    "A part": Change(
        {
            "llmcalc/components/mixers/NAME.py": "tempered.py",
            "llmcalc/components/choices.py": (MIXERS, '        "tempered": "mixers.tempered:TemperedAttention",\n'),
        },
        a_part,
    ),
    "A family": Change({"llmcalc/sources/huggingface/families/LINEAGE/NAME.py": "toyllm.py"}, a_family),
    "A preset": Change({"presets/models/NAME.toml": "toy-model.toml"}, a_preset),
    "An accelerator": Change({"presets/hardware/NAME.toml": "toy-accelerator.toml"}, an_accelerator),
    "A cost": Change({"llmcalc/costs/NAME.py": "largest.py"}, a_cost),
    "An optimizer": Change(
        {
            "llmcalc/device_memory/optimizers/NAME.py": "signum.py",
            "llmcalc/device_memory/optimizers/registry.py": ('\n)\n"""The optimizer names', '\n    "signum",'),
        },
        an_optimizer,
    ),
    "A framework": Change(
        {
            "llmcalc/frameworks/NAME/record.py": "toy_framework.py",
            "llmcalc/frameworks/registry.py": ('    "deepspeed",\n', '    "toyframe",\n'),
        },
        a_framework,
    ),
    "A view": Change(
        {
            "llmcalc/reports/NAME.py": "depth_view.py",
            "llmcalc/cli/NAME.py": "depth_command.py",
            "llmcalc/cli/main.py": (COMMANDS, '    "depth",\n'),
        },
        a_view,
    ),
}
NAMES = {
    "A part": "tempered",
    "A family": "toyllm",
    "A cost": "toy",
    "An optimizer": "signum",
    "A framework": "toyframe",
    "A view": "depth",
}
"""Kind of addition → the toy's name for NAME in the guide; `toy-1` for others."""


def listed(title: str) -> list[str]:
    """Returns the files that the guide lists for a kind of change."""
    section = re.search(rf"^### {title}\b.*?(?=^##|\Z)", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert section is not None, title
    return re.findall(r"^\| `([^`]+)` \|", section[0], re.MULTILINE)


def test_every_kind_of_change_is_followed() -> None:
    guide = GUIDE.read_text(encoding="utf-8").partition("## Which files to touch")[2]
    assert [title.partition(":")[0] for title in re.findall(r"^### (.*)$", guide, re.MULTILINE)] == list(CHANGES)


@pytest.mark.parametrize("title", CHANGES)
def test_the_files_that_are_listed_are_enough(title: str, tmp_path: Path) -> None:
    change, copy = CHANGES[title], copy_to(tmp_path)
    assert listed(title) == list(change.files)
    for path, what in change.files.items():
        file = copy / path.replace("LINEAGE", "llama").replace("NAME", NAMES.get(title, "toy-1"))
        if isinstance(what, str):
            assert not file.exists()
            file.parent.mkdir(exist_ok=True)
            shutil.copy(TOYS / what, file)
        else:
            insert(file, *what)
    change.works(copy)


@pytest.mark.parametrize("title", [title for title, change in CHANGES.items() if len(change.files) > 1])
def test_each_of_them_is_needed(title: str, tmp_path: Path) -> None:
    """Without the last file of the list the toy does not work."""
    change, copy = CHANGES[title], copy_to(tmp_path)
    for path, what in list(change.files.items())[:-1]:
        file = copy / path.replace("NAME", NAMES[title])
        file.parent.mkdir(exist_ok=True)
        shutil.copy(TOYS / str(what), file)
    with pytest.raises(AssertionError):
        change.works(copy)
