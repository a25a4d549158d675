"""verl's keys of the rollout: sampling, the engine, tools, experts and profiling."""

from __future__ import annotations

from collections.abc import Mapping

from rl_compat.verl.keys import meanings
from rl_compat.verl.keys.role_keys import BATCHES, PROFILER
from rl_compat.verl.keys.rules import DTYPES, Rule, inert, only, other_than, renamed, same

GRAPHS = inert("decode steps are replayed as CUDA graphs where the device supports them")
HANDED_OVER = inert("the rollout shares the trained weights, or passes them to vLLM in this process")
ONE_DEVICE = "tensors are not split over devices"
NO_TOOLS = "rollouts are single turns without tools"

ROLLOUT: Mapping[str, Rule] = {
    **BATCHES,
    "name": meanings.rollout_engine,
    "mode": inert("generation and training alternate"),
    "n": same("algorithm.group_size"),
    "temperature": same("rollout.temperature"),
    "top_p": same("rollout.top_p"),
    "top_k": meanings.top_k,
    "do_sample": only((True,), "responses are always sampled", otherwise="training needs sampled responses"),
    "seed": same("rollout.seed"),
    "prompt_length": same("data.max_prompt_length"),
    "response_length": same("data.max_response_length"),
    "dtype": renamed("plan.rollout_dtype", DTYPES, reason="the name here is shorter"),
    "gpu_memory_utilization": same("rollout.gpu_memory_utilization"),
    "max_num_batched_tokens": same("rollout.max_num_batched_tokens"),
    "max_num_seqs": same("rollout.max_num_seqs"),
    "max_model_len": same("rollout.max_model_len"),
    "ignore_eos": only((False,), "responses end at the end token"),
    "tensor_model_parallel_size": other_than((1,), ONE_DEVICE),
    "data_parallel_size": other_than((1,), ONE_DEVICE),
    "expert_parallel_size": other_than((1,), ONE_DEVICE),
    "pipeline_model_parallel_size": other_than((1,), ONE_DEVICE),
    "nnodes": only((0,), "generation and training use the same devices"),
    "n_gpus_per_node": inert("generation and training use the same devices"),
    "enforce_eager": GRAPHS,
    "cudagraph_capture_sizes": GRAPHS,
    "free_cache_engine": inert("the plan frees the engine's memory between rollouts if an update needs it"),
    "enable_chunked_prefill": inert(
        "vLLM may prefill a prompt in chunks, the native engine as a whole; `max_num_batched_tokens` limits both"
    ),
    "enable_prefix_caching": inert("`native` and `vllm` compute shared prefixes once"),
    "scheduling_policy": inert("a response does not depend on the order in which they are generated"),
    "skip_tokenizer_init": inert("engines are given token ids"),
    "multi_stage_wake_up": inert("vLLM always loads its weights before it allocates its cache"),
    "engine_kwargs*": other_than((None, {}, False), "the plan sets vLLM's options"),
    "load_format": inert("the rollout has the trained weights from the start"),
    "layered_summon": inert("the rollout has the trained weights from the start"),
    "checkpoint_engine.*": HANDED_OVER,
    "update_weights_bucket_megabytes": HANDED_OVER,
    "logprobs_mode": inert("log-probabilities are after temperature and over all tokens, as in training"),
    "calculate_log_probs": inert("the log-probability of each sampled token is always recorded"),
    "disable_logprobs": meanings.disable_logprobs,
    "over_sample_rate": inert("no more responses are generated than are used"),
    "use_fire_sampling": only((False,), "off", otherwise="this sampling is not supported"),
    "quantization": only((None,), "off", otherwise="rollout weights are not quantized"),
    "quantization_config_file": only((None,), "off", otherwise="rollout weights are not quantized"),
    "val_kwargs.temperature": meanings.validation_temperature,
    "val_kwargs.do_sample": meanings.validation_sampling,
    "val_kwargs.n": other_than((1,), "validation generates one response per prompt"),
    "val_kwargs.top_k": other_than((-1, 0), "validation samples from all tokens"),
    "val_kwargs.top_p": other_than((1,), "validation samples from all tokens"),
    "disable_log_stats": inert("metrics go to `trainer.loggers`"),
    "full_determinism": inert("`trainer.seed` seeds the run; kernels are not changed"),
    "mtp*": inert("multi-token prediction is not supported"),
    "qat*": inert("quantization-aware training is not supported"),
    "enable_rollout_routing_replay": only((False,), "off", otherwise="expert routing is not replayed"),
    "moe_load_balance_metrics_interval": inert("expert metrics are not supported"),
    "disaggregation.enabled": only((False,), "off", otherwise="prefill and decoding share the device"),
    "disaggregation.*": inert("prefill and decoding share the device"),
    "multi_turn.enable": only((False,), "single turns", otherwise=NO_TOOLS),
    "multi_turn.*": inert(NO_TOOLS),
    "agent.*": inert(NO_TOOLS),
    "trace.*": inert("samples.jsonl has the responses"),
    "prometheus.*": inert("metrics go to `trainer.loggers`"),
    "skip.enable": only((False,), "every step generates"),
    "skip_rollout": only((False,), "every step generates"),
    "skip*": inert("every step generates"),
    "profiler.*": PROFILER,
}
"name below `actor_rollout_ref.rollout`, or pattern with `*`, to rule"
