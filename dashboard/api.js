// The HTTP API, as the page uses it.
import { parse } from "./state.js";

// Problem is an answer that is an error, or no answer: then status is 0.
export class Problem extends Error {
  constructor(status, detail, body) {
    super(detail);
    this.status = status;
    this.body = body || {};
  }
}

const patience = 20000; // ms, for an answer
const clock = { skew: 0 };

// now returns the time by the server's clock, as of its last answer.
export const now = () => Date.now() + clock.skew;

const call = async (path, options) => {
  let answer, text;
  try {
    answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(patience), ...options });
    text = await answer.text();
  } catch {
    throw new Problem(0, "the server cannot be reached");
  }
  const at = Date.parse(answer.headers.get("Holdfast-Time"));
  if (at) clock.skew = at - Date.now();
  let body = {};
  try {
    body = text === "" ? {} : parse(text);
  } catch {
    throw new Problem(0, "the answer is not from a Holdfast server");
  }
  if (!answer.ok) throw new Problem(answer.status, body.detail || answer.statusText, body);
  return { body, at: at || now() };
};

const changing = (method, more) => ({ method, ...more, headers: { "Holdfast-Page": "1", ...(more && more.headers) } });

const pathOf = (name) => "/v1/locks/" + encodeURIComponent(name);

export const page = async (after) => call("/v1/locks?limit=1000" + (after ? "&after=" + encodeURIComponent(after) : ""));
export const lock = async (name) => call(pathOf(name));
export const whoAmI = async () => (await call("/v1/session")).body;
export const losses = async () => (await call("/v1/losses")).body.losses;
export const ready = async () => (await call("/readyz")).body;

export const signIn = async (token, breaks) =>
  (await call("/v1/session", changing("POST", { headers: { Authorization: "Bearer " + token }, body: JSON.stringify({ break: breaks }) }))).body;
export const signOut = async () => call("/v1/session", changing("DELETE"));
// breakLock takes the lock from one lease, or from all if lease is empty.
export const breakLock = async (name, lease, reason) =>
  (await call(pathOf(name) + "?" + new URLSearchParams(lease ? { lease, reason } : { reason }), changing("DELETE"))).body;

const kinds = ["acquired", "released", "expired", "broken", "waiting", "left"];

// listen reports the events of all locks, and whether the stream is up: "live", "lost", or "refused" when the
// browser does not try again by itself.
export const listen = (onEvent, onState) => {
  const stream = new EventSource("/v1/events");
  stream.addEventListener("watching", () => onState("live"));
  for (const kind of kinds) stream.addEventListener(kind, (e) => onEvent({ kind, ...parse(e.data) }));
  stream.addEventListener("error", () => onState(stream.readyState === EventSource.CLOSED ? "refused" : "lost"));
  return () => stream.close();
};
