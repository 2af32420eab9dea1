// A year as twelve small months. Days with notes are buttons, the others are visibly empty.

import { make } from "./elements.js";
import { dayOf, longDay, monthName, t } from "./words.js";

const WEEK = 7;
const LEVELS = 4;

/** The months of a year. `days` are those of /v1/timeline, `open(day, button)` is called for the one that is clicked. */
export function monthsOf(year, days, open) {
  const byDate = new Map(days.map((day) => [day.date, day]));
  const most = Math.max(1, ...days.map((day) => day.chunks));
  const box = make("div", { className: "months", role: "group", "aria-label": `${t("timeline")} ${year}. ${t("timelineKeys")}` });
  const today = localToday();
  const buttons = [];
  for (let month = 1; month <= 12; month++) {
    const first = isoOf(year, month, 1);
    const name = make("h3", {}, monthName(dayOf(first)));
    const grid = make("div", { className: "month" });
    // Weeks begin on Monday.
    for (let blank = (dayOf(first).getUTCDay() + 6) % WEEK; blank > 0; blank--) grid.append(make("span", {}));
    for (let day = 1; day <= lengthOf(year, month); day++) {
      const iso = isoOf(year, month, day);
      const noted = byDate.get(iso);
      if (noted) {
        const button = dayButton(noted, most, open);
        if (iso === today) button.classList.add("today");
        buttons.push(button);
        grid.append(button);
      } else grid.append(gap(iso, today));
    }
    box.append(make("section", {}, name, grid));
  }
  rove(box, buttons);
  return make("div", {}, box, scale());
}

function dayButton(day, most, open) {
  const words = t("dayLabel", longDay(dayOf(day.date)), day.notes.length, day.chunks);
  const level = Math.max(1, Math.ceil((LEVELS * Math.log1p(day.chunks)) / Math.log1p(most)));
  const button = make("button", {
    type: "button",
    className: "day",
    tabIndex: -1,
    title: words,
    "aria-label": words,
    data: { date: day.date, level },
  });
  button.addEventListener("click", () => open(day, button));
  return button;
}

function gap(iso, today) {
  const kind = iso > today ? "day ahead" : iso === today ? "day none today" : "day none";
  return make("span", { className: kind, title: iso > today ? "" : t("dayGap", longDay(dayOf(iso))) });
}

function scale() {
  const steps = Array.from({ length: LEVELS }, (_, level) => make("span", { className: "day", data: { level: level + 1 } }));
  return make("p", { className: "scale faint", "aria-hidden": "true" }, t("less"), make("span", { className: "day none" }), ...steps, t("moreWord"));
}

/** One stop for the Tab key; arrows move between the days that have notes. */
function rove(box, buttons) {
  const last = buttons[buttons.length - 1];
  if (!last) return;
  last.tabIndex = 0;
  box.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    let target;
    if (at < 0) return;
    if (event.key in steps) target = buttons[at + steps[event.key]];
    else if (event.key === "Home") [target] = buttons;
    else if (event.key === "End") target = last;
    else if (event.key === "ArrowUp") target = aWeek(buttons, at, -1);
    else if (event.key === "ArrowDown") target = aWeek(buttons, at, 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
    target?.focus();
  });
  box.addEventListener("focusin", ({ target }) => {
    for (const button of buttons) button.tabIndex = button === target ? 0 : -1;
  });
}

/** The next day with notes that is a week away or more. */
function aWeek(buttons, at, direction) {
  const from = dayOf(buttons[at].dataset.date);
  for (let index = at + direction; buttons[index]; index += direction) {
    const away = Math.abs(dayOf(buttons[index].dataset.date) - from) / 86_400_000;
    if (away >= WEEK) return buttons[index];
  }
  return undefined;
}

const isoOf = (year, month, day) =>
  `${String(year).padStart(4, "0")}-${String(month).padStart(2, "0")}-${String(day).padStart(2, "0")}`;

const lengthOf = (year, month) => {
  const date = new Date(Date.UTC(2000, month, 0));
  date.setUTCFullYear(year, month, 0);
  return date.getUTCDate();
};

function localToday() {
  const now = new Date();
  return isoOf(now.getFullYear(), now.getMonth() + 1, now.getDate());
}
