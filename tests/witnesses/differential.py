"""Changes every field of every family's config, one at a time, and compares the counts with the class.

Run `python -m tests.witnesses.differential [MODEL_TYPE …]`. Each shape of `tests/families` is a start, and every field
of its configuration class gets other values. A correct result is one of these: the class runs and the counts are equal,
the difference is one of `KNOWN`, or the config is rejected. Any other difference is printed as wrong. A config that is
rejected although the class runs is printed as refused. An exception of llmcalc itself is printed as a crash, whether
the class runs or not. With `--sample N`, only N variations per model type run, chosen by a hash of their names, as in
`test_differential.py`. The full run takes an hour or two on one core.
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
from llmcalc.costs.context_length import learned_positions
from llmcalc.costs.flops import flops
from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import family_of, model_types
from llmcalc.witnesses.checks import Check
from llmcalc.witnesses.transformers import verify_config
from llmcalc.witnesses.transformers_class import class_model_type
from llmcalc.workload.workload import Workload
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
"""Fields of a run or of other uses of the class, which are not part of the architecture."""

LEFT_OUT = "(left out)"

DEGENERATE: tuple[Any, ...] = (0, 1, None)
"""Values that are rejected as invalid sizes, even if a class runs with them."""

ACTIVATIONS = ("gelu", "relu", "silu")


def _of_padded_tokens(config: dict[str, Any], checks: list[Check]) -> bool:
    window = config.get("attention_window")
    largest = max(window) if isinstance(window, list) and window else window
    if config["model_type"] not in ("longformer", "led") or not isinstance(largest, int):
        return False
    lengths = {check.seq for check in checks if check.seq is not None}
    flops_alone = all(check.quantity == "forward_flops" for check in checks)
    return flops_alone and any(length % largest for length in lengths)


def _of_padded_heads(config: dict[str, Any], checks: list[Check]) -> bool:
    padded = config.get("pad_head_dim_to_multiple_of") is not None
    return padded and all(check.quantity == "forward_flops" for check in checks)


KNOWN: dict[str, Callable[[dict[str, Any], list[Check]], bool]] = {
    "Longformer's encoder pads the tokens to a multiple of its largest window": _of_padded_tokens,
    "Moonshine's attention pads each head with zeros; a remark says so": _of_padded_heads,
}
"""Reason why the class is wrong → whether a config and its failed checks are such a case."""


COMPARED = frozenset({"same", "known", "wrong", "crash"})
"""Verdicts that compare llmcalc's numbers with the class's, or find that llmcalc has none. Other verdicts compare
nothing.
"""

DIVIDED = ("head", "hidden_size", "d_model", "n_embd", "embedding_dim", "hidden_dim", "group", "d_kv", "period")
"""Parts of the names of fields that must divide one another; one more of them is a model that no class builds."""

SIZED = ("size", "dim", "heads", "window", "rank", "num_", "layers", "limit")
"""Parts of the names of integer fields."""

OF_A_TYPE: dict[type, tuple[Any, ...]] = {float: (0.5,), int: (4, 16), bool: (True,)}
"""Type → values for an unset field; the first type that the configuration class allows is used."""

SEQ = 20
"""Tokens of each pass, fewer if the position embedding is shorter."""


def types_of(configuration: type, name: str) -> tuple[type, ...]:
    """Returns the types that a configuration class allows for a field; empty if it states none."""
    for cls in configuration.__mro__:
        said = vars(cls).get("__annotations__", {}).get(name)
        if said is not None:
            return tuple(t for t in (get_args(said) or (said,)) if isinstance(t, type))
    return ()


def others(name: str, value: Any, types: tuple[type, ...] = ()) -> Iterator[Any]:
    """Yields other values of a field, derived from its value. types: allowed types, for a field without a value."""
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
    """Whether hardly any class can be built with such a value, so that nothing would be compared."""
    if value is None or value == LEFT_OUT or isinstance(value, list):
        return True
    if type(value) in (int, float) and value == 0:
        return True
    return type(value) is int and value % 2 == 1 and any(part in name for part in DIVIDED)


def variations(shape: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yields (field, its new value, the config) for every field of the configuration class, and for every alias of a
    field.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    given = {k: v for k, v in shape.items() if k not in ("architectures", "model_type")}
    class_config = CONFIG_MAPPING[class_model_type(shape["model_type"])](**given)
    other_names = {
        name: getattr(class_config, name, None) for pair in class_config.attribute_map.items() for name in pair
    }
    known = {**other_names, **family_of(shape["model_type"]).defaults, **class_config.to_dict()}
    for name in sorted({*known, *given} - UNTOUCHED):
        if name.startswith("_") or name.endswith("token_id"):
            continue
        for value in others(name, given.get(name, known.get(name)), types_of(type(class_config), name)):
            yield name, value, {**shape, name: value}
        if name in given:
            yield name, LEFT_OUT, {k: v for k, v in shape.items() if k != name}


def judged(config: dict[str, Any]) -> tuple[str, str]:
    """Returns (verdict, reason); the verdict is "same", "known", "wrong", "refused", "unbuilt" or "crash".

    crash: an exception of llmcalc itself.
    unbuilt: the class cannot be built or run, whether llmcalc counts the config or rejects it.
    refused: the class runs, and llmcalc rejects the config.
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
    return "wrong", "; ".join(
        f"{c.node} {c.quantity} {c.closed_form} is {c.measured_value}" for c in verdict.failures[:3]
    )


def _count(spec: ModelSpec, seq: int) -> None:
    """Counts all compared quantities without a class, so an exception here is llmcalc's."""
    assert params(spec).total >= 0
    assert flops(spec, Workload(batch=1, seq=seq)).total >= 0
    if not spec.one_pass_model_name:
        assert kv(spec, seq=seq).bytes >= 0


FORWARDING = ("shape_cache", "flop_counter")
"""Modules of llmcalc.witnesses whose dispatch modes only forward an operation of the class."""


def _raised_in_transformers(error: BaseException) -> bool:
    """Whether an exception was raised in `transformers`, called by llmcalc, and not in llmcalc code that it called
    back.
    """
    import transformers

    ours, theirs = (Path(str(package.__file__)).parent for package in (llmcalc, transformers))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if theirs in Path(frame.filename).parents:
            return True
        if ours in Path(frame.filename).parents and Path(frame.filename).stem not in FORWARDING:
            return False
    return False


def _runs(config: dict[str, Any]) -> bool:
    """Whether the class can be built and processes a few tokens."""
    import torch

    from llmcalc.witnesses.transformers import build_class_model

    try:
        model = build_class_model(config)
        ids = torch.empty(1, 12, dtype=torch.long, device=next(model.parameters()).device).zero_()
        model(input_ids=ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}))
    except Exception:
        return False
    return True


def starts(kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (its number, the shape) of the shapes to vary: two of the first class, and all of the others."""
    shapes = shapes_of(kind)
    first = shapes[0]["architectures"][0]
    yield from ((i, shape) for i, shape in enumerate(shapes) if i <= 1 or shape["architectures"][0] != first)


def of_kind(kind: str) -> Iterator[tuple[int, str, Any, dict[str, Any]]]:
    """Yields (the shape's number, the field, its new value, the config) for every variation of a model type."""
    yield from ((i, *variation) for i, shape in starts(kind) for variation in variations(shape))


def sampled(kind: str, many: int) -> list[tuple[int, str, Any, dict[str, Any]]]:
    """Returns `many` variations of a model type, ordered by a hash of the shape's number, the field and the value.

    Variations that remove a field are skipped (a model with its class's default depth or width takes seconds), and so
    are values with which hardly any class can be built.
    """

    def order(one: tuple[int, str, Any, dict[str, Any]]) -> str:
        return sha256(f"{kind} {one[0]} {one[1]} {one[2]!r}".encode()).hexdigest()

    return sorted((one for one in of_kind(kind) if not seldom_valid(one[1], one[2])), key=order)[:many]


def main(arguments: list[str]) -> int:
    import logging

    parser = argparse.ArgumentParser(prog="python -m tests.witnesses.differential")
    parser.add_argument("kinds", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--sample", type=int, metavar="N")
    given = parser.parse_args(arguments)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    wrong = 0
    totals: dict[str, int] = {}
    for kind in given.kinds or model_types():
        if family_of(kind).read_model is None:
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
