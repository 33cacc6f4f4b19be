"""``python -m service`` is ``heed serve``."""

import sys

from service.cli.serve import main

if __name__ == "__main__":
    sys.exit(main())
