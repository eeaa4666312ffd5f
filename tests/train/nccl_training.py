"""Training over NCCL, several processes on one GPU: they have the losses of one process, whatever they divide.

Usage: nccl_training.py PROGRAM RUN_RANKS [MPIRUN...]
RUN_RANKS starts processes as torchrun does (tests/comm/run_ranks.sh). Exits with 77 where there is no GPU.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 6
PATIENCE = 120  # seconds after which a run counts as one that hangs


def losses(command, folder, more=()):
    """Of every step of a run of `command`; none where it fails or hangs."""
    process = subprocess.Popen([*command, "train", "--model", "demo", "--data", "recall", "--context", "512", "--batch", "2", "--steps",
                                str(STEPS), "--dtype", "f32", "--device", "cuda:0", "--budget", "256MiB", "--out", str(folder), *more],
                               stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        if process.wait(PATIENCE) != 0:
            return []
    except subprocess.TimeoutExpired:
        print(f"hangs: no end after {PATIENCE} s")
        return []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its ranks too: they would keep the GPU busy
            process.wait()
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def main():
    program, run_ranks, *mpirun = sys.argv[1:]
    devices = json.loads(subprocess.run([program, "devices", "--json"], check=True, capture_output=True, text=True).stdout)
    if not any(device["device"] == "cuda:0" for device in devices["devices"]):
        print("skipped: there is no GPU")
        return 77
    runs = [([run_ranks, "2"], ["--shard", "none"]), ([run_ranks, "3"], ["--shard", "optimizer", "--loss-ranks", "vocabulary"])]
    if mpirun:
        runs += [([*mpirun, "-n", "2"], ["--shard", "full"]), ([*mpirun, "-n", "2"], ["--ring", "1"])]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        alone = losses([program], Path(folder, "alone"))
        if len(alone) != STEPS:
            print("FAILED one process alone")
            return 1
        for index, (launcher, more) in enumerate(runs):
            given = losses([*launcher, program], Path(folder, str(index)), more)
            worst = max((abs(a - b) / a for a, b in zip(alone, given)), default=1)
            good = len(given) == STEPS and worst < 1e-4 and abs(given[0] - alone[0]) < 1e-6 * alone[0]
            failed += not good
            print("passed" if good else "FAILED", Path(launcher[0]).name, launcher[-1], *more, f"worst {worst:.1e}", flush=True)
    return 1 if failed else 0


sys.exit(main())
