"""Runs rdma-core's Python tests and prints a line for each: OUTCOME TAB ID TAB REASON.

    run.py TESTS

TESTS is the folder `tests` of rdma-core. Outcomes: ok, skipped, failed, hang. Each file of tests runs in its own
process, because a device belongs to the process that opened it. If a test hangs or crashes, the later tests of its file
are not run.
"""

import os
import select
import signal
import sys
import unittest

# Time limit, in seconds, between two results; generous because the machine may be busy.
PATIENCE = 120
# Names of test files that need a hardware driver, or a graphics card's memory.
OTHERS = ("mlx5", "efa", "cuda")


def load(folder):
    sys.path[:0] = [folder, os.path.dirname(folder)]
    from args_parser import parser

    sys.argv[1:] = []
    parser.parse_args()
    for name in sorted(os.listdir(folder)):
        if name.startswith("test_") and name.endswith(".py") and not any(other in name for other in OTHERS):
            suites = unittest.defaultTestLoader.loadTestsFromName("tests." + name[:-3])
            yield [test for suite in suites for test in suite]


def outcome(test):
    result = unittest.TestResult()
    test.run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    bad = result.errors + result.failures
    if bad:
        return "failed", bad[0][1].strip().splitlines()[-1]
    return "ok", ""


def serve(tests, writer):
    """Runs the tests, in the child process, and writes a line for each to `writer`."""
    # The tests' own output is not part of the result.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for test in tests:
        word, reason = outcome(test)
        os.write(writer, f"{word}\t{test.id()}\t{reason.splitlines()[0] if reason else ''}\n".encode()[:4000])


def run(tests):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(reader)
        serve(tests, writer)
        os._exit(0)
    os.close(writer)
    seen = b""
    end = "failed"
    while True:
        if not select.select([reader], [], [], PATIENCE)[0]:
            end = "hang"
            break
        more = os.read(reader, 4096)
        if not more:
            break
        seen += more
    os.close(reader)
    for pid in (-child, child):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, status = os.waitpid(child, 0)
    print(seen.decode(), end="")
    done = seen.count(b"\n")
    if done < len(tests):
        print(f"{end}\t{tests[done].id()}\tits process ended with status {status}")
    sys.stdout.flush()


def main():
    for tests in load(sys.argv[1]):
        run(tests)


main()
