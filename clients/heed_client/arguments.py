"""The arguments of ``heed attend``."""

import argparse
import json
import os
from typing import Any

from heed_client.files import SUFFIXES

DESCRIPTION = "Run a block of a server on tensors from files; write its outputs, look at its weights."
TENSORS = {
    "query": "what is asked",
    "key": "what the queries meet",
    "value": "what is averaged",
    "x": "the one input of self-attention, or what asks in cross-attention",
    "memory": "what cross-attention meets",
    "input_ids": "token ids",
    "attn_mask": "booleans, true = may attend; or floats, added to the scores",
    "nonpad_kv_seqlen": "how many leading keys of each row are real",
    "past_key": "keys of earlier steps",
    "past_value": "values of earlier steps",
    "layers": "which layers' weights are answered",
}
NUMBERS = {"left_window_size": int, "right_window_size": int, "scale": float, "softcap": float, "bandwidth": float}
FILES = """\
A FILE is npy, npz, safetensors or JSON, told by what it holds; - is standard input. Lists may stand in its
place: '[[1, 0], [0, 1]]'. Of several tensors in a file the
one of the flag's name is taken, or FILE:NAME says which. Tensors may leave out batch and heads: [m, d], [batch, m, d],
[batch, heads, m, d].

examples:
  heed attend scaled_dot_product --query q.npy --key k.npy --value v.npy --is-causal --out out.npz
  heed attend scaled_dot_product --request examples/sentence.json --labels examples/sentence.tokens.json --at 0,1 --show
  heed attend multi_head --describe
"""


def parser() -> argparse.ArgumentParser:
    said = argparse.ArgumentParser(
        prog="heed attend", description=DESCRIPTION, epilog=FILES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    said.add_argument("block", metavar="BLOCK", help="a block that the server has (`heed list` names them)")
    said.add_argument("--describe", action="store_true", help="say what BLOCK takes and answers, and end")
    server = said.add_argument_group("server")
    server.add_argument(
        "--url", default=os.environ.get("HEED_URL", "http://127.0.0.1:8000"),
        help="where it is (HEED_URL, default http://127.0.0.1:8000)",
    )  # fmt: skip
    server.add_argument("--api-key", default=os.environ.get("HEED_API_KEY"), help="sent as Bearer token (HEED_API_KEY)")
    server.add_argument("--timeout", type=float, default=60, help="longest time without an answer, in s (default 60)")

    tensors = said.add_argument_group("tensors")
    tensors.add_argument(
        "--request", metavar="FILE", help="all of a request: tensors by name; JSON may hold parameters"
    )
    for name, what in TENSORS.items():
        tensors.add_argument(f"--{name.replace('_', '-')}", metavar="FILE", help=what)
    tensors.add_argument(
        "--tensor", action="append", default=[], type=_pair, metavar="NAME=FILE", help="any other, by its name"
    )

    parameters = said.add_argument_group("parameters", "What a block takes, and their defaults, --describe says.")
    parameters.add_argument("--is-causal", action="store_true", default=None, help="queries attend to no later keys")
    for name, kind in NUMBERS.items():
        parameters.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="NUMBER")
    parameters.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="any other, by its name, as JSON",
    )

    answer = said.add_argument_group("answer")
    answer.add_argument(
        "--outputs", type=lambda text: text.split(","), metavar="NAME[,NAME]", help="default: output,weights"
    )
    answer.add_argument("--average-attn-weights", action="store_true", default=None, help="weights averaged over heads")
    answer.add_argument("--weights-top-k", type=int, metavar="K", help="of each query only the K largest weights")
    answer.add_argument(
        "--out", metavar="FILE", type=_out,
        help="write the outputs: .npz, .npy (of one), .safetensors, .json; - is JSON on standard output, the default",
    )  # fmt: skip
    answer.add_argument(
        "--binary", action=argparse.BooleanOptionalAction, help="bytes or JSON on the way; by size when not said"
    )

    looks = said.add_argument_group("a look at the weights")
    looks.add_argument("--show", action="store_true", help="heat maps here, in the terminal")
    looks.add_argument("--plot", metavar="FILE", help="heat maps as a picture: .png, .svg, .pdf")
    looks.add_argument("--html", metavar="FILE", help="heat maps as a page that needs no internet")
    looks.add_argument(
        "--at", type=_index, default=(), metavar="I[,I]",
        help="only those under this leading index: 0,1 is row 0 of the batch, head 1 (default: all)",
    )  # fmt: skip
    looks.add_argument("--labels", metavar="FILE", help="words of the rows, and of as many columns: a JSON list")
    looks.add_argument("--key-labels", metavar="FILE", help="words of the columns, where they are others")
    return said


def _pair(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"expected NAME=FILE, got {text!r}")
    return name, path


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE with a JSON value, got {text!r}") from None


def _index(text: str) -> tuple[int, ...]:
    if not all(part.isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"expected whole numbers with commas, 0,1 say, got {text!r}")
    return tuple(map(int, text.split(",")))


def _out(text: str) -> str:
    if text != "-" and not text.endswith(SUFFIXES):
        raise argparse.ArgumentTypeError(f"expected a file that ends in {', '.join(SUFFIXES)}, or -, got {text!r}")
    return text
