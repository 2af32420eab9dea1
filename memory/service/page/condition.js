// How an agent is, in one word, from what is known without looking at its disk.

import { t } from "./words.js";

/** Seconds after which what waits is behind, as in `recalld status`. */
const TOO_LONG = 60;

/** {kind: ok | busy | idle | warn | bad, words} of one agent of /v1/queue; the worst comes first. */
export function conditionOf(agent) {
  const { queue, endpoint, troubles = [] } = agent;
  if (agent.error) return { kind: "bad", words: t("brokenWord") };
  const waiting = ["waiting", "failing"].includes(endpoint?.condition);
  const refusing = endpoint && endpoint.condition !== "ok" && !waiting;
  if (refusing) return { kind: "bad", words: t("endpointWord")[endpoint.condition] };
  if (troubles.length > 0) return { kind: "bad", words: t("troubleWord") };
  if (waiting) return { kind: "warn", words: t("endpointWord")[endpoint.condition] };
  if (agent.deadLetters > 0) return { kind: "warn", words: t("lettersWord", agent.deadLetters) };
  if (!queue.reachable) return { kind: "warn", words: t("queueAwayWord") };
  if ((queue.oldestSeconds ?? 0) > TOO_LONG) return { kind: "warn", words: t("behindWord") };
  if (queue.pending > 0) return { kind: "busy", words: t("busyWord") };
  if (agent.provider && agent.counts?.vectorsPending > 0) return { kind: "busy", words: t("vectorsWord") };
  if (!agent.looked) return { kind: "idle", words: t("looking") };
  if (!agent.counts) return { kind: "idle", words: t("noIndexWord") };
  return { kind: "ok", words: t("okWord") };
}

export const needsAttention = (agent) => ["warn", "bad"].includes(conditionOf(agent).kind);
