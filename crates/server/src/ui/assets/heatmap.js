// The heat map: one square a node, by zone and pool. Only squares that have changed are painted, once a frame.

const GAP = 1;
const LABEL = 20;
const SQUARE_MAX = 22;
const SQUARE_MIN = 5;
const HEIGHT_MAX = 620;
const STEPS = 101;
// Of the shares of a node.
const [CPU, MEMORY, PODS, EXTENDED, RESERVED] = [0, 1, 2, 3, 4];
const WIDTH_OF_SHARES = 5;

export class HeatMap {
  #canvas; #frame; #details; #scale; #context;
  #nodes = new Map(); // by id: facts, shares, place
  #order = []; // ids as drawn
  #groups = []; // labels with their places
  #dirty = new Set();
  #layoutDue = true;
  #scheduled = false;
  #resource = CPU;
  #words = "";
  #cursor = null;
  #square = SQUARE_MAX;
  #colours = [];
  #ink = "#000";
  #ground = "#fff";
  #mark = "#f00";
  longestPaintMs = 0;

  constructor(canvas, frame, details, scale) {
    [this.#canvas, this.#frame, this.#details, this.#scale] = [canvas, frame, details, scale];
    this.#context = canvas.getContext("2d");
    new ResizeObserver(() => this.#relayout()).observe(frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#recolour());
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    this.#recolour();
  }

  get size() { return this.#nodes.size; }

  clear() {
    this.#nodes.clear();
    this.#cursor = null;
    this.#relayout();
  }

  apply({ nodes, gone }) {
    for (const id of gone) this.#nodes.delete(id);
    for (const facts of nodes) {
      const shares = this.#nodes.get(facts.id)?.shares ?? new Array(WIDTH_OF_SHARES).fill(0);
      const words = `${facts.name} ${facts.zone} ${facts.pool}`.toLowerCase();
      this.#nodes.set(facts.id, { facts, shares, words, x: 0, y: 0 });
    }
    this.#relayout();
  }

  applyShares(list) {
    for (let at = 0; at + WIDTH_OF_SHARES < list.length; at += WIDTH_OF_SHARES + 1) {
      const node = this.#nodes.get(list[at]);
      if (!node) continue;
      node.shares = list.slice(at + 1, at + 1 + WIDTH_OF_SHARES);
      this.#dirty.add(list[at]);
      if (list[at] === this.#cursor) this.#tell();
    }
    this.#request();
  }

  show(resource) {
    this.#resource = resource;
    this.#repaint();
  }

  filter(words) {
    this.#words = words.trim().toLowerCase();
    this.#relayout();
  }

  // Returns a row for each zone and pool.
  summary() {
    const rows = new Map();
    for (const { facts, shares } of this.#nodes.values()) {
      const key = `${facts.zone}\n${facts.pool}`;
      let row = rows.get(key);
      if (!row) rows.set(key, (row = { zone: facts.zone, pool: facts.pool, nodes: 0, out: 0, cpu: 0, memory: 0, pods: 0 }));
      row.nodes += 1;
      row.out += facts.cordoned || !facts.ready ? 1 : 0;
      row.cpu += shares[CPU];
      row.memory += shares[MEMORY];
      row.pods += shares[PODS];
    }
    return [...rows.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, row]) => row);
  }

  #relayout() {
    this.#layoutDue = true;
    this.#request();
  }

  #repaint() {
    for (const id of this.#order) this.#dirty.add(id);
    this.#request();
  }

  #request() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      const began = performance.now();
      if (this.#layoutDue) this.#layout();
      this.#paint();
      this.longestPaintMs = Math.max(this.longestPaintMs, performance.now() - began);
      const root = document.documentElement.dataset;
      root.nodes = this.#nodes.size;
      root.frames = Number(root.frames ?? 0) + 1;
    });
  }

  // Gives each node its place: a block for each zone and pool, in rows as wide as the page.
  #layout() {
    this.#layoutDue = false;
    const groups = new Map();
    for (const [id, node] of this.#nodes) {
      if (this.#words && !node.words.includes(this.#words)) continue;
      const key = `${node.facts.zone}\n${node.facts.pool}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(id);
    }
    const sorted = [...groups.entries()].sort(([a], [b]) => (a < b ? -1 : 1));
    const byName = (a, b) => (this.#nodes.get(a).facts.name < this.#nodes.get(b).facts.name ? -1 : 1);
    for (const [, ids] of sorted) ids.sort(byName);
    const width = Math.max(120, this.#frame.clientWidth);
    const rowsAt = (square) => {
      const each = Math.floor(width / (square + GAP));
      return sorted.reduce((sum, [, ids]) => sum + LABEL + Math.ceil(ids.length / each) * (square + GAP) + 6, 0);
    };
    let square = SQUARE_MAX;
    while (square > SQUARE_MIN && rowsAt(square) > HEIGHT_MAX) square -= 1;
    this.#square = square;
    const each = Math.floor(width / (square + GAP));
    this.#order = [];
    this.#groups = [];
    let y = 0;
    for (const [key, ids] of sorted) {
      const [zone, pool] = key.split("\n");
      this.#groups.push({ text: `${zone || "no zone"} · ${pool || "no pool"} (${ids.length})`, y: y + LABEL - 6 });
      y += LABEL;
      ids.forEach((id, at) => {
        const node = this.#nodes.get(id);
        node.x = (at % each) * (square + GAP);
        node.y = y + Math.floor(at / each) * (square + GAP);
        this.#order.push(id);
      });
      y += Math.ceil(ids.length / each) * (square + GAP) + 6;
    }
    const ratio = window.devicePixelRatio || 1;
    const height = Math.max(LABEL, y);
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    this.#canvas.style.height = `${height}px`;
    this.#context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#context.font = "12px system-ui, sans-serif";
    this.#context.fillStyle = this.#ink;
    if (!sorted.length) this.#context.fillText(this.#words ? "No node has these letters." : "No nodes.", 0, LABEL - 6);
    for (const { text, y: at } of this.#groups) this.#context.fillText(text, 0, at);
    if (!this.#nodes.has(this.#cursor)) this.#cursor = null;
    this.#dirty = new Set(this.#order);
  }

  #paint() {
    for (const id of this.#dirty) {
      const node = this.#nodes.get(id);
      if (node && (!this.#words || node.words.includes(this.#words))) this.#square_of(id, node);
    }
    this.#dirty.clear();
  }

  #square_of(id, { facts, shares, x, y }) {
    const [context, size] = [this.#context, this.#square];
    const share = Math.min(1000, Math.max(0, shares[this.#resource]));
    context.save();
    context.beginPath();
    context.rect(x, y, size, size);
    context.clip();
    context.clearRect(x, y, size, size);
    // A node without such a resource is an outline.
    if (shares[this.#resource] < 0) {
      context.strokeStyle = this.#colours[20];
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    } else {
      context.fillStyle = this.#colours[Math.round(share / 10)];
      context.fillRect(x, y, size, size);
    }
    if (facts.cordoned || !facts.ready) {
      // In two colours, to be seen on each.
      for (const [width, colour] of [[3, this.#ground], [1, this.#ink]]) {
        context.lineWidth = width;
        context.strokeStyle = colour;
        context.beginPath();
        context.moveTo(x, y + size);
        context.lineTo(x + size, y);
        context.stroke();
      }
    }
    if (shares[RESERVED] > 0) {
      context.fillStyle = this.#mark;
      context.fillRect(x + size - Math.ceil(size / 3), y, Math.ceil(size / 3), Math.ceil(size / 3));
    }
    if (id === this.#cursor) {
      context.strokeStyle = this.#mark;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, size - 2, size - 2);
    }
    context.restore();
  }

  // One hue, from close to the ground to far from it: to be told apart without seeing colours.
  #recolour() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const style = getComputedStyle(document.documentElement);
    this.#ink = style.getPropertyValue("--text").trim();
    this.#ground = style.getPropertyValue("--ground").trim();
    this.#mark = style.getPropertyValue("--bad").trim();
    const [from, to] = dark ? [20, 82] : [93, 26];
    this.#colours = Array.from({ length: STEPS }, (_, at) => {
      const part = at / (STEPS - 1);
      return `hsl(213 ${35 + 45 * part}% ${from + (to - from) * part}%)`;
    });
    const context = this.#scale.getContext("2d");
    const { width, height } = this.#scale;
    for (let x = 0; x < width; x += 1) {
      context.fillStyle = this.#colours[Math.round((x / (width - 1)) * (STEPS - 1))];
      context.fillRect(x, 0, 1, height);
    }
    this.#relayout();
  }

  #point(event) {
    const [x, y, step] = [event.offsetX, event.offsetY, this.#square + GAP];
    const found = this.#order.find((id) => {
      const node = this.#nodes.get(id);
      return x >= node.x && x < node.x + step && y >= node.y && y < node.y + step;
    });
    if (found !== undefined && found !== this.#cursor) this.#go(found);
  }

  #key(event) {
    const at = this.#order.indexOf(this.#cursor);
    const each = Math.max(1, Math.floor(this.#frame.clientWidth / (this.#square + GAP)));
    const last = this.#order.length - 1;
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + each, ArrowUp: at - each, Home: 0, End: last };
    if (!(event.key in steps) || last < 0) return;
    event.preventDefault();
    this.#go(this.#order[Math.min(last, Math.max(0, steps[event.key]))]);
  }

  #go(id) {
    if (this.#cursor !== null) this.#dirty.add(this.#cursor);
    this.#cursor = id;
    this.#dirty.add(id);
    this.#request();
    this.#tell();
  }

  #tell() {
    const node = this.#nodes.get(this.#cursor);
    if (!node) return;
    const { facts, shares } = node;
    const percent = (share) => `${(share / 10).toFixed(0)} %`;
    const parts = [
      facts.name,
      [facts.zone, facts.pool].filter(Boolean).join(", ") || "no zone, no pool",
      `CPU ${percent(shares[CPU])} of ${(facts.cpuMilli / 1000).toLocaleString("en")}`,
      `memory ${percent(shares[MEMORY])} of ${(facts.memory / 2 ** 30).toFixed(1)} GiB`,
      `pods ${percent(shares[PODS])} of ${facts.pods}`,
    ];
    const extended = Object.entries(facts.extended).map(([name, amount]) => `${name}: ${amount}`);
    if (extended.length) parts.push(`extended ${percent(shares[EXTENDED])} of ${extended.join(", ")}`);
    if (shares[RESERVED] > 0) parts.push(`${percent(shares[RESERVED])} of the CPU is reserved`);
    if (facts.cordoned) parts.push("cordoned");
    if (!facts.ready) parts.push("not ready");
    this.#details.textContent = parts.join(" · ");
  }
}
