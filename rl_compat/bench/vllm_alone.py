"""vLLM with its own sampler, used as documented, for comparison."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.source import WeightSource
from rl_compat.rollout.types import Response, SamplingParams
from rl_compat.rollout.vllm.shutdown import Held, stop
from rl_compat.rollout.vllm.start import config_folder, engine_arguments, keep_log, require_vllm, start
from rl_compat.rollout.vllm.weights import hand_over

TRITON_AS_IT_COMES = ("TRITON_F32_DEFAULT", "tf32")
"by default vLLM computes fp32 attention in TF32; this project's engine sets the same variable"


class VllmAlone:
    """vLLM with its own sampler, which returns the log-probabilities of the drawn tokens."""

    def __init__(self, model: nn.Module, *, plan: RolloutPlan) -> None:
        require_vllm()
        os.environ.setdefault(*TRITON_AS_IT_COMES)
        self._log = keep_log()
        self._folder = config_folder(model)
        arguments = engine_arguments(model, plan, folder=self._folder.name)
        del arguments["logits_processors"]
        self._engine = start(arguments)
        self._held = Held(engine=self._engine, source=weakref.ref(model))
        hand_over(self._engine, model, in_place=False)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, group_size: int = 1
    ) -> list[list[Response]]:
        from vllm import SamplingParams as VllmParams
        from vllm.sampling_params import RequestOutputKind

        assert group_size == 1
        settings = VllmParams(
            temperature=params.temperature,
            max_tokens=params.max_new_tokens,
            stop_token_ids=list(params.stop_token_ids),
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for row, prompt in enumerate(prompts):
            self._engine.add_request(str(row), {"prompt_token_ids": list(prompt)}, settings)
        found: dict[int, Response] = {}
        while len(found) < len(prompts):
            for output in self._engine.step():
                if output.finished:
                    found[int(output.request_id)] = _response(output.outputs[0])
        return [[found[row]] for row in range(len(prompts))]

    def load(self, source: WeightSource) -> None:
        """Drop cached prompts, as loading new weights does."""
        del source
        assert self._engine.reset_prefix_cache()

    def stop(self) -> None:
        """Stop vLLM; a process can run only one."""
        self._engine = None
        stop(self._held)


def _response(completion: Any) -> Response:
    drawn = zip(completion.token_ids, completion.logprobs, strict=True)
    return Response(
        token_ids=tuple(completion.token_ids),
        logprobs=tuple(float(at[token].logprob) for token, at in drawn),
        finish_reason=completion.finish_reason,
    )
