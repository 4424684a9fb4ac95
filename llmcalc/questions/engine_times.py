"""The timed decoding of a serving engine's users, for the layouts that `fit --engine` lists."""

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

TIMED_CACHES = {"auto": None, "bf16": None, "bfloat16": None, "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
"""Word of an engine for the format of the cache → that of llmcalc; None for the published one."""


def decoded_token_time(
    preset: Preset, engine: Engine, version: EngineVersion, layout_option: EngineOption, users: int
) -> TimedRun | None:
    """Estimates the seconds in which an engine decodes one token for all users, at the longest request length.

    None for a layout that does not hold the users, and where no stack times what the engine does: layers on the host,
    drafted tokens, weights in a format that a flag of the engine says, and experts divided over copies of attention.
    """
    from ..studies.decoding import time_decoded_token

    engine_memory = layout_option.memory
    layout, settings = engine_memory.layout, engine_memory.settings
    cache_word = str(settings.get(engine.field_of_option("--kv-dtype"), "auto"))
    is_untimed = settings.get("quantization", "none") != "none" or any(
        "speculative" in field_name for field_name in settings
    )
    if not layout_option.serves_all_users or layout is None or cache_word not in TIMED_CACHES or is_untimed:
        return None
    if layout.dp > 1 and layout.ep > 1:
        return None
    settings_formats = {"quantize": settings.get("quantize"), "kv_dtype": TIMED_CACHES[cache_word]}
    chosen_formats = {field_name: name for field_name, name in settings_formats.items() if name is not None}
    decoding_run = RunQuestion(
        preset=preset,
        settings=settings_of(phase="decode", batch=1, seq=engine_memory.max_model_len, **chosen_formats),
        accelerators=(layout_option.hardware,),
    )
    software_stack = engine.software_stack(parse_version(version.version), layout_option.hardware.vendor)
    users_of_replica = -(-users // layout.dp)
    return time_decoded_token(
        decoding_run.memory_on_one_device(), layout_option.hardware, layout, users_of_replica, software_stack
    )
