"use strict";
(() => {
const $ = (selector, of = document) => of.querySelector(selector), $$ = (selector, of = document) => [...of.querySelectorAll(selector)];
const data = JSON.parse($("#data").textContent);

for (const section of $$("main > section")) {
  const link = document.createElement("a");
  link.href = `#${section.id}`;
  link.textContent = $("h2", section).textContent;
  $("#sections").append(link);
}

// A chart is drawn when it comes into view; until then, and in print, its image stands there.
const seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(async ({ target }) => {
  seen.unobserve(target);
  target.classList.add("drawn");
  const spec = data.charts[target.dataset.chart];
  spec.config.legend.columns = Math.max(1, Math.floor(target.clientWidth / 200));
  await vegaEmbed($(".vega", target), spec, { renderer: "svg", actions: false });
}), { rootMargin: "200px" });
$$("figure[data-chart]").forEach((figure) => seen.observe(figure));

// Comparisons of the chosen column.
const compare = () => {
  const select = $$("select.pair").find((node) => !node.parentElement.hidden);
  if ($("#outcome")) $("#outcome").innerHTML = select ? data.pairs[select.value] : "";
};
$$("select.pair").forEach((select) => { select.onchange = compare; });

// Episodes: those of the filters, one of them open, one of its steps shown.
let status = "all", open = null, at = 0;
const fits = (item, wanted) => (wanted === "all" || item.dataset.status.split(" ").includes(wanted))
  && (!item.dataset.of || item.dataset.of === $("select[data-shows=column]").value)
  && [item.dataset.name, ""].includes($("#evaluation").value) && item.dataset.said.includes($("#search").value.toLowerCase());
function filter() {
  for (const button of $$("#filters button")) {
    button.setAttribute("aria-pressed", button.dataset.status === status);
    button.textContent = `${button.dataset.status} ${$$("#list li").filter((item) => fits(item, button.dataset.status)).length}`;
  }
  for (const item of $$("#list li")) item.hidden = !fits(item, status);
  const shown = $$("#list li:not([hidden]) button");
  $("#count").textContent = shown.length === 1 ? "1 episode" : `${shown.length} episodes`;
  if (!shown.length) $("#detail").textContent = "No episode of this kind.";
  else if (!shown.some((button) => button.dataset.episode === open)) show(shown[0].dataset.episode);
}
function show(place) {
  open = place;
  $$("#list button").forEach((button) => button.setAttribute("aria-current", button.dataset.episode === open));
  $("#detail").innerHTML = data.episodes[place];
  if ($(".steps")) go(Number($(".steps").dataset.start));
}
function go(step) {
  const steps = $$("#detail .step"), memory = $("#detail .memory");
  at = Math.min(Math.max(step, 0), steps.length - 1);
  steps.forEach((node, place) => { node.hidden = place !== at; });
  $$(".steps [data-step]").forEach((button) => button.setAttribute("aria-current", Number(button.dataset.step) === at));
  if (memory) {
    for (const item of $$("li", memory)) item.hidden = at < item.dataset.from || at >= item.dataset.until;
    memory.hidden = !$$("li:not([hidden])", memory).length;
    steps[at].lastElementChild.lastElementChild.append(memory);
  }
  for (const box of $$("pre", steps[at])) {
    box.tabIndex = 0;
    if (box.dataset.text) box.textContent = data.texts[box.dataset.text];
  }
}
document.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button) return;
  if (button.dataset.episode) { show(button.dataset.episode); $("#detail").scrollIntoView({ block: "nearest" }); $("#detail").focus({ preventScroll: true }); }
  if (button.dataset.status) { status = button.dataset.status; filter(); }
  if (button.dataset.step) go(Number(button.dataset.step));
  if (button.id === "previous" || button.id === "next") go(at + (button.id === "next" ? 1 : -1));
});
$("#detail").addEventListener("keydown", (event) => {
  if (event.key === "ArrowRight" || event.key === "ArrowLeft") { go(at + (event.key === "ArrowRight" ? 1 : -1)); event.preventDefault(); }
});
$("#evaluation").onchange = $("#search").oninput = filter;

// A list that says of which column, or score, everything is shown.
for (const select of $$("select[data-shows]")) {
  select.onchange = () => {
    for (const node of $$(`[data-${select.dataset.shows}]`)) node.hidden = node.dataset[select.dataset.shows] !== select.value;
    compare();
    filter();
  };
  select.onchange();
}
compare();
filter();
})();
