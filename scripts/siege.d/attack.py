#!/usr/bin/env python3
"""Runs hostile peers of one kind until standard input ends: attack.py KIND ADDRESS PORT COUNT.

Prints a line when the attack is under way, and a line of JSON with its results at the end. Needs root in the attackers' network
namespace; `scripts/siege` starts it.
"""

import asyncio
import gc
import json
import resource
import sys

sys.dont_write_bytecode = True

import frames  # noqa: E402
import kinds  # noqa: E402
import lab  # noqa: E402
import peer  # noqa: E402
import rawtcp  # noqa: E402

# Seconds after which an attack counts as under way, even if some peers' first attempts have no outcome yet.
PATIENCE = 4


def sources(count):
    """Returns source addresses for the peers, which the lab has given to the kernel."""
    return [f"10.78.{1 + n // 250}.{1 + n % 250}" for n in range(count)]


async def attack(kind, target, count):
    tally = peer.Tally()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    aim = frames.Aim(*target, closed=target[1] == lab.CLOSED)
    if kind.by == "socket":
        run, goal = peer.run(kind, target, sources(kind.addresses), tally, count, ended), count
    elif kind.by == "raw":
        run, goal = rawtcp.run(kind, aim, count, tally, ended), count
    elif kind.by == "frames":
        run, goal = frames.flood(kind, aim, count, tally, ended), 1
    else:
        run, goal = kind.run(kind.at, tally, ended), 1
    task = asyncio.create_task(run)
    until = asyncio.get_running_loop().time() + PATIENCE
    while tally.settled < goal and not task.done() and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.005)
    print("under way", flush=True)
    await task
    print(json.dumps(vars(tally)), flush=True)


def main():
    name, address, port, count = sys.argv[1:]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Garbage collection is off, because it would only look through thousands of tasks, none of which is garbage.
    gc.disable()
    asyncio.run(attack(kinds.load()[name], (address, int(port)), int(count)))


if __name__ == "__main__":
    main()
