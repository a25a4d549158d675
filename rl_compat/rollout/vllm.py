"""vLLM in this process, behind the protocol of every rollout engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from rl_compat.errors import DataError, ModelError
from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.inference import check_prompts, generating, num_embeddings
from rl_compat.rollout.row_uniforms import call_seed
from rl_compat.rollout.support import PROBE_PROMPTS, PROBE_STEPS, exact_products, plain_logprobs
from rl_compat.rollout.types import Response, SamplingParams
from rl_compat.rollout.vllm_draw import ROW_ARGUMENT, DrawCall
from rl_compat.rollout.vllm_errors import death, start_error
from rl_compat.rollout.vllm_start import config_folder, engine_arguments, keep_log, require_vllm, start, stop
from rl_compat.rollout.vllm_weights import Released, hand_over, release, take_back

TOLERANCE = {"fp32": 0.01, "fp16": 0.5, "bf16": 0.5}
"between log-probabilities of vLLM and of a training forward, in the first tokens"


class VllmEngine:
    """Generates with vLLM from 0.19 on, tokens drawn as every engine of this project draws them.

    vLLM computes logits; drawing and log-probabilities are this project's, so that temperature, filters and seeds mean
    the same everywhere. The same seed, prompts and weights give the same random numbers whatever else is in the batch;
    the same tokens as far as vLLM's logits are the same. vLLM is one to a process: when a second engine starts, the
    first stops, and starts again when it is next used.
    """

    _running: ClassVar[VllmEngine | None] = None

    def __init__(self, model: nn.Module, *, plan: RolloutPlan, num_valid_tokens: int | None = None) -> None:
        require_vllm()
        self._source = model
        self._plan = plan
        self._num_valid_tokens = num_valid_tokens
        self._on_cpu = next(model.parameters()).device.type == "cpu"
        self._log = keep_log()
        self._folder = config_folder(model)
        self._arguments = engine_arguments(model, plan, folder=self._folder.name)
        self._released: Released | None = None
        self._engine: Any = self._started()
        self._check_numbers()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        group_size: int = 1,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Response]]:
        """`group_size` responses for each prompt, in the order of the prompts.

        DataError for an empty prompt and for one that leaves no room for `max_new_tokens`, RLCompatError when vLLM
        dies; the next call starts it again.
        """
        assert params.max_new_tokens > 0 and group_size > 0
        check_prompts(prompts, num_ids=num_embeddings(self._source))
        self._check_lengths(prompts, params)
        if not prompts:
            return []
        engine = self._awake()
        call = DrawCall(
            params,
            num_responses=len(prompts) * group_size,
            seed=call_seed(params.seed),
            num_valid_tokens=self._num_valid_tokens,
            device=next(self._source.parameters()).device,
        )
        tokens = self._run(engine, call, [prompt for prompt in prompts for _ in range(group_size)], params, on_progress)
        responses = _responses(call, tokens, params)
        return [responses[start : start + group_size] for start in range(0, len(responses), group_size)]

    def update_weights(self) -> None:
        """Hand the trainer's weights over; while the engine sleeps, when it wakes."""
        if self._engine is not None and self._released is None:
            hand_over(self._engine, self._source)

    def sleep(self) -> None:
        """Give back the weights and the cache; captured graphs, and on a CPU embedding and norms, stay."""
        if self._engine is not None and self._released is None:
            self._released = release(self._engine, on_cpu=self._on_cpu)

    def wake(self) -> None:
        """Take the memory again and hand the weights over."""
        self._awake()

    def _awake(self) -> Any:
        if self._engine is None:
            self._engine = self._started()
        if self._released is not None:
            take_back(self._engine, self._source, self._released, on_cpu=self._on_cpu)
            self._released = None
        return self._engine

    def _started(self) -> Any:
        other = VllmEngine._running
        if other is not None:
            other.stop()
        try:
            engine = start(self._arguments)
        except Exception as error:
            raise start_error(error, self._plan, version=_version(), log=self._log.lines) from error
        VllmEngine._running = self
        hand_over(engine, self._source)
        return engine

    def stop(self) -> None:
        """End vLLM and give all of its memory back."""
        if self._engine is not None:
            stop(self._engine)
        self._engine = self._released = None
        if VllmEngine._running is self:
            VllmEngine._running = None

    def _check_numbers(self) -> None:
        """Raise ModelError when vLLM computes other numbers than the trainer's model does."""
        params = SamplingParams(max_new_tokens=PROBE_STEPS, temperature=0.0, seed=0)
        gaps = []
        with exact_products():
            responses = self.generate(PROBE_PROMPTS, params)
            with generating(self._source):
                for prompt, (response,) in zip(PROBE_PROMPTS, responses, strict=True):
                    plain = plain_logprobs(self._source, prompt, response.token_ids)
                    gaps.append(float((plain.cpu() - torch.tensor(response.logprobs)).abs().max()))
        if not max(gaps) <= TOLERANCE[self._plan.compute_dtype]:
            self.stop()
            raise ModelError(
                f"vLLM {_version()} computes this model otherwise than it is trained: log-probabilities are off by "
                f"{max(gaps):.2g}",
                hint="set `rollout.engine=native`",
            )

    def _run(
        self,
        engine: Any,
        call: DrawCall,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        on_progress: Callable[[int], None] | None,
    ) -> list[list[int]]:
        """The tokens of one response to each of the prompts."""
        from rl_compat.rollout.vllm_processor import processor_of

        (processor,) = engine.collective_rpc(processor_of)
        processor.call = call
        tokens: dict[str, list[int]] = {}
        names = [str(number) for number in range(len(prompts))]
        try:
            for name, prompt in zip(names, prompts, strict=True):
                engine.add_request(name, {"prompt_token_ids": list(prompt)}, _request(params, int(name)))
            while engine.has_unfinished_requests():
                finished = {output.request_id: list(output.outputs[0].token_ids) for output in self._step(engine)}
                tokens |= finished
                if finished and on_progress is not None:
                    on_progress(len(tokens))
        finally:
            processor.call = None
            if self._engine is not None:
                engine.abort_request([name for name in names if name not in tokens])
        return [tokens[name] for name in names]

    def _step(self, engine: Any) -> list[Any]:
        """The responses that one step of vLLM finishes."""
        try:
            return [output for output in engine.step() if output.finished]
        except Exception as error:
            self.stop()
            raise death(error, self._plan, version=_version(), log=self._log.lines) from error

    def _check_lengths(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        longest = self._arguments["max_model_len"]
        for row, prompt in enumerate(prompts):
            if len(prompt) + params.max_new_tokens > longest:
                raise DataError(
                    f"prompt {row} has {len(prompt)} tokens, which with {params.max_new_tokens} new ones are more than "
                    f"the {longest} that vLLM was started for",
                    hint="set `rollout.max_model_len`, or ask for fewer new tokens",
                )


def _request(params: SamplingParams, response: int) -> Any:
    """vLLM's settings of one response: where it ends. It samples greedily from what the processor leaves."""
    from vllm import SamplingParams as VllmParams
    from vllm.sampling_params import RequestOutputKind

    return VllmParams(
        temperature=0.0,
        max_tokens=params.max_new_tokens,
        stop_token_ids=list(params.stop_token_ids),
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={ROW_ARGUMENT: response},
    )


def _responses(call: DrawCall, tokens: Sequence[Sequence[int]], params: SamplingParams) -> list[Response]:
    """What vLLM returned with the log-probabilities of what was drawn, which must be the same tokens."""
    drawn, logprobs = call.drawn()
    responses = []
    for row, ids in enumerate(tokens):
        assert list(ids) == drawn[row][: len(ids)], "vLLM returned other tokens than were drawn"
        stopped = ids[-1] in params.stop_token_ids
        assert stopped or len(ids) == params.max_new_tokens, "vLLM ended a response too early"
        responses.append(
            Response(
                token_ids=tuple(ids),
                logprobs=tuple(logprobs[row][: len(ids)]),
                finish_reason="stop" if stopped else "length",
            )
        )
    return responses


def _version() -> str:
    import vllm

    return str(vllm.__version__)
