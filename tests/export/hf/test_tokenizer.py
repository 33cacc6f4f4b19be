"""What is read of a directory's tokenizer, and of sentence-transformers' modules."""

import json
from contextlib import nullcontext

import pytest
import torch
from tokenizers import Tokenizer

from export.hf.pooling import Pooling, UnknownPooling, pooling_of
from export.hf.tokenizer import NoTokenizer, tokenizer_json
from tests.support.texts import save_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


def test_the_directory_says_how_texts_are_padded_and_truncated(tmp_path):
    save_tokenizer(tmp_path, padding_side="left")
    written = Tokenizer.from_str(tokenizer_json(tmp_path))
    assert written.truncation is None
    assert (written.padding["direction"], written.padding["pad_id"], written.padding["length"]) == ("left", 1, None)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    assert Tokenizer.from_str(tokenizer_json(tmp_path)).truncation["max_length"] == 7


def test_a_directory_without_a_tokenizer_has_none(tmp_path):
    assert tokenizer_json(tmp_path) is None


@pytest.mark.parametrize("content", ["{}", "not json"])
def test_a_broken_tokenizer_is_refused_with_the_reason(content, tmp_path):
    save_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(NoTokenizer, match="transformers cannot read it"):
        tokenizer_json(tmp_path)


def modules(folder, kinds, config):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}"} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))


KINDS = ["Transformer", "Pooling", "Normalize"]
POOLINGS = {  # the modules, the settings of the pooling, and what it is; None where it is another
    "mean": (KINDS, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
    "cls": (KINDS, {"pooling_mode_cls_token": True}, "cls"),
    "max": (KINDS, {"pooling_mode": "max", "embedding_dimension": 3}, "max"),
    "dense": ([*KINDS[:2], "Dense"], {"pooling_mode_mean_tokens": True}, None),
    "two": (KINDS[:2], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None),
    "another": (KINDS[:2], {"pooling_mode_lasttoken": True}, None),
    "none": (KINDS[:2], {}, None),
}


@pytest.mark.parametrize(("kinds", "config", "mode"), POOLINGS.values(), ids=POOLINGS)
def test_a_pooling_that_is_known_is_read(kinds, config, mode, tmp_path):
    modules(tmp_path, kinds, config)
    with nullcontext() if mode else pytest.raises(UnknownPooling):
        assert pooling_of(tmp_path) == Pooling(mode, normalize=True)


def test_broken_modules_are_not_offered(tmp_path):
    assert pooling_of(tmp_path) is None
    (tmp_path / "modules.json").write_text("[1]")
    with pytest.raises(UnknownPooling):
        pooling_of(tmp_path)


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_padding_changes_no_embedding(mode, normalize):
    hidden = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    pooling = Pooling(mode, normalize)
    pooled = pooling(hidden, mask)
    torch.testing.assert_close(pooled[:1], pooling(hidden[:1, :3], None), rtol=0, atol=1e-12)
    torch.testing.assert_close(pooled[1:], pooling(hidden[1:], None), rtol=0, atol=1e-12)
    if normalize:
        torch.testing.assert_close(pooled.norm(dim=-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)
