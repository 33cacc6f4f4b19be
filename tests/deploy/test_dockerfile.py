"""The Dockerfile, read: its style, what it says of itself, and what reaches it. `make container` builds it."""

import fnmatch
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

from heed import COMMANDS
from service.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
STAGES = re.split(r"^(?=FROM )", DOCKERFILE, flags=re.MULTILINE)[1:]
NAMES = [re.match(r"FROM \S+ AS (\S+)", stage)[1] for stage in STAGES]
DEPLOY = (ROOT / "docs/deployment.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def test_it_is_written_as_hadolint_wants_it():
    constrained = "DL3013"  # of pip's packages: constraints.txt holds their versions
    hadolint = Path(sysconfig.get_path("scripts"), "hadolint")
    subprocess.run([hadolint, "--ignore", constrained, ROOT / "Dockerfile"], check=True)


def test_the_default_is_the_last_stage_and_has_no_root():
    assert NAMES[-1] == "cpu"
    for stage in STAGES[-2:]:
        user = re.findall(r"^USER (\d+):\d+$", stage, re.MULTILINE)
        assert [int(number) > 0 for number in user] == [True]
        assert "torch" not in stage


def test_what_it_says_is_what_there_is():
    (runtime,) = (stage for name, stage in zip(NAMES, STAGES, strict=True) if name == "runtime")
    labels = dict(re.findall(r'opencontainers\.image\.(\w+)="([^"]*)"', runtime))
    assert {key: PROJECT[key] for key in ("description", "version")}.items() <= labels.items()
    assert labels["licenses"] == PROJECT["license"]
    assert re.search(r"^EXPOSE (\d+)", runtime, re.MULTILINE)[1] == str(Settings.model_fields["port"].default)
    for command in re.findall(r'CMD \["(?:heed", ")?(\w+)"\]', runtime):
        assert command in COMMANDS


@pytest.mark.parametrize("stage", STAGES[-2:], ids=NAMES[-2:])
def test_a_build_says_what_it_was_made_of(stage):
    """Last, so that another revision changes no layer."""
    names = ("source", "revision", "created")
    labels = dict(re.findall(r'opencontainers\.image\.(\w+)="([^"]*)"', stage))
    assert labels == {name: f"${{{name.upper()}}}" for name in names}
    (arguments,) = re.findall(r"^ARG (.*)$", stage, re.MULTILINE)
    assert arguments.split() == [name.upper() for name in names]
    assert not re.search(r"^(COPY|RUN)", stage[stage.index("ARG ") :], re.MULTILINE)
    for name in names:
        assert f"--build-arg {name.upper()}=" in DEPLOY


def test_the_wheel_holds_all_commands_and_the_image_all_of_the_wheel():
    wheel = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"])
    packages = {command.module.partition(".")[0] for command in COMMANDS.values()} | {"heed_options.py"}
    assert packages | {"heed.py"} <= {name.removeprefix("clients/") for name in wheel}
    (environment,) = (stage for name, stage in zip(NAMES, STAGES, strict=True) if name == "environment")
    copied = set(" ".join(re.findall(r"^COPY (.*) \S+$", environment, re.MULTILINE)).split())
    others = {name for name in wheel if not copied & {name, name.partition("/")[0]}}
    assert {str(Path(name).parent) for name in others} == {"deploy/ray"}


@pytest.mark.parametrize("name", sorted(set(" ".join(re.findall(r"^COPY ([^-].*) \S+$", DOCKERFILE, re.M)).split())))
def test_what_it_copies_is_let_through(name):
    admitted = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert any(fnmatch.fnmatch(admitted_name, name) for admitted_name in admitted) or Path(name).parts[0] in admitted
    # What may be absent is a pattern from its first folder on: docker refuses one in a folder that is not there.
    assert "[" in Path(name).parts[0] if "[" in name else (ROOT / name).exists()
