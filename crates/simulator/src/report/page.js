// Optional extras of the page: switches for dispatchers, and values under the pointer.
"use strict";
for (const key of document.querySelectorAll(".legend li[data-d]")) {
  key.setAttribute("role", "button");
  key.setAttribute("aria-pressed", "true");
  key.tabIndex = 0;
  const flip = () => {
    const off = !key.classList.contains("off");
    for (const each of document.querySelectorAll(`figure [data-d="${key.dataset.d}"]`)) {
      each.classList.toggle("off", off);
      if (each.hasAttribute("aria-pressed")) each.setAttribute("aria-pressed", String(!off));
    }
  };
  key.addEventListener("click", flip);
  key.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    flip();
  });
}

const tip = document.getElementById("tip");
const value = (scale, at) => {
  const [log, low, high] = scale.split(" ").map(Number);
  return log ? low * (high / low) ** at : low + at * (high - low);
};
const show = (number) => number.toLocaleString("en", { maximumSignificantDigits: 3 });
// Returns the y of a line at x, interpolated; undefined outside of its points.
const height = (points, x) => {
  for (let i = 1; i < points.length; i++) {
    const [a, b] = [points[i - 1], points[i]];
    if (a[0] <= x && x <= b[0]) return b[0] === a[0] ? b[1] : a[1] + ((x - a[0]) / (b[0] - a[0])) * (b[1] - a[1]);
  }
};
for (const svg of document.querySelectorAll("svg.lines")) {
  const [left, top, right, bottom] = svg.dataset.box.split(" ").map(Number);
  const [unitX, unitY] = svg.dataset.units.split("|");
  const lines = [...svg.querySelectorAll("g.s")].map((group) => ({
    group,
    name: group.dataset.name,
    points: group.querySelector("polyline").getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number)),
  }));
  const move = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const shown = lines
      .filter((line) => !line.group.classList.contains("off"))
      .map((line) => ({ ...line, y: height(line.points, x) }))
      .filter((line) => line.y !== undefined)
      .sort((a, b) => a.y - b.y)
      .slice(0, 12);
    tip.hidden = x < left || x > right || !shown.length;
    if (tip.hidden) return;
    const row = (name, text) => {
      const [div, span, b] = ["div", "span", "b"].map((tag) => document.createElement(tag));
      span.textContent = name;
      b.textContent = text;
      div.append(span, b);
      return div;
    };
    const at = value(svg.dataset.x, (x - left) / (right - left));
    tip.replaceChildren(row("at", `${show(at)} ${unitX}`));
    for (const line of shown) {
      const y = value(svg.dataset.y, (bottom - line.y) / (bottom - top));
      tip.append(row(line.name, `${show(y)} ${unitY}`));
    }
    const fits = event.clientX + 16 + tip.offsetWidth < innerWidth;
    const to = fits ? event.clientX + 16 : Math.max(4, event.clientX - 16 - tip.offsetWidth);
    const down = Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 4));
    tip.style.transform = `translate(${to}px, ${down}px)`;
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  // A touch ends immediately: its values stay until the next touch elsewhere.
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") tip.hidden = true; });
}
addEventListener("pointerdown", (event) => { if (!event.target.closest("svg.lines")) tip.hidden = true; });
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
