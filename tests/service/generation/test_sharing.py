"""Sequences that share runs: the same tokens and weights as alone, while others join, leave or are read slowly."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import numpy as np
import pytest

from service.base.errors import Invalid, TimedOut
from service.generation.counters import GenerationCounters
from service.generation.decoder import Decoder, load_decoder
from service.generation.group import SequenceGroup
from service.generation.sampling import Sampler, Sampling
from service.generation.scheduler import Scheduler
from service.generation.sequence import LOGPROB, TOKEN, GrowingSequence, Wanted
from service.model.loader import open_version
from service.ort import device_memory
from service.ort.failures import RUN_ERRORS
from service.ort.provider import Provider
from service.selection.options import read_selection
from tests.support.device import emulate_device
from tests.support.engine import open_engine
from tests.support.waiting import until_async

ERROR = 3e-6
WEIGHTS = Wanted(("weights", "hidden_states"))
MANY = 1 << 30
BEYOND = 1000  # no token of the vocabulary


@pytest.fixture(scope="module")
def model(generating):
    return open_version(generating / "models" / "gpt" / "1", Provider("cpu", "requested"), 1)


@pytest.fixture(scope="module")
def decoder(generating, model):
    return load_decoder(generating / "models" / "gpt" / "1", model, 1)


@pytest.fixture
def sequence(decoder):
    def make(prompt, most, sampling=None, wanted=WEIGHTS):
        ids = np.random.default_rng(prompt).integers(5, 60, prompt)
        return GrowingSequence(decoder, ids, most, {}, Sampler(sampling or Sampling()), wanted)

    return make


@asynccontextmanager
async def scheduler(**settings):
    async with open_engine(**settings) as engine:
        runs, run = [], engine.run

        async def counted(task):
            runs.append(task.stored.members)
            return await run(task)

        engine.run = counted
        sharing = Scheduler(engine, GenerationCounters(), True, MANY)
        sharing.runs = runs
        yield sharing
        await until_async(lambda: not sharing._groups)
        assert engine.budget.used == 0


async def steps_of(sharing, sequence, until=None):
    found = []

    def accept(_):
        return sequence.length < sequence.end

    async with aclosing(sharing.steps(sequence, accept, None)) as steps:
        async for step in steps:
            found.append(step)
            if len(found) == until:
                break
    return found


def alone(sequence):
    group, found = SequenceGroup(sequence), []
    while sequence.length < sequence.end:
        task = group.task()
        group.run(task.graph, None, {}, (), None)
        found.append(group.steps[sequence])
    return found


def assert_same(found, expected):
    assert [int(step[TOKEN]) for step in found] == [int(step[TOKEN]) for step in expected]
    for step, other in zip(found, expected, strict=True):
        assert step.keys() == other.keys()
        assert step[LOGPROB] == pytest.approx(other[LOGPROB], abs=1e-4)
        for name in step.keys() - {TOKEN, LOGPROB}:
            assert step[name].shape == other[name].shape
            assert np.abs(step[name] - other[name]).max() <= (ERROR if name == "weights" else 1e-4)


LENGTHS = [(4, 20), (1, 9), (17, 30), (9, 1), (3, 44), (30, 12), (2, 2), (11, 25)]


@pytest.fixture(params=["host", "device"])
def memory(request, monkeypatch):
    """Keys and values in the host's memory, or in that of a device."""
    if request.param == "device":
        emulate_device(monkeypatch)
        monkeypatch.setattr(Decoder, "allocate", staticmethod(device_memory.empty))
    return request.param


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_tokens_and_weights_are_those_of_runs_alone(sequence, temperature):
    def made():
        return [
            sequence(prompt, most, Sampling(temperature=temperature, seed=most), wanted)
            for (prompt, most), wanted in zip(LENGTHS, [WEIGHTS, Wanted()] * 4, strict=True)
        ]

    async def together():
        async with scheduler() as sharing:
            found = await asyncio.gather(*(steps_of(sharing, one) for one in made()))
            assert max(map(len, sharing.runs)) > 2
            assert len(sharing.runs) < 80  # of 143 tokens
            return found

    for found, one in zip(asyncio.run(together()), made(), strict=True):
        assert_same(found, alone(one))


@pytest.mark.usefixtures("memory")
def test_sequences_join_and_leave_at_any_step(sequence):
    async def in_turn(sharing, index):
        found = []
        for count in range(4):
            prompt, most = LENGTHS[(index + count) % len(LENGTHS)]
            until = (index + 3 * count) % 5 or None
            found.append((prompt, most, await steps_of(sharing, sequence(prompt, most), until)))
        return found

    async def together():
        async with scheduler() as sharing:
            return await asyncio.gather(*(in_turn(sharing, index) for index in range(6)))

    for prompt, most, found in (one for several in asyncio.run(together()) for one in several):
        assert_same(found, alone(sequence(prompt, most))[: len(found)])


def test_a_slow_reader_does_not_hold_the_others(sequence):
    async def together():
        async with scheduler() as sharing:
            slow = sequence(5, 20)
            async with aclosing(sharing.steps(slow, lambda _: slow.length < slow.end, None)) as reading:
                found = [await anext(reading)]
                others = await asyncio.gather(*(steps_of(sharing, sequence(prompt, 30)) for prompt in (3, 8)))
                assert slow.length < 10
                found += [step async for step in reading]
            return found, others

    found, others = asyncio.run(together())
    assert_same(found, alone(sequence(5, 20)))
    for prompt, other in zip((3, 8), others, strict=True):
        assert_same(other, alone(sequence(prompt, 30)))


@pytest.mark.parametrize("error", [None, MemoryError])  # None: its logits are not finite
def test_a_sequence_with_an_error_leaves_the_others_as_they_are(sequence, error):
    async def together():
        async with scheduler() as sharing:
            broken, sound = sequence(4, 20), sequence(6, 20)
            grow = broken.grow

            def failing(logits, outputs, _):
                if error is not None and broken.length > 12:
                    raise error
                return grow(logits * (np.nan if broken.length > 12 else 1), outputs)

            broken.grow = failing
            return await asyncio.gather(steps_of(sharing, broken), steps_of(sharing, sound), return_exceptions=True)

    found_error, found = asyncio.run(together())
    assert isinstance(found_error, error or Invalid)
    assert_same(found, alone(sequence(6, 20)))


@pytest.mark.usefixtures("memory")
def test_a_run_that_fails_is_the_fault_of_one_sequence(sequence):
    """ONNX Runtime refuses its token, and with it the run of all."""

    async def together():
        async with scheduler() as sharing:
            broken = sequence(4, 20)

            def accept(_):
                if broken.length == 12:
                    broken.ids[11] = BEYOND
                return True

            async def steps():
                async with aclosing(sharing.steps(broken, accept, None)) as steps:
                    return [step async for step in steps]

            others = [steps_of(sharing, sequence(prompt, 30)) for prompt in (3, 8)]
            found = await asyncio.gather(steps(), *others, return_exceptions=True)
            assert max(map(len, sharing.runs)) == 3
            return found

    error, *found = asyncio.run(together())
    assert isinstance(error, RUN_ERRORS)
    for prompt, other in zip((3, 8), found, strict=True):
        assert_same(other, alone(sequence(prompt, 30)))


def test_a_token_that_is_not_accepted_ends_its_sequence_alone(sequence):
    async def together():
        async with scheduler() as sharing:
            broken = sequence(4, 20)

            def accept(_):
                if broken.length > 12:
                    raise ValueError("no text")
                return True

            async def steps():
                async with aclosing(sharing.steps(broken, accept, None)) as steps:
                    return [step async for step in steps]

            return await asyncio.gather(steps(), steps_of(sharing, sequence(6, 20)), return_exceptions=True)

    error, found = asyncio.run(together())
    assert isinstance(error, ValueError)
    assert_same(found, alone(sequence(6, 20)))


def test_each_has_runs_of_its_own_where_memory_is_short(sequence, decoder):
    async def together():
        async with scheduler() as sharing:
            budget = sharing._engine.budget
            budget.used = budget.limit
            found = await asyncio.gather(*(steps_of(sharing, sequence(*lengths)) for lengths in ((3, 9), (9, 30))))
            budget.used -= budget.limit
            return found

    for found, lengths in zip(asyncio.run(together()), ((3, 9), (9, 30)), strict=True):
        assert_same(found, alone(sequence(*lengths)))


def test_zeros_cost_less_than_the_weights_that_are_not_read(sequence, decoder, monkeypatch):
    group, other = SequenceGroup(sequence(4, 5)), sequence(40, 5)
    assert group.accepts(other, group.members, MANY)
    assert not group.accepts(other, group.members, 1)
    monkeypatch.setattr(type(decoder), "learned_bytes", 35 * decoder.position_bytes)
    assert not group.accepts(other, group.members, MANY)
    assert group.accepts(sequence(39, 5), group.members, MANY)


def test_a_run_that_is_ended_ends_its_sequences(sequence):
    async def together():
        async with scheduler() as sharing:
            run = sharing._engine.run

            async def ended(task):
                if len(task.stored.members) == 2:
                    raise TimedOut("the run took longer")
                return await run(task)

            sharing._engine.run = ended
            several = (steps_of(sharing, sequence(prompt, 30)) for prompt in (3, 8))
            return await asyncio.gather(*several, return_exceptions=True)

    assert [type(error) for error in asyncio.run(together())] == [TimedOut, TimedOut]


def test_options_of_the_weights_are_each_sequences_own(sequence):
    def made():
        selected = Wanted(("weights",), read_selection({"layers": 1, "heads": [0, 2]}))
        return [sequence(4, 12, wanted=selected), sequence(9, 12), sequence(6, 12, wanted=Wanted(("logprobs",)))]

    async def together():
        async with scheduler() as sharing:
            return await asyncio.gather(*(steps_of(sharing, one) for one in made()))

    for found, one in zip(asyncio.run(together()), made(), strict=True):
        assert_same(found, alone(one))


@pytest.mark.parametrize(("pause_s", "most", "is_paused"), [(60, 8, True), (0, 8, False), (60, 1, False)])
def test_a_group_waits_for_prompts_whose_sequences_can_share_its_next_step(
    sequence, monkeypatch, pause_s, most, is_paused
):
    """Not after its pause, nor for a prompt of which one token is wanted: its sequence shares no step."""
    monkeypatch.setattr("service.generation.scheduler.MAX_PAUSE_S", pause_s)

    async def ask():
        async with scheduler() as sharing:
            first, second = sequence(4, 30), sequence(9, most)
            run, has_prompt, may_run = sharing._engine.run, asyncio.Event(), asyncio.Event()

            async def delayed(task):
                if second in task.stored.members and task.stored.past is None:
                    has_prompt.set()
                    await may_run.wait()
                return await run(task)

            sharing._engine.run = delayed
            tasks = [asyncio.create_task(steps_of(sharing, second))]
            await has_prompt.wait()
            tasks.append(asyncio.create_task(steps_of(sharing, first)))
            if is_paused:
                await until_async(lambda: any(group.all for groups in sharing._groups.values() for group in groups))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert len(sharing.runs) == 1  # the prompt of the first
            else:
                await tasks[1]
            may_run.set()
            await asyncio.gather(*tasks)
            return max(map(len, sharing.runs))

    assert asyncio.run(ask()) == (2 if is_paused else 1)
