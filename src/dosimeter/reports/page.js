"use strict";
// All that a page does beyond being read: its theme, the gallery's order and filters, tables in order, and zoom.
(() => {
  const root = document.documentElement;
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  root.classList.add("js");

  // The theme is the reader's own until it is switched, and is remembered where the browser allows that.
  const kept = (value) => {
    try {
      if (value) localStorage.setItem("dosimeter-theme", value);
      return localStorage.getItem("dosimeter-theme");
    } catch { return null; }
  };
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const before = kept();
  if (before === "light" || before === "dark") root.dataset.theme = before;
  for (const button of all("button.theme")) {
    const say = () => { button.textContent = dark() ? "Light" : "Dark"; };
    button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; kept(root.dataset.theme); say(); });
    say();
  }

  // A gallery shows the figures that pass every filter, in the order that is asked for.
  for (const tools of all(".tools")) {
    const gallery = document.getElementById(tools.dataset.for);
    const cells = [...gallery.children];
    const told = tools.querySelector("output");
    const ask = (name) => tools.querySelector(`[name=${name}]`)?.value ?? "";
    const order = () => {
      const [by, way] = ask("sort").split(" ");
      const at = (cell) => Number(by.startsWith("#") ? (cell.dataset.each || "").split(" ")[by.slice(1)] || "-2" : cell.dataset[by]);
      const sign = way === "up" ? 1 : -1;
      gallery.append(...[...cells].sort((a, b) => sign * (at(a) - at(b)) || a.dataset.place - b.dataset.place));
    };
    const filter = () => {
      const wanted = { kind: ask("kind"), label: ask("label") };
      let shown = 0;
      for (const cell of cells) {
        cell.hidden = Object.entries(wanted).some(([key, value]) => value && cell.dataset[key] !== value);
        shown += !cell.hidden;
      }
      told.textContent = `${shown.toLocaleString("en")} of ${cells.length.toLocaleString("en")} shown`;
    };
    tools.addEventListener("change", (event) => (event.target.name === "sort" ? order() : filter()));
    tools.addEventListener("input", (event) => {
      if (event.target.name === "size") gallery.style.setProperty("--side", `${event.target.value}rem`);
    });
    order();
    filter();
  }

  // A column's head puts the table in its order; numbers by size, words by the alphabet.
  for (const table of all("table.sorts")) {
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => {
          const text = row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
          const number = parseFloat(text.replace(/[, ]/g, ""));
          return Number.isNaN(number) ? text : number;
        };
        const compare = (a, b) => {
          const [x, y] = [value(a), value(b)];
          return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        };
        table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * compare(a, b)));
      });
    });
  }

  // Zoom: the pictures of a figure, large, pixel by pixel; arrow keys go to the one beside it.
  const box = document.createElement("dialog");
  const bar = document.createElement("div");
  const [name, back, on, close] = ["p", "button", "button", "button"].map((what) => document.createElement(what));
  [back.textContent, on.textContent, close.textContent] = ["Previous", "Next", "Close"];
  bar.className = "bar";
  bar.append(name, back, on, close);
  box.setAttribute("aria-label", "Pictures, enlarged");
  const content = document.createElement("div");
  box.append(bar, content);
  document.body.append(box);
  let now = null;
  const beside = (way) => {
    const open = all("figure:not([hidden]) > .strip", now.closest(".gallery") || document);
    return open[open.indexOf(now) + way];
  };
  const show = (strip) => {
    now = strip;
    const figure = strip.closest("figure");
    const large = document.createElement("div");
    large.className = "strip";
    large.append(...[...strip.children].map((each) => each.cloneNode(true)));
    const many = strip.children.length;
    large.style.setProperty("--columns", many <= 5 ? many : Math.ceil(many / 2));
    const caption = figure.querySelector("figcaption")?.cloneNode(true);
    name.textContent = figure.dataset.name || "";
    content.replaceChildren(large, ...(caption ? [caption] : []));
    back.disabled = !beside(-1);
    on.disabled = !beside(1);
    if (!box.open) box.showModal();
  };
  const go = (way) => { const next = beside(way); if (next) show(next); };
  back.addEventListener("click", () => go(-1));
  on.addEventListener("click", () => go(1));
  close.addEventListener("click", () => box.close());
  box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
  box.addEventListener("close", () => now.focus());
  document.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (way && box.open) go(way);
  });
  document.addEventListener("click", (event) => {
    const strip = event.target.closest("button.strip");
    if (strip) show(strip);
    const point = event.target.closest("svg a[href^='#']");
    const found = point && document.getElementById(point.getAttribute("href").slice(1));
    const opened = found && found.querySelector("button.strip");
    if (opened) { event.preventDefault(); show(opened); }
  });
})();
