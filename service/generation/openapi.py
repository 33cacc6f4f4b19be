"""The operation that generates in the OpenAPI document, for each model that can."""

from typing import Annotated, Any, Literal

from fastapi import Body
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, create_model
from starlette.responses import JSONResponse, Response

from service.generation.decoder import Decoder
from service.generation.request import DEFAULT_NEW, MAX_STOPS, inputs_beside_ids
from service.generation.sampling import MAX_SEED
from service.inference.source import FieldDefinitions
from service.interventions.lens.request import TOP_K
from service.interventions.request import FIELD as INTERVENTIONS
from service.interventions.request import MAX_COUNT as MAX_INTERVENTIONS
from service.interventions.schemas import Intervention
from service.native.openapi import Absent, Integers, LargestWeights, Numbers, model_class, operation, problems
from service.native.text_schemas import EXAMPLE, NextToken, Texts, Tokens
from service.selection.options import OPTIONS
from service.tokens.next_tokens import MAX_COUNT
from service.v2.openapi import errors
from service.v2.paths import OF_MODEL, Name

STATUSES = (400, 404, 413, 415, 422, 500, 503, 504, 507)
EVENTS = "An event for each token; the data of each is the answer of generate, with the token's characters as text"
Reason = Literal["length", "stop", "eos"]


class GenerateFields(BaseModel, extra="forbid"):
    """A prompt, and how tokens are chosen and answered; the parameters have the meanings of transformers."""

    text: Texts | None = Field(None, description="the prompt, or a list of prompts; with two stacks the encoder's text")
    text_pair: Texts | None = Field(None, description="the second text of each pair")
    truncation: bool | None = Field(None, description="truncate texts that are too long")
    add_special_tokens: bool | None = Field(True, description="add the tokens that begin, separate and end texts")
    input_ids: Integers | None = Field(None, description="[n] or [batch, n]: token ids in place of text")
    max_new_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description=f"most tokens to generate; null: {DEFAULT_NEW}, or fewer if the model has fewer positions"
    )
    temperature: Annotated[float, Field(ge=0)] | None = Field(
        0, description="divides the logits; 0 takes the most probable token"
    )
    top_k: Annotated[int, Field(ge=0)] | None = Field(0, description="sample from the k most probable tokens; 0 = all")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        1, description="sample from the smallest set of most probable tokens with this total probability"
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        0, description="exclude tokens below this fraction of the largest probability"
    )
    repetition_penalty: Annotated[float, Field(gt=0)] | None = Field(
        1, description="above 1, tokens of the prompt and of the generated text become less probable"
    )
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = Field(
        None, description="the same seed gives the same tokens; null: a new seed for each request"
    )
    stop: str | int | Annotated[list[str | int], Field(max_length=MAX_STOPS)] | None = Field(
        None, description="texts and token ids that end generation; the answer's text ends before a stop text"
    )
    ignore_eos: bool | None = Field(False, description="continue after the model's end tokens")
    stream: bool | None = Field(
        False, description="return text/event-stream: an event token for each token, then done, or error with a problem"
    )
    outputs: list[str] | None = Field(None, description="outputs of each step: weights, hidden_states, entropy, ...")
    next_tokens: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = Field(
        None, description="number of most probable tokens to return at each position"
    )


class TokenLens(BaseModel):
    """What each layer predicts at the place of a token, [layers + 1, lens_top_k], the likeliest first."""

    indices: Integers
    probabilities: Numbers
    tokens: list[list[str | None]] | Absent = Field(None, description="null: the id has no token")


class GeneratedToken(BaseModel, extra="allow"):
    """A token, and where the query that predicted it looked. The requested outputs stand beside these fields."""

    __pydantic_extra__: dict[str, Numbers | LargestWeights]

    id: int
    token: str | None
    text: str = Field(description="the characters that it adds")
    offset: list[int] = Field(description="start and end (exclusive) in text")
    logprob: float = Field(description="log-probability before temperature and the other parameters")
    next_tokens: list[NextToken] | Absent = None
    lens: TokenLens | Absent = Field(None, description="if lens_top_k is given")
    ranks: list[int] | Absent = Field(None, description="[layers + 1]: rank (1 = likeliest); with lens_top_k")


class Usage(BaseModel):
    """Numbers of tokens, of all prompts together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class GenerateAnswer(Tokens):
    """The tokens of the prompt, and those generated; lists of these for a list of prompts."""

    model: str
    text: str | list[str]
    generated: list[GeneratedToken] | list[list[GeneratedToken]]
    finish_reason: Reason | list[Reason]
    usage: Usage


class TritonParameters(BaseModel, extra="allow"):
    """The fields of ``/v1/generate`` but texts and ids, and names of TensorRT-LLM's and vLLM's backends."""

    max_tokens: int | None = Field(None, description="alias of max_new_tokens")
    stop_words: str | list[str] | None = Field(None, description="alias of stop")
    random_seed: int | None = Field(None, description="alias of seed")
    stream: bool | None = Field(None, description="must match the path")


class TritonRequest(TritonParameters):
    """A text to continue. Parameters stand beside it, or in ``parameters``."""

    id: str | None = None
    text_input: str
    parameters: TritonParameters | None = None


class TritonAnswer(BaseModel):
    """The text. An event of a stream has the same fields, with a token's characters; the last says why it ends."""

    id: str | Absent = None
    model_name: str
    model_version: str
    text_output: str
    finish_reason: Reason | Absent = None
    usage: Usage | Absent = None
    generated: list[GeneratedToken] | Absent = Field(None, description="if outputs or next_tokens are requested")
    token: GeneratedToken | Absent = Field(None, description="the same in a stream")


class EventStream(Response):
    media_type = "text/event-stream"


def triton_routes() -> list[APIRoute]:
    """The documented routes of Triton's generate extension."""

    def generate_text(model: Name, body: Annotated[TritonRequest, Body()]) -> None: ...

    def generate_stream(model: Name, body: Annotated[TritonRequest, Body()]) -> None: ...

    return [
        APIRoute(
            f"/v2{OF_MODEL}/{path}",
            endpoint,
            methods=["POST"],
            tags=["Open Inference Protocol"],
            summary=summary,
            description="Triton's generate extension: a text in, a text out.",
            operation_id=endpoint.__name__,
            response_model=answer,
            response_class=answer_class,
            response_description=answer_description,
            responses=errors(400, 404, 500, 503, 504),
            openapi_extra={"requestBody": {"content": {"application/json": {"example": {"text_input": EXAMPLE}}}}},
        )
        for path, endpoint, summary, answer, answer_class, answer_description in (
            ("generate", generate_text, "Continue a text", TritonAnswer, JSONResponse, "The text"),
            ("generate_stream", generate_stream, "Continue a text, as a stream", None, EventStream, EVENTS),
        )
    ]


def route(decoder: Decoder, has_interventions: bool, has_lens: bool, files: FieldDefinitions) -> APIRoute:
    """The documented route of a model, with the fields that it takes; ``files`` are those in place of an input."""
    model = decoder.model
    fields: list[tuple[Any, Any]] = [
        (option.kind.annotation | None, Field(option.default, alias=name, description=option.description))
        for name, option in OPTIONS.items()
    ]
    if decoder.generation.two_stacks:
        fields.append((str | None, Field(None, alias="decoder_text", description="the decoder's prompt")))
        fields.append((Integers | None, Field(None, alias="decoder_input_ids", description="[m]: the same as ids")))
    if tensors := inputs_beside_ids(model):
        fields += [(Any, Field(None, alias=name, description="see the operation without text")) for name in tensors]
        fields += [
            (annotation, Field(None, alias=name, description=field.description))
            for name, (annotation, field) in files.items()
        ]
    if has_interventions:
        fields.append((list[Intervention] | None, Field(None, alias=INTERVENTIONS, max_length=MAX_INTERVENTIONS,
            description="changes of activations, in the prompt and in new tokens")))  # fmt: skip
    if has_lens:
        fields.append((Annotated[int, Field(ge=1, le=MAX_COUNT)] | None, Field(None, alias=TOP_K,
            description="number of predictions of each layer to return for each token")))  # fmt: skip
    choices = create_model("GenerateChoices", __base__=GenerateFields)
    body = model_class(f"{model.name}_generate_request", choices, fields)
    example = {"text": EXAMPLE} if model.tokenizer else {"input_ids": [5, 6, 7]}
    return operation(
        f"/v1/generate/{model.name}",
        body,
        example,
        tags=["text"],
        summary=f"Generate with {model.name}",
        description="Generates tokens after a prompt and returns the attention of each.",
        operation_id=f"generate_{model.name}",
        response_model=GenerateAnswer,
        response_description="The text, and each of its tokens",
        responses=problems(*STATUSES),
    )
