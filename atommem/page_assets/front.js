"use strict";
(() => {
const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)"), button = document.querySelector("#theme");
const setTheme = (on) => { root.dataset.theme = on ? "dark" : "light"; button.setAttribute("aria-pressed", on); };
setTheme(dark.matches);
dark.onchange = () => setTheme(dark.matches);
button.onclick = () => setTheme(root.dataset.theme !== "dark");
})();
