"""Inputs and outputs that several blocks have, with the names of torch and the ONNX ``Attention`` operator."""

from models.block import Dim, Input, Output

WINDOW = "-1 = no limit. Query i is aligned with key i + offset, as defined for is_causal."

LSE = (
    "The log of the softmax's denominator, the sum of exp(scores) of each row, by which attention over parts of the "
    "keys is merged; -inf (null in JSON) where all keys are masked."
)


def masks(heads: Dim, queries: str = "m", keys: str = "n", past: bool = False) -> dict[str, Input]:
    """The inputs that mask scores [heads, queries, keys]; with ``past``, keys of earlier steps come first."""
    joined = f"past + {keys}" if past else keys
    offset = "the length of the past" if past else "0"
    return {
        "attn_mask": Input(
            ("1|batch", f"1|{heads}", f"1|{queries}", f"1|{joined}"),
            "Boolean: true = may attend. Or float: added to the scores, -inf forbids. Broadcasts to weights.",
            default=0.0,
            mask=True,
        ),
        "is_causal": Input(
            (),
            f"Query i may attend to keys j <= i + offset; offset is {offset}, "
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
    """The number of real keys of each batch row; ``excludes`` are inputs that a request cannot combine with it."""
    return Input(
        ("1|batch",),
        "How many leading keys of each batch row are real; the others are masked.",
        dtype="int64",
        default=-1,
        minimum=0,
        maximum=keys,
        excludes=excludes,
    )


def softcap(after: str = "") -> Input:
    """The bound of scores; ``after`` names in the description the steps before it."""
    return Input(
        (), f"Scores become softcap * tanh(score / softcap), {after}before the mask; 0 = off.", default=0.0, minimum=0
    )


def scale() -> Input:
    """The factor of scores that are not scaled by default."""
    return Input((), "Multiplies the scores.", default=1.0)


def dot_scores() -> dict[str, Input]:
    """The inputs that change scores which are scaled inner products."""
    return {
        "scale": Input((), "Multiplies the scores; 1/sqrt(d_k) when not given.", default=float("nan")),
        "softcap": softcap("after scale and "),
    }


def past(kv_heads: Dim, d_k: Dim, d_v: Dim, projected: bool = False) -> dict[str, Input]:
    """The inputs for keys and values of earlier steps; with ``projected``, after the block's learned projections."""
    keys, values = ("the projected keys", "the projected values") if projected else ("key", "value")
    return {
        "past_key": Input(
            ("1|batch", f"1|{kv_heads}", "past", f"1|{d_k}"),
            f"Keys of earlier steps (a present_key), joined before {keys}.",
            default=0.0,
            needs=("past_value",),
        ),
        "past_value": Input(
            ("1|batch", f"1|{kv_heads}", "past", f"1|{d_v}"),
            f"Values of earlier steps (a present_value), joined before {values}.",
            default=0.0,
            needs=("past_key",),
        ),
    }


def attention_outputs(
    output: tuple[Dim, ...], heads: Dim, queries: str = "m", keys: str = "n", projected: bool = False
) -> dict[str, Output]:
    """The outputs of softmax attention; with ``projected``, a learned projection of the heads follows it."""
    pairs: tuple[Dim, ...] = ("batch", heads, queries, keys)
    averaged = "The values, averaged by the weights"
    return {
        "output": Output(output, f"{averaged}; the heads are joined and projected." if projected else f"{averaged}."),
        "weights": Output(pairs, "After the softmax: each row sums to 1, or is all zero where all keys are masked."),
        "scores": Output(pairs, "Before the softmax, masks applied; -inf (null in JSON) where attending is forbidden."),
        "lse": Output(pairs[:-1], LSE),
    }


def present(kv_heads: Dim, d_k: Dim, d_v: Dim, keys: str = "n", projected: bool = False) -> dict[str, Output]:
    """The outputs that are the past of the next step."""
    joined = f"past + {keys}"
    new = ("the projected keys", "the projected values") if projected else ("key", "value")
    return {
        "present_key": Output(("batch", kv_heads, joined, d_k), f"past_key and {new[0]}, joined: the next past_key."),
        "present_value": Output(
            ("batch", kv_heads, joined, d_v), f"past_value and {new[1]}, joined: the next past_value."
        ),
    }


def head_mask(shape: tuple[Dim, ...], weights: str = "weights") -> Input:
    """The input that multiplies the ``weights`` of each head."""
    text = f"Multiplies each head's {weights} after the softmax: 0 removes a head. All 1 when not given."
    return Input(shape, text, default=1.0)


def head_outputs(heads: int, d_v: Dim, d_out: Dim, keys: str, projected: bool) -> dict[str, Output]:
    """The outputs that show each head's contribution; some only if a learned projection joins the heads."""
    outputs = {
        "head_output": Output(("batch", heads, "m", d_v), "Each head's own output, before the heads are joined."),
    }
    if projected:
        outputs |= {
            "head_share": Output(
                ("batch", heads, "m", d_out),
                "Each head's share of the output: its output after projection. The shares plus any bias sum to the "
                "output.",
            ),
            "weights_by_norm": by_norm(("batch", heads, "m", keys)),
        }
    return outputs


def by_norm(pairs: tuple[Dim, ...]) -> Output:
    """The weights times the norms of projected values (Kobayashi et al., 2020, https://arxiv.org/abs/2004.10102)."""
    return Output(
        pairs, "The norm of weight times projected value, |a f(x)|: how much each key contributes to the output."
    )
