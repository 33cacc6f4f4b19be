"""How long a kind of work takes, learned from measurements: nanoseconds for each order of magnitude of its size."""

import math

LEARN_EVERY, LEARN_FIRST = 16, 200  # 1 in 16 is timed, and each of the first 200
# In all, after which also of the first ones only 1 in 16 is timed; one run counts for at most a 16th of it.
LEARN_FIRST_NS = 100_000_000
# Weights of a measurement in the moving average: disturbances only slow work down.
SLOWER_WEIGHT, FASTER_WEIGHT = 0.05, 0.3
REFUSAL_SHARE = 1 / 64  # of the expected time, by which a refusal lowers it
APART_ORDERS = 2  # between the sizes of two measurements from which the growth of the cost is computed
NANOSECOND = 1.0  # the least rate where the size is itself the nanoseconds that work is assumed to take at least
NEAR_ORDERS = 3  # smaller work, down to an eighth, of which a measurement also says how long work takes


class CostModel:
    """Nanoseconds of one kind of work by its size: multiply-adds of a graph, bytes of JSON, numbers written.

    Nothing is assumed before the first measurement. No measurement is taken for less than ``min_rate`` nanoseconds for
    one unit: clients choose what is measured. Sizes of one order (a power of two) share a rate, which so includes
    fixed costs and the effect of caches. There is no lock, as a lost measurement does no harm.
    """

    __slots__ = ("_learned_ns", "_min_rate", "_rates", "_runs")

    def __init__(self, min_rate: float = 0.0) -> None:
        self._min_rate = min_rate
        self._runs = 0
        self._learned_ns = 0.0  # the time of all measurements, of each at most a 16th of LEARN_FIRST_NS
        self._rates: dict[int, float] = {}  # order of the size -> nanoseconds for one unit of it

    def is_due(self, size: int) -> bool:
        """Whether to time this run: the first ones, and then 1 in 16.

        To read the thread's clock has a cost.
        """
        self._runs += 1
        is_first = self._runs < LEARN_FIRST and self._learned_ns < LEARN_FIRST_NS
        return is_first or self._runs % LEARN_EVERY == 1 or size.bit_length() not in self._rates

    def learn(self, size: int, nanoseconds: float) -> None:
        """Record that work of ``size`` took ``nanoseconds``."""
        order = size.bit_length()
        rate = max(nanoseconds / (size or 1), self._min_rate)
        self._learned_ns += min(nanoseconds, LEARN_FIRST_NS / LEARN_EVERY)
        rates = self._rates
        known = rates.get(order)
        if known is None:
            self._rates = {**rates, order: rate}  # not in place: another thread may iterate over it
        else:
            rates[order] = known + (rate - known) * (SLOWER_WEIGHT if rate > known else FASTER_WEIGHT)

    def learn_failure(self, size: int, nanoseconds: float) -> None:
        """Record that work of ``size`` ended in an error after ``nanoseconds``, if it took longer than expected."""
        if nanoseconds > self.expected(size):
            self.learn(size, nanoseconds)

    def learn_bounds(self, size: int, least: float, most: float) -> None:
        """Record that work of ``size`` takes from ``least`` to ``most`` nanoseconds, if another time was expected."""
        if not least <= (expected := self.expected(size)) <= most:
            self.learn(size, most if expected > most else least)

    def learn_refusal(self, size: int) -> None:
        """Expect a little less time for work of ``size``, which was refused for its forecast.

        Refused work is not measured: a measurement that was disturbed would never be corrected.
        """
        if (rate := self._rates.get(size.bit_length())) is not None:
            self._rates[size.bit_length()] = max(self._min_rate, rate * (1 - REFUSAL_SHARE))

    def learn_end(self, size: int, nanoseconds: float) -> None:
        """Expect at least twice ``nanoseconds`` for work of ``size``, which was ended after that time."""
        if 2 * nanoseconds > self.expected(size):
            self._rates = {**self._rates, size.bit_length(): 2 * nanoseconds / (size or 1)}

    def knows(self, size: int) -> bool:
        """Whether work of this order was measured, or of one that is larger or little smaller."""
        return any(order >= size.bit_length() - NEAR_ORDERS for order in self._rates)

    def expected(self, size: int) -> float:
        """Nanoseconds that work of ``size`` takes; infinity before the first measurement.

        Where no work of its order was measured, the next smaller order's rate counts, or the whole time of the next
        larger order, if that is shorter: both are rather too long than too short, unless a cache overflows.
        """
        order, rates = size.bit_length(), self._rates
        rate = rates.get(order)
        if rate is not None:
            return rate * (size or 1)
        below = max((other for other in rates if other < order), default=None)
        above = min((other for other in rates if other > order), default=None)
        return min(
            math.inf if below is None else rates[below] * size,
            math.inf if above is None else rates[above] * float(1 << above - 1),
        )

    def least(self, size: int) -> float:
        """Nanoseconds that work of ``size``, larger than all measured, takes at least; 0 if too little was measured.

        From an order measured to the largest, the rate fell by a factor: it goes on falling so. Of several orders the
        one counts from which it fell least, as a disturbed measurement makes the fall larger. Orders that are close to
        the largest say nothing: a disturbed one of the largest, or two sizes beside a border, would have the rate stay.
        It never falls below ``min_rate``.
        """
        rates = self._rates
        larger = max(rates, default=0)
        beyond = size.bit_length() - larger
        if beyond <= 0:
            return 0.0
        bounds = [self._min_rate * size] if rates else []
        for smaller in [order for order in rates if order <= larger - APART_ORDERS]:
            rate = min(rates[larger], rates[smaller])
            bounds.append(rate * size * math.pow(rate / rates[smaller], beyond / (larger - smaller)))
        return max(bounds, default=0.0)


class AssumedCost(CostModel):
    """Of work that depends on more than one size: it is assumed to take ``nanoseconds``, whatever was measured, or
    ``rate`` of them for each unit of its size if that is more."""

    def __init__(self, nanoseconds: float, rate: float = 0.0) -> None:
        super().__init__()
        self._assumed_ns = nanoseconds
        self._assumed_rate = rate

    def learn(self, size: int, nanoseconds: float) -> None:
        """Learn nothing."""

    def expected(self, size: int) -> float:
        """The time that is assumed."""
        return max(self._assumed_ns, self._assumed_rate * size)


UNKNOWN = AssumedCost(math.inf)  # of work that waits for another machine: no measurement tells the time of the next one
