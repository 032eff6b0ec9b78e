// The tables. Rows are kept and changed in place, so that focus and selection stay.

const element = (id) => document.getElementById(id);

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function number(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

const percent = (permille) => `${(permille / 10).toFixed(0)} %`;

function age(since) {
  const seconds = Math.max(0, Math.floor((Date.now() - since) / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

// Shows one row for each entry. A cell is a text, or an object {text, since, share}; classes are those of the heads.
function fill(id, rows, classes) {
  const table = element(id);
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  while (body.rows.length < rows.length) {
    const row = body.insertRow();
    classes.forEach((name) => { row.insertCell().className = name; });
  }
  rows.forEach((cells, at) => cells.forEach((cell, column) => {
    const to = body.rows[at].cells[column];
    if (cell?.since !== undefined) {
      to.dataset.since = cell.since;
      setText(to, age(cell.since));
    } else if (cell?.share !== undefined) {
      showShare(to, cell);
    } else {
      setText(to, String(cell ?? ""));
    }
  }));
}

function showShare(cell, { text, share }) {
  let meter = cell.querySelector("meter");
  if (!meter) {
    cell.replaceChildren(document.createElement("meter"), document.createElement("span"));
    meter = cell.querySelector("meter");
  }
  meter.max = 1000;
  meter.value = share;
  meter.hidden = share === null;
  setText(cell.querySelector("span"), text);
}

// Shows the table, or the sentence that there is nothing.
function reveal(table, empty, has, more, leftOut) {
  element(table).parentElement.hidden = !has;
  element(empty).hidden = has;
  if (!more) return;
  element(more).hidden = !leftOut;
  setText(element(more), `${number(leftOut)} more are not listed.`);
}

export function tickAges() {
  for (const cell of document.querySelectorAll("[data-since]")) setText(cell, age(Number(cell.dataset.since)));
}

export function showSummary(rows) {
  const cells = rows.map((row) => [
    row.zone || "-", row.pool || "-", number(row.nodes), percent(row.cpu / row.nodes), percent(row.memory / row.nodes),
    percent(row.pods / row.nodes), row.out ? number(row.out) : "",
  ]);
  fill("summary-table", cells, ["", "", "n", "n", "n", "n", "n"]);
}

export function showQueue({ groups, leftOut }) {
  const name = (group) => `${group.namespace}/${group.owner ?? group.pod}`;
  const rows = groups.map((group) => [
    group.scheduler === "berth" ? name(group) : `${name(group)} (${group.scheduler})`, number(group.pods), group.state,
    { since: group.since }, group.priority, group.message,
  ]);
  fill("queue-table", rows, ["", "n", "", "n", "n", "why"]);
  reveal("queue-table", "queue-empty", rows.length > 0, "queue-more", leftOut);
}

export function showAgents(now, before) {
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  const all = now.agents.reduce((sum, agent) => sum + agent.dispatched, 0);
  const rows = now.agents.map((agent, at) => {
    const earlier = before?.agents[at]?.dispatched ?? agent.dispatched;
    const rate = seconds > 0 ? number(Math.max(0, agent.dispatched - earlier) / seconds) : "-";
    const share = all ? Math.round((1000 * agent.dispatched) / all) : 0;
    return [at, rate, { text: percent(share), share }, number(agent.lists), `${number(agent.bytes / 2 ** 20)} MiB`, number(agent.evictions)];
  });
  fill("agents-table", rows, ["n", "n", "n", "n", "n", "n"]);
}

export function showGangs({ gangs, leftOut }) {
  const rows = gangs.map((gang) => [
    `${gang.namespace}/${gang.name}`, gang.phase, gang.bound, gang.members, gang.minimum, [gang.message, gang.help].filter(Boolean).join(" "),
  ]);
  fill("gangs-table", rows, ["", "", "n", "n", "n", "why"]);
  reveal("gangs-table", "gangs-empty", rows.length > 0, "gangs-more", leftOut);
}

export function showQuotas({ quotas }) {
  const rows = quotas.flatMap((quota) => quota.resources.map((usage, at) => [
    at ? "" : quota.name, usage.resource, { text: usage.used, share: usage.permille }, usage.borrowed === "0" ? "" : usage.borrowed,
    usage.guaranteed ?? "-", usage.maximum ?? "-", at ? "" : quota.waiting || "", at ? "" : quota.reclaimed || "",
  ]));
  fill("quotas-table", rows, ["", "", "", "n", "n", "n", "n", "n"]);
  reveal("quotas-table", "quotas-empty", rows.length > 0);
}

export function showFragmentation(report) {
  const rows = (report?.entries ?? []).map((entry) => [
    `${entry.kind} ${entry.namespace}/${entry.name}`, number(entry.pods), number(entry.makesRoomFor), entry.help ?? entry.why,
  ]);
  fill("fragmentation", rows, ["", "n", "n", "why"]);
  reveal("fragmentation", "fragmentation-empty", rows.length > 0);
}
