"""A PyTorch side of a comparison in a process of its own, so that its peak memory is its own and running out is an answer.

The script starts itself with --side and a request in JSON; that process measures and prints one line of JSON. The peak is
ru_maxrss, the largest resident set the kernel saw: PyTorch keeps no account of its CPU allocations. What the C
library holds back after a free counts too: much of it in cases of a few MiB, nothing in blocks above 32 MiB.
"""
import json
import resource
import statistics
import subprocess
import sys
import time


def available_bytes():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def resident_bytes():
    with open("/proc/self/statm") as line:
        return int(line.read().split()[1]) * resource.getpagesize()


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_side(script, request):
    """What `serve` printed, with status ok; or a status that says why there is no measurement."""
    child = subprocess.run([sys.executable, script, "--side", json.dumps(request)], capture_output=True, text=True)
    if child.returncode != 0:
        lines = child.stderr.strip().splitlines() or ["no message"]
        return {"status": f"exit {child.returncode}: {lines[-1]}"}
    return {"status": "ok", **json.loads(child.stdout.splitlines()[-1])}


def serve(request, measure):
    # Refused by the allocator rather than killed by the kernel, which may choose somebody else.
    limit = int(0.9 * available_bytes())
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    print(json.dumps(measure(json.loads(request))))


def run_headroom(command):
    """The whole answer, and its only row; the row's status may say that it did not run."""
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result, result["rows"][0]


def repeat(once, seconds):
    """Medians of what `once` returns (a tuple of seconds), over at least one run and as many as begin in time; in ms."""
    runs = []
    begin = time.perf_counter()
    while not runs or time.perf_counter() - begin < seconds:
        runs.append(once())
    return [statistics.median(values) * 1e3 for values in zip(*runs)]


def median_of(rounds, value):
    """The median over the rounds in which both sides ran, or None."""
    found = [v for v in map(value, rounds) if v is not None]
    return statistics.median(found) if found else None
