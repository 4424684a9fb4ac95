"""Contract: a new part needs one file and one line.

A toy attention in a copy of the package has counts, a verified reference, heads in `compare`, what-ifs in `kv` and a
study of shapes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.contracts.copies import TOYS, command, copy_to, insert

LINE = '        "tempered": "mixers.tempered:TemperedAttention",\n'
DESCRIPTION = """

title = "Toy"
developer = "nobody"
released = "2026-01-01"
dtype = "bfloat16"

[model]
vocab_size = 1000
hidden_size = 64
tie_word_embeddings = false

[model.decoder]
num_hidden_layers = 4
final_norm = { type = "rmsnorm" }
variants = { full = { attention = { sliding_window = "none" } } }
pattern = ["block", "full"]

[model.decoder.block]
norm = { type = "rmsnorm" }
norm_placement = "pre"
attention = { type = "tempered", num_attention_heads = 16, num_key_value_heads = 4, head_dim = 4, sliding_window = 40 }
feed_forward = { intermediate_size = 160, hidden_act = "silu", gated = true }
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the toy: its file, and its line in the table of mixers."""
    folder = copy_to(tmp_path_factory.mktemp("copy"))
    insert(folder / "llmcalc" / "components" / "choices.py", '        "attention": "', LINE)
    shutil.copy(TOYS / "tempered.py", folder / "llmcalc" / "components" / "mixers" / "tempered.py")
    (folder / "toy.toml").write_text(DESCRIPTION)
    return folder


def test_it_is_counted_by_hand(copy: Path) -> None:
    """A layer: q and o 2·64·64, k and v 2·64·16, 16 temperatures; three matrices of 64·160; two norms of 64."""
    layer = 2 * 64 * 64 + 2 * 64 * 16 + 16 + 3 * 64 * 160 + 2 * 64
    assert command(copy, "params", "toy.toml")["params"]["total"] == 2 * 1000 * 64 + 4 * layer + 64


def test_it_is_verified_past_its_window(copy: Path) -> None:
    document = command(copy, "verify", "toy.toml")
    assert document["ok"]
    assert document["seq"] > 40
    assert {check["quantity"] for check in document["checks"]} >= {"parameters", "forward_flops", "cache_bytes"}


def test_compare_shows_its_heads(copy: Path) -> None:
    found = command(copy, "compare", "toy.toml", "gpt2")[0]["compare"]
    assert (found["num_attention_heads"], found["num_key_value_heads"], found["head_dim"]) == (16, 4, 4)


def test_kv_asks_what_it_would_be_otherwise(copy: Path) -> None:
    """As MHA four times the cache, as MQA a quarter of it, without windows 100 tokens in place of 40 in two layers."""
    found = command(copy, "kv", "toy.toml", "--seq", "100")["cache"]
    assert found["bytes"] == (2 * 40 + 2 * 100) * 2 * 4 * 4 * 2
    ratios = {name: one["ratio"] for name, one in found["what_if"].items()}
    assert ratios == {"mha": 4, "gqa_8": 2, "mqa": 0.25, "no_windows": pytest.approx(400 / 280)}


def test_shape_studies_it(copy: Path) -> None:
    shapes = command(copy, "shape", "toy.toml", "--params", "30000000")["shapes"]
    assert len({one["hidden_size"] for one in shapes}) > 1


def test_explain_gives_its_formula(copy: Path) -> None:
    formulas = command(copy, "explain", "toy.toml", "self_attn")["formulas"]
    assert {"2·h·a·d + 2·h·k·d + a"} <= {one["symbolic"] for one in formulas if one["quantity"] == "params"}
