"""Whether this service should be sent requests: what a readiness probe is told."""

from collections.abc import Callable

from service.repository import Repository


class Readiness:
    """``others`` tells whether the other processes of the service are as far; ``draining`` is set when it is to end."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self.others: Callable[[], bool] = lambda: True
        self.draining = False

    def __bool__(self) -> bool:
        return self._repository.ready.is_set() and not self.draining and self.others()
