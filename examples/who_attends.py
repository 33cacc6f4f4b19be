"""Read a response to sentence.json from standard input and show which words attend to which.

usage: curl ... | python3 examples/who_attends.py [--head 1]
"""

import argparse
import json
import sys
from pathlib import Path


def table(weights: list[list[float]], tokens: list[str], count: int = 3) -> str:
    """A line for each word, with the words that it attends to most; ``weights`` [n, n] are of one head."""
    lines = []
    for word, row in zip(tokens, weights, strict=True):
        largest = sorted(range(len(row)), key=lambda key: -row[key])[:count]
        lines.append(f"{word:>10}  " + "  ".join(f"{tokens[key]:<8} {row[key]:.2f}" for key in largest))
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", type=int, default=1, help="the head to show, 0 to 11 (default 1)")
    head = parser.parse_args().head
    text = sys.stdin.read()
    if not text:
        sys.exit("no response: is the server running? `make serve` or `heed serve` starts one")
    response = json.loads(text)
    if "weights" not in response:
        sys.exit(f"no weights in the response: {response}")
    words = json.loads((Path(__file__).parent / "sentence.tokens.json").read_text())
    print(table(response["weights"][0][head], words))
