"""The options every softmax block shares, by the names of torch and the ONNX ``Attention`` operator."""

from models.block import Dim, Input, Output


def options(batch: Dim, heads: Dim, kv_heads: Dim, d_k: Dim, d_v: Dim) -> dict[str, Input]:
    """The optional inputs of ``models.attention.attention``; ``heads`` to ``d_v`` are a block's own sizes."""

    window = "Negative (-1) = unlimited. Query i is aligned with key i + offset, as is_causal says."
    return {
        "attn_mask": Input(
            ("1|batch", f"1|{heads}", "1|m", "1|past + n"),
            "Boolean: true = may attend. Or float: added to the scores, -inf forbids. Broadcasts to weights.",
            default=0.0,
            mask=True,
        ),
        "is_causal": Input(
            (),
            "Query i may attend to keys j <= i + offset; offset is the length of the past, "
            "or nonpad_kv_seqlen - m where that is given.",
            dtype="bool",
            default=False,
        ),
        "left_window_size": Input(
            (), f"Keys j >= i + offset - left_window_size. {window}", dtype="int64", default=-1, minimum=-1
        ),
        "right_window_size": Input(
            (), f"Keys j <= i + offset + right_window_size. {window}", dtype="int64", default=-1, minimum=-1
        ),
        "scale": Input((), "Multiplies the scores; 1/sqrt(d_k) when not given.", default=float("nan")),
        "softcap": Input(
            (), "softcap * tanh(score / softcap), after scaling and before the mask; 0 = off.", default=0.0, minimum=0
        ),
        "nonpad_kv_seqlen": Input(
            (f"1|{batch}",),
            "How many leading keys of each batch row are real; the rest is never attended to.",
            dtype="int64",
            default=-1,
            minimum=0,
            maximum="n",
            excludes=("past_key", "past_value"),
        ),
        "past_key": Input(
            (f"1|{batch}", f"1|{kv_heads}", "past", f"1|{d_k}"),
            "Keys of earlier steps, joined before key.",
            default=0.0,
            needs=("past_value",),
        ),
        "past_value": Input(
            (f"1|{batch}", f"1|{kv_heads}", "past", f"1|{d_v}"),
            "Values of earlier steps, joined before value.",
            default=0.0,
            needs=("past_key",),
        ),
    }


def answers(output: tuple[Dim, ...], heads: Dim, kv_heads: Dim, d_k: Dim, d_v: Dim) -> dict[str, Output]:
    """The outputs of ``models.attention.attention``, the first in the shape the block gives it."""
    pairs: tuple[Dim, ...] = ("batch", heads, "m", "past + n")
    return {
        "output": Output(output, "The values, averaged by the weights."),
        "weights": Output(pairs, "After the softmax: each row sums to 1, or is all zero where nothing may be seen."),
        "scores": Output(pairs, "Before the softmax, masks applied; -inf (null in JSON) where attending is forbidden."),
        "present_key": Output(("batch", kv_heads, "past + n", d_k), "past_key and key joined: the next step's past."),
        "present_value": Output(
            ("batch", kv_heads, "past + n", d_v), "past_value and value joined: the next step's past."
        ),
    }
