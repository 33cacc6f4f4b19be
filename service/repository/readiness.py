"""Readiness: whether load balancers should send requests to this service.

It becomes ready when the models are loaded that the setting ``ready_when`` names; on an empty folder, or when models
fail to load, it does not. A model that fails or is unloaded later does not affect the others: the service stays ready.
"""

from collections.abc import Callable

from service.repository.repository import Repository


class Readiness:
    """``is_complete()``: enough models are loaded in this process or, with several workers, in all of them at one time.

    ``draining`` is set when the process is about to end.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self.is_complete: Callable[[], bool] = lambda: repository.is_complete
        self.draining = False

    def __bool__(self) -> bool:
        return self._repository.ready.is_set() and not self.draining and self.is_complete()
