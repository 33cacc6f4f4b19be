"""Models and API keys that change while requests are answered on the fast path."""

import json
import os

from tests.support import graphs
from tests.support.http_requests import ADDER, add, http
from tests.support.in_process import Client, known, serving_in_process
from tests.support.waiting import until


def test_models_that_come_and_go(tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    with serving_in_process(tmp_path, model_control_mode="explicit") as service, Client(service) as client:
        request = known(client)
        assert client.ask(http(b"", "/v2/repository/models/adder/unload")).status == 200
        assert client.ask(request).status == 404
        graphs.adder(tmp_path / "adder" / "2", 2.0)
        assert client.ask(http(b"", "/v2/repository/models/adder/load")).status == 200
        assert client.ask(request).sum() == [4.5] * 3
        answer = client.learn(request)
        assert answer.sum() == [4.5] * 3
        assert json.loads(answer.body)["model_version"] == "2"


def test_keys_are_checked_for_each_request_and_followed_when_they_change(models, tmp_path):
    file = tmp_path / "keys"
    file.write_text("old\n")
    mine, none, wrong = (
        http(add(1.5), ADDER, *lines) for lines in (["X-API-Key: old"], [], ["Authorization: Bearer x"])
    )
    with serving_in_process(models, api_keys_file=file) as service, Client(service) as client:
        assert client.learn(mine).sum() == [2.5] * 3
        for refused in (none, wrong) * 3:
            assert client.ask(refused).status == 401
            assert client.ask_quick(mine).sum() == [2.5] * 3
        (tmp_path / "next").write_text("new\n")
        os.replace(tmp_path / "next", file)
        until(lambda: client.ask(mine).status == 401)
        assert client.ask(mine).status == 401
        assert client.learn(http(add(1.5), ADDER, "X-API-Key: new")).sum() == [2.5] * 3


def test_keys_of_administrators_leave_the_quick_way(models, tmp_path):
    (tmp_path / "keys").write_text("admin\n")
    with serving_in_process(models, admin_keys_file=tmp_path / "keys") as service, Client(service) as client:
        assert client.ask_quick(known(client)).sum() == [3.5] * 3
        assert client.ask(http(b"{}", "/v2/logging")).status == 401
