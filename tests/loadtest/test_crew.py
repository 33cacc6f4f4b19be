"""A process of the load that ends is an error; none is left behind."""

import pytest

from loadtest.pool import WorkerPool


def test_a_process_that_dies():
    with WorkerPool(2) as pool:
        pool._processes[0].kill()
        pool._processes[0].wait()
        pool._active = pool._pipes
        with pytest.raises(RuntimeError, match="a process that makes the load has ended"):
            list(pool.samples(10))
    assert all(process.poll() is not None for process in pool._processes)
