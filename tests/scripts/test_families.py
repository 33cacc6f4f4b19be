"""``python -m scripts.families``: what the export says of small random models, and what it does with them."""

import gc
import json
import time

import onnxruntime
import pytest

from scripts.families import sweep
from scripts.families.__main__ import main
from scripts.families.describe import DESCRIBED, FAILED, NOT_BUILT, REFUSED, save_small

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


def test_a_model_that_is_several_in_one_is_described_by_its_parts(tmp_path):
    lines = save_small("llava_next", tmp_path)
    assert [(line.name, line.outcome) for line in lines] == [
        ("llava_next", REFUSED), ("llava_next/vision_tower", DESCRIBED), ("llava_next/language_model", DESCRIBED),
    ]  # fmt: skip
    assert lines[0].detail == "DIR has several models in one; --part exports one: vision_tower, language_model"
    assert lines[1].detail.startswith("pixel_values; output, weights, hidden_states")


def test_a_model_that_reads_pictures_is_described_whole(tmp_path):
    line = save_small("llava", tmp_path)[0]
    assert (line.outcome, line.detail.partition(", hidden")[0]) == (
        DESCRIBED, "input_ids; output, weights, vision_weights"
    )  # fmt: skip


def test_a_model_that_cannot_be_small_is_not_built(tmp_path):
    (line,) = save_small("efficientnet", tmp_path)
    assert (line.name, line.kind, line.outcome) == ("efficientnet", "", NOT_BUILT)
    assert line.detail.endswith("parameters are too many")


def test_the_advice_of_a_refusal_is_followed(tmp_path):
    (line,) = save_small("parakeet_encoder", tmp_path)
    assert (line.outcome, line.flags) == (DESCRIBED, ("--input", "input_features=1000,80"))


def test_a_part_that_has_no_model_without_a_head_is_found_beside_its_config(tmp_path):
    (line,) = save_small("blip_text_model", tmp_path)
    assert (line.kind, line.outcome) == ("BlipTextModel", DESCRIBED)


def test_outcomes_are_counted(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["families", "bert", "squeezebert"])
    assert main() == 0
    bert, squeezebert, counts = capsys.readouterr().out.splitlines()
    assert bert.startswith("bert | BertModel | described | input_ids; output, weights")
    assert squeezebert.startswith("squeezebert | SqueezeBertModel | refused | SqueezeBertModel returns scores as")
    assert counts == "1 described, 1 refused"


def test_a_traceback_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["families", "bert"])
    monkeypatch.setattr("scripts.families.describe.block_of", lambda *_: 1 / 0)
    assert main() == 1
    assert f"bert | BertModel | {FAILED} | ZeroDivisionError: division by zero" in capsys.readouterr().out


def swept(monkeypatch, tmp_path, types, *flags):
    """The exit status of a sweep over all of transformers' ``types``, and its rows."""
    out = tmp_path / "families.jsonl"
    monkeypatch.setattr(sweep, "CONFIG_MAPPING", {name: sweep.CONFIG_MAPPING[name] for name in types})
    monkeypatch.setattr("sys.argv", ["sweep", "--out", str(out), "--page", str(tmp_path / "families.md"), *flags])
    status = sweep.main()
    return status, {row["name"]: row for row in map(json.loads, out.read_text().splitlines())}


@pytest.mark.extended
def test_the_page_of_a_sweep_that_was_interrupted(monkeypatch, tmp_path, capfd):
    out, page = tmp_path / "families.jsonl", tmp_path / "families.md"
    out.write_text(json.dumps({"type": "gone", "name": "gone", "transformers": "1.0.0"}) + "\n")
    monkeypatch.setattr("sys.argv", ["sweep", "bert", "--out", str(out), "--page", str(page)])
    assert sweep.main() == 0
    assert not page.exists()
    status, rows = swept(monkeypatch, tmp_path, ["bert", "efficientnet", "squeezebert", "llava_next"])
    outcomes = {name: row["outcome"] for name, row in rows.items() if name != "gone"}
    assert (status, outcomes) == (0, {
        "bert": sweep.EXPORTED, "efficientnet": NOT_BUILT, "squeezebert": REFUSED, "llava_next": REFUSED,
        "llava_next/vision_tower": sweep.EXPORTED, "llava_next/language_model": sweep.EXPORTED,
    })  # fmt: skip
    assert capfd.readouterr().out.count("bert: exported") == 1
    text = page.read_text()
    assert "Of 4 types 1 exported, 2 refused, 1 not built; of 2 parts 2 exported." in text
    assert "| bert | BertModel | exported | input\\_ids, attention\\_mask," in text
    assert "| squeezebert | SqueezeBertModel | refused | SqueezeBertModel returns scores as" in text


def test_an_export_that_takes_too_long_is_ended(monkeypatch, tmp_path):
    status, rows = swept(monkeypatch, tmp_path, ["bert"], "--timeout", "0.2")
    assert (status, rows["bert"]["outcome"]) == (1, sweep.LATE)


def test_garbage_of_the_parent_does_not_stop_an_export(monkeypatch, tmp_path, repository):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    gc.collect()
    garbage = [onnxruntime.InferenceSession(repository / "scaled_dot_product/1/plain.onnx", options)]
    garbage.append(garbage)
    time.sleep(0.5)  # after which its thread waits
    save_small = sweep.save_small
    monkeypatch.setattr(sweep, "save_small", lambda *given: (gc.collect(), save_small(*given))[1])
    gc.disable()
    try:
        del garbage
        _, rows = swept(monkeypatch, tmp_path, ["efficientnet"], "--timeout", "20")
    finally:
        gc.enable()
    assert rows["efficientnet"]["outcome"] == NOT_BUILT


def test_a_type_that_ends_in_a_traceback_does_not_end_a_sweep(monkeypatch, tmp_path):
    monkeypatch.setattr("scripts.families.describe.block_of", lambda *_: 1 / 0)
    status, rows = swept(monkeypatch, tmp_path, ["bert"])
    assert (status, rows["bert"]["outcome"]) == (1, FAILED)
