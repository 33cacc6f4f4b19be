"""A model of transformers computed in float64 throughout, which is the reference of an export."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from export.hf.pretrained import ModelRefused, reason_of
from export.hf.wrapper import Wrapper
from export.verification.budget import JITTER
from export.verification.sessions import Arrays

MAX_COPIED = 300_000_000  # learned numbers
ROWS = 16  # torch sums the products of fewer in a more exact order
FACTORS = {nn.functional.linear: 0, torch.addmm: 1}  # the argument that has the rows


class _NoFloat32(TorchFunctionMode):
    """Replaces float32 by float64 in every call: norms, rotary positions and softmax are computed in float32 in a model
    of any type, so ``model.double()`` alone would round there."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        function = torch.Tensor.double if func is torch.Tensor.float else func
        return function(*map(_doubled, args), **{name: _doubled(value) for name, value in (kwargs or {}).items()})


def _doubled(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


class _ManyRows(TorchFunctionMode):
    """Multiplies a weight with at least ``ROWS`` rows: torch's error of a single row is up to 3 times smaller than that
    of the same row among others, and ONNX Runtime's is not."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        at = FACTORS.get(func)
        if at is None or (at and args[0].ndim > 1):  # torch.addmm may add a number to each product
            return func(*args, **(kwargs or {}))
        *shape, width = args[at].shape
        count = prod(shape)
        rows = args[at].reshape(count, width).repeat(ceil(ROWS / max(count, 1)), 1)
        product = func(*args[:at], rows, *args[at + 1 :], **(kwargs or {}))
        return product[:count].reshape(*shape, product.shape[-1])


@contextmanager
def in_float64() -> Iterator[None]:
    """A context in which float64 replaces float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _NoFloat32():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _widened(model: nn.Module) -> Iterator[None]:
    """A context in which each module of ``model`` has its own tensors in float64 while it is called."""

    def widen(module: nn.Module, _: Any) -> None:
        for name, (tensors, tensor) in own[module].items():
            tensors[name] = _like(tensor, tensor.detach().double())

    def narrow(module: nn.Module, *_: Any) -> None:
        for name, (tensors, tensor) in own[module].items():
            tensors[name] = tensor

    own = {module: _floats(module) for module in model.modules()}
    hooks = [module.register_forward_pre_hook(widen) for module in own if own[module]]
    hooks += [module.register_forward_hook(narrow, always_call=True) for module in own if own[module]]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _floats(module: nn.Module) -> dict[str, tuple[dict[str, Any], Tensor]]:
    """The tensors in float32 of ``module`` without those of its modules, and where they are, by name."""
    return {
        name: (tensors, tensor)
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None and tensor.dtype == torch.float32
    }


def _like(tensor: Tensor, wide: Tensor) -> Tensor:
    return nn.Parameter(wide, requires_grad=False) if isinstance(tensor, nn.Parameter) else wide


class Original:
    """The model as transformers computes it: in float32, and in float64.

    A model of up to ``MAX_COPIED`` numbers is copied for float64. In a larger one a module is converted while it runs.
    """

    def __init__(self, wrapper: Wrapper) -> None:
        self.wrapper = wrapper

    def default(self, name: str, value: np.ndarray) -> None:
        """Call the model with ``value`` whenever the input ``name`` is not given."""
        for wrapper in {self.wrapper, self._wide}:
            wrapper.defaults[name] = torch.from_numpy(value)

    @cached_property
    def _wide(self) -> Wrapper:
        is_large = sum(x.numel() for x in self.wrapper.parameters()) > MAX_COPIED
        return self.wrapper if is_large else deepcopy(self.wrapper).double()

    def __call__(self, inputs: Arrays, dtype: Any, draw: int = 0) -> dict[str, np.ndarray]:
        """Every output for ``inputs``, computed in numpy's ``dtype``: float32 or float64.

        In float32, a weight is multiplied with at least ``ROWS`` rows: the error of a single one would be too small for
        a budget.

        In every ``draw`` but 0, float inputs and embeddings of tokens are changed at random, by at most a thousandth:
        such a draw has other rounding errors, and is as sensitive to them. A draw is the same in both types.

        Raises:
            ModelRefused: the model cannot be called with these inputs.
        """
        wrapper = self.wrapper if dtype == np.float32 else self._wide
        noise = _Noise(draw)
        tensors = {name: noise(torch.from_numpy(array)) for name, array in inputs.items()}
        tables = [part for part in wrapper.modules() if isinstance(part, nn.Embedding)]
        hooks = [table.register_forward_hook(lambda *called: noise(called[-1])) for table in tables] if draw else []
        try:
            with torch.inference_mode():
                if dtype == np.float32:
                    with _ManyRows():
                        return _arrays(wrapper(**tensors))
                with in_float64(), _widened(wrapper) if wrapper is self.wrapper else nullcontext():
                    wide = {name: x.double() if x.is_floating_point() else x for name, x in tensors.items()}
                    return _arrays(wrapper(**wide))
        except ModelRefused:
            raise
        except Exception as error:  # transformers raises errors of many types
            given = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
            kind = type(wrapper.model).__name__
            raise ModelRefused(f"{kind} cannot be called with {given}: {reason_of(error)}") from None
        finally:
            for hook in hooks:
                hook.remove()


class _Noise:
    """Changes the float tensors of one call of a model at random; calls with the same ``draw`` are changed equally."""

    def __init__(self, draw: int) -> None:
        self._draw = draw
        self._rng = np.random.default_rng(draw)

    def __call__(self, x: Tensor) -> Tensor:
        if not self._draw or not x.is_floating_point():
            return x
        change = 1 + JITTER * self._rng.uniform(-1, 1, tuple(x.shape))
        return x * torch.from_numpy(change.astype(np.float32)).to(x.dtype)


def _arrays(result: Any) -> dict[str, np.ndarray]:
    outputs: dict[str, Tensor] = vars(result)
    return {name: tensor.numpy() for name, tensor in outputs.items()}
