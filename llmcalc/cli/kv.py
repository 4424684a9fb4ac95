from __future__ import annotations

from typing import Annotated

from ..parallel.counted_rank import NO_RANK_OPTIONS, RankRequest
from ..reports.document import joined
from ..workload.inference import batch_of
from ..workload.lengths import MOST_CONTEXT, USUAL
from .layout_options import takes_rank
from .options import Batch, CacheDtype, Source, TableOption, Targets, Users, size
from .target_options import Reading, Writing, takes_target

SEQ_HELP = (
    f"Tokens of each sequence; the context that the model was made for if not given, at most {MOST_CONTEXT:,}, and "
    f"{USUAL:,} where it states none."
)


@takes_rank
@takes_target
def command(
    targets: Targets,
    batch: Batch = None,
    users: Users = None,
    seq: Annotated[int | None, size("--seq", "-s", text=SEQ_HELP)] = None,
    source: Source = None,
    kv_dtype: CacheDtype = "bf16",
    rank_request: RankRequest = NO_RANK_OPTIONS,
    table: TableOption = None,
    *,
    reading: Reading,
    writing: Writing,
) -> None:
    """KV cache and recurrent state by layer type.
    Then with other kinds of attention, and as the context grows.
    """
    from ..questions.counts import CacheQuestion
    from ..sources.preset import name_in_errors

    question = CacheQuestion(batch_of(batch, users, "decode") or 1, seq, kv_dtype, source, rank_request)
    reports = []
    for preset in [reading.load(target) for target in targets]:
        with name_in_errors(preset):
            reports.append(question.answer(preset).report())
    writing.show(joined(reports), table)
