"""Loops over pictures in the code of transformers, which a graph cannot repeat: it has no number of pictures."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _All:
    """The number of pictures, which a list has in place of those of each text."""

    def item(self) -> "_All":
        return self


_ALL = _All()


class AllAtOnce(TorchFunctionMode):
    """A context in which a loop over the pictures of [pictures, tokens, width] takes all at once, as one picture.

    Nor can a graph leave out pictures that are all zeros, which are the padding of texts with fewer of them (Idefics),
    or tokens of padding (Gemma 4): here every picture is one of a text, and all have one size.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.__len__, Tensor.unbind) and args[0].ndim == 3 and args[0].is_floating_point():
            return 1 if func is Tensor.__len__ else (args[0].flatten(0, 1),)
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor) and args[1].dtype == torch.bool:
            return args[0]
        if func in (Tensor.tolist, Tensor.unbind) and not args[0].is_floating_point():
            return [_ALL]
        if func in (Tensor.split, torch.split) and args[1] == [_ALL]:
            return (args[0],)
        return func(*args, **(kwargs or {}))
