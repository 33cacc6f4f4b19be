"""The graph with interventions: it is the model where nothing changes, and a wrong site is left out."""

from dataclasses import replace

import httpx
import numpy as np
import onnx
import pytest
import transformers

from export.hf.description import block_of
from export.hf.generation.graphs import Generation
from export.hf.interventions import graphs, steps
from export.hf.interventions.parts import Cuts
from export.hf.pretrained import ModelRefused, load
from export.interventions.graph import with_interventions
from export.verification.sessions import input_names, run_outputs, session
from tests.export.hf.generating import metadata_entry
from tests.export.hf.intervening import check_changed_generation
from tests.support.in_process import serving_in_process

SITES = ["weights", "head_output", "hidden", "attention_output", "mlp_output"]
IDS = {"input_ids": np.array([[5, 9, 31, 7], [8, 8, 40, 6]])}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def version(generating):
    return generating / "models" / "gpt" / "1"


@pytest.fixture
def make(generating, version, tmp_path):
    """Makes the interventions of a small GPT-2."""

    def make(has_steps=False):
        block, original = block_of(load(generating / "gpt"), "gpt")
        names = ("model", "decode", "decode_output") if has_steps else ("model",)
        canonical, *steps = (onnx.load(version / f"{name}.onnx") for name in names)
        entry = metadata_entry(version, "generation")
        generation = Generation(
            dict(zip(names[1:], steps, strict=True)), entry, dict(zip(names[1:2], steps[:1], strict=True))
        )
        return graphs.intervention_graphs(block, original, canonical, generation, tmp_path, lambda _: None)

    return make


@pytest.fixture
def made(make):
    """The entry of interventions whose graph ``wrong`` makes of other sites."""

    def made(monkeypatch, wrong):
        monkeypatch.setattr(graphs, "with_interventions", lambda model, sites: with_interventions(model, wrong(sites)))
        return make().entry

    return made


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
        "left_out": {}, "head": {"is_positionwise": True}, "has_layers": True,
        "generation": {"sites": SITES, "left_out": {}},
    }  # fmt: skip


def test_the_layers_one_after_the_other_and_the_head_compute_the_model(version):
    names = ["output", "hidden_states"]
    expected = run_outputs(session(version / "model.onnx"), names, IDS)
    hidden = expected["hidden_states"][0]
    for layer in range(2):
        (hidden,) = run_part(version / f"layer_{layer}.onnx", ["hidden_out"], hidden)
        if layer == 0:
            np.testing.assert_allclose(hidden, expected["hidden_states"][1], rtol=0, atol=1e-6)
    (output,) = run_part(version / "head.onnx", ["output"], hidden)
    np.testing.assert_allclose(output, expected["output"], rtol=0, atol=1e-6)


def run_part(path, names, hidden):
    run = session(path)
    own = {name: array for name, array in IDS.items() if name in input_names(run)}
    return run_outputs(run, names, {**own, "hidden_in": hidden}).values()


@pytest.mark.parametrize(
    ("part", "first", "last", "left"), [("layers", 1, 3, {"head"}), ("head", 0, 2, set())], ids=["layers", "head"]
)
def test_parts_that_differ_from_transformers_are_left_out(make, monkeypatch, part, first, last, left):
    """The layers begin with the hidden states of another one, or the head is that of the layer before."""
    compute = getattr(Cuts, part)

    def wrong(cuts, *arguments):
        values = (*cuts.values[first : first + 1] * (first + 1), *cuts.values[first + 1 : last])
        return compute(replace(cuts, values=values), *arguments)

    monkeypatch.setattr(Cuts, part, wrong)
    found = make()
    assert {name for name in found.graphs if name.startswith(("head", "layer"))} == left
    assert ("head" in found.entry, found.entry.get("has_layers", False)) == ("head" in left, False)


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


@pytest.mark.parametrize("name", SITES)
def test_a_site_whose_changes_of_steps_differ_is_left_out_of_generation(make, monkeypatch, name):
    wrong = reversed_layers(name)
    monkeypatch.setattr(steps, "with_interventions", lambda model, sites, _: with_interventions(model, wrong(sites)))
    entry = make(has_steps=True).entry
    assert [*entry["sites"]] == SITES
    assert entry["generation"]["sites"] == [site for site in SITES if site != name]
    assert "differs by" in entry["generation"]["left_out"][name]


def test_steps_without_interventions_compute_the_same(version):
    """The numbers of the past and of the new tokens are random."""
    plain, changing = (session(version / f"{name}.onnx") for name in ("decode", "decode_interventions"))
    inputs = steps._example(plain)
    names = [output.name for output in plain.get_outputs()]
    assert [output.name for output in changing.get_outputs()] == names
    expected = run_outputs(plain, names, inputs)
    for name, array in run_outputs(changing, names, inputs).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5)


def test_generation_with_interventions_is_that_of_transformers(generating):
    model = transformers.GPT2LMHeadModel.from_pretrained(generating / "gpt", attn_implementation="eager").eval()
    ids = np.random.default_rng(0).integers(5, 60, (2, 9))
    with (
        serving_in_process(generating / "models") as service,
        httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client,
    ):
        check_changed_generation(client, model, "gpt 2", {"input_ids": ids}, "gpt")


def test_a_model_without_a_site_is_refused(made, monkeypatch):
    with pytest.raises(ModelRefused, match=r"weights: .* differs by"):
        made(monkeypatch, reversed_layers("all"))
