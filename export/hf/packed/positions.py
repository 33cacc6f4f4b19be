"""Positions of the tokens of a text with pictures in three dimensions: time, row and column (Wang et al., 2024).

A token of text has the same position in all three, one more than the largest before it. The tokens of a picture add
their row and column to that position; padding has 0.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from export.hf.packed.tower import grid_of, unit_of


def positions_of(
    tower: Any,
    shape: tuple[int, ...],
    token: int,
    input_ids: Tensor,
    attention_mask: Tensor,
    pictures_before: Tensor | None = None,
) -> Tensor:
    """The positions, [3, batch, m], of texts in which ``token`` stands for a group of patches of a picture.

    Each picture has as many of these tokens as ``tower`` makes of one of ``shape``, [channels, height, width].
    ``attention_mask`` [batch, n + m] includes n earlier tokens, with ``pictures_before`` [batch] pictures among them.
    """
    rows, columns = _groups(tower, shape)
    is_real = attention_mask[:, attention_mask.shape[1] - input_ids.shape[1] :].to(torch.bool)
    is_group = (input_ids == token) & is_real
    is_text = is_real & ~is_group
    groups = is_group.cumsum(-1) - is_group.to(torch.int64)  # before each token
    texts = is_text.cumsum(-1) - is_text.to(torch.int64)
    pictures, place = groups // (rows * columns), groups % (rows * columns)
    start = texts + pictures * max(rows, columns)
    if pictures_before is not None:
        tokens_before = attention_mask.sum(-1) - is_real.sum(-1)
        start = start + (tokens_before + pictures_before * (max(rows, columns) - rows * columns))[:, None]
    none = torch.zeros_like(place)
    of_group = torch.stack([none, place // columns, place % columns])
    return torch.where(is_real, start + torch.where(is_group, of_group, none), none)


def check_positions(model: Any, tower: PreTrainedModel, shape: tuple[int, ...]) -> None:
    """Compare ``positions_of`` with what transformers computes for texts with one and two pictures.

    Raises:
        ValueError: they differ, or the model has no positions of this kind.
    """
    if not hasattr(model.base_model, "get_rope_index"):
        raise ValueError("it gives the tokens of pictures positions of another kind")
    rows, columns = _groups(tower, shape)
    token = model.config.image_token_id
    text, picture = ([0 if token else 1] * 2, [token] * (rows * columns))
    texts = [[*text, *picture, *text, *picture, *text], [*text, *picture, *text]]
    longest = len(texts[0])
    ids = torch.tensor([[*one, *[text[0]] * (longest - len(one))] for one in texts])
    mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in texts])
    theirs, _ = model.base_model.get_rope_index(
        ids,
        image_grid_thw=grid_of(tower, shape, 3),
        attention_mask=mask,
        mm_token_type_ids=(ids == token).to(torch.int32),
    )
    if not torch.equal(positions_of(tower, shape, token, ids, mask), theirs):
        raise ValueError("it gives the tokens of pictures positions of another kind")


def _groups(tower: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows and columns of tokens of a picture."""
    return shape[1] // unit_of(tower), shape[2] // unit_of(tower)
