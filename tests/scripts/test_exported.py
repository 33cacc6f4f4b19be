"""The built-in blocks are exported once for each state of their sources; the tests and `make serve` share them."""

from pathlib import Path

import pytest

from scripts import exported as cache


class Checkout:
    """Sources, and an export of them that takes no time and writes how often it was run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.repository = root / "model_repository"
        self.exports = 0
        for package in cache.SOURCES:
            (root / package).mkdir()
            (root / package / "a.py").write_text("1")

    def export(self, repository: Path, cuda: bool) -> None:
        self.exports += 1
        for block in ("additive", "cosine"):
            (repository / block / "1").mkdir(parents=True)
            (repository / block / "1" / "model.onnx").write_text(f"{block}, export {self.exports}")

    def served(self, cuda: bool = False) -> str:
        """What `make serve` has in its repository."""
        cache.copy(cuda, self.repository, self.root)
        return (self.repository / "cosine" / "1" / "model.onnx").read_text()


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Checkout:
    checkout = Checkout(tmp_path)
    monkeypatch.setattr(cache, "_export", checkout.export)
    return checkout


def test_the_tests_and_make_serve_share_one_export(checkout):
    folder = cache.exported(root=checkout.root)
    assert {path.name for path in folder.iterdir()} == {"additive", "cosine"}
    assert checkout.served() == "cosine, export 1"
    assert cache.exported(root=checkout.root) == folder
    assert checkout.exports == 1


@pytest.mark.parametrize("file", ["models/a.py", "models/new.py", "export/a.py"])
def test_a_change_of_the_sources_exports_again(checkout, file):
    checkout.served()
    (checkout.root / file).write_text("2")
    assert checkout.served() == "cosine, export 2"


def test_what_is_no_source_exports_nothing_again(checkout):
    checkout.served()
    (checkout.root / "models" / "__pycache__").mkdir()
    (checkout.root / "models" / "__pycache__" / "a.pyc").write_text("2")
    (checkout.root / "models" / "a.py").touch()
    assert checkout.served() == "cosine, export 1"


@pytest.mark.parametrize("function", ["version", "_processor"])
def test_another_version_of_a_library_or_processor_exports_again(checkout, monkeypatch, function):
    """A processor may round otherwise, and each file has the tolerance that was measured."""
    checkout.served()
    monkeypatch.setattr(cache, function, lambda *_: "another")
    assert checkout.served() == "cosine, export 2"


def test_fast_paths_of_cuda_are_another_export(checkout):
    assert checkout.served() == "cosine, export 1"
    assert checkout.served(cuda=True) == "cosine, export 2"
    assert checkout.served() == "cosine, export 1"


def test_an_earlier_state_is_still_there_and_the_oldest_are_removed(checkout):
    source = checkout.root / "models" / "a.py"
    for state in range(cache.MAX_CACHED + 1):
        source.write_text(str(state))
        checkout.served()
    assert len([path for path in (checkout.root / ".exports").iterdir() if path.is_dir()]) == cache.MAX_CACHED
    source.write_text("1")
    assert checkout.served() == "cosine, export 2"


def test_a_failed_export_keeps_nothing(checkout, monkeypatch):
    def fail(repository: Path, cuda: bool) -> None:
        checkout.export(repository, cuda)
        raise cache.ExportFailed

    monkeypatch.setattr(cache, "_export", fail)
    with pytest.raises(cache.ExportFailed):
        checkout.served()
    assert not checkout.repository.exists()
    monkeypatch.setattr(cache, "_export", checkout.export)
    assert checkout.served() == "cosine, export 2"


def test_other_blocks_of_the_repository_stay(checkout):
    mine = checkout.repository / "mine" / "1" / "model.onnx"
    second = checkout.repository / "cosine" / "2" / "model.onnx"
    for file in (mine, second):
        file.parent.mkdir(parents=True)
        file.write_text("mine")
    assert checkout.served() == "cosine, export 1"
    assert (mine.read_text(), second.read_text()) == ("mine", "mine")
