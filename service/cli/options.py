"""The flags of ``heed serve``, made of the settings, and the errors of wrong ones."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from heed_options import Parser, either, nearest
from service.settings import GROUPS, Settings, size_text

METAVARS: dict[Any, str] = {int: "N", float: "NUMBER", str: "TEXT"}
EPILOG = "Sizes are bytes, or have a unit: 128MiB, 2GB. Words may be in any case."
PORT = "expected a port from 0 to 65535"
EXPECTED = {  # types of pydantic's errors -> the expected value; their contexts have the limits
    "int_parsing": "expected a whole number",
    "int_parsing_size": "expected a smaller number",
    "float_parsing": "expected a number",
    "finite_number": "expected a finite number",
    "bool_parsing": "expected true or false",
    "less_than_equal": "expected at most {le:,.0f}",
    "greater_than_equal": "expected at least {ge:g}",
    "greater_than": "expected a number above {gt:g}",
}
FORMS = {
    "port": PORT,
    "monitoring_port": PORT,
    "versions": "expected all, latest:N, or numbers separated by commas",
    "model_control_mode": "expected none, explicit, poll or poll:N, which scans every N seconds",
    "access_log": "expected off, all, errors or errors:N, for requests that take longer than N milliseconds",
    "viewer_frame_ancestors": "expected origins separated by spaces",
}
REMOVED = {  # settings of former versions -> the replacement
    "device_id": "set CUDA_VISIBLE_DEVICES to the number of the GPU",
    "docs": "set HEED_PAGES to viewer or none",
    "exit_unless_ready": "set HEED_READY_WHEN=all-or-exit, or any-or-exit",
    "batch_models": "set HEED_BATCHING to the names, or to all",
    "inline_microseconds": "it is always 2000",
    "json_non_finite": "ask for outputs with NaN or infinity as binary data",
    "max_header_bytes": "the limit is always 64 KiB",
    "metrics": "set HEED_MONITORING_PORT to serve them on another port",
    "model_poll_seconds": "set HEED_MODEL_CONTROL_MODE=poll:N",
    "overload_status": "it is always 503",
    "read_timeout_seconds": "set HEED_TRANSFER_TIMEOUT_SECONDS",
    "server_name": "set OTEL_SERVICE_NAME",
    "slow_milliseconds": "set HEED_ACCESS_LOG=errors:N",
    "viewer": "set HEED_PAGES to docs or none",
    "write_timeout_seconds": "set HEED_TRANSFER_TIMEOUT_SECONDS",
}


class WrongSettings(Exception):
    """Settings that cannot be used; a line for each."""


def parser() -> Parser:
    """The parser of the flags, in groups."""
    parser = Parser(prog="heed serve", usage="heed serve [flags]", description=Settings.__doc__, epilog=EPILOG)
    for name, field in Settings.model_fields.items():
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        options: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        if field.annotation is not bool:
            options = {"metavar": _metavar(name, field)}
        help = f"{field.description}{_default(name, field)}".replace("%", "%%")
        group.add_argument(_flag(name), dest=name, default=argparse.SUPPRESS, help=help, **options)
    return parser


def read_settings(arguments: Sequence[str]) -> Settings:
    """The settings: from flags, which take precedence, and the environment.

    Raises:
        WrongSettings: with a message for each wrong one.
        SystemExit: there is no such flag; standard error names it.
    """
    if removed := _removed(arguments):
        raise WrongSettings("\n".join(removed))
    flags = vars(parser().parse_args(arguments))
    try:
        return Settings(**flags)
    except ValidationError as error:
        lines = [_explained(problem, flags) for problem in error.errors()]
        raise WrongSettings("\n".join(lines)) from None


def _removed(arguments: Sequence[str]) -> list[str]:
    """A line for each flag and each variable of the environment that was a setting, with its replacement."""
    given = {argument.partition("=")[0].replace("--no-", "--") for argument in arguments}
    given |= {name.upper() for name in os.environ}
    return [
        f"{_flag(name)} ({_variable(name)}): this setting was removed: {instead}"
        for name, instead in REMOVED.items()
        if _flag(name) in given or _variable(name) in given
    ]


def _explained(problem: Mapping[str, Any], flags: Mapping[str, Any]) -> str:
    """pydantic's error in plain words, with the name of the wrong flag, or else of the variable."""
    name = str(problem["loc"][0])
    variable = _variable(name)
    given = flags.get(name, os.environ.get(variable, problem["input"]))
    if problem["type"] == "literal_error":
        choices = get_args(Settings.model_fields[name].annotation)
        message = f"expected {either(choices)}, got {given!r}{nearest(str(given), choices)}"
    elif problem["type"] == "value_error":
        message = str(problem["ctx"]["error"])
    else:
        known = EXPECTED.get(problem["type"], problem["msg"])
        expected = FORMS.get(name) or known.format(**problem.get("ctx", {}))
        message = f"{expected}, got {given!r}"
    is_flag = name in flags or variable not in map(str.upper, os.environ)
    return f"{_flag(name)} ({variable}): {message}" if is_flag else f"{variable} (or {_flag(name)}): {message}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _variable(name: str) -> str:
    return f"HEED_{name.upper()}"


def _metavar(name: str, field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return "{" + ",".join(get_args(field.annotation)) + "}"
    return "SIZE" if name.endswith("_bytes") else METAVARS.get(field.annotation, "PATH")


def _default(name: str, field: FieldInfo) -> str:
    """The default in the help; empty if there is none, or if the flag is off by default."""
    if field.default is None or field.default is False or field.default == "":
        return ""
    text = size_text(field.default) if name.endswith("_bytes") else str(field.default)
    return f" (default {'on' if field.default is True else text})"
