"""Tasks that run beside requests: loading models, following the repository and key files, freeing memory, metrics."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

from service.base import machine
from service.base.threads import in_thread
from service.engine.engine import Engine
from service.http.auth import ApiKeyAuth
from service.metrics import Metrics
from service.ort.provider import Provider, shrink_arena
from service.repository.repository import Repository
from service.settings import Settings
from service.telemetry.event_loop import SAMPLE_S, EventLoopClock

log = logging.getLogger("heed")

CHECK_S = 1.0  # between two looks at key files, and at overdue runs
IDLE_CHECK_S = 5.0  # between two looks at whether memory can be freed, and at which memories have expired
GROWTH = 1.05  # memory is freed when the process uses this many times what it needs


@asynccontextmanager
async def background_tasks(
    repository: Repository,
    engine: Engine,
    auth: ApiKeyAuth | None,
    metrics: Metrics,
    sweeps: Iterable[Callable[[], None]],
    clock: EventLoopClock,
    settings: Settings,
) -> AsyncIterator[None]:
    """Run the tasks while the context is open. Leaving it cancels them; it does not wait for threads they started.

    ``sweeps`` remove what has expired, in threads.
    """

    metrics.publish()
    repeated: list[tuple[Callable[[], object], float]] = [
        (clock.sample, SAMPLE_S),
        (engine.terminate_overdue, CHECK_S),
        (metrics.publish, metrics.publish_interval_s),
        *((partial(in_thread, sweep), IDLE_CHECK_S) for sweep in sweeps),
    ]
    if auth:
        repeated.append((auth.reload_if_changed, CHECK_S))
    async with asyncio.TaskGroup() as group:
        works = [_load_and_follow(repository, engine, settings), *(_repeat(*work) for work in repeated)]
        tasks = [group.create_task(work) for work in works]
        yield
        for task in tasks:
            task.cancel()


async def _repeat(action: Callable[[], object], interval_s: float) -> None:
    """Run ``action``, which may be a coroutine function, every ``interval_s`` seconds; errors are only logged."""
    while True:
        try:
            await asyncio.sleep(interval_s)
            result = action()
            if isinstance(result, Awaitable):
                await result
        except MemoryError:
            log.warning("a background task ran out of memory; it runs again in %g seconds", interval_s)
        except Exception:
            log.exception("a background task failed; it runs again in %g seconds", interval_s)


async def _load_and_follow(repository: Repository, engine: Engine, settings: Settings) -> None:
    """Load the models; then free memory whenever the process is idle and, in mode poll, follow the repository."""
    try:
        start_bytes = needed_bytes = await in_thread(_load, repository)
    except Exception:
        log.exception("the models could not be loaded")
        return

    async def poll() -> None:
        try:
            await in_thread(repository.poll)
        except OSError as error:  # the folder disappeared during the scan; the next scan sees its new state
            log.warning("the model repository could not be scanned: %s", error)

    async def free_memory() -> None:
        nonlocal needed_bytes
        resident = machine.resident_bytes()
        reserved = engine.budget.used  # by answers that clients are still reading, and by connections
        if not (engine.counts.in_flight or engine.running or resident < GROWTH * (needed_bytes + reserved)):
            assert repository.provider is not None, "models are loaded"
            await in_thread(_free, repository.provider)
            needed_bytes = max(start_bytes, machine.resident_bytes() - engine.budget.used)

    polling = [_repeat(poll, settings.poll_seconds)] if settings.poll_seconds else []
    await asyncio.gather(_repeat(free_memory, IDLE_CHECK_S), *polling)


def _load(repository: Repository) -> int:
    """Load the models. Returns the resident memory in bytes before any request."""
    repository.load()
    if repository.provider is not None and repository.provider.name == "cpu":
        _free(repository.provider)  # opens the session that shrinks the arena now, while there is memory for it
    return machine.resident_bytes()


def _free(provider: Provider) -> None:
    """Return ONNX Runtime's arena and the free pages of the heap to the system.

    A busy process keeps both for the next request: to allocate them again would take longer than many requests. While
    the heap is trimmed, some 0.1 ms a megabyte, no thread can allocate from it.
    """
    shrink_arena(provider)
    machine.trim_heap()
