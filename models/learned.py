"""Weights of learned blocks: given, or random from a fixed seed; and the inputs that replace them for one request."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from models.block import Input

SEED = 0
LARGE = 1_000_000  # numbers in a module, above which a request cannot replace them
State = Mapping[str, Tensor]


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    """The weights of ``module`` by name, for the reference."""
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def replaceable(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A ``forward`` whose calls can replace learned tensors: ``q_proj_weight=x`` stands for ``q_proj.weight``."""

    @wraps(forward)
    def call(module: nn.Module, *arguments: Any, **inputs: Any) -> Any:
        names = {_input_name(name): name for name, _ in module.named_parameters()}
        given = {names[key]: inputs.pop(key) for key in names.keys() & inputs.keys()}
        return functional_call(module, given, arguments, inputs) if given else forward(module, *arguments, **inputs)

    return call


def replacements(make: Callable[[], nn.Module]) -> dict[str, Input]:
    """The inputs that replace the learned tensors of ``make()``, in their shapes; empty for a ``LARGE`` module."""
    with torch.device("meta"):
        state = make().state_dict()
    if sum(tensor.numel() for tensor in state.values()) > LARGE:
        return {}
    return {
        _input_name(name): Input(
            tuple(tensor.shape),
            "Replaces a learned matrix in this request, [out, in] as in torch."
            if tensor.ndim > 1
            else "Replaces a learned bias in this request.",
            learned=name,
        )
        for name, tensor in state.items()
    }


def replaced(
    module: nn.Module, inputs: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The weights of ``module``, some replaced by ``inputs``, and the other inputs; for the reference."""
    state = arrays(module)
    names = {_input_name(name): name for name in state}
    given = {names[key]: array for key, array in inputs.items() if key in names}
    return state | given, {key: array for key, array in inputs.items() if key not in names}


def _input_name(name: str) -> str:
    """The name of the input for the tensor ``name`` of a state dict, which is that of torch's functions."""
    return name.replace(".", "_")


def demonstration(seed: int) -> str:
    """The name of weights drawn from ``seed`` in the metadata and the output of export."""
    return f"random demonstration weights, seed {seed}"


def weighted(make: Callable[[], nn.Module], state: State | None, seed: int = SEED) -> Callable[[], nn.Module]:
    """A function that builds ``make()`` with the weights ``state``, or with torch's initial weights from ``seed``.

    That function raises torch's RuntimeError if names or shapes in ``state`` differ from the module's.
    """

    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = make()
            if state is not None:
                module.load_state_dict(state)
                return module
            for name, parameter in module.named_parameters():
                if name.endswith("bias"):  # torch sets some to zero, so that a test would not notice a lost bias
                    nn.init.normal_(parameter, std=0.1)
            return module

    return build
