"""Files made to exhaust memory or time: each is answered or refused in one line within 5 s and 512 MB.

The seconds are of CPU time, with room for slower machines.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bounds import Bounded, bounded

MAX_SECONDS = 20
"""Most CPU time of a command on a slow, busy machine; on a quiet one it is under 5 s."""


def refused(result: Bounded, *words: str) -> None:
    """Checks for one line on stderr with each of the words, exit code 2, and nothing on stdout."""
    assert (result.returncode, result.stdout) == (2, ""), result
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr, result.stderr
    assert result.seconds < MAX_SECONDS


# ---- GGUF: 4 kB on disk that say 12 GiB and more

STRING, ARRAY = 8, 9


def text(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def gguf_start(tensors: int, pairs: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs)


HUGE = 12 * 2**30
SPARSE: dict[str, tuple[bytes, str]] = {
    "an array of 2^30 texts": (
        gguf_start(0, 1) + text(b"words") + struct.pack("<IIQ", ARRAY, STRING, 2**30),
        "words: 1,073,741,824 texts and lists in arrays; expected at most 2,000,000",
    ),
    "an array of 2^30 arrays": (
        gguf_start(0, 1) + text(b"lists") + struct.pack("<IIQ", ARRAY, ARRAY, 2**30),
        "lists: 1,073,741,824 texts and lists",
    ),
    "arrays in small arrays": (
        gguf_start(0, 1)
        + text(b"lists")
        + struct.pack("<IIQ", ARRAY, ARRAY, 60)
        + struct.pack("<IQ", ARRAY, 60) * 3
        + struct.pack("<IQ", STRING, 2**29),
        "lists: 536,871,",
    ),
    "a text of 12 GiB": (gguf_start(0, 1) + text(b"k") + struct.pack("<IQ", STRING, HUGE), "k: 12,884,901,888 bytes"),
    "a key of 12 GiB": (gguf_start(0, 1) + struct.pack("<Q", HUGE), "metadata key: 12,884,901,888 bytes"),
    "a tensor's name of 12 GiB": (gguf_start(1, 0) + struct.pack("<Q", HUGE), "tensor name: 12,884,901,888 bytes"),
    "2^40 tensors": (gguf_start(2**40, 0), "1,099,511,627,776 tensors"),
    "220,000 tensors of nothing": (gguf_start(220_000, 0), "a tensor has no name"),
    "10,001 entries of nothing": (gguf_start(0, 10_001), "0 tensors and 10,001 metadata entries; expected at most"),
    "10,000 entries of nothing": (gguf_start(0, 10_000), "two metadata entries are called"),
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_gguf(name: str, tmp_path: Path) -> None:
    content, message = SPARSE[name]
    path = tmp_path / "sparse.gguf"
    path.write_bytes(content)
    os.truncate(path, HUGE + 2**20)
    refused(bounded("params", str(path)), message)


def test_a_gguf_with_a_large_vocabulary_is_answered(tmp_path: Path) -> None:
    """262,144 tokens, 514,906 merges, 91,000 tensors."""
    words = [text(b"token %d" % i) for i in range(262_144 + 514_906)]
    tensors = [
        text(b"blk.%d.ffn_up_exps.weight" % i) + struct.pack("<IQQIQ", 2, 32, 2, 8, 96 * i) for i in range(91_000)
    ]
    path = tmp_path / "large.gguf"
    pairs = text(b"words") + struct.pack("<IIQ", ARRAY, STRING, len(words)) + b"".join(words)
    path.write_bytes(gguf_start(len(tensors), 1) + pairs + b"".join(tensors))
    result = bounded("params", str(path), "--format", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["params"]["total"] == 91_000 * 64
    assert result.seconds < MAX_SECONDS


# ---- safetensors


def safetensors(path: Path, header: bytes, data: int = 0) -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + data)
    return path


def entry(name: str, at: int, size: int = 2) -> str:
    return f'"{name}":{{"dtype":"BF16","shape":[{size // 2}],"data_offsets":[{at},{at + size}]}}'


def header_of(count: int, prefix: str = "model.layers.1.mlp.experts.") -> bytes:
    return ("{" + ",".join(entry(f"{prefix}{i}", 2 * i) for i in range(count)) + "}").encode()


def test_too_many_tensors(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", b"{" + b" " * 64_000_000 + b"}")
    refused(bounded("params", str(path)), "expected at most 64,000,000 bytes in all headers")
    path = safetensors(tmp_path / "m.safetensors", header_of(220_001, ""), 440_002)
    refused(bounded("params", str(path)), "too many tensors; expected at most 220,000")


@pytest.mark.parametrize("command", ["params", pytest.param("check", marks=pytest.mark.exhaustive)])
def test_the_largest_header_is_answered(command: str, tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", header_of(220_000), 440_000)
    result = bounded(command, str(path), *(["llama3-8b"] if command == "check" else []))
    assert result.returncode == (1 if command == "check" else 0), result.stderr
    assert result.seconds < MAX_SECONDS


def test_many_tensors_that_are_no_layers_of_the_model_are_answered(tmp_path: Path) -> None:
    """Each has the shape of biases that the checkpoint lacks, which once were compared with every one of them."""
    header = ",".join(entry(f"h.0.x{i}.scale", 1536 * i, 1536) for i in range(50_000))
    path = safetensors(tmp_path / "m.safetensors", f"{{{header}}}".encode(), 50_000 * 1536)
    result = bounded("check", str(path), "gpt2", "--format", "json")
    assert result.returncode == 1, result.stderr
    # 768 numbers in layer 0: weights and biases of two norms (4), biases of q, k, v and o (4) and of the MLP's output
    assert json.loads(result.stdout)["matched"] == 9
    assert result.seconds < MAX_SECONDS


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (lambda: '{"a":[' + "[]," * 20_000_000 + "[]]}", "__metadata__: 60,000,010 bytes are too many"),
        (lambda: '{"a":[' + "[]," * 5_000_000 + "[]]}", "__metadata__: expected a table of texts"),
        (lambda: "{" + ",".join(f'"{i}":""' for i in range(1_000_000)) + "}", "__metadata__: too many entries"),
        (lambda: '{"a":{"b":"c"}}', "not valid JSON, or not a table of tensors"),
        (lambda: '{"a":1}', "__metadata__: expected a table of texts"),
    ],
)
def test_metadata_of_anything(metadata: Callable[[], str], message: str, tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", f'{{"__metadata__":{metadata()},{entry("a", 0)}}}'.encode(), 2)
    refused(bounded("params", str(path)), message)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (f"{{{entry('a', 0)},{entry('a', 2)}}}", "two tensors are called a"),
        (f"{{{entry('a', 0, 4)},{entry('b', 2)}}}", "b: its data begin at byte 2, where those of a do not end"),
        (f"{{{entry('a', 0, 8)},{entry('b', 2)},{entry('c', 4)}}}", "where those of a do not end before byte 8"),
        (f"{{{entry('a', 0).replace('[1]', '[2]')}}}", "a: 2 bytes for BF16 of shape [2]"),
        (f"{{{entry('a', 0)},}}", "not valid JSON"),
        (f"{{{entry('a', 0)}", "not valid JSON"),
        (f"{{{entry('a', 0)}}}}}", "not valid JSON"),
        ('{"\\ud800":' + entry("a", 0)[4:] + "}", "the name of a tensor is not valid JSON"),
        ("{" + entry("a", 0).replace("[1]", "[" + "[" * 5000 + "]" * 5000 + "]") + "}", "a: expected a known dtype"),
        ('{"a":[1]}', "a: expected a known dtype"),
    ],
)
def test_headers_that_no_library_writes(header: str, message: str, tmp_path: Path) -> None:
    refused(bounded("params", str(safetensors(tmp_path / "m.safetensors", header.encode(), 100))), message)


def test_an_escaped_name_and_empty_tensors(tmp_path: Path) -> None:
    header = '{ "a\\"}\\u00e9" : ' + entry("a", 0)[4:] + ', "e": {"dtype":"F32","shape":[0],"data_offsets":[0,0]} }   '
    result = bounded("params", str(safetensors(tmp_path / "m.safetensors", header.encode(), 2)), "--format", "json")
    assert json.loads(result.stdout)["params"]["total"] == 1


def index(path: Path, pairs: str) -> Path:
    path.write_text(f'{{"metadata":{{"total_size":1}},"weight_map":{{{pairs}}}}}')
    return path


INDEXES: dict[str, tuple[Callable[[], str], str]] = {
    "9 M files": (lambda: '"0":"0",' * 9_000_000 + '"0":"0"', "too large"),
    "222,000 files": (lambda: ",".join(f'"{i}":"{i}"' for i in range(222_000)), "expected at most 221,000"),
    "200,000 files": (lambda: ",".join(f'"{i}":"{i}"' for i in range(200_000)), "expected at most 5,000"),
    "a tensor twice": (lambda: '"a":"x.safetensors","a":"y.safetensors"', "a is listed twice"),
    "lists": (lambda: '"a":[' + "[]," * 10_000_000 + "[]]", "more than 221,000 values and fields"),
    "a string that never ends": (lambda: '"' + '\\"' * 15_000_000 + "," * 300_000, "not valid JSON"),
    "deep lists": (lambda: '"a":' + "[" * 100_000 + "]" * 100_000, "not valid JSON"),
    "a NUL": (lambda: '"a":"x\\u0000.safetensors"', "has a character that no path can have"),
    "a lone surrogate": (lambda: '"a":"x\\ud800.safetensors"', "has a character that no path can have"),
    "a folder": (lambda: '"a":""', "is a folder"),
    "the folder above": (lambda: '"a":".."', "is a folder"),
    "another folder": (lambda: '"a":"/etc/passwd"', "beside this one"),
    "a number": (lambda: '"a":1e999', "beside this one"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_of_anything(name: str, tmp_path: Path) -> None:
    pairs, message = INDEXES[name]
    refused(bounded("params", str(index(tmp_path / "model.safetensors.index.json", pairs()))), message)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for shard, name in (("x", "a"), ("y", "b")):
        safetensors(tmp_path / f"{shard}.safetensors", f"{{{entry(name, 0)},{entry('c', 2)}}}".encode(), 4)
    path = index(tmp_path / "model.safetensors.index.json", '"a":"x.safetensors","b":"y.safetensors"')
    refused(bounded("params", str(path)), "y.safetensors: c is in another file too")


def test_shards_that_are_one_file(tmp_path: Path) -> None:
    """5,000 links to one header of 64 MB: the bound is for all headers together."""
    safetensors(tmp_path / "0.safetensors", b"{" + b" " * 30_000_000 + b"}")
    for i in range(1, 5_000):
        (tmp_path / f"{i}.safetensors").symlink_to("0.safetensors")
    pairs = ",".join(f'"{i}":"{i}.safetensors"' for i in range(5_000))
    path = index(tmp_path / "model.safetensors.index.json", pairs)
    refused(bounded("params", str(path)), "2.safetensors: header length 30,000,002; expected at most 64,000,000")


def test_a_checkpoint_as_large_as_deepseek_v3(tmp_path: Path) -> None:
    """91,000 tensors in 163 files, behind an index."""
    pairs = []
    for shard in range(163):
        names = [f"model.layers.{shard}.mlp.experts.{i}.gate_proj.weight_scale_inv" for i in range(560)]
        file = tmp_path / f"model-{shard:05}-of-000163.safetensors"
        safetensors(file, ("{" + ",".join(entry(name, 2 * i) for i, name in enumerate(names)) + "}").encode(), 1120)
        pairs += [f'"{name}":"{file.name}"' for name in names]
    path = index(tmp_path / "model.safetensors.index.json", ",".join(pairs))
    result = bounded("params", str(path), "--format", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["params"]["total"] == 163 * 560
    assert result.seconds < MAX_SECONDS
