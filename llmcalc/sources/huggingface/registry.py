"""Every `model_type` that is read, and which file reads it;
and the way from a parsed `config.json` to a description.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ...components.head import HeadKind
from ...errors import InputError, shown, suggest
from .config import Config
from .family import Family
from .heads import architecture_of, head_of
from .unknown import Unknown, remark

FILES: dict[str, tuple[str, ...]] = {
    file: tuple(kinds) for file, kinds in json.loads(Path(__file__).with_name("families.json").read_text()).items()
}
"""File in `families` (`bert.electra`: a folder, and a file in it) → the model types it reads, in the order in which
`convert` tries them. Written from the files' own records by `python -m tests.sources.test_registry`.
"""

FILE_OF = {kind: file for file, kinds in FILES.items() for kind in kinds}
"""Model type → the file that reads it."""

OTHER_NAMES = {"minimax_m3": "minimax_m3_vl"}
"""Model types by a name that transformers has for something else of the family: the folder of its code."""

SPELLED = {kind.replace("-", "_"): kind for kind in FILE_OF} | OTHER_NAMES
"""Model type with `_` for every `-`, or its other name → the model type."""


@cache
def classes() -> dict[str, list[str]]:
    """Model type → the classes that `transformers` has for it, as `python -m tests.sources.test_classes` lists them."""
    found: dict[str, list[str]] = json.loads(Path(__file__).with_name("classes.json").read_text())["classes"]
    return found


def kind_of_class(name: str) -> str:
    """The model type whose class has that name; empty where none of those that are read has one."""
    return next((kind for kind, names in classes().items() if name in names), "")


def typed(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """(the config with a model type, remarks): that of its class, where it gives none.

    Raises `InputError` where its class is another family's than its model type says.
    """
    name, given = architecture_of(data), data.get("model_type")
    kind = kind_of_class(name) if name else ""
    if not kind:
        return data, []
    if given is None or given == "":
        return {**data, "model_type": kind}, [
            f"model_type: not given; taken as '{kind}', for architectures names {name}"
        ]
    if isinstance(given, str) and usual_name(given) in FILE_OF and _read_otherwise(data, usual_name(given), kind):
        raise InputError(
            f"architectures: {name} is a class of '{kind}', but model_type says '{given}', and these are two models; "
            "expected fields that name one"
        )
    return data, []


def _read_otherwise(data: Mapping[str, Any], said: str, kind: str) -> bool:
    """Whether a config is another model when it is read as its class's model type.

    A model type of the same file, one that it cannot be read as, a wrapper around it, and one that has no class of its
    own for the text, so that another's stands in, say nothing against each other.
    """
    families = (family_of(said), family_of(kind))
    stands_in = said not in classes() or not families[0].alone
    if stands_in or FILE_OF[said] == FILE_OF[kind] or any(family.read is None for family in families):
        return False
    try:
        return read_config(data)[0] != read_config({**data, "model_type": kind})[0]
    except InputError:
        return False


def model_types() -> list[str]:
    """Every model type that is read, sorted."""
    return sorted(FILE_OF)


@cache
def _find_new() -> None:
    """Adds the families of files that the list of files does not have yet."""
    for file in family_files():
        if file not in FILES:
            FILE_OF.update(dict.fromkeys(families_in(file), file))


def family_files() -> list[str]:
    """Every file of families that there is, listed or not."""
    from pkgutil import iter_modules

    folder = Path(__file__).with_name("families")
    lineages = (found.name for found in iter_modules([str(folder)]))
    return [f"{lineage}.{found.name}" for lineage in lineages for found in iter_modules([str(folder / lineage)])]


def families_in(file: str) -> Mapping[str, Family]:
    """Model type → how it is read, of a file in `families`."""
    families: Mapping[str, Family] = import_module(f".families.{file}", __package__).FAMILIES
    return families


def usual_name(model_type: str) -> str:
    """A model type as its class spells it, where it is given with `_` for `-` or by the name of its folder;
    any other as it is.
    """
    return SPELLED.get(model_type.replace("-", "_"), model_type)


def family_of(model_type: str, where: str = "") -> Family:
    """The adapter of a model type. where: the path to it in a config, for the message.

    Raises `InputError`, which lists near ones, where there is none.
    """
    if model_type not in FILE_OF:
        _find_new()
    if model_type not in FILE_OF:
        near = suggest(model_type, model_types())
        raise InputError(
            f"{where}model_type: '{model_type}' is not supported.{near} (llmcalc params --measure measures its "
            "transformers class instead)"
        )
    return families_in(FILE_OF[model_type])[model_type]


def text_of(data: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str]:
    """(the path to the text model's fields, those fields, its model type) of a config, which may be a wrapper's.

    Raises `InputError` where the wrapper, or what it says of its text model, is not known.
    """
    kind, inner = data.get("model_type"), data.get("text_config")
    if not isinstance(kind, str) or not kind:
        raise InputError(f"model_type: {'missing' if kind is None else shown(kind)}; expected the name of a model type")
    kind = usual_name(kind)
    family = family_of(kind)
    text = family.text
    if text is None:
        return "", data, kind
    if inner is None:
        return "", data, text
    if not isinstance(inner, dict):
        raise InputError(f"text_config: {shown(inner)}; expected a table of fields")
    own = inner.get("model_type") or text
    if not isinstance(own, str):
        raise InputError(f"text_config.model_type: {shown(own)}; expected the name of a model type")
    named = {"architectures": data["architectures"]} if "architectures" in data else {}
    return "text_config.", {**named, **family.filled, **inner, **_tied(family, data)}, usual_name(own)


def _tied(family: Family, outer: Mapping[str, Any]) -> dict[str, Any]:
    """The `tie_word_embeddings` of a wrapper that the text model is read with in place of its own.

    Where the wrapper's config has none, the text's holds: a checkpoint that holds both tensors is loaded untied,
    whatever the default of the wrapper's class.
    """
    if family.ties == "never":
        return {"tie_word_embeddings": False}
    names = dict.fromkeys((family.aliases.get("tie_word_embeddings", "tie_word_embeddings"), "tie_word_embeddings"))
    own = next((outer[name] for name in names if outer.get(name) is not None), None)
    if own is None or family.ties == "text" or (family.ties == "either" and own is False):
        return {}
    if type(own) is not bool:
        raise InputError(f"tie_word_embeddings: {shown(own)}; expected true or false")
    return dict.fromkeys(names, own)


def _doubt(kind: str, outer: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """A remark where a wrapper's config leaves to its class whether the head is tied,
    and that says other than the text model.
    """
    family = family_of(kind)
    default, tied = family.defaults.get("tie_word_embeddings"), model["tie_word_embeddings"]
    told = any(
        outer.get(name) is not None for name in ("tie_word_embeddings", family.aliases.get("tie_word_embeddings", ""))
    )
    if (
        family.text is None
        or told
        or default is None
        or default == tied
        or (family.ties == "either" and tied)
        or model["head"]["type"] != "lm"
    ):
        return []
    said, other = str(tied).lower(), str(default).lower()
    return [
        f"tie_word_embeddings: not given beside text_config; counted as {said}, as the text model has it, where "
        f"{kind}'s class takes {other}"
    ]


def _builds_towers(kind: str, outer: Mapping[str, Any]) -> bool:
    """Whether the class that `architectures` names builds towers:
    a text model alone, which a wrapper's config may be given to, does not.
    """
    family, cls = family_of(kind), architecture_of(outer)
    if family.towers:
        return not cls or cls.startswith(family.towers)
    return family.text is not None and not cls.endswith("ForCausalLM")


class Reading(NamedTuple):
    """A config that was read.

    model: the `model` table of a native description. notes: remarks for the user. model_type: the text model's.
    unknown: fields that nothing has read. from_defaults: sizes that the config leaves to its class.
    """

    model: dict[str, Any]
    notes: list[str]
    model_type: str
    unknown: list[Unknown]
    from_defaults: dict[str, int]


def read_config(data: Mapping[str, Any], head: HeadKind | None = None) -> tuple[dict[str, Any], list[str]]:
    """(the `model` table of a native description, remarks for the user), whatever else the config has.

    Raises `InputError` naming the field, its value and what was expected.
    """
    reading = read(data, head)
    return reading.model, [*reading.notes, *remark([one.path for one in reading.unknown])]


def read(data: Mapping[str, Any], head: HeadKind | None = None) -> Reading:
    """A config with all that is to be said of it.

    Raises `InputError` naming the field, its value and what was expected.
    """
    outer, (where, data, kind) = data, text_of(data)
    wrapper, family = usual_name(outer["model_type"]), family_of(kind, where)
    if family.read is None:
        raise InputError(f"{where}model_type: '{kind}' wraps a text model, but the config has no text_config")
    config = Config(data, family.defaults, kind, head or head_of(outer), where, family.aliases)
    model = family.read(config)
    config.close(family.ignored)
    notes = [*config.notes, *_doubt(wrapper, outer, model)]
    if _builds_towers(wrapper, outer):
        from .towers import read_towers

        towers, said = read_towers(wrapper, family_of(wrapper).tower_file, outer, model["hidden_size"])
        model |= {"towers": towers} if towers else {}
        notes += said
    return Reading(model, notes, kind, config.unknown, config.from_defaults)
