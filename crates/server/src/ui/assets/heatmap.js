// The heat map: one square a node, by zone and pool. Only squares that look different are painted, at most once a frame.

import { CPU, RESERVED, number } from "./tables.js";

// In CSS pixels; what is drawn is rounded to pixels of the screen, so that edges are sharp.
const SQUARE_MAX = 20;
const SQUARE_MIN = 6;
const HEIGHT_AIM = 560;
const LINE = 17;
const LABEL_MAX = 150;
const NARROW = 640;
const GROUP_SPACE = 4;
const ZONE_SPACE = 12;

// One hue, from close to the ground to far from it: lightness alone tells the values apart.
const LIGHT = [[222, 235, 247], [158, 202, 225], [75, 151, 201], [24, 97, 169], [8, 41, 92]];
const DARK = [[31, 46, 66], [38, 82, 128], [58, 128, 190], [127, 184, 232], [221, 238, 255]];
const STEPS = 100;

// What a square looks like, as bits beside the step of its colour.
const NONE = STEPS + 1;
const [OVER, CORDONED, UNREADY, RESERVES] = [1 << 8, 1 << 9, 1 << 10, 1 << 11];
const KEYS = { cordoned: 30 | CORDONED, unready: 30 | UNREADY, reserved: 30 | RESERVES, over: STEPS | OVER, none: NONE };

export class HeatMap {
  #canvas; #frame; #marker; #context; #nodes; #onShow;
  #groups = []; // as drawn
  #order = []; // nodes as drawn
  #rows = []; // {top, nodes}, as drawn
  #dirty = new Set();
  #layoutDue = true;
  #scheduled = false;
  #resource = CPU;
  #cursor = null; // set by keys and clicks
  #hover = null;
  #step = 1;
  #square = 1;
  #left = 0;
  #ratio = 1;
  #colours = [];
  #style = {};
  longestPaintMs = 0;
  emptyText = "";

  // `nodes` has the groups to draw. `onShow(node or null, byKey)` is called when another node is pointed at, or that node has changed.
  constructor(canvas, frame, marker, nodes, onShow) {
    [this.#canvas, this.#frame, this.#marker, this.#nodes, this.#onShow] = [canvas, frame, marker, nodes, onShow];
    this.#context = canvas.getContext("2d");
    new ResizeObserver(() => this.relayout()).observe(frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#recolour());
    canvas.addEventListener("pointermove", (event) => this.#point(this.#at(event)));
    canvas.addEventListener("pointerleave", () => this.#point(null));
    canvas.addEventListener("click", (event) => this.#go(this.#at(event), false));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    this.#watchRatio();
    this.#recolour();
  }

  // A node has other facts or shares.
  changed(node) {
    this.#dirty.add(node);
    this.#request();
  }

  relayout() {
    this.#layoutDue = true;
    this.#request();
  }

  show(resource) {
    this.#resource = resource;
    for (const node of this.#order) this.#dirty.add(node);
    this.#request();
  }

  // Draws the colours from 0 to 100 % and the marks of the legend.
  drawLegend(scale, keys) {
    const ratio = window.devicePixelRatio || 1;
    const fit = (canvas, width, height) => {
      [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
      return canvas.getContext("2d");
    };
    const context = fit(scale, scale.clientWidth || 120, 12);
    for (let x = 0; x < scale.width; x += 1) {
      context.fillStyle = this.#colours[Math.round((x / (scale.width - 1)) * STEPS)];
      context.fillRect(x, 0, 1, scale.height);
    }
    for (const key of keys) this.#drawSquare(fit(key, 12, 12), 0, 0, Math.round(12 * ratio), KEYS[key.dataset.key]);
  }

  #request() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      const began = performance.now();
      const shown = this.#hover ?? this.#cursor;
      const told = this.#layoutDue || this.#dirty.has(shown);
      if (this.#layoutDue) this.#layout();
      for (const node of this.#dirty) this.#paint(node);
      this.#dirty.clear();
      if (told) this.#tell(false);
      this.longestPaintMs = Math.max(this.longestPaintMs, performance.now() - began);
      const root = document.documentElement.dataset;
      root.nodes = this.#order.length;
      root.frames = Number(root.frames ?? 0) + 1;
    });
  }

  // Gives each node its place, and draws the labels. Everything is in pixels of the screen.
  #layout() {
    this.#layoutDue = false;
    this.#groups = this.#nodes.groups();
    this.#order = this.#groups.flatMap(({ nodes }) => nodes);
    const ratio = (this.#ratio = window.devicePixelRatio || 1);
    const pixels = (css) => Math.round(css * ratio);
    const [context, groups] = [this.#context, this.#groups];
    const width = Math.max(pixels(120), Math.floor(this.#frame.clientWidth * ratio));
    const narrow = this.#frame.clientWidth < NARROW;
    const font = (weight) => { context.font = `${weight} ${12 * ratio}px system-ui, sans-serif`; };
    const texts = groups.map(({ zone, pool, nodes }) => [zone || "no zone", `${pool || "no pool"} (${number(nodes.length)})`]);
    const widest = (which) => texts.reduce((most, text) => Math.max(most, context.measureText(text[which]).width), 0);
    font(600);
    const zoneWidth = Math.min(pixels(LABEL_MAX), Math.ceil(widest(0)) + pixels(14));
    font(400);
    const poolWidth = Math.min(pixels(LABEL_MAX), Math.ceil(widest(1)) + pixels(14));
    this.#left = narrow ? 0 : zoneWidth + poolWidth;

    const gap = Math.max(1, Math.floor(ratio));
    const line = pixels(LINE);
    const spaceAfter = (at) => pixels(groups[at + 1]?.zone === groups[at].zone ? GROUP_SPACE : ZONE_SPACE);
    const each = (square) => Math.max(1, Math.floor((width - this.#left + gap) / (square + gap)));
    const heightOf = (group, square) => {
      const squares = Math.ceil(group.nodes.length / each(square)) * (square + gap);
      return narrow ? line + squares : Math.max(line, squares);
    };
    const height = (square) => groups.reduce((sum, group, at) => sum + heightOf(group, square) + spaceAfter(at), 0);
    let square = pixels(SQUARE_MAX);
    while (square > pixels(SQUARE_MIN) && height(square) > pixels(HEIGHT_AIM)) square -= 1;
    [this.#square, this.#step] = [square, square + gap];

    this.#canvas.width = width;
    this.#canvas.height = Math.max(line * 2, height(square));
    this.#canvas.style.width = `${width / ratio}px`;
    this.#canvas.style.height = `${this.#canvas.height / ratio}px`;
    const write = (text, x, y, weight, colour, most) => {
      font(weight);
      context.fillStyle = colour;
      context.fillText(shorten(context, text, most), x, y);
    };
    context.textBaseline = "middle";
    if (!groups.length) write(this.emptyText, 0, line, 400, this.#style.muted, width);

    this.#rows = [];
    let top = 0;
    groups.forEach((group, at) => {
      const [zone, pool] = texts[at];
      const newZone = group.zone !== groups[at - 1]?.zone;
      const middle = top + line / 2;
      if (at > 0 && newZone) {
        context.fillStyle = this.#style.line;
        context.fillRect(0, top - pixels(ZONE_SPACE / 2) - gap, width, gap);
      }
      if (narrow) {
        write(`${zone} / ${pool}`, 0, middle, 400, this.#style.text, width);
      } else {
        if (newZone) write(zone, 0, middle, 600, this.#style.text, zoneWidth - pixels(10));
        write(pool, zoneWidth, middle, 400, this.#style.muted, poolWidth - pixels(10));
      }
      this.#place(group, top + (narrow ? line : 0), each(square));
      top += heightOf(group, square) + spaceAfter(at);
    });
    if (!this.#nodes.isShown(this.#cursor)) this.#cursor = null;
    if (!this.#nodes.isShown(this.#hover)) this.#hover = null;
  }

  #place(group, top, each) {
    const first = this.#rows.length;
    group.nodes.forEach((node, at) => {
      node.look = -1;
      node.row = first + Math.floor(at / each);
      node.column = at % each;
      node.x = this.#left + node.column * this.#step;
      node.y = top + (node.row - first) * this.#step;
      if (node.column === 0) this.#rows.push({ top: node.y, nodes: [], group });
      this.#rows[node.row].nodes.push(node);
      this.#dirty.add(node);
    });
  }

  #paint(node) {
    if (!this.#nodes.isShown(node)) return;
    const { facts, shares } = node;
    const share = shares[this.#resource];
    let look = share < 0 ? NONE : Math.round((Math.min(1000, share) / 1000) * STEPS);
    if (share > 1000) look |= OVER;
    if (facts.cordoned) look |= CORDONED;
    if (!facts.ready) look |= UNREADY;
    if (shares[RESERVED] > 0) look |= RESERVES;
    if (look === node.look) return;
    node.look = look;
    this.#context.clearRect(node.x, node.y, this.#square, this.#square);
    this.#drawSquare(this.#context, node.x, node.y, this.#square, look);
  }

  #drawSquare(context, x, y, size, look) {
    const step = look & 0xff;
    const thin = Math.max(1, Math.round(size / 10));
    if (step === NONE) {
      context.globalAlpha = 0.5;
      context.strokeStyle = this.#style.muted;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
      context.globalAlpha = 1;
    } else {
      context.fillStyle = this.#colours[step];
      context.fillRect(x, y, size, size);
    }
    if (look === step) return;
    // A mark may not leave traces beside its square, which are not cleared.
    context.save();
    context.beginPath();
    context.rect(x, y, size, size);
    context.clip();
    if (look & OVER) {
      context.strokeStyle = this.#style.mark;
      context.lineWidth = 2 * thin;
      context.strokeRect(x + thin, y + thin, size - 2 * thin, size - 2 * thin);
    }
    if (look & UNREADY) {
      const hole = Math.max(2, Math.round(size / 4));
      context.clearRect(x + hole, y + hole, size - 2 * hole, size - 2 * hole);
    }
    if (look & CORDONED) {
      // Lines that are dark on light squares, and light on dark ones.
      const far = step !== NONE && step > STEPS / 2 && !(look & UNREADY);
      context.strokeStyle = far ? this.#style.ground : this.#style.text;
      context.lineWidth = Math.max(1, size / 9);
      context.beginPath();
      context.moveTo(x + thin, y + thin);
      context.lineTo(x + size - thin, y + size - thin);
      context.moveTo(x + size - thin, y + thin);
      context.lineTo(x + thin, y + size - thin);
      context.stroke();
    }
    if (look & RESERVES) {
      const corner = Math.max(4, Math.round(size * 0.55));
      context.fillStyle = this.#style.mark;
      context.beginPath();
      context.moveTo(x + size, y + size - corner);
      context.lineTo(x + size, y + size);
      context.lineTo(x + size - corner, y + size);
      context.fill();
    }
    context.restore();
  }

  #recolour() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["text", "muted", "line", "ground", "mark"]) this.#style[name] = style.getPropertyValue(`--${name}`).trim();
    const stops = matchMedia("(prefers-color-scheme: dark)").matches ? DARK : LIGHT;
    this.#colours = Array.from({ length: STEPS + 1 }, (_, step) => {
      const place = (step / STEPS) * (stops.length - 1);
      const from = Math.min(stops.length - 2, Math.floor(place));
      const mixed = stops[from].map((part, at) => Math.round(part + (stops[from + 1][at] - part) * (place - from)));
      return `rgb(${mixed.join(" ")})`;
    });
    this.relayout();
  }

  // A window may move to a screen with other pixels and keep its size.
  #watchRatio() {
    matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`).addEventListener("change", () => {
      this.relayout();
      this.#watchRatio();
    }, { once: true });
  }

  #at(event) {
    const [x, y] = [event.offsetX * this.#ratio, event.offsetY * this.#ratio];
    const row = this.#rows.find(({ top }) => y >= top && y < top + this.#step);
    return row?.nodes[Math.floor((x - this.#left) / this.#step)] ?? null;
  }

  #point(node) {
    if (node === this.#hover) return;
    this.#hover = node;
    this.#tell(false);
  }

  #go(node, byKey) {
    this.#cursor = node;
    if (byKey) this.#hover = null;
    this.#tell(byKey);
  }

  #key(event) {
    const [rows, now] = [this.#rows, this.#cursor];
    if (event.key === "Escape") this.#go(null, false);
    if (!rows.length || event.altKey || event.metaKey) return;
    const on = (row, column) => {
      const { nodes } = rows[Math.min(rows.length - 1, Math.max(0, row))];
      return nodes[Math.min(nodes.length - 1, Math.max(0, column))];
    };
    const flat = (by) => this.#order[this.#order.indexOf(now) + by] ?? now;
    const group = (by) => {
      const at = this.#groups.indexOf(rows[now.row].group) + by;
      return this.#groups[Math.min(this.#groups.length - 1, Math.max(0, at))].nodes[0];
    };
    const moves = {
      ArrowRight: () => flat(1), ArrowLeft: () => flat(-1),
      ArrowDown: () => on(now.row + 1, now.column), ArrowUp: () => on(now.row - 1, now.column),
      PageDown: () => group(1), PageUp: () => group(-1),
      Home: () => on(event.ctrlKey ? 0 : now.row, 0), End: () => on(event.ctrlKey ? rows.length - 1 : now.row, Infinity),
    };
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    this.#go(now ? moves[event.key]() : on(0, 0), true);
  }

  #tell(byKey) {
    const node = this.#hover ?? this.#cursor;
    const marker = this.#marker;
    marker.hidden = !node;
    if (node) {
      const css = (pixels) => `${pixels / this.#ratio}px`;
      marker.style.transform = `translate(${css(node.x)}, ${css(node.y)})`;
      marker.style.width = marker.style.height = css(this.#square);
      if (byKey) marker.scrollIntoView({ block: "nearest" });
    }
    this.#onShow(node, byKey);
  }
}

function shorten(context, text, most) {
  if (context.measureText(text).width <= most) return text;
  let end = text.length - 1;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > most) end -= 1;
  return `${text.slice(0, end)}…`;
}
