"""Hostile and honest peers come and go for a long time. The server must not use more at the end than after the first round."""

import random
import time

import lab
import verdict

# Number of peers in each attack, and in the churn: peers that connect and leave all the time.
PEERS, CHURNERS = 100, 20
# KiB by which a server may have grown at the end.
FLAT_KIB = 8 << 10


def soak(campaign, known, minutes, out):
    """Runs attack after attack for `minutes`, at least one of each kind; returns the problems."""
    campaign.settle()
    chance, troubles, reference, rounds = random.Random(7), [], None, 0
    began = time.monotonic()
    churn = campaign.field.attack(known["churn-echo"], lab.PORT, CHURNERS)
    try:
        churn.line(20)
        while reference is None or time.monotonic() < began + 60 * minutes:
            order = list(known.values())
            chance.shuffle(order)
            for kind in order:
                if reference and time.monotonic() >= began + 60 * minutes:
                    break
                felt, tally, peak, _ = campaign.measure(kind, lab.PORT, PEERS)
                found = verdict.of_data(felt, tally)
                troubles += [f"{kind.name}: {trouble}" for trouble in found]
                minute = (time.monotonic() - began) / 60
                out(f"{minute:6.1f} min  {kind.name:<20} {peak['kib']:>8} KiB {peak['descriptors']:>4} descriptors  {'; '.join(found)}")
            rounds += 1
            if reference is None:
                reference = lab.footprint(campaign.field.server.pid)
    finally:
        churn.end()
        churn.kill()
    felt = campaign.field.honest.tell("mark")
    after = campaign.calm(felt)
    if after is None:
        troubles.append("the server has not let go of its connections")
        after = lab.footprint(campaign.field.server.pid)
    troubles += verdict.of_data(felt, {})
    if after["kib"] > reference["kib"] + FLAT_KIB:
        troubles.append(f"memory grew from {reference['kib']} to {after['kib']} KiB")
    for what in ("descriptors", "threads"):
        if after[what] > campaign.start[what] + verdict.KEPT_DESCRIPTORS:
            troubles.append(f"{after[what] - campaign.start[what]} {what} kept")
    idle = campaign.rest()
    out(f"with nobody connected the server takes {idle:.1f} % of a core; before the soak {campaign.idle:.1f} %")
    troubles += verdict.of_rest(campaign.idle, idle)
    return {"rounds": rounds, "first": reference, "after": after, "troubles": troubles}
