"""Train a small language model on one text, serve it, and continue a stored beginning of the text token by token.

Each step sends one token: the server keeps the keys and values of those before it, of every layer.

usage: .venv/bin/python examples/stored_prefix.py      (starts its own server)
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from heed_client import Client
from models.transformer import Transformer, TransformerConfig

HEED = [sys.executable, "-m", "heed"]
TEXT = "An attention function maps a query and a set of key-value pairs to an output, where all of these are vectors."
PREFIX = 30  # tokens; a token is a letter

letters = sorted(set(TEXT))
ids = torch.tensor([[letters.index(letter) for letter in TEXT]])
config = TransformerConfig(
    d_model=32, num_heads=4, num_layers=2, d_ff=64, vocab_size=len(letters), max_positions=len(TEXT),
    norm="pre", activation="gelu", final_norm=True,
)  # fmt: skip


def logits(hidden: torch.Tensor) -> torch.Tensor:
    """The logits of the next token; the table of embeddings is the output layer, too."""
    return hidden @ model.embeddings["word"].weight.T


torch.manual_seed(0)
model = Transformer(config, is_causal=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(logits(model(ids).output)[0, :-1], ids[0, 1:])
    loss.backward()
    optimizer.step()
print(f"trained: loss {loss.item():.2g}")

with tempfile.TemporaryDirectory() as folder:
    checkpoint, repository = Path(folder, "writer.pt"), Path(folder, "repository")
    torch.save(model.state_dict(), checkpoint)
    export = ["export", "decoder", "--name", "writer", "--weights", checkpoint, "--model-repository", repository]
    settings = ["--set", "num_heads=4", "--set", "norm=pre", "--set", "activation=gelu", "--set", "layer_norm_eps=1e-5"]
    subprocess.run([*HEED, *export, *settings], check=True)

    serve = ["serve", "--port", "0", "--model-repository", repository]
    with subprocess.Popen([*HEED, *serve], stderr=subprocess.PIPE, text=True) as server:
        try:
            line = next(line for line in server.stderr if "listening on " in line)
            with Client(line.split("listening on ")[1].strip()) as heed:
                written = ids[0, :PREFIX].tolist()
                steps = []
                with heed.memory(input_ids=[written[:-1]], block="writer") as memory:
                    while len(written) < len(TEXT):
                        step = memory.step(input_ids=[written[-1:]], outputs=["output"])
                        steps.append(step.output[0, 0])
                        written.append(int(logits(torch.from_numpy(steps[-1])).argmax()))
                    print(f"stored: {memory.lengths[0]} tokens in {memory.description.key_shape[0]} layers")
                whole = heed.attend("writer", input_ids=[written[:-1]], outputs=["output"]).output[0, PREFIX - 1 :]
                tolerance = heed.describe("writer").tolerance["output"]
        finally:
            server.terminate()

difference = np.abs(np.array(steps) - whole).max()
print("".join(letters[i] for i in written))
print(f"{len(steps)} steps: largest difference from one request without a memory {difference:.1g}")
assert difference <= 2 * tolerance
assert written == ids[0].tolist()
