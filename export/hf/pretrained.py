"""Read a directory of the transformers library: config, weights in float32 with eager attention, tokenizer files.

Nothing is downloaded, and no code of the directory is run (``trust_remote_code`` is never set).
"""

import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch
import transformers
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from export.hf.experts import loop_over_experts
from export.hf.packed.deepstack import add_by_masks
from export.hf.packed.positioned import positioned_tower, take_whole_pictures
from export.hf.packed.shaped import shaped_tower, take_pictures_of_one_size
from export.hf.packed.tower import packed_tower, take_pictures
from export.hf.parts import has_two_stacks, has_two_towers, names_in, parts_of, reads_pictures, with_head
from export.hf.pooling import Pooling, UnknownPooling, pooling_of
from export.hf.tokenizer import NoTokenizer, tokenizer_json
from export.weights.adapter import WEIGHTS as WEIGHTS_OF_ADAPTER
from export.weights.adapter import base_of, merged
from export.weights.checkpoint import WEIGHTS, digest_of, not_finite

HEADS = ("config", "none")
# Files beside the weights that a tokenizer or a preprocessor is made of.
COMPANIONS = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm",
    "target.spm", "chat_template.jinja", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip


class ModelRefused(Exception):
    """The directory has no model that can be exported; the message says why."""


def reason_of(error: BaseException) -> str:
    """The first line of an error of another library, or its type if it has no text.

    A sentence at its end that announces the next lines is left out.
    """
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"((?<=[.!?])\s[^.!?]*)?:$", "", line)


@dataclass(frozen=True)
class Pretrained:
    """A model as transformers computes it, in float32 on the CPU, and its directory."""

    folder: Path
    model: PreTrainedModel
    random: tuple[str, ...] = ()  # parameters that the directory does not have
    ignored: tuple[str, ...] = ()  # tensors of the directory that the model does not have
    pooling: Pooling | None = None  # of a directory of sentence-transformers
    tokenizer: str | None = None  # the tokenizer.json to write
    warnings: tuple[str, ...] = ()  # why something of the directory is not exported
    part: str | None = None  # the model is this part of the directory's
    shapes: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # of inputs, without the batch: not the config's
    adapter: Path | None = None  # the directory that was given; ``folder`` is its model's

    @property
    def config(self) -> PretrainedConfig:
        return self.model.config

    @property
    def kind(self) -> str:
        """The name of the model's class in transformers."""
        return type(self.model).__name__

    @cached_property
    def companions(self) -> list[Path]:
        """The files of the tokenizer and the preprocessor."""
        return [self.folder / name for name in COMPANIONS if (self.folder / name).is_file()]

    def origin(self) -> str:
        """The directory's name, and the SHA-256 of its files of weights, joined in the order of their names."""
        files = sorted({*self.folder.glob("*.safetensors")} or {*self.folder.glob("pytorch_model*.bin")})
        given = self.adapter or self.folder
        if given != self.folder:
            files += sorted(given.glob(WEIGHTS_OF_ADAPTER))
        name = "/".join(filter(None, (given.resolve().name, self.part)))
        return f"{name} sha256:{digest_of(files)}"


def load(
    folder: Path,
    head: str = "config",
    part: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Pretrained:
    """The model in ``folder``: of the class that its config names or, with head "none", without a task head.

    With ``part`` it is one of the models inside that model (``export.hf.parts``).

    Raises:
        ModelRefused: transformers has no such model, cannot load it, or it has no eager attention; there is no such
            part, or ``part`` is missing.
    """
    adapter = folder
    folder = _refusing(lambda: base_of(adapter))
    content = _config_file(folder)
    if content.get("quantization_config"):
        raise ModelRefused(f"{folder}: its weights are quantized (quantization_config), which export does not read")
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise ModelRefused(f"{folder} has no weights; expected {' or '.join(WEIGHTS)}")
    common = {"local_files_only": True, "trust_remote_code": False}
    config = _attempt(folder, content, lambda: AutoConfig.from_pretrained(folder, **common))
    if len(getattr(config, "sub_configs", {})) > 1 and part is None:
        outline = _attempt(folder, content, lambda: _outline(_class_of(config, head), config))
        if not (has_two_towers(outline) or reads_pictures(outline) or has_two_stacks(outline)):
            advice = f"; --part exports one: {', '.join(parts)}" if (parts := parts_of(outline)) else ""
            raise ModelRefused(f"{folder} has several models in one{advice}")
    options = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True, **common}
    warnings: list[str] = []
    pooling = tokenizer = None
    try:
        pooling = None if part else pooling_of(folder)
    except UnknownPooling as error:
        warnings.append(f"no embedding: {error}")
    head = "none" if pooling else head  # embeddings are made of hidden states
    whole, info = _attempt(folder, content, lambda: _class_of(config, head).from_pretrained(folder, **options))
    if adapter != folder:
        whole = _refusing(lambda: merged(whole, adapter))
    model = whole if part is None else _part(whole, part, head)
    if model.config._attn_implementation != "eager":
        raise ModelRefused(f"{folder}: {type(model).__name__} has no eager attention, which computes the weights")
    loop_over_experts(model)
    model.requires_grad_(False).eval()
    if tower := packed_tower(model):
        take_pictures(tower)
        add_by_masks(model)
    if tower := positioned_tower(model):
        take_whole_pictures(tower)
    if tower := shaped_tower(model):
        take_pictures_of_one_size(tower)
    for name, parameter in model.named_parameters():
        if fault := not_finite(parameter):
            raise ModelRefused(f"{folder}: {name} contains {fault}")
    try:
        tokenizer = tokenizer_json(folder)
    except NoTokenizer as error:
        warnings.append(f"texts are not accepted, the tokenizer is not exported: {error}")
    missing, unexpected = (tuple(sorted(info[f"{kind}_keys"])) for kind in ("missing", "unexpected"))
    random = missing if part is None else names_in(model, whole, missing)
    return Pretrained(
        folder, model, random, unexpected, pooling, tokenizer, tuple(warnings), part, shapes or {}, adapter
    )


def _refusing(call: Callable[[], Any]) -> Any:
    """The result of ``call``; ModelRefused for its ValueError."""
    try:
        return call()
    except ValueError as error:
        raise ModelRefused(str(error)) from None


def _outline(model_class: Any, config: PretrainedConfig) -> PreTrainedModel:
    """The model without its weights."""
    build = AutoModel.from_config if model_class is AutoModel else model_class._from_config
    with torch.device("meta"):
        outline: PreTrainedModel = build(config)
        return outline


def _part(whole: PreTrainedModel, name: str, head: str) -> PreTrainedModel:
    parts = parts_of(whole)
    if name not in parts:
        has = f"it has {', '.join(parts)}" if parts else "it is one model"
        raise ModelRefused(f"{type(whole).__name__} has no part {name}; {has}")
    part: Any = whole.get_submodule(parts[name])
    model: PreTrainedModel = part if head == "none" else with_head(whole, part)
    return model


def _config_file(folder: Path) -> dict[str, Any]:
    if folder.is_file():
        whole = (folder.parent / "config.json").is_file()
        advice = f"give its directory, {folder.parent}" if whole else "heed export multi_head --weights takes one"
        raise ModelRefused(f"{folder} is a file; {advice}")
    if not folder.is_dir():
        advice = f"; to download it from the Hugging Face Hub: hf download {folder} --local-dir {folder.name}"
        is_name = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(folder))
        raise ModelRefused(f"no such directory: {folder}{advice if is_name else ''}")
    try:
        content = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        reason = "; GGUF is not read: export the model that it was made of" if any(folder.glob("*.gguf")) else ""
        raise ModelRefused(f"{folder} has no config.json{reason}") from None
    except ValueError as error:
        raise ModelRefused(f"{folder}/config.json is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelRefused(f"{folder}/config.json contains no JSON object")
    return content


def _class_of(config: PretrainedConfig, head: str) -> Any:
    """The class of transformers to load; ``AutoModel`` chooses the one without a head."""
    names = getattr(config, "architectures", None) or []
    if head == "none" or not names:
        return AutoModel
    model_class = getattr(transformers, names[0], None) or _inner_class(config, names[0])
    if model_class is None:
        raise ValueError(f"architectures names {names[0]}, which transformers {transformers.__version__} does not have")
    return model_class


def without_head(model: PreTrainedModel) -> str:
    """The advice to leave out the head, for the end of a refusal; empty if transformers has no such class."""
    classes = MODEL_MAPPING.get(type(model.config), None)
    is_whole = classes is None or type(model) in (classes if isinstance(classes, tuple) else (classes,))
    return "" if is_whole else "; --head none exports the model without its head"


def _inner_class(config: PretrainedConfig, name: str) -> Any:
    """A model class beside the config's that ``transformers`` itself does not list, such as that of a tower."""
    try:
        found = getattr(import_module(type(config).__module__.replace(".configuration_", ".modeling_")), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, PreTrainedModel) else None


def _attempt(folder: Path, content: dict[str, Any], call: Callable[[], Any]) -> Any:
    """The result of ``call``.

    Raises:
        ModelRefused: it failed; the message has transformers' reason.
    """
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except Exception as error:  # of many types: a damaged file, an unknown model, an option it does not have
        if content.get("auto_map") and "trust_remote_code" in str(error):
            reason = "it needs the code in its directory, and export runs none"
        else:
            reason = reason_of(error)
        raise ModelRefused(f"{folder}: transformers cannot load it: {reason}") from None
