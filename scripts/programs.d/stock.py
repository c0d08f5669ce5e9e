"""rdma-core's own programs, perftest, fio, qperf."""

import re

from cases import case
from field import ADDRESS, Failed


@case("rping: 100 rounds, verified; one of 60,000 bytes", "rping", "rdmacm-utils", quick=True)
def rping(field, _long):
    server, client = field.pair("rping -s -v -V -C 100", f"rping -c -v -V -C 100 -a {ADDRESS}")
    for said in (server, client):
        if said.count("rdma-ping-") != 100:
            raise Failed(f"not 100 pings: {said[-500:]}")
    field.pair("rping -s -V -C 5 -S 60000", f"rping -c -V -C 5 -S 60000 -a {ADDRESS}")


@case("rdma_server, rdma_xserver and their clients", "rdma_server rdma_xserver", "rdmacm-utils", quick=True)
def endpoints(field, _long):
    for kind in ("rdma_", "rdma_x"):
        field.pair(f"{kind}server", f"{kind}client -s {ADDRESS}")


@case("rsockets: rstream, riostream, verified", "rstream riostream", "rdmacm-utils", quick=True)
def rsockets(field, _long):
    for program in ("rstream -T v -C 100 -S 10000", "riostream -T v -C 100 -S 65536"):
        field.pair(program, f"{program} -s {ADDRESS}")


@case("cmtime: 1,000 connections", "cmtime", "rdmacm-utils")
def cmtime(field, _long):
    server = field.serve(f"cmtime -b {ADDRESS} -c 1000")
    field.run(f"cmtime -s {ADDRESS} -c 1000")
    server.stop()


# The client may ask for its second connection before the server listens again. Then the client is refused.
EARLY = re.compile(r"RDMA_CM_EVENT_REJECTED|Unexpected CM event|rdma_client function|connection with the remote")


def perftest(field, command):
    for chance in range(10):
        serving = field.serve(command, 18515)
        client = field.start(f"{command} {ADDRESS}")
        said = client.ends(status=None)
        if client.process.returncode == 0:
            serving.ends()
            if not re.search(r"^ *\d+ +\d+ +[\d.]+ ", said, re.M):
                raise Failed(f"{command}: no result in {said[-500:]}")
            return
        serving.kill()
        if not EARLY.search(said):
            break
    raise Failed(f"{command}: {said[-800:]}")


PERFTEST = [f"ib_{op}_{what} -R" for op in ("write", "read", "send") for what in ("lat", "bw")]


@case("perftest -R: Writes, Reads, Sends, latency and bandwidth", "ib_write_lat", "perftest", quick=True)
def perftest_defaults(field, _long):
    for command in PERFTEST:
        perftest(field, command)


@case("perftest -R: 16 queue pairs, one receive queue for all, events, both directions, all sizes", "ib_write_lat", "perftest")
def perftest_modes(field, long):
    modes = [
        "ib_write_bw -R -q 16 -b",
        "ib_read_bw -R -q 16",
        "ib_send_bw -R -q 16 --use-srq",
        "ib_send_bw -R -e -n 495 -Q 99",
        "ib_send_lat -R -e",
        "ib_atomic_bw -R -A FETCH_AND_ADD",
        "ib_atomic_lat -R -A CMP_AND_SWAP",
    ]
    sizes = [f"{command} -a -n 100" for command in PERFTEST]
    for command in modes + (sizes if long else sizes[1::2]):
        perftest(field, command)


@case("fio: Writes, Reads, Sends (depth 1, verified)", "fio", "fio", quick=True)
def fio(field, _long):
    common = "--ioengine=rdma --port=7777 --bs=64k --size=16m"
    verified = "--verify=crc32c --verify_state_save=0"
    for verb, depth, written, read in (
        ("write", 16, "", ""),
        ("read", 16, "", ""),
        ("send", 1, f"{verified} --do_verify=0", verified),
    ):
        said = field.pair(
            f"fio --name=r {common} --rw=read --iodepth={depth} {read}",
            f"fio --name=s {common} --hostname={ADDRESS} --verb={verb} --rw=write --iodepth={depth} {written}",
            7777,
        )
        for printed in said:
            if "err= 0" not in printed:
                raise Failed(f"{verb}: {printed[-800:]}")


@case("qperf -cm 1: rc_lat, rc_bw, rc_rdma_read_bw, rc_rdma_write_lat", "qperf", "qperf")
def qperf(field, _long):
    for test in ("rc_lat", "rc_bw", "rc_rdma_read_bw", "rc_rdma_write_lat"):
        # The program's server announces a port before it listens there, so a faster client is refused.
        for chance in range(10):
            server = field.serve("qperf", 19765)
            client = field.start(f"qperf -cm 1 {ADDRESS} -t 1 {test}")
            said = client.ends(status=None)
            server.kill()
            if client.process.returncode == 0 and re.search(r"(latency|bw) +=", said):
                break
        else:
            raise Failed(f"{test}: {said[-500:]}")
