"""Judges the honest client's results, and the server's use of resources."""

# Milliseconds by which a stall of the honest client may exceed its stall while the same attackers aim at a closed port.
STALL_MS = 50
# Factor by which a 99th percentile may exceed the percentile with a closed port.
TIMES = 3
# Below this many microseconds, naps and the scheduler determine a 99th percentile.
NOISE_US = 5000
# MiB that a server may use during an attack in addition to its use at the start (128 of them for unfinished FPDUs), and
# MiB that it may keep after the attack.
TAKEN_MIB, KEPT_MIB = 160, 32
# Numbers of descriptors and of threads that a server may keep after an attack.
KEPT_DESCRIPTORS, KEPT_THREADS = 8, 8
# Per cent of a core by which a server without connections may use more than at the start.
KEPT_CPU = 3


def stall_ms(felt):
    return felt["stall_us"] / 1000


def of_data(felt, attack):
    """Returns the problems that other load on the machine cannot cause."""
    troubles = []
    if felt["failed"]:
        troubles.append(f"{felt['failed']} connections failed ({felt['why']})")
    if felt["rounds"]["count"] == 0 and not felt["failed"]:
        troubles.append("not a round was made")
    if felt["wrong"]:
        troubles.append(f"{felt['wrong']} rounds with wrong data")
    troubles += sorted(set(attack.get("findings", [])))
    return troubles


def of_time(felt, base):
    """Returns the problems that other load on the machine can also cause."""
    troubles = []
    if stall_ms(felt) > stall_ms(base) + STALL_MS:
        troubles.append(f"a stall of {stall_ms(felt):.0f} ms")
    mine, theirs = felt["rounds"]["p99"], base["rounds"]["p99"]
    if mine is not None and mine > max(TIMES * (theirs or 0), NOISE_US):
        troubles.append(f"p99 of rounds {mine} us")
    return troubles


def of_server(start, peak, after, lingers=False):
    troubles = []
    if peak["kib"] - start["kib"] > TAKEN_MIB << 10:
        troubles.append(f"{(peak['kib'] - start['kib']) >> 10} MiB taken")
    if after is None:
        return troubles + ["the server has not let go of its connections"]
    if after["kib"] - start["kib"] > KEPT_MIB << 10:
        troubles.append(f"{(after['kib'] - start['kib']) >> 10} MiB kept")
    # Lingering connections keep descriptors if the server uses the kernel's sockets.
    if not lingers and after["descriptors"] - start["descriptors"] > KEPT_DESCRIPTORS:
        troubles.append(f"{after['descriptors'] - start['descriptors']} descriptors kept")
    if after["threads"] - start["threads"] > KEPT_THREADS:
        troubles.append(f"{after['threads'] - start['threads']} threads kept")
    return troubles


def of_rest(before, after):
    return [f"{after:.1f} % of a core taken with nobody connected, {before:.1f} % before"] if after > before + KEPT_CPU else []


HEADS = (
    "kind                 peers  connects  failed    p50 us        p99 us       connect p99 us    stall ms      MiB  CPU %  verdict\n"
    "                                              base  siege   base  siege    base   siege    base siege    + max"
)


def row(result):
    base, felt = result["base"], result["felt"]

    def number(value):
        return "-" if value is None else str(value)

    def pair(what, quantile, width):
        return f"{number(base[what][quantile]):>{width}} {number(felt[what][quantile]):>{width}}"

    connects = felt["connects"]["count"]
    verdict = "; ".join(result["troubles"]) or "holds"
    return (
        f"{result['kind']:<20} {result['peers']:>5} {connects:>9} {felt['failed']:>7} {pair('rounds', 'p50', 6)} "
        f"{pair('rounds', 'p99', 6)} {pair('connects', 'p99', 7)} {stall_ms(base):>7.0f} {stall_ms(felt):>5.0f} "
        f"{(result['server']['peak']['kib'] - result['server']['start']['kib']) / 1024:>8.0f} {result['server']['cpu_percent']:>6.0f}  {verdict}"
    )
