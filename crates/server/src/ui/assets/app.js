// The page: reads the stream of events and keeps what it shows. Texts from the stream are never taken for HTML.

import { HeatMap } from "./heatmap.js";
import * as tables from "./tables.js";

const { CPU, MEMORY, PODS, EXTENDED, RESERVED, number, percent, plural, setText } = tables;

// An event comes each second.
const LATE_MS = 4000;
const AGAIN_MS = 3000;
// Numbers that a person reads are means of some seconds.
const MEAN_MS = 5000;
const HITS_MS = 60000;
const LINE_MS = 120000;
const SHARES = 5;

const element = (id) => document.getElementById(id);

// The nodes, and which of them pass the filter.
class Nodes {
  #all = new Map(); // by id
  #groups = null;
  #words = "";

  get size() { return this.#all.size; }
  get words() { return this.#words; }

  clear() {
    this.#all.clear();
    this.#groups = null;
  }

  apply({ nodes, gone }) {
    const forget = (id) => {
      const node = this.#all.get(id);
      if (!node) return;
      node.row = -1;
      this.#all.delete(id);
      this.#groups = null;
    };
    for (const id of gone ?? []) forget(id);
    for (const facts of nodes ?? []) {
      const before = this.#all.get(facts.id);
      if (before && ["name", "zone", "pool"].every((of) => before.facts[of] === facts[of])) {
        before.facts = facts;
        map.changed(before);
        continue;
      }
      // An id may come back for another node.
      forget(facts.id);
      const words = `${facts.name}\n${facts.zone}\n${facts.pool}`.toLowerCase();
      const shares = [0, 0, 0, Object.keys(facts.extended ?? {}).length ? 0 : -1, 0];
      this.#all.set(facts.id, { facts, shares, words, order: tables.natural(facts.name), look: -1, x: 0, y: 0, row: -1, column: 0 });
      this.#groups = null;
    }
    if (!this.#groups) map.relayout();
  }

  applyShares(list) {
    for (let at = 0; at + SHARES < list.length; at += SHARES + 1) {
      const node = this.#all.get(list[at]);
      if (!node) continue;
      for (let share = 0; share < SHARES; share += 1) node.shares[share] = list[at + 1 + share];
      map.changed(node);
    }
  }

  filter(words) {
    this.#words = words.trim().toLowerCase();
    this.#groups = null;
    map.relayout();
  }

  isShown(node) { return node !== null && node.row >= 0 && this.#all.get(node.facts.id) === node; }

  all() { return [...this.#all.values()]; }

  // Returns the nodes that pass the filter, by zone and pool, in order.
  groups() {
    if (this.#groups) return this.#groups;
    const groups = new Map();
    for (const node of this.#all.values()) {
      node.row = -1;
      if (this.#words && !node.words.includes(this.#words)) continue;
      const { zone, pool } = node.facts;
      const key = `${tables.natural(zone)}\n${tables.natural(pool)}`;
      if (!groups.has(key)) groups.set(key, { key, zone, pool, nodes: [] });
      groups.get(key).nodes.push(node);
    }
    const by = (field) => (a, b) => (a[field] < b[field] ? -1 : 1);
    this.#groups = [...groups.values()].sort(by("key"));
    for (const group of this.#groups) group.nodes.sort(by("order"));
    return this.#groups;
  }
}

const nodes = new Nodes();
const map = new HeatMap(element("heatmap"), element("map-frame"), element("map-marker"), nodes, showDetails);
const pending = new Map(); // the newest data of each table, by the name of its event
let samples = []; // of the totals of this connection and the counters of agents then, the oldest first
let line = []; // {at, rate} of scheduled pods
let agents = [];
let stream = null;
let version = null;
let lastEvent = 0;

// For tests.
window.berthUi = {
  get longestPaintMs() { return map.longestPaintMs; },
  nodes: () => nodes.size,
};

function connect() {
  stream = new EventSource("stream");
  const on = (name, read) => stream.addEventListener(name, (event) => {
    lastEvent = performance.now();
    read(JSON.parse(event.data));
  });
  on("hello", (data) => {
    nodes.clear();
    map.relayout();
    // The counters of another process begin anew.
    samples = [];
    setText(element("version"), data.version);
    element("reload").hidden = (version ??= data.version) === data.version;
    showConnection();
  });
  on("nodes", (data) => nodes.apply(data));
  on("use", (data) => nodes.applyShares(data.of));
  on("agents", (data) => { agents = data.agents; });
  on("totals", showTotals);
  for (const name of ["queue", "gangs", "quotas", "recommendations", "fragmentation"]) on(name, (data) => pending.set(name, data));
  stream.onerror = () => {
    showConnection();
    // A browser gives up after an answer that is not a stream, as while the process starts again.
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);
  };
}

function showConnection() {
  const ms = performance.now() - lastEvent;
  const live = lastEvent > 0 && ms < LATE_MS && stream.readyState === EventSource.OPEN;
  const badge = element("connection");
  badge.dataset.state = live ? "live" : "reconnecting";
  document.body.classList.toggle("stale", !live && lastEvent > 0);
  setText(badge, badge.dataset.state);
  const why = stream.readyState === EventSource.CLOSED ? ", the server gives no stream" : "";
  setText(element("event-age"), lastEvent ? `last event ${Math.floor(ms / 1000)} s ago${why}` : `no event yet${why}`);
  if (!live) document.title = "berth: reconnecting";
}

// Returns the change a second of a counter over the last `ms`; null: not known yet.
function rateOf(counter, ms = MEAN_MS) {
  const last = samples.at(-1);
  const first = samples.find(({ at }) => at >= last.at - ms);
  const seconds = (last.at - first.at) / 1000;
  return seconds > 0 ? Math.max(0, counter(last) - counter(first)) / seconds : null;
}

function showTotals(now) {
  tables.setClock(now.at);
  tables.setQueueTime(now.queueAt);
  samples.push({ ...now, dispatched: agents.map(({ dispatched }) => dispatched) });
  while (samples[0].at < now.at - HITS_MS) samples.shift();
  const previous = samples.at(-2);
  if (previous && now.at > previous.at) {
    line.push({ at: now.at, rate: Math.max(0, now.scheduled - previous.scheduled) / ((now.at - previous.at) / 1000) });
  }
  line = line.filter(({ at }) => at > now.at - LINE_MS && at <= now.at);
  drawLine(now.at);

  const queues = now.queues ?? {};
  const waiting = now.waiting ?? Object.values(queues).reduce((sum, pods) => sum + pods, 0);
  const tile = (name, value, note) => {
    setText(element(`tile-${name}`), value);
    setText(element(`tile-${name}-note`), note);
  };
  const shown = (value) => (value === null ? "-" : tables.rate(value));
  tile("nodes", number(now.nodes), plural(now.classes, "class", "classes"));
  tile("pods", number(now.pods), `${number(now.assumed)} assumed`);
  tile("waiting", number(waiting), `${number(queues.active ?? 0)} active`);
  tile("rate", shown(rateOf(({ scheduled }) => scheduled)), `${number(now.scheduled)} since start`);
  // Without lists that were asked for lately, what counts is the whole time.
  const [recentHits, recentMisses] = ["listHits", "listMisses"].map((name) => now[name] - samples[0][name]);
  const recent = recentHits + recentMisses > 0;
  const [hits, misses] = recent ? [recentHits, recentMisses] : [now.listHits, now.listMisses];
  tile("hits", hits + misses ? `${(Math.floor((1000 * hits) / (hits + misses)) / 10).toFixed(1)} %` : "-", recent ? "last minute" : "since start");
  tile("conflicts", shown(rateOf(({ conflicts }) => conflicts)), plural(now.preemptions, "preemption"));

  const leader = element("leader");
  leader.hidden = false;
  leader.dataset.leading = now.leading;
  setText(leader, now.leading ? "leader" : "not leader");
  const counts = [
    ["active", queues.active], ["backing off", queues.backoff], ["unschedulable", queues.unschedulable], ["gated", queues.gated],
    ["elsewhere", queues.elsewhere], ["over quota", queues.quota], ["held back", queues.heldBack],
  ];
  setText(element("queue-note"), counts.filter(([, pods]) => pods).map(([name, pods]) => `${number(pods)} ${name}`).join(", "));
  document.title = waiting ? `berth: ${plural(waiting, "pod waits", "pods wait")}` : "berth";
  showConnection();
}

// Scheduled pods a second, the newest at the right.
function drawLine(now) {
  const canvas = element("rate-line");
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((css) => Math.round(css * ratio));
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  const highest = Math.max(1, ...line.map(({ rate }) => rate));
  const [x, y] = [(at) => width - ((now - at) / LINE_MS) * width, (rate) => height - ratio - (rate / highest) * (height - 2 * ratio)];
  context.strokeStyle = context.fillStyle = getComputedStyle(canvas).color;
  context.lineWidth = ratio;
  // A gap in time is no line.
  let run = [];
  const draw = () => {
    context.beginPath();
    run.forEach(({ at, rate }) => context.lineTo(x(at), y(rate)));
    context.stroke();
    if (!run.length) return;
    context.lineTo(x(run.at(-1).at), height);
    context.lineTo(x(run[0].at), height);
    context.globalAlpha = 0.18;
    context.fill();
    context.globalAlpha = 1;
  };
  for (const point of line) {
    if (run.length && point.at - run.at(-1).at > LATE_MS) {
      draw();
      run = [];
    }
    run.push(point);
  }
  draw();
}

function showDetails(node, byKey) {
  element("node-facts").hidden = !node;
  element("node-hint").hidden = Boolean(node);
  element("node-details").classList.toggle("pointed", Boolean(node));
  if (!node) return;
  const { facts, shares } = node;
  const part = (share, all, show) => `${percent(share)}, ${show((share * all) / 1000)} of ${show(all)}`;
  const extended = Object.entries(facts.extended ?? {});
  const state = [facts.cordoned && "cordoned", !facts.ready && "not ready"].filter(Boolean).join(", ") || "takes pods";
  const reserved = shares[RESERVED] > 0 ? `; ${percent(shares[RESERVED])} reserved` : "";
  const texts = {
    name: facts.name, zone: facts.zone || "none", pool: facts.pool || "none", state,
    cpu: part(shares[CPU], facts.cpuMilli, tables.cores) + reserved, memory: part(shares[MEMORY], facts.memory, tables.bytes),
    pods: part(shares[PODS], facts.pods, number),
    extended: extended.length ? `${percent(shares[EXTENDED])} of ${extended.map(([name, amount]) => `${name}: ${number(amount)}`).join(", ")}` : "none",
  };
  for (const field of element("node-facts").querySelectorAll("dd")) setText(field, texts[field.dataset.of]);
  // What a pointer passes over is not read aloud.
  if (byKey) setText(element("node-spoken"), `${facts.name}, zone ${texts.zone}, pool ${texts.pool}, ${state}, CPU ${percent(shares[CPU])}, memory ${percent(shares[MEMORY])}, pods ${percent(shares[PODS])}`);
}

function showTables() {
  const show = {
    queue: tables.showQueue, gangs: tables.showGangs, quotas: tables.showQuotas, recommendations: tables.showRecommendations,
    fragmentation: tables.showFragmentation,
  };
  for (const [name, data] of pending) show[name](data);
  pending.clear();
  const known = samples.length > 1 && samples.at(-1).dispatched.length === agents.length;
  const rates = known ? agents.map((_, at) => rateOf(({ dispatched }) => dispatched[at] ?? 0) ?? 0) : null;
  if (agents.length) tables.showAgents(agents, rates);
  tables.tickAges();
  const groups = nodes.groups();
  tables.showSummary(groups);
  const { cordoned, unready } = tables.sumsOf(nodes.all());
  const listed = groups.reduce((sum, group) => sum + group.nodes.length, 0);
  const counts = [
    nodes.words ? `${number(listed)} of ${plural(nodes.size, "node")}` : plural(nodes.size, "node"),
    cordoned && `${number(cordoned)} cordoned`, unready && `${number(unready)} not ready`,
  ];
  setText(element("nodes-note"), lastEvent ? counts.filter(Boolean).join(", ") : "");
  setEmptyText();
  showConnection();
}

function setEmptyText() {
  const now = nodes.words && nodes.size ? "No node matches the filter." : lastEvent ? "No nodes." : "No event yet.";
  if (now === map.emptyText) return;
  map.emptyText = now;
  map.relayout();
}

function drawLegend() {
  map.drawLegend(element("scale"), document.querySelectorAll("canvas[data-key]"));
}

element("resource").addEventListener("change", (event) => map.show(Number(event.target.value)));
element("filter").addEventListener("input", (event) => {
  nodes.filter(event.target.value);
  setEmptyText();
});
element("queue-state").addEventListener("change", () => tables.showQueue());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawLegend);
new ResizeObserver(drawLegend).observe(element("scale"));
// A browser may keep the fields of a page that is loaded again.
map.show(Number(element("resource").value));
nodes.filter(element("filter").value);
// Once a second: who reads or selects a row is not disturbed more often.
setInterval(showTables, 1000);
connect();
