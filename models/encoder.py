r"""Stacks of transformer layers as blocks: ``encoder``, bidirectional, and ``decoder``, causal with a past.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762. Both return the hidden states and
the weights of every layer. With the decoder's past and present keys and values, decoding token by token gives the same
result as one request for the whole sequence.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from torch import nn

from models import reference_stacks
from models.block import Block, Dim, Input, Output
from models.learned import State, arrays, weighted
from models.options import by_norm, head_mask, masks
from models.transformer import Transformer, TransformerConfig

LAYERS_MASK = (
    "Boolean: true = may attend. Or float: added to the scores, -inf forbids. Broadcasts to a layer's weights."
)


def encoder(config: TransformerConfig, name: str = "encoder", state: State | None = None) -> Block:
    """Every position attends to every position; nonpad_kv_seqlen or attn_mask mask padding."""
    masking = masks(config.num_heads, queries="n", keys="n")
    inputs = {
        "attn_mask": replace(masking["attn_mask"], description=LAYERS_MASK),
        "nonpad_kv_seqlen": masking["nonpad_kv_seqlen"],
    }
    vectors = ("layers", "batch", config.num_heads, "n", config.d_model // config.num_heads)
    outputs = {"key": Output(vectors, "Each selected layer's keys, projected.")}
    return _block(config, name, state, is_causal=False, inputs=inputs, outputs=outputs, keys="n")


def decoder(config: TransformerConfig, name: str = "decoder", state: State | None = None) -> Block:
    """Position i attends to positions j <= i, and to the past."""
    L, H, D = config.num_layers, config.num_heads, config.d_model // config.num_heads
    masking = masks(H, queries="n", keys="n", past=True)
    inputs = {"attn_mask": replace(masking["attn_mask"], description=LAYERS_MASK)}
    for part, other in (("past_key", "past_value"), ("past_value", "past_key")):
        shape = (L, "1|batch", f"1|{H}", "past", f"1|{D}")
        inputs[part] = Input(shape, f"Every layer's {part[5:]}s of earlier steps.", default=0.0, needs=(other,))
    outputs = {
        f"present_{part}": Output(
            (L, "batch", H, "past + n", D),
            f"Every layer's {part}s, including the past; pass them as the past of the next step.",
        )
        for part in ("key", "value")
    }
    return _block(config, name, state, is_causal=True, inputs=inputs, outputs=outputs, keys="past + n")


def _formula(config: TransformerConfig) -> str:
    b_1, b_2 = ("+b_1", "+b_2") if config.bias else ("", "")
    if config.norm == "post":
        return (
            r"x \leftarrow \mathrm{norm}(x + \mathrm{MultiHead}(x)),\ "
            rf"x \leftarrow \mathrm{{norm}}(x + W_2\,\sigma(W_1x{b_1}){b_2})"
        )
    last = r",\quad \mathrm{output} = \mathrm{norm}(x)" if config.final_norm else ""
    return (
        r"x \leftarrow x + \mathrm{MultiHead}(\mathrm{norm}(x)),\ "
        rf"x \leftarrow x + W_2\,\sigma(W_1\mathrm{{norm}}(x){b_1}){b_2}{last}"
    )


def _block(
    config: TransformerConfig,
    name: str,
    state: State | None,
    is_causal: bool,
    inputs: Mapping[str, Input],
    outputs: Mapping[str, Output],
    keys: str,
) -> Block:
    given: dict[str, Input] = {}
    if config.vocab_size:
        given["input_ids"] = Input(
            ("batch", "n"), "Token ids.", dtype="int64", minimum=0, maximum=config.vocab_size - 1
        )
    else:
        given["x"] = Input(("batch", "n", config.d_model), "Embeddings or hidden states.")
    if config.type_vocab_size:
        given["token_type_ids"] = Input(
            ("1|batch", "1|n"), "Segment of each token.", dtype="int64", default=0, minimum=0,
            maximum=config.type_vocab_size - 1,
        )  # fmt: skip
    every = tuple(range(config.num_layers))
    layers = Input(
        ("layers",), "The layers whose weights to return, counted from 0; all when not given.", dtype="int64",
        default=every, minimum=0, maximum=config.num_layers - 1,
    )  # fmt: skip
    pairs: tuple[Dim, ...] = ("layers", "batch", config.num_heads, "n", keys)

    mask = {"head_mask": head_mask((config.num_layers, config.num_heads))}
    rare = {
        "hidden_states": Output(
            (config.num_layers + 1, "batch", "n", config.d_model), "The embeddings, and the output of every layer."
        ),
        "scores": Output(
            pairs, "Each selected layer's scores before the softmax, masks applied; -inf (null in JSON) = masked."
        ),
        "weights_by_norm": by_norm(pairs),
        "query": Output((*pairs[:-1], config.d_model // config.num_heads), "Each selected layer's queries, projected."),
    }
    declared = {
        "output": Output(("batch", "n", config.d_model), "The hidden states after the last layer."),
        "weights": Output(pairs, "Each selected layer's weights, after the softmax."),
        **outputs,
        **rare,
    }

    def refer(module: nn.Module, inputs: Mapping[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
        computed = reference_stacks.transformer(arrays(module), asdict(config), is_causal, **inputs, dtype=dtype)
        return {name: array for name, array in computed.items() if name in declared}

    kind = "Causal" if is_causal else "Bidirectional"
    layered = f"{config.num_layers} layers" if config.num_layers > 1 else "one layer"
    return Block(
        name=name,
        title="Transformer decoder" if is_causal else "Transformer encoder",
        formula=_formula(config),
        source="Vaswani et al., Attention Is All You Need, 2017, https://arxiv.org/abs/1706.03762",
        description=f"{kind}: {layered} of {config.num_heads} heads, {config.norm}-norm, {config.activation}; "
        "returns the hidden states and every layer's weights.",
        build=weighted(lambda: Transformer(config, is_causal), state),
        reference=refer,
        inputs={**given, **inputs, "layers": layers, **mask},
        outputs=declared,
        rare=(*mask, *rare, *(name for name in outputs if name == "key")),
        depth=2 * config.num_layers * config.d_model // config.num_heads,
        config=asdict(config),
        is_causal=is_causal,
        limits={"past + n" if is_causal else "n": config.max_positions} if config.max_positions else {},
        left_out={"past": 0, "layers": config.num_layers},
    )


ENCODER = encoder(
    TransformerConfig(
        d_model=32, num_heads=4, num_layers=2, d_ff=64, vocab_size=100, max_positions=512,
        norm="post", activation="gelu", embedding_norm=True,
    )
)  # fmt: skip
DECODER = decoder(
    TransformerConfig(
        d_model=32, num_heads=4, num_layers=2, d_ff=64, vocab_size=100, max_positions=512,
        norm="pre", activation="gelu", final_norm=True,
    )
)  # fmt: skip
