"""Cases of libfabric, fabtests and OpenMPI."""

import os
import re
import subprocess

from cases import case
from field import ADDRESS, Failed, Skipped

PROVIDERS = (("verbs", "msg"), ("verbs;ofi_rxm", "rdm"))

# ofi_rxm 1.17 crashes if it learns of the peer's disconnection before it has polled a completion: it posts that receive
# again to the endpoint that it has just closed. The first of the two fi_pingpong to end disconnects while the other may
# still have its last completion to poll, so a processor taken away between the two looks is enough. ofi_rxm looks for
# events of connections every 10 ms; once a second (in us), it does not meet the end of so short a run.
PATIENT = {"FI_OFI_RXM_CM_PROGRESS_INTERVAL": "1000000"}


@case("fi_pingpong: verbs msg, verbs;ofi_rxm rdm, verified", "fi_pingpong", "libfabric-bin", quick=True)
def pingpong(field, _long):
    for provider, kind in PROVIDERS:
        server = ["fi_pingpong", "-p", provider, "-e", kind, "-c"]
        said = field.pair(server, [*server, ADDRESS], 47592, environment=PATIENT)
        if not re.search(r"^\S+ +\d+ ", said[1], re.M):
            raise Failed(f"{provider}: no result in {said[1]}")


# libfabric's provider has no immediate data on iWARP, and so no remote completion data. fi_cq_data -e rdm is excluded,
# because it would send completion data of no octets, and then fail because the data is missing.
FABTESTS = (("verbs", "verbs", ""), ("verbs;ofi_rxm", "ofi_rxm", "cq_data"))

# fabtests' runner reaches both ends by ssh. This stand-in for ssh runs the command locally, because both ends are
# local.
SSH = """#!/bin/bash
while [ "${1#-}" != "$1" ]; do
    [ "$1" = -o ] && shift
    shift
done
shift
exec bash -c "$*"
"""


@case("fabtests (--fabtests DIR): unit, functional and short tests, except those that its lists exclude")
def fabtests(field, _long):
    folder = field.given["fabtests"]
    if not folder:
        raise Skipped("no --fabtests DIR, the prefix at which fabtests were installed")
    with open(field.path("ssh"), "w") as file:
        file.write(SSH)
    os.chmod(file.name, 0o755)
    runner = os.path.join(folder, "bin", "runfabtests.sh")
    path = os.pathsep.join([field.folder.name, os.path.join(folder, "bin"), os.environ["PATH"]])
    bad = []
    for provider, lists, others in FABTESTS:
        excluded = os.path.join(folder, "share/fabtests/test_configs", lists, f"{lists}.exclude")
        options = ["-vv", "-T", "60", "-t", "unit,functional,short", "-f", excluded, "-s", ADDRESS, "-c", ADDRESS]
        options += ["-e", others] if others else []
        said = field.run(["bash", runner, *options, provider, ADDRESS, ADDRESS], 1800, status=None, environment={"PATH": path})
        failed = re.findall(r"^- name: +(.*)\n(?: +.*\n)*? +result: Fail", said, re.M)
        passed = re.search(r"^# Total Pass +(\d+)", said, re.M)
        if failed or not passed:
            bad += [f"{provider}: {name}" for name in failed] or [f"{provider}: nothing passed: {said}"]
    if bad:
        raise Failed("\n".join(bad))


@case("OpenMPI over OFI (verbs;ofi_rxm): 2 and 4 ranks, verified", "mpirun mpicc", "openmpi-bin libopenmpi-dev")
def openmpi(field, _long):
    program = field.path("ranks")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ranks.c")
    done = subprocess.run(["mpicc", "-O2", "-Wall", "-o", program, source], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"mpicc: {done.stderr}")
    chosen = {"pml": "cm", "mtl": "ofi", "mtl_ofi_provider_include": "verbs;ofi_rxm", "oob_tcp_if_include": "lo"}
    options = [word for name, value in chosen.items() for word in ("--mca", name, value)]
    for ranks in (2, 4):
        words = ["mpirun", "--allow-run-as-root", "--oversubscribe", *options, "-np", str(ranks), field.urnic, "run", "--", program]
        said = field.run(words, 120, plain=True)
        if f"{ranks} ranks agree" not in said:
            raise Failed(said)
