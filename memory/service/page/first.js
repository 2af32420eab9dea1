// Runs before anything is painted, so that nobody sees the wrong theme or language flash by.
"use strict";
(() => {
  const root = document.documentElement;
  const kept = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // a browser may keep nothing
    }
  };
  const theme = kept("recalld.theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const language = kept("recalld.language") || navigator.language || "en";
  if (language.toLowerCase().startsWith("zh")) {
    root.lang = "zh-Hans";
    root.classList.add("untranslated"); // hidden until the words are there
  }
})();
