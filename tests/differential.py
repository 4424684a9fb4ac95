"""Every field of every family's config changed, one at a time, and the counts held against the class: `python -m tests.differential [MODEL_TYPE …]`.

The shapes of `tests/families` are what somebody thought of. Here each is a start, and every field that its configuration class knows takes
other values. Where the class builds and runs, the counts are equal or the config is refused; anything else is printed as wrong, and what is
refused though the class runs is printed as refused. Takes minutes for all families; `test_differential.py` runs a part of it.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.registry import FILES, family_of, model_types, read_config
from llmcalc.verify.transformers import verify_config
from llmcalc.verify.witness import witness_of

UNTOUCHED = frozenset(
    {
        "model_type",
        "architectures",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "_name_or_path",
        "id2label",
        "label2id",
        "problem_type",
        "is_encoder_decoder",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "use_cache",
        "torchscript",
        "chunk_size_feed_forward",
        "add_cross_attention",
        "is_decoder",
        "tie_encoder_decoder",
    }
)
"""Fields of the run and of other uses of the class, not of the architecture."""

DEGENERATE: tuple[Any, ...] = (0, 1, None)
"""Values that are refused where they are no size, though a class may run with them."""

ACTIVATIONS = ("gelu", "relu", "silu")


def others(name: str, value: Any) -> Iterator[Any]:
    """Other values of a field, as its present one suggests them."""
    if type(value) is bool:
        yield not value
    elif type(value) is int:
        yield from (value + 1, value * 2) if value > 2 else (value + 1,)
        yield from (v for v in (0, None) if v != value)
    elif type(value) is float:
        yield from (value * 0.5, 0.0, None)
    elif value is None:
        yield from (True, 4, 16)
    elif isinstance(value, str) and ("act" in name or "hidden_act" in name):
        yield from (v for v in ACTIVATIONS if v != value)
    elif isinstance(value, list) and len(value) > 1:
        yield from (value[::-1], value[:-1], None)


def variations(shape: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(field, its new value, the config) for every field that the configuration class has."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    given = {k: v for k, v in shape.items() if k not in ("architectures", "model_type")}
    made = CONFIG_MAPPING[witness_of(shape["model_type"])](**given).to_dict()
    known = {**family_of(shape["model_type"]).defaults, **made}
    for name in sorted({*known, *given} - UNTOUCHED):
        if name.startswith("_") or name.endswith("token_id"):
            continue
        for value in others(name, given.get(name, known.get(name))):
            yield name, value, {**shape, name: value}
        if name in given:
            yield name, "(left out)", {k: v for k, v in shape.items() if k != name}


def judged(config: dict[str, Any]) -> tuple[str, str]:
    """("same", "wrong", "refused", "unbuilt" or "crash", and why)."""
    counted: ModelSpec | None = None
    said = ""
    try:
        counted = ModelSpec.model_validate(read_config(config)[0])
    except InputError as error:
        said = str(error)
    except ValidationError as error:
        said = "; ".join(one["msg"] for one in error.errors())
    except Exception as error:
        return "crash", repr(error)
    if counted is None:
        from llmcalc.verify.transformers import build

        try:
            model = build(config)
            import torch

            ids = torch.empty(1, 12, dtype=torch.long, device=next(model.parameters()).device).zero_()
            model(input_ids=ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}))
        except Exception:
            return "unbuilt", ""
        return "refused", said
    try:
        verdict = verify_config(counted, config, seq=20)
    except Exception as error:
        return "unbuilt", repr(error)[:200]
    if verdict.ok:
        return "same", ""
    return "wrong", "; ".join(f"{c.node} {c.quantity} {c.closed_form} is {c.measured}" for c in verdict.failures[:3])


def shapes_of(kind: str) -> list[dict[str, Any]]:
    file = next(f for f, kinds in FILES.items() if kind in kinds)
    shapes = import_module(f"tests.families.{file}").SHAPES
    return [{"architectures": [cls], **shape} for cls, several in shapes.items() for shape in several if shape["model_type"] == kind]


def main(kinds: list[str]) -> int:
    import logging

    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    wrong = 0
    for kind in kinds or model_types():
        if family_of(kind).read is None:
            continue
        tally: dict[str, int] = {}
        shapes = shapes_of(kind)
        first = shapes[0]["architectures"][0]
        for i, shape in enumerate(shapes):
            if i > 1 and shape["architectures"][0] == first:
                continue
            for name, value, config in variations(shape):
                verdict, why = judged(config)
                tally[verdict] = tally.get(verdict, 0) + 1
                if verdict in ("wrong", "crash") or (verdict == "refused" and value not in DEGENERATE):
                    print(f"{verdict:8}{kind} {shape['architectures'][0]}[{i}] {name}={json.dumps(value, default=str)}: {why}", flush=True)
                    wrong += verdict != "refused"
        print(f"{kind}: {tally}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
