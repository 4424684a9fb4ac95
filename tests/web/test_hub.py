"""Models of the hub: the browser asks Hugging Face for their config, and says in one line what went wrong.

The hub's answers are written here as it gives them to a browser without a login.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .loading import Open, bridge, settled, until
from .test_bridge import CONFIG

pytestmark = pytest.mark.browser

NAME = "some-lab/some-model"
NO_REPOSITORY = "no such repository, or a private one: check the name, or paste its config.json here"

ALLOWED = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "X-Error-Code,X-Error-Message"}


def answer(page: Any, status: int = 200, code: str = "", body: str = "") -> list[str]:
    """Lets the hub give this answer to whatever is asked. Returns the addresses that will have been asked."""
    asked: list[str] = []

    def give(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(status=status, body=body, headers=ALLOWED | ({"X-Error-Code": code} if code else {}))

    page.route("https://huggingface.co/**", give)
    return asked


def add(page: Any, text: str) -> None:
    page.fill("#add", text)
    page.press("#add", "Enter")


def refused(page: Any, text: str) -> str:
    """What the page says of a text; nothing has been added."""
    add(page, text)
    page.wait_for_selector("#problem:not([hidden])")
    assert page.locator(".chip").count() == 1
    said: str = page.inner_text("#problem")
    assert "\n" not in said
    return said


def total() -> str:
    """What the command line counts for the same config."""
    count = bridge().answer({"model": {"config": json.dumps(CONFIG)}, **bridge().DEFAULTS})["params"]["params"]["total"]
    return f"{count:,}"


@pytest.mark.parametrize(
    ("text", "revision", "target"),
    [
        (NAME, "main", NAME),
        (f"https://huggingface.co/{NAME}", "main", NAME),
        (f"{NAME}@v2", "v2", f"{NAME}@v2"),
        (f"{NAME}@refs/pr/1", "refs%2Fpr%2F1", f"{NAME}@refs/pr/1"),
    ],
    ids=["an id", "an address", "a revision", "a pull request"],
)
def test_its_config_is_fetched(visit: Open, text: str, revision: str, target: str) -> None:
    page = visit()
    asked = answer(page, body=json.dumps(CONFIG))
    add(page, text)
    page.wait_for_selector("#cards table")
    settled(page)
    assert asked == [f"https://huggingface.co/{NAME}/resolve/{revision}/config.json"]
    assert page.inner_text("h1") == NAME
    assert page.inner_text("#total") == total()
    assert page.inner_text("#command").startswith(f"llmcalc memory {target} ")


def test_a_link_fetches_it_again(visit: Open) -> None:
    page = visit()
    until(page, "location.hash.length > 1")  # the page has written its own link, and no timer overwrites the next
    asked = answer(page, body=json.dumps(CONFIG))
    page.evaluate("name => { location.hash = `m=${encodeURIComponent(name)}` }", f"{NAME}@main")
    until(page, "document.querySelector('h1')?.textContent === 'some-lab/some-model'")
    settled(page)
    assert page.inner_text("#total") == total()
    assert asked == [f"https://huggingface.co/{NAME}/resolve/main/config.json"]


def test_what_is_wrong_is_said_in_one_line(visit: Open) -> None:
    page = visit(allowed="Failed to load resource")
    for status, code, said in (
        (401, "", NO_REPOSITORY),
        (404, "RepoNotFound", NO_REPOSITORY),
        (401, "GatedRepo", "is gated: accept its terms on the hub, and paste its config.json here"),
        (403, "GatedRepo", "is gated: accept its terms on the hub, and paste its config.json here"),
        (404, "EntryNotFound", "has no config.json"),
        (429, "", "its config.json could not be fetched: huggingface.co answered 429"),
    ):
        answer(page, status, code)
        assert refused(page, NAME) == f"{NAME}: {said}"
    answer(page, 404, "RevisionNotFound")
    assert refused(page, f"{NAME}@v9") == f"{NAME}@v9: has no such revision"
    page.route("https://huggingface.co/**", lambda route: route.abort())
    assert refused(page, NAME) == f"{NAME}: huggingface.co could not be reached; paste its config.json here"


def test_a_config_that_cannot_be_counted_is_the_command_lines_message(visit: Open) -> None:
    page = visit()
    for body in ("<html>A page</html>", json.dumps(CONFIG | {"hidden_size": "wide"}), '{"model_type": "unheard-of"}'):
        answer(page, body=body)
        request = {"model": {"config": body, "name": NAME}, **bridge().DEFAULTS}
        assert refused(page, NAME) == json.loads(bridge().call("answer", json.dumps(request)))["error"]


def test_a_link_to_what_cannot_be_fetched_says_so(visit: Open) -> None:
    page = visit(allowed="Failed to load resource")
    until(page, "location.hash.length > 1")
    answer(page, 401)
    page.evaluate("name => { location.hash = `m=${encodeURIComponent(name)}` }", f"{NAME}@main")
    until(page, "said => document.querySelector('main').innerText.includes(said)", NO_REPOSITORY)
