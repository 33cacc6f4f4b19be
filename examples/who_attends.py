"""Reads an answer to sentence.json from standard input and shows which word attends to which.

usage: curl ... | python3 examples/who_attends.py [--head 1]
"""

import argparse
import json
import sys
from pathlib import Path


def table(weights: list[list[float]], tokens: list[str], shown: int = 3) -> str:
    """A line for each word, with the words it attends to most; ``weights`` [n, n] are one head's."""
    lines = []
    for word, row in zip(tokens, weights, strict=True):
        most = sorted(range(len(row)), key=lambda key: -row[key])[:shown]
        lines.append(f"{word:>10}  " + "  ".join(f"{tokens[key]:<8} {row[key]:.2f}" for key in most))
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", type=int, default=1, help="which of the 12 heads to show (default 1)")
    head = parser.parse_args().head
    answer = json.load(sys.stdin)
    if "weights" not in answer:
        sys.exit(f"no weights in the answer: {answer}")
    words = json.loads((Path(__file__).parent / "sentence.tokens.json").read_text())
    print(table(answer["weights"][0][head], words))
