"""Pictures become the numbers that transformers' image processors, on Pillow, make of them."""

import io
import json

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.auto.image_processing_auto import get_image_processor_class_from_name

from service.base.errors import Invalid
from service.media.image_processor import KINDS, image_processor
from service.media.images import ImageSource
from service.media.picture import Picture
from service.media.preprocessor import preprocessor
from tests.support.media import file_of, files, noise

PROCESSORS = {  # what another than a kind's own settings are
    **{kind: {} for kind, own in KINDS.items() if not own.is_any and not own.pads},
    "CLIP from shortest 30": {"size": {"shortest_edge": 30}},
    "DeiT as CLIP": {"size": {"shortest_edge": 30}, "crop_size": {"height": 20, "width": 28}},
    "ViT not square": {"size": {"height": 20, "width": 28}},
    "ViT by its nearest": {"resample": 0},
    "ViT not rescaled": {"do_rescale": False},
    "ViT not normalized": {"do_normalize": False},
    "Bit larger than the picture": {"do_resize": False, "crop_size": {"height": 50, "width": 50}},
}
BY_ROWS = {  # settings, and rows and columns of patches of a picture that its processor does not change
    "Gemma4": ({"max_soft_tokens": 70}, 21, 30),
    "Siglip2": ({"max_num_patches": 6}, 3, 2),
}
SMALL = {  # the size of a kind, smaller than its own, which takes long
    True: {"size": {"height": 24, "width": 24}},
    False: {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}},
}


def processors(name, tmp_path):
    """Heed's image processor and transformers', of the file that transformers writes."""
    kind = name.split(" ")[0]
    settings = {**SMALL[not KINDS[kind].crops], **PROCESSORS[name]}
    if KINDS[kind].crops and "crop_size" not in settings:
        settings["crop_size"] = {"height": 24, "width": 24}
    reference = get_image_processor_class_from_name(f"{kind}ImageProcessorPil")(**settings)
    reference.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "preprocessor_config.json").read_bytes())
    sides = settings.get("crop_size", settings["size"])
    height, width = sides["height"], sides["width"]
    return image_processor(content, preprocessor(content), 3, height, width), reference


QUICK = ("CLIP", "ViT not square", "Bit larger than the picture")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.extended) for name in PROCESSORS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_the_numbers_are_those_of_transformers(name, tmp_path):
    own, reference = processors(name, tmp_path)
    for file, content in files().items():
        picture = Picture(content, "images")
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
        expected = reference(reference.convert_to_rgb(image), return_tensors="np")["pixel_values"][0]
        actual = own(picture.unpacked(3))
        np.testing.assert_array_equal(actual, expected.astype(np.float32), err_msg=file)


@pytest.mark.extended
@pytest.mark.parametrize("kind", [kind for kind, own in KINDS.items() if own.is_any and kind not in BY_ROWS])
@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_pictures_of_the_models_size_have_the_numbers_of_transformers(kind, tmp_path):
    """Others are resized to it, where transformers' processor keeps their proportions."""
    reference = get_image_processor_class_from_name(f"{kind}ImageProcessorPil")()
    reference.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "preprocessor_config.json").read_bytes())
    height, width = 112, 168  # of sides that its processor does not change
    own = image_processor(content, preprocessor(content), 3, height, width)
    for file, picture in files().items():
        image = Picture(picture, "images").unpacked(3)
        resized = image.resize((width, height), Image.Resampling.BICUBIC)
        patches = reference(resized, return_tensors="np")["pixel_values"]
        assert patches.shape == (96, 3 * 2 * 14 * 14)
        # Patches are in groups of 2 x 2, [rows, columns, channels, frames, height, width] by rows of groups.
        grid = patches.reshape(4, 6, 2, 2, 3, 2, 14, 14)[..., 0, :, :]
        expected = grid.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, height, width)
        np.testing.assert_array_equal(own(image), expected.astype(np.float32), err_msg=file)


@pytest.mark.parametrize("kind", BY_ROWS)
@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_patches_by_rows_have_the_numbers_of_transformers(kind, tmp_path):
    settings, rows, columns = BY_ROWS[kind]
    reference = get_image_processor_class_from_name(f"{kind}ImageProcessorPil")(**settings)
    reference.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "preprocessor_config.json").read_bytes())
    height, width = 16 * rows, 16 * columns
    own = image_processor(content, preprocessor(content), 3, height, width)
    for file, picture in files().items():
        image = Picture(picture, "images").unpacked(3)
        patches = reference(image.resize((width, height), KINDS[kind].resample), return_tensors="np")
        grid = patches["pixel_values"].reshape(rows, columns, 16, 16, 3)  # a patch has rows, columns and channels
        expected = grid.transpose(4, 0, 2, 1, 3).reshape(3, height, width)
        np.testing.assert_array_equal(own(image), expected.astype(np.float32), err_msg=file)


@pytest.mark.parametrize("longest", [28, 60])
@pytest.mark.parametrize("kind", [kind for kind, own in KINDS.items() if own.pads])
@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_padded_pictures_have_the_numbers_and_the_mask_of_transformers(kind, longest, tmp_path):
    size, sides = {"shortest_edge": 24, "longest_edge": longest}, {"height": longest, "width": longest}
    reference = get_image_processor_class_from_name(f"{kind}ImageProcessorPil")(size=size)
    reference.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "preprocessor_config.json").read_bytes())
    own = image_processor(content, preprocessor(content), 3, longest, longest, has_mask=True)
    for file, saved in files().items():
        picture = Picture(saved, "images")
        image = reference.convert_to_rgb(ImageOps.exif_transpose(Image.open(io.BytesIO(saved))))
        expected = reference(image, pad_size=sides, return_tensors="np")
        actual = own(picture.unpacked(3))
        np.testing.assert_array_equal(actual, expected["pixel_values"][0].astype(np.float32), err_msg=file)
        np.testing.assert_array_equal(own.mask(*picture.size), expected["pixel_mask"][0], err_msg=file)


@pytest.mark.parametrize(
    ("settings", "longest"),
    [({"size": 800, "max_size": 1000}, 1000), ({"size": 800}, 1333), ({"size": {"shortest_edge": 800}}, None)],
)
def test_old_files_have_the_longest_edge_beside_the_size(settings, longest):
    content = {"image_processor_type": "DetrFeatureExtractor", "do_normalize": False, **settings}
    assert image_processor(content, preprocessor(content), 3, 1333, 1333, has_mask=True).longest == longest


def test_nothing_is_left_of_a_picture_that_is_too_narrow():
    size = {"shortest_edge": 24, "longest_edge": 28}
    content = {"image_processor_type": "DetrImageProcessor", "do_normalize": False, "size": size}
    own = image_processor(content, preprocessor(content), 3, 28, 28, has_mask=True)
    picture = Picture(file_of(noise(1, 193)), "images")
    with pytest.raises(Invalid, match="images: is too narrow"):
        ImageSource().tensor(picture, own)


def test_padding_needs_a_mask():
    content = {"image_processor_type": "DetrImageProcessor", "do_normalize": False, "size": {"shortest_edge": 24}}
    with pytest.raises(ValueError, match="makes a pixel_mask, which the graph lacks"):
        image_processor(content, preprocessor(content), 3, 24, 24)


@pytest.mark.parametrize(("kind", "step"), [("Gemma3", "do_pan_and_scan"), ("Llava", "do_pad")])
def test_a_step_that_is_not_supported_is_named(kind, step):
    content = {"image_processor_type": f"{kind}ImageProcessor", "size": {"height": 24, "width": 24}, step: True}
    with pytest.raises(ValueError, match=f"has {step}, which is not supported"):
        image_processor(content, preprocessor(content), 3, 24, 24)
