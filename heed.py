"""The ``heed`` command. Each subcommand parses its own flags: ``heed serve --help`` lists them."""

import sys
from importlib import import_module

COMMANDS = {
    "serve": ("service.cli.serve", "serve a model repository over HTTP"),
    "probe": ("service.cli.probe", "report by the exit status whether the service on this machine is ready"),
    "list": ("service.cli.list", "list the blocks in a model repository"),
    "run": ("heed_client.__main__", "run a block on a server with tensors from files, draw its weights"),
    "memory": ("heed_client.memories.command", "store keys and values on a server, list and delete them"),
    "loadtest": ("loadtest.__main__", "measure a server's throughput and latency under load"),
    "export": ("export.__main__", "export attention blocks from torch into the model repository"),
}
ALIASES = {"attend": "run"}


def main() -> int:
    """Run the subcommand named first. Returns its exit status: 2 for an unknown one, 1 if a package is missing."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        lines = "\n".join(f"  {name:10}{help}" for name, (_, help) in COMMANDS.items())
        print(f"usage: heed COMMAND [flags]\n\n{lines}\n\nheed COMMAND --help lists the flags of each.")
        return 0
    name, *arguments = sys.argv[1:]
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        print(f"heed: unknown command {name!r}; the commands are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        command = import_module(COMMANDS[name][0])
    except ModuleNotFoundError as missing:
        print(
            f"heed {name}: {missing.name} is not installed; pip install 'heed-attention[cpu,client,export,loadtest]'",
            file=sys.stderr,
        )
        return 1
    status: int = command.main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
