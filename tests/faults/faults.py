"""Runs of `headroom train` that are killed, that meet a disk that fails, and that meet each other in one folder.

After every fault no checkpoint that was there may be lost or torn, and the run that goes on has to end with the bits of one
that nobody disturbed: weights, optimizer state, state.json and the tokenizer's files are compared byte by byte.

Usage: faults.py PROGRAM SHIM --short|--long [--seed N]
SHIM is the library of faulty_calls.cpp. --short draws a few faults of every kind (under 20 s). --long kills 200 processes at
random moments, strikes every call of the system that writes in three ways, and begins two runs at once 50 times, and three.
The seed is printed.
"""
import argparse
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 6
SAVE_EVERY = 2
FILES = ("config.json", "model.safetensors", "optimizer.safetensors", "state.json")


def make_model(folder, generator):
    """A Qwen3 so small that a step takes a millisecond, with a tokenizer of its own."""
    hidden, vocab, heads, head_dim, mlp = 16, 256, 2, 8, 24
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    layer = {"input_layernorm": [hidden], "self_attn.q_proj": [heads * head_dim, hidden], "self_attn.k_proj": [head_dim, hidden],
             "self_attn.v_proj": [head_dim, hidden], "self_attn.o_proj": [hidden, heads * head_dim], "self_attn.q_norm": [head_dim],
             "self_attn.k_norm": [head_dim], "post_attention_layernorm": [hidden], "mlp.gate_proj": [mlp, hidden],
             "mlp.up_proj": [mlp, hidden], "mlp.down_proj": [hidden, mlp]}
    shapes.update({f"model.layers.0.{name}.weight": shape for name, shape in layer.items()})
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = 1
        for extent in shape:
            count *= extent
        values = [1.0] * count if len(shape) == 1 else [generator.uniform(-0.25, 0.25) for _ in range(count)]
        begin = len(data)
        data += struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "qwen3", "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": 1,
        "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": head_dim, "intermediate_size": mlp,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "eos_token_id": 3}))
    (folder / "tokenizer.json").write_text("{}")


class Faults:
    def __init__(self, program, shim, folder, seed):
        self.program, self.shim, self.folder = program, shim, folder
        self.random = random.Random(seed)
        self.out = folder / "run"
        self.mark = folder / "struck"
        self.failures = []
        make_model(folder / "model", self.random)
        (folder / "data.txt").write_bytes(self.random.randbytes(20000).translate(bytes(97 + i % 26 for i in range(256))))
        begin = time.monotonic()
        self.run([])
        self.seconds = time.monotonic() - begin
        self.whole = self.last_files()
        if self.whole is None:
            sys.exit("faults: the run without faults left no checkpoint")
        # Where resumed runs begin.
        self.reset(False)
        self.run(["--keep-last", "9"])
        self.half = folder / "half"
        shutil.copytree(self.out, self.half)
        for step in range(2 * SAVE_EVERY, STEPS + 1, SAVE_EVERY):
            shutil.rmtree(self.half / f"step-{step:08}")

    def command(self, more):
        return [self.program, "train", "--model", str(self.folder / "model"), "--data", str(self.folder / "data.txt"),
                "--context", "16", "--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--budget", "16MiB",
                "--threads", "1", "--dtype", "f32", "--out", str(self.out), *more]

    def start(self, more, fault=None):
        environment = dict(os.environ)
        if fault is not None:
            environment.update(LD_PRELOAD=self.shim, HEADROOM_FAULT=fault, HEADROOM_FAULT_MARK=str(self.mark))
        return subprocess.Popen(self.command(more), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish(self, process, what, codes):
        """The exit code, which has to be one of these; an error is one line."""
        try:
            error = process.communicate(timeout=120)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            error = process.communicate()[1] + "hangs\n"
        code = process.returncode
        if code not in codes:
            self.fail(what, f"exit {code}, expected one of {codes}: {error!r}")
        elif code > 0 and (error.count("\n") != 1 or not error.startswith("headroom: ")):
            self.fail(what, f"exit {code} with {error!r}")
        return code

    def run(self, more, what="run"):
        return self.finish(self.start(more), what, (0,))

    def fail(self, what, text):
        self.failures.append(f"{what}: {text}")
        print(f"FAILED {what}: {text}", flush=True)

    def steps(self, what=None):
        """The steps of the complete checkpoints. None may be incomplete: a folder appears whole."""
        found = []
        for path in sorted(self.out.glob("step-*")):
            if all((path / name).is_file() for name in FILES):
                found.append(int(path.name[5:]))
            elif what is not None:
                self.fail(what, f"{path.name} is not complete: {sorted(os.listdir(path))}")
        return found

    def last_files(self):
        path = self.out / f"step-{STEPS:08}"
        return {file.name: file.read_bytes() for file in sorted(path.iterdir())} if path.is_dir() else None

    def reset(self, resumed):
        shutil.rmtree(self.out, ignore_errors=True)
        if resumed:
            shutil.copytree(self.half, self.out)

    @staticmethod
    def how_to_go_on(steps):
        """A run that left no checkpoint may have left metrics, which another begins anew only when it is told to."""
        return ["--resume"] if steps else ["--overwrite"]

    def go_on(self, before, what):
        """After a fault: nothing is lost, and the run ends as it would have."""
        steps = self.steps(what)
        if before and (not steps or max(steps) < max(before)):
            self.fail(what, f"had checkpoints {before}, has {steps}")
        unfinished = STEPS not in steps
        if unfinished:
            self.run(self.how_to_go_on(steps), f"{what}, resumed")
        self.compare(what, tidy=unfinished)

    def compare(self, what, tidy=True):
        """The last checkpoint has the bytes of the undisturbed run's; a run that came to its end leaves nothing else."""
        found = self.last_files()
        if found != self.whole:
            names = [] if found is None else [n for n in set(found) | set(self.whole) if found.get(n) != self.whole.get(n)]
            self.fail(what, "no last checkpoint" if found is None else f"other bytes in {sorted(names)}")
        leftovers = [n for n in os.listdir(self.out) if not n.startswith("step-") and n != "metrics.jsonl"]
        if tidy and leftovers:
            self.fail(what, f"leaves {leftovers}")

    def kills(self, count):
        """kill -9 at random moments, run after run."""
        killed = 0
        self.reset(False)
        while killed < count and len(self.failures) < 10:
            what = f"kill {killed + 1}"
            before = self.steps(what)
            process = self.start(self.how_to_go_on(before))
            time.sleep(self.random.uniform(0, 1.1 * self.seconds))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
            self.finish(process, what, (0, -signal.SIGKILL))
            steps = self.steps(what)
            if before and (not steps or max(steps) < max(before)):
                self.fail(what, f"had checkpoints {before}, has {steps}")
            if STEPS in steps:
                self.compare(what, tidy=process.returncode == 0)
                self.reset(False)
        return killed

    def calls(self, every_call, sample):
        """Each call of the system that writes, struck: of a run from its beginning and of one that is resumed."""
        struck = 0
        for resumed in (False, True):
            more = ["--resume"] if resumed else []
            count = self.count(resumed)
            for mode, codes in (("kill", (-signal.SIGKILL,)), ("error", (0, 1, 2)), ("full", (0, 1, 2))):
                numbers = range(1, count + 1)
                for call in numbers if every_call else sorted(self.random.sample(numbers, sample)):
                    what = f"{mode} at call {call} of a {'resumed' if resumed else 'new'} run"
                    self.reset(resumed)
                    before = self.steps()
                    self.mark.unlink(missing_ok=True)
                    process = self.start(more, f"{mode}:{call}")
                    # Where the removal of a temporary name fails, such as the lock's, the run goes on.
                    code = self.finish(process, what, codes)
                    if code == 2 and self.out.exists():  # a folder that cannot be made is the only bad input here
                        self.fail(what, "exit 2")
                    if self.mark.exists():
                        struck += 1
                        self.go_on(before, what)
                    elif mode != "full":  # after the last call that needs space nothing is struck
                        self.fail(what, "was not reached")
                    if len(self.failures) >= 10:
                        return struck
        return struck

    def count(self, resumed):
        """How many calls there are to strike."""
        self.reset(resumed)
        self.finish(self.start(["--resume"] if resumed else [], "count"), "count", (0,))
        return int(self.mark.read_text())

    def races(self, rounds):
        """Two and three runs in one folder at once: one of them runs, the others are refused."""
        for i in range(rounds):
            resumed = i % 4 >= 2
            self.reset(resumed)
            processes = []
            for _ in range(2 + i % 2):
                processes.append(self.start(["--resume"] if resumed else []))
                time.sleep(self.random.choice((0, 0, self.random.uniform(0, self.seconds))))
            what = f"{len(processes)} runs at once, {'resumed' if resumed else 'new'}, round {i + 1}"
            codes = [self.finish(process, what, (0, 2)) for process in processes]
            if codes.count(0) != 1:
                self.fail(what, f"exit codes {codes}")
            self.compare(what)
            if len(self.failures) >= 10:
                return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("shim")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--short", action="store_true")
    length.add_argument("--long", action="store_true")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"faults: seed {arguments.seed}", flush=True)
    # What a process that dies leaves is the same in memory, and a sync takes no time there.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="headroom-faults-", dir=memory) as folder:
        faults = Faults(os.path.abspath(arguments.program), os.path.abspath(arguments.shim), Path(folder), arguments.seed)
        print(f"faults: a run takes {faults.seconds:.2f} s", flush=True)
        begin = time.monotonic()
        print(f"faults: {faults.kills(200 if arguments.long else 20)} runs killed at random moments", flush=True)
        print(f"faults: {faults.calls(arguments.long, 8)} calls of the system struck", flush=True)
        rounds = 100 if arguments.long else 8
        faults.races(rounds)
        print(f"faults: {rounds} times two or three runs at once; {time.monotonic() - begin:.0f} s", flush=True)
    if faults.failures:
        sys.exit(f"faults: {len(faults.failures)} failed, seed {arguments.seed}")
    print("faults: nothing lost, nothing replaced, every resumed run has the same bits")


if __name__ == "__main__":
    main()
