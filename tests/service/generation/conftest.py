"""The server of the small GPT-2 is that of the tests of interventions."""

from tests.service.interventions.conftest import client, service

__all__ = ["client", "service"]
