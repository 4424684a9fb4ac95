r"""Text that others wrote reaches no terminal, document or page as anything but text.

One name holds what a terminal obeys (a title, a cleared screen, carriage returns, C1 codes, marks that turn the
direction of writing), what rich, Markdown and matplotlib give a meaning, and what begins a formula in a spreadsheet. It
stands wherever a file can have a name: of a file, a folder, a layer, a tensor, an accelerator, a field, an override.
"""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import struct
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import gguf
import numpy as np
import pytest

import llmcalc
from llmcalc.characters import printable
from llmcalc.cli.main import COMMANDS
from llmcalc.cli.output import open_atomic_output
from llmcalc.cli.target_options import OutputOptions
from llmcalc.reports.document import Column, DisplayedValue, LinkedNote, Report, Row, Table, displayed_text
from llmcalc.reports.formats import WRITERS
from llmcalc.reports.formats.html import tables_html
from llmcalc.reports.formats.plain import escape_markdown
from tests.samples import in_one_test, sampled

CONTROL = "\x1b]0;t\x07\x1b[2J\r\n\t\x9b1m\x7f\u202e\u2066\u2028\u200b"
NAME = f"=1+1{CONTROL}[link=x][red]:smile:$x_1$<b>*a*@me`|#1"
"""A name that a file may have: no `/`, no NUL."""

MODEL = """
sources = [{ gives = "all of it", url = "https://e.org/NAME" }]
[model]
vocab_size = 100
hidden_size = 64
tie_word_embeddings = true
[model.decoder]
num_hidden_layers = 2
first_layers = [NAME]
final_norm = { type = "rmsnorm" }
[model.decoder.block]
norm = { type = "rmsnorm" }
norm_placement = "pre"
[model.decoder.block.attention]
num_attention_heads = 4
num_key_value_heads = 2
position = { type = "rope" }
[model.decoder.block.feed_forward]
intermediate_size = 40
hidden_act = "silu"
[model.decoder.variants.NAME.feed_forward]
intermediate_size = 80
"""
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "_name_or_path": NAME,
    NAME: 1,
}
HARDWARE = """
title = NAME
notes = [NAME]
memory_bytes = 1000000000
sources = [{ gives = NAME, url = "https://e.org" }]
"""
BUDGET = """
[[model]]
target = NAME
params = "<= 1B"
memory = { max = "1 KiB", seq = 8 }
"""
LAUNCH = """#!/bin/bash
torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 \\
    --seq-length 64 --max-position-embeddings 64 --vocab-size 128 --tokenizer-type NullTokenizer \\
    --micro-batch-size 1 --global-batch-size 2 --transformer-impl local --no-such NAME
"""
LOG = """INFO vLLM API server version 0.19.0
INFO non-default args: {'model': 'NAME', 'max_model_len': 'NAME', 'NAME': 'NAME'}
INFO Model loading took 1.00 GiB NAME
ValueError: No available memory for the cache blocks. NAME
"""
SHORT = "pairs"
"""The name of the second model: nothing in it is escaped."""


def quoted(text: str) -> str:
    """The text as TOML and JSON quote it."""
    return json.dumps(text).replace("\x7f", "\\u007f")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file of each kind, all of them called `NAME`."""
    path = tmp_path_factory.mktemp("files")
    (path / f"{NAME}.toml").write_text(MODEL.replace("/NAME", "").replace("NAME", quoted(NAME)))
    (path / f"{SHORT}.toml").write_text(MODEL.replace("/NAME", "").replace("NAME", '"wide"'))
    (path / NAME).mkdir()
    (path / NAME / "config.json").write_text(json.dumps(CONFIG))
    (path / "hardware").mkdir()
    (path / "hardware" / f"{NAME}.toml").write_text(HARDWARE.replace("NAME", quoted(NAME)))
    (path / "budget").mkdir()
    (path / "budget" / f"{NAME}.toml").write_text(BUDGET.replace("NAME", quoted(f"../{NAME}.toml")))
    header = json.dumps({NAME: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (path / f"{NAME}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    (path / f"{NAME}.log").write_text(LOG.replace("NAME", NAME))
    (path / f"{NAME}.sh").write_text(LAUNCH.replace("--no-such NAME", ""))
    writer = gguf.GGUFWriter(path / f"{NAME}.gguf", "llama")
    writer.add_tensor(NAME.encode("utf-8").decode(), np.zeros((10, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


MODEL_FILE, CONFIG_FILE, TENSORS = f"{NAME}.toml", f"{NAME}/config.json", f"{NAME}.safetensors"
LOG_FILE = f"{NAME}.log"
HARDWARE_FILE, BUDGET_FILE = f"hardware/{NAME}.toml", f"budget/{NAME}.toml"

COMMAND_LINES: list[tuple[str, ...]] = [
    ("params", MODEL_FILE),
    ("params", CONFIG_FILE),
    ("params", f"{SHORT}.toml", MODEL_FILE),
    ("params", MODEL_FILE, "--tp", "2"),
    ("flops", MODEL_FILE, "--phase", "train"),
    ("kv", MODEL_FILE),
    ("memory", MODEL_FILE, "--hardware", HARDWARE_FILE),
    ("memory", MODEL_FILE, "--phase", "training", "--tp", "2", "--hardware", HARDWARE_FILE),
    ("memory", "--launch", f"{NAME}.sh"),
    ("fit", MODEL_FILE, "--hardware", HARDWARE_FILE),
    ("fit", MODEL_FILE, "--hardware", HARDWARE_FILE, "--devices", "2", "--seq", "8"),
    ("plan", MODEL_FILE, "--hardware", HARDWARE_FILE, "--devices", "2", "--seq", "8"),
    ("time", MODEL_FILE, "--hardware", "h100", "--seq", "8"),
    ("serve", MODEL_FILE, "--hardware", "h100", "--input", "8", "--output", "8", "--tp", "1"),
    ("cost", MODEL_FILE, "--hardware", "h100", "--devices", "1", "--tokens", "1M", "--step", "1s"),
    ("compare", MODEL_FILE, f"{SHORT}.toml"),
    ("compare", MODEL_FILE, *[f"{SHORT}.toml"] * 12),
    ("diff", MODEL_FILE, f"{SHORT}.toml"),
    ("diff", MODEL_FILE, f"{SHORT}.toml", "--table", "fields"),
    ("shape", MODEL_FILE),
    ("explain-log", LOG_FILE, MODEL_FILE),
    ("explain", MODEL_FILE),
    ("explain", MODEL_FILE, "mlp"),
    ("verify", MODEL_FILE),
    ("check", TENSORS, MODEL_FILE),
    ("check", f"{NAME}.gguf", MODEL_FILE),
    ("budget", BUDGET_FILE),
    ("lock", MODEL_FILE),
    ("hardware", HARDWARE_FILE),
]
"""Every command that can carry a name out of a file to its answer."""

OTHERS = {
    "plot": "its pictures are below",
    "convert": "below",
    "presets": "lists presets of llmcalc alone",
    "schema": "has no input",
    "web": "has no input",
    "mcp": "answers in JSON, as the commands do",
}


def test_every_command_carries_the_name() -> None:
    assert {words[0] for words in COMMAND_LINES} | set(OTHERS) == set(COMMANDS)


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def one_line_each(text: str) -> None:
    """Checks that a terminal prints the text and obeys nothing in it but llmcalc's own colours."""
    assert without_colours(text).replace("\n", "").isprintable()


AS_WRITTEN: dict[str, Callable[[str], str]] = {
    "table": printable,
    "csv": printable,
    "markdown": lambda name: escape_markdown(printable(name)),
    "json": lambda name: json.dumps(name)[1:-1],
}
"""Format → how it writes a name."""


def screens() -> dict[str, tuple[tuple[str, ...], str, str]]:
    """Command, format, and whether a terminal shows it; no format but tables has colours (reports/test_terminal.py)."""
    return {
        f"{words[0]}-{number}-{form}-{'terminal' if terminal else 'pipe'}": (words, form, terminal)
        for number, words in enumerate(COMMAND_LINES)
        for form, terminal in (*((form, "") for form in WRITERS), ("table", "1"))
    }


def places_of_the_name(case: tuple[tuple[str, ...], str, str]) -> set[Any]:
    """Each command's own texts stand in its table; each format is tried with commands of every length."""
    words, form, terminal = case
    return {words} if (form, terminal) == ("table", "") else {(form, terminal, len(words))}


@pytest.mark.parametrize("case", sampled(screens(), places_of_the_name))
def test_the_name_is_shown_escaped(
    case: tuple[tuple[str, ...], str, str], folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, form, terminal = case
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FORCE_COLOR", terminal)
    code, out, err = run(*words, "--format", form, columns=5000)
    assert code < 2, err
    one_line_each(out)
    one_line_each(err)
    assert AS_WRITTEN[form](NAME) in out
    if form == "table":
        assert ("\x1b[" in out) == bool(terminal)
    if form == "csv":
        assert not [cell for row in csv.reader(io.StringIO(out)) for cell in row if re.match(r"[=@]\w|[+-]\D", cell)]


@pytest.mark.parametrize("form", WRITERS)
def test_overrides_are_shown_escaped(form: str, folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for words in ((f"{SHORT}.toml", "--set", "hidden_size=\r\n64"), (f"{SHORT}.toml?hidden_size=\r\n64",)):
        code, out, _ = run("params", *words, "--format", form)
        assert code == 0
        one_line_each(out)
        assert AS_WRITTEN[form]("hidden_size=\r\n64") in out


@pytest.mark.parametrize(
    "words",
    [
        ("params", f"{NAME}2"),
        (NAME,),
        ("params", "gpt2", f"--{NAME}"),
        ("params", "gpt2", "--format", NAME),
        ("params", "gpt2", "--set", f"{NAME}=1"),
        ("params", "gpt2", "--set", f"hidden_size={NAME}"),
        ("params", f"gpt2?{NAME}"),
        ("params", "gpt2", "-o", f"{NAME}2/x"),
        ("params", f"{NAME}/x/config.json"),
        ("params", "broken/config.json"),
        ("memory", "gpt2", "--hardware", NAME),
        ("memory", "gpt2", "--phase", "training", "--optimizer", NAME),
        ("memory", "--launch", f"{NAME}.json"),
        ("explain", "gpt2", NAME),
        ("check", f"{NAME}.toml", "gpt2"),
        ("diff", "--git", NAME, MODEL_FILE),
        ("budget", "broken/budget.toml"),
        ("plot", "params", "gpt2", "-o", NAME),
    ],
    ids=lambda words: "-".join(words[:1]).replace(NAME, "NAME"),
)
def test_an_error_is_one_line(words: tuple[str, ...], folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken" / "config.json").write_text(json.dumps(CONFIG | {"model_type": NAME}))
    (folder / "broken" / "budget.toml").write_text(f"[[model]]\ntarget = {quoted(NAME)}\nparams = {quoted(NAME)}\n")
    (folder / f"{NAME}.json").write_text(json.dumps({"zero_optimization": {"stage": NAME}}))
    err = run(*words, columns=5000).error
    assert err.endswith("\n")
    assert err[:-1].isprintable()


def test_remarks_are_dropped_where_a_command_refuses(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    code, _, err = run("params", CONFIG_FILE, "--with-mtp")
    assert code == 0
    assert {line.partition(": ")[0] for line in err.splitlines()} == {"note"}
    assert "unrecognised fields" in err
    assert "--with-mtp changes nothing" in err
    err = run("params", CONFIG_FILE, "--with-mtp", "--table", "none").error
    assert err == "error: --table: there is no table 'none'; expected no --table, since the answer is one table\n"
    for words in (("diff", CONFIG_FILE, "no-such-model"), ("explain", CONFIG_FILE, "no-such-node")):
        assert run(*words).error
    code, _, err = run("params", "gpt2")
    assert (code, err) == (0, "")


def test_latex(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    name = r"\input{/etc/passwd}%" + CONTROL
    text = MODEL.replace("/NAME", "").replace("NAME", quoted(name))
    (folder / "latex.toml").write_text(text)
    _, out, _ = run("explain", "latex.toml", "--latex")
    one_line_each(out)
    assert r"f_{\text{\textbackslash{}input\{/etc/passwd\}\%\textbackslash{}x1b]0;t" in out
    code = [line for line in out.splitlines() if not line.startswith("%")]
    assert not [line for line in code if r"\input" in line]
    assert code == [line for line in code if not line or "&" in line or line.startswith(("\\begin", "\\end"))]


def test_converted_descriptions_hold_the_name_escaped(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    _, out, _ = run("convert", MODEL_FILE)
    one_line_each(out)
    assert tomllib.loads(out)["model"]["decoder"]["first_layers"] == [NAME]


PICTURED = "\x1b[2J\r\n$x_1$\u202e<b>"
"""A name with a formula of matplotlib's, short enough for a picture."""


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("params", PICTURED), PICTURED),
        (("kv", PICTURED), PICTURED),
        (("flops", PICTURED), PICTURED),
        (("memory", PICTURED, "--hardware", HARDWARE_FILE), PICTURED),
        (("time", PICTURED, "--hardware", "h100"), PICTURED),
        (("roofline", PICTURED, "--hardware", "h100"), PICTURED),
        (("serve", PICTURED, "--hardware", "h100", "--input", "64", "--output", "32"), PICTURED),
        (("shape", PICTURED), PICTURED),
        (("shape", "_$x"), " _$x"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_pictures(words: tuple[str, ...], shown: str, folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / words[1]).mkdir(exist_ok=True)
    (folder / words[1] / "config.json").write_text(json.dumps({**CONFIG, "_name_or_path": ""}))
    code, _, err = run("plot", *words, "-o", "picture.svg")
    assert code == 0
    one_line_each(err)
    text = (folder / "picture.svg").read_text()
    one_line_each(text)
    assert printable(shown) in "".join(ET.fromstring(text).itertext())


def test_junit(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for words in (("verify", MODEL_FILE), ("budget", BUDGET_FILE)):
        run(*words, "--junit", "junit.xml")
        text = (folder / "junit.xml").read_text()
        one_line_each(text)
        suites = ET.fromstring(text).iter("testsuite")
        assert any(printable(NAME) in suite.attrib["name"] for suite in suites)


def test_notebooks_and_representations(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    count = llmcalc.params(MODEL_FILE)
    page = count._repr_html_()
    one_line_each(page)
    assert printable(NAME) in unescape(page)
    assert "<b>" not in page
    for shown in (repr(count), repr(count.preset), str(count.preset), repr(count.preset.model.tree().children[1])):
        assert shown.isprintable()
    assert printable(NAME) in repr(count)
    assert printable(NAME) in repr(llmcalc.params(CONFIG))
    assert repr(NAME)[1:-1] in repr(count.records())  # data stay as they are


def report() -> Report:
    """Each place of a report where a text can stand, all of them `NAME`."""
    columns = (
        Column(NAME, NAME, may_wrap=True, mark_colours={"x": "red"}),
        Column("b", NAME, lambda value: NAME),
        Column("c", NAME, displayed_text),
    )
    table = Table(
        NAME,
        columns,
        [Row([NAME, 1, DisplayedValue(NAME, NAME)], depth=1)],
        NAME,
        [NAME, LinkedNote(NAME)],
        NAME,
        NAME,
        NAME,
    )
    return Report({"a": NAME}, [table, table], f"{printable(NAME)}{CONTROL[:2]}\n", [NAME])


@pytest.mark.parametrize("terminal", ["", "1"], ids=["pipe", "terminal"])
@pytest.mark.parametrize("form", [*WRITERS, "html"])
def test_no_text_of_a_report_is_forgotten(form: str, terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", terminal)
    monkeypatch.setenv("COLUMNS", "5000")
    out = io.StringIO()
    out.write(tables_html(report())) if form == "html" else WRITERS[form].write(report(), out)  # type: ignore[index]
    text = out.getvalue()
    one_line_each(text)
    if form == "table":
        # the text, and of each table the title, the answer, the aside, 3 headings, 3 cells and 2 notes
        assert without_colours(text).count(printable(NAME)) == 1 + 2 * (3 + 3 + 3 + 2)
    assert "\x1b]8" not in text
    assert "😄" not in text


MARKUP = [
    "<b>bold</b>",
    "<!-- gone -->",
    "<https://e.org>",
    "https://e.org/a_b",
    "www.e.org",
    "ftp://e.org",
    "[a](https://e.org)",
    "![a](https://e.org/a.png)",
    "[^1]",
    "[a]: b",
    "`code`",
    "``",
    "*a* **b** _c_ __d__ ~e~ ~~f~~",
    "a_b_c __init__ _x",
    "@everyone a@b.org",
    "#1 org/name#2 GH-3 gh-4",
    ":smile:",
    "$x$",
    "&nbsp; &lt; &#36;",
    "a | b \\| c \\",
    "# heading",
    "- item",
    "+ item",
    "1. item",
    "> quotation",
    "---",
    "===",
    "a\n\n# b",
    "    code",
]
ACTIVE = re.compile(r"[`*~\[|<$]|(?<!\w)_|_(?!\w)|@\w|#\d|(?i:gh-\d|www\.)|//|:\w+:|&nbsp;")
"""What Markdown on GitHub would obey."""


def as_rendered(text: str) -> str:
    """What a paragraph of text alone becomes. Checks that it is one: nothing in it is Markdown's but escapes."""
    assert not ACTIVE.search(re.sub(r"\\[!-/:-@\[-`{-~]|&#?\w+;", "\0", text))
    assert not re.match(r"\s|#+(\s|$)|[>=]|[-+]\s|---|\d+[.)]\s", text)
    plain = re.sub(r"\\([!-/:-@\[-`{-~])|(&#?\w+;)", lambda found: found[1] or unescape(found[2]), text)
    return plain.replace("\u200b", "")


@in_one_test
@pytest.mark.parametrize("text", MARKUP)
def test_markdown_is_text(text: str) -> None:
    out = io.StringIO()
    table = Table(text, [Column("a", text), Column("b", "own")], [Row([text, text], depth=1)], text, [text], text)
    WRITERS["markdown"].write(Report({}, [table]), out)
    lines = out.getvalue().split("\n")
    title, heads, under, cells, note = (lines[i] for i in (0, 2, 3, 4, 6))
    assert len(lines) == 8
    assert under == "|---:|---:|"
    shown = printable(text)
    bold, aside = re.fullmatch(r"\*\*(\S.*)\*\* (.*)", title).groups()  # type: ignore[union-attr]
    assert as_rendered(f"x {bold}").removeprefix("x ") == f"{shown}: {shown}".strip()
    assert as_rendered(note) == shown.strip()
    for line, count in ((heads, 1), (cells, 2)):
        inside = [one.strip() for one in re.split(r"(?<!\\)\|", line.replace("\\\\", "\1"))[1:-1]]
        assert len(inside) == 2
        for cell in inside[:count]:
            cell = cell.replace("\1", "\\\\").replace("&nbsp;&nbsp;", "", 1)
            assert as_rendered(f"x {cell}").removeprefix("x ").strip() == shown.strip()
    assert as_rendered(f"x {aside}").removeprefix("x ").strip() == shown.strip()


def test_own_text_stays_as_it_is_in_markdown() -> None:
    for text in (
        "num_hidden_layers",
        "2·h²·k/a",
        "16.00 KiB",
        "+1.2 %",
        "a & b",
        "layers.0-31.self_attn.q_proj",
        "≈70B (MoE)",
    ):
        assert escape_markdown(text) == text


def test_sources_of_presets_alone_stay_links(run: Any, folder: Path) -> None:
    """A report is posted on a pull request, whose author may have written the file of an accelerator."""
    _, out, _ = run("presets", "llama3-8b", "--format", "markdown")
    links = re.findall(r"source of [^:]+: (https://\S+)", out)
    assert links
    assert not [link for link in links if "&#8203;" in link]
    _, out, _ = run("hardware", str(folder / HARDWARE_FILE), "--format", "markdown")
    assert "https:/&#8203;/e.org" in out
    _, out, _ = run("hardware", "h100", "--format", "markdown")
    assert "https://resources.nvidia.com" in out
    note = LinkedNote(f"source of {NAME}: https://e.org/a_b](javascript:x)")
    table = Table("", [], [], notes=[note])
    WRITERS["markdown"].write(Report({}, [table]), shown := io.StringIO())
    assert f"{escape_markdown(printable(NAME))}: https://e.org/a_b](javascript:x)\n" in shown.getvalue()


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("+1+1", "'+1+1"),
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("＝1+1", "'=1+1"),
        ("--a(1)", "'--a(1)"),
        ("-1", "-1"),
        ("-1,024", "-1,024"),
        ("+1.5e-3", "+1.5e-3"),
        ("--tp 2", "--tp 2"),
        ("--micro-batch 1 --recompute full", "--micro-batch 1 --recompute full"),
        ("=", "="),
        ("-", "-"),
        (-5, "-5"),
        (-0.5, "-0.5"),
        ("\t=1+1", r"\t=1+1"),
        ("\r=1+1", r"\r=1+1"),
    ],
)
def test_a_spreadsheet_finds_no_formula(cell: Any, shown: str, capsys: Any) -> None:
    table = Table("", [Column("a", "a"), Column("b", "b", displayed_text)], [Row([cell, DisplayedValue(cell, "x")])])
    OutputOptions(fmt="csv").show(Report({}, [table]))
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [["target", "a", "b"], ["", shown, shown]]


WRITES = """
import sys, time
from pathlib import Path
from llmcalc.cli.output import open_atomic_output
with open_atomic_output(Path(sys.argv[1]), "--output") as out:
    out.write("half of it")
    out.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_half_of_a_file(number: signal.Signals, tmp_path: Path) -> None:
    words = [sys.executable, "-c", WRITES, str(tmp_path / "answer.json")]
    heeded = partial(signal.signal, number, signal.SIG_DFL)
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=heeded,  # noqa: PLW1509  # a shell's background processes, and those of nohup, start with it ignored
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        assert process.wait(timeout=60) == -number
    assert list(tmp_path.iterdir()) == []


def test_signals_are_as_before_when_a_file_is_written(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with open_atomic_output(tmp_path / "a", "--output") as out:
        assert signal.getsignal(signal.SIGTERM) != before
        out.write("a")
    assert signal.getsignal(signal.SIGTERM) == before
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            with open_atomic_output(tmp_path / "b", "--output") as out:
                out.write("b")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert not errors
    assert (tmp_path / "b").read_text() == "b"
