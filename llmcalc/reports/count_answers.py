"""Parameters, FLOPs and caches of one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..costs.cache import CacheSize
from ..costs.flops import FlopCount
from ..costs.params import ParameterCount
from ..sources.preset import Preset
from .answer import OF_A_MODEL, Answer

if TYPE_CHECKING:
    from .document import Report


@dataclass(frozen=True, repr=False)
class Params(Answer, ParameterCount):
    """Parameters of a model. preset: the model as it was asked for."""

    preset: Preset = OF_A_MODEL

    def report(self) -> Report:
        from .params import report

        return report(self.preset, self)


@dataclass(frozen=True, repr=False)
class Flops(Answer, FlopCount):
    """FLOPs of one pass of a model. preset: the model as it was asked for."""

    preset: Preset = OF_A_MODEL

    def report(self) -> Report:
        from .flops import report

        return report(self.preset, self)


@dataclass(frozen=True, repr=False)
class Cache(Answer, CacheSize):
    """The cache of a model. preset: the model as it was asked for."""

    preset: Preset = OF_A_MODEL

    def report(self) -> Report:
        from .kv import report

        return report(self.preset, self)
