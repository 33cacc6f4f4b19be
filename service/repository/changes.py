"""The log of served models: a line for each version that is loaded, replaced or unloaded."""

import logging
from collections.abc import Mapping

from service.model.model import Model

log = logging.getLogger("heed")

Requester = Mapping[str, object]  # who asked for a change, as fields of the log: by, and of a client's request more

NOBODY: Requester = {}
START: Requester = {"by": "start"}
POLL: Requester = {"by": "poll"}


def log_changes(name: str, old: Mapping[int, Model], new: Mapping[int, Model], requester: Requester) -> None:
    """Log what differs between the ``old`` and the ``new`` versions of a model.

    A line has the model, its version, the seconds that the load took, the bytes of its files, and the requester.
    """
    for version, model in new.items():
        if old.get(version) is not model:
            fields = {"seconds": round(model.load_seconds, 3), "bytes": model.file_bytes}
            change = "replaced" if version in old else "loaded"
            log.info("model %s", change, extra={"model": name, "version": version, **fields, **requester})
    for version, model in old.items():
        if version not in new:
            fields = {"bytes": model.file_bytes}
            log.info("model unloaded", extra={"model": name, "version": version, **fields, **requester})
