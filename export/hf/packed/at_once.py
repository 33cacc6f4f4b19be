"""Replace transformers' loops over pictures: a graph cannot repeat them, as its number of pictures is not fixed."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _All:
    """Stands for the number of all pictures, in place of a list of the numbers for each text."""

    def item(self) -> "_All":
        return self


_ALL = _All()


class AllAtOnce(TorchFunctionMode):
    """A context in which a loop over the pictures of [pictures, tokens, width] handles all at once, as one picture.

    Selections by a boolean mask return all rows, since a graph cannot leave out pictures of zeros, which pad texts with
    fewer pictures (Idefics), or padding tokens (Gemma 4). Here every picture belongs to a text, and all have one size.
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
