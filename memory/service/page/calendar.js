// A calendar of three months: the darker a day, the more notes and conversations it has. A day opens to a list.

import { byId, make, show } from "./elements.js";
import { ask } from "./service.js";
import { dayOf, longDay, monthAndYear, number, onLanguage, t, weekdayName } from "./words.js";

const WEEK = 7;
const MONTHS = 3;
const LEVELS = 4;

/** Months between the present one and the last one that is shown. */
let back = 0;
let days = new Map();
let chosen = null;
let view;

/** Start it; `whose()` is the agent and `showDay(date, heading)` shows a day. */
export function startCalendar(given) {
  view = given;
  byId("calendarback").addEventListener("click", () => turn(MONTHS));
  byId("calendaron").addEventListener("click", () => turn(-MONTHS));
  onLanguage(render);
  return { refresh };
}

function turn(by) {
  back = Math.max(0, back + by);
  chosen = null;
  refresh();
}

const pad = (value, length = 2) => String(value).padStart(length, "0");
const isoOf = (date) => `${pad(date.getFullYear(), 4)}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;

/** The first days of the months that are shown, by the reader's clock. */
function months() {
  const now = new Date();
  return Array.from({ length: MONTHS }, (_, index) => new Date(now.getFullYear(), now.getMonth() - back - MONTHS + 1 + index, 1));
}

async function refresh() {
  const since = isoOf(months()[0]);
  try {
    const answer = await ask("/v1/days", { since, agent: view.whose() });
    days = new Map(answer.days.map((day) => [day.date, day]));
    render();
  } catch {
    // The next change asks again.
  }
}

function render() {
  byId("calendaron").disabled = back === 0;
  const shown = months().map((first) => ({ first, days: daysOf(first) }));
  const counts = shown.flatMap((month) => month.days.map((iso) => sum(days.get(iso))));
  const most = Math.max(1, ...counts);
  const total = counts.reduce((all, count) => all + count, 0);
  const focused = document.activeElement?.closest?.("#calendar [data-date]")?.dataset.date;
  const box = make("div", { className: "months", role: "group", "aria-label": t("calendarKeys") }, ...shown.map((month) => monthOf(month, most)));
  show(byId("calendar"), box, total === 0 ? make("p", { className: "calm" }, t("calendarNone")) : null);
  rove(box);
  if (focused) box.querySelector(`[data-date="${focused}"]`)?.focus({ preventScroll: true });
}

const sum = (day) => (day ? day.notes + day.conversations : 0);

function daysOf(first) {
  const last = new Date(first.getFullYear(), first.getMonth() + 1, 0).getDate();
  return Array.from({ length: last }, (_, index) => isoOf(new Date(first.getFullYear(), first.getMonth(), index + 1)));
}

function monthOf({ first, days: all }, most) {
  // Weeks begin on Monday.
  const names = Array.from({ length: WEEK }, (_, index) => make("span", { className: "weekday", "aria-hidden": "true" }, weekdayName(dayOf(`2024-01-${pad(index + 1)}`))));
  const blanks = Array.from({ length: (first.getDay() + 6) % WEEK }, () => make("span", {}));
  const grid = make("div", { className: "month" }, ...names, ...blanks, ...all.map((iso) => dayOfMonth(iso, most)));
  return make("section", {}, make("h3", {}, monthAndYear(dayOf(all[0]))), grid);
}

function dayOfMonth(iso, most) {
  const today = iso === isoOf(new Date()) ? " today" : "";
  const day = days.get(iso);
  const number_ = number(Number(iso.slice(8)));
  if (!sum(day)) return make("span", { className: `day none${today}` }, number_);
  const label = t("calendarDay", longDay(dayOf(iso)), day.notes, day.conversations);
  const level = Math.max(1, Math.ceil((LEVELS * Math.log1p(sum(day))) / Math.log1p(most)));
  const button = make("button", {
    ...{ type: "button", className: `day${today}`, tabIndex: -1, title: label, "aria-label": label },
    "aria-pressed": String(iso === chosen),
    data: { date: iso, level },
  }, number_);
  button.addEventListener("click", () => {
    chosen = iso;
    for (const other of byId("calendar").querySelectorAll("button.day")) other.setAttribute("aria-pressed", String(other === button));
    view.showDay(iso, longDay(dayOf(iso)));
  });
  return button;
}

/** One stop for the Tab key; arrows move between the days that have something. */
function rove(box) {
  const buttons = [...box.querySelectorAll("button.day")];
  if (buttons.length === 0) return;
  (buttons.find((button) => button.dataset.date === chosen) ?? buttons.at(-1)).tabIndex = 0;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -WEEK, ArrowDown: WEEK };
  box.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    if (at < 0 || !(event.key in steps || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Home") buttons[0].focus();
    else if (event.key === "End") buttons.at(-1).focus();
    else target(buttons, at, steps[event.key])?.focus();
  });
  box.addEventListener("focusin", ({ target: focused }) => {
    for (const button of buttons) button.tabIndex = button === focused ? 0 : -1;
  });
}

/** The next day that is `step` days away or more, in that direction. */
function target(buttons, at, step) {
  const from = dayOf(buttons[at].dataset.date);
  const others = step > 0 ? buttons.slice(at + 1) : buttons.slice(0, at).reverse();
  return others.find((button) => Math.abs(dayOf(button.dataset.date) - from) / 86_400_000 >= Math.abs(step));
}
