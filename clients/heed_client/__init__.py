"""A client of Heed, which serves attention: the output, and the weights.

from heed_client import Client

with Client("http://127.0.0.1:8000") as heed:
    answer = heed.attend("scaled_dot_product", query=query, key=key, value=value, is_causal=True)
    answer.output, answer.weights
"""

from heed_client.answer import Answer, Quantized, Tokens, TopK
from heed_client.async_client import AsyncClient
from heed_client.block import Block, BlockSummary, Parameter, Tensor
from heed_client.client import Client
from heed_client.connection import VERSION as __version__
from heed_client.errors import (
    BadRequest,
    Conflict,
    DeadlineExceeded,
    HeedError,
    NotFound,
    Problem,
    ServerError,
    TimedOut,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from heed_client.generation.answer import GeneratedToken
from heed_client.generation.generation import AsyncGeneration, Generation
from heed_client.interpretation.answers import Lens, Sweep
from heed_client.memories.memory import AsyncMemory, Memory

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncGeneration",
    "AsyncMemory",
    "BadRequest",
    "Block",
    "BlockSummary",
    "Client",
    "Conflict",
    "DeadlineExceeded",
    "GeneratedToken",
    "Generation",
    "HeedError",
    "Lens",
    "Memory",
    "NotFound",
    "Parameter",
    "Problem",
    "Quantized",
    "ServerError",
    "Sweep",
    "Tensor",
    "TimedOut",
    "Tokens",
    "TopK",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "__version__",
]
