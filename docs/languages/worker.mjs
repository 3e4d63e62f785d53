// @ts-check
// Work under a lock. Usage: node worker.mjs HOLDFAST LOCK RESOURCE WRITES
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const ttl = Number(process.env.TTL ?? "30") * 1000; // milliseconds

/** A lock that is renewed in the background. */
class Lock {
  // Made before it is sent: the same request, sent again, is the same acquisition.
  lease = randomUUID();
  /** A token may be greater than 2^53, so it stays text. */
  token = "";
  deadline = 0;
  #lost = new AbortController();
  #released = new AbortController();

  /**
   * @param {string} server
   * @param {string} name
   */
  constructor(server, name) {
    this.base = `${server}/v1/locks/${encodeURIComponent(name)}`;
  }

  /** Ends when the lock is lost. Give it to every request of the work. */
  get signal() {
    return this.#lost.signal;
  }

  /** @param {AbortSignal} stop */
  async acquire(stop) {
    const body = JSON.stringify({ lease: this.lease, ttl: `${ttl}ms`, wait: "60s", owner: `worker.mjs:${process.pid}` });
    for (;;) {
      try {
        const answer = await fetch(this.base, {
          method: "POST",
          body,
          headers: { "Holdfast-Keep-Place": "10s" }, // keeps the turn in the queue until the next request
          signal: AbortSignal.any([stop, AbortSignal.timeout(90_000)]),
        });
        const text = await answer.text();
        if (answer.status === 200) {
          this.token = /"token":(\d+)/.exec(text)?.[1] ?? "";
          break;
        }
        if (![409, 429, 503].includes(answer.status)) throw new Refused(text); // held after the wait; overloaded; unavailable
      } catch (e) {
        if (e instanceof Refused || stop.aborted) throw e;
        console.error(String(e)); // it may have worked: try again with the same lease ID
      }
      await sleep(1000, undefined, { signal: stop });
    }
    await this.renew(); // what is left of the TTL counts from the request, which may have waited
    void this.keep();
  }

  /** Moves the deadline, which counts from before the request. */
  async renew() {
    const sent = performance.now(); // a clock that is never set
    const answer = await fetch(`${this.base}/leases/${this.lease}`, {
      method: "PUT",
      body: JSON.stringify({ ttl: `${ttl}ms` }),
      signal: AbortSignal.timeout(Math.floor(ttl / 3)),
    });
    const text = await answer.text();
    if (answer.status === 410) this.lose("the lock was lost");
    else if (answer.status === 200) this.deadline = sent + ttl * 0.98; // clocks do not run at exactly the same rate
    else console.error(text);
  }

  async keep() {
    let wait = ttl / 3;
    while (this.held()) {
      // Also ends the work if no renewal succeeds in time.
      const end = setTimeout(() => this.held() || this.lose("no renewal was acknowledged in time"), this.deadline - performance.now() + 1);
      try {
        await sleep(wait, undefined, { signal: this.#released.signal });
        await this.renew();
        wait = ttl / 3;
      } catch (e) {
        if (this.#released.signal.aborted) return;
        console.error(String(e));
        wait = Math.min(1000, ttl / 10);
      } finally {
        clearTimeout(end);
      }
    }
    if (!this.#released.signal.aborted) this.lose("no renewal was acknowledged in time");
  }

  held() {
    return !this.#lost.signal.aborted && performance.now() < this.deadline;
  }

  /** @param {string} why */
  lose(why) {
    this.#lost.abort(new Error(why));
  }

  async release() {
    this.#released.abort();
    await fetch(`${this.base}/leases/${this.lease}`, { method: "DELETE", signal: AbortSignal.timeout(5000) })
      .catch((e) => console.error(String(e))); // the lease ends with its TTL
  }
}

class Refused extends Error {}

async function main() {
  const [server, name, resource, writes] = process.argv.slice(2);
  const stop = new AbortController();
  process.once("SIGTERM", () => stop.abort(new Error("SIGTERM")));
  const lock = new Lock(server, name);
  try {
    await lock.acquire(stop.signal);
    console.log(`token ${lock.token}`);
    const signal = AbortSignal.any([stop.signal, lock.signal]);
    for (let i = 1; i <= Number(writes); i++) {
      if (!lock.held()) throw new Error("the lock was lost");
      const answer = await fetch(resource, { method: "PUT", body: `write ${i}`, headers: { "Holdfast-Token": lock.token }, signal });
      await answer.text();
      if (answer.status === 412) throw new Error("refused: the resource has seen a greater token");
      if (!answer.ok) throw new Error(`the write failed with status ${answer.status}`);
      await sleep(200, undefined, { signal });
    }
  } finally {
    await lock.release();
  }
}

main().catch((e) => {
  console.error(e instanceof Error ? e.message : e);
  process.exitCode = 1;
});
