"""Describe a small random model of each model type of transformers, as ``heed export hf`` does before it traces.

``python -m scripts.families [TYPE ...]`` prints a line for each: the class, and its main input or the reason of the
refusal; of a model that is several in one also its parts. Types that cannot be built from small settings, or have too
many parameters, are counted. Nothing is traced or compared: ``python -m scripts.families.sweep`` does that.
"""

import sys
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from rich.progress import track
from transformers import CONFIG_MAPPING

from scripts.families.describe import FAILED, save_small


def main() -> int:
    parser = ArgumentParser(
        "python -m scripts.families", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("types", nargs="*", metavar="TYPE", help="such as bert or clip (default: all)")
    types = parser.parse_args().types or list(CONFIG_MAPPING)
    torch.set_num_threads(1)  # the models are small
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    counts: Counter[str] = Counter()
    for name in track(types, disable=not sys.stdout.isatty()):
        with TemporaryDirectory() as folder:
            for line in save_small(name, Path(folder)):
                counts[line.outcome] += 1
                print(" | ".join((line.name, line.kind, line.outcome, line.detail)), flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return 1 if counts[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
