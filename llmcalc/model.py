"""The spec of a whole model, the tree of what it costs, and the PyTorch model that is built from the same spec.

A decoder-only or encoder-only model has one stack, whose layers stand at the top of the tree (`layers.0.self_attn`); an
encoder-decoder has two (`encoder.layers.0.self_attn`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .algebra import Number, is_zero
from .components.base import Around, Flag, HiddenSize, Labels, Network, Part, Positions, Vocab, Width
from .components.choices import Head
from .components.head import Classifier, LMHead, NoHead
from .components.layers.block import Layer
from .components.norm import Norm
from .components.runtime import Run
from .components.stack import Stack
from .components.towers import Tower, TowerName, check_widths
from .components.towers import record as record_towers
from .flow.axis import Axis, Beside
from .flow.record import Flow
from .flow.tree import Node
from .flow.value import Value, Weight
from .optional import MTP, TOWERS
from .run.rows import LOGITS, SEQUENCES, SOURCE, TOKENS, Rows

if TYPE_CHECKING:
    from torch import Tensor, nn


class MultiTokenPrediction(Part):
    """Modules that predict tokens further ahead (DeepSeek-V3, arXiv:2412.19437, §2.2): in the checkpoint, not in the
    total.

    Each joins the last hidden state with the next token's embedding (two norms and a map from 2h to h), runs one layer
    of the decoder's kind and a norm, and shares embedding and output head with the model. layer: which kind, where the
    decoder has several; by default the last one that its pattern names.
    """

    num_nextn_predict_layers: int = Field(ge=1, le=64, strict=True)
    layer: str | None = None
    norm: Norm = Norm(type="rmsnorm")

    kind: ClassVar[str] = "mtp"

    def source(self) -> str:
        return "DeepSeek-V3 2024, §2.2"

    def flow(self, f: Flow, x: Value, block: Layer, vocab: Axis, table: Weight) -> Value:
        """One of the modules: x is the last hidden state. block: the layer inside. table: the output head's weight."""
        embedded, before = (
            f.part("enorm", self.norm, f.look_up(table, x.rows).seen(*x.axes)),
            f.part("hnorm", self.norm, x),
        )
        joined = f.cat(embedded, before, axes=(Beside((x.axes, x.axes)),))
        y = f.linear("eh_proj", joined, *x.axes)
        y = f.part("norm", self.norm, f.part("block", block, y))
        f.linear("lm_head", y, vocab, weight=table, rows=LOGITS)
        return y

    def reference(self, around: Around, block: Layer) -> nn.Module:
        return _references()["mtp"](self, around, block)


class ModelSpec(Part):
    """An architecture: everything that is needed to count it and to run it.

    embedding_size: width of a factorised embedding, mapped to hidden_size on the way in, and back on the way out to
    what stands on every token; where the stack has an input_size of its own, a head alone is mapped back to (ELECTRA,
    ALBERT).
    max_position_embeddings: the context it was made for, where positions are not a table.
    unused_embedding: a further table of tokens that nothing reads (BART's classes where their embeddings are not tied).
    pooler: BERT's dense map over the first token. pooler_labels: scores on top of it (next sentence), or of the last
    token where there is no pooler (GPT's choice between continuations), beside the head. contact_head: a logistic
    regression that reads every layer's attention maps and says which tokens touch (ESM); held, and run only where
    somebody asks for it.
    towers: encoders of other modalities and what maps their output to hidden_size, by name: beside the text model,
    which is what is counted unless they are asked in.
    """

    vocab_size: Vocab
    hidden_size: HiddenSize
    tie_word_embeddings: Flag
    embedding_size: Width | None = None
    embedding_projection_bias: Flag = False
    max_position_embeddings: Positions | None = None
    unused_embedding: Flag = False
    encoder: Stack | None = None
    decoder: Stack | None = None
    head: Head = LMHead()
    pooler: Flag = False
    pooler_labels: Labels | None = None
    contact_head: Flag = False
    mtp: MultiTokenPrediction | None = None
    towers: dict[TowerName, Tower] = Field(default={}, max_length=100)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.encoder is None and self.decoder is None:
            raise ValueError(
                "decoder: a model has a decoder, an encoder or both; expected a table [model.decoder] or "
                "[model.encoder]"
            )
        for side, stack in self.stacks():
            stack.check_mixers(side, stack.hidden_size or self.hidden_size, side, grid=False)
            for name, block in {"block": stack.block, **stack.variants}.items():
                where = f"{side}.block" if name == "block" else f"{side}.variants.{name}"
                crosses, idle = block.cross_attention is not None, getattr(block, "idle_cross_attention", False)
                if idle and self.encoder is not None:
                    raise ValueError(f"{where}.idle_cross_attention: there is an encoder to attend to; expected false")
                if crosses and not idle and (side == "encoder" or self.encoder is None):
                    raise ValueError(f"{where}.cross_attention: only the decoder of an encoder-decoder has one")
        merged = self.decoder is not None and self.decoder.block.attention.type == "merged"
        if merged and (
            self.encoder is None or self.encoder.hidden_size is not None or self.main.block.cross_attention is not None
        ):
            raise ValueError(
                "decoder.block.attention.type: 'merged' reads an encoder of the decoder's width; expected one, and "
                "no cross_attention"
            )
        if (
            self.encoder is not None
            and self.decoder is not None
            and self.decoder.block.cross_attention is None
            and not merged
        ):
            raise ValueError("decoder.block.cross_attention: an encoder-decoder needs one")
        if self.main.input_size not in (None, self.embedding_size):
            raise ValueError(
                f"embedding_size: {self.embedding_size} is not the stack's input_size {self.main.input_size}"
            )
        if self.kind == "encoder-decoder" and self.encoder is not None:
            if self.encoder.input_size is not None:
                raise ValueError(
                    "encoder.input_size: embeddings narrower than the layers are for a model of one stack; "
                    "expected none"
                )
            if self.embedding_size is not None and self.encoder.vocab_size is None and self.encoder.stem is None:
                raise ValueError(
                    "embedding_size: two stacks read the embedding; expected none, or an encoder.vocab_size of its own"
                )
        if self.main.vocab_size is not None or self.main.hidden_size is not None:
            raise ValueError(
                f"{self.kind}: a token embedding and a width of its own are for the encoder of an encoder-decoder"
            )
        if (
            self.encoder is not None
            and self.encoder.hidden_size is not None
            and self.encoder.vocab_size is None
            and self.encoder.stem is None
        ):
            raise ValueError(
                "encoder.vocab_size: missing; an encoder of another width than the decoder has a token embedding "
                "of its own"
            )
        if self.main.stem is not None:
            raise ValueError(f"{self.kind}.stem: frames are read by the encoder of an encoder-decoder")
        transform = getattr(self.head, "transform", None)
        if (
            transform is not None
            and transform.size is not None
            and (self.tie_word_embeddings or not isinstance(self.head, LMHead))
        ):
            raise ValueError(
                "head.transform.size: of a language-model head of its own; expected none, or tie_word_embeddings = "
                "false"
            )
        if self.contact_head and (self.kind != "encoder" or self.main.variants or is_zero(self._attending_heads())):
            raise ValueError(
                "contact_head: reads the attention maps of an encoder whose layers are alike; expected false"
            )
        if self.mtp is not None:
            self._check_prediction(self.mtp)
        check_widths(self.towers)
        return self

    def _check_prediction(self, mtp: MultiTokenPrediction) -> None:
        """Raises `ValueError` where modules that predict further tokens cannot stand on this model."""
        if self.kind != "decoder" or not isinstance(self.head, LMHead):
            raise ValueError("mtp: multi-token prediction stands on a decoder with a language-model head")
        if mtp.layer not in (None, "block", *self.main.variants):
            raise ValueError(
                f"mtp.layer: there is no layer called '{mtp.layer}'; expected one of "
                f"{', '.join(('block', *self.main.variants))}"
            )
        if self.embedding_size is not None or self.head.transform is not None:
            raise ValueError(
                "mtp: its modules share a head that reads hidden_size; expected no embedding_size and no head.transform"
            )
        block = self.mtp_block()
        mixer, worker = block.attention, block.feed_forward
        needed = {
            f"type '{getattr(block, 'type', '')}'": not block.alone,
            "per_layer_input": getattr(block, "per_layer_input", None) is not None,
            "attention.kv_shared": getattr(mixer, "kv_shared", False),
            "attention.indexer.shared": getattr(getattr(mixer, "indexer", None), "shared", False),
            "feed_forward.router.type 'token_table'": isinstance(worker, Network) and worker.reads_token_ids(),
        }
        for field, present in needed.items():
            if present:
                raise ValueError(
                    f"mtp.layer: a layer with {field} needs what stands around it in the decoder; expected another "
                    "kind, or no mtp"
                )

    @property
    def kind(self) -> Literal["decoder", "encoder", "encoder-decoder"]:
        if self.encoder is not None:
            return "encoder" if self.decoder is None else "encoder-decoder"
        return "decoder"

    def stacks(self) -> list[tuple[Literal["encoder", "decoder"], Stack]]:
        """Its stacks of layers, in the order in which they run."""
        both: list[tuple[Literal["encoder", "decoder"], Stack | None]] = [
            ("encoder", self.encoder),
            ("decoder", self.decoder),
        ]
        return [(side, stack) for side, stack in both if stack is not None]

    @property
    def source_tokens(self) -> int | None:
        """Positions that the encoder always sees; None where they are as many as the source has tokens."""
        stem = self.encoder.stem if self.encoder is not None else None
        return None if stem is None else stem.max_source_positions

    @property
    def main(self) -> Stack:
        """The stack that makes the output: the decoder, or an encoder that stands alone."""
        stack = self.decoder if self.decoder is not None else self.encoder
        assert stack is not None
        return stack

    def mtp_block(self) -> Layer:
        """The layer inside each multi-token-prediction module."""
        assert self.mtp is not None
        return self.main.layer(self.mtp.layer or self.main.pattern[-1])

    @property
    def top_size(self) -> int | None:
        """Width that the output is mapped back to;
        None where it stays as wide as the layers, or the head's own transform narrows it.
        """
        if isinstance(self.head, LMHead):
            return self.embedding_size if self.head.transform is None else None
        on_all = not isinstance(self.head, Classifier) or self.head.over == "token"
        return self.embedding_size if on_all and self.main.input_size is None else None

    def _attending_heads(self) -> Number:
        """Attention maps of a layer; 0 where its mixer makes none."""
        return getattr(self.main.block.attention, "num_attention_heads", 0)

    def tree(self) -> Node:
        """The tree of named nodes: the program seen from above. Counting is walking it."""
        return self.program().node()

    def program(self) -> Flow:
        """What the model computes, from its tokens to its output, step by step."""
        f, hidden, vocab = Flow(), Axis("hidden", self.hidden_size), Axis("vocab", self.vocab_size)
        narrow = hidden if self.embedding_size is None else Axis("embedding", self.embedding_size)
        two = self.kind == "encoder-decoder"
        x, table = f.table("embed_tokens", vocab, narrow, of=self._source_rows if two else TOKENS, kind="embedding")
        if self.embedding_size is not None and self.main.input_size is None:
            x = f.linear("embed_proj", x, hidden, bias=self.embedding_projection_bias, kind="embedding")
        if self.unused_embedding:
            f.table("unused_embedding", vocab, narrow, kind="embedding", role="idle")
        for side, stack in self.stacks():
            f.causal = side == "decoder"
            if not two:
                x = stack.flow(f, x, None if stack.input_size is None else hidden)
                continue
            with f.scope(side):
                if side == "encoder":
                    x = f.memory = self._encoded(f, stack, x)
                else:
                    x = stack.flow(f, self._embedded_again(f, table, hidden))
        self._output(f, x, vocab, hidden, narrow, table)
        return f

    @property
    def _source_rows(self) -> Rows:
        """What the encoder of an encoder-decoder reads."""
        stem = None if self.encoder is None else self.encoder.stem
        return SOURCE if stem is None else stem.positions

    def _encoded(self, f: Flow, encoder: Stack, x: Value) -> Value:
        """The output of an encoder that stands beside a decoder."""
        width = None if encoder.hidden_size is None else Axis("hidden", encoder.hidden_size)
        if encoder.stem is not None:
            return encoder.flow(
                f, encoder.stem.frames_read(), Axis("hidden", self.hidden_size) if width is None else width
            )
        return encoder.flow(f, x, width)

    def _embedded_again(self, f: Flow, table: Weight, hidden: Axis) -> Value:
        """The decoder's tokens, looked up in the table that the encoder's have been looked up in."""
        return f.look_up(table, TOKENS).seen(hidden)

    def _output(self, f: Flow, x: Value, vocab: Axis, hidden: Axis, narrow: Axis, table: Weight) -> None:
        """What stands on the hidden states, and beside the model."""
        if self.pooler or self.pooler_labels is not None:
            with f.scope("pooler", kind="pooler", source="Devlin et al. 2019"):
                pooled = x.seen(*x.axes, rows=SEQUENCES)
                if self.pooler:
                    pooled = f.act(f.linear("dense", pooled, hidden, bias=True), "tanh")
                if self.pooler_labels is not None:
                    f.linear("out_proj", pooled, Axis("labels", self.pooler_labels), bias=True)
        if self.contact_head:
            maps = Value(x.rows, (Axis("maps", self.main.num_hidden_layers * self._attending_heads()),))
            about: dict[str, Any] = {"kind": "classifier", "source": "Rao et al. 2020", "role": "idle"}
            f.linear("contact_head", maps, Axis("one", 1), bias=True, **about)
        last = x
        if self.top_size is not None:
            kind = {"lm": "lm_head", "classification": "classifier", "none": "embedding"}[self.head.type]
            rows = x.rows if isinstance(self.head, NoHead) else LOGITS
            x = f.linear("head_proj", x, Axis("embedding", self.top_size), rows=rows, kind=kind)
        if isinstance(self.head, Classifier):
            f.part("classifier", self.head, x)
        if isinstance(self.head, LMHead):
            tied = table if self.tie_word_embeddings else None
            f.part("lm_head", self.head, x, vocab=vocab, width=narrow, table=tied)
            if self.mtp is not None:
                self._predicted(f, self.mtp, last, vocab, table)
        if self.towers:
            with f.scope("towers", kind="towers", role="kept", optional=TOWERS.name, whole=True):
                record_towers(f, self.towers)

    def _predicted(self, f: Flow, mtp: MultiTokenPrediction, x: Value, vocab: Axis, table: Weight) -> None:
        """The modules of multi-token prediction, one after the other."""
        n, block = mtp.num_nextn_predict_layers, self.mtp_block()
        about: dict[str, Any] = {"kind": mtp.kind, "optional": MTP.name, "source": mtp.source()}
        which = range(n) if isinstance(n, int) else None
        f.layers(x, lambda v: mtp.flow(f, v, block, vocab, table), n, which, "mtp", **about)

    def reference(self) -> nn.Module:
        """A PyTorch model with random weights. Imports torch; build it under `torch.device("meta")` for its shapes
        alone.
        """
        return _references()["model"](self)


@cache
def _references() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class Pooler(nn.Module):
        """x: [batch, tokens, hidden] → (one vector a sequence [batch, 1, hidden], its scores or itself)."""

        def __init__(self, hidden: int, labels: int | None, mapped: bool) -> None:
            super().__init__()
            self.dense = nn.Linear(hidden, hidden) if mapped else None
            if labels is not None:
                self.out_proj = nn.Linear(hidden, labels)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            pooled = x[:, -1:] if self.dense is None else torch.tanh(self.dense(x[:, :1]))
            return pooled, self.out_proj(pooled) if hasattr(self, "out_proj") else pooled

    class Tied(nn.Linear):
        """An output map that shares another's weight and holds none of its own until it is given one."""

        def __init__(self, width: int, vocab: int) -> None:
            nn.Module.__init__(self)
            self.in_features, self.out_features = width, vocab
            self.register_parameter("bias", None)

    class MTPReference(nn.Module):
        """Hidden states and the embeddings of the tokens after them → hidden states one token further on."""

        def __init__(self, spec: MultiTokenPrediction, around: Around, block: Layer) -> None:
            super().__init__()
            self.enorm, self.hnorm = spec.norm.reference(around), spec.norm.reference(around)
            self.eh_proj = nn.Linear(2 * around.hidden_size, around.hidden_size, bias=False)
            self.block, self.norm = block.reference(around), spec.norm.reference(around)

        def forward(self, hidden: Tensor, embedded: Tensor, run: Run) -> tuple[Tensor, Tensor]:
            joined = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
            out: Tensor = self.block(joined, run)
            logits: Tensor = self.get_submodule("lm_head")(self.norm(out))  # the model's own head, given to each module
            return out, logits

    class ModelReference(nn.Module):
        """ids: [batch, tokens] → logits [batch, tokens, vocab_size] (hidden states where there is no head).

        source: ids (or frames, [batch, bins, frames]) that the encoder of an encoder-decoder reads. store: a dict to
        keep keys and values in; with `past` tokens in it, `ids` are those that follow. with_mtp: give back (logits,
        [logits of each prediction module]).
        """

        def __init__(self, spec: ModelSpec) -> None:
            super().__init__()
            self.spec, hidden = spec, spec.hidden_size
            width = spec.embedding_size or hidden
            last = spec.encoder if spec.decoder is None else spec.decoder  # its output is the model's
            assert last is not None
            top = self._mapped_back(spec, last)
            self.embed_tokens = nn.Embedding(spec.vocab_size, width)
            nn.init.normal_(self.embed_tokens.weight, std=0.02)
            if spec.unused_embedding:
                self.unused_embedding = nn.Embedding(spec.vocab_size, width)
            if spec.embedding_size is not None and last.input_size is None:
                self.embed_proj = nn.Linear(width, hidden, bias=spec.embedding_projection_bias)
            if spec.encoder is not None and spec.decoder is not None:
                self.encoder = spec.encoder.reference(Around(spec.encoder.hidden_size or hidden, causal=False))
                self.decoder = spec.decoder.reference(Around(hidden, source_size=spec.encoder.hidden_size))
            else:
                only = last.reference(Around(hidden, causal=spec.encoder is None))
                for name, child in only.named_children():
                    self.add_module(name, child)
                self._only = (only,)  # in a tuple: its children are this model's own
            if spec.pooler or spec.pooler_labels is not None:
                self.pooler = Pooler(hidden, spec.pooler_labels, spec.pooler)
            if spec.contact_head:
                layer: Any = last.block.attention
                self.contact_head = nn.Linear(last.num_hidden_layers * layer.num_attention_heads, 1)
            self.scores_pooled = (
                hasattr(self, "pooler") and isinstance(spec.head, Classifier) and spec.head.over == "sequence"
            )
            if top is not None:
                self.head_proj = nn.Linear(hidden, top, bias=False)
            if isinstance(spec.head, Classifier):
                self.classifier = spec.head.reference(Around(top or hidden))
            if isinstance(spec.head, LMHead):
                self.lm_head = spec.head.reference(Around(hidden), spec.vocab_size, spec.embedding_size)
                output: Any = self.lm_head if spec.head.transform is None else self.lm_head.decoder
                if spec.tie_word_embeddings:
                    output.weight = self.embed_tokens.weight
                if spec.mtp is not None:
                    self.mtp = nn.ModuleList(
                        spec.mtp.reference(Around(hidden), self._layer_ahead(spec.mtp, last))
                        for _ in range(spec.mtp.num_nextn_predict_layers)
                    )
                    for module in self.mtp:
                        module.lm_head = Tied(width, spec.vocab_size)
                        module.lm_head.weight = output.weight
            if spec.towers:
                self.towers = nn.Module()
                for name, tower in spec.towers.items():
                    self.towers.add_module(name, tower.reference(Around(hidden, causal=False)))

        @staticmethod
        def _mapped_back(spec: ModelSpec, last: Stack) -> int | None:
            """The width of the embedding, where the output is mapped to it before the head reads it."""
            if isinstance(spec.head, LMHead):
                return spec.embedding_size if spec.head.transform is None else None
            if isinstance(spec.head, Classifier) and spec.head.over == "sequence":
                return None
            return None if last.input_size is not None else spec.embedding_size

        @staticmethod
        def _layer_ahead(mtp: MultiTokenPrediction, decoder: Stack) -> Layer:
            """The layer inside a module of multi-token prediction: of the kind named, or the last of the pattern."""
            *_, last = decoder.pattern
            kind = last if mtp.layer is None else mtp.layer
            layers: dict[str, Layer] = {"block": decoder.block, **decoder.variants}
            return layers[kind]

        def repeats(self) -> dict[str, str]:
            """The path of every layer that is built like an earlier one → the path of the first such."""
            alone: Any = self._only[0] if not hasattr(self, "encoder") else None
            stacks: dict[str, Any] = (
                {"": alone} if alone is not None else {"encoder.": self.encoder, "decoder.": self.decoder}
            )
            out: dict[str, str] = {}
            for prefix, stack in stacks.items():
                for i, kind in enumerate(stack.layer_kinds):
                    first = stack.layer_kinds.index(kind)
                    if first != i:
                        out[f"{prefix}layers.{i}"] = f"{prefix}layers.{first}"
            return out

        def embed(self, ids: Tensor) -> Tensor:
            x: Tensor = self.embed_tokens(ids)
            return self.embed_proj(x) if hasattr(self, "embed_proj") else x

        def hidden_states(self, ids: Tensor, source: Tensor | None, run: Run) -> Tensor:
            if not hasattr(self, "encoder"):
                alone: Tensor = self._only[0].forward(self.embed(ids), run)
                return alone
            if source is not None:
                spec = self.spec.encoder
                raw = spec is not None and (spec.stem is not None or spec.vocab_size is not None)
                run.memory = self.encoder(source if raw else self.embed(source), Run())
            out: Tensor = self.decoder(self.embed(ids), run)
            return out

        def forward(
            self,
            ids: Tensor,
            source: Tensor | None = None,
            *,
            store: dict[nn.Module, tuple[Tensor, ...]] | None = None,
            past: int = 0,
            last_only: bool = False,
            with_mtp: bool = False,
        ) -> Any:
            run = Run(past=past, store=store, ids=ids)
            x = self.hidden_states(ids, source, run)
            if hasattr(self, "pooler"):
                pooled, self.pooled = self.pooler(x)
            if self.scores_pooled:
                return self.classifier(pooled)
            top = x[:, -1:] if last_only else x
            if hasattr(self, "head_proj"):
                top = self.head_proj(top)
            if hasattr(self, "classifier"):
                return self.classifier(top)
            logits = self.lm_head(top) if hasattr(self, "lm_head") else top
            if not with_mtp:
                return logits
            ahead, hidden = [], x
            for module in self.mtp:
                hidden, further = module(hidden, self.embed(ids), Run())
                ahead.append(further)
            return logits, ahead

    return {"mtp": MTPReference, "model": ModelReference}
