"""Large but valid input is answered in bounded time and memory, or refused with the bound.

The aim is 5 s and 512 MB on a quiet machine; the time limit here is generous, since other work may share it.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.bounds import bounded
from tests.samples import with_rest

LAUNCH = Path(__file__).parent / "data" / "launches" / "llama3_70b_2026.toml"

ANSWERED: dict[str, tuple[str, ...]] = {
    "a plan for the most devices": ("plan", "llama3-8b", "--hardware", "h100", "--devices", "1048576"),
    "a plan of a large mixture for the most devices": (
        "plan", "deepseek-v3", "--hardware", "h100", "--devices", "1048576", "--rows", "1",
    ),
    "a plan for a large prime": (
        "plan", "llama3-8b", "--hardware", "h100", "--devices", "1048573", "--global-batch", "1048573", "--rows", "1",
    ),
    "a fit for the most devices": ("fit", "llama3-8b", "--hardware", "h100", "--devices", "1048576"),
    "serving on the most devices": (
        "fit", "llama3-8b", "--hardware", "h100", "--devices", "1048576", "--phase", "decode",
    ),
    "a ring of thousands of ranks": (
        "plan", "llama3-8b", "--hardware", "h100", "--devices", "4096", "--seq", "4M", "--tp", "1", "--rows", "1",
        "--cp", "4096",
    ),
    "a prompt of 1e12 tokens": ("memory", "llama3-8b", "--seq", "1000000000000"),
    "a fit of 100,000 layers": ("fit", "llama3-8b?num_hidden_layers=100000", "--hardware", "h100"),
    "a training fit of 1,000 layers": (
        "fit", "llama3-8b?num_hidden_layers=1000", "--hardware", "h100", "--phase", "training",
    ),
    "a training fit of 1,000 layers with adapters": (
        "fit", "llama3-8b?num_hidden_layers=1000", "--hardware", "b200", "--phase", "training", "--lora-rank", "16",
    ),
    "a fit of 1,000 layers": ("fit", "llama3-8b?num_hidden_layers=1000", "--hardware", "h100"),
    "a training fit of 100,000 layers": (
        "fit", "llama3-8b?num_hidden_layers=100000", "--hardware", "h100", "--phase", "training",
    ),
    "a fit of 1e12 tokens": ("fit", "llama3-8b", "--hardware", "h100", "--seq", "1000000000000"),
    "a step of 1e6 micro-batches": (
        "memory", "llama3-8b", "--phase", "training", "--framework", "megatron", "--pp", "4", "--num-microbatches",
        "1000000",
    ),
    "as many micro-batches as stages, a thousand": (
        "memory", "llama3-8b?num_hidden_layers=1024", "--phase", "training", "--framework", "torch", "--pp", "1024",
        "--num-microbatches", "1024",
    ),
    "thousands of stages": (
        "memory", "llama3-8b?num_hidden_layers=4096", "--phase", "training", "--framework", "megatron", "--pp", "4096",
    ),
    "100,000 layers in 1,000 stages": (
        "memory", "llama3-8b?num_hidden_layers=100000", "--phase", "training", "--framework", "megatron", "--pp",
        "1000",
    ),
    "300 micro-batches of five chunks of each rank": (
        "memory", "llama3-70b", "--phase", "training", "--framework", "fsdp2", "--fsdp", "8", "--pp", "8", "--vpp",
        "5", "--num-microbatches", "304",
    ),
    "a training fit of 256 layers on devices of many divisors": (
        "fit", "llama3-8b?num_hidden_layers=256", "--hardware", "h100", "--devices", "720720", "--phase", "training",
    ),
    "a training fit of 240 layers on devices of many divisors": (
        "fit", "llama3-8b?num_hidden_layers=240", "--hardware", "h100", "--devices", "720720", "--phase", "training",
    ),
    "serving of 10,000 layers on the most devices": (
        "fit", "llama3-8b?num_hidden_layers=10000", "--hardware", "h100", "--devices", "1048576",
    ),
    "a training fit of 70B on the most devices": (
        "fit", "llama3-70b", "--hardware", "h100", "--devices", "1048576", "--phase", "training",
    ),
    "serving of a mixture on devices of many divisors": (
        "fit", "deepseek-v3", "--hardware", "h100", "--devices", "720720",
    ),
    "a training fit of a mixture on devices of many divisors": (
        "fit", "deepseek-v3", "--hardware", "h100", "--devices", "720720", "--phase", "training",
    ),
    "a training fit of a hybrid at 1M tokens": (
        "fit", "granite-4.0-h-small", "--hardware", "h100", "--devices", "1024", "--phase", "training", "--seq", "1M",
    ),
    "a plan of torch's rings at 1M tokens": (
        "plan", "llama3-8b", "--hardware", "h100", "--framework", "fsdp2", "--devices", "1024", "--seq", "1M",
    ),
    "servers of 1M tokens in and out": (
        "serve", "granite-4.0-h-small", "--hardware", "h100", "--input", "1M", "--output", "1M",
    ),
    "a convolution over 1e6 tokens": ("explain", "lfm2-1.2b", "--set", "conv_L_cache=1000000"),
}  # fmt: skip
"""Commands that are answered, with exit code 0, or 1 where nothing fits."""

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "1e9 devices": (
        ("plan", "deepseek-v3", "--hardware", "h100", "--gpus", "1000000000"),
        r"^error: --gpus: 1000000000 is too large; expected at most 1048576\n$",
    ),
    "1e6 ranks of a model that they do not divide": (
        ("explain", "mamba-130m", "--set", "conv_kernel=1000000", "--tp", "1000000"),
        r"--tp 1000000: does not divide inner 1536; .*nearest layouts: --tp 1536",
    ),
    "1e9 chunks and 1e9 stages": (
        ("explain", "llama3-8b", "--tp", "1000000007", "--vpp", "1000000000", "--pp", "1000000"),
        r"nearest layouts: ",
    ),
    "layouts of a model of 257 layers": (
        ("plan", "llama3-8b?num_hidden_layers=257", "--hardware", "h100", "--devices", "8"),
        r"257 layers are too many for a search of layouts; expected at most 256 \(llmcalc memory answers for",
    ),
    "training layouts of 100,000 layers": (
        ("fit", "llama3-8b?num_hidden_layers=100000", "--hardware", "h100", "--devices", "8", "--phase", "training"),
        r"100,000 layers are too many for a search of layouts; expected at most 256 ",
    ),
    "serving layouts of 100,000 layers": (
        ("fit", "llama3-8b?num_hidden_layers=100000", "--hardware", "h100", "--devices", "8"),
        r"100,000 layers are too many for a search of layouts; expected at most 10,000 ",
    ),
    "1e6 stages": (
        ("memory", "llama3-8b", "--phase", "training", "--framework", "megatron", "--pp", "1000000"),
        r"--pp 1000000: more stages than the 32 layers",
    ),
    "1e6 micro-batches of torch's pipeline": (
        ("memory", "llama3-8b", "--phase", "training", "--framework", "torch", "--pp", "4", "--num-microbatches",
         "1000000"),
        r"--num-microbatches 1000000: a pipeline of torch .* expected at most 1,024",
    ),
    "1e6 micro-batches of torch's replicas": (
        ("memory", "llama3-8b", "--phase", "training", "--framework", "torch", "--dp", "2", "--num-microbatches",
         "1000000"),
        r"--num-microbatches 1000000: a step of torch has the loss of each .* expected at most 1,024",
    ),
    "1,024 micro-batches of five chunks of each rank": (
        ("memory", "llama3-70b", "--phase", "training", "--framework", "fsdp2", "--fsdp", "8", "--pp", "8", "--vpp",
         "5", "--num-microbatches", "1024"),
        r"--num-microbatches 1024: a pipeline of torch .* expected at most 307",
    ),
    "serving layouts of 10,000 layers on devices of many divisors": (
        ("fit", "llama3-8b?num_hidden_layers=10000", "--hardware", "h100", "--devices", "720720"),
        r"--devices 720720: none of the \d+ layouts with most replicas fits, and the search ended before the other \d+",
    ),
    "a plan of 1M sequences of 1M tokens": (
        ("plan", "llama3-8b", "--hardware", "h100", "--framework", "fsdp2", "--devices", "1024", "--seq", "1M",
         "--batch", "1M", "--global-batch", "1024M"),
        r"--devices 1024: nothing fits so far, and the search ended before all \d+ layouts were tried and replayed",
    ),
    "100,000 layers of DeepSpeed": (
        ("memory", "llama3-8b?num_hidden_layers=100000", "--phase", "training", "--framework", "deepspeed", "--dp", "8",
         "--zero", "3"),
        r"--framework deepspeed: 100,000 layers are too many, each of which is replayed; expected at most 10,000",
    ),
    "512 ranks of torch's ring": (
        ("memory", "llama3-8b", "--phase", "training", "--framework", "fsdp2", "--cp", "512", "--seq", "1M", "--fsdp",
         "1"),
        r"--cp 512: a round of torch's ring is replayed for each rank; expected at most 256",
    ),
    "1e6 micro-batches of FSDP2's pipeline": (
        ("memory", "llama3-8b", "--phase", "training", "--framework", "fsdp2", "--fsdp", "8", "--pp", "4",
         "--num-microbatches", "1000000"),
        r"--num-microbatches 1000000: a pipeline of torch .* expected at most 1,024",
    ),
}  # fmt: skip


SLOW = {
    "a plan of a large mixture for the most devices",
    "a fit of 1e12 tokens",
    "a fit of 1,000 layers",
    "a training fit of 1,000 layers",
    "a training fit of 1,000 layers with adapters",
    "a training fit of 100,000 layers",
    "a training fit of 240 layers on devices of many divisors",
    "a training fit of 70B on the most devices",
    "a training fit of a mixture on devices of many divisors",
    "a training fit of a hybrid at 1M tokens",
    "a plan of torch's rings at 1M tokens",
    "servers of 1M tokens in and out",
    "300 micro-batches of five chunks of each rank",
    "a fit of 100,000 layers",
    "serving of 10,000 layers on the most devices",
    "serving of a mixture on devices of many divisors",
}
"""The plan of a dense model, the search of servers that is refused below, the prompt of as many tokens and other deep
models are tried anyway; what of many layers is replayed, simulator/test_unfolding.py and device_memory/test_fold.py
count.
"""


@pytest.mark.parametrize("words", with_rest(ANSWERED, ANSWERED.keys() - SLOW))
def test_large_sizes_are_answered(words: tuple[str, ...]) -> None:
    done = bounded(*words, timeout=150)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_names_the_bound(words: tuple[str, ...], message: str) -> None:
    done = bounded(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(message, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("stages", "devices", "batches"),
    [
        (16, 512, 128),
        *(
            pytest.param(stages, devices, batches, marks=pytest.mark.exhaustive)
            for stages, devices, batches in ((8, 512, 8), (16, 512, 64), (4, 512, 256), (64, 2048, 64))
        ),
    ],
)
def test_a_long_pipeline_of_70b_is_answered(stages: int, devices: int, batches: int, tmp_path: Path) -> None:
    job = LAUNCH.read_text().replace("pipeline_parallel_degree = 1", f"pipeline_parallel_degree = {stages}")
    job = job.replace("local_batch_size = 8", f"local_batch_size = {batches}")
    (tmp_path / "job.toml").write_text(job.replace("global_batch_size = 512", "global_batch_size = 65536"))
    done = bounded("memory", "--launch", "job.toml", "--devices", str(devices), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"pp {stages}" in " ".join(done.stdout.split())


def layers_of_many_kinds(path: Path, layers: int = 1000, kinds: int = 250) -> None:
    """Writes a model whose layers have widths of their own, in no order that comes again."""
    order = random.Random(0).choices(range(kinds), k=layers)
    pattern = ", ".join(f'"k{i}"' for i in order)
    variants = "\n".join(
        f"[model.decoder.variants.k{i}.feed_forward]\nintermediate_size = {2048 + 16 * i}" for i in range(kinds)
    )
    path.write_text(
        f"""title = "Many"
[model]
vocab_size = 32000
hidden_size = 2048
tie_word_embeddings = false
[model.decoder]
num_hidden_layers = {layers}
final_norm = {{ type = "rmsnorm" }}
pattern = [{pattern}]
[model.decoder.block]
norm = {{ type = "rmsnorm" }}
norm_placement = "pre"
[model.decoder.block.attention]
num_attention_heads = 16
num_key_value_heads = 8
head_dim = 128
position = {{ type = "rope", rope_theta = 500000.0 }}
[model.decoder.block.feed_forward]
intermediate_size = 6144
hidden_act = "silu"
gated = true
{variants}
"""
    )


@pytest.mark.parametrize(
    "command", ["flops", *(pytest.param(c, marks=pytest.mark.exhaustive) for c in ("params", "kv"))]
)
def test_a_thousand_layers_of_many_kinds_are_counted_on_a_rank(command: str, tmp_path: Path) -> None:
    layers_of_many_kinds(tmp_path / "many.toml")
    done = bounded(command, "many.toml", "--pp", "4", "--tp", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("phase", ["training", pytest.param("inference", marks=pytest.mark.exhaustive)])
def test_a_fit_of_a_thousand_layers_without_a_pattern_is_refused(phase: str, tmp_path: Path) -> None:
    layers_of_many_kinds(tmp_path / "many.toml")
    done = bounded("fit", "many.toml", "--hardware", "h100", "--phase", phase, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "1,000 layers that repeat no pattern are too many for memory; expected at most 256" in done.stderr


def test_more_kinds_of_layers_than_the_bound_are_refused(tmp_path: Path) -> None:
    layers_of_many_kinds(tmp_path / "many.toml", kinds=1000)
    done = bounded("params", "many.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "at most 256 entries" in done.stderr
