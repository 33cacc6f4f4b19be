"""The name of a request: the client's own, or one that no other request has."""

import itertools
import os
import re
import secrets

from service.body import Headers

SANE = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIds:
    """Names requests: by what ``X-Request-ID`` says, or by this process and a number."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._process = secrets.token_hex(8).encode()
        self._count = itertools.count(1)

    def name(self, headers: Headers) -> bytes:
        said = headers.get(b"x-request-id")
        if said is not None and SANE.fullmatch(said):
            return said
        return b"%b%08x" % (self._process, next(self._count))
