"""A real, tiny reward model on disk, scored through the reward of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.engines import load_settings
from fakes.models import save_random_model
from fakes.reward_models import save_reward_model
from fakes.runs import cpu, settings, train
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rl_compat.config.types import RewardConfig
from rl_compat.distributed.pool import ResourcePool
from rl_compat.errors import ConfigError, ModelError, RewardError
from rl_compat.planning.types import RolePlan
from rl_compat.rewards.score import ScoreRequest, Scores
from rl_compat.trajectory import Prompt
from rl_compat.workers.reward import RewardModel, RewardWorker
from rl_compat.workers.reward_model import RewardModelWorker

TEXTS = ("a", "bcd" * 5, "", "no " * 9, "x")
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    return lambda **options: save_reward_model(tmp_path / "reward", **options)


def _role(**changes: Any) -> RolePlan:
    plan = {"storage_dtype": "fp32", "compute_dtype": "fp32", "attention": "sdpa", "micro_batch_size": 4}
    return RolePlan(role="reward", device="cpu", max_tokens_per_micro_batch=100, **(plan | changes))


def _learned(folder: Path, **role: Any) -> RewardModelWorker:
    return RewardModelWorker(load_settings(folder, role=_role(**role)))


def _requests(*texts: str, messages: Any = "hello", text: str = "p") -> list[ScoreRequest]:
    return [
        ScoreRequest(
            response_text=response,
            prompt=Prompt(token_ids=(1,), text=text, messages=messages, ground_truth="42", row=i),
            response_ids=(1, 2),
        )
        for i, response in enumerate(texts)
    ]


def _rewards(folder: Path, *texts: str, **role: Any) -> list[float | None]:
    return [outcome.reward for outcome in _learned(folder, **role).outcomes(requests=_requests(*texts))]


@torch.no_grad()
def _alone(folder: Path, text: str) -> float:
    """The reward of a templated conversation without any padding, by the model's own layers."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    conversation = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": text}]
    ids = tokenizer(tokenizer.apply_chat_template(conversation, tokenize=False), add_special_tokens=False)["input_ids"]
    if not hasattr(model, "score"):
        return float(model(input_ids=torch.tensor([ids])).logits[0, 0])
    return float(model.score(model.model(input_ids=torch.tensor([ids]))[0][0, -1])[0])


@pytest.mark.parametrize("pad_token", ["<|pad|>", "<|end|>", None], ids=["pad", "pad is end", "no pad"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "bert"])
def test_padding_is_on_the_right_and_the_last_token_is_found_whatever_the_pad_token_is(
    save: Save, family: str, pad_token: str | None
) -> None:
    """Templates end in `<|end|>`, so a pooling by token ids would read the token before it where that is the pad."""
    folder = save(family=family, pad_token=pad_token)
    assert _rewards(folder, *TEXTS) == pytest.approx([_alone(folder, text) for text in TEXTS], abs=1e-5)


def test_micro_batches_do_not_change_rewards(save: Save) -> None:
    folder = save()
    one_by_one = _rewards(folder, *TEXTS, micro_batch_size=1)
    assert _rewards(folder, *TEXTS, micro_batch_size=8) == pytest.approx(one_by_one, abs=1e-5)


@pytest.mark.parametrize("role", [{"storage_dtype": "bf16"}, {"storage_dtype": "bf16", "compute_dtype": "bf16"}])
def test_half_precision_is_near_and_the_number_itself_is_not_rounded(save: Save, role: dict[str, Any]) -> None:
    folder = save()
    rewards, exact = _rewards(folder, *TEXTS, **role), _rewards(folder, *TEXTS)
    assert rewards == pytest.approx(exact, abs=0.2)
    assert rewards != exact
    assert any(float(torch.tensor(reward).bfloat16()) != reward for reward in rewards)


def test_repeated_keys_give_the_same(save: Save) -> None:
    folder = save()
    assert _rewards(folder, *TEXTS, repeat_kv=True) == pytest.approx(_rewards(folder, *TEXTS), abs=1e-5)


def test_chat_messages_are_templated_and_a_begun_answer_is_continued(save: Save) -> None:
    learned = _learned(save())
    whole = learned.outcomes(requests=_requests("ab", messages=[{"role": "user", "content": "hello"}]))
    begun = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "a"}]
    assert learned.outcomes(requests=_requests("b", messages=begun)) == whole
    assert learned.outcomes(requests=_requests("ab")) == whole


def test_without_messages_prompt_and_response_are_read_as_they_are(save: Save) -> None:
    learned = _learned(save())
    template = "<|user|>hello<|end|><|assistant|>"
    bare = learned.outcomes(requests=_requests("ab<|end|>", messages=None, text=template))
    assert bare == learned.outcomes(requests=_requests("ab"))


def test_a_model_without_a_template_is_said_once(save: Save) -> None:
    learned = _learned(save(chat_template=None))
    assert all(outcome.reward is not None for outcome in learned.outcomes(requests=_requests("a")))
    (note,) = learned.take_notes()
    assert "`model.chat_template=plain`" in note
    assert learned.take_notes() == []


def test_a_conversation_over_the_models_length_is_a_failure_of_its_row(save: Save) -> None:
    outcomes = _learned(save(max_positions=40)).outcomes(requests=_requests("a", "b" * 50))
    assert outcomes[0].failure is None
    assert outcomes[1].failure is not None
    assert "row 1" in outcomes[1].failure.message
    assert "59" in outcomes[1].failure.message
    assert "40" in outcomes[1].failure.message


@pytest.mark.parametrize("num_labels", [2, 3])
def test_a_classifier_is_no_reward_model(save: Save, num_labels: int) -> None:
    with pytest.raises(ModelError) as error:
        _learned(save(num_labels=num_labels)).load()
    assert f"{num_labels} outputs" in error.value.message
    assert "`num_labels=1`" in str(error.value)


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "language")
    with pytest.raises(ModelError) as error:
        _learned(folder).load()
    assert "`num_labels=1`" in str(error.value) or "score.weight" in error.value.message


def _model(folder: Path | None, **reward: Any) -> RewardModel:
    learned = None if folder is None else load_settings(folder, role=_role())
    config = RewardConfig(model=None if folder is None else str(folder), **reward)
    return RewardModel(
        config, pool=ResourcePool(gpus=[]), max_response_length=8, learned=None if learned is None else lambda: learned
    )


def _score(model: RewardModel, *texts: str) -> Scores:
    scores: Scores = model.group.run(RewardWorker.score, requests=_requests(*texts)).result()
    return scores


def test_functions_and_model_are_summed_with_their_weights(save: Save) -> None:
    folder = save()
    model = _model(folder, functions=("gsm8k",), weights=(2.0,), model_weight=0.5)
    scores = _score(model, "#### 42", "#### 41")
    model.close()
    learned = _rewards(folder, "#### 42", "#### 41")
    assert scores.components == {"gsm8k": (1.0, 0.0), "model": pytest.approx(tuple(learned), abs=1e-5)}
    assert scores.rewards == pytest.approx((2.0 + 0.5 * learned[0], 0.5 * learned[1]), abs=1e-5)
    assert scores.weights == {"gsm8k": 2.0, "model": 0.5}
    assert scores.correct == (True, False)


def test_a_model_alone_needs_no_function(save: Save) -> None:
    folder = save()
    model = _model(folder, functions=())
    assert _score(model, *TEXTS).rewards == pytest.approx(tuple(_rewards(folder, *TEXTS)), abs=1e-5)


def test_functions_are_replaced_between_steps_and_the_model_stays(save: Save, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def two(solution_str): return 2.0\n")
    model = _model(save(), functions=("gsm8k",))
    first = _score(model, "#### 42")
    model.replace(functions=(f"{tmp_path / 'mine.py'}:two",), model_weight=0.0)
    second = _score(model, "#### 42")
    model.close()
    assert second.rewards == (2.0,)
    assert second.components["model"] == first.components["model"]


def test_a_replacement_that_cannot_be_used_leaves_the_reward_as_it_is() -> None:
    model = _model(None, functions=("gsm8k",))
    with pytest.raises(ConfigError) as error:
        model.replace(functions=("gsm9k",))
    assert "`gsm9k`" in error.value.message
    with pytest.raises(ConfigError) as error:
        model.replace(model="elsewhere")
    assert "`reward.model`" in error.value.message
    with pytest.raises(ConfigError) as error:
        model.replace(weight=2)
    assert "`weight`" in error.value.message
    assert "`[reward]`" in error.value.message
    assert "`weights`" in str(error.value.hint)
    assert _score(model, "#### 42").rewards == (1.0,)


def test_a_reward_model_is_planned_for_its_pool(save: Save) -> None:
    model = RewardModel.from_pretrained(str(save()), pool=ResourcePool(gpus=[], hardware=cpu()), model_weight=3.0)
    assert model.config.functions == ()
    assert _score(model, "a").weights == {"model": 3.0}
    with pytest.raises(ConfigError) as error:
        RewardModel.from_pretrained("any", pool=ResourcePool(gpus=[], hardware=cpu()), num_labels=2)
    assert "`num_labels`" in error.value.message


def test_a_reward_of_nan_names_its_row(save: Save) -> None:
    folder = save()
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.score.weight.fill_(float("nan"))
    model.save_pretrained(folder)
    with pytest.raises(RewardError) as error:
        _score(_model(folder, functions=()), "a")
    assert "`nan`" in error.value.message
    assert "row 0" in error.value.message


def test_a_run_learns_from_a_model_with_another_tokenizer(save: Save, llama_folder: Path, tmp_path: Path) -> None:
    learned = {"reward.model": save(family="qwen2"), "reward.functions": "auto", "reward.model_weight": 0.1}
    outcome = train(settings(llama_folder, tmp_path / "run", learned, num_steps=1))
    assert outcome.step == 1
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("reward/model") == 1
