"""libfabric, fabtests, OpenMPI."""

import os
import re
import subprocess

from cases import case
from field import ADDRESS, Failed, Skipped

PROVIDERS = (("verbs", "msg"), ("verbs;ofi_rxm", "rdm"))


@case("fi_pingpong: verbs msg, verbs;ofi_rxm rdm, verified", "fi_pingpong", "libfabric-bin", quick=True)
def pingpong(field, _long):
    for provider, kind in PROVIDERS:
        server = ["fi_pingpong", "-p", provider, "-e", kind, "-c"]
        said = field.pair(server, [*server, ADDRESS], 47592)
        if not re.search(r"^\S+ +\d+ ", said[1], re.M):
            raise Failed(f"{provider}: no result in {said[1]}")


FABTESTS = {
    "verbs": """fi_msg_pingpong fi_msg_bw fi_rma_bw|-e|msg|-o|write fi_rma_bw|-e|msg|-o|read fi_msg fi_msg_epoll fi_msg_sockets
        fi_shared_ctx|-e|msg fi_cq_data|-e|msg fi_rma_event|-e|msg fi_multi_mr|-e|msg""".split(),
    "verbs;ofi_rxm": """fi_rdm fi_rdm_pingpong fi_rdm_tagged_pingpong fi_rdm_tagged_bw fi_rma_bw|-e|rdm|-o|write
        fi_rdm_multi_domain fi_cq_data|-e|rdm fi_rdm_shared_av fi_rma_event|-e|rdm fi_rdm_rma_trigger fi_bw|-e|rdm
        fi_poll|-t|queue fi_rdm_atomic|-o|all""".split(),
}


@case("fabtests (--fabtests DIR): functional tests and benchmarks")
def fabtests(field, _long):
    folder = field.given["fabtests"]
    if not folder:
        raise Skipped("no --fabtests DIR, the folder with its programs")
    bad = []
    for provider, tests in FABTESTS.items():
        for test in tests:
            name, *options = test.split("|")
            program = os.path.join(folder, name)
            if not os.access(program, os.X_OK):
                bad.append(f"{name}: not there")
                continue
            words = [program, "-p", provider, *options]
            try:
                server = field.start([*words, "-s", ADDRESS])
                server.wait_for(lambda: True, "starts")
                # They wait for their server for a while.
                field.run([*words, ADDRESS], 30)
                server.ends(30)
            except Failed as failed:
                bad.append(f"{' '.join([provider, name, *options])}: {str(failed).splitlines()[-1]}")
                for program in field.running:
                    program.kill()
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
