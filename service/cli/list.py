"""``heed list``: the blocks in a model repository, as the service would serve them."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from service.repository.repository import Repository
from service.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each block. Returns the exit status: 1 if there are none."""
    parser = argparse.ArgumentParser(prog="heed list", description=__doc__)
    parser.add_argument(
        "--model-repository",
        type=Path,
        default=Path(os.environ.get("HEED_MODEL_REPOSITORY", "model_repository")),
        help="the folder of the models (HEED_MODEL_REPOSITORY, default model_repository)",
    )
    folder = parser.parse_args(arguments).model_repository
    repository = Repository(Settings(model_repository=folder, provider="cpu").sized())
    repository.open()
    repository.load()
    if not repository.blocks:
        print(f"no blocks in {folder}; `heed export` writes the built-in ones there", file=sys.stderr)
        return 1
    width = max(map(len, repository.blocks))
    for name, model in repository.blocks.items():
        assert model.spec is not None
        print(f"{name:{width}}  {model.version:>3}  {model.spec.title}: {model.spec.description}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
