"""The kinds of siege. A kind is a coroutine for a peer or a listener, or a function that makes frames, with a name."""

import dataclasses
import typing


@dataclasses.dataclass
class Kind:
    name: str
    # Description in one line, for the table of `--list`.
    what: str
    # Transport of the attack: "socket" (the kernel's TCP), "raw" (our own TCP), "frames" (no connection), or "listen"
    # (the server connects to us).
    by: str
    run: typing.Callable
    # Pause between two connections of a peer, in seconds.
    pause: float = 0.5
    # Number of connections in a --short run.
    short: int = 100
    # Number of source addresses of the peers.
    addresses: int = 1
    # Whether connections stay until the server gives them up.
    lingers: bool = False
    # The address that the server connects to, for "listen".
    at: str = "10.78.1.1"


ALL = {}

# The kinds of a --short run, which takes a minute: kinds that once silenced a server, and some kinds of each group.
SHORT = """
stop-inside stop-inside-many gap-before gap-inside idle-connect idle-connect-many startup-drip startup-oversize startup-garbage
half-closed silent churn churn-reset dribble crumbs long-fpdus bad-crc bad-stag bad-headers many-sends long-send cut-by-fin
terminates reads-beyond-ird reads-never-taken half-open window-zero window-one holes overlaps sack-reneges syn-flood fragments
arp-claims listen-silent listen-stops-inside
""".split()


def kind(name, what, by="socket", **more):
    def take(run):
        ALL[name] = Kind(name, what, by, run, **more)
        return run

    return take


def load():
    """Returns all kinds by name."""
    import kinds_floods, kinds_listen, kinds_startup, kinds_stream, kinds_tcp  # noqa: F401

    return ALL
