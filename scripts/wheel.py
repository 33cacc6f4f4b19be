"""Build a wheel with the built-in blocks: where it is installed, ``heed serve`` needs neither torch nor a checkout.

usage: PYTHON -m scripts.wheel [--repository FOLDER] [DIST]

The blocks are those of scripts/exported.py, or of FOLDER, a model repository. The wheel is written to DIST (dist/).
It is built from a copy of what pyproject.toml names, so that no blocks are left in the checkout, where they would age.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from scripts.exported import ROOT, ExportFailed, exported

BUILTIN = Path("service/builtin")  # service/cli/folder.py looks there


def build(repository: Path, folder: Path, root: Path = ROOT) -> Path:
    """The wheel in ``folder``, with the newest version of each block in ``repository``.

    Raises:
        ValueError: the repository holds no block.
        subprocess.CalledProcessError: pip could not build it; standard error says why.
    """
    graphs = sorted(repository.glob("*/*/model.onnx"), key=lambda graph: int(graph.parent.name))
    versions = {graph.parents[1].name: graph.parent for graph in graphs}
    if not versions:
        raise ValueError(f"{repository} holds no blocks, as <name>/<version>/model.onnx")
    project = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    with tempfile.TemporaryDirectory() as copy:
        for name in ("pyproject.toml", "README.md", "LICENSE", *project["only-include"]):
            _copy(root / name, Path(copy, name))
        for name, version in versions.items():
            shutil.copytree(version, Path(copy, BUILTIN, name, version.name))
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*command, "--wheel-dir", str(folder), copy], check=True)
    return max(folder.glob("heed_attention-*.whl"), key=lambda wheel: wheel.stat().st_mtime)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, help="model repository with the blocks")
    parser.add_argument("dist", nargs="?", type=Path, default=Path("dist"), help="folder for the wheel (default dist)")
    options = parser.parse_args()
    try:
        wheel = build(options.repository or exported(), options.dist)
    except ExportFailed:
        return 1
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"scripts.wheel: no wheel was built: {error}", file=sys.stderr)
        return 1
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
