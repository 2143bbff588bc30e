"""Doctor peer checks: what ``copperfs doctor`` examines between nodes."""

import json
import shutil
import socket
from collections.abc import Callable, Iterator

from copperfs.cli.doctor_checks import ASIDE_S, Check, CheckedMachine, failed, ok, warning
from copperfs.cli.output import sentence_of
from copperfs.cli.subprocess_deadline import Aside, copperfs_aside, python_aside, run_aside
from copperfs.model.errors import CopperError

CONNECTS_WITHIN_S = 2.0


def mpi(machine: CheckedMachine) -> Iterator[Check]:
    name = "MPI"
    launchers = [
        each
        for each in ("srun", "mpiexec", "mpirun", "flux", "aprun")
        if shutil.which(each, path=machine.path)
    ]
    shown = f"launchers: {', '.join(launchers) or 'none'}"
    script = (
        "import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n"
        "print(mpi4py.__version__, MPI.Get_library_version().splitlines()[0], sep='|')"
    )
    said = run_aside(python_aside(script), 2 * ASIDE_S)
    if said.code == 0 and "|" in said.output:
        version, _, library = said.output.strip().strip("\0").partition("|")
        yield ok(name, f"mpi4py {version}, {library.strip(chr(0))}; {shown}")
        return
    why = (
        "mpi4py is not installed"
        if "No module named 'mpi4py'" in said.errors
        else ("mpi4py finds no MPI library")
    )
    remedy = (
        "only copperfs mount under mpiexec needs it: pip install mpi4py, and load the "
        "launcher's MPI; or give --rendezvous. copperfs run does not need it"
    )
    yield warning(name, f"{why}; {shown}", remedy)


def resolution(machine: CheckedMachine) -> Iterator[Check]:
    name, host = "name resolution", socket.gethostname()
    script = (
        "import sys\nfrom copperfs.launch.listen_address import choose_address\n"
        "print(choose_address(sys.argv[1] or None))"
    )
    said = run_aside(python_aside(script, machine.settings.listen or ""), ASIDE_S)
    if said.code is None:
        yield failed(
            name,
            f"{host} is not resolved within {ASIDE_S:.0f} s",
            "give --listen with an address or an interface, and have the name server looked at",
        )
        return
    if said.code:
        why = said.errors.strip().splitlines()[-1].partition(": ")[2]
        yield failed(name, why, "correct --listen")
        return
    address = said.output.strip()
    if address.startswith("127.") or address == "::1":
        yield warning(
            name,
            f"other nodes would reach {host} at {address}, which is this node only",
            "for several nodes give --listen with an interface or a network",
        )
    else:
        yield ok(name, f"other nodes reach {host} at {address}")


def peers(machine: CheckedMachine) -> Iterator[Check]:
    """A refused connection proves a live host, too."""
    yield from _peers_of_mount(machine)
    wanted = list(machine.peers)
    if machine.settings.hostfile is not None:
        from copperfs.launch.hostfile import PORT_DEFAULT, read_hostfile

        try:
            hosts = read_hostfile(machine.settings.hostfile, machine.settings.port or PORT_DEFAULT)
        except CopperError as error:
            yield failed("peers", str(error), "correct --hostfile")
            hosts = ()
        wanted += [f"{host.name}:{host.port}" for host in hosts]
    if not wanted:
        if machine.mountpoint is None:
            yield ok("peers", "none were named (--peer, --hostfile or a mount point)")
        return
    script = (
        "import socket, sys\n"
        "host, port = sys.argv[1].rsplit(':', 1)\n"
        "try: socket.create_connection((host, int(port)), timeout=float(sys.argv[2])).close()\n"
        "except ConnectionRefusedError: print('refused')\n"
        "except socket.gaierror: print('unknown')\n"
        "else: print('answers')"
    )
    places = [each if ":" in each else f"{each}:{machine.port}" for each in wanted]
    asides = [Aside.start(python_aside(script, each, f"{CONNECTS_WITHIN_S}")) for each in places]
    for place, aside in zip(places, asides, strict=True):
        said = aside.said(ASIDE_S)
        match said.output.strip():
            case "answers":
                yield ok("peers", f"{place} answers")
            case "refused":
                yield ok("peers", f"{place} is reached; nothing listens there yet")
            case "unknown":
                yield failed(
                    "peers",
                    f"{place}: the name is not known here",
                    "correct the name, or /etc/hosts",
                )
            case _:
                yield failed(
                    "peers",
                    f"{place} cannot be reached",
                    "check that the node is up, and firewalls; --listen chooses the network",
                )


def _peers_of_mount(machine: CheckedMachine) -> Iterator[Check]:
    if machine.mountpoint is None:
        return
    said = run_aside(copperfs_aside("tree", "--json", machine.mountpoint), 2 * ASIDE_S)
    if said.code is None:
        yield failed(
            "peers",
            f"{machine.mountpoint} does not answer",
            f"copperfs bugreport {machine.mountpoint}",
        )
    elif said.code:
        yield failed("peers", sentence_of(said.errors), "name a mount point of copperfs")
    else:
        document = json.loads(said.output)
        shown = f"{document['nodes']} of {document['roster']} nodes answered"
        missing = [each["name"] for each in document["missing"]]
        suspects = [each["name"] for each in document["suspects"]]
        if missing or suspects:
            bad = ", ".join(dict.fromkeys([*missing, *suspects]))
            yield warning(
                "peers",
                f"{shown}; missing or suspected: {bad}",
                "look at those nodes: copperfs tree shows who does not reach whom",
            )
        else:
            yield ok("peers", shown)


PEER_CHECKS: tuple[Callable[[CheckedMachine], Iterator[Check]], ...] = (mpi, resolution, peers)
