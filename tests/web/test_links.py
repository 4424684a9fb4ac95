"""`docs/how-to/page-links.md` names the fields of the page's links: those that state.js and run.js write and read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/how-to/page-links.md").read_text()
STATE = (ROOT / "web/src/state.js").read_text()
RUN = (ROOT / "web/src/run.js").read_text()

ROW = re.compile(r"^\| `([\w.]+)` \| (.*) \|$", re.MULTILINE)
LINKS = re.findall(r"^http://\S+/#(\S+)$", PAGE, re.MULTILINE)

USUAL = {
    "m": [{"preset": "llama3-8b"}],
    "ctx": 8192,
    "b": 1,
    "w": "bf16",
    "kv": "bf16",
    "on": 1,
    "node": None,
}
NAMES = {"m": "models", "ctx": "ctx", "b": "batch", "w": "weights", "kv": "kv", "on": "on", "node": "node"}
"""Field of a link → the name of what it sets in the state."""

GROUPS = {"r": "run", "n": "steps", "l": "layout", "p": "plan"}


def rows() -> dict[str, list[str]]:
    return {name: [cell.strip() for cell in cells.split(" | ")] for name, cells in ROW.findall(PAGE)}


def settings() -> dict[str, tuple[str, str]]:
    """Field of a link → (option, value at the start), as run.js has them."""
    marks = dict(re.findall(r'(\w+): "(\w)"', RUN.partition("const MARKS")[2].partition("}")[0]))
    table = RUN.partition("export const FIELDS = {")[2].partition("const MARKS")[0]
    found, group = {}, ""
    for line in table.splitlines():
        group = one[1] if (one := re.match(r"  (\w+): \{", line)) else group
        for name, option, start in re.findall(
            r'(\w+): (?:\w+\(|\{ option: )"(--[\w-]+)"(?:, (?:start: )?([^,)]+))?', line
        ):
            found[f"{marks[group]}.{name}"] = (option, start.strip('"') or "null")
    assert len(found) == len(re.findall(r'"--[\w-]+"', table))
    return found


def test_the_fields_are_those_that_links_are_written_with() -> None:
    written = re.findall(r"[`&](\w+)=", STATE.partition("async function hash()")[2].partition("\n}\n")[0])
    read = re.findall(r"given\.(\w+)", STATE)
    assert set(written) == set(read) == set(USUAL)
    assert list(rows()) == [*USUAL, *settings()]


def test_each_setting_has_its_option_and_its_start() -> None:
    shown = {name: cells for name, cells in rows().items() if "." in name}
    assert shown == {
        name: [f"`{option}`", "not given" if start == "null" else f"`{start}`"]
        for name, (option, start) in settings().items()
    }


def test_values_are_those_of_the_page() -> None:
    for name, constant in (("w", "WEIGHTS"), ("kv", "CACHES")):
        values = re.search(rf"export const {constant} = \[(.*?)\]", STATE)
        assert values is not None
        assert rows()[name][1] == ", ".join(f"`{one}`" for one in re.findall(r'"(\w+)"', values[1]))
    for name, usual in USUAL.items():
        assert rows()[name][2] == {"m": "`llama3-8b`", "node": "none"}.get(name, f"`{usual}`")
    most = re.search(r"export const MOST = (\d+)", STATE)
    assert most is not None
    assert f"up to {most[1]}" in rows()["m"][0]
    longest = re.search(r"const TOO_LONG = (\d+)", STATE)
    assert longest is not None
    assert f"{int(longest[1]):,} characters" in PAGE


def restored(*links: str) -> list[dict[str, Any]]:
    """The states that the page's own code makes of links, one after the other."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node missing, which runs the page's code: https://nodejs.org")
    program = f"""
        import {{ state, restore, hash }} from "{(ROOT / "web/src/state.js").as_uri()}";
        for (const link of JSON.parse(process.argv[1])) {{
          await restore(link);
          console.log(JSON.stringify({{ ...state, on: state.on + 1, again: await hash() }}));
        }}"""
    command = [node, "--input-type=module", "-e", program, json.dumps(links)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_links_of_the_page_restore_what_they_say() -> None:
    found = restored(*LINKS)
    assert [one["models"] for one in found] == [
        [{"preset": "llama3-8b"}],
        [{"preset": "llama3-8b"}, {"preset": "mixtral-8x7b"}, {"preset": "deepseek-v3"}],
        [{"preset": "llama3-8b"}],
        [{"preset": "llama3-70b"}],
        [{"hub": "Qwen/Qwen3-8B", "revision": "main"}],
        [{"preset": "llama3-8b?num_hidden_layers=16&hidden_size=2048"}, {"preset": "llama3-8b"}],
    ]
    assert (found[1]["ctx"], found[1]["batch"], found[1]["kv"], found[1]["weights"]) == (32768, 4, "fp8", "bf16")
    assert found[2]["node"] == "layers.mlp"
    trained = found[3]
    assert (trained["run"]["seq"], trained["run"]["recompute"]) == (8192, "full")
    assert (trained["layout"]["tp"], trained["layout"]["pp"], trained["steps"]["num_microbatches"]) == (8, 4, 16)


def test_every_field_of_a_link_is_read() -> None:
    """A link with another value in every field restores them all; one with what cannot be is as the page opens."""
    plain, wrong = restored("", "&".join(f"{name}=?!" for name in rows() if name not in ("m", "node")))
    assert {name: plain[NAMES[name]] for name in USUAL} == USUAL
    assert {**wrong, "again": ""} == {**plain, "again": ""}
    values = {"m": "gpt2", "ctx": "1024", "b": "2", "w": "fp8", "kv": "int4", "on": "2", "node": "lm_head"}
    own = {"true": "false", "null": "3", "h100-sxm": "b200", "megatron": "torch", "adamw": "sgd", "bf16-master": "bf16"}
    own |= {"none": "full", "flash": "eager", "p2p": "a2a"}
    values |= {
        name: own.get(start, str(int(start) + 1) if start.isdigit() else "") for name, (_, start) in settings().items()
    }
    (changed,) = restored("&".join(f"{name}={value}" for name, value in values.items()))
    for name in USUAL:
        assert changed[NAMES[name]] != plain[NAMES[name]], name
    for name in settings():
        mark, _, field = name.partition(".")
        assert changed[GROUPS[mark]][field] != plain[GROUPS[mark]][field], name
    assert restored(changed["again"])[0] == changed
