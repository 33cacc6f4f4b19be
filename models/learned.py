"""Weights of learned blocks: drawn from a fixed seed, or given."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

SEED = 0
State = Mapping[str, Tensor]


def weighted(make: Callable[[], nn.Module], state: State | None) -> Callable[[], nn.Module]:
    """How to build ``make()`` with ``state`` as its weights; without one, with torch's initial weights from SEED.

    The build raises RuntimeError, torch's, where names or shapes of ``state`` are not the module's.
    """

    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            module = make()
            if state is not None:
                module.load_state_dict(state)
                return module
            for name, parameter in module.named_parameters():
                if name.endswith("bias"):  # torch starts some at zero, which would hide a lost bias
                    nn.init.normal_(parameter, std=0.1)
            return module

    return build
