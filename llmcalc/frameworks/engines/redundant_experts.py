"""Copies of routed experts that balance the load of expert-parallel ranks (EPLB)."""

from __future__ import annotations

from ...errors import InputError
from .rank import EngineRank


def redundant_expert_bytes(engine_rank: EngineRank, copy_count: int, rank_count: int, flag_name: str) -> int:
    """Returns the bytes of additional expert copies on a rank.

    copy_count: copies in a layer, which the ranks divide with the experts. rank_count: these ranks.
    flag_name: the flag that states `copy_count`, as the beginning of messages.
    Raises `InputError` for a model without experts, and for copies that the ranks do not divide.
    """
    if not copy_count:
        return 0
    expert_count = engine_rank.preset.model.routed_experts
    if not expert_count:
        raise InputError(f"{flag_name}: the model has no experts; remove the flag")
    if (expert_count + copy_count) % rank_count:
        raise InputError(
            f"{flag_name} {copy_count}: {rank_count} ranks do not divide {expert_count} experts and {copy_count} "
            f"copies; expected {-(-(expert_count + copy_count) // rank_count) * rank_count - expert_count} copies"
        )
    return engine_rank.weights_by_component.get("experts", 0) * copy_count // expert_count
