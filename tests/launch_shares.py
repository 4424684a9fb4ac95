"""Prints what `llmcalc memory --launch` says of every launch file below a folder.

    python -m tests.launch_shares FOLDER            each file, and the shares of the four verdicts
    python -m tests.launch_shares FOLDER --only NAME  files whose path has this text

answered as given: with no other option. answered after what the message asks: with a TARGET, a number of devices, a
length, the first of a file's configurations, or for servers an accelerator and a scheme. refused: with the message.
taken for another program: the program that `index.json` states is not the one that was read; without an index nothing
is known of that.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llmcalc import memory
from llmcalc.errors import InputError

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".py", ".slurm")
"""Suffixes of launch files; a model file of a server has its kind in its name."""

ANSWERED, ANSWERED_LATER, REFUSED, MISTAKEN = (
    "answered as given",
    "answered after what the message asks",
    "refused",
    "taken for another program",
)

TARGET = "llama3.2-1b"
"""The model of files that name none."""

ASKS = (
    (re.compile(r"add TARGET|missing argument TARGET"), {"target": TARGET}),
    (re.compile(r"expected --devices|or --devices\b|--devices: [\d,]+; expected a multiple"), {"devices": 8}),
    (re.compile(r"expected --seq|add --seq"), {"seq": 2048}),
    (re.compile(r"--hardware: missing"), {"hardware": "h100"}),
    (re.compile(r"expected --quantize SCHEME"), {"quantize": "awq-int4-g128"}),
)
"""A text in a message → the option that it asks for."""

PROGRAMS = {
    "axolotl": ("axolotl",),
    "LLaMA-Factory": ("LLaMA-Factory",),
    "torchtune": ("torchtune",),
    "torchtitan": ("torchtitan",),
    "litgpt": ("LitGPT",),
    "alignment": ("TRL", "transformers"),
    "open-r1": ("TRL",),
    "open-instruct": ("open-instruct",),
    "llm-foundry": ("LLM Foundry",),
    "OLMo": ("OLMo",),
    "unsloth": ("Unsloth",),
    "Megatron-LM": ("Megatron-LM",),
    "gpt-neox": ("GPT-NeoX",),
}
"""A word in the kind of a file → programs whose readers may read it."""

FRAMEWORK_FILES = ("DeepSpeed", "accelerate")
"""Programs of files that all trainers have."""


class Outcome(NamedTuple):
    """What is said of a file.

    path: the file.
    verdict: one of the four.
    text: the program and its bytes, or the message.
    """

    path: Path
    verdict: str
    text: str


def launch_paths(folder: Path, only: str = "") -> Iterator[Path]:
    """The launch files below a folder, in order."""
    for path in sorted(folder.rglob("*")):
        is_launch = path.suffix in SUFFIXES or "modelfile" in path.name.lower()
        if path.is_file() and is_launch and path.name != "index.json" and only in str(path):
            yield path


def outcome(path: Path, kind: str = "") -> Outcome:
    """Asks for the memory of a launch file. kind: its kind in the folder's index."""
    options: dict[str, Any] = {}
    for _ in range(len(ASKS) + 1):
        try:
            launch = f"{path} {options['configuration']}" if "configuration" in options else path
            others: dict[str, Any] = {
                name: value for name, value in options.items() if name not in ("target", "configuration")
            }
            answer = memory(options.get("target"), launch=launch, **others)
            documents = answer.document if isinstance(answer.document, list) else [answer.document]
            program = ", ".join(dict.fromkeys(d["launch"]["program"] or d["launch"]["kind"] for d in documents))
            size = max(document["memory"]["device_bytes"] for document in documents) / 2**30
        except InputError as error:
            message = str(error)
            asked: dict[str, object] = next(
                (more for text, more in ASKS if text.search(message) and not more.items() <= options.items()), {}
            )
            number = re.search(r"expected --devices (\d{1,5})\b", message)
            if number is not None:
                asked = {"devices": int(number[1])}
                asked = {} if asked.items() <= options.items() else asked
            named = re.search(r"expected one of them, as in --launch '([^']+)'", message)
            if named is not None and "configuration" not in options:  # the first of several in one file
                asked = {"configuration": named[1].rpartition(" ")[2]}
            if not asked:
                return Outcome(path, REFUSED, message.replace(f"{path}: ", ""))
            options |= asked
            continue
        expected = next((names for word, names in PROGRAMS.items() if word.lower() in kind.lower()), ())
        servers = f" {len(documents)} servers" if len(documents) > 1 else ""
        text = f"{program},{servers} {size:,.1f} GiB" + "".join(f" --{name} {value}" for name, value in options.items())
        if expected and program not in (*expected, *FRAMEWORK_FILES):
            return Outcome(path, MISTAKEN, text)
        return Outcome(path, ANSWERED_LATER if options else ANSWERED, text)
    raise AssertionError(path)


def main() -> None:
    """Prints every file with its verdict, and the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    index = arguments.folder / "index.json"
    rows = json.loads(index.read_text())["files"] if index.exists() else []
    kinds = {row["file"]: row["kind"] for row in rows}
    counts: Counter[str] = Counter()
    for path in launch_paths(arguments.folder, arguments.only):
        said = outcome(path, kinds.get(path.name, ""))
        counts[said.verdict] += 1
        print(f"{said.verdict:37}{path.relative_to(arguments.folder)}: {said.text}", flush=True)
    total = sum(counts.values())
    if not total:
        sys.exit(f"{arguments.folder}: no launch files; expected files that end in {', '.join(SUFFIXES)}")
    print()
    for verdict in (ANSWERED, ANSWERED_LATER, REFUSED, MISTAKEN):
        print(f"{verdict:37}{counts[verdict]:4} of {total}  {counts[verdict] / total:.0%}")


if __name__ == "__main__":
    main()
