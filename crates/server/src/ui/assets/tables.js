// Numbers, texts and tables. Rows are kept and changed in place, so that focus and selection stay.

const element = (id) => document.getElementById(id);

// Places of the shares of a node.
export const [CPU, MEMORY, PODS, EXTENDED, RESERVED] = [0, 1, 2, 3, 4];

const [whole, tenths, hundredths] = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));
// Of the server minus here, in milliseconds: ages are right also where this clock is wrong.
let clockOffset = 0;

export const number = (value) => whole.format(value);
export const rate = (value) => (value < 10 ? tenths : whole).format(value);
export const percent = (permille) => `${Math.abs(permille) < 100 ? tenths.format(permille / 10) : whole.format(permille / 10)} %`;
export const cores = (milli) => hundredths.format(milli / 1000);
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export function bytes(amount) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (amount >= 1024 && unit < units.length - 1) [amount, unit] = [amount / 1024, unit + 1];
  return `${(amount < 100 ? tenths : whole).format(amount)} ${units[unit]}`;
}

function age(since) {
  const seconds = Math.max(0, Math.floor((Date.now() + clockOffset - since) / 1000));
  const two = (large, unit, small, rest) => `${large}${unit}${rest ? ` ${rest}${small}` : ""}`;
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return two(Math.floor(seconds / 60), "m", "s", seconds % 60);
  if (seconds < 86400) return two(Math.floor(seconds / 3600), "h", "m", Math.floor(seconds / 60) % 60);
  return two(Math.floor(seconds / 86400), "d", "h", Math.floor(seconds / 3600) % 24);
}

export function setClock(serverNow) { clockOffset = serverNow - Date.now(); }

// Sorts n2 before n10.
export const natural = (text) => text.replace(/\d+/g, (digits) => digits.padStart(12, "0"));

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keeps one row for each item.
class Table {
  #body; #key; #columns;
  #rows = new Map();

  // Each column is [class, show(cell, item)]; the first one heads the row.
  constructor(id, key, columns) {
    const table = element(id);
    this.#body = table.tBodies[0];
    // On a phone a row is a grid, and some browsers then forget that it is one of a table.
    table.setAttribute("role", "table");
    for (const part of [table.tHead, this.#body]) part.setAttribute("role", "rowgroup");
    for (const row of table.tHead.rows) {
      row.setAttribute("role", "row");
      for (const cell of row.cells) cell.setAttribute("role", "columnheader");
    }
    [this.#key, this.#columns] = [key, columns];
  }

  show(items) {
    const keyed = new Map();
    for (const item of items) {
      let key = this.#key(item);
      while (keyed.has(key)) key += "+";
      keyed.set(key, item);
    }
    for (const [key, row] of this.#rows) {
      if (keyed.has(key)) continue;
      row.remove();
      this.#rows.delete(key);
    }
    let next = this.#body.firstElementChild;
    for (const [key, item] of keyed) {
      const row = this.#rows.get(key) ?? this.#make(key);
      this.#columns.forEach(([, show], at) => show(row.children[at], item));
      if (row === next) next = next.nextElementSibling;
      else this.#body.insertBefore(row, next);
    }
  }

  #make(key) {
    const row = document.createElement("tr");
    row.setAttribute("role", "row");
    this.#columns.forEach(([name], at) => {
      const cell = document.createElement(at ? "td" : "th");
      cell.setAttribute("role", at ? "cell" : "rowheader");
      if (!at) cell.scope = "row";
      cell.className = name;
      row.append(cell);
    });
    this.#rows.set(key, row);
    return row;
  }
}

const text = (name, of) => [name, (cell, item) => setText(cell, String(of(item) ?? ""))];

// A cell with the named parts; they are made once.
function parts(cell, ...names) {
  if (!cell.firstChild) {
    for (const name of names) cell.append(Object.assign(document.createElement("span"), { className: name }));
  }
  return cell.children;
}

// A number above a bar.
const share = (of) => ["n", (cell, item) => {
  const [value, track] = parts(cell, "", "bar");
  const permille = of(item);
  setText(value, permille === null ? "-" : percent(permille));
  if (!track.firstChild) track.append(document.createElement("span"));
  track.firstChild.style.width = `${Math.min(100, Math.max(0, permille ?? 0) / 10)}%`;
}];

// Two texts: the second one stands below, or behind it.
const pair = (name, of) => [name, (cell, item) => {
  const shown = parts(cell, "main", "sub");
  of(item).forEach((part, at) => setText(shown[at], part ?? ""));
}];

// Shows the table, or the sentence that there is nothing.
function reveal(name, has, leftOut) {
  element(`${name}-region`).hidden = !has;
  element(`${name}-empty`).hidden = has;
  const more = element(`${name}-more`);
  if (!more) return;
  more.hidden = !leftOut;
  setText(more, leftOut ? `${number(leftOut)} more are not listed.` : "");
}

const note = (name, content) => setText(element(`${name}-note`), content);

// Nodes by zone and pool.
const summary = new Table("summary-table", ({ zone, pool }) => `${zone}\n${pool}`, [
  text("label", ({ zone }) => zone || "no zone"), text("label", ({ pool }) => pool || "no pool"), text("n", ({ nodes }) => number(nodes.length)),
  share(({ sums }) => sums.cpu), share(({ sums }) => sums.memory), share(({ sums }) => sums.pods),
  text("n", ({ sums }) => sums.cordoned || ""), text("n", ({ sums }) => sums.unready || ""),
]);

// Returns the means of the shares, and how many nodes take no pods.
export function sumsOf(nodes) {
  const sums = { cpu: 0, memory: 0, pods: 0, cordoned: 0, unready: 0 };
  for (const { facts, shares } of nodes) {
    sums.cpu += shares[CPU];
    sums.memory += shares[MEMORY];
    sums.pods += shares[PODS];
    sums.cordoned += facts.cordoned ? 1 : 0;
    sums.unready += facts.ready ? 0 : 1;
  }
  const count = Math.max(1, nodes.length);
  return { ...sums, cpu: sums.cpu / count, memory: sums.memory / count, pods: sums.pods / count };
}

export function showSummary(groups) {
  element("summary-region").hidden = !groups.length;
  summary.show(groups.map((group) => ({ ...group, sums: sumsOf(group.nodes) })));
}

const ownerOf = ({ owner, pod }) => owner ?? `Pod ${pod}`;
const queue = new Table("queue-table", (group) => `${group.namespace}\n${ownerOf(group)}\n${group.scheduler}\n${group.priority}\n${group.state}`, [
  pair("name", (group) => [ownerOf(group), `${group.namespace}${group.scheduler && group.scheduler !== "berth" ? `, scheduler ${group.scheduler}` : ""}`]),
  text("n", ({ pods }) => number(pods)), ["state", (cell, { state }) => { setText(cell, state); cell.dataset.state = state; }],
  ["n age", (cell, { since }) => { cell.dataset.since = since; setText(cell, age(since)); }],
  text("n", ({ priority }) => priority), text("why", ({ message }) => message),
]);
let lastQueue = null;

export function showQueue(data) {
  lastQueue = data ?? lastQueue;
  if (!lastQueue) return;
  const { groups, leftOut } = lastQueue;
  const filter = element("queue-state");
  const states = [...new Set(groups.map(({ state }) => state))].sort();
  // The chosen state stays, also while no pod is in it.
  const wanted = ["", ...new Set([...states, filter.value].filter(Boolean))];
  if (wanted.join() !== [...filter.options].map(({ value }) => value).join()) {
    const chosen = filter.value;
    filter.replaceChildren(...wanted.map((state) => new Option(state || "all", state)));
    filter.value = chosen;
  }
  const listed = filter.value ? groups.filter(({ state }) => state === filter.value) : groups;
  queue.show(listed);
  reveal("queue", listed.length > 0, leftOut);
  element("queue-filter").hidden = groups.length === 0 && !filter.value;
  setText(element("queue-empty"), filter.value && groups.length ? `No pod that is listed is ${filter.value}.` : "No pod waits.");
}

// Says when the pods were last looked at: not each second if there are very many.
export function setQueueTime(at) { element("queue-walked").dataset.since = at; }

// The ages go on while nothing else changes.
export function tickAges() {
  for (const cell of document.querySelectorAll(".age[data-since]")) setText(cell, age(Number(cell.dataset.since)));
  const walked = element("queue-walked");
  const old = Number(walked.dataset.since ?? Infinity);
  setText(walked, Date.now() + clockOffset - old > 5000 ? `as of ${age(old)} ago` : "");
}

const agents = new Table("agents-table", ({ at }) => String(at), [
  text("", ({ at }) => at), text("n", ({ rate: now }) => (now === null ? "-" : rate(now))), share(({ share: part }) => part),
  text("n", ({ lists }) => number(lists)), text("n", (agent) => `${tenths.format(agent.bytes / 2 ** 20)} MiB`), text("n", ({ evictions }) => number(evictions)),
]);

// `rates` has the requests per second of each agent; null: not known yet.
export function showAgents(list, rates) {
  const all = rates?.reduce((sum, one) => sum + one, 0) ?? 0;
  const part = (at) => (all ? (1000 * rates[at]) / all : rates ? 0 : null);
  agents.show(list.map((agent, at) => ({ ...agent, at, rate: rates?.[at] ?? null, share: part(at) })));
  reveal("agents", list.length > 0);
  const size = list.reduce((sum, agent) => sum + agent.bytes, 0);
  note("agents", list.length ? `${plural(list.length, "agent")}${rates ? `, ${rate(all)} requests/s` : ""}, ${bytes(size)} cache` : "");
}

const gangs = new Table("gangs-table", ({ namespace, name }) => `${namespace}\n${name}`, [
  pair("name", ({ namespace, name }) => [name, namespace]), text("", ({ phase }) => phase),
  text("n", ({ bound, minimum }) => `${number(bound)} / ${number(minimum)}`), text("n", ({ members }) => number(members)),
  pair("why", ({ message, help }) => [message, help]),
]);

export function showGangs({ gangs: list, leftOut }) {
  gangs.show(list);
  reveal("gangs", list.length > 0, leftOut);
  const missing = list.filter(({ bound, minimum }) => bound < minimum).length;
  note("gangs", list.length && missing ? `${number(missing)} listed below their minimum` : "");
}

const POWERS = { n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].forEach((suffix, at) => { POWERS[suffix] = 1024 ** (at + 1); });

// Returns the number of a Kubernetes quantity, for lengths of bars only; null: none.
function quantity(amount) {
  const [, digits, suffix] = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)(\w*)$/.exec(amount ?? "") ?? [];
  return digits !== undefined && suffix in POWERS ? Number(digits) * POWERS[suffix] : null;
}

// What is used within the guarantee, what is borrowed, and a line where the guarantee ends. The whole bar is the maximum.
function quotaBar(cell, { used, guaranteed, maximum, permille }) {
  const [value, track] = parts(cell, "", "bar quota");
  if (!track.firstChild) track.append(...[0, 1, 2].map(() => document.createElement("span")));
  setText(value, permille === null || permille === undefined ? used : `${used} (${percent(permille)})`);
  const [now, own, most] = [quantity(used) ?? 0, quantity(guaranteed), quantity(maximum)];
  const end = Math.max(most ?? 0, own ?? 0, now) || 1;
  const width = (amount) => `${Math.min(100, (100 * amount) / end)}%`;
  const [within, over, line] = track.children;
  // Without a limit there is nothing to be measured against.
  track.hidden = most === null && own === null;
  within.style.width = width(Math.min(now, own ?? now));
  over.style.left = within.style.width;
  over.style.width = width(Math.max(0, now - (own ?? now)));
  line.hidden = own === null;
  line.style.left = width(own ?? 0);
}

const quotas = new Table("quotas-table", ({ quota, resource }) => `${quota.name}\n${resource}`, [
  ["name", (cell, { quota, again }) => { const [name] = parts(cell, ""); setText(name, quota.name); name.className = again ? "hidden-text" : ""; }],
  text("", ({ resource }) => resource), ["used", quotaBar], text("n", ({ borrowed }) => (quantity(borrowed) === 0 ? "" : borrowed)),
  text("n", ({ guaranteed }) => guaranteed ?? "-"), text("n", ({ maximum }) => maximum ?? "-"),
  text("n", ({ quota, again }) => (again ? "" : quota.waiting || "")), text("n", ({ quota, again }) => (again ? "" : quota.reclaimed || "")),
]);

export function showQuotas({ quotas: list }) {
  quotas.show(list.flatMap((quota) => {
    const resources = quota.resources.length ? quota.resources : [{ resource: "-", used: "-", borrowed: "0", guaranteed: null, maximum: null, permille: null }];
    return resources.map((usage, at) => ({ ...usage, quota, again: at > 0 }));
  }));
  reveal("quotas", list.length > 0);
  element("quotas-help").hidden = !list.length;
  const borrowers = list.filter(({ resources }) => resources.some(({ borrowed }) => quantity(borrowed) > 0)).map(({ name }) => name);
  const named = borrowers.length > 5 ? [...borrowers.slice(0, 5), `${number(borrowers.length - 5)} more`] : borrowers;
  note("quotas", borrowers.length ? `borrowing: ${named.join(", ")}` : "");
}

const sizes = new Table("recommendations-table", ({ namespace, kind, name }) => `${namespace}\n${kind}\n${name}`, [
  pair("name", ({ namespace, kind, name }) => [`${kind} ${name}`, namespace]), text("n", ({ pods }) => number(pods)),
  ...[["cpuMilli", cores], ["memory", bytes]].flatMap(([of, show]) => [0, 1].map((at) => text("n", (workload) => show(workload.sizes[of][at])))),
]);

export function showRecommendations(report) {
  const largest = report?.largest ?? [];
  sizes.show(largest);
  reveal("recommendations", largest.length > 0, report?.leftOut);
  if (!report) {
    setText(element("recommendations-empty"), "No recommendations: the recommender is off, has not made a round yet, or another process leads.");
    return note("recommendations", "");
  }
  setText(element("recommendations-empty"), "No workload requests more than recommended.");
  const both = (of, show) => `${show(report.sizes[of][0])} requested, ${show(report.sizes[of][1])} recommended`;
  note("recommendations", report.workloads ? `${plural(report.workloads, "workload")}; cores: ${both("cpuMilli", cores)}; memory: ${both("memory", bytes)}` : "");
}

const advice = new Table("fragmentation-table", ({ kind, namespace, name }) => `${kind}\n${namespace}\n${name}`, [
  pair("name", ({ kind, namespace, name }) => [`${kind} ${name}`, namespace]), text("n", ({ pods }) => number(pods)),
  text("n", ({ makesRoomFor }) => number(makesRoomFor)), text("why", ({ help, why }) => help ?? why),
]);

export function showFragmentation(report) {
  const entries = report?.entries ?? [];
  advice.show(entries);
  reveal("fragmentation", entries.length > 0, report?.leftOut);
  note("fragmentation", report ? `looked in ${tenths.format(report.seconds)} s` : "");
}
