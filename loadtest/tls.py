"""Which certificates of servers are trusted."""

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trust:
    """Those of ``cacert``, a PEM file; without it those of this machine; all with ``insecure``."""

    cacert: Path | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """For connections.

        Raises:
            OSError: the file cannot be read, or has no certificate.
        """
        context = ssl.create_default_context(cafile=self.cacert)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
