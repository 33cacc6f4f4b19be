"""The graph with interventions: it is the model where nothing changes, and a wrong site is left out."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from export.hf.description import block_of
from export.hf.interventions import graphs
from export.hf.interventions.graph import with_interventions
from export.hf.pretrained import ModelRefused, load
from export.verification.sessions import run_outputs, session
from tests.export.hf.generating import metadata_entry

SITES = ["weights", "head_output", "hidden", "attention_output", "mlp_output"]
IDS = {"input_ids": np.array([[5, 9, 31, 7], [8, 8, 40, 6]])}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def version(generating):
    return generating / "models" / "gpt" / "1"


@pytest.fixture
def made(generating, version, tmp_path):
    """The interventions of a small GPT-2, whose graph ``wrong`` makes of other sites."""

    def make(monkeypatch, wrong):
        monkeypatch.setattr(graphs, "with_interventions", lambda model, sites: with_interventions(model, wrong(sites)))
        block, original = block_of(load(generating / "gpt"), "gpt")
        return graphs.intervention_graphs(
            block, original, onnx.load(version / "model.onnx"), tmp_path, lambda _: None
        ).entry

    return make


def reversed_layers(name):
    """Sites of which ``name`` has the layers in the wrong order."""

    def wrong(sites):
        return [replace(site, values=site.values[::-1]) if name in (site.name, "all") else site for site in sites]

    return wrong


def test_the_metadata_has_the_activations_of_each_layer(version):
    hidden = [2, "batch", "n", 32]
    assert metadata_entry(version, "interventions") == {
        "sites": {
            "weights": [2, "batch", 4, "n", "n"], "head_output": [2, "batch", 4, "n", 8], "hidden": hidden,
            "attention_output": hidden, "mlp_output": hidden,
        },
        "left_out": {},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["interventions", "interventions_output"])
def test_without_interventions_it_computes_the_model(version, name):
    run = session(version / f"{name}.onnx")
    names = [output.name for output in run.get_outputs() if output.name in ("output", "weights", "hidden_states")]
    expected = run_outputs(session(version / "model.onnx"), names, IDS)
    for output, array in run_outputs(run, names, IDS).items():
        np.testing.assert_allclose(array, expected[output], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SITES)
def test_a_site_whose_changes_differ_from_those_of_transformers_is_left_out(made, monkeypatch, name):
    entry = made(monkeypatch, reversed_layers(name))
    assert [*entry["sites"]] == [site for site in SITES if site != name]
    assert "differs by" in entry["left_out"][name]


def test_a_model_without_a_site_is_refused(made, monkeypatch):
    with pytest.raises(ModelRefused, match=r"weights: .* differs by"):
        made(monkeypatch, reversed_layers("all"))
