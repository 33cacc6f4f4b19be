"""A whole encoder, from texts: ``heed serve`` over HTTP beside transformers and ONNX Runtime in this process.

Texts to embeddings (the mean of the last hidden states, normalized), and texts to the weights of one head. ONNX Runtime
runs the model as torch exports it, and the same after its own fusions (``onnxruntime.transformers``); both have all
threads, as torch has. All contestants tokenize. They take turns, with a pause before each, so that no thread still
polls for work; figures are medians.

text-embeddings-inference comes as an image alone, so it is not among them. Those who make Infinity measured its version
0.6 on 16 CPUs with a BERT of 12 layers and 384 features (https://michaelfeil.eu/infinity/0.0.55/benchmarking): 0.23 of
the rate of sentence-transformers, and 0.11 of ONNX Runtime's.

usage: python -m benchmarks.models REPOSITORY NAME=DIRECTORY ... [--out benchmarks/models.md]

Each DIRECTORY is a model's, of the family BERT; ``heed export hf`` wrote it into REPOSITORY as NAME.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort
import orjson
from rich.progress import track

from benchmarks.report.markdown import table
from benchmarks.server import served

WORDS = (
    *("the", "animal", "did", "not", "cross", "a", "wide", "street", "because", "it", "was", "too", "tired", "to"),
    *("walk", "any", "further", "that", "day"),
)
MIXED = 0  # texts of 12 to 200 words
CASES = [(1, 12), (1, 120), (1, 240), (8, 12), (8, 120), (8, 240), (32, 12), (32, 120), (8, MIXED)]  # texts, words
QUIET_S = 0.2  # before each turn
Encode = Callable[[list[str]], np.ndarray]


def texts(batch: int, words: int) -> list[str]:
    """So many texts of so many words, about a token each; of 12 to 200 words for 0."""
    rng = np.random.default_rng(batch)
    lengths = [words] * batch if words else np.geomspace(12, 200, batch).astype(int)
    return [" ".join(rng.choice(WORDS, length)) for length in lengths]


def pooled(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean of the hidden states [batch, n, d] over the tokens that ``mask`` [batch, n] keeps, of length 1."""
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    normalized: np.ndarray = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return normalized


def contestants(directory: Path, scratch: Path) -> tuple[dict[str, Encode], dict[str, Encode]]:
    """Those that make embeddings, and those that make the weights of one head, in this process."""
    import torch
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(os.cpu_count() or 1)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    models = {kind: AutoModel.from_pretrained(directory, attn_implementation=kind) for kind in ("sdpa", "eager")}

    def tokenized(text: list[str]) -> Any:
        return tokenizer(text, padding=True, truncation=True, return_tensors="pt")

    def by_torch(kind: str) -> Encode:
        def encode(text: list[str]) -> np.ndarray:
            tokens = tokenized(text)
            with torch.inference_mode():
                hidden = models[kind](**tokens).last_hidden_state
            return pooled(hidden.numpy(), tokens["attention_mask"].numpy())

        return encode

    def head(text: list[str]) -> np.ndarray:
        with torch.inference_mode():
            weights: np.ndarray = models["eager"](**tokenized(text), output_attentions=True).attentions[3][:, 1].numpy()
        return weights

    plain, fused = scratch / "plain.onnx", scratch / "fused.onnx"
    example = {name: tensor.expand(2, -1) for name, tensor in tokenized(["a text"]).items()}
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("n", max=512)}
    program = torch.onnx.export(
        models["eager"].eval(), kwargs=example, dynamo=True, dynamic_shapes=dict.fromkeys(example, sizes), verbose=False
    )
    assert program is not None
    program.save(plain)
    config = models["eager"].config
    optimize_model(str(plain), "bert", config.num_attention_heads, config.hidden_size, opt_level=1).save_model_to_file(
        str(fused)
    )

    def by_ort(file: Path) -> Encode:
        session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]

        def encode(text: list[str]) -> np.ndarray:
            tokens = {name: tensor.numpy() for name, tensor in tokenized(text).items()}
            hidden = session.run(None, {name: tokens[name] for name in names})[0]
            return pooled(np.asarray(hidden), tokens["attention_mask"])

        return encode

    embeddings = {f"transformers, {kind}": by_torch(kind) for kind in models}
    embeddings |= {"ONNX Runtime": by_ort(plain), "ONNX Runtime, fused": by_ort(fused)}
    return embeddings, {"transformers, eager": head}


def by_heed(client: httpx.Client, name: str, fields: dict[str, Any], output: str) -> Encode:
    """Heed's answer for the fields ``fields``."""

    def encode(text: list[str]) -> np.ndarray:
        response = client.post(f"/v1/text/{name}", content=orjson.dumps({"text": text, **fields}))
        response.raise_for_status()
        return np.asarray(orjson.loads(response.content)[output], np.float32)

    return encode


def measured(cases: dict[str, Encode], text: list[str], repeats: int) -> dict[str, float]:
    """Seconds of each contestant, the median of ``repeats`` turns after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name, encode in cases.items():
            time.sleep(QUIET_S)
            start = time.perf_counter()
            encode(text)
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: median(several) for name, several in times.items()}


def compared(directory: Path, client: httpx.Client, name: str, repeats: int) -> list[str]:
    """The table of one model, in Markdown.

    Raises:
        AssertionError: an embedding is not that of transformers.
    """
    ours = {"Heed": by_heed(client, name, {"outputs": ["embedding"]}, "embedding")}
    one_head = {"outputs": ["weights"], "layers": 3, "heads": 1, "weights_dtype": "float16", "decimals": 4}
    ours_head = {"Heed": by_heed(client, name, one_head, "weights")}
    rows = []
    with TemporaryDirectory() as scratch:
        embeddings, heads = contestants(directory, Path(scratch))
        for batch, words in track(CASES, name):
            text = texts(batch, words)
            expected = embeddings["transformers, eager"](text)
            for contestant, encode in {**embeddings, **ours}.items():
                np.testing.assert_allclose(encode(text), expected, atol=1e-4, err_msg=contestant)
            seconds = measured({**ours, **embeddings}, text, repeats)
            head_s = measured({**ours_head, **heads}, text, repeats)
            best = min(taken for contestant, taken in seconds.items() if contestant.startswith("ONNX"))
            rows.append(
                (
                    f"{batch} x {words or '12 to 200'}",
                    *(f"{1e3 * taken:.1f}" for taken in seconds.values()),
                    f"{best / seconds['Heed']:.2f}",
                    f"{1e3 * head_s['Heed']:.1f}",
                    f"{1e3 * head_s['transformers, eager']:.1f}",
                    f"{head_s['Heed'] / seconds['Heed']:.2f}",
                )
            )
    columns = ("texts x words", *(f"{contestant}, ms" for contestant in seconds), "Heed's rate to ONNX Runtime's best")
    columns = (*columns, "one head, Heed, ms", "one head, transformers, ms", "one head to embedding, Heed")
    return [f"## {name}", "", *table(columns, rows), ""]


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("models", nargs="+", metavar="NAME=DIRECTORY")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    report = ["# Models from texts", "", (__doc__ or "").partition("usage:")[0].strip(), ""]
    with served(options.repository) as server:
        address, headers = f"http://127.0.0.1:{server.port}", {"Content-Type": "application/json"}
        with httpx.Client(base_url=address, headers=headers, timeout=120) as client:
            for model in options.models:
                name, _, directory = model.partition("=")
                report += compared(Path(directory), client, name, options.repeats)
    options.out.write_text("\n".join(report))
    print("\n".join(report))


if __name__ == "__main__":
    main()
