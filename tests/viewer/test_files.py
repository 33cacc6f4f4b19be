"""Tensors in files: numpy's and safetensors' own writers make them; bad ones are refused in one sentence."""

import json
import zipfile

import numpy as np
from playwright.sync_api import expect
from safetensors.numpy import save_file

from tests.viewer.numbers import attend, expect_row

BLOCK = "model=scaled_dot_product&view=head&query=1"
RNG = np.random.default_rng(3)
QUERY, KEY, VALUE = (RNG.standard_normal(shape) for shape in ((3, 4), (5, 4), (5, 2)))


def choose(page, *paths):
    page.get_by_role("radio", name="file or JSON").check()
    page.get_by_label("files", exact=True).set_input_files(list(paths))


def test_npy_files_of_each_type(open_page, tmp_path):
    page = open_page(BLOCK)
    for dtype, factor in {"float16": 1, "float32": 2, "float64": 3}.items():  # so that each has weights of its own
        query = (factor * QUERY).astype(dtype)
        for name, array in {"query": query, "key": KEY, "value": VALUE}.items():
            np.save(tmp_path / f"{name}.npy", array.astype(dtype))
        choose(page, *(tmp_path / f"{name}.npy" for name in ("query", "key", "value")))
        expect_row(page, attend(query, KEY.astype(dtype))[1])


def test_files_one_after_the_other(open_page, tmp_path):
    np.save(tmp_path / "query.npy", QUERY)
    np.save(tmp_path / "key.npy", KEY)
    page = open_page(BLOCK)
    choose(page, tmp_path / "query.npy")
    expect(page.get_by_role("region", name="input")).to_contain_text("Still needed: key.")
    choose(page, tmp_path / "key.npy")
    expect_row(page, attend(QUERY, KEY)[1])


def test_npz_with_a_mask_and_lengths(open_page, tmp_path):
    page = open_page(BLOCK)
    for save, masked in ((np.savez, 2), (np.savez_compressed, 0)):
        mask = np.tile(np.arange(5) != masked, (3, 1))
        save(
            tmp_path / "all.npz",
            query=QUERY,
            key=KEY,
            value=VALUE,
            attn_mask=mask,
            nonpad_kv_seqlen=np.array([4], np.int32),
        )
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
    expect_row(page, attend(QUERY.astype(np.float32), KEY.astype(np.float16))[1])


def test_files_are_dropped_on_the_page(open_page):
    page = open_page(BLOCK)
    expect(page.locator(".selection li").first).to_be_visible()
    text = json.dumps({"query": QUERY.tolist(), "key": KEY.tolist()})
    transfer = page.evaluate_handle(
        "text => { const t = new DataTransfer(); t.items.add(new File([text], 'request.json')); return t; }", text
    )
    body = page.locator("body")
    body.dispatch_event("dragenter", {"dataTransfer": transfer})
    expect(page.get_by_text("Drop tensors")).to_be_visible()
    body.dispatch_event("drop", {"dataTransfer": transfer})
    expect(page.get_by_text("Drop tensors")).to_have_count(0)
    expect_row(page, attend(QUERY, KEY)[1])


def npy(path, array):
    np.save(path, array)
    return path.read_bytes()


def truncated_npy(path):
    path.write_bytes(npy(path, QUERY)[:-8])


def cut_header(path):
    path.write_bytes(npy(path, QUERY)[:40])


def fortran_order(path):
    np.save(path, np.asfortranarray(QUERY))


def big_endian(path):
    np.save(path, QUERY.astype(">f4"))


def whole_bytes(path):
    np.save(path, QUERY.astype(np.uint8))


def bfloat16_npy(path):
    np.save(path, QUERY.astype(np.float16).view("V2"))


def pickled(path):
    np.save(path, np.array([{"a": 1}], object), allow_pickle=True)


def no_npy(path):
    path.write_bytes(b"hello, world, this is a text")


def lying_npz(path):
    np.savez_compressed(path, query=np.zeros((64, 64)))
    content = bytearray(path.read_bytes())
    start = content.rindex(b"PK\x01\x02")
    content[start + 24 : start + 28] = (100).to_bytes(4, "little")
    path.write_bytes(content)


def bomb(path):
    np.savez_compressed(path, query=np.zeros(2**25 + 1, np.float64))


def cut_npz(path):
    np.savez(path, query=QUERY)
    path.write_bytes(path.read_bytes()[:-30])


def wrong_stream(path):
    np.savez_compressed(path, query=QUERY)
    content = bytearray(path.read_bytes())
    content[60:90] = b"\xff" * 30
    path.write_bytes(content)


def other_method(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("query.npy", b"x" * 100)


def safetensors(path, header, content=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)


def long_header(path):
    path.write_bytes((2**40).to_bytes(8, "little") + b"{}")


def bad_header(path):
    safetensors(path, b"{nothing")


def bfloat16(path):
    safetensors(path, {"query": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"\0\0")


def past_the_end(path):
    safetensors(path, {"query": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(8))


def lying_shape(path):
    safetensors(path, {"query": {"dtype": "F32", "shape": [3], "data_offsets": [0, 16]}}, bytes(16))


def no_offsets(path):
    safetensors(path, {"query": {"dtype": "F32", "shape": [-1], "data_offsets": "x"}})


def ragged(path):
    path.write_text('{"query": [[1, 2], [3]]}')


def huge(path):
    with path.open("wb") as file:
        file.truncate(10**9)


def integers(path):
    np.save(path, np.ones((2, 2), np.int64))


BAD = {
    "query.npy": {
        truncated_npy: "shape [3,4] needs 96 bytes of numbers, 88 are there",
        cut_header: "ends within its header",
        fortran_order: "has Fortran order",
        big_endian: "is big-endian (>f4)",
        whole_bytes: "has dtype |u1",
        bfloat16_npy: "has dtype |V2 (bfloat16?)",
        pickled: "has dtype |O",
        no_npy: "is no .npy file",
        huge: "has 954 MiB; at most 256 MiB are read",
    },
    "attn_mask.npy": {integers: "attn_mask: expected float32 or bool, got int64"},
    "all.npz": {
        lying_npz: "query.npy: says it has 100 bytes, and has more",
        bomb: "has more than 256 MiB unpacked",
        cut_npz: "is no .npz file, or is truncated",
        wrong_stream: "query.npy: cannot be unpacked",
        other_method: "query.npy: is packed by a method other than numpy's",
        no_npy: "is no .npz file, or is truncated",
    },
    "all.safetensors": {
        long_header: "says its header has 1099511627776 bytes, which is past the end",
        bad_header: "is not JSON",
        bfloat16: "query has dtype bfloat16",
        past_the_end: "query says it ends at byte",
        lying_shape: "query: shape [3] needs 12 bytes of numbers, 16 are there",
        no_offsets: "query has no shape and data_offsets",
    },
    "request.json": {ragged: "query: the rows are not equally long", no_npy: "is not JSON"},
    "picture.png": {no_npy: "expected a file that ends with .npy, .npz, .safetensors, .json"},
}


def test_bad_files_are_refused_in_one_sentence(open_page, tmp_path):
    page = open_page(BLOCK)
    for name, cases in BAD.items():
        for number, (write, message) in enumerate(cases.items()):
            folder = tmp_path / f"{name}.{number}"
            folder.mkdir()
            write(folder / name)
            choose(page, folder / name)
            expect(page.get_by_role("alert")).to_contain_text(message)
    np.savez(tmp_path / "good.npz", query=QUERY, key=KEY)
    choose(page, tmp_path / "good.npz")
    expect_row(page, attend(QUERY, KEY)[1])
    expect(page.get_by_role("alert")).to_have_count(0)
