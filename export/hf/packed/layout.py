"""What a tower of packed patches computes of the size of a picture, for any number of pictures of that size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FORMS = ("patches width", "patches channels side side", "1 patches channels side side")  # of a tower's input
COUNTS = (1, 2, 3)  # pictures of the calls in which a tower is observed


@dataclass(frozen=True)
class Repeated:
    """A tensor that has ``body`` for each picture behind ``prefix``, with ``step`` more each time."""

    prefix: Tensor
    body: Tensor
    step: int

    @property
    def one(self) -> Tensor:
        """The tensor of one picture."""
        return torch.cat([self.prefix, self.body])

    def __call__(self, count: int) -> Tensor:
        more = (self.step * torch.arange(count)).reshape(-1, *[1] * self.body.ndim).to(self.body.dtype)
        return torch.cat([self.prefix, (self.body + more).flatten(0, 1)])


@dataclass(frozen=True)
class Layout:
    """What a tower computes of the grid of one picture: the results of its functions, in the order of their calls."""

    results: Mapping[str, list[Any]]
    order: Tensor  # of the patches of the input, each by its place in the rows of the picture
    inner: Tensor  # of those in the layers, where windows are put together
    form: str  # of the input, one of FORMS
    without: frozenset[str]  # fields of the result that are not of the pictures


def repeated(*answers: Any) -> Any:
    """What a function of the grid answers for any number of pictures, from its answers for ``COUNTS`` of them."""
    one, two = answers[:2]
    if isinstance(one, tuple):
        return tuple(repeated(*parts) for parts in zip(*answers, strict=True))
    if not isinstance(one, Tensor):
        if any(other != one for other in answers):
            raise ValueError("a function of the grid has another answer for more pictures")
        return one
    begin = 2 * len(one) - len(two)
    prefix, body = one[:begin], one[begin:]
    step = (two[len(one) :] - body).flatten()[0]
    answer = Repeated(prefix, body, int(step))
    if any(not torch.equal(answer(count), seen) for count, seen in zip(COUNTS, answers, strict=True)):
        raise ValueError("a function of the grid has another answer for more pictures")
    return answer
