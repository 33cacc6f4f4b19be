"""Metadata read off the bytes of a file: what a session of it says, and nothing of what is no ONNX file."""

import os
import time

import numpy as np
import onnx
import pytest
from onnx import helper

from export.verification import session
from models.catalogue import BLOCKS
from service.ort.onnx_metadata import NotAModel, metadata
from service.repository.repository import Repository
from service.settings import Settings


@pytest.mark.parametrize("name", BLOCKS)
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
    "content", [b"", b"not onnx", b"\xff" * 99, b"\x72\x05\x0a", b"\x0b", b"\x72\x04\x0a\x02\xff\xff"]
)
def test_what_is_no_onnx_file_says_nothing(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    assert metadata(tmp_path / "model.onnx") == {}


@pytest.mark.parametrize(
    "repeated",
    [b"\0", b"\x08\0", b"\x72\0", b"\x72\x80\x08" + b"\x08\0" * 512],
    ids=["zeros", "numbers", "empty entries", "entries of numbers"],
)
def test_a_large_file_that_is_no_model_is_refused_at_once(tmp_path, repeated):
    """Before, each byte of it was a step of the interpreter: 93 s for 300 MB, in which no other model was loaded."""
    file = tmp_path / "large" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    with file.open("wb") as stream:
        for _ in range(300):
            stream.write(repeated * ((1 << 20) // len(repeated)))
    repository = Repository(Settings(model_repository=tmp_path).sized())
    repository.open()
    start = time.process_time()
    repository.load()
    taken = time.process_time() - start
    file.unlink()
    assert taken < 5
    assert list(repository.failed) == ["large"]


def test_a_named_pipe_is_refused(tmp_path):
    """To open it for reading would wait for a writer, for ever."""
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(NotAModel, match=r"model\.onnx is no regular file"):
        metadata(tmp_path / "model.onnx")
