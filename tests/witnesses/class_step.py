"""The memory of a `transformers` class: one training step on meta, followed storage by storage.

The class is other people's code. Where it computes a step in another way than the reference (a softmax in another
number format, a mask that is added), it saves other bytes for its backward pass: those that a user of the class sees.

It runs with eager attention and grouped products of experts, in bfloat16, without dropout, padding and cache; with a
language-model head, up to the cross-entropy of its logits in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from llmcalc.model import ModelSpec
from llmcalc.witnesses.storage_tracker import StorageTracker
from llmcalc.witnesses.transformers import build_class_model, class_inputs
from tests.simulator.witness import Held, measured


class AllReal(StorageTracker):
    """Follows storages, and answers yes to a class that asks for a truth value, which meta has not.

    Classes ask whether all tokens are real ones of a single sequence, and then make no mask for padding.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = func is torch.ops.aten._local_scalar_dense.default and args[0].dtype is torch.bool
        return asked or super().__torch_dispatch__(func, types, args, kwargs)


def class_memory(
    spec: ModelSpec, config: Mapping[str, Any], batch: int, seq: int, follows: type[AllReal] = AllReal
) -> Held:
    """The bytes of a training step of the class for a config, beside its weights and inputs.

    follows: the dispatch mode. Raises `InputError` if no class is known or a library that it needs is not installed,
    and `RuntimeError` or `NotImplementedError` if the class reads values.
    """
    return held_by(spec, class_to_train(config), batch, seq, follows)


def class_to_train(config: Mapping[str, Any]) -> Any:
    """The class for a config on meta, all of whose parameters get gradients."""
    model: Any = build_class_model(dict(config), will_run=False).requires_grad_(True)
    model.config._experts_implementation = "grouped_mm"  # the default of transformers
    for module in model.modules():
        if hasattr(module, "config"):
            module.config.use_cache = False
    return model


def held_by(spec: ModelSpec, model: Any, batch: int, seq: int, follows: type[AllReal] = AllReal) -> Held:
    """The bytes of a training step of a class, beside its weights and inputs."""
    inputs = class_inputs(spec, model, batch, seq)
    labels = torch.empty(batch * seq, dtype=torch.int64, device="meta")

    def run() -> torch.Tensor:
        given = model(**inputs)
        if spec.head.type != "lm":
            first: torch.Tensor = given[0]
            return first
        logits = given["prediction_logits" if "prediction_logits" in given else "logits"]
        return F.cross_entropy(logits.float().flatten(0, 1), labels)

    outside = [*model.parameters(), *model.buffers(), *inputs.values(), labels]
    return measured(run, outside, tracker_class=follows)
