"""The memory of any rank of a Megatron run: set-up, two steps by the schedule, and the optimizer, tensor by tensor."""

from .rank_memory import rank_memory, replay_rank

__all__ = ["rank_memory", "replay_rank"]
