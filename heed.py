"""The ``heed`` command. Each subcommand parses its own flags: ``heed serve --help`` lists them.

Nothing that takes long is imported before ``process`` handles signals.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import NamedTuple, NoReturn

FOLDER = os.path.dirname(os.path.abspath(__file__))
PACKAGES = {"service", "models", "export", "loadtest", "heed_client", "heed_options"}


class OwnPackages:
    """Finds the packages of Heed beside this file, whatever a user's folder or PYTHONPATH has under these names."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The package ``name`` if it is one of Heed's; importlib looks for all others."""
        if path is not None or name not in PACKAGES:
            return None
        return PathFinder.find_spec(name, [FOLDER, os.path.join(FOLDER, "clients")], target)


sys.meta_path.insert(0, OwnPackages)


class Command(NamedTuple):
    """``module`` has ``main`` and ``parser``; ``extra`` is what pip installs for it."""

    module: str
    extra: str
    help: str


COMMANDS = {
    "serve": Command("service.cli.serve", "cpu", "serve a model repository over HTTP"),
    "probe": Command("service.cli.probe", "cpu", "check whether a server is ready (exit status)"),
    "list": Command("service.cli.list", "cpu", "list the blocks in a model repository or on a server"),
    "run": Command(
        "heed_client.__main__", "client", "run a block or model on a server; draw its weights, generate text"
    ),
    "memory": Command("heed_client.command.memory", "client", "store, list and delete keys and values on a server"),
    "loadtest": Command("loadtest.__main__", "loadtest", "measure a server's throughput and latency under load"),
    "export": Command("export.__main__", "cpu,export", "export attention blocks from torch into the model repository"),
}
ALIASES = {"attend": "run"}
COMPLETION = "completion"
SHELLS = ("bash", "zsh", "tcsh")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Run = Callable[[], int]  # it returns the exit status


def process() -> NoReturn:
    """Run the command of this process, which a signal ends with 128 + its number and without a traceback.

    That holds while the packages of a subcommand are imported, which takes seconds, and while Python ends. In between
    the subcommand handles signals.
    """
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, _end) for number in handled]
    run = _resolve(sys.argv[1:])
    for number, handler in zip(handled, before, strict=True):
        signal.signal(number, handler)
    try:
        sys.exit(run())
    finally:
        for number in handled:
            signal.signal(number, _end)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand named first. Returns its exit status: 2 for an unknown one, 1 if a package is missing."""
    return _resolve(sys.argv[1:] if arguments is None else arguments)()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _resolve(arguments: Sequence[str]) -> Run:
    """Import the subcommand named first; the result runs it."""
    from heed_options import clean_end, nearest

    name, *others = [*arguments, ""][:-1] or ["--help"]
    name = ALIASES.get(name, name)
    if name in COMMANDS:
        command = COMMANDS[name]
        try:
            run = import_module(command.module).main
        except ModuleNotFoundError as missing:
            advice = f"pip install 'heed-attention[{command.extra}]'"
            if "cpu" in command.extra:
                advice += " (gpu in place of cpu for CUDA)"
            return partial(_fail, 1, f"{name}: the package {missing.name} is not installed: {advice}")
    elif name in ("-h", "--help", "help"):
        run = _help
    elif name in ("-V", "--version", "version"):
        run = _version
    elif name == COMPLETION:
        run = _completion
    else:
        known = [*COMMANDS, *ALIASES, COMPLETION, "--version", "--help"]
        advice = nearest(name, known) or f"; the commands are {', '.join(COMMANDS)}"
        return partial(_fail, 2, f"unknown command {name!r}{advice}")
    return partial(clean_end(run), others)


def _help(_arguments: Sequence[str] | None) -> int:
    lines = "\n".join(f"  {name:12}{command.help}" for name, command in COMMANDS.items())
    print(
        f"usage: heed COMMAND [flags]\n\n{lines}\n  {COMPLETION:12}print the completion for a shell\n\n"
        "heed COMMAND --help lists the flags of each; heed --version prints the version."
    )
    return 0


def _version(_arguments: Sequence[str] | None) -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"heed {version('heed-attention')}")
    except PackageNotFoundError:
        print("heed (a checkout that is not installed)")
    return 0


def _completion(arguments: Sequence[str] | None) -> int:
    """Print a script that completes the commands, their flags and the flags' choices."""
    from heed_options import Parser

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
    process()
