"""Requests that are nearly right: each gets its own answer or its own error, and the server stays up."""

import pytest
import uvloop

from benchmarks.server import served
from benchmarks.soak.fuzz import FLAGS, Fuzzer, fuzz_connections

MUTANTS = 400


@pytest.mark.extended
def test_mutants(two_blocks):
    with served(two_blocks, *FLAGS) as server:
        fuzzer = Fuzzer(server.port)
        uvloop.run(fuzz_connections(fuzzer, 1, MUTANTS))
        assert not fuzzer.wrong
        assert fuzzer.mutated == MUTANTS
        assert fuzzer.statuses[200] > MUTANTS / 2
        assert fuzzer.statuses[400] > MUTANTS / 4
        assert server.check().passed, server.log()
