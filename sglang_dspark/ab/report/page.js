"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const boxes = [...document.querySelectorAll('input[name="arm"]')];
  const shown = () => new Set(boxes.filter((box) => box.checked).map((box) => box.value));

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const theme = () => {
    const [text, line] = [colour("--text"), colour("--line")];
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line };
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, family: "system-ui, sans-serif", size: 12 },
      xaxis: axis,
      yaxis: axis,
    };
  };
  const merged = (layout) => {
    const look = theme();
    return { ...layout, ...look, xaxis: { ...layout.xaxis, ...look.xaxis }, yaxis: { ...layout.yaxis, ...look.yaxis } };
  };
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };

  const draw = () =>
    Promise.all(
      Object.entries(figures).map(([id, figure]) => {
        const visible = shown();
        // Whoever knows only hidden arms sees nothing: an arm without a box is never hidden.
        const known = new Set(boxes.map((box) => box.value));
        const data = figure.data.map((trace) => ({
          ...trace,
          visible: !known.has(trace.meta.arm) || visible.has(trace.meta.arm),
        }));
        return Plotly.react(id, data, merged(figure.layout), config);
      }),
    );

  const tables = () => {
    const visible = shown();
    const known = new Set(boxes.map((box) => box.value));
    for (const row of document.querySelectorAll("tr[data-arm]")) {
      row.hidden = known.has(row.dataset.arm) && !visible.has(row.dataset.arm);
    }
  };

  for (const box of boxes) {
    box.addEventListener("change", () => {
      tables();
      draw();
      document.getElementById("announce").textContent = `${box.value} ${box.checked ? "shown" : "hidden"}`;
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((details) => (details.open = true));
    draw();
  });

  const link = document.getElementById("download");
  link.href = URL.createObjectURL(
    new Blob([document.getElementById("results").textContent], { type: "application/json" }),
  );

  tables();
  draw().then(() => document.documentElement.setAttribute("data-drawn", String(Object.keys(figures).length)));
})();
