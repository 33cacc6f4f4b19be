"""The command line of ``heed run``."""

import argparse
import json
from typing import Any

from heed_client.command.files import SUFFIXES
from heed_options import Parser, add_server, either, positive

DESCRIPTION = (
    "Run an attention block or a model on a server, on tensors from files or on texts: save its outputs, draw its "
    "weights, generate text."
)
TENSORS = {
    "query": "queries",
    "key": "keys",
    "value": "values",
    "x": "the input of self-attention; in cross-attention, of the queries",
    "memory": "the input of the keys and values in cross-attention; or the id of a memory, as `heed memory` prints it",
    "input_ids": "token ids",
    "attn_mask": "booleans (true = may attend), or floats to add to the scores; integers are rejected",
    "memory_mask": "the same for the memory of cross_decoder",
    "head_mask": "factors of each head's weights; 0 removes a head",
    "memory_head_mask": "the same for the memory of cross_decoder",
    "decoder_head_mask": "the same for the decoder of a transformers model with two stacks",
    "cross_attn_head_mask": "the same for its attention to the encoder",
    "attn_bias": "floats to add to the scores before softcap",
    "alibi_slopes": "ALiBi's slope of each head",
    "sinks": "attention sink of each head: a score in the softmax's denominator",
    "query_document_ids": "document of each query, which attends only to keys of this document",
    "document_ids": "document of each key",
    "query_positions": "positions of the queries for --rope-theta",
    "key_positions": "positions of the keys for --rope-theta",
    "nonpad_kv_seqlen": "number of keys in each row before the padding",
    "past_key": "keys of earlier decoding steps",
    "past_value": "values of earlier decoding steps",
}
PICTURES = (".png", ".svg", ".pdf")
OPTIONS = (  # of the weights
    *("heads", "queries", "reduce_heads", "reduce_layers", "average_attn_weights"),
    *("weights_top_k", "weights_dtype", "weights_threshold", "weights_pool", "weights_pool_by", "decimals"),
)
NUMBERS: dict[str, type] = {"left_window_size": int, "right_window_size": int}
NUMBERS |= dict.fromkeys(("scale", "softcap", "bandwidth", "rope_theta"), float)
GENERATION = ("temperature", "top_k", "top_p", "seed", "stop")
FLAGS = ("is_causal", "additive_mask", "rope_interleaved", "normalize")
EPILOG = """\
A FILE is npy, npz, safetensors or JSON, detected by its content; - reads standard input. A JSON list may be given
instead of a FILE: '[[1, 0], [0, 1]]'. From a file with several tensors, the one with the flag's name is read;
FILE:NAME selects another. Tensors may omit the batch and heads axes: [m, d], [batch, m, d], [batch, heads, m, d].

examples:
  heed run scaled_dot_product --query q.npy --key k.npy --value v.npy --is-causal --out out.npz
  heed run scaled_dot_product --request examples/sentence.json --labels examples/sentence.tokens.json --at 0,1 --show
  heed run minilm --text "It was too tired." --at 5,3 --show
  heed run gpt2 --text "The animal" --generate 20 --show
  heed run vit --image cat.png --layer 11 --head 3 --show
  heed run multi_head --describe
"""


def parser() -> Parser:
    """The flags."""
    root = Parser(
        prog="heed run", usage="heed run BLOCK [flags]", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    root.add_argument("block", metavar="BLOCK", help="name of a block on the server; `heed list` lists them")
    root.add_argument("--describe", action="store_true", help="print the block's inputs, parameters and outputs; exit")
    root.add_argument("--json", action="store_true", help="print JSON on a terminal, as in a pipe")

    server = root.add_argument_group("server")
    add_server(server)
    add = server.add_argument
    add("--timeout", type=positive, default=60, metavar="SECONDS", help="longest wait for a response (default 60)")

    add = root.add_argument_group("tensors").add_argument
    add("--request", metavar="FILE", help="file with all tensors by name; a JSON file may also have parameters")
    for name, description in TENSORS.items():
        add(f"--{name.replace('_', '-')}", metavar="FILE", help=description)
    add(
        "--tensor",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=FILE",
        help="any other tensor, such as a learned matrix",
    )

    add = root.add_argument_group("files, for vision and audio models; repeat a flag for a batch").add_argument
    add("--image", action="append", metavar="FILE", dest="images", help="a PNG, JPEG or WebP in place of pixel_values")
    add("--audio", action="append", metavar="FILE", help="a WAV or FLAC in place of input_values or input_features")

    add = root.add_argument_group("texts, for models with a tokenizer; the tokens label the heat maps").add_argument
    add("--text", action="append", metavar="TEXT", help="text instead of token ids; repeat it for a batch of texts")
    add("--text-pair", action="append", metavar="TEXT", help="second text of a pair")
    add("--text-target", action="append", metavar="TEXT", help="text for the decoder of a model with two stacks; with "
        "--generate, the prompt of the decoder")  # fmt: skip
    add("--next-tokens", type=whole, metavar="K", help="for a language model: the K most probable next tokens")
    add("--truncation", action=argparse.BooleanOptionalAction, help="truncate a text that is too long for the model "
        "(default: as the tokenizer's file says)")  # fmt: skip

    add = root.add_argument_group(
        "generation, for language models", "--set gives other fields: --set min_p=0.1 --set ignore_eos=true"
    ).add_argument
    add("--generate", type=whole, metavar="N", help="generate at most N tokens after the text, printed as they arrive; "
        "--show draws the weights of each, by default the mean over all layers and heads")  # fmt: skip
    add("--temperature", type=float, metavar="T", help="0 (default) takes the most probable token; above 0, sample")
    add("--top-k", type=int, metavar="K", help="sample from the K most probable tokens")
    add("--top-p", type=float, metavar="P", help="sample from the most probable tokens with total probability P")
    add("--seed", type=int, metavar="N", help="seed for sampling; the same seed gives the same tokens")
    add("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")

    add = root.add_argument_group("interventions, for transformers models, encoder and decoder").add_argument
    add("--intervene", action="append", type=_object, metavar="JSON", dest="interventions",
        help='change an activation: \'{"at": "weights", "layers": 3, "heads": 1, "scale": 0}\' removes a head; repeat '
        "it for further changes; --describe lists the sites")  # fmt: skip
    add("--baseline", action="store_true", default=None, help="also return the run without --intervene; --show and "
        "--plot draw the difference of the weights")  # fmt: skip
    add("--difference", action="append", type=_name_or_object, metavar="METRIC",
        help="return a metric of both runs, as for --metric; may be repeated")  # fmt: skip
    add("--sweep", type=_axes, metavar="AXES", help="make the change of --intervene at each point of a grid, such as "
        'layers,positions or \'{"layers": "2:6", "heads": "all"}\'; --show draws the change of the metric')  # fmt: skip
    add("--metric", type=_name_or_object, metavar="METRIC", help='for --sweep: kl, total_variation, cosine_distance, '
        '\'{"probability": " Paris"}\' or \'{"logit_difference": [" Paris", " Rome"]}\'')  # fmt: skip
    add(
        "--position",
        type=int,
        metavar="N",
        help="position of the output for --metric (default: the last token of a language model, else the first)",
    )
    add(
        "--lens",
        type=whole,
        metavar="K",
        help="for a language model: the K likeliest tokens of each layer and position"
        "; with --generate, for each new token",
    )

    parameters = root.add_argument_group("parameters", "--describe lists a block's parameters with their defaults.")
    add = parameters.add_argument
    add("--is-causal", action="store_true", default=None, help="each query attends only to keys at or before it")
    add("--additive-mask", action="store_true", default=None, help="add a float mask of only 0.0 and 1.0 to the scores")
    add("--rope-interleaved", action="store_true", default=None, help="rotate neighbouring features, not halves")
    add("--normalize", action=argparse.BooleanOptionalAction, help="divide the kernel's weights by their sum")
    for name, kind in NUMBERS.items():
        add(f"--{name.replace('_', '-')}", type=kind, metavar="NUMBER")
    add("--set", action="append", default=[], type=_setting, metavar="NAME=VALUE", help="any other parameter, as JSON")

    add = root.add_argument_group("output").add_argument
    add("--outputs", type=lambda text: text.split(","), metavar="NAME[,NAME]",
        help="default: output,weights; also entropy, received, rollout, head_statistics")  # fmt: skip
    add("--layers", "--layer", metavar="INDICES", help="layers to return: 0,3,5:8,-1; or a FILE")
    add("--heads", "--head", metavar="INDICES", help="heads to return: --head 3 --layer 5 --show draws that head")
    add("--queries", metavar="INDICES", help="queries whose weights to return; --queries=-1 for the last one")
    add("--reduce-heads", choices=("mean", "max"), help="the mean or the largest over the heads")
    add("--reduce-layers", choices=("mean", "max"), help="the mean or the largest over the layers")
    add("--average-attn-weights", action="store_true", default=None, help="average the weights over heads")
    add("--weights-top-k", type=whole, metavar="K", help="return only the K largest weights of each query")
    add("--weights-dtype", choices=("float32", "float16", "uint8"), help="type in which the server sends the weights")
    add("--weights-threshold", type=float, metavar="W", help="return 0 for weights below W")
    add("--weights-pool", type=whole, metavar="K", help="pool queries and keys to at most K cells each")
    add("--decimals", type=int, metavar="D", help="round the answer to 0 to 7 decimals")
    add(
        "--weights-pool-by",
        choices=("mean", "max"),
        help="value of a cell: the mean or the max of its weights (default: mean)",
    )
    add(
        "--out",
        metavar="FILE",
        type=_out,
        help=f"file to write ({', '.join(SUFFIXES)}); default: JSON to stdout (-), "
        "on a terminal shapes, ranges and the largest weights",
    )
    add("--binary", action=argparse.BooleanOptionalAction, help="send tensors as bytes or as JSON (default: by size)")

    add = root.add_argument_group("heat maps of the weights").add_argument
    add("--show", action="store_true", help="print heat maps in the terminal")
    add("--plot", metavar="FILE", type=_picture, help="write heat maps as a picture: .png, .svg, .pdf")
    add("--title", metavar="TEXT", help="title of the picture")
    add("--cmap", metavar="NAME", help="matplotlib's colour map of the picture (default magma; of differences RdBu_r)")
    add("--size", type=_size, metavar="W,H", help="width and height of the picture in inches (default: by the tokens)")
    add("--compare", metavar="FILE", help="draw the difference from the weights that --out wrote to FILE")
    add("--html", metavar="FILE", help="write heat maps as a self-contained HTML page")
    add("--at", type=_index, default=(), metavar="I[,I]", help="leading index of the matrices to draw: 0,1 is row 0 of "
        "the batch, head 1; for one sequence of a stack, layer 0, head 1 (default: all)")  # fmt: skip
    add("--labels", metavar="FILE", help="JSON list of labels for the queries, and for the keys if there are as many")
    add("--key-labels", metavar="FILE", help="JSON list of labels for the keys, if they differ")
    return root


def pair(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"expected NAME=FILE, got {text!r}")
    return name, path


def whole(text: str) -> int:
    """A count."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE with a JSON value, got {text!r}") from None


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value


def _axes(text: str) -> Any:
    """Names of axes, or a JSON object with the indices of each."""
    value = _name_or_object(text)
    if not isinstance(value, str):
        return value
    axes = [axis.strip() for axis in value.split(",")]
    if not all(axes):
        raise argparse.ArgumentTypeError(f"expected axes separated by commas, such as layers,positions; got {text!r}")
    return axes


def _name_or_object(text: str) -> Any:
    return _object(text) if text.lstrip().startswith("{") else text


def _index(text: str) -> tuple[int, ...]:
    if not all(part.isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, such as 0,1; got {text!r}")
    return tuple(map(int, text.split(",")))


def _size(text: str) -> tuple[float, float]:
    try:
        width, height = map(positive, text.split(","))
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"expected two numbers such as 6,4; got {text!r}") from None
    return width, height


def _picture(text: str) -> str:
    if not text.lower().endswith(PICTURES):
        raise argparse.ArgumentTypeError(f"expected a file name ending in {either(PICTURES)}, got {text!r}")
    return text


def _out(text: str) -> str:
    if text != "-" and not text.endswith(SUFFIXES):
        raise argparse.ArgumentTypeError(f"expected a file name ending in {either(SUFFIXES)}, or -, got {text!r}")
    return text
