"""The page of a block, from its description in the catalogue, with a picture of its weights and a worked answer."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np

from models.block import Block, Dim, Input
from models.catalogue import BLOCKS
from models.examples import ExampleOptions, documented, draw, within
from models.learned import SEED, demonstration
from scripts.guide import worked
from scripts.guide.tables import table

SIZES = dict.fromkeys(("layers", "batch", "heads", "kv_heads"), 1) | {"m": 12, "n": 12, "past": 0, "d_k": 16, "d_v": 16}
PICTURES = ("weights", "cross_weights")
USES = tomllib.loads((Path(__file__).parent / "uses.toml").read_text())


def summary() -> str:
    """All blocks with their formulas, in the order of the catalogue."""
    return table(
        ("block", "formula"),
        ((f"[`{name}`]({name}.md) {block.title}", f"\\({block.formula}\\)") for name, block in BLOCKS.items()),
    )


def page(block: Block) -> str:
    """The page of ``block`` in Markdown: use, formula, picture, inputs, parameters, outputs, a request, an answer."""
    tensors = {name: spec for name, spec in block.inputs.items() if spec.shape}
    parameters = {name: spec for name, spec in block.inputs.items() if not spec.shape}
    parts = [
        f"# {block.title}",
        f"`{block.name}`. {block.description}",
        f"**When to use it.** {USES[block.name]}",
        f"$$\n{block.formula}\n$$",
        f"Source: {_linked(block.source)}.",
        _pictures(block),
        "## Inputs",
        "A name stands for the same size in all shapes; `1|m` is 1 or m.",
        table(
            ("input", "shape", "type", "meaning"),
            ((f"`{k}`", _shape(v), f"{v.dtype} or bool" if v.mask else v.dtype, _text(v)) for k, v in tensors.items()),
        ),
    ]
    if parameters:
        rows = ((f"`{name}`", v.dtype, _default(v), v.description) for name, v in parameters.items())
        parts += ["## Parameters", table(("parameter", "type", "default", "meaning"), rows)]
    outputs = ((f"`{name}`", _dims(of.shape), of.description) for name, of in block.outputs.items())
    parts += ["## Outputs", table(("output", "shape", "meaning"), outputs)]
    if any(True for _ in block.build().parameters()):
        parts.append(
            f"Its learned weights are {demonstration(SEED)}. [Export](../export.md) explains how to serve your own."
        )
    parts += [
        "## Request",
        f"`POST /v1/attention/{block.name}`, here without the optional inputs:",
        f"```json\n{json.dumps(documented(block))}\n```",
        worked.text(block),
    ]
    return "\n\n".join(parts) + "\n"


def weights(block: Block, is_causal: bool) -> dict[str, np.ndarray]:
    """The weights ``[m, n]`` of one head of ``block`` by output, for inputs that are drawn from seed 0."""
    module = block.build().eval()
    options = ExampleOptions(parameters={"is_causal": True} if is_causal else {})
    outputs = block.reference(module, draw(block, within(SIZES, block.limits), options), np.float64)
    return {name: outputs[name].reshape(-1, *outputs[name].shape[-2:])[0] for name in PICTURES if name in outputs}


def heat_map(matrix: np.ndarray, caption: str) -> str:
    """An SVG figure of ``matrix`` [m, n] with nonnegative numbers: the darkest cell is the largest."""
    rows, columns = matrix.shape
    shares = np.abs(matrix) / max(np.abs(matrix).max(), 1e-9)
    cells = "".join(
        f'<rect x="{column}" y="{row}" width="1" height="1" opacity="{shares[row, column]:.2f}"/>'
        for row, column in np.argwhere(shares >= 0.005)
    )
    drawing = f'<svg viewBox="0 0 {columns} {rows}" role="img" aria-label="{caption}">{cells}</svg>'
    return f'<figure class="weights">{drawing}<figcaption>{caption}</figcaption></figure>'


def _pictures(block: Block) -> str:
    drawn = {f"{name} of random inputs": matrix for name, matrix in weights(block, False).items()}
    if "is_causal" in block.inputs:
        drawn["weights of the same inputs, with is_causal"] = weights(block, True)["weights"]
    figures = [heat_map(matrix, f"{name}; rows are queries, columns are keys") for name, matrix in drawn.items()]
    return f'<div class="pictures">{"".join(figures)}</div>'


def _linked(source: str) -> str:
    return re.sub(r"https?://[^\s,;]+", lambda match: f"<{match[0]}>", source.rstrip("."))


def _dims(shape: tuple[Dim, ...]) -> str:
    return f"`[{', '.join(map(str, shape))}]`"


def _shape(spec: Input) -> str:
    return _dims(spec.shape)


def _text(spec: Input) -> str:
    return spec.description if spec.required else f"Optional. {spec.description}"


def _default(spec: Input) -> str:
    return "" if spec.default is None or spec.default != spec.default else f"`{json.dumps(spec.default)}`"
