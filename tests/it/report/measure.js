// Runs at the end of a copy of the page. Leaves what it measured in the outermost document.
addEventListener("load", () => {
  const root = document.documentElement;
  const shown = (element) => element.getClientRects().length > 0;
  const plots = [...document.querySelectorAll("figure[id]")].map((figure) => ({
    id: figure.id,
    drawings: [...figure.querySelectorAll("svg[role=img]")].filter(shown).map((svg) => {
      const { width, height } = svg.getBoundingClientRect();
      const shapes = [...svg.querySelectorAll("polyline, polygon, rect.bar")].filter((shape) => {
        const box = shape.getBoundingClientRect();
        return box.width > 1 || box.height > 1;
      });
      return [width, height, shapes.length];
    }),
  }));
  let [least, smallest] = [Infinity, ""];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (!text || !shown(element) || element.closest("title, script, style")) continue;
    const svg = element.closest("svg");
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const size = parseFloat(getComputedStyle(element).fontSize) * scale;
    if (size < least) [least, smallest] = [size, text];
  }
  const measured = {
    plots,
    resources: performance.getEntriesByType("resource").map((entry) => entry.name),
    page_width: root.scrollWidth,
    window_width: innerWidth,
    page_height: root.scrollHeight,
    text_size_min: least,
    text_smallest: smallest,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
  };
  const outer = window.parent.document;
  const pre = outer.createElement("pre");
  pre.id = "measured";
  pre.hidden = true;
  pre.textContent = JSON.stringify(measured);
  outer.body.append(pre);
});
