"""Estimates an engine's seconds per decoded token of all users, for the layouts that `fit --engine` lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..device_memory.settings import settings_of
from ..frameworks.engines.engine import Engine, EngineVersion
from ..frameworks.engines.engine_use import EngineOption
from ..frameworks.engines.versions import parse_version
from ..sources.preset import Preset
from .runs import RunQuestion

if TYPE_CHECKING:
    from ..studies.timed_run import TimedRun

CACHE_FORMAT_BY_ENGINE_WORD = {
    "auto": None,
    "f16": None,
    "bf16": None,
    "bfloat16": None,
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "q8_0": "q8_0",
}
"""Engine's name of a cache format → llmcalc's name; None for the published format."""

CACHE_FORMAT_SETTINGS = ("cache_type_k", "cache_type_v")
"""Engine settings with the separate cache formats of keys and of values."""


def decoded_token_time(
    preset: Preset, engine: Engine, version: EngineVersion, engine_option: EngineOption, users: int
) -> TimedRun | None:
    """Estimates the seconds in which an engine decodes one token for all users, at the longest request length.

    None for a layout that does not hold the users, and where no stack times what the engine does: layers on the host,
    drafted tokens, weights in a format that a flag of the engine says, and experts divided over copies of attention.
    """
    from ..studies.decoding import time_decoded_token
    from .usual_engines import layout_divided_by_layers

    engine_memory = engine_option.memory
    layout, settings = engine_memory.layout, engine_memory.settings
    cache_fields = (engine.field_of_option("--kv-dtype"), *CACHE_FORMAT_SETTINGS)
    cache_formats = {str(settings[field_name]) for field_name in cache_fields if field_name in settings} or {"auto"}
    is_untimed = settings.get("quantization", "none") != "none" or any(
        field_word in field_name for field_name in settings for field_word in ("speculative", "draft")
    )
    has_timed_cache = len(cache_formats) == 1 and cache_formats <= CACHE_FORMAT_BY_ENGINE_WORD.keys()
    if not engine_option.serves_all_users or not has_timed_cache or is_untimed:
        return None
    if layout is None and not engine_memory.has_all_layers_on_devices:
        return None
    if layout is not None and layout.ep * layout.expert_tp > layout.tp:
        return None
    settings_formats = {
        "quantize": settings.get("quantize"),
        "kv_dtype": CACHE_FORMAT_BY_ENGINE_WORD[cache_formats.pop()],
    }
    chosen_formats = {
        setting_name: format_name for setting_name, format_name in settings_formats.items() if format_name is not None
    }
    decoding_question = RunQuestion(
        preset=preset,
        settings=settings_of(phase="decode", batch=1, seq=engine_memory.max_model_len, **chosen_formats),
        accelerators=(engine_option.hardware,),
    )
    run_memory = decoding_question.memory_on_one_device()
    layout = layout or layout_divided_by_layers(run_memory.spec.layer_count, engine_memory.devices, 1)
    stack_name = engine.software_stack(parse_version(version.version), engine_option.hardware.vendor)
    users_of_replica = -(-users // layout.dp)
    return time_decoded_token(run_memory, engine_option.hardware, layout, users_of_replica, stack_name)
