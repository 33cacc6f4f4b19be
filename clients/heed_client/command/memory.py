"""``heed memory``: store keys and values from files on a server, list its memories, delete them."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from heed_client.client import Client
from heed_client.command import files
from heed_client.command.arguments import pair
from heed_client.command.files import FileError
from heed_client.errors import HeedError, Problem
from heed_options import Parser, add_server, clean_end, positive

EPILOG = """\
A FILE is npy, npz, safetensors or JSON, as for `heed run`, which queries a memory by its id.

examples:
  heed memory store --key k.npy --value v.npy --dtype float16
  heed memory store --block multi_head --key k.npy --value v.npy --ttl-seconds 3600
  heed run scaled_dot_product --query q.npy --memory ID
  heed memory list
  heed memory delete ID
"""


def parser() -> Parser:
    """The flags."""
    root = Parser(
        prog="heed memory", usage="heed memory {list,store,delete} [flags]",
        description="Store keys and values from files on a server, list its memories, and delete them.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_server(root)
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND", prog="heed memory")
    listing = commands.add_parser("list", help="list the memories: id, block, dtype, shape of the keys, bytes")
    listing.add_argument("--json", action="store_true", help="print the list as JSON")
    deletion = commands.add_parser("delete", help="delete memories; print the id of each")
    deletion.add_argument("id", nargs="+", metavar="ID")
    add = commands.add_parser("store", help="store keys and values; print the id").add_argument
    add("--key", metavar="FILE", help="keys [batch, kv_heads, n, d_k], or their last 2 or 3 dimensions")
    add("--value", metavar="FILE", help="values [batch, kv_heads, n, d_v]")
    add("--tensor", action="append", default=[], type=pair, metavar="NAME=FILE", help="any other tensor")
    add("--block", help="store this block's projections of the tensors")
    add("--dtype", choices=("float32", "float16"), help="dtype of the stored numbers (default float32)")
    add("--ttl-seconds", type=positive, metavar="SECONDS", help="time until the memory is deleted")
    return root


@clean_end
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 2 for a wrong argument or request, 1 if the server fails."""
    options = parser().parse_args(arguments)
    try:
        access = {"cacert": options.cacert, "verify": not options.insecure}
        with Client(options.url, api_key=options.api_key, **access) as heed:
            if options.command == "list":
                descriptions = [memory.description for memory in heed.memories()]
                if options.json:
                    print(json.dumps([asdict(stored) for stored in descriptions], indent=2))
                    return 0
                for stored in descriptions:
                    print(stored.id, stored.block or "-", stored.dtype, [*stored.key_shape], f"{stored.bytes:,} bytes")
            elif options.command == "delete":
                for id in options.id:
                    heed.open_memory(id).delete()
                    print(f"deleted {id}")
            else:
                paths = {"key": options.key, "value": options.value} | dict(options.tensor)
                tensors = {name: _tensor(path, name) for name, path in paths.items() if path}
                if not tensors:
                    raise ValueError("--key, --value: missing; `heed memory store --help` lists the flags")
                choices = {name: getattr(options, name) for name in ("block", "dtype", "ttl_seconds")}
                print(heed.memory(**tensors, **choices).id)
    except (HeedError, FileError, ValueError, TypeError) as error:
        print(f"heed memory: {error}", file=sys.stderr)
        is_wrong = isinstance(error, Problem) and error.status < 500
        return 2 if is_wrong or not isinstance(error, HeedError) else 1
    return 0


def _tensor(path: str, name: str) -> Any:
    try:
        return files.pick(path, name)
    except FileError as error:
        raise FileError(f"--{name} {error}") from None
