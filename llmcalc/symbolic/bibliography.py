"""The papers behind the formulas, as BibTeX entries; `papers.toml` has each paper under a formula's source."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..sources.files import parse_toml, read_text


class Paper(NamedTuple):
    """The bibliographic record of a paper.

    key: the key of its BibTeX entry.
    authors: its authors, joined as in BibTeX.
    title, year: its title and year.
    arxiv: its arXiv number; empty by default.
    where: the place of publication besides arXiv; empty by default.
    """

    key: str
    authors: str
    title: str
    year: int
    arxiv: str = ""
    where: str = ""

    def bibtex(self) -> str:
        """Returns the BibTeX entry: `@misc` with the arXiv number or the place of publication."""
        bibtex_fields = {"author": self.authors, "title": f"{{{self.title}}}", "year": str(self.year)}
        if self.arxiv:
            bibtex_fields |= {"eprint": self.arxiv, "archivePrefix": "arXiv"}
        if self.where:
            bibtex_fields["howpublished"] = self.where
        return (
            f"@misc{{{self.key},\n"
            + "".join(f"  {field_name} = {{{field_text}}},\n" for field_name, field_text in bibtex_fields.items())
            + "}\n"
        )


@cache
def paper_by_citation() -> dict[str, Paper]:
    """Returns a table from the citation in a formula's source to its paper."""
    paper_tables = parse_toml(read_text(Path(__file__).with_name("papers.toml")), "papers.toml")
    return {source: Paper(**paper_fields) for source, paper_fields in paper_tables.items()}


def papers(sources: Iterable[str]) -> tuple[list[Paper], list[str]]:
    """Splits sources such as `Vaswani et al. 2017, §3.2.2` into those with a known paper and the others."""
    known_papers, other_sources = dict[str, Paper](), dict[str, None]()
    for source in sources:
        paper_name = source.partition(", §")[0]
        if paper_name in paper_by_citation():
            known_papers.setdefault(paper_by_citation()[paper_name].key, paper_by_citation()[paper_name])
        else:
            other_sources.setdefault(paper_name)
    return list(known_papers.values()), list(other_sources)
