"""`docs/how-to/page-links.md` names the fields of the page's links, which state.js and training_settings.js read."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import subprocess
import zlib
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from .loading import WEB, module

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/how-to/page-links.md").read_text()
STATE = (ROOT / "web/src/state.js").read_text()

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

GROUPS = {"r": "run", "a": "adapter", "n": "steps", "l": "layout", "p": "plan", "s": "serve", "c": "cost"}


def rows() -> dict[str, list[str]]:
    return {name: [cell.strip() for cell in cells.split(" | ")] for name, cells in ROW.findall(PAGE)}


@cache
def settings() -> dict[str, tuple[str, str]]:
    """Field of a link → (option, value at the start), as training_settings.js has them."""
    program = """
        import { FIELDS } from "#training_settings.js";
        for (const [group, fields] of Object.entries(FIELDS))
          for (const [name, { option, start }] of Object.entries(fields))
            console.log(JSON.stringify([group, name, option, String(start)]));"""
    marks = {group: mark for mark, group in GROUPS.items()}
    fields = map(json.loads, node(program, "null").splitlines())
    return {f"{marks[group]}.{name}": (option, start) for group, name, option, start in fields}


def test_settings_are_those_that_llmcalc_declares() -> None:
    """`python web/declared_settings.py` writes the file."""
    declarations = module(WEB / "declared_settings.py")
    assert declarations.FILE.read_text(encoding="utf-8") == declarations.text()


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


def node(program: str, text: str) -> str:
    """What a program of Node prints, which imports modules of the page by their names (`#state.js`) and reads `text`
    from standard input.
    """
    path = shutil.which("node")
    if path is None:
        pytest.skip("Node missing, which runs the page's code: https://nodejs.org")
    program = program.replace("#", f"{(ROOT / 'web/src').as_uri()}/")
    program = 'import { readFileSync } from "node:fs";\nconst given = JSON.parse(readFileSync(0, "utf8"));\n' + program
    command = [path, "--input-type=module", "-e", program]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_comma_groups_digits_and_is_no_decimal_sign() -> None:
    """A price of 2,5 is refused at its field, as by `--price`, and is not read as 25."""
    program = """
        import { ungrouped } from "#fields.js";
        import { FIELDS } from "#training_settings.js";
        for (const [group, name, text] of given) {
          const value = FIELDS[group][name].read(ungrouped(text, FIELDS[group][name]));
          console.log(JSON.stringify(value ?? null));
        }"""
    typed: dict[tuple[str, str, str], Any] = {
        ("serve", "price", "2,5"): None,
        ("serve", "price", "1,000"): None,  # as the command line
        ("serve", "price", "2,125"): None,
        ("serve", "price", "1 000.5"): 1000.5,
        ("serve", "input", "1,5"): None,
        ("serve", "input", "10,00"): None,
        ("serve", "input", "0,500"): None,
        ("serve", "input", "2,125"): 2125,
        ("serve", "input", "32,768"): 32768,
        ("cost", "tokens", "1,5T"): None,
        ("layout", "pp_layout", "8,8,8,8"): [8, 8, 8, 8],
        ("layout", "pp_layout", "8, 128"): [8, 128],
    }
    assert list(map(json.loads, node(program, json.dumps(list(typed))).splitlines())) == list(typed.values())


def test_the_list_finds_models_by_words_with_and_without_punctuation() -> None:
    """A number with a point, such as `2.5`, finds no 25 of a date or of another size."""
    program = """
        import { matches } from "#model_list.js";
        for (const [name, title, developer, released, text] of given) {
          console.log(matches({ name, title, developer, released }, text.split(" ")));
        }"""
    qwen = ("qwen2.5-7b", "Qwen2.5 7B", "Alibaba", "2024-09")
    newer = ("qwen3-25b", "Qwen3 25B", "Z.ai", "2025-04")
    found = {
        (*qwen, "qwen 2.5"): True,
        (*qwen, "qwen25"): True,
        (*qwen, "qwen-2.5"): True,
        (*newer, "qwen 2.5"): False,
        (*newer, "2.5"): False,
        (*newer, "qwen-3"): True,
        (*newer, "zai 2025"): True,
        (*newer, "20.25"): False,
        (*newer, "202504"): False,
        ("phi-4", "Phi-4", "Microsoft", "2024-12", "phi4"): True,
        ("deepseek-r1", "DeepSeek-R1", "DeepSeek", "2025-01", "deepseek r1"): True,
        ("deepseek-coder-1.3b", "DeepSeek Coder 1.3B", "DeepSeek", "2023-11", "deepseek r1"): False,
        ("llama3.1-8b", "Llama 3.1 8B", "Meta", "2024-07", "llama-3.1"): True,
        ("llama3.1-8b", "Llama 3.1 8B", "Meta", "2024-07", "..."): False,
    }
    assert [line == "true" for line in node(program, json.dumps(list(found))).splitlines()] == list(found.values())


def restored(*links: str) -> list[dict[str, Any]]:
    """The states that the page's own code makes of links, one after the other."""
    program = """
        import { state, restore, hash } from "#state.js";
        for (const link of given) {
          await restore(link);
          console.log(JSON.stringify({ ...state, on: state.on + 1, again: await hash() }));
        }"""
    return [json.loads(line) for line in node(program, json.dumps(links)).splitlines()]


def commands(*links: str) -> list[list[str] | None]:
    """The commands that the page shows for links; None where it refuses the link."""
    program = """
        import { state, restore } from "#state.js";
        import { command as counted } from "#panels/command.js";
        import { command as trained } from "#fields.js";
        for (const link of given) {
          const read = await restore(link).then(() => true, () => false);
          const both = (model) => [counted(model), trained(model, "run", "adapter", "layout")];
          console.log(JSON.stringify(read ? state.models.flatMap(both) : null));
        }"""
    return [json.loads(line) for line in node(program, json.dumps(links)).splitlines()]


WORDS = (
    "llama3-8b?title='; touch PWNED; '",
    "llama3-8b?title=$(touch PWNED)",
    'llama3-8b?title="`touch PWNED`"',
    "llama3-8b;touch PWNED",
    "llama3-8b&touch PWNED",
    "llama3-8b#x'\"'\"'$HOME ~ !! * {a,b} \\",
)


def test_a_shell_reads_each_word_of_a_command_as_it_is(tmp_path: Path) -> None:
    """The command stands beside a button that copies it, and whoever sends the link chooses the model's name."""
    for word, made in zip(WORDS, commands(*(f"m={quote(word)}" for word in WORDS)), strict=True):
        assert made is not None
        for command in made:
            function = 'llmcalc() { printf "%s\\0" "$@"; }\n'
            ran = subprocess.run(
                ["sh", "-c", function + command], cwd=tmp_path, capture_output=True, text=True, check=True
            )
            assert ran.stdout.split("\0")[:2] == ["memory", word]
            assert shlex.split(command)[1:3] == ["memory", word]
    assert list(tmp_path.iterdir()) == []


def test_plain_words_need_no_quotes() -> None:
    made = commands("m=llama3-8b,Qwen/Qwen3-8B@main,Qwen/Qwen3-8B@refs/pr/1")[0]
    assert made is not None
    assert "'" not in "".join(made)
    assert [command.split()[2] for command in made[::2]] == ["llama3-8b", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B@refs/pr/1"]


@pytest.mark.parametrize(
    "name",
    [
        "org/name;touch PWNED@main",
        "org/name@main;touch PWNED",
        "org/name@$(touch PWNED)",
        "org/name`x`@main",
        "org/name/more@main",
        "org/../name@main",
        "../name@main",
        "org/name@../../other/raw/main",
        "org/name@",
        "-o/tmp/x",
        "--output=x",
        "llama3-8b\x03\nid\n",
        "llama3-8b\x1b[201~",
        "llama3-8b\u202e",
        "llama3-8b\u2028x",
        "a" * 1001,
        "",
    ],
)
def test_what_can_be_no_name_of_a_model_is_refused(name: str) -> None:
    """Options, control characters that a terminal obeys in quotes as well, and paths on the hub."""
    assert commands(f"m={quote(name, safe='') or ','}") == [None]


def test_the_config_of_a_link_is_bounded() -> None:
    """300 MB of zeros deflate to a link of 400 kB."""
    squeezer = zlib.compressobj(9, wbits=-15)
    data = b"".join(squeezer.compress(b" " * 1_000_000) for _ in range(300)) + squeezer.flush()
    link = "m=~" + base64.urlsafe_b64encode(data).decode().rstrip("=")
    assert len(link) > 300_000
    program = """
        import { restore } from "#state.js";
        const before = process.resourceUsage().maxRSS;
        const refused = await restore(given).then(() => null, (error) => error.message);
        console.log(JSON.stringify([refused, process.resourceUsage().maxRSS - before]));"""
    refused, kilobytes = json.loads(node(program, json.dumps(link)))
    assert refused == "more than 5000000 bytes"
    assert kilobytes < 100_000


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
    own |= {"default": "eager", "p2p": "a2a", "1T": "2T"}
    values |= {
        name: own.get(start, str(int(start) + 1) if start.isdigit() else "") for name, (_, start) in settings().items()
    }
    values |= {
        "r.recompute": "full",
        "a.base": "nf4",
        "s.engine": "sglang",
        "s.quantize": "fp8-dynamic",
        "s.kv_dtype": "fp8",
    }
    (changed,) = restored("&".join(f"{name}={value}" for name, value in values.items()))
    for name in USUAL:
        assert changed[NAMES[name]] != plain[NAMES[name]], name
    for name in settings():
        mark, _, field = name.partition(".")
        assert changed[GROUPS[mark]][field] != plain[GROUPS[mark]][field], name
    assert restored(changed["again"])[0] == changed
