// What is known of one agent: first what moves, then what only a look at its disk tells.

import { make, named } from "./elements.js";
import { ago, clock, dollars, moment, number, sentence, span, t } from "./words.js";

const MEGABYTE = 1_000_000;
const MOST_REMARKS = 5;

function fact(name, ...values) {
  const shown = values.filter((value) => value !== undefined && value !== null && value !== "");
  return shown.length > 0 ? make("div", {}, make("dt", {}, name), make("dd", {}, ...shown)) : null;
}

const listed = (parts) => parts.filter(Boolean).join(" · ");

/** Codes of conditions for which no vectors come in. */
const HOLD_UP_VECTORS = new Set([
  "vectors_unavailable",
  "vectors_unwritable",
  "provider_missing",
  "provider_refuses",
  "provider_fails",
]);

/** Vectors come in as far as is known. */
const areMade = ({ provider, endpoint, troubles = [] }) =>
  provider && (endpoint?.condition ?? "ok") === "ok" && !troubles.some(({ code }) => HOLD_UP_VECTORS.has(code));

/** Facts of /v1/queue as of Unix time `at`. */
export function liveDetails(agent, at) {
  const { counts, queue, endpoint } = agent;
  return [
    agent.error ? fact(t("brokenWord"), make("span", { className: "badtext" }, sentence(agent.error))) : null,
    fact(t("lastCommit"), counts?.lastCommitAt === undefined ? t("never") : stamp(counts.lastCommitAt, at)),
    fact(t("behindSince"), behind(queue, at)),
    counts && fact(t("files"), number(counts.files)),
    counts && fact(t("chunks"), number(counts.chunks)),
    counts &&
      fact(
        t("vectors"),
        listed([
          t("vectorsReady", number(counts.vectorsReady)),
          counts.vectorsPending ? t(areMade(agent) ? "vectorsPending" : "vectorsWaiting", number(counts.vectorsPending)) : "",
          counts.vectorsRefused ? t("vectorsRefused", number(counts.vectorsRefused)) : "",
        ]),
      ),
    fact(t("provider"), agent.provider ? `${agent.provider}${agent.model ? ` · ${agent.model}` : ""}` : t("keywordsOnly")),
    endpoint && fact(t("endpoint"), endpointOf(endpoint, at)),
    ...(agent.troubles ?? []).map((trouble) =>
      fact(t("troubles"), make("span", { className: "badtext" }, `${trouble.part}: `, sentence(trouble.message))),
    ),
  ].filter(Boolean);
}

const megabytes = (bytes) => number(Math.round((bytes / MEGABYTE) * 10) / 10);

const stamp = (seconds, at) =>
  make("time", { dateTime: new Date(seconds * 1000).toISOString(), title: moment(seconds) }, ago(Math.max(0, at - seconds)));

function behind(queue, at) {
  if (!queue.reachable) return t("unknown");
  if (queue.oldestSeconds === undefined) return undefined;
  return `${clock(at - queue.oldestSeconds)} (${span(queue.oldestSeconds)})`;
}

function endpointOf(endpoint, at) {
  const words = listed([
    t("endpointState")[endpoint.condition],
    endpoint.since === undefined ? "" : span(Math.max(0, at - endpoint.since)),
    endpoint.until === undefined ? "" : t("nextTry", clock(endpoint.until)),
  ]);
  const bad = endpoint.condition !== "ok";
  const box = make("span", { className: bad ? "badtext" : "" }, words);
  if (endpoint.reason) box.append(" ", sentence(endpoint.reason));
  return box;
}

/** Facts of /v1/status. */
export function lookedDetails(agent) {
  const { disk, index, vectors, usage = [], notes = [] } = agent;
  const facts = [
    fact(t("verdict"), make("span", { className: agent.ok ? "" : "badtext" }, t(agent.ok ? "verdictOk" : "verdictBad"))),
    fact(t("disk"), onDisk(disk)),
    fact(t("indexed"), listed((index.sourceCounts ?? []).map(({ source, files, chunks }) => files && t("sourceCount", source, files, chunks)))),
    vectors.etaSeconds === undefined ? null : fact(t("eta"), span(vectors.etaSeconds)),
    vectors.advice ? fact(t("vectors"), sentence(vectors.advice)) : null,
    // Without a provider the trouble says why.
    agent.providerReason && agent.provider !== "none" ? fact(t("providerWhy"), sentence(agent.providerReason)) : null,
    ...["vectorSearch", "textSearch"].map((side) =>
      agent[side].available && !agent[side].reason
        ? null
        : fact(t(side === "vectorSearch" ? "scoreVector" : "scoreText"), sentence(agent[side].reason ?? "")),
    ),
    usage.length > 0 ? fact(t("usage"), ...spent(usage)) : null,
    fact(t("generation"), listed([index.diskBytes ? t("bytes", megabytes(index.diskBytes)) : "", index.building ? t("building") : ""])),
    agent.watch ? fact(t("watch"), sentence(agent.watch)) : null,
    fact(t("workspace"), named(agent.workspace)),
    ...notes.slice(0, MOST_REMARKS).map((note) => fact(t("remarks"), sentence(note))),
  ];
  return [make("dl", { className: "facts" }, ...facts.filter(Boolean))];
}

function onDisk(disk) {
  if (disk.files === undefined) return t("unknown");
  const differs = [
    disk.missing && t("diskMissing", number(disk.missing)),
    disk.stale && t("diskStale", number(disk.stale)),
    disk.vanished && t("diskVanished", number(disk.vanished)),
  ].filter(Boolean);
  const moving = [
    disk.growing && t("diskGrowing", number(disk.growing)),
    disk.settling && t("diskSettling", number(disk.settling)),
    disk.kept && t("diskKept", number(disk.kept)),
    disk.leftOut && t("diskLeftOut", number(disk.leftOut)),
  ];
  const first = differs.length > 0 ? [number(disk.files), t("diskDiffers"), ...differs] : [t("diskSame", disk.files)];
  return make("span", { className: differs.length > 0 ? "badtext" : "" }, listed([...first, ...moving]));
}

function spent(usage) {
  const line = (when, { requests, tokens, failed, dollars: cost }) =>
    `${when}: ${t("usageLine", requests, tokens, cost ? dollars(cost) : "")}${failed ? t("usageFailed", number(failed)) : ""}`;
  return usage.map(({ provider, model, total, today }) =>
    make(
      "span",
      { className: "spent" },
      make("span", {}, t("usageOf", provider, model)),
      make("span", {}, line(t("ever"), total)),
      make("span", {}, line(t("today"), today)),
    ),
  );
}
