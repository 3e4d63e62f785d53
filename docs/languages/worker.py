"""Work under a lock. Usage: worker.py HOLDFAST LOCK RESOURCE WRITES"""

import json
import os
import secrets
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

TTL = float(os.environ.get("TTL", "30"))


def now():
    """A clock that is never set, and that counts while the machine is suspended where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def call(method, url, body=None, headers=None, timeout=10.0):
    """Returns the status and the answer. OSError: there was no answer, and the request may have worked."""
    request = urllib.request.Request(url, body, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()


class Lock:
    """A lock that is renewed by a thread. Check held() before each step of the work, and send the token with each write."""

    def __init__(self, server, name):
        self.base = f"{server}/v1/locks/{urllib.parse.quote(name, safe='')}"
        # Made before it is sent: the same request, sent again, is the same acquisition.
        self.lease = secrets.token_hex(16)
        self.token = None
        self.deadline = 0.0
        self.released = threading.Event()

    def __enter__(self):
        try:
            self.acquire()
        except BaseException:
            self.release()  # the outcome may be unknown
            raise
        threading.Thread(target=self.keep, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.release()

    def acquire(self):
        body = json.dumps({"lease": self.lease, "ttl": f"{TTL}s", "wait": "60s", "owner": f"worker.py:{os.getpid()}"}).encode()
        while True:
            try:
                # Keep-Place keeps the turn in the queue until the next request.
                status, answer = call("POST", self.base, body, {"Holdfast-Keep-Place": "10s"}, timeout=90)
            except OSError as e:
                print(e, file=sys.stderr)
                status, answer = 503, b""
            if status == 200:
                self.token = json.loads(answer)["token"]
                break
            if status not in (409, 429, 503):  # held by others after the wait; overloaded; unavailable
                raise RuntimeError(answer.decode())
            time.sleep(1)
        self.renew()  # what is left of the TTL counts from the request, which may have waited

    def renew(self):
        """Moves the deadline, which counts from before the request. RuntimeError: the lease is lost."""
        sent = now()
        status, answer = call("PUT", f"{self.base}/leases/{self.lease}", json.dumps({"ttl": f"{TTL}s"}).encode(), timeout=TTL / 3)
        if status == 410:
            raise RuntimeError("the lock was lost")
        if status == 200:
            self.deadline = sent + TTL * 0.98  # clocks do not run at exactly the same rate
        else:
            print(answer.decode(), file=sys.stderr)

    def keep(self):
        wait = TTL / 3
        while not self.released.wait(wait) and self.held():
            try:
                self.renew()
                wait = TTL / 3
            except OSError as e:
                print(e, file=sys.stderr)
                wait = min(1.0, TTL / 10)
            except RuntimeError as e:
                print(e, file=sys.stderr)
                self.deadline = 0.0

    def held(self):
        return now() < self.deadline

    def release(self):
        try:
            call("DELETE", f"{self.base}/leases/{self.lease}")
        except OSError as e:
            print(e, file=sys.stderr)  # the lease ends with its TTL


def main():
    server, name, resource, writes = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # releases the lock on the way out
    with Lock(server, name) as lock:
        print(f"token {lock.token}", flush=True)
        for i in range(1, int(writes) + 1):
            if not lock.held():
                sys.exit("the lock was lost")
            status, _ = call("PUT", resource, f"write {i}".encode(), {"Holdfast-Token": str(lock.token)})
            if status == 412:
                sys.exit("refused: the resource has seen a greater token")
            if status >= 300:
                sys.exit(f"the write failed with status {status}")
            time.sleep(0.2)


main()
