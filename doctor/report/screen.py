"""A diagnosis as plain text: the verdict, what is wrong, how to fix it, and a summary line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from rl_compat.doctor.diagnosis import Diagnosis
from rl_compat.doctor.findings import Check, Finding, Needs, Remedy, Severity
from rl_compat.doctor.fix import Fix, preferred, script, settled_by
from rl_compat.doctor.report.as_json import severity_name
from rl_compat.doctor.report.paper import BAD, BOLD, DIM, FINE, INFO, WARN, Paper
from rl_compat.doctor.tables.cards import names
from rl_compat.doctor.verdict import LADDER, LargestModel, Verdict
from rl_compat.hardware.types import Hardware
from rl_compat.planning.types import Plan
from rl_compat.units import format_bytes

COLOURS = {Severity.OK: FINE, Severity.NOTE: INFO, Severity.WARNING: WARN, Severity.FAILURE: BAD}


def render(diagnosis: Diagnosis, paper: Paper, *, show_all: bool = False) -> list[str]:
    """All lines of the report; `show_all` adds what is fine."""
    shown = [finding for finding in diagnosis.findings if show_all or finding.severity > Severity.OK]
    blocks = [_nodes(diagnosis, paper), _verdict(diagnosis, paper)]
    shown_remedies: set[Remedy] = set()
    for finding in shown:
        if finding.severity > Severity.OK:
            blocks.append(_finding(finding, paper, diagnosis.fixes, shown_remedies))
            shown_remedies.update(finding.remedies)
    fine = [line for finding in shown if finding.severity is Severity.OK for line in _line(finding, paper)]
    blocks += [
        fine,
        _commands(diagnosis, paper),
        [paper.paint(line, BOLD) for line in paper.wrap(_summary(diagnosis), rest="  ")],
    ]
    filled = [block for block in blocks if block]
    lines = [line for block in filled for line in ("", *block)][1:]
    return [paper.spell(line) for line in lines]


def render_checks(checks: Sequence[Check], paper: Paper) -> list[str]:
    """One line per check: id, question, and what it needs."""
    width = max((len(check.id) for check in checks), default=0)
    return [paper.spell(f"{check.id:<{width}}  {check.question}{_needs(check)}") for check in checks]


def _needs(check: Check) -> str:
    needs = [name for need, name in ((Needs.TORCH, "torch"), (Needs.NETWORK, "the network")) if need in check.needs]
    return f" (needs {' and '.join(needs)})" if needs else ""


def _nodes(diagnosis: Diagnosis, paper: Paper) -> list[str]:
    """A line for each node of a cluster: address, host name, cards, torch and driver."""
    nodes = diagnosis.hardware.nodes
    if not nodes:
        return []
    lines = _headline(f"{len(nodes)} {_plural('node', len(nodes))} in the cluster", paper, BOLD)
    width = max(len(node.address) for node in nodes)
    for node in nodes:
        facts = [node.name, *(_facts(node.hardware) if node.hardware else ["cannot be probed"])]
        lines += paper.wrap(f"{node.address:<{width}}  {', '.join(facts)}", first="  ", rest=" " * (width + 4))
    return lines


def _facts(hardware: Hardware) -> Iterator[str]:
    software, driver = hardware.software, hardware.driver.version
    yield names(hardware.devices) or "no GPU"
    yield f"torch {software.torch.version}" if software.torch else "no torch"
    yield f"Python {software.python}"
    if driver:
        yield f"driver {driver}"


def _verdict(diagnosis: Diagnosis, paper: Paper) -> list[str]:
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
        *(paper.paint(line, DIM) for line in paper.wrap(_verdict_advice(plan, example), first="  ", rest="    ")),
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


def _verdict_advice(plan: Plan, example: LargestModel) -> str:
    if plan.pool_of("actor").device == "cpu":
        return "they fit in memory, but a CPU needs hours to days; `rlc train gsm8k-cpu` tries everything in minutes"
    return f"with prompts and responses of 256 tokens; see `rlc plan {' '.join(example.settings)}`"


def _line(finding: Finding, paper: Paper) -> list[str]:
    """Severity and fact."""
    name = severity_name(finding.severity)
    lines = paper.wrap(f"{name}: {finding.what}", rest="  ")
    return [lines[0].replace(name, paper.paint(name, COLOURS[finding.severity]), 1), *lines[1:]]


def _finding(finding: Finding, paper: Paper, fixes: Sequence[Fix], shown: Container[Remedy]) -> list[str]:
    """A finding with its remedies; those `shown` above without their commands."""
    about = [("affects", [name.replace("_", " ") for name in finding.affects]), ("found in", finding.where)]
    context = "; ".join(f"{words} {', '.join(names)}" for words, names in about if names)
    in_block = preferred(finding) if any(finding.id in fix.findings for fix in fixes) else None
    lines = [
        *_line(finding, paper),
        *paper.wrap(finding.why, first="  "),
        *(paper.paint(line, DIM) for line in paper.wrap(context, first="  ")),
    ]
    settling = settled_by(finding, fixes)
    if settling is not None:
        words = f"settled below: {settling.remedy.what.partition('; ')[0]}"
        return [*lines, *paper.wrap(words, first="  -> ", rest="     ")]
    for number, remedy in enumerate(finding.remedies):
        lines += _remedy(remedy, paper, number, in_block=remedy is in_block, repeated=remedy in shown)
    return lines


def _remedy(remedy: Remedy, paper: Paper, number: int, *, in_block: bool, repeated: bool) -> Iterator[str]:
    """The text, and below it the commands that are not in the block."""
    words = f"as above: {remedy.what.partition('; ')[0]}" if repeated else remedy.what
    yield from paper.wrap(words, first="  or " if number else "  -> ", rest="     ")
    if not in_block and not repeated:
        yield from (f"       {command}" for command in remedy.commands)


def _commands(diagnosis: Diagnosis, paper: Paper) -> list[str]:
    lines = list(script(diagnosis.fixes, brief=True))
    if not lines:
        return []
    return [
        paper.paint("to fix this, in this order:", BOLD),
        *(f"  {paper.paint(line, DIM) if line.startswith('#') else line}" for line in lines),
    ]


def _summary(diagnosis: Diagnosis) -> str:
    """`34 checks in 1.3 s (torch 3.1 s): 20 fine, 11 not applicable, 2 notes, 1 warning`."""
    results, torch = diagnosis.results, diagnosis.hardware.software.torch_seconds
    fine = sum(bool(result.findings) and result.severity is Severity.OK for result in results)
    silent = sum(not result.findings for result in results)
    counts = Counter(finding.severity for finding in diagnosis.findings)
    worse = [(counts[kind], _plural(severity_name(kind), counts[kind])) for kind in Severity if kind]
    parts = [
        (fine, "fine"),
        (silent, "not applicable"),
        (len(diagnosis.skipped), "skipped"),
        *worse,
    ]
    listed = ", ".join(f"{count} {name}" for count, name in parts if count) or "nothing to report"
    timed = f"{diagnosis.seconds:.1f} s" + (f" (torch {torch:.1f} s)" if torch is not None else "")
    return f"{len(results)} {_plural('check', len(results))} in {timed}: {listed}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
