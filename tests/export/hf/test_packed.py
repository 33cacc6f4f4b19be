"""Towers whose patches of all pictures are one sequence are called with pictures of one size."""

import numpy as np
import pytest
import torch
import transformers

from export.hf import inputs
from export.hf.description import block_of
from export.hf.packed.positions import check_positions
from export.hf.packed.tower import check_vectors, packed_tower
from export.hf.pretrained import ModelRefused, load
from export.hf.wrapper import Wrapper
from tests.support.families import save
from tests.support.readers import READERS

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # those of transformers
ROWS, COLUMNS, SIDE, WINDOW = 4, 6, 2, 4  # patches, pixels of a patch's side, patches of a window's side
SHAPE = (3, ROWS * SIDE, COLUMNS * SIDE)
PICTURES = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def saved(once):
    """The folder of a small Qwen2.5-VL, whose first layer has windows and whose second has none."""
    return once("qwen 2.5 vl of packed", lambda folder: save(READERS["qwen 2.5 vl"].family, folder))


@pytest.fixture
def tower(saved):
    return load(saved, part="visual")


def blocks(pictures, groups):
    """The patches of pictures as Qwen2-VL's processor makes them, written out by its documentation."""
    patches = []
    for picture in pictures:
        for row, column in groups:
            for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
                top, left = (2 * row + i) * SIDE, (2 * column + j) * SIDE
                patch = picture[:, top : top + SIDE, left : left + SIDE]
                patches.append(torch.stack([patch, patch], dim=1).flatten())
    return torch.stack(patches)


GROUPS = [(row, column) for row in range(ROWS // 2) for column in range(COLUMNS // 2)]


def test_the_vectors_are_those_of_the_patches_of_each_picture(saved, tower):
    """Also where the last window is narrower than the others."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(saved, attn_implementation="eager").eval()
    grid = torch.tensor([[1, ROWS, COLUMNS]] * len(PICTURES))
    with torch.no_grad():
        expected = model.model.visual(blocks(PICTURES, GROUPS), grid_thw=grid).pooler_output
        actual = tower.model(PICTURES).pooler_output
    torch.testing.assert_close(actual.flatten(0, 1), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_patches_are_in_the_order_of_rows_and_attend_within_their_windows(tower):
    with torch.no_grad():
        weights = Wrapper(tower.model).eval()(pixel_values=PICTURES).weights.numpy()
    assert weights.shape == (2, len(PICTURES), 4, ROWS * COLUMNS, ROWS * COLUMNS)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-6)
    window = np.array([row // WINDOW * COLUMNS + column // WINDOW for row in range(ROWS) for column in range(COLUMNS)])
    is_within = window[:, None] == window
    assert (weights[0][..., is_within] > 0).all()
    assert not weights[0][..., ~is_within].any()
    assert (weights[1] > 0).all()


def test_a_picture_has_the_same_numbers_alone(tower):
    wrapper = Wrapper(tower.model).eval()
    with torch.no_grad():
        together, alone = vars(wrapper(pixel_values=PICTURES)), vars(wrapper(pixel_values=PICTURES[1:2]))
    for name in ("weights", "hidden_states"):
        torch.testing.assert_close(together[name][:, 1], alone[name][:, 0], rtol=0, atol=1e-5)


def test_sides_that_are_no_multiples_of_a_group_of_patches_are_refused(saved, monkeypatch):
    with pytest.raises(ModelRefused, match="the sides of its pictures are multiples of 4 pixels"):
        block_of(load(saved, part="visual", shapes={"pixel_values": (3, 10, 12)}), "mine")
    monkeypatch.setitem(inputs.EXAMPLES, "pixel_values", ((3, 18, 16), (3, 16, 24)))
    pretrained = load(saved, part="visual")
    pretrained.model.config.image_size = 18
    with pytest.raises(ModelRefused, match=r"multiple of 4, .*; --input pixel_values=3,16,24 gives the shape"):
        block_of(pretrained, "mine")


def test_a_whole_that_does_more_with_the_vectors_is_refused(saved):
    whole = load(saved).model
    tower = packed_tower(whole)
    features = whole.get_image_features

    def doubled(*arguments, **options):
        result = features(*arguments, **options)
        result.pooler_output = [2 * vectors for vectors in result.pooler_output]
        return result

    with torch.no_grad():
        check_vectors(whole, tower, SHAPE)
        whole.get_image_features = doubled
        with pytest.raises(ValueError, match="changes the vectors of its tower"):
            check_vectors(whole, tower, SHAPE)


def test_a_whole_with_other_positions_is_refused(saved):
    whole = load(saved).model
    check_positions(whole, packed_tower(whole), SHAPE)
    others = whole.model.get_rope_index
    whole.model.get_rope_index = lambda *arguments, **options: (others(*arguments, **options)[0] + 1, None)
    with pytest.raises(ValueError, match="positions of another kind"):
        check_positions(whole, packed_tower(whole), SHAPE)
