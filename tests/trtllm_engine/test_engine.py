"""A right connector between model engines: right text, in each loop, with each manager, with threads and processes."""

from __future__ import annotations

import random

import pytest

from . import names
from .conftest import TOKENS, Make, all_is_back, ask, drain, prompt
from .model import right_answer

V1 = {"manager": "v1"}
V2 = {"manager": "v2"}
GROUPS = V2 | {"windows": (None, 6)}
CHUNKS = {"chunk_tokens": 8}
ENGINES = [V1, V1 | CHUNKS, V2, V2 | CHUNKS, V2 | {"has_index": True}, GROUPS, GROUPS | CHUNKS]


@pytest.mark.parametrize("loop", ["plain", "overlap"])
@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("flags", ["", "async", "lease"])
def test_blocks_go_to_another_engine(make: Make, engine: dict, loop: str, flags: str) -> None:
    source, target = make("P", flags, loop=loop, **engine), make("D", flags, seed=2, loop=loop, **engine)
    for seed in range(2):
        right = right_answer(prompt(seed), TOKENS)
        assert ask(source, prompt(seed)) == right
        assert ask(target, prompt(seed)) == right
    assert [target.counters[i].matched for i in (1, 2)] == [16, 16]
    assert [target.counters[i].computed for i in (1, 2)] == [2, 2]
    for each in (source, target):
        all_is_back(each)


@pytest.mark.parametrize("version", [names.V1_0, names.V1_2, names.NEWEST], ids=lambda version: version.name)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("flags", ["", "async+lease"])
def test_ranks_have_their_heads(make: Make, version: names.Version, ranks: int, flags: str) -> None:
    source = make("P", flags, ranks=ranks, version=version)
    target = make("D", flags, ranks=ranks, version=version, seed=2, loop="overlap")
    assert ask(source, prompt(1)) == ask(target, prompt(1)) == right_answer(prompt(1), TOKENS)
    assert target.counters[1].matched == 16
    all_is_back(target)


@pytest.mark.parametrize("manager", ["v1", "v2"])
def test_ranks_can_be_processes(make: Make, manager: str) -> None:
    source = make("P", "lease", ranks=2, manager=manager)
    target = make("D", "async+lease", ranks=2, manager=manager, processes=True, loop="overlap", seed=2)
    assert ask(source, prompt(1)) == ask(target, prompt(1)) == right_answer(prompt(1), TOKENS)
    assert target.counters[1].matched == 16
    all_is_back(target)


@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("loop", ["plain", "overlap"])
def test_many_at_once_in_few_blocks(make: Make, manager: str, loop: str) -> None:
    engines = [make(name, flags, blocks=24, manager=manager, loop=loop, chunk_tokens=8, seed=seed)
               for seed, (name, flags) in enumerate([("P", "lease"), ("D", "async")])]
    prompts = [prompt(seed, 6 + 3 * seed) for seed in range(10)]
    for engine in engines:
        asked = [engine.submit(each, 6) for each in prompts]
        engine.run()
        assert [engine.answers[each] for each in asked] == [right_answer(each, 6) for each in prompts]
    assert sum(counters.matched for counters in engines[1].counters.values()) > 50
    for engine in engines:
        all_is_back(engine)


@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("loop", ["plain", "overlap"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_the_text_is_right(make: Make, manager: str, loop: str, seed: int) -> None:
    drawn = random.Random(seed)
    arguments = {"manager": manager, "loop": loop, "blocks": drawn.choice([20, 40]), "seed": seed,
                 "chunk_tokens": drawn.choice([None, 8]), "ranks": drawn.choice([1, 2])}
    engines = [make(name, flags, **arguments)
               for name, flags in (("P", "lease"), ("D", "async+lease"))]
    asked: dict[tuple[int, int], list[int]] = {}
    for _ in range(150):
        which = drawn.randrange(2)
        engine = engines[which]
        if drawn.random() < 0.2 and len(asked) < 24:
            tokens = prompt(drawn.randrange(4), drawn.randrange(5, 30))
            asked[which, engine.submit(tokens, 4)] = tokens
        if drawn.random() < 0.05 and engine.answers:
            engine.cancel(drawn.choice(list(engine.answers)))
        if drawn.random() < 0.1 and manager == "v2":
            engine.fault(honour_blocks=drawn.choice([None, 0, 1]))
            engine.fault(defer={drawn.randrange(1, 9): 2})
            engine.fault(pause={drawn.randrange(1, 9): drawn.choice(["preempt", "rollback"])})
        engine.step()
    for engine in engines:
        engine.run()
        all_is_back(engine)
    for (which, request), tokens in asked.items():
        answer = engines[which].answers[request]
        assert answer == right_answer(tokens, 4)[:len(answer)]
        assert len(answer) == 4 or engines[which].finished[request] == "cancelled"


def test_a_window_of_all_layers(make: Make) -> None:
    source, target = (make(name, manager="v2", windows=(6,), seed=seed) for seed, name in enumerate("PD"))
    right = right_answer(prompt(1), TOKENS, window=6)
    assert right != right_answer(prompt(1), TOKENS)
    assert ask(source, prompt(1)) == ask(target, prompt(1)) == right


def test_the_loop_stands_when_nothing_is_active(make: Make) -> None:
    engine = make("P", "lease")
    ask(engine, prompt(1))
    before = len(engine.scheduler.calls)
    assert engine.pinned == [1] and not engine.step() and len(engine.scheduler.calls) == before
    drain(engine)


IDENTITIES = [{"cache_salt": "a"}, {"lora": 1}, {"multimodal": "an image"}]


@pytest.mark.parametrize("identity", IDENTITIES, ids=str)
@pytest.mark.parametrize("manager", ["v1", "v2"])
def test_what_is_ignored_of_a_request_is_noticed(make: Make, identity: dict, manager: str) -> None:
    right = right_answer(prompt(1), TOKENS, **identity)
    assert right != right_answer(prompt(1), TOKENS)
    careful, careless = make("D", manager=manager), make("E", "salt", manager=manager)
    for engine in (careful, careless):
        assert ask(engine, prompt(1)) == right_answer(prompt(1), TOKENS)
        engine.close()
    careful, careless = make("D", manager=manager), make("E", "salt", manager=manager)
    assert ask(careful, prompt(1), **identity) == right
    assert ask(careless, prompt(1), **identity) != right
