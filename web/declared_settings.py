"""Writes `src/declared_settings.js` from the declarations of llmcalc's settings: `python web/declared_settings.py`.

The page's controls take from it the option of a setting, its bounds, and its values where they are few.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WEB = Path(__file__).resolve().parent
FILE = WEB / "src" / "declared_settings.js"

sys.path.insert(0, str(WEB.parent))

from llmcalc.device_memory.settings import Settings  # noqa: E402
from llmcalc.frameworks.engines.registry import ENGINE_FOLDERS, engine  # noqa: E402
from llmcalc.frameworks.registry import FRAMEWORK_NAMES as FRAMEWORKS  # noqa: E402
from llmcalc.parallel.layout_request import LayoutRequest  # noqa: E402
from llmcalc.workload.setting import DeclaredSetting, declarations_of  # noqa: E402


def kind(setting: DeclaredSetting) -> dict[str, Any]:
    """The values of a setting, as the page reads them."""
    if setting.value_type is int:
        return {"kind": "number", "least": setting.setting.minimum, "most": setting.setting.maximum}
    if setting.value_type is bool:
        return {"kind": "flag"}
    if setting.value_type == tuple[int, ...]:
        return {"kind": "numbers"}
    return {"kind": "word", "words": list(setting.allowed_words)} if setting.allowed_words else {"kind": "text"}


def text() -> str:
    """The module, with one setting a line."""
    settings = {**declarations_of(Settings), **declarations_of(LayoutRequest)}
    lines = [
        f"  {name}: {json.dumps({'option': setting.option, **kind(setting)})},\n" for name, setting in settings.items()
    ]
    head = "// Written by web/declared_settings.py from the declarations of llmcalc's settings.\n"
    served = [name for name in ENGINE_FOLDERS if engine(name).layout_flags is not None]
    listed = f"export const FRAMEWORKS = {json.dumps(FRAMEWORKS)};\nexport const ENGINES = {json.dumps(served)};\n"
    return f"{head}export const DECLARED = {{\n{''.join(lines)}}};\n{listed}"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
