"""All that knows the options knows those of the table: the clients' calls, the flags of ``heed run``, the page."""

import inspect
import re
from pathlib import Path

import pytest

from heed_client.async_client import AsyncClient
from heed_client.client import Client
from heed_client.command import arguments
from service.selection.options import OPTIONS

PAGE = Path(__file__).parents[3] / "docs" / "attention.md"


@pytest.mark.parametrize("call", ["attend", "generate"])
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_the_clients_have_every_option(client, call):
    assert OPTIONS.keys() <= inspect.signature(getattr(client, call)).parameters.keys()


def test_heed_run_has_a_flag_of_every_option():
    flags = {action.dest for action in arguments.parser()._actions}
    assert OPTIONS.keys() <= flags


def test_the_page_describes_every_option():
    assert OPTIONS.keys() <= set(re.findall(r"`(\w+)", PAGE.read_text()))
