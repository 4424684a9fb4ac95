"""Builds the documentation's site with Zensical, in every language that has a zensical.toml.

    python docs/build.py [FOLDER]        site/ if no folder is given

Pages are prepared in a folder of their own: commands stand above their outputs, plots and figures are drawn with the
words of the language's labels.toml, formulas become MathML that KaTeX draws anew, the reference is written from the
program, and links that lead out of docs/ become text. Afterwards the switch of languages of each page is led to the
same page in the other language, which has the same path in its folder; its head says so too, and what the page is
about; and each page gets a Content-Security-Policy that lets it use the site's own files alone, for which scripts
within pages become files.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
KATEX = ROOT / "web" / "node_modules" / "katex" / "dist"
sys.path[:0] = [str(ROOT), str(DOCS)]

VALUE = re.compile(r"<!-- value: .*? -->(.*?)<!-- /value -->", re.DOTALL)
OUTPUT = re.compile(r"<!-- output: (llmcalc .*?) -->\n```\n")
PLOT = re.compile(r"<!-- plot: (llmcalc plot .*?) -->")
FIGURE = re.compile(r"<!-- figure: (\w+): (.*?) -->", re.DOTALL)
FORMULA = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
COMMENT = re.compile(r"<!-- [^>]* -->\n+")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
CHINESE = "\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”"  # characters and their punctuation
BROKEN = re.compile(f"(?<=[{CHINESE}])\n *(?=[{CHINESE}])|(?<=[，。；：、])\n *(?=[\\w`\\[(*])(?!\\d+\\. |`{{3}}|\\* )")
WRITTEN = re.compile(r"(<text\b[^>]*>)([^<]+)(?=</text>)")
SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
ASSETS = re.compile(r'src="([^"]*assets/javascripts/)bundle\.')
ALIGNED = re.compile(r'(<t[hd]) style="text-align: (left|right|center);"')
HEAD = re.compile(r'<meta charset="utf-8">')
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' '{}'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'self'"
)
"""{}: hash of the one style that the theme's script adds, to its search. data: icons of its style sheets."""

ADDED_STYLE = re.compile(r"""\("style",\{\},([\w$]+)\.toString\(\)\)""")

ALTERNATE = re.compile(r'<link rel="alternate" href="[^"]*" hreflang="([^"]*)">')
SPACED = "alternate "
"""The relation of a page to itself in another language: a list of words. The theme's script would take a single word
for the home of a language, and ask for a sitemap there, which the policy forbids.
"""

DESCRIPTION = re.compile(r'(<meta name="description" content=")[^"]*">')
PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
LEAST, MOST = 25, 200
"""Characters of a paragraph that says what a page is about, and of a description."""

SWITCH = re.compile(r'(<a href=")([^"]*)(" hreflang="([^"]*)")')


def languages() -> dict[str, Path]:
    """The folder of each language's pages, by its place in the site; English is at the root."""
    others = {file.parent.name: file.parent for file in sorted(DOCS.glob("*/zensical.toml"))}
    return {"": DOCS, **others}


def owner(path: Path, folders: Iterable[Path]) -> Path:
    """The innermost of the folders that holds a path."""
    return max((folder for folder in folders if path.is_relative_to(folder)), key=lambda folder: len(folder.parts))


def labels_of(source: Path) -> dict[str, str]:
    """What a language's pages have in the place of words in plots, if they have other words."""
    file = source / "labels.toml"
    return tomllib.loads(file.read_text()) if file.exists() else {}


def relabelled(picture: str, labels: Mapping[str, str]) -> str:
    """The plot with those words in the place of its own; each {} stands for a number or a name, in the same order."""
    patterns = [(re.compile(re.escape(text).replace(r"\{\}", "(.+?)")), other) for text, other in labels.items()]

    def with_label(match: re.Match[str]) -> str:
        text = match[2].strip()
        for pattern, other in patterns:
            if (label_match := pattern.fullmatch(text)) is not None:
                return match[1] + other.replace("{}", "%s") % label_match.groups()
        return match[1] + text

    return WRITTEN.sub(with_label, picture)


@cache
def plotted(command: str) -> str:
    """The picture of a plot, as SVG. Languages share it: they have the same plots."""
    from llmcalc.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "plot.svg"
        before, sys.argv = sys.argv, [*shlex.split(command), "-o", str(picture)]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{command}: exit code {end.code}") from None
        finally:
            sys.argv = before
        return picture.read_text()


def drawn(command: str, page: Path, count: int, labels: Mapping[str, str]) -> str:
    """Draws a plot beside a page, and returns its Markdown."""
    picture = page.with_name(f"{page.stem}-{count}.svg")
    picture.write_text(relabelled(plotted(command), labels) if labels else plotted(command))
    return f"![{command}]({picture.name})\n\n`{command} -o {picture.name}`"


def explained(name: str, title: str, page: Path, labels: Mapping[str, str]) -> str:
    """Draws a figure beside a page, and returns its Markdown. title: what it shows."""
    import figures

    picture = page.with_name(f"{page.stem}-{name}.svg")
    figures.draw(name, picture)
    if labels:
        picture.write_text(relabelled(picture.read_text(), labels))
    return f"![{title}]({picture.name})"


def typeset(text: str) -> str:
    """Formulas in TeX, as GitHub's Markdown has them (a block of "math"), become MathML, which browsers draw without
    scripts. Beside it stands the TeX, of which KaTeX makes what is the same in every browser: MathML looks as the fonts
    of a system let it, and without one for mathematics brackets do not grow.
    """
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        tex = " ".join(match[1].split())
        attribute = re.sub(r"[\\_*]", lambda mark: f"&#{ord(mark[0])};", html.escape(tex))  # Markdown reads these
        return f'<div class="formula" tabindex="0" data-tex="{attribute}">{convert(tex, display="block")}</div>'

    return FORMULA.sub(formula, text)


def drawn_by_katex(folder: Path) -> None:
    """Puts KaTeX, which npm installs for the page that counts, beside the pages that have formulas."""
    if not KATEX.is_dir():
        if shutil.which("npm") is None:
            print("no npm, which installs KaTeX: formulas stay MathML")
            return
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=ROOT / "web", check=True)
    place = folder / "assets" / "katex"
    shutil.copytree(KATEX / "fonts", place / "fonts", ignore=shutil.ignore_patterns("*.ttf", "*.woff"))
    for file in (KATEX / "katex.min.js", KATEX / "katex.min.css", KATEX.parent / "LICENSE", DOCS / "formulas.js"):
        shutil.copy(file, place)
    for page in folder.rglob("*.html"):
        text, path = page.read_text(), os.path.relpath(place, page.parent)
        if 'class="formula"' in text:
            scripts = "".join(f'<script defer src="{path}/{name}.js"></script>' for name in ("katex.min", "formulas"))
            style = f'<link rel="stylesheet" href="{path}/katex.min.css">'
            page.write_text(text.replace("</head>", f"{style}{scripts}</head>", 1))


def linked(text: str, page: Path, folder: Path) -> str:
    """Links to files that the site does not have become text; those to another language's pages get its address."""

    def resolved_link(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        if target.suffix != ".md" or not target.exists() or not target.is_relative_to(DOCS):
            return match[1]
        if owner(target, languages().values()) == folder:
            return match[0]
        return f"[{match[1]}]({match[2].removesuffix('.md')}.html{match[3] or ''})"

    return LINK.sub(resolved_link, text)


def joined(text: str) -> str:
    """Chinese lines become one, because a browser shows the end of a line as a space, and Chinese has none there."""
    parts = FENCED.split(text)
    return "".join(part if number % 2 else BROKEN.sub("", part) for number, part in enumerate(parts))


def prepared(source: Path, page: Path, folder: Path) -> str:
    """A page as the site has it."""
    text = VALUE.sub(r"\1", source.read_text())
    text = OUTPUT.sub(lambda m: f"```text\n$ {m[1]}\n", text)
    plots, labels = iter(range(1, 100)), labels_of(folder)
    text = PLOT.sub(lambda m: drawn(m[1], page, next(plots), labels), text)
    text = FIGURE.sub(lambda m: explained(m[1], m[2], page, labels), text)
    text = COMMENT.sub("", text)
    return joined(linked(typeset(text), source, folder))


def home() -> str:
    """The README without its links to pages of the repository, as the first page. The site has its own languages."""
    text = re.sub(r"^English \| .*\n\n", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    return COMMENT.sub("", re.sub(r"\]\(docs/", "](", text))


def stated_address(name: str) -> str:
    """An address of the project, which pyproject.toml states by its name."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"][name])


def published_at() -> str:
    """The address of the documentation's site."""
    return stated_address("Documentation")


def configured(source: Path, place: str) -> str:
    """A language's zensical.toml, with the address that it is published at and a link to the repository at the foot of
    each page, which pyproject.toml states.
    """
    address = f"{published_at()}{place}/" if place else published_at()
    settings = (source / "zensical.toml").read_text()
    settings = settings.replace("[project]\n", f'[project]\nsite_url = "{address}"\n', 1)
    repository = stated_address("Repository")
    icon = 'icon = "fontawesome/brands/github"\nname = "GitHub"'
    return settings + f'\n[[project.extra.social]]\n{icon}\nlink = "{repository}"\n'


def contents(pages: Path, settings: str) -> None:
    """Gives each folder of pages without one a first page, which links to the part of the navigation that it is in."""
    for name, entries in (item for part in tomllib.loads(settings)["project"]["nav"] for item in part.items()):
        if isinstance(entries, str):
            continue
        listed = {file: title for entry in entries for title, file in entry.items()}
        for folder in {Path(file).parent for file in listed} - {Path()}:
            if not (pages / folder / "index.md").exists():
                rows = (f"- [{title}]({os.path.relpath(file, folder)})\n" for file, title in listed.items())
                (pages / folder / "index.md").write_text(f"# {name}\n\n{''.join(rows)}")


def switched(folder: Path) -> None:
    """Leads the switch of languages to the same page in the other language, or to its home if it has no such page; says
    to search engines where a page stands in each language, and what it is about.
    """
    places = {
        tomllib.loads((source / "zensical.toml").read_text())["project"]["theme"]["language"]: folder / place
        for place, source in languages().items()
    }
    for file in folder.rglob("*.html"):
        path = file.relative_to(owner(file, places.values()))
        same = {language: place / path for language, place in places.items() if (place / path).exists()}

        def leads(match: re.Match[str], file: Path = file, same: Mapping[str, Path] = same) -> str:
            page = same.get(match[4])
            link = match[2] if page is None or page.name == "404.html" else os.path.relpath(page, file.parent)
            return f"{match[1]}{link}{match[3]}"

        def alternate(match: re.Match[str], same: Mapping[str, Path] = same) -> str:
            page = same.get(match[1])
            address = "" if page is None else address_of(page, folder)
            return address and f'<link rel="{SPACED}" href="{address}" hreflang="{match[1]}">'

        text = ALTERNATE.sub(alternate, SWITCH.sub(leads, file.read_text()))
        if file.name != "index.html" and (about := summary(text)):
            text = DESCRIPTION.sub(lambda match, about=about: f'{match[1]}{html.escape(about)}">', text)
        file.write_text(text)


def address_of(page: Path, folder: Path) -> str:
    """Where a page of the site is published; a folder's first page by the folder."""
    path = page.relative_to(folder).as_posix()
    return published_at() + path.removesuffix("index.html")


def summary(text: str) -> str:
    """The first paragraph of a page of HTML, cut where a description of it ends; empty if it has none."""
    for paragraph in PARAGRAPH.findall(text.partition("<article")[2]):
        words = html.unescape(re.sub(r"<[^>]+>", "", paragraph)).split()
        if sum(map(len, words)) > LEAST:
            return textwrap.shorten(" ".join(words), MOST, placeholder=" …")
    return ""


def search_in_languages(folder: Path) -> None:
    """Gives the dialog of the search the words of each language's search.toml: the theme's script has them in English,
    whatever the language of its pages is. Raises `RuntimeError` for words that the script does not have.
    """
    for place, source in languages().items():
        file = source / "search.toml"
        if not file.exists():
            continue
        (bundle,) = (folder / place / "assets" / "javascripts").glob("bundle.*.js")
        script = bundle.read_text()
        for english, other in tomllib.loads(file.read_text()).items():
            if f'"{english}"' not in script:
                raise RuntimeError(f"{file}: {english!r} is not in the script of the theme")
            for before in (",", ":", "(", "=", "?"):  # not where it is compared, or named as a key
                script = script.replace(f'{before}"{english}"', f'{before}"{other}"')
        bundle.write_text(script)


ACCESSIBLE = {
    '("nav",{class:"md-code__nav"}': '("div",{class:"md-code__nav"}',
    '("div",{class:"md-typeset__scrollwrap"}': '("div",{class:"md-typeset__scrollwrap",tabIndex:0}',
}
"""What the theme's script makes → what it makes here: buttons of a code block are no landmark, and the keyboard reaches
and scrolls a broad table.
"""


DRAWING = re.compile(r'<p>(<img [^>]*\.svg" />)</p>')
"""A drawing in a page of HTML, alone in its paragraph."""


def accessible(folder: Path) -> None:
    """Changes what the theme's script makes so that axe-core finds nothing in it, and lets drawings scroll by
    themselves. Raises `RuntimeError` where the script makes something else.
    """
    for file in folder.rglob("*.html"):
        file.write_text(DRAWING.sub(r'<div class="drawing" tabindex="0">\1</div>', file.read_text()))
    for place in languages():
        (bundle,) = (folder / place / "assets" / "javascripts").glob("bundle.*.js")
        script = bundle.read_text()
        for before, after in ACCESSIBLE.items():
            if script.count(before) != 1:
                raise RuntimeError(f"{bundle}: expected {before} once in the script of the theme")
            script = script.replace(before, after)
        bundle.write_text(script)


def hash_of_search_style(folder: Path) -> str:
    """The hash of the style that the theme's script gives to the search, as a policy names it."""
    (bundle,) = (folder / "assets" / "javascripts").glob("bundle.*.js")
    script = bundle.read_text()
    name = ADDED_STYLE.search(script)
    style = name and re.search(rf"\b{re.escape(name[1])}='([^'\\]*)'", script)
    if not style:
        raise RuntimeError(f"{bundle}: expected one style that it adds to the search")
    return f"sha256-{base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()}"


def secured(folder: Path) -> None:
    """Gives each page the policy, and writes what stands in it as a script, or as a style of cells, in the way that the
    policy allows. Raises `RuntimeError` for a page of a form that Zensical's have not had.
    """
    places = [folder / place for place in languages()]
    allowed = POLICY.format(hash_of_search_style(folder))
    for file in folder.rglob("*.html"):
        text = file.read_text()
        assets, head = ASSETS.search(text), HEAD.search(text)
        if assets is None or head is None:
            raise RuntimeError(f"{file}: no script of the theme, or no <meta charset>, to write the policy beside")
        scripts = owner(file, places) / "assets" / "javascripts"

        def moved(match: re.Match[str], scripts: Path = scripts, place: str = assets[1]) -> str:
            name = f"page.{hashlib.sha256(match[1].encode()).hexdigest()[:12]}.js"
            (scripts / name).write_text(match[1])
            return f'<script src="{place}{name}"></script>'

        policy = f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
        text = text.replace(head[0], head[0] + policy, 1)
        file.write_text(ALIGNED.sub(r'\1 data-align="\2"', SCRIPT.sub(moved, text)))


def build(folder: Path) -> None:
    """Builds every language into a folder."""
    import llms
    import reference

    for place, source in languages().items():
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            pages = work / "docs"
            (work / "zensical.toml").write_text(configured(source, place))
            for file in sorted(source.rglob("*.md")):
                if owner(file, languages().values()) == source:
                    page = pages / file.relative_to(source)
                    page.parent.mkdir(parents=True, exist_ok=True)
                    page.write_text(prepared(file, page, source))
            if not place:
                reference.write(pages / "reference")
                shutil.copytree(DOCS / "images", pages / "images")
                shutil.copy(ROOT / "presets" / "description.schema.json", pages)
            shutil.copy(DOCS / "site.css", pages)
            if not (pages / "index.md").exists():
                (pages / "index.md").write_text(linked(home(), DOCS / "index.md", DOCS))
            contents(pages, (work / "zensical.toml").read_text())
            (work / "llmcalc").symlink_to(ROOT / "llmcalc")
            (work / "fields.py").symlink_to(DOCS / "fields.py")
            subprocess.run([sys.executable, "-m", "zensical", "build", "--clean"], cwd=work, check=True)
            shutil.copytree(work / "site", folder / place, dirs_exist_ok=True)
    switched(folder)
    search_in_languages(folder)
    accessible(folder)
    drawn_by_katex(folder)
    secured(folder)
    llms.write(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    shutil.rmtree(target, ignore_errors=True)
    build(target.resolve())
    print(target)
