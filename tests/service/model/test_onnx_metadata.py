"""Metadata read off the bytes of a file: what a session of it says, and nothing of what is no ONNX file."""

import os

import numpy as np
import onnx
import pytest
from onnx import helper

from export.verification.sessions import session
from service.ort.onnx_metadata import NotAModel, metadata


@pytest.mark.parametrize("name", ["dot_product", "multi_head", "encoder"])
def test_it_is_what_a_session_says(name, repository):
    for file in (repository / name / "1").glob("*.onnx"):
        assert metadata(file) == session(file).get_modelmeta().custom_metadata_map
        assert "heed" in metadata(file)


def test_several_entries_around_every_kind_of_field(tmp_path):
    graph = helper.make_graph([], "g", [], [], [onnx.numpy_helper.from_array(np.zeros(100_000), "weights")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=2**40)
    helper.set_model_props(model, {"a": "", "größe": "x" * 300})
    fixed = b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4)  # fields 127 of eight and four bytes
    (tmp_path / "model.onnx").write_bytes(fixed + model.SerializeToString())
    assert metadata(tmp_path / "model.onnx") == {"a": "", "größe": "x" * 300}


@pytest.mark.parametrize(
    "content", [b"", b"not onnx", b"\xff" * 99, b"\x72\x05\x0a", b"\x0b", b"\x72\x04\x0a\x02\xff\xff", bytes(1 << 20)]
)
def test_what_is_no_onnx_file_says_nothing(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    assert metadata(tmp_path / "model.onnx") == {}


@pytest.mark.parametrize(
    "repeated",
    [b"\x08\0", b"\x72\0", b"\x72\x80\x08" + b"\x08\0" * 512],
    ids=["numbers", "empty entries", "entries of numbers"],
)
def test_of_a_file_that_is_no_model_only_the_beginning_is_read(tmp_path, repeated):
    """To read each byte of it in a step of the interpreter takes 93 s for 300 MB."""
    (tmp_path / "model.onnx").write_bytes(repeated * ((1 << 20) // len(repeated)))
    with pytest.raises(NotAModel, match="more than 100,000 fields outside of its graph"):
        metadata(tmp_path / "model.onnx")


def test_a_named_pipe_is_refused(tmp_path):
    """To open it for reading would wait for a writer, for ever."""
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(NotAModel, match=r"model\.onnx is not a regular file"):
        metadata(tmp_path / "model.onnx")
