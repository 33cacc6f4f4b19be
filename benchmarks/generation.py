"""Tokens a second over HTTP, beside transformers and a loop over the same graph: ``python -m benchmarks.generation``.

For each model of a repository that generates: one stream with the weights of all layers, with the 8 largest of each
head, and without weights; several streams at once; transformers' ``generate`` in eager attention with weights, and in
sdpa without; with ``--genai``, onnxruntime-genai in this process. All take turns, each generates ``--tokens`` tokens
behind a prompt of ``--prompt``, which is the encoder's text of a model with two stacks. ``--provider cuda`` measures
all of them on the GPU.
"""

import argparse
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import torch
import transformers

from benchmarks.report.markdown import table
from benchmarks.server import served
from benchmarks.turns import parser_of, seconds_of, take_turns
from service.generation.decoder import load_decoder
from service.generation.group import SequenceGroup
from service.generation.sampling import Sampler, Sampling
from service.generation.sequence import GrowingSequence, Wanted
from service.model.loader import open_version
from service.ort.provider import choose

LARGEST = {"weights_top_k": 8}
WEIGHTS = {"outputs": ["weights"]}


def main() -> int:
    options = _options()
    torch.set_num_threads(options.threads)
    rows = []
    flags = ["--intra-op-threads", str(options.threads), "--provider", options.provider]
    with served(options.repository, *flags) as server:
        url = f"http://127.0.0.1:{server.port}/v1/generate/{options.model}"
        with httpx.Client(timeout=600) as client:
            ways = dict(_ways(client, url, options))
            for way in ways.values():  # warm-up
                way()
            seconds = take_turns(ways, options.repeats, lambda name: seconds_of(ways[name]))
    for name, several in seconds.items():
        streams = options.streams if "streams" in name else 1
        rates = [streams * options.tokens / one for one in several]
        rows.append([name, f"{median(rates):.1f}", f"{min(rates):.1f} to {max(rates):.1f}"])
    title = f"{options.model}, {options.threads} threads, {options.provider}"
    print("\n".join(table([title, "tokens/s", "range"], rows)))
    return 0


def _ways(client: httpx.Client, url: str, options: argparse.Namespace) -> "list[tuple[str, Callable[[], object]]]":
    prompt = np.random.default_rng(0).integers(5, 1000, options.prompt).tolist()
    body = {"input_ids": prompt, "max_new_tokens": options.tokens, "ignore_eos": True, "stream": True}

    def stream(**more: object) -> None:
        with client.stream("POST", url, json=body | more) as response:
            assert response.status_code == 200
            assert b"event: done" in b"".join(response.iter_raw())[-2000:]

    def streams() -> None:
        with ThreadPoolExecutor(options.streams) as pool:
            list(pool.map(lambda _: stream(), range(options.streams)))

    own = {
        "Heed, weights of all layers": partial(stream, **WEIGHTS),
        "Heed, the 8 largest weights": partial(stream, **WEIGHTS, **LARGEST),
        "Heed, without weights": stream,
        f"Heed, {options.streams} streams": streams,
        "bare loop, weights of all layers": partial(_bare, options, prompt, Wanted(("weights",))),
        "bare loop, without weights": partial(_bare, options, prompt, Wanted()),
    }
    others = _transformers(options, prompt)
    if options.genai:
        others.append(("onnxruntime-genai, without weights", partial(_genai, options, prompt)))
    return [*own.items(), *others]


def _bare(options: argparse.Namespace, prompt: list[int], wanted: Wanted, opened: dict = {}) -> None:  # noqa: B006
    """The same steps in this process."""
    if not opened:
        folder = options.repository / options.model / "1"
        opened["model"] = model = open_version(folder, choose(options.provider), options.threads)
        opened["decoder"] = load_decoder(folder, model, options.threads)
    decoder = opened["decoder"]
    ids, source = np.array(prompt), {}
    if decoder.generation.two_stacks:
        ids, source = np.array([decoder.generation.tokens["decoder_start_token_id"]]), {"input_ids": ids[None]}
    sequence = GrowingSequence(decoder, ids, options.tokens, source, Sampler(Sampling()), wanted)
    group = SequenceGroup(sequence)
    for _ in range(options.tokens):
        task = group.task()
        graph = task.graph.multi_threaded.graph_with(task.graph) if task.graph.multi_threaded else task.graph
        group.run(graph, lambda *_: {}, {}, (), None)


def _transformers(options: argparse.Namespace, prompt: list[int]) -> "list[tuple[str, Callable[[], object]]]":
    ids = torch.tensor([prompt], device=options.provider)
    config = transformers.AutoConfig.from_pretrained(options.directory)
    found = []
    for attention, weights in (("eager", True), ("sdpa", False)):
        model = getattr(transformers, config.architectures[0])
        model = model.from_pretrained(options.directory, attn_implementation=attention).eval().to(options.provider)
        generate = partial(
            model.generate, ids, max_new_tokens=options.tokens, do_sample=False, eos_token_id=-1, pad_token_id=0,
            output_attentions=weights, return_dict_in_generate=True,
        )  # fmt: skip
        found.append((f"transformers, {attention}" + ", weights" * weights, generate))
    return found


def _genai(options: argparse.Namespace, prompt: list[int], opened: dict = {}) -> None:  # noqa: B006
    """The same tokens by onnxruntime-genai."""
    import onnxruntime_genai as genai

    if not opened:
        config = genai.Config(str(options.genai))
        threads = {"intra_op_num_threads": options.threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        opened["model"] = genai.Model(config)
    settings = genai.GeneratorParams(opened["model"])
    length = len(prompt) + options.tokens
    settings.set_search_options(max_length=length, min_length=length, do_sample=False)
    generator = genai.Generator(opened["model"], settings)
    generator.append_tokens(prompt)
    for _ in range(options.tokens):
        generator.generate_next_token()


def _options() -> argparse.Namespace:
    parser = parser_of("benchmarks.generation", __doc__)
    add = parser.add_argument
    add("--prompt", type=int, default=32, help="tokens of the prompt (default 32)")
    add("--tokens", type=int, default=32, help="new tokens (default 32)")
    add("--streams", type=int, default=8, help="at once (default 8)")
    add("--provider", choices=("cpu", "cuda"), default="cpu", help="default cpu; cuda: on the GPU, without --genai")
    add("--genai", type=Path, metavar="DIR", help="the model as onnxruntime_genai.models.builder writes it in fp32")
    options = parser.parse_args()
    if options.genai and options.provider == "cuda":
        parser.error("--genai is measured on the CPU alone")
    return options


if __name__ == "__main__":
    sys.exit(main())
