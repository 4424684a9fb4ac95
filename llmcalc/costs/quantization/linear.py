"""Schemes that convert the linear maps of a model, each by itself, and leave everything else as it is.

Left unconverted: embeddings, norms, biases, convolutions, everything that is no matrix of a product; routers, which
published checkpoints keep whatever the scheme; maps between residual streams, which are no modules of their own; a
matrix that stands for several outside of experts, for such block-diagonal maps are no `nn.Linear`, but for that of an
attention's output (DeepSeek-V4), which is; the output head, unless the scheme is told to convert it; towers of other
modalities; and what the config names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ...algebra import Number
from ...errors import InputError
from ...model import ModelSpec
from ...ops import ExpertLinear
from ...units import DTYPE_BITS
from .base import Parts, Scheme, Site, plain
from .formats import LinearFormat
from .patterns import Named

Scope: TypeAlias = Literal["linear", "experts"]

HEADS = ("lm_head", "classifier")
"""Components whose maps make the output."""

KEPT = ("router", "residual", "mtp")
"""Components that no scheme converts:
of prediction modules that is the map of their input (`eh_proj`), which DeepSeek-V3 holds in bf16.
"""

OUTSIDE = ("embedding", "pooler", *HEADS)
"""Components outside of layers, of which AutoAWQ and AutoGPTQ convert nothing."""


@dataclass(frozen=True)
class Group:
    """Maps that share a format. named: which ones; None for all.
    experts: the format of routed experts, where that is another.
    """

    format: LinearFormat
    named: Named | None = None
    experts: LinearFormat | None = None


@dataclass(frozen=True)
class LinearScheme(Scheme):
    """scope: linear maps, or routed experts alone. head: whether output heads are converted. everywhere: whether every
    `nn.Linear` is, outside of layers and the gate of shared experts, a map to one number, too. kept: modules that stay
    unconverted. Of several groups, the first that names a map holds.
    """

    groups: tuple[Group, ...] = ()
    scope: Scope = "linear"
    head: bool = False
    everywhere: bool = False
    kept: Named = field(default_factory=lambda: Named(()))

    def store(self, spec: ModelSpec, found: list[Site], dtype: str) -> Iterator[tuple[Site, Parts]]:
        converted = False
        for site in found:
            chosen = self._format(site)
            if chosen is None:
                yield site, plain(site.tensor.size, dtype)
                continue
            converted = True
            count, n_out, n_in = _matrices(site)
            why = chosen.refuses(n_out, n_in)
            if why:
                raise InputError(
                    f"--quantize {self.label}: {site.path}: {why}; expected another scheme, or a model whose sizes "
                    "it can hold"
                )
            yield site, chosen.of(n_out, n_in, DTYPE_BITS[dtype] // 8) * count
        if not converted:
            what = "routed experts" if self.scope == "experts" else "linear maps that are not left out"
            raise InputError(
                f"--quantize {self.label}: converts {what}, and this model has none; expected another scheme"
            )

    def _format(self, site: Site) -> LinearFormat | None:
        """The format that a tensor is converted to, None where it is not."""
        experts = site.kind == "experts" and len(site.tensor.shape) == 3
        single = (len(site.tensor.shape) == 2 or _grouped(site)) and self.scope == "linear"
        if site.tensor.role != "matrix" or site.kind in KEPT or not (experts or single):
            return None
        output = site.kind in HEADS and site.name not in ("dense", "head_proj")
        if (
            (output and not self.head)
            or (not self.everywhere and _beside(site) and not output)
            or site.path in self.kept
        ):
            return None
        group = next((one for one in self.groups if one.named is None or site.path in one.named), None)
        if group is None:
            return None
        return group.experts if experts and group.experts is not None else group.format

    def notes(self) -> list[str]:
        what = "routed experts alone" if self.scope == "experts" else "linear maps"
        texts = [f"{self.label} ({self.source}): {what}: {'; '.join(dict.fromkeys(self._formats()))}"]
        head = "" if self.head else ", output head"
        others = ", attention" if self.scope == "experts" else ""
        texts.append(
            f"unconverted: embeddings{head}{others}, norms, biases, routers"
            + (" and what the config names" if self.kept.entries else "")
        )
        unused = self.kept.unused
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            texts.append(f"the config leaves out modules that are not in this model: {', '.join(unused[:3])}{more}")
        return [*texts, *self.remarks]

    def _formats(self) -> Iterator[str]:
        for group in self.groups:
            yield group.format.describe()
            if group.experts is not None:
                yield f"experts in {group.experts.describe()}"


def _beside(site: Site) -> bool:
    """Whether it is a map that quantisers which go through layers leave out."""
    return site.name == "shared_expert_gate" or site.kind in OUTSIDE


def _grouped(site: Site) -> bool:
    """A map in groups, all of which every token passes, that is one `nn.Linear` of all their rows."""
    op = next((child.op for child in site.parent.children if child.name == site.name), None)
    return site.kind == "attention" and isinstance(op, ExpertLinear) and op.top_k == op.num_experts


def _matrices(site: Site) -> tuple[Number, Number, Number]:
    """(how many, rows, columns)."""
    shape = site.tensor.shape
    if len(shape) == 2:
        return (1, *shape)
    return (1, shape[0] * shape[1], shape[2]) if _grouped(site) else (shape[0], shape[1], shape[2])
