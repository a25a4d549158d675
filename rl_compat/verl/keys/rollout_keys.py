"""verl's keys of the rollout: sampling, the engine, tools, experts and profiling."""

from __future__ import annotations

from collections.abc import Mapping

from rl_compat.verl.keys import meanings
from rl_compat.verl.keys.role_keys import BATCHES, PROFILER
from rl_compat.verl.keys.rules import DTYPES, Rule, inert, off, only, other_than, renamed, same, unless_negative

NO_TOOLS = "rollouts are single turns without tools"
SPLIT = ("tensor_model_parallel_size", "data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size")

ROLLOUT: Mapping[str, Rule] = {
    **BATCHES,
    "name": meanings.rollout_engine,
    "n": same("algorithm.group_size"),
    "temperature": same("rollout.temperature"),
    "top_p": same("rollout.top_p"),
    "top_k": unless_negative("rollout.top_k", 0, "all tokens"),
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
    "nnodes": only((0,), "generation and training use the same devices"),
    "disable_logprobs": other_than((), "not a key of verl; the log-probability of each token is always recorded"),
    "val_kwargs.temperature": meanings.validation_temperature,
    "val_kwargs.do_sample": meanings.validation_sampling,
    "val_kwargs.n": other_than((1,), "validation generates one response per prompt"),
    "val_kwargs.top_k": other_than((-1, 0), "validation samples from all tokens"),
    "val_kwargs.top_p": other_than((1,), "validation samples from all tokens"),
    "engine_kwargs*": other_than((None, {}, False), "the plan sets vLLM's options"),
    **dict.fromkeys(SPLIT, other_than((1,), "tensors are not split over devices")),
    **off("this sampling is not supported", "use_fire_sampling"),
    **off("rollout weights are not quantized", "quantization", "quantization_config_file"),
    **off("expert routing is not replayed", "enable_rollout_routing_replay"),
    **off("prefill and decoding share the device", "disaggregation.enabled"),
    **off(NO_TOOLS, "multi_turn.enable"),
    **off("every step generates", "skip.enable", "skip_rollout"),
    **inert("generation and training alternate", "mode"),
    **inert("generation and training use the same devices", "n_gpus_per_node"),
    **inert("decode steps are replayed as CUDA graphs where the device supports them", "enforce_eager"),
    **inert("decode steps are replayed as CUDA graphs where the device supports them", "cudagraph_capture_sizes"),
    **inert("the plan frees the engine's memory between rollouts if an update needs it", "free_cache_engine"),
    **inert("the plan decides what sleeps between rollouts", "enable_sleep_mode"),
    **inert("an engine forms its own batches", "micro_batch_size"),
    **inert("vLLM may do so; `max_num_batched_tokens` limits a prefill in every engine", "enable_chunked_prefill"),
    **inert("`native` and `vllm` compute shared prefixes once", "enable_prefix_caching"),
    **inert("a response does not depend on the order in which they are generated", "scheduling_policy"),
    **inert("engines are given token ids", "skip_tokenizer_init"),
    **inert("vLLM always loads its weights before it allocates its cache", "multi_stage_wake_up"),
    **inert("the rollout has the trained weights from the start", "load_format", "layered_summon"),
    **inert("the rollout shares the trained weights, or passes them to vLLM in this process", "checkpoint_engine.*"),
    **inert("the weights are passed to vLLM in this process", "update_weights_bucket_megabytes"),
    **inert("log-probabilities are after temperature and over all tokens, as in training", "logprobs_mode"),
    **inert("the log-probability of each sampled token is always recorded", "calculate_log_probs"),
    **inert("no more responses are generated than are used", "over_sample_rate"),
    **inert("metrics go to `trainer.loggers`", "disable_log_stats", "prometheus.*"),
    **inert("`trainer.seed` seeds the run; kernels are not changed", "full_determinism"),
    **inert("multi-token prediction is not supported", "mtp*"),
    **inert("quantization-aware training is not supported", "qat*"),
    **inert("expert metrics are not supported", "moe_load_balance_metrics_interval"),
    **inert("prefill and decoding share the device", "disaggregation.*"),
    **inert(NO_TOOLS, "multi_turn.*", "agent.*"),
    **inert("samples.jsonl has the responses", "trace.*"),
    **inert("every step generates", "skip*"),
    **inert(PROFILER, "profiler.*"),
}
"name below `actor_rollout_ref.rollout`, or pattern with `*`, to rule"
