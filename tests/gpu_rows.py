"""The rows of tests/data/gpu, which were measured on two GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GPUS = ("h200", "h100")

MEASURED = Path(__file__).parent / "data" / "gpu"


def rows_of(gpu: str, name: str) -> list[dict[str, Any]]:
    """Returns the rows of a file. gpu: its folder; name: without its ending."""
    return [json.loads(line) for line in (MEASURED / gpu / f"{name}.jsonl").read_text().splitlines()]


def training_options(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a step of transformers' classes, as a user states them."""
    precision = "autocast" if row.get("autocast") else "bf16" if row["weights"] == "bfloat16" else "fp32"
    options: dict[str, Any] = {"precision": precision, "attn_implementation": row["attention"]}
    if row.get("recompute"):
        options["recompute"] = "full"
    if "lora" in row:
        options |= {"lora_rank": row["lora"], "lora_targets": row.get("lora_targets", "q_proj,v_proj")}
    if "accumulate" in row:
        options["num_microbatches"] = row["accumulate"]
    return options
