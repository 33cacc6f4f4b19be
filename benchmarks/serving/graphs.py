"""The measured models, in Triton's layout: torch modules as ONNX, and Heed's blocks by ``heed export``.

usage: python -m benchmarks.serving.graphs FOLDER MODEL ...
"""

import sys
from hashlib import sha256
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import ROOT

D_MODEL, HEADS, SEED = 256, 8, 0


def fingerprint() -> str:
    """A hash of the code that exports the models."""
    digest = sha256()
    for file in sorted([*ROOT.glob("models/**/*.py"), *ROOT.glob("export/**/*.py"), Path(__file__)]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def write(folder: Path, name: str) -> None:
    """Export the model ``name`` into the repository ``folder``, unless it exists."""
    if (folder / name / "1" / "model.onnx").exists():
        return
    if name == "mha_block":
        _mha_block(folder)
    elif name == "scaled_dot_product":
        _export(folder, name)
    else:
        _graph(folder, name)


def _graph(folder: Path, name: str) -> None:
    """sdpa: query [batch, m, 64], key and value [batch, n, 64] -> output, weights. sdpa_output: the same for
    [batch, heads, m or n, 32] -> output. mha: x [batch, m, 256] -> output, weights of all 8 heads. mha_output: the
    same -> output."""
    import torch
    from torch.export import Dim

    class ScaledDotProduct(torch.nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
            weights = torch.softmax(query @ key.transpose(-1, -2) / sqrt(query.shape[-1]), -1)
            return weights @ value if only_output else (weights @ value, weights)

    class MultiHead(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = _torch_mha()

        def forward(self, x: torch.Tensor) -> Any:
            output, weights = self.attention(x, x, x, need_weights=True, average_attn_weights=False)
            return output if only_output else (output, weights)

    model: torch.nn.Module
    only_output = name.endswith("_output")
    batch, heads = Dim("batch", min=1, max=4096), Dim("heads", min=1, max=4096)
    m, n = Dim("m", min=1, max=65536), Dim("n", min=1, max=65536)
    if name.startswith("sdpa"):
        width = (HEADS, D_MODEL // HEADS) if only_output else (64,)
        query, key = (torch.randn(2, *width[:-1], length, width[-1]) for length in (5, 7))
        model, inputs = ScaledDotProduct(), {"query": query, "key": key, "value": key.clone()}
        free = {0: batch, 1: heads} if only_output else {0: batch}
        axes = {key: free | {inputs[key].ndim - 2: m if key == "query" else n} for key in inputs}
    else:
        model, inputs, axes = MultiHead(), {"x": torch.randn(2, 5, D_MODEL)}, {"x": {0: batch, 1: m}}
    program = torch.onnx.export(
        model.eval(),
        tuple(inputs.values()),
        dynamo=True,
        opset_version=20,
        input_names=list(inputs),
        output_names=["output"] if only_output else ["output", "weights"],
        dynamic_shapes=axes,
        verbose=False,
    )
    assert program is not None
    file = folder / name / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    program.save(file.with_suffix(".partial"))
    file.with_suffix(".partial").rename(file)


def _torch_mha() -> Any:
    import torch

    torch.manual_seed(SEED)
    return torch.nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)


def _mha_block(folder: Path) -> None:
    """Heed's block with the weights of ``mha``."""
    from safetensors.torch import save_file

    with TemporaryDirectory() as scratch:
        weights = Path(scratch) / "mha.safetensors"
        save_file(_torch_mha().state_dict(), weights)
        settings = ["--set", f"num_heads={HEADS}", "--set", "add_zero_attn=false"]
        _export(folder, "multi_head_self_attention", "--name", "mha_block", "--weights", str(weights), *settings)


def _export(folder: Path, block: str, *flags: str) -> None:
    from export.__main__ import main as export

    if status := export([block, "--repository", str(folder), *flags]):
        sys.exit(status)


if __name__ == "__main__":
    for model_name in sys.argv[2:]:
        write(Path(sys.argv[1]), model_name)
