"""The checks themselves: their comparisons, that they agree, and that they detect errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch

from llmcalc import ops
from llmcalc.components import norm
from llmcalc.components.mixers import attention
from llmcalc.components.networks import feed_forward, moe
from llmcalc.sources.target import load
from llmcalc.witnesses.checks import Check
from llmcalc.witnesses.difference_explanation import list_named_sizes
from llmcalc.witnesses.module_measurements import count_flops, parameter_counts_by_path
from llmcalc.witnesses.published import verify_published
from llmcalc.witnesses.reference import build_on_device, verify_reference


@pytest.mark.parametrize("name", ["gemma2-9b", "deepseek-v3", "t5-base", "gpt-oss-20b"])
def test_running_one_layer_of_a_kind_measures_what_running_all_does(name: str) -> None:
    spec = load(name, ("num_hidden_layers=6",) if name != "t5-base" else ()).model
    short, long = (verify_reference(spec, name, every_layer=every) for every in (False, True))
    assert short.info["layers_run"] < long.info["layers_run"]
    assert [c.data() for c in short.checks] == [c.data() for c in long.checks]
    assert long.ok


@pytest.mark.parametrize("target", ["gpt2", "bert-base", "deepseek-v3", "gpt-oss-20b"])
def test_it_runs_on_a_cpu(target: str) -> None:
    small = ["hidden_size=64", "vocab_size=128"]
    small += {
        "gpt2": ["num_hidden_layers=2", "num_attention_heads=4", "intermediate_size=128"],
        "bert-base": ["num_hidden_layers=2", "num_attention_heads=4", "intermediate_size=128"],
        "deepseek-v3": [
            "num_hidden_layers=4",
            "attention.num_attention_heads=2",
            "block.feed_forward.intermediate_size=64",
            "num_experts=16",
            "variants.moe.feed_forward.expert.intermediate_size=8",
        ],
        "gpt-oss-20b": ["num_hidden_layers=2", "num_experts=8", "expert.intermediate_size=32"],
    }[target]
    verdict = verify_reference(load(target, tuple(small)).model, device="cpu", batch=2, seq=20)
    assert verdict.ok, verdict.failures[:5]


# --- every wrong formula and every wrong reference is detected, at its node -------------------------------------------


def _wrong_formula(monkeypatch: pytest.MonkeyPatch, cls: type, method: str, change: Callable[[Any, Any], Any]) -> None:
    right = getattr(cls, method)
    monkeypatch.setattr(cls, method, lambda self, *args: change(self, right(self, *args)))


WRONG_FORMULAS = [
    pytest.param(
        ops.Linear, "params", lambda op, n: n + op.n_out, "parameters", "o_proj", id="a bias that is not there"
    ),
    pytest.param(ops.Norm, "params", lambda op, n: 2 * n, "parameters", "norm", id="a norm with a bias too many"),
    pytest.param(ops.Embedding, "params", lambda op, n: n - op.dim, "parameters", "embed_tokens", id="one row short"),
    pytest.param(
        ops.AttentionCore, "forward_flops", lambda op, n: n // 2, "forward_flops", "core", id="causal counted as half"
    ),
    pytest.param(
        ops.AttentionCore,
        "backward_flops",
        lambda op, n: n * 5 // 4,
        "train_flops",
        "core",
        id="flash backward for eager",
    ),
    pytest.param(
        ops.Linear, "forward_flops", lambda op, n: n // 2, "forward_flops", "q_proj", id="multiply-adds for FLOPs"
    ),
    pytest.param(
        ops.KVCache, "cache_bits", lambda op, n: n * 4, "cache_bytes", "cache", id="all heads cached under GQA"
    ),
    pytest.param(
        ops.ExpertLinear,
        "params",
        lambda op, n: n // op.num_experts * op.top_k,
        "parameters",
        "experts.up_proj",
        id="active for total",
    ),
    pytest.param(
        ops.ExpertLinear,
        "forward_flops",
        lambda op, n: n * op.num_experts // op.top_k,
        "forward_flops",
        "experts.down_proj",
        id="every expert run",
    ),
]


@pytest.mark.parametrize(("cls", "method", "change", "quantity", "node"), WRONG_FORMULAS)
def test_a_wrong_formula_is_found(
    monkeypatch: pytest.MonkeyPatch, cls: type, method: str, change: Any, quantity: str, node: str
) -> None:
    spec = load("mixtral-8x7b", ("num_hidden_layers=2",)).model
    assert verify_reference(spec).ok
    _wrong_formula(monkeypatch, cls, method, change)
    failures = verify_reference(spec).failures
    assert any(c.quantity == quantity and c.node.endswith(node) for c in failures), failures


def _more(cls: Any, name: str, module: Callable[[], torch.nn.Module]) -> type:
    class More(cls):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            setattr(self, name, module())

    More.__name__ = cls.__name__
    return More


def _with_top_k(cls: Any, top_k: int) -> type:
    class More(cls):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.top_k = self.routing.top_k = top_k

    More.__name__ = cls.__name__
    return More


WRONG_REFERENCES = [
    pytest.param(
        norm,
        lambda cls: _more(cls, "bias", lambda: torch.nn.Parameter(torch.zeros(4096))),
        "parameters",
        "norm",
        id="a norm with a bias",
    ),
    pytest.param(
        attention,
        lambda cls: _more(cls, "o_proj", lambda: torch.nn.Linear(4096, 4096)),
        "parameters",
        "o_proj",
        id="a bias in the output map",
    ),
    pytest.param(
        attention, lambda cls: _more(cls, "core", torch.nn.Identity), "forward_flops", "core", id="no attention at all"
    ),
    pytest.param(moe, lambda cls: _with_top_k(cls, 3), "forward_flops", "experts", id="one expert too many"),
    pytest.param(
        feed_forward,
        lambda cls: _more(cls, "down_proj", lambda: torch.nn.Linear(14336, 4096)),
        "parameters",
        "down_proj",
        id="a bias in the MLP",
    ),
]


@pytest.mark.parametrize(("part", "change", "quantity", "node"), WRONG_REFERENCES)
def test_a_wrong_reference_is_found(
    monkeypatch: pytest.MonkeyPatch, part: Any, change: Any, quantity: str, node: str
) -> None:
    target = "llama3-8b" if part is feed_forward else "mixtral-8x7b"
    spec = load(target, ("num_hidden_layers=2",)).model
    right = part._reference_class()
    wrong = change(right)
    if quantity == "forward_flops" and part is attention:

        class Skips(torch.nn.Module):
            def forward(self, q: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
                return q

        wrong = _more(right, "core", Skips)
    monkeypatch.setattr(part, "_reference_class", lambda: wrong)
    failures = verify_reference(spec).failures
    assert any(c.quantity == quantity and node in c.node for c in failures), failures


def test_a_count_of_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused kernels that the counter does not know count as zero without a warning."""

    class Fused(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]
            return out

    wrong = _more(attention._reference_class(), "core", Fused)
    monkeypatch.setattr(attention, "_reference_class", lambda: wrong)
    spec = load("gpt2", ("num_hidden_layers=1", "hidden_size=64", "num_attention_heads=4", "vocab_size=100")).model
    failures = verify_reference(spec, device="cpu", seq=64).failures
    core = [c for c in failures if c.node.endswith("core") and c.quantity == "forward_flops"]
    assert core
    assert core[0].measured_value == 0
    assert core[0].explanation() == "the witness counted nothing"


@pytest.mark.parametrize(
    ("node", "counted", "measured", "said"),
    [
        ("layers.3.mlp.router", 1_835_008, 1_835_264, "+256 = num_experts (a bias?), +0.01 %"),
        ("embed_tokens", 926_679_040 - 7168, 926_679_040, "+7,168 = hidden_size, 0.00 %"),
        ("layers.0.norm", 3 * 7168, 7168, "−14,336 = 2 × hidden_size, −66.67 %"),
        ("lm_head", 1, 1 + 129_280 * 7168, "+926,679,040 = vocab_size × hidden_size"),
        ("layers.3.mlp.router", 1_835_008, 1_835_009, "+1, 0.00 %"),
    ],
)
def test_a_difference_is_told_by_the_sizes_that_it_is(node: str, counted: int, measured: int, said: str) -> None:
    sizes = list_named_sizes(load("deepseek-v3").model)
    assert Check(node, "parameters", counted, measured, "torch").explanation(sizes).startswith(said)
    assert "=" not in Check(node, "forward_flops", counted, measured, "torch").explanation(sizes)


def test_one_wrong_layer_of_many_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load("gpt2").model
    net = build_on_device(spec, "meta")
    net.layers[7].mlp.up_proj = torch.nn.Linear(768, 3072, bias=False, device="meta")  # type: ignore[index, union-attr]
    monkeypatch.setattr("llmcalc.witnesses.reference.build_on_device", lambda *_: net)
    failures = verify_reference(spec).failures
    assert [c.node for c in failures if c.quantity == "parameters" and c.node.endswith("up_proj")] == [
        "layers.7.mlp.up_proj"
    ]


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load("gpt2", ("num_hidden_layers=2",)).model
    net = build_on_device(spec, "meta")
    net.norm = None  # type: ignore[assignment]
    net._only[0].norm = torch.nn.Identity()  # type: ignore[index, union-attr]
    monkeypatch.setattr("llmcalc.witnesses.reference.build_on_device", lambda *_: net)
    missing = [c for c in verify_reference(spec).failures if c.measured_value is None]
    assert {c.node for c in missing} == {"norm"}


# --- measuring --------------------------------------------------------------------------------------------------------


def test_shared_parameters_count_where_they_stand_first() -> None:
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 5, bias=False), "b": torch.nn.Linear(3, 5, bias=False)})
    net["b"].weight = net["a"].weight
    assert parameter_counts_by_path(net) == {"": 15, "a": 15}


def test_backward_products_belong_to_the_module_whose_forward_they_undo() -> None:
    """x → a → b and x → c, where x needs no gradient: backward of a and c has only dW, of b also dx."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x).relu()) + self.c(x)

    with torch.device("meta"):
        net, x = Net(), torch.empty(10, 4)
    forward, both = count_flops(net, lambda: [net(x)], includes_backward=True)
    assert forward == {"": 2 * 10 * (32 + 16 + 8), "a": 640, "b": 320, "c": 160}
    assert both == {"": 2 * 640 + 3 * 320 + 2 * 160, "a": 1280, "b": 960, "c": 320}


# --- the command ------------------------------------------------------------------------------------------------------


def test_json_and_junit(run: Any, tmp_path: Any) -> None:
    result = run("verify", "gpt2", "t5-base", "--format", "json", "--junit", str(tmp_path / "j.xml"))
    documents = result.document
    assert [d["model"]["name"] for d in documents] == ["gpt2", "t5-base"]
    assert all(d["ok"] and d["schema_version"] == 2 for d in documents)
    assert set(documents[0]["checks"][0]) == {"node", "quantity", "closed_form", "measured", "witness", "ok"}
    suites = ET.parse(tmp_path / "j.xml").getroot()
    assert [s.get("name") for s in suites] == ["gpt2", "t5-base"]
    assert [int(s.get("tests", "0")) for s in suites] == [len(d["checks"]) for d in documents]


def test_a_mismatch_exits_with_1_and_names_node_and_numbers(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    _wrong_formula(monkeypatch, ops.Norm, "params", lambda op, n: n + 1)
    result = run("verify", "gpt2", "--junit", str(tmp_path / "j.xml"))
    assert result.code == 1
    assert "self_attn_pre_norm" in result.out
    assert "1,537" in result.out
    assert "1,536" in result.out
    assert ET.parse(tmp_path / "j.xml").getroot().findall(".//failure")


def test_published_differences_are_stated(run: Any) -> None:
    result = run("verify", "bert-base", "--against", "published")
    assert result.code == 0
    assert re.search(r"bert-base +± ", result.out)
    assert "differs, explained: −592,130" in result.out
    assert "=" in run("verify", "gpt2", "--against", "published").out.splitlines()[2]
    check = run("verify", "bert-base", "--against", "published", "--format", "json").document["checks"][0]
    assert (check["closed_form"] - check["measured"], check["explained"], check["ok"]) == (-592_130, -592_130, True)


def test_a_published_difference_that_is_not_explained_fails() -> None:
    bert = load("bert-base")
    wrong = bert.model_copy(update={"published": bert.published.model_copy(update={"parameters_difference": -592_131})})
    assert not verify_published(wrong).ok


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["gpt3-175b", "--against", "published"], "no exact parameter count was published"),
        (["gopher-280b", "--against", "transformers"], "no transformers class is known"),
        (["llama3-8b", "--device", "cpu"], "--set num_hidden_layers=1"),
        (["gpt2", "--seq", "1024"], "expected at most 1023"),
        (
            ["gpt2", "--set", "max_position_embeddings=1"],
            "max_position_embeddings: 1 learned position has room for no token",
        ),
        (["bert-base", "--seq", "513"], "expected at most 512"),
        (
            ["gpt2", "--seq", "66", "--against", "transformers", "--set", "max_position_embeddings=65"],
            "expected at most 65",
        ),
        (["gpt2", "--device", "cpu", "--batch", "64", "--seq", "1000"], "expected a smaller --batch or --seq"),
        (["gpt2", "--against", "published", "--every-layer"], "--every-layer"),
        ([], "missing argument TARGET; expected one or more, or --all"),
    ],
)
def test_what_cannot_be_verified_says_so(run: Any, args: list[str], message: str) -> None:
    result = run("verify", *args)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_cuda_says_so(run: Any) -> None:
    assert "torch sees no CUDA device" in run("verify", "gpt2", "--device", "cuda").error
