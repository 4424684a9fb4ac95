"""Damages files of every kind that llmcalc reads, and runs a command on each: `python -m tests.fuzz --seconds 600`.

An input is made from a seed and a number alone, and is damaged in its structure: values and tables replaced, removed,
repeated and nested in a parsed file, and words, numbers and lines in a text. The command must answer it, or refuse it
in one line, without a traceback, within `MAX_SECONDS` of CPU time and `MAX_MB` of memory.

    python -m tests.fuzz --seconds 600 --seed 7      new inputs for ten minutes
    python -m tests.fuzz --seed 7 --only launch:1234 one input again, with its traceback; the file stays in the folder
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import math
import os
import random
import re
import struct
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from llmcalc.cli.main import main as llmcalc
from llmcalc.sources.presets import model_names, presets_dir
from tests.builders import CASES
from tests.cli.damage import NO_SIZES, within

MAX_SECONDS = 5.0
MAX_MB = 512
"""Most resident memory of the process, over all inputs, beyond what it has when everything is imported."""

LARGEST = 600_000
"""Largest damaged text in bytes."""

ROOT = Path(__file__).parent
LAUNCHES = {
    path.name: path.read_text()
    for folder in ("launches", "launch")
    for path in sorted((ROOT / "data" / folder).rglob("*"))
    if path.is_file()
}
LOCK = json.loads((ROOT / "data" / "llmcalc.lock.json").read_text())
PRESETS = ("llama3-8b", "deepseek-v3", "gemma2-9b", "bart-large", "bert-base", "mixtral-8x7b", "mamba-2.8b", "t5-base")
WEIRD = (
    "", " ", "\0", "\ud800", "\x1b[2J", "\u202e", "\n", "x" * 5000, "../..", "/dev/zero", "~", "{", "[", "%s", "{0}",
    "1e999", "nan", "-inf", "0x10", "1_000", "none", "null", "true", "9" * 5000, "$A", "`x`", "é" * 300, "=1", "--x",
    "-", ".", "[[", "]]", "{}", "a.b.c", "<<", "*a", "&a", "!!int", "|", "#", "\r", "\t",
)  # fmt: skip
VALUES: tuple[Any, ...] = (*NO_SIZES, None, False, 1, 2, 3, 7, 10**6, 2**31 - 1, 2**40, 10**400, 1e-300, -1e308, *WEIRD)


class Input(NamedTuple):
    """The words of a command, and the files that it reads: name → content; a size makes a sparse file."""

    words: tuple[str, ...]
    files: dict[str, bytes]
    stdin: bytes = b""
    size: int = 0


# ---- damage


def places(table: Any) -> list[tuple[Any, Any]]:
    """Every (table or list, key) in a value."""
    found: list[tuple[Any, Any]] = []
    left = [table]
    while left:
        below = left.pop()
        for key, value in list(below.items()) if isinstance(below, dict) else list(enumerate(below)):
            found.append((below, key))
            if isinstance(value, dict | list):
                left.append(value)
    return found


def odd(r: random.Random) -> Any:
    """An odd value, and never the same list or table twice, since they are changed where they are."""
    return copy.deepcopy(r.choice(VALUES))


def anything(r: random.Random, known: list[tuple[Any, Any]]) -> Any:
    """A value that is mostly wrong: an odd one, a part of the file itself, or a large or deep one."""
    match r.randrange(8):
        case 0 if known:
            holder, key = r.choice(known)
            return copy.deepcopy(holder[key])
        case 1:
            value = odd(r)
            return [copy.deepcopy(value) for _ in range(r.choice((1, 3, 70, 2000)))]
        case 2:
            value = odd(r)
            for _ in range(r.choice((2, 39, 41, 200))):
                value = {"x": value} if r.random() < 0.5 else [value]
            return value
        case 3:
            return {str(i): odd(r) for i in range(r.choice((1, 40, 2000)))}
        case 4:
            return r.choice((1, -1)) * r.randrange(1, 10 ** r.randrange(1, 25))
        case _:
            return odd(r)


NUMBERS = (0, 1, 2, 3, 5, 16, 100, 1000, 99_999, 10**6, 2**31 - 1, 2**39, 2**40)


def similar(value: Any, known: list[tuple[Any, Any]], r: random.Random) -> Any:
    """Another value of the same type, which often passes the first checks."""
    if type(value) is bool:
        return not value
    if type(value) is int:
        return r.choice((value + 1, value - 1, 2 * value, value // 2, *NUMBERS))
    if isinstance(value, float):
        return r.choice((-value, value * 1e300, value / 1e300, 0.0, 1.0, float(r.choice(NUMBERS))))
    if isinstance(value, str):
        others = [holder[key] for holder, key in known if isinstance(holder[key], str)]
        return r.choice(
            (*others, value + r.choice(WEIRD), value[:-1], value.replace("8", "9" * r.choice((2, 50, 5000))))
        )
    if isinstance(value, list):
        return copy.deepcopy(r.choice((value[:-1], value[::-1], value * 2, (value * 500)[:5000])))
    if isinstance(value, dict):
        return {key: inner for key, inner in value.items() if r.random() < 0.8}
    return odd(r)


def damaged(table: Any, r: random.Random) -> Any:
    """A copy with one to four changes, half of the time only to similar values."""
    table = copy.deepcopy(table)
    gentle = r.random() < 0.5
    for _ in range(r.choice((1, 1, 1, 2, 2, 4))):
        known = places(table)
        if not known:
            break
        holder, key = r.choice(known)
        match 2 if gentle else r.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[r.choice((*WEIRD, *(str(k) for _, k in known)))] = anything(r, known)
            case 1:
                holder.insert(r.randrange(len(holder) + 1), anything(r, known))
            case 2:
                holder[key] = similar(holder[key], known, r)
            case _:
                holder[key] = anything(r, known)
    return table


def json_of(table: Any) -> bytes:
    """JSON as Python writes it, with NaN, Infinity, lone surrogates and numbers of any length."""
    try:
        return json.dumps(table, default=str).encode()
    except (ValueError, RecursionError):  # too many digits, or too deep
        return b'{"model_type": ' + b"[" * 1200 + b"]" * 1200 + b"}"


def broken(text: bytes, r: random.Random) -> bytes:
    """A text with one to three changes in its words, lines and brackets, half of the time to words and lines of it."""
    gentle = r.random() < 0.5
    for _ in range(r.choice((1, 1, 2, 3))):
        if gentle:
            text = shuffled(text, r)[:LARGEST]
            continue
        at = r.randrange(len(text) + 1)
        length = r.choice((0, 1, 5, 50, 500))
        new = r.choice(WEIRD).encode("utf-8", "surrogatepass")
        match r.randrange(8):
            case 0:
                text = text[:at]
            case 1:
                lines = text.split(b"\n")
                line = r.choice(lines)
                lines[r.randrange(len(lines))] = repeated(line + b"\n", r.choice((2, 30, 3000)))
                text = b"\n".join(lines)
            case 2:
                text = text[:at] + repeated(text[at : at + length], r.choice((2, 100, 4000))) + text[at + length :]
            case 3:
                text = text[:at] + repeated(new, r.choice((1, 2, 1000))) + text[at + length :]
            case 4:
                start = r.randrange(len(text) + 1)
                text = text[:at] + text[start : start + length] + text[at:]
            case 5:
                text = (
                    text[:at]
                    + r.choice((b"[", b"{", b"(", b'"', b"'", b"$((", b"${A:-", b"if ", b"- "))
                    * r.choice((1, 45, 3000))
                    + text[at:]
                )
            case 6:
                numbers = [i for i in range(len(text)) if text[i : i + 1].isdigit()][:2000]
                if numbers:
                    at = r.choice(numbers)
                    text = (
                        text[:at]
                        + str(r.choice((0, -1, 2**31 - 1, 2**62, "9" * 400, "1e999"))).encode()
                        + text[at + 1 :]
                    )
            case _:
                text = text[:at] + bytes(r.randrange(256) for _ in range(r.choice((1, 8)))) + text[at + length :]
        text = text[:LARGEST]
    return text


def shuffled(text: bytes, r: random.Random) -> bytes:
    """A text with one word, number or line replaced by another one of it, removed, or given twice."""
    separator = r.choice((b"\n", b"\n", b" ", b'"'))
    parts = text.split(separator)
    i, j = r.randrange(len(parts)), r.randrange(len(parts))
    match r.randrange(5):
        case 0:
            del parts[i]
        case 1:
            parts.insert(i, parts[j])
        case 2:
            parts[i] = parts[j]
        case 3:
            parts[i], parts[j] = parts[j], parts[i]
        case _:
            digits = [k for k in range(len(parts)) if parts[k].strip(b",").isdigit()]
            if digits:
                parts[r.choice(digits)] = str(r.choice(NUMBERS)).encode()
    return separator.join(parts)


def repeated(text: bytes, times: int) -> bytes:
    return text * min(times, LARGEST // (len(text) + 1))


# ---- inputs: one function per reader


CONFIGS = [json.loads((case / "config.json").read_text()) for case in CASES]
MODELS = {
    name: tomllib.loads((presets_dir() / "models" / f"{name}.toml").read_text())
    for name in PRESETS
    if name in model_names()
}
COUNTS: tuple[tuple[str, ...], ...] = (
    ("params",), ("flops",), ("kv",), ("memory",), ("explain",), ("shape",), ("memory", "--phase", "training"),
    ("memory", "--format", "json"), ("memory", "--phase", "training", "--format", "json"),
    ("flops", "--format", "json"),
    ("time", "--hardware", "h100", "--format", "json"), ("memory", "--engine", "vllm", "--hardware", "h100"),
    ("serve", "--hardware", "h200", "--input", "1000", "--output", "100"),
    ("cost", "--hardware", "h200", "--requests", "1M", "--input", "1000", "--output", "100"),
    ("cost", "--hardware", "h100", "--tokens", "1T", "--devices", "8"), ("memory", "--draft", "gpt2"),
    ("convert",), ("convert", "--to", "hf"), ("params", "--format", "json"), ("params", "--format", "csv"),
    ("params", "--format", "markdown"), ("compare", "gpt2"), ("fit", "--hardware", "h100"),
)  # fmt: skip


MODELOPT = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}


OTHER_FORMS: tuple[dict[str, Any], ...] = (
    {
        "dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024,
        "ffn_dim_multiplier": 1.3, "norm_eps": 1e-05, "rope_theta": 500000.0, "use_scaled_rope": True,
    },
    {
        "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
        "norm_eps": 1e-05, "vocab_size": 32000, "moe": {"num_experts_per_tok": 2, "num_experts": 8},
    },
    {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "bias": False, "vocab_size": 50304},
    {"sequence_len": 1024, "vocab_size": 50304, "n_layer": 12, "n_head": 6, "n_kv_head": 6, "n_embd": 768},
    {
        "model_type": "llama", "quantization": "q4f16_1", "vocab_size": 128256, "context_window_size": 131072,
        "model_config": {
            "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
            "rms_norm_eps": 1e-05, "vocab_size": 128256, "num_key_value_heads": 8, "tensor_parallel_shards": 1,
        },
    },
)  # fmt: skip
"""Configs in the forms of Meta, Mistral, nanoGPT, nanochat and MLC."""


def other_form(r: random.Random) -> Input:
    table = damaged(r.choice(OTHER_FORMS), r)
    command = r.choice(COUNTS)
    return Input((command[0], "params.json", *command[1:]), {"params.json": json_of(table)})


DRAFTS = [entry["config"] for entry in json.loads((ROOT / "data" / "drafts.json").read_text()).values()]


def draft(r: random.Random) -> Input:
    table = damaged(r.choice(DRAFTS), r)
    words = r.choice((("params", "d.json"), ("memory", "llama3-8b", "--draft", "d.json")))
    return Input(words, {"d.json": json_of(table)})


def config(r: random.Random) -> Input:
    table = damaged(r.choice(CONFIGS), r)
    content = broken(json_of(table), r) if r.random() < 0.2 else json_of(table)
    command = r.choice(COUNTS)
    if r.random() < 0.1:
        return Input((command[0], "-", *command[1:]), {}, stdin=content)
    files = {"config.json": content}
    if r.random() < 0.1:  # how ModelOpt stores the weights
        files["hf_quant_config.json"] = broken(json_of(damaged(MODELOPT, r)), r)
    return Input((command[0], "config.json", *command[1:]), files)


def description(r: random.Random) -> Input:
    table = r.choice(list(MODELS.values()))
    if r.random() < 0.5:
        content = broken(toml_bytes(table), r)
    else:
        content = toml_bytes({**table, "model": damaged(table["model"], r)})
    command = r.choice(COUNTS)
    return Input((command[0], "model.toml", *command[1:]), {"model.toml": content})


def toml_bytes(table: Any) -> bytes:
    """TOML; of a value that is no table, its JSON, which is none."""
    try:
        lines = [f"{json.dumps(key)} = {inline(value)}\n" for key, value in table.items()]
        return "".join(lines).encode("utf-8", "surrogatepass")
    except (AttributeError, ValueError, RecursionError):
        return json_of(table)


def inline(value: Any) -> str:
    """A value as TOML writes it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, float):
        return str(value)
    return '"none"' if value is None else json.dumps(value, ensure_ascii=False, default=str)


def override(r: random.Random) -> Input:
    name = r.choice(list(MODELS))
    known = places(MODELS[name]["model"])
    if r.random() < 0.5:
        holder, key = r.choice(known)
        path, value = str(key), similar(holder[key], known, r)
    else:
        words = (*(str(key) for _, key in known), *WEIRD)
        path, value = ".".join(r.choice(words) for _ in range(r.choice((1, 1, 2)))), anything(r, known)
    text = value if isinstance(value, str) else json_of(value).decode()
    word = f"{path}{r.choice('==== ')}{text}".replace("\0", "")
    return Input((r.choice(COUNTS)[0], name, "--set", word[:100_000]), {})


def target(r: random.Random) -> Input:
    """A TARGET that is no file: a name, a hub id, an address."""
    start = r.choice(
        ("gpt2", "org/name", "https://huggingface.co/org/name/blob/main/config.json", "llama3-8b?hidden_size=64")
    )
    word = broken(start.encode(), r).decode("utf-8", "surrogateescape").replace("\0", "")[:5000]
    return Input((r.choice(COUNTS)[0], word), {})


SCRIPT = LAUNCHES["gpt3_7b.sh"]


def launch(r: random.Random) -> Input:
    name = r.choice(list(LAUNCHES))
    content = LAUNCHES[name].encode()
    if r.random() < 0.5 and name.endswith(".json"):
        content = json_of(damaged(json.loads(content), r))
    elif r.random() < 0.5 and name.endswith(".toml"):
        content = toml_bytes(damaged(tomllib.loads(content.decode()), r))
    elif r.random() < 0.5 and name.endswith((".yaml", ".yml")):
        content = b"\n---\n".join(yaml_bytes(damaged(document, r)) for document in yaml_documents(content))
    else:
        content = broken(content, r)
    target_ = ("gpt2",) if name.startswith(("trainer", "accelerate", "deepspeed", "unsloth")) else ()
    more = {"deepspeed_zero3_auto.json": json_of(damaged(json.loads(LAUNCHES["deepspeed_zero3_auto.json"]), r))}
    seconds = ("--world-size", "8") if r.random() < 0.7 else ()
    unknown = ("--allow-unknown",) if r.random() < 0.7 else ()
    return Input(("memory", *target_, "--launch", name, *seconds, *unknown), {**more, name: content})


def yaml_documents(text: bytes) -> list[Any]:
    import yaml

    return list(yaml.safe_load_all(text))


def yaml_bytes(table: Any) -> bytes:
    """YAML; a JSON text is YAML too, and what Python cannot write as YAML is written so."""
    import yaml

    try:
        return str(yaml.safe_dump(table, allow_unicode=True)).encode("utf-8", "surrogatepass")
    except Exception:
        return json_of(table)


def budget(r: random.Random) -> Input:
    table = {
        "model": [
            {
                "target": "gpt2",
                "params": "<= 8.1B",
                "kv_per_token": {"max": "128 KiB", "dtype": "fp8"},
                "fits": ["h100"],
            },
            {"target": "llama3-8b", "memory": {"max": "24 GB", "seq": 4096}, "flops_per_token": ">= 20 GFLOPs"},
        ]
    }
    content = toml_bytes(damaged(table, r))
    return Input(("budget", "budget.toml"), {"budget.toml": broken(content, r) if r.random() < 0.5 else content})


def hardware(r: random.Random) -> Input:
    path = presets_dir() / "hardware" / f"{r.choice(('h100-sxm', 'm4-max', 'rtx-4090'))}.toml"
    text = path.read_text()
    content = broken(text.encode(), r) if r.random() < 0.5 else toml_bytes(damaged(tomllib.loads(text), r))
    words = r.choice(
        (("hardware", "my.toml"), ("memory", "gpt2", "--hardware", "my.toml"), ("fit", "gpt2", "--hardware", "my.toml"))
    )
    return Input(words, {"my.toml": content})


SIZES = (0, 1, 2, 7, 8, 64, 255, 2**16, 2**20, 2**30, 2**31, 2**32 - 1, 2**40, 2**48, 2**62, 2**63, 2**64 - 1)


def gguf(r: random.Random) -> Input:
    def size(usual: int) -> int:
        return r.choice(SIZES) if r.random() < 0.03 else usual

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", size(len(value))) + value

    def value(kind: int, deep: int = 0) -> bytes:
        if kind == 8:
            return text(r.choice((b"llama", b"", b"\xff\xfe", b"x" * 300)))
        if kind == 9:
            inner, count = r.choice((0, 4, 6, 8, 9 if deep < 6 else 0, 13)), r.choice((0, 1, 5, 70))
            items = b"".join(value(inner, deep + 1) for _ in range(count if deep < 2 else 1))
            return struct.pack("<IQ", inner, size(count)) + items
        return r.randbytes({0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}.get(kind, 4))

    pairs, tensors = r.randrange(6), r.randrange(6)
    content = b"GGUF" + struct.pack("<IQQ", r.choice((3, 3, 3, 2, 1, 2**24)), size(tensors), size(pairs))
    for i in range(pairs):
        kind = r.choice((*range(13), 99))
        content += text(b"key.%d" % i) + struct.pack("<I", kind) + value(kind)
    for i in range(tensors):
        name = r.choice((b"blk.%d.attn_q.weight" % i, b"a", b"\0", b"blk." + b"9" * 5000 + b".x", b"\xed\xa0\x80"))
        axes = r.choice((0, 1, 2, 2, 2, 3, 9))
        shape = b"".join(struct.pack("<Q", size(r.choice((1, 32, 256)))) for _ in range(axes))
        kind = r.choice((0, 1, 2, 8, 12, 30, 77))
        content += text(name) + struct.pack("<I", axes) + shape + struct.pack("<IQ", kind, size(2**24 * i))
    if r.random() < 0.3:
        content = broken(content, r)
    sparse = r.choice((0, 0, len(content) + 10**6, 2**34))
    words = r.choice((("params", "m.gguf"), ("check", "m.gguf", "gpt2"), ("params", "m.gguf", "--format", "json")))
    return Input(words, {"m.gguf": content}, size=sparse)


def stored(r: random.Random) -> tuple[dict[str, Any], int]:
    """The tensors of a header, and the bytes of their data."""
    table: dict[str, Any] = {}
    at = 0
    for i in range(r.randrange(1, 8)):
        shape = [r.choice((1, 2, 64, 768)) for _ in range(r.choice((0, 1, 2, 3)))]
        nbytes = 2
        for axis in shape:
            nbytes *= axis
        odd_name = r.choice((f"h.{'9' * 5000}.x", f"wte{i}", r.choice(WEIRD)))
        name = odd_name if r.random() < 0.2 else f"h.{i}.attn.{r.randrange(10**6)}.weight"
        table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    return table, at


def header(table: dict[str, Any], data: int, r: random.Random) -> bytes:
    """A file's bytes, damaged or not; its data are zeros."""
    whole = {"__metadata__": {"format": "pt"}, **table} if r.random() < 0.5 else table
    text = json_of(damaged(whole, r) if r.random() < 0.5 else whole)
    text = broken(text, r) if r.random() < 0.2 else text
    length = r.choice(SIZES) if r.random() < 0.1 else len(text)
    return struct.pack("<Q", length) + text + bytes(min(data, 10**5))


def safetensors(r: random.Random) -> Input:
    words = r.choice((("params", "m.safetensors"), ("check", "m.safetensors", "gpt2")))
    return Input(words, {"m.safetensors": header(*stored(r), r)}, size=r.choice((0, 2**33, 2**33)))


def index(r: random.Random) -> Input:
    files, weight_map = {}, {}
    for i in range(3):
        table, data = stored(r)
        weight_map |= dict.fromkeys(table, f"{i}.safetensors")
        files[f"{i}.safetensors"] = header(table, data, r) if r.random() < 0.3 else header_of(table)
    text = {"metadata": {"total_size": 3}, "weight_map": weight_map}
    content = json_of(damaged(text, r) if r.random() < 0.6 else text)
    name = "model.safetensors.index.json"
    words = r.choice((("params", name), ("check", name, "gpt2")))
    return Input(words, {**files, name: broken(content, r) if r.random() < 0.2 else content}, size=2**33)


def lock(r: random.Random) -> Input:
    """A lock file, whose targets are read as well: presets, and configs beside it."""
    content = json_of(damaged(LOCK, r))
    files = {"llmcalc.lock.json": broken(content, r) if r.random() < 0.3 else content}
    return Input(("lock", "--check", "llmcalc.lock.json"), {**files, "config.json": json_of(r.choice(CONFIGS))})


def header_of(table: dict[str, Any]) -> bytes:
    text = json_of(table)
    return struct.pack("<Q", len(text)) + text


def difference(r: random.Random) -> Input:
    one = r.choice(CONFIGS)
    files = {"a.json": json_of(one), "b.json": json_of(damaged(one, r))}
    return Input(("diff", "a.json", "b.json", "--format", r.choice(("table", "json", "markdown", "csv"))), files)


LOGS = {path.name: path.read_bytes() for path in sorted((ROOT / "data" / "logs").iterdir())}


def log(r: random.Random) -> Input:
    name = r.choice(list(LOGS))
    content = broken(LOGS[name], r)
    hardware_ = ("--hardware", "h100") if r.random() < 0.5 else ()
    words: tuple[str, ...] = ("explain-log", name, *(("llama3-8b",) if r.random() < 0.3 else ()), *hardware_)
    if r.random() < 0.3:
        words = ("memory", "llama3.1-8b", "--engine", "vllm==0.19", "--hardware", "h100", "--receipt", name)
    return Input(words, {name: content})


def with_damaged_cells(rows: str, cells: Sequence[Any], r: random.Random) -> bytes:
    """A file of rows, in which a few cells are replaced by others, and some bytes perhaps."""
    for _ in range(r.randrange(4)):
        cell = r.choice(re.findall(r"[^,\n]+", rows) or ["a"])
        rows = rows.replace(cell, str(r.choice(cells)), r.randrange(1, 3))
    content = rows.encode("utf-8", "surrogatepass")
    return broken(content, r) if r.random() < 0.4 else content


def measured_runs(r: random.Random) -> Input:
    rows = "phase,users,seq,tp,seconds\ndecode,1,64,1,9ms\ndecode,8,64,,11ms\nprefill,1,64,1,0.2s\n"
    cells = (*WEIRD, "seconds", "9" * 5000, "-1", "nan", '"', ",", "")
    content = with_damaged_cells(rows, cells, r)
    words = ("time", "gpt2", "--hardware", "h100", "--calibrate", "rows.csv")
    return Input(words, {"rows.csv": content}, size=r.choice((0, 0, 2**34)))


def trace(r: random.Random) -> Input:
    rows = r.choice(("arrival,input,output\n0,64,8\n0.5s,32,16\n", '{"arrival": 0, "input": 64, "output": 8}\n' * 2))
    cells = (*WEIRD, "arrival", "9" * 5000, "-1", "nan", "1e400", '"', ",", "", "[" * 3000, "null")
    content = with_damaged_cells(rows, cells, r)
    words = ("serve", "gpt2", "--hardware", "h100", "--tp", "1", "--trace", "trace.csv")
    return Input(words, {"trace.csv": content}, size=r.choice((0, 0, 2**34)))


READERS: dict[str, Callable[[random.Random], Input]] = {
    "config": config,
    "other form": other_form,
    "draft": draft,
    "description": description,
    "override": override,
    "target": target,
    "launch": launch,
    "budget": budget,
    "hardware": hardware,
    "gguf": gguf,
    "safetensors": safetensors,
    "index": index,
    "diff": difference,
    "log": log,
    "lock": lock,
    "measured runs": measured_runs,
    "trace": trace,
}


# ---- runs


def make(reader: str, number: int, seed: int) -> Input:
    return READERS[reader](random.Random(f"{seed}:{reader}:{number}"))


def write(case: Input, folder: Path) -> None:
    """Writes the files of an input into an empty folder."""
    for old in folder.iterdir():
        old.unlink()
    for name, content in case.files.items():
        (folder / name).write_bytes(content)
        if case.size and not name.endswith(".json"):
            os.truncate(folder / name, case.size)


def complaint(case: Input) -> str:
    """What is wrong with the answer to an input; empty if nothing is."""
    out, errors = io.StringIO(), io.StringIO()
    code: Any = None
    stdin = sys.stdin
    sys.argv = ["llmcalc", *case.words]
    sys.stdin = io.TextIOWrapper(io.BytesIO(case.stdin), encoding="utf-8")
    try:
        with within(MAX_SECONDS), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            llmcalc()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        return traceback.format_exc()
    finally:
        sys.stdin = stdin
    text = errors.getvalue()
    if code not in (0, 1, 2):
        return f"exit code {code}: {text[-500:]}"
    lines = text.splitlines()
    if code == 2 and (out.getvalue() or not lines or not lines[-1].startswith("error: ") or len(lines[-1]) < 12):
        return f"no clear error: {text[-500:]!r}, {out.getvalue()[:200]!r}"
    if "Traceback" in text:
        return f"Traceback in an answer: {text[-500:]!r}"
    if obeyed := OBEYED.search(out.getvalue() + text):
        return f"a character that a terminal obeys: {obeyed[0]!r}"
    return "" if code == 2 else wrong_numbers(out.getvalue(), b"".join((*case.files.values(), case.stdin)))


OBEYED = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
"""Control characters and changes of direction; none of them is printed, whatever a file has."""

SIGNED = ("headroom", "left", "difference", "change", "residual", "correction")
"""Parts of the JSON keys that may be negative."""


def wrong_numbers(answer: str, read: bytes = b"") -> str:
    """Names a number of an answer that is not finite, or in JSON negative; empty if none is.

    read: what the command read; a name that stands there in quotes, such as "nan" for a tensor, is no number.
    """
    if not answer.startswith("{"):
        words = [word for word in NOT_FINITE.findall(answer) if f'"{word}"'.encode() not in read]
        return f"{words[0]} in an answer" if words else ""
    table = json.loads(answer)
    for holder, key in places(table):
        value = holder[key]
        if type(value) in (int, float) and not 0 <= value < math.inf and not any(s in str(key) for s in SIGNED):
            return f"{key}: {value} in an answer"
    return ""


NOT_FINITE = re.compile(r"(?<![\w.'-])(?:nan|-?inf)(?![\w.'-])")


def resident_mb(line: Literal["VmRSS", "VmHWM"]) -> float:
    """Resident memory of this process, in MB. line: which, of Linux: now (VmRSS), or at most so far (VmHWM)."""
    status = Path("/proc/self/status")
    if status.exists():  # unlike ru_maxrss, it does not count the process that started this one
        return int(status.read_text().partition(f"{line}:")[2].split()[0]) * 1024 / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def run(arguments: argparse.Namespace, folder: Path) -> int:
    os.chdir(folder)
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched, whatever a TARGET has become
    if arguments.only:
        reader, _, number = arguments.only.partition(":")
        case = make(reader, int(number), arguments.seed)
        write(case, folder)
        print(case.words, folder)
        found = complaint(case)
        print(found or "nothing is wrong")
        return 1 if found else 0
    readers = arguments.readers or list(READERS)
    for reader in readers:  # imports what the commands need, so that memory after it is that of the inputs
        case = make(reader, 0, 0)
        write(case, folder)
        complaint(case)
    begun, wrong, number, highest = time.monotonic(), 0, 0, resident_mb("VmHWM")
    while number < arguments.inputs if arguments.inputs else time.monotonic() - begun < arguments.seconds:
        reader = readers[number % len(readers)]
        case = make(reader, number, arguments.seed)
        write(case, folder)
        before, took = resident_mb("VmRSS"), time.process_time()
        found = complaint(case)
        took = time.process_time() - took
        peak = resident_mb("VmHWM")
        if not found and peak - before > MAX_MB and peak > highest:
            found = f"{peak - before:.0f} MB of memory"
        highest = max(highest, peak)
        if found:
            wrong += 1
            print(f"--seed {arguments.seed} --only {reader}:{number}: {found.strip()}\n", flush=True)
        elif arguments.slow and took > 1:
            print(
                f"--seed {arguments.seed} --only {reader}:{number}: {took:.1f} s: {' '.join(case.words)[:100]}",
                flush=True,
            )
        number += 1
    print(f"{number} inputs, {wrong} wrong, {highest:.0f} MB, {time.process_time():.0f} s of CPU time")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--inputs", type=int, default=0, help="how many inputs, instead of how long")
    parser.add_argument("--seed", type=int, default=0, help="which inputs (0)")
    parser.add_argument("--only", default="", help="one input, READER:NUMBER")
    parser.add_argument("--readers", nargs="*", choices=list(READERS), help="some readers (all)")
    parser.add_argument("--slow", action="store_true", help="name inputs that take more than a second")
    arguments = parser.parse_args()
    if arguments.only:
        return run(arguments, Path(tempfile.mkdtemp(prefix="llmcalc-fuzz-")))
    with tempfile.TemporaryDirectory() as folder:
        status = run(arguments, Path(folder))
        os.chdir("/")
        return status


if __name__ == "__main__":
    sys.exit(main())
