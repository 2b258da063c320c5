"use strict";
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.explorer = {
  // Which of list, form, trial, its pictures and its page are hidden, by the address.
  view: function (hash) {
    const name = (hash || "").replace(/^#/, "");
    const form = name === "new", list = name === "", page = name.endsWith("/page");
    window.scrollTo(0, 0);
    setTimeout(() => window.dispatchEvent(new Event("resize")), 0); // figures that were hidden have no size
    return [!list, !form, list || form, page, !page];
  },
  svg: function () {
    const plot = document.querySelector("#plot .js-plotly-plot");
    if (plot && window.Plotly) {
      window.Plotly.downloadImage(plot, { format: "svg", width: 900, height: 600, filename: "accuracy-privacy" });
    }
    return "Save the figure";
  },
};
