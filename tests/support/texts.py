"""A small tokenizer of words, and texts for it."""

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tests.support.families import FAMILIES, Family, save

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TEXTS = ["the cat sat on the mat", "the animal did not cross the street because it was too tired"]
TARGETS = ["a dog ran", "who sat on the dog when it was tired"]
WORDS = [*dict.fromkeys([*TEXTS[1].split(), "a", *TEXTS[0].split(), "who", "when", "where", "dog", "ran"])]


def tokenizer(padding_side: str = "right") -> PreTrainedTokenizerFast:
    """A tokenizer with a vocabulary of fewer than 60 words, ``<s>`` before a text and ``</s>`` behind it."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    ends = [("<s>", 0), ("</s>", 2)]
    backend.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side=padding_side,
    )


def save_tokenizer(folder: Path, padding_side: str = "right") -> None:
    """Write the files of the tokenizer."""
    tokenizer(padding_side).save_pretrained(folder)


BERT = FAMILIES["bert classifier"]
SMALL = Family(BERT.model, {**BERT.config, "num_hidden_layers": 1, "hidden_size": 8, "max_position_embeddings": 16})
POOLING = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}
MODULES = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}, {"type": "x.Normalize"}]


def save_sentence_model(folder: Path) -> None:
    """Write the directory of a small BERT that truncates texts to 12 tokens, as sentence-transformers does."""
    save(SMALL, folder)
    save_tokenizer(folder)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
