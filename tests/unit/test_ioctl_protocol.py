"""Ioctl protocol: the daemon parses what the kernel sends, and the kernel accepts its replies."""

import errno
import fcntl
import json
import os
import struct
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs.fuse.ioctl import (
    BUFFER_BYTES,
    DATA_BYTES,
    HEADER,
    VERSION,
    Asked,
    IoctlRequest,
    MalformedIoctl,
    ask_mount,
    number,
    parse,
    refusal,
    reply,
)
from copperfs.model.errors import ControlError

IN = struct.Struct("<IIQQIIIHH")
IOCTL_IN = struct.Struct("<QIIQII")
OUT = struct.Struct("<IiQ")
IOCTL_OUT = struct.Struct("<iIII")


def message(
    request: int = IoctlRequest.STATISTICS,
    *,
    version: int = VERSION,
    unique: int = 7,
    uid: int = 1000,
    token: int = 0,
    offset: int = 0,
    out_size: int = BUFFER_BYTES,
    data: bytes | None = None,
    in_size: int | None = None,
) -> bytes:
    if data is None:
        data = HEADER.pack(version, 0, 0, 0, token, offset, 0).ljust(BUFFER_BYTES, b"\0")
    said = len(data) if in_size is None else in_size
    body = IOCTL_IN.pack(0, 0, number(request), 0, said, out_size) + data
    return IN.pack(IN.size + len(body), 39, unique, 1, uid, 0, 1, 0, 0) + body


def parts_of(answer: bytes) -> tuple[int, int, int, bytes]:
    length, error, unique = OUT.unpack_from(answer)
    assert (length, error) == (len(answer), 0)
    assert IOCTL_OUT.unpack_from(answer, OUT.size) == (0, 0, 0, 0)
    version, status, size, _, token, _, total = HEADER.unpack_from(
        answer, OUT.size + IOCTL_OUT.size
    )
    data = answer[OUT.size + IOCTL_OUT.size + HEADER.size :]
    assert (version, status, size) == (VERSION, 0, len(data))
    return unique, token, total, data


def test_the_numbers_are_what_c_makes_of_them() -> None:
    # _IOWR(0xC7, 0x10, char[8192])
    assert number(IoctlRequest.STATISTICS) == 0xE000C710
    assert number(IoctlRequest.HELLO) == 0xE000C700


@pytest.mark.parametrize("request_", IoctlRequest)
def test_every_request_is_understood(request_: IoctlRequest) -> None:
    asked = parse(message(request_, unique=9, uid=5, token=3, offset=100))
    assert asked == Asked(9, 5, request_, 3, 100, DATA_BYTES, pid=1)


def test_the_numbers_of_others_are_not_for_this() -> None:
    for request in {*range(256)} - {*IoctlRequest}:
        with pytest.raises(MalformedIoctl) as refused:
            parse(message(request))
        assert (refused.value.errno, refused.value.unique) == (errno.ENOTTY, 7)


def test_another_version_is_refused_but_for_hello() -> None:
    for request in IoctlRequest:
        if request is IoctlRequest.HELLO:
            assert parse(message(request, version=2)).request is IoctlRequest.HELLO
        else:
            with pytest.raises(MalformedIoctl) as refused:
                parse(message(request, version=2))
            assert refused.value.errno == errno.EPROTO


@pytest.mark.parametrize("length", range(IN.size + IOCTL_IN.size))
def test_a_message_without_all_headers_is_refused_and_nobody_told(length: int) -> None:
    with pytest.raises(MalformedIoctl) as refused:
        parse(message()[:length])
    assert (refused.value.errno, refused.value.unique) == (errno.EINVAL, None)


@pytest.mark.parametrize("size", [0, 1, HEADER.size - 1])
def test_a_buffer_without_a_whole_header_is_refused(size: int) -> None:
    for broken in (
        message(data=bytes(size)),
        message(out_size=size),
        message(data=bytes(HEADER.size), in_size=size),
        message(in_size=BUFFER_BYTES + 1),
        message(in_size=0xFFFF_FFFF),
    ):
        with pytest.raises(MalformedIoctl) as refused:
            parse(broken)
        assert (refused.value.errno, refused.value.unique) == (errno.EINVAL, 7)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_malformed(garbage: bytes) -> None:
    try:
        parse(garbage)
    except MalformedIoctl as refused:
        assert refused.errno in (errno.EINVAL, errno.ENOTTY, errno.EPROTO)  # noqa: PT017


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_any_data_is_a_request_or_malformed(data: bytes, out_size: int, request: int) -> None:
    try:
        asked = parse(message(request, data=data, out_size=out_size))
    except MalformedIoctl as refused:
        assert refused.unique == 7  # noqa: PT017
    else:
        assert len(reply(asked, 1, b"x" * 1000)) <= OUT.size + IOCTL_OUT.size + out_size


# ---- replies -------------------------------------------------------------------------------------


def test_a_refusal_is_an_errno() -> None:
    assert OUT.unpack(refusal(7, errno.EPERM)) == (OUT.size, -errno.EPERM, 7)


@given(st.binary(max_size=500), st.integers(1, 100))
def test_a_reply_of_any_length_is_fetched_in_parts(whole: bytes, room: int) -> None:
    received, asked_times = b"", 0
    while True:
        request = message(token=3, offset=len(received), out_size=HEADER.size + room)
        unique, token, total, data = parts_of(reply(parse(request), 3, whole))
        assert (unique, token, total) == (7, 3, len(whole))
        received += data
        asked_times += 1
        if len(received) >= total:
            break
    assert received == whole
    assert asked_times == max(1, -(-len(whole) // room))


@pytest.mark.parametrize("offset", [10, 11, 2**63, 2**64 - 1])
def test_beyond_the_end_there_is_nothing(offset: int) -> None:
    asked = parse(message(token=3, offset=offset))
    assert parts_of(reply(asked, 3, b"x" * 10))[2:] == (10, b"")


# ---- the client ----------------------------------------------------------------------------------


class Served:
    """Answers ``fcntl.ioctl`` as the kernel and the daemon would."""

    def __init__(self, whole: bytes = b"{}", error: int = 0, keeps: bool = True) -> None:
        self.whole, self.error, self.keeps = whole, error, keeps
        self.calls = 0

    def __call__(self, fd: int, request: int, buffer: bytearray) -> int:
        self.calls += 1
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        asked = parse(message(request & 0xFF, data=bytes(buffer)))
        whole = self.whole if self.keeps or not asked.token else b""
        answer = reply(asked, 5 if len(self.whole) > DATA_BYTES else 0, whole)
        data = answer[OUT.size + IOCTL_OUT.size :]
        buffer[: len(data)] = data
        if not self.keeps and asked.token:
            HEADER.pack_into(buffer, 0, VERSION, 0, 0, 0, 5, 0, len(self.whole))
        return 0


def serve(monkeypatch: pytest.MonkeyPatch, served: Served) -> Served:
    monkeypatch.setattr(fcntl, "ioctl", served)
    return served


@pytest.mark.parametrize("length", [0, 1, DATA_BYTES - 2, DATA_BYTES - 1, 5 * DATA_BYTES])
def test_the_client_fetches_all_parts(
    length: int, monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath
) -> None:
    value = "x" * length
    whole = json.dumps(value).encode()
    served = serve(monkeypatch, Served(whole))
    assert ask_mount(str(tmp_path), IoctlRequest.STATISTICS) == value
    assert served.calls == -(-len(whole) // DATA_BYTES)


@pytest.mark.parametrize("takeovers", [1, 2])
def test_a_reply_is_asked_for_anew_when_another_daemon_has_taken_over(
    takeovers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath
) -> None:
    replies = [Served(json.dumps(str(each) * 3 * DATA_BYTES).encode()) for each in range(3)]

    def ioctl(fd: int, number: int, buffer: bytearray) -> None:
        token = HEADER.unpack_from(buffer)[4]
        current = min(sum(each.calls >= 2 for each in replies), takeovers)
        if token and not replies[current].calls:
            raise OSError(errno.EINVAL, "")
        replies[current](fd, number, buffer)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    if takeovers == 1:
        assert ask_mount(str(tmp_path), IoctlRequest.TREE) == "1" * 3 * DATA_BYTES
    else:
        with pytest.raises(ControlError, match="cannot be asked"):
            ask_mount(str(tmp_path), IoctlRequest.TREE)


def test_an_answer_that_breaks_off_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath
) -> None:
    serve(monkeypatch, Served(b"x" * 2 * DATA_BYTES, keeps=False))
    with pytest.raises(ControlError, match="broke off its answer"):
        ask_mount(str(tmp_path), IoctlRequest.STATISTICS)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (errno.ENOTTY, "is not on a mount of copperfs"),
        (errno.EPERM, "only the owner of the mount .* is on, and root, may ask for this"),
        (errno.EPROTO, "of another version"),
        (errno.ETIMEDOUT, "did not answer in time"),
        (errno.ENOTCONN, "is gone; clean up with: copperfs umount"),
        (errno.ECONNABORTED, "is gone; clean up with: copperfs umount"),
        (errno.EIO, "cannot be asked: Input/output error"),
    ],
)
def test_a_refusal_is_told_in_a_sentence(
    error: int, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath
) -> None:
    serve(monkeypatch, Served(error=error))
    with pytest.raises(ControlError, match=sentence):
        ask_mount(str(tmp_path), IoctlRequest.STATISTICS)


def test_a_file_on_no_mount_of_ours_is_told_so(tmp_path: FilePath) -> None:
    with pytest.raises(ControlError, match="is not on a mount of copperfs"):
        ask_mount(str(tmp_path), IoctlRequest.HELLO)
    with pytest.raises(ControlError, match="cannot be opened: No such file"):
        ask_mount(str(tmp_path / "missing"), IoctlRequest.HELLO)


def test_a_fifo_does_not_make_the_client_wait(tmp_path: FilePath) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ControlError, match="is not on a mount of copperfs"):
        ask_mount(str(tmp_path / "fifo"), IoctlRequest.HELLO)
