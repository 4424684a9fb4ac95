"""FLOPs utilization of a measured run: MFU and HFU under each named convention.

MFU (Chowdhery 2022, arXiv:2204.02311, appendix B): FLOPs that the model needs, over the peak. HFU: those that the
kernels compute, with what recomputation and flash attention's backward pass run again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..accelerator import Hardware
from ..costs.flops import FlopCount
from ..errors import InputError
from ..frozen import frozen
from .flop_rules import RULE_WITH_RECOMPUTE, FlopRule, flop_rules_for


@frozen(slots=True)
class ConventionUtilization:
    """The MFU and HFU of a measured run under one convention for counting FLOPs.

    key, name, formula, source: as of `FlopRule`.
    flops_per_token: FLOPs that the model needs, by this convention.
    mfu, hfu: fractions of the peak. The HFU adds what runs again, by the exact count.
    """

    key: str
    name: str
    formula: str
    source: str
    flops_per_token: float
    mfu: float
    hfu: float


@frozen(slots=True)
class Utilization:
    """The MFU and HFU of a measured run, and the devices' peak FLOP/s.

    tokens_per_second: of all devices together.
    dtype: number format of the peak.
    peak_flops: FLOP/s of all devices together.
    repeated_flops_per_token: FLOPs that the kernels compute a second time, with causal pairs.
    conventions: the exact counts, then the rules of thumb.
    """

    hardware: Hardware
    devices: int
    dtype: str
    tokens_per_second: int
    peak_flops: int
    repeated_flops_per_token: float
    conventions: tuple[ConventionUtilization, ...]


def utilization(
    model_flop_count: FlopCount,
    kernel_flop_count: FlopCount,
    hardware: Hardware,
    devices: int,
    dtype: str,
    tokens_per_second: int,
) -> Utilization:
    """Returns the MFU and HFU of a run under each convention for counting FLOPs.

    model_flop_count: the pass with every product once; kernel_flop_count: the same as its kernels run it.
    Raises `InputError` for an accelerator without a peak in that format.
    """
    peak_flops = hardware.peak_rate(dtype) * devices
    token_count = model_flop_count.tokens

    def utilization_of(pass_flops: float) -> float:
        return float(pass_flops / token_count * tokens_per_second / peak_flops)

    def utilization_of_rule(flop_rule: FlopRule) -> ConventionUtilization:
        counts_full_pairs = flop_rule.key == "exact_full"
        if counts_full_pairs:
            recomputed_flops = kernel_flop_count.full - model_flop_count.full
        else:
            recomputed_flops = kernel_flop_count.causal - model_flop_count.causal
        return ConventionUtilization(
            flop_rule.key,
            flop_rule.name,
            flop_rule.formula,
            flop_rule.source,
            flop_rule.total / token_count,
            utilization_of(flop_rule.total),
            utilization_of(flop_rule.total + recomputed_flops),
        )

    flop_rules: Sequence[FlopRule] = [
        rule for rule in flop_rules_for(model_flop_count) if rule.key != RULE_WITH_RECOMPUTE
    ]
    recomputed_flops = (kernel_flop_count.causal - model_flop_count.causal) / token_count
    conventions = tuple(map(utilization_of_rule, flop_rules))
    return Utilization(hardware, devices, dtype, tokens_per_second, peak_flops, recomputed_flops, conventions)


@frozen(slots=True)
class MeasuredRun:
    """A run whose speed the user has measured; a field that was not given is None.

    tokens_per_second: of all devices together, as text such as `12k`, or a number.
    hardware: the accelerator, by name. devices: number of them, 1 by default.
    dtype: number format of the products; default the 16-bit format that the accelerator has.
    """

    tokens_per_second: str | int | float | None = None
    hardware: str | None = None
    devices: int | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` for options of a measured run without a rate or an accelerator."""
        if self.tokens_per_second is None:
            for field_name in ("hardware", "devices", "dtype"):
                if getattr(self, field_name) is not None:
                    raise InputError(
                        f"--{field_name}: only applies to a measured run; add --tokens-per-second, such as 12k"
                    )
        elif self.hardware is None:
            raise InputError("--tokens-per-second: needs the accelerator; add --hardware, such as h100")

    @property
    def has_rate(self) -> bool:
        return self.tokens_per_second is not None

    def compare(self, model_count: FlopCount, kernel_count: FlopCount) -> Utilization:
        """Returns the measured run's MFU and HFU under each convention."""
        from .. import units
        from ..sources.hardware import accelerators_and_devices

        (hardware,), devices = accelerators_and_devices([str(self.hardware)], self.devices)
        token_rate = units.parse_count(str(self.tokens_per_second), "--tokens-per-second")
        dtype = "bfloat16" if self.dtype is None else units.dtype(self.dtype)
        if self.dtype is None and dtype not in hardware.peak_flops and "float16" in hardware.peak_flops:
            dtype = "float16"
        return utilization(model_count, kernel_count, hardware, devices or 1, dtype, token_rate)
