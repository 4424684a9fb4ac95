"""The output of the commands, stored as files: a diff shows any change of a number, a unit or a word.

`python -m tests.reports.test_goldens` rewrites them. Output has 80 columns, no colour, as in a pipe; times are removed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from llmcalc.cli.main import COMMANDS
from tests.samples import in_one_test
from tests.test_readme import ROOT, printed_without_times

GOLDENS = Path(__file__).parent / "goldens"

SCREENS = {
    "params": "params llama3-8b",
    "params-mixture": "params deepseek-v3 --with-mtp",
    "params-several": "params t5-11b gpt2",
    "params-rank": "params deepseek-v3 --tp 4 --dp 8 --ep 32 --etp 1 --notes",
    "params-json": "params gpt2 --format json",
    "params-csv": "params gpt2 --format csv",
    "params-markdown": "params gpt2 --format markdown",
    "flops": "flops llama3-8b",
    "flops-rules": "flops llama3-8b --phase train --conventions",
    "flops-rank": "flops llama3-8b --phase train --tp 4 --pp 2 --cp 2 --sequence-parallel --notes",
    "flops-recompute": "flops deepseek-v3 --phase train --recompute full --attention-backward flash",
    "flops-prefill": "flops llama3-8b --phase prefill --seq 512 --context 1024 --pairs causal",
    "flops-decode": "flops gemma2-9b --phase decode --context 8192 --batch 16",
    "flops-latent": "flops deepseek-v3 --phase prefill --seq 512 --context 4096 --notes",
    "flops-encoder-decoder": "flops bart-large --seq 512",
    "diff": "diff llama3-8b qwen3-8b",
    "diff-markdown": "diff qwen3-8b qwen3-8b?num_hidden_layers=40 --format markdown --notes",
    "kv": "kv llama3-8b",
    "kv-window": "kv gemma3-27b --seq 131072 --batch 2",
    "kv-rank": "kv llama3-8b --tp 16 --pp 2 --rank 20",
    "kv-latent": "kv deepseek-v3 --dtype fp8",
    "memory-inference": "memory llama3-70b --batch 8 --seq 8192 --hardware h100-sxm --hardware b200",
    "memory-quantized": "memory llama3-8b --quantize awq-int4-g128 --seq 8192 --hardware rtx-4090",
    "memory-training": "memory llama3-8b --phase training --master-weights fp32 --hardware h200",
    "memory-adapters": "memory llama3-8b --phase training --lora-rank 16 --base nf4 --hardware 24GiB --notes",
    "memory-decode": "memory mixtral-8x7b --phase decode --seq 32k --hardware h200",
    "fit": "fit llama3-70b --hardware h100",
    "fit-training": "fit llama3-8b --hardware b200 --phase training --optimizer-impl fused",
    "fit-devices": "fit llama3-8b --hardware h100 --devices 2 --seq 4k",
    "memory-layout": "memory llama3-8b --phase training --seq 2k --tp 2 --pp 2 --num-microbatches 4 "
    "--framework megatron --hardware h100",
    "memory-serving": "memory llama3-70b --phase decode --seq 8k --batch 16 --tp 4 --pp 2 --hardware h100 --notes",
    "fit-serving": "fit llama3-70b --hardware h100 --devices 4 --phase decode --seq 8k",
    "fit-engine": "fit qwen3-8b --engine vllm --users 64 --seq 32k --hardware h100",
    "memory-launch": "memory --launch tests/data/launches/gpt3_7b.sh --hardware h100",
    "plan": "plan llama3-8b --hardware h100 --devices 4 --seq 4k --rows 4",
    "plan-mixture": "plan olmoe-1b-7b?num_hidden_layers=4 --hardware h100 --devices 8 --seq 4k",
    "serve": "serve llama3.1-8b --hardware h100 --input 4k --output 512 --concurrency 64 --tpot 20ms --price 2.5",
    "cost": "cost llama3-8b --tokens 1T --hardware h100 --devices 16 --seq 8k --global-batch 512 --price 2.5 --notes",
    "budget": "budget tests/data/llmcalc.toml",
    "lock": "lock llama3-8b deepseek-v3 --format table",
    "lock-check": "lock --check tests/data/llmcalc.lock.json",
    "plot-schedule": "plot schedule --pp 4 --num-microbatches 8",
    "plot-schedule-interleaved": "plot schedule --pp 4 --vpp 2 --num-microbatches 8",
    "plot-schedule-dualpipe": "plot schedule --pp 4 --schedule dualpipe --num-microbatches 8",
    "compare": "compare llama3-8b gpt3-175b",
    "compare-six": "compare gpt3-175b llama3-8b deepseek-v3 mixtral-8x7b bart-large gpt2",
    "compare-on-hardware": "compare llama3-8b mixtral-8x7b gpt-oss-20b --hardware h100 --users 16",
    "shape": "shape llama3-8b",
    "shape-params": "shape --params 8e9 --rows 4",
    "shape-flops": "shape --flops 1e24 --rows 4",
    "explain": "explain llama3-8b",
    "explain-rank": "explain llama3-8b --tp 16 --pp 2 -q params",
    "explain-node": "explain deepseek-v3 self_attn",
    "explain-mixture": "explain mixtral-8x7b mlp",
    "explain-latex": "explain llama3-8b mlp --latex",
    "explain-activations": "explain mixtral-8x7b -q activations --attn-implementation flash --batch 4 --seq 8k --notes",
    "verify": "verify llama3-8b",
    "verify-published": "verify gpt2 bert-base deepseek-v3 --against published",
    "presets": "presets llama",
    "presets-one": "presets llama3-8b",
    "hardware": "hardware",
    "hardware-one": "hardware h100-sxm",
}
HELP = {f"help-{name}": f"{name} --help" for name in COMMANDS} | {"help": "--help"}
ALL = SCREENS | HELP


def screen(name: str) -> str:
    """Returns the output of the golden's command in the root of the repository, without times."""
    with contextlib.chdir(ROOT):
        return printed_without_times(f"llmcalc {ALL[name]}")


@pytest.mark.parametrize("name", ALL)
def test_the_screen_is_the_golden(name: str) -> None:
    assert screen(name) == (GOLDENS / f"{name}.txt").read_text(encoding="utf-8"), (
        "if this is meant: python -m tests.reports.test_goldens, and read the diff"
    )


def test_no_golden_is_left_over() -> None:
    assert {path.name for path in GOLDENS.iterdir()} == {f"{name}.txt" for name in ALL}


@in_one_test
@pytest.mark.parametrize("name", ALL)
def test_it_fits_eighty_columns(name: str) -> None:
    if name not in ("params-json", "params-markdown", "diff-markdown", "explain-latex"):
        lines = (GOLDENS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        assert all(len(line) <= 80 for line in lines if "://" not in line)  # links are never wrapped


if __name__ == "__main__":
    GOLDENS.mkdir(exist_ok=True)
    for old in GOLDENS.glob("*.txt"):
        old.unlink()
    for name in ALL:
        (GOLDENS / f"{name}.txt").write_text(screen(name), encoding="utf-8")
