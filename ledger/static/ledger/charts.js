// Draws the figures that a page carries as JSON. Colours come from the style sheet, by category.
"use strict";

(() => {
  const CONFIG = { displayModeBar: false };
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const PATTERNS = {
    on_demand: "|", borrowed: "-", lent: "-", reserved_idle: "/", undelivered: "\\", oversold: "x", excess: "\\",
  };

  // From the page's own colour to that of the category, never so dark that the ink on it cannot be read.
  const DARKEST = 0.55;
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const shades = (name) => {
    const [from, to] = [rgb(style("--paper")), rgb(style(`--${name}`))];
    const end = from.map((part, index) => Math.round(part + (to[index] - part) * DARKEST));
    return [[0, `rgb(${from.join()})`], [1, `rgb(${end.join()})`]];
  };

  const coloured = (trace) => {
    if (trace.meta?.shade) {
      return { ...trace, colorscale: shades(trace.meta.shade), textfont: { color: style("--ink") } };
    }
    const category = trace.meta?.category;
    const fill = category ?? trace.meta?.fill;
    if (fill) {
      const shape = category ? PATTERNS[category] : trace.meta.pattern;
      const pattern = shape
        ? { shape, fgcolor: style("--surface"), fgopacity: 0.45, size: 6, solidity: 0.22, fillmode: "overlay" }
        : undefined;
      return { ...trace, marker: { ...trace.marker, color: style(`--${fill}`), pattern, line: { width: 0 } } };
    }
    if (trace.meta?.line) return { ...trace, line: { ...trace.line, color: style(`--${trace.meta.line}`) } };
    return trace;
  };

  // A legend's place is a part of the plot's height: below two lines of dates, on a low chart too.
  const framed = (layout, isLow) => {
    const axis = {
      gridcolor: style("--rule"), linecolor: style("--rule-strong"), zerolinecolor: style("--rule-strong"),
      fixedrange: true, automargin: true, separatethousands: true, exponentformat: "none",
    };
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: style("--sans"), size: 14, color: style("--ink") },
      margin: { l: 56, r: 8, t: 8, b: 32, ...layout.margin },
      legend: { orientation: "h", y: isLow ? -0.4 : -0.14, x: 0, traceorder: "normal" },
      hoverlabel: { bgcolor: style("--surface"), bordercolor: style("--rule-strong"), font: { color: style("--ink") } },
      separators: ". ",
      xaxis: { ...axis, showgrid: false, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis, title: { ...layout.yaxis?.title, font: { size: 14 } } },
    };
  };

  // A narrow screen needs room for the legend, which then has a line per category.
  const height = (holder, width) => (holder.classList.contains("low") ? 210 : width < 520 ? 480 : 360);
  // What print.css leaves of A4 between its margins: 178 mm.
  const PAPER_WIDTH = 672;

  const draw = (paper = 0) => {
    for (const holder of document.querySelectorAll("[data-figure]")) {
      const figure = JSON.parse(document.getElementById(holder.dataset.figure).textContent);
      const room = figure.least ? Math.max(holder.parentElement.clientWidth, figure.least.width) : holder.clientWidth;
      const width = paper || room;
      const tall = figure.least?.height ?? height(holder, width);
      const isNew = !holder.classList.contains("js-plotly-plot");
      window.Plotly.react(holder, figure.data.map(coloured), { ...framed(figure.layout, holder.classList.contains("low")), width, height: tall }, CONFIG);
      // A bar leads closer; the table behind the chart has the same links.
      if (isNew && figure.urls?.length) {
        holder.on("plotly_click", (event) => {
          const url = [event.points[0].pointIndex].flat().reduce((urls, place) => urls[place], figure.urls);
          if (url) window.location.assign(url);
        });
      }
    }
  };

  let redraw;
  window.addEventListener("resize", () => {
    clearTimeout(redraw);
    redraw = setTimeout(() => draw(), 120);
  });

  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  window.addEventListener("beforeprint", () => draw(PAPER_WIDTH));
  window.addEventListener("afterprint", () => draw());
})();
