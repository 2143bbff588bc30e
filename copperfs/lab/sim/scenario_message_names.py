"""Message words: the scenario language's names of messages, which stay when the code renames
one."""

from copperfs.node.peer.messages import (
    Batch,
    Cancel,
    CollectiveReply,
    CollectiveRequest,
    CopyOffer,
    CopyReport,
    Credit,
    DataReply,
    Delayed,
    Echo,
    EchoReply,
    EntryReply,
    ErrorReply,
    Heartbeat,
    Hello,
    MembershipUpdate,
    Message,
    Offer,
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
        for each in (
            Hello,
            Redirect,
            Delayed,
            CopyOffer,
            CopyReport,
            Credit,
            Batch,
            Offer,
            Echo,
            EchoReply,
            Heartbeat,
        )
    },
}
_WORD_OF: dict[type, str] = {kind: word for word, kind in WORDS.items()}


def word_of(kind: type) -> str:
    """Other classes keep their names."""
    return _WORD_OF.get(kind, kind.__name__)
