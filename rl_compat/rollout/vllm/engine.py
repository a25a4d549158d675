"""vLLM in this process, behind the protocol of every rollout engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from rl_compat.errors import DataError, ModelError
from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.counter_rng import call_seed
from rl_compat.rollout.inference import (
    check_prompts,
    exact_products,
    generating,
    hugging_face_model,
    num_embeddings,
)
from rl_compat.rollout.kernels.choice import chosen_draw
from rl_compat.rollout.stop_strings import stop_strings
from rl_compat.rollout.support import PROBE_STEPS, plain_logprobs, probe_prompts
from rl_compat.rollout.types import Decode, Progress, Response, SamplingParams
from rl_compat.rollout.vllm.call import VllmCall
from rl_compat.rollout.vllm.errors import death, forget_locals, refusal, start_error
from rl_compat.rollout.vllm.shutdown import Held, free_memory, stop
from rl_compat.rollout.vllm.start import config_folder, engine_arguments, keep_log, require_vllm, start
from rl_compat.rollout.vllm.weights import Released, computes_with_what_it_loads, hand_over, release, take_back

TOLERANCE = {"fp32": 0.01, "fp16": 0.5, "bf16": 0.5}
"between log-probabilities of vLLM and of a training forward, in the first tokens"
TRIED_ROWS = 64
"with which drawing by a kernel of this project's is measured"


class VllmEngine:
    """Generates with vLLM from 0.19 on, tokens drawn as every engine of this project draws them.

    vLLM computes logits; drawing and log-probabilities are this project's, so that temperature, filters and seeds mean
    the same everywhere. The same seed, prompts and weights give the same random numbers whatever else is in the batch;
    the same tokens as far as vLLM's logits are the same. In fp32 its products are those of fp32, attention included,
    which Triton is told (`TRITON_F32_DEFAULT=ieee`, unless it is set otherwise). vLLM is one to a process: when a
    second engine starts, the first stops, and starts again when it is next used.
    """

    _running: ClassVar[weakref.ref[VllmEngine] | None] = None

    def __init__(
        self,
        model: nn.Module,
        *,
        plan: RolloutPlan,
        num_valid_tokens: int | None = None,
        decode: Decode | None = None,
    ) -> None:
        """Starts vLLM. `decode` gives the text of token ids; only stop strings need it.

        Raises HardwareError without the package, DoesNotFitError when the device has no room for it, RLCompatError
        when it does not start, ModelError when it computes this model otherwise.
        """
        require_vllm()
        self._source = model
        self._plan = plan
        self._num_valid_tokens = num_valid_tokens
        self._decode = decode
        self._aborted = False
        self._device = next(model.parameters()).device
        self._log = keep_log()
        self._folder = config_folder(model)
        self._arguments = engine_arguments(model, plan, folder=self._folder.name)
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

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        group_size: int = 1,
        on_progress: Progress | None = None,
    ) -> list[list[Response]]:
        """`group_size` responses for each prompt, in the order of the prompts.

        DataError for an empty prompt and for one that leaves no room for `max_new_tokens`, RLCompatError when vLLM
        dies; the next call starts it again.
        """
        assert params.max_new_tokens > 0 and group_size > 0
        check_prompts(prompts, num_ids=num_embeddings(self._source))
        self._check_lengths(prompts, params)
        strings = stop_strings(params, self._decode)
        self._aborted = False
        if not prompts:
            return []
        call = VllmCall(
            self._awake(),
            prompts=[prompt for prompt in prompts for _ in range(group_size)],
            params=params,
            seed=call_seed(params.seed),
            num_valid_tokens=self._num_valid_tokens,
            strings=strings,
            device=self._device,
            draw=self._draw,
        )
        with call:
            self._run(call, on_progress)
        responses = call.responses()
        return [responses[start : start + group_size] for start in range(0, len(responses), group_size)]

    def abort(self) -> None:
        """End the call that is under way, from any thread: its unfinished responses come back as they are."""
        self._aborted = True

    def update_weights(self) -> None:
        """Hand the trainer's weights over; while the engine sleeps, when it wakes."""
        if self._engine is not None and self._released is None:
            self._fill(partial(hand_over, self._engine, self._source, in_place=self._in_place))

    def sleep(self) -> None:
        """Give back the weights and the cache; captured graphs, and on a CPU embedding and norms, stay.

        Where vLLM cannot sleep it stops, and starts again to wake.
        """
        if self._device.type != "cpu" and not self._arguments["enable_sleep_mode"]:
            self.stop()
        elif self._engine is not None and self._released is None:
            self._released = release(self._engine, on_cpu=self._device.type == "cpu")

    def wake(self) -> None:
        """Take the memory again and hand the weights over."""
        self._awake()

    def _awake(self) -> Any:
        if self._engine is None:
            self._start()
        if self._released is not None:
            on_cpu = self._device.type == "cpu"
            back = partial(take_back, self._engine, self._source, self._released)
            self._fill(partial(back, on_cpu=on_cpu, in_place=self._in_place))
            self._released = None
        return self._engine

    def _start(self) -> None:
        other = VllmEngine._running() if VllmEngine._running is not None else None
        if other is not None:
            other.stop()
        try:
            self._engine = start(self._arguments)
        except Exception as error:
            forget_locals(error)
            free_memory()
            raise start_error(error, self._plan, version=_version(), log=self._log.lines) from error
        VllmEngine._running = weakref.ref(self)
        self._end = weakref.finalize(self, stop, Held(engine=self._engine, source=weakref.ref(self._source)))
        self._first_fill()

    def _first_fill(self) -> None:
        """Over the weights in use where vLLM allows it and the numbers prove it, else by its reload.

        Raises ModelError when vLLM computes other numbers than the trainer's model does.
        """
        gap = torch.inf
        for in_place in (True, False) if computes_with_what_it_loads(self._engine) else (False,):
            self._in_place = in_place
            self._fill(partial(hand_over, self._engine, self._source, in_place=in_place))
            gap = self._gap()
            if gap <= TOLERANCE[self._plan.compute_dtype]:
                return
        self.stop()
        raise ModelError(
            f"vLLM {_version()} computes this model otherwise than it is trained: log-probabilities are off by "
            f"{gap:.2g}",
            hint="set `rollout.engine=native`",
        )

    def _fill(self, hand: Callable[[], None]) -> None:
        """Hand the weights over; without them vLLM must not go on."""
        try:
            hand()
        except Exception as error:
            forget_locals(error)
            self.stop()
            raise refusal(error, version=_version(), log=self._log.lines) from error

    def stop(self) -> None:
        """End vLLM and give all of its memory back; the next call starts it again."""
        if self._engine is not None:
            self._engine = self._released = None
            self._end()

    def _gap(self) -> float:
        """Largest difference of log-probabilities between vLLM and the trainer's model, greedily for a few tokens."""
        params = SamplingParams(max_new_tokens=PROBE_STEPS, temperature=0.0, seed=0)
        prompts, gaps = probe_prompts(self._source), []
        with exact_products():
            responses = self.generate(prompts, params)
            with generating(self._source):
                for prompt, (response,) in zip(prompts, responses, strict=True):
                    plain = plain_logprobs(self._source, prompt, response.token_ids)
                    gaps.append((plain.cpu() - torch.tensor(response.logprobs)).abs())
        return float(torch.cat(gaps).max())

    def _run(self, call: VllmCall, on_progress: Progress | None) -> None:
        finished = 0
        while not self._aborted and not call.done:
            try:
                call.step()
            except Exception as error:
                call.let_go()
                forget_locals(error)
                self.stop()
                raise death(error, self._plan, version=_version(), log=self._log.lines) from error
            if on_progress is not None and call.num_finished > finished:
                finished = call.num_finished
                if on_progress(finished) is False:
                    self._aborted = True

    def _check_lengths(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        longest = self._arguments["max_model_len"]
        for row, prompt in enumerate(prompts):
            if len(prompt) + params.max_new_tokens > longest:
                raise DataError(
                    f"prompt {row} has {len(prompt)} tokens, which with {params.max_new_tokens} new ones are more than "
                    f"the {longest} that vLLM was started for",
                    hint="set `rollout.max_model_len`, or ask for fewer new tokens",
                )


def _version() -> str:
    import vllm

    return str(vllm.__version__)
