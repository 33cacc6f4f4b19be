"""A limit on the memory of all requests in a process, from a request's first byte to the last byte of its answer."""

from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NoReturn

from service.base.errors import Overloaded, TooMuchMemory
from service.base.messages import size_words, sizes_words


class MemoryBudget:
    """Bytes that requests need outside of runs: bodies, arrays read from them, answers until they are written.

    To be used on the event loop only. ``refused`` counts rejected requests by the name of the setting.
    """

    def __init__(self, limit: int, overloaded: type[Overloaded], refused: Counter[str]) -> None:
        self.limit = limit
        self.used = 0
        self._overloaded = overloaded
        self._refused = refused

    def has_room(self, size: int) -> bool:
        """Whether a request that has reserved nothing may reserve ``size`` bytes."""
        return self.used + size <= self.limit

    def refuse(self, size: int, own: int) -> NoReturn:
        """Refuse ``size`` bytes, for which there is no room, to a request that has reserved ``own`` bytes before.

        Raises:
            TooMuchMemory: this request alone needs more than the limit.
            Overloaded: there is no room beside other requests.
        """
        if own + size > self.limit:
            got, most = sizes_words(own + size, self.limit)
            raise TooMuchMemory(
                f"this request needs about {got} for its tensors and its answer, which exceeds the maximum allowed, "
                f"{most} (half of memory_budget_bytes); send fewer rows, or ask for fewer outputs"
            )
        self._refused["memory_budget_bytes"] += 1
        raise self._overloaded(
            f"requests hold {size_words(self.used)} of memory, and this one needs {size_words(size)} more; the limit "
            f"is {size_words(self.limit)} (half of memory_budget_bytes); try again later",
            1,
        )


class Reservation:
    """What one request has reserved of the budget."""

    __slots__ = ("_held", "budget", "bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self._held: ExitStack | None = None
        self.bytes = 0

    def add(self, size: int) -> None:
        """Reserve ``size`` more bytes.

        Raises:
            TooMuchMemory, Overloaded: there is no room for them.
        """
        budget = self.budget
        if budget.used + size > budget.limit:
            budget.refuse(size, self.bytes)
        budget.used += size
        self.bytes += size

    def hold(self, context: AbstractContextManager[Any]) -> None:
        """Enter ``context``, which is left with the release."""
        if self._held is None:
            self._held = ExitStack()
        self._held.enter_context(context)

    def release(self) -> None:
        """Release all reserved bytes, and leave all contexts."""
        self.budget.used -= self.bytes
        self.bytes = 0
        if self._held is not None:
            self._held.close()
            self._held = None
