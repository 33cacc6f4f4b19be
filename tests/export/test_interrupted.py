"""An interrupted export leaves no files, a killed one none after the next export; and the versions of a block."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from export.__main__ import main
from export.artifact import ExportError, written_whole
from export.scratch import PREFIX, remove_leftovers, scratch
from tests.support import waiting
from tests.support.families import FAMILIES, save

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300


until = partial(waiting.until, timeout_s=TIMEOUT_S)


def files(repository):
    return [path for path in repository.rglob("*") if path.is_file()]


def folders(repository):
    return list(repository.glob(f"*/{PREFIX}*"))


def enable_signals():
    """Child processes inherit ignored signals: SIGINT from a shell's background, SIGHUP from nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def exporting(repository, *arguments):
    """An export in a process, once it has as many temporary folders as jobs."""
    command = [sys.executable, "-m", "heed", "export", *arguments, "--repository", str(repository)]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=ROOT, preexec_fn=enable_signals, **pipes) as process:
        try:
            jobs = int(arguments[-1]) if "--jobs" in arguments else 1
            until(lambda: process.poll() is not None or len(folders(repository)) == jobs)
            assert process.poll() is None, process.stderr.read()
            yield process
        finally:
            process.kill()


def test_a_signal_ends_an_export_and_leaves_nothing(tmp_path):
    """The other signals end the exports of the next tests."""
    with exporting(tmp_path, "encoder") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM
        assert list(tmp_path.iterdir()) == []
        assert process.stderr.read() == "heed export: SIGTERM; nothing was written for encoder\n"


def test_a_signal_ends_an_export_of_transformers_and_leaves_nothing(tmp_path):
    save(FAMILIES["bert"], tmp_path / "model")
    repository = tmp_path / "models"
    with exporting(repository, "hf", str(tmp_path / "model"), "--name", "mine") as process:
        process.send_signal(signal.SIGHUP)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGHUP
        assert list(repository.iterdir()) == []
        assert process.stderr.read() == "heed export hf: SIGHUP; nothing was written for mine\n"


def test_a_signal_ends_the_processes_of_an_export(tmp_path):
    with exporting(tmp_path, "encoder", "decoder", "--jobs", "2") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGINT
        assert list(tmp_path.iterdir()) == []
        assert process.stderr.read() == "heed export: SIGINT; nothing was written for encoder, decoder\n"


@pytest.mark.parametrize("moment", ["argparse", "export", "torch", "torch.nn", "onnxruntime", "transformers", "end"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_at_any_moment_ends_the_command(tmp_path, moment, number):
    """When a module is about to be imported, and when Python ends."""
    arguments = ["hf", str(tmp_path)] if moment == "transformers" else ["no_such_block"]
    script = f"""
import atexit, os, sys, heed

class Interruption:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "{moment}":
            os.kill(os.getpid(), {number:d})

sys.meta_path.insert(0, Interruption)
if "{moment}" == "end":
    atexit.register(os.kill, os.getpid(), {number:d})
sys.argv = ["heed", "export", *{arguments}, "--repository", "{tmp_path}/models"]
heed.process()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, preexec_fn=enable_signals, capture_output=True)
    assert done.returncode == 128 + number
    assert b"Traceback" not in done.stderr
    assert files(tmp_path) == []


def test_a_signal_while_processes_start_ends_an_export(tmp_path):
    script = f"""
import os, signal, sys, heed

fork = os.fork

def fork_and_interrupt():
    child = fork()
    if child:
        os.kill(os.getpid(), signal.SIGINT)
    return child

os.fork = fork_and_interrupt
sys.argv = ["heed", "export", "additive", "cosine", "--jobs", "2", "--repository", "{tmp_path}"]
heed.process()
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=enable_signals, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "heed export: SIGINT; nothing was written for additive, cosine\n"
    assert files(tmp_path) == []


def test_processes_whose_parent_is_killed_end_and_leave_nothing(tmp_path):
    with exporting(tmp_path, "encoder", "decoder", "--jobs", "2") as process:
        process.kill()
        process.wait()
        until(lambda: not list(tmp_path.iterdir()))


def test_leftovers_of_a_killed_export_are_removed_by_the_next(tmp_path):
    with exporting(tmp_path, "encoder") as process:
        remove_leftovers(tmp_path)
        assert len(folders(tmp_path)) == 1  # its process still runs
        process.kill()
        process.wait()
        assert len(folders(tmp_path)) == 1
        remove_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_the_command_removes_what_was_left(tmp_path, monkeypatch):
    (tmp_path / "minilm" / f"{PREFIX}abc" / "fresh").mkdir(parents=True)
    (tmp_path / "minilm" / f"{PREFIX}abc" / "fresh" / "weights.bin").write_bytes(bytes(100))
    (tmp_path / "kept" / "1").mkdir(parents=True)
    monkeypatch.setattr("export.__main__.export_builtin", lambda *_: tmp_path)
    assert main(["cosine", "--repository", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_folder_stays_where_there_is_a_version(tmp_path):
    (tmp_path / "1").mkdir()
    with scratch(tmp_path) as folder:
        (folder / "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_killed_worker_is_an_error_message(tmp_path, monkeypatch, capsys):
    from concurrent.futures.process import BrokenProcessPool

    def killed(*_):
        raise BrokenProcessPool("a child process terminated abruptly")

    monkeypatch.setattr("export.__main__.export_builtin", killed)
    assert main(["cosine", "--repository", str(tmp_path)]) == 1
    assert "a process was ended: a child process terminated abruptly" in capsys.readouterr().err


def test_signals_are_handled_as_before_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr("export.__main__.export_builtin", lambda *_: tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["cosine", "--repository", str(tmp_path)]) == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Three exports of one name, the last with --force; and the files after each."""
    repository = tmp_path_factory.mktemp("versions")
    written = []
    for flags in ([], [], ["--force"]):
        assert main(["efficient", "--repository", str(repository), *flags]) == 0
        written.append({file.relative_to(repository): file.stat().st_ino for file in files(repository)})
    return repository, written


def test_an_existing_name_gets_the_next_version(versions):
    _, (first, second, _) = versions
    assert {path.parts[1] for path in first} == {"1"}
    assert {path.parts[1] for path in second} == {"1", "2"}
    assert first.items() <= second.items()  # the same files


def test_force_replaces_the_newest(versions):
    _, (first, second, third) = versions
    assert second.keys() == third.keys()
    assert first.items() <= third.items()
    newest = {path for path in second if path.parts[1] == "2"}
    assert all(second[path] != third[path] for path in newest)


def test_a_version_that_exists_stays(versions, capsys, monkeypatch):
    repository, (*_, last) = versions
    assert main(["efficient", "--repository", str(repository), "--version", "1"]) == 1
    assert "efficient/1 exists; --force replaces it" in capsys.readouterr().err
    assert {file.relative_to(repository): file.stat().st_ino for file in files(repository)} == last


def test_a_version_written_meanwhile_stays(tmp_path):
    target = tmp_path / "mine" / "1"
    writing = written_whole(target, force=False)
    (writing.__enter__() / "model.onnx").touch()
    target.mkdir()
    with pytest.raises(ExportError, match="written by another export meanwhile"):
        writing.__exit__(None, None, None)
    assert os.listdir(tmp_path / "mine") == ["1"]
    assert os.listdir(target) == []
