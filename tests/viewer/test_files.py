"""Tensors in files: numpy's and safetensors' own writers make them; bad ones are refused in one sentence."""

import io
import json
import re
import zipfile

import numpy as np
import pytest
from playwright.sync_api import expect
from safetensors.numpy import save_file

from tests.viewer.pages import attend, choose, drag, expect_row

BLOCK = "model=scaled_dot_product&view=head&query=1"
RNG = np.random.default_rng(3)
QUERY, KEY, VALUE = (RNG.standard_normal(shape) for shape in ((3, 4), (5, 4), (5, 2)))
TENSORS = {"query": QUERY, "key": KEY, "value": VALUE}
WEIGHTS = attend(QUERY, KEY)[1]


def saved(folder, **arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return [folder / f"{name}.npy" for name in arrays]


@pytest.mark.parametrize(
    ("names", "asked", "dtype"),
    [
        (["query", "key", "value"], [], "float16"),
        (["Q", "K", "V"], [], "float32"),
        (["my_query", "my_key", "my_value"], ["query", "key", "value"], "float64"),
    ],
)
def test_npy_files(open_page, tmp_path, names, asked, dtype):
    page = open_page(BLOCK)
    arrays = [array.astype(dtype) for array in TENSORS.values()]
    choose(page, *saved(tmp_path, **dict(zip(names, arrays, strict=True))))
    for name in asked:
        page.get_by_role("combobox", name=f"take my_{name} as").select_option(name)
    expect(page.get_by_role("combobox", name=re.compile("^take "))).to_have_count(0)
    expect(page.get_by_role("list", name="given tensors")).to_contain_text("value 1 × 1 × 5 × 2")
    expect_row(page, attend(arrays[0], arrays[1])[1])


@pytest.mark.parametrize(("save", "masked"), [(np.savez, 2), (np.savez_compressed, 0)])
def test_npz_with_a_mask_and_lengths(open_page, tmp_path, save, masked):
    page = open_page(BLOCK)
    mask = np.tile(np.arange(5) != masked, (3, 1))
    save(tmp_path / "all.npz", **TENSORS, attn_mask=mask, nonpad_kv_seqlen=np.array([4], np.int32))
    choose(page, tmp_path / "all.npz")
    seen = [place for place in range(4) if place != masked]
    weights = np.zeros(5)
    weights[seen] = attend(QUERY, KEY[seen])[1]
    expect_row(page, weights)


def test_safetensors_and_names_that_the_model_has_not(open_page, tmp_path):
    tensors = {"queries": QUERY.astype(np.float32), "key": KEY.astype(np.float16), "value": VALUE.astype(np.float32)}
    save_file(tensors, tmp_path / "block.safetensors", metadata={"format": "pt"})
    page = open_page(BLOCK)
    choose(page, tmp_path / "block.safetensors")
    page.get_by_role("combobox", name="take queries as").select_option("query")
    expect_row(page, attend(tensors["queries"], tensors["key"])[1])


def test_files_are_dropped_on_the_page(open_page):
    page = open_page(BLOCK)
    expect(page.locator(".selection li").first).to_be_visible()
    text = json.dumps({"query": QUERY.tolist(), "key": KEY.tolist()}).encode()
    drag(page, ["dragenter"], "request.json", text)
    expect(page.get_by_text("Drop tensors")).to_be_visible()
    drag(page, ["drop"], "request.json", text)
    expect(page.get_by_text("Drop tensors")).to_have_count(0)
    expect_row(page, WEIGHTS)


def packed(save, *values, **arrays) -> bytes:
    """The bytes that numpy writes."""
    save(file := io.BytesIO(), *values, **arrays)
    return file.getvalue()


def npy(array) -> bytes:
    return packed(np.save, array)


def replaced(content: bytes, start: int, new: bytes) -> bytes:
    return content[:start] + new + content[start + len(new) :]


def lying_npz() -> bytes:
    """Its directory says that the array has 100 bytes."""
    content = packed(np.savez_compressed, query=np.zeros((64, 64)))
    return replaced(content, content.rindex(b"PK\x01\x02") + 24, (100).to_bytes(4, "little"))


def bzip2() -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("query.npy", b"x" * 100)
    return file.getvalue()


def safetensors(header, content=b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps({"query": header}).encode()
    return len(text).to_bytes(8, "little") + text + content


TEXT = b"hello, world, this is a text"
FP32 = {"dtype": "F32", "data_offsets": [0, 16]}
BAD = {
    "query.npy": {
        npy(QUERY)[:-8]: "shape [3,4] needs 96 bytes of data, got 88",
        npy(QUERY)[:40]: "ends within its header",
        npy(np.asfortranarray(QUERY)): "has Fortran order",
        npy(QUERY.astype(">f4")): "is big-endian (>f4)",
        npy(QUERY.astype(np.uint8)): "has dtype |u1",
        npy(QUERY.astype(np.float16).view("V2")): "has dtype |V2 (bfloat16?)",
        npy(np.array([{"a": 1}], object)): "has dtype |O",
        TEXT: "is not a .npy file",
    },
    "attn_mask.npy": {npy(np.ones((2, 2), np.int64)): "attn_mask: expected float32 or bool, got int64"},
    "all.npz": {
        lying_npz(): "query.npy: declares 100 bytes, but has more",
        packed(np.savez, query=QUERY)[:-30]: "is not a .npz file, or is truncated",
        replaced(packed(np.savez_compressed, query=QUERY), 60, b"\xff" * 30): "query.npy: cannot be decompressed",
        bzip2(): "query.npy: has an unsupported compression method",
        TEXT: "is not a .npz file, or is truncated",
    },
    "all.safetensors": {
        (2**40).to_bytes(8, "little") + b"{}": "declares a header of 1099511627776 bytes, which is past the end",
        safetensors(b"{nothing"): "is not JSON",
        safetensors({"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}, b"\0\0"): "query has dtype bfloat16",
        safetensors({**FP32, "shape": [4]}, bytes(8)): "query ends at byte",
        safetensors({**FP32, "shape": [3]}, bytes(16)): "query: shape [3] needs 12 bytes of data, got 16",
        safetensors({**FP32, "shape": [-1], "data_offsets": "x"}): "query has no shape and data_offsets",
    },
    "request.json": {
        TEXT: "is not JSON",
        b'{"query": [[1, 2], [3], [4, 5, 6]]}': "query: rows of different lengths",
        b'{"query": {"shape": [2, 2], "data": [1, 2, 3]}}': "query: expected a shape and a flat list",
        b'{"query": {"shape": [1], "dtype": "float32", "base64": "AAA="}}': "query: shape [1] needs 4 bytes",
        b'{"nonpad_kv_seqlen": [1.5]}': "nonpad_kv_seqlen: expected whole numbers",
        b"7": "expected a list or an object",
    },
    "picture.png": {TEXT: "expected a file that ends with .npy, .npz, .safetensors, .json"},
}


def test_bad_files_are_refused_in_one_sentence(open_page, tmp_path):
    page = open_page(BLOCK)

    def refused(name, message):
        choose(page, tmp_path / name)
        expect(page.get_by_role("alert")).to_contain_text(message)

    for name, cases in BAD.items():
        for content, message in cases.items():
            (tmp_path / name).write_bytes(content)
            refused(name, message)
    with (tmp_path / "query.npy").open("wb") as file:
        file.truncate(10**9)
    refused("query.npy", "has 954 MiB; the limit is 256 MiB")
    np.savez_compressed(tmp_path / "all.npz", query=np.zeros(2**25 + 1, np.float64))
    refused("all.npz", "has more than 256 MiB after decompression")
    choose(page, *saved(tmp_path, query=QUERY))
    expect(page.get_by_role("region", name="input")).to_contain_text("Missing: key.")
    choose(page, *saved(tmp_path, key=KEY))
    expect_row(page, WEIGHTS)
    expect(page.get_by_role("alert")).to_have_count(0)
