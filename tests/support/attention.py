"""What is derived from weights and how they are pooled, in float64, by the formulas."""

from itertools import pairwise

import numpy as np


def true_entropy(array):
    w = array.astype(np.float64)
    total = w.sum(-1, keepdims=True)
    p = np.divide(w, total, out=np.zeros_like(w), where=total > 0)
    return -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1)


def true_received(array):
    w = array.astype(np.float64)
    rows = (w != 0).any(-1).sum(-1)
    return w.sum(-2) / np.maximum(rows, 1)[..., None]


def true_head_statistics(array, places):
    """Of weights [..., m, n] whose queries are at these ``places`` among the keys; query by query."""
    found = []
    for head in array.astype(np.float64).reshape(-1, *array.shape[-2:]):
        columns = [[], [], [], [], []]
        for row, place in zip(head, places, strict=True):
            if row.sum() == 0:
                continue
            p = row / row.sum()
            columns[0].append(-sum(x * np.log(x) for x in p if x > 0))
            columns[1].append(sum(x * abs(place - j) for j, x in enumerate(p)))
            columns[2].append(p[0])
            columns[3].append(p[place])
            if place:
                columns[4].append(p[place - 1])
        found.append([np.mean(column) if column else 0 for column in columns])
    return np.reshape(found, (*array.shape[:-2], 5))


def true_rollout(array, by=np.mean):
    w = by(array.astype(np.float64), axis=2)
    product = np.eye(w.shape[-1])
    for layer in w:
        mixed = 0.5 * layer + 0.5 * np.eye(w.shape[-1])
        product = mixed / mixed.sum(-1, keepdims=True) @ product
    return product


def true_pool(matrix, k, by):
    def edges(size):
        return [i * size // k for i in range(k + 1)] if size > k else range(size + 1)

    rows, columns = edges(matrix.shape[0]), edges(matrix.shape[1])
    return np.array(
        [[by(matrix[top:bottom, left:right]) for left, right in pairwise(columns)] for top, bottom in pairwise(rows)]
    )
