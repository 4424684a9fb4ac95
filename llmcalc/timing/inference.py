"""The seconds of an inference pass: a prompt, whole or in chunks, or one decoded token per sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from ..algebra import Number, are_equal, ceil_div, maximum
from ..errors import InputError
from ..frozen import frozen
from ..identity_cache import IdentityCache
from ..model import ModelSpec
from ..parallel.layout import ONE_DEVICE, Layout
from .device import Device
from .kernels import RankPass
from .time_estimator import NARROW_FORMATS, SIXTEEN_BIT_FORMATS, NumberFormats, TimedPass, time_pass
from .timing_constants import SoftwareStack
from .work_recorder import rank_work


@frozen
class InferencePass:
    """The estimated seconds of an inference pass.

    seconds: of the pass.
    seconds_by_part: kernels and messages, the host's work of a step, hops between pipeline stages, and what a server
        adds to a prompt; they add up to it.
    timed_passes: of a rank that has all layers: of a prompt in chunks, one for each chunk.
    """

    seconds: Number
    seconds_by_part: dict[str, Number]
    timed_passes: list[TimedPass] = field(repr=False)

    def with_part(self, part_name: str, seconds: Number) -> InferencePass:
        """Returns the pass with a part of this name and these seconds added."""
        return replace(
            self, seconds=self.seconds + seconds, seconds_by_part={**self.seconds_by_part, part_name: seconds}
        )


def forward_pass(
    spec: ModelSpec,
    device: Device,
    software_stack: SoftwareStack,
    rank_pass: RankPass,
    number_formats: NumberFormats,
    pp: Number = 1,
) -> InferencePass:
    """Estimates the seconds of a forward pass. pp: number of pipeline stages it goes through.

    Without a captured graph, kernels cannot run faster than the host launches them. Where the batches of a prompt run
    as a pipeline, the last one leaves the last stage after as many turns as there are batches and further stages.
    """
    timed_pass = _shared_timed_pass(spec, device, software_stack, rank_pass, number_formats)
    is_decoding = rank_pass.phase == "decode"
    graph_tokens = 0 if is_decoding else graph_prompt_tokens(spec, software_stack, pp)
    kernel_seconds = _launched_seconds(timed_pass, software_stack, number_formats, is_decoding, graph_tokens)
    if software_stack.pipelines_prompts and not is_decoding:
        batch_count = ceil_div(timed_pass.rank_work.tokens, software_stack.prompt_batch_tokens)
        pipeline_share = (batch_count + pp - 1) / (batch_count * pp)
        kernel_seconds *= pipeline_share
        timed_pass = timed_pass.scaled_by(pipeline_share)
    stage_send_seconds = _stage_send_seconds(spec, device, rank_pass, timed_pass.rank_work.tokens, pp)
    host_seconds = software_stack.host_seconds_per_step + (
        software_stack.host_seconds_per_sequence * rank_pass.batch if is_decoding else 0.0
    )
    if software_stack.hides_host and is_decoding and are_equal(pp, 1):
        host_seconds = maximum(0.0, host_seconds - kernel_seconds)
    return InferencePass(
        kernel_seconds + host_seconds + stage_send_seconds,
        {"kernels": kernel_seconds, "host": host_seconds, "hops": stage_send_seconds},
        [timed_pass],
    )


def _stage_send_seconds(spec: ModelSpec, device: Device, rank_pass: RankPass, tokens: Number, pp: Number) -> Number:
    """Returns the seconds of messages between stages; messages that leave a domain of fast links take longer.

    A stage's ranks are consecutive (vllm/distributed/parallel_state.py, initialize_model_parallel: dp, pp, pcp, tp).
    """
    sent_bytes = 2.0 * tokens * spec.hidden_size
    stage_devices = rank_pass.tp * rank_pass.cp
    far_send_count = ceil_div(pp, device.stages_per_domain(pp, stage_devices)) - 1
    near_send_seconds, far_send_seconds = (
        device.stage_send_seconds(sent_bytes, device_count) for device_count in (1, stage_devices * pp)
    )
    return far_send_count * far_send_seconds + (pp - 1 - far_send_count) * near_send_seconds


_shared_passes: IdentityCache[TimedPass] = IdentityCache(1024)
"""Timed passes of models on devices under software stacks."""


def _shared_timed_pass(
    spec: ModelSpec,
    device: Device,
    software_stack: SoftwareStack,
    rank_pass: RankPass,
    number_formats: NumberFormats,
) -> TimedPass:
    """Returns the timed pass of a rank, cached so that layouts with equal ranks share it."""

    def compute_pass() -> TimedPass:
        return time_pass(rank_work(spec, rank_pass), device, software_stack, number_formats)

    if rank_pass.cache_key is None:
        return compute_pass()
    return _shared_passes.result((spec, device, software_stack), (number_formats, *rank_pass.cache_key), compute_pass)


def _launched_seconds(
    timed_pass: TimedPass,
    software_stack: SoftwareStack,
    number_formats: NumberFormats,
    is_decoding: bool,
    graph_tokens: int,
) -> Number:
    """Returns the seconds of a pass's kernels, or of the host's kernel launches if the launches take longer.

    graph_tokens: most tokens of a pass whose kernels captured graphs launch; 0 for none.
    """
    prompt_launch_seconds = 0.0 if is_decoding else software_stack.host_seconds_per_prompt_kernel
    launch_count = timed_pass.launches(
        software_stack.launches_by_verb,
        graph_tokens,
        software_stack.casts_inputs and number_formats.product_format in NARROW_FORMATS,
    )
    return maximum(
        timed_pass.seconds, launch_count * max(software_stack.host_seconds_per_kernel, prompt_launch_seconds)
    )


def graph_prompt_tokens(spec: ModelSpec, software_stack: SoftwareStack, pp: Number = 1) -> int:
    """Returns the most prompt tokens of a step that a captured CUDA graph can launch; 0 without such graphs.

    pp: pipeline stages.
    """
    is_captured = (are_equal(pp, 1) and not spec.towers) or not software_stack.has_graphs_of_text_models_only
    return software_stack.prompt_graph_tokens if is_captured else 0


def seconds_without_graphs(
    prompt_pass: InferencePass, software_stack: SoftwareStack, number_formats: NumberFormats, graph_tokens: int
) -> float:
    """Returns the additional seconds of a prompt's pass if the host launches every kernel.

    graph_tokens: most tokens of a pass whose kernels graphs launch otherwise.
    """
    return sum(
        float(
            _launched_seconds(timed_pass, software_stack, number_formats, False, 0)
            - _launched_seconds(timed_pass, software_stack, number_formats, False, graph_tokens)
        )
        for timed_pass in prompt_pass.timed_passes
    )


def decode(
    spec: ModelSpec,
    device: Device,
    software_stack: SoftwareStack,
    batch: Number,
    cached_tokens: Number,
    layout: Layout = ONE_DEVICE,
    number_formats: NumberFormats = SIXTEEN_BIT_FORMATS,
) -> InferencePass:
    """Estimates the seconds of decoding one token for each of `batch` sequences with `cached_tokens` in the cache."""
    return forward_pass(
        spec,
        device,
        software_stack,
        rank_pass(software_stack, layout, batch, 1, cached_tokens, "decode"),
        number_formats,
        layout.pp,
    )


def prefill(
    spec: ModelSpec,
    device: Device,
    software_stack: SoftwareStack,
    batch: Number,
    seq: int,
    cached_tokens: int = 0,
    chunk: int | None = None,
    layout: Layout = ONE_DEVICE,
    number_formats: NumberFormats = SIXTEEN_BIT_FORMATS,
    has_server_delay: bool = False,
) -> InferencePass:
    """Estimates the seconds of the prompts of `batch` sequences.

    seq, cached_tokens: new tokens, and tokens that are cached.
    chunk: tokens of each sequence in one pass; None (default) for all of them.
    has_server_delay: whether the time of a server before the first token is added; false by default.
    """
    chunk_passes = []
    for new_tokens, earlier_tokens in _prompt_chunks(seq, cached_tokens, chunk):
        prompt_pass = rank_pass(software_stack, layout, batch, new_tokens, earlier_tokens, "prefill")
        chunk_passes.append(forward_pass(spec, device, software_stack, prompt_pass, number_formats, layout.pp))
    part_seconds = {
        part_name: sum(chunk_pass.seconds_by_part[part_name] for chunk_pass in chunk_passes)
        for part_name in ("kernels", "host", "hops")
    }
    part_seconds["server"] = software_stack.first_token_seconds if has_server_delay else 0.0
    return InferencePass(
        sum(part_seconds.values()),
        part_seconds,
        [timed_pass for chunk_pass in chunk_passes for timed_pass in chunk_pass.timed_passes],
    )


MAX_CHUNKS = 256
"""Largest number of chunks of a prompt."""


def _prompt_chunks(seq: int, cached_tokens: int, chunk: int | None) -> Iterator[tuple[int, int]]:
    """Yields, for each chunk of a prompt, the number of its tokens and of the tokens before it."""
    chunk_tokens = seq if chunk is None else chunk
    if chunk_tokens < 1 or -(-seq // chunk_tokens) > MAX_CHUNKS:
        raise InputError(f"--chunk {chunk_tokens}: expected at least {-(-seq // MAX_CHUNKS)} of {seq} tokens")
    for chunk_start in range(0, seq, chunk_tokens):
        yield min(chunk_tokens, seq - chunk_start), cached_tokens + chunk_start


def rank_pass(
    software_stack: SoftwareStack,
    layout: Layout,
    batch: Number,
    seq: Number,
    cached_tokens: Number,
    phase: str,
    extra_parts: frozenset[str] = frozenset(),
) -> RankPass:
    """Returns the `RankPass` of a layout. Expert-parallel ranks have whole experts, unless etp divides them.

    extra_parts: optional parts of the model that run; default none.
    """
    gathers_tokens = software_stack.gathers_on(layout.dp, layout.ep)
    return RankPass(
        batch,
        seq,
        cached_tokens,
        phase,  # type: ignore[arg-type]
        tp=layout.tp,
        etp=layout.etp,
        ep=layout.ep,
        fuses_elementwise=software_stack.fuses_elementwise,
        adds_experts_before_reduction=software_stack.adds_experts_before_reduction,
        gathered_ranks=layout.dp if gathers_tokens else 0,
        fuses_gates=software_stack.fuses_gates,
        moves_all_rows=software_stack.moves_all_rows and gathers_tokens,
        padded_sparse_heads=software_stack.padded_sparse_heads,
        included_parts=extra_parts,
    )
