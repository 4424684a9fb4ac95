"""What DeepSpeed keeps, measured: real processes on the CPU with gloo, each followed storage by storage.

Where it keeps something on the host, each rank runs by itself on meta instead (`tests.frameworks.deepspeed.alone`).

`python -m tests.frameworks.deepspeed.record [NAME…]` runs every case, or those named, with the deepspeed that is
installed, and writes tests/data/deepspeed.json: the versions, the date, and each case with its model, configuration and
bytes of every rank. A dispatch mode follows the storages (`StorageTracker` of `llmcalc.witnesses.storage_tracker`), so
what gloo and a kernel of the CPU take for themselves is not in these bytes; nor are the step counts of the optimizer,
which are on the host.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import socket
import time
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmcalc.model import ModelSpec
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from llmcalc.simulator.tensor import BFLOAT16

RECORD = Path(__file__).parents[2] / "data" / "deepspeed.json"

BATCH, SEQ = 2, 6

ALIKE, STEPS = 3, 5
"""The number of the first step that is like every later one, and how many are run: the thread in which gloo sums holds
a tensor for a moment after its sum, so the least of several steps is recorded.
"""

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 272,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1003,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
}
"""The config of the model that all cases train. The odd vocabulary makes every partition need padding."""


@dataclass(frozen=True)
class Case:
    """One run. ranks: its processes. zero: `zero_optimization`. further: other keys of the configuration.

    recompute: as of `--recompute`. of: whether the model is llmcalc's reference, or the class of transformers.
    adapters: whether low-rank adapters are trained in the place of the weights.
    loss: as of `--cross-entropy`. Other ones than eager are computed in the model's forward pass from the weight of the
        output head, which is not called.
    """

    ranks: int
    zero: Mapping[str, Any]
    further: Mapping[str, Any] = field(default_factory=dict)
    recompute: str = "none"
    of: str = "reference"
    adapters: bool = False
    loss: str = "eager"

    @property
    def kernel_choices(self) -> KernelChoices:
        """The kernels, with chunks of the loss that are smaller than the batch."""
        if self.loss == "eager":
            return EAGER_CHOICES
        return replace(EAGER_CHOICES, cross_entropy=self.loss, loss_chunk=5 if self.loss == "recomputed" else None)

    @property
    def trained_beside(self) -> Adapters | None:
        """The adapters, in the format of the model, to which the engine casts them."""
        return Adapters(8, frozenset({"q_proj", "v_proj", "down_proj"}), dtype=BFLOAT16) if self.adapters else None

    @property
    def has_offloaded_states(self) -> bool:
        """Whether something is on the host, which is told from the device where that is meta alone."""
        return any(name.startswith("offload_") for name in self.zero)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that DeepSpeed is given."""
        return {
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": 1,
            "bf16": {"enabled": True},
            "zero_allow_untested_optimizer": True,
            **({"zero_force_ds_cpu_optimizer": False} if self.has_offloaded_states else {}),
            **self.further,
            "zero_optimization": {"allgather_bucket_size": 100_000, "reduce_bucket_size": 100_000, **self.zero},
        }


SMALL = {"stage3_prefetch_bucket_size": 40_000, "stage3_max_reuse_distance": 1000}

STATES = {"offload_optimizer": {"device": "cpu"}}

PARAMETERS = {"offload_param": {"device": "cpu"}}

CASES: Mapping[str, Case] = {
    "stage 0": Case(2, {"stage": 0}),
    "stage 0, accumulated": Case(2, {"stage": 0}, {"gradient_accumulation_steps": 2}),
    "stage 0, fp32": Case(2, {"stage": 0}, {"bf16": {"enabled": False}}),
    "stage 0, reduced in fp32": Case(2, {"stage": 0}, {"communication_data_type": "fp32"}),
    "stage 1, sums in fp32": Case(2, {"stage": 1}, {"data_types": {"grad_accum_dtype": "fp32"}}),
    "stage 1, sums in fp32, accumulated": Case(
        2, {"stage": 1}, {"data_types": {"grad_accum_dtype": "fp32"}, "gradient_accumulation_steps": 2}
    ),
    "stage 1": Case(2, {"stage": 1, "reduce_bucket_size": 1_000_000}),
    "stage 1, accumulated": Case(2, {"stage": 1}, {"gradient_accumulation_steps": 2}),
    "stage 1, clipped, 3 ranks": Case(3, {"stage": 1}, {"gradient_clipping": 1.0}),
    "stage 1, scattered gradients": Case(2, {"stage": 1, "contiguous_gradients": False}),
    "stage 1, overlapped": Case(2, {"stage": 1, "overlap_comm": True}),
    "stage 2": Case(2, {"stage": 2}),
    "stage 2, small bucket": Case(2, {"stage": 2, "reduce_bucket_size": 30_000}),
    "stage 2, large bucket": Case(2, {"stage": 2, "reduce_bucket_size": 2_000_000}),
    "stage 2, 3 ranks": Case(3, {"stage": 2}),
    "stage 2, 1 rank": Case(1, {"stage": 2}),
    "stage 2, accumulated": Case(2, {"stage": 2}, {"gradient_accumulation_steps": 3}),
    "stage 2, recomputed": Case(2, {"stage": 2}, recompute="full"),
    "stage 2, scattered gradients": Case(2, {"stage": 2, "contiguous_gradients": False}),
    "stage 2, by turns": Case(3, {"stage": 2, "round_robin_gradients": True}),
    "stage 2, reduced to all": Case(2, {"stage": 2, "reduce_scatter": False}),
    "stage 2, one rank a reduction": Case(3, {"stage": 2, "use_multi_rank_bucket_allreduce": False}),
    "stage 2, overlapped": Case(2, {"stage": 2, "overlap_comm": True}),
    "stage 2, sums in fp32": Case(2, {"stage": 2}, {"data_types": {"grad_accum_dtype": "fp32"}}),
    "stage 2, reduced in fp32": Case(2, {"stage": 2}, {"communication_data_type": "fp32"}),
    "stage 2, fp32": Case(2, {"stage": 2}, {"bf16": {"enabled": False}}),
    "stage 2, transformers": Case(2, {"stage": 2}, of="transformers"),
    "stage 2, adapters": Case(2, {"stage": 2}, adapters=True),
    "stage 1, states on the host": Case(2, {"stage": 1, **STATES}),
    "stage 2, states on the host": Case(2, {"stage": 2, **STATES}),
    "stage 2, states on the host, accumulated": Case(2, {"stage": 2, **STATES}, {"gradient_accumulation_steps": 3}),
    "stage 2, states on the host, 3 ranks": Case(3, {"stage": 2, **STATES}, {"gradient_clipping": 1.0}),
    "stage 2, states on the host, adapters": Case(2, {"stage": 2, **STATES}, adapters=True),
    "stage 3": Case(2, {"stage": 3}),
    "stage 3, little ahead": Case(2, {"stage": 3, **SMALL, "stage3_param_persistence_threshold": 100}),
    "stage 3, nothing ahead": Case(
        2, {"stage": 3, **SMALL, "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0}
    ),
    "stage 3, few live": Case(2, {"stage": 3, **SMALL, "stage3_max_live_parameters": 60_000}),
    "stage 3, used again soon": Case(
        2, {"stage": 3, "stage3_prefetch_bucket_size": 40_000, "stage3_param_persistence_threshold": 100}
    ),
    "stage 3, one by one": Case(
        2, {"stage": 3, **SMALL, "stage3_allgather_sequential": True, "stage3_param_persistence_threshold": 100}
    ),
    "stage 3, fetched as sums": Case(
        2,
        {
            "stage": 3,
            **SMALL,
            "stage3_use_all_reduce_for_fetch_params": True,
            "stage3_param_persistence_threshold": 100,
        },
    ),
    "stage 3, 3 ranks": Case(3, {"stage": 3, **SMALL, "stage3_param_persistence_threshold": 10_000}),
    "stage 3, 1 rank": Case(1, {"stage": 3, **SMALL}),
    "stage 3, accumulated": Case(2, {"stage": 3, **SMALL}, {"gradient_accumulation_steps": 2}),
    "stage 3, recomputed": Case(2, {"stage": 3, **SMALL}, recompute="full"),
    "stage 3, sub-groups": Case(2, {"stage": 3, **SMALL, "sub_group_size": 50_000}),
    "stage 3, reduced to all": Case(2, {"stage": 3, **SMALL, "reduce_scatter": False}),
    "stage 3, scattered gradients": Case(2, {"stage": 3, **SMALL, "contiguous_gradients": False}),
    "stage 3, adapters": Case(2, {"stage": 3, **SMALL, "stage3_param_persistence_threshold": 5_000}, adapters=True),
    "stage 3, states on the host": Case(2, {"stage": 3, **SMALL, **STATES}),
    "stage 3, states on the host, accumulated": Case(
        2, {"stage": 3, **SMALL, **STATES}, {"gradient_accumulation_steps": 2}
    ),
    "stage 3, parameters on the host": Case(2, {"stage": 3, **SMALL, **PARAMETERS}),
    "stage 3, all on the host": Case(2, {"stage": 3, **SMALL, **STATES, **PARAMETERS}),
    "stage 3, all on the host, little ahead": Case(
        3, {"stage": 3, **SMALL, **STATES, **PARAMETERS, "stage3_param_persistence_threshold": 100}
    ),
    "stage 3, all on the host, recomputed": Case(
        2, {"stage": 3, **SMALL, **STATES, **PARAMETERS, "stage3_param_persistence_threshold": 100}, recompute="full"
    ),
    "stage 3, all on the host, adapters": Case(2, {"stage": 3, **SMALL, **STATES, **PARAMETERS}, adapters=True),
    "stage 3, all on the host, 1 rank": Case(1, {"stage": 3, **SMALL, **STATES, **PARAMETERS}),
    "stage 3, transformers": Case(2, {"stage": 3, **SMALL}, of="transformers"),
    "stage 2, chunked loss": Case(2, {"stage": 2}, of="transformers", loss="chunked"),
    "stage 3, chunked loss": Case(
        2, {"stage": 3, **SMALL, "stage3_param_persistence_threshold": 100}, of="transformers", loss="chunked"
    ),
    "stage 3, chunked loss, used again soon": Case(
        2,
        {"stage": 3, "stage3_prefetch_bucket_size": 40_000, "stage3_param_persistence_threshold": 100},
        of="transformers",
        loss="chunked",
    ),
    "stage 3, recomputed loss": Case(
        2, {"stage": 3, **SMALL, "stage3_param_persistence_threshold": 100}, of="transformers", loss="recomputed"
    ),
    "stage 3, chunked loss, accumulated": Case(
        2,
        {"stage": 3, **SMALL, "stage3_param_persistence_threshold": 100},
        {"gradient_accumulation_steps": 2},
        of="transformers",
        loss="chunked",
    ),
}


def model() -> ModelSpec:
    """The model of all cases."""
    import llmcalc

    return llmcalc.load(dict(LLAMA)).model


def installed() -> bool:
    """Whether deepspeed can be imported."""
    return importlib.util.find_spec("deepspeed") is not None


# --- one process ------------------------------------------------------------------------------------------------------


def work(rank: int, name: str, port: int, folder: str, log: bool = False) -> None:
    """Runs one rank of a case and writes its bytes, by step and phase."""
    case = CASES[name]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case.ranks), LOCAL_SIZE=str(case.ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), DS_ACCELERATOR="cpu")
    import logging

    import deepspeed
    import torch
    import torch._dynamo

    from llmcalc.witnesses.memory import CpuStorageTracker

    class OfModel(CpuStorageTracker):
        """Does not follow the copy of its input that gloo makes to scatter a sum, which it then splits."""

        def _track_tensor(self, tensor: torch.Tensor, func: Any) -> None:
            if func is not torch.ops.aten.split.Tensor:
                super()._track_tensor(tensor, func)

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    mode = OfModel(device="cpu", keeps_log=log)
    set_up, found = run_steps(case, mode, "cpu", STEPS)
    text = "\n".join(mode.log or ())
    Path(folder, f"{rank}.json").write_text(json.dumps({"set_up": set_up, "steps": found, "log": text}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_steps(case: Case, mode: Any, device: str, number: int) -> tuple[int, list[dict[str, int]]]:
    """Runs set-up and steps. mode: follows the storages on the device. Returns the bytes of both, by phase."""
    import deepspeed
    import torch
    import torch._dynamo

    with mode:
        module, logits = built(case, device)
        mode.track_tensors((*module.parameters(), *module.buffers()))
        optimizer = torch.optim.AdamW([one for one in module.parameters() if one.requires_grad], foreach=True)
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=case.config)
        del module, optimizer
        gc.collect()
        mode.set_up, set_up = True, mode.now
        accumulated = case.config["gradient_accumulation_steps"]
        return set_up, [step(engine, logits, mode, accumulated, device) for _ in range(number)]


def built(case: Case, device: str) -> tuple[Any, Any]:
    """The module, and how it is called for its logits."""
    import torch

    from llmcalc.witnesses import kernel_variants, training_loop
    from llmcalc.workload.recompute import parse_recompute

    if case.of == "reference":
        dtype = "bfloat16" if case.config["bf16"]["enabled"] else "float32"
        module = training_loop.build_reference(model(), dtype, device)
        kernel_variants.apply_kernel_choices(
            module, EAGER_CHOICES, parse_recompute(case.recompute), case.trained_beside, device
        )
        return module, lambda engine, ids: engine(ids, None, with_mtp=False, grouped_experts=True, expert_capacity=None)
    import transformers

    config = transformers.LlamaConfig(**LLAMA)
    config._attn_implementation = "eager"
    whole = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    if case.loss != "eager":

        def forward(input_ids: torch.Tensor) -> Any:
            """Computes the loss from hidden states, as Liger-Kernel's `lce_forward` and TRL's `_chunked_ce_forward`."""
            hidden = whole.model(input_ids=input_ids, use_cache=False).last_hidden_state
            return kernel_variants.loss_of(whole, case.kernel_choices, hidden, input_ids)

        whole.forward = forward
        return whole, lambda engine, ids: engine(input_ids=ids)
    return whole, lambda engine, ids: engine(input_ids=ids, use_cache=False).logits


def step(engine: Any, logits: Any, mode: Any, micro_batches: int, device: str) -> dict[str, int]:
    """One step: the most in each phase, and what is there after the last backward pass and after the step.

    `engine.step` updates after the last micro-batch alone.
    """
    import torch
    import torch.nn.functional as F

    found = dict.fromkeys(("forward", "backward", "step"), 0)

    def seen(phase: str) -> None:
        found[phase], mode.peak = max(found[phase], mode.peak), mode.now
        if mode.log is not None:
            mode.log.append(f"=== {phase}")

    mode.peak = mode.now
    for _ in range(micro_batches):
        ids = torch.zeros(BATCH, SEQ, dtype=torch.int64, device=device)
        out = logits(engine, ids)
        loss = out if out.dim() == 0 else F.cross_entropy(out.float().flatten(0, 1), ids.flatten())
        del out
        seen("forward")
        engine.backward(loss)
        del loss
        gc.collect()
        seen("backward")
        found["after_backward"] = mode.now
        engine.step()
        gc.collect()
        seen("step")
    return {**found, "after": mode.now}


def measured(name: str, log: bool = False, apart: bool | None = None) -> list[dict[str, Any]]:
    """Runs a case. Returns what each rank found.

    apart: whether each rank runs by itself, on meta (`alone`); by default where something is on the host.
    """
    import tempfile

    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # noqa: F401  # the processes are forks of this one, and need not import it again
    import torch.multiprocessing as mp

    from tests.frameworks.deepspeed import alone

    case = CASES[name]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        try:
            if case.has_offloaded_states if apart is None else apart:
                for rank in range(case.ranks):
                    mp.start_processes(alone.work, (name, rank, folder, log), 1, start_method="fork")
            else:
                mp.start_processes(work, (name, port, folder, log), case.ranks, start_method="fork")
        finally:
            for left in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):  # it never removes them
                left.unlink()
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(case.ranks)]


# --- the record -------------------------------------------------------------------------------------------------------


def record(name: str, apart: bool | None = None) -> dict[str, Any]:
    """What a case is and what its ranks have: bytes of the last step, and after set-up. apart: as of `measured`."""
    case = CASES[name]
    ranks = [{"set_up": one["set_up"], **least(one["steps"][ALIKE - 1 :])} for one in measured(name, apart=apart)]
    return {"model": case.of, "recompute": case.recompute, "config": case.config, "ranks": ranks}


def least(steps: list[dict[str, int]]) -> dict[str, int]:
    """The least of each quantity in several steps."""
    return {name: min(step[name] for step in steps) for name in steps[0]}


def main() -> None:
    """Measures the cases that are named, or all, and writes them to the record."""
    import deepspeed
    import torch
    import transformers

    asked = ArgumentParser(description=__doc__)
    asked.add_argument("names", nargs="*", choices=[*CASES, []], metavar="NAME")
    asked.add_argument("--to", type=Path, default=RECORD, help="the file that is written")
    asked.add_argument("--log", action="store_true", help="print every allocation of the first rank instead")
    asked.add_argument("--apart", action="store_true", help="run every rank by itself, on meta")
    given = asked.parse_args()
    names = given.names or list(CASES)
    if given.log:
        print(measured(names[0], log=True)[0]["log"])
        return
    tensor_status = json.loads(given.to.read_text())["cases"] if given.to.exists() else {}
    about = {
        "versions": {one.__name__: one.__version__ for one in (deepspeed, torch, transformers)},
        "date": time.strftime("%Y-%m-%d"),
        "llama": dict(LLAMA),
        "batch": BATCH,
        "seq": SEQ,
    }
    for name in names:
        began = time.time()
        tensor_status[name] = record(name, given.apart or None)
        print(f"{name:34} {time.time() - began:5.1f} s  {tensor_status[name]['ranks'][0]}", flush=True)
        cases = {name: tensor_status[name] for name in CASES if name in tensor_status}
        given.to.write_text(json.dumps({**about, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
