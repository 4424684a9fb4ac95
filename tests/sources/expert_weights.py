"""The number format in which a class of `transformers` weighs the outputs of its experts: it is run in bfloat16."""

from __future__ import annotations

import contextlib
from typing import Any

from llmcalc.components.evidence import nested_components
from llmcalc.components.networks.moe import MoE
from tests.builders import family_shapes, spec_of


def weighs_in_float32(config: dict[str, Any]) -> bool | None:
    """Whether the class of a small config.json weighs in float32; None for a class whose experts take no weights."""
    import torch
    import transformers

    cls = getattr(transformers, config["architectures"][0])
    model = cls(cls.config_class.from_dict(config)).to(torch.bfloat16).eval()
    formats: list[bool] = []

    def note_weights(module: torch.nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        tensors = [x for x in (*inputs, *options.values()) if torch.is_tensor(x)]
        if [x.is_floating_point() for x in tensors] == [True, False, True]:  # hidden states, experts, their weights
            formats.append(tensors[2].dtype is torch.float32)

    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.register_forward_pre_hook(note_weights, with_kwargs=True)
    ids = torch.ones(1, 7, dtype=torch.int64)
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # a grouped product refuses rows of odd sizes
        model(input_ids=ids, **decoder)
    return formats[0] if formats else None


def float32_weights(model_types: frozenset[str] | None = None) -> list[str]:
    """Returns the model types whose classes weigh experts' outputs in float32, sorted.

    model_types: the model types that are run; all with experts by default.
    """
    weighing: dict[str, bool] = {}
    for _, config in family_shapes():
        kind = config["model_type"]
        if weighing.get(kind) is not None or (model_types is not None and kind not in model_types):
            continue
        if any(isinstance(part, MoE) for part in nested_components(spec_of(config))):
            weighs = weighs_in_float32(config)
            if weighs is not None:
                weighing[kind] = weighs
    return sorted(kind for kind, weighs in weighing.items() if weighs)


if __name__ == "__main__":
    print(float32_weights())
