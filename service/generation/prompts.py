"""The prompts of a request as token ids, and how many tokens may follow each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.base.errors import Invalid
from service.generation.decoder import START, Decoder
from service.generation.request import DECODER_IDS, DECODER_TEXT, DEFAULT_NEW, MAX_NEW, GenerateFields
from service.model.checks import check_placeholders
from service.model.model import Model
from service.tokens.request import DECODER, MAX_TEXTS, tokenize, tokenizer_of, tokens_json


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids that a sequence begins with, and the most new tokens.

    ``source`` are the inputs of the encoder, if there is one, or those for whose rows tokens stand.
    """

    ids: np.ndarray
    source: Mapping[str, np.ndarray]
    most: int


@dataclass(frozen=True, slots=True)
class Prompts:
    """Those of a request. ``is_single``: one, whose answer is no list; ``tokens`` are fields of the answer, as JSON."""

    rows: Sequence[Prompt]
    is_single: bool
    tokens: list[bytes]


def prompts_of(fields: GenerateFields, tensors: Mapping[str, np.ndarray], decoder: Decoder) -> Prompts:
    """The prompts of a request with these ``tensors``.

    Raises:
        Invalid: one is empty, too long, or has ids that are no tokens; ``field`` names it.
    """
    model, tokens = decoder.model, list[bytes]()
    if fields.texts is not None:
        tokenized = tokenize(fields.texts, model)
        tokens = tokens_json(tokenized, fields.texts.is_single)
        texts = tokenized[""]
        inputs = [ids[mask == 1] for ids, mask in zip(texts.input_ids, texts.attention_mask, strict=True)]
        name, is_single, main = "text", fields.texts.is_single, "input_ids"
    else:
        main = name = next(one for one in tensors if one not in (DECODER_IDS, *model.signature.placeholders))
        inputs, is_single = _rows(name, tensors[name], decoder)
    if not decoder.generation.two_stacks:
        sources = _of_placeholders(name, inputs, tensors, model)
        rows = [
            Prompt(ids, source, _most(fields, name, ids, decoder)) for ids, source in zip(inputs, sources, strict=True)
        ]
        return Prompts(rows, is_single, tokens)
    start = _decoder_prompt(fields, tensors, decoder)
    most = _most(fields, DECODER_TEXT if fields.decoder_text is not None else DECODER_IDS, start, decoder)
    if main == "input_ids":
        longest = model.max_tokens(main)
        for ids in inputs:
            if longest is not None and len(ids) > longest:
                raise Invalid(f"expected at most {longest} tokens, got {len(ids)}", name)
    else:
        model.bind({main: inputs[0][None], DECODER_IDS: start[None]})  # all rows have its shape
    return Prompts([Prompt(start, {main: row[None]}, most) for row in inputs], is_single, tokens)


def _of_placeholders(
    field: str, prompts: Sequence[np.ndarray], tensors: Mapping[str, np.ndarray], model: Model
) -> list[dict[str, np.ndarray]]:
    """For each prompt the rows of inputs for which its tokens stand.

    Raises:
        Invalid: other numbers of rows and tokens, or a prompt that ends with such a token.
    """
    sources: list[dict[str, np.ndarray]] = [{} for _ in prompts]
    for name, placeholder in model.signature.placeholders.items():
        shape = model.inputs[name].shape
        rows = tensors.get(name, np.empty((0, *map(int, shape[1:])), np.float32))
        if rows.ndim != len(shape) or rows.shape[1:] != shape[1:]:
            raise Invalid(f"expected shape [{', '.join(map(str, shape))}], got shape {[*rows.shape]}", name)
        check_placeholders(name, placeholder, np.concatenate(prompts), len(rows), field)
        start = 0
        for index, ids in enumerate(prompts):
            tokens = int((ids == placeholder.token).sum())
            count, more = divmod(tokens, placeholder.count)
            if more:
                whole = placeholder.count
                raise Invalid(f"prompt {index} has {tokens} of {placeholder.label}, not a multiple of {whole}", field)
            if ids[-1] == placeholder.token:
                raise Invalid(
                    f"a prompt cannot end with {placeholder.label}: another token goes behind a picture", field
                )
            if count:
                sources[index][name] = rows[start : start + count]
            start += count
    return sources


def _rows(name: str, array: np.ndarray, decoder: Decoder) -> tuple[list[np.ndarray], bool]:
    """The rows of a tensor that was sent, and whether it is one row without the axis of the batch."""
    rank = len(decoder.model.inputs[name].shape)
    if array.ndim not in (rank - 1, rank) or 0 in array.shape:
        raise Invalid(f"expected {rank - 1} or {rank} axes without one of size 0, got shape {list(array.shape)}", name)
    if array.dtype.kind == "i":
        _check_ids(name, array, decoder)
    is_single = array.ndim < rank
    if not is_single and len(array) > MAX_TEXTS:
        raise Invalid(f"expected 1 to {MAX_TEXTS} prompts, got {len(array)}", name)
    return ([array] if is_single else [*array]), is_single


def _check_ids(name: str, ids: np.ndarray, decoder: Decoder) -> None:
    spec = decoder.model.spec
    last = spec.inputs[name].maximum if spec else None
    assert isinstance(last, int), "token ids have an upper limit"
    if ids.min() < 0 or ids.max() > last:
        raise Invalid(f"expected token ids from 0 to {last}, got {ids[(ids < 0) | (ids > last)][0]}", name)


def _decoder_prompt(fields: GenerateFields, tensors: Mapping[str, np.ndarray], decoder: Decoder) -> np.ndarray:
    """What the decoder begins with: its own start token, and the tokens of a text; or the ids that were sent."""
    if DECODER_IDS in tensors:
        ids = tensors[DECODER_IDS]
        if ids.ndim != 1 or not ids.size:
            raise Invalid(f"expected a list of token ids, got shape {list(ids.shape)}", DECODER_IDS)
        _check_ids(DECODER_IDS, ids, decoder)
        return ids
    model = decoder.model
    start = decoder.generation.tokens.get(START)
    if start is None:
        raise Invalid(f"missing (required): model '{model.name}' does not define the start token", DECODER_IDS)
    ids = np.array([start], np.int64)
    if fields.decoder_text is None:
        return ids
    try:
        texts = tokenizer_of(model).encode(
            fields.decoder_text.texts[DECODER], decoder.max_positions, False, special_tokens=False
        )
    except Invalid as error:
        raise Invalid(str(error), DECODER_TEXT) from None
    return np.concatenate([ids, texts.input_ids[0]])


def _most(fields: GenerateFields, name: str, prompt: np.ndarray, decoder: Decoder) -> int:
    """The most new tokens behind ``prompt``, which the field ``name`` has given."""
    limit = decoder.max_positions
    if limit is None:
        return fields.most or DEFAULT_NEW
    room = limit - len(prompt)
    if room < 1:
        raise Invalid(f"expected at most {limit - 1} tokens, which leaves one position, got {len(prompt)}", name)
    if fields.most is not None and fields.most > room:
        raise Invalid(
            f"expected at most {room}, as the model has {limit} positions and the prompt {len(prompt)} tokens, got "
            f"{fields.most}",
            MAX_NEW,
        )
    return fields.most or min(DEFAULT_NEW, room)
