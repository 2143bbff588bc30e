"""What ``copperfs run`` says once its command has ended."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from copperfs.config.settings import bytes_text


@dataclass(frozen=True, slots=True)
class RunReport:
    mountpoint: str
    covered: tuple[str, ...] | None
    """None if the command did not run in place."""
    why_not: str
    """Why it would not have run in place."""
    left_out: tuple[str, ...]
    """Why an environment is not covered."""
    failed: dict[str, str]
    """The directories that could not be covered, or left writable, with the reasons."""
    expects_reads: bool
    """Shared paths were named, or covered."""
    summary: bool

    def lines(self, read: Mapping[str, int]) -> Iterator[str]:
        """*read* is empty if the daemon did not tell."""
        for directory, reason in self.failed.items():
            yield f"{directory} could not be covered, or left writable: {reason}"
        if read.get("bytes") == 0 and self.expects_reads:
            yield (
                "nothing was read through the mount: name the filesystem of the command's files "
                "with --shared, or their directory with --in-place-at"
            )
        if not self.summary:
            return
        if self.covered is None:
            yield f"not in place: paths of variables led through {self.mountpoint} ({self.why_not})"
        else:
            yield from (f"covered, and read-only for the command: {each}" for each in self.covered)
            yield from self.left_out
        if read:
            yield (
                f"read through the mount by all runs of this node: {bytes_text(read['bytes'])}; "
                f"{read['files_from_source']:,} files and {bytes_text(read['bytes_from_source'])} "
                f"came from the source, {bytes_text(read['bytes_from_peers'])} from other nodes"
            )
