"""Loads `web/src/bridge.py` and `web/build.py`, which are scripts outside of the package."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"


def module(path: Path) -> ModuleType:
    """The module of a file, loaded once, under the name that `import` would give it."""
    if path.stem not in sys.modules:
        spec = spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[path.stem] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path.stem])
    return sys.modules[path.stem]


def bridge() -> ModuleType:
    return module(WEB / "src" / "bridge.py")
