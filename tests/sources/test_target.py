"""The forms of a TARGET, and the name of the model in the answer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcalc.sources.target import load
from llmcalc.sources.target_names import hub_id_of
from tests.families import shapes_of


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes], None]:
    """Returns a function: `piped(text)` sets the standard input of the next command."""

    def give(content: str | bytes) -> None:
        raw = io.BytesIO(content.encode() if isinstance(content, str) else content)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(raw, encoding="utf-8"))

    return give


class TestAddress:
    @pytest.mark.parametrize(
        ("url", "hub_id"),
        [
            ("https://huggingface.co/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
            ("https://huggingface.co/Qwen/Qwen3-8B/", "Qwen/Qwen3-8B"),
            ("huggingface.co/Qwen/Qwen3-8B/tree/main", "Qwen/Qwen3-8B"),
            ("https://hf.co/Qwen/Qwen3-8B/blob/main/config.json", "Qwen/Qwen3-8B"),
            ("https://huggingface.co/Qwen/Qwen3-8B/resolve/abc123/config.json", "Qwen/Qwen3-8B@abc123"),
            ("https://huggingface.co/Qwen/Qwen3-8B?library=transformers#usage", "Qwen/Qwen3-8B"),
            ("https://huggingface.co/gpt2", "gpt2"),
            ("https://example.org/Qwen/Qwen3-8B", ""),
            ("Qwen/Qwen3-8B", ""),
        ],
    )
    def test_a_page_is_its_hub_id(self, url: str, hub_id: str) -> None:
        assert hub_id_of(url) == hub_id

    def test_a_page_of_a_library_is_its_tag(self) -> None:
        for url in (
            "https://ollama.com/library/qwen3:8b",
            "ollama.com/library/qwen3:8b",
            "https://www.ollama.com/library/qwen3:8b",
            "ollama run qwen3:8b",
            "ollama/qwen3:8b",
            "ollama_chat/qwen3:8b",
        ):
            preset = load(url)
            assert (preset.name, preset.target) == ("qwen3-8b", "qwen3:8b")
        for url in ("ollama run phi4", "ollama.com/library/phi4"):
            preset = load(url)
            assert (preset.name, preset.target) == ("phi-4", "phi4:latest")
        preset = load("ollama run llama3.2:3b-instruct-q8_0")
        assert (preset.name, preset.target) == ("llama3.2-3b", "llama3.2:3b-instruct-q8_0")

    def test_it_finds_the_preset(self, run: Any) -> None:
        assert (
            run("params", "https://huggingface.co/Qwen/Qwen3-8B/tree/main", "--format", "json").document["model"][
                "name"
            ]
            == "qwen3-8b"
        )


class TestStandardInput:
    def test_a_config(self, run: Any, piped: Any) -> None:
        piped(json.dumps(shapes_of("llama")[0]))
        assert run("params", "-", "--format", "json").document["model"]["name"] == "stdin"

    def test_a_description(self, run: Any, piped: Any) -> None:
        piped(run("convert", "gpt2").out)
        assert run("params", "-", "--format", "json").document["params"]["total"] == 124_439_808

    def test_a_config_may_be_as_large_as_a_file(self, run: Any, piped: Any) -> None:
        piped(json.dumps({"model_type": "gpt2", "id2label": {"0": "x" * 2_000_000}}))
        assert run("params", "-", "--format", "json").document["params"]["total"] == 124_439_808

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", "standard input is empty"),
            ("[]", "standard input"),
            ("{", "standard input: not valid JSON"),
            ('{"model_type": "llamma"}', "'llamma' is not supported"),
            (b"\xff\xfe\x00", "not text"),
            ('changes = ["num_hidden_layers=9"]\n', "standard input: changes: unknown field"),
            ('title = "\\u001b[31m"\n[model]\n', "standard input: "),
            ("x" * 1_000_001, "too large for a model description (at most 1,000,000 bytes)"),
            ("{" + " " * 5_000_000, "too large for a model description (at most 5,000,000 bytes)"),
        ],
    )
    def test_anything_else_is_one_error(self, content: str | bytes, words: str, run: Any, piped: Any) -> None:
        piped(content)
        assert words in run("params", "-").error


class TestOverrides:
    def test_of_one_target_alone(self, run: Any) -> None:
        code, out, _ = run("params", "gpt2", "gpt2?num_hidden_layers=6&vocab_size=1000", "--format", "json")
        whole, half = json.loads(out)
        assert code == 0
        assert half["params"]["total"] == whole["params"]["total"] - 6 * 7_087_872 - (50257 - 1000) * 768
        assert half["model"]["changes"] == ["num_hidden_layers=6", "vocab_size=1000"]
        assert half["model"]["name"] == "gpt2"
        assert half["model"]["target"] == "gpt2?num_hidden_layers=6&vocab_size=1000"

    def test_those_of_all_come_after_its_own(self) -> None:
        spec = load("gpt2?num_hidden_layers=6", ("num_hidden_layers=3",)).model
        assert spec.decoder is not None
        assert spec.decoder.num_hidden_layers == 3

    def test_a_file_of_that_name_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "odd?name=1.toml"
        path.write_text(llmcalc_toml())
        assert load(str(path)).model == load("gpt2").model

    def test_a_changed_model_says_so_and_is_held_against_nothing_published(self, run: Any) -> None:
        out = run("params", "llama3-8b", "--set", "num_hidden_layers=16").out
        assert out.startswith("Llama 3 8B, modified (num_hidden_layers=16)")
        assert "published" not in out
        assert "published 8,030,261,248: equal" in run("params", "llama3-8b").out

    def test_it_is_written_under_another_title(self, run: Any) -> None:
        out = run("convert", "gpt2", "--set", "num_hidden_layers=3").out
        assert 'title = "GPT-2 small, modified (num_hidden_layers=3)"' in out
        assert "openai-community" not in out.partition("[[sources]]")[0]
        assert "[published]" not in out

    def test_two_variants_stand_beside_each_other(self, run: Any) -> None:
        out = run("compare", "gpt2", "gpt2?num_hidden_layers=6", columns=120).out
        assert "GPT-2 small, modified (num_hidden_layers=6)" in out

    @pytest.mark.parametrize(
        ("target", "words"),
        [
            ("gpt2?layers", "expected path=value"),
            ("gpt2?num_hidden_layer=6", "num_hidden_layers"),
            ("no-such-model?num_hidden_layers=6", "no preset"),
        ],
    )
    def test_a_wrong_one(self, target: str, words: str, run: Any) -> None:
        assert words in run("params", target).error


def llmcalc_toml() -> str:
    from llmcalc.sources.to_toml import dump_toml

    return dump_toml(load("gpt2"))


def test_a_heading_has_the_name_that_was_asked_for(run: Any) -> None:
    assert run("params", "openai-community/gpt2").out.startswith("openai-community/gpt2 (GPT-2 small)")
    assert run("params", "GPT2").out.startswith("GPT-2 small:")


class TestOptionsThatMeanNothing:
    def test_a_head_is_a_configs(self, run: Any, tmp_path: Path) -> None:
        err = run("params", "gpt2", "--head", "none").error
        assert err == "error: --head: gpt2 is not a Hugging Face config; expected one, or --set head.type=none\n"
        assert run("params", "gpt2", "--set", "head.type=none").code == 0
        (tmp_path / "config.json").write_text(json.dumps(shapes_of("llama")[0]))
        assert run("params", str(tmp_path), "--head", "none").code == 0

    @pytest.mark.parametrize("option", ["--with-mtp", "--with-towers"])
    def test_a_part_that_the_model_does_not_have(self, option: str, run: Any) -> None:
        for command in ("params", "memory"):
            code, _, err = run(command, "gpt2", option)
            assert code == 0
            assert f"{option} changes nothing: the counted model has no" in err
        assert "changes nothing" not in run("params", "deepseek-v3", "--with-mtp").err

    def test_nothing_can_be_asked_into_a_header(self, run: Any) -> None:
        assert "a checkpoint's header is counted as it is" in run("params", "x.safetensors", "--with-mtp").error


class TestWhereTheAnswerGoes:
    def test_a_dash_is_the_terminal(self, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert run("params", "gpt2", "-o", "-").out == run("params", "gpt2").out
        assert list(tmp_path.iterdir()) == []

    def test_convert_writes_what_the_name_says(self, run: Any, tmp_path: Path) -> None:
        path = tmp_path / "x.json"
        assert run("convert", "gpt2", "-o", str(path)).code == 0
        assert json.loads(path.read_text())["model_type"] == "gpt2"
        assert run("convert", "gpt2", "-o", str(path), "--to", "toml").code == 0
        assert path.read_text().startswith("title = ")


class TestLengths:
    @pytest.mark.parametrize(("written", "tokens"), [("32k", 32768), ("1M", 2**20), ("0.5K", 512), ("8_192", 8192)])
    def test_in_thousands_of_1024(self, written: str, tokens: int, run: Any) -> None:
        out = run("kv", "llama3-8b", "--seq", written, "--format", "json").out
        assert json.loads(out)["workload"]["seq"] == tokens

    @pytest.mark.parametrize("written", ["32x", "", "k", "1.3", "0", "-4", "2T"])
    def test_anything_else_is_refused(self, written: str, run: Any) -> None:
        assert run("flops", "gpt2", "--seq", written).error.startswith("error: --seq: ")


@pytest.mark.parametrize(
    ("repository", "preset"),
    [
        ("Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("Meta-Llama-3.1-405B-Instruct", "llama3.1-405b"),
        ("internlm2_5-7b-chat", "internlm2.5-7b-chat"),
        ("InternVL3_5-8B-Instruct", "internvl3.5-8b"),
        ("esm2_t36_3B_UR50D", "esm2-3b"),
        ("gemma 3 27b it", "gemma3-27b"),
        ("llama-2-7b-chat-hf", "llama2-7b"),
        ("llama-3-70b-instruct", "llama3-70b"),
        ("mixtral-8x7b-instruct", "mixtral-8x7b"),
        ("apertus-70b-instruct", "apertus-70b"),
    ],
)
def test_a_repository_is_found_without_its_owner(repository: str, preset: str) -> None:
    assert load(repository).name == preset


@pytest.mark.parametrize("name", ["mistral-7b-instruct", "deepseek", "mistral-large"])
def test_a_name_that_several_presets_have_names_none(name: str, run: Any) -> None:
    """Versions of Mistral 7B have vocabularies of their own, so that a name without one is answered with all."""
    assert run("params", name).code == 2


def test_an_unknown_fine_tune_is_told_its_base(run: Any) -> None:
    code, _, error = run("params", "phi-2-chat")
    assert code == 2
    assert "phi-2-chat'. Most fine-tunes have the shape of their base: expected phi-2, or its own config.json" in error


@pytest.mark.parametrize(
    ("name", "wrapper", "preset"),
    [("blip2-opt-2.7b", "blip-2", "opt-2.7b"), ("Ovis1.6-Gemma2-9B", "ovis", "gemma2-9b")],
)
def test_a_wrapper_is_not_counted_as_its_text_model(name: str, wrapper: str, preset: str, run: Any) -> None:
    code, _, error = run("params", name)
    assert code == 2
    assert f"'{name}'. Its text model may be {preset}, beside modules of {wrapper}: expected its own" in error


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Rombos-LLM-V2.6-Qwen2.5-14b", "qwen2.5-14b"),
        ("R1-Qwen2.5-7B", "qwen2.5-7b"),
        ("rank-llama2-7b", "llama2-7b"),
        ("rombodawg/Replete-Llama3-8B", "llama3-8b"),
        ("NewHope-llama2-13b", "llama2-13b"),
        ("Beepo-mistral-7b", "mistral-7b"),
        ("gotham-llama3-8b", "llama3-8b"),
        ("clipper-llama3.1-8b", "llama3.1-8b"),
    ],
)
def test_a_name_is_a_wrapper_only_if_its_first_word_is_the_type(name: str, preset: str, run: Any) -> None:
    """Of the model types `R`, `new`, `bee`, `GOT` and `clip` in configs on the Hub."""
    code, _, error = run("params", name)
    assert code == 2
    assert f"Most fine-tunes have the shape of their base: expected {preset}, or its own config.json" in error


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Phi-4-multimodal-instruct", "phi-4-mini"),
        ("microsoft/Phi-4-multimodal-instruct", "phi-4-mini"),
        ("amd/DeepSeek-R1-MXFP4-Preview", "deepseek-r1"),
        ("facebook/m2m100-12B-last-ckpt", "m2m100-1.2b"),
        ("openbmb/MiniCPM5-1B-GGUF", "minicpm3-4b"),
        ("neuralmagic/Llama-9-FP8", ""),
    ],
)
def test_an_unknown_model_is_answered_with_its_family(
    name: str, preset: str, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    code, _, error = run("params", name)
    assert code == 2
    assert (f"Did you mean {preset}" if preset else name) in error


@pytest.mark.parametrize("word", ["none", "None", "null"])
def test_a_value_is_taken_away(word: str) -> None:
    def window(target: str) -> Any:
        main: Any = load(target).model.main
        return main.block.attention.sliding_window

    assert window("mistral-7b") is not None
    assert window(f"mistral-7b?sliding_window={word}") is None


def test_loads_of_a_preset_share_its_model_and_other_targets_have_their_own(tmp_path: Path) -> None:
    """What is kept of a model by its identity, such as its program, serves each load of it."""
    model = load("gpt2").model
    assert load("gpt2").model is model
    assert load("gpt2", ("num_hidden_layers=3",)).model.layer_count == 3
    description = tmp_path / "gpt2.toml"
    description.write_text(Path("presets/models/gpt2.toml").read_text())
    first, second = (load(str(description)) for _ in range(2))
    assert first.model == second.model == model
    assert first.model is not second.model
