"""Schemas of texts and their tokens, which operations with texts share."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from service.native.openapi import Absent, Integers

EXAMPLE = "The animal didn't cross the street because it was too tired."
Texts = Annotated[str, Field(min_length=1)] | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class Tokens(BaseModel):
    """The tokens of the texts: lists for a single text, lists of lists for several."""

    tokens: list[Any] | Absent = None
    offsets: Integers | Absent = Field(None, description="start and end (exclusive) of each token in its text")
    truncated: bool | list[bool] | Absent = None
    input_ids: Integers | Absent = None
    attention_mask: Integers | Absent = Field(None, description="1 = a token, 0 = padding")
    target_tokens: list[Any] | Absent = Field(None, description="of the text of the decoder, as the following fields")
    target_offsets: Integers | Absent = None
    target_truncated: bool | list[bool] | Absent = None
    decoder_input_ids: Integers | Absent = None
    decoder_attention_mask: Integers | Absent = None


class NextToken(BaseModel):
    """A token that may follow a text."""

    id: int
    token: str | None
    probability: float = Field(ge=0, le=1)
