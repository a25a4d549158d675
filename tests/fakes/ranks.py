"""Training cases that run in one process or on several gloo ranks, with what each of them gives."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.engines import causal_lm, load_settings, random_batch, role_plan, token_mean_loss
from fakes.gloo import on_gloo_ranks
from fakes.part_settings import lora_of, loss_settings
from fakes.reward_models import save_reward_model
from rl_compat.algorithms.advantages.group import grpo
from rl_compat.batch import Batch
from rl_compat.capability.sharding import TENSOR_PARALLEL_FAMILIES
from rl_compat.config.types import AlgorithmConfig
from rl_compat.data.encode.conversations import Example
from rl_compat.data.encode.items import Item, ItemBatch, item_batch
from rl_compat.distributed.ranks import ProcessGroupRanks, Ranks, Solo, TensorRanks
from rl_compat.errors import NotFiniteError, RLCompatError
from rl_compat.models.lora import LoraSettings, adapter_disabled, adapter_weights, merge_for_export
from rl_compat.models.parts import whole
from rl_compat.models.scalar import load_reward_model
from rl_compat.objectives.offline import objective_of
from rl_compat.planning.types import KeptWhole, RolePlan, RolloutPlan
from rl_compat.rollout.session import requests_for
from rl_compat.rollout.types import SamplingParams
from rl_compat.training.base import TrainEngine
from rl_compat.training.engine import PolicyEngine, RewardEngine
from rl_compat.training.memory import OffloadedOptimizer
from rl_compat.training.micro_batches import TokenMatrix
from rl_compat.training.optimizers import OptimizerSettings, build_optimizer
from rl_compat.training.step import MAX_SKIPS_IN_A_ROW
from rl_compat.training.types import BatchTotals, LossFunction, TokenOutputs
from rl_compat.workers.critic import CriticSettings, CriticWorker
from rl_compat.workers.learner import LearnerSettings, LearnerWorker
from rl_compat.workers.mini_batches import over_ranks, own_share
from rl_compat.workers.policy import PolicySettings, PolicyWorker
from rl_compat.workers.rollout import RolloutSettings, RolloutWorker

OPTIMIZER = OptimizerSettings(lr=1e-3, eps=1e-6, schedule="cosine", warmup_steps=2, total_steps=12)
RAGGED = ((3, 5), (3, 2), (3, 9), (4, 4), (4, 1), (6, 3), (6, 8), (6, 2), (6, 7), (2, 6))
GROUPS = (0, 0, 0, 1, 1, 2, 2, 2, 2, 3)
"of 3, 2, 4 and 1 rows"
TOLERANCE = 1e-5
LOCAL_METRICS = ("num_micro_batches", "loss_scale")


@dataclass(frozen=True, slots=True)
class Found:
    """What a case gave on one rank."""

    steps: list[dict[str, float]]
    weights: dict[str, Tensor]
    first_grads: dict[str, Tensor]
    "of the first optimizer step, as the optimizer sees them"
    extra: dict[str, Any] = field(default_factory=dict)


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    assert one
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


def comparable(step: dict[str, float]) -> dict[str, float]:
    return {
        name: value
        for name, value in step.items()
        if not name.endswith(LOCAL_METRICS) and not name.startswith("perf/balance/")
    }


def assert_equal(together: Found, alone: Found) -> None:
    assert len(together.steps) == len(alone.steps)
    for step, expected in zip(together.steps, alone.steps, strict=True):
        assert comparable(step) == pytest.approx(comparable(expected), rel=TOLERANCE, abs=TOLERANCE)
    assert difference(together.first_grads, alone.first_grads) < TOLERANCE
    assert difference(together.weights, alone.weights) < TOLERANCE


class SharingRanks(ProcessGroupRanks):
    """Ranks of which `num_shards` share one copy of the weights."""

    def __init__(self, num_shards: int) -> None:
        super().__init__()
        self.num_shards = num_shards


class SharingTensors(TensorRanks):
    """Ranks of two processes each, of which `num_shards` share one copy of the weights."""

    def __init__(self, num_shards: int) -> None:
        super().__init__(ProcessGroupRanks(), 2)
        self.num_shards = num_shards
        self.tensor_parallel = 2


def _plan(ranks: Ranks, role: str = "actor", **changes: Any) -> RolePlan:
    sharing = {name: getattr(ranks, name, 1) for name in ("num_shards", "tensor_parallel")}
    return role_plan(role, **sharing, **changes)


def _run(engine: TrainEngine, update: Callable[[int], dict[str, float]], num_steps: int, **extra: Any) -> Found:
    grads: dict[str, Tensor] = {}

    assert engine.step is not None
    take = engine.step.optimizer.step

    def keep_grads() -> None:
        if not grads:
            grads.update({n: whole(p.grad).clone() for n, p in engine.parameters.items() if p.grad is not None})
        take()

    engine.step.optimizer.step = keep_grads  # type: ignore[method-assign]
    steps = [update(step) for step in range(num_steps)]
    del engine.step.optimizer.step
    weights = {name: whole(parameter.detach()).clone() for name, parameter in engine.parameters.items()}
    return Found(steps, weights, grads, extra | {"limits": engine.limits, "notes": engine.take_notes()})


def ragged(num_rows: int = len(RAGGED), *, seed: int = 0) -> Batch:
    """Ragged groups of ragged rows, with advantages by GRPO, values and returns."""
    batch = random_batch(RAGGED[:num_rows], seed=seed).with_(groups=torch.tensor(GROUPS[:num_rows]))
    generator = torch.Generator().manual_seed(seed + 100)
    estimate = grpo(
        rewards=torch.rand(num_rows, generator=generator),
        groups=batch.groups,
        response_mask=batch.response_mask,
        normalize_by_std=True,
    )
    noise = torch.randn(2, *batch.response_ids.shape, generator=generator)
    return batch.with_(advantages=estimate.advantages + 0.1 * noise[0], values=batch.returns + 0.2 * noise[1])


def actor(
    folder: Path, ranks: Ranks, *, batch: Batch | None = None, loss: str = "ppo_clip", num_steps: int = 3
) -> Found:
    """Two epochs of two mini-batches a step, so that old and current policy differ."""
    plan = _plan(ranks, micro_batch_size=3, max_tokens_per_micro_batch=30)
    settings = PolicySettings(
        model=load_settings(folder, role=plan),
        temperature=1.0,
        optimizer=OPTIMIZER,
        loss=loss_settings(policy_loss=loss, entropy_coef=0.01, kl_loss="k3"),
        num_epochs=2,
        mini_batch_size=2,
    )
    worker = PolicyWorker(settings, ranks)
    batch = ragged() if batch is None else batch

    def update(step: int) -> dict[str, float]:
        logprobs = over_ranks(lambda rows: worker.logprobs(batch=rows), batch, ranks)
        return worker.update(batch=batch.with_(old_logprobs=logprobs, ref_logprobs=logprobs - 0.1), seed=step)

    return _run(worker.engine, update, num_steps)


def critic(folder: Path, ranks: Ranks) -> Found:
    plan = _plan(ranks, "critic", micro_batch_size=3)
    settings = CriticSettings(
        model=load_settings(folder, role=plan),
        optimizer=OPTIMIZER,
        num_epochs=2,
        mini_batch_size=2,
    )
    torch.manual_seed(0)
    worker = CriticWorker(settings, ranks)

    def update(step: int) -> dict[str, float]:
        values = over_ranks(lambda rows: worker.values(batch=rows), ragged(), ranks)
        return worker.update(batch=ragged().with_(values=values), seed=step)

    return _run(worker.engine, update, 3)


def items(kind: str) -> ItemBatch:
    generator = torch.Generator().manual_seed(4)

    def example(prompt: int, response: int) -> Example:
        ids = torch.randint(6, 60, (prompt + response,), generator=generator).tolist()
        learned = tuple(n != 1 for n in range(response))
        return Example(prompt_ids=tuple(ids[:prompt]), response_ids=tuple(ids[prompt:]), learned=learned)

    if kind == "pairs":
        made = [Item(examples=(example(3, n), example(3, 11 - n)), preferred=(True, False), row=n) for n in range(2, 9)]
    else:
        made = [Item(examples=(example(2 + n % 3, 9 - n),), preferred=(n % 3 > 0,), row=n) for n in range(7)]
    batch = item_batch(made)
    return batch.with_(reference=-3.0 * batch.response_mask.sum(1).float())


def learner(folder: Path, ranks: Ranks, *, algorithm: Any, kind: str, pack_tokens: int | None = None) -> Found:
    objective = objective_of(AlgorithmConfig(name=algorithm))
    settings = LearnerSettings(
        model=load_settings(folder, role=_plan(ranks, micro_batch_size=4)),
        objective=objective,
        mini_batch_size=3,
        optimizer=OPTIMIZER,
        pack_tokens=pack_tokens,
    )
    torch.manual_seed(0)
    worker = LearnerWorker(settings, ranks)
    batch = items(kind)
    mismatched = items("labels") if objective.needs_mismatched else None
    return _run(worker.engine, lambda step: worker.update(batch=batch, mismatched=mismatched, seed=step), 3)


def engine(folder: Path, ranks: Ranks, *, lora: LoraSettings | None = None, **plan: Any) -> PolicyEngine:
    role = _plan(ranks, **plan)
    torch.manual_seed(0)
    model = causal_lm(folder, role=role, lora=lora)
    return PolicyEngine(model, role=role, optimizer=OPTIMIZER, ranks=ranks)


def trained(policy: PolicyEngine, num_steps: int = 3) -> Found:
    def update(step: int) -> dict[str, float]:
        share = own_share(ragged(seed=step), policy.ranks)
        return policy.update(share, loss=token_mean_loss, temperature=1.0, wanted=("entropy",))

    return _run(policy, update, num_steps)


def host_states(folder: Path, ranks: Ranks) -> Found:
    """The optimizer has its states and a copy of the weights on the host; recomputed activations."""
    policy = engine(folder, ranks, gradient_checkpointing=True)
    assert policy.step is not None
    policy.step.optimizer = OffloadedOptimizer(policy.parameters, partial(build_optimizer, settings=OPTIMIZER))
    found = trained(policy)
    return replace(found, weights=found.weights | _after_putting_back(policy) | merge_for_export(policy.model))


def adapters(folder: Path, ranks: Ranks, **plan: Any) -> Found:
    """Adapters on a frozen base, with the log-probabilities of the base before and after."""
    policy = engine(folder, ranks, lora=lora_of(rank=4), micro_batch_size=3, **plan)

    def base() -> Tensor:
        with adapter_disabled(policy.model):
            return over_ranks(lambda rows: policy.logprobs(rows, temperature=1.0).logprobs, ragged(), ranks)

    before = base()
    found = trained(policy)
    weights = {"base before": before, "base after": base()}
    again = _after_putting_back(policy)
    exported = merge_for_export(policy.model) | adapter_weights(policy.model)
    return replace(found, weights=found.weights | weights | again | exported)


def _after_putting_back(policy: PolicyEngine) -> dict[str, Tensor]:
    """The weights after a step that is taken back and taken again."""
    trained(policy, 1)
    policy.keep_state("device")
    trained(policy, 1)
    once = {f"{name}, once": whole(weight.detach()).clone() for name, weight in policy.parameters.items()}
    policy.put_back_state()
    trained(policy, 1)
    twice = {f"{name}, twice": whole(weight.detach()).clone() for name, weight in policy.parameters.items()}
    assert all(torch.equal(one, other) for one, other in zip(once.values(), twice.values(), strict=True))
    return once


def frozen(folder: Path, ranks: Ranks) -> Found:
    """A reference in fp16, and reward models of which the first rank has all sequences but one."""
    role = _plan(ranks, "reference", storage_dtype="fp16", micro_batch_size=3)
    reference = PolicyEngine(causal_lm(folder, role=role), role=role, optimizer=None, ranks=ranks)
    found = {"reference": over_ranks(lambda rows: reference.logprobs(rows, temperature=1.0).logprobs, ragged(), ranks)}
    sequences = [[6 + (3 * row + place) % 50 for place in range(4 + 2 * row)] for row in range(6)]
    own = {0: slice(1, None), 1: slice(0, 1)}.get(ranks.rank, slice(0, 0)) if ranks.size > 1 else slice(None)
    for family in ("llama", "bert"):
        role = _plan(ranks, "reward", micro_batch_size=2)
        place = Path(ranks.gather(tempfile.mkdtemp())[0])
        save_reward_model(place, family=family)  # on rank 0: transformers writes nothing on others
        ranks.barrier()
        scoring = RewardEngine(
            load_reward_model(load_settings(place, role=role)), role=role, pad_token_id=0, ranks=ranks
        )
        parts = ranks.gather(scoring.rewards(sequences[own]))
        found[family] = torch.tensor([*parts[1], *parts[0]] if ranks.size > 1 else parts[0])
    return Found([], found, found)


def resumed(
    folder: Path, ranks: Ranks, *, saves_alone: bool = False, resumes_alone: bool = False, **kind: Any
) -> Found:
    """Three steps, a saved state, and three more in another engine; either may be whole in each process."""
    place = Path(ranks.gather(tempfile.mkdtemp())[0])
    first = engine(folder, Solo() if saves_alone else ranks, **kind)
    steps = trained(first).steps
    if not saves_alone or ranks.process == 0:
        first.save_state(place)
    ranks.barrier()
    second = engine(folder, Solo() if resumes_alone else ranks, **kind)
    second.load_state(place)
    found = trained(second)
    return replace(found, steps=steps + found.steps)


def overflow(folder: Path, ranks: Ranks) -> Found:
    """fp16: the gradient of one row overflows at the first loss scales, on the rank that has it."""
    policy = engine(folder, ranks, compute_dtype="fp16", loss_scaling=True, micro_batch_size=1)
    batch = ragged()
    batch = batch.with_(advantages=torch.where(batch.groups[:, None] == 2, 3e4, 1.0) * batch.advantages)
    share = own_share(batch, ranks)
    return _run(
        policy,
        lambda step: policy.update(share, loss=token_mean_loss, temperature=1.0),
        3,
        overflowed=2 in share.groups.tolist(),
    )


def infinite_loss(folder: Path, ranks: Ranks) -> Found:
    """fp32: the loss of row 5 is infinite."""
    policy = engine(folder, ranks, micro_batch_size=1)
    batch = ragged().with_(rows=torch.arange(len(RAGGED)))
    assert batch.rows is not None
    broken = batch.with_(advantages=torch.where(batch.rows[:, None] == 5, torch.inf, batch.advantages))
    share = own_share(broken, ranks)
    try:
        return _run(policy, lambda step: policy.update(share, loss=token_mean_loss, temperature=1.0), 1)
    except NotFiniteError as error:
        return Found([], {}, {}, {"error": error.message})


def infinite_gradient(folder: Path, ranks: Ranks) -> Found:
    """fp32: the gradient of row 5 is not finite in the first step, and then until the engine stops."""
    policy = engine(folder, ranks, micro_batch_size=1)
    share = own_share(ragged().with_(rows=torch.arange(len(RAGGED))), ranks)

    def broken(batch: Batch, outputs: TokenOutputs, totals: BatchTotals) -> tuple[Tensor, dict[str, Tensor]]:
        assert batch.rows is not None
        loss, metrics = token_mean_loss(batch, outputs, totals)
        return loss + (outputs.logprobs * 0.0)[batch.rows == 5].sum().abs().sqrt(), metrics

    def update(step: int) -> dict[str, float]:
        return policy.update(share, loss=token_mean_loss if step in (1, 2) else broken, temperature=1.0)

    found = _run(policy, update, 3)
    try:
        _run(policy, lambda step: update(step + 3), MAX_SKIPS_IN_A_ROW)
    except NotFiniteError as error:
        return replace(found, extra=found.extra | {"error": error.message})
    return found


def out_of_memory(folder: Path, ranks: Ranks, *, fits: int = 2, module: str = "model", backward: bool = False) -> Found:
    """The last rank cannot hold the activations of more than `fits` rows at once, before or after a module."""
    policy = engine(folder, ranks, micro_batch_size=4)
    lacks_memory = ranks.num_processes > 1 and ranks.process == ranks.num_processes - 1

    def allocate(rows: Tensor) -> None:
        if lacks_memory and len(rows) > fits:
            raise torch.OutOfMemoryError("no room")

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        allocate(args[0] if args else kwargs["input_ids"])

    def after(module: Any, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(allocate)

    place = policy.model.get_submodule(module)
    if backward:
        place.register_forward_hook(after)
    else:
        place.register_forward_pre_hook(before, with_kwargs=True)
    share = own_share(ragged(), ranks)
    try:
        return _run(policy, lambda step: policy.update(share, loss=token_mean_loss, temperature=1.0), 3)
    except RLCompatError as error:
        return Found([], {}, {}, {"error": str(error)})


class Exchanges(TorchDispatchMode):
    """Counts what is exchanged inside the context."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        "of the larger of input and output, by collective"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func.namespace in ("c10d", "_c10d_functional") and "wait" not in func.__name__:
            name = func.__name__.partition(".")[0]
            self.counts[name] += 1
            tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor)]
            self.num_bytes[name] += max(tensor.nbytes for tensor in tensors)
        return func(*args, **kwargs or {})


def kept_whole(folder: Path, ranks: Ranks, *, kept_whole: KeptWhole) -> Found:
    """The last micro-batch of two rows does not fit on one rank when it first runs; exchanges of a later update."""
    policy = engine(folder, ranks, micro_batch_size=2, kept_whole=kept_whole)
    share = own_share(ragged(), ranks)
    turn = 0

    def allocate(gradient: Tensor) -> None:
        nonlocal turn
        turn += 1
        if turn == len(share) // 2 and ranks.process == 1:  # gradients of a micro-batch before it are dropped
            raise torch.OutOfMemoryError("no room")

    hook = policy.model.model.layers[0].register_forward_hook(
        lambda module, args, output: (
            (output if isinstance(output, Tensor) else output[0]).register_hook(allocate) and None
        )
    )
    first = _run(policy, lambda step: policy.update(share, loss=token_mean_loss, temperature=1.0), 2)
    hook.remove()
    over_ranks(lambda rows: policy.logprobs(rows, temperature=1.0).logprobs, ragged(), ranks)
    with Exchanges() as exchanges:
        steps = [policy.update(share, loss=token_mean_loss, temperature=1.0)]
    last = _run(policy, lambda step: policy.update(share, loss=token_mean_loss, temperature=1.0), 1)
    return Found(first.steps + steps + last.steps, last.weights, first.first_grads, {"exchanges": exchanges})


def families(folder: Path, ranks: Ranks) -> Found:
    """One step of a tiny model of each family whose layers can be divided."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
    found: dict[str, Tensor] = {}
    steps = []
    for family in TENSOR_PARALLEL_FAMILIES:
        place = Path(ranks.gather(tempfile.mkdtemp())[0])
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, initializer_range=0.2, **sizes)
        AutoModelForCausalLM.from_config(config).save_pretrained(place)  # transformers writes on rank 0 alone
        ranks.barrier()
        taken = trained(engine(place, ranks, attention="eager", micro_batch_size=4), 1)
        steps += taken.steps
        found |= {f"{family}: {name}": grad for name, grad in taken.first_grads.items()}
    return Found(steps, found, found)


def handover(folder: Path, ranks: Ranks) -> Found:
    """Responses before and after each of two updates, from a rollout that owns its weights unless it is alone."""
    model = load_settings(folder, role=_plan(ranks))
    policy = PolicyWorker(PolicySettings(model=model, temperature=1.0, num_epochs=1, optimizer=OPTIMIZER), ranks)
    plan = RolloutPlan(engine="native", compute_dtype="fp32", max_num_seqs=4, max_prefill_tokens=64)
    rollout = RolloutWorker(
        RolloutSettings(model=model, plan=plan, pad_token_id=0, num_valid_tokens=60), policy.weight_source()
    )
    prompts = [[11, 12, 13], [21, 22], [30, 31, 32, 33]]
    steps, responses = [], []
    for turn in range(3):
        requests = requests_for(prompts, SamplingParams(max_new_tokens=6, seed=3), group_size=2)
        made = rollout.generate(requests=requests, rows=[0] * len(requests), call=f"{turn}")
        responses.append({place: (one.token_ids, one.policy_versions) for place, one in made.items()})
        steps.append(policy.update(batch=ragged(), seed=turn))
    weights = {name: whole(parameter.detach()).clone() for name, parameter in policy.engine.parameters.items()}
    return Found(steps, weights, weights, {"responses": responses, "handovers": rollout.take_handovers()})


def nothing_to_learn(folder: Path, ranks: Ranks) -> Found:
    """Every token of the first step is masked."""
    policy = engine(folder, ranks)
    batch = ragged()

    def update(step: int) -> dict[str, float]:
        masked = batch.with_(response_mask=batch.response_mask & (step > 0))
        return policy.update(own_share(masked, ranks), loss=token_mean_loss, temperature=1.0)

    return _run(policy, update, 2)


class Scalar(nn.Module):
    """One weight; the output for a response token is its id times the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, matrix: TokenMatrix) -> Tensor:
        return matrix.to_columns(self.weight * matrix.targets)


class ScalarEngine(TrainEngine):
    def update(self, batch: Batch, *, loss: LossFunction[Tensor]) -> dict[str, float]:
        return self._update(batch, loss=loss, compute=self.model)


def few_tokens(folder: Path, ranks: Ranks, *, micro_batch_size: int = 8, by_sequence: bool = False) -> Found:
    """Gradients of 1, 2 and 3 for the tokens of one row, and of 9 for the token of another."""
    del folder
    settings = OptimizerSettings(lr=0.1, max_grad_norm=1.0)
    role = _plan(ranks, micro_batch_size=micro_batch_size)
    engine = ScalarEngine(Scalar(), role=role, optimizer=settings, ranks=ranks)
    batch = random_batch([(1, 3), (1, 1)]).with_(response_ids=torch.tensor([[1, 2, 3], [9, 0, 0]]))

    def loss(rows: Batch, outputs: Tensor, totals: BatchTotals) -> tuple[Tensor, dict[str, Tensor]]:
        sums = (outputs * rows.response_mask).sum(1)
        if by_sequence:
            value = (sums / rows.response_mask.sum(1)).sum() / totals.num_sequences
        else:
            value = sums.sum() / totals.num_tokens
        return value, {"loss": value}

    return _run(engine, lambda step: engine.update(own_share(batch, ranks), loss=loss), 1)


def uneven(folder: Path, ranks: Ranks) -> Found:
    """Rows of 5, 5, 5 and of 3, 3, 2 tokens, 8 in a micro-batch: two ranks need three and one or two."""
    policy = engine(folder, ranks, max_tokens_per_micro_batch=8)
    batch = random_batch([(2, 3), (2, 3), (2, 3), (1, 2), (1, 2), (1, 1)])
    shares = {0: [0, 1, 2], 1: [3, 4, 5]}
    share = batch if ranks.size == 1 else batch.select(shares.get(ranks.rank, []))
    return _run(policy, lambda step: policy.update(share, loss=token_mean_loss, temperature=1.0), 3)


CASES: Mapping[str, Callable[[Path, Ranks], Found]] = {
    "ppo actor, ragged groups": actor,
    "ppo critic, ragged groups": critic,
    "grpo, a rank without rows": lambda folder, ranks: actor(folder, ranks, batch=ragged(3)),
    "grpo, one row": lambda folder, ranks: actor(folder, ranks, batch=ragged(1)),
    "tokens chosen from the whole mini-batch": lambda folder, ranks: actor(folder, ranks, loss="clip_cov"),
    "dpo": lambda folder, ranks: learner(folder, ranks, algorithm="dpo", kind="pairs"),
    "kto": lambda folder, ranks: learner(folder, ranks, algorithm="kto", kind="labels"),
    "sft, packed": lambda folder, ranks: learner(folder, ranks, algorithm="sft", kind="labels", pack_tokens=16),
    "reward model": lambda folder, ranks: learner(folder, ranks, algorithm="reward_model", kind="pairs"),
    "fp16 overflow on one rank": overflow,
    "states on the host": host_states,
    "adapters": adapters,
    "frozen models": frozen,
    "adapters on a bf16 base": lambda folder, ranks: adapters(folder, ranks, storage_dtype="bf16"),
    "resumed": resumed,
    "resumed by one process": lambda folder, ranks: resumed(folder, ranks, resumes_alone=True),
    "resumed from one process": lambda folder, ranks: resumed(folder, ranks, saves_alone=True),
    "resumed with adapters": lambda folder, ranks: resumed(folder, ranks, resumes_alone=True, lora=lora_of(rank=4)),
    "infinite loss on one rank": infinite_loss,
    "infinite gradient on one rank": infinite_gradient,
    "out of memory on one rank": out_of_memory,
    "out of memory in a layer of one rank": lambda folder, ranks: out_of_memory(folder, ranks, module="model.layers.1"),
    "out of memory in backward on one rank": lambda folder, ranks: out_of_memory(
        folder, ranks, module="model.layers.0", backward=True
    ),
    "out of memory at the end of backward on one rank": lambda folder, ranks: out_of_memory(
        folder, ranks, module="model.embed_tokens", backward=True
    ),
    "out of memory between two sums": lambda folder, ranks: out_of_memory(
        folder, ranks, module="model.layers.1.mlp.act_fn"
    ),
    "out of memory between two sums in backward": lambda folder, ranks: out_of_memory(
        folder, ranks, module="model.layers.0.self_attn.o_proj", backward=True
    ),
    **{f"kept whole: {kept}": partial(kept_whole, kept_whole=cast(KeptWhole, kept)) for kept in get_args(KeptWhole)},
    "families": families,
    "handover": handover,
    "nothing fits on one rank": lambda folder, ranks: out_of_memory(folder, ranks, fits=0),
    "token mean": few_tokens,
    "token mean, a row at a time": lambda folder, ranks: few_tokens(folder, ranks, micro_batch_size=1),
    "sequence mean": lambda folder, ranks: few_tokens(folder, ranks, by_sequence=True),
    "nothing to learn": nothing_to_learn,
    "uneven micro-batches": uneven,
}


Run = tuple[int, str]
"the processes that share one copy of the weights, negative if two compute each layer together, and the name of a case"
TENSOR = -2


def run_on_ranks(folder: Path, *, num_ranks: int, runs: Sequence[Run]) -> list[dict[Run, Found]]:
    """Cases on gloo ranks in processes of their own: what each rank found."""
    return on_gloo_ranks(partial(_found, folder, runs), num_ranks=num_ranks)


def _found(folder: Path, runs: Sequence[Run]) -> dict[Run, Found]:
    found = {}
    for num_shards, case in runs:
        ranks = SharingRanks(num_shards) if num_shards > 0 else SharingTensors(-num_shards)
        found[num_shards, case] = CASES[case](folder, ranks)
    return found
