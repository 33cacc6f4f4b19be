"""``heed serve``: the service on uvicorn, in one process or in several."""

import logging
import os
import sys
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_settings import CliApp

from service import logs, machine, tracing
from service.app import create_app
from service.board import Board
from service.channel import Channel
from service.server import Server, listen
from service.settings import Settings
from service.worker import Worker
from service.workers import Supervisor

log = logging.getLogger("heed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it; answers the exit status: 2 for a wrong setting, 1 for one that cannot be had."""
    try:
        settings = CliApp.run(Settings, cli_args=list(sys.argv[1:] if arguments is None else arguments))
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(map(str, problem["loc"]))
            _say(f"{name} (HEED_{name.upper()}): {problem['msg']}, got {problem['input']!r}")
        return 2
    try:
        os.scandir(settings.model_repository).close()
    except OSError as error:
        folder = str(settings.model_repository)
        _say(f"model_repository (HEED_MODEL_REPOSITORY): {folder!r} is no folder to read: {error.strerror}")
        return 2
    try:
        tracing.is_wanted()
    except tracing.CannotTrace as error:
        _say(str(error))
        return 2
    try:
        listeners = listen(settings.host, settings.port)
    except OSError as error:
        _say(f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}")
        return 1
    machine.keep_heap()
    logs.configure(settings.log_level, settings.log_format)
    scheme = "https" if settings.tls_certificate else "http"
    for listener in listeners:
        host, port, *_ = listener.getsockname()
        log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)

    board = Board(2 * settings.workers + 2)  # those that leave have theirs to the end

    def work(channel: Channel) -> None:
        app = create_app(settings, board, channel.slot)
        Worker(app, settings, channel, app.repository.ready.is_set).run()

    if settings.workers > 1:
        drain, shutdown = settings.drain_seconds, settings.shutdown_seconds
        return Supervisor(work, settings.workers, listeners, drain, shutdown, board).run()
    try:
        Server(create_app(settings), settings).run(listeners)
    except SystemExit:  # uvicorn's, of a start that failed; the log says why
        return 1
    return 0


def _say(what: str) -> None:
    print(f"heed serve: {what}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
