"""A process of the load that ends is an error; none is left behind."""

import pytest

from loadtest.crew import Crew


def test_a_process_that_dies():
    with Crew(2) as crew:
        crew._running[0].kill()
        crew._running[0].wait()
        crew._busy = crew._pipes
        with pytest.raises(RuntimeError, match="a process that makes the load has ended"):
            list(crew.ticks(10))
    assert all(process.poll() is not None for process in crew._running)
