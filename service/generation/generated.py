"""The tokens of one prompt: their text, why they end, and their JSON."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from service.base.steps import Steps
from service.codec.json_writer import PLACEHOLDER, write_json
from service.generation.counters import GenerationCounters
from service.generation.sequence import IDS, LOGPROB, PROBABILITIES, TOKEN, GrowingSequence
from service.interventions.lens.steps import lens_fields
from service.native.request import answered_fields
from service.selection.answer import answered_names


class Generated:
    """The tokens so far. ``ends`` are tokens that end a text; ``stops`` texts or tokens that a client has named.

    ``arrival_ns`` is the moment when the request came.
    """

    def __init__(
        self,
        sequence: GrowingSequence,
        ends: frozenset[int],
        stops: Sequence[str | int],
        counters: GenerationCounters,
        arrival_ns: int,
    ) -> None:
        self.sequence = sequence
        self.text = ""
        self.finish_reason = "length"
        self.first_ns = 0  # the moment of the first token
        self._tokenizer = tokenizer = sequence.model.tokenizer
        self._piece_of = tokenizer.text_of_tokens() if tokenizer else lambda _: ""
        self._ends = ends
        self._stop_ids = {stop for stop in stops if isinstance(stop, int)}
        self._stop_texts = [stop for stop in stops if isinstance(stop, str)]
        self._counters = counters
        self._last_ns = arrival_ns
        counters.observe_prompt(sequence.model.name, sequence.prompt)
        self._unwritten: deque[dict[str, Any]] = deque()  # text and offset of tokens, as they were accepted

    def accept(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Add the token of a step, and say whether another one follows."""
        token = int(arrays[TOKEN])
        now = time.perf_counter_ns()
        self._counters.observe_token(self.sequence.model.name, now - self._last_ns, is_first=not self.first_ns)
        self._last_ns = now
        self.first_ns = self.first_ns or now
        start = len(self.text)
        self.text += self._piece_of(token)
        ends_at = [self.text.find(stop, max(0, start + 1 - len(stop))) for stop in self._stop_texts]
        found = [at for at in ends_at if at >= 0]
        self.text = self.text[: min(found)] if found else self.text
        if token in self._ends:
            self.finish_reason = "eos"
        elif found or token in self._stop_ids:
            self.finish_reason = "stop"
        offset = min(start, len(self.text)), len(self.text)
        self._unwritten.append({"text": self.text[slice(*offset)], "offset": offset})
        return self.finish_reason == "length" and self.sequence.length < self.sequence.end

    def json(self, arrays: Mapping[str, np.ndarray]) -> tuple[str, int, Steps[list[bytes]]]:
        """The next token, whose step has these arrays: its text, how many numbers its JSON has, and the JSON."""
        wanted, tokenizer, token = self.sequence.wanted, self._tokenizer, int(arrays[TOKEN])
        about = {"id": token, "token": tokenizer.token(token) if tokenizer else None, **self._unwritten.popleft()}
        text: str = about["text"]
        about["logprob"] = float(arrays[LOGPROB])
        if wanted.alternatives:
            about["next_tokens"] = [
                {"id": index, "token": tokenizer.token(index) if tokenizer else None, "probability": p}
                for index, p in zip(arrays[IDS].tolist(), arrays[PROBABILITIES].tolist(), strict=True)
            ]
        if wanted.lens:
            about |= lens_fields(arrays, tokenizer)
        names = [name for output in wanted.outputs for name in answered_names(output, wanted.selection)]
        lists = [arrays[name] for name in names]
        frame = b",".join([orjson.dumps(about)[:-1], *answered_fields(wanted.outputs, wanted.selection)]) + b"}"
        steps = write_json(frame.split(PLACEHOLDER), lists, wanted.selection.decimals)
        return text, sum(array.size for array in lists), steps
