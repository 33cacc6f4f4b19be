"""The routes that list and describe blocks."""

from models.catalogue import BLOCKS


def test_list_and_description(client):
    listed = client.get("/v1/attention").json()["blocks"]
    assert {line["block"] for line in listed} == set(BLOCKS)
    for line in listed:
        description, block = client.get(f"/v1/attention/{line['block']}").json(), BLOCKS[line["block"]]
        assert description["formula"] == line["formula"] == block.formula
        assert description["weights"] == line["weights"]
        assert description["source"] == block.source
        assert description["providers"] == ["CPUExecutionProvider"]
        names = [part["name"] for part in (*description["inputs"], *description["parameters"])]
        assert sorted(names) == sorted(block.inputs)
        assert [part["name"] for part in description["outputs"]] == list(block.outputs)
        required = [part["name"] for part in description["inputs"] if part["required"]]
        assert required == [name for name, of in block.inputs.items() if of.required]
    described = client.get("/v1/attention/scaled_dot_product").json()
    assert {part["name"]: part["default"] for part in described["parameters"]} == {
        **{"left_window_size": -1, "right_window_size": -1},
        **{"is_causal": False, "scale": None, "softcap": 0.0, "rope_theta": 0.0, "rope_interleaved": False},
    }
    assert described["weights"] == "none"
    random = "random demonstration weights, seed 0"
    assert client.get("/v1/attention/multi_head").json()["weights"] == random
    assert client.get("/v2/models/multi_head").json()["properties"]["learned weights"] == random
    shapes = {part["name"]: part["shape"] for part in described["inputs"]}
    assert shapes["query"] == ["batch", "heads", "m", "d_k"]
    assert shapes["attn_mask"] == ["batch", "heads", "m", "past + n"]
    texts = {part["name"]: part["description"] for part in described["inputs"]}
    assert texts["document_ids"].endswith(" Broadcasts: batch and past + n may be 1.")
    assert "Broadcasts: " not in texts["query"] + texts["attn_mask"]
