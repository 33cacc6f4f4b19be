"""The reference of stacks of layers, in numpy in float64, built from the parts of ``models.reference``."""

import math

import numpy as np

from models.reference import linear, multi_head


def layer_norm(state, name, x, eps, dtype):
    """Each vector minus its mean, divided by its standard deviation, times the weight, plus the bias."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt(variance + dtype(eps))
    return scaled * np.asarray(state[f"{name}.weight"], dtype) + np.asarray(state[f"{name}.bias"], dtype)


def activation(kind, x):
    """relu or gelu, in the type of x."""
    if kind == "relu":
        return np.maximum(x, 0)
    dtype = x.dtype.type
    return x * (1 + np.vectorize(math.erf, [dtype])(x / dtype(math.sqrt(2)))) / 2


def transformer(
    state,
    config,
    is_causal,
    input_ids=None,
    x=None,
    token_type_ids=None,
    layers=None,
    past_key=None,
    past_value=None,
    head_mask=None,
    dtype=np.float64,
    **options,
) -> dict[str, np.ndarray]:
    """Embeddings, then layers of multi-head attention and feed-forward networks, with residuals and norms.

    ``state`` and ``config`` are those of ``models.transformer``; ``past_key`` and ``past_value`` are
    [layers, batch, heads, past, d].
    """

    def norm(x, name):
        return layer_norm(state, name, x, config["layer_norm_eps"], dtype)

    past = 0 if past_key is None else past_key.shape[3]
    if x is None:
        x = np.asarray(state["embeddings.word.weight"], dtype)[input_ids]
        if config["max_positions"]:
            x = x + np.asarray(state["embeddings.position.weight"], dtype)[np.arange(input_ids.shape[1]) + past]
        if config["type_vocab_size"]:
            types = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x = x + np.asarray(state["embeddings.token_type.weight"], dtype)[types]
        if config["embedding_norm"]:
            x = norm(x, "embedding_norm")
    x = np.asarray(x, dtype)
    heads = config["num_heads"]
    layer_outputs, hidden_states = [], [x]
    for index in range(config["num_layers"]):
        name = f"layers.{index}"
        part = {key.removeprefix(f"{name}.attention."): value for key, value in state.items() if key.startswith(name)}
        given = {} if past_key is None else {"past_key": past_key[index], "past_value": past_value[index]}
        given |= {} if head_mask is None else {"head_mask": head_mask[index]}
        pre = config["norm"] == "pre"
        normed = norm(x, f"{name}.norm1") if pre else x
        attended = multi_head(part, heads, heads, x=normed, is_causal=is_causal, dtype=dtype, **options, **given)
        layer_outputs.append(attended)
        x = x + attended["output"] if pre else norm(x + attended["output"], f"{name}.norm1")
        normed = norm(x, f"{name}.norm2") if pre else x
        inner = activation(config["activation"], linear(state, f"{name}.linear1", normed, dtype))
        fed = linear(state, f"{name}.linear2", inner, dtype)
        x = x + fed if pre else norm(x + fed, f"{name}.norm2")
        hidden_states.append(x)
    hidden_states[-1] = norm(x, "final_norm") if config["final_norm"] else x
    stacked = {name: np.stack([layer[name] for layer in layer_outputs]) for name in layer_outputs[0]}
    chosen = {name: stacked[name] for name in ("weights", "scores", "weights_by_norm")}
    chosen |= {"query": stacked["head_query"], "key": stacked["present_key"]}
    return {
        "output": hidden_states[-1],
        "hidden_states": np.stack(hidden_states),
        "present_key": stacked["present_key"],
        "present_value": stacked["present_value"],
    } | {name: x if layers is None else x[layers] for name, x in chosen.items()}


def cross_decoder(
    state,
    config,
    x,
    memory,
    attn_mask=None,
    memory_mask=None,
    is_causal=False,
    head_mask=None,
    memory_head_mask=None,
    dtype=np.float64,
) -> dict[str, np.ndarray]:
    """Layers of attention to x [batch, m, d_model], to memory [batch, n, d_model], and feed-forward networks.

    ``state`` and ``config`` are those of ``models.cross_decoder``.
    """
    x, memory = np.asarray(x, dtype), np.asarray(memory, dtype)
    heads, pre, eps = config["num_heads"], config["norm"] == "pre", config["layer_norm_eps"]
    weights: list[np.ndarray] = []
    cross_weights: list[np.ndarray] = []
    for index in range(config["num_layers"]):
        name = f"layers.{index}"

        def attend(part, into, given, kept, name=name, **inputs):
            own = {key.removeprefix(f"{name}.{part}."): value for key, value in state.items()}
            attended = multi_head(own, heads, heads, x=given, dtype=dtype, **inputs)
            into.append(attended["weights"])
            return kept + attended["output"]

        def norm(x, number, name=name):
            return layer_norm(state, f"{name}.norm{number}", x, eps, dtype)

        def feed_forward(x, name=name):
            inner = activation(config["activation"], linear(state, f"{name}.linear1", x, dtype))
            return linear(state, f"{name}.linear2", inner, dtype)

        of_heads, of_memory_heads = (None if x is None else x[index] for x in (head_mask, memory_head_mask))
        masks = (
            {"attn_mask": attn_mask, "is_causal": is_causal, "head_mask": of_heads},
            {"attn_mask": memory_mask, "memory": memory, "head_mask": of_memory_heads},
        )
        if pre:
            x = attend("attention", weights, norm(x, 1), x, **masks[0])
            x = attend("cross_attention", cross_weights, norm(x, 2), x, **masks[1])
            x = x + feed_forward(norm(x, 3))
        else:
            x = norm(attend("attention", weights, x, x, **masks[0]), 1)
            x = norm(attend("cross_attention", cross_weights, x, x, **masks[1]), 2)
            x = norm(x + feed_forward(x), 3)
    return {
        "output": layer_norm(state, "final_norm", x, eps, dtype) if config["final_norm"] else x,
        "weights": np.stack(weights),
        "cross_weights": np.stack(cross_weights),
    }
