// The page: reads the stream of events and keeps what it shows. Texts from the stream are never taken for HTML.

import { HeatMap } from "./heatmap.js";
import * as tables from "./tables.js";

// A second without an event is late: one comes each second.
const LATE_MS = 4000;
const RATES_KEPT = 120;

const element = (id) => document.getElementById(id);
const map = new HeatMap(element("heatmap"), element("map-frame"), element("node-details"), element("scale"));
const pending = new Map(); // the newest data of each table, by the name of its event
let totals = null;
let agents = null;
let lastEvent = 0;
const rates = [];

// For tests.
window.berthUi = {
  get longestPaintMs() { return map.longestPaintMs; },
  nodes: () => map.size,
};

function connect() {
  const stream = new EventSource("stream");
  const on = (name, read) => stream.addEventListener(name, (event) => {
    lastEvent = performance.now();
    read(JSON.parse(event.data));
  });
  on("hello", () => {
    map.clear();
    totals = agents = null;
    showConnection();
  });
  on("nodes", (data) => map.apply(data));
  on("use", (data) => map.applyShares(data.of));
  on("totals", showTotals);
  for (const name of ["queue", "agents", "gangs", "quotas", "fragmentation"]) {
    on(name, (data) => pending.set(name, data));
  }
  stream.onerror = showConnection;
  // A browser gives up after an answer that is not a stream, as while the process starts again.
  const watchdog = setInterval(() => {
    if (stream.readyState === EventSource.CLOSED) {
      clearInterval(watchdog);
      setTimeout(connect, 3000);
    }
    showConnection();
  }, 1000);
}

function showConnection() {
  const age = performance.now() - lastEvent;
  const live = lastEvent > 0 && age < LATE_MS;
  const badge = element("connection");
  const text = live ? "live" : lastEvent > 0 ? `reconnecting: ${Math.round(age / 1000)} s old` : "connecting";
  if (badge.textContent !== text) badge.textContent = text;
  badge.dataset.state = live ? "live" : "reconnecting";
}

function showTotals(now) {
  const seconds = totals ? (now.at - totals.at) / 1000 : 0;
  const rate = (name) => (seconds > 0 ? Math.max(0, now[name] - totals[name]) / seconds : null);
  const scheduled = rate("scheduled");
  const shown = (value) => (value === null ? "-" : tables.number(value));
  tables.setText(element("tile-nodes"), tables.number(now.nodes));
  tables.setText(element("tile-pods"), tables.number(now.pods));
  tables.setText(element("tile-waiting"), tables.number(now.waiting));
  tables.setText(element("tile-rate"), shown(scheduled));
  tables.setText(element("tile-conflicts"), shown(rate("conflicts")));
  const lookups = now.listHits + now.listMisses;
  tables.setText(element("tile-hits"), lookups ? `${Math.floor((100 * now.listHits) / lookups)} %` : "-");
  const leader = element("leader");
  leader.hidden = false;
  tables.setText(leader, now.leading ? "leads" : "does not lead");
  if (scheduled !== null) {
    rates.push(scheduled);
    if (rates.length > RATES_KEPT) rates.shift();
    drawRates();
  }
  totals = now;
}

function drawRates() {
  const canvas = element("rate-line");
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const highest = Math.max(1, ...rates);
  context.clearRect(0, 0, width, height);
  context.strokeStyle = getComputedStyle(canvas).color;
  context.beginPath();
  rates.forEach((rate, at) => {
    context.lineTo((at / (RATES_KEPT - 1)) * width, height - 1 - (rate / highest) * (height - 2));
  });
  context.stroke();
}

function showTables() {
  const take = (name, show) => {
    if (!pending.has(name)) return;
    const data = pending.get(name);
    pending.delete(name);
    show(data);
  };
  take("queue", tables.showQueue);
  // Without an event, nothing was dispatched.
  const latest = pending.get("agents")?.agents ?? agents?.agents;
  pending.delete("agents");
  if (latest) {
    const now = { at: performance.now(), agents: latest };
    tables.showAgents(now, agents);
    agents = now;
  }
  take("gangs", tables.showGangs);
  take("quotas", tables.showQuotas);
  take("fragmentation", tables.showFragmentation);
  tables.tickAges();
  tables.showSummary(map.summary());
}

element("resource").addEventListener("change", (event) => map.show(Number(event.target.value)));
element("filter").addEventListener("input", (event) => map.filter(event.target.value));
// Once a second: who reads or selects a row is not disturbed more often.
setInterval(showTables, 1000);
connect();
