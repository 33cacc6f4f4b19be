"""A server that starts quickly, as these tests start many."""

import shutil

import pytest


@pytest.fixture(scope="session")
def few_blocks(repository, tmp_path_factory):
    """A repository with two blocks."""
    folder = tmp_path_factory.mktemp("few")
    for block in ("scaled_dot_product", "dot_product"):
        shutil.copytree(repository / block, folder / block)
    return folder
