"""Which certificates of servers are trusted."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from heed_options import ssl_context


@dataclass(frozen=True)
class Trust:
    """Those of ``cacert``, a PEM file; without it those of this machine; all with ``insecure``."""

    cacert: str | Path | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """For connections.

        Raises:
            ValueError: the file cannot be read, or has no certificate.
        """
        return ssl_context(self.cacert, self.insecure)
