"""``heed serve``, where all work runs on the event loop."""

import sys

from service.cli.serve import main
from service.engine import engine, task

if __name__ == "__main__":
    engine.INLINE_NS = task.MAX_INLINE_BYTES = 10**15
    sys.exit(main())
