"""Attention to compressed entries, each of which summarizes several tokens (DeepSeek-V4)."""

from __future__ import annotations

from ....algebra import exact_div, is_zero, minimum
from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.program import Step
from ....ops import EntryCache
from ...tensor import FLOAT32, INT64
from .attention_variants import AttentionVariantKernels


class EntryKernels(AttentionVariantKernels):
    """Compressed attention as in the reference, line by line."""

    @compared(BY_TORCH)
    def do_windows(self, step: Step) -> None:
        t, x, out = self.t, self.get(step.ins[0]), step.outs[0]
        shape = self.shape(out)
        if is_zero(shape[1]):  # no window is full yet
            if self.prepares:
                self.set(out, t.new((shape[0], 1, *shape[2:]), x.dtype))
            else:
                self.absent.add(id(out))
            return
        window_rows = shape[1] * shape[2]
        self.set(out, t.unflatten(x if x.shape[1] == window_rows else t.slice(x, window_rows, 1), 1, shape[1:3]))

    @compared(BY_TORCH)
    def do_weighted_mean(self, step: Step) -> None:
        t, (values, gate) = self.t, (self.get(value) for value in step.ins)
        self.set(step.outs[0], t.sum(t.mul(values, t.to(t.softmax(t.to(gate, FLOAT32)), values.dtype)), 2))

    @compared(BY_TORCH)
    def do_with_rest(self, step: Step) -> None:
        rows = [self.get(value) for value in step.ins]
        cached_tensors = self.frames[-1].local_tensors["held"] = self.cached("cache")
        if cached_tensors is not None:
            rows = [self.t.cat([cached_rows, x], 1) for cached_rows, x in zip(cached_tensors[1:], rows, strict=True)]
        for value, out, tensor in zip(step.ins, step.outs, rows, strict=True):
            self.values.pop(id(value))
            self.bind(out, tensor)

    @compared(BY_TORCH)
    def do_keep_entries(self, step: Step) -> None:
        """Caches all compressed entries, and the tokens that do not fill an entry yet."""
        t, (value, *rows), cached_tensors = self.t, step.ins, self.cached(step.name)
        assert isinstance(step.op, EntryCache)
        remaining_rows, rate = [self.get(row) for row in rows], step.op.rate
        new_entries = None if self.missing(value) else self.get(value)
        cached_entries = None if cached_tensors is None else cached_tensors[0]
        if new_entries is None:
            entries = (
                t.new((remaining_rows[0].shape[0], 0, value.width), remaining_rows[0].dtype)
                if cached_entries is None
                else cached_entries
            )
        else:
            entries = new_entries if cached_entries is None else t.cat([cached_entries, new_entries], 1)
        self.keep(step.name, entries, *(t.slice(x, x.shape[1] % rate, 1) for x in remaining_rows))
        self.values.pop(id(value), None)
        self.bind(step.outs[0], entries)

    @compared(BY_TORCH)
    def do_whole_entries(self, step: Step) -> None:
        t, (q, entries) = self.t, (self.get(value) for value in step.ins)
        complete_entries = self.frames[-1].local_tensors["whole"] = t.like(t.like(self.span(q.shape[1])))
        entry_positions = t.unsqueeze(t.new((entries.shape[1],), INT64), 0)
        self.bind(step.outs[0], t.compare(entry_positions, t.unsqueeze(complete_entries, 1)))

    @compared(BY_TORCH)
    def do_choose_entries(self, step: Step) -> None:
        """Runs Chooser.forward, from the scores of all heads on."""
        t, (scores, weights, visible_mask) = self.t, (self.get(value) for value in step.ins)
        self.forget(step.ins[0].storage)
        self.forget(step.ins[1].storage)
        weighted_scores = t.mul(scores, t.unsqueeze(t.transpose(weights, 1, 2), -1))
        del weights
        weighted_scores = t.sum(weighted_scores, 1)
        scores = t.to(weighted_scores, FLOAT32)
        del weighted_scores
        top_entries = t.sort(t.masked_fill(scores, t.like(visible_mask)))[1]
        self.bind(step.outs[0], t.slice(top_entries, minimum(top_entries.shape[-1], step.options["top_k"])))

    @compared(BY_TORCH)
    def do_among(self, step: Step) -> None:
        t, (visible_mask, chosen_entries, entries) = self.t, (self.get(value) for value in step.ins)
        self.values.pop(id(step.ins[2]), None)
        if self.reads_selected(chosen_entries.shape[1]):
            index = t.unsqueeze(t.select(chosen_entries, 1), -1)
            self.bind(step.outs[1], t.gather(entries, t.expand(index, (*index.shape[:-1], entries.shape[-1]))))
            self.bind(step.outs[0], t.slice(visible_mask, chosen_entries.shape[-1]))
            return
        self.bind(step.outs[1], entries)
        selected_mask = t.scatter(
            t.expand(t.like(visible_mask), (chosen_entries.shape[0], *visible_mask.shape)), chosen_entries
        )
        self.bind(step.outs[0], t.unsqueeze(t.like(visible_mask, selected_mask), 1))

    @compared(BY_TORCH)
    def do_per_group(self, step: Step) -> None:
        """Runs GroupMap.forward."""
        t, out = self.t, step.outs[0]
        x, (groups, lora) = self.flat(step.ins[0], step), (axis.size for axis in out.axes)
        self.frames[-1].local_tensors["out"] = x
        group_width = exact_div(x.shape[-1], groups)
        rows = t.transpose(t.flatten(t.unflatten(x, -1, (groups, group_width)), 0, 1), 0, 1)
        weight = self.weight(f"{step.name}.weight", (groups, lora, group_width))
        products = t.transpose(t.matmul(rows, t.transpose(weight, 1, 2)), 0, 1)
        self.set(out, t.unflatten(products, 0, x.shape[:2]))
