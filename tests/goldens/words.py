"""Renames: the new names of what the goldens still call by its old name.

A change that only renames a message, a field or an operation adds a row here, new name first, and
the goldens stay as they are.
"""

import re

from copperfs.lab.sim.scenario_message_names import WORDS

RENAMED: dict[str, str] = {
    "SourceListed": "Scanned",
    "SourceLookedUp": "Looked",
    "SourceRead": "HaveRead",
    "SourceOpened": "Opened",
    "DiskLoaded": "Loaded",
    "ListSource": "ScanSource",
    "LookupSource": "LookSource",
    # The scenario language has kept these words.
    **{kind.__name__: word for word, kind in WORDS.items() if kind.__name__ != word},
    "ContentKind": "What",
    "ChunkAskMode": "How",
    "MemberStatus": "Fate",
    "LookupRequest": "Look",
    "ListRequest": "List",
    "ReadRequest": "Read",
    "ChunkRequest": "WantChunk",
    "InvalidateName": "LookAgain",
    "LogEvent": "Happened",
    "records": "fates",
    "OpenForBypass": "OpenSource",
    "Echo": "Ping",
    "EchoReply": "Pong",
    "skipped": "passed",
}

_WORD = re.compile(r"[A-Za-z_]+")


def in_the_old_words(line: str) -> str:
    if not RENAMED:
        return line
    return _WORD.sub(lambda found: RENAMED.get(found[0], found[0]), line)
