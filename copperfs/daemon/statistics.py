"""Statistics: what a mount did, as one JSON document; ``docs/statistics.md`` explains every key.

Latencies are counted in buckets of a quarter of an octave, so quantiles are right to about 12 %.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from copperfs.chunkstore.store_interface import StoreStats
from copperfs.daemon.engine import Engine
from copperfs.daemon.succession import Succession
from copperfs.native import Front
from copperfs.node.limits_and_counters import NodeStats
from copperfs.transport.interface import TransportStats

if TYPE_CHECKING:
    from copperfs.native import Latencies


VERSION = 1
PROCESS = Path("/proc/self/status")
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


@dataclass(slots=True)
class Statistics:
    engine: Engine
    front: Front
    succession: Succession
    started: float = field(default_factory=time.time)
    since: float = field(default_factory=time.time)

    def document(self) -> dict[str, Any]:
        front = self.front.statistics()
        node = self.engine.node.statistics()
        pool = self.engine.fetcher.statistics()
        peers = self.engine.peers
        operations = {
            kind: {answer: _timed(count, latencies) for answer, (count, latencies) in each.items()}
            for kind, each in front["kinds"].items()
        }
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "started": self.started,
            "since": self.since,
            "epoch": node.epoch,
            "takeovers": self.succession.takeovers.to_json()
            | {"standbys_fail": int(self.succession.standbys_fail)},
            "job": self._job(),
            "operations": operations,
            "handlers": {
                "requests": front["handler_requests"],
                "by_operation": {k: each["miss"][0] for k, each in front["kinds"].items()},
            },
            "hits": sum(each["hit"][0] for each in front["kinds"].values()),
            "misses": sum(each["miss"][0] for each in front["kinds"].values()),
            "negative": front["negative"],
            "bytes": {
                "from_memory": front["hit_bytes"] + front["miss_bytes"],
                "from_source_files": front["bypass_bytes"],
                "from_parents": 0 if peers is None else peers.taken_bytes,
                "to_children": 0 if peers is None else peers.given_bytes,
            },
            "source": self.engine.fetcher.counts(),
            "pool": asdict(pool),
            "cache": {
                "budget_bytes": node.budget_bytes,
                "held_bytes": node.held_bytes,
                "reserved_bytes": node.reserved_bytes,
                "held": node.held_count,
                "object_bytes": self.engine.blob_bytes(),
                "evictions": node.evictions,
                "evicted_bytes": node.evicted_bytes,
            },
            "node": {
                "questions": node.questions,
                "answered_from_cache": node.answered_from_cache,
                "joined": node.joined,
                "fetches": node.fetches,
                "fetched_on_credit": node.fetched_on_credit,
                "listed_on_credit": node.listed_on_credit,
                "read_ahead": node.read_ahead,
                "read_ahead_bytes": node.read_ahead_bytes,
                "read_ahead_used": node.read_ahead_used,
                "listed_ahead": node.listed_ahead,
                "fetching": node.fetching,
                "failures": node.failures,
                "overdue": node.overdue,
                "version_changes": node.version_changes,
                "waited_for_room": node.waited_for_room,
                "asks": node.asks,
                "answers": node.answers,
                "peer_questions": node.peer_questions,
                "peers_refused": node.peers_refused,
                "offers": node.offers,
                "offered": node.offered,
                "pushed": node.pushed,
                "fallbacks": node.fallbacks,
                "took_over": node.took_over,
                "spoiled": node.spoiled,
            },
            "tier": self._tier(node),
            "members": self._members(node),
            "transport": self._transport(),
            "process": _process(),
            "kernel": self._kernel(),
            "front": {
                key: front[key]
                for key in (
                    "nodes", "nodes_max", "idle_nodes", "pending", "forgets", "interrupts",
                    "killed", "overdue", "overflows", "protocol_errors", "unanswered",
                    "no_room", "full_replies", "notifications", "max_pages", "bypass_threads",
                )
            },
        }  # fmt: skip

    def read(self) -> dict[str, int]:
        """What ``copperfs run`` says at its end."""
        front, source = self.front.statistics(), self.engine.fetcher.counts()
        peers = self.engine.peers
        return {
            "bytes": front["hit_bytes"] + front["miss_bytes"] + front["bypass_bytes"],
            "files_from_source": source["open"],
            "bytes_from_source": source["read_bytes"] + front["bypass_bytes"],
            "bytes_from_peers": 0 if peers is None else peers.taken_bytes,
        }

    def _job(self) -> dict[str, int]:
        peers, trees = self.engine.peers, self.engine.node.trees
        if peers is None or trees is None:
            return {"roster": 1, "number": 0, "connected": 0}
        return {
            "roster": trees.nodes,
            "number": trees.me,
            "connected": len(peers.session.connected),
        }

    def _tier(self, node: NodeStats) -> dict[str, object]:
        return {
            "hits": {
                "memory": node.tier_from_memory,
                "nvme": node.tier_from_disk,
                "peer": node.tier_from_peers,
                "source": node.tier_from_source,
            },
            "ahead": node.tier_ahead,
            "redirects": node.redirects,
            "redirected": node.redirected,
            "timeouts": node.tier_timeouts,
            "exclusions": node.tier_exclusions,
            "memory": {
                "budget_bytes": node.tier_memory_budget_bytes,
                "held_bytes": node.tier_memory_held_bytes,
                "held": node.tier_memory_held_count,
                "evictions": node.tier_evictions,
            },
            "copies": {
                "made": node.copies_made,
                "made_bytes": node.copied_bytes,
                "due": node.copies_due,
                "read": node.copies_read,
                "served": node.copies_served,
                "untracked": node.copies_untracked,
            },
            "disk": self._tier_disk(node),
        }

    def _tier_disk(self, node: NodeStats) -> dict[str, float]:
        tier = self.engine.tier
        stats = StoreStats() if tier is None else tier.store.statistics()
        since = stats.degraded_since
        return {
            "budget_bytes": 0 if tier is None else tier.store.limits.budget_bytes,
            "held_bytes": stats.held_bytes,
            "held": stats.held_chunks,
            "evictions": stats.evictions,
            "evicted_bytes": stats.evicted_bytes,
            "written": stats.writes,
            "written_bytes": stats.written_bytes,
            "backlog": stats.backlog_chunks,
            "backlog_bytes": stats.backlog_bytes,
            "refused": stats.refused,
            "waited": node.tier_waited,
            "waiting": node.tier_waiting,
            "owed": node.tier_owed,
            "owed_bytes": node.tier_owed_bytes,
            "read_again": node.tier_read_again,
            "read_for_disk": node.tier_read_for_disk,
            "forgotten": node.tier_forgotten,
            "outgrown": int(stats.is_outgrown),
            "late": stats.late,
            "erasures": stats.erasures,
            "degradations": stats.degradations,
            "degraded": int(since is not None),
            "max_degraded_s": 0 if since is None else round(trio.current_time() - since, 3),
        }

    def _members(self, node: NodeStats) -> dict[str, int]:
        membership = self.engine.node.membership
        return {
            "gone": 0 if membership is None else len(membership.members.gone),
            "suspects": 0 if membership is None else len(membership.suspects()),
            "deaths": node.deaths,
            "max_detection_ms": node.max_detection_ms,
            "returns": node.returns,
            "refutations": node.refutations,
            "reparentings": node.reparentings,
            "resent": node.resent,
            "hedges": node.hedges,
            "detours": node.detours,
        }

    def _kernel(self) -> dict[str, int]:
        notifications = self.engine.notifications
        return {
            "waiting": notifications.waiting,
            "late": notifications.late,
            "dropped": notifications.dropped,
        }

    def _transport(self) -> dict[str, object]:
        peers = self.engine.peers
        return asdict(TransportStats() if peers is None else peers.transport.statistics())

    def reset(self) -> None:
        self.front.reset_statistics()
        self.engine.fetcher.reset_counts()
        self.engine.node.reset_statistics()
        self.engine.notifications.reset()
        if self.engine.tier is not None:
            self.engine.tier.store.reset_counts()
        if self.engine.peers is not None:
            self.engine.peers.reset_statistics()
        self.since = time.time()


def _process() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in PROCESS.read_text().splitlines())
    return {
        "tasks": trio.lowlevel.current_statistics().tasks_living,
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "resident_bytes": int(status["VmRSS"].split()[0]) * 1024,
    }


def _timed(count: int, latencies: "Latencies") -> dict[str, float]:
    shown: dict[str, float] = {"count": count}
    if count:
        shown |= {f"{name}_us": quantile(latencies, share) for name, share in QUANTILES}
    return shown


def quantile(latencies: Mapping[int, int], share: float) -> float:
    """The latency in us that *share* of all requests stayed below, from counts by lower bound in
    ns."""
    total, seen = sum(latencies.values()), 0
    for lower_ns, count in sorted(latencies.items()):
        seen += count
        if seen >= share * total:
            # the middle of a bucket that is between 1/4 and 1/7 of its lower bound wide
            return round(lower_ns * 1.1 / 1000, 2)
    return 0.0
