"""Flags that the commands of export share: where to write, and under which name and version."""

import argparse
import os
import re
from pathlib import Path


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add --model-repository, --version and --force."""
    parser.add_argument(
        "--model-repository", "--repository", dest="repository", metavar="PATH", type=Path,
        default=Path(os.environ.get("HEED_MODEL_REPOSITORY", "model_repository")),
        help="model repository to write to (default: HEED_MODEL_REPOSITORY, or model_repository)",
    )  # fmt: skip
    parser.add_argument(
        "--version", type=positive, help="version to write (default: the newest in the repository plus 1)"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace --version if it exists; without --version, replace the newest"
    )


def block_name(text: str) -> str:
    """``text`` if it can be the name of a block in the repository and in a URL."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", text):
        raise argparse.ArgumentTypeError(f"expected a name of letters, digits, '_', '-' and '.', got {text!r}")
    return text


def positive(text: str) -> int:
    """The whole number in ``text``, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def minutes(text: str) -> float:
    """The number of minutes in ``text``, at least 0."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text):
        raise argparse.ArgumentTypeError(f"expected a number of minutes of at least 0, got {text!r}")
    return float(text)


def seed_value(text: str) -> int:
    """The seed in ``text``, a whole number of at most 64 bits, as torch requires."""
    if not text.isdecimal() or len(text) > 20 or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2**64 - 1, got {text!r}")
    return int(text)
