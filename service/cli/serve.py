"""``heed serve``: the service on uvicorn, in one process or in several."""

import errno
import gc
import logging
import os
import socket
import sys
from collections.abc import Sequence

from service.app import create_app, open_memories
from service.base import machine, threads
from service.cli.folder import BUILTIN, NoFolder, with_folder
from service.cli.options import WrongSettings, parser, read_settings
from service.cli.startup import log_settings, log_unknown_variables, log_unprotected_keys
from service.settings import Settings
from service.telemetry import logs, tracing
from service.telemetry.shared_metrics import SharedMetrics
from service.workers.application import Application
from service.workers.channel import Channel, shared_state
from service.workers.monitor import monitor
from service.workers.server import Server, listen
from service.workers.supervisor import Supervisor
from service.workers.worker import Worker

__all__ = ["main", "parser"]

log = logging.getLogger("heed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal ends the process. Returns the exit status: 2 for a wrong setting, 1 if it cannot start.

    With the setting ready_when=all-or-exit it is 3 if the models required are not loaded at the start.
    """
    try:
        settings = with_folder(read_settings(sys.argv[1:] if arguments is None else arguments))
        tracing.is_wanted()
    except (WrongSettings, NoFolder, tracing.CannotTrace) as error:
        return _fail(2, str(error))
    try:
        store = open_memories(settings)
    except OSError as error:
        return _fail(2, f"--memories (HEED_MEMORIES): {str(settings.memories)!r} cannot be used: {error.strerror}")
    port = settings.port
    try:
        listeners = listen(settings.host, port)
        port = settings.monitoring_port
        monitored = listen(settings.host, port) if port else []
    except OSError as error:
        store.close()
        return _fail(1, f"cannot listen on {settings.host}, port {port}: {error.strerror}{_advice(error, port)}")
    machine.keep_heap()
    logs.configure(settings.log_level, settings.log_format)
    log_settings(settings)
    if settings.model_repository == BUILTIN:
        log.info("serving the built-in blocks of this installation, as there is no folder model_repository here")
    log_unknown_variables(os.environ)
    log_unprotected_keys(settings, listeners)
    for listener in listeners:
        log.info("listening on %s", _url(listener, settings))
    for listener in monitored:
        log.info("metrics and health on %s", _url(listener, settings))

    slots = 2 * settings.workers + 2 if settings.workers > 1 else 1  # a worker that is ending keeps its own
    shared_metrics = SharedMetrics(slots)
    state = shared_state()

    def serve(channel: Channel) -> None:
        try:
            app = _frozen(create_app(settings, shared_metrics, channel.slot, store))
            worker = Worker(app, settings, channel, state)
            worker.run()
        finally:
            logging.shutdown()
        if worker.status:
            sys.exit(worker.status)

    try:
        with monitor(monitored, listeners, state, shared_metrics, settings):
            if settings.workers > 1:
                return Supervisor(serve, settings, listeners, shared_metrics, state).run()
            app = _frozen(create_app(settings, shared_metrics, store=store))
            server = Server(app, settings, state)
            server.run(listeners)
    except SystemExit:  # from uvicorn, when the start failed; the log says why
        return 1
    finally:
        store.close()
    if threads.is_running():
        # A thread may be in ONNX Runtime's code, which must not run while its library is unloaded.
        logging.shutdown()
        os._exit(server.status)
    return server.status


def _frozen(app: Application) -> Application:
    """``app``. Garbage collections leave it alone, with all that was imported.

    Otherwise a full collection takes tens of milliseconds, in which no request is answered.
    """
    gc.freeze()
    return app


def _url(listener: socket.socket, settings: Settings) -> str:
    host, port, *_ = listener.getsockname()
    scheme = "https" if settings.tls_certificate else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _advice(error: OSError, port: int) -> str:
    """The remedy for an address that cannot be listened on."""
    if error.errno == errno.EADDRINUSE:
        return f"; is another server running there? Try --port {port + 1}, or --port 0 for any free port"
    if error.errno == errno.EACCES:
        return "; ports below 1024 need privileges: try --port 8000"
    return "; --host must be an address of this machine: 127.0.0.1, or 0.0.0.0 for all"


def _fail(status: int, message: str) -> int:
    """Print why the service does not start, one line for each reason. Returns ``status``."""
    for line in message.splitlines():
        print(f"heed serve: {line}", file=sys.stderr)
    return status
