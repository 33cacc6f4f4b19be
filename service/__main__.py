"""``heed serve``: the service on uvicorn."""

import os
import sys
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import uvicorn
from pydantic import ValidationError
from pydantic_settings import CliApp
from starlette.types import ASGIApp
from uvicorn.config import LOGGING_CONFIG

from service.app import create_app
from service.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it; answers the exit status."""
    try:
        settings = CliApp.run(Settings, cli_args=list(sys.argv[1:] if arguments is None else arguments))
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(map(str, problem["loc"]))
            print(
                f"heed serve: {name} (HEED_{name.upper()}): {problem['msg']}, got {problem['input']!r}", file=sys.stderr
            )
        return 2
    os.environ["HEED_SETTINGS_JSON"] = settings.model_dump_json()  # how the settings reach worker processes
    uvicorn.run(
        "service.__main__:app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        log_config=_logging(settings.log_level),
        access_log=False,
        server_header=False,
    )
    return 0


def _logging(level: str) -> dict[str, Any]:
    """uvicorn's logging, with the service's own logger beside uvicorn's."""
    config = deepcopy(LOGGING_CONFIG)
    config["loggers"]["heed"] = {"handlers": ["default"], "propagate": False}
    for logger in config["loggers"].values():
        logger["level"] = level.upper()
    return config


def app() -> ASGIApp:
    """The application of one worker process."""
    return create_app(Settings.model_validate_json(os.environ["HEED_SETTINGS_JSON"]))


if __name__ == "__main__":
    sys.exit(main())
