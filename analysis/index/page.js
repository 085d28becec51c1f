"use strict";

// Fills the panel, the lists of receipts and the search. Text enters the page as text alone, never
// as markup, and nothing is loaded.
(() => {
  const FIRST_ROWS = 100; // of a long list; the rest follows when it is asked for
  const [ID, FOLDER, FILE, JOB, CELL, ARM, REP, ROLE, PROBLEM] = Array(9).keys();
  const HEADERS = ["receipt", "job", "cell", "arm", "rep", "role", "explained by"];
  const find = (id) => document.getElementById(id);
  const { folders, rows, sets } = JSON.parse(find("receipts-json").textContent);
  const entries = JSON.parse(find("entries-json").textContent);
  const panel = find("panel");
  let opener = null; // where the focus returns to

  function element(tag, text = "", name = "") {
    const made = document.createElement(tag);
    made.textContent = text;
    if (name) made.className = name;
    return made;
  }

  // A fragment may have been typed, with nothing escaped or with a stray percent sign.
  function decoded(fragment) {
    try {
      return decodeURIComponent(fragment);
    } catch {
      return fragment;
    }
  }

  const byAnchor = new Map(entries.map((entry) => [decoded(entry.anchor), entry]));

  // ---- receipts ----

  const showCommand = (row) => `python -m bench show ${folders[row[FOLDER]].name}/${row[FILE]}`;

  function receiptRow(reference, away) {
    const line = element("tr");
    if (typeof reference === "string") {
      const cell = element("td");
      cell.colSpan = HEADERS.length;
      cell.append(element("code", reference), element("span", ` ${away}`, "quiet"));
      line.append(cell);
      return line;
    }
    const row = rows[reference];
    const link = element("a");
    link.href = `${folders[row[FOLDER]].link}/${encodeURIComponent(row[FILE])}`;
    link.append(element("code", row[ID]));
    const first = element("td");
    first.append(link);
    if (row[PROBLEM]) first.append(element("span", ` ${row[PROBLEM]}`, "alarm"));
    line.append(first);
    for (const place of [JOB, CELL, ARM, REP, ROLE]) line.append(element("td", row[place] ?? "–"));
    const command = element("td");
    command.append(element("code", showCommand(row)));
    line.append(command);
    return line;
  }

  function receiptTable(references, away = "") {
    const table = element("table");
    const head = table.createTHead().insertRow();
    for (const header of HEADERS) {
      const cell = element("th", header);
      cell.scope = "col";
      head.append(cell);
    }
    table.createTBody().append(...references.map((each) => receiptRow(each, away)));
    return table;
  }

  for (const list of document.querySelectorAll("details.receipts")) {
    list.addEventListener("toggle", () => {
      const box = list.querySelector(".box");
      if (!list.open || box.firstChild) return;
      const folder = folders.findIndex(({ link }) => link === list.dataset.folder);
      const own = [...rows.keys()].filter((idx) => rows[idx][FOLDER] === folder);
      box.append(receiptTable(own));
    });
  }

  // ---- the panel ----

  function fact(label, value) {
    const line = element("div");
    line.append(element("dt", label), element("dd", value));
    return line;
  }

  function command(words, text) {
    const line = element("li", `${words}: `);
    line.append(element("code", text));
    return line;
  }

  function fill(entry) {
    const references = sets[entry.set];
    find("panel-title").textContent = entry.title;
    find("panel-facts").replaceChildren(...entry.facts.map(([label, value]) => fact(label, value)));
    const count = references.length;
    find("panel-count").textContent = count ? `Receipts: ${count}` : "No receipts";
    const box = find("panel-receipts");
    const more = find("panel-all");
    box.hidden = !count;
    box.replaceChildren(receiptTable(references.slice(0, FIRST_ROWS), entry.away));
    box.scrollTop = 0;
    more.hidden = count <= FIRST_ROWS;
    more.textContent = `Show all ${count}`;
    more.onclick = () => {
      box.replaceChildren(receiptTable(references, entry.away));
      more.hidden = true;
      box.focus();
    };
    const commands = entry.rerun.map((each) => command("measure it again", each));
    const first = references.find((each) => typeof each === "number");
    if (first !== undefined) commands.unshift(command("explain one", showCommand(rows[first])));
    if (!count) commands.push(element("li", "It rests on the plan alone, or on what others published."));
    find("panel-commands").replaceChildren(...commands);
  }

  function unknown(name) {
    find("panel-title").textContent = name;
    find("panel-facts").replaceChildren(
      fact("not found", "This page has no number of this name. Search for a part of it."),
    );
    find("panel-count").textContent = "No receipts";
    find("panel-receipts").hidden = true;
    find("panel-all").hidden = true;
    find("panel-commands").replaceChildren();
  }

  function open(fragment, from) {
    const name = decoded(fragment);
    const entry = byAnchor.get(name);
    if (entry) fill(entry);
    else unknown(name.replace(/^number=/, ""));
    opener = from ?? (entry && find(entry.anchor));
    if (!panel.open) panel.showModal();
  }

  function openFromAddress() {
    const fragment = location.hash.slice(1);
    const name = decoded(fragment);
    if (byAnchor.has(name) || name.startsWith("number=")) {
      open(fragment);
      return;
    }
    const target = find(fragment);
    if (target instanceof HTMLDetailsElement) target.open = true;
    if (panel.open) panel.close();
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.number");
    const isPlain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);
    if (!link || !isPlain) return;
    event.preventDefault(); // following it would lose the reader's place
    const fragment = link.getAttribute("href").slice(1);
    history.replaceState(null, "", `#${fragment}`); // so that the address can be copied
    open(fragment, link);
  });
  panel.addEventListener("click", (event) => {
    if (event.target === panel) panel.close(); // the backdrop
  });
  panel.addEventListener("close", () => {
    history.replaceState(null, "", location.pathname + location.search);
    if (opener) opener.focus();
    opener = null;
  });
  find("panel-close").addEventListener("click", () => panel.close());
  window.addEventListener("hashchange", openFromAddress);

  // ---- search ----

  const lines = [...find("number-list").tBodies[0].rows];
  const words = lines.map((line, idx) => {
    const entry = entries[idx]; // numbers come first, in the list's order
    const facts = entry.facts.map(([, value]) => value);
    return [entry.title, ...facts].join(" ").toLowerCase();
  });

  function search() {
    const asked = find("words").value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    lines.forEach((line, idx) => {
      line.hidden = !asked.every((word) => words[idx].includes(word));
      count += !line.hidden;
    });
    const all = `${lines.length} numbers`;
    find("found").textContent = asked.length ? `${count} of ${all}` : all;
  }

  find("words").addEventListener("input", search);
  find("search").addEventListener("submit", (event) => event.preventDefault());

  // ---- paper ----

  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open], .receipts)")];
    for (const each of closed) each.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const each of closed) each.open = false;
  });

  search(); // a browser may have kept what was typed
  openFromAddress();
})();
