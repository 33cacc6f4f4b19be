"""The id of a request, in its answer."""


def test_an_answer_has_the_id_of_its_request_or_one_of_its_own(client):
    names = [{"X-Request-ID": name} for name in ("mine-7", "two words", "two words")]
    first, *others = (client.get("/v2/health/live", headers=name).headers["x-request-id"] for name in names)
    assert first == "mine-7"
    assert len({*others, "two words"}) == 3
