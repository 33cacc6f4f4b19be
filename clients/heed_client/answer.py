"""The result of a call that runs a block."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from heed_client.page import frame, page


def wrong_index(at: Sequence[int], leading: Sequence[int]) -> ValueError:
    """The error for a leading index that weights [*leading, m, n] do not have."""
    ranges = ",".join(f"0..{length - 1}" for length in leading) or "none"
    return ValueError(f"at {','.join(map(str, at))}: the leading indices of these weights are {ranges}")


class TopK(NamedTuple):
    """The k largest weights of each query, largest first; both arrays are [..., m, k]."""

    indices: np.ndarray
    values: Any  # an array, or Quantized


class Quantized(NamedTuple):
    """Weights as uint8 of 0 to 255; a weight is its level times the scale, off by half the scale at most."""

    levels: np.ndarray
    scale: float

    def dequantized(self) -> np.ndarray:
        """The weights as float32."""
        return self.levels.astype(np.float32) * np.float32(self.scale)


class Tokens(Mapping[str, Any]):
    """The tokens of a text, or of a list of texts, as attributes and as a mapping.

    ``tokens``, ``offsets`` (the characters of each token in its text), ``input_ids``, ``attention_mask`` (0 = padding),
    ``token_type_ids``, ``sequence_ids`` (0 or 1 of a pair, None for special tokens), ``truncated``; and for
    ``text_target`` ``target_tokens``, ``decoder_input_ids`` and so on.
    """

    def __init__(self, model: str, fields: Mapping[str, Any]) -> None:
        self.model = model
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(f"there is no {name!r}; available: {', '.join(self.__dict__.get('_fields', ()))}")
        return self._fields[name]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._fields})

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"<Tokens of {self.model}: {self._fields.get('tokens', self._fields.get('target_tokens'))}>"


class Answer(Mapping[str, Any]):
    """The requested outputs, as attributes (``answer.weights``) and as a mapping (``answer["weights"]``).

    Each output is an array; with ``weights_top_k``, ``weights`` is a ``TopK``, and with ``quantized`` weights of uint8
    are ``Quantized``. ``server_timing`` has the milliseconds that the server spent in each stage; ``request_id``
    identifies the request in the server's log.

    After a call with texts, the fields of ``Tokens`` are also attributes: ``tokens``, their ``offsets`` in the text,
    ``input_ids``, ``truncated`` and others.
    """

    def __init__(
        self,
        block: str,
        outputs: Mapping[str, Any],
        server_timing: Mapping[str, float] | None = None,
        request_id: str | None = None,
        tokens: Mapping[str, Any] | None = None,
    ) -> None:
        self.block = block
        self.server_timing = dict(server_timing or {})
        self.request_id = request_id
        self._outputs = dict(outputs)
        self._tokens = dict(tokens or {})

    def __getitem__(self, name: str) -> Any:
        return self._outputs[name]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            for values in (self._outputs, self._tokens):
                if name in values:
                    return values[name]
        outputs = [*self.__dict__.get("_outputs", ())]
        raise AttributeError(f"{name!r} is not in this answer, which has {outputs}; request it with outputs=")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._outputs, *self._tokens})

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        shapes = (
            f"{name}: {list(output.shape) if isinstance(output, np.ndarray) else type(output).__name__}"
            for name, output in self._outputs.items()
        )
        return f"<Answer of {self.block}: {', '.join(shapes)}>"

    def _repr_html_(self) -> str:
        """The viewer in a frame, for notebooks; a table of the outputs if there are no weights that it can show."""
        try:
            return frame(self.page(), f"Attention weights of {self.block}")
        except (AttributeError, ValueError):
            return self._table()

    def _table(self) -> str:
        rows = ""
        for name, output in self._outputs.items():
            parts = output._asdict() if isinstance(output, TopK | Quantized) else {"": output}
            for part, value in parts.items():
                array = np.asarray(value)
                size = f"{list(array.shape)} {array.dtype}" if array.ndim else f"{array}"
                rows += f"<tr><td>{escape(f'{name} {part}'.strip())}</td><td>{escape(size)}</td></tr>"
        return f"<table><caption>{escape(self.block)}</caption>{rows}</table>"

    def page(
        self,
        at: Sequence[int] = (),
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
        about: Mapping[str, str] | None = None,
    ) -> str:
        """The weights as a self-contained HTML page; ``Path("weights.html").write_text(answer.page())`` saves it.

        Args:
            at: leading indices of the weights to show: ``(2,)`` is layer 2, or row 2 of a batch.
            rows: labels of the queries; by default the tokens of the text.
            columns: labels of the keys; by default those of the queries if there are as many.
            about: further lines about the weights at the top of the page: ``{"text": "the cat sat"}``.

        Raises:
            AttributeError: the answer has no weights.
            ValueError: ``at`` or the labels do not fit; the weights are only the k largest of each query; or they are
                those of several texts, of which ``at`` must choose one.
        """
        weights = self.weights.dequantized() if isinstance(self.weights, Quantized) else self.weights
        if not isinstance(weights, np.ndarray):
            raise ValueError("weights_top_k: a page needs all weights; omit it")
        leading = weights.shape[:-2]
        if len(at) > len(leading) or any(not -n <= i < n for i, n in zip(at, leading, strict=False)):
            raise wrong_index(at, leading)
        selected = weights[tuple(at)]
        tokens, offsets = self._own_tokens()
        own = rows or (tokens if len(tokens) == selected.shape[-2] else ())
        special = [start == stop for start, stop in offsets] if own == tokens else ()
        is_stack = weights.ndim == 5 or (weights.ndim == 4 and bool(tokens))
        axis = "layer" if is_stack and not at else "row"
        facts = {"model": self.block, **(about or {})}
        title = f"Attention weights of {self.block}"
        return page(selected, own, columns, title, axis=axis, special=special, about=facts)

    def _own_tokens(self) -> tuple[list[str], list[Any]]:
        """The tokens of one text, the decoder's if there is one, with their offsets; empty for several texts."""
        prefix = "target_" if "target_tokens" in self._tokens else ""
        tokens = self._tokens.get(f"{prefix}tokens", [])
        if not all(isinstance(token, str) for token in tokens):
            return [], []
        offsets = self._tokens.get(f"{prefix}offsets", [])
        return tokens, offsets if len(offsets) == len(tokens) else [(0, 1)] * len(tokens)
