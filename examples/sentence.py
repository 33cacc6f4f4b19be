"""Show which words of a sentence attend to which, in one layer of a trained encoder.

usage: .venv/bin/python examples/sentence.py [HEAD]      (0 to 11; needs a server: make serve)
"""

import json
import sys
from pathlib import Path

from who_attends import table

from heed_client import Client, HeedError

HERE = Path(__file__).parent
head = int(sys.argv[1]) if len(sys.argv) > 1 else 1
request = json.loads((HERE / "sentence.json").read_text())
words = json.loads((HERE / "sentence.tokens.json").read_text())
try:
    with Client() as heed:
        answer = heed.attend("scaled_dot_product", **request, outputs=["weights"])
except HeedError as error:
    sys.exit(str(error))
print(table(answer.weights[0, head].tolist(), words))
