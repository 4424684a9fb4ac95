"""Every source of a formula is a paper with a BibTeX entry, or is listed as having none."""

from __future__ import annotations

import re

from llmcalc.symbolic.bibliography import WITHOUT_PAPER, known, papers
from tests.builders import family_shapes, spec_of


def sources() -> set[str]:
    """Returns the sources of every part in every family's small shapes, without their sections."""
    places = (place for _, config in family_shapes() for place in spec_of(config).tree().walk())
    return {place.node.source.partition(", §")[0] for place in places if place.node.source}


def test_every_source_is_known() -> None:
    named = sources()
    assert named <= {*known(), *WITHOUT_PAPER}
    assert {*known(), *WITHOUT_PAPER} - named <= {"Dai et al. 2019"}  # sources of parts that no small shape has


def test_entries_are_whole() -> None:
    for paper in known().values():
        assert re.fullmatch(r"[a-z0-9]+", paper.key)
        assert paper.authors
        assert paper.title
        assert 2016 <= paper.year <= 2026
        assert re.fullmatch(r"\d{4}\.\d{5}", paper.arxiv) or paper.where
        if paper.arxiv:
            assert abs(2000 + int(paper.arxiv[:2]) - paper.year) <= 1
        entry = paper.bibtex()
        assert entry.count("{") == entry.count("}")


def test_each_paper_once_and_the_others_by_name() -> None:
    found, others = papers(["Vaswani et al. 2017, §3.1", "Vaswani et al. 2017, §3.3", "Gemma 4 2026"])
    assert [paper.arxiv for paper in found] == ["1706.03762"]
    assert others == ["Gemma 4 2026"]
