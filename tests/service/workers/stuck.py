"""``heed serve``; its path ``/v2/health/stuck`` notes its process, and holds the interpreter's lock for ever."""

import ctypes
import os
import sys
from pathlib import Path

from service.cli.serve import main
from service.v2 import health
from service.workers import server
from service.workers import supervisor as workers


@health.router.get("/stuck")
async def stuck() -> None:
    mutex = ctypes.create_string_buffer(64)  # as PTHREAD_MUTEX_INITIALIZER has it
    lock = ctypes.PyDLL(None).pthread_mutex_lock  # of PyDLL: it keeps the interpreter's lock; signals do not end it
    lock(mutex)
    Path(os.environ["STUCK"]).write_text(str(os.getpid()))
    lock(mutex)


if __name__ == "__main__":
    server.HUNG_S = workers.HUNG_S = float(os.environ.get("HUNG", server.HUNG_S))
    sys.exit(main())
