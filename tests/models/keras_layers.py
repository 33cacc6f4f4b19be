"""Run Keras's attention layers; write their inputs, weights and outputs to the npz file given as argument.

This runs in a process, because Keras imports absl, whose log handler closes standard error when logging is configured.
"""

import sys

import keras
import numpy as np

Arrays = dict[str, np.ndarray]


def drawn(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def attention(rng: np.random.Generator) -> Arrays:
    query, key, value = drawn(rng, (2, 5, 8), (2, 7, 8), (2, 7, 3))
    mask = np.arange(7) < np.array([[7], [4]])
    output, weights = keras.layers.Attention()([query, value, key], mask=[None, mask], return_attention_scores=True)
    return {"query": query, "key": key, "value": value, "output": output, "weights": weights}


def additive_attention(rng: np.random.Generator) -> Arrays:
    query, key, value = drawn(rng, (2, 5, 8), (2, 7, 8), (2, 7, 3))
    layer = keras.layers.AdditiveAttention()
    output, weights = layer([query, value, key], return_attention_scores=True)
    return {"query": query, "key": key, "value": value, "scale": layer.scale, "output": output, "weights": weights}


def multi_head_attention(rng: np.random.Generator) -> Arrays:
    query, key, value = drawn(rng, (2, 5, 12), (2, 7, 10), (2, 7, 9))
    layer = keras.layers.MultiHeadAttention(num_heads=3, key_dim=4, value_dim=6, output_shape=11)
    layer.build(query.shape, value.shape, key.shape)
    tensors = {}
    for name in ("query", "key", "value", "output"):
        dense = getattr(layer, f"{name}_dense")
        dense.bias.assign(*drawn(rng, dense.bias.shape))
        tensors |= {f"{name}/kernel": dense.kernel, f"{name}/bias": dense.bias}
    output, weights = layer(query, value, key, return_attention_scores=True)
    return {"query": query, "key": key, "value": value, **tensors, "output": output, "weights": weights}


def main(file: str) -> None:
    layers = (attention, additive_attention, multi_head_attention)
    results = {layer.__name__: layer(np.random.default_rng(0)) for layer in layers}
    arrays = {
        f"{layer}.{name}": keras.ops.convert_to_numpy(array)
        for layer, result in results.items()
        for name, array in result.items()
    }
    np.savez(file, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
