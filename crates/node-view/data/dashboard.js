"use strict";
// What comes from the cluster is written as text alone: names, messages and logs may be anybody's.

const EVERY = 2000;
const place = (id) => document.getElementById(id);

function element(tag, text, style) {
  const made = document.createElement(tag);
  made.textContent = text === null || text === undefined ? "-" : String(text);
  if (style) made.className = style;
  return made;
}

// Rows of cells, each a text, or a text with a style, or an element.
function table(id, titles, rows) {
  const made = rows.map(({ cells, style }) => {
    const row = document.createElement("tr");
    if (style) row.className = style;
    cells.forEach((cell, at) => {
      const data = document.createElement("td");
      if (titles[at].number) data.className = "number";
      data.append(cell instanceof Node ? cell : element("span", cell));
      row.append(data);
    });
    return row;
  });
  const head = document.createElement("tr");
  for (const title of titles) head.append(element("th", title.text, title.number ? "number" : ""));
  place(id).replaceChildren(head, ...made);
}

const text = (title) => ({ text: title });
const number = (title) => ({ text: title, number: true });
const millicores = (value) => (value === null || value === undefined ? "-" : `${value}m`);
const mebibytes = (value) =>
  value === null || value === undefined ? "-" : `${(value / 1048576).toFixed(1)} MiB`;

function age(seconds) {
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

// Of what some containers have no number for, the sum of the others.
function sum(containers, name) {
  const known = containers.map((one) => one[name]).filter((value) => typeof value === "number");
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}

function podStyle(pod) {
  const isRunning = pod.status === "Running";
  if (isRunning && (pod.ready === null || pod.ready === pod.expected)) return "good";
  const passing = ["Pending", "ContainerCreating", "PodInitializing", "Terminating", "Succeeded", "Completed", "Stopped"];
  return isRunning || passing.includes(pod.status) ? "dim" : "bad";
}

function showPods(pods) {
  const rows = [];
  for (const pod of pods) {
    const ready = pod.ready === null ? `-/${pod.expected}` : `${pod.ready}/${pod.expected}`;
    rows.push({
      cells: [pod.name, element("span", pod.status, podStyle(pod)), ready, pod.restarts,
        millicores(sum(pod.containers, "millicores")), mebibytes(sum(pod.containers, "memory")),
        age(pod.age), pod.ip],
    });
    for (const one of pod.containers) {
      const link = element("a", one.name);
      link.href = `#${encodeURIComponent(one.id)}`;
      rows.push({
        style: "container dim",
        cells: [link, one.state, "", one.restarts, millicores(one.millicores), mebibytes(one.memory), "", ""],
      });
    }
  }
  table("pods", [text("Pod, and logs of its containers"), text("Status"), text("Ready"), number("Restarts"),
    number("CPU"), number("Memory"), number("Age"), text("IP")], rows);
}

function show(snapshot) {
  const node = snapshot.node;
  place("node").textContent = `Longshore ${node.name}`;
  document.title = `${node.name} - Longshore`;
  place("about").textContent = [node.version, node.runtime, node.capacity].filter(Boolean).join(", ");
  const conditions = node.conditions.map((one) => {
    const expected = one.type === "Ready" ? "True" : "False";
    return element("li", `${one.type}: ${one.status}`, one.status === expected ? "good" : "bad");
  });
  if (node.health) conditions.push(element("li", `healthz: ${node.health}`, node.health === "ok" ? "good" : "bad"));
  place("conditions").replaceChildren(...conditions);
  place("errors").replaceChildren(
    ...snapshot.errors.map((why) => element("li", `no answer from ${why}`, "bad")));
  showPods(snapshot.pods);
  table("processes", [text("Process"), number("PID"), number("CPU"), number("Memory")],
    (snapshot.processes || []).map((one) => ({
      cells: [one.name, one.pid, `${one.cpu.toFixed(1)} %`, mebibytes(one.memory)],
    })));
  table("events", [number("Age"), text("Event")], snapshot.events.slice().reverse().map((event) => ({
    cells: [age(event.age), element("span", event.text, event.warning ? "bad" : "")],
  })));
}

async function fetched(path) {
  const answer = await fetch(path, { cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function showLog(pods) {
  let id = "";
  try {
    id = decodeURIComponent(location.hash.slice(1));
  } catch {
    // It is no container's.
  }
  place("log").hidden = id === "";
  if (id === "") return;
  const of = pods.flatMap((pod) => pod.containers.map((one) => ({ pod, one }))).find(({ one }) => one.id === id);
  place("log-title").textContent = of ? `Log of ${of.pod.name} ${of.one.name}` : "Log";
  let lines;
  try {
    lines = (await fetched(`log.json?container=${encodeURIComponent(id)}`)).lines.join("\n");
  } catch (error) {
    lines = error.message;
  }
  const shown = place("log-lines");
  const isAtEnd = shown.scrollTop + shown.clientHeight >= shown.scrollHeight - 4;
  shown.textContent = lines;
  if (isAtEnd) shown.scrollTop = shown.scrollHeight;
}

let timer;
let isRefreshing = false;
async function refresh() {
  if (isRefreshing) return;
  isRefreshing = true;
  clearTimeout(timer);
  try {
    const snapshot = await fetched("snapshot.json");
    show(snapshot);
    await showLog(snapshot.pods);
  } catch (error) {
    place("errors").replaceChildren(element("li", `no answer from the node: ${error.message}`, "bad"));
  }
  isRefreshing = false;
  timer = setTimeout(refresh, EVERY);
}

addEventListener("hashchange", refresh);
refresh();
