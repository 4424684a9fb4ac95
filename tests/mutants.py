"""Which mistakes the quick tests notice: `python -m tests.mutants` makes one at a time, in a copy, and runs `--quick`.

A mutant is one line of the package with a mistake in it. Of each, the script prints the test that failed first, or that
none did; the tests of the mutant's own package run first. Numbers as arguments run some mutants: `python -m
tests.mutants 3 17`. The quick tests (`tests/quick.py`) have to catch nine of ten.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.quick import QUICK, SLOW, is_quick

ROOT = Path(__file__).parent.parent


class Mutant(NamedTuple):
    """A mistake. file: below llmcalc/. text: what stands there, once in the file. replacement: what is put there."""

    file: str
    text: str
    replacement: str


MUTANTS = (
    # the arithmetic of one op
    Mutant(
        "ops/linear.py", "matrix_params = 0 if self.is_tied else self.n_in * self.n_out",
        "matrix_params = self.n_in * self.n_out",
    ),
    Mutant("ops/linear.py", "2 * add(row_count, gradient_rows) * self", "2 * add(row_count, row_count) * self"),
    Mutant(
        "ops/linear.py", "return self.top_k * self.expert_params()", "return self.num_experts * self.expert_params()"
    ),
    Mutant("ops/attention.py", "product_widths += self.qk_dim", "product_widths += 0"),
    Mutant("ops/attention.py", "floor_div(window - 1, 2), floor_div(window, 2)", "window // 2, window // 2"),
    Mutant("ops/attention.py", "minimum(token_count, self.token_limit)", "self.token_limit"),
    # parts
    Mutant("components/networks/feed_forward.py", 'x, ffn_axis, bias=self.up_bias,', 'x, ffn_axis,'),
    Mutant("components/mixers/attention.py", 'x, (heads, head_dim), self.k_bias,', 'x, (heads, head_dim), False,'),
    Mutant("components/rope.py", "int(head_dim * self.partial_rotary_factor) // 2 * 2", "head_dim"),
    # the tree
    Mutant("flow/tree.py", '"kept": FLOP_EFFECTS | CACHE_EFFECTS,', '"kept": CACHE_EFFECTS,'),
    Mutant("flow/tree.py", '"no_grad": frozenset({"backward_flops"}),', '"no_grad": frozenset(),'),
    Mutant("flow/tree.py", 'SKIPPED_PARAM_EFFECTS | {"active_params"},', "SKIPPED_PARAM_EFFECTS,"),
    # costs
    Mutant("costs/params.py", "active - self.tree.total(CountedOp.max_sk", "active + self.tree.total(CountedOp.max_sk"),
    Mutant("costs/flops.py", "forward_flops + counted_op.backward_flops()", "2 * forward_flops"),
    Mutant("costs/cache.py", "counted_op.cache_bits(2) - counted_op.cache_bits(1)", "counted_op.cache_bits(1)"),
    Mutant("costs/recomputation.py", "= _convolution_flops if recompute.saved_operations else", "="),
    Mutant("costs/trained_tensors.py", ' and len(self.tensor.shape) == 2', ""),
    Mutant("costs/quantization/linear.py", '= ("router", "residual", "mtp")', '= ("residual", "mtp")'),
    # readers
    Mutant(
        "sources/huggingface/families/llama/llama.py",
        '"full" if layer_index < first',
        '"full" if layer_index <= first',
    ),
    Mutant(
        "sources/huggingface/families/deepseek/deepseek.py",
        "width * shared_expert_count) if shared_expert_count",
        "width) if shared_expert_count",
    ),
    Mutant(
        "sources/huggingface/parts.py",
        "rotary_fraction = default_rotary_fraction if rotary_fraction is None else rotary_fraction",
        "rotary_fraction = default_rotary_fraction",
    ),
    Mutant("sources/checkpoints/safetensors.py", "// 8 != tensor.nbytes", "// 8 < tensor.nbytes"),
    Mutant("sources/target.py", 'in ("none", "null")', 'in ("null",)'),
    # the simulator
    Mutant(
        "simulator/aten/elementwise.py",
        "power = self.new_like(output_gradient), self.new_like(output)",
        "power = (self.new_like(output_gradient),) * 2",
    ),
    Mutant("simulator/caching_allocator.py", "SMALL_SIZE = 1 << 20", "SMALL_SIZE = 1 << 19"),
    Mutant("simulator/caching_allocator.py", "expandable else SMALL_UNITS + 1", "expandable else SMALL_UNITS"),
    Mutant(
        "simulator/repeat_layers.py",
        "(longer_bytes - shorter_bytes) * missing_layers // added_layers",
        "(longer_bytes - shorter_bytes) * (missing_layers - 1) // added_layers",
    ),
    Mutant(
        "simulator/layer_stacks.py",
        "return pattern_repeats * self.pattern_multiple + self.remaining_repeats",
        "return pattern_repeats * self.pattern_multiple",
    ),
    Mutant("workload/recompute.py", '"bmm", "baddbmm", "grouped_mm"', '"bmm", "grouped_mm"'),
    # the memory of one device
    Mutant("device_memory/static.py", '"float32" if has_master_weights else weight_format', "weight_format"),
    Mutant("device_memory/static.py", 'self.workload.seq + (self.phase == "decode")', "self.workload.seq"),
    Mutant(
        "device_memory/device_memory.py",
        "replay_result.final_bytes + replay_result.rounding_bytes_after,",
        "replay_result.final_bytes,",
    ),
    Mutant("device_memory/cuda_runtime.py", "LARGE_GPU_CAPABILITIES = (9, 10, 12)", "LARGE_GPU_CAPABILITIES = (9, 10)"),
    # layouts
    Mutant("parallel/layout.py", "self.dp * self.cp // self.hsdp_replicas", "self.dp // self.hsdp_replicas"),
    Mutant(
        "parallel/layout.py",
        "pp, dp = divmod(remaining_rank, self.dp)",
        "dp, pp = divmod(remaining_rank, self.pp)",
    ),
    Mutant(
        "parallel/messages.py",
        "collective.repetitions * stage_chunk.micro_batches",
        "collective.repetitions",
    ),
    # frameworks
    Mutant("frameworks/megatron/param_and_grad_buffer.py", "shard_count, BUCKET_ALIGNMENT,", "BUCKET_ALIGNMENT,"),
    Mutant("frameworks/fsdp2/param_groups.py", "_elements * fsdp_sharding.shard_count *", "_elements *"),
    Mutant(
        "frameworks/deepspeed/partitions.py",
        "(PARTITION_ALIGNMENT * rank_count)) * PARTITION_ALIGNMENT *",
        "rank_count) *",
    ),
    # the command line and its reports
    Mutant("reports/memory_answer.py", 'any(accelerator_fit.verdict != "no"', 'any(accelerator_fit.verdict == "no"'),
    Mutant("reports/params.py", "if active_params != total_params:", "if active_params > total_params:"),
    Mutant("reports/formats/plain.py", "raw_value.is_integer() and abs(raw_value)", "abs(raw_value)"),
)  # fmt: skip

FIRST = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def first_failure(folder: Path, *paths: str) -> str:
    """The quick test that fails first in a copy of the project, of these paths or of all; empty if none does."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    chosen = [*paths, *(f"--deselect=tests/{name}" for name in SLOW)] if paths else ["--quick"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *chosen]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    if (found := FIRST.search(done.stdout)) is None:
        raise SystemExit(f"error: pytest ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-500:]}")
    return found[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Which mistakes the quick tests notice"
    )
    parser.add_argument("numbers", nargs="*", type=int, help="of the mutants to run, from 1; all by default")
    chosen = parser.parse_args().numbers or range(1, len(MUTANTS) + 1)
    caught = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "copy"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "site", "dist"))
        if failed := first_failure(folder):
            raise SystemExit(f"error: without a mutant {failed} fails")
        for number in chosen:
            mutant = MUTANTS[number - 1]
            file = folder / "llmcalc" / mutant.file
            text, start = file.read_text(), time.monotonic()
            file.write_text(text.replace(mutant.text, mutant.replacement))
            near = [f"tests/{name}" for name in QUICK if name.startswith(mutant.file.split("/")[0])]
            near_failure = first_failure(folder, *near) if near else ""
            test = near_failure if near_failure and is_quick(near_failure) else first_failure(folder)
            file.write_text(text)
            caught += bool(test)
            print(f"{number:2} {mutant.file}: {mutant.replacement or '(nothing)'!r}")
            print(f"   {test or 'NOT CAUGHT'} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{caught} of {len(chosen)} caught")


if __name__ == "__main__":
    main()
