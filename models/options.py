"""The options blocks share, by the names of torch and the ONNX ``Attention`` operator."""

from models.block import Dim, Input, Output

WINDOW = "Negative (-1) = unlimited. Query i is aligned with key i + offset, as is_causal says."


def masks(heads: Dim, queries: str = "m", keys: str = "n", past: bool = False) -> dict[str, Input]:
    """What may be attended to, for softmax over ``keys``, which may follow a past."""
    joined = f"past + {keys}" if past else keys
    return {
        "attn_mask": Input(
            ("1|batch", f"1|{heads}", f"1|{queries}", f"1|{joined}"),
            "Boolean: true = may attend. Or float: added to the scores, -inf forbids. Broadcasts to weights.",
            default=0.0,
            mask=True,
        ),
        "is_causal": Input(
            (),
            "Query i may attend to keys j <= i + offset; offset is the length of the past, "
            f"or nonpad_kv_seqlen - {queries} where that is given.",
            dtype="bool",
            default=False,
        ),
        "left_window_size": Input(
            (), f"Keys j >= i + offset - left_window_size. {WINDOW}", dtype="int64", default=-1, minimum=-1
        ),
        "right_window_size": Input(
            (), f"Keys j <= i + offset + right_window_size. {WINDOW}", dtype="int64", default=-1, minimum=-1
        ),
        "nonpad_kv_seqlen": nonpad(keys, excludes=("past_key", "past_value") if past else ()),
    }


def nonpad(keys: str = "n", excludes: tuple[str, ...] = ()) -> Input:
    return Input(
        ("1|batch",),
        "How many leading keys of each batch row are real; the rest is never attended to.",
        dtype="int64",
        default=-1,
        minimum=0,
        maximum=keys,
        excludes=excludes,
    )


def dot_scores() -> dict[str, Input]:
    """Options of scores that are scaled inner products."""
    return {
        "scale": Input((), "Multiplies the scores; 1/sqrt(d_k) when not given.", default=float("nan")),
        "softcap": Input(
            (), "softcap * tanh(score / softcap), after scaling and before the mask; 0 = off.", default=0.0, minimum=0
        ),
    }


def past(kv_heads: Dim, d_k: Dim, d_v: Dim) -> dict[str, Input]:
    """Keys and values of earlier steps."""
    return {
        "past_key": Input(
            ("1|batch", f"1|{kv_heads}", "past", f"1|{d_k}"),
            "Keys of earlier steps, joined before key.",
            default=0.0,
            needs=("past_value",),
        ),
        "past_value": Input(
            ("1|batch", f"1|{kv_heads}", "past", f"1|{d_v}"),
            "Values of earlier steps, joined before value.",
            default=0.0,
            needs=("past_key",),
        ),
    }


def answers(output: tuple[Dim, ...], heads: Dim, queries: str = "m", keys: str = "n") -> dict[str, Output]:
    """The outputs of softmax attention."""
    pairs: tuple[Dim, ...] = ("batch", heads, queries, keys)
    return {
        "output": Output(output, "The values, averaged by the weights."),
        "weights": Output(pairs, "After the softmax: each row sums to 1, or is all zero where nothing may be seen."),
        "scores": Output(pairs, "Before the softmax, masks applied; -inf (null in JSON) where attending is forbidden."),
    }


def present(kv_heads: Dim, d_k: Dim, d_v: Dim, keys: str = "n") -> dict[str, Output]:
    """The keys and values a next step takes as its past."""
    joined = f"past + {keys}"
    return {
        "present_key": Output(("batch", kv_heads, joined, d_k), "past_key and key joined: the next step's past."),
        "present_value": Output(("batch", kv_heads, joined, d_v), "past_value and value joined: the next step's past."),
    }
