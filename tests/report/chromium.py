"""Headless Chromium through its own protocol over a pipe, with nothing but the standard library."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile


def find():
    """The program, or None."""
    names = [os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


class Chromium:
    """One tab. What the page complains about gathers in `complaints`, what it asks the network for in `requests`."""

    def __init__(self, program, seconds=60):
        self.seconds = seconds  # for an answer
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self.to_browser = os.pipe()
        self.from_browser, answers = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4; nothing of ours may be in the way.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (commands, answers)]

        def place():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"],
            preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (commands, answers, *ends):
            os.close(end)
        self.buffer = b""
        self.number = 0
        self.session = None
        self.events = []
        self.complaints = []
        self.requests = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        self.profile.cleanup()

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_browser], [], [], self.seconds)
            part = os.read(self.from_browser, 1 << 16) if ready else b""
            if not part:
                raise RuntimeError("Chromium went away or took too long")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method, params):
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([argument.get("value") for argument in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path):
        self.events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self._receive()

    def ask(self, expression):
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key):
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Escape": 27, "p": 80}
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key],
                      **(text if kind == "keyDown" else {}))

    def move(self, x, y):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def resize(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def scheme(self, name):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
