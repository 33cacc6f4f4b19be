"""Attention over stored keys, in blocks, parts and threads of any size, against the float64 reference."""

import gc
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.catalogue import BLOCKS
from models.examples import OPTIONS, draw
from service.engine.run import Run, SharedRunOptions
from service.memories import streaming
from service.memories.sharing import SHARED_PASS
from service.memories.streaming import StreamingSession, Terminated, from_float16, run_size, streaming_graph
from service.model.graph import RunOptions
from tests.support.attending import assert_close
from tests.support.engine import MANY, Gate, run_behind
from tests.support.tasks import HEADS, opened, work_of

OUTPUTS = ["output", "weights", "scores", "lse"]
LIMITS = ("MAX_ROWS", "MAX_BLOCK_KEYS", "MAX_COPY_NUMBERS", "PART_KEYS", "MAX_PARTS", "MAX_NARROW_ROWS")
SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
EXTENDED = pytest.mark.extended


@st.composite
def stored(draw_):
    """Inputs of ``scaled_dot_product`` whose keys and values are part of larger arrays, in either type."""
    batch, kv_heads, group, m = (draw_(st.integers(1, most)) for most in (3, 3, 4, 7))
    n, d_k, d_v = (draw_(st.integers(1, most)) for most in (70, 9, 9))
    rng = np.random.default_rng(draw_(st.integers(0, 2**32)))

    def rows(width):
        dtype = draw_(st.sampled_from([np.float32, np.float16]))
        return rng.standard_normal((batch, kv_heads, n + draw_(st.integers(0, 5)), width)).astype(dtype)[:, :, :n]

    query = rng.standard_normal((batch, kv_heads * group, m, d_k), dtype=np.float32)
    inputs = {"query": query, "key": rows(d_k), "value": rows(d_v)}
    options = {
        "scale": st.sampled_from([-2, -0.1, 0, 1e-30, 0.5]).map(np.float32),
        "softcap": st.sampled_from([0, 0.5, 3]).map(np.float32),
        "is_causal": st.booleans().map(np.array),
        "left_window_size": st.integers(-1, 20).map(np.array),
        "right_window_size": st.sampled_from([-1, 0, 3, 2**40]).map(np.array),
        "nonpad_kv_seqlen": st.lists(st.integers(0, n), min_size=batch, max_size=batch).map(np.array),
    }
    for name in draw_(st.sets(st.sampled_from(sorted(options)))):
        inputs[name] = draw_(options[name])
    return inputs


def assert_right(found, inputs, block="scaled_dot_product"):
    """Within twice the error of plain float32 numpy."""
    widened = {name: x.astype(np.float32) if x.dtype == np.float16 else x for name, x in inputs.items()}
    assert_close(block, found, widened)


@SETTINGS
@given(
    inputs=stored(),
    threads=st.integers(1, 3),
    limits=st.fixed_dictionaries({name: st.integers(1, 40) for name in LIMITS}),
    outputs=st.sets(st.sampled_from(OUTPUTS), min_size=1).map(sorted),
)
def test_any_division_gives_the_truth(inputs, threads, limits, outputs):
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in limits.items():
            patch.setattr(streaming, name, limit)
        found = StreamingSession(None, threads).run(inputs, outputs)
    assert list(found) == outputs
    assert all(x.dtype == np.float32 for x in found.values())
    assert_right(found, inputs)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("rows", "n"),
    [(1, 20_001), (2, 20_001), (8, 20_001), (40, 20_001), (3, 100_000), pytest.param(260, 20_001, marks=EXTENDED)],
)
def test_many_keys_with_any_number_of_threads(rows, n, dtype):
    rng = np.random.default_rng(rows)
    inputs = {"query": rng.standard_normal((1, 2, rows, 16), dtype=np.float32)}
    inputs |= {name: rng.standard_normal((1, 1, n, 16)).astype(dtype) for name in ("key", "value")}
    outputs = OUTPUTS if rows < 40 else ["output", "lse"]
    one, *others = (StreamingSession(None, threads).run(inputs, outputs) for threads in (1, 2, 3, 3))
    assert_right(one, inputs)
    for other in others:
        assert all(other[name].tobytes() == one[name].tobytes() for name in outputs)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_query_without_keys_has_zeros(dtype):
    inputs = {"query": np.ones((2, 1, 2, 4), np.float32), "nonpad_kv_seqlen": np.array([0, 1])}
    inputs |= {name: np.ones((2, 1, 3, 4), dtype) for name in ("key", "value")} | {"is_causal": np.array(True)}
    found = StreamingSession(None, 2).run(inputs, OUTPUTS)
    assert not found["output"][0].any()
    assert not found["output"][1, :, 0].any()  # query 0 is aligned with key -1
    assert not found["weights"][0].any()
    assert (found["scores"][0] == -np.inf).all()
    assert found["lse"].ravel().tolist() == [-np.inf, -np.inf, -np.inf, 2.0]
    assert found["output"][1, 0, 1].tolist() == [1.0] * 4


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("softcap", [0, 2])
def test_an_overflow_stays_visible(sign, softcap):
    query = np.float32([[[[sign * 1e38] * 4, [1e-38] * 4]]])
    inputs = {"query": query, "softcap": np.float32(softcap)}
    inputs |= {"key": np.full((1, 1, 3, 4), 10, np.float32), "value": np.ones((1, 1, 3, 4), np.float32)}
    found = StreamingSession(None, 1).run(inputs, OUTPUTS)
    for name in OUTPUTS:
        assert np.isnan(found[name][0, 0, 0]).all(), name
        assert np.isfinite(found[name][0, 0, 1]).all(), name


@pytest.mark.parametrize("outputs", [["output"], ["output", "weights"]])
def test_tiles_are_made_and_dropped_one_after_another(outputs, monkeypatch):
    """To collect those of a thousand rows at one time takes all threads' time, that of the event loop too."""
    alive, finish = [], streaming._Attention._finish

    def counted(attention, tile):
        if tile.index[0] % 100 == 99:
            alive.append(sum(type(each) is streaming._Tile for each in gc.get_objects()))
        finish(attention, tile)

    monkeypatch.setattr(streaming._Attention, "_finish", counted)
    inputs = {name: np.ones((500, 1, 1, 1), np.float32) for name in ("query", "key", "value")}
    gc.collect()  # those of other tests' runs that were ended
    StreamingSession(None, 2).run(inputs, outputs)
    assert len(alive) == 5
    assert max(alive) < 10


def test_an_overflow_of_a_masked_key_changes_nothing():
    """Other queries, perhaps of other tasks that share the pass, may attend to that key."""
    key = np.array([1, 2, 3e38], np.float32).reshape(1, 1, 3, 1)
    inputs = {"query": np.full((1, 1, 3, 1), 10, np.float32), "key": key, "value": np.ones_like(key)}
    found = StreamingSession(1.0, 1).run(inputs | {"is_causal": np.array(True)}, ["output", "weights"])
    assert found["output"].ravel()[:2].tolist() == [1, 1]
    assert np.isnan(found["output"][..., 2, :]).all()
    assert found["weights"][0, 0, :2, 2].tolist() == [0, 0]


def test_every_half_is_converted_exactly():
    halves = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    for of in (halves, halves[np.isfinite(halves)], halves[halves > 0][:5], halves[:0]):
        target = np.empty(of.shape, np.float32)
        from_float16(of, target)
        assert target.tobytes() == of.astype(np.float32).tobytes()


def test_without_a_value():
    inputs = {"query": np.ones((1, 1, 1, 4), np.float32), "key": np.ones((1, 1, 3, 4), np.float32)}
    found = StreamingSession(None, 1).run(inputs, ["lse", "weights"])
    assert found["lse"][0, 0, 0] == pytest.approx(2 + np.log(3))
    assert found["weights"].ravel() == pytest.approx([1 / 3] * 3)
    with pytest.raises(KeyError, match="value"):
        StreamingSession(None, 1).run(inputs, ["output"])


def test_what_is_masked_is_never_read():
    """A window over the last keys of a long memory takes the time of the window."""
    read = []

    class Watched(np.ndarray):
        def __getitem__(self, place):
            read.append(place[2])
            return np.asarray(self)[place]

    key = np.ones((1, 1, 200_000, 2), np.float32)
    inputs = {"query": np.ones((1, 1, 1, 2), np.float32), "key": key.view(Watched), "value": key}
    inputs |= {"nonpad_kv_seqlen": np.array([150_000]), "left_window_size": np.array(100), "is_causal": np.array(True)}
    found = StreamingSession(None, 2).run(inputs, ["output"])["output"]
    assert found.ravel() == pytest.approx([1, 1])
    assert (min(keys.start for keys in read), max(keys.stop for keys in read)) == (149_899, 150_000)


@pytest.mark.parametrize("threads", [1, 3])
def test_another_thread_can_end_a_run(threads):
    class Options:
        reads = iter([False] * 5)

        @property
        def terminate(self):
            return next(self.reads, True)

    key = np.ones((1, 1, 1_000_000, 2), np.float32)
    inputs = {"query": np.ones((1, 1, 1, 2), np.float32), "key": key, "value": key}
    with pytest.raises(Terminated):
        StreamingSession(None, threads).run(inputs, ["output"], Options())
    assert StreamingSession(None, threads).run(inputs, ["lse"])["lse"] == pytest.approx(np.sqrt(2) + np.log(1e6))


@pytest.mark.parametrize(
    ("m", "n", "d_v", "dtype"),
    [
        (1, 1 << 20, 8, "f4"),
        pytest.param(600, 40_000, 64, "f2", marks=EXTENDED),
        pytest.param(9, 20_000, 4096, "f2", marks=EXTENDED),
    ],
)
def test_a_run_needs_no_more_than_its_graph_says(sdpa, m, n, d_v, dtype):
    """The keys and values of this test are one key, repeated."""
    _, graph = sdpa
    inputs = {"query": np.ones((1, 8, m, 8), np.float32)}
    for name, width in (("key", 8), ("value", d_v)):
        inputs[name] = np.broadcast_to(np.ones(width, dtype), (1, 8, n, width))
    session = graph.multi_threaded.graph_with(graph).session if graph.multi_threaded else graph.session
    session.run(inputs, ["output"])
    tracemalloc.start()
    try:
        outputs = session.run(inputs, ["output", "lse"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    own = sum(x.nbytes for x in outputs.values()) + inputs["query"].nbytes
    assert peak - own < graph.workspace_bytes < 256 << 20


STREAMED = ("scaled_dot_product", "dot_product", "luong_dot")


@pytest.fixture(scope="module")
def models(repository):
    return {name: opened(repository / name / "1") for name in (*STREAMED, "cosine", "multi_head")}


@pytest.fixture(scope="module")
def sdpa(models):
    """``scaled_dot_product``, and the graph that computes it."""
    model = models["scaled_dot_product"]
    return model, streaming_graph(model.signature)


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("option", ["plain", "is_causal", "softcap", "nonpad_causal", "causal_window"])
def test_the_graph_computes_the_block(models, name, option):
    model = models[name]
    inputs = draw(BLOCKS[name], HEADS | {"batch": 2, "m": 5, "n": 9}, OPTIONS[option], 1)
    graph = streaming_graph(model.signature)
    assert graph.can_serve(inputs, OUTPUTS, 100, 1)
    found, own = model.run(graph, inputs, OUTPUTS), model.run(model.graphs[-1], inputs, OUTPUTS)
    assert_right(found, inputs, name)
    for output in OUTPUTS:
        np.testing.assert_allclose(found[output], own[output], rtol=1e-4, atol=1e-5)


def test_other_blocks_have_no_such_graph(models):
    known = {name for name, model in models.items() if streaming_graph(model.signature)}
    assert known == {*STREAMED}


@pytest.mark.parametrize("option", ["attn_mask", "past", "attn_bias", "alibi", "sinks", "documents", "rope"])
def test_what_it_does_not_compute_is_left_to_the_model(sdpa, option):
    model, graph = sdpa
    inputs = draw(BLOCKS[model.name], HEADS | {"batch": 1, "m": 2, "n": 3}, OPTIONS[option])
    assert not graph.can_serve(inputs, ["output"], 100, 1)
    assert not graph.can_serve({}, ["present_key"], 100, 1)


@SETTINGS
@given(inputs=stored(), count=st.integers(1, 4))
def test_joined_queries_get_their_own_answers(inputs, count):
    rng = np.random.default_rng(count)
    queries = [rng.standard_normal(inputs["query"].shape, dtype=np.float32) for _ in range(count)]
    members = [inputs | {"query": query} for query in queries]
    assert len({SHARED_PASS.key(member) for member in members}) == 1
    outputs = StreamingSession(None, 1).run(SHARED_PASS.join(members), OUTPUTS)
    for member, own in zip(members, SHARED_PASS.split(outputs, members), strict=True):
        assert all(x.flags.c_contiguous for x in own.values())
        assert_right(own, member)


def test_tasks_over_other_arrays_or_with_other_options_are_kept_apart(sdpa):
    model, graph = sdpa
    inputs = draw(BLOCKS[model.name], HEADS | {"batch": 1, "m": 2, "n": 6}, OPTIONS["plain"])
    others = [
        inputs | {"key": inputs["key"].copy()},
        inputs | {"key": inputs["key"][:, :, :3], "value": inputs["value"][:, :, :3]},
        inputs | {"scale": np.float32(1)},
        inputs | {"scale": np.float32(2)},
        inputs | {"query": inputs["query"][:, :, :1]},
    ]
    keys = [model.batching.stack_key(graph, each, ["output"]) for each in (inputs, *others)]
    keys.append(model.batching.stack_key(graph, inputs, ["lse"]))
    assert None not in keys
    assert len(set(keys)) == len(keys)
    again = inputs | {"query": inputs["query"] + 1, "key": inputs["key"][:], "value": inputs["value"][:]}
    assert model.batching.stack_key(graph, again, ["output"]) == keys[0]


def test_the_size_of_a_run_grows_with_its_tiles_and_keys():
    """A client could have as many multiply-adds in a two-thousandth of the time."""

    def size(batch, heads, m, n, d):
        query, key = np.zeros((batch, heads, m, d), np.float32), np.zeros((batch, heads, n, d), np.float32)
        return run_size(query, key, key)

    one_tile = size(1, 1, 64, 1024, 64)
    assert size(1024, 16, 1, 256, 1) > 1000 * one_tile
    assert size(1, 1, 1, 1 << 16, 64) > 6 * one_tile


def tasks_of(sdpa, count):
    """Tasks for different queries over the same keys and values."""
    model, graph = sdpa
    rng = np.random.default_rng(0)
    memory = {name: rng.standard_normal((1, 1, 300, 5), dtype=np.float32) for name in ("key", "value")}
    queries = rng.standard_normal((count, 1, 2, 1, 5), dtype=np.float32)
    tasks = [work_of(model, {"query": query, **memory}, ["output"]) for query in queries]
    for task in tasks:
        task.estimate = replace(task.estimate, graph=graph)
    return tasks


def test_tasks_that_wait_for_one_memory_share_a_pass(sdpa, monkeypatch):
    first, *others = tasks_of(sdpa, 5)
    gate = Gate(sdpa[0], monkeypatch)
    answers, counts = run_behind(gate, first, others, MANY)
    assert counts.runs == {1: 1, 4: 1}
    assert [inputs["query"].shape for inputs in gate.ran] == [(1, 2, 1, 5), (1, 8, 1, 5)]
    for task, answer in zip(others, answers, strict=True):
        assert_right(answer, task.inputs)


def test_a_shared_pass_ends_when_all_its_tasks_are_ended(sdpa):
    tasks = tasks_of(sdpa, 2)
    options = SharedRunOptions(tasks)
    for task in tasks:
        task.options = RunOptions()
    for task in tasks:
        assert not options.terminate
        task.terminate()
    assert options.terminate


def test_an_ended_pass_is_not_run_again(sdpa, monkeypatch):
    model, tasks = sdpa[0], tasks_of(sdpa, 2)
    for task in tasks:
        task.compute_queue_keys(MANY)
    shared = Run(tasks[0])
    shared.stack(tasks, 2, 1 << 40, MANY * 1e6)
    real, runs = model.run, []

    def run(*args):
        runs.append(args)
        for task in tasks:
            task.terminate()
        return real(*args)

    monkeypatch.setattr(model, "run", run)
    outcomes = shared.execute()
    assert [task for task, _ in outcomes] == tasks
    assert all(isinstance(outcome, Terminated) for _, outcome in outcomes)
    assert len(runs) == 1
