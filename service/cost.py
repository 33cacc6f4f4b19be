"""What work takes, learned from what it took: nanoseconds for each order of magnitude of its size."""

EVERY, ALWAYS = 16, 200  # one of so many is timed, and each of the first
SLOWER, QUICKER = 0.05, 0.3  # how far a measure moves what is known: disturbances only ever slow work down


class Cost:
    """Nanoseconds of one kind of work by its size: multiply-adds of a graph, bytes of JSON, numbers written.

    Nothing is known at first, and nothing is assumed. Sizes of one order (a power of two) share a rate, so that what a
    run costs whatever its size, and caches that overflow, show in it as they are. No lock: a measure lost harms nobody.
    """

    __slots__ = ("_asked", "_rates")

    def __init__(self) -> None:
        self._asked = 0
        self._rates: dict[int, float] = {}  # order of the size -> nanoseconds for one unit of it

    def is_due(self, size: int) -> bool:
        """Whether it would learn much: to look at a thread's clock costs something, too."""
        self._asked += 1
        return self._asked % EVERY == 1 or self._asked < ALWAYS or size.bit_length() not in self._rates

    def learn(self, size: int, nanoseconds: float) -> None:
        """Work of ``size`` took so long."""
        order = size.bit_length()
        rate = nanoseconds / (size or 1)
        known = self._rates.get(order)
        if known is None:
            self._rates[order] = rate
        else:
            self._rates[order] = known + (rate - known) * (SLOWER if rate > known else QUICKER)

    def expected(self, size: int) -> float:
        """Nanoseconds that work of ``size`` takes; infinity as long as no work was done.

        Where none of its order was done, it is taken to need what the next smaller needs for a unit, or, if there is
        none, all that the next larger needs: both err to the careful side, unless a cache overflows.
        """
        order = size.bit_length()
        rate = self._rates.get(order)
        if rate is not None:
            return rate * (size or 1)
        orders = sorted(self._rates)
        if not orders:
            return float("inf")
        below = [other for other in orders if other < order]
        if below:
            return self._rates[below[-1]] * size
        return self._rates[orders[0]] * float(1 << orders[0] - 1 if orders[0] else 1)
