"""Cases: pairs of programs, and the checks of their results."""

import dataclasses
import typing

from field import need


@dataclasses.dataclass
class Case:
    name: str
    run: typing.Callable
    # The programs that must be installed, and the Debian packages that contain them.
    needs: tuple
    packages: tuple
    # Whether the case is part of --quick.
    quick: bool

    def start(self, field, long):
        need(*self.needs)
        return self.run(field, long)


ALL = []


def case(name, needs="", packages="", quick=False):
    def take(run):
        ALL.append(Case(name, run, tuple(needs.split()), tuple(packages.split()), quick))
        return run

    return take


def load():
    """Returns all cases, in the order of the table."""
    import stock, hpc, storage, spdk, others  # noqa: E401, F401

    return ALL
