"""Every command is a Python function of its name, with its options, and the document is the command's."""

from __future__ import annotations

import copy
import inspect
import json
import shutil
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

import pytest

import llmcalc
from llmcalc.arguments import READING_OPTIONS
from llmcalc.cli.help import with_help_all_option
from llmcalc.cli.main import COMMANDS, command_module_name
from llmcalc.drawing import DRAWING_FUNCTIONS
from llmcalc.errors import InputError
from llmcalc.plots.pictures import Picture
from tests.contracts.test_imports import PACKAGE, modules
from tests.families import shapes_of
from tests.samples import in_one_test

if TYPE_CHECKING:
    from llmcalc.page_server import PageServer
    from llmcalc.reports.answer import ReportedAnswer
    from llmcalc.reports.kv import Cache
    from llmcalc.reports.memory_answer import DeviceMemoryAnswer
    from llmcalc.reports.ranks_answer import RanksMemoryAnswer

CONFIG = json.dumps(shapes_of("llama")[0])
BUDGET = '[[model]]\ntarget = "gpt2"\nparams = "<= 1M"\n'

LOG = (Path(__file__).parent / "data/logs/vllm_v1.log").read_text()

ASKED: dict[str, tuple[Callable[[], Any], str]] = {
    "params": (lambda: llmcalc.params("gpt2", set=["num_hidden_layers=2"]), "params gpt2 --set num_hidden_layers=2"),
    "params of a rank": (lambda: llmcalc.params("gpt2", tp=2, rank=1), "params gpt2 --tp 2 --rank 1"),
    "flops": (
        lambda: llmcalc.flops("gpt2", users=4, seq="1k", phase="decode", conventions=True),
        "flops gpt2 --users 4 --seq 1k --phase decode --conventions",
    ),
    "kv": (lambda: llmcalc.kv("gpt2", users=3, seq="1k", kv_dtype="fp8"), "kv gpt2 --users 3 --seq 1k --kv-dtype fp8"),
    "kv of a rank": (lambda: llmcalc.kv("gpt2", tp=2), "kv gpt2 --tp 2"),
    "memory": (lambda: llmcalc.memory("gpt2", users=2, hardware="h100"), "memory gpt2 --users 2 --hardware h100"),
    "memory of an engine": (
        lambda: llmcalc.memory("gpt2", engine="vllm", hardware="h100", max_num_seqs=64, enforce_eager=True),
        "memory gpt2 --engine vllm --hardware h100 --max-num-seqs 64 --enforce-eager",
    ),
    "cache of an engine": (
        lambda: llmcalc.kv("gpt2", engine="sglang", hardware="h100", kv_cache_dtype="fp8_e5m2"),
        "kv gpt2 --engine sglang --hardware h100 --kv-cache-dtype fp8_e5m2",
    ),
    "fit of an engine": (
        lambda: llmcalc.fit("gpt2", engine="vllm", users=2, seq=512),
        "fit gpt2 --engine vllm --users 2 --seq 512",
    ),
    "memory of ranks": (
        lambda: llmcalc.memory("gpt2", "training", seq=64, tp=2, gradient_checkpointing=True),
        "memory gpt2 --phase training --seq 64 --tp 2 --gradient-checkpointing",
    ),
    "memory of a launch file": (
        lambda: llmcalc.memory(launch="run.sh", devices=2),
        "memory --launch run.sh --devices 2",
    ),
    "fit": (lambda: llmcalc.fit("gpt2", "h100", users=8, seq="1k"), "fit gpt2 --hardware h100 --users 8 --seq 1k"),
    "fit over devices": (
        lambda: llmcalc.fit("gpt2", "24GiB", devices=2, seq=64),
        "fit gpt2 --hardware 24GiB --devices 2 --seq 64",
    ),
    "plan": (
        lambda: llmcalc.plan("gpt2", "h100", devices=2, seq=64, rows=1, global_batch=4),
        "plan gpt2 --hardware h100 --devices 2 --seq 64 --rows 1 --global-batch 4",
    ),
    "time": (
        lambda: llmcalc.time("gpt2", "h100", seq=64, global_batch=4, measured="5ms", by_node=2, overlap="none"),
        "time gpt2 --hardware h100 --seq 64 --global-batch 4 --measured 5ms --by-node 2 --overlap none",
    ),
    "time of a token": (
        lambda: llmcalc.time("gpt2", "h100", engine="vllm==0.19", users=4, seq=64, nic=50, stack="vllm-eager"),
        "time gpt2 --hardware h100 --engine vllm==0.19 --users 4 --seq 64 --nic 50 --stack vllm-eager",
    ),
    "time of a prompt": (
        lambda: llmcalc.time("gpt2", "h100", "prefill", seq=64, context=32, server=True),
        "time gpt2 --hardware h100 --phase prefill --seq 64 --context 32 --server",
    ),
    "time of a launch file": (
        lambda: llmcalc.time(hardware="h100", launch="run.sh"),
        "time --hardware h100 --launch run.sh",
    ),
    "serve": (
        lambda: llmcalc.serve("gpt2", "h100", "256", 64, concurrency=8, tpot="20ms", price=2.5, tp=1, kv_dtype="fp8"),
        "serve gpt2 --hardware h100 --input 256 --output 64 --concurrency 8 --tpot 20ms --price 2.5 --tp 1 "
        "--kv-dtype fp8",
    ),
    "cost": (
        lambda: llmcalc.cost("gpt2", "h100", tokens="1B", devices=2, seq=512, step="0.5s", price=2, power=400),
        "cost gpt2 --hardware h100 --tokens 1B --devices 2 --seq 512 --step 0.5s --price 2 --power 400",
    ),
    "cost of requests": (
        lambda: llmcalc.cost("gpt2", "h100", requests="1M", input=256, output=64, devices=1, concurrency=4),
        "cost gpt2 --hardware h100 --requests 1M --input 256 --output 64 --devices 1 --concurrency 4",
    ),
    "time, calibrated": (
        lambda: llmcalc.time("gpt2", "h100", seq=64, calibrate="rows.csv"),
        "time gpt2 --hardware h100 --seq 64 --calibrate rows.csv",
    ),
    "plan by time": (
        lambda: llmcalc.plan("gpt2", "h100", devices=2, seq=64, rows=1, where="tp=2", nic=50, stack="maxtext"),
        "plan gpt2 --hardware h100 --devices 2 --seq 64 --rows 1 --where tp=2 --nic 50 --stack maxtext",
    ),
    "compare": (
        lambda: llmcalc.compare("gpt2", "gpt2-xl", sort="params", kv_dtype="fp8"),
        "compare gpt2 gpt2-xl --sort params --kv-dtype fp8",
    ),
    "compare all": (
        lambda: llmcalc.compare(all=True, kind="encoder", max_params="200M"),
        "compare --all --kind encoder --max-params 200M",
    ),
    "diff": (lambda: llmcalc.diff("gpt2", "gpt2-xl", seq=64), "diff gpt2 gpt2-xl --seq 64"),
    "diff of files": (lambda: llmcalc.diff("model/config.json", git="HEAD"), "diff model/config.json --git HEAD"),
    "shape": (
        lambda: llmcalc.shape(params="1B", rows=3, ffn_ratio="8/3"),
        "shape --params 1B --rows 3 --ffn-ratio 8/3",
    ),
    "memory of an engine with a receipt": (
        lambda: llmcalc.memory("llama3.1-8b", engine="vllm==0.19", hardware="h100", receipt="server.log"),
        "memory llama3.1-8b --engine vllm==0.19 --hardware h100 --receipt server.log",
    ),
    "explain-log": (
        lambda: llmcalc.explain_log("server.log", "llama3.1-8b", hardware="h100", engine="vllm==0.19"),
        "explain-log server.log llama3.1-8b --hardware h100 --engine vllm==0.19",
    ),
    "explain": (
        lambda: llmcalc.explain("gpt2", "self_attn", "flops", seq=64, kv_dtype="fp8"),
        "explain gpt2 self_attn -q flops --seq 64 --kv-dtype fp8",
    ),
    "check": (lambda: llmcalc.check("gpt2.safetensors", "gpt2"), "check gpt2.safetensors gpt2"),
    "budget": (lambda: llmcalc.budget("llmcalc.toml"), "budget llmcalc.toml"),
    "presets": (lambda: llmcalc.presets("gpt2", sort="params"), "presets gpt2 --sort params"),
    "hardware": (lambda: llmcalc.hardware("h100"), "hardware h100"),
    "lock": (lambda: llmcalc.lock("gpt2", Path("model")), "lock gpt2 model"),
    "lock, checked": (lambda: llmcalc.lock(check=True), "lock --check"),
    "params of a checkpoint": (lambda: llmcalc.params("gpt2.safetensors"), "params gpt2.safetensors"),
}
"""What is asked → the function and the command."""

LAUNCH = """torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 \\
  --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 2 --bf16 \\
  --tensor-model-parallel-size 2 --vocab-size 128 --make-vocab-size-divisible-by 64
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a config."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(CONFIG)
    git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q", "--template="), ("add", "model"), ("commit", "-q", "-m", "config")):
        subprocess.run([*git, *words], check=True)
    return folder


@pytest.fixture(autouse=True)
def files(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a config in a repository, a budget that is broken, a checkpoint of another model, a launch file."""
    shutil.copytree(repository, tmp_path, dirs_exist_ok=True)
    (tmp_path / "llmcalc.toml").write_text(BUDGET)
    (tmp_path / "run.sh").write_text(LAUNCH)
    (tmp_path / "llmcalc.lock.json").write_text('{"lock": 1, "llmcalc": "0.0.1", "models": [{"target": "gpt2"}]}')
    (tmp_path / "server.log").write_text(LOG)
    (tmp_path / "rows.csv").write_text("users,seconds\n1,2ms\n2,2ms\n8,3ms\n")
    header = json.dumps({"wte.weight": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]}}).encode()
    (tmp_path / "gpt2.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(32))
    monkeypatch.chdir(tmp_path)


def test_no_module_hides_a_function() -> None:
    for name in modules(PACKAGE):
        if name != "llmcalc.__main__":
            import_module(name)
    names = [command_module_name(name) for name in COMMANDS]
    assert all(inspect.isfunction(getattr(llmcalc, name)) for name in names)
    assert [name for name in names if (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).exists()] == []


def test_every_command_is_a_function() -> None:
    assert set(map(command_module_name, COMMANDS)) <= set(llmcalc.__all__)
    with_documents = {name.partition(" ")[0] for name in ASKED}
    assert set(COMMANDS) - with_documents - {"mcp"} == {"plot", "verify", "convert", "schema", "web"}  # tested below


@pytest.mark.parametrize("name", ASKED)
def test_the_document_is_the_commands(name: str, run: Any) -> None:
    ask, words = ASKED[name]
    answer, printed = ask(), run(*words.split(), "--format", "json")
    assert answer.document == json.loads(printed.out)
    assert getattr(answer, "ok", True) is (printed.code == 0)
    assert repr(answer).startswith("<")


def test_a_verdict_is_the_commands(run: Any) -> None:
    answer = llmcalc.verify("gpt2", seq=16)
    printed = run("verify", "gpt2", "--seq", "16", "--format", "json").document
    assert answer.ok
    assert {**answer.document, "seconds": 0} == {**printed, "seconds": 0}


def test_a_conversion_and_the_schema_are_the_commands(run: Any) -> None:
    assert llmcalc.convert("model/config.json") == run("convert", "model/config.json").out
    assert llmcalc.convert("gpt2", to="hf") == run("convert", "gpt2", "--to", "hf").out
    assert llmcalc.schema() == run("schema").document


PICTURES: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "memory": (("gpt2",), {"phase": "training", "seq": 64}, "gpt2 --phase training --seq 64"),
    "schedule": ((), {"pp": 2, "num_microbatches": 4}, "--pp 2 --num-microbatches 4"),
    "time": (
        ("gpt2",),
        {"hardware": "h100", "seq": 64, "global_batch": 4, "by_node": 2},
        "gpt2 --hardware h100 --seq 64 --global-batch 4 --by-node 2",
    ),
    "serve": (
        ("gpt2",),
        {"hardware": "h100", "input": 64, "output_tokens": 32, "tpot": "20ms"},
        "gpt2 --hardware h100 --input 64 --output 32 --tpot 20ms",
    ),
    "roofline": (
        ("gpt2",),
        {"hardware": "h100", "seq": 64, "users": 4, "set": ["num_hidden_layers=2"]},
        "gpt2 --hardware h100 --seq 64 --users 4 --set num_hidden_layers=2",
    ),
    "params": (("gpt2", "gpt2-xl"), {}, "gpt2 gpt2-xl"),
    "kv": (("gpt2",), {"kv_dtype": "fp8"}, "gpt2 --kv-dtype fp8"),
    "flops": (("gpt2",), {}, "gpt2"),
    "shape": (("gpt2",), {"rows": 4}, "gpt2 --rows 4"),
    "aspect": ((), {"kind": "encoder"}, "--kind encoder"),
}


def test_every_picture_is_drawn() -> None:
    assert set(PICTURES) == set(import_module("llmcalc.cli.plot").COMMANDS) == set(Picture.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_the_commands(name: Any, tmp_path: Path, run: Any) -> None:
    pytest.importorskip("matplotlib")
    models, options, words = PICTURES[name]
    llmcalc.plot(name, *models, output="mine.svg", **options)
    assert run("plot", name, *words.split(), "-o", "theirs.svg").code == 0
    assert (tmp_path / "mine.svg").read_bytes() == (tmp_path / "theirs.svg").read_bytes()


def test_the_page_is_served_and_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from urllib.request import urlopen

    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<p>the page</p>")
    monkeypatch.setattr("llmcalc.page_server.build_page", lambda rebuild: (page, ""))
    copied: Any = llmcalc.web(export=tmp_path / "copy")
    assert (copied / "index.html").read_text() == "<p>the page</p>"
    server: Any = llmcalc.web(browser=False)
    with urlopen(server.address) as answer:
        assert answer.read() == b"<p>the page</p>"
    server.close()


OF_THE_OUTPUT = {"format", "output", "output_file", "notes", "table", "junit", "offline", "help_all"}
"""Options that the command line has alone; `convert` returns its text, and `plot` has an output."""


def sort_options(module_of_command: str) -> set[str]:
    """The long names of a command's options, as names of Python. typer has the first one as the option's default.

    module_of_command: below `llmcalc.cli`.
    """
    module = import_module(f"llmcalc.cli.{module_of_command}")
    found = set()
    for parameter in inspect.signature(with_help_all_option(module.command)).parameters.values():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            if type(option).__name__ == "OptionInfo":
                names = [option.default, *(option.param_decls or ()), f"--{parameter.name}"]
                long = next(name for name in names if isinstance(name, str) and name.startswith("--"))
                found.add(long.removeprefix("--").partition("/")[0].replace("-", "_"))
    return found - OF_THE_OUTPUT


WITH_ANY = {"params": {"rank": True}, "flops": {"rank": True}, "kv": {"rank": True}, "explain": {"rank": True}}
WITH_ANY |= {name: {"run": True, "layout": True} for name in ("memory", "fit", "plan", "time", "cost")}
WITH_ANY |= {"verify": {"layout": True}}
"""Command → the groups of options that its function takes as `**options`."""


@in_one_test
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "plot"])
def test_options_have_the_same_names(command: str) -> None:
    function = inspect.signature(getattr(llmcalc, command_module_name(command))).parameters
    taken = set(function)
    if "options" in function:
        taken |= set(READING_OPTIONS) | groups(**WITH_ANY.get(command, {}))
    assert sort_options(command_module_name(command)) - taken == set()


@in_one_test
@pytest.mark.parametrize("picture", DRAWING_FUNCTIONS)
def test_options_of_pictures_have_the_same_names(picture: str) -> None:
    function = inspect.signature(DRAWING_FUNCTIONS[picture]).parameters
    taken = set(function) | {"columns"}  # of the file
    if "options" in function:
        taken |= set(READING_OPTIONS) | groups(run=picture == "memory")
    assert sort_options(f"plot.{picture}") - taken == set()


def groups(**which: bool) -> set[str]:
    """The names that `sort_options` of the arguments takes."""
    from llmcalc.arguments import sort_options as sorted_options

    with pytest.raises(InputError) as error:
        sorted_options({"": 1}, groups, **{f"accepts_{name}": is_taken for name, is_taken in which.items()})
    assert "there is no such option" in str(error.value)
    from llmcalc.device_memory.settings import SETTINGS_BY_SHORTHAND, Settings
    from llmcalc.parallel.counted_rank import rank_settings
    from llmcalc.parallel.layout_request import LayoutRequest
    from llmcalc.workload.setting import declarations_of

    known: set[str] = set(rank_settings()) if which.get("rank") else set()
    known |= {*declarations_of(Settings), *SETTINGS_BY_SHORTHAND} if which.get("run") else set()
    return known | (set(declarations_of(LayoutRequest)) if which.get("layout") else set())


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: llmcalc.params("gpt2", ranks=2), "ranks: there is no such option. Did you mean rank"),
    (lambda: llmcalc.params("gpt2", model_id="gpt2"), "model_id: there is no such option; expected model"),
    (
        lambda: llmcalc.params("gpt2", format="json"),
        "format: there is no such option; an answer is whole, and is data (in",
    ),
    (lambda: llmcalc.params("gpt2", dtype="fp16"), "dtype: there is no such option; memory and fit have it"),
    (lambda: llmcalc.compare(["gpt2", "llama3-8b"]), "model: a list; expected a preset's name, a path"),
    (lambda: llmcalc.fit("gpt2", gpu="h100"), "gpu: there is no such option; expected hardware"),
    (lambda: llmcalc.plan("gpt2", gpu="h100"), "gpu: there is no such option; expected hardware"),
    (lambda: llmcalc.serve("gpt2", gpu="h100"), "gpu: there is no such option; expected hardware"),
    (lambda: llmcalc.cost("gpt2", gpu="h100"), "gpu: there is no such option; expected hardware"),
    (lambda: llmcalc.serve("gpt2"), "--hardware: missing; expected the accelerator"),
    (lambda: llmcalc.memory("gpt2", batch_size=4), "batch_size: there is no such option; expected batch"),
    (
        lambda: llmcalc.memory("gpt2", enable_expert_parallel=True),
        "enable_expert_parallel: there is no such option; expected ep=N, as many as tp times dp",
    ),
    (
        lambda: llmcalc.time("gpt2", "h100", acceptance=0.8),
        'acceptance: there is no such option; expected phase="decode" without a draft, or '
        "llmcalc.serve(draft=TARGET, acceptance=P)",
    ),
    (lambda: llmcalc.memory("gpt2", opts=1), "opts: there is no such option. Did you mean optimizer"),
    (lambda: llmcalc.plan("gpt2", "h100", num_gpus=8), "num_gpus: there is no such option; expected devices"),
    (lambda: llmcalc.memory("gpt2", max_model_len=4), "max_model_len: there is no such option; expected seq"),
    (
        lambda: llmcalc.memory("gpt2", load_in_4bit=True),
        'load_in_4bit: there is no such option; expected quantize="nf4", ',
    ),
    (
        lambda: llmcalc.memory("gpt2", max_num_seqs=4),
        "max_num_seqs: there is no such option. A flag of an engine needs ",
    ),
    (
        lambda: llmcalc.time("gpt2", "h100", isl=9),
        'isl: there is no such option; expected phase="prefill", seq=N for a ',
    ),
    (
        lambda: llmcalc.cost("gpt2", "h100", launch="run.sh"),
        "launch: there is no such option; expected global_batch=N and",
    ),
    (lambda: llmcalc.plot("memory", "gpt2", gpu="h100"), "gpu: there is no such option; expected hardware"),
    (lambda: llmcalc.params("gpt2", tp="x"), "--tp: 'x' is not"),
    (lambda: llmcalc.params(llmcalc.load("gpt2"), set=["num_hidden_layers=2"]), "--set: the model is loaded already"),
    (lambda: llmcalc.flops("gpt2", users=2, batch=2), "--users: it is another name of --batch"),
    (lambda: llmcalc.flops("gpt2", users=2, phase="training"), "--users: training has no users"),
    (lambda: llmcalc.time("gpt2", "h100", server="yes"), "--server: 'yes' is not a truth value"),  # type: ignore[arg-type]
    (lambda: llmcalc.params("gpt2", with_mtp="no"), "--with-mtp: 'no' is not a truth value"),  # type: ignore[arg-type]
    (
        lambda: llmcalc.check("gpt2"),
        "model: missing; expected a preset's name, a path or a config; 'gpt2' is the",
    ),
    (lambda: llmcalc.time("no model", "h100", nic=0), "--nic: 0; expected GB/s"),  # before the model is read
    (lambda: llmcalc.serve("no model", "h100", 1, 1, acceptance=1), "--acceptance: 1; expected a chance below 1"),
    (lambda: llmcalc.cost("no model", "h100", step="1 day"), "--step: '1 day'; expected a duration"),
    (lambda: llmcalc.kv("gpt2", kv_dtype="bf17"), "--kv-dtype: unknown cache format 'bf17'"),
    (lambda: llmcalc.kv("gpt2", seq="32z"), "--seq: '32z' is not"),
    (llmcalc.memory, "model: missing; expected a preset's name, a path or a config; or a launch file"),  # type: ignore[list-item]  # an editor says so too
    (lambda: llmcalc.memory("gpt2", hardware=["h100", "h1000"]), "no accelerator"),
    (lambda: llmcalc.fit("gpt2", hardware=["h100", "a100"]), "--hardware: h100-sxm and a100-80gb"),  # type: ignore[arg-type]
    (lambda: llmcalc.memory("gpt2", batchs=2), "batchs: there is no such option. Did you mean batch"),
    (lambda: llmcalc.fit("gpt2", "h100", zero=3), "--devices: missing"),
    (lambda: llmcalc.plan("gpt2", "h100"), "--devices: missing"),
    (llmcalc.compare, "missing argument TARGET"),
    (lambda: llmcalc.compare("gpt2", sort="size"), "--sort: "),
    (lambda: llmcalc.explain("gpt2", quantity="size"), "--quantity: 'size' is not known"),  # type: ignore[arg-type]
    (lambda: llmcalc.explain("gpt2", kv_dtype="bf17"), "--kv-dtype: unknown cache format 'bf17'"),
    (lambda: llmcalc.explain_log("none.log"), "none.log: "),
    (lambda: llmcalc.explain_log("run.sh"), "run.sh: no line is known"),
    (lambda: llmcalc.memory("gpt2", receipt="server.log"), "--receipt: only applies to an engine"),
    (lambda: llmcalc.diff("gpt2"), "diff: 1 TARGET; expected two"),
    (lambda: llmcalc.shape("gpt2", rows=0), "--rows: 0 is too small"),
    (lambda: llmcalc.shape("gpt2", kv_ratio="x"), "gpt2: --kv-ratio: 'x' is not"),
    (lambda: llmcalc.budget("none.toml"), "none.toml: "),
    (llmcalc.verify, "missing argument TARGET; expected one or more, or --all"),
    (lambda: llmcalc.verify("gpt2", tp=2), "verify: options of layouts only apply to --distributed"),
    (lambda: llmcalc.check("none.safetensors", "gpt2"), "none.safetensors: "),
    (lambda: llmcalc.convert("gpt2", to="json"), "--to: 'json' is not known"),  # type: ignore[arg-type]
    (lambda: llmcalc.presets("gpt22"), "no preset has 'gpt22'"),
    (lambda: llmcalc.presets(sort="size"), "--sort: 'size' is not known"),
    (lambda: llmcalc.hardware("h1000"), "no accelerator"),
    (lambda: llmcalc.plot("bars", "gpt2"), "PICTURE: 'bars' is not known"),  # type: ignore[arg-type]
    (lambda: llmcalc.plot("aspect", "gpt2"), "plot aspect: too many positional arguments"),
    (
        lambda: llmcalc.plot("roofline", "gpt2", hardware="h100", phase="training"),
        "--phase training: has no roofline; expected prefill or decode",
    ),
    (lambda: llmcalc.plot("serve", "gpt2", hardware="h100", input=0), "--input: 0 is too small"),
    (lambda: llmcalc.plot("time", "gpt2"), "--hardware: missing"),
    (lambda: llmcalc.plot("params", "gpt2", output="x.gif"), "--output x.gif: "),
    (lambda: llmcalc.web(port=-1, browser=False, export="."), "--export: .: is not empty"),
]


@in_one_test
@pytest.mark.parametrize(("ask", "message"), WRONG, ids=[message for _, message in WRONG])
def test_bad_input_is_one_line(ask: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        ask()
    assert str(error.value).startswith(message)


def test_an_unknown_attribute_names_where_the_value_is() -> None:
    answer: Any = llmcalc.time("gpt2", hardware="h100")
    with pytest.raises(AttributeError, match=r"no attribute 'seconds'; expected \.result\.seconds"):
        _ = answer.seconds
    counts: Any = llmcalc.params("gpt2")
    with pytest.raises(AttributeError, match=r"Did you mean total\? The keys of \.document are those of --format json"):
        _ = counts.totals
    with pytest.raises(AttributeError) as error:
        _ = answer.report_
    assert "Did you mean report? " in str(error.value)
    with pytest.raises(AttributeError, match=r"no attribute '_total'$"):
        _ = counts._total
    assert copy.deepcopy(counts) == counts


def test_an_answer_has_one_type_for_its_arguments() -> None:
    """With an engine the answer is a report, without one it has the counts as attributes: editors know which."""
    from typing import get_overloads

    answers = {
        name: [signature.__annotations__["return"] for signature in get_overloads(getattr(llmcalc, name))]
        for name in ("kv", "memory", "web")
    }
    assert answers == {
        "kv": ["Cache", "ReportedAnswer"],
        "memory": [
            "DeviceMemoryAnswer | RanksMemoryAnswer",
            "ReportedAnswer",
            "DeviceMemoryAnswer | RanksMemoryAnswer | ReportedAnswer",
        ],
        "web": ["PageServer", "Path"],
    }
    if TYPE_CHECKING:
        assert_type(llmcalc.kv("gpt2"), Cache)
        assert_type(llmcalc.kv("gpt2", engine="vllm", hardware="h100"), ReportedAnswer)
        assert_type(llmcalc.memory("gpt2"), DeviceMemoryAnswer | RanksMemoryAnswer)
        assert_type(llmcalc.memory("gpt2", engine="vllm"), ReportedAnswer)
        assert_type(llmcalc.web(browser=False), PageServer)


def test_a_price_of_thousands_of_digits() -> None:
    with pytest.raises(InputError, match="--price: a number of thousands of digits is too large"):
        llmcalc.serve("gpt2", hardware="h100", input=100, output=100, price=10**5000)


def test_values_of_another_type_are_refused_by_the_option() -> None:
    python: Any = llmcalc
    many_digits = 10**5000
    calls: dict[str, Callable[[], Any]] = {
        "--set: True is not text": lambda: python.params("gpt2", set=True),
        "--set: 120 is not text": lambda: python.shape(params="1B", set=b"x"),
        "--lora-targets: True is no list": lambda: python.memory("gpt2", "training", lora_rank=8, lora_targets=True),
        "--quantize: .* is not text": lambda: python.kv("gpt2", engine="vllm", hardware="h100", quantize=many_digits),
        "--audio: .* is too large": lambda: python.flops("gpt2", audio=10**400),
        "--engine: True is not text": lambda: python.kv("gpt2", engine=True, hardware="h100"),
        "--kind: True is not text": lambda: python.presets(kind=True),
        "--attention: 5 is not text": lambda: python.presets(attention=5),
        "--sort: a list is not text": lambda: python.presets(sort=[]),
        "--min-params: .* is too large": lambda: python.presets(min_params=many_digits),
        "--ffn-ratio: .* is too large": lambda: python.shape(params="1B", ffn_ratio=many_digits),
        "--tolerance: nan": lambda: python.shape(params="1B", tolerance=float("nan")),
        "FILE: none is no path": lambda: python.budget(None),
        "CHECKPOINT: .* is no path": lambda: python.check(many_digits, "gpt2"),
        "a{300}: expected a .safetensors": lambda: python.check("a" * 300, "gpt2"),
        "LOG: .* is no path": lambda: python.explain_log(many_digits),
        "--launch: .* is no path": lambda: python.memory(launch=many_digits),
        "--cublas-workspace: True is not text": lambda: python.memory("gpt2", cublas_workspace=True),
        "--hardware: missing": lambda: python.plan("gpt2", None, devices=2),
        "overrides: .* digits": lambda: python.load("gpt2", hidden_size=many_digits),
    }
    for message, call in calls.items():
        with pytest.raises(InputError, match=message):
            call()
