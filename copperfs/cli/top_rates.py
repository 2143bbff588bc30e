"""Rates of ``copperfs top``, from the counts of two documents of a mount or a job. Pure.

Counts restart at ``copperfs stats --reset`` and with a new daemon, so a lower count is taken as
counted from zero.
"""

from typing import Any

# A hot node gives its children this many times the average.
HOT_FACTOR = 2.0
_PASSED = ("from_memory", "from_source_files", "from_parents", "to_children")


def per_s(now: float, before: float, seconds: float) -> float:
    return (now if now < before else now - before) / seconds


def share(part: float, *others: float) -> float | None:
    """None if the sum is zero."""
    whole = part + sum(others)
    return part / whole if whole else None


def of_node(now: Any, before: Any, seconds: float) -> dict[str, Any]:
    """From two documents of ``copperfs stats``."""
    operations = {
        kind: {
            answer: {
                "per_s": per_s(each["count"], before["operations"][kind][answer]["count"], seconds),
                **{name: each[name] for name in ("p50_us", "p99_us") if name in each},
            }
            for answer, each in answers.items()
        }
        for kind, answers in now["operations"].items()
    }
    answered = {
        answer: sum(
            # without top's own
            answers[answer]["per_s"]
            for kind, answers in operations.items()
            if kind != "ioctl"
        )
        for answer in ("hit", "fetch", "miss", "bypass")
    }
    result = _common(now, before, seconds)
    memory = share(answered["hit"], answered["fetch"], answered["miss"], answered["bypass"])
    result["levels"]["memory"] = memory
    return result | {
        "operations": operations,
        "answered_per_s": answered,
        "requests_per_s": sum(answered.values()),
        "pool": now["pool"],
        "members": now["members"],
        "takeovers": now["takeovers"],
        "resident_bytes": now["process"]["resident_bytes"],
        "pending": now["front"]["pending"],
    }


def _common(now: Any, before: Any, seconds: float) -> dict[str, Any]:

    def rate(group: str, key: str) -> float:
        return per_s(now[group][key], before[group][key], seconds)

    passed = {f"{key}_per_s": rate("bytes", key) for key in _PASSED}
    read = rate("source", "read_bytes")
    requests = per_s(now["hits"] + now["misses"], before["hits"] + before["misses"], seconds)
    hits = per_s(now["hits"], before["hits"], seconds)
    of_fetched = share(passed["from_parents_per_s"], read, passed["from_source_files_per_s"])
    return {
        "seconds": seconds,
        "requests_per_s": requests,
        "bytes": passed,
        "source": {
            "read_bytes_per_s": read,
            **{f"{key}_per_s": rate("source", key) for key in ("open", "stat", "scandir")},
        },
        "levels": {
            "memory": share(hits, max(requests - hits, 0)),
            "parents": of_fetched,
            "source": None if of_fetched is None else 1 - of_fetched,
        },
        "memory": {key: now["cache"][key] for key in ("budget_bytes", "held_bytes", "held")},
        "evictions_per_s": rate("cache", "evictions"),
        "fallbacks_per_s": rate("node", "fallbacks"),
    }


def of_job(now: Any, before: Any, seconds: float, tree: Any) -> dict[str, Any]:
    """From two documents of ``copperfs stats --all`` and one of ``copperfs tree``."""
    earlier = {each["number"]: each for each in before.get("by_node", ())}
    rates = {
        each["number"]: _common(each, earlier.get(each["number"], each), seconds)
        for each in now.get("by_node", ())
    }
    given = [each["bytes"]["to_children_per_s"] for each in rates.values()]
    mean = sum(given) / len(given) if given else 0
    suspects = {each["number"] for each in tree["suspects"]}
    nodes = []
    for member in tree["members"]:
        place = member["places"][0]
        own = rates.get(member["number"])
        nodes.append(
            {
                **{key: member[key] for key in ("number", "name", "answered", "gone")},
                **{key: place.get(key) for key in ("role", "depth", "parent", "rtt_us")},
                "suspect": member["number"] in suspects,
                "takeovers": member.get("takeovers"),
                "hot": own is not None
                and own["bytes"]["to_children_per_s"] > HOT_FACTOR * mean > 0,
                "rates": own,
            }
        )
    total = now["total"] and _common(now["total"], before["total"] or now["total"], seconds)
    return {
        **{key: now[key] for key in ("nodes", "roster")},
        "missing": [each["name"] for each in now["missing"]],
        "total": total or None,
        "by_node": nodes,
    }
