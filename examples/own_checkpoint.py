"""Save a torch.nn.MultiheadAttention as a checkpoint, export it, serve it, and compare its results with torch's.

usage: .venv/bin/python examples/own_checkpoint.py      (starts its own server)
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from heed_client import Client

HEED = [sys.executable, "-m", "heed"]

torch.manual_seed(0)
attention = torch.nn.MultiheadAttention(embed_dim=48, num_heads=6, batch_first=True).eval()
query, memory = torch.randn(2, 5, 48), torch.randn(2, 9, 48)
with torch.no_grad():
    output, weights = attention(query, memory, memory, average_attn_weights=False)

with tempfile.TemporaryDirectory() as folder:
    checkpoint, repository = Path(folder, "mine.pt"), Path(folder, "repository")
    torch.save(attention.state_dict(), checkpoint)
    export = ["export", "multi_head", "--name", "mine", "--weights", checkpoint, "--model-repository", repository]
    settings = ["--set", "num_heads=6", "--set", "add_zero_attn=false"]  # not in the checkpoint
    subprocess.run([*HEED, *export, *settings], check=True)

    serve = ["serve", "--port", "0", "--model-repository", repository]
    with subprocess.Popen([*HEED, *serve], stderr=subprocess.PIPE, text=True) as server:
        try:
            line = next(line for line in server.stderr if "listening on " in line)
            with Client(line.split("listening on ")[1].strip()) as heed:
                answer = heed.attend("mine", query=query, key=memory, value=memory)
                tolerance = heed.describe("mine").tolerance
        finally:
            server.terminate()

for name, actual, expected in (("output", answer.output, output), ("weights", answer.weights, weights)):
    difference = (torch.from_numpy(actual) - expected).abs().max().item()
    print(f"{name} {list(actual.shape)}: largest difference from torch {difference:.1g}")
    assert difference <= 2 * tolerance[name]
