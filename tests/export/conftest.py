"""Exports in less time, for tests of something else than what they leave out."""

import pytest
import torch

from export.verification.checks import SHORT

torch.set_num_threads(1)  # more would wait for the CPUs of the other test processes


@pytest.fixture
def without_fast_paths(monkeypatch):
    """For tests of the weights and settings; ``test_published`` exports fast paths, too."""
    monkeypatch.setattr("export.artifact.fast_paths", lambda *_: {})


@pytest.fixture
def few_examples(monkeypatch):
    """Verify at few sizes, as an export does with a large block."""
    monkeypatch.setattr("export.verification.checks.SIZES", SHORT)
