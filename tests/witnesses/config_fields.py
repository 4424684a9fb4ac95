"""Compares the config fields that count in llmcalc with the fields that the class reads.

A field counts only if the family's class in `transformers` reads it. For each shape of `tests/families` and each
wrapper with vision or audio, every field that the reader asks for gets other values. If that changes a count
(parameters, FLOPs or cache), then the configuration built from the changed fields must differ in an attribute that the
class read while it was built and run. A changed list that the configuration class rejects must be rejected by llmcalc
too.

`python -m tests.witnesses.config_fields [MODEL_TYPE …]` prints all differences.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unittest import mock

from pydantic import ValidationError

from llmcalc.costs.flops import forward_flops_of
from llmcalc.costs.params import total_params_of
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.optional import PARTS_WITHOUT_FLOPS
from llmcalc.sources.huggingface.config import Config
from llmcalc.sources.huggingface.description import read_config, text_model_of
from llmcalc.sources.huggingface.registry import family_of, model_types
from llmcalc.witnesses import transformers as transformers_witness
from llmcalc.witnesses.shape_cache import ShapeCache
from llmcalc.witnesses.transformers import build_class_model, meta_device_quirks, run_forward
from llmcalc.witnesses.transformers_class import class_config_fields, class_model_type
from tests.builders import run_config, spec_of
from tests.components.towers.test_towers import wrapped
from tests.components.towers.tower_shapes import WRAPPERS
from tests.families import shapes_of
from tests.witnesses.differential import UNTOUCHED, others, types_of

MISSING = "(missing)"
INNER = "(inner configuration)"

SEQ = 40
"""Tokens of the counts; more than any window of the shapes and most changed windows."""

ENOUGH = 1
"""Number of values of a field that are compared in one config; other lengths of a list are always compared.

A value that the reader or the class rejects, or that changes nothing, is not compared, and the next one is tried.
"""

READERS = ("modeling_", "masking_utils.py", "modeling_layers.py")
"""Beginnings of the names of files in `transformers` whose reads of a config count.

A cache is excluded: `DynamicCache` reads `sliding_window` of any config, also where the class attends to all tokens.
"""

READ_BY_EVERY_CLASS = frozenset({"tie_word_embeddings"})
"""Fields that the base class of all models reads. It reads all others as well, to save and to print them."""

COUNTED_BESIDE_THE_CLASS: dict[str, str] = {
    "num_nextn_predict_layers": "the checkpoints have multi-token-prediction modules, which the classes leave out",
    "mtp_num_hidden_layers": "the same modules under Qwen's name",
    "use_mla": "the published class of DeepSeek-VL2 Tiny and DeepSeek-OCR reads it; the library's has latents alone",
}
"""Field → why it counts although the class does not read it."""

COUNTED_OF_OWN_CODE = {
    "moe_layer_start_index": ("ernie4_5_vl_moe", "ernie4_5_vl_moe_text"),
    # published in the table img_token_compression_config
    **dict.fromkeys(("spatial_merge_size", "temporal_patch_size"), ("minimax_m3_vl",)),
}
"""Field of the publisher's own code that counts → the model types whose class in `transformers` does not read it."""

READ_AS_A_COPY = {"vibevoice": "audio_config"}
"""Model type → the section whose fields its class writes into the configs of its encoder and decoder, whose attributes
are read in its place. The class's parameters are compared with other sizes by tests/components/towers.
"""

TIED_BY_THE_CLASS = frozenset({"t5", "mt5", "umt5", "longt5"})
"""Families whose class ties the head whatever the config says: a recorded deviation of their `Family`."""


@dataclass(frozen=True)
class Difference:
    """A field that counts in llmcalc and not in the class, or a list that only llmcalc accepts."""

    kind: str
    architecture: str
    path: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.architecture} {self.path}={self.value!r}: {self.reason}"


@dataclass
class Reads:
    """Paths of the attributes of a configuration that the class read, by the file that read them."""

    paths: dict[str, set[str]] = field(default_factory=dict)

    def counting(self) -> set[str]:
        """Returns the paths that the class itself read."""
        return {
            path
            for path, files in self.paths.items()
            if path in READ_BY_EVERY_CLASS or any(name.startswith(READERS) for name in files)
        }


@contextmanager
def recorded() -> Iterator[Reads]:
    """Records the attributes that are read of every configuration that `AutoConfig.for_model` returns."""
    import transformers

    reads, make = Reads(), transformers.AutoConfig.for_model

    def for_model(*names: Any, **fields: Any) -> Any:
        made = make(*names, **fields)
        _record(made, "", reads)
        return made

    with mock.patch.object(transformers.AutoConfig, "for_model", for_model):
        yield reads


def _record(made: Any, before: str, reads: Reads) -> None:
    """Replaces the class of a configuration, and of the configurations in it, by one that records reads."""
    import transformers

    package = str(Path(str(transformers.__file__)).parent)
    kind = type(made)
    for name in kind.sub_configs:
        inner = getattr(made, name, None)
        if isinstance(inner, transformers.PreTrainedConfig):
            _record(inner, f"{before}{name}.", reads)

    def read(self: Any, name: str) -> Any:
        frame = sys._getframe(1)
        if not name.startswith("__") and frame.f_code.co_filename.startswith(package) and not _turns(frame):
            own = kind.attribute_map.get(name, name)
            reads.paths.setdefault(before + own, set()).add(Path(frame.f_code.co_filename).name)
        return kind.__getattribute__(self, name)

    recording = type(kind.__name__, (kind,), {"__getattribute__": read, "__module__": kind.__module__})
    object.__setattr__(made, "__class__", recording)


def _turns(frame: Any) -> bool:
    """Whether a function computes rotary angles: it reads a head size that the class's projections may not have."""
    return "rope" in frame.f_code.co_name


class ClassReads:
    """The class for a config, built, with the paths of the attributes that it reads.

    at_start: the paths that it reads while it is built.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config: dict[str, Any] = config
        with recorded() as self.reads:
            self.model: Any = build_class_model(deepcopy(config))
        self.at_start: set[str] = self.reads.counting()

    @cached_property
    def all(self) -> set[str]:
        """The paths that it reads while it is built and processes a few tokens."""
        with (
            mock.patch.object(transformers_witness, "count_flops", run_alone),
            suppress(Exception),  # some classes read values, which meta tensors do not have; the rest was recorded
        ):
            run_forward(spec_of(self.config), self.model, 1, 12, meta_device_quirks(self.config))
        return self.reads.counting()


def class_reads(config: dict[str, Any]) -> set[str]:
    """Returns the paths that the class for a config reads while it is built and processes a few tokens."""
    return ClassReads(config).all


def run_alone(module: Any, run: Callable[[], Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Takes the place of `count_flops`: runs the module and counts nothing."""
    with ShapeCache():
        run()
    return {}, {}


def configured(config: dict[str, Any]) -> Any:
    """Returns the configuration object of `transformers` for a config.

    Its check of a field's type writes a configuration in a field out for each type that the field has not.
    """
    import transformers

    with mock.patch.object(transformers.PreTrainedConfig, "__repr__", object.__repr__):
        return transformers.AutoConfig.for_model(
            class_model_type(config["model_type"]), **class_config_fields(deepcopy(config))
        )


def attribute(configuration: Any, path: str) -> Any:
    """Returns the value at a path of a configuration."""
    for name in path.split("."):
        try:
            configuration = getattr(configuration, name)
        except Exception:
            return MISSING
    # The fields of an inner configuration are recorded one by one. To compare it as a whole would count every field of
    # it as read, and fails where it gives its layers values of their own.
    return INNER if hasattr(configuration, "to_dict") else configuration


def fields_asked(config: dict[str, Any]) -> dict[str, Any]:
    """Returns path → default of every field that llmcalc reads of a config."""
    configs: list[Config] = []
    start = Config.__post_init__

    def post_init(self: Config) -> None:
        start(self)
        configs.append(self)

    with mock.patch.object(Config, "__post_init__", post_init):
        read_config(config)
    return {c.location + name: c.defaults.get(name) for c in configs for name in c.fields_read}


def at(config: Mapping[str, Any], path: str) -> Any:
    """Returns the value at a path of a config; None if there is none."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None  # type: ignore[assignment]
    return config


def changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Returns a copy of a config with another value at a path."""
    out = deepcopy(config)
    *outer, name = path.split(".")
    table = out
    for step in outer:
        table[step] = dict(table.get(step) or {})
        table = table[step]
    table[name] = value
    return out


def counts(config: dict[str, Any]) -> tuple[Any, ...] | None:
    """Returns llmcalc's counts of a config; None if it is rejected."""
    try:
        tree = ModelSpec.model_validate(read_config(deepcopy(config))[0]).tree()
    except (InputError, ValidationError):
        return None
    workload = run_config(seq=SEQ, pairs="causal")
    return (
        tree.total(total_params_of, include=PARTS_WITHOUT_FLOPS),
        tree.total(forward_flops_of, workload),
        tree.total(lambda use: use.cache_bits(16), workload),
    )


def values_for(name: str, value: Any, types: tuple[type, ...], depth: int) -> Iterator[Any]:
    """Yields other values of a field; for a field without a value also lists with a value for every layer."""
    yield from others(name, value, types)
    if isinstance(value, list) and value:
        yield [*value, value[-1]]
    if value is None:
        yield from (True, False, 2, 4, 8, 16)
        yield from ([one] * depth for one in (0, 1, "full_attention", "sliding_attention"))


def differences(config: dict[str, Any], known: set[str] | None = None) -> Iterator[Difference]:
    """Yields the differences between llmcalc's reading of a config and its class's.

    known: paths of fields that other configs of the model type have compared, to which this one's are added; they are
        not compared again, unless they are lists, whose length may be wrong. None (default) compares all.
    """
    kind, architecture = config["model_type"], config["architectures"][0]
    table, asked = read_config(config)[0], fields_asked(config)
    made, known = configured(config), set() if known is None else known

    class_of_config = cache(lambda: ClassReads(config))
    unchanged_attribute = cache(lambda path: attribute(made, path))

    def is_read_otherwise(theirs: Any) -> bool:
        """Whether an attribute that the class reads has another value; it runs only where none is read before."""
        return any(attribute(theirs, path) != unchanged_attribute(path) for path in class_of_config().at_start) or any(
            attribute(theirs, path) != unchanged_attribute(path) for path in class_of_config().all
        )

    depth = text_model_of(config)[1].get("num_hidden_layers") or 3
    for path, default in sorted(asked.items()):
        name = path.rpartition(".")[2]
        if name in UNTOUCHED | {"num_labels"} | COUNTED_BESIDE_THE_CLASS.keys():
            continue
        if path in known or (name == "tie_word_embeddings" and kind in TIED_BY_THE_CLASS):
            continue
        if kind in COUNTED_OF_OWN_CODE.get(name, ()) or path.partition(".")[0] == READ_AS_A_COPY.get(kind):
            continue
        value = at(config, path)
        value = default if value is None else value
        derived = attribute(made, path)
        value = list(derived) if value is None and isinstance(derived, list | tuple) else value
        compared = 0
        for other in values_for(name, value, types_of(type(made), name), depth):
            strict = isinstance(value, list) and isinstance(other, list)
            if compared == ENOUGH and not strict:
                continue
            reason = _difference(config, changed(config, path, other), table, is_read_otherwise, strict)
            compared += reason is not None
            if reason:
                yield Difference(kind, architecture, path, other, reason)
                break
        if compared and not isinstance(value, list):
            known.add(path)


def _difference(
    config: dict[str, Any],
    variation: dict[str, Any],
    table: dict[str, Any],
    is_read_otherwise: Callable[[Any], bool],
    strict: bool,
) -> str | None:
    """Returns how llmcalc and the class differ on a config with a changed field.

    It is empty if they do not differ, and None if the field changes nothing in llmcalc or is rejected.

    table: the description of the unchanged config.
    is_read_otherwise: whether the class reads an attribute of a configuration that the unchanged config has otherwise.
    strict: whether the class's rejection of the changed config counts.
    """
    try:
        changed_table, notes = read_config(deepcopy(variation))
    except InputError:
        return None
    same = changed_table == table
    if any("encoder is not counted" in note for note in notes) or (same and not strict):
        return None
    try:
        theirs = configured(variation)
    except Exception as error:
        answered = strict and counts(variation) is not None
        return f"the class rejects it: {' '.join(str(error).split())[:160]}" if answered else None
    if same or is_read_otherwise(theirs):
        return ""
    return "the class does not read it" if counts(variation) not in (None, counts(config)) else None


def configs_of(kind: str) -> Iterator[dict[str, Any]]:
    """Yields the small configs of a model type: its shapes, and its wrapper around a small text model.

    Of shapes with the same fields for several classes, only the first is used.
    """
    met: list[dict[str, Any]] = []
    for shape in shapes_of(kind) if family_of(kind).read_model is not None else ():
        fields = {name: value for name, value in shape.items() if name != "architectures"}
        if fields not in met:
            met.append(fields)
            yield shape
    if kind in WRAPPERS:
        yield from (wrapped(kind, tower) for tower in WRAPPERS[kind][2])


def main(kinds: list[str]) -> int:
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    met: set[tuple[str, str]] = set()
    for kind in kinds or model_types():
        for config in configs_of(kind):
            for difference in differences(config):
                if (kind, difference.path) not in met:
                    met.add((kind, difference.path))
                    print(difference, flush=True)
    return 1 if met else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
