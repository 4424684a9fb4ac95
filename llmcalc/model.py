"""The spec of a whole model, the tree of what it costs, and the PyTorch model that is built from the same spec.

A decoder-only or encoder-only model has one stack, whose layers stand at the top of the tree (`layers.0.self_attn`); an
encoder-decoder has two (`encoder.layers.0.self_attn`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from . import ops
from .algebra import Number, is_zero
from .components import Classifier, Head, LMHead, NoHead, Norm
from .components.base import Around, Flag, HiddenSize, Labels, Part, Positions, Vocab, Width
from .components.block import Layer
from .components.runtime import Run
from .components.stack import Stack
from .components.towers import Tower, TowerName, check_widths
from .optional import MTP, TOWERS
from .tree import Node

if TYPE_CHECKING:
    from torch import Tensor, nn


class MultiTokenPrediction(Part):
    """Modules that predict tokens further ahead (DeepSeek-V3, arXiv:2412.19437, §2.2): in the checkpoint, not in the
    total.

    Each joins the last hidden state with the next token's embedding (two norms and a map from 2h to h), runs one layer
    of the decoder's kind and a norm, and shares embedding and output head with the model. layer: which kind, where the
    decoder has several; by default that of its last layer.
    """

    num_nextn_predict_layers: int = Field(ge=1, le=64, strict=True)
    layer: str | None = None
    norm: Norm = Norm(type="rmsnorm")

    def anatomy(self, name: str, around: Around, block: Layer, logits: Node) -> Node:
        h, norm = around.hidden_size, self.norm.anatomy
        parts = [norm("enorm", around), norm("hnorm", around), Node("eh_proj", ops.Linear(2 * h, h))]
        parts += [block.anatomy("block", around), norm("norm", around), logits]
        n = self.num_nextn_predict_layers
        which = range(n) if isinstance(n, int) else None
        return Node(
            name,
            children=tuple(parts),
            repeat=n,
            indices=which,
            kind="mtp",
            optional=MTP.name,
            source="DeepSeek-V3 2024, §2.2",
        )

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
            "feed_forward.token_table": getattr(worker, "token_table", None) is not None,
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

    def _around(self, side: str, stack: Stack) -> Around:
        """What the layers of a stack need to know of the model."""
        width = self.hidden_size if stack.hidden_size is None else stack.hidden_size
        return Around(
            width, causal=side == "decoder", source_size=None if self.encoder is None else self.encoder.hidden_size
        )

    def anatomy(self) -> Node:
        """The tree of named primitives. Counting is walking it."""
        h, width = self.hidden_size, self.embedding_size
        e = h if width is None else width
        parts = [Node("embed_tokens", ops.Embedding(self.vocab_size, e), kind="embedding")]
        if width is not None:
            projection = Node("embed_proj", ops.Linear(e, h, self.embedding_projection_bias), kind="embedding")
            parts += [projection] if self.main.input_size is None else []
        if self.unused_embedding:
            parts.append(Node("unused_embedding", ops.Idle(ops.Embedding(self.vocab_size, e)), kind="embedding"))
        for side, stack in self.stacks():
            node = stack.anatomy(side, self._around(side, stack))
            if self.kind == "encoder-decoder":
                parts.append(Node(side, children=node.children, stream=side))
            else:
                parts += node.children
        if self.pooler or self.pooler_labels is not None:
            pooled = [Node("dense", ops.Linear(h, h, bias=True, rows="sequences"))] if self.pooler else []
            if self.pooler_labels is not None:
                pooled.append(Node("out_proj", ops.Linear(h, self.pooler_labels, bias=True, rows="sequences")))
            parts.append(Node("pooler", children=tuple(pooled), kind="pooler", source="Devlin et al. 2019"))
        if self.contact_head:
            maps = self.main.num_hidden_layers * self._attending_heads()
            parts.append(
                Node(
                    "contact_head",
                    ops.Idle(ops.Linear(maps, 1, bias=True)),
                    kind="classifier",
                    source="Rao et al. 2020",
                )
            )
        top = self.top_size
        if top is not None:
            kind = {"lm": "lm_head", "classification": "classifier", "none": "embedding"}[self.head.type]
            parts.append(
                Node(
                    "head_proj",
                    ops.Linear(h, top, rows="tokens" if isinstance(self.head, NoHead) else "logits"),
                    kind=kind,
                )
            )
        if isinstance(self.head, Classifier):
            parts.append(self.head.anatomy("classifier", Around(h if top is None else top)))
        if isinstance(self.head, LMHead):
            head = self.head.anatomy("lm_head", Around(h), self.vocab_size, width, self.tie_word_embeddings)
            parts.append(head)
            if self.mtp is not None:
                shared = ops.Linear(e, self.vocab_size, rows="logits", tied=True)
                parts.append(self.mtp.anatomy("mtp", Around(h), self.mtp_block(), Node("lm_head", shared)))
        if self.towers:
            parts.append(self._towers())
        return Node("model", children=tuple(parts), source_tokens=self.source_tokens)

    def _towers(self) -> Node:
        """What stands beside the text model: its parameters, and no FLOPs."""
        around = Around(self.hidden_size, causal=False)
        children = tuple(_parameters_alone(tower.anatomy(name, around)) for name, tower in self.towers.items())
        return Node("towers", children=children, kind="towers", optional=TOWERS.name)

    def reference(self) -> nn.Module:
        """A PyTorch model with random weights. Imports torch; build it under `torch.device("meta")` for its shapes
        alone.
        """
        return _references()["model"](self)


def _parameters_alone(node: Node) -> Node:
    """The same node, all of it one component, that holds what it held and costs nothing."""
    op = None if node.op is None else ops.Kept(node.op)
    return replace(node, op=op, kind="", children=tuple(_parameters_alone(child) for child in node.children))


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
            self.embed_tokens = nn.Embedding(spec.vocab_size, width)
            nn.init.normal_(self.embed_tokens.weight, std=0.02)
            if spec.unused_embedding:
                self.unused_embedding = nn.Embedding(spec.vocab_size, width)
            if spec.embedding_size is not None and spec.main.input_size is None:
                self.embed_proj = nn.Linear(width, hidden, bias=spec.embedding_projection_bias)
            if spec.encoder is not None and spec.decoder is not None:
                self.encoder = spec.encoder.reference(Around(spec.encoder.hidden_size or hidden, causal=False))
                self.decoder = spec.decoder.reference(Around(hidden, source_size=spec.encoder.hidden_size))
            else:
                only = spec.main.reference(Around(hidden, causal=spec.encoder is None))
                for name, child in only.named_children():
                    self.add_module(name, child)
                self._only = (only,)  # in a tuple: its children are this model's own
            if spec.pooler or spec.pooler_labels is not None:
                self.pooler = Pooler(hidden, spec.pooler_labels, spec.pooler)
            if spec.contact_head:
                layer: Any = spec.main.block.attention
                self.contact_head = nn.Linear(spec.main.num_hidden_layers * layer.num_attention_heads, 1)
            self.scores_pooled = (
                hasattr(self, "pooler") and isinstance(spec.head, Classifier) and spec.head.over == "sequence"
            )
            if spec.top_size is not None:
                self.head_proj = nn.Linear(hidden, spec.top_size, bias=False)
            if isinstance(spec.head, Classifier):
                self.classifier = spec.head.reference(Around(spec.top_size or hidden))
            if isinstance(spec.head, LMHead):
                self.lm_head = spec.head.reference(Around(hidden), spec.vocab_size, spec.embedding_size)
                output: Any = self.lm_head if spec.head.transform is None else self.lm_head.decoder
                if spec.tie_word_embeddings:
                    output.weight = self.embed_tokens.weight
                if spec.mtp is not None:
                    self.mtp = nn.ModuleList(
                        spec.mtp.reference(Around(hidden), spec.mtp_block())
                        for _ in range(spec.mtp.num_nextn_predict_layers)
                    )
                    for module in self.mtp:
                        module.lm_head = Tied(width, spec.vocab_size)
                        module.lm_head.weight = output.weight
            if spec.towers:
                self.towers = nn.Module()
                for name, tower in spec.towers.items():
                    self.towers.add_module(name, tower.reference(Around(hidden, causal=False)))

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
