"""What the commands of Heed and its client share: a parser that suggests, flags of a server, a clean end."""

import argparse
import difflib
import os
import re
import ssl
import sys
from collections.abc import Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8000"
URL_FORM = "expected a URL such as http://127.0.0.1:8000 or 127.0.0.1:8000"
INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + the number of the signal, as shells report them
CLOSE = 0.75  # difflib's ratio from which a name may be a misspelt one
KINDS = {"int": "a whole number", "float": "a number"}


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean NAME?`` with the name of ``known`` that is most like ``word``; empty if none is like it."""
    names = {name.lower().replace("-", "_"): name for name in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), names, 1, CLOSE)
    return f"; did you mean {names[found[0]]}?" if found else ""


def either(words: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def server_url(text: str) -> str:
    """``text`` as the URL of a server, without a slash at its end; one without a scheme is of HTTP.

    Raises:
        ValueError: it has no host, another scheme, a wrong port, or a query.
    """
    url = text.strip()
    if re.match(r"https?:(?!//)", url):
        raise ValueError(f"{URL_FORM}, got {text!r}")
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        is_valid = parts.port != 0
    except ValueError:  # the port is no number, or too large
        is_valid = False
    if not is_valid or parts.scheme not in ("http", "https") or not re.fullmatch(r"[\w.:%-]+", parts.hostname or ""):
        raise ValueError(f"{URL_FORM}, got {text!r}")
    if (parts.hostname or "").isdecimal() or parts.query or parts.fragment:
        raise ValueError(f"{URL_FORM}, got {text!r}")
    return url.rstrip("/")


def ssl_context(cacert: str | Path | None = None, insecure: bool = False) -> ssl.SSLContext:
    """For connections: trust the certificates in ``cacert``, a PEM file, without it those of this machine.

    Raises:
        ValueError: the file cannot be read, or has no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=cacert)
    except ssl.SSLError:
        raise ValueError(f"{cacert}: expected a PEM file with certificates") from None
    except OSError as error:
        raise ValueError(f"{cacert}: {error.strerror}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Parser(argparse.ArgumentParser):
    """argparse's parser with short errors and suggestions. Flags cannot be abbreviated."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False} | options)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with status 2."""
        self.exit(2, f"{self.prog}: {self._explained(message)}\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The options; unlike argparse's, unknown flags are reported before arguments that are missing."""
        given = list(sys.argv[1:] if args is None else args)
        unknown = [flag for flag in map(_flag, given[: _end_of_flags(given)]) if flag and flag not in self._flags()]
        if unknown:
            self._unknown(unknown[0])
        return super().parse_args(given, namespace)

    def _flags(self) -> set[str]:
        """Of this parser and its subcommands."""
        flags = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                flags = flags.union(*(parser._flags() for parser in action.choices.values()))
        return flags

    def _unknown(self, flag: str) -> NoReturn:
        advice = nearest(flag, self._flags()) or f"; `{self.prog} --help` lists the flags"
        self.exit(2, f"{self.prog}: unknown flag {flag}{advice}\n")

    def _explained(self, message: str) -> str:
        """argparse's message in plain words."""
        name, _, problem = message.removeprefix("argument ").partition(": ") if ": " in message else ("", "", message)
        flag = next((part for part in name.split("/") if part.startswith("--")), name)
        if found := re.fullmatch(r"the following arguments are required: (.*)", message):
            return f"missing {found[1]}; `{self.prog} --help` explains it"
        if found := re.fullmatch(r"unrecognized arguments: (.*)", message):
            return f"unexpected argument {found[1]!r}; `{self.prog} --help` lists the flags"
        if problem == "expected one argument":
            return f"{flag}: expected a value (write {flag}=-1 for one that begins with -)"
        if found := re.fullmatch(r"invalid (\w+) value: (.*)", problem):
            return f"{flag}: expected {KINDS.get(found[1], found[1])}, got {found[2]}"
        if found := re.fullmatch(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", problem):
            choices = re.findall(r"[\w.-]+", found[2])
            return f"{flag}: expected {either(choices)}, got {found[1]!r}{nearest(found[1], choices)}"
        if found := re.fullmatch(r"ignored explicit argument (.*)", problem):
            off = f"--no-{flag.removeprefix('--')}"
            advice = f"; use {off} to switch it off" if off in self._flags() else ""
            return f"{flag}: takes no value, got {found[1]}{advice}"
        return f"{flag}: {problem}" if flag else problem


def _flag(argument: str) -> str:
    """The name of the flag that ``argument`` begins with; empty if it is none, as a negative number is."""
    found = re.match(r"(--[A-Za-z][^=\s]*)(=|$)", argument)
    return found[1] if found else ""


def _end_of_flags(arguments: Sequence[str]) -> int:
    return arguments.index("--") if "--" in arguments else len(arguments)


def add_server(parser: Any) -> None:
    """Add the flags of every command that calls a server: --url, --api-key, --cacert, --insecure."""
    add = parser.add_argument
    environment = os.environ.get
    add("--url", type=url_option, default=environment("HEED_URL") or DEFAULT_URL,
        help=f"URL of the server (HEED_URL, default {DEFAULT_URL}); http:// may be omitted")  # fmt: skip
    add_access(parser)


def add_access(parser: Any) -> None:
    """Add --api-key, --cacert and --insecure."""
    add = parser.add_argument
    add("--api-key", metavar="KEY", type=api_key_option, default=os.environ.get("HEED_API_KEY") or None,
        help="API key, sent as Bearer token (HEED_API_KEY)")  # fmt: skip
    add("--cacert", type=certificates_option, metavar="FILE",
        help="PEM file with the certificates to trust, in place of the system's")  # fmt: skip
    add("--insecure", "-k", action="store_true", help="accept any server certificate")


def url_option(text: str) -> str:
    """``server_url`` of a flag or of HEED_URL."""
    try:
        return server_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}{_of_variable(text, 'HEED_URL')}") from None


def url_variable(parser: argparse.ArgumentParser) -> str | None:
    """HEED_URL, for a --url without a default; None if it is not set. An invalid URL exits with status 2."""
    try:
        return url_option(os.environ["HEED_URL"]) if os.environ.get("HEED_URL") else None
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --url: {error}")


def api_key_option(text: str) -> str:
    """An API key that can stand in a header; the message does not show it."""
    if not (text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(
            f"expected printable ASCII, as in the server's file of keys{_of_variable(text, 'HEED_API_KEY')}"
        )
    return text


def _of_variable(text: str, name: str) -> str:
    """A note for a value that is a variable's."""
    return f" (from the variable {name})" if text == os.environ.get(name) else ""


def positive(text: str) -> float:
    """A finite number above 0, in the flag's unit."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def certificates_option(text: str) -> str:
    """A file that holds certificates."""
    try:
        ssl_context(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


class Main(Protocol):
    """The main function of a command: it returns the exit status."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int: ...


def clean_end(main: Main) -> Main:
    """``main`` without a traceback where the user interrupts it, or closes the pipe that it writes to."""

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        try:
            status = main(arguments)
            sys.stdout.flush()
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its end
            return BROKEN_PIPE
        return status

    return run
