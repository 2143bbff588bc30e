"""Driver: gives events to the node, and performs the actions that the node returns.

This is the only interpreter of actions (``tests/unit/test_layers.py`` checks it), with the ports
and blob table of a daemon, a simulator or a test (``ports.py``).

It performs actions in order, and before the next event. So an answer goes out before a later action
of the same step evicts its content, and a message is made before its blob is released.
"""

from dataclasses import dataclass
from typing import Generic, assert_never

from copperfs.driver.ports import (
    BlobTable,
    ChunkStore,
    Content,
    InodeComparison,
    Network,
    Payload,
    Ports,
)
from copperfs.model.listing import Listing
from copperfs.model.types import ChunkKey, PeerRequest
from copperfs.node.actions import (
    Action,
    AnswerChunk,
    AnswerEntry,
    AnswerError,
    AnswerHandle,
    AnswerListing,
    AnswerObject,
    CompareInodes,
    Connect,
    Disagree,
    Disconnect,
    DropCall,
    EndCall,
    Evict,
    IgnoreInodes,
    InvalidateName,
    ListingKey,
    ListSource,
    LoadChunk,
    LogEvent,
    LookupSource,
    NewEpoch,
    ObjectKey,
    OpenForBypass,
    PerformCall,
    Probe,
    Publish,
    ReadChunk,
    ReadSource,
    ReleaseBlob,
    ReleaseHandle,
    SampleInodes,
    Send,
    StoreChunk,
)
from copperfs.node.events import Event
from copperfs.node.node import Node
from copperfs.node.peer.messages import CollectiveReply, DataReply, Message, Offer


@dataclass(slots=True)
class Driver(Generic[Content, Payload]):
    node: Node
    ports: Ports[Content, Payload]
    blobs: BlobTable[Content, Payload]

    def post(self, event: Event) -> None:
        self._step(event)
        self.ports.clock.wake_at(self.node.deadline())

    def _step(self, event: Event) -> None:
        observer = self.ports.observer
        if observer is None:
            for action in self.node.step(self.ports.clock.now(), event):
                self.perform(action)
            return
        observer.posted(event)
        actions = self.node.step(self.ports.clock.now(), event)
        observer.stepped()
        for action in actions:
            observer.performs(action)
            self.perform(action)

    def perform(self, action: Action) -> None:
        ports = self.ports
        match action:
            case Send():  # the most frequent action in a large job
                self._send(action)
            case AnswerEntry() | AnswerListing():
                ports.applications.answer(action.request, action)
            case AnswerObject():
                ports.applications.answer_object(action, self.blobs.content(action.blob))
            case AnswerChunk():
                ports.applications.answer_chunk(action, self.blobs.content(action.blob))
            case AnswerHandle():
                ports.applications.answer_handle(action)
            case AnswerError(request, error):
                ports.applications.answer_error(request, error)
            case ReadSource():
                ports.source.start(action, self.node.names_to_find(action.fetch))
            case ListSource() | LookupSource() | OpenForBypass() | ReadChunk():
                ports.source.start(action, ())
            case LoadChunk(fetch, key):
                self._chunk_store.load(fetch, key)
            case StoreChunk(key, blob):
                self._chunk_store.save(key, blob)
            case Publish():
                self._publish(action)
            case Evict(key):
                ports.applications.withdraw(key)
            case ReleaseBlob(blob):
                self.blobs.release(blob)
            case ReleaseHandle(handle):
                ports.source.close_handle(handle)
            case InvalidateName(path):
                ports.applications.look_again(path)
            case NewEpoch(epoch):
                ports.applications.begin_epoch(epoch)
            case Connect(peer):
                self._network.connect(peer)
            case Disconnect(peer):
                self._network.disconnect(peer)
            case Probe(peer):
                self._network.probe(peer)
            case PerformCall():
                ports.operations.begin(action)
            case DropCall(call):
                ports.operations.stop(call)
            case EndCall():
                self._end_call(action)
            case SampleInodes():
                self._comparison.take_sample()
            case CompareInodes(names):
                self._comparison.compare(names)
            case IgnoreInodes(was_told):
                self._comparison.ignore(was_told=was_told)
            case LogEvent():
                ports.failure_log.note(action)
            case Disagree(peer, sentence):
                ports.failure_log.disagree(peer, sentence)
            case _:
                assert_never(action)

    @property
    def _network(self) -> Network[Payload]:
        assert self.ports.network is not None, "a job of one has no peers"
        return self.ports.network

    @property
    def _chunk_store(self) -> ChunkStore:
        assert self.ports.chunk_store is not None, "the node was told that there is a disk"
        return self.ports.chunk_store

    @property
    def _comparison(self) -> InodeComparison:
        assert self.ports.inode_comparison is not None, "the node was told to compare"
        return self.ports.inode_comparison

    def _send(self, send: Send) -> None:
        message: Message = send.message
        content, payload = send.content, None
        if content is None:
            pass
        elif isinstance(message, Offer):
            assert isinstance(content, tuple)
            message, payload = self.blobs.offer(message, content)
        elif isinstance(message, DataReply):
            assert not isinstance(content, tuple)
            payload = self.blobs.part(content, message.index, message.total_bytes)
        else:
            assert not isinstance(content, Listing | tuple), "a batch is one blob"
            payload = self.blobs.whole(content)
        self._network.send(send.peer, message, payload)

    def _publish(self, action: Publish) -> None:
        match action:
            case Publish(ObjectKey() as key, int() as blob):
                self.ports.applications.publish_object(key, self.blobs.content(blob))
            case Publish(ChunkKey() as key, int() as blob):
                chunk_bytes = self.node.limits.chunk_bytes
                self.ports.applications.publish_chunk(key, chunk_bytes, self.blobs.content(blob))
            case Publish(ListingKey() as key, Listing() as listing):
                self.ports.applications.publish_listing(key.path, listing)

    def _end_call(self, action: EndCall) -> None:
        operations, requester = self.ports.operations, action.requester
        operations.stop(action.call)
        result = operations.merge(action.results)
        if isinstance(requester, PeerRequest):
            self._network.send(requester.peer, CollectiveReply(requester.number, result), None)
        else:
            operations.end(requester, result)
