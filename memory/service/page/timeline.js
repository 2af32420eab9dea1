// Daily notes through time: which days have some, how much, and what is missing between them. A day opens to be read.

import { byId, make, show } from "./elements.js";
import { chosenAgent } from "./search.js";
import { agentNamed, onLook, state } from "./live.js";
import { monthsOf } from "./months.js";
import { openReader } from "./reader.js";
import { ask } from "./service.js";
import { dayOf, longDay, number, onLanguage, sentence, shortDay, t } from "./words.js";

const DAY = 86_400_000;
/** Milliseconds between two questions while an index changes all the time. */
const APART = 3_000;
/** Notes of a day that are offered at first. */
const NOTES = 20;

let answer = null;
let known = "";
let asked = 0;
let year;
let agent;
let round = 0;

export function startTimeline() {
  onLook(refresh);
  onLanguage(render);
  byId("agent").addEventListener("change", () => refresh());
}

async function refresh() {
  const now = chosenAgent();
  if (now !== agent) {
    agent = now;
    year = undefined;
    known = "";
    asked = 0;
    answer = null;
  }
  if (agent === undefined) {
    render();
    return;
  }
  const wanted = `${agent} ${agentNamed(agent)?.revision} ${year}`;
  if (state.away || wanted === known || Date.now() - asked < APART) return;
  asked = Date.now();
  const mine = ++round;
  try {
    const found = await ask("/v1/timeline", { agent, year });
    if (mine !== round || found.agent !== agent) return; // something else is wanted by now
    answer = found;
    year = found.year;
    known = `${agent} ${agentNamed(agent)?.revision} ${year}`;
    render();
  } catch {
    // The next look tries again.
  }
}

function chooseYear(chosen) {
  year = chosen;
  asked = 0;
  refresh();
}

function render() {
  const box = byId("timeline");
  if (!answer || answer.error) {
    show(box, answer?.error ? make("p", { className: "notice bad" }, sentence(answer.error)) : null);
    return;
  }
  if (answer.years.length === 0) {
    show(box, make("p", { className: "calm" }, t("timelineNone")));
    return;
  }
  const focused = document.activeElement?.closest?.("#timeline [data-date], #timeline [data-year]");
  const again = focused && (focused.dataset.date ? `[data-date="${focused.dataset.date}"]` : `[data-year="${focused.dataset.year}"]`);
  const scrolled = box.querySelector(".years")?.scrollLeft;
  show(box, answer.years.length > 1 ? years() : null, summary(), monthsOf(answer.year, answer.days, openDay));
  const strip = box.querySelector(".years");
  if (strip) strip.scrollLeft = scrolled ?? strip.scrollWidth;
  if (again) box.querySelector(again)?.focus({ preventScroll: true });
}

function years() {
  const most = Math.max(...answer.years.map((one) => one.days));
  const items = answer.years.map((one) => {
    const bar = make("span", { className: "yearbar", "aria-hidden": "true" });
    bar.style.setProperty("--share", one.days / most);
    const button = make(
      "button",
      {
        type: "button",
        data: { year: one.year },
        "aria-pressed": String(one.year === answer.year),
        "aria-label": t("yearLabel", one.year, one.days, one.chunks),
        title: t("yearLabel", one.year, one.days, one.chunks),
        onclick: () => chooseYear(one.year),
      },
      bar,
      String(one.year),
    );
    return make("li", {}, button);
  });
  return make("ul", { className: "years", role: "list", "aria-label": t("timelineYears"), tabIndex: -1 }, ...items);
}

function summary() {
  const { days } = answer;
  const chunks = days.reduce((total, day) => total + day.chunks, 0);
  const gap = longestGap(days);
  const words = [t("timelineDays", answer.year, days.length, chunks)];
  if (days.length > 1) {
    words.push(gap.days > 0 ? t("timelineGap", gap.days, shortDay(gap.from), shortDay(gap.to)) : t("timelineNoGap"));
  }
  return make("p", { className: "faint" }, words.join(t("space")));
}

/** The most days in a row without a note, between two days that have some. */
function longestGap(days) {
  let best = { days: 0 };
  for (let index = 1; index < days.length; index++) {
    const [before, after] = [dayOf(days[index - 1].date), dayOf(days[index].date)];
    const missing = Math.round((after - before) / DAY) - 1;
    if (missing > best.days) best = { days: missing, from: new Date(+before + DAY), to: new Date(+after - DAY) };
  }
  return best;
}

function openDay(day, button) {
  openReader(placeOf(answer.days.indexOf(day)), button);
}

function placeOf(index, note = 0, most = NOTES) {
  const { days } = answer;
  const day = days[index];
  const parts = day.notes.slice(0, Math.max(most, note + 1)).map(({ path }, other) => ({
    name: path,
    enter: () => placeOf(index, other, most),
  }));
  return {
    agent: answer.agent,
    path: day.notes[note].path,
    heading: () => longDay(dayOf(day.date)),
    parts,
    rest: day.notes.length > parts.length ? { count: number(day.notes.length), enter: () => placeOf(index, note, Infinity) } : undefined,
    previous: index > 0 ? () => placeOf(index - 1) : undefined,
    next: index + 1 < days.length ? () => placeOf(index + 1) : undefined,
  };
}
