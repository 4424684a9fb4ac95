"""Builds the page: `python web/build.py` writes `web/dist`, a folder that any static server can serve.

It takes the Python runtime (Pyodide), KaTeX and d3-hierarchy from npm, Python packages from PyPI, and llmcalc's own
wheel from this checkout. Versions and hashes are in `package-lock.json` and `requirements.txt`. Nothing is loaded from
anywhere else, by the build or by the page; only for a hub id, the page fetches that model's config from Hugging Face.

Besides, the build asks llmcalc what the page shows first: the documents of every preset at default settings, so that
the first numbers do not wait for Python, and the formulas of its parts, so that they do not wait for SymPy.
"""

from __future__ import annotations

import argparse
import html
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WEB = Path(__file__).resolve().parent
ROOT = WEB.parent
DIST = WEB / "dist"
MODULES = WEB / "node_modules"
WHEELS = WEB / "wheels"

sys.path[:0] = [str(ROOT), str(WEB / "src"), str(WEB)]  # this checkout's llmcalc, bridge.py and answers.py

PLATFORM = "pyemscripten_2026_0_wasm32"
"""The tag of Pyodide 314's wheels (PEP 783). It changes with Pyodide's first number."""

LONGEST_LINE = 200
"""Characters of a line of what a failed command says: the lines of Pyodide's scripts are very long."""

AT_ONCE = 16
"""Presets that a process counts before it is given more."""

RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")

NOT_ON_THE_PAGE = (
    *(
        f"llmcalc/{part}"
        for part in ("cli/", "plots/", "witnesses/", "testing.", "pytest_plugin.", "drawing.", "page_server.")
    ),
    *(f"llmcalc/sources/{part}" for part in ("checkpoints/", "to_hf/", "to_toml.", "json_schema.")),
    *(
        f"llmcalc/frameworks/launch/{part}."
        for part in (
            "accelerate",
            "adapter_targets",
            "read_launch_file",
            "shell",
            "shell_arithmetic",
            "trainer",
            "yaml_text",
        )
    ),
    *(
        f"llmcalc/frameworks/megatron/{part}."
        for part in ("launch_file", "ignored_flags", "model_from_flags", "plugin")
    ),
    *(f"llmcalc/frameworks/fsdp2/{part}." for part in ("torchtitan_file", "torchtitan_models", "plugin")),
    *(f"llmcalc/frameworks/deepspeed/{part}." for part in ("config_file", "plugin")),
    *(f"llmcalc/studies/{part}" for part in ("fit_devices.", "fit_options.", "sweep.", "diff.", "budget", "lock.")),
    "llmcalc/studies/time_formulas.",
    *(f"llmcalc/reports/{part}." for part in ("verify", "fit", "checkpoint", "diff", "budget", "junit")),
    *(f"llmcalc/reports/{part}." for part in ("engine", "explain_log", "lock", "cyclonedx", "time_formulas")),
    *(f"llmcalc/questions/{part}." for part in ("differences", "locks", "witnesses")),
    *(f"llmcalc/questions/{part}." for part in ("engine_times", "engines", "logs", "measured_rows", "receipts")),
    "llmcalc/presets/description.schema.",
    *("pydantic/v1/", "pydantic/mypy.", "pydantic/experimental/", "pydantic/color.", "pydantic_core/_pydantic_core/"),
    *(f"sympy/{part}/" for part in ("benchmarks", "categories", "crypto", "diffgeom", "holonomic", "liealgebras")),
    *(f"sympy/{part}/" for part in ("sandbox", "stats", "testing")),
    *(f"sympy/parsing/{language}/" for language in ("autolev", "c", "fortran", "latex")),
    *(f"sympy/physics/{part}/" for part in ("biomechanics", "continuum_mechanics", "control", "hep", "mechanics")),
    *(f"sympy/physics/{part}/" for part in ("optics", "quantum", "vector")),
)
"""What the page never imports, left out of its archives."""

UNUSED_STANDARD_MODULES = (
    *(f"{tool}." for tool in ("bdb", "cmd", "cProfile", "doctest", "modulefinder", "pdb", "pickletools", "profile")),
    *(f"{tool}." for tool in ("pstats", "py_compile", "pyclbr", "pydoc", "rlcompleter", "symtable", "tabnanny")),
    *(f"{tool}." for tool in ("compileall", "trace", "zipapp", "pyodide/console")),
    *(f"{tool}/" for tool in ("_pyrepl", "profiling", "pydoc_data", "turtledemo", "unittest", "venv")),
    *(f"{network}." for network in ("ftplib", "imaplib", "mailbox", "netrc", "nturl2path", "poplib", "smtplib")),
    *(f"{network}." for network in ("socketserver", "webbrowser", "urllib/request", "urllib/robotparser")),
    *(f"{network}/" for network in ("http", "wsgiref", "xmlrpc")),
    *(f"{text}." for text in ("_pyio", "configparser", "fileinput", "plistlib", "shelve", "wave")),
    *(f"{text}/" for text in ("dbm", "sqlite3", "xml")),
    *(f"{terminal}." for terminal in ("antigravity", "getpass", "optparse", "pty", "this", "tty", "turtle")),
    *(f"{process}." for process in ("concurrent/futures/process", "concurrent/futures/interpreter", "sched")),
    *(f"{process}/" for process in ("multiprocessing", "concurrent/interpreters")),
    *(f"asyncio/{part}." for part in ("proactor_events", "tools", "windows_events", "windows_utils")),
    *(f"logging/{part}." for part in ("config", "handlers")),
    *(
        f"encodings/{name}"
        for name in ("_win", "big5", "charmap", "cp", "euc_", "gb", "hp_", "hz", "iso2022", "iso8859_")
    ),
    *(f"encodings/{name}" for name in ("johab", "koi8", "kz1048", "mac_", "palmos", "ptcp", "rot_13", "shift_jis")),
    "tarfile.",
)
"""Modules of Python that nothing on the page imports, left out of its standard library: tools for programmers,
protocols, other operating systems, and encodings of characters other than Unicode's.
"""

CLUSTER = (
    "llmcalc/frameworks/",
    "llmcalc/timing/",
    *(f"llmcalc/presets/{part}/" for part in ("engines", "timing")),
    *(f"llmcalc/parallel/{part}." for part in ("layout_search", "nearest_layouts", "schedules", "weight_shards")),
    *(
        f"llmcalc/studies/{part}."
        for part in (
            "cost",
            "decoding",
            "fit",
            "fit_serving",
            "plan",
            "rollout_phases",
            "run_time",
            "serve_trace",
            "serving",
        )
    ),
    *(f"llmcalc/questions/{part}." for part in ("costs", "fits", "plans", "serving", "times", "traces")),
    *(
        f"llmcalc/reports/{part}."
        for part in (
            "calibration",
            "cluster",
            "cost",
            "formats/pipe",
            "plan",
            "ranks_answer",
            "rollout",
            "schedule",
            "serve",
            "time_estimate",
        )
    ),
)
"""What only runs on many devices, servers and times need: an archive of its own, which their panels load."""

SHAPES = (
    *(f"llmcalc/studies/{part}." for part in ("compare", "literature", "shape")),
    *(f"llmcalc/reports/{part}." for part in ("compare", "shape", "formats/pipe")),
)
"""What shapes of one size and the proportions of models need: an archive of its own."""

CONFIGS = ("llmcalc/sources/huggingface/",)
"""What reads a config.json, which no preset is: an archive of its own, for a model that is pasted or of the hub."""

LATER = (
    *(f"llmcalc/{part}/" for part in ("device_memory", "simulator", "parallel", "symbolic")),
    *(f"llmcalc/reports/{part}." for part in ("memory", "memory_answer", "explain", "expression")),
    "llmcalc/questions/runs.",
)
"""What the first answer does not need: an archive of its own, which memory and formulas load."""


class Missing(Exception):
    """Something that the build needs is not there. The message says what, and how to get it."""


def needed() -> None:
    """Raises `Missing` where a program or a package that the build runs is not installed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed; the page is built with Node 20 or later (https://nodejs.org)")
    for module in ("pip", "build"):
        if find_spec(module) is None:
            raise Missing(
                f"the Python package {module} is not installed; run: {sys.executable} -m pip install {module}"
            )


def run(*command: str | Path, cwd: Path = WEB) -> None:
    """Runs a command; its output is shown only if it fails. Raises `Missing`."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        output = "\n".join(line[:LONGEST_LINE] for line in f"{done.stdout}{done.stderr}".splitlines())
        raise Missing(f"{' '.join(map(str, command[:2]))} … failed:\n{output}".rstrip())
    for line in done.stdout.splitlines():
        if line.endswith(" MB"):
            say(line)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fetch() -> None:
    """Installs what comes from npm and PyPI, unless it is there already."""
    locks = "".join((WEB / name).read_text() for name in ("package-lock.json", "requirements.txt"))
    stamp = MODULES / ".llmcalc-lock"
    if stamp.exists() and stamp.read_text() == locks and WHEELS.is_dir():
        return
    say("fetching Pyodide, KaTeX and d3-hierarchy from npm, wheels from PyPI")
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    shutil.rmtree(WHEELS, ignore_errors=True)
    tags = ("--platform", PLATFORM, "--python-version", "3.14", "--implementation", "cp")
    abis = ("--abi", "cp314", "--abi", "abi3", "--abi", "none")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes")
    run(*pip, *tags, *abis, "-r", WEB / "requirements.txt", "-d", WHEELS)
    stamp.write_text(locks)


def own_wheel(folder: Path) -> Path:
    """llmcalc's wheel, built from this checkout."""
    there = find_spec("hatchling") and find_spec("hatch_fancy_pypi_readme")
    alone = ["--no-isolation"] if there else []
    run(sys.executable, "-m", "build", "--wheel", *alone, "--outdir", folder, cwd=ROOT)
    return next(folder.glob("*.whl"))


def pack(out: Path) -> None:
    """The archives of Python: llmcalc with pydantic, its parts for memory and formulas, for many devices, and SymPy."""
    with tempfile.TemporaryDirectory() as folder:
        wheels = {path.name.split("-")[0]: str(path) for path in WHEELS.glob("*.whl")}
        algebra = [wheels.pop("sympy"), wheels.pop("mpmath")]
        own = str(own_wheel(Path(folder)))
        app = {
            "wheels": [own, *wheels.values()],
            "files": {"bridge.py": str(WEB / "src" / "bridge.py")},
            "without": NOT_ON_THE_PAGE + LATER + CLUSTER + SHAPES + CONFIGS,
        }
        later = {"wheels": [own], "only": LATER, "without": CLUSTER}
        cluster = {"wheels": [own], "only": CLUSTER}
        archives = {
            "app.pack": app,
            "later.pack": later,
            "cluster.pack": cluster,
            "sympy.pack": {"wheels": algebra, "without": NOT_ON_THE_PAGE},
        }
        archives |= {
            "shapes.pack": {"wheels": [own], "only": SHAPES},
            "configs.pack": {"wheels": [own], "only": CONFIGS},
        }
        plan = {"pyodide": str(MODULES / "pyodide"), "out": str(out), "archives": archives}
        plan["standard_library"] = {"without": UNUSED_STANDARD_MODULES}
        run("node", WEB / "pack.mjs", json.dumps(plan))


def copy(out: Path) -> None:
    """The page's own files and those of others."""
    shutil.copytree(WEB / "src", out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    parts = [(f"pyodide/{name}", f"pyodide/{name}") for name in RUNTIME]
    parts += [("katex/dist/katex.min.js", "vendor/katex.min.js"), ("katex/dist/katex.min.css", "vendor/katex.min.css")]
    parts += [("d3-hierarchy/dist/d3-hierarchy.min.js", "vendor/d3-hierarchy.min.js")]
    parts += [("katex/LICENSE", "vendor/katex.LICENSE"), ("d3-hierarchy/LICENSE", "vendor/d3-hierarchy.LICENSE")]
    fonts = sorted((MODULES / "katex" / "dist" / "fonts").glob("*.woff2"))
    parts += [(f"katex/dist/fonts/{font.name}", f"vendor/fonts/{font.name}") for font in fonts]
    for source, target in parts:
        (out / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(MODULES / source, out / target)
    from llmcalc.reports import palette

    colours = {
        "COMPONENTS": palette.COMPONENT_COLOURS,
        "OTHER": palette.OTHER_COLOUR,
        "KINDS": palette.MEMORY_KIND_COLOURS,
        "SERIES": palette.CURVE_COLOURS,
        "PASSES": palette.PASS_COLOURS,
    }
    text = "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in colours.items())
    (out / "palette.js").write_text("// Written by web/build.py from llmcalc/reports/palette.py.\n" + text)
    start = out / "index.html"
    links = "\n".join(f'<link rel="modulepreload" href="{name}">' for name in imported(out / "main.js"))
    page = start.read_text(encoding="utf-8").replace(PRELOADS, links)
    table = json.loads((out / "zh.json").read_text(encoding="utf-8"))
    start.write_text(with_addresses(page), encoding="utf-8")
    (out / "zh").mkdir(exist_ok=True)
    (out / "zh" / "index.html").write_text(with_addresses(in_chinese(page, table), "zh/", table), encoding="utf-8")


LINKS = "<!-- links -->"
"""Where the links to the documentation and the repository stand in the page."""

PREVIEW = "<!-- preview -->"
"""Where the page's canonical address and its preview card stand."""

PRELOADS = "<!-- modules -->"
"""Where the page names the modules that it imports first, so that a browser need not read one to fetch the next."""


LANGUAGES = {"": ("en", "English"), "zh/": ("zh-CN", "中文")}
"""Folder of each language, below the page's → its tag and its own name."""

WORDS = re.compile(r'(?<=>)[^<>\n]*[A-Za-z][^<>\n]*(?=<)|(?<= aria-label=")[^"]*|(?<= placeholder=")[^"]*')
"""Words of the calculator's HTML: texts between tags, and names of controls."""

CONTENT = re.compile(r'(?<=<meta name="description" content=")[^"]*')

NOT_WORDS = ("llm", "calc")
"""Texts that are the same in every language."""


def in_chinese(page: str, table: dict[str, str]) -> str:
    """The calculator's HTML in Chinese, for a folder below its own. table: English → Chinese (`src/zh.json`)."""

    def chinese(match: re.Match[str]) -> str:
        text = match.group().strip()
        return match.group() if text in NOT_WORDS else match.group().replace(text, html.escape(table[text]))

    page = CONTENT.sub(chinese, WORDS.sub(chinese, page))
    page = page.replace('<html lang="en">', '<html lang="zh-CN">')
    return re.sub(r' (href|src)="(?!#|http)', r' \1="../', page)


def with_addresses(page: str, folder: str = "", table: dict[str, str] | None = None) -> str:
    """The calculator's HTML with the project's addresses; its title and description are those of its preview.

    folder: of its language, below the page's. table: English → that language; default none.
    """
    import addresses

    urls = addresses.project_urls()
    (title,) = re.findall(r"<title>(.*)</title>", page)
    (description,) = re.findall(r'<meta name="description" content="(.*)">', page)
    card = addresses.preview(urls, folder, title, description)
    others = addresses.alternates(urls, {tag: path for path, (tag, _) in LANGUAGES.items()})
    other, (tag, name) = next((path, value) for path, value in LANGUAGES.items() if path != folder)
    place = "../" if folder else other
    switch = f'<a class="docs" id="language" href="{place}" hreflang="{tag}" lang="{tag}">{name}</a>'
    links = "\n  ".join(filter(None, (switch, addresses.header_links(urls, table))))
    return page.replace(LINKS, links).replace(PREVIEW, f"{card}\n{others}")


IMPORT = re.compile(r'^import .*?"(\.{1,2}/[^"]+)";$', re.MULTILINE)


def imported(start: Path) -> list[str]:
    """What a module imports when it is loaded, and what that does: paths relative to its folder."""
    modules: list[Path] = []
    start = start.resolve()

    def visit(path: Path) -> None:
        for name in IMPORT.findall(path.read_text(encoding="utf-8")):
            other = (path.parent / name).resolve()
            if other not in modules:
                modules.append(other)
                visit(other)

    visit(start)
    return [path.relative_to(start.parent).as_posix() for path in modules]


def first(out: Path, only: list[str]) -> None:
    """What the page shows before Python is there: two files and a page a preset, lists of names and models, and all
    proportions.
    """
    import addresses
    import answers
    import card
    import preset_pages

    names, pages = answers.names(), []
    chosen = only or names
    with _processes(len(chosen)) as pool:
        counted = map if pool is None else partial(pool.map, chunksize=AT_ONCE)
        for name, first_answers in zip(chosen, counted(answers.of_preset, chosen), strict=True):
            for folder, data in first_answers.items():
                _write(out / folder / f"{name}.json", data)
            preset = answers.load(name)
            pages.append(preset_pages.PresetPage(preset, first_answers["first"], answers.DEFAULTS, card.available()))
        if card.available():
            say("drawing preview cards")
            drawn = counted(partial(card.preset_card, source=addresses.name_of(addresses.project_urls())), pages)
            for page, picture in zip(pages, drawn, strict=True):
                (out / page.path).mkdir(parents=True)
                (out / page.path / preset_pages.CARD).write_bytes(picture)
        else:
            say("no preview cards of presets: they need Matplotlib (pip install matplotlib)")
    for path, text in preset_pages.files(addresses.project_urls(), pages).items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding="utf-8")
    _write(out / "models.json", answers.models())
    _write(out / "presets.json", {"names": names, "first": chosen, "defaults": answers.DEFAULTS})
    _write(out / "proportions.json", answers.proportions())


def _processes(count: int) -> AbstractContextManager[ProcessPoolExecutor | None]:
    """Processes among which so many presets are divided; none for a few presets."""
    if count <= AT_ONCE:
        return nullcontext()
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(min(os.cpu_count() or 1, -(-count // AT_ONCE)), mp_context=context)


def _write(path: Path, data: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def build(only: list[str] | None = None, page: Path = DIST) -> Path:
    """Builds the page and returns its folder, which appears whole or not at all. only: the presets that get a first
    answer; default all. page: the folder. Raises `Missing`.
    """
    started = time.monotonic()
    needed()
    fetch()
    part = page.with_name(f"{page.name}.part-{os.getpid()}")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        copy(part)
        say("packing Python, and counting presets")
        with ThreadPoolExecutor(1) as packing:  # which is one process of Node, while others count
            packed = packing.submit(pack, part)
            first(part, only or [])
            packed.result()
        shutil.rmtree(page, ignore_errors=True)
        part.replace(page)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    size = sum(path.stat().st_size for path in page.rglob("*") if path.is_file())
    say(f"built {page}: {size / 1e6:.1f} MB, {time.monotonic() - started:.0f} s")
    return page


def main() -> int:
    """Exit codes: 0 built; 2 something is missing."""
    parser = argparse.ArgumentParser(description="Build the page of llmcalc into web/dist.")
    parser.add_argument("--presets", default="", help="only these have a first answer (a quick build; default: all)")
    options = parser.parse_args()
    try:
        build([name for name in options.presets.split(",") if name])
    except Missing as missing:
        say(f"error: {missing}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
