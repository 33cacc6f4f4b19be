"""Which model repository a command reads: the one given, the one here, or the blocks that the wheel brought."""

import os
from pathlib import Path

import service
from service.settings import Settings

BUILTIN = Path(service.__file__).parent / "builtin"  # in a wheel of `make wheel`; a checkout has none


class NoFolder(Exception):
    """There is no model repository; the message has the path, and a remedy."""


def with_folder(settings: Settings) -> Settings:
    """``settings`` with the built-in blocks of the wheel if no repository is given and this folder has none.

    Raises:
        NoFolder: the repository cannot be read.
    """
    folder = settings.model_repository
    is_given = "model_repository" in settings.model_fields_set
    if not is_given and not folder.exists() and BUILTIN.is_dir():
        return settings.model_copy(update={"model_repository": BUILTIN})
    try:
        os.scandir(folder).close()
    except OSError as error:
        advice = "" if is_given else "; `heed export` writes the built-in blocks there"
        raise NoFolder(
            f"--model-repository (HEED_MODEL_REPOSITORY): {str(folder)!r} is not a readable folder: {error.strerror}, "
            f"{folder.absolute()}{advice}"
        ) from None
    return settings
