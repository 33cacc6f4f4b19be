"""Search sentences by meaning: their embeddings are the keys of a memory, and a question is a query to it.

Attention is the search: the softmax of the similarities, of which the largest weights are the sentences found.

usage: .venv/bin/python examples/search_sentences.py [--model minilm]      (needs a server with a sentence model:
    heed export hf path/to/all-MiniLM-L6-v2 --name minilm)
"""

import argparse
import sys

import numpy as np

from heed_client import Client, HeedError

SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "Water boils at a lower temperature on a mountain.",
    "She paid the invoice before the end of the month.",
    "The train to the coast leaves every hour.",
    "Bees find their way back by the position of the sun.",
    "The orchestra rehearsed the symphony all week.",
    "A virus attaches to the surface of a cell.",
    "He planted tomatoes behind the house.",
]
LATER = "The last bus to the city departs at midnight."
QUESTIONS = ["How do insects navigate?", "When can I travel by public transport?", "What grows in the garden?"]
SHARPNESS = 20.0  # multiplies the similarities before the softmax

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="minilm", help="a model with a tokenizer (default %(default)s)")
model = parser.parse_args().model

try:
    with Client() as heed:

        def embed(texts: list[str]) -> np.ndarray:
            """The normalised embeddings [n, d]."""
            vectors = heed.attend(model, text=texts, outputs=["embedding"]).embedding
            return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

        embeddings = embed(SENTENCES)
        with heed.memory(embeddings, embeddings) as memory:
            embeddings = np.concatenate([embeddings, embed([LATER])])
            memory.append(embeddings[-1:], embeddings[-1:])
            sentences = [*SENTENCES, LATER]
            print(f"{memory.lengths[0]} sentences, {memory.bytes:,} bytes")
            questions = embed(QUESTIONS)
            found = memory.query(questions, scale=SHARPNESS, outputs=["weights"], weights_top_k=2).weights
except HeedError as error:
    sys.exit(str(error))

scores = np.exp(SHARPNESS * questions @ embeddings.T)
expected = scores / scores.sum(axis=-1, keepdims=True)
for question, indices, weights, row in zip(QUESTIONS, found.indices, found.values, expected, strict=True):
    print(question)
    for i, weight in zip(indices, weights, strict=True):
        print(f"  {weight:.2f} {sentences[i]}")
    np.testing.assert_allclose(weights, np.sort(row)[:-3:-1], rtol=1e-4)
