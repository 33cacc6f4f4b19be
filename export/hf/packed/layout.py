"""The values that a tower of packed patches computes from the size of a picture, for any number of such pictures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FORMS = ("patches width", "patches channels side side", "1 patches channels side side")  # of a tower's input
COUNTS = (1, 2, 3)  # numbers of pictures in the calls that observe a tower


@dataclass(frozen=True)
class Repeated:
    """A tensor of ``prefix``, then ``body`` for each picture, with ``step`` more each time."""

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
    """The results of a tower's functions of the grid of one picture, in the order of their calls."""

    results: Mapping[str, list[Any]]
    order: Tensor  # of the patches in the input, each by its place in the rows of the picture
    inner: Tensor  # of the patches in the layers, where those of a window are consecutive
    form: str  # of the input, one of FORMS
    without: frozenset[str]  # fields of the result that are not of the pictures


def repeated(*answers: Any) -> Any:
    """The result of a function of the grid for any number of pictures, derived from its results for ``COUNTS``."""
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
