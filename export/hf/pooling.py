"""The pooling of a sentence-transformers directory: how hidden states become the embedding of a text.

``modules.json`` lists what follows the model: a pooling, and possibly a division by the length.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MODULES = "modules.json"
MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
EPS = 1e-12  # minimum length of an embedding, as in torch.nn.functional.normalize


class UnknownPooling(Exception):
    """Export does not support the directory's pooling; the message names it."""


@dataclass(frozen=True)
class Pooling:
    """One vector for a text from its tokens' hidden states: their mean or maximum, or the first."""

    mode: str  # mean, cls or max
    normalize: bool

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """[batch, n, d] and the mask of real tokens, [batch, n], to [batch, d]."""
        if self.mode == "cls":
            pooled = hidden[:, 0]
        elif mask is None:
            pooled = hidden.mean(1) if self.mode == "mean" else hidden.amax(1)
        elif self.mode == "mean":
            # A product of matrices sums hundreds of tokens more precisely than ONNX Runtime's ReduceSum, one by one.
            real = mask[:, None].to(hidden.dtype)
            pooled = ((real @ hidden) / real.sum(-1, keepdim=True).clamp(min=1))[:, 0]
        else:
            pooled = torch.where(mask[..., None] == 0, torch.finfo(hidden.dtype).min, hidden).amax(1)
        return torch.nn.functional.normalize(pooled, dim=-1, eps=EPS) if self.normalize else pooled

    def __str__(self) -> str:
        names = {"mean": "Mean of the real tokens' hidden states", "cls": "Hidden state of the first token"}
        return names.get(self.mode, "Maximum of the real tokens' hidden states") + ", of length 1" * self.normalize


def pooling_of(folder: Path) -> Pooling | None:
    """The pooling of the directory; None if it is not one of sentence-transformers.

    Raises:
        UnknownPooling: it has other modules, or another mode.
    """
    try:
        modules = json.loads((folder / MODULES).read_text())
        kinds = [module["type"].rpartition(".")[2] for module in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise UnknownPooling(f"its modules are {', '.join(kinds)}")
        config = json.loads((folder / modules[1]["path"] / "config.json").read_text())
    except FileNotFoundError as error:
        if error.filename == str(folder / MODULES):
            return None
        raise UnknownPooling(f"{error.filename} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownPooling(f"{MODULES} cannot be read: {error!r}") from None
    return Pooling(_mode(config), normalize=len(kinds) == 3)


def _mode(config: dict[str, Any]) -> str:
    if isinstance(mode := config.get("pooling_mode"), str):  # as newer versions write it
        modes = [mode] if mode in MODES.values() else []
    else:
        chosen = [name for name, value in config.items() if name.startswith("pooling_mode") and value is True]
        modes = [MODES[name] for name in chosen] if all(name in MODES for name in chosen) else []
    if len(modes) != 1:
        raise UnknownPooling(f"its pooling is {json.dumps(config)}")
    return modes[0]
