"""Launch without a mount: one node takes part in a launch and prints its result or its error.

    python -m tests.bootstrap.attend --rendezvous DIR --nodes 3 --node-name n1

``--closed-mouth`` makes the node fail before it can take part.
"""

import argparse
import json
import os
import sys

from copperfs.cli.options import add_option_flags, resolve_settings
from copperfs.launch.launch_method import launch
from copperfs.model.errors import CopperError, MountError


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--closed-mouth", action="store_true")
    add_option_flags(parser)
    arguments = parser.parse_args()
    settings = resolve_settings("/nowhere", arguments)

    def prepare() -> None:
        if arguments.closed_mouth:
            raise MountError("/nowhere is mounted already")

    def say(**what: object) -> None:
        # One write, as several processes may share a pipe.
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    def tell(sentence: str) -> None:
        say(told=sentence)

    try:
        way, found = launch(settings, os.environ, prepare=prepare, tell=tell)
    except CopperError as error:
        say(error=str(error))
        return 1
    outcome: dict[str, object] = {
        "way": type(way).__name__,
        "imported": sorted({"mpi4py", "zmq", "ClusterShell", "trio"} & set(sys.modules)),
    }
    if found is not None:
        host, port = found.listener.getsockname()[:2]
        outcome |= {
            "roster": found.roster.to_json(),
            "me": found.me,
            "listens": f"tcp://{host}:{port}",
            "has_secret": bool(found.secret_key),
        }
    say(**outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
