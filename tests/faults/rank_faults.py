"""Training over ranks that are killed, stopped, slow, or started differently.

A rank that dies, hangs or disagrees ends the whole run within the timeout, with one line that names it; a slow one does not. Every
checkpoint can be read, and a run that goes on, on another number of ranks, has the losses of one that nobody disturbed.

Usage: rank_faults.py PROGRAM --short|--long [--seed N] --mpirun MPIRUN...
--short draws a few faults of every kind, --long 30 kills and 6 of the others. The seed is printed.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faults import FILES, make_model

STEPS = 60
SAVE_EVERY = 10
TIMEOUT = 4  # seconds, of --rank-timeout where a rank stays stopped
# Around the line of a rank that was left while all save.
SAVING = r"(?:step \d+: )?"
SAVED = r"(?:; there is no checkpoint yet|; the last checkpoint is \S+)?"
PATIENCE = 60  # seconds after which a run counts as one that hangs; machines of tests are busy


def read_weights(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def write_weights(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))


class RankFaults:
    def __init__(self, program, mpirun, folder, seed):
        self.program, self.mpirun, self.folder = program, mpirun, folder
        self.random = random.Random(seed)
        self.out = folder / "run"
        self.failures = []
        self.runs = 0
        make_model(folder / "model", self.random)
        (folder / "data.txt").write_bytes(self.random.randbytes(20000).translate(bytes(97 + i % 26 for i in range(256))))
        self.finish(self.start_threads(1), "the undisturbed run", 0)
        self.whole = self.losses()
        begin = time.monotonic()
        self.reset()
        self.finish(self.start(3), "processes that nobody disturbs", 0)
        self.seconds = time.monotonic() - begin
        self.compare("processes that nobody disturbs")

    def options(self, more):
        return [self.program, "train", "--model", str(self.folder / "model"), "--data", str(self.folder / "data.txt"), "--context",
                "48", "--batch", "2", "--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--keep-last", "99", "--budget", "16MiB",
                "--threads", "1", "--dtype", "f32", "--out", str(self.out), *more]

    def division(self, ranks):
        """What so many ranks divide, drawn: the batch of two sequences, the state, and the loss."""
        if ranks == 1:
            return []
        rings = [ranks, ranks // 2] if ranks % 2 == 0 else [ranks]
        return ["--ring", str(self.random.choice(rings)), "--shard", self.random.choice(("none", "optimizer", "full")),
                "--loss-ranks", self.random.choice(("tokens", "vocabulary"))]

    def launch(self, command):
        """A process group of its own, whose processes find each other's ranks in /proc."""
        self.runs += 1
        environment = dict(os.environ, HEADROOM_FAULTS_RUN=f"{os.getpid()}-{self.runs}")
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)

    def start(self, count, more=(), last=None, folders=None):
        """Processes as ranks. `last`: what the last of them is given instead; `folders`: where the first ones and the last begin."""
        if last is None:
            return self.launch([*self.mpirun, "-n", str(count), *self.options(more)])
        first_in, last_in = folders or (self.folder, self.folder)
        return self.launch([*self.mpirun, "-n", str(count - 1), "-wdir", str(first_in), *self.options(more), ":", "-n", "1", "-wdir",
                            str(last_in), *self.options(last)])

    def start_threads(self, count, more=()):
        return self.launch(self.options(["--ranks", str(count), *more]))

    def process_of(self, rank):
        """The process of a rank of the last launch, or None before it is there."""
        wanted = {f"HEADROOM_FAULTS_RUN={os.getpid()}-{self.runs}".encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode()}
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and wanted <= set(Path("/proc", entry, "environ").read_bytes().split(b"\0")):
                    return int(entry)
            except OSError:  # it has ended
                pass
        return None

    def finish(self, process, what, code):
        """What the run has said, which has to be one line where it fails. `code` is the only one, None: any."""
        try:
            error = process.communicate(timeout=PATIENCE)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            error = process.communicate()[1]
            self.fail(what, f"hangs, after {error!r}")
        lines = [line for line in error.splitlines() if line.startswith("headroom: ")]
        if code is not None and process.returncode != code:
            self.fail(what, f"exit {process.returncode}, expected {code}: {error!r}")
        if process.returncode == 0 and lines:
            self.fail(what, f"exit 0 with {lines}")
        return lines, error

    def finish_early(self, process, what, ranks):
        """What a run has said that lost a rank before its ranks had met. mpirun of Open MPI 4.1 may then stay, or go without a word
        about the rank, so that only the ranks are judged: all of them have to end."""
        begin = time.monotonic()
        while process.poll() is None and any(self.process_of(rank) for rank in range(ranks)):
            if time.monotonic() - begin > PATIENCE:
                self.fail(what, "a rank stays")
                break
            time.sleep(0.05)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        return self.finish(process, what, None)

    def refused(self, process, what, line):
        """The run has to end with this line alone, before it has written anything."""
        lines, error = self.finish(process, what, None)
        if process.returncode == 0 or len(lines) != 1 or not re.fullmatch("headroom: " + line, lines[0]):
            self.fail(what, f"exit {process.returncode} with {lines or error!r}, expected {line!r}")

    def fail(self, what, text):
        self.failures.append(f"{what}: {text}")
        print(f"FAILED {what}: {text}", flush=True)

    def reset(self):
        shutil.rmtree(self.out, ignore_errors=True)

    def losses(self):
        try:
            lines = (self.out / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return {}
        found = {}
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:  # a line that a killed process has not finished
                continue
            found[entry["step"]] = entry["loss"]
        return found

    def compare(self, what):
        found = self.losses()
        if sorted(found) != list(range(1, STEPS + 1)):
            return self.fail(what, f"has the losses of {len(found)} of {STEPS} steps")
        for step, loss in found.items():
            if abs(loss - self.whole[step]) > 1e-4 * self.whole[step]:
                return self.fail(what, f"step {step} has loss {loss}, undisturbed {self.whole[step]}")

    def check_checkpoints(self, what):
        """Every checkpoint is whole: its files are there and as long as their headers say."""
        steps = []
        for path in sorted(self.out.glob("step-*")):
            steps.append(int(path.name[5:]))
            for name in FILES:
                if not (path / name).is_file():
                    self.fail(what, f"{path.name} has no {name}")
                elif name.endswith(".safetensors"):
                    header, data = read_weights(path / name)
                    ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
                    if max(ends) != len(data):
                        self.fail(what, f"{path.name}/{name} has {len(data)} bytes of {max(ends)}")
        return steps

    def go_on(self, what, ranks):
        """After a fault: every checkpoint is whole, and the run goes on with another number of ranks as if nothing had been."""
        steps = self.check_checkpoints(what)
        if STEPS not in steps:
            # A run that left no checkpoint may have left metrics, which another begins anew only when it is told to.
            count = self.random.choice([n for n in (1, 2, 3, 4) if n != ranks])
            how = ["--resume" if steps else "--overwrite", *self.division(count)]
            threads = count == 1 or self.random.random() < 0.5
            self.finish(self.start_threads(count, how) if threads else self.start(count, how),
                        f"{what}, resumed on {count} with {' '.join(how)}", 0)
        self.compare(what)

    def wait_for_step(self, process, step):
        while process.poll() is None and max(self.losses(), default=0) < step:
            time.sleep(0.005)

    def kills(self, count):
        """kill -9 of a rank's process at random moments. Returns how often a rank itself has said whom it lost."""
        killed = said = 0
        while killed < count and len(self.failures) < 5:
            self.reset()
            ranks = self.random.choice((2, 3, 4))
            rank = self.random.randrange(ranks)
            division = self.division(ranks)
            process = self.start(ranks, division)
            time.sleep(self.random.uniform(0, 1.1 * self.seconds))
            victim = self.process_of(rank)
            if victim is None:
                self.finish(process, "a run before its kill", 0)
                continue
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                self.finish(process, "a run before its kill", 0)
                continue
            met = self.out.exists()  # the folder is made once the ranks agree
            killed += 1
            what = f"kill {killed}, of rank {rank} of {ranks} with {' '.join(division)}"
            lines, error = self.finish(process, what, None) if met else self.finish_early(process, what, ranks)
            named = [line for line in lines if re.match(f"headroom: {SAVING}rank {rank} died while rank \\d waited in ", line)]
            said += len(named) > 0
            # A rank that was killed while the others computed is named by mpirun alone. Where another rank ended first, with a
            # line of its own, mpirun may end before it has passed that line on.
            if met and process.returncode != 0 and not named and not re.search(f"rank {rank} .*signal 9|non-zero status", error):
                self.fail(what, f"nobody names the rank: {error!r}")
            if len(lines) > len(named) or len(set(lines)) > ranks - 1:
                self.fail(what, f"other lines: {lines}")
            self.go_on(what, ranks)
        return said

    def kills_of_threads(self, count):
        for i in range(count):
            self.reset()
            process = self.start_threads(3, self.division(3))
            time.sleep(self.random.uniform(0, self.seconds))
            process.kill()
            what = f"kill {i + 1} of a process with three ranks"
            self.finish(process, what, None)
            self.go_on(what, 3)

    def stops(self, count):
        """A rank that stays stopped ends the run, and a rank that is stopped for less than the timeout does not."""
        for i in range(count):
            self.reset()
            ranks = self.random.choice((2, 3))
            rank = i % ranks
            stays = i % 2 == 0
            what = f"rank {rank} of {ranks} {'stays stopped' if stays else 'is slow'}"
            process = self.start(ranks, ["--rank-timeout", f"{TIMEOUT if stays else PATIENCE}s", *self.division(ranks)])
            self.wait_for_step(process, self.random.randrange(1, STEPS // 2))
            stopped = self.process_of(rank)
            if stopped is None:
                self.fail(what, "ended before it was stopped")
                continue
            os.kill(stopped, signal.SIGSTOP)
            if not stays:
                time.sleep(2)
                if process.poll() is not None:
                    self.fail(what, "the others did not wait for it")
                os.kill(stopped, signal.SIGCONT)
                self.finish(process, what, 0)
                self.compare(what)
                continue
            begin = time.monotonic()
            lines, error = self.finish(process, what, None)
            took = time.monotonic() - begin
            line = f"headroom: {SAVING}rank \\d waited {TIMEOUT} s in [a-z0-9 -]+ for rank {rank}, which did not answer{SAVED}"
            if process.returncode == 0 or not lines or not all(re.fullmatch(line, one) for one in lines):
                self.fail(what, f"exit {process.returncode} with {lines or error!r}")
            if took > 10 * TIMEOUT:
                self.fail(what, f"took {took:.1f} s to end")
            self.go_on(what, ranks)

    def different_options(self, every):
        """Ranks that were started differently are refused before anything is reserved or written, by rank and setting."""
        cases = [(["--seed", "3"], "rank 2 has --seed 3, rank 0 has 0"),
                 (["--learning-rate", "1e-3"], "rank 2 has --learning-rate 0.001, rank 0 has 0.0003"),
                 (["--resume"], "rank 2 has --resume true, rank 0 has false"),
                 (["--shard", "full"], "rank 2 has --shard full, rank 0 has none"),
                 (["--accumulation", "2"], "rank 2 has --accumulation 2, rank 0 has 1"),
                 (["--layers", "recompute:1"], "rank 2 has --layers recompute:1, rank 0 has none"),
                 (["--rank-timeout", "9s"], "rank 2 has --rank-timeout 9s, rank 0 has 300s")]
        for more, line in cases if every else cases[:2]:
            self.reset()
            what = f"a rank with {' '.join(more)}"
            self.refused(self.start(3, last=more), what, line)
            if self.out.exists():
                self.fail(what, "has made the folder")
        # The same names of other files.
        homes = []
        for name in ("here", "there"):
            homes.append(self.folder / name)
            shutil.copytree(self.folder / "model", homes[-1] / "model")
            shutil.copy(self.folder / "data.txt", homes[-1])
        names = ["--model", "model", "--data", "data.txt"]
        same = [option for option in self.options([]) if option not in ("--model", "--data", str(self.folder / "model"),
                                                                       str(self.folder / "data.txt"))]
        def start_in(folders):
            return self.launch([*self.mpirun, "-n", "2", "-wdir", str(folders[0]), *same, *names, ":", "-n", "1", "-wdir",
                                str(folders[1]), *same, *names])
        weights = homes[1] / "model" / "model.safetensors"
        header, data = read_weights(weights)
        write_weights(weights, header, data[:-4] + struct.pack("<f", 0.125))
        self.refused(start_in(homes), "a rank with other weights",
                     "rank 2 has weights of fingerprint [0-9a-f]{16}, rank 0 has [0-9a-f]{16}")
        shutil.copy(homes[0] / "model" / "model.safetensors", weights)
        (homes[1] / "data.txt").write_bytes((homes[0] / "data.txt").read_bytes()[::-1])
        self.refused(start_in(homes), "a rank with other data", "rank 2 has data_fingerprint [0-9a-f]{16}, rank 0 has [0-9a-f]{16}")
        if self.out.exists():
            self.fail("ranks with other files", "have made the folder")
        shutil.copy(homes[0] / "data.txt", homes[1])
        self.finish(start_in(homes), "ranks in folders of the same contents", 0)
        self.compare("ranks in folders of the same contents")

    def cores(self):
        """Ranks with other numbers of threads, as on hosts with other numbers of cores, agree on the fewest."""
        self.reset()
        options = self.options([])
        more = [*options]
        more[more.index("--threads") + 1] = "2"
        self.finish(self.launch([*self.mpirun, "-n", "1", *options, ":", "-n", "1", *more]), "ranks with one and two threads", 0)
        self.compare("ranks with one and two threads")

    def numbers(self):
        """What is not finite on one rank is found there. Token 5 stands once, among the tokens of rank 1."""
        tokens = [7 + i for i in range(17)]
        tokens[9] = 5
        (self.folder / "tokens.bin").write_bytes(struct.pack("<17H", *tokens))
        header, data = read_weights(self.folder / "model" / "model.safetensors")
        hidden = header["model.norm.weight"]["shape"][0]

        def changed(name, change):
            """A model whose weights are change(name, row, column) where that says something, with a head of its own."""
            folder = self.folder / name
            shutil.copytree(self.folder / "model", folder)
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
            values = bytearray(data)
            embedding = header["model.embed_tokens.weight"]
            entries = {**header, "lm_head.weight": {**embedding, "data_offsets": [len(data), len(data) + 4 * hidden * embedding["shape"][0]]}}
            values += data[slice(*embedding["data_offsets"])]
            for tensor, entry in entries.items():
                begin, end = entry["data_offsets"]
                columns = entry["shape"][-1]
                for i in range((end - begin) // 4):
                    value = change(tensor, i // columns, i % columns)
                    if value is not None:
                        values[begin + 4 * i:begin + 4 * i + 4] = struct.pack("<f", value)
            write_weights(folder / "model.safetensors", entries, values)
            return folder

        # Column 0 is only used by token 5, for which gate x up is more than a float holds.
        def overflows(tensor, row, column):
            if tensor == "model.embed_tokens.weight" and column == 0:
                return 8.0 if row == 5 else 0.0
            if row == 0 and ("o_proj" in tensor or "down_proj" in tensor):
                return 0.0
            if column == 0 and ("gate_proj" in tensor or "up_proj" in tensor):
                return 1e20
            return None

        # The same without the sum: gate x up is just held, nothing is made of it, and its gradient is more than a float holds.
        def has_no_gradient(tensor, row, column):
            if tensor == "lm_head.weight":
                return 500.0 * ((row * 31 + column * 17) % 7 - 3)
            if "down_proj" in tensor:
                return 0.0
            if column == 0 and ("gate_proj" in tensor or "up_proj" in tensor):
                return 4e18
            return overflows(tensor, row, column)

        for name, change, line in (
                ("overflows", overflows, "step 1: the loss is nan; the first tensor that is not finite is the result of layer 0 on rank 1; "
                                         "there is no checkpoint yet"),
                ("no-gradient", has_no_gradient, "step 1: the gradients' norm is inf; the first that is not finite is that of "
                                                 "model.layers.0.mlp.down_proj.weight on rank 1; there is no checkpoint yet")):
            folder = changed(name, change)
            options = [self.program, "train", "--model", str(folder), "--data", str(self.folder / "tokens.bin"), "--context", "16",
                       "--steps", "2", "--budget", "16MiB", "--threads", "1", "--dtype", "f32", "--out", str(self.out)]
            self.reset()
            self.refused(self.launch([*options, "--ranks", "2"]), f"{name}, threads", line)
            self.reset()
            self.refused(self.launch([*self.mpirun, "-n", "2", *options]), f"{name}, processes", line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--short", action="store_true")
    length.add_argument("--long", action="store_true")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--mpirun", nargs=argparse.REMAINDER, required=True)
    arguments = parser.parse_args()
    print(f"rank faults: seed {arguments.seed}", flush=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="headroom-rank-faults-", dir=memory) as folder:
        faults = RankFaults(os.path.abspath(arguments.program), arguments.mpirun, Path(folder), arguments.seed)
        print(f"rank faults: a run of three processes takes {faults.seconds:.2f} s", flush=True)
        begin = time.monotonic()
        kills = 30 if arguments.long else 3
        said = faults.kills(kills)
        print(f"rank faults: {kills} ranks killed; {said} times another rank has said so", flush=True)
        faults.kills_of_threads(6 if arguments.long else 1)
        stops = 6 if arguments.long else 2
        faults.stops(stops)
        print(f"rank faults: {stops} ranks stopped, half of them for good", flush=True)
        faults.different_options(arguments.long)
        faults.cores()
        faults.numbers()
        print(f"rank faults: {time.monotonic() - begin:.0f} s", flush=True)
    if faults.failures:
        sys.exit(f"rank faults: {len(faults.failures)} failed, seed {arguments.seed}")
    print("rank faults: every run has ended or gone on as it should, and no step was lost")


if __name__ == "__main__":
    main()
