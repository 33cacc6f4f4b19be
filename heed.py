"""The ``heed`` command. Each subcommand parses its own flags: ``heed serve --help`` lists them."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

FOLDER = Path(__file__).parent
PACKAGES = {"service", "models", "export", "loadtest", "heed_client", "heed_options"}


class OwnPackages:
    """Finds the packages of Heed beside this file, whatever a user's folder or PYTHONPATH has under these names."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The package ``name`` if it is one of Heed's; importlib looks for all others."""
        if path is not None or name not in PACKAGES:
            return None
        return PathFinder.find_spec(name, [str(FOLDER), str(FOLDER / "clients")], target)


sys.meta_path.insert(0, OwnPackages)

from heed_options import Parser, clean_end, nearest  # noqa: E402  it is one of these packages


class Command(NamedTuple):
    """``module`` has ``main`` and ``parser``; ``extra`` is what pip installs for it."""

    module: str
    extra: str
    help: str


COMMANDS = {
    "serve": Command("service.cli.serve", "cpu", "serve a model repository over HTTP"),
    "probe": Command("service.cli.probe", "cpu", "report by the exit status whether a server is ready"),
    "list": Command("service.cli.list", "cpu", "list the blocks in a model repository or on a server"),
    "run": Command(
        "heed_client.__main__", "client", "run a block on a server with tensors from files, draw its weights"
    ),
    "memory": Command("heed_client.memories.command", "client", "store keys and values on a server, list, delete them"),
    "loadtest": Command("loadtest.__main__", "loadtest", "measure a server's throughput and latency under load"),
    "export": Command("export.__main__", "cpu,export", "export attention blocks from torch into the model repository"),
}
ALIASES = {"attend": "run"}
COMPLETION = "completion"
SHELLS = ("bash", "zsh", "tcsh")


@clean_end
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand named first. Returns its exit status: 2 for an unknown one, 1 if a package is missing."""
    name, *others = [*(sys.argv[1:] if arguments is None else arguments), ""][:-1] or ["--help"]
    if name in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if name in ("-V", "--version", "version"):
        print(f"heed {_version()}")
        return 0
    if name == COMPLETION:
        return _completion(others)
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        known = [*COMMANDS, *ALIASES, COMPLETION, "--version", "--help"]
        advice = nearest(name, known) or f"; the commands are {', '.join(COMMANDS)}"
        return _fail(2, f"{name!r} is no command{advice}")
    command = COMMANDS[name]
    try:
        run: Callable[[Sequence[str]], int] = import_module(command.module).main
    except ModuleNotFoundError as missing:
        advice = f"pip install 'heed-attention[{command.extra}]'"
        if "cpu" in command.extra:
            advice += " (gpu in place of cpu for CUDA)"
        return _fail(1, f"{name}: the package {missing.name} is not installed: {advice}")
    return run(others)


def _usage() -> str:
    lines = "\n".join(f"  {name:12}{command.help}" for name, command in COMMANDS.items())
    return (
        f"usage: heed COMMAND [flags]\n\n{lines}\n  {COMPLETION:12}print the completion for a shell\n\n"
        "heed COMMAND --help lists the flags of each; heed --version prints the version."
    )


def _version() -> str:
    try:
        return version("heed-attention")
    except PackageNotFoundError:
        return "(a checkout that is not installed)"


def _completion(arguments: Sequence[str]) -> int:
    """Print a script that completes the commands, their flags and the flags' choices."""
    parser = Parser(
        prog=f"heed {COMPLETION}",
        description="Print a script that completes commands and flags.",
        epilog='bash: eval "$(heed completion bash)" in ~/.bashrc; zsh: heed completion zsh > a file _heed in $fpath',
    )
    parser.add_argument("shell", choices=SHELLS)
    shell = parser.parse_args(arguments).shell
    shtab = import_module("shtab")  # here, as `heed probe` has to import little
    root = Parser(prog="heed")
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers(metavar="COMMAND")
    commands.add_parser(COMPLETION, parents=[parser], add_help=False, help="print this script")
    for name, command in COMMANDS.items():
        try:
            known = import_module(command.module).parser()
        except ModuleNotFoundError:  # what is not installed has no flags to complete
            continue
        commands.add_parser(name, parents=[known], add_help=False, help=command.help)
    print(shtab.complete(root, shell))
    return 0


def _fail(status: int, message: str) -> int:
    print(f"heed: {message}" if status == 2 else f"heed {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
