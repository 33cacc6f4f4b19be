"""How long a model's inputs may be: by its config, and by the tables from which it reads an embedding per position."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from export.hf.parts import DECODER_IDS, config_of
from export.hf.verification.examples import draw
from export.hf.wrapper import Wrapper
from models.block import Input

SETTINGS = {"n": ("max_position_embeddings",), "m": ("max_target_positions", "max_position_embeddings")}
PROBED = {"batch": 1, "n": 4, "m": 4, "images": 1}
Lookup = tuple[int, int, int]


class _Lookups(TorchFunctionMode):
    """Records each lookup in an embedding: the number of indices, the largest one, and the rows of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.lookups: list[Lookup] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.embedding:  # calls within a call are not seen
            indices, table = args[:2]
            self.lookups.append((indices.numel(), int(indices.max()), len(table)))
        return func(*args, **(kwargs or {}))


def position_limits(wrapper: Wrapper, inputs: Mapping[str, Input]) -> dict[str, int]:
    """The upper limit of each length that has one."""
    symbols = [symbol for symbol in SETTINGS if any(symbol in spec.shape for spec in inputs.values())]
    limits = {symbol: _limit(wrapper, inputs, symbol) for symbol in symbols}
    return {symbol: limit for symbol, limit in limits.items() if limit is not None}


def _limit(wrapper: Wrapper, inputs: Mapping[str, Input], symbol: str) -> int | None:
    config = config_of(wrapper.model, DECODER_IDS if symbol == "m" else "input_ids")
    settings = (getattr(config, name, None) for name in SETTINGS[symbol])
    limits = [value for value in settings if isinstance(value, int) and value > 0][:1]
    length = PROBED[symbol]
    short, long = (_lookups(wrapper, inputs, {**PROBED, symbol: size}) for size in (length, length + 1))
    for (count, largest, rows), (more, next_largest, _) in zip(short, long, strict=False):
        if (count, more, next_largest) == (length, length + 1, largest + 1):  # one row for each position
            limits.append(rows - (largest + 1 - length))
    return min(limits, default=None)


def _lookups(wrapper: Wrapper, inputs: Mapping[str, Input], sizes: Mapping[str, int]) -> list[Lookup]:
    """The lookups of a sequence of equal tokens: no padding, which has no position in some models, and no picture."""
    others = [getattr(config_of(wrapper.model, name), "pad_token_id", None) for name in ("input_ids", DECODER_IDS)]
    others += [spec.placeholder.token for spec in inputs.values() if spec.placeholder]
    token = next(token for token in range(3) if token not in others)
    drawn = {name: torch.from_numpy(x) for name, x in draw(inputs, sizes).items()}
    drawn |= {name: torch.full_like(x, token) for name, x in drawn.items() if name.endswith("input_ids")}
    recorded = _Lookups()
    with torch.inference_mode(), recorded:
        wrapper(**drawn)
    return recorded.lookups
