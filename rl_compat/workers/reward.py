"""The reward: scores of responses from functions and a reward model, replaceable between steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Unpack

from rl_compat.batch import Sequences
from rl_compat.config.options import checked_value
from rl_compat.config.types import RewardConfig
from rl_compat.distributed.group import WorkerGroup, dispatch
from rl_compat.distributed.pool import ResourcePool, start_without_device
from rl_compat.errors import ConfigError, check_type, nearest
from rl_compat.models.load import LoadSettings
from rl_compat.rewards.assemble import RewardFunction, named_functions, names_function
from rl_compat.rewards.score import EarlyOutcomes, Scorer, ScoreRequest, Scores, build_scorer
from rl_compat.trajectory import EndedResponse
from rl_compat.workers.options import FunctionOptions, ModelOptions, RewardOptions, option_keys, role_values
from rl_compat.workers.reward_model import PlacedRewardModel, RewardModelWorker, reward_model_settings
from rl_compat.workers.role import Role
from rl_compat.workers.shared_plan import SharedPlan

FUNCTIONS_ONLY = ("weights", "function_arguments", "num_processes", "timeout_seconds")
"options without effect on a reward model"


class RewardWorker:
    """Scores responses in this process, with a reward model on a pool."""

    def __init__(
        self,
        config: RewardConfig,
        data_sources: Sequence[str],
        max_response_length: int | None = None,
        learned: PlacedRewardModel | None = None,
        callables: Mapping[str, RewardFunction] = MappingProxyType({}),
    ) -> None:
        self._data_sources = data_sources
        self._max_response_length = max_response_length
        self._learned = learned
        self.scorer = self._build(config, callables)

    @dispatch()
    def score_early(self, *, early: EarlyOutcomes) -> None:
        """Score what has ended so far, for `score`."""
        self.scorer.score_early(early)

    @dispatch()
    def score(self, *, requests: Sequence[ScoreRequest], early: EarlyOutcomes | None = None) -> Scores:
        """The rewards in the order of the requests."""
        scores = self.scorer.score(requests, early)
        notes = self._learned.take_notes() if self._learned is not None else []
        return replace(scores, notes=(*scores.notes, *notes))

    @dispatch()
    def load(self) -> None:
        """Load the reward model now instead of on first use."""
        if self._learned is not None:
            self._learned.load()

    @dispatch()
    def replace(self, *, config: RewardConfig, callables: Mapping[str, RewardFunction]) -> None:
        """Replace functions and weights and keep the reward model. On an error nothing changes."""
        scorer = self._build(config, callables)
        replaced, self.scorer = self.scorer, scorer
        replaced.close()

    @dispatch(urgent=True)
    def close(self) -> None:
        """End the processes of the functions, so that a running call fails, and free the reward model's memory."""
        self.scorer.close()
        if self._learned is not None:
            self._learned.close()

    def _build(self, config: RewardConfig, callables: Mapping[str, RewardFunction]) -> Scorer:
        return build_scorer(
            config,
            data_sources=self._data_sources,
            max_response_length=self._max_response_length,
            learned=self._learned,
            callables=callables,
        )


class EarlyScores:
    """Scores responses as they end; give `add` to `ActorModel.generate`, and this to `compute_rewards`."""

    def __init__(self, group: WorkerGroup[RewardWorker]) -> None:
        self.outcomes = EarlyOutcomes()
        self._group = group
        self._running: Future[None] | None = None

    def add(self, ended: Sequence[EndedResponse]) -> None:
        self.outcomes.waiting.extend((response.place, partial(_request_of, response)) for response in ended)
        if self._running is None or self._running.done():
            self._running = self._group.run(RewardWorker.score_early, early=self.outcomes)


def _request_of(ended: EndedResponse) -> ScoreRequest:
    trajectory = ended.trajectory
    return ScoreRequest(response_text=ended.text(), prompt=trajectory.prompt, response_ids=trajectory.response_ids)


class RewardModel(Role[LoadSettings | None, WorkerGroup[RewardWorker]]):
    """The reward: functions, a reward model, or a weighted sum of both."""

    role = "reward"

    def __init__(
        self,
        config: RewardConfig,
        *,
        data_sources: Sequence[str] = (),
        pool: ResourcePool,
        max_response_length: int | None = None,
        learned: Callable[[], LoadSettings] | None = None,
        callables: Mapping[str, RewardFunction] = MappingProxyType({}),
        shared: SharedPlan | None = None,
    ) -> None:
        """Use `from_functions`, `from_pretrained` or `Session.reward`.

        `callables` are Python functions by their names in `reward.functions`.
        """
        super().__init__(learned or (lambda: None), pool=pool, shared=shared)
        self.config = config
        self.uses_device = learned is not None
        "whether a model scores"
        self._data_sources = data_sources
        self._max_response_length = max_response_length
        self._callables = callables

    @classmethod
    def from_functions(cls, *functions: str | RewardFunction, **options: Unpack[FunctionOptions]) -> RewardModel:
        """The weighted sum of Python functions, built-in names and `file.py:function`s.

        A Python function is called in this process with the keywords of docs/rewards.md that it accepts, and returns a
        number or a dict with `score`. Raises ConfigError or DataError.
        """
        if not functions:
            raise ConfigError("`RewardModel.from_functions` needs at least one function")
        values = role_values("RewardModel.from_functions", options)
        return cls._of_values(values, functions, pool=ResourcePool(gpus=[])).start()

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        pool: ResourcePool | None = None,
        functions: Sequence[str | RewardFunction] = (),
        **options: Unpack[RewardOptions],
    ) -> RewardModel:
        """A sequence classification model `path` with one output, alone or together with `functions`.

        It works by default on the first GPU and is planned alone, with room for an actor of its size; `Session` plans
        all roles together. Raises ConfigError, ModelError, HardwareError or DoesNotFitError.
        """
        shared = SharedPlan(neighbours=("actor",))
        return cls._planned(shared, path, functions, pool=pool, options=options).start()

    @classmethod
    def planned(
        cls,
        shared: SharedPlan,
        rewards: Sequence[str | RewardFunction],
        *,
        pool: ResourcePool | None,
        options: RewardOptions,
    ) -> RewardModel:
        """The reward of a shared plan: functions, and at most one model. `weights` has one number for each."""
        if not rewards:
            raise ConfigError("the reward needs a function or a model")
        models = [item for item in rewards if isinstance(item, str) and not names_function(item)]
        if not models:
            values = role_values("RewardModel.from_functions", options)
            return cls._of_values(values, rewards, pool=ResourcePool(gpus=[])).start()
        if len(models) > 1:
            raise ConfigError(f"the reward has one model, not {len(models)}: `{'`, `'.join(models)}`")
        weights = list(options.get("weights", ()))
        position = rewards.index(models[0])
        if len(weights) == len(rewards):
            if "model_weight" in options:
                raise ConfigError("`model_weight` and `weights` both give the weight of the model")
            options = {**options, "model_weight": weights.pop(position), "weights": weights}
        functions = [item for item in rewards if item is not models[0]]
        return cls._planned(shared, models[0], functions, pool=pool, options=options)

    @classmethod
    def _planned(
        cls,
        shared: SharedPlan,
        path: str,
        functions: Sequence[str | RewardFunction],
        *,
        pool: ResourcePool | None,
        options: RewardOptions,
    ) -> RewardModel:
        if not functions:
            idle = [name for name in options if options[name] and name in FUNCTIONS_ONLY]  # type: ignore[literal-required]
            if idle:
                raise ConfigError(f"`{idle[0]}` is an option of reward functions, and there are none")
        values = role_values(cls.__name__, options)
        pool = ResourcePool.given(pool)
        model = cls._of_values({**values, "reward.model": str(path)}, functions, pool=pool, shared=shared)
        model._check_functions()
        lengths = {key: value for key, value in values.items() if not key.startswith("reward.")}
        shared.add("reward", path, pool=pool, values=lengths, shared=tuple(option_keys(ModelOptions).values()))
        return model

    @classmethod
    def _of_values(
        cls,
        values: Mapping[str, Any],
        functions: Sequence[str | RewardFunction],
        *,
        pool: ResourcePool,
        shared: SharedPlan | None = None,
    ) -> RewardModel:
        callables: dict[str, RewardFunction] = {}
        own = {key.removeprefix("reward."): value for key, value in values.items() if key.startswith("reward.")}
        return cls(
            replace(RewardConfig(), functions=named_functions(list(functions), callables), **own),
            pool=pool,
            max_response_length=values.get("data.max_response_length"),
            learned=None if shared is None else partial(_learned, shared),
            callables=callables,
            shared=shared,
        )

    @property
    def group(self) -> WorkerGroup[RewardWorker]:
        return self.workers

    def early_scores(self) -> EarlyScores:
        """Scores for the responses of one call of `generate`, which begin as responses end."""
        return EarlyScores(self.group)

    def compute_rewards(self, sequences: Sequences, *, early: EarlyScores | None = None) -> Future[Scores]:
        """One reward per response; None for a response that `on_error=skip` excludes.

        `early` has scored some of them while the others were generated.
        """
        check_type("sequences", sequences, Sequences)
        requests = [
            ScoreRequest(response_text=text, prompt=trajectory.prompt, response_ids=trajectory.response_ids)
            for text, trajectory in zip(sequences.texts, sequences.trajectories, strict=True)
        ]
        return self.group.run(RewardWorker.score, requests=requests, early=None if early is None else early.outcomes)

    def load(self) -> None:
        """Load the reward model, if there is one, now instead of on first use. Raises ModelError."""
        self.group.run(RewardWorker.load).result()

    def replace(self, **settings: Any) -> None:
        """Change settings of `[reward]`, such as `functions`, `weights` or `model`, from the next call on.

        New functions are loaded before the old ones end, and another model is planned first, so that an error
        (ConfigError, DataError, ModelError, DoesNotFitError) changes nothing. Other functions reset the weights.
        """
        if "functions" in settings:
            settings = {"weights": (), "function_arguments": {}, **settings}
        config, callables = _changed(self.config, settings, dict(self._callables))
        if config.model == self.config.model:
            self.group.run(RewardWorker.replace, config=config, callables=callables).result()
            self.config, self._callables = config, callables
            return
        if self._shared is None or config.model is None:
            raise ConfigError(
                "`reward.model` cannot be replaced here", hint="build another `RewardModel` and use it instead"
            )
        before = self.config, self._callables, self._workers, self._settings
        self._shared.replace_model("reward", config.model)
        self.config, self._callables, self._workers, self._settings = config, callables, None, None
        try:
            self.start()
        except BaseException:
            self.config, self._callables, self._workers, self._settings = before
            assert self.config.model is not None
            self._shared.replace_model("reward", self.config.model)
            raise
        if before[2] is not None:
            before[2].run(RewardWorker.close).result()

    def close(self) -> None:
        """End the processes of the functions, and free the memory of a reward model."""
        if self._workers is not None:
            self._workers.run(RewardWorker.close).result()
        super().close()

    def _start(self, settings: LoadSettings | None) -> WorkerGroup[RewardWorker]:
        learned = None
        if settings is not None:
            width = settings.role.tensor_parallel
            group = self.pool.start(lambda place: RewardModelWorker(settings, place.ranks), tensor_parallel=width)
            learned = PlacedRewardModel(group)
        arguments = (self.config, self._data_sources, self._max_response_length, learned, self._callables)
        return start_without_device(lambda place: RewardWorker(*arguments))

    def _check_functions(self) -> None:
        """Raise ConfigError or DataError for functions or weights that cannot be used, before a model is planned."""
        build_scorer(
            self.config,
            data_sources=self._data_sources,
            max_response_length=self._max_response_length,
            callables=self._callables,
        ).close()


def _learned(shared: SharedPlan) -> LoadSettings:
    settings = reward_model_settings(shared.planned("reward"))
    assert settings is not None
    return settings


def _changed(
    config: RewardConfig, settings: dict[str, Any], callables: dict[str, RewardFunction]
) -> tuple[RewardConfig, dict[str, RewardFunction]]:
    """The config with other settings, and the Python functions that it names. Raises ConfigError."""
    known = [field.name for field in fields(RewardConfig)]
    for name in settings:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean `{close}`" if close else f"settings are {', '.join(known)}"
            raise ConfigError(f"`{name}` is not a setting of `[reward]`", hint=hint)
    if "functions" in settings:
        callables = {}
        settings = {**settings, "functions": named_functions(settings["functions"], callables)}
    checked = {name: checked_value(name, value, key=f"reward.{name}") for name, value in settings.items()}
    return replace(config, **checked), callables
