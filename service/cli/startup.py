"""The log lines of the start: the settings, unknown HEED_* variables, keys without TLS."""

import difflib
import ipaddress
import logging
import re
import socket
from collections.abc import Iterable

from service.settings import Settings

log = logging.getLogger("heed")

PREFIX = "HEED_"
CLIENT = ("URL", "API_KEY")  # of the client's commands and of `heed loadtest`
# Of docker-compose.yml, and of the scripts for other load generators.
OTHERS = ("IMAGE", "GPU_PORT", "MEMORY", "BLOCK", "M", "D")
# Of the tests; and of Kubernetes, in containers beside a service that is called heed.
OTHER_PATTERN = re.compile(r"TEST_.*|SERVICE_(HOST|PORT.*)|PORT_\d+_.*")


def log_settings(settings: Settings) -> None:
    """One line with the settings that differ from their defaults. None of them is a secret: of keys it has the file."""
    fields = Settings.model_fields.items()
    values = {name: getattr(settings, name) for name, field in fields if getattr(settings, name) != field.default}
    log.info("settings that differ from their defaults" if values else "all settings are the defaults", extra=values)


def log_unknown_variables(names: Iterable[str]) -> None:
    """Warn of each HEED_* variable of the environment that is no setting, with the nearest setting."""
    suggested = [*(name.upper() for name in Settings.model_fields), *CLIENT]
    for name in sorted(names):
        rest = name.upper().removeprefix(PREFIX)
        if rest == name.upper() or rest in (*suggested, *OTHERS) or OTHER_PATTERN.fullmatch(rest):
            continue
        nearest = difflib.get_close_matches(rest, suggested, n=1)
        hint = f"did you mean {PREFIX}{nearest[0]}?" if nearest else "`heed serve --help` lists the settings"
        log.warning("unknown setting %s; %s", name, hint)


def log_unprotected_keys(settings: Settings, listeners: Iterable[socket.socket]) -> None:
    """Warn if API keys come in clear text from other machines."""
    if settings.tls_certificate or not (settings.api_keys_file or settings.admin_keys_file):
        return
    hosts = [listener.getsockname()[0] for listener in listeners]
    open_hosts = [host for host in hosts if not ipaddress.ip_address(host.partition("%")[0]).is_loopback]
    if open_hosts:
        log.warning(
            "API keys are read without TLS on %s: anyone who reads the traffic can use them; set HEED_TLS_CERTIFICATE "
            "and HEED_TLS_KEY, or end TLS in a proxy on this machine",
            ", ".join(open_hosts),
        )
