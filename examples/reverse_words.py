"""Train a small model with an encoder and a decoder to reverse the words of a sentence, in a minute on a CPU.

Where its decoder must look is known in advance: the first new word is the last of the source, and so on. The viewer
shows this alignment as a diagonal in its view Generate.

usage: .venv/bin/python examples/reverse_words.py FOLDER      (then: heed export hf FOLDER, heed serve)
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import MBartConfig, MBartForConditionalGeneration, PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
WORDS = [
    "the", "a", "animal", "cat", "dog", "ship", "street", "mat", "sea", "it", "who", "did", "didn't", "not", "was",
    "too", "tired", "wide", "old", "because", "when", "where", "on", "to", "and", "but", "cross", "sat", "saw", "ran",
    "slept", "stayed", "lost", "went", "home", ".",
]  # fmt: skip
VOCABULARY = {word: index for index, word in enumerate([PAD, END, UNKNOWN, *WORDS])}
LONGEST = 14  # words
STEPS, BATCH = 1500, 64


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word, and the end token."""
    backend = Tokenizer(WordLevel(VOCABULARY, unk_token=UNKNOWN))
    backend.normalizer = Lowercase()
    backend.pre_tokenizer = Sequence([WhitespaceSplit(), Split(".", "isolated")])
    backend.post_processor = TemplateProcessing(single=f"$A {END}", special_tokens=[(END, VOCABULARY[END])])
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random sentences of words of one length: source ids, the decoder's ids, and the ids that it must predict."""
    length = int(torch.randint(1, LONGEST + 1, ()))
    words = torch.randint(VOCABULARY[UNKNOWN] + 1, len(VOCABULARY), (BATCH, length))
    end, start = torch.full((BATCH, 1), VOCABULARY[END]), torch.full((BATCH, 1), VOCABULARY[PAD])
    backwards = words.flip(1)
    return torch.cat([words, end], 1), torch.cat([start, backwards], 1), torch.cat([backwards, end], 1)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # with small matrices, more threads are slower
    size = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    tokens = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": None}
    config = MBartConfig(
        **size,
        **heads,
        **tokens,
        vocab_size=len(VOCABULARY),
        max_position_embeddings=32,
        scale_embedding=True,
        dropout=0.0,
        init_std=0.1,
    )
    model = MBartForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS)
    for step in range(STEPS):
        source, decoder, target = batch()
        logits = model(input_ids=source, decoder_input_ids=decoder).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == STEPS - 1:
            right = (logits.argmax(-1) == target).float().mean().item()
            print(f"step {step}: loss {loss.item():.3f}, {right:.0%} of the words are right", flush=True)
    model.eval().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
