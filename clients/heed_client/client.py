"""``Client``: it sends the requests of the calls, and waits between retries.

``AsyncClient`` uses the same methods, except those that return memories, because their bodies only execute a call.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx
import numpy as np

from heed_client import native
from heed_client.answer import Answer, Tokens
from heed_client.arrays import TensorLike, array
from heed_client.block import Block, BlockSummary
from heed_client.calls import Call, Calls
from heed_client.connection import http_options, named_inputs, text_fields
from heed_client.errors import TimedOut, Unreachable, transport_errors
from heed_client.generation.generation import GenerateRequest, Generation
from heed_client.interpretation import calls as interpretation
from heed_client.interpretation.answers import Lens, Sweep
from heed_client.memories.calls import Description, MemoryCalls
from heed_client.memories.memory import Memory
from heed_client.native import Audio, Image
from heed_client.selection import Indices, normalized, output_names

T = TypeVar("T")
Reduction = Literal["mean", "max"]
Dtype = Literal["float32", "float16", "uint8"]
Metric = str | Mapping[str, Any]
DtypeLike = np.dtype[Any] | type[np.generic]  # a dtype of numpy


class Client:
    """A client of the Heed server at ``url``. It keeps connections open, and threads may share it.

    ``url`` defaults to HEED_URL of the environment, or http://127.0.0.1:8000, and ``api_key`` to HEED_API_KEY.
    ``timeout`` is the longest time in seconds without a byte, None for no limit. A request that the server rejects
    temporarily (429, 503) with a ``Retry-After`` of at most ``max_wait_s`` seconds is retried, up to ``retries`` times;
    nothing else is retried.

    A URL without a scheme (127.0.0.1:8000) uses HTTP. For an HTTPS server, ``cacert`` is a PEM file with the
    certificates to trust, in place of the system's; ``verify=False`` accepts any certificate. ``transport`` is httpx's,
    for proxies or tests.

    Raises:
        ValueError: an argument, HEED_URL or HEED_API_KEY is wrong; the message begins with its name.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        cacert: str | Path | None = None,
        verify: bool = True,
        timeout: float | None = 60,
        retries: int = 3,
        max_wait_s: float = 30,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**http_options(url, api_key, cacert, verify, timeout, transport))
        self._calls = Calls(self._http, retries, max_wait_s)
        self._memory_calls = MemoryCalls(self._calls)

    def ready(self) -> bool:
        """Whether the server answers and its models are loaded; False without a server.

        Raises:
            HeedError: the answer is another error; the URL may belong to another server.
        """
        return self._execute(_is_ready(self._calls))

    def wait_ready(self, timeout: float = 60, interval: float = 0.2) -> None:
        """Wait until the server is ready, for at most ``timeout`` seconds, with ``interval`` seconds between two tries.

        Raises:
            TimedOut: it is not ready by then; the message has its last answer.
            HeedError: as ``ready``.
        """
        return self._execute(_wait_ready(self._calls, str(self._http.base_url), timeout, interval))

    def blocks(self) -> list[BlockSummary]:
        """List the blocks that the server runs.

        Raises:
            HeedError: see ``heed_client.errors``.
        """
        return self._execute(self._calls.blocks())

    def describe(self, block: str) -> Block:
        """Get a block's formula, its inputs and outputs with their shapes, and its parameters with their defaults.

        Raises:
            HeedError: see ``heed_client.errors``.
        """
        return self._execute(self._calls.describe(block))

    def attend(
        self,
        /,
        block: str,
        query: TensorLike = None,
        key: TensorLike = None,
        value: TensorLike = None,
        *,
        outputs: str | Sequence[str] | None = None,
        layers: Indices = None,
        heads: Indices = None,
        queries: Indices = None,
        reduce_heads: Reduction | None = None,
        reduce_layers: Reduction | None = None,
        average_attn_weights: bool = False,
        weights_top_k: int | None = None,
        weights_dtype: Dtype | DtypeLike | None = None,
        weights_threshold: float | None = None,
        weights_pool: int | None = None,
        weights_pool_by: Reduction | None = None,
        decimals: int | None = None,
        quantized: bool = False,
        additive_mask: bool = False,
        next_tokens: int | None = None,
        interventions: Sequence[Mapping[str, Any]] | None = None,
        baseline: bool = False,
        difference: Metric | Sequence[Metric] | None = None,
        images: Image | Sequence[Image] | None = None,
        audio: Audio | Sequence[Audio] | None = None,
        binary: bool | None = None,
        **inputs: TensorLike,
    ) -> Answer:
        """Run ``block`` on tensors and parameters, named as ``describe`` names them: query=..., is_causal=True.

        ``query``, ``key`` and ``value`` may also be given by position. Tensors are numpy arrays, nested lists or torch
        tensors, of the ranks that the block takes: [m, d], [batch, m, d] or [batch, heads, m, d]; an input that is None
        is not sent. ``outputs`` are names, or text of names: "weights" or "output,weights", which is the default; the
        output alone is faster. They may also be ``entropy``, ``received``, ``rollout`` and ``head_statistics``, which
        are computed from the weights.

        ``layers``, ``heads`` and ``queries`` select attention: an index, a list of them, or text of indices and ranges
        ("0,3,5:8,-1"). ``reduce_heads`` and ``reduce_layers`` remove these axes by "mean" or "max";
        ``average_attn_weights`` is the mean over heads. ``weights_top_k`` returns only the k largest weights of each
        query, ``weights_threshold`` 0 for those below it. ``weights_pool`` is the largest number of cells to which
        queries and keys are reduced, by their mean or ``weights_pool_by`` "max". ``weights_dtype`` "float16" or "uint8"
        makes the answer smaller; uint8 is converted to float32 unless ``quantized``. ``decimals``, 0 to 7, rounds the
        answer, which is then sent as JSON unless ``binary`` is set. The server does all of this.

        A float mask of only 0.0 and 1.0 is rejected, because it is ambiguous, unless ``additive_mask`` is set: then it
        is added to the scores. Masks of integers are always rejected. Large tensors are sent as bytes and small ones as
        JSON; ``binary`` forces one of them where possible. The results are the same.

        A model with a tokenizer takes ``text=`` instead of token ids: a text or a list of texts, with the arguments of
        ``tokenize``. The answer then also has ``tokens``, ``offsets``, ``input_ids`` and ``truncated``. For a language
        model, ``next_tokens=5`` requests the 5 most probable next tokens of each text: ``answer.next_tokens`` is a list
        of {"id", "token", "probability"}, or for several texts a list of such lists.

        ``interventions`` change activations in the run of a transformers model, one after the other:
        [{"at": "weights", "layers": 3, "heads": 1, "scale": 0}] removes a head. Their tensors may be arrays.
        With ``baseline``, ``answer.baseline`` is the answer without them. ``difference`` is a metric such as "kl", or a
        list: ``answer.difference`` has its "metric", "unchanged" and "changed", or is a list of such mappings.

        A vision model takes ``images`` in place of ``pixel_values``: a PNG, JPEG or WebP as a path or bytes, a Pillow
        image, or an array [height, width, 3] of uint8; or a list of them. An audio model takes ``audio``, a WAV or FLAC
        as a path or bytes, or a list. The server applies the model's processor.

        ``memory`` may be the id of a stored memory, with ``memory_append`` and ``memory_at``; ``Memory`` sends them.

        Raises:
            HeedError: see ``heed_client.errors``.
            ValueError, TypeError: an input is not an array of numbers; the message begins with its name.
        """
        choices = {
            "layers": layers,
            "heads": heads,
            "queries": queries,
            "reduce_heads": reduce_heads,
            "reduce_layers": reduce_layers,
            "average_attn_weights": average_attn_weights,
            "weights_top_k": weights_top_k,
            "weights_dtype": weights_dtype,
            "weights_threshold": weights_threshold,
            "weights_pool": weights_pool,
            "weights_pool_by": weights_pool_by,
            "decimals": decimals,
            "additive_mask": additive_mask,
            "next_tokens": next_tokens,
            "interventions": None if interventions is None else native.nested(list(interventions)),
            "baseline": baseline or None,
            "difference": difference,
            **native.nested({"images": images, "audio": audio}),
        }
        named = named_inputs(query, key, value, inputs)
        call = self._calls.attend(block, named, outputs, choices, quantized, binary)
        return self._execute(call)

    def tokenize(
        self,
        model: str,
        text: str | Sequence[str] | None = None,
        *,
        text_pair: str | Sequence[str] | None = None,
        text_target: str | Sequence[str] | None = None,
        truncation: bool | None = None,
        add_special_tokens: bool = True,
    ) -> Tokens:
        """Tokenize a text, or a list of texts, with the tokenizer of ``model``; the model is not run.

        ``text_pair`` is the second text of each pair, ``text_target`` the decoder's text in a model with two stacks.
        Texts that are too long are truncated as the model's tokenizer file says; ``truncation`` overrides this.

        Raises:
            HeedError: see ``heed_client.errors``.
        """
        texts = text_fields(text, text_pair, text_target, truncation, add_special_tokens)
        return self._execute(self._calls.tokenize(model, texts))

    def generate(
        self,
        /,
        model: str,
        text: str | Sequence[str] | None = None,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
        stop: str | int | Sequence[str | int] | None = None,
        ignore_eos: bool = False,
        text_pair: str | Sequence[str] | None = None,
        truncation: bool | None = None,
        add_special_tokens: bool = True,
        decoder_text: str | None = None,
        outputs: str | Sequence[str] | None = None,
        layers: Indices = None,
        heads: Indices = None,
        queries: Indices = None,
        reduce_heads: Reduction | None = None,
        reduce_layers: Reduction | None = None,
        average_attn_weights: bool = False,
        weights_top_k: int | None = None,
        weights_dtype: Dtype | DtypeLike | None = None,
        weights_threshold: float | None = None,
        weights_pool: int | None = None,
        weights_pool_by: Reduction | None = None,
        decimals: int | None = None,
        quantized: bool = False,
        next_tokens: int | None = None,
        interventions: Sequence[Mapping[str, Any]] | None = None,
        lens_top_k: int | None = None,
        images: Image | Sequence[Image] | None = None,
        audio: Audio | Sequence[Audio] | None = None,
        **inputs: TensorLike,
    ) -> Generation:
        """Generate tokens after ``text`` with a language model: ``for token in heed.generate(model, text): ...``

        The loop sends the request and yields each token as it arrives; leaving the loop stops the server. For a list of
        texts, or without a stream, ``heed.generate(model, texts).result()`` returns when generation is complete. In
        place of a text the prompt may be ``input_ids=``, or for speech ``audio=`` or ``input_features=``. Models with
        two stacks read it in the encoder; ``decoder_text`` or ``decoder_input_ids=`` is the decoder's prompt. Models
        that read pictures take ``images=`` for the placeholders in the text.

        At most ``max_new_tokens`` tokens (20) are generated. ``temperature`` 0, the default, chooses the most probable
        token; ``top_k``, ``top_p``, ``min_p`` and ``repetition_penalty`` are those of transformers. The same ``seed``
        gives the same tokens. ``stop`` is a text or a token id that ends the text, or a list of them; ``ignore_eos``
        continues after the model's end tokens.

        ``outputs``, such as "weights", are those of each token's step, with the options of ``attend``: the weights are
        [layers, heads, 1, keys so far]. ``next_tokens=5`` adds the 5 most probable tokens at each position, and
        ``lens_top_k=3`` the 3 likeliest predictions of each layer: ``token.lens``.

        ``interventions`` change activations as in ``attend``: in the prompt and in the new tokens, or at ``positions``,
        which number the new tokens after those of the prompt.

        Raises:
            HeedError: see ``heed_client.errors``; in the loop, or in ``result``.
            ValueError, TypeError: an input is not an array of numbers; the message begins with its name.
        """
        choices = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
            "stop": stop if stop is None or isinstance(stop, str | int) else [*stop],
            "ignore_eos": ignore_eos,
            **native.nested({"images": images, "audio": audio}),
            "decoder_text": decoder_text,
            "outputs": output_names(outputs),
            "layers": layers,
            "heads": heads,
            "queries": queries,
            "reduce_heads": reduce_heads,
            "reduce_layers": reduce_layers,
            "average_attn_weights": average_attn_weights,
            "weights_top_k": weights_top_k,
            "weights_dtype": weights_dtype,
            "weights_threshold": weights_threshold,
            "weights_pool": weights_pool,
            "weights_pool_by": weights_pool_by,
            "decimals": decimals,
            "next_tokens": next_tokens,
            "interventions": None if interventions is None else native.nested(list(interventions)),
            "lens_top_k": lens_top_k,
        }
        fields = text_fields(text, text_pair, None, truncation, add_special_tokens) | normalized(choices)
        tensors = {name: array(name, tensor) for name, tensor in inputs.items() if tensor is not None}
        return self._generation(GenerateRequest(model, tensors, fields, quantized))

    def sweep(
        self,
        /,
        model: str,
        text: str | None = None,
        *,
        intervention: Mapping[str, Any],
        over: Mapping[str, Indices] | Sequence[str],
        metric: Metric | None = None,
        position: int | None = None,
        text_pair: str | None = None,
        text_target: str | None = None,
        truncation: bool | None = None,
        add_special_tokens: bool = True,
        images: Image | Sequence[Image] | None = None,
        audio: Audio | None = None,
        **inputs: TensorLike,
    ) -> Sweep:
        """Run a transformers model with one intervention at each point of a grid (activation patching, causal
        tracing): ``heed.sweep(model, text, intervention={"at": "hidden", "from": {"text": other}}, over=["layers",
        "positions"], metric={"logit_difference": [" Paris", " Rome"]}).values``.

        ``over`` names the axes of the grid: "layers", "heads", "positions", "queries", "keys"; a mapping also gives the
        indices of each. ``metric`` is computed at ``position`` of the output, by default the last token of a language
        model, else 0: {"logit_difference": [a, b]} or {"probability": a} of tokens or their ids, "kl",
        "total_variation", or "cosine_distance" of embeddings and hidden states. In place of a text the run may have
        ``input_ids=`` or the model's other inputs, or files as for ``attend``; so may another run ("from").

        Raises:
            HeedError: see ``heed_client.errors``.
            ValueError, TypeError: an input is not an array of numbers; the message begins with its name.
        """
        axes = [over] if isinstance(over, str) else over  # a text is a sequence, too
        grid = axes if isinstance(axes, Mapping) else dict.fromkeys(axes, "all")
        fields = text_fields(text, text_pair, text_target, truncation, add_special_tokens)
        fields |= {"intervention": intervention, "over": grid, "metric": metric, "position": position}
        fields |= native.nested({"images": images, "audio": audio})
        return self._execute(interpretation.sweep(self._calls, model, inputs, fields))

    def lens(
        self,
        /,
        model: str,
        text: str | None = None,
        *,
        lens_top_k: int | None = None,
        layers: Indices = None,
        positions: Indices = None,
        interventions: Sequence[Mapping[str, Any]] | None = None,
        text_pair: str | None = None,
        text_target: str | None = None,
        truncation: bool | None = None,
        add_special_tokens: bool = True,
        images: Image | Sequence[Image] | None = None,
        audio: Audio | None = None,
        **inputs: TensorLike,
    ) -> Lens:
        """The ``lens_top_k`` (5) likeliest tokens of every layer and position: a language model's own final norm and
        head applied to its hidden states (the logit lens), also of a run with ``interventions``. The answer's
        ``output_probabilities`` [layers, positions] follow the output's likeliest token through the layers.

        Raises:
            HeedError: see ``heed_client.errors``.
            ValueError, TypeError: an input is not an array of numbers; the message begins with its name.
        """
        fields = text_fields(text, text_pair, text_target, truncation, add_special_tokens)
        fields |= native.nested({"images": images, "audio": audio})
        fields |= {
            "lens_top_k": lens_top_k,
            "layers": layers,
            "positions": positions,
            "interventions": None if interventions is None else list(interventions),
        }
        return self._execute(interpretation.lens(self._calls, model, inputs, fields))

    def memory(
        self,
        key: TensorLike = None,
        value: TensorLike = None,
        *,
        block: str | None = None,
        dtype: Literal["float32", "float16"] | DtypeLike | None = None,
        ttl_seconds: float | None = None,
        nonpad_kv_seqlen: TensorLike = None,
        reuse: bool = False,
        keep: bool = False,
        **inputs: TensorLike,
    ) -> Memory:
        """Store keys and values on the server, to query them many times.

        ``key`` is [batch, kv_heads, n, d_k] and ``value`` [batch, kv_heads, n, d_v], or their last 2 or 3 dimensions;
        row i has ``nonpad_kv_seqlen[i]`` keys. With ``block``, the block's projections of its inputs, named as
        ``describe`` names them, are stored. ``dtype`` "float16" halves the bytes. More than 64 MiB are sent in parts.

        The end of ``with`` deletes the memory unless ``keep``; otherwise it remains until it is deleted, for
        ``ttl_seconds`` or until the server needs its space. ``reuse`` finds a stored memory with equal keys and values,
        without sending them again. It is then shared: ``with`` does not delete it, and others see appended keys. Keys
        that were sent in parts are not found.

        Raises:
            HeedError: see ``heed_client.errors``; 507 if the server has no space.
            ValueError, TypeError: a tensor is not an array of numbers; the message begins with its name.
        """
        options = {"block": block, "dtype": dtype, "ttl_seconds": ttl_seconds}
        call = self._memory_calls.store({"key": key, "value": value, **inputs}, options, nonpad_kv_seqlen, reuse)
        stored, is_new = self._execute(call)
        return self._memory(stored, is_new and not keep)

    def open_memory(self, id: str) -> Memory:
        """Return a stored memory; raises NotFound if it does not exist, or HeedError."""
        return self._memory(self._execute(self._memory_calls.get(id)))

    def memories(self) -> list[Memory]:
        """The memories that this API key may use; raises HeedError."""
        return [self._memory(stored) for stored in self._execute(self._memory_calls.list())]

    def _memory(self, stored: Description, is_temporary: bool = False) -> Memory:
        return Memory(self.attend, self._execute, self._memory_calls, stored, is_temporary)

    def _generation(self, request: GenerateRequest) -> Generation:
        return Generation(self._execute, self._calls, request)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _execute(self, call: Call[T], stream: bool = False) -> T:
        resume = partial(call.send, None)
        while True:
            try:
                step = resume()
            except StopIteration as end:
                result: T = end.value
                return result
            if not isinstance(step, httpx.Request):
                time.sleep(step)
                resume = partial(call.send, None)
                continue
            try:
                with transport_errors():
                    response = self._http.send(step, stream=stream)
                    if stream and not response.is_success:
                        response.read()
                    resume = partial(call.send, response)
            except Unreachable as error:
                resume = partial(call.throw, error)


def _is_ready(calls: Calls) -> Call[bool]:
    try:
        return (yield from calls.ready()) is None
    except Unreachable:
        return False


def _wait_ready(calls: Calls, url: str, timeout: float, interval: float) -> Call[None]:
    end = time.monotonic() + timeout
    while True:
        try:
            reason = yield from calls.ready()
        except Unreachable as error:
            reason = str(error)
        if reason is None:
            return
        if time.monotonic() + interval > end:
            raise TimedOut(f"{url} is not ready after {timeout:g} s: {reason}")
        yield interval
