"""The document is valid OpenAPI 3.1, its defaults included."""

import subprocess

import pytest

pytestmark = pytest.mark.extended


def test_it_is_valid(generators, document):
    done = subprocess.run([generators / "openapi-spec-validator", document], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
