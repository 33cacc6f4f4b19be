"""``heed list``: the blocks in a model repository, as they would be served, or the blocks of a server."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heed_options import DEFAULT_URL, Parser, add_access, url_option, url_variable
from service.cli.ask import NoAnswer, get
from service.cli.folder import BUILTIN, NoFolder, with_folder

TIMEOUT_S = 30.0
Line = Mapping[str, Any]  # block, version, title, description; versions are known of a repository only


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each block. Returns the exit status: 1 if there are none, or no answer; 2 for a wrong flag."""
    options = parser().parse_args(arguments)
    url = options.url
    if url and options.model_repository:
        parser().error("--url and --model-repository: give only one of them")
    if not options.model_repository and "HEED_MODEL_REPOSITORY" not in os.environ:
        url = url or url_variable(parser())
    try:
        if url:
            place, blocks = url, _of_server(url, options.api_key, options.cacert, options.insecure)
        else:
            place, blocks = _of_repository(options.model_repository)
    except NoFolder as error:
        print(f"heed list: {error}; --url asks a server", file=sys.stderr)
        return 2
    except NoAnswer as error:
        print(f"heed list: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(blocks, indent=2, ensure_ascii=False))
    elif blocks:
        width = max(len(block["block"]) for block in blocks)
        for block in blocks:
            version = f"{block['version']:>3}  " if "version" in block else ""
            print(f"{block['block']:{width}}  {version}{block['title']}: {block['description']}")
    if not blocks:
        print(f"heed list: no blocks in {place}; `heed export` writes the built-in ones into a folder", file=sys.stderr)
    return int(not blocks)


def parser() -> Parser:
    """The flags."""
    description = "List the blocks in a model repository, as they would be served, or those of a server."
    parser = Parser(prog="heed list", description=description)
    parser.add_argument(
        "--model-repository", type=Path, metavar="PATH",
        help="the folder of the models (HEED_MODEL_REPOSITORY, default model_repository)",
    )  # fmt: skip
    parser.add_argument(
        "--url", type=url_option,
        help=f"ask this server, such as {DEFAULT_URL} (HEED_URL, unless a model repository is given)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    add_access(parser)
    return parser


def _of_repository(given: Path | None) -> tuple[str, list[Line]]:
    # ONNX Runtime takes a second to import, which a list of a server's blocks does not need.
    from service.repository.repository import Repository
    from service.settings import Settings

    settings = Settings(provider="cpu", model_repository=given) if given else Settings(provider="cpu")
    settings = with_folder(settings)
    repository = Repository(settings.sized())
    repository.open()
    repository.load()
    blocks: list[Line] = [
        {"block": name, "version": model.version, "title": model.spec.title, "description": model.spec.description}
        for name, model in repository.blocks.items()
        if model.spec is not None
    ]
    is_builtin = settings.model_repository == BUILTIN
    return "this installation" if is_builtin else str(settings.model_repository), blocks


def _of_server(url: str, api_key: str | None, cacert: str | None, insecure: bool) -> list[Line]:
    """The answer of GET /v1/attention.

    Raises:
        NoAnswer: there is none, or it is an error.
    """
    status, body = get(url, "/v1/attention", TIMEOUT_S, api_key, cacert, insecure)
    if status in (401, 403):
        raise NoAnswer(f"{url}: the server answered {status}; --api-key or HEED_API_KEY gives a key")
    try:
        blocks: list[Line] = json.loads(body)["blocks"] if status == 200 else []
    except (ValueError, LookupError, TypeError):
        status = 0
    if status == 503:
        raise NoAnswer(f"{url}: the server answered 503; it is starting, stopping or busy: try again")
    if status != 200:
        raise NoAnswer(f"{url}: this is not a Heed server; check the URL")
    return blocks
