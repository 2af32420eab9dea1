// The language of the interface: words, numbers, dates and ages.

import { en } from "./words-en.js";
import { zh } from "./words-zh.js";
import { translated } from "./sentences.js";
import { make } from "./elements.js";

const LANGUAGES = { en: { words: en, tag: "en" }, zh: { words: zh, tag: "zh-Hans" } };
const KEPT = "recalld.language";

let language = document.documentElement.lang.startsWith("zh") ? "zh" : "en";
const listeners = [];

export const currentLanguage = () => language;

/** The words for a key; plurals and sentences with names in them are functions of what comes after. */
export function t(key, ...values) {
  const found = LANGUAGES[language].words[key];
  if (found === undefined) throw new Error(`no words for ${key}`);
  return typeof found === "function" ? found(...values) : found;
}

/** Call this whenever the language changes. */
export const onLanguage = (listener) => listeners.push(listener);

/** Speak this language, and remember it. */
export function speak(chosen) {
  language = chosen;
  try {
    localStorage.setItem(KEPT, chosen);
  } catch {
    // Then it holds for this visit.
  }
  apply();
  for (const listener of listeners) listener();
}

/** Fill in the words of the page's own elements. */
export function apply() {
  const root = document.documentElement;
  root.lang = LANGUAGES[language].tag;
  const attributes = { t: null, tLabel: "aria-label", tTitle: "title", tPlaceholder: "placeholder" };
  for (const [data, attribute] of Object.entries(attributes)) {
    const name = data.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    for (const node of document.querySelectorAll(`[data-${name}]`)) {
      const words = t(node.dataset[data]);
      if (attribute) node.setAttribute(attribute, words);
      else node.textContent = words;
    }
  }
  document.title = t(root.dataset.title ?? "title");
  root.classList.remove("untranslated");
}

/** A sentence of the service: translated where it is known, else as it is and marked as English. */
export function sentence(text) {
  const found = language === "en" ? text : translated(text);
  return found === null ? make("span", { lang: "en" }, text) : make("span", {}, found);
}

/** Numbers and dates are written as at home: English is not the same everywhere. */
const tag = () => navigator.languages.find((home) => home.startsWith(language)) ?? LANGUAGES[language].tag;

export const number = (value) => new Intl.NumberFormat(tag()).format(value);

/** A score or share with two digits. */
export const score = (value) =>
  new Intl.NumberFormat(tag(), { minimumFractionDigits: 2, maximumFractionDigits: 2 }).format(value);

const usd = (value) =>
  new Intl.NumberFormat(tag(), { style: "currency", currency: "USD", currencyDisplay: "narrowSymbol" }).format(value);

/** What something costs, by list price. */
export const dollars = (value) => (value < 0.01 ? t("lessThan", usd(0.01)) : t("about", usd(value)));

const UNITS = [
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
  ["second", 1],
];

const largest = (seconds) => UNITS.find(([, length]) => seconds >= length) ?? UNITS[UNITS.length - 1];

/** How long something takes or has been: "4 sec". */
export function span(seconds) {
  const [unit, length] = largest(seconds);
  const amount = unit === "second" && seconds < 10 ? Math.round(seconds * 10) / 10 : Math.floor(seconds / length);
  return new Intl.NumberFormat(tag(), { style: "unit", unit, unitDisplay: "short" }).format(amount);
}

/** How long ago something was: "2 minutes ago". */
export function ago(seconds) {
  if (seconds < 5) return t("justNow");
  const [unit, length] = largest(seconds);
  return new Intl.RelativeTimeFormat(tag(), { numeric: "auto" }).format(-Math.floor(seconds / length), unit);
}

/** A point in time, in Unix seconds, by the reader's clock. */
export const moment = (seconds) =>
  new Intl.DateTimeFormat(tag(), { dateStyle: "medium", timeStyle: "medium" }).format(new Date(seconds * 1000));

export const clock = (seconds) =>
  new Intl.DateTimeFormat(tag(), { timeStyle: "medium" }).format(new Date(seconds * 1000));

/** A day of the calendar as UTC midnight; every year from 1 on is itself. */
export function dayOf(iso) {
  const [year, month, day] = iso.split("-").map(Number);
  const date = new Date(Date.UTC(2000, month - 1, day));
  date.setUTCFullYear(year, month - 1, day);
  return date;
}

const inUtc = (options) => (date) => new Intl.DateTimeFormat(tag(), { timeZone: "UTC", ...options }).format(date);

export const longDay = inUtc({ dateStyle: "full" });
export const monthAndYear = inUtc({ month: "long", year: "numeric" });
export const weekdayName = inUtc({ weekday: "narrow" });
