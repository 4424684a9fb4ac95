"""`llmcalc compare`: each quantity against hand arithmetic, the order, the width, the errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import llmcalc
from llmcalc.cli.main import app
from llmcalc.errors import InputError
from llmcalc.reports.compare import DecodingLoad, report
from llmcalc.reports.document import cell_text
from llmcalc.studies.compare import SORT_KEYS, is_in_dense_band, quantities_of_model, sort_order
from tests.samples import in_one_test

MODELS = ["gpt3-175b", "llama3-8b", "mixtral-8x7b", "deepseek-v3", "gpt2", "bart-large"]


def run(*args: str, **env: str) -> str:
    result = CliRunner(env={"COLUMNS": "80", **env}).invoke(app, ["compare", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def documents(*args: str) -> list[dict[str, Any]]:
    """Returns one document per target; the JSON of a single target is not a list."""
    found = json.loads(run(*args, "--format", "json"))
    return found if isinstance(found, list) else [found]


def test_llama3_8b_by_hand() -> None:
    q = quantities_of_model(llmcalc.load("llama3-8b").model, seq=2048)
    s = q.shape
    assert (q.parameters, q.active) == (8_030_261_248, 8_030_261_248)
    assert s.aspect_ratio == 4096 / 32 == 128
    assert s.is_in_dense_band
    assert s.feed_forward_ratio == 14336 / 4096 == 3.5
    assert (s.num_attention_heads, s.head_dim, s.head_ratio) == (32, 128, 1.0)
    assert s.kv_ratio == 8 / 32
    assert q.vocabulary_parameters == 2 * 128256 * 4096  # untied: in and out
    # 2 FLOPs per weight except the input embedding, and 4·S·h per layer in attention over S = 2048 keys
    assert q.forward_flops_per_token == 2 * (8_030_261_248 - 128256 * 4096 - 65 * 4096) + 32 * 4 * 2048 * 4096
    assert q.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2  # layers × (K, V) × kv heads × head_dim × bf16


def test_a_tied_vocabulary_counts_once() -> None:
    q = quantities_of_model(llmcalc.load("gpt2").model)
    assert q.vocabulary_parameters == 50257 * 768
    assert q.context_length == 1024


def test_an_output_map_behind_a_transform_is_of_the_vocabulary() -> None:
    """BERT's head: `lm_head.decoder`, with one bias per vocabulary token, tied or not."""
    for tied, tables in ((True, 1), (False, 2)):
        q = quantities_of_model(llmcalc.load("bert-base", tie_word_embeddings=tied).model)
        assert q.vocabulary_parameters == tables * 30522 * 768 + 30522


def test_a_mixture_of_experts_shows_its_active_width() -> None:
    deepseek = quantities_of_model(llmcalc.load("deepseek-v3").model)
    assert deepseek.shape.mixture_of_experts
    assert deepseek.shape.feed_forward_width == 8 * 2048 + 2048  # eight routed experts and the shared one
    assert deepseek.shape.layer_kinds == {"dense": 3, "moe": 58}
    assert deepseek.shape.num_key_value_heads is None  # latent attention has none
    assert deepseek.active < deepseek.parameters
    text = run("mixtral-8x7b")
    assert "7.00 †" in text  # 2 × 14336 / 4096
    assert "active width" in text


def test_both_stacks_of_an_encoder_decoder() -> None:
    spec = llmcalc.load("bart-large", **{"encoder.num_hidden_layers": 6}).model
    q = quantities_of_model(spec)
    assert q.encoder is not None
    assert (q.encoder.num_hidden_layers, q.shape.num_hidden_layers) == (6, 12)
    # decoder layers × (keys, values) × (its own token, one of the encoder) × 16 heads of 64 × bf16
    assert q.kv_bytes_per_token == 12 * 2 * 2 * 1024 * 2
    text = run("bart-large", "--set", "encoder.num_hidden_layers=6")
    assert "6 / 12" in text
    assert "encoder / decoder" in text
    (document,) = documents("bart-large", "--set", "encoder.num_hidden_layers=6")
    assert document["compare"]["stack"] == "decoder"
    assert document["compare"]["num_hidden_layers"] == 12
    assert document["compare"]["stacks"]["encoder"]["num_hidden_layers"] == 6


def test_an_encoder_keeps_no_cache() -> None:
    assert quantities_of_model(llmcalc.load("bert-base").model).kv_bytes_per_token is None


@in_one_test
@pytest.mark.parametrize(
    ("hidden", "layers", "inside"),
    [
        (99, 1, False),
        (100, 1, True),
        (130, 1, True),
        (131, 1, False),
        (16384, 126, True),
        (768, 12, False),
    ],  # 16384/126 = 130.03
)
def test_the_dense_band(hidden: int, layers: int, inside: bool) -> None:
    assert is_in_dense_band(hidden, layers) is inside


def test_the_band_is_marked_without_colour() -> None:
    text = run("llama3-8b", "gpt2", NO_COLOR="1")
    line = next(line for line in text.splitlines() if "h / L" in line)
    assert "128.0 *" in line
    assert "64.0 *" not in line
    assert "* h/L, rounded, is within 100 to 130" in text
    assert "*" not in run("gpt2").replace("×", "")


def test_one_target_is_one_document() -> None:
    assert json.loads(run("gpt2", "--format", "json"))["model"]["name"] == "gpt2"
    assert [d["model"]["name"] for d in json.loads(run("gpt2", "gpt2-xl", "--format", "json"))] == ["gpt2", "gpt2-xl"]


@pytest.mark.parametrize("key", SORT_KEYS)
def test_every_sort_key_sorts(key: str) -> None:
    models = [quantities_of_model(llmcalc.load(name).model) for name in [*MODELS, "bert-base"]]
    values = [SORT_KEYS[key](models[i]) for i in sort_order(models, key)]
    known = [v for v in values if v is not None]
    assert known == sorted(known)
    assert values[: len(known)] == known  # models without the quantity come last
    assert len({*known}) > 1


def test_the_order_given_is_kept_and_sort_changes_it() -> None:
    given = ["llama3-8b", "gpt2", "gpt3-175b"]
    assert [d["model"]["name"] for d in documents(*given)] == given
    assert [d["model"]["name"] for d in documents(*given, "--sort", "params")] == ["gpt2", "llama3-8b", "gpt3-175b"]
    text = run(*given, "--sort", "params")
    assert text.index("GPT-2") < text.index("Llama 3 8B") < text.index("GPT-3 175B")


def test_an_unknown_sort_key_lists_the_known() -> None:
    models = [quantities_of_model(llmcalc.load("gpt2").model)]
    with pytest.raises(
        InputError, match=r"--sort: there is no 'h/l'; expected one of params, active, .*kv\. Did you mean h/L"
    ) as caught:
        sort_order(models, "h/l")
    assert "\n" not in str(caught.value)


def test_the_heading_of_flops_has_the_length_that_they_depend_on() -> None:
    for words, length in ((("--seq", "512"), "512"), (("--seq", "8k"), "8,192"), ((), "2,048")):
        for form in ("table", "markdown"):
            assert f"FLOPs/tok at {length} " in run("gpt3-175b", *words, "--format", form)
    many = ["gpt3-175b", *["gpt2"] * 13, "--seq", "512"]
    assert "FLOPs/tok at 512" in run(*many, COLUMNS="120")
    assert "flops_per_token" in run("gpt3-175b", "--format", "csv").splitlines()[0].split(",")


def test_options_act() -> None:
    (short,), (long,) = documents("llama3-8b", "--seq", "1"), documents("llama3-8b", "--seq", "8192")
    assert long["compare"]["flops_per_token"] - short["compare"]["flops_per_token"] == 32 * 4 * 4096 * 8191
    (half,) = documents("llama3-8b", "--dtype", "fp8")
    assert 2 * half["compare"]["kv_bytes_per_token"] == short["compare"]["kv_bytes_per_token"]
    (small,) = documents("llama3-8b", "--set", "num_hidden_layers=16")
    assert small["compare"]["aspect_ratio"] == 256


@pytest.mark.parametrize("number", range(1, 7))
def test_it_fits_80_columns(number: int) -> None:
    text = run(*MODELS[:number])
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for name in MODELS[:number]:
        assert llmcalc.load(name).display in text
    assert "…" not in text


def test_a_wide_terminal_takes_all_models_in_one_block() -> None:
    compared = [(preset := llmcalc.load(name), quantities_of_model(preset.model)) for name in MODELS]
    assert len(report(compared, width=160).tables) == 1
    narrow = report(compared, width=80).tables
    assert [len(t.columns) - 1 for t in narrow] == [3, 3]
    assert [len(t.columns) - 1 for t in report(compared, width=10).tables] == [1] * 6
    assert [bool(t.notes) for t in narrow] == [False, True]  # once, at the end


def test_a_narrow_terminal_shows_every_model() -> None:
    text = run(*MODELS[:3], COLUMNS="50")
    assert all(llmcalc.load(name).display in text for name in MODELS[:3])
    assert "more table" not in text


def test_csv_has_a_row_a_model_and_raw_values() -> None:
    heading, *rows = run("llama3-8b", "mixtral-8x7b", "--format", "csv").splitlines()
    assert heading.startswith("target,parameters,active,")
    assert [r.split(",")[:3] for r in rows] == [
        ["llama3-8b", "8030261248", "8030261248"],
        ["mixtral-8x7b", "46702792704", "12879925248"],
    ]


def test_markdown_is_one_table() -> None:
    text = run(*MODELS, "--format", "markdown")
    assert sum(line.startswith("|:---") for line in text.splitlines()) == 1


def test_text_cells_need_no_writer() -> None:
    preset = llmcalc.load("llama3-8b")
    (table,) = report([(preset, quantities_of_model(preset.model))], width=80).tables
    columns = [column._replace(write=float) for column in table.columns]  # float fails for text
    texts = [[cell_text(c, v) for c, v in zip(columns, row.cells, strict=True)] for row in table.rows]
    assert ["hidden size h", "4,096"] in texts
    assert ["activation", "SwiGLU"] in texts


def test_the_time_of_a_token_is_that_of_time() -> None:
    for name, kv_dtype in (("llama3-8b", "bf16"), ("qwen3-30b-a3b", "fp8")):
        document = llmcalc.compare(name, hardware="h200", users=16, seq=4096, kv_dtype=kv_dtype).document["compare"]
        options = {} if kv_dtype == "bf16" else {"kv_dtype": kv_dtype}
        timed = llmcalc.time(name, "h200", "decode", users=16, seq=4096, **options).document
        seconds = timed["seconds"]
        assert [document[key] for key in ("tpot", "tpot_low", "tpot_high")] == [
            seconds[key] for key in ("estimate", "low", "high")
        ]
        assert document["tokens_per_second"] == timed["tokens_per_second"]


def test_models_without_a_token_on_the_accelerator_have_no_time() -> None:
    answer = llmcalc.compare("bert-base", "qwen3-embedding-8b", "llama3-70b", hardware="h100")
    assert [document["compare"]["tpot"] for document in answer.document] == [None, None, None]
    assert "tpot" not in llmcalc.compare("gpt2").document["compare"]
    rows = {
        row["quantity"]: [row["bert-base"], row["qwen3-embedding-8b"], row["llama3-70b"]] for row in answer.records()
    }
    assert rows["TPOT, 1 user"] == rows["TPOT, 1 user / tokens/s"] == ["–", "–", "–"]
    listed = report(answer.result * 7, width=80, decoding_load=DecodingLoad("H100", 1)).tables[0]
    assert [column.key for column in listed.columns[-2:]] == ["tpot", "tokens_per_second"]
    assert {len(row.cells) for row in listed.rows} == {len(listed.columns)}


def test_users_without_an_accelerator_are_refused() -> None:
    with pytest.raises(InputError, match="--users: is of the time of a token; expected --hardware too"):
        llmcalc.compare("gpt2", users=2)


def test_the_software_that_times_tokens_is_named_for_each_model() -> None:
    """On Apple's chips it is llama.cpp, and for a tag of Ollama's library everywhere."""
    assert "1 M3 Max under llama.cpp, with" in " ".join(
        run("qwen3-8b", "llama3-8b", "--hardware", "m3-max", "--notes").split()
    )
    words = ("qwen3:8b", "qwen3-8b", "llama3-8b", "--hardware", "h100")
    text = " ".join(run(*words, "--notes").split())
    assert "1 H100 SXM under vLLM (qwen3-8b, llama3-8b), llama.cpp (qwen3:8b), with" in text
    assert "qwen3:8b: weights in q4_k_m, as most tags without a format have" in text
