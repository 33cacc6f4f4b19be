"""``heed memory``: store keys and values from files on a server, list its memories, delete them."""

import argparse
import os
import sys
from collections.abc import Sequence

from httpx import InvalidURL

from heed_client import files
from heed_client.arguments import pair
from heed_client.client import Client
from heed_client.errors import HeedError, Problem
from heed_client.files import FileError

EPILOG = """\
A FILE is npy, npz, safetensors or JSON, as for `heed run`, which queries a memory by its id.

examples:
  heed memory store --key k.npy --value v.npy --dtype float16
  heed memory store --block multi_head --key k.npy --value v.npy --ttl-seconds 3600
  heed run scaled_dot_product --query q.npy --set 'memory="ID"'
  heed memory list
  heed memory delete ID
"""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="heed memory", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    url = "http://127.0.0.1:8000"
    root.add_argument("--url", help=f"URL of the server (HEED_URL, default {url})", default=os.environ.get("HEED_URL"))
    root.add_argument("--api-key", help="API key, sent as Bearer token (HEED_API_KEY)")
    commands = root.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the memories: id, block, dtype, shape of the keys, bytes")
    commands.add_parser("delete", help="delete memories").add_argument("id", nargs="+", metavar="ID")
    add = commands.add_parser("store", help="store keys and values; print the id").add_argument
    add("--key", metavar="FILE", help="keys [batch, kv_heads, n, d_k], or their last 2 or 3 dimensions")
    add("--value", metavar="FILE", help="values [batch, kv_heads, n, d_v]")
    add("--tensor", action="append", default=[], type=pair, metavar="NAME=FILE", help="any other tensor")
    add("--block", help="store what this block's projections make of the tensors")
    add("--dtype", choices=("float32", "float16"), help="of the stored numbers (default float32)")
    add("--ttl-seconds", type=float, metavar="SECONDS", help="time until the memory is deleted")
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 2 for a wrong argument or request, 1 if the server fails."""
    options = parser().parse_args(arguments)
    try:
        with Client(options.url, api_key=options.api_key) as heed:
            if options.command == "list":
                for memory in heed.memories():
                    stored = memory.description
                    print(stored.id, stored.block or "-", stored.dtype, [*stored.key_shape], f"{stored.bytes:,} bytes")
            elif options.command == "delete":
                for id in options.id:
                    heed.open_memory(id).delete()
            else:
                paths = {"key": options.key, "value": options.value} | dict(options.tensor)
                tensors = {name: files.pick(path, name) for name, path in paths.items() if path}
                choices = {name: getattr(options, name) for name in ("block", "dtype", "ttl_seconds")}
                print(heed.memory(**tensors, **choices).id)
    except (HeedError, InvalidURL, FileError, ValueError, TypeError) as error:
        print(f"heed memory: {error}", file=sys.stderr)
        is_wrong = isinstance(error, Problem) and error.status < 500
        return 2 if is_wrong or not isinstance(error, HeedError | InvalidURL) else 1
    return 0
