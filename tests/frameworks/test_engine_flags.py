"""How flags of serving engines are read: bounds, suffixes, lists, tables, abbreviations and switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.engines.engine import Engine
from llmcalc.frameworks.engines.flags import Flag, find_flag, flags_by_spelling, read_flag_values, split_arguments
from tests.in_process import Result
from tests.samples import in_one_test

FLAGS = [
    Flag(("--max-len", "-m"), "tokens", ("auto",), minimum=2, maximum=4096),
    Flag(("--max-seqs",), "number"),
    Flag(("--share",), "share"),
    Flag(("--swap",), "gib"),
    Flag(("--swap-ratio",), "ratio"),
    Flag(("--sizes",), "numbers"),
    Flag(("--compilation-config",), "table"),
    Flag(("--split",), "text"),
    Flag(("--eager",), "switch", disabling_spellings=("--graphs",)),
    Flag(("--prefix",), "word", ("sha", "xxh"), value_if_bare="sha"),
    Flag(("--lora",), "text", is_repeatable=True),
    Flag(("--port",), is_memory_neutral=True),
]

OPTIONS = {"--devices": "--split", "--seq": "--max-len"}


def read(**values: Any) -> dict[str, Any]:
    return read_flag_values("server", FLAGS, values, OPTIONS)


@in_one_test
@pytest.mark.parametrize(
    ("values", "read_as"),
    [
        ({"max_len": "2"}, 2),
        ({"max_len": "4K"}, 4096),
        ({"max_len": "4k"}, 4000),
        ({"max_len": "0.5k"}, 500),
        ({"max_len": "AUTO"}, "auto"),
        ({"max_seqs": "1m"}, None),
        ({"max_seqs": "1,000"}, 1000),
        ({"share": "1"}, 1.0),
        ({"swap": "1000000"}, 1e6),
        ({"swap_ratio": "0"}, 0.0),
        ({"sizes": "1 2,[3]"}, (1, 2, 3)),
        ({"sizes": 5}, (5,)),
        ({"sizes": " ".join(["1"] * 10_000)}, (1,) * 10_000),
        ({"compilation_config": "3"}, {"level": 3}),
        ({"compilation_config": "999"}, {"level": 999}),
        ({"compilation_config": "a=1,b=x,c=true,d=[1]"}, {"a": 1, "b": "x", "c": True, "d": [1]}),
        ({"compilation_config": {"a": "null"}}, {"a": None}),
        ({"eager": "False"}, False),
        ({"eager": "TRUE"}, True),
        ({"devices": "2"}, "0,1"),
        ({"devices": "64"}, ",".join(map(str, range(64)))),
        ({"seq": "4k"}, 4096),
    ],
    ids=str,
)
def test_values_are_read(values: dict[str, Any], read_as: Any) -> None:
    if read_as is None:
        with pytest.raises(InputError, match=r"expected a whole number"):
            read(**values)
    else:
        assert list(read(**values).values()) == [read_as]


@in_one_test
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"max_len": "1"}, "--max-len: 1; expected 2 to 4,096"),
        ({"max_len": "4097"}, "--max-len: 4,097; expected 2 to 4,096"),
        ({"max_len": "0.0005k"}, "expected a number of tokens"),
        ({"max_seqs": "0"}, "--max-seqs: 0; expected 1 to 1,000,000,000,000"),
        ({"share": "0"}, "a share above 0"),
        ({"share": "1.01"}, "a share above 0"),
        ({"share": "half"}, "a share above 0"),
        ({"swap": "1000001"}, "GiB, 0 or more"),
        ({"swap_ratio": "-0.1"}, "a ratio, 0 or more"),
        ({"sizes": ""}, "0 numbers; expected 1 to 10,000"),
        ({"sizes": " ".join(["1"] * 10_001)}, "10,001 numbers; expected 1 to 10,000"),
        ({"sizes": "0"}, "--sizes: 0; expected 1"),
        ({"compilation_config": "1000"}, "expected a JSON object"),
        ({"eager": "yes"}, "expected true or false"),
        ({"devices": "65"}, "--devices: 65; expected 1 to 64"),
        ({"devices": "0"}, "--devices: 0; expected 1 to 64"),
        ({"prefix": "md5"}, "expected one of sha, xxh"),
    ],
    ids=str,
)
def test_values_out_of_bounds_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(**values)


def test_a_number_behind_a_switch_is_refused() -> None:
    with pytest.raises(InputError, match=r"^--eager 8: --eager of server takes no value; remove 8$"):
        split_arguments("server", FLAGS, ["--eager", "8", "model"], {}, OPTIONS)


def test_suffixes_are_powers_of_ten_and_of_two() -> None:
    tokens = Flag(("--tokens",), "tokens")
    numbers = [tokens.read_value(f"1{suffix}") for suffix in ("", "k", "m", "g", "K", "M", "G")]
    assert numbers == [1, 10**3, 10**6, 10**9, 2**10, 2**20, 2**30]


@in_one_test
@pytest.mark.parametrize(
    ("name", "field", "keys"),
    [
        ("--max_len", "max_len", ()),
        ("-m", "max_len", ()),
        ("--comp", "compilation_config", ()),
        ("--com", "compilation_config", ()),
        ("--co", None, ()),
        ("--swap", "swap", ()),
        ("--swa", None, ()),
        ("--compilation-config.a.b.c.d", "compilation_config", ("a", "b", "c", "d")),
        ("--compilation-config.a.b.c.d.e", "compilation_config", ("a", "b", "c", "d")),
        ("--max-seqs.a", None, ()),
    ],
)
def test_flags_are_found_by_beginnings_of_five_letters(name: str, field: str | None, keys: tuple[str, ...]) -> None:
    match = find_flag(flags_by_spelling(FLAGS), name)
    assert (None if match is None else match.flag.field_name) == field
    assert match is None or match.nested_keys == keys


def test_arguments_are_split() -> None:
    arguments = (
        "model --seq 8 --max-len=9 --eager false --graphs --no-eager --prefix --lora a --lora b "
        "--compilation-config.x.y 1 --sizes 1 2 --flops --port 3"
    )
    positional_arguments, values = split_arguments("server", FLAGS, arguments.split(), {"--flops": False}, OPTIONS)
    assert positional_arguments == ["model", "--flops"]
    assert values == {
        "seq": "8", "max_len": "9", "eager": False, "prefix": "sha", "lora": "a,b",
        "compilation_config": {"x": {"y": "1"}},
        "sizes": "1 2", "port": "3",
    }  # fmt: skip
    assert "port" not in read_flag_values("server", FLAGS, {"port": "3"})


@pytest.mark.parametrize("arguments", [["--max-seqs"], ["--seq"]])
def test_a_missing_value_is_refused(arguments: list[str]) -> None:
    with pytest.raises(InputError, match="the value is missing"):
        split_arguments("server", FLAGS, arguments, {}, OPTIONS)


def test_an_unknown_flag_takes_its_values_along() -> None:
    unknown: dict[str, str] = {}
    assert split_arguments("server", FLAGS, ["--new", "1", "2", "--max-seqs", "3"], {}, OPTIONS, unknown) == (
        [],
        {"max_seqs": "3"},
    )
    assert unknown == {"--new": "server has no such flag"}


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "--speculative-config"), ("sglang", "--speculative-algorithm")])
def test_the_option_of_drafts_names_the_flag_of_the_engine(engine: str, flag: str, run: Callable[..., Result]) -> None:
    error = run("memory", "qwen3-8b", "--hardware", "h200", "--engine", engine, "--draft", "mtp").error
    assert f"--draft: {'vLLM' if engine == 'vllm' else 'SGLang'} has no such flag; expected {flag}" in error


@pytest.mark.parametrize(
    ("engine", "name", "expected"),
    [
        ("vllm", "all2all_backend", "one of naive, allgather_reducescatter"),
        ("vllm", "VLLM_ALL2ALL_BACKEND", "one of naive, allgather_reducescatter"),
        ("sglang", "moe_a2a_backend", "one of none, deepep, mooncake"),
    ],
)
def test_other_libraries_are_refused_by_flag_and_by_variable(engine: str, name: str, expected: str) -> None:
    library = "deepep" if engine == "vllm" else "megamoe"
    backend: dict[str, Any] = {name: library}
    with pytest.raises(InputError, match=f"'{library}': is not modelled; expected {expected}"):
        llmcalc.memory("qwen3-30b-a3b", engine=engine, hardware="h200", **backend)


@pytest.mark.parametrize(
    ("engine", "flag", "expected"),
    [
        ("ollama", "max_model_len", "--num-ctx"),
        ("llama.cpp", "max_model_len", "--ctx-size"),
        ("vllm", "context_length", "--max-model-len"),
        ("sglang", "num_ctx", "--context-length"),
        ("sglang", "gpu_memory_utilization", "--mem-fraction-static"),
        ("vllm", "mem_fraction_static", "--gpu-memory-utilization"),
        ("vllm", "max_running_requests", "--max-num-seqs"),
        ("llama.cpp", "max_num_seqs", "--parallel"),
    ],
)
def test_a_flag_of_another_engine_names_the_engines_own(engine: str, flag: str, expected: str) -> None:
    length: dict[str, Any] = {flag: 8192}
    with pytest.raises(InputError, match=f"has no such flag. Did you mean {expected}"):
        llmcalc.memory("qwen3-8b", engine=engine, hardware="rtx-3090", **length)


@pytest.mark.parametrize("ask", [llmcalc.memory, llmcalc.fit])
def test_changes_are_counted_for_those_who_read_them(ask: Callable[..., Any]) -> None:
    with mock.patch.object(Engine, "flag_changes_on", return_value=[]) as count:
        answer = ask("qwen3-0.6b", engine="vllm", hardware="h100")
        assert answer.result
        assert not count.called
        assert answer.document["changes"] == []
        count.assert_called_once()
