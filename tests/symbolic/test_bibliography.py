"""Every source of a formula is a paper with a BibTeX entry, or is listed as having none."""

from __future__ import annotations

import re

import pytest

import llmcalc
from llmcalc.symbolic.bibliography import paper_by_citation, papers
from tests.builders import family_shapes, spec_of
from tests.samples import in_one_test

WITHOUT_PAPER = frozenset(
    {
        "A.X-K2 2026",
        "DeepSeek-V4 2026",
        "DeepSeek-V4.1 2026",
        "Gemma 3n 2025",
        "GLM-5.3 2026",
        "Gemma 4 2026",
        "Inkling 2 2026",
        "Inkling 2026",
        "K2 Horizon 2026",
        "Muse Spark 2026",
        "NeoMME 2026",
        "Qwen4-Exp 2026",
        "Snowflake Arctic 2024",
        "Useful Sensors 2026",
        "Voxtral Realtime 2026",
        "Zyphra 2025",
    }
)
"""Sources without a paper: model releases with code."""


def sources() -> set[str]:
    """Returns the sources of every part in every family's small shapes, without their sections."""
    places = (place for _, config in family_shapes() for place in spec_of(config).tree().walk())
    return {place.node.source.partition(", §")[0] for place in places if place.node.source}


def test_every_source_is_known() -> None:
    named = sources()
    assert named <= {*paper_by_citation(), *WITHOUT_PAPER}
    # sources of parts that no small shape has: Transformer-XL, LayerScale in the vision encoders of InternVL,
    # encoders alone (MobileNet, DaViT, Swin, VQ-VAE, SAM, Granite Speech, SAN-M, VibeVoice, Nemotron 3.5 Transcribe),
    # and Arctic, Kimi K3, DeepSeek-V4.1, K2 Horizon, RetNet, GLA and HGRN2, whose classes are code of their
    # repositories
    assert {*paper_by_citation(), *WITHOUT_PAPER} - named <= {
        "Dai et al. 2019",
        *("Ding et al. 2022", "Liu et al. 2021 (Swin)"),
        "Qin et al. 2024 (MobileNetV4)",
        "Touvron et al. 2021",
        "van den Oord et al. 2017",
        *("Kirillov et al. 2023", "Saon et al. 2025", "Gao et al. 2020", "Peng et al. 2025", "Park et al. 2024"),
        "Snowflake Arctic 2024",
        "DeepSeek-V4.1 2026",
        "K2 Horizon 2026",
        "Kimi Team 2026 (arXiv:2607.24653)",
        *("Sun et al. 2023", "Yang et al. 2023", "Qin et al. 2024 (HGRN2)"),
    }


def test_entries_are_whole() -> None:
    for paper in paper_by_citation().values():
        assert re.fullmatch(r"[a-z0-9]+", paper.key)
        assert paper.authors
        assert paper.title
        assert 2016 <= paper.year <= 2026
        assert re.fullmatch(r"\d{4}\.\d{5}", paper.arxiv) or paper.where
        if paper.arxiv:
            assert abs(2000 + int(paper.arxiv[:2]) - paper.year) <= 1
        entry = paper.bibtex()
        assert entry.count("{") == entry.count("}")


def test_each_paper_once_and_the_others_by_name() -> None:
    found, others = papers(["Vaswani et al. 2017, §3.1", "Vaswani et al. 2017, §3.3", "Gemma 4 2026"])
    assert [paper.arxiv for paper in found] == ["1706.03762"]
    assert others == ["Gemma 4 2026"]


@in_one_test
@pytest.mark.parametrize(
    ("model", "arxiv"),
    [
        ("llama3-8b", "2002.04745"),  # pre-norm: Xiong 2020
        ("bert-base", "1706.03762"),  # post-norm: Vaswani 2017
        ("gemma2-9b", "2105.13290"),  # sandwich: CogView
        ("gemma3-4b", "2105.13290"),
        ("olmo2-7b", "2501.00656"),  # norm on the output: OLMo 2
        ("exaone-4.0-32b", "2501.00656"),
        ("gpt-neox-20b", "2204.06745"),  # parallel, one norm each: GPT-NeoX
        ("mamba-130m", "2312.00752"),
        ("mamba2-130m", "2405.21060"),
        ("rwkv-4-169m", "2305.13048"),
    ],
)
def test_a_layer_has_the_source_of_its_norms_and_its_mixer(model: str, arxiv: str) -> None:
    layers = [place.node for place in llmcalc.load(model).model.tree().walk() if place.node.kind == "layer"]
    assert {paper.arxiv for paper in papers(layer.source for layer in layers)[0]} == {arxiv}


def test_a_layer_with_one_shared_norm_is_gpt_js() -> None:
    (layer,) = (place.node for place in llmcalc.load("gpt-j-6b").model.tree().walk() if place.node.kind == "layer")
    (paper,), _ = papers([layer.source])
    assert "mesh-transformer-jax" in paper.where


def test_the_scale_of_a_sublayers_output_is_layerscale() -> None:
    block = llmcalc.load("gpt2").model.main.block
    assert papers([block.model_copy(update={"residual_scale": "output"}).formula_source])[0][0].arxiv == "2103.17239"


def test_layers_of_one_model_have_their_own_sources() -> None:
    """Nemotron-H: layers of Mamba-2 beside layers of attention and of a feed-forward network."""
    layers = [p.node for p in llmcalc.load("nemotron-h-4b").model.tree().walk() if p.node.kind == "layer"]
    found = {layer.source for layer in layers if any(child.name == "mamba" for child in layer.children)}
    others = {layer.source for layer in layers if all(child.name != "mamba" for child in layer.children)}
    assert (found, others) == ({"Dao & Gu 2024, §7"}, {"Xiong et al. 2020"})
