"""An interrupted export leaves no files, and a killed one none after the next export."""

import gc
import io
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from export.__main__ import main
from export.artifact import ExportError, written_whole
from export.scratch import PREFIX, remove_leftovers
from tests.support import waiting

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300
FORK = multiprocessing.get_context("fork")  # a fork has imported all that another process would import in seconds
until = partial(waiting.until, timeout_s=TIMEOUT_S)


def files(repository):
    return [path for path in repository.rglob("*") if path.is_file()]


def folders(repository):
    return list(repository.glob(f"*/{PREFIX}*"))


def enable_signals():
    """Child processes inherit ignored signals: SIGINT from a shell's background, SIGHUP from nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def export(error, arguments, stream=None):
    """``heed export`` in a forked process, which writes its standard error to the file ``error``, or to ``stream``."""
    gc.freeze()  # to destroy a session of the parent would wait for threads that a fork does not have
    enable_signals()
    sys.stderr = stream or error.open("w")
    sys.exit(main(arguments))


def export_interrupted(error, arguments):
    """The same, with a SIGINT when it has forked a process."""
    fork = os.fork

    def fork_and_interrupt():
        if child := fork():
            os.kill(os.getpid(), signal.SIGINT)
        return child

    os.fork = fork_and_interrupt
    export(error, arguments)


@pytest.fixture
def error(tmp_path_factory):
    """The file of an export's standard error."""
    return tmp_path_factory.mktemp("error") / "error"


@contextmanager
def exporting(repository, error, *arguments):
    """An export in a process, once it has as many temporary folders as jobs."""
    process = FORK.Process(target=export, args=(error, [*arguments, "--repository", str(repository)]))
    process.start()
    try:
        jobs = int(arguments[-1]) if "--jobs" in arguments else 1
        until(lambda: not process.is_alive() or len(folders(repository)) == jobs)
        assert process.is_alive(), error.read_text()
        yield process
    finally:
        process.kill()
        process.join()


SIGNALS = {  # blocks that take longer than a signal does
    "an export": (signal.SIGTERM, "export", ["encoder"], "encoder"),
    "its processes": (signal.SIGINT, "export", ["encoder", "decoder", "--jobs", "2"], "encoder, decoder"),
    "an export of transformers": (signal.SIGHUP, "export hf", ["hf", "MODEL", "--name", "mine"], "mine"),
}


@pytest.mark.parametrize(("number", "command", "arguments", "names"), SIGNALS.values(), ids=SIGNALS.keys())
def test_a_signal_ends_it_and_leaves_nothing(number, command, arguments, names, sentence_model, error, tmp_path):
    arguments = [str(sentence_model) if argument == "MODEL" else argument for argument in arguments]
    with exporting(tmp_path, error, *arguments) as process:
        os.kill(process.pid, number)
        process.join(TIMEOUT_S)
        assert process.exitcode == 128 + number
        assert list(tmp_path.iterdir()) == []
        written = error.read_text()
        assert written.endswith(f"heed {command}: {number.name}; nothing was written for {names}\n")
        assert "Traceback" not in written


def test_an_export_of_transformers_ends_at_its_time_limit(sentence_model, error, tmp_path):
    arguments = ["hf", str(sentence_model), "--name", "mine", "--timeout", "0.001", "--repository", str(tmp_path)]
    process = FORK.Process(target=export, args=(error, arguments))
    process.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == 128 + signal.SIGTERM
    said = error.read_text().splitlines()[-1]
    assert re.fullmatch(
        r"heed export hf: not done after 0\.001 min \(--timeout\), at mine: .+; nothing was written for mine", said
    )
    assert files(tmp_path) == []


class Interrupted(io.FileIO):
    """A file each of whose writes is interrupted by a SIGTERM."""

    def write(self, content):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().write(content)


def export_while_writing(error, arguments):
    export(error, arguments, io.TextIOWrapper(io.BufferedWriter(Interrupted(error, "w"))))


def test_a_signal_during_a_write_ends_an_export(sentence_model, error, tmp_path):
    arguments = ["hf", str(sentence_model), "--name", "mine", "--repository", str(tmp_path)]
    process = FORK.Process(target=export_while_writing, args=(error, arguments))
    process.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == 128 + signal.SIGTERM
    assert "heed export hf: SIGTERM; nothing was written for mine\n" in error.read_text()
    assert files(tmp_path) == []


FAST = [("export", signal.SIGINT), ("torch", signal.SIGTERM), ("end", signal.SIGINT)]
MOMENTS = [
    pytest.param(moment, number, marks=() if (moment, number) in FAST else pytest.mark.extended)
    for number in (signal.SIGINT, signal.SIGTERM)
    for moment in ("argparse", "export", "torch", "torch.nn", "onnxruntime", "transformers", "end")
]


@pytest.mark.parametrize(("moment", "number"), MOMENTS)
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


def test_a_signal_while_processes_start_ends_an_export(error, tmp_path):
    arguments = ["additive", "cosine", "--jobs", "2", "--repository", str(tmp_path)]
    process = FORK.Process(target=export_interrupted, args=(error, arguments))
    process.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == 128 + signal.SIGINT
    assert error.read_text() == "heed export: SIGINT; nothing was written for additive, cosine\n"
    assert files(tmp_path) == []


def test_processes_whose_parent_is_killed_end_and_leave_nothing(error, tmp_path):
    with exporting(tmp_path, error, "encoder", "decoder", "--jobs", "2") as process:
        process.kill()
        process.join()
        until(lambda: not list(tmp_path.iterdir()))


def test_leftovers_of_a_killed_export_are_removed_by_the_next(error, tmp_path):
    with exporting(tmp_path, error, "encoder") as process:
        remove_leftovers(tmp_path)
        assert len(folders(tmp_path)) == 1  # its process still runs
        process.kill()
        process.join()
        assert len(folders(tmp_path)) == 1
        remove_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_the_command_removes_what_was_left_and_restores_signal_handlers(tmp_path, monkeypatch):
    (tmp_path / "minilm" / f"{PREFIX}abc" / "fresh").mkdir(parents=True)
    (tmp_path / "minilm" / f"{PREFIX}abc" / "fresh" / "weights.bin").write_bytes(bytes(100))
    (tmp_path / "kept" / "1").mkdir(parents=True)
    monkeypatch.setattr("export.__main__.export_builtin", lambda *_: tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["cosine", "--repository", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_killed_worker_is_an_error_message(tmp_path, monkeypatch, capsys):
    from concurrent.futures.process import BrokenProcessPool

    def killed(*_):
        raise BrokenProcessPool("a child process terminated abruptly")

    monkeypatch.setattr("export.__main__.export_builtin", killed)
    assert main(["cosine", "--repository", str(tmp_path)]) == 1
    assert "a process was ended: a child process terminated abruptly" in capsys.readouterr().err


def test_a_version_written_meanwhile_stays(tmp_path):
    target = tmp_path / "mine" / "1"
    writing = written_whole(target, force=False)
    (writing.__enter__() / "model.onnx").touch()
    target.mkdir()
    with pytest.raises(ExportError, match="another export has written"):
        writing.__exit__(None, None, None)
    assert os.listdir(tmp_path / "mine") == ["1"]
    assert os.listdir(target) == []
