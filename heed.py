"""The ``heed`` command. Each of its parts parses its own flags: ``heed serve --help`` lists them."""

import sys
from importlib import import_module

COMMANDS = {
    "serve": ("service.__main__", "serve a model repository over HTTP"),
    "probe": ("service.probe", "tell by the exit status whether the service on this machine is ready"),
    "list": ("service.listing", "list the blocks in a model repository"),
    "attend": ("heed_client.__main__", "run a block of a server on tensors from files, and look at its weights"),
    "loadtest": ("loadtest.__main__", "load on a server, measured"),
    "export": ("export.__main__", "export attention blocks from torch into the model repository"),
}


def main() -> int:
    """Run the command named first; answers its exit status."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        listed = "\n".join(f"  {name:10}{what}" for name, (_, what) in COMMANDS.items())
        print(f"usage: heed COMMAND [flags]\n\n{listed}\n\nheed COMMAND --help lists the flags of each.")
        return 0
    name, *arguments = sys.argv[1:]
    if name not in COMMANDS:
        print(f"heed: unknown command {name!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
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
