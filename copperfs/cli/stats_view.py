"""Tables of ``copperfs stats`` for a node or a job."""

import time
from typing import Any

from rich.console import Group
from rich.text import Text

from copperfs.cli.fitted_table import FittedTable
from copperfs.cli.output import answered_text, table
from copperfs.config.settings import bytes_text


def shown(document: Any) -> Group:
    return _job_tables(document) if "total" in document else _tables(document)


def _job_tables(document: Any) -> Group:
    parts: list[Any] = [answered_text(document)]
    total = document["total"]
    if total:
        rows = list(zip(_JOB_COLUMNS, _job_row(total), strict=True))
        parts.append(table(("all nodes", "amount"), rows, right=("amount",), title="Job"))
        if takeovers := _takeovers_text(total["takeovers"]):
            parts.append(Text(takeovers))
    if _has_tier(total):
        parts.append(_tier_table(total["tier"]))
    if "by_node" in document and document["roster"] > 1:
        lines = [(each["name"], *_job_row(each)) for each in document["by_node"]]
        lines += [
            (each["name"], "missing" if each["behind"] is None else "not reached")
            for each in document["missing"]
        ]
        columns = ("node", *_JOB_COLUMNS)
        parts.append(table(columns, lines, right=_JOB_COLUMNS, title="Nodes"))
    return Group(*parts)


_JOB_COLUMNS = (
    "from source",
    "source opens",
    "from parents",
    "to children",
    "from memory",
    "held",
    "hits",
    "misses",
    "fallbacks",
)


def _job_row(each: Any) -> tuple[str, ...]:
    """*each* is the sums, or one node."""
    passed = each["bytes"]
    return (
        bytes_text(each["source"]["read_bytes"] + passed["from_source_files"]),
        str(each["source"]["open"]),
        bytes_text(passed["from_parents"]),
        bytes_text(passed["to_children"]),
        bytes_text(passed["from_memory"]),
        bytes_text(each["cache"]["held_bytes"]),
        str(each["hits"]),
        str(each["misses"]),
        str(each["node"]["fallbacks"]),
    )


def _overlay_table(document: Any) -> FittedTable:
    node, passed, transport = document["node"], document["bytes"], document["transport"]
    members = document["members"]
    rows = [
        ("requests to parents", str(node["asks"])),
        ("replies of parents", str(node["answers"])),
        ("requests of children", str(node["peer_questions"])),
        ("from parents", bytes_text(passed["from_parents"])),
        ("to children", bytes_text(passed["to_children"])),
        ("sent", f"{bytes_text(transport['sent_bytes'])} in {transport['sent']} messages"),
        (
            "received",
            f"{bytes_text(transport['received_bytes'])} in {transport['received']} messages",
        ),
        ("coalesced with a fetch in flight", str(node["joined"])),
        ("fallbacks to the source", str(node["fallbacks"])),
        ("reads taken over as the next owner", str(node["took_over"])),
        ("nodes gone, suspected", f"{members['gone']}, {members['suspects']}"),
        ("failures, returns of nodes", f"{members['deaths']}, {members['returns']}"),
        ("longest detection of a failure", f"{members['max_detection_ms']} ms"),
        ("changes of parent", str(members["reparentings"])),
        ("requests retried, hedged", f"{members['resent']}, {members['hedges']}"),
        ("requests that avoided a suspect", str(members["detours"])),
        ("corrupt parts", str(node["spoiled"])),
        ("connections refused", str(transport["strangers"])),
        ("connections closed at the limit", str(transport["crowded"])),
        ("connections", str(transport["connections"])),
    ]
    job = document["job"]
    title = f"Overlay (node {job['number']} of {job['roster']})"
    return table(("between nodes", "amount"), rows, right=("amount",), title=title)


def _tier_table(tier: Any) -> FittedTable:
    hits, memory, disk = tier["hits"], tier["memory"], tier["disk"]
    rows = [
        ("chunks from this node's memory", str(hits["memory"])),
        ("from its disk", str(hits["nvme"])),
        ("from other nodes", str(hits["peer"])),
        ("from the source", str(hits["source"])),
        ("prefetched", str(tier["ahead"])),
        ("redirects given, followed", f"{tier['redirects']}, {tier['redirected']}"),
        ("held in memory", _of(memory)),
        ("held on the disk", _of(disk)),
        ("evicted from memory, from the disk", f"{memory['evictions']}, {disk['evictions']}"),
        ("written to the disk", bytes_text(disk["written_bytes"])),
        ("write backlog", bytes_text(disk["backlog_bytes"])),
        ("reads throttled by the disk, now", f"{disk['waited']}, {disk['waiting']}"),
        ("writes that the disk refused", str(disk["refused"])),
        ("corrupt on the disk", str(disk["erasures"])),
    ]
    copies = tier["copies"]
    if copies["made"] or copies["due"]:
        made = f"{copies['made']} chunks, {bytes_text(copies['made_bytes'])}"
        rows.append(("copies made", made))
        rows.append(("copies due", str(copies["due"])))
        rows.append(("read from copies, given", f"{copies['read']}, {copies['served']}"))
    if copies["untracked"]:
        rows.append(("too many chunks for copies", str(copies["untracked"])))
    if tier["timeouts"]:
        left_out = f"{tier['timeouts']}, {tier['exclusions']}"
        rows.append(("owners that timed out, were excluded", left_out))
    if disk["owed"]:
        rows.append(("still to be written", f"{bytes_text(disk['owed_bytes'])}, {disk['owed']}"))
    if disk["read_again"]:
        for_disk = f"{disk['read_again']}, {disk['read_for_disk']}"
        rows.append(("read from the source again, for the disk alone", for_disk))
    if disk["outgrown"]:
        rows.append(("the disk does not hold all chunks", "what was used longest ago goes"))
    if disk["late"]:
        rows.append(("not given by the disk in time", str(disk["late"])))
    if disk["degraded"]:
        nodes = "" if disk["degraded"] == 1 else f" on {disk['degraded']} nodes"
        rows.append(("the disk takes nothing", f"for {disk['max_degraded_s']:.0f} s{nodes}"))
    return table(("chunks", "amount"), rows, right=("amount",), title="Data tier")


def _takeovers_text(takeovers: Any) -> str:
    """Empty if there were none."""
    if not takeovers["count"]:
        return ""
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(takeovers["by_cause"].items()))
    text = f"another daemon took over {takeovers['count']} times ({causes})"
    if "max_last_s" in takeovers:  # of all nodes
        return f"{text}; none answered for at most {takeovers['max_last_s']:.3f} s"
    last = takeovers["latest"][-1]
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last["at"]))
    return f"{text}, last at {at} for {last['cause']}; none answered for {last['took_s']:.3f} s"


def _of(level: Any) -> str:
    budget, held = bytes_text(level["budget_bytes"]), bytes_text(level["held_bytes"])
    return f"{held} of {budget}, {level['held']} chunks"


def _has_tier(document: Any) -> bool:
    tier = document.get("tier")
    return tier is not None and bool(tier["memory"]["budget_bytes"] or tier["disk"]["budget_bytes"])


def _tables(document: Any) -> Group:
    hits, misses = document["hits"], document["misses"]
    share = f"{hits / (hits + misses):.1%}" if hits + misses else "-"
    cache, source = document["cache"], document["source"]
    summary = Text(
        f"{hits} hits, {misses} misses ({share} answered without Python), "
        f"{document['negative']} lookups of names that do not exist, "
        f"epoch {document['epoch']}, pid {document['pid']}"
    )
    takeovers = _takeovers_text(document["takeovers"])
    operations = [
        (
            kind,
            answer,
            str(int(each["count"])),
            *(f"{each[name]:.1f}" for name in ("p50_us", "p90_us", "p99_us")),
        )
        for kind, answers in document["operations"].items()
        for answer, each in answers.items()
        if each["count"]
    ]
    at_source = [
        ("opens", str(source["open"])),
        ("reads", str(source["read"])),
        ("bytes read", bytes_text(source["read_bytes"])),
        ("stats", str(source["stat"])),
        ("directories scanned", str(source["scandir"])),
        ("bytes read past the cache", bytes_text(document["bytes"]["from_source_files"])),
    ]
    memory = [
        ("held", f"{bytes_text(cache['held_bytes'])} of {bytes_text(cache['budget_bytes'])}"),
        ("objects held", str(cache["held"])),
        ("bytes of files", bytes_text(cache["object_bytes"])),
        ("in flight", bytes_text(cache["reserved_bytes"])),
        ("evicted", f"{cache['evictions']} objects, {bytes_text(cache['evicted_bytes'])}"),
        ("served from memory", bytes_text(document["bytes"]["from_memory"])),
    ]
    numbers = ("count", "p50 us", "p90 us", "p99 us")
    return Group(
        summary,
        *([Text(takeovers)] if takeovers else []),
        table(("operation", "answer", *numbers), operations, right=numbers, title="Operations"),
        table(("at the source", "count"), at_source, right=("count",), title="Source"),
        table(("memory", "amount"), memory, right=("amount",), title="Cache"),
        *([_tier_table(document["tier"])] if _has_tier(document) else []),
        *([_overlay_table(document)] if document["job"]["roster"] > 1 else []),
    )
