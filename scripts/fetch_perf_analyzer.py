"""Fetch perf_analyzer and its libraries into a folder: the last version that runs on glibc 2.36 (Debian 12).

On newer systems, ``pip install perf-analyzer`` is enough. Prints the path of a command that runs it.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

TRITONCLIENT = "tritonclient==2.50.0"  # contains the binary
CUDA_RUNTIME = "nvidia-cuda-runtime-cu12==12.9.79"
LIBB64 = "libb64-0d"  # a Debian package


def fetch(folder: Path) -> Path:
    """The path of the command; it is fetched unless it exists."""
    command = folder / "perf_analyzer"
    if command.exists():
        return command
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder]
    subprocess.run([*pip, "--platform", "manylinux1_x86_64", TRITONCLIENT], check=True)
    subprocess.run([*pip, "--platform", "manylinux2014_x86_64", CUDA_RUNTIME], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as content:
            members = [name for name in content.namelist() if name.endswith(("bin/perf_analyzer", "libcudart.so.12"))]
            content.extractall(folder, members)
        wheel.unlink()
    subprocess.run(["apt-get", "download", LIBB64], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    subprocess.run(["dpkg-deb", "-x", next(folder.glob("*.deb")), folder], check=True)
    binary = next(folder.rglob("bin/perf_analyzer"))
    binary.chmod(0o755)
    libraries = {str(file.parent) for file in folder.resolve().rglob("*.so.*")}
    command.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{":".join(sorted(libraries))}" exec "{binary.resolve()}" "$@"\n')
    command.chmod(0o755)
    return command


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])).resolve())
