"""The description that ``heed export hf`` makes of a small model before tracing, or its refusal."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from transformers import CONFIG_MAPPING, PreTrainedModel

from export.hf.description import block_of
from export.hf.pretrained import ModelRefused, load
from scripts.families.configs import FLAGS
from scripts.families.models import names_of_parts, small_models

DESCRIBED, REFUSED, FAILED, NOT_BUILT = "described", "refused", "ended in a traceback", "not built"
MAX_SHOWN = 200  # characters of an error
ADVICE = (r"--head none", r"--input \w+=[\d,]+")  # of refusals


class Line(NamedTuple):
    """The name, class and outcome of a model or of a part of it, and its inputs or the reason."""

    name: str
    kind: str
    outcome: str
    detail: str
    flags: tuple[str, ...] = ()  # of the export


def save_small(name: str, folder: Path) -> list[Line]:
    """Save the small model of a type with the most exportable parts; return its line and those of its parts."""
    best: list[Line] = []
    try:
        for number, model in enumerate(small_models(CONFIG_MAPPING[name])):
            trial = folder / str(number)
            model.save_pretrained(trial)
            lines = [*_lines(name, model, trial)]
            if _described(lines) > _described(best) or not best:
                rmtree(folder / "saved", ignore_errors=True)
                trial.rename(folder / "saved")
                best = lines
            if _described(lines) == len(lines):
                break
    except Exception as error:  # transformers raises errors of many types
        best = best or [Line(name, "", NOT_BUILT, _shown(error))]
    return best


def _described(lines: Sequence[Line]) -> int:
    return sum(line.outcome == DESCRIBED for line in lines)


def _lines(name: str, model: PreTrainedModel, folder: Path) -> Iterator[Line]:
    kind = type(model).__name__
    yield Line(name, kind, *_outcome(folder, None, FLAGS.get(name, ())))
    for part in names_of_parts(model):
        yield Line(f"{name}/{part}", kind, *_outcome(folder, part))


def _outcome(folder: Path, part: str | None, flags: tuple[str, ...] = ()) -> tuple[str, str, tuple[str, ...]]:
    """The outcome, the reason or the inputs, and the flags, after following the advice of a refusal."""
    head = "none" if "--head" in flags else "config"
    shapes = {}
    for flag in flags:
        if "=" in flag:
            key, _, sizes = flag.partition("=")
            shapes[key] = tuple(map(int, sizes.split(",")))
    try:
        block, _ = block_of(load(folder, head, part, shapes), "model")
    except ModelRefused as refused:
        reason = str(refused).replace(str(folder), "DIR")
        advice = [flag for pattern in ADVICE for found in re.findall(pattern, reason) for flag in found.split()]
        if advice and not {*advice} <= {*flags}:
            return _outcome(folder, part, (*flags, *advice))
        return REFUSED, reason, flags
    except Exception as error:
        return FAILED, f"{type(error).__name__}: {_shown(error)}", flags
    return DESCRIBED, f"{next(iter(block.inputs))}; {', '.join(block.outputs)}", flags


def _shown(error: Exception) -> str:
    """The text of an error in one line."""
    return " ".join(str(error).split())[:MAX_SHOWN] or type(error).__name__
