"""The parallelism options as typed, and the layout derived from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import date
from typing import Annotated, Any

from ..errors import InputError
from ..frozen import frozen
from ..workload.setting import TRAINING_PHASES, Setting
from .layout import ContextExchange, ImpossibleLayout, Layout, Schedule

MAX_DEVICES = 2**20
"""Largest number of devices of a layout; the largest clusters have a quarter of it."""


def parse_stage_layers(value_origin: str, stage_texts: tuple[Any, ...]) -> tuple[int, ...]:
    """Parses the number of layers of each stage; `2x8` is 2 layers in each of 8 stages."""
    layer_counts: list[int] = []
    for stage_text in stage_texts:
        stage_match = re.fullmatch(r"\s*([0-9]{1,99})(?:x([0-9]{1,9}))?\s*", str(stage_text))
        if stage_match is None:
            raise InputError(
                f"{value_origin}: '{','.join(map(str, stage_texts))}'; expected layers of each stage, such as "
                "12,10,10 or 12,10x2"
            )
        stage_count = int(stage_match[2] or 1)
        if len(layer_counts) + stage_count > MAX_DEVICES:
            raise InputError(f"{value_origin}: {stage_text}: expected at most {MAX_DEVICES:,} stages")
        layer_counts += [int(stage_match[1])] * stage_count
    return tuple(layer_counts)


@frozen
class LayoutRequest:
    """The parallelism options as the user typed them; None for an option that was not typed."""

    devices: Annotated[
        int | None,
        Setting(
            "Devices: tp · cp · pp · dp. Of devices that are given, --dp is what is left.",
            "Layout",
            spellings=("--world-size", "--gpus", "--num-gpus"),
            maximum=MAX_DEVICES,
            is_common=True,
        ),
    ] = None
    tp: Annotated[
        int | None, Setting("Ranks that divide heads and widths. The vocabulary too.", "Layout", "1", is_common=True)
    ] = None
    sequence_parallel: Annotated[
        bool | None,
        Setting("With --tp: what lies between the products is divided by tokens.", "Layout", phases=TRAINING_PHASES),
    ] = None
    pp: Annotated[int | None, Setting("Stages of a pipeline.", "Layout", "1", is_common=True)] = None
    vpp: Annotated[
        int | None, Setting("Chunks of layers of each rank of the pipeline.", "Layout", "1", TRAINING_PHASES)
    ] = None
    pp_layout: Annotated[
        tuple[int, ...] | None,
        Setting("Layers of each stage.", "Layout", "even", check=parse_stage_layers, metavar="12,10,…"),
    ] = None
    schedule: Annotated[
        Schedule | None,
        Setting(
            "Order of micro-batches in the pipeline; zb-h1 and dualpipe have times and no memory.",
            "Layout",
            "1f1b, or interleaved with --vpp",
            TRAINING_PHASES,
        ),
    ] = None
    cp: Annotated[int | None, Setting("Ranks that divide each sequence.", "Layout", "1", TRAINING_PHASES)] = None
    cp_comm: Annotated[
        ContextExchange | None,
        Setting(
            "How they exchange keys and values: in a ring (p2p), by heads (a2a), or all at once.",
            "Layout",
            "p2p",
            TRAINING_PHASES,
        ),
    ] = None
    dp: Annotated[
        int | None, Setting("Replicas. Each has micro-batches of its own.", "Layout", "1", is_common=True)
    ] = None
    zero: Annotated[
        int | None,
        Setting(
            "ZeRO stage. 1 shards optimizer states, 2 gradients too, 3 weights too.",
            "Layout",
            "none",
            TRAINING_PHASES,
            metavar="1|2|3",
            is_common=True,
        ),
    ] = None
    fsdp: Annotated[
        int | None,
        Setting(
            "Replicas that shard weights, gradients and states. The same as --zero 3.",
            "Layout",
            "",
            TRAINING_PHASES,
            is_common=True,
        ),
    ] = None
    hsdp_replicas: Annotated[
        int | None, Setting("Groups of --fsdp ranks, each with all of the weights.", "Layout", "1", TRAINING_PHASES)
    ] = None
    zero_group: Annotated[
        int | None,
        Setting(
            "Ranks that share what --zero shards, of those of --dp and --cp. Each group of them has all of it.",
            "Layout",
            "all",
            TRAINING_PHASES,
        ),
    ] = None
    reshard: Annotated[
        bool | None,
        Setting(
            "With sharded weights: whether a layer's are freed after its forward pass.",
            "Layout",
            "as the framework does",
            TRAINING_PHASES,
            negative_option="--no-reshard",
        ),
    ] = None
    prefetch: Annotated[
        int | None,
        Setting("Layers to all-gather ahead.", "Layout", "the framework's prefetch depth", TRAINING_PHASES, minimum=0),
    ] = None
    ep: Annotated[
        int | None,
        Setting(
            "Ranks that divide the experts. They are among those of --dp, --cp and --tp.", "Layout", "1", is_common=True
        ),
    ] = None
    etp: Annotated[int | None, Setting("Ranks that divide each expert.", "Layout", "as many as --tp")] = None
    framework: Annotated[
        str | None, Setting("Whose kernels and buffers.", "Layout", metavar="NAME", is_common=True)
    ] = None
    framework_version: Annotated[
        str | None,
        Setting(
            "Version of the framework, such as 2025-10-08.",
            "Layout",
            "the newest known",
            example="2025-10-08",
            metavar="DATE|TAG",
        ),
    ] = None

    @property
    def has_options(self) -> bool:
        """Whether the user typed any layout option."""
        return any(getattr(self, option_field.name) is not None for option_field in fields(self))

    @property
    def is_undivided(self) -> bool:
        """Whether only the number of devices was typed, without an option that divides the model."""
        typed_options = {option_field.name for option_field in fields(self)} - {
            "devices",
            "framework",
            "framework_version",
        }
        return self.devices is not None and all(getattr(self, option_name) is None for option_name in typed_options)

    @property
    def has_all_sizes(self) -> bool:
        """Whether the typed group sizes, some above 1, multiply to the typed number of devices."""
        replica_count = self.dp or (self.fsdp or 1) * (self.hsdp_replicas or 1)
        return self.devices == (self.tp or 1) * (self.pp or 1) * (self.cp or 1) * replica_count > 1

    @property
    def undivided_devices_text(self) -> str:
        """A sentence on typed group sizes that do not divide the devices: `--tp 3 does not divide 8 devices`."""
        size_fields = ("tp", "cp", "pp", *(("dp",) if self.fsdp is None else ("fsdp", "hsdp_replicas")))
        size_by_field = {field: getattr(self, field) for field in size_fields if getattr(self, field) is not None}
        if not size_by_field or not self.devices or self.devices % math.prod(size_by_field.values()) == 0:
            return ""
        options_text = " ".join(f"--{field.replace('_', '-')} {size}" for field, size in size_by_field.items())
        return f"{options_text} {'does' if len(size_by_field) == 1 else 'do'} not divide {self.devices:,} devices"

    @property
    def has_pipeline_options(self) -> bool:
        """Whether the user typed any pipeline option."""
        return self.pp is not None or (self.vpp or 1) > 1 or self.schedule is not None

    def layout(self, keeps_gathered_weights: Callable[[int, int], bool] = lambda pp, zero: False) -> Layout:
        """Returns the layout of these options. Raises `InputError` for contradictory options.

        keeps_gathered_weights: (pp, ZeRO stage) → whether gathered weights are kept after the forward pass by default.
        """
        typed_sizes: dict[str, Any] = {
            option_name: typed_value
            for option_name in (
                "tp",
                "pp",
                "vpp",
                "pp_layout",
                "cp",
                "cp_comm",
                "ep",
                "etp",
                "reshard",
                "prefetch",
                "sequence_parallel",
            )
            if (typed_value := getattr(self, option_name)) is not None
        }
        if keeps_gathered_weights(self.pp or 1, self.zero_stage()):
            typed_sizes.setdefault("reshard", False)
        if self.hsdp_replicas is not None:
            typed_sizes["hsdp_replicas"] = self.hsdp_replicas
        typed_sizes["zero"] = self.zero_stage()
        typed_sizes["schedule"] = self.schedule or ("interleaved" if (self.vpp or 1) > 1 else "1f1b")
        typed_sizes["dp"] = self._replica_count((self.tp or 1) * (self.pp or 1) * (self.cp or 1))
        if self.zero_group is not None:
            typed_sizes["hsdp_replicas"] = self.count_zero_groups(typed_sizes["dp"], self.cp or 1, typed_sizes["zero"])
        layout = Layout(**typed_sizes)
        self.check_zero_options(layout)
        return layout

    def with_experts_of_a_server(self) -> LayoutRequest:
        """Returns the request with the experts over all ranks of `--tp` and `--dp`, as serving engines divide them.

        Only where `--etp` is not typed, and its default, as many as `--tp`, is impossible.
        """
        tp, ep = self.tp or 1, self.ep or 1
        expert_ranks = tp * self._replica_count(tp * (self.pp or 1) * (self.cp or 1))
        if self.etp is not None or ep == 1 or expert_ranks % (ep * tp) == 0 or expert_ranks % ep:
            return self
        return replace(self, etp=expert_ranks // ep)

    def check_zero_options(self, layout: Layout) -> None:
        """Raises `InputError` for an option of ZeRO 3 in a layout with another ZeRO stage."""
        for option_text, is_typed in (("--prefetch", bool(self.prefetch)), ("--no-reshard", self.reshard is False)):
            if is_typed and layout.zero != 3:
                raise InputError(
                    f"{option_text}: layers are gathered where weights are divided; expected --fsdp or --zero 3 too"
                )

    def count_zero_groups(self, dp: int, cp: int, zero_stage: int) -> int:
        """Returns the number of groups into which `--zero-group` divides the data- and context-parallel ranks.

        Raises `InputError` without a ZeRO stage, beside `--hsdp-replicas`, and for a size that does not divide them.
        """
        assert self.zero_group is not None
        if zero_stage == 0:
            raise InputError(f"--zero-group {self.zero_group}: nothing is sharded; expected --zero 1, 2 or 3 too")
        if self.hsdp_replicas is not None:
            raise InputError(
                f"--zero-group {self.zero_group}: --hsdp-replicas says it already; expected one of the two"
            )
        group_count, remainder = divmod(dp * cp, self.zero_group) if self.zero_group > 0 else (0, 1)
        if remainder or dp % group_count:
            raise ImpossibleLayout(
                f"--zero-group {self.zero_group}: expected a divisor of dp · cp = {dp * cp}, a multiple of cp = {cp}"
            )
        return group_count

    def zero_stage(self) -> int:
        """Returns the ZeRO stage. Raises `InputError` for an unknown stage or a contradiction with --fsdp."""
        if self.fsdp is not None and self.zero not in (None, 3):
            raise InputError(f"--zero {self.zero}: --fsdp divides the weights too; expected no --zero, or 3")
        if self.zero is not None and self.zero not in (0, 1, 2, 3):
            raise InputError(f"--zero: {self.zero}; expected 1, 2 or 3")
        return 3 if self.fsdp is not None else self.zero or 0

    def _replica_count(self, replica_devices: int) -> int:
        """Returns the number of data-parallel replicas (dp). replica_devices: devices per replica."""
        dp = self.dp
        if self.fsdp is not None:
            fsdp_ranks = self.fsdp * (self.hsdp_replicas or 1)
            if dp not in (None, fsdp_ranks):
                raise InputError(f"--dp {dp}: --fsdp and --hsdp-replicas make {fsdp_ranks}; expected no --dp")
            dp = fsdp_ranks
        if self.devices is None:
            return dp or 1
        if self.devices % replica_devices or (dp is not None and self.devices != replica_devices * dp):
            expected_devices = f"a multiple of {replica_devices}" if dp is None else str(replica_devices * dp)
            raise ImpossibleLayout(
                f"--devices {self.devices}: is not the product tp · cp · pp · dp; expected {expected_devices}"
            )
        return self.devices // replica_devices


def version_date(version: str) -> date | None:
    """Returns the date of a framework's version; None for the newest. Raises `InputError` for other text."""
    if not version:
        return None
    try:
        return date.fromisoformat(version)
    except ValueError:
        raise InputError(
            f"--framework-version: '{version}'; expected the date of a commit, such as 2025-10-08"
        ) from None


NO_LAYOUT_OPTIONS = LayoutRequest()
"""A layout request without options, which means one device."""
