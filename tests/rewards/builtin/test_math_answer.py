from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes.processes import reward_processes

from rl_compat.config.types import RewardConfig
from rl_compat.rewards.builtin.math_answer import find_answer, math, math_dapo, plain_form
from rl_compat.rewards.score import Scorer, ScoreRequest, build_scorer
from rl_compat.trajectory import Prompt

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    built = build_scorer(
        RewardConfig(functions=("math",), timeout_seconds=1.0), data_sources=(), max_response_length=64
    )
    yield built
    built.close()


def _requests(*pairs: tuple[str, str]) -> list[ScoreRequest]:
    return [
        ScoreRequest(
            response_text=text, prompt=Prompt(token_ids=(1,), text="p", data_source="m", ground_truth=truth, row=i)
        )
        for i, (text, truth) in enumerate(pairs)
    ]


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1.0),
        (r"\boxed{\frac{1}{3}}", r"\frac{1}{2}", 0.0),
        (r"\boxed{1} ... \boxed{2}", "2", 1.0),
        (r"\boxed{1} ... \boxed{2}", "1", 0.0),
    ],
)
def test_nested_braces_are_read_whole_and_the_last_box_wins(response: str, truth: str, reward: float) -> None:
    """A-REW-06"""
    assert math(response, truth).reward == reward


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (r"\frac12", "0.5"),
        (r"\dfrac{3}{4}", "0.75"),
        (r"3\frac{1}{2}", "3.5"),
        (r"2\sqrt{2}", r"\sqrt{8}"),
        ("[1,2)", "[1, 2)"),
        (r"(-\infty, 2]\cup(3,\infty)", r"(-\infty,2] \cup (3,\infty)"),
        (r"x \in [1,2]", "[1,2]"),
        (r"\{1,2\}", r"\{2,1\}"),
        ("2, 1", "1,2"),
        (r"5\text{ cm}", "5"),
        (r"5 \,\mathrm{cm}^2", "5"),
        ("5 apples", "5"),
        (r"90^\circ", "90"),
        (r"\$5.00", "5"),
        (r"50\%", "0.5"),
        ("10,000", "10000"),
        (r"1\,000", "1000"),
        ("x = 3", "3"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\pi/4", r"\frac{\pi}{4}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\text{Monday}", "Monday"),
        (r"\text{(C)}", "(C)"),
        ("72", "72"),
    ],
)
def test_equal_expressions_are_equal_however_they_are_written(answer: str, truth: str) -> None:
    assert math(rf"So it is \boxed{{{answer}}}.", truth).reward == 1.0


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("[1,2)", "(1,2)"),
        ("(1,2)", "(2,1)"),
        ("-3", "3"),
        (r"\text{Monday}", r"\text{Tuesday}"),
        ("10", "100"),
        ("3.14", r"\pi"),
        ("x+1", "x-1"),
    ],
)
def test_different_expressions_are_not(answer: str, truth: str) -> None:
    outcome = math(rf"\boxed{{{answer}}}", truth)
    assert (outcome.reward, outcome.correct, outcome.answer_found) == (0.0, False, True)


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        ("The answer is 42.", "42", 1.0),
        ("The answer is $x=3$.", "3", 1.0),
        ("The answer is 17 dollars.", "17", 1.0),
        ("the answer is x^2+1", "1+x^2", 1.0),
        ("#### 1,005", "1005", 1.0),
        (r"Hence $\frac{1}{2}$", "0.5", 1.0),
        ("so 3/4", "0.75", 1.0),
        ("so 3/4", "0.7", 0.0),
    ],
)
def test_without_a_box_the_announced_answer_or_the_last_expression_counts(
    response: str, truth: str, reward: float
) -> None:
    assert math(response, truth).reward == reward


@pytest.mark.parametrize("response", ["", "hmm", r"\boxed{}", r"\boxed{", "x" * 20_000, "$ " * 10_000])
def test_a_response_without_an_expression_has_no_answer(response: str) -> None:
    outcome = math(response, "3")
    assert (outcome.reward, outcome.answer_found, outcome.extras["answer"]) == (0.0, False, None)


def test_a_ground_truth_may_be_a_number_a_boxed_solution_or_a_list() -> None:
    assert math(r"\boxed{72}", 72).reward == 1.0
    assert math(r"\boxed{72}", r"We add: \boxed{72}").reward == 1.0
    assert math(r"\boxed{2}", ["1", "2"]).reward == 1.0
    assert math(r"\boxed{3}", ["1", "2"]).reward == 0.0


@pytest.mark.parametrize(
    ("response", "reward", "answer"),
    [
        ("Answer: 34", 1.0, "34"),
        (r"Answer: $\boxed{34}$", 1.0, "34"),
        (r"\boxed{35} so Answer: 34", 1.0, "34"),
        (r"thus \boxed{34}", 1.0, "34"),
        ("Answer: 35", -1.0, "35"),
        ("", -1.0, None),
    ],
)
def test_dapo_gives_plus_and_minus_one_by_the_last_answer_line(
    response: str, reward: float, answer: str | None
) -> None:
    outcome = math_dapo(response, "34")
    assert (outcome.reward, outcome.correct, outcome.extras["answer"]) == (reward, reward > 0, answer)


def test_what_only_changes_the_look_is_left_out() -> None:
    assert plain_form(r"$\left( \dfrac{1}{2},\; 1\,000 \right)$.") == r"(\frac{1}{2},1000)"
    assert plain_form(r"\text{Monday}") == "Monday"


def test_the_answer_says_whether_all_of_it_is_a_formula() -> None:
    found = [find_answer(text) for text in (r"\boxed{5 cm}", "The answer is 5 cm", "The answer is x+1", "so 5")]
    assert [answer and (answer.text, answer.is_formula) for answer in found] == [
        ("5 cm", True),
        ("5 cm", False),
        ("x+1", True),
        ("so 5", False),
    ]


def test_an_answer_that_takes_forever_is_wrong_and_the_rest_goes_on(scorer: Scorer) -> None:
    """A-REW-10: the default policy would stop a run for a failing function; a response's fault stops nothing."""
    scores = scorer.score(_requests((r"\boxed{4}", "4"), (r"\boxed{10^{10^{10}}}", "2"), (r"\boxed{2+2}", "4")))
    assert scores.rewards == (1.0, 0.0, 1.0)
    assert scores.correct == (True, False, True)
    assert scores.metrics["reward/timeouts"] + scores.metrics["reward/errors"] == 1.0
    assert "`math`" in scores.notes[0]


def test_from_another_thread_the_score_is_the_same(scorer: Scorer) -> None:
    """A-REW-09"""
    requests = _requests((r"\boxed{4}", "4"), (r"\boxed{5}", "4"))
    with ThreadPoolExecutor(1) as threads:
        there = threads.submit(scorer.score, requests).result()
    assert there == scorer.score(requests)
    assert there.rewards == (1.0, 0.0)


def test_closing_leaves_no_process() -> None:
    before = reward_processes()
    built = build_scorer(RewardConfig(functions=("math_dapo",)), data_sources=())
    assert built.score(_requests(("Answer: 4", "4"))).rewards == (1.0,)
    built.close()
    assert reward_processes() == before
