"""vLLM in this process as a rollout session."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.errors import ConfigError, DataError, ModelError, RLCompatError
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.handover import Handover
from rl_compat.resharding.source import StreamsWeights, WeightSource
from rl_compat.rollout.inference import (
    PROBE_STEPS,
    exact_products,
    generating,
    hugging_face_model,
    not_finite,
    plain_logprobs,
    probe_prompts,
)
from rl_compat.rollout.kernels.choice import chosen_draw
from rl_compat.rollout.session import PartialResponse, RolloutSession
from rl_compat.rollout.types import Decode, Request, SamplingParams
from rl_compat.rollout.vllm.call import VllmRequests
from rl_compat.rollout.vllm.errors import failure, forget_locals, refusal
from rl_compat.rollout.vllm.shutdown import Held, free_memory, stop
from rl_compat.rollout.vllm.start import (
    ALLOCATOR,
    config_folder,
    engine_arguments,
    keep_log,
    require_vllm,
    sleeps,
    start,
)
from rl_compat.rollout.vllm.weights import (
    Released,
    computes_with_what_it_loads,
    hand_over,
    load_weights,
    release,
    take_back,
)

TOLERANCE = {"fp32": 0.01, "fp16": 0.5, "bf16": 0.5}
"maximum difference between log-probabilities of vLLM and of a training forward on the first tokens"
TRIED_ROWS = 64
"number of rows with which the draw kernel is measured"


class VllmEngine(RolloutSession):
    """Generates with vLLM 0.19 or newer.

    vLLM computes logits; drawing and log-probabilities are this project's, so that temperature, filters and seeds mean
    the same in all engines. Random numbers depend only on the seed and the prompt, and tokens also on vLLM's logits.
    In fp32 matrix products and attention are computed in fp32 (`TRITON_F32_DEFAULT=ieee`, unless it is already set).
    A process runs one vLLM: when a second engine starts, the first stops, and starts again when it is next used.
    Over several processes each has its own scheduler, and all draw the same tokens from the same logits, so that they
    stay in step without messages; such an engine starts once.
    """

    _running: ClassVar[weakref.ref[VllmEngine] | None] = None

    def __init__(
        self,
        model: nn.Module,
        plan: RolloutPlan,
        *,
        num_valid_tokens: int | None = None,
        decode: Decode | None = None,
        device: str | None = None,
        together: Ranks = Solo(),
    ) -> None:
        """Starts vLLM on a device, by default that of the model, with the processes `together` as one engine.

        Raises HardwareError without the package, DoesNotFitError if it does not fit on the device, RLCompatError if
        it does not start, and ModelError if its log-probabilities differ from the trainer's.
        """
        require_vllm()
        super().__init__(model, plan, num_valid_tokens=num_valid_tokens, decode=decode, together=together)
        self._requests: VllmRequests | None = None
        self._has_started = False
        self._device = next(model.parameters()).device if device is None else torch.device(device)
        self._log = keep_log()
        self._folder = config_folder(model)
        self._arguments = engine_arguments(model, plan, folder=self._folder.name, device=self._device)
        if together.num_processes > 1 and plan.sleep_between and not sleeps(self._arguments, self._device):
            raise ConfigError(
                f"`rollout.tensor_parallel={plan.tensor_parallel}` frees memory by vLLM's sleep mode, which "
                "`expandable_segments:True` prevents",
                hint=f"remove it from `{ALLOCATOR}`",
            )
        self._draw = chosen_draw(
            int(hugging_face_model(model).config.get_text_config().vocab_size),
            rows=min(plan.max_num_seqs, TRIED_ROWS),
            device=self._device,
            architecture=plan.kernel_architecture,
        )
        self._released: Released | None = None
        self._engine: Any = None
        self._in_place = False
        self._start()

    @contextmanager
    def _generating(self) -> Iterator[None]:
        self._awake()
        yield

    def _advance(self, max_tokens: int | None, report: Callable[[int], None]) -> list[PartialResponse]:
        """One step of vLLM, which draws at most one token for each request."""
        del max_tokens, report
        if self._requests is not None and not self._requests.active:
            self._read(self._requests.unread)
        if self._requests is None:
            self._requests = self._requests_like(self._waiting[0].params)
        draw = self._requests.draw_settings
        same = list(takewhile(lambda partial: partial.params.draw_settings == draw, self._waiting))
        for _ in same:
            self._waiting.popleft()
        self._requests.add(same)
        return self._stepped(self._requests)

    def _requests_like(self, params: SamplingParams) -> VllmRequests:
        return VllmRequests(
            self._engine, params, num_valid_tokens=self._num_valid_tokens, device=self._device, draw=self._draw
        )

    def _stepped(self, requests: VllmRequests) -> list[PartialResponse]:
        """One step. After an error vLLM is stopped, and its requests wait for a restart."""
        try:
            return requests.step()
        except Exception as error:
            requests.let_go()
            if requests is self._requests:
                self._requests = None
                lost = {partial.number for partial in (*requests.active, *requests.unread)}
                self._ended = [partial for partial in self._ended if partial.number not in lost]
                self._waiting.extendleft(self._unfinished[number] for number in sorted(lost, reverse=True))
            forget_locals(error)
            self.stop()
            event = "stopped while generating"
            raise failure(error, self._plan, version=_version(), event=event, log=self._log.lines) from error

    def _read(self, ended: Sequence[PartialResponse]) -> None:
        if self._requests is not None:
            self._requests.read(ended, version=self.policy_version)
            if self._requests.done:
                self._requests.let_go()
                self._requests = None

    def _evict(self) -> None:
        requests = self._requests
        if requests is None:
            return
        requests.read(requests.unread, version=self.policy_version)
        evicted = requests.evict(version=self.policy_version)
        requests.let_go()
        self._requests = None
        self._ended += [partial for partial in evicted if partial.finish_reason is not None]
        self._waiting.extendleft(reversed([partial for partial in evicted if partial.finish_reason is None]))

    def _receive(self, source: WeightSource) -> Handover:
        """Weights of a source that gives one after the other go straight to vLLM, without a second copy of all."""
        if not isinstance(source, StreamsWeights) or any(
            "lora_" in name for name, _ in self._source.named_parameters()
        ):
            return super()._receive(source)
        if self._engine is None:
            self._start()

        def load(tensors: Iterator[tuple[str, Tensor]]) -> None:
            self._fill_awake(partial(load_weights, self._engine, tensors, in_place=self._in_place))

        self._receiver.lose("the last handover failed")
        handover = source.stream(load, dtype=TORCH_DTYPES[self._plan.compute_dtype])
        self._source.to("meta")  # it was compared with vLLM when that started
        return handover

    def _refresh(self) -> None:
        """Transfer the trainer's weights; a sleeping engine gets them when it wakes."""
        if self._engine is not None and self._released is None:
            self._fill(self._hand_over)

    def _hand_over(self) -> None:
        hand_over(self._engine, self._source, in_place=self._in_place)

    def sleep(self) -> None:
        """Pause, and release weights and cache; captured graphs, and embedding and norms on a CPU, stay.

        If vLLM cannot sleep, it is stopped and started again.
        """
        self._evict()
        if not sleeps(self._arguments, self._device):
            self.stop()
        elif self._engine is not None and self._released is None:
            self._released = release(self._engine, on_cpu=self._device.type == "cpu")

    def _awake(self) -> Any:
        if self._engine is None:
            self._start()
        if self._released is not None:
            self._fill_awake(self._hand_over)
        return self._engine

    def _fill_awake(self, hand: Callable[[], None]) -> None:
        """Transfer weights by `hand`; a sleeping engine wakes."""
        if self._released is not None:
            hand = partial(take_back, self._engine, hand, self._released, on_cpu=self._device.type == "cpu")
        self._fill(hand)
        self._released = None

    def _start(self) -> None:
        if self._has_started and self._together.num_processes > 1:
            raise RLCompatError(
                f"vLLM on {self._together.num_processes} processes has stopped and does not start again",
                hint="start the run again: it continues from the newest checkpoint",
            )
        self._has_started = True
        other = VllmEngine._running() if VllmEngine._running is not None else None
        if other is not None:
            other.stop()
        found_group = torch.distributed.is_available() and torch.distributed.is_initialized()
        try:
            self._engine = start(self._arguments)
        except Exception as error:
            forget_locals(error)
            free_memory()
            raise failure(error, self._plan, version=_version(), event="did not start", log=self._log.lines) from error
        VllmEngine._running = weakref.ref(self)
        held = Held(engine=self._engine, source=weakref.ref(self._source), found_group=found_group)
        self._end = weakref.finalize(self, stop, held)
        self._first_fill()

    def _first_fill(self) -> None:
        """Transfer the weights in place if vLLM allows it and a comparison succeeds, else by vLLM's reload.

        After a stop, an engine whose weights come from elsewhere waits for them. Raises ModelError if vLLM's
        log-probabilities differ from those of the trainer's model.
        """
        if self._is_elsewhere:
            return
        gap = torch.inf
        for in_place in (True, False) if computes_with_what_it_loads(self._engine) else (False,):
            self._in_place = in_place
            self._fill(self._hand_over)
            gap = self._gap()
            if not self._together.any(not gap <= TOLERANCE[self._plan.compute_dtype]):
                return
        self.stop()
        if math.isnan(gap):
            raise not_finite("the first prompt, which checks vLLM", dtype=self._plan.compute_dtype)
        raise ModelError(
            f"log-probabilities of vLLM {_version()} differ from the trainer's by {gap:.2g} "
            f"(tolerance {TOLERANCE[self._plan.compute_dtype]:g})",
            hint="set `rollout.engine=native`",
        )

    def _fill(self, hand: Callable[[], None]) -> None:
        """Transfer the weights; vLLM is stopped if that fails."""
        try:
            hand()
        except Exception as error:
            forget_locals(error)
            self.stop()
            raise refusal(error, version=_version(), log=self._log.lines) from error

    def stop(self) -> None:
        """Stop vLLM and release all of its memory; the next step starts it again and continues the requests."""
        self._evict()
        if self._is_elsewhere:
            self._receiver.lose("vLLM was stopped")
        if self._engine is not None:
            self._engine = self._released = None
            self._end()

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this process has no weights of the policy but vLLM's."""
        return next(self._source.parameters()).is_meta

    def _gap(self) -> float:
        """The largest difference of log-probabilities between vLLM and the trainer's model, on a few greedy tokens."""
        params = SamplingParams(max_new_tokens=PROBE_STEPS, temperature=0.0)
        probes = [
            PartialResponse(number=number, prompt_ids=tuple(prompt), params=params, seed=0, key=number)
            for number, prompt in enumerate(probe_prompts(self._source))
        ]
        requests, gaps = self._requests_like(params), []
        requests.add(probes)
        with exact_products():
            while requests.active:
                self._stepped(requests)
            requests.read(probes, version=self.policy_version)
            requests.let_go()
            with generating(self._source):
                for probe in probes:
                    plain = plain_logprobs(self._source, probe.prompt_ids, probe.token_ids)
                    gaps.append((plain.cpu() - torch.tensor(probe.logprobs)).abs())
        return float(torch.cat(gaps).max())

    def _check_lengths(self, requests: Sequence[Request]) -> None:
        longest = self._arguments["max_model_len"]
        for row, request in enumerate(requests):
            num_prompt, num_new = len(request.prompt_ids), request.params.max_new_tokens
            if num_prompt + num_new > longest:
                raise DataError(
                    f"request {row} has a prompt of {num_prompt} tokens and up to {num_new} new ones, "
                    f"{num_prompt + num_new} in all; vLLM was started for {longest}",
                    hint="raise `rollout.max_model_len` or lower `max_new_tokens`",
                )


def _version() -> str:
    import vllm

    return str(vllm.__version__)
