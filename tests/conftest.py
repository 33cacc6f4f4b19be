"""The exported blocks, and a real server over them, shared by the whole run.

``HEED_TEST_REPOSITORY`` is a repository with every built-in block, to use instead of exporting them;
``HEED_TEST_SERVER`` is the address of a server with these blocks, to use instead of starting one.
"""

import gc
import hashlib
import json
import logging
import logging.config
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path

import httpx
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from scripts.exported import FIXTURES, exported, fingerprint
from tests.support import graphs
from tests.support.environments import environment
from tests.support.server import ServerProcess, serving, started

# torch and what imports it is imported where it is needed: most packages are tested without.
settings.register_profile("heed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("heed")
EXPORTED = os.environ.get("HEED_TEST_REPOSITORY")
SERVER = os.environ.get("HEED_TEST_SERVER")
KSERVE = ("kserve==0.21.0", "tritony==0.0.23")
ROOT = Path(__file__).parents[1]
NODE_MODULES = ROOT / "node_modules"
SUPPORT = Path(__file__).with_name("support")
EXPORTING = Path(__file__).with_name("export")
VIEWER = Path(__file__).with_name("viewer")


def pytest_configure() -> None:
    """Refuse to configure logging in this process: that closes the log handlers of all libraries."""

    def refused(*_: object, **__: object) -> None:
        pytest.fail("logging.config closes every log handler of the process: uvicorn.Config takes log_config=None")

    logging.config.dictConfig = logging.config.fileConfig = refused


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that export come first: they take longest, and at the end one process would wait for the other.

    Those of the viewer come together, as they share a browser that ends with them.
    """
    items.sort(key=lambda item: (EXPORTING not in item.path.parents, VIEWER not in item.path.parents))


def pytest_collection_finish() -> None:
    """Take what was imported out of garbage collection: exporting otherwise spends a tenth of its time there."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what this run left out."""
    if config.option.markexpr == "not extended":
        terminalreporter.write_line(
            "`make test-all` runs the other tests: all of the viewer's in a browser, families of transformers, half "
            "precision, the wheel, the benchmarks' commands, clients of others"
        )


@pytest.fixture(autouse=True)
def unchanged_log() -> Iterator[None]:
    """A request to an application in this process may change the level and the filters of its log."""
    log = logging.getLogger("heed")
    level, filters = log.level, [*log.filters]
    yield
    log.setLevel(level)
    log.filters = filters


@pytest.fixture(scope="session")
def once(tmp_path_factory, worker_id) -> Callable[..., Path]:
    """A folder by its name, filled once for all of pytest-xdist's workers, which read it and never write.

    With ``keep`` it is kept for later runs, until the code changes that exports, or the module of ``fill``.
    """
    own = tmp_path_factory.getbasetemp()

    def filled(name: str, fill: Callable[[Path], object], keep: bool = False) -> Path:
        folder = _kept(fill) / name if keep else (own if worker_id == "master" else own.parent) / name
        done = folder.with_suffix(".done")
        with FileLock(folder.with_suffix(".lock")):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a run that was ended
                fill(folder)
                done.touch()
        return folder

    return filled


def _kept(fill: Callable[[Path], object]) -> Path:
    """The folder of what ``fill`` and others of its module export in this state of the code."""
    module = Path(fill.__code__.co_filename)
    folder = _state() / f"{module.stem}-{hashlib.sha256(module.read_bytes()).hexdigest()[:16]}"
    folder.mkdir(exist_ok=True)
    return folder


@cache
def _state() -> Path:
    """The folder of what was exported for tests in this state of the code; those of older states are removed."""
    sources = [Path(__file__), ROOT / "constraints.txt", *sorted(SUPPORT.glob("*.py"))]
    state = hashlib.sha256(fingerprint().encode() + b"".join(file.read_bytes() for file in sources)).hexdigest()[:16]
    folder = ROOT / ".exports" / FIXTURES / state
    with FileLock(ROOT / ".exports" / "fixtures.lock"):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.parent.iterdir():
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
    return folder


@pytest.fixture(scope="session")
def repository() -> Path:
    """Every built-in block, which is read and never written."""
    return Path(EXPORTED) if EXPORTED else exported()


@pytest.fixture(scope="session")
def two_blocks(repository, tmp_path_factory) -> Path:
    """``dot_product`` and ``scaled_dot_product``, which a server loads in half the time that it takes for all."""
    folder = tmp_path_factory.mktemp("two_blocks")
    for name in ("dot_product", "scaled_dot_product"):
        shutil.copytree(repository / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def sentence_model(once) -> Path:
    """The directory of a small BERT with a tokenizer of words, as sentence-transformers writes it."""

    def fill(folder: Path) -> None:
        from tests.support.texts import save_sentence_model  # imports transformers, which takes seconds

        save_sentence_model(folder)

    return once("sentence model", fill, keep=True)


@pytest.fixture(scope="session")
def texts_repository(once, sentence_model, repository) -> Path:
    """A repository with that model as ``bert``, and a block without a tokenizer."""

    def fill(folder: Path) -> None:
        from export.__main__ import main

        assert main(["hf", str(sentence_model), "--name", "bert", "--repository", str(folder)]) == 0
        shutil.copytree(repository / "dot_product", folder / "dot_product")

    return once("sentence model exported", fill, keep=True)


@pytest.fixture(scope="session")
def generating(once) -> Path:
    """A folder with a small GPT-2 and its tokenizer, ``gpt``, and a model repository that has it, ``models``."""

    def fill(folder: Path) -> None:
        from export.__main__ import main
        from tests.support.families import FAMILIES, SPECIAL, Family, save
        from tests.support.texts import save_tokenizer

        family = FAMILIES["gpt 2"]
        save(Family(family.model, {**family.config, **SPECIAL}), folder / "gpt")
        save_tokenizer(folder / "gpt")
        assert main(["hf", str(folder / "gpt"), "--repository", str(folder / "models")]) == 0

    return once("gpt 2 that generates", fill, keep=True)


@pytest.fixture(scope="session")
def family(once) -> Callable[[str], Path]:
    """``family(name)``: a folder with its directory of transformers, ``model``, and its repository, ``models/mine``."""

    def exported(name: str) -> Path:
        def fill(folder: Path) -> None:
            from tests.support.families import FAMILIES, PREPROCESSOR, save, takes_text
            from tests.support.texts import save_tokenizer

            save(FAMILIES[name], folder / "model")
            if takes_text(name):
                save_tokenizer(folder / "model")
            if "image_size" in FAMILIES[name].config:
                (folder / "model" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
            export_as_mine(folder, *FAMILIES[name].flags)

        return once(f"family {name}", fill, keep=True)

    return exported


def export_as_mine(folder: Path, *flags: str) -> None:
    """Export ``model`` in ``folder`` to its ``models/mine``."""
    from export.__main__ import main  # imports transformers, which takes seconds

    target = ["--name", "mine", "--repository", str(folder / "models")]
    assert main(["hf", str(folder / "model"), *target, *flags]) == 0


def saved_and_exported(once, module: str) -> Callable[[str], Path]:
    """The folder of a model's name, whose directory ``save_model`` of that module of ``tests.support`` writes."""

    def exported(name: str) -> Path:
        def fill(folder: Path) -> None:
            import_module(f"tests.support.{module}").save_model(name, folder / "model")
            export_as_mine(folder)

        return once(f"{module} {name}", fill, keep=True)

    return exported


@pytest.fixture(scope="session")
def towers(once) -> Callable[[str], Path]:
    """``towers(name)``: a folder with a directory of ``tests.support.towers``, ``model``, and ``models/mine``."""

    return saved_and_exported(once, "towers")


@pytest.fixture(scope="session")
def readers(once) -> Callable[[str], Path]:
    """``readers(name)``: a folder with a directory of ``tests.support.readers``, ``model``, and ``models/mine``."""

    return saved_and_exported(once, "readers")


@pytest.fixture(scope="session")
def two_stacks(family, tmp_path_factory) -> Path:
    """A model repository with a small BART of random weights and its tokenizer of words, ``bart``."""
    folder = tmp_path_factory.mktemp("two stacks")
    shutil.copytree(family("bart") / "models" / "mine", folder / "bart")
    return folder


@pytest.fixture(scope="session")
def halves(once) -> Path:
    """Two blocks in half precision: ``attention_float16``, of few options, and ``efficient_bfloat16``."""

    def fill(folder: Path) -> None:
        from export.artifact import export_block
        from tests.support.halves import HALVES

        for block in HALVES.values():
            export_block(block, folder)

    return once("halves", fill, keep=True)


@pytest.fixture(scope="session")
def fused(once, repository) -> Path:
    """``scaled_dot_product`` in float32 with the fast paths of CUDA: the folder of its version."""

    def fill(folder: Path) -> None:
        import onnx

        from export.graphs.graph import export_graph
        from export.kernels.fast_path import CUDA
        from models.catalogue import BLOCKS

        block = BLOCKS["scaled_dot_product"]
        version = folder / block.name / "1"
        shutil.copytree(repository / block.name / "1", version)
        for name, path in CUDA.items():
            graph = export_graph(block, block.build(), *path.graph(block), path)
            spec = {"block": block.name, "fast_path": name} | path.spec()
            onnx.helper.set_model_props(graph, {"heed": json.dumps(spec)})
            onnx.save(graph, version / f"{name}.onnx")

    return once("fused", fill, keep=True) / "scaled_dot_product" / "1"


@pytest.fixture(scope="session")
def kserve_python(request) -> Path:
    """The Python of an environment with KServe and tritony."""
    return environment(request.config, *KSERVE) / "python"


@pytest.fixture(scope="session")
def guide(once) -> Path:
    """The documentation as `make docs` builds it; what it printed, warnings too, is in the file ``log``."""

    def fill(folder: Path) -> None:
        if not NODE_MODULES.exists():
            pytest.skip("no node_modules here: npm ci")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
        (folder / "log").write_text(built.stdout + built.stderr)

    return once("guide", fill)


@pytest.fixture
def free_port() -> int:
    """For what takes a port that is not 0; another process may still take it before."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """``adder``, and ``slow``, which takes a second for some hundred rows; many modules have others of their own."""
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    graphs.slow(folder / "slow" / "1", 2000)
    return folder


@pytest.fixture(scope="session")
def adder(tmp_path_factory) -> Path:
    """A repository of ``adder`` alone, which is loaded in no time."""
    folder = tmp_path_factory.mktemp("adder")
    graphs.adder(folder / "adder" / "1")
    return folder


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory) -> Iterator[Callable[..., ServerProcess]]:
    """``shared_server(models, *flags)``: one ready server for all tests that ask for the same models and flags.

    No test stops it, changes its models, or depends on what its counters were before.
    """
    servers: dict[tuple[str, ...], ServerProcess] = {}
    with ExitStack() as running:

        def serve(models: Path, *flags: str) -> ServerProcess:
            key = (str(models), *flags)
            if key not in servers:
                log = tmp_path_factory.mktemp("server") / "log"
                servers[key] = running.enter_context(started(models, log, *flags))
            return servers[key]

        yield serve


@pytest.fixture
def two(models, tmp_path) -> Iterator[ServerProcess]:
    """A server of two workers."""
    with started(models, tmp_path / "log", "--workers", "2") as server:
        yield server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> Path:
    """The folder of a ``key``, and a ``certificate`` of 127.0.0.1 that it has signed itself."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl here: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=heed"
    wanted = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key", "-out", folder / "certificate"]
    subprocess.run([*command.split(), *wanted], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def client(repository) -> Iterator[httpx.Client]:
    if SERVER:
        with httpx.Client(base_url=SERVER, timeout=60) as client:
            yield client
    else:
        with serving(repository) as client:
            yield client
