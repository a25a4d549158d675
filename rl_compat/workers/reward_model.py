"""The reward model: a sequence classifier with its own tokenizer and chat template."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rl_compat.distributed.group import WorkerGroup, dispatch, distinct
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.errors import ModelError
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.load import LoadSettings
from rl_compat.models.scalar import load_reward_model
from rl_compat.models.tokenizer import load_tokenizer
from rl_compat.planning.types import RoleName
from rl_compat.rewards.parts import Part
from rl_compat.rewards.types import Failure, RewardOutcome, ScoreRequest
from rl_compat.training.engine import RewardEngine
from rl_compat.workers.setup import Planned

LEARNED = "model"


def reward_model_settings(setup: Planned, role: RoleName = "reward") -> LoadSettings | None:
    """The reward model or, with `role="cost"`, the cost model; None without one."""
    return setup.load_settings(role, learns=False) if role in setup.sources else None


class RewardModelWorker:
    """Scores conversations, which are formatted and tokenized with the reward model's template and tokenizer."""

    def __init__(self, settings: LoadSettings, ranks: Ranks = Solo()) -> None:
        """Load the tokenizer; the model is loaded by `load` or on first use. Raises ModelError."""
        self.settings = settings
        self._ranks = ranks
        self._chat = ChatEncoder(load_tokenizer(settings.folder, trust_remote_code=settings.trust_remote_code))
        self._engine: RewardEngine | None = None
        self._notes = [f"reward model: {note}" for note in self._chat.notes]

    @dispatch()
    def load(self) -> None:
        """Load the model now instead of on first use. Raises ModelError."""
        self._loaded()

    @dispatch(split=("requests",))
    def outcomes(self, *, requests: Sequence[ScoreRequest]) -> list[RewardOutcome]:
        """The reward of each response. One that the model cannot process is a failure of its row."""
        engine = self._loaded()
        encoded = [self._encode(request, max_length=engine.model.max_length) for request in requests]
        readable = [ids for ids in encoded if not isinstance(ids, RewardOutcome)]
        with engine.onloaded():
            rewards = iter(engine.rewards(readable))
        return [
            ids if isinstance(ids, RewardOutcome) else _outcome(next(rewards), request)
            for ids, request in zip(encoded, requests, strict=True)
        ]

    @dispatch(merge=distinct)
    def take_notes(self) -> list[str]:
        """Notes for the user since the last call, about the template and about memory."""
        taken, self._notes = self._notes, []
        return taken + (self._engine.take_notes() if self._engine is not None else [])

    @dispatch(urgent=True)
    def close(self) -> None:
        """Free the device memory."""
        self._engine = None

    def _loaded(self) -> RewardEngine:
        if self._engine is None:
            model = load_reward_model(self.settings)
            self._check_ids(model.classifier.get_input_embeddings().num_embeddings)  # type: ignore[union-attr, operator]
            self._engine = RewardEngine(
                model, role=self.settings.role, pad_token_id=self._chat.bundle.pad_token_id, ranks=self._ranks
            )
            self._engine.offload()
        return self._engine

    def _encode(self, request: ScoreRequest, *, max_length: int | None) -> list[int] | RewardOutcome:
        prompt = request.prompt
        if prompt.messages is None:
            ids = list(self._chat.bundle.tokenizer(prompt.text + request.response_text)["input_ids"])
        else:
            try:
                ids = self._chat.encode_conversation(prompt.messages, request.response_text, prompt.tools)[1]
            except ModelError as error:
                return _failed(f"row {prompt.row}: {error.message}")
        if not ids:
            return _failed(f"row {prompt.row} has no tokens for the reward model")
        if max_length is not None and len(ids) > max_length:
            return _failed(
                f"row {prompt.row} has {len(ids)} tokens for the reward model, which was made for {max_length}"
            )
        return ids

    def _check_ids(self, num_embeddings: int) -> None:
        if self._chat.bundle.pad_token_id >= num_embeddings:
            raise ModelError(
                f"the tokenizer in `{self.settings.folder}` pads with the id {self._chat.bundle.pad_token_id} "
                f"and the reward model knows the ids below {num_embeddings}",
                hint="the tokenizer is not the one that the reward model was trained with",
            )


class PlacedRewardModel(Part):
    """The reward model of a pool, as a part of the reward."""

    name = LEARNED

    def __init__(self, group: WorkerGroup[RewardModelWorker]) -> None:
        self._group = group

    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[RewardOutcome]:
        return self._group.run(RewardModelWorker.outcomes, requests=requests).result()

    def load(self) -> None:
        """Load the model now instead of on first use."""
        self._group.run(RewardModelWorker.load).result()

    def take_notes(self) -> list[str]:
        """Notes for the user since the last call."""
        return self._group.run(RewardModelWorker.take_notes).result()

    def close(self) -> None:
        self._group.run(RewardModelWorker.close).result()


def _outcome(reward: float, request: ScoreRequest) -> RewardOutcome:
    if math.isfinite(reward):
        return RewardOutcome(reward=reward)
    return _failed(f"the reward model gave `{reward}` for row {request.prompt.row}, expected a finite number")


def _failed(message: str) -> RewardOutcome:
    return RewardOutcome(reward=None, failure=Failure(kind="error", message=message))
