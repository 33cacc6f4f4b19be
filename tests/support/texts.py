"""A small tokenizer of words, and texts for it."""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
WORDS = [
    "the",
    "animal",
    "did",
    "not",
    "cross",
    "street",
    "because",
    "it",
    "was",
    "too",
    "tired",
    "a",
    "cat",
    "sat",
    "on",
    "mat",
    "who",
    "when",
    "where",
    "dog",
    "ran",
]
TEXTS = ["the cat sat on the mat", "the animal did not cross the street because it was too tired"]
TARGETS = ["a dog ran", "who sat on the dog when it was tired"]


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
