"""The verdict as text: whether training works here, and the largest model that each method can train."""

from __future__ import annotations

from rl_compat.doctor.diagnosis import Diagnosis
from rl_compat.doctor.findings import Severity
from rl_compat.doctor.report.paper import BAD, BOLD, DIM, Paper
from rl_compat.doctor.verdict import LADDER, LargestModel, Verdict
from rl_compat.planning.types import Plan
from rl_compat.units import format_bytes


def render_verdict(diagnosis: Diagnosis, paper: Paper) -> list[str]:
    """What works now; if nothing does, why, and what works once it is fixed."""
    verdict, fixed = diagnosis.verdict, diagnosis.once_fixed
    if verdict is None:
        return []
    if verdict.works:
        unseen = any(option == "--no-torch" for _, option in diagnosis.skipped)
        works = "training works here" + (" (torch was not checked)" if unseen else "")
        return [*_headline(f"{works}: {verdict.device}", paper, BOLD), *_outlook(verdict, paper)]
    broken = _headline(f"training does not work here{_because(diagnosis, verdict)}", paper, BAD)
    if fixed is None:
        return [*broken, *paper.wrap(verdict.device, first="  ")]
    with_torch = f" with torch {fixed.torch}" if fixed.torch else ""
    return [*broken, *_headline(f"once fixed{with_torch}: {fixed.device}", paper, BOLD), *_outlook(fixed, paper)]


def _because(diagnosis: Diagnosis, verdict: Verdict) -> str:
    """The number of failures, or the problem if no finding reports it."""
    failures = [finding.what for finding in diagnosis.findings if finding.severity is Severity.FAILURE]
    if verdict.problem not in failures:
        return f": {verdict.problem}"
    return f": {len(failures)} failures" if len(failures) > 1 else ": one failure"


def _headline(text: str, paper: Paper, colour: str) -> list[str]:
    return [paper.paint(line, colour) for line in paper.wrap(text, rest="  ")]


def _outlook(verdict: Verdict, paper: Paper) -> list[str]:
    """Profile and dtypes, then the largest model of each method."""
    example = next(largest for largest in verdict.methods if largest.plan)
    plan = example.plan
    assert plan is not None and plan.rollout is not None
    training, rollout = plan.roles["actor"].compute_dtype, plan.rollout
    apart = "" if rollout.compute_dtype == training else f" training, {rollout.compute_dtype} rollout"
    dtypes = f"{training}{apart}, engine `{rollout.engine}`"
    return [
        *paper.wrap(f"profile `{verdict.profile}` ({verdict.summary}): {dtypes}", first="  ", rest="    "),
        *(line for largest in verdict.methods for line in _method(largest, paper)),
        *(paper.paint(line, DIM) for line in paper.wrap(_advice(plan, example), first="  ", rest="    ")),
    ]


def _method(largest: LargestModel, paper: Paper) -> list[str]:
    """`full PPO   Qwen2.5-1.5B-Instruct  21.1 of 21.2 GiB, micro-batch 4096 tokens, 52.8 GiB offloaded`."""
    rest = " " * 13
    if largest.plan is None or largest.model is None:
        return paper.wrap(f"{largest.method:<9}  no model fits: {largest.problem}", first="  ", rest=rest)
    plan, width = largest.plan, max(len(_short(name)) for name in LADDER)
    pool, tokens = plan.pool_of("actor"), plan.roles["actor"].max_tokens_per_micro_batch
    used = f"{format_bytes(pool.peak_bytes).removesuffix(' GiB')} of {format_bytes(pool.memory_available_bytes)}"
    aside = f", {format_bytes(pool.host_bytes)} offloaded" if pool.host_bytes and pool.device != "cpu" else ""
    line = f"{largest.method:<9}  {_short(largest.model):<{width}}  {used}, micro-batch {tokens} tokens{aside}"
    return paper.wrap(line, first="  ", rest=rest)


def _short(name: str) -> str:
    """Without the owner and the common suffix."""
    return name.rpartition("/")[2].removesuffix("-Instruct")


def _advice(plan: Plan, example: LargestModel) -> str:
    if plan.pool_of("actor").device == "cpu":
        return "they fit in memory, but a CPU needs hours to days; `rlc train gsm8k-cpu` tries everything in minutes"
    return f"with prompts and responses of 256 tokens; see `rlc plan {' '.join(example.settings)}`"
