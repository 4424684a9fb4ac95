"""What a shell script would run, as far as its text says so without running it.

Understood are assignments, arrays, `${NAME:-default}`, arithmetic, continued lines, quotes, exported variables,
`sh -c`, and branches whose condition compares known texts or numbers. What only a run would tell (a command's output,
the script's own arguments, the environment, variables that another branch or a loop sets) stays open: it is an error
only where an argument that matters is made of it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ...errors import InputError, one_line

OPEN = "\0"
"""Stands on both sides of the name of something whose value only a run would tell."""

MOST_WORDS = 20_000
"""The most words that a script may expand to."""

LONGEST_VALUE = 200_000
"""The most letters of a variable."""

MOST_WORK = 4_000_000
"""The most letters that are read and produced: the script's, of each text that is read again, and of each expansion."""

MOST_BLOCKS = 50
"""The most `if`, loops and other blocks inside each other."""

LONGEST_PATTERN = 1_000
"""The most letters of a `case`'s value, and of a pattern with wildcards, that are compared."""

BEGINS = ("if", "for", "while", "until", "case", "{", "select")
ENDS = ("fi", "done", "esac", "}")
BETWEEN = ("then", "else", "do", "!", "time", "exec", "command", "nohup", "function")
DECLARES = ("export", "declare", "local", "readonly", "typeset")


def is_open(text: str) -> bool:
    """Whether some of a word is known only when the script runs."""
    return OPEN in text


def said(text: str) -> str:
    """A word as a message shows it."""
    return one_line(text.replace(OPEN, ""))[:80]


def open_reason(text: str) -> str:
    """Why a word is known only when the script runs, as a message says it: which variable, and what sets it."""
    name = text.split(OPEN)[1] if text.count(OPEN) > 1 else said(text)
    shown = f"'{said(text)[:60]}' is known only when the script runs"
    variable = _NAME.match(name, 1) if name.startswith("$") else None
    if variable is not None and variable.end() == len(name):
        unset = variable[0][:60]
        return f"{shown}: the variable {unset} is not set in it; expected {unset}=… before it, or a value"
    if name.startswith("$(("):
        used = ", ".join(dict.fromkeys(_NAME.findall(name)))
        return f"{shown}: the script does not set all of {used or 'it'}; expected whole numbers, or a value"
    if _NAME.fullmatch(name):
        return f"{shown}: a loop, a condition or a command sets the variable {name[:60]}; expected a value"
    if name[:2] in ("$(", "`…"):
        return f"{shown}: a command prints it; expected a value"
    if name[1:2].isdigit():
        return f"{shown}: it is an argument of the script; expected a value"
    return f"{shown}; expected a value"


@dataclass(frozen=True)
class Command:
    """A command of a script: its words, the variables set for it alone, and its line."""

    words: tuple[str, ...]
    env: dict[str, str]
    line: int


@dataclass
class Script:
    """A script that is being read.

    variables: name → text, or a list of texts for an array. exported: names that commands see.
    commands: what it would run, in order. unset: variables that a condition takes as not set.
    words: those of all commands. work: letters read and produced so far.
    """

    where: str
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    commands: list[Command] = field(default_factory=list)
    unset: set[str] = field(default_factory=set)
    words: int = 0
    work: int = 0

    def env(self) -> dict[str, str]:
        """Exported variables whose value the text says."""
        found = {name: self.variables.get(name, "") for name in sorted(self.exported)}
        return {name: value for name, value in found.items() if isinstance(value, str) and not is_open(value)}


def read_script(text: str, where: str) -> Script:
    """Reads a script. Raises `InputError` for quotes or brackets that do not end, and for texts that grow too long."""
    script = Script(where)
    _Reader(script, text.replace("\r\n", "\n").replace(OPEN, "")).run()
    return script


@dataclass
class Branch:
    """A block that is being read. runs: whether its lines run; None where only a run would tell.

    taken: whether an earlier branch of the same `if` or `case` runs. value: what a `case` compares; None elsewhere.
    patterns: those of the branch of a `case` that is read next; None inside a branch.
    """

    runs: bool | None
    taken: bool | None = False
    value: str | None = None
    patterns: list[str] | None = None

    def turn(self, fits: bool | None) -> None:
        """Goes on to the next branch. fits: whether its own condition holds."""
        self.runs = False if self.taken else (None if self.taken is None else fits)
        self.taken = self.taken or (None if fits is None else fits) or (None if self.taken is None else False)


def holds(words: list[str]) -> bool | None:
    """Whether a condition `[ … ]` holds; None where it is not understood, or only a run would tell.

    A variable that the script never sets is taken as not set.
    """
    closes = {"[": "]", "[[": "]]", "test": ""}
    words = ["" if _UNSET.fullmatch(word) else word for word in words]
    if not words or words[0] not in closes or any(is_open(word) for word in words):
        return None
    if closes[words[0]] and words[-1] != closes[words[0]]:
        return None
    inner = words[1:-1] if closes[words[0]] else words[1:]
    negations = next((i for i, word in enumerate(inner) if word != "!"), len(inner))
    if negations:
        negated = holds(["test", *inner[negations:]])
        return None if negated is None else negated == (negations % 2 == 0)
    if len(inner) == 1 and not inner[0].startswith("-"):
        return inner[0] != ""
    if inner in (["-z"], ["-n"]) or (len(inner) == 2 and inner[0] in ("-z", "-n")):
        return (inner[1:] in ([], [""])) == (inner[0] == "-z")
    if len(inner) != 3:
        return None
    one, sign, other = inner
    if sign in ("=", "==", "!="):
        if words[0] == "[[" and set(other) & set("*?["):
            return None
        return (one == other) == (sign != "!=")
    if sign in NUMBERS and _WHOLE.fullmatch(one) and _WHOLE.fullmatch(other):
        return NUMBERS[sign](int(one), int(other))
    return None


_UNSET = re.compile(rf"{OPEN}\$[A-Za-z0-9_]+{OPEN}")
_WHOLE = re.compile(r"-?[0-9]{1,15}")

NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_SPACE = " \t"
_PLAIN = re.compile(r"[^ \t\n;&|()<>\\'\"$`]+")
_QUOTED = re.compile(r'[^"\\$`]+')


class _Reader:
    """Reads one text into a script. deep: how many `sh -c` it stands in."""

    def __init__(self, script: Script, text: str, deep: int = 0, line: int = 1) -> None:
        self.script, self.text, self.deep = script, text, deep
        self.at = 0
        self.lines = (0, line)  # a place in the text, and its line
        self.branches: list[Branch] = []
        self.waiting: list[str] = []
        self.spend(len(text))

    def spend(self, letters: int) -> None:
        """Counts letters that are read or produced. Raises `InputError` beyond `MOST_WORK`."""
        self.script.work += letters
        if self.script.work > MOST_WORK:
            raise self.error(
                f"the script grows too long; expected at most {MOST_WORK:,} letters read and expanded in all"
            )

    def error(self, what: str) -> InputError:
        return InputError(f"{self.script.where}: line {self.line}: {what}")

    @property
    def line(self) -> int:
        place, line = self.lines
        self.lines = (self.at, line + self.text.count("\n", place, self.at))
        return self.lines[1]

    def run(self) -> None:
        while self.at < len(self.text):
            self.statement()

    def statement(self) -> None:
        """Reads up to the end of a simple command and keeps what it does."""
        words: list[str] = []
        set_here: dict[str, str | list[str]] = {}
        line, ended = self.line, ""
        while True:
            self.skip_space()
            if self.at >= len(self.text):
                break
            letter = self.text[self.at]
            if letter == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
                continue
            if letter in "\n;&|()":
                self.at += 1
                ended = letter
                if letter == ";" and self.text[self.at : self.at + 1] == ";":
                    self.at += 1
                    ended = ";;"
                if letter == "\n":
                    self.skip_here_documents()
                if letter == "&" and self.text[self.at : self.at + 1] == ">":
                    self.at += 1
                    self.word()
                    continue
                break
            if letter in "<>" or re.match(r"\d[<>]", self.text[self.at : self.at + 2]):
                self.redirection()
                continue
            found = _ASSIGNED.match(self.text, self.at)
            if found and (not words or words[0] in DECLARES):
                self.at = found.end()
                set_here[found[1]] = self.assigned(found[1], bool(found[2]))
                if words:
                    words.append(found[1])
                continue
            words += self.word()
            if len(words) == 1 and words[0] in BETWEEN:
                if words[0] == "else" and self.branches:
                    self.branches[-1].turn(True)
                words = []
            elif words == ["{"]:
                self.begins(words, "")
                words = []
        if not self.compared(words, ended):
            self.finish(words, set_here, line, ended)
        if ended == ";;" and self.branches and self.branches[-1].value is not None:
            self.branches[-1].patterns = []

    def compared(self, words: list[str], ended: str) -> bool:
        """Reads the patterns of a `case`, if they come next."""
        branch = self.branches[-1] if self.branches else None
        if branch is None or branch.value is None or branch.patterns is None or words[:1] == ["esac"]:
            return False
        branch.patterns += words
        if ended == ")":
            open_ = is_open(branch.value) or any(map(is_open, branch.patterns))
            fits = None if open_ else self.fits(branch.value, branch.patterns)
            branch.patterns = None
            branch.turn(fits)
        return True

    def fits(self, value: str, patterns: list[str]) -> bool | None:
        """Whether a text is as one of the patterns of a `case`; None if it is too long to be compared."""
        unsure = False
        for pattern in patterns:
            if not set(pattern) & set("*?["):
                if pattern == value:
                    return True
            elif max(len(value), len(pattern)) > LONGEST_PATTERN:
                unsure = True
            else:
                self.spend(LONGEST_PATTERN)
                if fnmatchcase(value, pattern):
                    return True
        return None if unsure else False

    def holds(self, words: list[str], ended: str) -> bool | None:
        """Whether a condition holds. Keeps the names of variables that are taken as not set.

        ended: what comes after it; `&` and `|` begin another condition, which is not read.
        """
        found = holds(words)
        if (ended == "&" and found) or (ended == "|" and not found):
            return None
        if found is not None:
            self.script.unset |= {said(word) for word in words if _UNSET.fullmatch(word)}
        return found

    def begins(self, words: list[str], ended: str) -> None:
        """Opens the block that a word begins."""
        if len(self.branches) >= MOST_BLOCKS:
            raise self.error(f"blocks nested too deeply; expected at most {MOST_BLOCKS}")
        if words[0] == "if":
            branch = Branch(None)
            branch.turn(self.holds(words[1:], ended))
        elif words[0] == "case" and len(words) > 2 and words[2] == "in":
            branch = Branch(False, value=words[1], patterns=[])
            self.branches.append(branch)
            if len(words) > 3:
                self.compared(words[3:], ")")
            return
        else:
            branch = Branch(None, taken=None)
            if words[0] == "for" and len(words) > 1:
                self.script.variables[words[1][:80]] = unknown(words[1][:80])
        self.branches.append(branch)

    def finish(self, words: list[str], set_here: dict[str, str | list[str]], line: int, ended: str) -> None:
        if words and words[0] in BEGINS:
            self.begins(words, ended)
            return
        if words and words[0] == "elif" and self.branches:
            self.branches[-1].turn(self.holds(words[1:], ended))
            return
        if words and words[0] in ENDS:
            if self.branches:
                self.branches.pop()
            return
        if any(branch.runs is False for branch in self.branches):
            return
        if not words or words[0] in DECLARES:
            unsure = any(branch.runs is None for branch in self.branches)
            for name, value in set_here.items():
                self.script.variables[name] = unknown(name) if unsure else value
            if words and words[0] != "local" and (words[0] == "export" or "-x" in words):
                self.script.exported |= {word for word in words[1:] if _NAME.fullmatch(word)}
            return
        if words[0] in ("read", "unset", "eval", "source", "."):
            for name in words[1:]:
                if _NAME.fullmatch(name):
                    self.script.variables[name] = unknown(name)
            return
        self.script.words += len(words)
        if self.script.words > MOST_WORDS:
            raise self.error(f"too many words; expected at most {MOST_WORDS:,}")
        env = {name: value for name, value in set_here.items() if isinstance(value, str)}
        for i, word in enumerate(words[:-1]):
            if word in ("-c", "-lc") and self.deep < 3 and words[i - 1].rpartition("/")[2] in ("sh", "bash"):
                _Reader(self.script, words[i + 1], self.deep + 1, line).run()
                return
        self.script.commands.append(Command(tuple(words), env, line))

    def skip_space(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] in _SPACE:
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            else:
                return

    def redirection(self) -> None:
        """Skips a redirection; what a here-document holds is skipped at the end of the line."""
        found = re.compile(r"\d?(<<<|<<-?|>>|[<>]&?|<>)").match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        self.skip_space()
        if found[1] in ("<<", "<<-"):
            mark = re.compile(r"['\"\\]?([A-Za-z0-9_]+)['\"]?").match(self.text, self.at)
            if mark is None:
                raise self.error("a here-document without a name")
            self.at = mark.end()
            self.waiting.append(mark[1])
        elif self.at < len(self.text) and self.text[self.at] not in "\n;&|()":
            self.word()

    def skip_here_documents(self) -> None:
        for mark in self.waiting:
            while True:
                if self.at >= len(self.text):
                    raise self.error(f"a here-document without its end, {mark}")
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = end + 1
                if line.lstrip("\t").rstrip(_SPACE) == mark:
                    self.at = end
                    break
        self.waiting = []

    def assigned(self, name: str, adds: bool) -> str | list[str]:
        """The value after `NAME=`."""
        if self.text[self.at : self.at + 1] == "(":
            self.at += 1
            items = self.array()
            before = self.script.variables.get(name, [])
            if not adds:
                return items
            self.spend(len(before))
            return [*(before if isinstance(before, list) else [before]), *items]
        value = "".join(text for text, _ in self.pieces())
        if adds:
            before = self.script.variables.get(name, "")
            self.spend(len(before))
            value = (" ".join(before) if isinstance(before, list) else before) + value
        if len(value) > LONGEST_VALUE:
            raise self.error(f"{name} grows too long; expected at most {LONGEST_VALUE:,} letters")
        return value

    def array(self) -> list[str]:
        items: list[str] = []
        size = 0
        while True:
            self.skip_space()
            if self.at >= len(self.text):
                raise self.error("an array that does not end; expected )")
            letter = self.text[self.at]
            if letter == ")":
                self.at += 1
                return items
            if letter == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif letter in "\n;&|(":
                self.at += 1
            elif letter in "<>":
                self.redirection()
            else:
                word = self.word()
                items += word
                size += sum(map(len, word))
            if size > LONGEST_VALUE:
                raise self.error("an array grows too long")

    def word(self) -> list[str]:
        """Reads a word; unquoted expansions are split where they have spaces, and an array gives its items."""
        done: list[str] = []
        now: list[str] = []  # the parts of the word that is not finished; empty if there is none
        start = self.at
        for text, splits in self.pieces():
            if not splits:
                now.append(text)
                continue
            parts = text.split(ITEM) if ITEM in text else text.split()
            joined = ITEM in text or not text[:1].isspace()
            if parts and now and joined:
                parts[0] = "".join([*now, parts[0]])
                now = []
            if now and parts:
                done.append("".join(now))
                now = []
            if parts:
                done += parts[:-1]
                now = [parts[-1]]
                if text[-1:].isspace():
                    done.append(parts[-1])
                    now = []
        if now:
            done.append("".join(now))
        if self.at == start:
            self.at += 1
        return done

    def pieces(self) -> list[tuple[str, bool]]:
        """The pieces of a word: (text, whether spaces in it split the word)."""
        out: list[tuple[str, bool]] = []
        size, counted = 0, 0
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in " \t\n;&|()<>":
                break
            if letter == "\\":
                if self.text[self.at + 1 : self.at + 2] != "\n":
                    out.append((self.text[self.at + 1 : self.at + 2], False))
                self.at += 2
            elif letter == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self.error("a quote ' that does not end")
                out.append((self.text[self.at + 1 : end], False))
                self.at = end + 1
            elif letter == '"':
                self.at += 1
                out += self.quoted()
            elif letter in "$`":
                text = self.expansion()
                out.append((text.replace(ITEM, " "), True))
            else:
                out.append(self.plain(_PLAIN))
            size += sum(len(text) for text, _ in out[counted:])
            counted = len(out)
            if size > LONGEST_VALUE:
                raise self.error(f"a word grows too long; expected at most {LONGEST_VALUE:,} letters")
        return out

    def quoted(self) -> list[tuple[str, bool]]:
        """The pieces of a text in double quotes."""
        out: list[tuple[str, bool]] = [("", False)]
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                return out
            if letter == "\\":
                after = self.text[self.at + 1 : self.at + 2]
                if after != "\n":
                    out.append((after if after in '$`"\\' else f"\\{after}", False))
                self.at += 2
            elif letter in "$`":
                text = self.expansion()
                if ITEM not in text:
                    out.append((text, False))
                elif text == ITEM:  # an array without items is no word at all
                    out = [] if out == [("", False)] else out
                else:
                    out.append((text, True))
            else:
                out.append(self.plain(_QUOTED))
        raise self.error('a quote " that does not end')

    def plain(self, letters: re.Pattern[str]) -> tuple[str, bool]:
        """The letters up to the next one that means something."""
        found = letters.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return found[0], False

    def expansion(self) -> str:
        """The text that stands for what begins with a dollar sign or a backquote."""
        text = self.expanded()
        self.spend(len(text))
        return text

    def expanded(self) -> str:
        start = self.at
        if self.text[start] == "`":
            end = self.text.find("`", start + 1)
            if end < 0:
                raise self.error("a backquote that does not end")
            self.at = end + 1
            return unknown("`…`")
        if self.text.startswith("$((", start):
            inner = self.balanced(start + 1)
            return self.arithmetic(inner[1:-1] if inner.startswith("(") and inner.endswith(")") else inner)
        if self.text.startswith("$(", start):
            inner = self.balanced(start + 1)
            return unknown(f"$({inner.strip()[:20]})")
        if self.text.startswith("${", start):
            return self.braced(self.balanced(start + 1))
        name = _NAME.match(self.text, start + 1)
        if name is not None:
            self.at = name.end()
            value = self.script.variables.get(name[0])
            if value is None:
                return unknown(f"${name[0]}")
            return value if isinstance(value, str) else (value[0] if value else "")
        after = self.text[start + 1 : start + 2]
        self.at = start + 2
        if after and after in "@*":
            return ITEM
        return unknown(f"${after}") if after and after in "0123456789#?$!-" else f"${after}".rstrip()

    def balanced(self, start: int) -> str:
        """The text inside brackets that open at `start`; continues after them."""
        opens, closes = self.text[start], {"(": ")", "{": "}"}[self.text[start]]
        depth, i = 0, start
        while i < len(self.text):
            letter = self.text[i]
            if letter == "\\":
                i += 1
            elif letter == "'" and opens == "(":
                i = self.text.find("'", i + 1)
                if i < 0:
                    break
            elif letter == opens:
                depth += 1
            elif letter == closes:
                depth -= 1
                if depth == 0:
                    self.at = i + 1
                    return self.text[start + 1 : i]
            i += 1
        raise self.error(f"{opens} that does not end; expected {closes}")

    def braced(self, inner: str) -> str:
        """The text of `${…}`."""
        whole = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]", inner)
        if whole is not None:
            value = self.script.variables.get(whole[1])
            if value is None:
                return unknown(f"${whole[1]}")
            items = value if isinstance(value, list) else [value]
            return ITEM.join(items) if len(items) > 1 else (items[0] if items else ITEM)
        found = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*|[0-9@*])(?:(:?[-=+?])(.*))?", inner, re.DOTALL)
        if found is None:
            name = _NAME.match(inner)
            return unknown(f"${{{name[0] if name else inner[:20]}…}}")
        name_, how, other = found[1], found[2] or "", found[3] or ""
        value = self.script.variables.get(name_)
        known = value is not None and not (how.startswith(":") and value in ("", []))
        text = "" if value is None else (value if isinstance(value, str) else (value[0] if value else ""))
        if how.endswith("+"):
            return self.inner(other) if known else ""
        if known:
            return text
        if how.endswith(("-", "=")):
            text = self.inner(other)
            if how.endswith("=") and _NAME.fullmatch(name_):
                self.script.variables[name_] = text
            return text
        if name_ in ("@", "*"):
            return ITEM
        return text if value is not None else unknown(f"${name_}")

    def inner(self, text: str) -> str:
        """A text with its own expansions, such as a default."""
        if self.deep > 20:
            raise self.error("defaults nested too deeply")
        reader = _Reader(self.script, text, self.deep + 1, self.line)
        out = ""
        while reader.at < len(text):
            before = reader.at
            out += "".join(piece for piece, _ in reader.pieces())
            if reader.at == before:
                out += text[reader.at]
                reader.at += 1
        return out

    def arithmetic(self, text: str) -> str:
        """The value of whole numbers, variables, brackets and + - * / %; open where one is not known."""
        from .shell_arithmetic import value_of

        value = value_of(text, self.script.variables)
        return unknown(f"$(({text.strip()[:20]}))") if value is None else str(value)


ITEM = "\x1f"
"""Stands between the items of an array that is expanded."""


def unknown(name: str) -> str:
    """The text that stands for something whose value only a run would tell."""
    return f"{OPEN}{''.join(c for c in name if not c.isspace() and c not in (OPEN, ITEM))}{OPEN}"
