"""The lists of quick tests and of mutants name what there is: a file or a test that is renamed is renamed there too."""

from __future__ import annotations

from tests.contracts.rooms import PACKAGE, ROOT
from tests.exhaustive import EXHAUSTIVE, LONGEST, OF_THE_SITE
from tests.mutants import MUTANTS
from tests.quick import CASES, QUICK, SLOW


def test_every_mutant_changes_one_place() -> None:
    counts = {mutant: (PACKAGE / mutant.file).read_text().count(mutant.text) for mutant in MUTANTS}
    assert {mutant: count for mutant, count in counts.items() if count != 1} == {}
    assert all("\n" not in mutant.text + mutant.replacement for mutant in MUTANTS)


def test_every_test_that_is_listed_exists() -> None:
    for name in (*QUICK, *SLOW, *CASES, *EXHAUSTIVE, *OF_THE_SITE):
        file, _, test = name.partition("::")
        path = ROOT / "tests" / file
        assert path.is_file(), name
        assert f"def {test.partition('[')[0]}(" in path.read_text() if test else True, name
    assert {name.partition("::")[0] for name in (*SLOW, *CASES)} <= {name.partition("::")[0] for name in QUICK}
    assert all((ROOT / file).is_file() for file in LONGEST)
