"""The lists of classes in `llmcalc/sources/huggingface` match the installed `transformers`: `classes.json` of supported
model types, `other_classes.json` of all others, and `defaults.json` of the defaults of configuration classes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import llmcalc
from llmcalc.sources import huggingface
from llmcalc.sources.huggingface.config import IRRELEVANT_FIELDS
from llmcalc.sources.huggingface.head_kinds import HEAD_ENDINGS, head_kind_of_config
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, family_of, model_type_of_class_name, model_types
from llmcalc.sources.huggingface.towers import TOWER_SECTIONS, sections_of
from llmcalc.witnesses.module_measurements import parameter_counts_by_path
from llmcalc.witnesses.transformers import build_class_model
from tests.builders import json_lines
from tests.sources.expert_weights import float32_weights

LIST = Path(huggingface.__path__[0]) / "classes.json"
OTHERS = LIST.with_name("other_classes.json")
DEFAULTS = LIST.with_name("defaults.json")


def modeling(kind: str) -> Iterator[Any]:
    """Yields the modules with the classes of a model type; none if there is no module of that name."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    try:
        package = import_module(f"transformers.models.{model_type_to_module_name(kind)}")
    except ModuleNotFoundError:
        return
    for module in iter_modules(package.__path__):
        if module.name.startswith("modeling_"):
            yield import_module(f"{package.__name__}.{module.name}")


def classes_of(kind: str) -> list[str]:
    """Returns the public classes that a config of this model type builds, with or without a head, sorted."""
    return sorted(
        name
        for module in modeling(kind)
        for name in getattr(module, "__all__", ())
        if name.endswith(tuple(HEAD_ENDINGS))
        and "pretrained" not in name.lower()
        and getattr(getattr(getattr(module, name), "config_class", None), "model_type", None) == kind
    )


def unsupported() -> dict[str, list[str]]:
    """Returns the classes of every other model type, from the names that the auto classes choose by."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    found: dict[str, set[str]] = {}
    for mapping, kinds in vars(modeling_auto).items():
        if mapping.startswith("MODEL_") and mapping.endswith("_MAPPING_NAMES"):
            for kind, names in kinds.items():
                if kind in CONFIG_MAPPING_NAMES and kind not in model_types():
                    found.setdefault(kind, set()).update([names] if isinstance(names, str) else names)
    return {kind: sorted(found[kind]) for kind in sorted(found)}


def language_models(*tasks: str) -> list[str]:
    """Returns the unsupported model types for which an auto class of one of these tasks has a class, sorted."""
    from transformers.models.auto import modeling_auto

    mappings = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in tasks]
    return sorted(kind for kind in unsupported() if any(isinstance(names.get(kind), str) for names in mappings))


def bases_of(names: list[str]) -> list[str]:
    """Returns the attribute that holds the model without a head in these classes, without the usual `model`."""
    import transformers

    found = {getattr(getattr(transformers, name, None), "base_model_prefix", "") for name in names}
    return sorted(found - {"model", ""})


def other_names_of(kind: str) -> dict[str, str]:
    """Returns the `attribute_map` of a model type's configuration class: usual name of a field → the class's own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return dict(sorted(CONFIG_MAPPING[kind].attribute_map.items())) if kind in CONFIG_MAPPING else {}


def section_names_of(kind: str) -> dict[str, dict[str, str]]:
    """Returns the `attribute_map` of the configuration class of each section of a wrapper that describes an encoder."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    encoders = {*TOWER_SECTIONS, "encoder_config"}
    if kind not in CONFIG_MAPPING or encoders.isdisjoint(CONFIG_MAPPING[kind].sub_configs):
        return {}
    sections = CONFIG_MAPPING[kind]()  # has the sections whose class their model type chooses
    names = {name: getattr(getattr(sections, name), "attribute_map", {}) for name in CONFIG_MAPPING[kind].sub_configs}
    return {name: dict(sorted(names[name].items())) for name in sorted(encoders & names.keys()) if names[name]}


OF_LOGITS = re.compile(
    r"\b(\w*loss_fct|cross_entropy)\(\s*(?!\w*\.float)[\w.]*(logits|prediction_scores|lm_scores|scores)\b(?!\.float)"
)
"""A call of a loss of the logits in their own number format."""


def reads_logits_as_they_are(name: str) -> bool:
    """Whether a class with a language-model head computes its loss of the logits, and not of a float32 copy."""
    import inspect

    import transformers

    if head_kind_of_config({"architectures": [name]}) != "lm":
        return False
    cls = getattr(transformers, name, None)
    source = "" if cls is None else inspect.getsource(cls.forward)
    return OF_LOGITS.search(source) is not None and ".float()" not in source


def losses_of_logits(found: dict[str, list[str]]) -> list[str]:
    """Returns the classes whose loss reads the logits in their own number format, sorted."""
    return sorted({name for names in found.values() for name in names if reads_logits_as_they_are(name)})


IN_FLOAT32 = re.compile(r"F\.linear\(\s*hidden_states\.(type\(torch\.float32\)|float\(\)|to\(torch\.float32\))")
"""A router's product of float32 copies."""


GROUP_MASK = re.compile(r"\bgroup_mask\.scatter_\(")
"""A router's mask of the groups of experts from which a token's experts are selected."""


def matches_code(pattern: re.Pattern[str], names: list[str]) -> bool:
    """Whether the pattern is in the module of any of these classes."""
    import inspect
    import sys

    import transformers

    modules = {getattr(getattr(transformers, name, None), "__module__", "") for name in names} - {""}
    return any(pattern.search(inspect.getsource(sys.modules[module])) for module in modules)


def types_by_code(pattern: re.Pattern[str], found: dict[str, list[str]]) -> list[str]:
    """Returns the model types with the pattern in the code of their classes, sorted."""
    return sorted(kind for kind, names in found.items() if matches_code(pattern, names))


def flat_wrappers() -> list[str]:
    """Returns the wrappers whose configuration class gives its text model a size from the top of the config, sorted."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    def text_depth(kind: str) -> int | None:
        try:
            config = CONFIG_MAPPING[kind](num_hidden_layers=3)
        except StrictDataclassError:  # the class reads the field, and compares it with others
            return 3
        return getattr(getattr(config, family_of(kind).text_section, None), "num_hidden_layers", None)

    wrappers = [kind for kind in model_types() if family_of(kind).text_type and kind in CONFIG_MAPPING]
    return sorted(kind for kind in wrappers if text_depth(kind) == 3)


def fixed_sections_of(kind: str) -> list[str]:
    """Returns the sections of a wrapper whose configuration class it fixes, sorted; the others' have a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    sections = CONFIG_MAPPING[kind].sub_configs if kind in CONFIG_MAPPING and family_of(kind).text_type else {}
    return sorted(name for name, cls in sections.items() if getattr(cls, "model_type", ""))


def class_lists(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Returns the lists of classes and model types by what their code does."""
    return {
        "losses_of_logits": losses_of_logits(found),
        "float32_routers": types_by_code(IN_FLOAT32, found),
        "float32_weights": float32_weights(),
        "grouped_routers": types_by_code(GROUP_MASK, found),
        "flat_wrappers": flat_wrappers(),
    }


def written(found: dict[str, list[str]], bases: bool = False, **lists: list[str]) -> str:
    """Returns a file's text: one line per model type with a class, and one per list of model types.

    bases: whether it says how these classes call the model without a head, and how they call fields of configs.
    """
    import transformers

    named = json_lines({kind: names for kind, names in found.items() if names}, indent="  ")
    version, more = json.dumps(transformers.__version__), ""
    if bases:
        of_types = {kind: some for kind, names in found.items() if (some := bases_of(names))}
        names = {kind: other_names for kind in found if (other_names := other_names_of(kind))}
        sections = {kind: of_kind for kind in found if (of_kind := section_names_of(kind))}
        fixed = {kind: of_kind for kind in found if (of_kind := fixed_sections_of(kind))}
        facts: dict[str, Mapping[str, Any]] = {
            "bases": of_types,
            "names": names,
            "section_names": sections,
            "fixed_sections": fixed,
        }
        more = "".join(f',\n  "{name}": {json_lines(fact, indent="  ")}' for name, fact in facts.items())
    more += "".join(f',\n  "{name}": {json.dumps(kinds)}' for name, kinds in lists.items())
    return f'{{\n  "transformers": {version},\n  "classes": {named}{more}\n}}\n'


UNREAD_DEFAULTS = IRRELEVANT_FIELDS - {"rope_parameters", "rms_norm_eps", "layer_norm_eps"}
"""Fields of a text section whose defaults change no answer."""


def is_plain(value: Any) -> bool:
    """Whether a default is a finite number, a text, null, or a list of them."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))


def defaults_of(cls: Any) -> dict[str, Any]:
    """Returns field → default of a configuration class, of the plain fields that the class itself states."""
    from transformers import PretrainedConfig

    shared = {*PretrainedConfig.__mro__}
    stated = {name for base in cls.__mro__ if base not in shared for name in vars(base).get("__annotations__", ())}
    defaults = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(cls)
        if field.name in stated
    }
    lists = {name: list(default) if isinstance(default, tuple) else default for name, default in defaults.items()}
    return {name: default for name, default in lists.items() if is_plain(default)}


def section_defaults(kind: str) -> dict[str, Any]:
    """Returns the defaults that a wrapper's class has for a text section that its config lacks, where they differ.

    They differ from those of the text model's own class. What this class computes from the others is left out.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family = family_of(kind)
    section = getattr(CONFIG_MAPPING[kind](), family.text_section, None) if family.text_type in CONFIG_MAPPING else None
    if not hasattr(section, "to_dict"):
        return {}
    cls = CONFIG_MAPPING[family.text_type]
    read = {*defaults_of(cls), "rope_parameters"} - UNREAD_DEFAULTS - family.text_fields_from_sections.keys()
    stated, usual = (
        {name: value for name, value in config.to_dict().items() if name in read} for config in (section, cls())
    )
    changed = {name: value for name, value in stated.items() if value != usual[name] and not isinstance(value, list)}
    computed = cls(**changed).to_dict()
    return changed | {name: value for name, value in stated.items() if value != computed[name]}


def encoder_types() -> set[str]:
    """Returns the model types of the image and audio encoders that wrappers' configs have."""
    return {
        encoder_type
        for kind in model_types()
        for section in sections_of(kind, family_of(kind).tower_file).values()
        for encoder_type in section.defaults_by_type
    }


def written_defaults() -> str:
    """Returns the text of `defaults.json`: a line per model type, or type of encoder, with a configuration class."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kinds = [kind for kind in sorted(model_types()) if kind in CONFIG_MAPPING and not family_of(kind).source]
    sections = {kind: {family_of(kind).text_section: section_defaults(kind)} for kind in kinds}
    encoders = encoder_types().intersection(CONFIG_MAPPING).difference(model_types())
    of_models = {
        kind: defaults_of(CONFIG_MAPPING[kind]) | {name: table for name, table in sections[kind].items() if table}
        for kind in kinds
    }
    of_encoders = {kind: defaults_of(CONFIG_MAPPING[kind]) for kind in encoders}
    return json_lines(dict(sorted((of_models | of_encoders).items()))) + "\n"


def test_the_defaults_are_those_of_the_configuration_classes() -> None:
    """Another default in another version of transformers fails here."""
    pytest.importorskip("transformers")
    assert DEFAULTS.read_text() == written_defaults(), "run python -m tests.sources.test_classes"


WITHOUT_SIZES = """
    FunAsrNanoForConditionalGeneration GotOcr2ForConditionalGeneration PaliGemmaForConditionalGeneration
    Qwen3ASRForConditionalGeneration VoxtralForConditionalGeneration Nemotron3_5TranscribeForConditionalGeneration
    Qwen2_5OmniThinkerForConditionalGeneration Qwen3VLMoeForConditionalGeneration GitForCausalLM Glm4MoeForCausalLM
    Mistral3ForConditionalGeneration LightOnOcrForConditionalGeneration UnlimitedOcrForConditionalGeneration
    PPFormulaNetForConditionalGeneration
    """
"""Classes of wrappers with other defaults of text, or of tying, than the text model's class, and four whose defaults no
other test counts.
"""


@pytest.mark.parametrize("class_name", WITHOUT_SIZES.split())
def test_a_config_without_sizes_is_counted_with_the_defaults_of_its_class(class_name: str) -> None:
    """The class of a wrapper says what a missing text section is."""
    pytest.importorskip("transformers")
    config = {"model_type": model_type_of_class_name(class_name), "architectures": [class_name]}
    model = build_class_model(config, will_run=False)
    assert llmcalc.params(config, with_towers=True).document["params"]["total"] == parameter_counts_by_path(model)[""]


def written_others() -> str:
    """Returns the text of `other_classes.json`."""
    return written(
        unsupported(),
        causal=language_models("CAUSAL_LM"),
        language=language_models("SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM"),
    )


def test_the_list_is_of_the_installed_version() -> None:
    """Of each lineage one type's classes are read here; the next test reads all of them."""
    transformers = pytest.importorskip("transformers")
    listed = json.loads(LIST.read_text())
    assert listed["transformers"] == transformers.__version__, "run python -m tests.sources.test_classes"
    first = {
        FILE_BY_TYPE[kind].partition(".")[0]: kind for kind in reversed(model_types()) if not family_of(kind).source
    }
    known = transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES
    not_listed = [kind for kind in model_types() if kind in known and kind not in listed["classes"]]
    for kind in (*first.values(), *not_listed):
        assert listed["classes"].get(kind, []) == classes_of(kind), kind
    assert OTHERS.read_text() == written_others(), "run python -m tests.sources.test_classes"


def test_the_formats_of_experts_weights_are_those_of_the_classes() -> None:
    """Of a few classes; the next test runs all of them."""
    pytest.importorskip("transformers")
    few = frozenset({"mixtral", "qwen3_moe", "minimax_m2"})
    assert set(float32_weights(few)) == few & set(json.loads(LIST.read_text())["float32_weights"])


@pytest.mark.exhaustive
def test_the_list_is_that_of_the_installed_classes() -> None:
    pytest.importorskip("transformers")
    supported = {kind: classes_of(kind) for kind in model_types()}
    assert LIST.read_text() == written(supported, bases=True, **class_lists(supported)), (
        "run python -m tests.sources.test_classes"
    )


if __name__ == "__main__":
    supported = {kind: classes_of(kind) for kind in model_types()}
    LIST.write_text(written(supported, bases=True, **class_lists(supported)))
    OTHERS.write_text(written_others())
    DEFAULTS.write_text(written_defaults())
