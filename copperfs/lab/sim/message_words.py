"""Message words: what the scenario language and the documents of the simulator call messages.

These are outside names, which stay when the code renames a message.
"""

from copperfs.node.peer.messages import (
    Batch,
    Cancel,
    CollectiveReply,
    CollectiveRequest,
    Credit,
    DataReply,
    Delayed,
    EntryReply,
    ErrorReply,
    Heartbeat,
    Hello,
    MembershipUpdate,
    Message,
    Offer,
    Ping,
    Pong,
    Redirect,
    Request,
)

WORDS: dict[str, type[Message]] = {
    "Ask": Request,
    "GiveEntry": EntryReply,
    "GivePart": DataReply,
    "Refuse": ErrorReply,
    "Withdraw": Cancel,
    "Call": CollectiveRequest,
    "Return": CollectiveReply,
    "News": MembershipUpdate,
    **{
        each.__name__: each
        for each in (Hello, Redirect, Delayed, Credit, Batch, Offer, Ping, Pong, Heartbeat)
    },
}
_WORD_OF: dict[type, str] = {kind: word for word, kind in WORDS.items()}


def word_of(kind: type) -> str:
    """The word for messages of this class; any other class is called by its own name."""
    return _WORD_OF.get(kind, kind.__name__)
