"""Every field of every family's config changed, one at a time, and the counts held against the class: `python -m
tests.verify.differential [MODEL_TYPE …]`.

The shapes of `tests/families` are what somebody thought of. Here each is a start, and every field that its
configuration class knows takes other values. Where the class builds and runs, the counts are equal, the difference is
one of `KNOWN`, or the config is refused; anything else is printed as wrong, and what is refused though the class runs
is printed as refused. An exception of llmcalc's own is printed as a crash, whether the class runs or not. With
`--sample N`, of each model type only the N variations that a hash of their names puts first, as `test_differential.py`
takes a few. All of it takes an hour or two of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

import llmcalc
from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops
from llmcalc.costs.limits import learned_positions
from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.run.workload import Workload
from llmcalc.sources.huggingface.registry import family_of, model_types, read_config
from llmcalc.verify.checks import Check
from llmcalc.verify.transformers import verify_config
from llmcalc.verify.witness import witness_of
from tests.families import shapes_of

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

LEFT_OUT = "(left out)"

DEGENERATE: tuple[Any, ...] = (0, 1, None)
"""Values that are refused where they are no size, though a class may run with them."""

ACTIVATIONS = ("gelu", "relu", "silu")

WINDOWS = ("sliding_window", "attention_window_size")


def _of_a_window_of_one(config: dict[str, Any], checks: list[Check]) -> bool:
    return any(config.get(name) == 1 for name in WINDOWS) and all(check.quantity == "cache_bytes" for check in checks)


KNOWN: dict[str, Callable[[dict[str, Any], list[Check]], bool]] = {
    "a sliding cache drops all but the last window - 1 tokens by a slice from 1 - window, which for a window of 1 "
    "keeps every token": _of_a_window_of_one,
}
"""Where the class is what is wrong, and why; whether a config and what failed for it are such a case."""


COMPARED = frozenset({"same", "known", "wrong", "crash"})
"""Verdicts that hold llmcalc's numbers against the class's, or find that it has none. The others compare nothing."""

DIVIDED = ("head", "hidden_size", "d_model", "n_embd", "embedding_dim", "hidden_dim", "group", "d_kv", "period")
"""Parts of the names of fields that divide one another: one more of them is a model that no class builds."""

SIZED = ("size", "dim", "heads", "window", "rank", "num_", "layers", "limit")
"""Parts of the names of fields that are whole numbers."""

OF_A_TYPE: dict[type, tuple[Any, ...]] = {float: (0.5,), int: (4, 16), bool: (True,)}
"""Values of a field that has none, by the first of these types that its configuration class says it may have."""

SEQ = 20
"""Tokens of each pass, fewer where the table of positions is shorter."""


def types_of(configuration: type, name: str) -> tuple[type, ...]:
    """The types that a configuration class says a field may have; empty where it says none."""
    for cls in configuration.__mro__:
        said = vars(cls).get("__annotations__", {}).get(name)
        if said is not None:
            return tuple(t for t in (get_args(said) or (said,)) if isinstance(t, type))
    return ()


def others(name: str, value: Any, types: tuple[type, ...] = ()) -> Iterator[Any]:
    """Other values of a field, as its present one suggests them. types: of a field that has no value at present."""
    if type(value) is bool:
        yield not value
    elif type(value) is int:
        yield from (value + 1, value * 2) if value > 2 else (value + 1,)
        if value > 2 and value % 2 == 0:
            yield value // 2
        yield from (v for v in (0, None) if v != value)
    elif type(value) is float:
        yield from (value * 0.5, 0.0, None)
    elif value is None:
        known = next((kind for kind in OF_A_TYPE if kind in types), None)
        if known is not None:
            yield from OF_A_TYPE[known]
        elif not types:
            yield from OF_A_TYPE[int] if any(part in name for part in SIZED) else (True, 4, 16)
    elif isinstance(value, str) and ("act" in name or "hidden_act" in name):
        yield from (v for v in ACTIVATIONS if v != value)
    elif isinstance(value, list) and len(value) > 1:
        yield from (value[::-1], value[:-1], None)


def seldom_valid(name: str, value: Any) -> bool:
    """Whether hardly any class builds with such a value, so that it would compare nothing."""
    if value is None or value == LEFT_OUT or isinstance(value, list):
        return True
    if type(value) in (int, float) and value == 0:
        return True
    return type(value) is int and value % 2 == 1 and any(part in name for part in DIVIDED)


def variations(shape: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(field, its new value, the config) for every field that the configuration class has,
    and for every other name that it takes for one.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    given = {k: v for k, v in shape.items() if k not in ("architectures", "model_type")}
    made = CONFIG_MAPPING[witness_of(shape["model_type"])](**given)
    other_names = {name: getattr(made, name, None) for pair in made.attribute_map.items() for name in pair}
    known = {**other_names, **family_of(shape["model_type"]).defaults, **made.to_dict()}
    for name in sorted({*known, *given} - UNTOUCHED):
        if name.startswith("_") or name.endswith("token_id"):
            continue
        for value in others(name, given.get(name, known.get(name)), types_of(type(made), name)):
            yield name, value, {**shape, name: value}
        if name in given:
            yield name, LEFT_OUT, {k: v for k, v in shape.items() if k != name}


def judged(config: dict[str, Any]) -> tuple[str, str]:
    """("same", "known", "wrong", "refused", "unbuilt" or "crash", and why).

    "crash" is an exception of llmcalc's own. "unbuilt" is a config that the class does not build or run with, whether
    llmcalc counts it or refuses it; "refused" one that it runs with and llmcalc refuses.
    """
    counted: ModelSpec | None = None
    said = ""
    try:
        counted = ModelSpec.model_validate(read_config(config)[0])
        seq = min(SEQ, learned_positions(counted) or SEQ)
        _count(counted, seq)
    except InputError as error:
        said = str(error)
    except ValidationError as error:
        said = "; ".join(" ".join(one["msg"].split()) for one in error.errors())
    except Exception as error:
        return "crash", repr(error)
    if said or counted is None:
        return ("refused", said) if _runs(config) else ("unbuilt", "")
    try:
        verdict = verify_config(counted, config, seq=seq)
    except Exception as error:
        of_the_class = _raised_in_transformers(error) and not _runs(config)
        return "unbuilt" if of_the_class else "crash", repr(error)[:200]
    if verdict.ok:
        return "same", ""
    reason = next((why for why, holds in KNOWN.items() if holds(config, verdict.failures)), None)
    if reason is not None:
        return "known", reason
    return "wrong", "; ".join(f"{c.node} {c.quantity} {c.closed_form} is {c.measured}" for c in verdict.failures[:3])


def _count(spec: ModelSpec, seq: int) -> None:
    """Counts all that is compared, with no class at hand: what raises here is llmcalc."""
    assert params(spec).total >= 0
    assert flops(spec, Workload(batch=1, seq=seq)).total >= 0
    if spec.kind != "encoder":
        assert kv(spec, seq=seq).bytes >= 0


def _raised_in_transformers(error: BaseException) -> bool:
    """Whether an exception comes out of `transformers`, called by llmcalc and calling llmcalc no more."""
    import transformers

    ours, theirs = (Path(str(package.__file__)).parent for package in (llmcalc, transformers))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if theirs in Path(frame.filename).parents:
            return True
        if ours in Path(frame.filename).parents and frame.name != "__torch_dispatch__":  # which hands an op on
            return False
    return False


def _runs(config: dict[str, Any]) -> bool:
    """Whether the class builds and reads a few tokens."""
    import torch

    from llmcalc.verify.transformers import build

    try:
        model = build(config)
        ids = torch.empty(1, 12, dtype=torch.long, device=next(model.parameters()).device).zero_()
        model(input_ids=ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}))
    except Exception:
        return False
    return True


def starts(kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(its number, the shape) of those that are varied: two of the first class, and every one of the others."""
    shapes = shapes_of(kind)
    first = shapes[0]["architectures"][0]
    yield from ((i, shape) for i, shape in enumerate(shapes) if i <= 1 or shape["architectures"][0] != first)


def of_kind(kind: str) -> Iterator[tuple[int, str, Any, dict[str, Any]]]:
    """(the shape's number, the field, its new value, the config) for every variation of a model type."""
    yield from ((i, *variation) for i, shape in starts(kind) for variation in variations(shape))


def sampled(kind: str, many: int) -> list[tuple[int, str, Any, dict[str, Any]]]:
    """So many variations of a model type, in an order that nobody chose: by a hash of the shape's number, the field and
    the value.

    None of those that leave a field out (a model as deep or as wide as its class's default takes seconds), and none
    with a value that hardly any class builds with.
    """

    def order(one: tuple[int, str, Any, dict[str, Any]]) -> str:
        return sha256(f"{kind} {one[0]} {one[1]} {one[2]!r}".encode()).hexdigest()

    return sorted((one for one in of_kind(kind) if not seldom_valid(one[1], one[2])), key=order)[:many]


def main(arguments: list[str]) -> int:
    import logging

    parser = argparse.ArgumentParser(prog="python -m tests.verify.differential")
    parser.add_argument("kinds", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--sample", type=int, metavar="N")
    given = parser.parse_args(arguments)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    wrong = 0
    totals: dict[str, int] = {}
    for kind in given.kinds or model_types():
        if family_of(kind).read is None:
            continue
        tally: dict[str, int] = {}
        for i, name, value, config in of_kind(kind) if given.sample is None else sampled(kind, given.sample):
            verdict, why = judged(config)
            tally[verdict] = tally.get(verdict, 0) + 1
            if verdict in ("wrong", "crash") or (verdict == "refused" and value not in DEGENERATE):
                print(
                    f"{verdict:8}{kind} {config['architectures'][0]}[{i}] {name}={json.dumps(value, default=str)}: "
                    f"{why}",
                    flush=True,
                )
                wrong += verdict != "refused"
        print(f"{kind}: {tally}", flush=True)
        for verdict, count in tally.items():
            totals[verdict] = totals.get(verdict, 0) + count
    nothing = sum(count for verdict, count in totals.items() if verdict not in COMPARED)
    print(f"{nothing} of {sum(totals.values())} variations compared nothing: {totals}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
