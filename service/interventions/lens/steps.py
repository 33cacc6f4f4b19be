"""The lens of generated tokens: what each layer predicts at the position that predicts the next one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.base.errors import Invalid
from service.inference.stages import Stages
from service.interventions.changes import ITEM_BYTES
from service.interventions.intervenable import ANSWER, HEAD, HIDDEN, START, Intervenable
from service.interventions.lens.request import TOP_K
from service.interventions.lens.runs import LOGIT_COPIES, likeliest, log_totals, ranks_of
from service.interventions.source import InterventionSource
from service.model.graph import Graph, RunOptions
from service.model.model import Model
from service.tokens.next_tokens import vocabulary_size
from service.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class StepLens:
    """The lens of one ``version``, of the ``count`` likeliest tokens; ``ids`` is the model's input of tokens."""

    version: Intervenable
    model: Model
    count: int
    ids: str

    @property
    def layers(self) -> int:
        """Their number, the output's included."""
        return int(self.model.outputs[HIDDEN].shape[0])

    @property
    def size(self) -> int:
        """Multiply-adds of a step."""
        return self.layers * vocabulary_size(self.model) * int(self.model.outputs[HIDDEN].shape[-1])

    @property
    def memory(self) -> int:
        """Bytes that a step needs."""
        return LOGIT_COPIES * ITEM_BYTES * self.layers * vocabulary_size(self.model)

    def logits(self, graph: Graph, hidden: np.ndarray, token: int, options: RunOptions | None) -> np.ndarray:
        """The logits [layers, vocabulary] of ``hidden`` [layers + 1, 1, 1, width], with as many threads as ``graph``.

        ``token`` is that of the position. Those of the output are not among them: the last hidden states may have gone
        through the norm.

        Raises:
            Exception: ONNX Runtime's own.
        """
        head = self.version.graphs.beside(graph, HEAD)
        states = np.ascontiguousarray(hidden[:-1, 0])
        inputs = {START: states, self.ids: np.full(states.shape[:2], token, np.int64)}
        found = head.session.run(head.select_inputs(inputs), [ANSWER], options)
        logits: np.ndarray = found[ANSWER][:, -1]
        return logits

    def read(self, logits: np.ndarray, token: int) -> dict[str, np.ndarray]:
        """The likeliest tokens of ``logits`` [layers + 1, vocabulary], and the ranks of ``token``.

        Raises:
            Invalid: a logit is not finite.
        """
        indices, probabilities = likeliest(logits, log_totals(logits), self.count)
        ranks = ranks_of(np.full(len(logits), token), logits)
        return {"lens_indices": indices, "lens_probabilities": probabilities, "lens_ranks": ranks}


def has_step_lens(model: Model, version: Intervenable | None) -> bool:
    """Whether the ``version`` of ``model`` has a graph for a lens in generation."""
    return version is not None and version.sites.has_positionwise_head and HIDDEN in model.outputs


def open_lens(source: InterventionSource, model: Model, count: int, ids: str) -> Stages[StepLens]:
    """The lens of a request to generate, whose graph is opened; ``ids`` is the model's input of tokens.

    Raises:
        Invalid: the model has no graph for it, or its head needs more than the hidden state of a token.
    """
    version = source.versions.get(model)
    if version is None or not has_step_lens(model, version):
        raise Invalid(f"model '{model.name}' has no lens in generation: its head alone gives no token", TOP_K)
    yield from source.open_graphs(version, (HEAD,))
    if not version.graphs.graph(HEAD).inputs <= {START, ids}:
        raise Invalid(f"model '{model.name}' has no lens in generation: its head has other inputs", TOP_K)
    return StepLens(version, model, count, ids)


def lens_fields(arrays: Mapping[str, np.ndarray], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The fields of one token, of what ``StepLens.read`` returned."""
    indices = arrays["lens_indices"].tolist()
    lens = {"indices": indices, "probabilities": arrays["lens_probabilities"].tolist()}
    if tokenizer is not None:
        lens["tokens"] = [[*map(tokenizer.token, row)] for row in indices]
    return {"lens": lens, "ranks": arrays["lens_ranks"].tolist()}
