"""A tower that takes the patches of all pictures as one sequence, as Qwen2-VL's, called with pictures of one size.

Beside the patches, such a tower takes ``grid_thw``: the frames, rows and columns of patches of each picture. It
computes positions from it in Python and calls attention for each picture, or window of one, so that torch cannot trace
it. Here it takes [batch, channels, height, width]: the results of functions of the grid for one picture are repeated
for each, and attention is called once, with the pictures as its batch and a mask of the windows. In every output of the
tower, patches are in the order of the rows of the picture.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from export.hf.packed.layout import COUNTS, FORMS, Layout, Repeated, repeated
from export.hf.packed.patches import check_sides, tower_taking

GRID, OF_GRID = "grid_thw", "get_vision_"  # an argument, and the prefix of the functions of it
POSITIONS, WINDOWS = "get_vision_position_ids", "get_vision_window_index"
BOUNDS = "cu_seq_lens_q"  # option of attention: where pictures or windows begin and end
OMITTED = (BOUNDS, "cu_seq_lens_k", "max_length_q", "max_length_k", "attention_mask")
# Model types with a known order of patches, or of the numbers of a patch, that no layer or function shows.
BY_ROWS = ("hunyuan_vl_vision",)
CHANNELS_FIRST = ("ernie4_5_vl_moe_vision",)
OF_PATCHES = ("last_hidden_state", "hidden_states")  # fields in the order of the layers
CLOSE = 1e-4  # largest difference from the tower's own result for several pictures, as a share of the largest number


def packed_tower(model: PreTrainedModel) -> PreTrainedModel | None:
    """``model``, or the model in it, that takes the patches of all pictures as one sequence."""
    return tower_taking(GRID, model)


def unit_of(tower: Any) -> int:
    """The number of pixels that must divide the sides of a picture."""
    return int(tower.config.patch_size * getattr(tower.config, "spatial_merge_size", 1))


def grid_of(tower: Any, shape: Sequence[int], count: int) -> Tensor:
    """Frames, rows and columns of patches, [count, 3], of pictures of ``shape``, [channels, height, width]."""
    side = tower.config.patch_size
    return torch.tensor([[1, shape[1] // side, shape[2] // side]]).expand(count, -1)


def take_pictures(tower: PreTrainedModel) -> None:
    """Let ``tower`` take pictures, [batch, channels, height, width], in place of patches."""
    tower.main_input_name = "pixel_values"
    tower.layouts = {}  # type: ignore[assignment]
    tower.forward = MethodType(_forward, tower)


@dataclass
class _Call:
    """A call of a tower with ``count`` pictures: the replacements of names in its module."""

    layout: Layout
    count: int
    bounds: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # of all pictures, and of one
    weights: list[Tensor] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)

    def names(self) -> dict[str, Any]:
        answers = {name: self._answering(name) for name in self.layout.results}
        return {
            "is_flash_attention_requested": lambda *_: True,  # attention is called with the whole sequence
            "get_max_seqlen": lambda *_, **__: None,
            "ALL_ATTENTION_FUNCTIONS": SimpleNamespace(get_interface=self._attention),
            **answers,
        }

    def _answering(self, name: str) -> Callable[..., Any]:
        def answer(*_: Any, **__: Any) -> Any:
            self.calls[name] += 1
            return self._of_all(self.layout.results[name][self.calls[name] - 1])

        return answer

    def _of_all(self, result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(map(self._of_all, result))
        if not isinstance(result, Repeated):
            return result
        tensor = result(self.count)
        self.bounds.append((tensor, result.one))
        return tensor

    def _attention(self, implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """The attention of that name, called with the pictures as its batch."""
        function, inner = AttentionInterface().get_interface(implementation, default), self.layout.inner  # type: ignore[no-untyped-call]
        by_row = torch.argsort(inner)

        def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, None]:
            bounds = next((one for every, one in self.bounds if every is options.get(BOUNDS)), None)
            mask = None if bounds is None or len(bounds) <= 2 else _windows(bounds, by_row, query.dtype)
            pictures = [
                x[0].reshape(x.shape[1], -1, len(inner), x.shape[-1]).transpose(0, 1)[:, :, by_row]
                for x in (query, key, value)
            ]
            others = {name: option for name, option in options.items() if name not in OMITTED}
            output, weights = function(module, *pictures, mask, **others)
            if weights is not None:
                self.weights.append(weights)
            return output[:, inner].flatten(0, 1)[None], None

        return attend


def _windows(bounds: Tensor, by_row: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask, [1, 1, patches, patches], that limits the attention of each patch to its window."""
    window = (by_row[:, None] >= bounds[1:-1]).sum(1)
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype)
    return torch.where(window[:, None] == window, torch.zeros((), dtype=dtype), lowest)[None, None]


def _forward(
    tower: Any,
    pixel_values: Tensor,
    output_attentions: bool = False,
    output_hidden_states: bool = False,
    return_dict: bool = True,
) -> Any:
    """The tower's result for pictures of one size: each field has the pictures first, then patches or groups of them.

    ``attentions`` are [batch, heads, patches, patches], 0 outside of a window.

    Raises:
        ValueError: the tower's results for several pictures differ from those for each alone.
    """
    assert return_dict
    shape = tuple(pixel_values.shape[1:])
    key = (*shape, torch.get_default_dtype())  # numbers of the grid are in float64 in the reference
    if key not in tower.layouts:
        before = tower.config._attn_implementation
        tower.set_attn_implementation("eager")
        try:
            tower.layouts[key] = _layout_of(tower, shape)
        finally:
            tower.set_attn_implementation(before)
    return _result(tower, tower.layouts[key], pixel_values, output_attentions, output_hidden_states)


def _result(tower: Any, layout: Layout, pictures: Tensor, has_weights: bool, has_hidden_states: bool) -> Any:
    call = _Call(layout, pictures.shape[0])
    result = _called(tower, pictures, layout, call.names(), has_hidden_states)
    fields = {name: _by_picture(name, value, call) for name, value in result.items() if name not in layout.without}
    if has_weights:
        fields["attentions"] = tuple(call.weights)
    return type(result)(**fields)


def _by_picture(name: str, value: Any, call: _Call) -> Any:
    """A field of the result as [pictures, patches or groups, width], with patches by rows; or a tuple of fields."""
    if not isinstance(value, Tensor):
        return tuple(_by_picture(name, one, call) for one in value)
    pictures, inner = value.reshape(call.count, -1, value.shape[-1]), call.layout.inner
    of_patches = name in OF_PATCHES and pictures.shape[1] == len(inner)
    return pictures[:, torch.argsort(inner)] if of_patches else pictures


def _called(
    tower: Any, pictures: Tensor, layout: Layout, names: Mapping[str, Any], has_hidden_states: bool = False
) -> Any:
    """The result of the tower's own call, in which ``names`` replace those of its module."""
    scope = vars(sys.modules[type(tower).__module__])
    before = {name: scope[name] for name in names if name in scope}
    sequence, grid = _sequence(tower, pictures, layout), grid_of(tower, pictures.shape[1:], pictures.shape[0])
    options = {GRID: grid, "output_hidden_states": has_hidden_states, "return_dict": True}
    scope.update({name: names[name] for name in before})
    try:
        return type(tower).forward(tower, sequence, **options)
    finally:
        scope.update(before)


def _sequence(tower: Any, pictures: Tensor, layout: Layout) -> Tensor:
    """The patches of all pictures; a picture is repeated as frames, as in transformers' image processors."""
    side, frames = tower.config.patch_size, getattr(tower.config, "temporal_patch_size", 1)
    rows, columns = pictures.shape[2] // side, pictures.shape[3] // side
    split = pictures.reshape(-1, pictures.shape[1], rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
    patches = split.flatten(1, 2)[:, layout.order].flatten(0, 1)
    if layout.form != FORMS[0]:
        return patches if layout.form == FORMS[1] else patches[None]
    return patches[:, :, None].expand(-1, -1, frames, -1, -1).flatten(1)


def _layout_of(tower: Any, shape: Sequence[int]) -> Layout:
    """The layout of pictures of ``shape``, found by calls of the tower's own code with one and more of them.

    Raises:
        ValueError: a result for several pictures is not that for one, repeated.
    """
    if len(shape) != 3:
        raise ValueError("its pictures have three axes: channels, height and width")
    check_sides(shape[1:], unit_of(tower))
    first = next(part for part in tower.modules() if isinstance(part, nn.Linear | nn.Conv2d | nn.Conv3d))
    if isinstance(first, nn.Linear) and tower.config.model_type not in CHANNELS_FIRST:
        raise ValueError("the order of the numbers of a patch is not known")
    pictures = torch.rand(len(COUNTS), *shape, generator=torch.Generator().manual_seed(0))
    _, rows, columns = grid_of(tower, shape, 1)[0].tolist()
    layout, of_one = _first_observed(tower, pictures[:1], torch.arange(rows * columns))
    if POSITIONS in of_one:
        *_, row, column = of_one[POSITIONS][0].unbind(-1)
        layout = replace(layout, order=row * columns + column)
    elif tower.config.model_type not in BY_ROWS:
        raise ValueError("the order of its patches is not known")
    inner = layout.order
    if WINDOWS in of_one:
        groups = of_one[WINDOWS][0][0]
        inner = inner.reshape(len(groups), -1)[groups].flatten()
    layout = replace(layout, inner=inner)
    observed = [_observed(tower, layout, pictures[:count]) for count in COUNTS]
    every = [results for _, results in observed]
    results = {name: [repeated(*of) for of in zip(*(one[name] for one in every), strict=True)] for name in every[0]}
    theirs = [result for result, _ in observed]
    one, two = ({name: x.numel() for name, x in result.items() if isinstance(x, Tensor)} for result in theirs[:2])
    without = {name for name in one if two[name] != 2 * one[name]}
    layout = replace(layout, results=results, without=frozenset(without))
    _check(tower, layout, pictures, theirs[-1])
    return layout


def check_vectors(model: Any, tower: Any, shape: tuple[int, ...]) -> None:
    """Compare the vectors of groups of patches with those that ``model``, which has ``tower``, takes as tokens.

    Raises:
        ValueError: they differ.
    """
    picture = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0))
    ours, forward = tower(picture).pooler_output, tower.forward
    layout = tower.layouts[*shape, torch.get_default_dtype()]
    del tower.forward
    try:
        sequence = _sequence(tower, picture, layout)
        vectors = model.get_image_features(sequence, image_grid_thw=grid_of(tower, shape, 1), return_dict=True)
    finally:
        tower.forward = forward
    theirs = torch.cat([*vectors.pooler_output])
    if ours is None or ours[0].shape != theirs.shape or not _are_close(ours[0], theirs):
        raise ValueError("it changes the vectors of its tower before it takes them as tokens")


def _first_observed(tower: Any, picture: Tensor, places: Tensor) -> tuple[Layout, dict[str, list[Any]]]:
    """A layout with the form of the input that the tower accepts, and the results of its functions of the grid.

    Raises:
        Exception: that of the first form, if the tower accepts none.
    """
    faults = []
    for form in FORMS:
        layout = Layout({}, places, places, form, frozenset())
        try:
            return layout, _observed(tower, layout, picture)[1]
        except Exception as fault:  # of many types
            faults.append(fault)
    raise faults[0]


def _observed(tower: Any, layout: Layout, pictures: Tensor) -> tuple[Any, dict[str, list[Any]]]:
    """The result of the tower's own code, and the results of its functions of the grid."""
    results: dict[str, list[Any]] = {}

    def recording(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            results.setdefault(name, []).append(answer := function(*arguments, **options))
            return answer

        return call

    scope = vars(sys.modules[type(tower).__module__])
    names: dict[str, Any] = {name: recording(name, scope[name]) for name in scope if name.startswith(OF_GRID)}
    with torch.no_grad():
        return _called(tower, pictures.to(tower.dtype), layout, names), results


def _check(tower: Any, layout: Layout, pictures: Tensor, theirs: Any) -> None:
    """Compare the result with that of the tower's own code for the same pictures."""
    with torch.no_grad():
        ours = _result(tower, layout, pictures.to(tower.dtype), False, False)
    call = _Call(layout, len(pictures))
    for name, value in ours.items():
        if not isinstance(value, Tensor):
            continue
        if not _are_close(value, _by_picture(name, theirs[name], call)):
            raise ValueError(f"{name} of several pictures is not that of each")


def _are_close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= CLOSE * other.abs().max())
