"""``heed run``: run a block of a server on tensors from files, save its outputs, draw its weights."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from heed_client.answer import Answer
from heed_client.block import Block
from heed_client.calls import COMPARED
from heed_client.client import Client
from heed_client.command import files, generate, interpret
from heed_client.command.arguments import FLAGS, GENERATION, NUMBERS, OPTIONS, TENSORS, parser
from heed_client.command.files import FileError
from heed_client.command.labels import axes_of, batch_axis, texts_of, tokens_of
from heed_client.command.matrix import Labels, Matrices, expanded, matrices
from heed_client.command.summary import summary
from heed_client.command.usage import UsageError, check_flags
from heed_client.errors import BadRequest, HeedError, Problem
from heed_client.page import page
from heed_options import clean_end

TEXTS = ("text", "text_pair", "text_target", "truncation")
FILES = ("images", "audio")
INDICES = re.compile(r"[-+\d:,\s]*\d[-+\d:,\s]*|:+")  # a selection, and no name of a FILE
DRAWN = ("weights", "rollout")  # the first that an answer has
FLAG_OF_FIELD = {  # flags whose name is not that of the field
    "max_new_tokens": "generate",
    "interventions": "intervene",
    "images": "image",
    "intervention": "intervene",
    "over": "sweep",
    "lens_top_k": "lens",
}
MEMORY_ID = re.compile(r"[\w-]{24}")  # as the server makes them


@clean_end
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 2 for a wrong argument or request, 1 if the server fails."""
    options = parser().parse_args(arguments)
    try:
        access = {"cacert": options.cacert, "verify": not options.insecure}
        with Client(options.url, api_key=options.api_key, timeout=options.timeout, **access) as heed:
            if options.describe:
                _describe(heed.describe(options.block), options.json)
            else:
                _run(heed, options)
    except (UsageError, FileError, ValueError, TypeError) as error:
        print(f"heed run: {error}", file=sys.stderr)
        return 2
    except Problem as error:
        print(f"heed run: {_detail(error)} ({error.status} {error.title})", file=sys.stderr)
        return 2 if error.status < 500 else 1
    except HeedError as error:
        print(f"heed run: --url: {error}", file=sys.stderr)
        return 1
    return 0


def _run(heed: Client, options: argparse.Namespace) -> None:
    formats = [name for name in ("show", "plot", "html") if getattr(options, name)]
    inputs = _inputs(options)
    if formats and (options.weights_top_k or inputs.get("weights_top_k")):
        raise UsageError(f"--{formats[0]}: cannot be combined with --weights-top-k")
    given = Labels(_labels("--labels", options.labels), _labels("--key-labels", options.key_labels))
    check_flags(options, formats)
    if options.sweep is not None or (options.lens and not options.generate):
        _interpret(heed, options, inputs, formats)
        return
    if options.generate:
        _generate(heed, options, inputs, formats, given)
        return
    subtracted = _compared(options.compare, inputs) if options.compare else None
    answer = _attend(heed, options.block, inputs)
    tokens = tokens_of(answer)
    drawn = next((name for name in DRAWN if name in answer), None)
    if formats and drawn is None:
        raise UsageError(f"--{formats[0]}: requires {' or '.join(DRAWN)} among --outputs")
    if options.baseline and drawn is not None and formats:
        subtracted = answer.baseline[drawn]
    is_summary = not (formats or options.out or options.json) and sys.stdout.isatty()
    selection = None
    if drawn is not None and (formats or (is_summary and isinstance(answer[drawn], np.ndarray))):
        try:
            selected = inputs if drawn == "weights" else {}
            texts = texts_of(answer, lambda: heed.describe(options.block), selected, given)
            block = heed.describe(options.block)
            selection = matrices(
                answer[drawn], options.at, texts, _indices(selected), name=drawn,
                axes=axes_of(block, drawn, inputs, np.ndim(answer[drawn]) - 2),
                batch_axis=batch_axis(block, drawn, inputs) if len(texts) > 1 else 0,
                subtracted=subtracted,
            )  # fmt: skip
        except ValueError as error:
            raise UsageError(f"--{error}") from None
    if selection is not None:
        rows, columns, _ = texts[0] if len(texts) == 1 else Labels()
        _draw(
            options,
            formats,
            selection,
            lambda: answer.page(options.at, rows, columns, _about(heed.describe(options.block), inputs, tokens)),
        )
    others = {"tokens": tokens[0] if len(tokens) == 1 else tokens, "next_tokens": getattr(answer, "next_tokens", [])}
    others = {name: value for name, value in others.items() if value}
    baseline = answer.baseline if options.baseline else {}
    flat = {**answer, **{f"baseline.{name}": array for name, array in baseline.items()}}
    differences = answer.difference if options.difference else []
    if is_summary:
        print(summary(flat, selection, others, differences))
        return
    out = options.out or ("" if formats and not options.json else "-")
    if out.endswith(("-", ".json")):
        if options.baseline:
            next_tokens = getattr(baseline, "next_tokens", None)
            others["baseline"] = files.to_lists(baseline) | ({"next_tokens": next_tokens} if next_tokens else {})
        if differences:
            others["difference"] = differences
        files.write(out, answer, others)
    elif out:
        files.write(out, flat, {})
    if "next_tokens" in others and not out.endswith(("-", ".json")):
        print(json.dumps(others["next_tokens"]))


def _attend(heed: Client, block: str, inputs: Mapping[str, Any]) -> Answer:
    try:
        return heed.attend(block, **inputs)
    except BadRequest as error:
        text = {"input_ids": "text", "decoder_input_ids": "text_target"}.get(error.field or "")
        if text is None or {error.field, text} & inputs.keys() or not heed.describe(block).tokenizer:
            raise
        raise UsageError(f"{_detail(error)}; --{text.replace('_', '-')} takes a text in place of token ids") from None


def _generate(
    heed: Client, options: argparse.Namespace, inputs: dict[str, Any], formats: Sequence[str], given: Labels
) -> None:
    """Write the tokens after a text as they arrive; or, as JSON, all at once, for one text or several."""
    out = options.out or ("-" if options.json else "")
    if out and not out.endswith(("-", ".json")):
        raise UsageError(f"--out {out}: generated tokens are written as .json")
    for flag, several in (("text", "several texts"), ("audio", "several files")):
        if isinstance(inputs.get(flag), list) and (formats or not out):
            raise UsageError(f"--{flag}: {several} need --json or --out FILE.json, and no heat maps")
    if hidden := [name for name in ("outputs", "next_tokens") if inputs.get(name) and not out]:
        raise UsageError(f"--{hidden[0].replace('_', '-')}: needs --json or --out FILE.json")
    if options.compare:
        raise UsageError("--compare: cannot be combined with --generate")
    if "text_target" in inputs:
        inputs["decoder_text"] = inputs.pop("text_target")
    drawn = generate.drawn_output(heed.describe(options.block)) if formats else ""
    inputs = generate.with_weights(inputs, drawn) if formats else inputs
    own = {"max_new_tokens": options.generate, "lens_top_k": options.lens}
    generation = heed.generate(options.block, **{**inputs, **own})
    if out:
        files.write(out, {}, generate.document(generation.result()))
    else:
        generate.print_text(generation, "input_ids" in inputs)
        if options.lens:
            print(interpret.lens_of_tokens(options.block, generation.generated))
    if formats:
        try:
            selection = generate.looked(generation, inputs, drawn, options.at, given)
        except ValueError as error:
            raise UsageError(f"--{error}") from None
        matrix, about = selection.all[0], {"model": options.block, "text": str(inputs.get("text", ""))}
        title = f"Where the generated tokens of {options.block} look"
        _draw(
            options, formats, selection,
            lambda: page(matrix.weights, matrix.queries, matrix.keys, title, about=about),
        )  # fmt: skip


def _interpret(heed: Client, options: argparse.Namespace, inputs: dict[str, Any], formats: Sequence[str]) -> None:
    """Write a sweep or a lens: as JSON, or on a terminal as a table or a heat map."""
    is_sweep = options.sweep is not None
    flag = "sweep" if is_sweep else "lens"
    others = ("outputs", "next_tokens", "binary", *OPTIONS, *GENERATION)
    wrong = [name for name in inputs if name in others and not (name == "layers" and options.lens)]
    if options.generate or wrong or (is_sweep and options.lens) or (options.lens and formats):
        other = wrong[0] if wrong else "generate" if options.generate else "lens" if is_sweep else formats[0]
        raise UsageError(f"--{other.replace('_', '-')}: cannot be combined with --{flag}")
    changes = inputs.pop("interventions", None) or []
    drawn = None
    if is_sweep:
        if len(changes) != 1:
            raise UsageError(f"--sweep: needs one --intervene, got {len(changes)}")
        inputs |= {"over": options.sweep, "metric": options.metric, "position": options.position}
        sweep = heed.sweep(options.block, intervention=changes[0], **inputs)
        document = interpret.sweep_document(sweep)
        if formats:
            try:
                drawn = interpret.sweep_matrices(sweep, options.at)
            except ValueError as error:
                raise UsageError(f"--{error}") from None
    else:
        lens = heed.lens(options.block, lens_top_k=options.lens, interventions=changes or None, **inputs)
        document = interpret.lens_document(lens)
        if not options.out and not options.json and sys.stdout.isatty():
            print(interpret.lens_table(lens))
            return
    if drawn is not None:
        _draw(options, formats, drawn, str)
    out = options.out or ("" if formats and not options.json else "-")
    if out and not out.endswith(("-", ".json")):
        raise UsageError(f"--out {out}: a {flag} is written as .json")
    if out:
        files.write(out, {}, document)


def _about(block: Block, inputs: Mapping[str, Any], tokens: Sequence[Sequence[str]]) -> dict[str, str]:
    """The facts about the weights that a page shows."""
    options = [f"{name} = {json.dumps(inputs[name])}" for name in block.parameters if name in inputs]
    texts = {name.replace("_", " "): str(inputs.get(name) or "") for name in TEXTS[:3]}
    return {
        "model": f"{block.block}, version {block.version}",
        "weights": block.weights if block.weights != "none" else "",
        **texts,
        "input": f"{len(tokens[0])} tokens" if len(tokens) == 1 else "",
        "options": ", ".join(options),
    }


def _counted(count: int, one: str, several: str | None = None) -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _compared(path: str, inputs: Mapping[str, Any]) -> np.ndarray:
    """The weights of another answer, which ``--out`` has written."""
    outputs = inputs.get("outputs") or DRAWN
    name = next((name for name in DRAWN if name in outputs), DRAWN[0])
    try:
        return np.asarray(files.pick(path, name), np.float32)
    except FileError as error:
        raise UsageError(f"--compare {error}") from None


def _draw(options: argparse.Namespace, formats: Sequence[str], matrices: Matrices, page_of: Callable[[], str]) -> None:
    """Draw the heat maps. Modules are imported here, because the libraries that they need are optional."""
    style = {"title": options.title, "cmap": options.cmap, "size": options.size}
    for format in formats:
        path = getattr(options, format)
        try:
            if format == "show":
                console = import_module("rich.console").Console(highlight=False)
                import_module("heed_client.command.show").show(matrices, console)
            elif format == "plot":
                import_module("heed_client.command.plot").plot(matrices, path, **style)
            else:
                Path(path).write_text(page_of(), encoding="utf-8")
            if format != "show":
                count, first = len(matrices.all), matrices.all[0]
                size = f"{_counted(len(first.queries), 'query', 'queries')} and {_counted(len(first.keys), 'key')}"
                what = f"{count} matrices" if count > 1 else f"{first.name} of {size}"
                print(f"wrote {path}: {what}", file=sys.stderr)
        except ModuleNotFoundError as missing:
            raise UsageError(f"--{format}: needs the package {missing.name}: pip install {missing.name}") from None
        except OSError as error:
            raise UsageError(f"--{format} {path}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"--{format} {path}: {error}") from None


def _inputs(options: argparse.Namespace) -> dict[str, Any]:
    """The tensors and parameters of the flags, which override those of the ``--request`` file."""
    paths = {name: path for name in TENSORS if (path := getattr(options, name))} | dict(options.tensor)
    if options.layers and not INDICES.fullmatch(options.layers):
        paths["layers"] = options.layers
    all_paths = [*paths.values(), *filter(None, (options.request, options.labels, options.key_labels))]
    if sum(path.partition(":")[0] == "-" for path in all_paths) > 1:
        raise UsageError("only one FILE can be standard input (-)")
    inputs: dict[str, Any] = {}
    if options.request:
        content = _read("--request", options.request)
        if not isinstance(content, dict):
            raise UsageError(f"--request {options.request}: expected named tensors, got one without a name")
        inputs |= content
    for name, path in paths.items():
        if name == "memory" and MEMORY_ID.fullmatch(path) and not Path(path).exists():
            inputs[name] = path
            continue
        try:
            inputs[name] = files.pick(path, name)
        except FileError as error:
            if name == "memory" and re.fullmatch(r"[\w-]+", path) and not Path(path).exists():
                ids = "`heed memory list` prints the ids of the server"
                raise UsageError(f"--memory {path}: is neither a file nor the id of a memory; {ids}") from None
            if name == "layers" and not Path(path).exists():
                raise UsageError(f"--layers {path}: is neither indices, such as 0,3,5:8, nor a file") from None
            raise UsageError(f"--{name.replace('_', '-')} {error}") from None
    flags = {
        name: getattr(options, name)
        for name in (
            *TEXTS,
            *FLAGS,
            *GENERATION,
            "next_tokens",
            "interventions",
            *COMPARED,
            *FILES,
            "outputs",
            "binary",
            *OPTIONS,
            *NUMBERS,
        )
    }
    flags |= {"layers": options.layers if "layers" not in paths else None} | dict(options.set)
    for name in (*TEXTS, *FILES):
        if isinstance(flags[name], list) and len(flags[name]) == 1:
            (flags[name],) = flags[name]  # one, whose answer has no batch axis
    return inputs | {name: value for name, value in flags.items() if value is not None}


def _labels(flag: str, path: str | None) -> list[str]:
    if path is None:
        return []
    labels = _read(flag, path)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UsageError(f"{flag} {path}: expected a JSON list of texts")
    return labels


def _read(flag: str, path: str) -> Any:
    try:
        return files.read(path)
    except FileError as error:
        raise UsageError(f"{flag} {error}") from None


def _indices(inputs: Mapping[str, Any]) -> dict[str, list[int]]:
    """The layers and heads that are selected by non-negative numbers and ranges, for the names of heat maps."""
    chosen = {}
    for axis in ("layers", "heads"):
        numbers = expanded(inputs.get(axis))
        is_reduced = inputs.get(f"reduce_{axis}") or (axis == "heads" and inputs.get("average_attn_weights"))
        if numbers and not is_reduced:
            chosen[axis] = numbers
    return chosen


def _describe(block: Block, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(block), indent=2, ensure_ascii=False))
        return
    lines = [f"{block.block}, version {block.version}: {block.title}", block.description, block.formula, block.source]
    sections = {"inputs": block.inputs, "outputs": block.outputs, "outputs on request": block.derived}
    for title, tensors in sections.items():
        lines += ["", title]
        for tensor in tensors.values():
            shape, required = ", ".join(map(str, tensor.shape)), ", required" if tensor.required else ""
            lines += [f"  {tensor.name} [{shape}] {tensor.dtype}{required}", f"      {tensor.description}"]
    if block.parameters:
        lines += ["", "parameters"]
    for parameter in block.parameters.values():
        default = "" if parameter.default is None else f" = {json.dumps(parameter.default)}"
        lines += [f"  {parameter.name} {parameter.dtype}{default}", f"      {parameter.description}"]
    if block.interventions is not None:
        lines += ["", "activations that --intervene changes"]
        lines += [f"  {site} [{', '.join(map(str, shape))}]" for site, shape in block.interventions.items()]
    if block.generate is not None:
        lines += ["", f"generates text: {'--text TEXT' if block.tokenizer else '--input-ids FILE'} --generate N"]
        if quantized := block.generate.get("quantized"):
            errors = ", ".join(f"{output} {error:.3g}" for output, error in quantized["errors"].items())
            lines += [f"  with weights of {quantized['bits']} bits; largest errors against float64: {errors}"]
    elif block.generate_refused:
        lines += ["", f"does not generate text: {block.generate_refused}"]
    print("\n".join(lines))


def _detail(error: Problem) -> str:
    """The server's message, with the name of the flag instead of the field."""
    if error.field is None:
        return error.detail
    name = re.split(r"[.\[]", error.field, maxsplit=1)[0]
    flag, place = FLAG_OF_FIELD.get(name, name.replace("_", "-")), error.field.removeprefix(name)
    return f"--{flag}{place}: {error.detail.removeprefix(f'{error.field}: ')}"


if __name__ == "__main__":
    sys.exit(main())
