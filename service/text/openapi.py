"""The operations that take texts in the OpenAPI document, for each model with a tokenizer."""

from typing import Annotated, Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, create_model

from service.inference.source import InputSource
from service.model.model import Model
from service.native.openapi import Absent, Integers, answer_fields, choices_of, model_class, operation, problems
from service.native.text_schemas import EXAMPLE, NextToken, Texts, Tokens
from service.tokens.next_tokens import FIELD as NEXT_TOKENS
from service.tokens.next_tokens import MAX_COUNT

STATUSES = {400, 404, 413, 415, 422, 500, 503}


class TextFields(BaseModel, extra="forbid"):
    """The texts of a request, and how they become tokens."""

    text: Texts | None = Field(None, description="a text, or a list of texts, which are padded to the longest")
    text_pair: Texts | None = Field(None, description="the second text of each pair")
    text_target: Texts | None = Field(
        None, description="text of the decoder, if the model has an encoder and a decoder"
    )
    truncation: bool | None = Field(
        None, description="truncate texts that are too long; null: as configured in tokenizer.json"
    )
    add_special_tokens: bool | None = Field(True, description="add the tokens that begin, separate and end texts")


class AllTokens(Tokens):
    """The same, with all that is known of the tokens."""

    model: str
    token_type_ids: Integers | Absent = None
    sequence_ids: list[Any] | Absent = Field(None, description="0 or 1 in a pair, null for special tokens and padding")
    target_sequence_ids: list[Any] | Absent = None


def routes(blocks: dict[str, Model], source: InputSource[Any]) -> list[APIRoute]:
    """Two documented routes for each of ``blocks`` that has a tokenizer."""
    models = [model for model in blocks.values() if model.tokenizer]
    return [route for model in models for route in (_run(model, source), _tokenize(model))]


def _run(model: Model, source: InputSource[Any]) -> APIRoute:
    inputs: list[tuple[Any, Any]] = [
        (Any, Field(None, alias=name, description="see the operation without text"))
        for name in model.inputs
        if not name.endswith(("input_ids", "attention_mask", "token_type_ids"))
    ]
    answered = answer_fields(model, source)
    if model.signature.predicts_tokens:
        count = Annotated[int, Field(ge=1, le=MAX_COUNT)] | None
        description = "number of most probable next tokens to return for each text"
        inputs.append((count, Field(None, alias=NEXT_TOKENS, description=description)))
        description = "largest probability first; of several texts a list for each"
        tokens = list[NextToken] | list[list[NextToken]] | Absent
        answered.append((tokens, Field(None, alias=NEXT_TOKENS, description=description)))
    choices = create_model("TextChoices", __base__=(choices_of(model, source.fields_for(model)), TextFields))
    body = model_class(f"{model.name}_text_request", choices, inputs)
    return operation(
        f"/v1/text/{model.name}",
        body,
        _example(model),
        tags=["text"],
        summary=f"Run {model.name} on texts",
        description="The model's tokenizer makes token ids of the texts. The answer has the tokens beside the outputs.",
        operation_id=f"run_text_{model.name}",
        response_model=model_class(f"{model.name}_text_answer", Tokens, answered),
        response_description="The tokens and the requested outputs",
        responses=problems(*sorted(STATUSES | {503, 504, 507})),
    )


def _tokenize(model: Model) -> APIRoute:
    return operation(
        f"/v1/tokenize/{model.name}",
        TextFields,
        _example(model),
        tags=["text"],
        summary=f"Tokenize texts as {model.name} does",
        description="The model is not run.",
        operation_id=f"tokenize_{model.name}",
        response_model=AllTokens,
        response_description="The tokens",
        responses=problems(*sorted(STATUSES)),
    )


def _example(model: Model) -> dict[str, Any]:
    names = {"input_ids": "text", "decoder_input_ids": "text_target"}
    return {field: EXAMPLE for name, field in names.items() if name in model.inputs}
