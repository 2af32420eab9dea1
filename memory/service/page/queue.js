// The queue: who waits, how much of it is being worked on, and for how long.

import { byId, make, named, show, unfold } from "./elements.js";
import { agents, onLook } from "./live.js";
import { number, onLanguage, span, t } from "./words.js";

const MOST = 8;
/** Seconds after which what waits is behind, as in `recalld status`. */
const TOO_LONG = 60;

export function startQueue() {
  onLook(render);
  onLanguage(render);
}

function render() {
  const all = agents();
  const reachable = all.filter((agent) => agent.queue.reachable);
  const waiting = reachable
    .filter((agent) => agent.queue.pending > 0)
    .sort((one, other) => (other.queue.oldestSeconds ?? 0) - (one.queue.oldestSeconds ?? 0));
  const running = sum(waiting, (agent) => agent.queue.running);
  const pending = sum(waiting, (agent) => agent.queue.pending);
  const vectors = sum(all, (agent) => agent.counts?.vectorsPending ?? 0);
  byId("queuecount").textContent = pending > 0 ? number(pending) : "";
  const parts = [];
  if (all.length > 0 && reachable.length < all.length) {
    parts.push(make("p", { className: "notice warn" }, t("queueAway")));
  } else if (all.length > 0 && pending === 0) parts.push(make("p", { className: "calm" }, t("queueIdle")));
  if (pending > 0) {
    const facts = [
      t("queueWaiting", number(Math.max(0, pending - running))),
      t("queueRunning", number(running)),
      t("queueOldest", span(waiting[0].queue.oldestSeconds ?? 0)),
    ];
    parts.push(make("p", { className: "busyline" }, facts.join(" · ")));
    if (all.length > 1) parts.push(table(waiting.slice(0, MOST)));
    if (waiting.length > MOST) parts.push(make("p", { className: "faint" }, t("queueMore", waiting.length - MOST)));
  }
  if (vectors > 0) parts.push(make("p", { className: "faint" }, t("queueVectors", vectors)));
  show(byId("queue"), ...parts);
  unfold(byId("queuebox"), reachable.length < all.length || (waiting[0]?.queue.oldestSeconds ?? 0) > TOO_LONG);
}

const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);

function table(waiting) {
  const head = ["agent", "waitingColumn", "runningColumn", "oldestColumn"].map((key) => make("th", { scope: "col" }, t(key)));
  const rows = waiting.map(({ agent, queue }) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, named(agent)),
      make("td", {}, number(Math.max(0, queue.pending - queue.running))),
      make("td", {}, number(queue.running)),
      make("td", {}, queue.oldestSeconds === undefined ? "" : span(queue.oldestSeconds)),
    ),
  );
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}
