"""Export the built-in blocks, and cache the result until the code or the libraries change.

usage: PYTHON -m scripts.exported [--cuda] [FOLDER]

The cache is ``.exports/<hash>`` in this checkout, for the tests and for ``make serve``. With FOLDER, a model
repository, the blocks are copied there as version 1, unless FOLDER has this export already. The processor is part of
the hash, because each file has a tolerance that was measured on it.
"""

import argparse
import hashlib
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[1]
SOURCES = ("models", "export")
LIBRARIES = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu", "numpy", "ml_dtypes")
FIXTURES = "fixtures"  # of tests, which remove them themselves
MAX_CACHED = 8  # exports of 4 MB each; the newest are kept


class ExportFailed(Exception):
    """A block failed its checks; standard error names it."""


def fingerprint(cuda: bool = False, root: Path = ROOT) -> str:
    """The hash of the code and libraries that determine an export, with or without the fast paths of CUDA."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {cuda} {_processor()}".encode())
    for file in sorted(file for folder in SOURCES for file in (root / folder).rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"\n{file.relative_to(root)} {len(content)}\n".encode() + content)
    for library in LIBRARIES:
        digest.update(f"\n{library} {_version(library)}".encode())
    return digest.hexdigest()[:16]


def exported(cuda: bool = False, root: Path = ROOT) -> Path:
    """The model repository of the built-in blocks, exported unless it is in the cache.

    Raises:
        ExportFailed: a block failed its checks; nothing is cached.
    """
    cache = root / ".exports"
    folder = cache / fingerprint(cuda, root)
    cache.mkdir(exist_ok=True)
    with FileLock(cache / "lock"):
        if not folder.exists():
            partial = cache / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            _export(partial, cuda)
            partial.rename(folder)
            folders = [path for path in cache.iterdir() if path.is_dir() and path != cache / FIXTURES]
            for old in sorted(folders, key=lambda path: path.stat().st_mtime)[:-MAX_CACHED]:
                shutil.rmtree(old)
    return folder


def copy(cuda: bool, repository: Path, root: Path = ROOT) -> None:
    """Copy the built-in blocks into ``repository``, whose file ``.exported`` has the hash of the last copy."""
    stamp = repository / ".exported"
    current = fingerprint(cuda, root)
    if stamp.exists() and stamp.read_text() == current:
        return
    for version_folder in exported(cuda, root).glob("*/1"):
        target = repository / version_folder.parent.name / "1"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(version_folder, target)
    stamp.write_text(current)


def _export(repository: Path, cuda: bool) -> None:
    from export.__main__ import main  # imports torch, which takes seconds

    print("exporting the built-in blocks, once for this state of models/ and export/", flush=True)
    if main(["--repository", str(repository), "--version", "1", *(["--cuda"] if cuda else [])]):
        raise ExportFailed


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kind = {line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))}
    return f"{platform.machine()} {sorted(kind)}"


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="with the fast paths for CUDA")
    parser.add_argument("folder", nargs="?", type=Path, help="model repository to copy the blocks into")
    options = parser.parse_args()
    try:
        if options.folder:
            copy(options.cuda, options.folder)
        else:
            exported(options.cuda)
    except ExportFailed:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
