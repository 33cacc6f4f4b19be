"""Every piece of code of the documentation: run, and its output compared; or checked, where it cannot be run here.

``tests/export/hf/test_minilm.py`` runs the README from top to bottom, and what needs that model.
"""

import json
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import pytest

import heed
from models.catalogue import BLOCKS
from scripts.guide import blocks
from service.http.body import JSON_LENGTH
from tests.support.documents import ENVIRONMENT, EXAMPLES, PAGES, ROOT, Example
from tests.support.media import file_of, noise, sound_of, tone, write_echo_model, write_picture_model
from tests.support.walkthrough import NOT_RUN, RESULTS, walk, without_times

RUNNABLE = re.compile(r"(curl|printf|tail|od|python3?|grep|source|heed (run|memory|probe))\b.*")
# Of the reader; the built-in blocks are others.
MODEL = re.compile(r"minilm|gpt2|\bmine\b|attention\.pt|\b(vit|wav2vec2|whisper|trocr)\b")
# What they are given is tested in tests/deploy and tests/generated.
PROGRAMS = (
    "docker", "kubectl", "ray", "serve", "openssl", "chmod",
    "npm", "npx", "node", "go", "openapi-generator-cli",
)  # fmt: skip
JSON = {"Content-Type": "application/json"}
IN_README = [example for example in EXAMPLES if example.page == "README.md"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def is_run(example: Example) -> bool:
    if example in IN_README or MODEL.search(example.code):
        return False
    if example.language == "python":
        return True
    return example.language == "sh" and all(RUNNABLE.match(" ".join(words)) for words in example.commands())


RUN = [example for example in EXAMPLES if is_run(example)]
WALKED = [example for example in IN_README if not example.code.startswith(NOT_RUN)]
CHECKED = [example for example in EXAMPLES if example.language == "sh" and example not in RUN + WALKED]
# tests/deploy/test_kubernetes.py renders the YAML, tests/generated runs the others.
ELSEWHERE = {"yaml": "docs/deployment.md", "ts": "docs/other_languages.md", "go": "docs/other_languages.md"}
DATA = {"json": json.loads, "toml": tomllib.loads}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the commands find in the reader's folder."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / ".venv").symlink_to(Path(sys.prefix))
    for name in "qkv":
        np.save(folder / name, np.eye(3, 2, dtype=np.float32))
    return folder


def is_quick(example: Example) -> bool:
    """Whether the process of the command imports little."""
    return example.code.startswith("curl")


@pytest.mark.parametrize(
    "example", [pytest.param(run, marks=[] if is_quick(run) else pytest.mark.extended) for run in RUN], ids=str
)
def test_it_runs_and_prints_what_is_shown(client, folder, example):
    address = f"{client.base_url.host}:{client.base_url.port}"
    code = example.code.replace("127.0.0.1:8000", address)
    command = [sys.executable, "-c", code] if example.language == "python" else ["bash", "-ec", code]
    environment = ENVIRONMENT | {"HEED_URL": f"http://{address}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if example.shown is not None:
        assert done.stdout.strip() == example.shown.strip()


GENERATING = [example for example in EXAMPLES if re.search(r"heed run gpt2|generate\(.gpt2|/gpt2", example.code)]


@pytest.mark.filterwarnings("ignore")  # those of transformers
@pytest.mark.parametrize("example", GENERATING, ids=str)
def test_examples_of_generation_run(shared_server, generating, example):
    """With a small model in place of gpt2."""
    url = shared_server(generating / "models", "--workers", "1").url
    code = example.code.replace("gpt2", "gpt").replace("http://127.0.0.1:8000", url)
    command = [sys.executable, "-c", code] if example.language == "python" else ["bash", "-ec", code]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT | {"HEED_URL": url}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert not re.search(r'"(error|title)":', done.stdout)  # curl succeeds with any status


FILES = [example for example in EXAMPLES if re.search(r"heed run (vit|wav2vec2)", example.code)]


@pytest.mark.parametrize("example", FILES, ids=str)
def test_examples_of_files_run(shared_server, tmp_path, example):
    """With models that answer their input in place of vit and wav2vec2."""
    size = {"height": 8, "width": 8}
    vit = {"image_processor_type": "ViTImageProcessor", "size": size, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    wav2vec2 = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16_000}
    write_picture_model(tmp_path / "models" / "vit" / "1", 8, 8, vit)
    write_echo_model(tmp_path / "models" / "wav2vec2" / "1", "input_values", (8_000,), wav2vec2)
    (tmp_path / "cat.png").write_bytes(file_of(noise(40, 30)))
    (tmp_path / "hello.wav").write_bytes(sound_of(tone(0.2, 16_000), 16_000))
    url = shared_server(tmp_path / "models", "--workers", "1").url
    code = example.code.replace("http://127.0.0.1:8000", url)
    done = subprocess.run(
        ["bash", "-ec", code], cwd=tmp_path, env=ENVIRONMENT | {"HEED_URL": url}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not re.search(r'"(error|title)":', done.stdout)


@pytest.mark.parametrize("example", CHECKED, ids=str)
def test_its_commands_are_there(example):
    subprocess.run(["bash", "-nc", example.code], check=True)
    for words in example.commands():
        program = words[0]
        if program in CHECKS:
            CHECKS[program](words)
        else:
            assert RUNNABLE.match(program) or program in PROGRAMS, f"{program}: say here how to check it"
        for path in re.findall(r"(?<!\S)(?:deploy|examples|benchmarks|scripts)/\S+", " ".join(words)):
            assert (ROOT / path).exists(), path


def check_heed(words: list[str]) -> None:
    command = words[1:3] if words[1:3] == ["export", "hf"] else words[1:2]
    shown = help_of(*command)
    for flag in (word for word in words if word.startswith("--")):
        assert re.search(rf"{flag}\b", shown), f"{flag} is no flag of heed {' '.join(command)}"


@cache
def help_of(*command: str) -> str:
    with redirect_stdout(StringIO()) as shown, suppress(SystemExit):
        heed.main([*command, "--help"])
    return shown.getvalue()


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in (word for word in words[1:] if "=" not in word):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def check_pip(words: list[str]) -> None:
    for path, extras in re.findall(r"(\./clients|\.)\[([\w,]+)\]", " ".join(words)):
        project = tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"]
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    for flag, group in pairwise(words):
        assert flag != "--group" or group in PYPROJECT["dependency-groups"]


CHECKS = {"heed": check_heed, "make": check_make, "pip": check_pip}


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.language in DATA], ids=str)
def test_data_can_be_read(example):
    assert DATA[example.language](example.code)


@pytest.mark.parametrize("page", PAGES)
def test_all_code_of_a_page_is_found(page):
    examples = [example for example in EXAMPLES if example.page == page]
    parts = [part for example in examples for part in (example.code, example.shown) if part is not None]
    assert len(parts) == len(re.findall(r"^```\w", PAGES[page], re.MULTILINE))


def test_every_language_is_known():
    known = {"sh", "python", "text", "mermaid", *ELSEWHERE, *DATA}
    assert {example.language for example in EXAMPLES} <= known
    for language, page in ELSEWHERE.items():
        assert {example.page for example in EXAMPLES if example.language == language} == {page}


def test_requests_of_the_native_api_are_answered(client):
    (shown,) = (example for example in EXAMPLES if example.page == "docs/native.md" and example.language == "json")
    assert client.post("/v1/attention/scaled_dot_product", content=shown.code, headers=JSON).status_code == 200


def test_the_bytes_of_v2_are_those_of_its_page(client):
    """The page's curl sends this request, and the tables have its bytes and those of the response."""
    page = PAGES["docs/other_languages.md"]
    (text,) = re.findall(r"printf '(\{.*\})", page)
    rows = re.findall(r"^\| (\d+) to (\d+) \| `([^`]*)` \| (.*) \|$", page, re.MULTILINE)
    request = text.encode() + b"".join(bytes.fromhex(content) for _, _, content, _ in rows[1:3])
    headers = {JSON_LENGTH: str(len(text))}
    answer = client.post("/v2/models/scaled_dot_product/infer", content=request, headers=headers)
    assert answer.status_code == 200, answer.text
    assert int(answer.headers[JSON_LENGTH]) == int(rows[3][1]) + 1
    for message, of_message in ((request, rows[:3]), (answer.content, rows[3:])):
        assert int(of_message[-1][1]) + 1 == len(message)
        (_, end, beginning, _), *tensors = of_message
        assert message[: int(end) + 1].startswith(beginning.removesuffix("...").strip().encode())
        json.loads(message[: int(end) + 1])
        for first, last, content, meaning in tensors:
            found = message[int(first) : int(last) + 1]
            assert found == bytes.fromhex(content)
            said = [float(number) for number in re.findall(r"[\d.]+", meaning)]
            np.testing.assert_array_equal(np.frombuffer(found, "<f4"), np.float32(said))


@pytest.mark.parametrize("name", BLOCKS)
def test_the_request_of_a_block_s_page_is_answered(client: httpx.Client, name):
    request = re.findall(r"```json\n(.*?)\n```", blocks.page(BLOCKS[name]))[0]
    answer = client.post(f"/v1/attention/{name}", content=request, headers=JSON)
    assert answer.status_code == 200, answer.text


@pytest.mark.extended
def test_the_tutorial_from_top_to_bottom(tmp_path, repository):
    walk([example for example in EXAMPLES if example.page == "docs/tutorial.md"], tmp_path, repository)
    for title, shown, status, printed, error in json.loads((tmp_path / RESULTS).read_text()):
        assert status == 0, f"{title}\n{error}"
        assert shown is None or without_times(printed) == without_times(shown), title
