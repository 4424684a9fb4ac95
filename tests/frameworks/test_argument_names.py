"""Every list of arguments beside a reader of launch files is read, and names no argument twice."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from llmcalc import frameworks
from llmcalc.frameworks.engines.flags import FlagKind
from tests.samples import in_one_test

FOLDER = Path(frameworks.__path__[0])


@in_one_test
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/argument_names.toml")), ids=lambda path: path.parent.name)
def test_every_list_of_arguments_is_read(path: Path) -> None:
    sources = "".join(file.read_text() for file in path.parent.glob("*.py"))
    tables = tomllib.loads(path.read_text())
    assert {*re.findall(r'argument_names\(__file__, "(\w+)"\)', sources)} == {*tables}
    for names in tables.values():
        assert sorted(names.split()) == sorted({*names.split()})


@in_one_test
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/memory_neutral_flags.toml")), ids=lambda path: path.parent.name)
def test_memory_neutral_flags_are_listed_once_by_the_kind_of_their_value(path: Path) -> None:
    texts = tomllib.loads(path.read_text())
    assert {*texts} <= {*get_args(FlagKind)}
    names = " ".join(texts.values()).replace("|", " ").split()
    assert sorted(names) == sorted({*names})
