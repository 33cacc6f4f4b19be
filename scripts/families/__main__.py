"""Describe a small random model of each model type of transformers, as ``heed export hf`` does before it traces.

``python -m scripts.families [TYPE ...]`` prints a line for each: the class, and its main input or the reason of the
refusal; of a model that is several in one also its parts. Types that cannot be built from small settings, or have more
than ``MAX_PARAMETERS``, are counted. Nothing is traced or compared: tests/export/hf/test_families.py does that.
"""

import sys
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from rich.progress import track
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PretrainedConfig, PreTrainedModel

from export.hf.description import block_of
from export.hf.parts import parts_of
from export.hf.pretrained import ModelRefused, load
from scripts.families.configs import small_config

MAX_PARAMETERS = 3_000_000
MAX_SHOWN = 200  # characters of an error
STD = 0.3  # of weights; with smaller ones attention is almost uniform
DESCRIBED, REFUSED, FAILED, NOT_BUILT = "described", "refused", "ended in a traceback", "not built"
Line = tuple[str, str, str, str]  # type, class, outcome, and inputs or the reason


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
        for line in described(name):
            counts[line[2]] += 1
            print(" | ".join(line), flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return 1 if counts[FAILED] else 0


def described(name: str) -> Iterator[Line]:
    """The lines of a type: of the whole, and of its parts."""
    try:
        model = small_model(CONFIG_MAPPING[name])
    except Exception as error:  # transformers raises errors of many types
        yield name, "", NOT_BUILT, _shown(error)
        return
    kind = type(model).__name__
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        yield name, kind, *_outcome(Path(folder), None)
        for part in names_of_parts(model):
            yield f"{name}/{part}", kind, *_outcome(Path(folder), part)


def names_of_parts(model: PreTrainedModel) -> list[str]:
    """The models in one that is several, which ``--part`` exports."""
    return [*parts_of(model)] if len(getattr(model.config, "sub_configs", {})) > 1 else []


def small_model(config_class: type[PretrainedConfig]) -> PreTrainedModel:
    """The model without a head, with random weights.

    Raises:
        Exception: of many types; it cannot be built, or has more than ``MAX_PARAMETERS``.
    """
    if config_class not in MODEL_MAPPING:
        raise ValueError("transformers has no model without a head for it")
    model_class: Any = MODEL_MAPPING[config_class]
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    config = small_config(config_class)
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in model_class(config).parameters())
    if count > MAX_PARAMETERS:
        raise ValueError(f"{count:,} parameters are too many")
    torch.manual_seed(0)
    model: PreTrainedModel = model_class(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=STD)
    return model


def _outcome(folder: Path, part: str | None) -> tuple[str, str]:
    try:
        block, _ = block_of(load(folder, part=part), "model")
    except ModelRefused as refused:
        return REFUSED, str(refused).replace(str(folder), "DIR")
    except Exception as error:
        return FAILED, f"{type(error).__name__}: {_shown(error)}"
    return DESCRIBED, f"{next(iter(block.inputs))}; {', '.join(block.outputs)}"


def _shown(error: Exception) -> str:
    """The text of an error in one line."""
    return " ".join(str(error).split())[:MAX_SHOWN] or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
