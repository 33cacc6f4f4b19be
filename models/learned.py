"""Weights of learned blocks: given, or random from a fixed seed."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

SEED = 0
State = Mapping[str, Tensor]


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    """The weights of ``module`` by name, for the reference."""
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def demonstration(seed: int) -> str:
    """What the metadata and the output of export call weights that are drawn from ``seed``."""
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
