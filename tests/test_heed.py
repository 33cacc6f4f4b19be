"""The command ``heed`` itself: its version, its completion, its ends, and whose packages it imports."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

import heed
from heed_options import Parser, nearest, server_url
from tests.support.waiting import until

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients'}"}


@pytest.mark.parametrize("flag", ["--version", "-V", "version"])
def test_version(capsys, flag):
    assert heed.main([flag]) == 0
    assert capsys.readouterr().out == f"heed {version('heed-attention')}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(capsys, arguments):
    assert heed.main(arguments) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^  (\w+)  ", said, re.MULTILINE) == [*heed.COMMANDS, "completion"]


@pytest.mark.parametrize("name", [*heed.COMMANDS, "attend", "completion"])
def test_every_command_has_help_and_those_that_call_a_server_the_same_flags(capsys, name):
    with pytest.raises(SystemExit, match="0"):
        heed.main([name, "--help"])
    said = capsys.readouterr().out
    assert said.startswith(f"usage: heed {heed.ALIASES.get(name, name)} ")
    if name in ("run", "memory", "list", "probe", "loadtest"):
        flags = ("--url", "--api-key", "--cacert", "--insecure", "HEED_URL", "HEED_API_KEY")
        assert all(flag in said for flag in flags)


def test_bash_completes_commands_flags_and_choices(tmp_path, capsys):
    assert heed.main(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=(heed {' '.join(words)}); COMP_CWORD={len(words)}; _shtab_heed; echo ${{COMPREPLY[@]}}"
        command = ["bash", "-c", f"source {script}; {line}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert completed("ser") == ["serve"]
    assert completed("serve", "--max-b") == ["--max-batch-size", "--max-body-bytes"]
    assert completed("run", "--reduce-heads", "m") == ["mean", "max"]
    assert completed("export", "--model-r") == ["--model-repository"]


def test_a_closed_pipe_ends_it_quietly(client):
    command = f"{sys.executable} -m heed list --url {client.base_url} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # the list may fit into the pipe before that is closed


def test_an_interrupt_ends_it_quietly():
    """While it waits for its standard input."""
    command = [sys.executable, "-m", "heed", "run", "scaled_dot_product", "--query", "-"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    with subprocess.Popen(command, env=ENVIRONMENT, preexec_fn=default, **streams) as process:
        until(lambda: "pipe" in Path(f"/proc/{process.pid}/wchan").read_text())
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)
    assert said == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize("by", ["working directory", "PYTHONPATH"])
def test_a_folder_of_the_user_is_not_imported_in_place_of_heed_s(tmp_path, two_blocks, by):
    for name in heed.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    environment = dict(ENVIRONMENT)
    if by == "PYTHONPATH":
        environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), environment["PYTHONPATH"]))
    command = [sys.executable, "-m", "heed", "list", "--model-repository", str(two_blocks)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, "scaled_dot_product" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8200", "http://127.0.0.1:8200"),
        ("heed.example", "http://heed.example"),
        ("https://heed.example/below/", "https://heed.example/below"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("localhost:80/", "http://localhost:80"),
    ],
)
def test_urls(text, url):
    assert server_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "8200", "ftp://a", "http://", "a:0", "a:70000", "a:b", "http:/a", "http://a b", "a?b=c", "http://["]
)
def test_what_is_no_url(text):
    with pytest.raises(ValueError, match=r"^expected a URL such as http://\S+ or \S+, got '"):
        server_url(text)


def test_the_nearest_name():
    assert nearest("MULTI-HED", ["multi_head", "multi_query"]) == "; did you mean multi_head?"
    assert nearest("--rows", ["--show"]) == nearest("nope", ["copper"]) == ""
    assert nearest("xyz", ["multi_head"]) == ""


def test_texts_that_look_like_flags_are_values(capsys):
    parser = Parser(prog="p")
    parser.add_argument("--text")
    parser.add_argument("words", nargs="*")
    assert parser.parse_args(["--text=--unknown"]).text == "--unknown"
    assert parser.parse_args(["--text", "--unknown words"]).text == "--unknown words"
    assert parser.parse_args(["--", "--unknown"]).words == ["--unknown"]
