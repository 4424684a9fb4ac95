"""The page's two languages: one table has every string, and the page in Chinese shows them."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

import pytest

from llmcalc.reports.summary import headline
from llmcalc.sources.presets import load_preset, model_names

from .loading import WEB, Open, inaccessible, module, until

SRC = WEB / "src"
TABLE: dict[str, str] = json.loads((SRC / "zh.json").read_text(encoding="utf-8"))
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
COMPARED = re.compile(r'=== "[^"]*"')


def first_argument(code: str) -> str:
    """The text of a call's first argument. code: what follows its opening bracket."""
    depth, quote, i = 0, "", 0
    while i < len(code):
        letter = code[i]
        if quote:
            if letter == "\\":
                i += 1
            elif letter == quote:
                quote = ""
        elif letter in "\"'`":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}" and depth:
            depth -= 1
        elif (letter in ")]}" or letter == ",") and not depth:
            return code[:i]
        i += 1
    return code


def strings(code: str) -> set[str]:
    """The texts that a module translates: those in the first argument of `t(…)`."""
    calls = (first_argument(code[call.end() :]) for call in re.finditer(r"(?<![\w.$])t\(", code))
    return {text for argument in calls for text in STRING.findall(COMPARED.sub("", argument))}


def page_words() -> set[str]:
    """The texts of the calculator's HTML, and those of the links that the build adds to it."""
    build = module(WEB / "build.py")
    page = (SRC / "index.html").read_text(encoding="utf-8")
    found = {text.strip() for text in [*build.WORDS.findall(page), *build.CONTENT.findall(page)]}
    return (found | {"Docs", "Source"}) - set(build.NOT_WORDS)


def with_numbers_as_values(phrase: str) -> str:
    """`MoE 2 of 8` → `MoE {0} of {1}`, as `phrases` of `words.js` asks the table."""
    numbers = count()
    return re.sub(r"\d+(?:\.\d+)?", lambda _: f"{{{next(numbers)}}}", phrase)


def headline_strings() -> set[str]:
    """What the table is asked for by the headlines of all presets, where a phrase has an English word."""
    phrases = {
        phrase for name in model_names() for phrase in re.split(r", (?![^(]*\))", headline(load_preset(name).model))
    }
    keys = {with_numbers_as_values(phrase) for phrase in phrases}
    return {key for key in keys if re.search(r"(?<![A-Za-z-])[a-z]{2,}(?![A-Z])", key)}


def test_strings_are_found() -> None:
    code = (
        """t("one"), t(more ? "two {0}" : "three", f("not", this)), start("no"), t(a === "not" ? "four, 4" : "five")"""
    )
    assert strings(code) == {"one", "two {0}", "three", "four, 4", "five"}


def test_every_string_stands_in_the_table_and_the_table_has_no_other() -> None:
    in_code = (strings(file.read_text(encoding="utf-8")) for file in SRC.rglob("*.js"))
    used = page_words().union(headline_strings(), *in_code)
    assert used - set(TABLE) == set()
    assert set(TABLE) - used == set()


def test_a_translation_has_the_same_values() -> None:
    values = re.compile(r"\{\d\}")
    for english, chinese in TABLE.items():
        assert sorted(values.findall(english)) == sorted(values.findall(chinese)), english
        assert chinese.strip()


def test_panels_write_no_sentence_outside_of_the_table() -> None:
    """A literal of two or more words that is shown stands in `t(…)`: checked where elements get their texts."""
    before = r'(?:\}, |\{\}, |"aria-label": |placeholder: |title: )'
    words = r"(?:(?!\1)[^\\])*[a-z]{2} [a-z]{2}(?:(?!\1)[^\\])*"
    shown = re.compile(before + r'(["`])(' + words + r")\1")
    found = {
        (file.name, text)
        for file in SRC.rglob("*.js")
        for _, text in shown.findall(file.read_text(encoding="utf-8"))
        if "${" not in text
    }
    assert found == set()


def test_the_page_in_chinese_is_built_from_the_same_file() -> None:
    build = module(WEB / "build.py")
    page = build.with_addresses(build.in_chinese((SRC / "index.html").read_text(encoding="utf-8"), TABLE), "zh/", TABLE)
    assert '<html lang="zh-CN">' in page
    assert "参数分布" in page
    assert 'src="../main.js"' in page
    assert 'href="../style.css"' in page
    assert re.search(r'<a [^>]*id="language" href="\.\./" hreflang="en"', page)
    left = {text.strip() for text in build.WORDS.findall(page.partition("<body>")[2])}
    assert {text for text in left if re.search("[a-z]{3} [a-z]{3}", text)} == set()


@pytest.mark.browser
def test_the_page_in_chinese_on_a_telephone(visit: Open) -> None:
    """On a wider screen axe-core reads it in test_answers_in_chinese.py."""
    page: Any = visit("zh/#m=llama3-8b", 390)
    assert page.inner_text("#total") == "8,030,261,248"
    assert "与公布的数目完全一致" in page.inner_text("#hero")
    assert page.locator(".card small").all_inner_texts()[0] == "权重"
    page.wait_for_selector("#formula .katex")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert inaccessible(page, ["light"]) == {}
    assert page.get_attribute("#language", "href").endswith("#" + page.url.partition("#")[2])
    page.click("#language")
    until(page, "document.documentElement.lang === 'en' && document.querySelector('#total') !== null")
    assert page.locator(".card small").all_inner_texts()[0] == "Weights"
