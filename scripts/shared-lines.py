#!/usr/bin/env python3
"""Counts cache lines that threads take from each other, in a trace of valgrind's lackey (--trace-mem=yes) of
`scaling lines`, in which one thread does in turn what several would do at once.

    shared-lines.py [-n SITES] < trace

A line that is written by one and then touched by another moves once; so does one that is read by one and then written by another.
"""

import bisect, collections, subprocess, sys

sites = int(sys.argv[2]) if sys.argv[1:2] == ["-n"] else 0
marks, who, turns = {}, None, 0
holders, dirty = {}, set()
moves, by_line, code = collections.Counter(), collections.Counter(), collections.defaultdict(collections.Counter)
instructions, at = 0, 0
for text in sys.stdin:
    kind = text[:3]
    if kind == "I  ":
        if who is not None:
            instructions += 1
            at = text[3:text.index(",")]
        continue
    if kind not in (" S ", " L ", " M "):
        words = text.split()
        if words[:1] == ["marks"]:
            marks = {int(mark, 16): number for number, mark in enumerate(words[1:])}
        continue
    if not marks:
        continue
    comma = text.index(",")
    address = int(text[3:comma], 16)
    if address in marks and kind != " L ":
        who = marks[address]
        turns += 1
        continue
    if who is None:
        continue
    size = int(text[comma + 1:])
    for line in range(address >> 6, (address + size - 1 >> 6) + 1):
        held = holders.setdefault(line, set())
        if kind == " L ":
            moved = bool(held) and who not in held and line in dirty
            held.add(who)
        else:
            moved = bool(held - {who})
            holders[line] = {who}
            dirty.add(line)
        # The first rounds only show who had what.
        if moved and turns > 2 * len(marks):
            moves[who] += 1
            by_line[line] += 1
            if sites:
                code[line][at, kind] += 1
counted = turns - 2 * len(marks)
print(f"{turns} turns, {instructions} instructions, {sum(moves.values()) / max(counted, 1):.2f} lines moved per turn, {len(by_line)} lines")
for line, n in by_line.most_common(sites):
    print(f"{line << 6:x} {n / counted:.3f} " + " ".join(f"{a}{k.strip()}:{c}" for (a, k), c in code[line].most_common(6)))
