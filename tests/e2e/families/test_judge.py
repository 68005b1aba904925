"""The judge can say no."""

from __future__ import annotations

from dataclasses import replace

import judge
import pytest
from judge import FAR, NOISE_LEAST, NOISE_MAX, Local
from pd.client import Reply, read_reply
from pd.web import Answer

RIGHT = Reply(200, tokens=[1, 2, 3], logprobs=[-1.0, -2.0, -3.0], leads=[0.5, 0.001, 0.5])
LOCAL = Local(whole=RIGHT, apart=replace(RIGHT, logprobs=[-1.0, -2.0, -3.005]))


def test_the_right_answer() -> None:
    assert judge.same(RIGHT, LOCAL)
    assert judge.distance(RIGHT, LOCAL, NOISE_LEAST) == 0.0


def test_the_last_bit() -> None:
    assert not judge.same(replace(RIGHT, logprobs=[-1.0, -2.0, -3.0000001]), LOCAL)


def test_a_logprob_too_far_away() -> None:
    assert judge.distance(replace(RIGHT, logprobs=[-1.0, -2.1, -3.0]), LOCAL, 0.01) == pytest.approx(0.1)


def test_another_token_though_one_was_better() -> None:
    assert judge.distance(replace(RIGHT, tokens=[9, 2, 3]), LOCAL, 0.01) == FAR


def test_another_token_where_two_were_as_good() -> None:
    """What comes after it says nothing."""
    found = replace(RIGHT, tokens=[1, 9, 9], logprobs=[-1.002, -2.0, -7.0])
    assert judge.distance(found, LOCAL, 0.01) == pytest.approx(0.002)
    assert judge.distance(found, LOCAL, 0.0001) == FAR


def test_an_answer_that_is_too_short() -> None:
    with pytest.raises(ValueError):
        judge.distance(replace(RIGHT, tokens=[1, 2]), LOCAL, 0.01)


def test_the_doubt_is_vllms_own() -> None:
    assert judge.doubt_of([LOCAL]) == pytest.approx(0.005)
    assert judge.doubt_of([Local(RIGHT, RIGHT)]) == NOISE_LEAST


def test_answers_that_differ_too_much_to_judge_by() -> None:
    with pytest.raises(AssertionError):
        judge.doubt_of([LOCAL, Local(RIGHT, replace(RIGHT, logprobs=[-1.0, -2.0, -3.0 - 2 * NOISE_MAX]))])
    with pytest.raises(AssertionError):
        judge.doubt_of([Local(RIGHT, replace(RIGHT, tokens=[9, 2, 3]))])


def test_what_vllm_says_of_its_candidates() -> None:
    choice = {"text": "", "token_ids": [7], "logprobs": {
        "token_logprobs": [-1.5], "top_logprobs": [{"token_id:8": -1.25, "token_id:7": -1.5, "token_id:9": -4.0}]}}
    reply = read_reply(Answer(200, {"choices": [choice]}))
    assert (reply.logprobs, reply.leads) == ([-1.5], [0.25])
